//! The allocated resources of pods that can change while the pods run, stored on disk: [`Allocations`].
//!
//! ```text
//!   wanted (the API) ──admitted──▶ allocated (on disk) ──applied──▶ actuated (on disk)
//! ```
//!
//! The files are the kubelet's, `allocated_pods_state` and `actuated_pods_state`, so that the agent and the
//! kubelet can take over from each other. Classes of QoS resources are stored in a field that the kubelet
//! ignores. The second file has every pod, because a kubelet restarts containers whose resize policy is
//! `RestartContainer` if they are missing there. A pod that is missing in a file of an older Berth has the
//! resources that it is allocated.
//!
//! Files are written atomically but not synced: after a power failure no pod runs, and all are admitted
//! again. This module makes no decisions.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use objects::Quantity;
use objects::resources::{CPU, MEMORY};
use placement::state_file::text_checksum;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use lifecycle::spec::{Container, Pod, QosResourceRequest, Requirements, ResourceList};

/// The files of allocated and of actuated resources.
const FILES: [&str; 2] = ["allocated_pods_state", "actuated_pods_state"];
const DRAFT: &str = "pods_state.new";

#[derive(Debug, Error)]
#[error("{step} {path}: {cause}")]
pub struct AllocationError {
    step: &'static str,
    path: String,
    cause: std::io::Error,
}

/// A file that cannot be parsed. Its pods are assumed to have the resources of their specs in the API.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error(
    "{path} cannot be used: {why}; pods are assumed to have the resources of their specs in the API"
)]
pub struct UnusableFile {
    path: String,
    why: String,
}

/// The allocated resources of one container, or of a pod as a whole.
#[derive(Debug, Clone, PartialEq, Default, Deserialize, Serialize)]
#[serde(default)]
pub struct AllocatedResources {
    #[serde(skip_serializing_if = "ResourceList::is_empty")]
    pub limits: ResourceList,
    #[serde(skip_serializing_if = "ResourceList::is_empty")]
    pub requests: ResourceList,
    #[serde(rename = "qosResources", skip_serializing_if = "Vec::is_empty")]
    pub classes: Vec<QosResourceRequest>,
}

impl AllocatedResources {
    #[must_use]
    pub fn of(requirements: &Requirements) -> AllocatedResources {
        AllocatedResources {
            limits: requirements.limits.clone(),
            requests: requirements.requests.clone(),
            classes: requirements.qos_resources.clone(),
        }
    }

    fn put(&self, requirements: &mut Requirements) {
        requirements.limits.clone_from(&self.limits);
        requirements.requests.clone_from(&self.requests);
        requirements.qos_resources.clone_from(&self.classes);
    }

    /// Returns true if both have equal amounts of a resource.
    #[must_use]
    pub fn agrees_on(&self, resource: &str, other: &AllocatedResources) -> bool {
        same(self.limits.get(resource), other.limits.get(resource))
            && same(self.requests.get(resource), other.requests.get(resource))
    }

    /// Returns true if both have equal amounts of all resources that can change.
    #[must_use]
    pub fn agrees(&self, other: &AllocatedResources) -> bool {
        self.agrees_on(CPU, other) && self.agrees_on(MEMORY, other) && self.classes == other.classes
    }

    /// Copies the amounts of a resource from the other.
    pub fn take(&mut self, resource: &str, other: &AllocatedResources) {
        let lists = [(&mut self.limits, &other.limits), (&mut self.requests, &other.requests)];
        for (mine, theirs) in lists {
            match theirs.get(resource) {
                Some(amount) => mine.insert(resource.to_owned(), amount.clone()),
                None => mine.remove(resource),
            };
        }
    }
}

/// Compares two amounts; a zero amount equals a missing one.
fn same(one: Option<&Quantity>, other: Option<&Quantity>) -> bool {
    let some = |amount: Option<&Quantity>| amount.filter(|amount| !amount.is_zero()).cloned();
    some(one) == some(other)
}

/// The allocated resources of a pod's containers and of the pod as a whole.
#[derive(Debug, Clone, PartialEq, Default, Deserialize, Serialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct PodAllocation {
    pub container_resources: BTreeMap<String, AllocatedResources>,
    pub pod_level_resources: Option<AllocatedResources>,
    /// Written by the kubelet and preserved for it.
    empty_dir_volume_limits: Option<serde_json::Value>,
}

impl PodAllocation {
    /// Returns the resources of the spec.
    #[must_use]
    pub fn of(pod: &Pod) -> PodAllocation {
        let all = pod.spec.init_containers.iter().chain(&pod.spec.containers);
        PodAllocation {
            container_resources: all
                .map(|container| {
                    (container.name.clone(), AllocatedResources::of(&container.resources))
                })
                .collect(),
            pod_level_resources: pod.spec.resources.as_ref().map(AllocatedResources::of),
            empty_dir_volume_limits: None,
        }
    }

