//! Windows processor groups: the arithmetic between CPU ids and group masks, and the affinity a
//! container is given.
//!
//! Main types: [`GroupAffinity`] (what the container runtime is sent) and [`Affinity`] (the CPUs
//! chosen, and why). Ids are a notion of this side alone: `group * 64 + number`, so groups with
//! fewer than 64 processors leave holes. Nothing here asks the operating system (`host` does), and
//! nothing here decides which CPUs are exclusive (the CPU manager does).

use std::fmt;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::cpuset::{CpuSet, MAX_CPU};
use crate::ids::CpuId;

/// Processors a group can hold: the width of `KAFFINITY` on 64-bit Windows.
pub const GROUP_SIZE: u32 = 64;

/// The highest group whose CPUs still have an id up to [`MAX_CPU`].
pub const MAX_GROUP: u16 = (MAX_CPU / GROUP_SIZE) as u16;

/// A processor group, numbered as Windows does; at most [`MAX_GROUP`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct GroupId(u16);

/// A group number no machine can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("processor group {0} is above {MAX_GROUP}, the highest group supported")]
pub struct GroupTooHigh(pub u64);

impl GroupId {
    pub fn new(group: u64) -> Result<GroupId, GroupTooHigh> {
        u16::try_from(group)
            .ok()
            .filter(|g| *g <= MAX_GROUP)
            .map(GroupId)
            .ok_or(GroupTooHigh(group))
    }

    /// The group `cpu` belongs to.
    #[must_use]
    pub fn of(cpu: CpuId) -> GroupId {
        // A CPU id above the highest one cannot be in any set; saturate instead of wrapping.
        GroupId(u16::try_from(cpu.0 / GROUP_SIZE).unwrap_or(MAX_GROUP).min(MAX_GROUP))
    }

    #[must_use]
    pub fn get(self) -> u16 {
        self.0
    }

    /// The id of processor `number` of this group; `None` from 64 up.
    #[must_use]
    pub fn cpu(self, number: u32) -> Option<CpuId> {
        (number < GROUP_SIZE).then(|| CpuId(u32::from(self.0) * GROUP_SIZE + number))
    }
}

impl<'de> Deserialize<'de> for GroupId {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<GroupId, D::Error> {
        GroupId::new(u64::deserialize(deserializer)?).map_err(serde::de::Error::custom)
    }
}

impl fmt::Display for GroupId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The processors of one group, as in the CRI message `WindowsCpuGroupAffinity`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GroupAffinity {
    pub group: GroupId,
    pub mask: u64,
}

impl GroupAffinity {
    /// The processors as ids, ascending.
    pub fn cpus(self) -> impl Iterator<Item = CpuId> {
        (0..GROUP_SIZE)
            .filter(move |n| self.mask >> n & 1 == 1)
            .filter_map(move |n| self.group.cpu(n))
    }

    /// The mask in binary, 64 digits, processor 63 first.
    #[must_use]
    pub fn mask_string(self) -> String {
        format!("{:064b}", self.mask)
    }
}

impl fmt::Display for GroupAffinity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "group {} mask {:#x}", self.group, self.mask)
    }
}

/// `cpus` as one mask per group that has any, in order of group.
#[must_use]
pub fn groups_of(cpus: &CpuSet) -> Vec<GroupAffinity> {
    (0..cpus.word_count())
        .map(|index| (index, cpus.word(index)))
        .filter(|(_, mask)| *mask != 0)
        // A set holds no CPU above MAX_CPU, so it has at most MAX_GROUP + 1 words.
        .filter_map(|(index, mask)| {
            Some(GroupAffinity { group: GroupId::new(index as u64).ok()?, mask })
        })
        .collect()
}

/// The CPUs of several masks; a group may appear more than once.
#[must_use]
pub fn cpus_of(groups: &[GroupAffinity]) -> CpuSet {
    groups.iter().flat_map(|g| g.cpus()).collect()
}

