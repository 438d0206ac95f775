//! Queries of the runtime: [`relist`] for all pods, [`inspect`] for one.
//!
//! A relist takes two calls for any number of pods, and shows which pods need an inspection. It changes and
//! stores nothing.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use cri::v1;

use crate::runtime::lower::{ConfigSource, annotations};
use lifecycle::observed::{
    ContainerState, RuntimeContainer, RuntimeId, RuntimePod, RuntimeSandbox,
};
use lifecycle::status::{self, FILE_BYTES, LOG_BYTES, TerminationOutput};

/// A pod in the runtime's lists. It differs between two relists if its state changed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PodSummary {
    pub name: String,
    pub namespace: String,
    /// True if it is a static pod of a manifest, by the annotation of its sandbox.
    pub from_file: bool,
    /// The sandboxes, and if each is ready.
    pub sandboxes: BTreeMap<RuntimeId, bool>,
    pub containers: BTreeMap<RuntimeId, ContainerSummary>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerSummary {
    pub name: String,
    pub sandbox: RuntimeId,
    pub attempt: u32,
    pub state: ContainerState,
    pub created_at: i64,
}

impl PodSummary {
    /// Returns true if any container or sandbox of the pod may be running.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        let runs = |container: &ContainerSummary| container.state == ContainerState::Running;
        self.sandboxes.values().any(|ready| *ready) || self.containers.values().any(runs)
    }
}

/// Returns all pods of the runtime by UID. Containers that do not belong to a pod are skipped.
pub async fn relist(runtime: &cri::Client) -> Result<BTreeMap<String, PodSummary>, cri::Error> {
    let (sandboxes, containers) = lists(runtime, BTreeMap::new()).await?;
    let mut pods: BTreeMap<String, PodSummary> = BTreeMap::new();
    for sandbox in sandboxes {
        let Some(of) = sandbox.metadata else { continue };
        let pod = pods.entry(of.uid).or_default();
        (pod.name, pod.namespace) = (of.name, of.namespace);
        let source = sandbox.annotations.get(annotations::CONFIG_SOURCE);
        pod.from_file |= source.is_some_and(|source| source == ConfigSource::File.as_str());
        let ready = sandbox.state == v1::PodSandboxState::SandboxReady as i32;
        pod.sandboxes.insert(sandbox.id, ready);
    }
    for container in containers {
        let Some(uid) = container.labels.get(annotations::POD_UID) else { continue };
        let Some(of) = &container.metadata else { continue };
        let pod = pods.entry(uid.clone()).or_default();
        let label = |name: &str| container.labels.get(name).cloned().unwrap_or_default();
        pod.name = label(annotations::POD_NAME);
        pod.namespace = label(annotations::POD_NAMESPACE);
        let summary = ContainerSummary {
            name: of.name.clone(),
            sandbox: container.pod_sandbox_id.clone(),
            attempt: of.attempt,
            state: state(container.state()),
            created_at: container.created_at,
        };
        pod.containers.insert(container.id, summary);
    }
    Ok(pods)
}

/// Returns the full state of one pod.
pub async fn inspect(runtime: &cri::Client, uid: &str) -> Result<RuntimePod, cri::Error> {
    let labels = BTreeMap::from([(annotations::POD_UID.to_owned(), uid.to_owned())]);
    let (sandboxes, containers) = lists(runtime, labels).await?;
    let sandboxes = sandboxes.into_iter().map(|sandbox| sandbox_status(runtime, sandbox.id));
    let containers = containers.into_iter().map(|container| container_status(runtime, container));
    let (sandboxes, containers) = tokio::try_join!(
        futures::future::try_join_all(sandboxes),
        futures::future::try_join_all(containers),
    )?;
    let sandboxes = sandboxes.into_iter().flatten().collect();
    Ok(RuntimePod::new(sandboxes, containers.into_iter().flatten().collect()))
}