    /// Returns the pod with these resources in its spec.
    #[must_use]
    pub fn put(&self, pod: &Pod) -> Pod {
        let mut pod = pod.clone();
        for container in pod.spec.init_containers.iter_mut().chain(&mut pod.spec.containers) {
            if let Some(given) = self.container_resources.get(&container.name) {
                given.put(&mut container.resources);
            }
        }
        if let (Some(given), Some(level)) = (&self.pod_level_resources, &mut pod.spec.resources) {
            given.put(level);
        }
        pod
    }

    /// Returns the allocated resources of a container, or those of its spec if the allocation is unknown.
    #[must_use]
    pub fn container(&self, container: &Container) -> AllocatedResources {
        let found = self.container_resources.get(&container.name).cloned();
        found.unwrap_or_else(|| AllocatedResources::of(&container.resources))
    }

    /// Returns the resources as a kubelet records them once they are actuated: a container without its own
    /// limit has the limit of its pod.
    fn in_force(mut self) -> PodAllocation {
        let Some(level) = &self.pod_level_resources else { return self };
        for given in self.container_resources.values_mut() {
            for (resource, limit) in level.limits.iter().filter(|(name, _)| is_inherited(name)) {
                given.limits.entry(resource.clone()).or_insert_with(|| limit.clone());
            }
        }
        self
    }

    /// Removes the limits that [`PodAllocation::in_force`] added to the allocated ones.
    fn without_inherited(&mut self, allocated: &PodAllocation) {
        let Some(level) = &self.pod_level_resources else { return };
        for (name, given) in &mut self.container_resources {
            let own = allocated.container_resources.get(name);
            given.limits.retain(|resource, limit| {
                let has_own = own.is_some_and(|own| own.limits.contains_key(resource));
                has_own || !is_inherited(resource) || level.limits.get(resource) != Some(limit)
            });
        }
    }

    /// Returns true if both have equal amounts of all resources that can change.
    #[must_use]
    pub fn agrees(&self, other: &PodAllocation) -> bool {
        let level = |of: &PodAllocation| of.pod_level_resources.clone().unwrap_or_default();
        let names: BTreeSet<&String> =
            self.container_resources.keys().chain(other.container_resources.keys()).collect();
        let none = AllocatedResources::default();
        let of = |list: &PodAllocation, name: &String| {
            list.container_resources.get(name).unwrap_or(&none).clone()
        };
        level(self).agrees(&level(other))
            && names.into_iter().all(|name| of(self, name).agrees(&of(other, name)))
    }
}

/// Returns true if containers inherit the pod's limit of a resource.
fn is_inherited(resource: &str) -> bool {
    [CPU, MEMORY].contains(&resource)
}

type Entries = BTreeMap<String, PodAllocation>;

/// The allocated and actuated resources of the node's pods.
#[derive(Debug)]
pub struct Allocations {
    directory: PathBuf,
    allocated: Entries,
    /// Contains only pods whose actuated resources differ from the allocated ones.
    actuated: Entries,
}

