//! The reasons for a placement or a refusal: values, with their texts in one place.
//!
//! Main types: [`ContainerRationale`] for decisions and [`Refusal`] for a "no" with its evidence.
//! The same texts appear in `--explain`, in events and in the debug log.

use std::fmt;

use thiserror::Error;

use crate::affinity::Hint;
use crate::alignment::{AlignmentPolicy, Scope};
use crate::cpu::CpuRefusal;
use crate::demand::{ContainerName, MemoryAmounts, QosClass};
use crate::memory::MemoryRefusal;
use crate::numa::NumaMask;
use crate::topology::Topology;

/// Why a container has the CPUs it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhyCpus {
    /// No CPU manager: it runs wherever the kernel lets it.
    NoPolicy,
    /// It shares because its pod is not Guaranteed.
    SharesByClass(QosClass),
    /// It shares because it asks for a fraction of a CPU.
    SharesByFraction { milli_cpus: i64 },
    /// It shares because resources are stated for the pod as a whole.
    SharesByPodLevel,
    /// It has CPUs to itself.
    Exclusive {
        requested: usize,
        /// Of these, CPUs an init container of the pod had before.
        reused: usize,
        /// Of these, CPUs outside the nodes that were agreed upon.
        outside: usize,
        /// It had them already.
        kept: bool,
    },
}

/// Why a container's memory is where it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhyMemory {
    NoPolicy,
    /// Only Guaranteed pods get nodes of their own.
    AnywhereByClass(QosClass),
    AnywhereByPodLevel,
    Placed {
        /// The nodes agreed upon were not enough and others joined.
        widened: bool,
        /// The nodes follow the container's CPUs.
        follows_cpus: bool,
        kept: bool,
    },
}

/// A summary of the hints of one resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HintSummary {
    /// Nodes that suffice alone.
    pub alone: NumaMask,
    /// The fewest nodes that suffice now; `None` if no set of nodes does.
    pub fewest: Option<usize>,
    /// The fewest nodes that suffice on an empty machine: sets of that size are preferred.
    pub preferred: Option<usize>,
}

/// The outcome of merging the hints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Agreement {
    pub policy: AlignmentPolicy,
    pub scope: Scope,
    /// The hints of CPUs and memory; `None` if they were not constrained.
    pub cpu: Option<HintSummary>,
    pub memory: Option<HintSummary>,
    pub hint: Hint,
}

/// Why one container is placed as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContainerRationale {
    pub cpus: WhyCpus,
    pub memory: WhyMemory,
    /// `None` if alignment is off.
    pub agreement: Option<Agreement>,
}

/// The part of a pod that could not be placed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Subject {
    Pod,
    Container(ContainerName),
}

/// A pod that cannot be placed, with the evidence. Display is the kubelet's message.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Refusal {
    // The same for both scopes, as recorded.
    #[error("Resources cannot be allocated with Topology locality")]
    NotAligned { subject: Subject, agreement: Agreement },
    #[error("{refusal}")]
    WholeCores { container: ContainerName, refusal: CpuRefusal },
    #[error("Allocate failed due to {refusal}, which is unexpected")]
    Cpus { container: ContainerName, refusal: CpuRefusal, agreement: Option<Agreement> },
    #[error("Allocate failed due to {refusal}, which is unexpected")]
    Memory {
        container: ContainerName,
        refusal: MemoryRefusal,
        wanted: MemoryAmounts,
        agreement: Option<Agreement>,
    },
}

impl Refusal {
    /// The reason under which the pod fails.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        match self {
            Refusal::NotAligned { .. } => "TopologyAffinityError",
            Refusal::WholeCores { .. } => "SMTAlignmentError",
            Refusal::Cpus { .. } | Refusal::Memory { .. } => "UnexpectedAdmissionError",
        }
    }

    /// The container that could not be placed; `None` if the pod as a whole could not.
    #[must_use]
    pub fn container(&self) -> Option<&ContainerName> {
        match self {
            Refusal::NotAligned { subject: Subject::Pod, .. } => None,
            Refusal::NotAligned { subject: Subject::Container(container), .. }
            | Refusal::WholeCores { container, .. }
            | Refusal::Cpus { container, .. }
            | Refusal::Memory { container, .. } => Some(container),
        }
    }

    /// Returns the shortage on NUMA nodes, for contexts where "node" means a machine.
    #[must_use]
    pub fn shortage(&self) -> Option<String> {
        match self {
            Refusal::NotAligned { agreement, .. } => Some(agreement.shortage()),
            Refusal::WholeCores { .. } | Refusal::Cpus { .. } | Refusal::Memory { .. } => None,
        }
    }

    /// Returns the details that the message omits: the container, its request, and the hints of
    /// each resource.
    #[must_use]
    pub fn evidence(&self, topology: &Topology) -> Option<String> {
        let mut parts = Vec::new();
        if let Some(container) = self.container() {
            parts.push(format!("container {container}"));
        }
        if let Refusal::Memory { wanted, .. } = self {
            let wanted: Vec<String> =
                wanted.iter().map(|(kind, bytes)| format!("{bytes} of {kind}")).collect();
            parts.push(format!("it asks for {}", wanted.join(" and ")));
        }
        parts.extend(self.agreement().map(|agreement| agreement.render(topology)));
        (!parts.is_empty()).then(|| parts.join(": "))
    }

    #[must_use]
    pub fn agreement(&self) -> Option<&Agreement> {
        match self {
            Refusal::NotAligned { agreement, .. } => Some(agreement),
            Refusal::Cpus { agreement, .. } | Refusal::Memory { agreement, .. } => {
                agreement.as_ref()
            }
            Refusal::WholeCores { .. } => None,
        }
    }
}

