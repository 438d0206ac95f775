//! The topology manager: decides whether a pod's resources must come from the same NUMA nodes, and
//! in which scope.
//!
//! Main type: [`Alignment`], the checked policy with scope and options, and [`Alignment::decide`],
//! which merges hints and decides admission. [`crate::cpu`] and [`crate::memory`] provide the
//! hints.

use std::collections::BTreeMap;

use smallvec::SmallVec;
use thiserror::Error;

use crate::affinity::merge::merge;
use crate::affinity::search::Fit;
use crate::affinity::{Family, Hint};
use crate::go_strconv::{ParseError, parse_bool, parse_int};
use crate::topology::Topology;

/// The kubelet's topology manager policies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum AlignmentPolicy {
    #[default]
    None,
    BestEffort,
    Restricted,
    SingleNumaNode,
}

impl AlignmentPolicy {
    pub const NAMES: [&str; 4] = ["none", "best-effort", "restricted", "single-numa-node"];

    #[must_use]
    pub fn parse(name: &str) -> Option<AlignmentPolicy> {
        match name {
            "none" => Some(AlignmentPolicy::None),
            "best-effort" => Some(AlignmentPolicy::BestEffort),
            "restricted" => Some(AlignmentPolicy::Restricted),
            "single-numa-node" => Some(AlignmentPolicy::SingleNumaNode),
            _ => None,
        }
    }

    #[must_use]
    pub fn name(self) -> &'static str {
        Self::NAMES[self as usize]
    }
}

/// The scope of alignment: each container or the whole pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Scope {
    #[default]
    Container,
    Pod,
}

impl Scope {
    pub const NAMES: [&str; 2] = ["container", "pod"];

    #[must_use]
    pub fn parse(name: &str) -> Option<Scope> {
        match name {
            "container" => Some(Scope::Container),
            "pod" => Some(Scope::Pod),
            _ => None,
        }
    }

    #[must_use]
    pub fn name(self) -> &'static str {
        Self::NAMES[self as usize]
    }
}

/// The largest number of NUMA nodes without `max-allowable-numa-nodes`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum NodeLimit {
    /// The most that a machine can have: Berth's searches do not grow exponentially.
    #[default]
    None,
    /// The kubelet's limit: eight.
    Kubelet,
}

/// The kubelet's default limit, and the least that may be configured.
const KUBELET_NODE_LIMIT: i64 = 8;

/// A checked topology manager configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Alignment {
    pub policy: AlignmentPolicy,
    pub scope: Scope,
    pub prefer_closest: bool,
}

/// Why a topology manager configuration cannot be used. The texts are the kubelet's.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum AlignmentError {
    #[error("unknown policy: \"{0}\"")]
    UnknownPolicy(String),
    #[error("unknown scope: \"{0}\"")]
    UnknownScope(String),
    #[error("unknown Topology Manager Policy option: {0:?}")]
    UnknownOption(String),
    #[error("bad value for option {option:?}: {error}")]
    BadValue { option: String, error: ParseError },
    #[error("unable to convert policy option to integer {option:?}: {error}")]
    BadInteger { option: String, error: ParseError },
    #[error("the minimum value of {0:?} should not be less than {KUBELET_NODE_LIMIT}")]
    TooFewNodesAllowed(&'static str),
    #[error("unsupported on machines with more than {0} NUMA Nodes")]
    TooManyNodes(i64),
    #[error("cannot discover NUMA topology: error getting NUMA distances from cadvisor")]
    NoDistances,
}

pub const PREFER_CLOSEST: &str = "prefer-closest-numa-nodes";
pub const MAX_NODES_OPTION: &str = "max-allowable-numa-nodes";

impl Alignment {
    /// Checks a configuration in the kubelet's order, so that the first error is the same. Both
    /// options are generally available, so no feature gate applies.
    pub fn new(
        policy: &str,
        scope: &str,
        options: &BTreeMap<String, String>,
        topology: &Topology,
        limit: NodeLimit,
    ) -> Result<Alignment, AlignmentError> {
        let parsed = AlignmentPolicy::parse(policy);
        if parsed == Some(AlignmentPolicy::None) {
            return Ok(Alignment::default());
        }
        let mut prefer_closest = false;
        let mut most = match limit {
            NodeLimit::None => i64::MAX,
            NodeLimit::Kubelet => KUBELET_NODE_LIMIT,
        };
        for (option, value) in options {
            match option.as_str() {
                PREFER_CLOSEST => {
                    prefer_closest = parse_bool(value).map_err(|error| {
                        AlignmentError::BadValue { option: option.clone(), error }
                    })?;
                }
                MAX_NODES_OPTION => {
                    most = parse_int(value).map_err(|error| AlignmentError::BadInteger {
                        option: option.clone(),
                        error,
                    })?;
                    if most < KUBELET_NODE_LIMIT {
                        return Err(AlignmentError::TooFewNodesAllowed(MAX_NODES_OPTION));
                    }
                }
                _ => return Err(AlignmentError::UnknownOption(option.clone())),
            }
        }
        if prefer_closest && topology.distances().is_none() {
            return Err(AlignmentError::NoDistances);
        }
        if i64::try_from(topology.nodes().len()).unwrap_or(i64::MAX) > most {
            return Err(AlignmentError::TooManyNodes(most));
        }
        let policy = parsed.ok_or_else(|| AlignmentError::UnknownPolicy(policy.to_owned()))?;
        let scope =
            Scope::parse(scope).ok_or_else(|| AlignmentError::UnknownScope(scope.to_owned()))?;
        Ok(Alignment { policy, scope, prefer_closest })
    }

    /// Merges the hints of all resources, each family with its multiplicity. Also returns true if
    /// the policy admits the result.
    #[must_use]
    pub fn decide(&self, families: &[(&Family, usize)], topology: &Topology) -> (Hint, bool) {
        let all = topology.all_nodes();
        let fit = match topology.distances() {
            // One node has no distance to others: `single-numa-node` ignores the option.
            Some(distances)
                if self.prefer_closest && self.policy != AlignmentPolicy::SingleNumaNode =>
            {
                Fit::Closest(distances)
            }
            _ => Fit::Lowest,
        };
        match self.policy {
            AlignmentPolicy::None => (Hint::NOWHERE, true),
            AlignmentPolicy::BestEffort => (merge(families, all, fit), true),
            AlignmentPolicy::Restricted => {
                let hint = merge(families, all, fit);
                (hint, hint.preferred)
            }
            AlignmentPolicy::SingleNumaNode => {
                let singles: SmallVec<[(Family, usize); 4]> = families
                    .iter()
                    .map(|(family, times)| (family.only_preferred_single_nodes(), *times))
                    .collect();
                // A resource that no single node satisfies leaves nothing to merge.
                let hint = if singles.iter().any(|(family, _)| family.is_empty()) {
                    Hint { nodes: Some(all), preferred: false }
                } else {
                    let singles: SmallVec<[(&Family, usize); 4]> =
                        singles.iter().map(|(family, times)| (family, *times)).collect();
                    merge(&singles, all, fit)
                };
                let nodes = hint.nodes.filter(|nodes| *nodes != all);
                (Hint { nodes, preferred: hint.preferred }, hint.preferred)
            }
        }
    }
}
