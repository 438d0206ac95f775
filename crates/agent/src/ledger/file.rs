//! The node's ledger on disk: [`LedgerFile`]. An assignment is on disk before a container uses it.
//!
//! The files are the kubelet's, `cpu_manager_state` and `memory_manager_state`, so that the agent and the
//! kubelet can take over from each other. Assignments that no longer fit the machine or the configuration are
//! reported and dropped; the others stay, and the old files are kept as backups. `placement` makes the
//! decisions. This module sends no events.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use host::files::{WriteError, back_up, write_atomically};
use objects::pod::OsName;
use placement::demand::{Demand, PodUid};
use placement::plan::{Placement, Surplus};
use placement::restore::{Change, CpusInUse, migrate, recover, restore, states_of};
use placement::state_file::{CpuState, Gates, Manager, MemoryState, StateFileError};
use placement::{CpuSet, Ledger, Node, Refusal};
use thiserror::Error;

use crate::runtime::lower::ContainerAffinity;
use lifecycle::spec::Pod;

#[derive(Debug, Error)]
pub enum LedgerError {
    #[error("{path}: {cause}")]
    Read { path: String, cause: std::io::Error },
    #[error(transparent)]
    Write(#[from] WriteError),
    /// The ledger changed since the placement was planned. Plan it again.
    #[error("the ledger changed since the placement was planned")]
    Stale,
}

/// A placement, and the edition of the ledger that it was planned against.
#[derive(Debug, Clone, PartialEq)]
pub struct PlannedPlacement {
    pub placement: Placement,
    edition: u64,
}

/// A finding of opening the ledger.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum StateFileNotice {
    /// A file that cannot be parsed. Running pods are placed again.
    #[error("{path} cannot be used: {cause}; its contents are discarded")]
    UnusableFile { path: String, cause: StateFileError },
    #[error(transparent)]
    Changed(Change),
    #[error("a backup of the old file is in {0}")]
    Kept(String),
}

/// The resources that the node has assigned.
#[derive(Debug)]
pub struct LedgerFile {
    node: Node,
    ledger: Ledger,
    /// The number of changes of the ledger since it was opened.
    edition: u64,
    directory: PathBuf,
    /// The placements of pods that were admitted since the start.
    placements: BTreeMap<PodUid, Placement>,
    /// The contents of the files.
    written: [String; 2],
    /// True if the file did not list the CPUs of containers.
    cpus_lost: bool,
    /// Pods whose CPUs were recovered but not yet compared with the pods' requests.
    recovered: BTreeSet<PodUid>,
}

const FILES: [Manager; 2] = [Manager::Cpu, Manager::Memory];

impl LedgerFile {
    /// Loads the assignments from the files that still fit the node.
    pub fn open(
        directory: &Path,
        node: Node,
    ) -> Result<(LedgerFile, Vec<StateFileNotice>), LedgerError> {
        let mut found = Vec::new();
        // Accept entries of any upstream feature gate. Entries that are not supported here are reported
        // below.
        let gates = Gates { pod_level_resource_managers: true, ..Gates::default() };
        let mut usable = true;
        let [cpu_text, memory_text] = [read(directory, FILES[0])?, read(directory, FILES[1])?];
        let cpu = parsed(&cpu_text, node.cpu.policy_name(), |bytes, policy| {
            CpuState::parse(bytes, policy, gates)
        });
        let cpu = cpu.unwrap_or_else(|cause| {
            found.push(unusable(directory, FILES[0], cause));
            usable = false;
            None
        });
        let memory = parsed(&memory_text, node.memory.policy_name(), |bytes, policy| {
            MemoryState::parse(bytes, policy, gates)
        });
        let memory = memory.unwrap_or_else(|cause| {
            found.push(unusable(directory, FILES[1], cause));
            usable = false;
            None
        });
        let cpus_lost = cpu.as_ref().is_none_or(|cpu| cpu.policy != node.cpu.policy_name());
        let cpu = cpu.unwrap_or_else(|| CpuState::empty(node.cpu.policy_name()));
        let memory = memory.unwrap_or_else(|| MemoryState::empty(node.memory.policy_name()));
        let same = cpu.policy == node.cpu.policy_name()
            && memory.policy == node.memory.policy_name()
            && cpu.pod_cpus.is_empty();
        let fits = restore(&node, &cpu, &memory).ok().filter(|_| same && usable);
        let ledger = match fits {
            Some(restored) => restored.ledger,
            None => {
                let migration = migrate(&node, &cpu, &memory);
                found.extend(migration.changes.into_iter().map(StateFileNotice::Changed));
                migration.ledger
            }
        };
        if !found.is_empty() {
            for manager in FILES {
                if let Some(kept) = back_up(&directory.join(manager.file_name()))? {
                    found.push(StateFileNotice::Kept(kept.display().to_string()));
                }
            }
        }
        let mut ledger = LedgerFile {
            node,
            ledger,
            edition: 0,
            directory: directory.to_owned(),
            placements: BTreeMap::new(),
            written: Default::default(),
            cpus_lost,
            recovered: BTreeSet::new(),
        };
        ledger.save()?;
        Ok((ledger, found))
    }

