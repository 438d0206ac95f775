//! Usage of pods: [`collect`] queries the runtime and the disk, [`usages`] combines the results.
//!
//! The queries are expensive, so they are made only when a decision depends on them. Unknown values of a pod are
//! absent. The inodes of volumes are not counted.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use cri::v1;
use host::file_kind::disk_usage;

use crate::runtime::Runtime;
use crate::runtime::lower::NodeEnvironment;
use crate::runtime::lower::annotations::{CONTAINER_NAME, POD_UID};
use crate::runtime::lower::sandbox::log_directory_of;
use lifecycle::eviction::{ContainerUsage, Disk, Usage};
use lifecycle::spec::Pod;

/// Disk usage of a pod without the writable layers of its containers.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PodDiskUsage {
    /// By container.
    pub logs: BTreeMap<String, u64>,
    /// By volume.
    pub volumes: BTreeMap<String, u64>,
}

/// The queries to make.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UsageQuery {
    /// Statistics of containers from the runtime.
    pub runtime: bool,
    pub disk: bool,
    pub processes: bool,
}

/// Returns the usage of each of these pods that is known, by UID.
pub async fn collect(
    runtime: &Runtime,
    node_env: Arc<NodeEnvironment>,
    pods: &[Arc<Pod>],
    request: UsageQuery,
) -> Result<BTreeMap<String, Usage>, cri::Error> {
    let containers = match request.runtime {
        true => runtime.cri.call(v1::ListContainerStatsRequest::default()).await?.stats,
        false => Vec::new(),
    };
    let sandboxes = if request.processes { processes(&runtime.cri).await? } else { Vec::new() };
    let mut on_disk = BTreeMap::new();
    if request.disk {
        let (volumes, pods) = (runtime.volumes.clone(), pods.to_vec());
        let measuring = tokio::task::spawn_blocking(move || {
            let of = |pod: &Arc<Pod>| {
                let logs = log_directory_of(&node_env, &pod.metadata);
                let volumes = volumes.usage(pod).unwrap_or_default();
                let on_disk = PodDiskUsage { logs: logs_of(pod, Path::new(&logs)), volumes };
                (pod.metadata.uid.clone(), on_disk)
            };
            pods.iter().map(of).collect()
        });
        // A measurement that failed has no result.
        on_disk = measuring.await.unwrap_or_default();
    }
    Ok(usages(&containers, &sandboxes, on_disk))
}

/// Returns the runtime's statistics of sandboxes. If the list fails, as with containerd 1.6 once a
/// sandbox has stopped, they are queried one by one.
async fn processes(runtime: &cri::Client) -> Result<Vec<v1::PodSandboxStats>, cri::Error> {
    match runtime.call(v1::ListPodSandboxStatsRequest::default()).await {
        Ok(answer) => return Ok(answer.stats),
        // The number of processes is unknown for all pods.
        Err(error) if error.is_unimplemented() => return Ok(Vec::new()),
        Err(_) => {}
    }
    let mut found = Vec::new();
    for sandbox in runtime.call(v1::ListPodSandboxRequest::default()).await?.items {
        if sandbox.state() == v1::PodSandboxState::SandboxReady {
            let request = v1::PodSandboxStatsRequest { pod_sandbox_id: sandbox.id };
            // A sandbox that has just stopped has no processes.
            found.extend(runtime.call(request).await.ok().and_then(|answer| answer.stats));
        }
    }
    Ok(found)
}

fn logs_of(pod: &Pod, directory: &Path) -> BTreeMap<String, u64> {
    let used = pod.containers().filter_map(|(_, container)| {
        let bytes = disk_usage(&directory.join(&container.name)).ok()?;
        Some((container.name.clone(), bytes))
    });
    used.collect()
}

