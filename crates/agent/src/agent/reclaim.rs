//! Reclaims memory and disk: [`keep`] watches the machine and the disk usage of pods, removes unused images
//! and evicts pods, one at a time.
//!
//! ```text
//!   eviction::watch ──▶ pressure ──▶ node, admission
//!          └──▶ order ──▶ unused images ──nothing freed──▶ one pod, until it is gone
//!   every 10 s: pods over their own limits ──▶ evicted          every 5 min: images by age and disk
//! ```
//!
//! `eviction` and `gc` decide. While nothing runs short, only the machine and the pods with limits of their
//! own are measured.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use cri::v1;
use host::os::system;
use objects::kubelet_config::EvictionSignal;
use objects::resources::EPHEMERAL_STORAGE;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use tracing::{info, warn};

use super::AgentMessage;
use crate::node::{self, Description, Image};
use crate::node_state::NodeState;
use crate::observability::events::AgentEvent;
use crate::observability::recorder::Recorder;
use crate::pods::worker::Termination;
use crate::publications::Publications;
use crate::reclaim::eviction::{self, UsageQuery, collect};
use crate::reclaim::gc::{self, ImageDisk, ImagePolicy};
use crate::runtime::Runtime;
use crate::runtime::cgroups::PodCgroups;
use crate::supervisor::millis;
use client::ErrorLog;
use lifecycle::admission;
use lifecycle::eviction::{
    Eviction, EvictionThreshold, PodUsage, Pressure, Reclaim, Usage, Victim, limits, over_limit,
    victim,
};
use lifecycle::spec::Pod;
use lifecycle::status::TerminationCause;

/// Interval between two checks of the disk usage of pods. Upstream's value.
const STORAGE_EVERY: Duration = Duration::from_secs(10);
/// Interval between two image collections. Upstream's value.
const IMAGES_EVERY: Duration = Duration::from_secs(5 * 60);
/// Time to wait for an evicted pod after its grace period. Upstream's value.
const PATIENCE: Duration = Duration::from_secs(30);
/// Interval between two requests to a runtime that does not answer.
const AGAIN: Duration = Duration::from_secs(5);

/// Inputs of reclaiming.
#[derive(Debug, Clone)]
pub(super) struct Settings {
    node: String,
    root: PathBuf,
    limits: Vec<EvictionThreshold>,
    of_node: node::Settings,
}

impl Settings {
    pub(super) fn of(description: &Description, root: PathBuf) -> Settings {
        Settings {
            node: description.name.clone(),
            root,
            limits: limits(&description.config, description.os),
            of_node: description.settings.clone(),
        }
    }
}

/// Sends the reported pressure to admission.
pub(super) async fn update_admission(
    node: Arc<RwLock<admission::Node>>,
    mut pressure: watch::Receiver<Pressure>,
) {
    loop {
        let now = *pressure.borrow_and_update();
        node.write().unwrap_or_else(PoisonError::into_inner).pressures = names(now);
        if pressure.changed().await.is_err() {
            return;
        }
    }
}

fn names(pressure: Pressure) -> Vec<String> {
    let all = [
        (pressure.memory, "MemoryPressure"),
        (pressure.disk, "DiskPressure"),
        (pressure.pids, "PIDPressure"),
    ];
    all.into_iter().filter(|(is, _)| *is).map(|(_, name)| name.to_owned()).collect()
}

/// Runs as long as it is polled.
pub(super) async fn run(
    (runtime, state, publications): (Arc<Runtime>, Arc<NodeState>, Arc<Publications>),
    recorder: Recorder,
    settings: Settings,
    pressure: watch::Sender<Pressure>,
    messages: mpsc::UnboundedSender<AgentMessage>,
) {
    let images = place_of_images(&runtime.cri).await.unwrap_or_else(|| settings.root.clone());
    let image_disk = differ(&settings.root, &images);
    let places = eviction::Places { root: settings.root.clone(), images: images.clone() };
    let transition = settings.of_node.pressure_transition;
    let eviction = Eviction::new(settings.limits.clone(), transition, image_disk);
    let (order, orders) = mpsc::channel(1);
    let cgroups = runtime.cgroups.clone();
    let of_pods = move || {
        let used = cgroups.as_ref().and_then(PodCgroups::used_by_all);
        used.as_ref().map(eviction::left_of_share).unwrap_or_default()
    };
    let watching = eviction::watch(eviction, places, of_pods, pressure, order);
    let reclaimer = Reclaimer {
        began: Instant::now(),
        known: gc::Images::default(),
        usage_errors: ErrorLog::default(),
        image_errors: ErrorLog::default(),
        runtime,
        state,
        publications,
        recorder,
        settings,
        images,
        image_disk,
        messages,
    };
    tokio::join!(watching, reclaimer.run(orders));
}

