//! What pods were given of what can change while they run, remembered across restarts: [`Allocations`].
//!
//! ```text
//!   wanted (the API) ──admitted──▶ allocated (on disk) ──applied──▶ actuated (on disk)
//! ```
//!
//! The files are the kubelet's, `allocated_pods_state` and `actuated_pods_state`, so that either agent
//! can take over from the other; classes of QoS resources are beside the amounts, where the kubelet does
//! not look. The second file has every pod, because a kubelet restarts containers whose resize policy is
//! `RestartContainer` if they are missing there. A pod that is missing in a file of an older Berth has what
//! it is allocated. Written whole or not at all,
//! and not synced: when power fails nothing of any pod runs, and all are let in anew. Decides nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use objects::Quantity;
use objects::resources::{CPU, MEMORY};
use placement::state_file::text_checksum;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::spec::{Amounts, Container, Pod, QosResourceRequest, Requirements};

/// What was allocated, and what of it is not in force yet.
const FILES: [&str; 2] = ["allocated_pods_state", "actuated_pods_state"];
const DRAFT: &str = "pods_state.new";

#[derive(Debug, Error)]
#[error("{step} {path}: {cause}")]
pub struct AllocationError {
    step: &'static str,
    path: String,
    cause: std::io::Error,
}

/// A file that cannot be used. Pods it had are taken to have what the API says.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{path} cannot be used: {why}; pods are taken to have what the API says")]
pub struct Unusable {
    path: String,
    why: String,
}

/// What one container, or a pod as a whole, was given.
#[derive(Debug, Clone, PartialEq, Default, Deserialize, Serialize)]
#[serde(default)]
pub struct Given {
    #[serde(skip_serializing_if = "Amounts::is_empty")]
    pub limits: Amounts,
    #[serde(skip_serializing_if = "Amounts::is_empty")]
    pub requests: Amounts,
    #[serde(rename = "qosResources", skip_serializing_if = "Vec::is_empty")]
    pub classes: Vec<QosResourceRequest>,
}

impl Given {
    #[must_use]
    pub fn of(requirements: &Requirements) -> Given {
        Given {
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

    /// Whether both have the same of a resource.
    #[must_use]
    pub fn agrees_on(&self, resource: &str, other: &Given) -> bool {
        same(self.limits.get(resource), other.limits.get(resource))
            && same(self.requests.get(resource), other.requests.get(resource))
    }

    /// Whether both have the same of everything that can change.
    #[must_use]
    pub fn agrees(&self, other: &Given) -> bool {
        self.agrees_on(CPU, other) && self.agrees_on(MEMORY, other) && self.classes == other.classes
    }

    /// Takes over what the other has of a resource.
    pub fn take(&mut self, resource: &str, other: &Given) {
        let lists = [(&mut self.limits, &other.limits), (&mut self.requests, &other.requests)];
        for (mine, theirs) in lists {
            match theirs.get(resource) {
                Some(amount) => mine.insert(resource.to_owned(), amount.clone()),
                None => mine.remove(resource),
            };
        }
    }
}

/// Amounts of nothing and no amounts are one.
fn same(one: Option<&Quantity>, other: Option<&Quantity>) -> bool {
    let some = |amount: Option<&Quantity>| amount.filter(|amount| !amount.is_zero()).cloned();
    some(one) == some(other)
}

/// What the containers of a pod were given, and the pod as a whole.
#[derive(Debug, Clone, PartialEq, Default, Deserialize, Serialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct PodGiven {
    pub container_resources: BTreeMap<String, Given>,
    pub pod_level_resources: Option<Given>,
    /// The kubelet's, and kept for it.
    empty_dir_volume_limits: Option<serde_json::Value>,
}

impl PodGiven {
    /// What the spec asks for.
    #[must_use]
    pub fn of(pod: &Pod) -> PodGiven {
        let all = pod.spec.init_containers.iter().chain(&pod.spec.containers);
        PodGiven {
            container_resources: all
                .map(|container| (container.name.clone(), Given::of(&container.resources)))
                .collect(),
            pod_level_resources: pod.spec.resources.as_ref().map(Given::of),
            empty_dir_volume_limits: None,
        }
    }

    /// The pod as it would be if it had asked for this.
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

    /// What a container was given; what it asks for if nobody knows.
    #[must_use]
    pub fn container(&self, container: &Container) -> Given {
        let found = self.container_resources.get(&container.name).cloned();
        found.unwrap_or_else(|| Given::of(&container.resources))
    }

    /// Returns the amounts as a kubelet records them once they are in force: a container without a limit of
    /// its own has the limit of its pod.
    fn in_force(mut self) -> PodGiven {
        let Some(level) = &self.pod_level_resources else { return self };
        for given in self.container_resources.values_mut() {
            for (resource, limit) in level.limits.iter().filter(|(name, _)| is_inherited(name)) {
                given.limits.entry(resource.clone()).or_insert_with(|| limit.clone());
            }
        }
        self
    }

    /// Takes away what [`PodGiven::in_force`] has added to what was allocated.
    fn without_inherited(&mut self, allocated: &PodGiven) {
        let Some(level) = &self.pod_level_resources else { return };
        for (name, given) in &mut self.container_resources {
            let own = allocated.container_resources.get(name);
            given.limits.retain(|resource, limit| {
                let has_own = own.is_some_and(|own| own.limits.contains_key(resource));
                has_own || !is_inherited(resource) || level.limits.get(resource) != Some(limit)
            });
        }
    }

