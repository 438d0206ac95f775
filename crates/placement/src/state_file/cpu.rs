//! `cpu_manager_state`: reads versions 2 to 4, writes version 4.
//!
//! Main type: [`CpuState`]. Version 1, which named containers by runtime id, is rejected as
//! upstream does.

use crate::cpuset::{CpuSet, ParseCpuSetError};

use super::checkpoint::{Body, Checkpoint, Hashed};
use super::go_json::{
    Decode, DecodeError, Faults, Json, Map, decode_fields, is_empty, map, object, string,
};
use super::spew::{Dump, Field, Spew};
use super::{Gates, Manager, PerContainer, PerPod, StateFileError};

/// The state of the CPU manager.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CpuState {
    /// Name of the policy that made the assignments: `none` or `static`.
    pub policy: String,
    /// The shared pool: CPUs that are not exclusive to a container.
    pub default_cpus: CpuSet,
    /// Exclusive CPUs of containers.
    pub entries: PerContainer<CpuSet>,
    /// CPUs of pods as a whole (gate `PodLevelResourceManagers`).
    pub pod_cpus: PerPod<CpuSet>,
    /// CPUs that containers started with, which a resize never removes (gate
    /// `InPlacePodVerticalScalingExclusiveCPUs`).
    pub baselines: PerContainer<CpuSet>,
}

impl CpuState {
    /// Returns the state without assignments, which is also that of a missing file.
    #[must_use]
    pub fn empty(policy: impl Into<String>) -> CpuState {
        CpuState { policy: policy.into(), ..CpuState::default() }
    }

    /// Parses a file. `policy` is the configured one; a file of another policy is rejected.
    pub fn parse(content: &[u8], policy: &str, gates: Gates) -> Result<CpuState, StateFileError> {
        let body: CpuBody = Checkpoint::open(content, policy, gates)?;
        let default_cpus = CpuSet::parse(&body.default_cpus).map_err(|cause| {
            StateFileError::DefaultCpus { text: body.default_cpus, cause: cause.into() }
        })?;
        let entries = parse_cpus(body.entries, |cpus| cpus, container_cpus)?;
        let baselines = match (gates.in_place_scaling_of_exclusive_cpus, &body.baselines) {
            (false, _) => PerContainer::new(),
            (true, stored) if is_empty(stored) => entries.clone(),
            (true, _) => parse_cpus(body.baselines, |b| b.cpus, baseline_cpus)?,
        };
        let pod_cpus = if gates.pod_level_resource_managers {
            let pods = body.pods.unwrap_or_default();
            pods.into_iter().map(|(pod, entry)| (pod, entry.cpus)).collect()
        } else {
            PerPod::new()
        };
        let policy = policy.to_owned();
        Ok(CpuState { policy, default_cpus, entries, pod_cpus, baselines })
    }

    /// Renders the file as a kubelet writes it.
    #[must_use]
    pub fn render(&self) -> String {
        self.checkpoint().render()
    }

    /// Returns the text whose hash is `checksum` in the rendered file.
    #[must_use]
    pub fn checksum_preimage(&self) -> String {
        self.checkpoint().checksum_preimage()
    }

    /// Returns the text whose hash is `dataChecksum` in the rendered file.
    #[must_use]
    pub fn data_checksum_preimage(&self) -> String {
        self.checkpoint().data_checksum_preimage()
    }

    fn checkpoint(&self) -> Checkpoint<CpuBody> {
        let pods = self.pod_cpus.iter();
        let body = CpuBody {
            default_cpus: self.default_cpus.to_string(),
            entries: texts(&self.entries, |cpus| cpus),
            pods: Some(
                pods.map(|(pod, cpus)| (pod.clone(), PodEntry { cpus: cpus.clone() })).collect(),
            ),
            baselines: texts(&self.baselines, |cpus| Baseline { cpus }),
        };
        Checkpoint::new(&self.policy, body)
    }
}

fn parse_cpus<T>(
    map: Map<String, Map<String, T>>,
    text: impl Fn(T) -> String,
    error: impl Fn(String, String, String, Box<ParseCpuSetError>) -> StateFileError,
) -> Result<PerContainer<CpuSet>, StateFileError> {
    let mut parsed = PerContainer::new();
    for (pod, containers) in map.unwrap_or_default() {
        let sets = parsed.entry(pod.clone()).or_default();
        for (container, value) in containers.unwrap_or_default() {
            let text = text(value);
            match CpuSet::parse(&text) {
                Ok(cpus) => sets.insert(container, cpus),
                Err(cause) => return Err(error(text, container, pod, cause.into())),
            };
        }
    }
    Ok(parsed)
}

fn container_cpus(
    text: String,
    container: String,
    pod: String,
    cause: Box<ParseCpuSetError>,
) -> StateFileError {
    StateFileError::ContainerCpus { text, container, pod, cause }
}