/// Returns the directory of the runtime's images, or `None` if the runtime does not report one that
/// exists here. Asks until the runtime answers.
async fn place_of_images(runtime: &cri::Client) -> Option<PathBuf> {
    let mut errors = ErrorLog::default();
    let answer = loop {
        match runtime.call(v1::ImageFsInfoRequest::default()).await {
            Ok(answer) => break answer,
            Err(error) if error.is_unimplemented() => return None,
            Err(error) => {
                if errors.failed(&error) {
                    let retry_in_ms = millis(AGAIN);
                    warn!(%error, retry_in_ms, "failed to read the runtime's image file system");
                }
                tokio::time::sleep(AGAIN).await;
            }
        }
    };
    if let Some(failures) = errors.recovered() {
        info!(failures, "read the runtime's image file system");
    }
    let first = answer.image_filesystems.into_iter().next()?;
    let path = PathBuf::from(first.fs_id?.mountpoint);
    path.exists().then_some(path)
}

/// Returns true if two paths are on different file systems.
fn differ(one: &Path, other: &Path) -> bool {
    matches!(system::same_file_system(one, other), Ok(false))
}

struct Reclaimer {
    runtime: Arc<Runtime>,
    state: Arc<NodeState>,
    publications: Arc<Publications>,
    recorder: Recorder,
    settings: Settings,
    /// The directory of images.
    images: PathBuf,
    /// True if images have a file system of their own.
    image_disk: bool,
    began: Instant,
    known: gc::Images,
    usage_errors: ErrorLog,
    image_errors: ErrorLog,
    messages: mpsc::UnboundedSender<AgentMessage>,
}

impl Reclaimer {
    async fn run(mut self, mut orders: mpsc::Receiver<Reclaim>) {
        let timer = |every: Duration| {
            let mut timer = tokio::time::interval_at(Instant::now() + every, every);
            timer.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
            timer
        };
        let (mut storage, mut images) = (timer(STORAGE_EVERY), timer(IMAGES_EVERY));
        // Images that are on the disk now count as detected now.
        self.look_at_images().await;
        loop {
            tokio::select! {
                order = orders.recv() => {
                    let Some(order) = order else { return };
                    self.reclaim(&order).await;
                    // An order that arrived in the meantime is out of date.
                    let _ = orders.try_recv();
                }
                _ = storage.tick(), if self.settings.of_node.local_storage_isolation => {
                    self.check_storage().await;
                }
                _ = images.tick() => self.collect_images().await,
            }
        }
    }

    fn active(&self) -> Arc<Vec<Arc<Pod>>> {
        self.publications.active()
    }

    /// Frees some of the resource that runs short.
    async fn reclaim(&mut self, order: &Reclaim) {
        warn!(resource = order.resource, signal = %order.signal, "eviction threshold met");
        let event = AgentEvent::ReclaimsFor { resource: order.resource.to_owned() };
        self.recorder.node(&self.settings.node, event);
        // Let the removal take effect before a pod is evicted.
        if order.collect_garbage && self.remove_unused(u64::MAX).await > 0 {
            return;
        }
        let pods = self.active();
        let processes = order.signal == EvictionSignal::PidAvailable;
        let memory = matches!(
            order.signal,
            EvictionSignal::MemoryAvailable | EvictionSignal::AllocatableMemoryAvailable
        );
        let query = UsageQuery { runtime: true, disk: !memory && !processes, processes };
        let usages = match collect(&self.runtime, self.state.node_env(), &pods, query).await {
            Ok(usages) => usages,
            Err(error) => {
                warn!(%error, "failed to read pod usage; skipping eviction");
                return;
            }
        };
        let of = |pod: &Pod| usages.get(&pod.metadata.uid).cloned();
        let used = with_usage(&pods, of);
        let grace = self.settings.of_node.eviction_max_pod_grace;
        match victim(order, &used, self.image_disk, grace) {
            Some(victim) => {
                let disruption = Some(victim.message.clone());
                self.evict(victim, disruption).await;
            }
            None => warn!(resource = order.resource, "no pod can be evicted"),
        }
    }

