//! The messages of events. The texts are upstream's.

use std::fmt;
use std::time::Duration;

use objects::go;

use super::{AgentEvent, ProbeKind, ResizeStep};
use crate::cpusets::reconcile::Contention;

const CGROUP_V1: &str = "cgroup v1 detected. cgroup v1 support is deprecated and will be removed in a \
                         future release. Please migrate to cgroup v2. More information at \
                         https://git.k8s.io/enhancements/keps/sig-node/5573-remove-cgroup-v1";

impl fmt::Display for AgentEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AgentEvent::Pulling { image } => write!(f, "Pulling image \"{image}\""),
            AgentEvent::Pulled { image, took, waited, bytes } => write!(
                f,
                "Successfully pulled image \"{image}\" in {} ({} including waiting). Image size: \
                 {bytes} bytes.",
                in_millis(*took),
                in_millis(*waited),
            ),
            AgentEvent::AlreadyPresent { image } => write!(
                f,
                "Container image \"{image}\" already present on machine and can be accessed by the \
                 pod"
            ),
            AgentEvent::PullFailed { image, error } => {
                write!(f, "Failed to pull image \"{image}\": {error}")
            }
            AgentEvent::PullBackOff { image } => write!(f, "Back-off pulling image \"{image}\""),
            AgentEvent::NeverPull { image } => {
                write!(f, "Container image \"{image}\" is not present with pull policy of Never")
            }
            AgentEvent::BadImageName { image, error } => {
                write!(f, "Failed to apply default image tag \"{image}\": {error}")
            }
            AgentEvent::Created => f.write_str("Container created"),
            AgentEvent::Started => f.write_str("Container started"),
            AgentEvent::Failed { error } => write!(f, "Error: {error}"),
            AgentEvent::Stopping { container } => write!(f, "Stopping container {container}"),
            AgentEvent::Killing { why } => f.write_str(why),
            AgentEvent::ResizeRestart { container } => {
                write!(f, "Container {container} resize requires restart")
            }
            AgentEvent::PostStartFailedKill => f.write_str("FailedPostStartHook"),
            AgentEvent::RestartBackOff { container, pod, namespace, uid } => write!(
                f,
                "Back-off restarting failed container {container} in pod {pod}_{namespace}({uid})"
            ),
            AgentEvent::Unhealthy { probe, output } => write!(f, "{probe} probe failed: {output}"),
            AgentEvent::ProbeErrored { probe, error } => {
                write!(f, "{probe} probe errored and resulted in unknown state: {error}")
            }
            AgentEvent::ProbeWarning { probe, output } => {
                write!(f, "{probe} probe warning: {output}")
            }
            AgentEvent::PostStartFailed => f.write_str("PostStartHook failed"),
            AgentEvent::PreStopFailed => f.write_str("PreStopHook failed"),
            AgentEvent::ExceededGracePeriod => {
                f.write_str("Container runtime did not kill the pod within specified grace period.")
            }
            AgentEvent::SandboxFailed { error } => {
                write!(f, "Failed to create pod sandbox: {error}")
            }
            AgentEvent::SandboxChanged => {
                f.write_str("Pod sandbox changed, it will be killed and re-created.")
            }
            AgentEvent::SandboxStatusFailed { error } => {
                write!(f, "Unable to get pod sandbox status: {error}")
            }
            AgentEvent::NetworkNotReady { error } => write!(f, "network is not ready: {error}"),
            AgentEvent::MountFailed { volume, error } => {
                write!(f, "MountVolume.SetUp failed for volume \"{volume}\" : {error}")
            }
            AgentEvent::VolumesMissing { unmounted, unattached, failed, error } => write!(
                f,
                "Unable to attach or mount volumes: unmounted volumes=[{}], unattached volumes=[{}], \
                 failed to process volumes=[{}]: {error}",
                unmounted.join(" "),
                unattached.join(" "),
                failed.join(" "),
            ),
            AgentEvent::ClaimsFailed { error } => {
                write!(f, "Failed to prepare dynamic resources: {error}")
            }
            AgentEvent::KillFailed { error } => write!(f, "error killing pod: {error}"),
            AgentEvent::SyncFailed { error } => write!(f, "error determining status: {error}"),
            AgentEvent::DeadlineExceeded => {
                f.write_str("Pod was active on the node longer than the specified deadline")
            }
            AgentEvent::Preempted => f.write_str("Preempted in order to admit critical pod"),
            AgentEvent::Resize { step, pod } => write!(f, "Pod resize {}: {pod}", step.word()),
            AgentEvent::Placed { placement } => f.write_str(placement),
            AgentEvent::NotPlaced { evidence, pod, namespace } => write!(
                f,
                "{evidence}. What would let it in: berth explain pod {pod} -n {namespace}"
            ),
            AgentEvent::MemoryAffinityNotGuaranteed { container, warning } => {
                write!(f, "container {container}: {warning}")
            }
            AgentEvent::PlacementRepaired { container, found, fight, suspects } => {
                write!(f, "Container {container} had {found} and was put back")?;
                if let Some(fight) = fight {
                    let Contention { times, checks } = fight;
                    write!(f, ", {times} times within {checks} checks: somebody else sets it")?;
                }
                match (suspects.is_empty(), fight) {
                    (false, _) => write!(f, "; suspected: {}", suspects.join(", ")),
                    (true, Some(_)) => f.write_str("; no kubelet or other agent was found running"),
                    (true, None) => Ok(()),
                }
            }
            AgentEvent::PlacementNotInForce { container, found, why, ignored, suspects } => {
                write!(f, "Container {container} has {found} and cannot be put there")?;
                match (why.is_empty(), ignored) {
                    (false, _) => write!(f, ": {why}")?,
                    (true, true) => f.write_str(": the runtime ignores where it is to run")?,
                    (true, false) => {}
                }
                match suspects.is_empty() {
                    false => write!(f, "; suspected: {}", suspects.join(", ")),
                    true => Ok(()),
                }
            }
            AgentEvent::Starting => f.write_str("Starting kubelet."),
            AgentEvent::Node { name, is } => {
                write!(f, "Node {name} status is now: {}", is.reason())
            }
            AgentEvent::Rebooted { name, boot_id } => {
                write!(f, "Node {name} has been rebooted, boot id: {boot_id}")
            }
            AgentEvent::AllocatableEnforced => {
                f.write_str("Updated Node Allocatable limit across pods")
            }
            AgentEvent::AllocatableNotEnforced { error } => {
                write!(f, "Failed to update Node Allocatable Limits {error}")
            }
            AgentEvent::InvalidDiskCapacity { filesystem } => {
                write!(f, "invalid capacity 0 on {filesystem} filesystem")
            }
            AgentEvent::ReclaimsFor { resource } => write!(f, "Attempting to reclaim {resource}"),
            // Upstream only logs this.
            AgentEvent::StaticPodFailed { file, error } => {
                write!(f, "Could not process manifest file {file}: {error}")
            }
            AgentEvent::CgroupV1 => f.write_str(CGROUP_V1),
            AgentEvent::Evicted { message }
            | AgentEvent::Rejected { message, .. }
            | AgentEvent::DnsLimits { message }
            | AgentEvent::MissingClusterDns { message }
            | AgentEvent::NodeShutdown { message } => f.write_str(message),
            AgentEvent::ContainerGcFailed { error }
            | AgentEvent::ImageGcFailed { error }
            | AgentEvent::FreeDiskSpaceFailed { error } => f.write_str(error),
        }
    }
}

impl ResizeStep {
    fn word(&self) -> &str {
        match self {
            ResizeStep::Started => "started",
            ResizeStep::Completed => "completed",
            ResizeStep::Deferred(reason) => reason,
            ResizeStep::Infeasible => "Infeasible",
            ResizeStep::Error => "error",
        }
    }
}

impl fmt::Display for ProbeKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// Formats a duration in whole milliseconds.
fn in_millis(duration: Duration) -> String {
    go::duration(Duration::from_millis(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)))
}
