//! Starting: the sandbox and the containers, as planned.
//!
//! Whatever keeps a container from starting becomes the reason for which it waits, in upstream's words.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use cri::v1;
use tokio::sync::OwnedSemaphorePermit;

use super::{Next, RESYNC, RETRY, Worker};
use crate::clock::nanos;
use crate::context::Hands;
use crate::cpusets::tracker::{Entry, Starting};
use crate::observability::events::Told;
use crate::pods::sync_plan::{Kill, KillReason, Plan};
use crate::runtime::hooks;
use crate::runtime::images::{Found, Present, Wanted, credentials};
use crate::runtime::lower::{
    self, Attached, ContainerInput, DnsNotice, EnvFile, Mounted, MountedVolume, Placed, PodInput,
    security,
};
use crate::runtime::observed::{ContainerState, PodSeen, RuntimeId};
use crate::spec::{Container, ImageSource, Pod, Role};
use crate::status::Waiting;
use crate::volumes;

/// The first wait after a sandbox could not be made, doubled each time. The runtime may only be busy
/// undoing what an agent before this one began and did not live to see.
const FIRST_SANDBOX_RETRY: Duration = Duration::from_secs(1);

/// The longest file of variables that is read, in bytes. Upstream's figure.
const LONGEST_ENV_FILE: u64 = 64 * 1024;

/// Why a container was not started.
struct NotStarted {
    waiting: Waiting,
    /// When to try again.
    after: Duration,
    pace: Pace,
}

/// The reason why the next attempt has to wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pace {
    /// The worker's own hold.
    Held,
    /// The back-off of the pulls of its image, or of the container that ended.
    BackOff,
}

impl NotStarted {
    fn new(reason: &str, message: String) -> NotStarted {
        let waiting = Waiting { reason: reason.to_owned(), message };
        NotStarted { waiting, after: RETRY, pace: Pace::Held }
    }

    fn backing_off(self) -> NotStarted {
        NotStarted { pace: Pace::BackOff, ..self }
    }
}

