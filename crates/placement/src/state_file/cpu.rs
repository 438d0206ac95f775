//! `cpu_manager_state`: reads versions 2 to 4, writes version 4.
//!
//! Main type: [`CpuState`]. Version 1, which named containers by runtime id, is rejected as
//! upstream does.

use crate::cpuset::{CpuSet, ParseCpuSetError};

use super::go_json::{
    Decode, DecodeError, Faults, Json, Map, decode_fields, is_empty, map, object, string,
};
use super::spew::{Dump, Spew, dump};
use super::{
    Gates, Manager, PerContainer, PerPod, StateFileError, data_preimage, fnv1a, go_json, verify,
};

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
        let checkpoint = load(content, gates)?;
        if checkpoint.policy != policy {
            return Err(StateFileError::PolicyDiffers {
                manager: Manager::Cpu,
                configured: policy.to_owned(),
                stored: checkpoint.policy,
            });
        }
        let default_cpus = CpuSet::parse(&checkpoint.default_cpus).map_err(|cause| {
            StateFileError::DefaultCpus { text: checkpoint.default_cpus, cause: cause.into() }
        })?;
        let entries = parse_cpus(checkpoint.entries, |cpus| cpus, container_cpus)?;
        let baselines = match (gates.in_place_scaling_of_exclusive_cpus, &checkpoint.baselines) {
            (false, _) => PerContainer::new(),
            (true, stored) if is_empty(stored) => entries.clone(),
            (true, _) => parse_cpus(checkpoint.baselines, |b| b.cpus, baseline_cpus)?,
        };
        let pod_cpus = if gates.pod_level_resource_managers {
            let pods = checkpoint.pods.unwrap_or_default();
            pods.into_iter().map(|(pod, entry)| (pod, entry.cpus)).collect()
        } else {
            PerPod::new()
        };
        Ok(CpuState { policy: checkpoint.policy, default_cpus, entries, pod_cpus, baselines })
    }

    /// Renders the file as a kubelet writes it.
    #[must_use]
    pub fn render(&self) -> String {
        let checkpoint = Checkpoint::from(self);
        let data = checkpoint.data_json();
        let data_checksum = fnv1a(&data_preimage(&data));
        let mut members = checkpoint.common_json();
        members.push(("checksum", fnv1a(&checkpoint.preimage(Layout::V2)).to_string()));
        members.push(("data", string(&data)));
        members.push(("dataChecksum", data_checksum.to_string()));
        object(members)
    }

    /// Returns the text whose hash is `checksum` in the rendered file.
    #[must_use]
    pub fn checksum_preimage(&self) -> String {
        Checkpoint::from(self).preimage(Layout::V2)
    }

    /// Returns the text whose hash is `dataChecksum` in the rendered file.
    #[must_use]
    pub fn data_checksum_preimage(&self) -> String {
        data_preimage(&Checkpoint::from(self).data_json())
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

/// Reads whichever version the file is of.
fn load(content: &[u8], gates: Gates) -> Result<Checkpoint, StateFileError> {
    let json = go_json::parse(content).map_err(StateFileError::Undecodable)?;

    let (newest, decoded) = Checkpoint::decode(&json, Layout::V4);
    let cause = match decoded {
        Ok(()) => match newest.open_data() {
            Ok(data) => return Ok(data),
            Err(cause) => cause,
        },
        Err(cause) => StateFileError::UndecodableFile { manager: Manager::Cpu, cause },
    };
    if !newest.data.is_empty() || newest.data_checksum != 0 {
        return Err(StateFileError::NewestVersion { manager: Manager::Cpu, cause: cause.into() });
    }

    let (v3, decoded) = Checkpoint::decode(&json, Layout::V3);
    let hashes = [Layout::V3, Layout::V3Renamed].map(|layout| fnv1a(&v3.preimage(layout)));
    if decoded.is_ok() && hashes.contains(&v3.checksum) {
        return Ok(v3);
    }

    let (v2, decoded) = Checkpoint::decode(&json, Layout::V2);
    decoded.map_err(StateFileError::Undecodable)?;
    // Files of the time before checksums have none.
    let unguarded = v2.checksum == 0;
    let renamed = || {
        !gates.pod_level_resource_managers && v2.checksum == fnv1a(&v2.preimage(Layout::V2Renamed))
    };
    if !unguarded && !renamed() {
        verify(v2.checksum, &v2.preimage(Layout::V2))?;
    }
    Ok(v2)
}

/// Which fields a version has and under which type name it was hashed. The renamed ones are of
/// kubelets that hashed under the name the type has in their own code.
#[derive(Clone, Copy)]
enum Layout {
    V2,
    V2Renamed,
    V3,
    V3Renamed,
    V4,
    Data,
}

impl Layout {
    const fn fields(self) -> &'static [&'static str] {
        match self {
            Layout::V2 | Layout::V2Renamed => {
                &["policyName", "defaultCpuSet", "entries", "checksum"]
            }
            Layout::V3 | Layout::V3Renamed => {
                &["policyName", "defaultCpuSet", "entries", "podEntries", "checksum"]
            }
            Layout::V4 => {
                &["policyName", "defaultCpuSet", "entries", "checksum", "data", "dataChecksum"]
            }
            Layout::Data => &["policyName", "defaultCpuSet", "entries", "podEntries", "baselines"],
        }
    }

    const fn type_name(self) -> &'static str {
        match self {
            Layout::V2Renamed => "state.CPUManagerCheckpointV2",
            Layout::V3Renamed => "state.CPUManagerCheckpointV3",
            _ => "state.CPUManagerCheckpoint",
        }
    }

    const fn has_pods(self) -> bool {
        matches!(self, Layout::V3 | Layout::V3Renamed)
    }
}