    #[must_use]
    pub fn node(&self) -> &Node {
        &self.node
    }

    #[must_use]
    pub fn contents(&self) -> &Ledger {
        &self.ledger
    }

    /// Returns true if the file was missing or unusable, or was written under another CPU policy. Containers
    /// may then have exclusive CPUs that the ledger does not list; see [`LedgerFile::recover`].
    #[must_use]
    pub fn lost_cpus(&self) -> bool {
        self.cpus_lost
    }

    /// Assigns the CPUs that running containers have exclusively, and returns these containers.
    pub fn recover(&mut self, running: &CpusInUse) -> Result<CpusInUse, LedgerError> {
        let mut recovered = CpusInUse::new();
        self.change(|ledger, node| recovered = recover(node, ledger, running))?;
        self.recovered.extend(recovered.keys().cloned());
        Ok(recovered)
    }

    /// Releases recovered CPUs that the pod does not request. This is done once for each pod, before it is
    /// planned.
    pub fn confirm(&mut self, demand: &Demand) -> Result<(), LedgerError> {
        if !self.recovered.contains(&demand.uid) {
            return Ok(());
        }
        let requested = |name: &str| {
            let position =
                demand.containers.iter().position(|container| container.name.as_str() == name)?;
            demand.exclusive_cpus(position)
        };
        self.change(|ledger, _| {
            let assigned = ledger.cpu.assignments.get(&demand.uid).cloned().unwrap_or_default();
            for (container, cpus) in assigned {
                if requested(&container) != Some(cpus.len()) {
                    ledger.cpu.release(&demand.uid, &container);
                }
            }
        })?;
        self.recovered.remove(&demand.uid);
        Ok(())
    }

    /// Returns true if the ledger already has all assignments of a placement.
    #[must_use]
    pub fn has(&self, placement: &Placement) -> bool {
        let cpu = self.ledger.cpu.assignments.get(&placement.pod);
        let memory = self.ledger.memory.assignments.get(&placement.pod);
        placement.containers.iter().all(|container| {
            let cpus = cpu.and_then(|all| all.get(&container.name));
            let blocks = memory.and_then(|all| all.get(&container.name));
            cpus == container.cpus.as_ref() && blocks == container.memory.as_ref()
        })
    }

    /// Plans a placement for the pod.
    pub fn plan(&self, demand: &Demand) -> Result<PlannedPlacement, Refusal> {
        let placement = placement::plan(&self.node, &self.ledger, demand)?;
        Ok(PlannedPlacement { placement, edition: self.edition })
    }

    /// Plans a placement for a pod that already has one, with other amounts; see [`placement::plan::replan`].
    pub fn replan(&self, demand: &Demand, surplus: Surplus) -> Result<PlannedPlacement, Refusal> {
        let placement = placement::plan::replan(&self.node, &self.ledger, demand, surplus)?;
        Ok(PlannedPlacement { placement, edition: self.edition })
    }

    /// Assigns the planned resources. The files are on disk when this returns. If they cannot be written, or
    /// the ledger changed since planning, nothing is assigned.
    pub fn commit(&mut self, planned: PlannedPlacement) -> Result<(), LedgerError> {
        let PlannedPlacement { placement, edition } = planned;
        if edition != self.edition {
            return Err(LedgerError::Stale);
        }
        self.change(|ledger, _| ledger.commit(&placement))?;
        self.placements.insert(placement.pod.clone(), placement);
        Ok(())
    }

    /// Releases the resources of a pod. Returns true if it had any. They are not assigned again before the
    /// release is on disk.
    pub fn release(&mut self, pod: &PodUid) -> Result<bool, LedgerError> {
        let had = self.change(|ledger, _| ledger.release(pod))?;
        self.placements.remove(pod);
        self.recovered.remove(pod);
        Ok(had)
    }

    /// Updates the ledger for a container that is about to start; see [`Ledger::starting`].
    pub fn starting(&mut self, demand: &Demand, container: &str) -> Result<(), LedgerError> {
        let position = demand.containers.iter().position(|c| c.name.as_str() == container);
        let Some(position) = position else { return Ok(()) };
        self.change(|ledger, node| ledger.starting(node, demand, position)).map(drop)
    }

    /// Changes the ledger and the files, or neither. Returns true if the ledger changed.
    fn change(&mut self, apply: impl FnOnce(&mut Ledger, &Node)) -> Result<bool, LedgerError> {
        let before = self.ledger.clone();
        apply(&mut self.ledger, &self.node);
        if self.ledger == before {
            return Ok(false);
        }
        if let Err(error) = self.save() {
            self.ledger = before;
            return Err(error);
        }
        self.edition += 1;
        Ok(true)
    }

    /// Returns the placement that a pod was admitted with.
    #[must_use]
    pub fn placement(&self, pod: &PodUid) -> Option<&Placement> {
        self.placements.get(pod)
    }

    /// Returns true if the pod has exclusive resources.
    #[must_use]
    pub fn holds(&self, pod: &PodUid) -> bool {
        self.ledger.cpu.assignments.contains_key(pod)
            || self.ledger.memory.assignments.contains_key(pod)
    }