impl Worker {
    /// Makes the sandbox and starts containers.
    pub(super) async fn start(&mut self, pod: &Pod, plan: &Plan) -> Next {
        let mut permit = self.hands.starts.clone().acquire_owned().await.ok();
        let placed = self.hands.placed(pod);
        if let Some(attempt) = plan.create_sandbox {
            if let Err(wait) = self.make_sandbox(pod, &placed, attempt).await {
                return self.hold(wait);
            }
            // A hook may keep the containers from starting for long.
            let pod = self.pod_as_told();
            self.tell(&pod, true);
        }
        let mut failed: Vec<(&String, NotStarted)> = Vec::new();
        for (role, name) in &plan.start {
            let Some((_, container)) = pod.container(name) else { continue };
            let started = match self.may_start(pod, *role, container) {
                Ok(()) => {
                    let of_host = lower::security::is_host_process(pod, container);
                    self.hands.counters.starting(*role, of_host);
                    let started = self.start_one(pod, &placed, *role, container, &mut permit).await;
                    if let Err(NotStarted { waiting, .. }) = &started {
                        self.hands.counters.not_started(*role, of_host, &waiting.reason);
                    }
                    started
                }
                Err(backs_off) => Err(backs_off),
            };
            match started {
                Ok(()) => {
                    self.known.waiting.remove(name);
                }
                Err(not_started) => {
                    self.known.waiting.insert(name.clone(), not_started.waiting.clone());
                    failed.push((name, not_started));
                    // One init container after the other.
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
                // The reason is told at once, not when it is tried again.
                if let Ok(seen) =
                    crate::runtime::relist::closely(&self.hands.runtime, &pod.metadata.uid).await
                {
                    self.seen = seen;
                }
                self.hold_containers(failed);
                let pod = self.pod_as_told();
                self.tell(&pod, true);
                self.probe();
                Next::After(after)
            }
        }
    }

    /// Keeps containers from being created again too soon. One that was created and did not start has no
    /// back-off, either, as long as the runtime does not take it for ended.
    fn hold_containers(&mut self, failed: Vec<(&String, NotStarted)>) {
        for (name, NotStarted { waiting, after, pace }) in failed {
            let found = self.seen.container(name);
            if pace == Pace::Held || found.is_some_and(|of| of.state == ContainerState::Created) {
                self.holds.hold_container(name, after, waiting);
            }
        }
    }

    /// Returns whether a container may be created now.
    fn may_start(
        &mut self,
        pod: &Pod,
        role: Role,
        container: &Container,
    ) -> Result<(), NotStarted> {
        match self.holds.of_container(&container.name) {
            Some((after, waiting)) => Err(NotStarted { waiting, after, pace: Pace::Held }),
            None => self.check_backoff(pod, role, container),
        }
    }

    fn input<'a>(
        &'a self,
        pod: &'a Pod,
        facts: &'a lower::NodeFacts,
        placed: &'a BTreeMap<String, Placed>,
    ) -> PodInput<'a> {
        Hands::input(pod, facts, &self.source, placed)
    }

    /// The error is the time to wait before this is tried again.
    async fn make_sandbox(
        &mut self,
        pod: &Pod,
        placed: &BTreeMap<String, Placed>,
        attempt: u32,
    ) -> Result<(), Duration> {
        let failed = |worker: &Worker, error: String| {
            worker.hands.recorder.pod(pod, Told::SandboxFailed { error });
            RETRY
        };
        if let Err(error) = self.hands.sources.prepare_claims(pod).await {
            let error = format!("prepare dynamic resources: {error}");
            self.hands.recorder.pod(pod, Told::ClaimsFailed { error });
            // As upstream, which takes it for done until it looks again at every pod.
            return Err(RESYNC);
        }
        let facts = self.hands.facts();
        let sandbox = lower::sandbox(&self.input(pod, &facts, placed), attempt)
            .map_err(|error| failed(self, error.to_string()))?;
        for notice in &sandbox.notices {
            let message = notice.to_string();
            let told = match notice {
                DnsNotice::NoClusterDns { .. } => Told::MissingClusterDns { message },
                DnsNotice::Servers(_) | DnsNotice::Searches(_) => Told::DnsLimits { message },
            };
            self.hands.recorder.pod(pod, told);
        }
        let handler = match &pod.spec.runtime_class_name {
            None => String::new(),
            Some(class) => match self.hands.sources.handler(class).await {
                Ok(handler) => handler,
                Err(error) => return Err(failed(self, refusal(&error))),
            },
        };
        let mut config = sandbox.config;
        let unsaid = self.hands.classes().fit_sandbox(&mut config);
        if let Some(unsaid) = unsaid.first() {
            return Err(failed(self, unsaid.to_string()));
        }
        self.hands.check_sandbox(&config).map_err(|error| failed(self, error))?;
        make_directory(&config.log_directory).map_err(|error| failed(self, error))?;
        let request =
            v1::RunPodSandboxRequest { config: Some(config), runtime_handler: handler.clone() };
        let begun = Instant::now();
        let made = self.hands.runtime.call(request).await;
        self.hands.counters.work.sandbox(&handler, begun.elapsed());
        match made {
            Ok(_) => self.sandbox_failures = 0,
            Err(error) => {
                failed(self, error.rpc_text());
                let wait = FIRST_SANDBOX_RETRY * 2u32.saturating_pow(self.sandbox_failures.min(16));
                self.sandbox_failures += 1;
                return Err(wait.min(RETRY));
            }
        }
        match crate::runtime::relist::closely(&self.hands.runtime, &pod.metadata.uid).await {
            Ok(seen) => self.seen = seen,
            Err(error) => {
                let error = error.rpc_text();
                self.hands.recorder.pod(pod, Told::SandboxStatusFailed { error });
                return Err(RETRY);
            }
        }
        Ok(())
    }

    async fn start_one(
        &mut self,
        pod: &Pod,
        placed: &BTreeMap<String, Placed>,
        role: Role,
        container: &Container,
        permit: &mut Option<OwnedSemaphorePermit>,
    ) -> Result<(), NotStarted> {
        let recorder = self.hands.recorder.clone();
        let tell = |told: Told| recorder.container(pod, role, &container.name, told);
        let facts = self.hands.facts();
        let input = self.input(pod, &facts, placed);
        let sandbox_id = self.seen.newest_sandbox().map(|sandbox| sandbox.id.clone());
        let Some(sandbox_id) = sandbox_id else {
            return Err(NotStarted::new("ContainerCreating", String::new()));
        };
        let attempt_of_sandbox = self.seen.newest_sandbox().map_or(0, |sandbox| sandbox.attempt);
        let config_error = |message: String| {
            tell(Told::Failed { error: message.clone() });
            NotStarted::new("CreateContainerConfigError", message)
        };
        let sandbox_config = lower::sandbox(&input, attempt_of_sandbox)
            .map_err(|error| config_error(error.to_string()))?
            .config;

        let tell_pod = |told: Told| recorder.pod(pod, told);
        for volume in image_volumes(pod, container) {
            let wanted = (volume.reference.as_str(), volume.pull_policy.as_str());
            self.image(pod, wanted, &input, &sandbox_config, permit, &tell_pod).await?;
        }
        let wanted = (container.image.as_str(), container.image_pull_policy.as_str());
        let image = self.image(pod, wanted, &input, &sandbox_config, permit, &tell).await?;
        let references = volumes::references(pod);
        let fetched = self.hands.sources.fetch(pod, &references).await;
        let (mut configs, ..) = fetched.map_err(|error| config_error(refusal(&error)))?;
        configs.files = env_files(container, self.mounted.as_ref());
        let services = self.hands.sources.services().await;
        let attempt = match self.seen.container(&container.name) {
            Some(before) => before.attempt + 1,
            None => self.restarts_told(&container.name),
        };
        let made = self.hands.volumes.make_termination_log(&pod.metadata.uid, &container.name);
        let termination_log = made.map_err(|error| config_error(error.to_string()))?;
        let termination_log = termination_log.display().to_string();
        let pod_ips = match self.seen.newest_sandbox() {
            Some(sandbox) if !sandbox.ips.is_empty() => sandbox.ips.clone(),
            _ => facts.ips.clone(),
        };
        let target = target(container, &self.seen).map_err(&config_error)?;
        let mut of = ContainerInput {
            container,
            role,
            attempt,
            image: &image.id,
            image_user: &image.user,
            pod_ips: &pod_ips,
            mounted: &Mounted::default(),
            configs: &configs,
            services: &services,
            termination_log: Some(&termination_log),
            target: target.as_ref(),
            attached: &Attached::default(),
            recursive_read_only: self.hands.recursive_read_only(),
        };
        let environment =
            lower::env::variables(&input, &of).map_err(|error| config_error(error.to_string()))?;
        let mounted = self.mounted.as_ref();
        let mounts = self.hands.mounts_of(&input, container, mounted, &environment, &pod_ips);
        let mounted = mounts.map_err(&config_error)?;
        of.mounted = &mounted;
        let config = lower::container(&input, &of).map_err(|e| config_error(e.to_string()))?;
        let own = placed.get(&container.name).cloned().unwrap_or_default();
        let log = Path::new(&lower::sandbox::log_directory(&input)).join(&config.log_path);
        if let Some(directory) = log.parent() {
            make_directory(&directory.display().to_string()).map_err(&config_error)?;
        }

        let mut request = v1::CreateContainerRequest {
            pod_sandbox_id: sandbox_id,
            config: Some(config),
            sandbox_config: Some(sandbox_config),
        };
        let unsaid = self.hands.classes().fit_create(&mut request);
        if let Some(unsaid) = unsaid.first() {
            tell(Told::Failed { error: unsaid.to_string() });
            return Err(NotStarted::new("CreateContainerError", unsaid.to_string()));
        }
        if let Err(error) = self.hands.starting(pod, &container.name) {
            tell(Told::Failed { error: error.to_string() });
            return Err(NotStarted::new("CreateContainerError", error.to_string()));
        }
        let made = self.hands.runtime.call(request).await;
        let images = image_volumes(pod, container).count();
        self.hands.counters.work.image_volumes(images, made.is_ok());
        let id = match made {
            Ok(answer) => answer.container_id,
            Err(error) => {
                tell(Told::Failed { error: error.message.clone() });
                return Err(NotStarted::new("CreateContainerError", error.message));
            }
        };
        tell(Told::Created);
        // The container is not moved until it has started.
        let starting = self.enter(pod, container, &id, own).await.map_err(|error| {
            tell(Told::Failed { error: error.clone() });
            NotStarted::new("RunContainerError", error)
        })?;
        let request = v1::StartContainerRequest { container_id: id.clone() };
        if let Err(error) = self.hands.runtime.call(request).await {
            self.hands.pool.leave(&id);
            tell(Told::Failed { error: error.message.clone() });
            return Err(NotStarted::new("RunContainerError", error.message).backing_off());
        }
        drop(starting);
        tell(Told::Started);
        self.note_started(pod, container);
        self.hands.link_log(pod, &container.name, &log, &id);
        let pod_ip = pod_ips.first().map_or("", String::as_str);
        self.after_start(pod, role, container, &id, pod_ip).await
    }

    /// Adds a container that is about to start to the pool, on the CPUs that are the pool by now.
    async fn enter(
        &self,
        pod: &Pod,
        container: &Container,
        id: &RuntimeId,
        placed: Placed,
    ) -> Result<Starting, String> {
        let entry = Entry {
            pod_uid: pod.metadata.uid.clone(),
            container: container.name.clone(),
            placed: placed.clone(),
        };
        let pool = &self.hands.pool;
        let starting = pool.enter(id, entry).await;
        // Read after the container was entered: a change after this waits for the container to start.
        let now = self.hands.placed(pod).remove(&container.name).unwrap_or_default();
        if now.cpus == placed.cpus {
            return Ok(starting);
        }
        let (runtime, os) = (&self.hands.runtime, self.hands.facts().os);
        let moved = pool.put_starting(runtime, os, id.clone(), now, &starting).await;
        moved.map(|()| starting).map_err(|error| error.to_string())
    }

    async fn after_start(
        &mut self,
        pod: &Pod,
        role: Role,
        container: &Container,
        id: &RuntimeId,
        pod_ip: &str,
    ) -> Result<(), NotStarted> {
        let Some(hook) = &container.lifecycle.post_start else { return Ok(()) };
        let done = hooks::run(&self.hands.runtime, hook, container, id, pod_ip).await;
        let Err(error) = done else { return Ok(()) };
        self.hands.recorder.container(pod, role, &container.name, Told::PostStartFailed);
        let kill = Kill {
            id: id.clone(),
            container: container.name.clone(),
            reason: KillReason::Changed,
            message: Told::PostStartFailedKill.to_string(),
        };
        self.kill_one(pod, &kill).await;
        Err(NotStarted {
            waiting: Waiting {
                reason: "PostStartHookError".to_owned(),
                message: hooks::told(hook, &container.name, &security::describe(pod), &error),
            },
            after: Duration::ZERO,
            pace: Pace::BackOff,
        })
    }

    /// A container that ended is not started again at once.
    fn check_backoff(
        &mut self,
        pod: &Pod,
        role: Role,
        container: &Container,
    ) -> Result<(), NotStarted> {
        let ended = self
            .seen
            .containers
            .iter()
            .find(|c| c.name == container.name && c.state == ContainerState::Exited);
        let Some(ended) = ended else { return Ok(()) };
        let key = format!("{}_{}", container.name, lower::hash(container));
        let now = nanos(self.now());
        let Some(left) = self.backoff.remaining(&key, ended.finished_at, now) else {
            self.backoff.next(&key, ended.finished_at, now);
            return Ok(());
        };
        let of = &pod.metadata;
        let told = Told::RestartBackOff {
            container: container.name.clone(),
            pod: of.name.clone(),
            namespace: of.namespace.clone(),
            uid: of.uid.clone(),
        };
        self.hands.recorder.container(pod, role, &container.name, told);
        let message = format!(
            "back-off {} restarting failed container={} pod={}",
            go_duration(self.backoff.wait(&key)),
            container.name,
            security::describe(pod),
        );
        let waiting = Waiting { reason: "CrashLoopBackOff".to_owned(), message };
        Err(NotStarted { waiting, after: left, pace: Pace::BackOff })
    }

    /// How often a container was started of which the runtime has no trace.
    fn restarts_told(&self, name: &str) -> u32 {
        let told = self.told.as_ref();
        let statuses = told.into_iter().flat_map(|told| {
            let init = told.init_container_statuses.iter();
            init.chain(&told.container_statuses).chain(&told.ephemeral_container_statuses)
        });
        let mut found = statuses.filter(|status| status.name == name);
        match found.next() {
            // The one to be started has been counted when the last one was lost or removed.
            Some(status) if status.is_counted() => status.restart_count,
            Some(status) if status.has_run() => status.restart_count + 1,
            _ => 0,
        }
    }

    /// An image by name and pull policy.
    async fn image(
        &self,
        pod: &Pod,
        (name, policy): (&str, &str),
        input: &PodInput<'_>,
        sandbox: &v1::PodSandboxConfig,
        permit: &mut Option<OwnedSemaphorePermit>,
        tell: &(dyn Fn(Told) + Send + Sync),
    ) -> Result<Present, NotStarted> {
        let mut request = lower::pull(input, name, sandbox);
        // The sandbox was made with them, or not at all.
        let _ = self.hands.classes().fit_pull(&mut request);
        let secrets = self.hands.sources.pull_secrets(pod).await;
        let credentials = credentials::matching(name, &secrets);
        let wanted = Wanted {
            image: name,
            policy: if policy.is_empty() { "IfNotPresent" } else { policy },
            pod_uid: &pod.metadata.uid,
            request: &request,
            credentials: &credentials,
        };
        let images = &self.hands.images;
        let found = match images.find(&wanted, tell).await {
            Ok(Found::Present(present)) => Ok(present),
            Ok(Found::ToPull(full)) => {
                // Others start while this one is on its way.
                drop(permit.take());
                let begun = Instant::now();
                let pulled = images.pull(&wanted, &full, tell).await;
                self.hands.board.pulled(&pod.metadata.uid, begun, Instant::now());
                *permit = self.hands.starts.clone().acquire_owned().await.ok();
                pulled
            }
            Err(missing) => Err(missing),
        };
        found.map_err(|missing| {
            tell(Told::Failed { error: missing.reason.to_owned() });
            let pulled = matches!(missing.reason, "ErrImagePull" | "ImagePullBackOff");
            let not_started = NotStarted::new(missing.reason, missing.message);
            if pulled { not_started.backing_off() } else { not_started }
        })
    }
}

