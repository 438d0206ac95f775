//! Starting of sandboxes and containers, as planned.
//!
//! An error that keeps a container from starting becomes its waiting reason, with upstream's text.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use client::Backoff;
use cri::v1;
use thiserror::Error;
use tokio::sync::OwnedSemaphorePermit;
use tracing::info;

use super::{Next, PodContext, RESYNC, RETRY, Worker};
use crate::cpusets::tracker::{RebalanceError, StartGuard, TrackedContainer};
use crate::observability::events::AgentEvent;
use crate::runtime::hooks;
use crate::runtime::images::{ImageLookup, ImageRequest, PresentImage, credentials};
use crate::runtime::lower::{
    self, ContainerAffinity, ContainerInput, DeviceAttachments, DnsNotice, EnvFile, MountedVolume,
    MountedVolumes, security,
};
use lifecycle::observed::{ContainerState, RuntimeId, RuntimePod};
use lifecycle::spec::{Container, ImageSource, Pod, Role};
use lifecycle::status::Waiting;
use lifecycle::sync_plan::{Kill, KillReason, Plan};

/// The wait after a sandbox could not be created. The runtime may be busy undoing a sandbox that a previous agent
/// began to create.
const SANDBOX_RETRY: Backoff = Backoff::new(Duration::from_secs(1), RETRY);

/// The largest file of variables that is read, in bytes. Upstream's value.
const LONGEST_ENV_FILE: u64 = 64 * 1024;

/// The reason why a container was not started.
struct StartFailure {
    waiting: Waiting,
    /// The time until the next attempt.
    after: Duration,
    pace: RetryPace,
}

/// The reason why the next attempt has to wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RetryPace {
    /// The worker's own hold.
    Held,
    /// The back-off of its image pulls, or of its restarts.
    BackOff,
}

impl StartFailure {
    fn new(reason: &str, message: String) -> StartFailure {
        let waiting = Waiting { reason: reason.to_owned(), message };
        StartFailure { waiting, after: RETRY, pace: RetryPace::Held }
    }

    fn backing_off(self) -> StartFailure {
        StartFailure { pace: RetryPace::BackOff, ..self }
    }
}

impl Worker {
    /// Creates the sandbox and starts containers.
    pub(super) async fn start(&mut self, sync: &mut PodContext, plan: &Plan) -> Next {
        let mut permit = self.context.runtime.starts.clone().acquire_owned().await.ok();
        sync.refresh(&self.context.state);
        let pod = Arc::clone(&sync.pod);
        let pod = pod.as_ref();
        if let Some(attempt) = plan.create_sandbox {
            if let Err(wait) = self.make_sandbox(sync, attempt).await {
                return self.hold(wait);
            }
            // A hook can delay the start of the containers for a long time.
            let pod = self.pod_with_last_status();
            self.update_status(&pod, true);
        }
        let mut failed: Vec<(&String, StartFailure)> = Vec::new();
        for (role, name) in &plan.start {
            let Some((_, container)) = pod.container(name) else { continue };
            let started = match self.may_start(pod, *role, container) {
                Ok(()) => {
                    let of_host = lower::security::is_host_process(pod, container);
                    self.context.metrics.starting(*role, of_host);
                    let started = self.start_one(sync, *role, container, &mut permit).await;
                    if let Err(StartFailure { waiting, .. }) = &started {
                        self.context.metrics.not_started(*role, of_host, &waiting.reason);
                    }
                    started
                }
                Err(backs_off) => Err(backs_off),
            };
            if let Err(StartFailure { waiting: Waiting { reason, message }, .. }) = &started {
                if reason.ends_with("BackOff") {
                    self.sync_errors.postpone();
                } else {
                    let step = format_args!("start container {name}");
                    self.sync_errors.add(step, format_args!("{reason}: {message}"));
                }
            }
            match started {
                Ok(()) => {
                    self.status_inputs.waiting.remove(name);
                }
                Err(not_started) => {
                    self.status_inputs.waiting.insert(name.clone(), not_started.waiting.clone());
                    failed.push((name, not_started));
                    // Init containers start one after the other.
                    if *role == Role::Init {
                        break;
                    }
                }
            }
        }
        drop(permit);
        match failed.iter().map(|(_, not_started)| not_started.after).min() {
            None => Next::Now,
            Some(after) => {
                // Report the reason immediately, not with the next attempt.
                if let Ok(observed) =
                    crate::runtime::relist::inspect(&self.context.runtime.cri, &pod.metadata.uid)
                        .await
                {
                    self.observe(observed);
                }
                self.hold_containers(failed);
                let pod = self.pod_with_last_status();
                self.update_status(&pod, true);
                self.probe();
                Next::After(after)
            }
        }
    }

