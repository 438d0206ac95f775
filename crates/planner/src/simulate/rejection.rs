//! Rejections of a pod by a machine: by counting, and by placement.
//!
//! Main type: [`Rejection`]. Reasons and messages are the kubelet's.

use std::fmt;

use objects::pod::OsName;
use placement::configured::{Capacity, Configured};
use placement::rationale::Refusal;

use super::Class;

/// The reason why a machine rejects a pod. Display is the kubelet's message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rejection {
    Os {
        wanted: OsName,
        has: OsName,
        /// Requested by `spec.os`; otherwise by a node selector.
        by_field: bool,
    },
    OtherMachine {
        wanted: String,
    },
    Resource {
        name: String,
        requested: u64,
        used: u64,
        capacity: u64,
    },
    Placement(Refusal),
}

impl Rejection {
    /// Returns the reason of the pod's failure.
    #[must_use]
    pub fn reason(&self) -> String {
        match self {
            Rejection::Os { by_field: true, .. } => "PodOSNotSupported".to_owned(),
            Rejection::Os { .. } => "PodOSSelectorNodeLabelDoesNotMatch".to_owned(),
            Rejection::OtherMachine { .. } => "NodeName".to_owned(),
            Rejection::Resource { name, .. } => format!("OutOf{name}"),
            Rejection::Placement(refusal) => refusal.reason().to_owned(),
        }
    }
}

impl fmt::Display for Rejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Rejection::Os { by_field: true, .. } => {
                f.write_str("Failed to admit pod as the OS field doesn't match node OS")
            }
            Rejection::Os { .. } => f.write_str(
                "Failed to admit pod as the `kubernetes.io/os` label doesn't match node label",
            ),
            Rejection::OtherMachine { wanted } => {
                write!(f, "node(s) didn't match the requested node name {wanted:?}")
            }
            Rejection::Resource { name, requested, used, capacity } => write!(
                f,
                "Node didn't have enough resource: {name}, requested: {requested}, used: {used}, \
                 capacity: {capacity}"
            ),
            Rejection::Placement(refusal) => refusal.fmt(f),
        }
    }
}

/// Checks everything that does not need a placement, in the kubelet's order.
pub(crate) fn precheck(
    wanted: &Class,
    configured: &Configured,
    used: &Capacity,
) -> Option<Rejection> {
    let has = configured.node.os;
    if let Some((wanted, by_field)) = wanted.os
        && wanted != has
    {
        return Some(Rejection::Os { wanted, has, by_field });
    }
    let (need, all) = (&wanted.need, &configured.allocatable);
    let lacks =
        |name: &str, requested: u64, used: u64, capacity: u64| {
            (requested > 0 && requested > capacity.saturating_sub(used))
                .then(|| Rejection::Resource { name: name.to_owned(), requested, used, capacity })
        };
    let of = |amounts: &Capacity, name: &str| amounts.others.get(name).copied().unwrap_or(0);
    lacks("pods", need.pods, used.pods, all.pods)
        .or_else(|| lacks("cpu", need.milli_cpus, used.milli_cpus, all.milli_cpus))
        .or_else(|| lacks("memory", need.memory, used.memory, all.memory))
        .or_else(|| {
            let mut others = need.others.iter();
            others.find_map(|(name, amount)| lacks(name, *amount, of(used, name), of(all, name)))
        })
}