async fn lists(
    runtime: &cri::Client,
    labels: BTreeMap<String, String>,
) -> Result<(Vec<v1::PodSandbox>, Vec<v1::Container>), cri::Error> {
    let label_selector = labels.into_iter().collect();
    let of_sandboxes = v1::PodSandboxFilter { label_selector, ..Default::default() };
    let label_selector = of_sandboxes.label_selector.clone();
    let of_containers = v1::ContainerFilter { label_selector, ..Default::default() };
    // Containers first, so that the sandboxes of all listed containers are in the second list.
    let request = v1::ListContainersRequest { filter: Some(of_containers) };
    let containers = runtime.call(request).await?.containers;
    let request = v1::ListPodSandboxRequest { filter: Some(of_sandboxes) };
    let sandboxes = runtime.call(request).await?.items;
    Ok((sandboxes, containers))
}

/// Returns `None` if it was removed in the meantime.
async fn sandbox_status(
    runtime: &cri::Client,
    id: RuntimeId,
) -> Result<Option<RuntimeSandbox>, cri::Error> {
    let request = v1::PodSandboxStatusRequest { pod_sandbox_id: id, verbose: false };
    let status = match runtime.call(request).await {
        Ok(response) => response.status,
        Err(error) if error.is_not_found() => return Ok(None),
        Err(error) => return Err(error),
    };
    Ok(status.map(|status| {
        let network = status.network.as_ref();
        let ips = network.map(|network| {
            let more = network.additional_ips.iter().map(|ip| ip.ip.clone());
            std::iter::once(network.ip.clone()).chain(more).filter(|ip| !ip.is_empty()).collect()
        });
        let namespaces = status.linux.as_ref().and_then(|linux| linux.namespaces.as_ref());
        let options = namespaces.and_then(|namespaces| namespaces.options.as_ref());
        RuntimeSandbox {
            attempt: status.metadata.as_ref().map_or(0, |of| of.attempt),
            ready: status.state() == v1::PodSandboxState::SandboxReady,
            created_at: status.created_at,
            ips: ips.unwrap_or_default(),
            host_network: options.is_some_and(|of| of.network() == v1::NamespaceMode::Node),
            id: status.id,
        }
    }))
}

async fn container_status(
    runtime: &cri::Client,
    container: v1::Container,
) -> Result<Option<RuntimeContainer>, cri::Error> {
    let request = v1::ContainerStatusRequest { container_id: container.id, verbose: false };
    let status = match runtime.call(request).await {
        Ok(response) => response.status,
        Err(error) if error.is_not_found() => return Ok(None),
        Err(error) => return Err(error),
    };
    Ok(status.map(|status| seen(&status, container.pod_sandbox_id)))
}

fn seen(status: &v1::ContainerStatus, sandbox: RuntimeId) -> RuntimeContainer {
    let metadata = status.metadata.clone().unwrap_or_default();
    let state = state(status.state());
    let message = match state {
        ContainerState::Exited => last_words(status),
        _ => status.message.clone(),
    };
    let annotation = |name: &str| status.annotations.get(name).cloned().unwrap_or_default();
    let image = status.image.as_ref().map(|image| image.image.clone()).unwrap_or_default();
    RuntimeContainer {
        id: status.id.clone(),
        sandbox,
        name: metadata.name,
        attempt: metadata.attempt,
        state,
        created_at: status.created_at,
        started_at: status.started_at,
        finished_at: status.finished_at,
        exit_code: status.exit_code,
        reason: status.reason.clone(),
        message,
        image,
        image_id: status.image_ref.clone(),
        hash: annotation(annotations::CONTAINER_HASH),
    }
}

fn state(state: v1::ContainerState) -> ContainerState {
    match state {
        v1::ContainerState::ContainerCreated => ContainerState::Created,
        v1::ContainerState::ContainerRunning => ContainerState::Running,
        v1::ContainerState::ContainerExited => ContainerState::Exited,
        v1::ContainerState::ContainerUnknown => ContainerState::Unknown,
    }
}