    /// Keeps containers from being created again too soon. A container that was created and did not start has
    /// no back-off either, unless the runtime considers it exited.
    fn hold_containers(&mut self, failed: Vec<(&String, StartFailure)>) {
        for (name, StartFailure { waiting, after, pace }) in failed {
            let found = self.observed.container(name);
            if pace == RetryPace::Held
                || found.is_some_and(|of| of.state == ContainerState::Created)
            {
                self.holds.hold_container(name, after, waiting);
            }
        }
    }

    /// Returns an error if a container must not be created yet.
    fn may_start(
        &mut self,
        pod: &Pod,
        role: Role,
        container: &Container,
    ) -> Result<(), StartFailure> {
        match self.holds.of_container(&container.name) {
            Some((after, waiting)) => Err(StartFailure { waiting, after, pace: RetryPace::Held }),
            None => self.check_backoff(pod, role, container),
        }
    }

    /// Creates the sandbox. The error is the time to wait before the next attempt.
    async fn make_sandbox(&mut self, sync: &mut PodContext, attempt: u32) -> Result<(), Duration> {
        let pod = Arc::clone(&sync.pod);
        let pod = pod.as_ref();
        let failed = |worker: &mut Worker, error: String| {
            worker.sync_errors.add("create the sandbox", &error);
            worker.context.recorder.pod(pod, AgentEvent::SandboxFailed { error });
            RETRY
        };
        if let Err(error) = self.context.dependencies.prepare_claims(pod).await {
            self.sync_errors.add("prepare dynamic resources", &error);
            let error = format!("prepare dynamic resources: {error}");
            self.context.recorder.pod(pod, AgentEvent::ClaimsFailed { error });
            // As upstream, which retries only with its periodic sync of all pods.
            return Err(RESYNC);
        }
        let sandbox = sync.sandbox(attempt).map_err(|error| failed(self, error.to_string()))?;
        for notice in &sandbox.notices {
            let message = notice.to_string();
            let event = match notice {
                DnsNotice::NoClusterDns { .. } => AgentEvent::MissingClusterDns { message },
                DnsNotice::Servers(_) | DnsNotice::Searches(_) => AgentEvent::DnsLimits { message },
            };
            self.context.recorder.pod(pod, event);
        }
        let handler = match &pod.spec.runtime_class_name {
            None => String::new(),
            Some(class) => match self.context.dependencies.handler(class).await {
                Ok(handler) => handler,
                Err(error) => return Err(failed(self, refusal(&error))),
            },
        };
        let mut config = sandbox.config.clone();
        let unreported = self.context.runtime.classes().fit_sandbox(&mut config);
        if let Some(unreported) = unreported.first() {
            return Err(failed(self, unreported.to_string()));
        }
        self.context
            .runtime
            .check_sandbox(&config)
            .map_err(|error| failed(self, error.to_string()))?;
        make_directory(&config.log_directory).map_err(|error| failed(self, error.to_string()))?;
        let request =
            v1::RunPodSandboxRequest { config: Some(config), runtime_handler: handler.clone() };
        let begun = Instant::now();
        let made = self.context.runtime.cri.call(request).await;
        self.context.metrics.sync.sandbox(&handler, begun.elapsed());
        match made {
            Ok(_) => self.sandbox_failures = 0,
            Err(error) => {
                failed(self, error.rpc_text());
                self.sandbox_failures = self.sandbox_failures.saturating_add(1);
                return Err(SANDBOX_RETRY.wait(self.sandbox_failures));
            }
        }
        match crate::runtime::relist::inspect(&self.context.runtime.cri, &pod.metadata.uid).await {
            Ok(observed) => self.observe(observed),
            Err(error) => {
                let error = error.rpc_text();
                self.sync_errors.add("read the sandbox", &error);
                self.context.recorder.pod(pod, AgentEvent::SandboxStatusFailed { error });
                return Err(RETRY);
            }
        }
        Ok(())
    }