    /// Whether both have the same of everything that can change.
    #[must_use]
    pub fn agrees(&self, other: &PodGiven) -> bool {
        let level = |of: &PodGiven| of.pod_level_resources.clone().unwrap_or_default();
        let names: BTreeSet<&String> =
            self.container_resources.keys().chain(other.container_resources.keys()).collect();
        let none = Given::default();
        let of = |list: &PodGiven, name: &String| {
            list.container_resources.get(name).unwrap_or(&none).clone()
        };
        level(self).agrees(&level(other))
            && names.into_iter().all(|name| of(self, name).agrees(&of(other, name)))
    }
}

/// Checks whether containers inherit the pod's limit of a resource.
fn is_inherited(resource: &str) -> bool {
    [CPU, MEMORY].contains(&resource)
}

type Entries = BTreeMap<String, PodGiven>;

/// What the pods of the node were given.
#[derive(Debug)]
pub struct Allocations {
    directory: PathBuf,
    allocated: Entries,
    /// Only of pods that do not have what they were allocated.
    actuated: Entries,
}

impl Allocations {
    /// Takes up what the files say.
    pub fn open(directory: &Path) -> Result<(Allocations, Vec<Unusable>), AllocationError> {
        let mut unusable = Vec::new();
        let mut load = |file: &str| -> Result<Entries, AllocationError> {
            let path = directory.join(file);
            let text = match fs::read(&path) {
                Ok(bytes) => bytes,
                Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Entries::new()),
                Err(cause) => return Err(failed("read", &path)(cause)),
            };
            Ok(parse(&text).unwrap_or_else(|why| {
                unusable.push(Unusable { path: path.display().to_string(), why });
                Entries::new()
            }))
        };
        let (allocated, mut actuated) = (load(FILES[0])?, load(FILES[1])?);
        // The file has all pods, also those that have what they were allocated.
        actuated.retain(|uid, has| {
            let Some(to_have) = allocated.get(uid) else { return false };
            has.without_inherited(to_have);
            !to_have.agrees(has)
        });
        Ok((Allocations { directory: directory.to_owned(), allocated, actuated }, unusable))
    }

    /// What a pod was allocated, if that is known.
    #[must_use]
    pub fn allocated(&self, uid: &str) -> Option<&PodGiven> {
        self.allocated.get(uid)
    }

    /// What is in force for a pod, if that is not what it was allocated.
    #[must_use]
    pub fn actuated(&self, uid: &str) -> Option<&PodGiven> {
        self.actuated.get(uid)
    }

    /// Gives a pod something else. What it had so far is in force until somebody says otherwise.
    pub fn allocate(&mut self, uid: &str, mut given: PodGiven) -> Result<(), AllocationError> {
        let before = self.allocated.get(uid).cloned();
        if let Some(before) = &before {
            given.empty_dir_volume_limits.clone_from(&before.empty_dir_volume_limits);
        }
        if before.as_ref() == Some(&given) {
            return Ok(());
        }
        if let Some(before) = before {
            let has = self.actuated.get(uid).cloned().unwrap_or(before);
            // First what it has: without it the new amounts would be taken to be in force.
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

    /// What a container has now. Whether that was the last thing the pod did not have.
    pub fn actuate(
        &mut self,
        uid: &str,
        container: &str,
        given: Given,
    ) -> Result<bool, AllocationError> {
        self.change(uid, |has| {
            has.container_resources.insert(container.to_owned(), given);
        })
    }

    /// What the pod as a whole has now; see [`Allocations::actuate`]. It may have been allocated something
    /// else since that was begun.
    pub fn actuate_pod(
        &mut self,
        uid: &str,
        level: Option<Given>,
    ) -> Result<bool, AllocationError> {
        self.change(uid, |has| has.pod_level_resources = level)
    }

    fn change(
        &mut self,
        uid: &str,
        change: impl FnOnce(&mut PodGiven),
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

    /// Forgets a pod that is gone.
    pub fn forget(&mut self, uid: &str) -> Result<(), AllocationError> {
        self.keep(|known| known != uid)
    }

    /// Forgets all pods but those.
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

    fn set_actuated(&mut self, uid: &str, has: Option<PodGiven>) -> Result<(), AllocationError> {
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

/// Writes a file that nobody else may read, in the place of whatever is there.
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

fn parse(text: &[u8]) -> Result<Entries, String> {
    let checkpoint: Checkpoint = serde_json::from_slice(text).map_err(|error| error.to_string())?;
    let computed = text_checksum(&checkpoint.data);
    if computed != checkpoint.checksum {
        return Err(format!("its checksum is {}, and should be {computed}", checkpoint.checksum));
    }
    let data: Data = serde_json::from_str(&checkpoint.data).map_err(|error| error.to_string())?;
    Ok(data.entries)
}

fn render(entries: Entries) -> String {
    // Maps with keys of text: there is nothing that could not be written.
    let data = serde_json::to_string(&Data { entries }).unwrap_or_default();
    let checkpoint = Checkpoint { checksum: text_checksum(&data), data };
    serde_json::to_string(&checkpoint).unwrap_or_default()
}

#[cfg(test)]
mod tests;