/// Decides whether the CPUs of the memory nodes may widen a container's affinity
/// (`windowsAffinity`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AffinityMode {
    /// CPUs that are fewer than, and all outside, the memory nodes are joined by the nodes' CPUs,
    /// except those exclusive to another container.
    #[default]
    Union,
    /// The CPU manager's CPUs are never widened.
    CpuOnly,
}

/// The managers' choice for one container.
#[derive(Clone, Copy, Debug)]
pub struct AffinityDemand<'a> {
    /// The CPU manager's CPUs; empty if it does not constrain the container.
    pub cpus: &'a CpuSet,
    /// The CPUs of each chosen memory node; `None` if the memory manager does not constrain the
    /// container. A node without CPUs is an empty set.
    pub memory_nodes: Option<&'a [CpuSet]>,
    /// CPUs that belong to other containers alone.
    pub exclusive_to_others: &'a CpuSet,
    pub mode: AffinityMode,
}

/// Which rule decided an affinity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum AffinityReason {
    /// Only the memory manager chose: all CPUs of its nodes.
    MemoryNodes,
    /// Only the CPU manager chose.
    Cpus,
    /// Mode `cpu-only`: the CPUs, whatever the nodes.
    CpuOnlyMode,
    /// The CPUs lie inside the nodes.
    InsideNodes,
    /// There are at least as many CPUs as in the nodes.
    NotFewerThanNodes,
    /// Some CPUs lie inside the nodes and some outside.
    PartlyOutside,
    /// The CPUs are fewer than, and all outside, the nodes: both together.
    JoinedWithNodes,
}

impl fmt::Display for AffinityReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            AffinityReason::MemoryNodes => "all CPUs of the memory nodes; no CPUs were chosen",
            AffinityReason::Cpus => "the chosen CPUs; no memory nodes were chosen",
            AffinityReason::CpuOnlyMode => "the chosen CPUs alone, as windowsAffinity is cpu-only",
            AffinityReason::InsideNodes => "the chosen CPUs, which lie inside the memory nodes",
            AffinityReason::NotFewerThanNodes => {
                "the chosen CPUs, which are no fewer than those of the memory nodes"
            }
            AffinityReason::PartlyOutside => {
                "the chosen CPUs, some of which lie inside the memory nodes"
            }
            AffinityReason::JoinedWithNodes => {
                "the chosen CPUs and those of the memory nodes, as all chosen CPUs lie outside them"
            }
        })
    }
}

/// How the CPUs of an affinity and the memory nodes lie to each other. Windows cannot bind memory:
/// it takes it from the node of the CPU that asks, so anything but [`Locality::Coincide`] deserves
/// a warning.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Locality {
    /// No memory nodes were chosen, so there is nothing to compare.
    NoMemoryNodes,
    /// Every CPU lies in a memory node and every memory node has one of the CPUs.
    Coincide,
    #[serde(rename_all = "camelCase")]
    Apart {
        /// CPUs of the affinity that lie in none of the memory nodes.
        outside: CpuSet,
        /// How many of the memory nodes have none of the CPUs.
        unreached_nodes: usize,
    },
}

impl Locality {
    /// Returns a warning about memory that Windows does not bind; `None` if all CPUs are local.
    #[must_use]
    pub fn warning(&self) -> Option<String> {
        let Locality::Apart { outside, unreached_nodes } = self else { return None };
        let mut parts = Vec::new();
        if !outside.is_empty() {
            parts.push(format!("CPUs {outside} lie outside the memory's NUMA nodes"));
        }
        if *unreached_nodes > 0 {
            let verb = if *unreached_nodes == 1 { "has" } else { "have" };
            parts.push(format!(
                "{unreached_nodes} of the memory's NUMA nodes {verb} none of the CPUs"
            ));
        }
        Some(format!("memory may come from other NUMA nodes than planned: {}", parts.join("; ")))
    }
}