    /// Evicts pods that exceed their limits of disk usage.
    async fn check_storage(&mut self) {
        let limited = |pod: &&Arc<Pod>| has_storage_limit(pod);
        let pods: Vec<Arc<Pod>> = self.active().iter().filter(limited).cloned().collect();
        if pods.is_empty() {
            return;
        }
        let runtime = pods.iter().any(|pod| has_ephemeral_limit(pod));
        let query = UsageQuery { runtime, disk: true, processes: false };
        let usages = match collect(&self.runtime, self.state.node_env(), &pods, query).await {
            Ok(usages) => usages,
            Err(error) => {
                if self.usage_errors.failed(&error) {
                    let retry_in_ms = millis(STORAGE_EVERY);
                    warn!(%error, retry_in_ms, "failed to read the disk usage of pods with limits");
                }
                return;
            }
        };
        if let Some(failures) = self.usage_errors.recovered() {
            info!(failures, "read the disk usage of pods with limits again");
        }
        let used = with_usage(&pods, |pod| usages.get(&pod.metadata.uid).cloned());
        for victim in over_limit(&used, self.image_disk) {
            self.evict(victim, None).await;
        }
    }

    /// Evicts a pod and waits until it has released its resources.
    async fn evict(&self, victim: Victim, disruption: Option<String>) {
        let Victim { pod_uid, message, grace_seconds } = victim;
        info!(pod = pod_uid, why = message, "evicted a pod");
        let cause = TerminationCause { reason: "Evicted".to_owned(), message, disruption };
        let termination = Termination { cause, grace: Some(grace_seconds) };
        if self.messages.send(AgentMessage::Evict(pod_uid.clone(), termination)).is_err() {
            return;
        }
        let grace = Duration::from_secs(u64::try_from(grace_seconds).unwrap_or(0));
        let mut active = self.publications.active.subscribe();
        let gone = |pods: &Arc<Vec<Arc<Pod>>>| !pods.iter().any(|pod| pod.metadata.uid == pod_uid);
        // After that time the next pod may be evicted.
        let _ = tokio::time::timeout(grace + PATIENCE, active.wait_for(gone)).await;
    }

    fn now(&self) -> gc::Millis {
        gc::Millis::try_from(self.began.elapsed().as_millis()).unwrap_or(gc::Millis::MAX)
    }

    fn policy(&self) -> ImagePolicy {
        ImagePolicy::of(&self.settings.of_node)
    }

    /// Records the images and which of them are in use, and returns the time of the record, or `None` if
    /// the runtime failed. A selection of images is valid only for that time.
    async fn look_at_images(&mut self) -> Option<gc::Millis> {
        let (images, used, sandbox) = match seen(&self.runtime.cri).await {
            Ok(listed) => listed,
            Err(error) => {
                if self.image_errors.failed(&error) {
                    warn!(%error, "failed to list the images in use; no image is removed");
                }
                return None;
            }
        };
        if let Some(failures) = self.image_errors.recovered() {
            info!(failures, "listed the images in use again");
        }
        let now = self.now();
        self.known.note(&images, &used, &sandbox, now);
        Some(now)
    }

    /// Removes images that were unused for long, and more of them when the disk is almost full.
    async fn collect_images(&mut self) {
        let Some(now) = self.look_at_images().await else { return };
        let policy = self.policy();
        self.remove(self.known.expired(&policy, now)).await;
        let disk = match system::file_system(&self.images) {
            Ok(disk) => disk,
            Err(error) => {
                let path = self.images.display();
                return warn!(%path, %error, "failed to measure the file system of images");
            }
        };
        let disk = ImageDisk { capacity: disk.capacity, available: disk.available };
        let wanted = disk.to_free(&policy);
        if wanted == 0 {
            return;
        }
        let freed = self.remove_unused(wanted).await;
        if freed < wanted {
            let error = gc::not_enough(wanted, freed);
            self.recorder.node(&self.settings.node, AgentEvent::FreeDiskSpaceFailed { error });
        }
    }

    /// Removes unused images until `bytes` are free. Returns how many bytes were freed.
    async fn remove_unused(&mut self, bytes: u64) -> u64 {
        let Some(now) = self.look_at_images().await else { return 0 };
        let chosen = self.known.free(bytes, &self.policy(), now);
        self.remove(chosen).await
    }