    async fn start_one(
        &mut self,
        sync: &mut PodContext,
        role: Role,
        container: &Container,
        permit: &mut Option<OwnedSemaphorePermit>,
    ) -> Result<(), StartFailure> {
        let pod = Arc::clone(&sync.pod);
        let pod = pod.as_ref();
        let recorder = self.context.recorder.clone();
        let record = |event: AgentEvent| recorder.container(pod, role, &container.name, event);
        let sandbox = self.observed.newest_sandbox();
        let sandbox = sandbox.map(|sandbox| (sandbox.id.clone(), sandbox.attempt));
        let Some((sandbox_id, attempt_of_sandbox)) = sandbox else {
            return Err(StartFailure::new("ContainerCreating", String::new()));
        };
        let config_error = |message: String| {
            record(AgentEvent::Failed { error: message.clone() });
            StartFailure::new("CreateContainerConfigError", message)
        };
        let sandbox = sync.sandbox(attempt_of_sandbox);
        let sandbox = sandbox.map_err(|error| config_error(error.to_string()))?;

        let record_pod = |event: AgentEvent| recorder.pod(pod, event);
        for volume in image_volumes(pod, container) {
            let wanted = (volume.reference.as_str(), volume.pull_policy.as_str());
            self.image(sync, wanted, &sandbox.config, permit, &record_pod).await?;
        }
        let wanted = (container.image.as_str(), container.image_pull_policy.as_str());
        let image = self.image(sync, wanted, &sandbox.config, permit, &record).await?;
        let fetched = sync.dependencies(&self.context.dependencies).await;
        let dependencies = fetched.map_err(|error| config_error(refusal(&error)))?;
        let env_files = env_files(container, self.mounted.as_ref());
        let services = sync.services(&self.context.dependencies).await;
        let input = sync.input();
        let attempt = match self.observed.container(&container.name) {
            Some(before) => before.attempt + 1,
            None => self.reported_restarts(&container.name),
        };
        let made =
            self.context.runtime.volumes.make_termination_log(&pod.metadata.uid, &container.name);
        let termination_log = made.map_err(|error| config_error(error.to_string()))?;
        let termination_log = termination_log.display().to_string();
        let pod_ips = match self.observed.newest_sandbox() {
            Some(sandbox) if !sandbox.ips.is_empty() => sandbox.ips.clone(),
            _ => sync.node_env.ips.clone(),
        };
        let target = target(container, &self.observed);
        let target = target.map_err(|error| config_error(error.to_string()))?;
        let mut of = ContainerInput {
            container,
            role,
            attempt,
            image: &image.id,
            image_user: &image.user,
            pod_ips: &pod_ips,
            mounted: &MountedVolumes::default(),
            configs: &dependencies.configs,
            env_files: &env_files,
            services: &services,
            termination_log: Some(&termination_log),
            target: target.as_ref(),
            attached: &DeviceAttachments::default(),
            recursive_read_only: self.context.runtime.recursive_read_only(),
        };
        let environment =
            lower::env::variables(&input, &of).map_err(|error| config_error(error.to_string()))?;
        let mounted = self.mounted.as_ref();
        let mounts = self.context.runtime.make_mount_paths(
            &input,
            container,
            mounted,
            &environment,
            &pod_ips,
        );
        let mounted = mounts.map_err(|error| config_error(error.to_string()))?;
        of.mounted = &mounted;
        let config = lower::container(&input, &of, environment)
            .map_err(|error| config_error(error.to_string()))?;
        let own = sync.affinities.get(&container.name).cloned().unwrap_or_default();
        let log = Path::new(&lower::sandbox::log_directory(&input)).join(&config.log_path);
        if let Some(directory) = log.parent() {
            make_directory(&directory.display().to_string())
                .map_err(|error| config_error(error.to_string()))?;
        }

        let mut request = v1::CreateContainerRequest {
            pod_sandbox_id: sandbox_id,
            config: Some(config),
            sandbox_config: Some(sandbox.config.clone()),
        };
        let unreported = self.context.runtime.classes().fit_create(&mut request);
        if let Some(unreported) = unreported.first() {
            record(AgentEvent::Failed { error: unreported.to_string() });
            return Err(StartFailure::new("CreateContainerError", unreported.to_string()));
        }
        if let Err(error) = self.context.state.starting(sync.demand(), &container.name) {
            record(AgentEvent::Failed { error: error.to_string() });
            return Err(StartFailure::new("CreateContainerError", error.to_string()));
        }
        let made = self.context.runtime.cri.call(request).await;
        let images = image_volumes(pod, container).count();
        self.context.metrics.sync.image_volumes(images, made.is_ok());
        let id = match made {
            Ok(answer) => answer.container_id,
            Err(error) => {
                record(AgentEvent::Failed { error: error.message.clone() });
                return Err(StartFailure::new("CreateContainerError", error.message));
            }
        };
        record(AgentEvent::Created);
        // The container is not moved until it has started.
        let starting = self.register(pod, container, &id, own).await.map_err(|error| {
            let error = error.to_string();
            record(AgentEvent::Failed { error: error.clone() });
            StartFailure::new("RunContainerError", error)
        })?;
        let request = v1::StartContainerRequest { container_id: id.clone() };
        if let Err(error) = self.context.runtime.cri.call(request).await {
            self.context.state.cpuset_tracker.unregister(&id);
            record(AgentEvent::Failed { error: error.message.clone() });
            return Err(StartFailure::new("RunContainerError", error.message).backing_off());
        }
        drop(starting);
        record(AgentEvent::Started);
        let (pod_name, uid) = (pod.full_name(), &pod.metadata.uid);
        info!(pod = pod_name, uid, container = container.name, id, "a container started");
        self.note_started(pod, container);
        self.context.runtime.link_log(pod, &container.name, &log, &id);
        let pod_ip = pod_ips.first().map_or("", String::as_str);
        self.after_start(pod, role, container, &id, pod_ip).await
    }