/// Returns the termination message of a container that exited. Unreadable files count as empty.
fn last_words(status: &v1::ContainerStatus) -> String {
    let annotation = |name: &str| status.annotations.get(name).map_or("", String::as_str);
    let path = annotation(annotations::MESSAGE_PATH);
    let policy = annotation(annotations::MESSAGE_POLICY);
    let mounted = status.mounts.iter().find(|mount| mount.container_path == path);
    let file = mounted.and_then(|mount| end_of(Path::new(&mount.host_path), FILE_BYTES));
    let log = match status::needs_log(policy, status.exit_code, file.as_deref()) {
        true => log_of(Path::new(&status.log_path)),
        false => String::new(),
    };
    let left = TerminationOutput { file: file.as_deref(), log: &log };
    status::compose(&status.message, policy, status.exit_code, left)
}

/// Returns the last bytes of a file, with invalid UTF-8 replaced.
fn end_of(path: &Path, most: usize) -> Option<String> {
    use std::io::{Read as _, Seek as _, SeekFrom};
    let mut file = fs::File::open(path).ok()?;
    let length = file.metadata().ok()?.len();
    let from = length.saturating_sub(u64::try_from(most).unwrap_or(u64::MAX));
    file.seek(SeekFrom::Start(from)).ok()?;
    let mut bytes = Vec::new();
    file.take(u64::try_from(most).unwrap_or(u64::MAX)).read_to_end(&mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// Returns the texts of the last lines of a log, without the runtime's prefixes.
fn log_of(path: &Path) -> String {
    // Each line is preceded by its time, stream and tag, about 50 bytes.
    const MOST: usize = 4 * LOG_BYTES;
    let Some(text) = end_of(path, MOST) else { return String::new() };
    let whole = if text.len() < MOST {
        Some(text.as_str())
    } else {
        text.split_once('\n').map(|(_, rest)| rest)
    };
    let mut out = String::new();
    for line in whole.unwrap_or_default().lines() {
        let mut parts = line.splitn(4, ' ').skip(2);
        let (tag, words) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
        out.push_str(words);
        if !tag.starts_with('P') {
            out.push('\n');
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(file: &Path, log: &Path, policy: &str) -> v1::ContainerStatus {
        let annotations = [
            (annotations::MESSAGE_PATH, "/dev/termination-log"),
            (annotations::MESSAGE_POLICY, policy),
        ];
        v1::ContainerStatus {
            exit_code: 1,
            annotations: annotations.map(|(k, v)| (k.to_owned(), v.to_owned())).into(),
            mounts: vec![v1::Mount {
                container_path: "/dev/termination-log".to_owned(),
                host_path: file.display().to_string(),
                ..Default::default()
            }],
            log_path: log.display().to_string(),
            ..Default::default()
        }
    }

    #[test]
    fn termination_message_is_from_the_file_or_the_log() {
        let directory = tempfile::tempdir().unwrap();
        let (file, log) = (directory.path().join("message"), directory.path().join("0.log"));
        assert_eq!(last_words(&ended(&file, &log, "File")), "");
        let lines = "2026-01-02T03:04:05.000000006Z stdout P first \n\
                     2026-01-02T03:04:05.000000007Z stdout F half\n\
                     2026-01-02T03:04:05.000000008Z stderr F the  end\n";
        fs::write(&log, lines).unwrap();
        assert_eq!(last_words(&ended(&file, &log, "File")), "");
        let fallback = "FallbackToLogsOnError";
        assert_eq!(last_words(&ended(&file, &log, fallback)), "first half\nthe  end\n");
        fs::write(&file, "because").unwrap();
        assert_eq!(last_words(&ended(&file, &log, fallback)), "because");
        fs::write(&file, "x".repeat(5000)).unwrap();
        assert_eq!(last_words(&ended(&file, &log, fallback)).len(), FILE_BYTES);
    }
}