/// Renders the node ids of a mask: `node 0`, `nodes 0,1`.
#[must_use]
pub fn render_nodes(topology: &Topology, mask: NumaMask) -> String {
    let ids: Vec<String> = topology.node_ids(mask).map(|id| id.to_string()).collect();
    match ids.as_slice() {
        [] => "no node".to_owned(),
        [one] => format!("node {one}"),
        many => format!("nodes {}", many.join(",")),
    }
}

impl fmt::Display for WhyCpus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WhyCpus::NoPolicy => f.write_str("runs on any CPU: cpuManagerPolicy is none"),
            WhyCpus::SharesByClass(class) => {
                write!(f, "shares: the pod is {class}, exclusive CPUs need Guaranteed")
            }
            WhyCpus::SharesByFraction { milli_cpus: 0 } => {
                f.write_str("shares: it requests no CPU")
            }
            WhyCpus::SharesByFraction { milli_cpus } => {
                write!(f, "shares: {milli_cpus}m is not a whole number of CPUs")
            }
            WhyCpus::SharesByPodLevel => {
                f.write_str("shares: resources are stated for the pod as a whole")
            }
            WhyCpus::Exclusive { requested, reused, outside, kept } => {
                let plural = if *requested == 1 { "" } else { "s" };
                write!(f, "{requested} CPU{plural} of its own")?;
                if *kept {
                    f.write_str(", kept from before")?;
                }
                if *reused > 0 {
                    write!(f, ", {reused} reused from an init container")?;
                }
                if *outside > 0 {
                    write!(f, ", {outside} outside the nodes agreed upon")?;
                }
                Ok(())
            }
        }
    }
}

impl fmt::Display for WhyMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WhyMemory::NoPolicy => f.write_str("memory from any node: memoryManagerPolicy is None"),
            WhyMemory::AnywhereByClass(class) => {
                write!(f, "memory from any node: the pod is {class}, nodes need Guaranteed")
            }
            WhyMemory::AnywhereByPodLevel => {
                f.write_str("memory from any node: resources are stated for the pod as a whole")
            }
            WhyMemory::Placed { kept: true, .. } => f.write_str("memory kept from before"),
            WhyMemory::Placed { widened: true, .. } => {
                f.write_str("memory on more nodes than agreed upon, which were not enough")
            }
            WhyMemory::Placed { follows_cpus: true, .. } => {
                f.write_str("memory on the nodes of its CPUs")
            }
            WhyMemory::Placed { .. } => f.write_str("memory on the nodes agreed upon"),
        }
    }
}

impl Agreement {
    /// Returns the reason why no suitable NUMA node is available.
    fn shortage(&self) -> String {
        let short = [("CPUs", self.cpu), ("memory", self.memory)].into_iter().filter_map(
            |(what, summary)| {
                let summary = summary.filter(|summary| summary.alone.is_empty())?;
                // Grammar: CPUs need, memory needs.
                let s = if what == "memory" { "s" } else { "" };
                Some(match (summary.fewest, summary.preferred) {
                    (Some(n), Some(p)) if n > p => {
                        format!("{what} need{s} {n} NUMA nodes now, {p} on an empty machine")
                    }
                    (Some(n), _) => format!("{what} need{s} {n} NUMA nodes"),
                    (None, _) => format!("{what} fit{s} on no NUMA nodes"),
                })
            },
        );
        let short: Vec<String> = short.collect();
        if short.is_empty() {
            "no NUMA node has the CPUs and the memory".to_owned()
        } else {
            short.join(", ")
        }
    }

    /// The agreement in one line.
    #[must_use]
    pub fn render(&self, topology: &Topology) -> String {
        let whose = match self.scope {
            Scope::Container => "container",
            Scope::Pod => "pod",
        };
        let mut text = format!("{} for the {whose}: ", self.policy.name());
        match (self.hint.nodes, self.hint.preferred) {
            (Some(nodes), true) => text += &render_nodes(topology, nodes),
            (Some(nodes), false) => {
                text += &format!("{}, not what is preferred", render_nodes(topology, nodes));
            }
            (None, true) => text += "any node will do",
            (None, false) => text += "no node satisfies all",
        }
        for (what, summary) in [("CPUs", self.cpu), ("memory", self.memory)] {
            let Some(summary) = summary else { continue };
            text += &match (summary.alone.is_empty(), summary.fewest, summary.preferred) {
                (false, ..) => {
                    format!("; {what} fit {} alone", render_nodes(topology, summary.alone))
                }
                (true, Some(n), Some(p)) if n > p => {
                    format!("; {what} need {n} nodes now, {p} on an empty machine")
                }
                (true, Some(n), _) => format!("; {what} need {n} nodes"),
                (true, None, _) => format!("; {what} fit nowhere"),
            };
        }
        text
    }
}
