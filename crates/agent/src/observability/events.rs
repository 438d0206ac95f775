//! Events: [`AgentEvent`] lists every event of the agent with upstream's reason and message.
//!
//! Tools match on reasons and types, people read the messages; both are the kubelet's. Texts of the
//! runtime pass through unchanged. Writes nothing to the API.

use std::time::Duration;

use client::events::Severity;

use crate::cpusets::reconcile::Contention;

mod messages;

/// The kind of a probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProbeKind {
    Liveness,
    Readiness,
    Startup,
}

/// The progress of a resize.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ResizeStep {
    Started,
    Completed,
    /// Does not fit now; the reason is that of an admission, such as `OutOfcpu`.
    Deferred(String),
    Infeasible,
    Error,
}

/// Events of the node about itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodeChange {
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

/// All events of the agent. Display is the message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AgentEvent {
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
    /// A container cannot be created or started: a reason for waiting, or the error.
    Failed {
        error: String,
    },
    Stopping {
        container: String,
    },
    /// A container is killed although its pod continues.
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
    /// Volumes without which the containers cannot start, and their errors.
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
    /// A rejected pod, with the reason and message of the rejection.
    Rejected {
        reason: String,
        message: String,
    },
    /// `pod` is the requested resources as JSON; the error is set only if there is one.
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
    /// The exclusive resources of the pod's containers, and the reasons. Berth's own.
    Placed {
        placement: String,
    },
    /// Details that the message of a rejection leaves out. Berth's own.
    NotPlaced {
        evidence: String,
        pod: String,
        namespace: String,
    },
    /// On Windows memory cannot be bound: the CPUs and memory nodes of a container do not coincide.
    /// Berth's own.
    MemoryAffinityNotGuaranteed {
        container: String,
        warning: String,
    },
    /// A container was outside its allocation and was moved back. Berth's own.
    PlacementRepaired {
        container: String,
        found: String,
        fight: Option<Contention>,
        suspects: Vec<String>,
    },
    /// A container is outside its allocation and could not be moved back. Berth's own.
    PlacementNotInForce {
        container: String,
        found: String,
        /// The error of the runtime, if there was one.
        why: String,
        /// True if the container was never inside its allocation, so that the runtime must be the cause.
        ignored: bool,
        suspects: Vec<String>,
    },
    // The node
    Starting,
    Node {
        name: String,
        is: NodeChange,
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
    /// A file that is not a static pod, and the reason.
    StaticPodFailed {
        file: String,
        error: String,
    },
    CgroupV1,
}

impl AgentEvent {
    #[must_use]
    pub fn severity(&self) -> Severity {
        match self {
            AgentEvent::Pulling { .. }
            | AgentEvent::Pulled { .. }
            | AgentEvent::AlreadyPresent { .. }
            | AgentEvent::PullBackOff { .. }
            | AgentEvent::Created
            | AgentEvent::Started
            | AgentEvent::Stopping { .. }
            | AgentEvent::Killing { .. }
            | AgentEvent::ResizeRestart { .. }
            | AgentEvent::PostStartFailedKill
            | AgentEvent::SandboxChanged
            | AgentEvent::DeadlineExceeded
            | AgentEvent::Resize { step: ResizeStep::Started | ResizeStep::Completed, .. }
            | AgentEvent::Placed { .. }
            | AgentEvent::Starting
            | AgentEvent::Node { .. }
            | AgentEvent::NodeShutdown { .. }
            | AgentEvent::AllocatableEnforced => Severity::Normal,
            _ => Severity::Warning,
        }
    }

