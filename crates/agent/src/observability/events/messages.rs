//! The messages of events, in upstream's words.

use std::fmt;
use std::time::Duration;

use super::{ProbeKind, ResizeStep, Told};
use crate::cpusets::reconcile::Fight;

const CGROUP_V1: &str = "cgroup v1 detected. cgroup v1 support is deprecated and will be removed in a \
                         future release. Please migrate to cgroup v2. More information at \
                         https://git.k8s.io/enhancements/keps/sig-node/5573-remove-cgroup-v1";

impl fmt::Display for Told {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Told::Pulling { image } => write!(f, "Pulling image \"{image}\""),
            Told::Pulled { image, took, waited, bytes } => write!(
                f,
                "Successfully pulled image \"{image}\" in {} ({} including waiting). Image size: \
                 {bytes} bytes.",
                in_millis(*took),
                in_millis(*waited),
            ),
            Told::AlreadyPresent { image } => write!(
                f,
                "Container image \"{image}\" already present on machine and can be accessed by the \
                 pod"
            ),
            Told::PullFailed { image, error } => {
                write!(f, "Failed to pull image \"{image}\": {error}")
            }
            Told::PullBackOff { image } => write!(f, "Back-off pulling image \"{image}\""),
            Told::NeverPull { image } => {
                write!(f, "Container image \"{image}\" is not present with pull policy of Never")
            }
            Told::BadImageName { image, error } => {
                write!(f, "Failed to apply default image tag \"{image}\": {error}")
            }
            Told::Created => f.write_str("Container created"),
            Told::Started => f.write_str("Container started"),
            Told::Failed { error } => write!(f, "Error: {error}"),
            Told::Stopping { container } => write!(f, "Stopping container {container}"),
            Told::Killing { why } => f.write_str(why),
            Told::ResizeRestart { container } => {
                write!(f, "Container {container} resize requires restart")
            }
            Told::PostStartFailedKill => f.write_str("FailedPostStartHook"),
            Told::RestartBackOff { container, pod, namespace, uid } => write!(
                f,
                "Back-off restarting failed container {container} in pod {pod}_{namespace}({uid})"
            ),
            Told::Unhealthy { probe, output } => write!(f, "{probe} probe failed: {output}"),
            Told::ProbeErrored { probe, error } => {
                write!(f, "{probe} probe errored and resulted in unknown state: {error}")
            }
            Told::ProbeWarning { probe, output } => write!(f, "{probe} probe warning: {output}"),
            Told::PostStartFailed => f.write_str("PostStartHook failed"),
            Told::PreStopFailed => f.write_str("PreStopHook failed"),
            Told::ExceededGracePeriod => {
                f.write_str("Container runtime did not kill the pod within specified grace period.")
            }
            Told::SandboxFailed { error } => write!(f, "Failed to create pod sandbox: {error}"),
            Told::SandboxChanged => {
                f.write_str("Pod sandbox changed, it will be killed and re-created.")
            }
            Told::SandboxStatusFailed { error } => {
                write!(f, "Unable to get pod sandbox status: {error}")
            }
            Told::NetworkNotReady { error } => write!(f, "network is not ready: {error}"),
            Told::MountFailed { volume, error } => {
                write!(f, "MountVolume.SetUp failed for volume \"{volume}\" : {error}")
            }
            Told::VolumesMissing { unmounted, unattached, failed, error } => write!(
                f,
                "Unable to attach or mount volumes: unmounted volumes=[{}], unattached volumes=[{}], \
                 failed to process volumes=[{}]: {error}",
                unmounted.join(" "),
                unattached.join(" "),
                failed.join(" "),
            ),
            Told::ClaimsFailed { error } => {
                write!(f, "Failed to prepare dynamic resources: {error}")
            }
            Told::KillFailed { error } => write!(f, "error killing pod: {error}"),
            Told::SyncFailed { error } => write!(f, "error determining status: {error}"),
            Told::DeadlineExceeded => {
                f.write_str("Pod was active on the node longer than the specified deadline")
            }
            Told::Preempted => f.write_str("Preempted in order to admit critical pod"),
            Told::Resize { step, pod } => write!(f, "Pod resize {}: {pod}", step.word()),
            Told::Placed { placement } => f.write_str(placement),
            Told::NotPlaced { evidence, pod, namespace } => write!(
                f,
                "{evidence}. What would let it in: berth explain pod {pod} -n {namespace}"
            ),
            Told::MemoryAffinityNotGuaranteed { container, warning } => {
                write!(f, "container {container}: {warning}")
            }
            Told::PlacementRepaired { container, found, fight, suspects } => {
                write!(f, "Container {container} had {found} and was put back")?;
                if let Some(fight) = fight {
                    let Fight { times, checks } = fight;
                    write!(f, ", {times} times within {checks} checks: somebody else sets it")?;
                }
                match (suspects.is_empty(), fight) {
                    (false, _) => write!(f, "; suspected: {}", suspects.join(", ")),
                    (true, Some(_)) => f.write_str("; no kubelet or other agent was found running"),
                    (true, None) => Ok(()),
                }
            }
            Told::PlacementNotInForce { container, found, why, ignored, suspects } => {
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
            Told::Starting => f.write_str("Starting kubelet."),
            Told::Node { name, is } => write!(f, "Node {name} status is now: {}", is.reason()),
            Told::Rebooted { name, boot_id } => {
                write!(f, "Node {name} has been rebooted, boot id: {boot_id}")
            }
            Told::AllocatableEnforced => f.write_str("Updated Node Allocatable limit across pods"),
            Told::AllocatableNotEnforced { error } => {
                write!(f, "Failed to update Node Allocatable Limits {error}")
            }
            Told::InvalidDiskCapacity { filesystem } => {
                write!(f, "invalid capacity 0 on {filesystem} filesystem")
            }
            Told::ReclaimsFor { resource } => write!(f, "Attempting to reclaim {resource}"),
            // Upstream says this in its log alone.
            Told::StaticPodFailed { file, error } => {
                write!(f, "Could not process manifest file {file}: {error}")
            }
            Told::CgroupV1 => f.write_str(CGROUP_V1),
            Told::Evicted { message }
            | Told::Rejected { message, .. }
            | Told::DnsLimits { message }
            | Told::MissingClusterDns { message }
            | Told::NodeShutdown { message } => f.write_str(message),
            Told::ContainerGcFailed { error }
            | Told::ImageGcFailed { error }
            | Told::FreeDiskSpaceFailed { error } => f.write_str(error),
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

/// A duration in whole milliseconds, as Go writes it: `843ms`, `1.5s`, `1m0.25s`.
pub(super) fn in_millis(duration: Duration) -> String {
    let millis = duration.as_millis();
    if millis == 0 {
        return "0s".to_owned();
    }
    if millis < 1000 {
        return format!("{millis}ms");
    }
    let (minutes, rest) = (millis / 60_000, millis % 60_000);
    let fraction = format!(".{:03}", rest % 1000);
    let seconds =
        format!("{}{}s", rest / 1000, fraction.trim_end_matches('0').trim_end_matches('.'));
    match (minutes / 60, minutes % 60) {
        (0, 0) => seconds,
        (0, minutes) => format!("{minutes}m{seconds}"),
        (hours, minutes) => format!("{hours}h{minutes}m{seconds}"),
    }
}
