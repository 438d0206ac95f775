//! Rejections of nodes, and their texts.
//!
//! Main types: [`Plugin`], [`Code`] and [`Verdict`]. Internally a rejection is a [`Rejection`] with
//! typed reasons; texts are rendered once, at the end, and are upstream's. This module decides
//! nothing.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::classes::Class;
use crate::interner::Interner;
use crate::resources::Resource;

macro_rules! plugins {
    ($($(#[$doc:meta])* $plugin:ident, $name:literal;)*) => {
        /// A plugin, with its name in profiles and messages.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Plugin { $($(#[$doc])* $plugin,)* }

        impl Plugin {
            pub const ALL: &'static [Plugin] = &[$(Plugin::$plugin,)*];

            #[must_use]
            pub fn name(self) -> &'static str {
                match self { $(Plugin::$plugin => $name,)* }
            }

            #[must_use]
            pub fn from_name(name: &str) -> Option<Plugin> {
                Plugin::ALL.iter().copied().find(|p| p.name() == name)
            }
        }
    };
}

plugins! {
    SchedulingGates, "SchedulingGates";
    NodeName, "NodeName";
    NodeUnschedulable, "NodeUnschedulable";
    TaintToleration, "TaintToleration";
    NodeAffinity, "NodeAffinity";
    NodePorts, "NodePorts";
    NodeResourcesFit, "NodeResourcesFit";
    /// Capacity of QoS classes (KEP-3008). Ours.
    QosResources, "QOSResources";
    VolumeRestrictions, "VolumeRestrictions";
    NodeVolumeLimits, "NodeVolumeLimits";
    VolumeBinding, "VolumeBinding";
    VolumeZone, "VolumeZone";
    PodTopologySpread, "PodTopologySpread";
    InterPodAffinity, "InterPodAffinity";
    DynamicResources, "DynamicResources";
    NodeDeclaredFeatures, "NodeDeclaredFeatures";
    /// Placement of CPUs and memory by the node's agent. Ours.
    MachinePlacement, "MachinePlacement";
    DefaultPreemption, "DefaultPreemption";
    NodeResourcesBalancedAllocation, "NodeResourcesBalancedAllocation";
    ImageLocality, "ImageLocality";
}

impl fmt::Display for Plugin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The effect that preemption could have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Code {
    /// Preemption may help.
    Unschedulable,
    /// Preemption cannot help.
    UnschedulableAndUnresolvable,
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// The reason for which a node is rejected.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Reason {
    Unschedulable,
    Taints,
    Affinity,
    EnforcedAffinity,
    /// The pod names another node.
    NotPinned,
    Ports,
    TooManyPods,
    Insufficient(Resource),
    NoClass(Class),
    ClassFull(Class),
    Disk,
    ClaimInUse,
    VolumeElsewhere,
    NoVolume,
    LostVolume,
    Zone,
    SpreadLabel,
    SpreadSkew,
    PodAffinity,
    PodAntiAffinity,
    ExistingAntiAffinity,
    Features,
    Refused(Arc<str>),
    NoVictims,
    NoHelp,
    /// A text of the PreFilter step.
    Text(Arc<str>),
}

impl Reason {
    pub(crate) fn render(&self, symbols: &Interner) -> String {
        let class = |class: &Class| {
            format!("{}={}", symbols.text(class.resource), symbols.text(class.class))
        };
        let text = match self {
            Reason::Unschedulable => "node(s) were unschedulable",
            Reason::Taints => "node(s) had untolerated taint(s)",
            Reason::Affinity => "node(s) didn't match Pod's node affinity/selector",
            Reason::EnforcedAffinity => "node(s) didn't match scheduler-enforced node affinity",
            Reason::NotPinned => "node(s) didn't satisfy plugin(s) [NodeAffinity]",
            Reason::Ports => "node(s) didn't have free ports for the requested pod ports",
            Reason::TooManyPods => "Too many pods",
            Reason::Insufficient(resource) => {
                return format!("Insufficient {}", resource.name(symbols));
            }
            Reason::NoClass(c) => return format!("node(s) had no QoS class {}", class(c)),
            Reason::ClassFull(c) => return format!("Insufficient QoS class {}", class(c)),
            Reason::Disk => "node(s) had no available disk",
            Reason::ClaimInUse => {
                "node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode \
                 already in-use by another pod"
            }
            Reason::VolumeElsewhere => "node(s) didn't match PersistentVolume's node affinity",
            Reason::NoVolume => "node(s) didn't find available persistent volumes to bind",
            Reason::LostVolume => {
                "node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)"
            }
            Reason::Zone => "node(s) had no available volume zone",
            Reason::SpreadLabel => {
                "node(s) didn't match pod topology spread constraints (missing required label)"
            }
            Reason::SpreadSkew => "node(s) didn't match pod topology spread constraints",
            Reason::PodAffinity => "node(s) didn't match pod affinity rules",
            Reason::PodAntiAffinity => "node(s) didn't match pod anti-affinity rules",
            Reason::ExistingAntiAffinity => {
                "node(s) didn't satisfy existing pods anti-affinity rules"
            }
            Reason::Features => "node(s) didn't match Pod's required features",
            Reason::Refused(refusal) => return format!("node(s) would refuse the pod: {refusal}"),
            Reason::NoVictims => "No preemption victims found for incoming pod",
            Reason::NoHelp => "Preemption is not helpful for scheduling",
            Reason::Text(text) => text,
        };
        text.to_owned()
    }
}

/// A rejection with its reasons.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Rejection {
    pub(crate) plugin: Option<Plugin>,
    pub(crate) code: Code,
    pub(crate) reasons: SmallVec<[Reason; 1]>,
}

impl Rejection {
    pub(crate) fn new(plugin: Plugin, code: Code, reason: Reason) -> Rejection {
        Rejection { plugin: Some(plugin), code, reasons: SmallVec::from_iter([reason]) }
    }

    pub(crate) fn without_plugin(reason: Reason) -> Rejection {
        Rejection {
            plugin: None,
            code: Code::UnschedulableAndUnresolvable,
            reasons: SmallVec::from_iter([reason]),
        }
    }

    pub(crate) fn render(&self, symbols: &Interner) -> Verdict {
        let mut reasons: Vec<_> = self.reasons.iter().map(|r| r.render(symbols)).collect();
        reasons.sort();
        Verdict { plugin: self.plugin, code: self.code, reasons }
    }
}

/// The rendered rejection of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    /// The first rejecting plugin; `None` if the node was skipped because the pod names another
    /// one.
    pub plugin: Option<Plugin>,
    pub code: Code,
    /// In order of text.
    pub reasons: Vec<String>,
}

/// The number of nodes by reason.
#[derive(Debug, Default)]
pub(crate) struct Histogram(BTreeMap<String, usize>);

impl Histogram {
    pub(crate) fn add(&mut self, rejection: &Rejection, times: usize, symbols: &Interner) {
        for reason in rejection.reasons.iter().filter(|_| times > 0) {
            *self.0.entry(reason.render(symbols)).or_default() += times;
        }
    }

    /// Renders `0/5 nodes are available: 2 Insufficient cpu, 3 …`, sorted as text.
    pub(crate) fn render(&self, nodes: usize) -> String {
        let mut counted: Vec<_> = self.0.iter().map(|(text, n)| format!("{n} {text}")).collect();
        counted.sort();
        let mut message = format!("0/{nodes} nodes are available:");
        if !counted.is_empty() {
            message += &format!(" {}.", counted.join(", "));
        }
        message
    }
}