/// The container whose processes an ephemeral one is to see; none if it names none.
fn target(container: &Container, seen: &PodSeen) -> Result<Option<RuntimeId>, String> {
    let name = container.target_container_name.as_str();
    match (name, seen.container(name)) {
        ("", _) => Ok(None),
        (_, Some(found)) => Ok(Some(found.id.clone())),
        (_, None) => Err(format!("unable to find target container {name}")),
    }
}

/// The files that variables of a container come from, as far as their volumes are there.
fn env_files(
    container: &Container,
    mounted: Option<&Mounted>,
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

/// A file of a volume that containers write to: what leads out of the volume is not read, nor what is too
/// long to be meant.
fn read_inside(volume: &Path, path: &Path) -> Option<String> {
    let (volume, path) = (volume.canonicalize().ok()?, path.canonicalize().ok()?);
    let about = std::fs::metadata(&path).ok()?;
    let fits = path.starts_with(volume) && about.is_file() && about.len() <= LONGEST_ENV_FILE;
    if fits { std::fs::read_to_string(path).ok() } else { None }
}

/// The volumes that a container mounts and that are images.
fn image_volumes<'a>(
    pod: &'a Pod,
    container: &'a Container,
) -> impl Iterator<Item = &'a ImageSource> {
    let mounted = |name: &str| container.volume_mounts.iter().any(|mount| mount.name == name);
    let volumes = pod.spec.volumes.iter().filter(move |volume| mounted(&volume.name));
    volumes.filter_map(|volume| volume.image.as_ref())
}