/// The affinity of one container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Affinity {
    /// The CPUs to run on. Empty if every candidate belongs to another container or the memory
    /// nodes have no CPUs: then no affinity is sent, as runtimes refuse an empty mask.
    pub cpus: CpuSet,
    pub reason: AffinityReason,
    /// CPUs of the memory nodes left out because they are exclusive to another container.
    pub withheld: CpuSet,
    pub locality: Locality,
}

impl Affinity {
    /// Returns the affinity in the runtime's form.
    #[must_use]
    pub fn groups(&self) -> Vec<GroupAffinity> {
        groups_of(&self.cpus)
    }
}

/// Decides the affinity of a container; `None` if neither manager constrains it.
#[must_use]
pub fn plan_affinity(demand: AffinityDemand<'_>) -> Option<Affinity> {
    let AffinityDemand { cpus, memory_nodes, exclusive_to_others, mode } = demand;
    let Some(nodes) = memory_nodes else {
        return (!cpus.is_empty()).then(|| Affinity {
            cpus: cpus.clone(),
            reason: AffinityReason::Cpus,
            withheld: CpuSet::new(),
            locality: Locality::NoMemoryNodes,
        });
    };
    let mut node_cpus = CpuSet::new();
    nodes.iter().for_each(|node| node_cpus.union_with(node));

    let reason = if cpus.is_empty() {
        AffinityReason::MemoryNodes
    } else if mode == AffinityMode::CpuOnly {
        AffinityReason::CpuOnlyMode
    } else if cpus.is_subset(&node_cpus) {
        AffinityReason::InsideNodes
    } else if !cpus.is_disjoint(&node_cpus) {
        AffinityReason::PartlyOutside
    } else if cpus.len() >= node_cpus.len() {
        AffinityReason::NotFewerThanNodes
    } else {
        AffinityReason::JoinedWithNodes
    };
    let mut chosen = cpus.clone();
    let mut withheld = CpuSet::new();
    if matches!(reason, AffinityReason::MemoryNodes | AffinityReason::JoinedWithNodes) {
        withheld = &(&node_cpus & exclusive_to_others) - cpus;
        chosen.union_with(&(&node_cpus - &withheld));
    }
    let locality = locality(&chosen, &node_cpus, nodes);
    Some(Affinity { cpus: chosen, reason, withheld, locality })
}