    /// Returns the current CPUs and memory nodes of the containers of a pod.
    #[must_use]
    pub fn affinities(&self, pod: &Pod) -> BTreeMap<String, ContainerAffinity> {
        let uid = PodUid::new(&pod.metadata.uid);
        let Some(placement) = self.placements.get(&uid) else { return BTreeMap::new() };
        let affinity = |one: &placement::plan::ContainerPlacement| {
            (one.name.to_string(), ContainerAffinity::of(one, &self.node, &self.ledger))
        };
        let mut affinities: BTreeMap<String, ContainerAffinity> =
            placement.containers.iter().map(affinity).collect();
        // Ephemeral containers run on the shared CPUs.
        for container in &pod.spec.ephemeral_containers {
            let shared = ContainerAffinity { cpus: self.shared(), ..ContainerAffinity::default() };
            affinities.entry(container.name.clone()).or_insert(shared);
        }
        affinities
    }

    /// Returns the current CPUs and memory nodes of one container, also if its pod was admitted before the
    /// agent started.
    #[must_use]
    pub fn affinity(&self, pod: &PodUid, container: &str) -> ContainerAffinity {
        let placement = self.placements.get(pod);
        let admitted = placement.and_then(|placement| {
            placement.containers.iter().find(|one| one.name.as_str() == container)
        });
        match admitted {
            Some(admitted) => ContainerAffinity::of(admitted, &self.node, &self.ledger),
            None => ContainerAffinity::from_ledger(pod, container, &self.node, &self.ledger),
        }
    }

    /// Returns the state files whose contents differ from the last write: another process writes to them.
    #[must_use]
    pub fn altered(&self) -> Vec<PathBuf> {
        let paths = FILES.map(|manager| self.directory.join(manager.file_name()));
        let is_other = |(path, text): &(PathBuf, &String)| {
            fs::read_to_string(path).ok().as_ref() != Some(*text)
        };
        let altered = paths.into_iter().zip(&self.written).filter(is_other);
        altered.map(|(path, _)| path).collect()
    }

    /// Writes the files again, regardless of their contents.
    pub fn rewrite(&mut self) -> Result<(), LedgerError> {
        self.written = Default::default();
        self.save()
    }

    /// Returns the CPUs and memory nodes that a placement would give the containers, without committing it.
    #[must_use]
    pub fn affinities_by(&self, placement: &Placement) -> BTreeMap<String, ContainerAffinity> {
        let mut ledger = self.ledger.clone();
        ledger.commit(placement);
        let affinity = |one: &placement::plan::ContainerPlacement| {
            (one.name.to_string(), ContainerAffinity::of(one, &self.node, &ledger))
        };
        placement.containers.iter().map(affinity).collect()
    }

    /// Returns the containers of an uncommitted placement whose memory may come from other NUMA nodes than
    /// planned, with the reason: Windows does not bind memory.
    #[must_use]
    pub fn memory_warnings(&self, placement: &Placement) -> Vec<(String, String)> {
        if self.node.os != OsName::Windows {
            return Vec::new();
        }
        let mut ledger = self.ledger.clone();
        ledger.commit(placement);
        let warning = |one: &placement::plan::ContainerPlacement| {
            let warning = one.affinity(&self.node, &ledger)?.locality.warning()?;
            Some((one.name.to_string(), warning))
        };
        placement.containers.iter().filter_map(warning).collect()
    }

    /// Returns the CPUs of containers without exclusive CPUs. Empty if no container has exclusive CPUs.
    #[must_use]
    pub fn shared(&self) -> CpuSet {
        self.ledger.cpu.shared.clone()
    }

    fn save(&mut self) -> Result<(), LedgerError> {
        let (cpu, memory) = states_of(&self.node, &self.ledger);
        for (position, text) in [cpu.render(), memory.render()].into_iter().enumerate() {
            if self.written[position] != text {
                let path = self.directory.join(FILES[position].file_name());
                write_atomically(&path, text.as_bytes())?;
                self.written[position] = text;
            }
        }
        Ok(())
    }
}

fn read(directory: &Path, manager: Manager) -> Result<Option<Vec<u8>>, LedgerError> {
    let path = directory.join(manager.file_name());
    match fs::read(&path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(cause) => Err(LedgerError::Read { path: path.display().to_string(), cause }),
    }
}

/// Parses a state file, also if it was written under another policy.
fn parsed<T>(
    text: &Option<Vec<u8>>,
    policy: &str,
    parse: impl Fn(&[u8], &str) -> Result<T, StateFileError>,
) -> Result<Option<T>, StateFileError> {
    let Some(bytes) = text else { return Ok(None) };
    match parse(bytes, policy) {
        Err(StateFileError::PolicyDiffers { stored, .. }) => parse(bytes, &stored).map(Some),
        other => other.map(Some),
    }
}

fn unusable(directory: &Path, manager: Manager, cause: StateFileError) -> StateFileNotice {
    StateFileNotice::UnusableFile {
        path: directory.join(manager.file_name()).display().to_string(),
        cause,
    }
}

#[cfg(test)]
mod tests;
