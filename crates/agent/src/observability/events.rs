//! What is told to people: [`Told`], every event the agent has to tell of, with upstream's reason and
//! words; and [`Correlator`], which keeps one thing from being told too often.
//!
//! Tools match on reasons and types, people read the messages; both are the kubelet's. Texts of the
//! runtime pass through unchanged. Writes nothing to the API.

use std::time::Duration;

use crate::cpusets::reconcile::Fight;

mod correlate;
mod messages;

pub use correlate::{About, Correlator, Outcome, Written};

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Severity {
    Normal,
    Warning,
}

impl Severity {
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Severity::Normal => "Normal",
            Severity::Warning => "Warning",
        }
    }
}

/// Which probe has something to say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProbeKind {
    Liveness,
    Readiness,
    Startup,
}

/// How far a resize has come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ResizeStep {
    Started,
    Completed,
    /// Does not fit now; the reason is that of an admission, such as `OutOfcpu`.
    Deferred(String),
    Infeasible,
    Error,
}

/// What the node says of itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodeIs {
    Ready,
    NotReady,
    Schedulable,
    NotSchedulable,
    SufficientMemory,
    InsufficientMemory,
    NoDiskPressure,
    DiskPressure,
    SufficientPids,
    InsufficientPids,
}

/// Everything the agent tells of. Display is the message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Told {
    // Images
    Pulling {
        image: String,
    },
    Pulled {
        image: String,
        took: Duration,
        waited: Duration,
        bytes: u64,
    },
    AlreadyPresent {
        image: String,
    },
    PullFailed {
        image: String,
        error: String,
    },
    PullBackOff {
        image: String,
    },
    NeverPull {
        image: String,
    },
    BadImageName {
        image: String,
        error: String,
    },
    // Containers
    Created,
    Started,
    /// What keeps a container from being made or started: a reason for waiting, or the error.
    Failed {
        error: String,
    },
    Stopping {
        container: String,
    },
    /// Why a container is killed that does not end with its pod.
    Killing {
        why: String,
    },
    ResizeRestart {
        container: String,
    },
    PostStartFailedKill,
    RestartBackOff {
        container: String,
        pod: String,
        namespace: String,
        uid: String,
    },
    Unhealthy {
        probe: ProbeKind,
        output: String,
    },
    ProbeErrored {
        probe: ProbeKind,
        error: String,
    },
    ProbeWarning {
        probe: ProbeKind,
        output: String,
    },
    PostStartFailed,
    PreStopFailed,
    ExceededGracePeriod,
    // Pods
    SandboxFailed {
        error: String,
    },
    SandboxChanged,
    SandboxStatusFailed {
        error: String,
    },
    NetworkNotReady {
        error: String,
    },
    MountFailed {
        volume: String,
        error: String,
    },
    /// Volumes without which the containers cannot start, and what became of them.
    VolumesMissing {
        unmounted: Vec<String>,
        unattached: Vec<String>,
        failed: Vec<String>,
        error: String,
    },
    ClaimsFailed {
        error: String,
    },
    KillFailed {
        error: String,
    },
    SyncFailed {
        error: String,
    },
    DeadlineExceeded,
    Evicted {
        message: String,
    },
    Preempted,
    /// A pod that is not let in, with the reason and bare message of its rejection.
    Rejected {
        reason: String,
        message: String,
    },
    /// `pod` is the wanted resources as JSON; an error only where there is one.
    Resize {
        step: ResizeStep,
        pod: String,
    },
    DnsLimits {
        message: String,
    },
    MissingClusterDns {
        message: String,
    },
    /// What the pod's containers have of their own, and why. Ours.
    Placed {
        placement: String,
    },
    /// What a rejection's message leaves out. Ours.
    NotPlaced {
        evidence: String,
        pod: String,
        namespace: String,
    },
    /// On Windows memory is not bound: a container's CPUs and memory nodes do not coincide. Ours.
    MemoryAffinityNotGuaranteed {
        container: String,
        warning: String,
    },
    /// A container was not where it had been put, and is again. Ours.
    PlacementRepaired {
        container: String,
        found: String,
        fight: Option<Fight>,
        suspects: Vec<String>,
    },
    /// A container is not where it was put, and cannot be put there. Ours.
    PlacementNotInForce {
        container: String,
        found: String,
        /// What the runtime said, if it said anything.
        why: String,
        /// It never was there, and nobody but the runtime can be why.
        ignored: bool,
        suspects: Vec<String>,
    },
    // The node
    Starting,
    Node {
        name: String,
        is: NodeIs,
    },
    Rebooted {
        name: String,
        boot_id: String,
    },
    NodeShutdown {
        message: String,
    },
    AllocatableEnforced,
    AllocatableNotEnforced {
        error: String,
    },
    InvalidDiskCapacity {
        filesystem: String,
    },
    ReclaimsFor {
        resource: String,
    },
    ContainerGcFailed {
        error: String,
    },
    ImageGcFailed {
        error: String,
    },
    FreeDiskSpaceFailed {
        error: String,
    },
    /// A file that is no static pod, and why not.
    StaticPodFailed {
        file: String,
        error: String,
    },
    CgroupV1,
}