/// Combines the results by pod.
#[must_use]
pub fn usages(
    containers: &[v1::ContainerStats],
    sandboxes: &[v1::PodSandboxStats],
    on_disk: BTreeMap<String, PodDiskUsage>,
) -> BTreeMap<String, Usage> {
    let mut usages: BTreeMap<String, Usage> = BTreeMap::new();
    let number = |value: Option<v1::UInt64Value>| value.map_or(0, |value| value.value);
    for stats in containers {
        let Some(of) = &stats.attributes else { continue };
        let (Some(uid), Some(name)) = (of.labels.get(POD_UID), of.labels.get(CONTAINER_NAME))
        else {
            continue;
        };
        let memory = stats.memory.as_ref().map_or(0, |memory| number(memory.working_set_bytes));
        let writable = stats.writable_layer.as_ref().map_or(Disk::default(), |layer| Disk {
            bytes: number(layer.used_bytes),
            inodes: number(layer.inodes_used),
        });
        let usage = usages.entry(uid.clone()).or_default();
        usage.memory = usage.memory.saturating_add(memory);
        let container = container_of(usage, name);
        container.memory = container.memory.saturating_add(memory);
        container.writable.bytes = container.writable.bytes.saturating_add(writable.bytes);
        container.writable.inodes = container.writable.inodes.saturating_add(writable.inodes);
    }
    for stats in sandboxes {
        let uid = stats.attributes.as_ref().and_then(|of| of.metadata.as_ref()).map(|of| &of.uid);
        let of_linux = stats.linux.as_ref().and_then(|of| of.process.as_ref());
        let of_windows = stats.windows.as_ref().and_then(|of| of.process.as_ref());
        let count = of_linux
            .map(|of| number(of.process_count))
            .or(of_windows.map(|of| number(of.process_count)));
        if let (Some(uid), Some(count)) = (uid, count) {
            let usage = usages.entry(uid.clone()).or_default();
            usage.processes = usage.processes.saturating_add(count);
        }
    }
    for (uid, PodDiskUsage { logs, volumes }) in on_disk {
        if logs.is_empty() && volumes.is_empty() {
            continue;
        }
        let usage = usages.entry(uid).or_default();
        for (name, bytes) in logs {
            container_of(usage, &name).logs.bytes = bytes;
        }
        let disk = |(name, bytes)| (name, Disk { bytes, inodes: 0 });
        usage.volumes = volumes.into_iter().map(disk).collect();
    }
    usages
}

fn container_of<'a>(usage: &'a mut Usage, name: &str) -> &'a mut ContainerUsage {
    let at = usage.containers.iter().position(|container| container.name == name);
    let at = at.unwrap_or_else(|| {
        let container = ContainerUsage { name: name.to_owned(), ..ContainerUsage::default() };
        usage.containers.push(container);
        usage.containers.len() - 1
    });
    &mut usage.containers[at]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stats(uid: &str, name: &str, memory: u64, written: u64) -> v1::ContainerStats {
        let labels = [(POD_UID, uid), (CONTAINER_NAME, name)];
        let value = |value| Some(v1::UInt64Value { value });
        v1::ContainerStats {
            attributes: Some(v1::ContainerAttributes {
                labels: labels.map(|(k, v)| (k.to_owned(), v.to_owned())).into(),
                ..Default::default()
            }),
            memory: Some(v1::MemoryUsage {
                working_set_bytes: value(memory),
                ..Default::default()
            }),
            writable_layer: Some(v1::FilesystemUsage {
                used_bytes: value(written),
                inodes_used: value(1),
                ..Default::default()
            }),
            ..Default::default()
        }
    }

    #[test]
    fn usage_of_a_pod_is_combined_from_all_sources() {
        let sandbox = v1::PodSandboxStats {
            attributes: Some(v1::PodSandboxAttributes {
                metadata: Some(v1::PodSandboxMetadata {
                    uid: "u".to_owned(),
                    ..Default::default()
                }),
                ..Default::default()
            }),
            linux: Some(v1::LinuxPodSandboxStats {
                process: Some(v1::ProcessUsage {
                    process_count: Some(v1::UInt64Value { value: 7 }),
                    ..Default::default()
                }),
                ..Default::default()
            }),
            ..Default::default()
        };
        let on_disk = PodDiskUsage {
            logs: BTreeMap::from([("a".to_owned(), 5)]),
            volumes: BTreeMap::from([("v".to_owned(), 9)]),
        };
        let nothing = PodDiskUsage::default();
        let all = usages(
            &[stats("u", "a", 10, 100), stats("u", "b", 20, 200), stats("w", "a", 1, 2)],
            &[sandbox],
            BTreeMap::from([("u".to_owned(), on_disk), ("x".to_owned(), nothing)]),
        );
        assert_eq!(all.keys().collect::<Vec<_>>(), ["u", "w"]);
        let usage = &all["u"];
        assert_eq!((usage.memory, usage.processes), (30, 7));
        let container = |name: &str, memory, written, logs| ContainerUsage {
            name: name.to_owned(),
            memory,
            writable: Disk { bytes: written, inodes: 1 },
            logs: Disk { bytes: logs, inodes: 0 },
        };
        assert_eq!(usage.containers, [container("a", 10, 100, 5), container("b", 20, 200, 0)]);
        assert_eq!(usage.volumes["v"], Disk { bytes: 9, inodes: 0 });
        assert_eq!(usage.disk(true, true, |disk| disk.bytes), 314);
    }
}