impl Allocations {
    /// Loads the files.
    pub fn open(directory: &Path) -> Result<(Allocations, Vec<UnusableFile>), AllocationError> {
        let mut unusable = Vec::new();
        let mut load = |file: &str| -> Result<Entries, AllocationError> {
            let path = directory.join(file);
            let text = match fs::read(&path) {
                Ok(bytes) => bytes,
                Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Entries::new()),
                Err(cause) => return Err(failed("read", &path)(cause)),
            };
            Ok(parse(&text).unwrap_or_else(|error| {
                let (path, why) = (path.display().to_string(), error.to_string());
                unusable.push(UnusableFile { path, why });
                Entries::new()
            }))
        };
        let (allocated, mut actuated) = (load(FILES[0])?, load(FILES[1])?);
        // The file has all pods, also those whose actuated resources equal the allocated ones.
        actuated.retain(|uid, has| {
            let Some(to_have) = allocated.get(uid) else { return false };
            has.without_inherited(to_have);
            !to_have.agrees(has)
        });
        Ok((Allocations { directory: directory.to_owned(), allocated, actuated }, unusable))
    }

    /// Returns the allocated resources of a pod, if known.
    #[must_use]
    pub fn allocated(&self, uid: &str) -> Option<&PodAllocation> {
        self.allocated.get(uid)
    }

    /// Returns the actuated resources of a pod, if they differ from the allocated ones.
    #[must_use]
    pub fn actuated(&self, uid: &str) -> Option<&PodAllocation> {
        self.actuated.get(uid)
    }

    /// Allocates other resources to a pod. Its previous resources stay actuated until
    /// [`Allocations::actuate`].
    pub fn allocate(&mut self, uid: &str, mut given: PodAllocation) -> Result<(), AllocationError> {
        let before = self.allocated.get(uid).cloned();
        if let Some(before) = &before {
            given.empty_dir_volume_limits.clone_from(&before.empty_dir_volume_limits);
        }
        if before.as_ref() == Some(&given) {
            return Ok(());
        }
        if let Some(before) = before {
            let has = self.actuated.get(uid).cloned().unwrap_or(before);
            // Save the actuated resources first: otherwise the new allocation would be assumed to be
            // actuated.
            self.set_actuated(uid, Some(has))?;
        }
        let before = self.allocated.insert(uid.to_owned(), given);
        if let Err(error) = self.save(0) {
            match before {
                Some(before) => self.allocated.insert(uid.to_owned(), before),
                None => self.allocated.remove(uid),
            };
            return Err(error);
        }
        match self.is_in_force(uid) {
            true => {
                self.actuated.remove(uid);
                self.save(1)
            }
            false => Ok(()),
        }
    }

    /// Records the actuated resources of a container. Returns true if the pod now has all allocated
    /// resources.
    pub fn actuate(
        &mut self,
        uid: &str,
        container: &str,
        given: AllocatedResources,
    ) -> Result<bool, AllocationError> {
        self.change(uid, |has| {
            has.container_resources.insert(container.to_owned(), given);
        })
    }

    /// Records the actuated resources of the pod as a whole; see [`Allocations::actuate`]. The allocation may
    /// have changed since the actuation started.
    pub fn actuate_pod(
        &mut self,
        uid: &str,
        level: Option<AllocatedResources>,
    ) -> Result<bool, AllocationError> {
        self.change(uid, |has| has.pod_level_resources = level)
    }

    fn change(
        &mut self,
        uid: &str,
        change: impl FnOnce(&mut PodAllocation),
    ) -> Result<bool, AllocationError> {
        let Some(mut has) = self.actuated.get(uid).cloned() else { return Ok(false) };
        change(&mut has);
        let done = self.allocated.get(uid).is_none_or(|given| given.agrees(&has));
        self.set_actuated(uid, (!done).then_some(has))?;
        Ok(done)
    }

    fn is_in_force(&self, uid: &str) -> bool {
        match (self.allocated.get(uid), self.actuated.get(uid)) {
            (Some(given), Some(has)) => given.agrees(has),
            _ => true,
        }
    }

    /// Removes a pod that is gone.
    pub fn forget(&mut self, uid: &str) -> Result<(), AllocationError> {
        self.keep(|known| known != uid)
    }

    /// Removes all pods except those selected.
    pub fn keep(&mut self, is_kept: impl Fn(&str) -> bool) -> Result<(), AllocationError> {
        let size = self.allocated.len();
        self.allocated.retain(|uid, _| is_kept(uid));
        self.actuated.retain(|uid, _| is_kept(uid));
        if self.allocated.len() == size {
            return Ok(());
        }
        self.save(0)?;
        self.save(1)
    }

    fn set_actuated(
        &mut self,
        uid: &str,
        has: Option<PodAllocation>,
    ) -> Result<(), AllocationError> {
        if self.actuated.get(uid) == has.as_ref() {
            return Ok(());
        }
        match has {
            Some(has) => self.actuated.insert(uid.to_owned(), has),
            None => self.actuated.remove(uid),
        };
        self.save(1)
    }

    fn save(&self, which: usize) -> Result<(), AllocationError> {
        let mut entries = self.allocated.clone();
        if which == 1 {
            entries.extend(self.actuated.clone());
            entries = entries.into_iter().map(|(uid, given)| (uid, given.in_force())).collect();
        }
        let (path, draft) = (self.directory.join(FILES[which]), self.directory.join(DRAFT));
        write_private(&draft, &render(entries)).map_err(failed("write", &draft))?;
        fs::rename(&draft, &path).map_err(failed("write", &path))
    }
}

/// Writes a file that only the agent's user can read, replacing an existing one.
fn write_private(path: &Path, text: &str) -> std::io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    std::io::Write::write_all(&mut host::os::create_private_file(path)?, text.as_bytes())
}

fn failed(step: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> AllocationError {
    let path = path.display().to_string();
    move |cause| AllocationError { step, path, cause }
}

#[derive(Deserialize, Serialize)]
struct Checkpoint {
    data: String,
    checksum: u64,
}

#[derive(Default, Deserialize, Serialize)]
#[serde(default)]
struct Data {
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    entries: Entries,
}

/// The reason why a state file cannot be used.
#[derive(Debug, Error)]
enum CheckpointError {
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    #[error("checksum mismatch: {found}, expected {computed}")]
    Checksum { found: u64, computed: u64 },
}

fn parse(text: &[u8]) -> Result<Entries, CheckpointError> {
    let checkpoint: Checkpoint = serde_json::from_slice(text)?;
    let (found, computed) = (checkpoint.checksum, text_checksum(&checkpoint.data));
    if computed != found {
        return Err(CheckpointError::Checksum { found, computed });
    }
    let data: Data = serde_json::from_str(&checkpoint.data)?;
    Ok(data.entries)
}

fn render(entries: Entries) -> String {
    // Maps with string keys always serialize.
    let data = serde_json::to_string(&Data { entries }).unwrap_or_default();
    let checkpoint = Checkpoint { checksum: text_checksum(&data), data };
    serde_json::to_string(&checkpoint).unwrap_or_default()
}

#[cfg(test)]
mod tests;