    /// Adds a container that is about to start to the pool, on the pool's current CPUs.
    async fn register(
        &self,
        pod: &Pod,
        container: &Container,
        id: &RuntimeId,
        affinity: ContainerAffinity,
    ) -> Result<StartGuard, RebalanceError> {
        let entry = TrackedContainer {
            pod_uid: pod.metadata.uid.clone(),
            container: container.name.clone(),
            affinity: affinity.clone(),
        };
        let cpuset_tracker = &self.context.state.cpuset_tracker;
        let starting = cpuset_tracker.register(id, entry).await;
        // Read after adding the container: later changes wait for it to start.
        let now = self.context.state.affinities(pod).remove(&container.name).unwrap_or_default();
        if now.cpus == affinity.cpus {
            return Ok(starting);
        }
        let (runtime, os) = (&self.context.runtime.cri, self.context.state.node_env().os);
        let moved =
            cpuset_tracker.set_cpuset_before_start(runtime, os, id.clone(), now, &starting).await;
        moved.map(|()| starting)
    }

    async fn after_start(
        &mut self,
        pod: &Pod,
        role: Role,
        container: &Container,
        id: &RuntimeId,
        pod_ip: &str,
    ) -> Result<(), StartFailure> {
        let Some(hook) = &container.lifecycle.post_start else { return Ok(()) };
        let done = hooks::run(&self.context.runtime.cri, hook, container, id, pod_ip).await;
        let Err(error) = done else { return Ok(()) };
        self.context.recorder.container(pod, role, &container.name, AgentEvent::PostStartFailed);
        let kill = Kill {
            id: id.clone(),
            container: container.name.clone(),
            reason: KillReason::Changed,
            message: AgentEvent::PostStartFailedKill.to_string(),
        };
        self.kill_one(pod, &kill).await;
        Err(StartFailure {
            waiting: Waiting {
                reason: "PostStartHookError".to_owned(),
                message: hooks::event_message(
                    hook,
                    &container.name,
                    &security::describe(pod),
                    &error,
                ),
            },
            after: Duration::ZERO,
            pace: RetryPace::BackOff,
        })
    }