fn baseline_cpus(
    text: String,
    container: String,
    pod: String,
    cause: Box<ParseCpuSetError>,
) -> StateFileError {
    StateFileError::BaselineCpus { text, container, pod, cause }
}

/// The manager's fields in the file.
#[derive(Debug)]
struct CpuBody {
    default_cpus: String,
    entries: Map<String, Map<String, String>>,
    pods: Map<String, PodEntry>,
    baselines: Map<String, Map<String, Baseline>>,
}

impl Default for CpuBody {
    /// Maps start out empty, not nil: a field that is missing counts as empty in the hash.
    fn default() -> CpuBody {
        CpuBody {
            default_cpus: String::new(),
            entries: Some([].into()),
            pods: Some([].into()),
            baselines: Some([].into()),
        }
    }
}

impl Body for CpuBody {
    const MANAGER: Manager = Manager::Cpu;
    const FIELDS: [&'static str; 2] = ["defaultCpuSet", "entries"];
    const DATA_FIELDS: &'static [&'static str] = &["podEntries", "baselines"];

    fn decode(
        &mut self,
        field: &'static str,
        json: &Json,
        faults: &mut Faults,
    ) -> Result<(), DecodeError> {
        match field {
            "defaultCpuSet" => self.default_cpus.decode(json, field, faults),
            "entries" => self.entries.decode(json, field, faults),
            "podEntries" => self.pods.decode(json, field, faults),
            _ => self.baselines.decode(json, field, faults),
        }
    }

    /// Some kubelets hashed under the name that the type has in their own code.
    fn type_names(version: Hashed, gates: Gates) -> &'static [&'static str] {
        match version {
            Hashed::WithPods => &["state.CPUManagerCheckpoint", "state.CPUManagerCheckpointV3"],
            Hashed::Oldest if gates.pod_level_resource_managers => &["state.CPUManagerCheckpoint"],
            Hashed::Oldest => &["state.CPUManagerCheckpoint", "state.CPUManagerCheckpointV2"],
        }
    }

    fn dumped(&self) -> [Field<'_>; 3] {
        [
            ("DefaultCPUSet", "string", &self.default_cpus),
            ("Entries", "map[string]map[string]string", &self.entries),
            ("PodEntries", "state.PodCPUAssignments", &self.pods),
        ]
    }

    fn members(&self) -> Vec<(&'static str, String)> {
        let mut members = vec![("defaultCpuSet", string(&self.default_cpus))];
        if !is_empty(&self.entries) {
            members.push(("entries", map(&self.entries, |c| map(c, |cpus| string(cpus)))));
        }
        members
    }

    fn data_members(&self) -> Vec<(&'static str, String)> {
        let mut members = Vec::new();
        if !is_empty(&self.pods) {
            members.push(("podEntries", map(&self.pods, PodEntry::json)));
        }
        if !is_empty(&self.baselines) {
            members.push(("baselines", map(&self.baselines, |c| map(c, Baseline::json))));
        }
        members
    }
}

fn texts<T>(
    sets: &PerContainer<CpuSet>,
    wrap: impl Fn(String) -> T,
) -> Map<String, Map<String, T>> {
    let containers = |sets: &PerPod<CpuSet>| {
        Some(sets.iter().map(|(name, cpus)| (name.clone(), wrap(cpus.to_string()))).collect())
    };
    Some(sets.iter().map(|(pod, sets)| (pod.clone(), containers(sets))).collect())
}

/// The CPUs of a pod as a whole.
#[derive(Debug, Default)]
struct PodEntry {
    cpus: CpuSet,
}

impl PodEntry {
    fn json(&self) -> String {
        let cpus = (!self.cpus.is_empty()).then(|| ("cpuSet", string(&self.cpus.to_string())));
        object(cpus)
    }
}

impl Decode for PodEntry {
    /// Upstream decodes this one by hand, and so its first fault ends everything.
    fn decode(&mut self, json: &Json, name: &str, _: &mut Faults) -> Result<(), DecodeError> {
        let mut text = String::new();
        let mut faults = Faults::default();
        decode_fields(json, name, &["cpuSet"], &mut faults, |field, json, faults| {
            text.decode(json, field, faults)
        })?;
        faults.into_result()?;
        self.cpus = CpuSet::parse(&text).map_err(DecodeError::PodCpus)?;
        Ok(())
    }
}

impl Dump for PodEntry {
    fn dump(&self, spew: &mut Spew) {
        spew.structure(&[("CPUSet", "cpuset.CPUSet", &self.cpus)]);
    }
}

/// The CPUs a container started with.
#[derive(Debug, Default)]
struct Baseline {
    cpus: String,
}

impl Baseline {
    fn json(&self) -> String {
        object([("baseline", string(&self.cpus))])
    }
}

impl Decode for Baseline {
    fn decode(&mut self, json: &Json, name: &str, faults: &mut Faults) -> Result<(), DecodeError> {
        decode_fields(json, name, &["baseline"], faults, |field, json, faults| {
            self.cpus.decode(json, field, faults)
        })
    }
}