fn make_directory(path: &str) -> Result<(), String> {
    std::fs::create_dir_all(path).map_err(|error| format!("mkdir {path}: {error}"))
}

/// What the API said, without what was asked.
fn refusal(error: &client::Error) -> String {
    match error {
        client::Error::Refused(refused) => refused.message.clone(),
        other => other.to_string(),
    }
}

/// As Go prints whole seconds: `10s`, `2m40s`, `5m0s`.
fn go_duration(duration: Duration) -> String {
    match (duration.as_secs() / 60, duration.as_secs() % 60) {
        (0, seconds) => format!("{seconds}s"),
        (minutes, seconds) => format!("{minutes}m{seconds}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ephemeral_container_waits_for_the_one_it_is_to_look_into() {
        let id = "1234".to_owned();
        let found = crate::runtime::observed::ContainerSeen::started(&id, "app");
        let seen = PodSeen::new(Vec::new(), vec![found]);
        let check = |name: &str, expected: Result<Option<RuntimeId>, String>| {
            let target_container_name = name.to_owned();
            let container = Container { target_container_name, ..Container::default() };
            assert_eq!(target(&container, &seen), expected, "{name}");
        };
        check("", Ok(None));
        check("app", Ok(Some(id)));
        check("later", Err("unable to find target container later".to_owned()));
    }

    #[test]
    fn files_of_variables_are_read_inside_their_volume_only() {
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

    #[test]
    fn durations_are_written_as_go_does() {
        let table = [(10, "10s"), (40, "40s"), (80, "1m20s"), (160, "2m40s"), (300, "5m0s")];
        for (seconds, text) in table {
            assert_eq!(go_duration(Duration::from_secs(seconds)), text);
        }
    }
}