    /// Checks the back-off of a container that exited.
    fn check_backoff(
        &mut self,
        pod: &Pod,
        role: Role,
        container: &Container,
    ) -> Result<(), StartFailure> {
        let ended = self
            .observed
            .containers
            .iter()
            .find(|c| c.name == container.name && c.state == ContainerState::Exited);
        let Some(ended) = ended else { return Ok(()) };
        let key = format!("{}_{}", container.name, lower::hash(container));
        let now = self.now().unix_nanos();
        let Some(left) = self.backoff.remaining(&key, ended.finished_at, now) else {
            self.backoff.next(&key, ended.finished_at, now);
            return Ok(());
        };
        let of = &pod.metadata;
        let event = AgentEvent::RestartBackOff {
            container: container.name.clone(),
            pod: of.name.clone(),
            namespace: of.namespace.clone(),
            uid: of.uid.clone(),
        };
        self.context.recorder.container(pod, role, &container.name, event);
        let message = format!(
            "back-off {} restarting failed container={} pod={}",
            objects::go::duration(self.backoff.wait(&key)),
            container.name,
            security::describe(pod),
        );
        let waiting = Waiting { reason: "CrashLoopBackOff".to_owned(), message };
        Err(StartFailure { waiting, after: left, pace: RetryPace::BackOff })
    }

    /// Returns the attempt number of a container that the runtime no longer has, from its status.
    fn reported_restarts(&self, name: &str) -> u32 {
        let status = self.last_status.as_ref();
        let statuses = status.into_iter().flat_map(|status| {
            let init = status.init_container_statuses.iter();
            init.chain(&status.container_statuses).chain(&status.ephemeral_container_statuses)
        });
        let mut found = statuses.filter(|status| status.name == name);
        match found.next() {
            // The next start was already counted when the last container was lost or removed.
            Some(status) if status.is_counted() => status.restart_count,
            Some(status) if status.has_run() => status.restart_count + 1,
            _ => 0,
        }
    }

    /// Finds or pulls an image by name and pull policy.
    async fn image(
        &self,
        sync: &mut PodContext,
        (name, policy): (&str, &str),
        sandbox: &v1::PodSandboxConfig,
        permit: &mut Option<OwnedSemaphorePermit>,
        record: &(dyn Fn(AgentEvent) + Send + Sync),
    ) -> Result<PresentImage, StartFailure> {
        let mut request = lower::pull(&sync.input(), name, sandbox);
        // The sandbox was created with these classes, or not at all.
        let _ = self.context.runtime.classes().fit_pull(&mut request);
        let secrets = sync.pull_secrets(&self.context.dependencies).await;
        let uid = sync.pod.metadata.uid.clone();
        let credentials = credentials::matching(name, &secrets);
        let wanted = ImageRequest {
            image: name,
            policy: if policy.is_empty() { "IfNotPresent" } else { policy },
            pod_uid: &uid,
            request: &request,
            credentials: &credentials,
        };
        let images = &self.context.runtime.images;
        let found = match images.find(&wanted, record).await {
            Ok(ImageLookup::Present(present)) => Ok(present),
            Ok(ImageLookup::ToPull(full)) => {
                // Other pods can start during the pull.
                drop(permit.take());
                let begun = Instant::now();
                let pulled = images.pull(&wanted, &full, record).await;
                self.context.publications.pod_cache.pulled(&uid, begun, Instant::now());
                // Objects may have changed during the pull.
                sync.forget_fetched();
                *permit = self.context.runtime.starts.clone().acquire_owned().await.ok();
                pulled
            }
            Err(missing) => Err(missing),
        };
        found.map_err(|missing| {
            record(AgentEvent::Failed { error: missing.reason.to_owned() });
            let pulled = matches!(missing.reason, "ErrImagePull" | "ImagePullBackOff");
            let not_started = StartFailure::new(missing.reason, missing.message);
            if pulled { not_started.backing_off() } else { not_started }
        })
    }
}

/// The target of an ephemeral container does not exist. The text is upstream's.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("unable to find target container {0}")]
struct NoTarget(String);