    async fn remove(&self, chosen: gc::ImagesToRemove) -> u64 {
        let mut removed = 0_u64;
        for (id, bytes) in chosen.images {
            let image = v1::ImageSpec { image: id.clone(), ..Default::default() };
            match self.runtime.cri.call(v1::RemoveImageRequest { image: Some(image) }).await {
                Ok(_) => {
                    info!(image = id, bytes, "removed an image");
                    removed = removed.saturating_add(bytes);
                }
                Err(error) => {
                    let error = format!("{id}: {error}");
                    self.recorder.node(&self.settings.node, AgentEvent::ImageGcFailed { error });
                }
            }
        }
        removed
    }
}

/// Returns the images, the names of the images in use, and the sandbox image.
async fn seen(runtime: &cri::Client) -> Result<(Vec<Image>, BTreeSet<String>, String), cri::Error> {
    let images = runtime.call(v1::ListImagesRequest::default()).await?.images;
    let containers = runtime.call(v1::ListContainersRequest::default()).await?.containers;
    let status = runtime.call(v1::StatusRequest { verbose: true }).await?;
    let names = containers.into_iter().flat_map(|container| {
        let image = container.image.map(|image| image.image);
        [Some(container.image_ref), image, Some(container.image_id)]
    });
    let used = names.flatten().filter(|name| !name.is_empty()).collect();
    Ok((images.into_iter().map(Image::from).collect(), used, sandbox_image(&status)))
}

/// Returns the sandbox image from containerd's configuration. Newer runtimes pin it instead, which has
/// the same effect.
fn sandbox_image(status: &v1::StatusResponse) -> String {
    let config = status.info.get("config").and_then(|text| serde_json::from_str(text).ok());
    let config: serde_json::Value = config.unwrap_or_default();
    config["sandboxImage"].as_str().unwrap_or_default().to_owned()
}

fn with_usage<'a>(
    pods: &'a [Arc<Pod>],
    usage: impl Fn(&Pod) -> Option<Usage>,
) -> Vec<PodUsage<'a>> {
    pods.iter().map(|pod| PodUsage { pod, usage: usage(pod) }).collect()
}

fn has_ephemeral_limit(pod: &Pod) -> bool {
    pod.containers()
        .any(|(_, container)| container.resources.limits.contains_key(EPHEMERAL_STORAGE))
}

fn has_storage_limit(pod: &Pod) -> bool {
    let limited = |volume: &lifecycle::spec::Volume| {
        volume.empty_dir.as_ref().is_some_and(|of| of.size_limit.is_some())
    };
    has_ephemeral_limit(pod) || pod.spec.volumes.iter().any(limited)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn pressures_have_the_names_of_conditions() {
        assert_eq!(names(Pressure::default()), [""; 0]);
        let all = Pressure { memory: true, disk: true, pids: true };
        assert_eq!(names(all), ["MemoryPressure", "DiskPressure", "PIDPressure"]);
    }

    #[test]
    fn only_pods_with_a_limit_are_measured() {
        let check = |spec: serde_json::Value, wanted: (bool, bool)| {
            let pod: Pod = serde_json::from_value(json!({ "spec": spec })).unwrap();
            assert_eq!((has_storage_limit(&pod), has_ephemeral_limit(&pod)), wanted, "{pod:?}");
        };
        let plain = json!({"name": "c", "resources": {"limits": {"memory": "1Gi"}}});
        check(
            json!({"containers": [plain], "volumes": [{"name": "v", "emptyDir": {}}]}),
            (false, false),
        );
        let volume = json!({"name": "v", "emptyDir": {"sizeLimit": "1Mi"}});
        check(json!({"volumes": [volume]}), (true, false));
        let limited = json!({"name": "c", "resources": {"limits": {"ephemeral-storage": "1Gi"}}});
        check(json!({"containers": [limited]}), (true, true));
    }

    #[test]
    fn the_sandbox_image_is_read_from_containerds_status() {
        let mut status = v1::StatusResponse::default();
        assert_eq!(sandbox_image(&status), "");
        let config = json!({"sandboxImage": "registry/pause:3.6"}).to_string();
        status.info.insert("config".to_owned(), config);
        assert_eq!(sandbox_image(&status), "registry/pause:3.6");
    }
}