impl Told {
    #[must_use]
    pub fn severity(&self) -> Severity {
        match self {
            Told::Pulling { .. }
            | Told::Pulled { .. }
            | Told::AlreadyPresent { .. }
            | Told::PullBackOff { .. }
            | Told::Created
            | Told::Started
            | Told::Stopping { .. }
            | Told::Killing { .. }
            | Told::ResizeRestart { .. }
            | Told::PostStartFailedKill
            | Told::SandboxChanged
            | Told::DeadlineExceeded
            | Told::Resize { step: ResizeStep::Started | ResizeStep::Completed, .. }
            | Told::Placed { .. }
            | Told::Starting
            | Told::Node { .. }
            | Told::NodeShutdown { .. }
            | Told::AllocatableEnforced => Severity::Normal,
            _ => Severity::Warning,
        }
    }

    #[must_use]
    pub fn reason(&self) -> &str {
        match self {
            Told::Pulling { .. } => "Pulling",
            Told::Pulled { .. } | Told::AlreadyPresent { .. } => "Pulled",
            Told::PullFailed { .. } | Told::Failed { .. } => "Failed",
            Told::PullBackOff { .. } | Told::RestartBackOff { .. } => "BackOff",
            Told::NeverPull { .. } => "ErrImageNeverPull",
            Told::BadImageName { .. } => "InspectFailed",
            Told::Created => "Created",
            Told::Started => "Started",
            Told::Starting => "Starting",
            Told::Stopping { .. }
            | Told::Killing { .. }
            | Told::ResizeRestart { .. }
            | Told::PostStartFailedKill => "Killing",
            Told::Unhealthy { .. } | Told::ProbeErrored { .. } => "Unhealthy",
            Told::ProbeWarning { .. } => "ProbeWarning",
            Told::PostStartFailed => "FailedPostStartHook",
            Told::PreStopFailed => "FailedPreStopHook",
            Told::ExceededGracePeriod => "ExceededGracePeriod",
            Told::SandboxFailed { .. } => "FailedCreatePodSandBox",
            Told::SandboxChanged => "SandboxChanged",
            Told::SandboxStatusFailed { .. } => "FailedPodSandBoxStatus",
            Told::NetworkNotReady { .. } => "NetworkNotReady",
            Told::MountFailed { .. } | Told::VolumesMissing { .. } => "FailedMount",
            Told::ClaimsFailed { .. } => "FailedPrepareDynamicResources",
            Told::KillFailed { .. } => "FailedKillPod",
            Told::SyncFailed { .. } => "FailedSync",
            Told::DeadlineExceeded => "DeadlineExceeded",
            Told::Evicted { .. } => "Evicted",
            Told::Preempted => "Preempting",
            Told::Rejected { reason, .. } => reason,
            Told::Resize { step, .. } => match step {
                ResizeStep::Started => "ResizeStarted",
                ResizeStep::Completed => "ResizeCompleted",
                ResizeStep::Deferred(_) => "ResizeDeferred",
                ResizeStep::Infeasible => "ResizeInfeasible",
                ResizeStep::Error => "ResizeError",
            },
            Told::DnsLimits { .. } => "DNSConfigForming",
            Told::MissingClusterDns { .. } => "MissingClusterDNS",
            Told::Placed { .. } => "Placed",
            Told::NotPlaced { .. } => "NotPlaced",
            Told::MemoryAffinityNotGuaranteed { .. } => "MemoryAffinityNotGuaranteed",
            Told::PlacementRepaired { .. } => "PlacementRepaired",
            Told::PlacementNotInForce { .. } => "PlacementNotInForce",
            Told::Node { is, .. } => is.reason(),
            Told::Rebooted { .. } => "Rebooted",
            Told::NodeShutdown { .. } => "Shutdown",
            Told::AllocatableEnforced => "NodeAllocatableEnforced",
            Told::AllocatableNotEnforced { .. } => "FailedNodeAllocatableEnforcement",
            Told::InvalidDiskCapacity { .. } => "InvalidDiskCapacity",
            Told::ReclaimsFor { .. } => "EvictionThresholdMet",
            Told::ContainerGcFailed { .. } => "ContainerGCFailed",
            Told::ImageGcFailed { .. } => "ImageGCFailed",
            Told::FreeDiskSpaceFailed { .. } => "FreeDiskSpaceFailed",
            Told::StaticPodFailed { .. } => "FailedStaticPod",
            Told::CgroupV1 => "CgroupV1",
        }
    }
}

impl NodeIs {
    #[must_use]
    pub fn reason(self) -> &'static str {
        match self {
            NodeIs::Ready => "NodeReady",
            NodeIs::NotReady => "NodeNotReady",
            NodeIs::Schedulable => "NodeSchedulable",
            NodeIs::NotSchedulable => "NodeNotSchedulable",
            NodeIs::SufficientMemory => "NodeHasSufficientMemory",
            NodeIs::InsufficientMemory => "NodeHasInsufficientMemory",
            NodeIs::NoDiskPressure => "NodeHasNoDiskPressure",
            NodeIs::DiskPressure => "NodeHasDiskPressure",
            NodeIs::SufficientPids => "NodeHasSufficientPID",
            NodeIs::InsufficientPids => "NodeHasInsufficientPID",
        }
    }
}

/// The part of a pod an event is about, as `fieldPath` has it.
#[must_use]
pub fn field_path(role: crate::spec::Role, container: &str) -> String {
    use crate::spec::Role;
    let list = match role {
        Role::Init | Role::Sidecar => "initContainers",
        Role::App => "containers",
        Role::Ephemeral => "ephemeralContainers",
    };
    format!("spec.{list}{{{container}}}")
}

#[cfg(test)]
mod tests;