/// A directory of the host could not be created.
#[derive(Debug, Error)]
#[error("mkdir {path}: {cause}")]
struct MakeDirectoryError {
    path: String,
    cause: std::io::Error,
}

/// Returns the container whose processes an ephemeral container shares, if it names one.
fn target(container: &Container, observed: &RuntimePod) -> Result<Option<RuntimeId>, NoTarget> {
    let name = container.target_container_name.as_str();
    match (name, observed.container(name)) {
        ("", _) => Ok(None),
        (_, Some(found)) => Ok(Some(found.id.clone())),
        (_, None) => Err(NoTarget(name.to_owned())),
    }
}

/// Reads the files of a container's variables whose volumes are mounted.
fn env_files(
    container: &Container,
    mounted: Option<&MountedVolumes>,
) -> BTreeMap<(String, String), EnvFile> {
    let mut files = BTreeMap::new();
    let sources = container.env.iter().filter_map(|variable| variable.value_from.as_ref());
    for wanted in sources.filter_map(|source| source.file_key_ref.as_ref()) {
        let volume = mounted.and_then(|mounted| mounted.volumes.get(&wanted.volume_name));
        let Some(MountedVolume::Path { host_path, .. }) = volume else { continue };
        let path = Path::new(host_path).join(wanted.path.trim_start_matches('/'));
        let text = read_inside(Path::new(host_path), &path);
        let file = EnvFile { path: path.display().to_string(), text };
        files.insert((wanted.volume_name.clone(), wanted.path.clone()), file);
    }
    files
}

/// Reads a file of a volume that containers write to. Files outside the volume and too large files are not
/// read.
fn read_inside(volume: &Path, path: &Path) -> Option<String> {
    let (volume, path) = (volume.canonicalize().ok()?, path.canonicalize().ok()?);
    let about = std::fs::metadata(&path).ok()?;
    let fits = path.starts_with(volume) && about.is_file() && about.len() <= LONGEST_ENV_FILE;
    if fits { std::fs::read_to_string(path).ok() } else { None }
}

/// Returns the image volumes that a container mounts.
fn image_volumes<'a>(
    pod: &'a Pod,
    container: &'a Container,
) -> impl Iterator<Item = &'a ImageSource> {
    let mounted = |name: &str| container.volume_mounts.iter().any(|mount| mount.name == name);
    let volumes = pod.spec.volumes.iter().filter(move |volume| mounted(&volume.name));
    volumes.filter_map(|volume| volume.image.as_ref())
}

fn make_directory(path: &str) -> Result<(), MakeDirectoryError> {
    let path = path.to_owned();
    std::fs::create_dir_all(&path).map_err(|cause| MakeDirectoryError { path, cause })
}

/// Returns the API's message without the request.
fn refusal(error: &client::Error) -> String {
    match error {
        client::Error::Refused(refused) => refused.message.clone(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ephemeral_container_waits_for_its_target() {
        let id = "1234".to_owned();
        let found = lifecycle::observed::RuntimeContainer::started(&id, "app");
        let observed = RuntimePod::new(Vec::new(), vec![found]);
        let check = |name: &str, expected: Result<Option<RuntimeId>, NoTarget>| {
            let target_container_name = name.to_owned();
            let container = Container { target_container_name, ..Container::default() };
            assert_eq!(target(&container, &observed), expected, "{name}");
        };
        check("", Ok(None));
        check("app", Ok(Some(id)));
        check("later", Err(NoTarget("later".to_owned())));
    }

    #[test]
    fn env_files_are_read_only_inside_their_volume() {
        let directory = tempfile::tempdir().unwrap();
        let volume = directory.path().join("volume");
        std::fs::create_dir(&volume).unwrap();
        std::fs::write(volume.join("in.env"), "A='x'").unwrap();
        std::fs::write(directory.path().join("out.env"), "A='y'").unwrap();
        std::fs::write(volume.join("long.env"), "#".repeat(70_000)).unwrap();
        let table = [
            ("in.env", Some("A='x'")),
            ("../out.env", None),
            ("none.env", None),
            ("long.env", None),
        ];
        for (path, expected) in table {
            let found = read_inside(&volume, &volume.join(path));
            assert_eq!(found.as_deref(), expected, "{path}");
        }
    }
}