fn locality(cpus: &CpuSet, node_cpus: &CpuSet, nodes: &[CpuSet]) -> Locality {
    if nodes.is_empty() {
        return Locality::NoMemoryNodes;
    }
    let outside = cpus - node_cpus;
    let unreached_nodes = nodes.iter().filter(|node| node.is_disjoint(cpus)).count();
    if outside.is_empty() && unreached_nodes == 0 {
        Locality::Coincide
    } else {
        Locality::Apart { outside, unreached_nodes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn set(text: &str) -> CpuSet {
        CpuSet::parse(text).unwrap()
    }

    fn group(group: u64, mask: u64) -> GroupAffinity {
        GroupAffinity { group: GroupId::new(group).unwrap(), mask }
    }

    #[test]
    fn two_groups_of_35_leave_a_hole_in_the_numbering() {
        let groups = [group(0, (1 << 35) - 1), group(1, (1 << 35) - 1)];
        let cpus = cpus_of(&groups);
        assert_eq!(cpus.to_string(), "0-34,64-98");
        assert_eq!(groups_of(&cpus), groups);
        assert_eq!(GroupId::of(CpuId(98)).get(), 1);
    }

    #[test]
    fn the_mask_is_written_with_the_highest_processor_first() {
        assert_eq!(group(3, 10).mask_string(), format!("{}1010", "0".repeat(60)));
        assert_eq!(group(3, 10).cpus().map(|c| c.0).collect::<Vec<_>>(), [193, 195]);
    }

    #[test]
    fn a_group_beyond_the_highest_cpu_is_refused() {
        assert_eq!(GroupId::new(1024), Err(GroupTooHigh(1024)));
        assert_eq!(GroupId::new(1023).unwrap().cpu(63), Some(CpuId(MAX_CPU)));
    }

    #[test]
    fn the_rules_of_the_union_in_the_order_they_apply() {
        let check =
            |cpus: &str, nodes: &[&str], others: &str, want: &str, reason: AffinityReason| {
                let nodes: Vec<_> = nodes.iter().map(|n| set(n)).collect();
                let affinity = plan_affinity(AffinityDemand {
                    cpus: &set(cpus),
                    memory_nodes: Some(&nodes),
                    exclusive_to_others: &set(others),
                    mode: AffinityMode::Union,
                })
                .unwrap();
                assert_eq!((affinity.cpus.to_string().as_str(), affinity.reason), (want, reason));
            };
        check("", &["0-3"], "", "0-3", AffinityReason::MemoryNodes);
        check("", &["0-3", "4-7"], "2-4", "0-1,5-7", AffinityReason::MemoryNodes);
        check("0-1", &["0-3"], "", "0-1", AffinityReason::InsideNodes);
        check("0-1,8", &["0-3"], "", "0-1,8", AffinityReason::PartlyOutside);
        check("8-15", &["0-3"], "", "8-15", AffinityReason::NotFewerThanNodes);
        check("8-9", &["0-3"], "", "0-3,8-9", AffinityReason::JoinedWithNodes);
        check("8-9", &["0-3"], "1,3,9", "0,2,8-9", AffinityReason::JoinedWithNodes);
    }

    #[test]
    fn cpus_and_memory_nodes_that_do_not_coincide_are_reported() {
        let check = |cpus: &str, nodes: &[&str], want: Locality| {
            let nodes: Vec<_> = nodes.iter().map(|n| set(n)).collect();
            let affinity = plan_affinity(AffinityDemand {
                cpus: &set(cpus),
                memory_nodes: Some(&nodes),
                exclusive_to_others: &CpuSet::new(),
                mode: AffinityMode::CpuOnly,
            });
            assert_eq!(affinity.unwrap().locality, want);
        };
        check("0-1", &["0-3"], Locality::Coincide);
        check("0,4", &["0-3", "4-7"], Locality::Coincide);
        check("0", &["0-3", "4-7"], Locality::Apart { outside: CpuSet::new(), unreached_nodes: 1 });
        check("8", &["0-3"], Locality::Apart { outside: set("8"), unreached_nodes: 1 });
        check("0,8", &["0-3"], Locality::Apart { outside: set("8"), unreached_nodes: 0 });
    }

    #[test]
    fn without_a_manager_there_is_no_affinity() {
        let nothing = AffinityDemand {
            cpus: &CpuSet::new(),
            memory_nodes: None,
            exclusive_to_others: &CpuSet::new(),
            mode: AffinityMode::Union,
        };
        assert_eq!(plan_affinity(nothing), None);
    }

    fn cpus() -> impl Strategy<Value = CpuSet> {
        prop::collection::btree_set(0u32..200, 0..40)
            .prop_map(|ids| ids.into_iter().map(CpuId).collect())
    }

    proptest! {
        #[test]
        fn groups_and_cpus_are_two_spellings_of_one_set(cpus in cpus()) {
            prop_assert_eq!(cpus_of(&groups_of(&cpus)), cpus);
        }

        #[test]
        fn no_affinity_holds_a_cpu_exclusive_to_another(
            own in cpus(), nodes in prop::collection::vec(cpus(), 0..4), others in cpus(),
            cpu_only: bool,
        ) {
            let others = &others - &own;
            let mode = if cpu_only { AffinityMode::CpuOnly } else { AffinityMode::Union };
            let affinity = plan_affinity(AffinityDemand {
                cpus: &own, memory_nodes: Some(&nodes), exclusive_to_others: &others, mode,
            }).unwrap();
            prop_assert!(affinity.cpus.is_disjoint(&others));
            prop_assert!(own.is_subset(&affinity.cpus));
        }
    }
}