    #[must_use]
    pub fn reason(&self) -> &str {
        match self {
            AgentEvent::Pulling { .. } => "Pulling",
            AgentEvent::Pulled { .. } | AgentEvent::AlreadyPresent { .. } => "Pulled",
            AgentEvent::PullFailed { .. } | AgentEvent::Failed { .. } => "Failed",
            AgentEvent::PullBackOff { .. } | AgentEvent::RestartBackOff { .. } => "BackOff",
            AgentEvent::NeverPull { .. } => "ErrImageNeverPull",
            AgentEvent::BadImageName { .. } => "InspectFailed",
            AgentEvent::Created => "Created",
            AgentEvent::Started => "Started",
            AgentEvent::Starting => "Starting",
            AgentEvent::Stopping { .. }
            | AgentEvent::Killing { .. }
            | AgentEvent::ResizeRestart { .. }
            | AgentEvent::PostStartFailedKill => "Killing",
            AgentEvent::Unhealthy { .. } | AgentEvent::ProbeErrored { .. } => "Unhealthy",
            AgentEvent::ProbeWarning { .. } => "ProbeWarning",
            AgentEvent::PostStartFailed => "FailedPostStartHook",
            AgentEvent::PreStopFailed => "FailedPreStopHook",
            AgentEvent::ExceededGracePeriod => "ExceededGracePeriod",
            AgentEvent::SandboxFailed { .. } => "FailedCreatePodSandBox",
            AgentEvent::SandboxChanged => "SandboxChanged",
            AgentEvent::SandboxStatusFailed { .. } => "FailedPodSandBoxStatus",
            AgentEvent::NetworkNotReady { .. } => "NetworkNotReady",
            AgentEvent::MountFailed { .. } | AgentEvent::VolumesMissing { .. } => "FailedMount",
            AgentEvent::ClaimsFailed { .. } => "FailedPrepareDynamicResources",
            AgentEvent::KillFailed { .. } => "FailedKillPod",
            AgentEvent::SyncFailed { .. } => "FailedSync",
            AgentEvent::DeadlineExceeded => "DeadlineExceeded",
            AgentEvent::Evicted { .. } => "Evicted",
            AgentEvent::Preempted => "Preempting",
            AgentEvent::Rejected { reason, .. } => reason,
            AgentEvent::Resize { step, .. } => match step {
                ResizeStep::Started => "ResizeStarted",
                ResizeStep::Completed => "ResizeCompleted",
                ResizeStep::Deferred(_) => "ResizeDeferred",
                ResizeStep::Infeasible => "ResizeInfeasible",
                ResizeStep::Error => "ResizeError",
            },
            AgentEvent::DnsLimits { .. } => "DNSConfigForming",
            AgentEvent::MissingClusterDns { .. } => "MissingClusterDNS",
            AgentEvent::Placed { .. } => "Placed",
            AgentEvent::NotPlaced { .. } => "NotPlaced",
            AgentEvent::MemoryAffinityNotGuaranteed { .. } => "MemoryAffinityNotGuaranteed",
            AgentEvent::PlacementRepaired { .. } => "PlacementRepaired",
            AgentEvent::PlacementNotInForce { .. } => "PlacementNotInForce",
            AgentEvent::Node { is, .. } => is.reason(),
            AgentEvent::Rebooted { .. } => "Rebooted",
            AgentEvent::NodeShutdown { .. } => "Shutdown",
            AgentEvent::AllocatableEnforced => "NodeAllocatableEnforced",
            AgentEvent::AllocatableNotEnforced { .. } => "FailedNodeAllocatableEnforcement",
            AgentEvent::InvalidDiskCapacity { .. } => "InvalidDiskCapacity",
            AgentEvent::ReclaimsFor { .. } => "EvictionThresholdMet",
            AgentEvent::ContainerGcFailed { .. } => "ContainerGCFailed",
            AgentEvent::ImageGcFailed { .. } => "ImageGCFailed",
            AgentEvent::FreeDiskSpaceFailed { .. } => "FreeDiskSpaceFailed",
            AgentEvent::StaticPodFailed { .. } => "FailedStaticPod",
            AgentEvent::CgroupV1 => "CgroupV1",
        }
    }
}

impl NodeChange {
    #[must_use]
    pub fn reason(self) -> &'static str {
        match self {
            NodeChange::Ready => "NodeReady",
            NodeChange::NotReady => "NodeNotReady",
            NodeChange::Schedulable => "NodeSchedulable",
            NodeChange::NotSchedulable => "NodeNotSchedulable",
            NodeChange::SufficientMemory => "NodeHasSufficientMemory",
            NodeChange::InsufficientMemory => "NodeHasInsufficientMemory",
            NodeChange::NoDiskPressure => "NodeHasNoDiskPressure",
            NodeChange::DiskPressure => "NodeHasDiskPressure",
            NodeChange::SufficientPids => "NodeHasSufficientPID",
            NodeChange::InsufficientPids => "NodeHasInsufficientPID",
        }
    }
}

/// Returns the `fieldPath` of the part of the pod.
#[must_use]
pub fn field_path(role: lifecycle::spec::Role, container: &str) -> String {
    use lifecycle::spec::Role;
    let list = match role {
        Role::Init | Role::Sidecar => "initContainers",
        Role::App => "containers",
        Role::Ephemeral => "ephemeralContainers",
    };
    format!("spec.{list}{{{container}}}")
}

#[cfg(test)]
mod tests;