/// The fields of all versions as they stand in the file.
#[derive(Debug)]
struct Checkpoint {
    policy: String,
    default_cpus: String,
    entries: Map<String, Map<String, String>>,
    pods: Map<String, PodEntry>,
    baselines: Map<String, Map<String, Baseline>>,
    checksum: u64,
    data: String,
    data_checksum: u64,
}

impl Default for Checkpoint {
    /// Maps start out empty, not nil: a field that is missing counts as empty in the hash.
    fn default() -> Checkpoint {
        Checkpoint {
            policy: String::new(),
            default_cpus: String::new(),
            entries: Some([].into()),
            pods: Some([].into()),
            baselines: Some([].into()),
            checksum: 0,
            data: String::new(),
            data_checksum: 0,
        }
    }
}

impl Checkpoint {
    /// Returns the decoded fields, and the first error.
    fn decode(json: &Json, layout: Layout) -> (Checkpoint, Result<(), DecodeError>) {
        let mut read = Checkpoint::default();
        let mut faults = Faults::default();
        let name = "checkpoint";
        let end = decode_fields(json, name, layout.fields(), &mut faults, |field, json, faults| {
            match field {
                "policyName" => read.policy.decode(json, field, faults),
                "defaultCpuSet" => read.default_cpus.decode(json, field, faults),
                "entries" => read.entries.decode(json, field, faults),
                "podEntries" => read.pods.decode(json, field, faults),
                "baselines" => read.baselines.decode(json, field, faults),
                "checksum" => read.checksum.decode(json, field, faults),
                "data" => read.data.decode(json, field, faults),
                _ => read.data_checksum.decode(json, field, faults),
            }
        });
        (read, end.and_then(|()| faults.into_result()))
    }

    /// Returns the content of `data` after checking its checksum.
    fn open_data(&self) -> Result<Checkpoint, StateFileError> {
        let undecodable = |cause| StateFileError::UndecodableData { manager: Manager::Cpu, cause };
        let json = go_json::parse(self.data.as_bytes()).map_err(undecodable)?;
        let (data, decoded) = Checkpoint::decode(&json, Layout::Data);
        decoded.map_err(undecodable)?;
        verify(self.data_checksum, &data_preimage(&self.data))?;
        Ok(data)
    }

    fn preimage(&self, layout: Layout) -> String {
        let zero = 0_u64;
        let mut fields: Vec<super::spew::Field<'_>> = vec![
            ("PolicyName", "string", &self.policy),
            ("DefaultCPUSet", "string", &self.default_cpus),
            ("Entries", "map[string]map[string]string", &self.entries),
        ];
        if layout.has_pods() {
            fields.push(("PodEntries", "state.PodCPUAssignments", &self.pods));
        }
        fields.push(("Checksum", "checksum.Checksum", &zero));
        dump(layout.type_name(), &fields)
    }

    /// The members the file and its `data` have in common.
    fn common_json(&self) -> Vec<(&'static str, String)> {
        let mut members = vec![
            ("policyName", string(&self.policy)),
            ("defaultCpuSet", string(&self.default_cpus)),
        ];
        if !is_empty(&self.entries) {
            members.push(("entries", map(&self.entries, |c| map(c, |cpus| string(cpus)))));
        }
        members
    }

    fn data_json(&self) -> String {
        let mut members = self.common_json();
        if !is_empty(&self.pods) {
            members.push(("podEntries", map(&self.pods, PodEntry::json)));
        }
        if !is_empty(&self.baselines) {
            members.push(("baselines", map(&self.baselines, |c| map(c, Baseline::json))));
        }
        object(members)
    }
}

impl From<&CpuState> for Checkpoint {
    fn from(state: &CpuState) -> Checkpoint {
        Checkpoint {
            policy: state.policy.clone(),
            default_cpus: state.default_cpus.to_string(),
            entries: texts(&state.entries, |cpus| cpus),
            pods: Some(
                state
                    .pod_cpus
                    .iter()
                    .map(|(pod, cpus)| (pod.clone(), PodEntry { cpus: cpus.clone() }))
                    .collect(),
            ),
            baselines: texts(&state.baselines, |cpus| Baseline { cpus }),
            ..Checkpoint::default()
        }
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
