//! Deliberate differences from the recorded kubelet: [`split_deliberate`], and the right answer
//! where the recorded one is wrong: [`wrong_answer`]. docs/reference/differences.md gives the
//! reason of each.

use serde_json::Value;

use super::super::Difference;
use super::node_checks::MIGRATED;
use super::replay::ReplayedPod;
use super::testbed::ReplayContext;
use super::{endpoints, metrics};

/// A deliberate difference: the start of the line's id, the start of the path (or, after a `*`, a
/// part of it), a part of our value, and the reason.
#[rustfmt::skip] // One a line.
const ON_PURPOSE: &[(&str, &str, &str, &str)] = &[
    ("start-refused-policy-changed", "start", MIGRATED, "a changed policy is migrated"),
    ("image-pull-record", "", "no file", "no record of pulled images is kept"),
    ("metrics-", "metric ", metrics::NOT_SERVED, "metrics of upstream's own components"),
    ("state-files-", "dra_manager_state", "no file", "dynamic resources are not served"),
    ("directories-", "/var/lib/kubelet/dra_manager_state", "nothing", "dynamic resources are not served"),
    ("directories-", "/var/lib/kubelet/device-plugins", "nothing", "device plugins are not served"),
    ("directories-", "/var/lib/kubelet/plugins", "nothing", "plugins are not served"),
    ("directories-", "/var/lib/kubelet/volumeplugins", "nothing", "plugins are not served"),
    ("directories-", "/var/lib/kubelet/checkpoints", "nothing", "checkpoints of containers are not served"),
    ("directories-", "/var/lib/kubelet/pods-api", "nothing", "the Pods API is not served"),
    ("directories-", "/var/lib/kubelet/image_manager", "nothing", "no record of pulled images is kept"),
    ("directories-", "/var/lib/kubelet/pod-resources/kubelet.sock", "\"600\"", "the mode of a socket shows that only its owner can connect"),
    ("configz", "kubeletconfig.", endpoints::NOT_REPORTED, "fields without effect are omitted"),
    ("stats-summary", "*.psi", "null", "unmeasured pressure is omitted"),
    ("stats-summary", "*.io", "null", "unmeasured pressure is omitted"),
];

/// Separates mistakes from deliberate differences with their reason.
pub(super) fn split_deliberate(
    id: &str,
    differences: Vec<Difference>,
) -> (Vec<Difference>, Vec<(&'static str, Difference)>) {
    let (mut mistakes, mut on_purpose) = (Vec::new(), Vec::new());
    for difference in differences {
        let row = ON_PURPOSE.iter().find(|(line, place, ours, _)| {
            id.starts_with(line) && is_at(place, &difference.what) && difference.got.contains(ours)
        });
        match row {
            Some((_, _, _, reason)) => on_purpose.push((*reason, difference)),
            None => mistakes.push(difference),
        }
    }
    (mistakes, on_purpose)
}

fn is_at(place: &str, what: &str) -> bool {
    match place.strip_prefix('*') {
        Some(inside) => what.contains(inside),
        None => what.starts_with(place),
    }
}

/// Returns the reason why a pod differs deliberately as a whole, if it does.
pub(super) fn of_pod_as_a_whole(
    context: &ReplayContext,
    line: &Value,
    replayed: &ReplayedPod,
) -> Option<&'static str> {
    if is_evicted_in_its_turn(context, line, replayed) {
        return Some("running pods are not admitted again");
    }
    mirror_was_deleted(line).then_some("a deleted mirror pod is created again at once")
}

/// Reports whether the recorded mirror of a static pod was deleted while the pod ran. Upstream
/// recreates it at the next sync, within a minute; ours recreates it at once.
fn mirror_was_deleted(line: &Value) -> bool {
    let steps = line["steps"].as_array().into_iter().flatten();
    let mut actions = steps.filter_map(|step| step["action"].as_str());
    actions.any(|action| action.starts_with("delete mirror pod"))
}

/// Reports whether the recorded kubelet rejected a running pod and ours evicted it instead. A
/// starting kubelet admits running pods again and ends those that do not fit or that its pressure
/// excludes. Ours keeps them, and evicts only as many as necessary, one at a time.
fn is_evicted_in_its_turn(context: &ReplayContext, line: &Value, replayed: &ReplayedPod) -> bool {
    let ours = context.trace.whole(&replayed.namespace, &replayed.name);
    was_turned_away(line) && ours.iter().any(|pod| was_evicted(&pod["status"]))
}

fn was_turned_away(line: &Value) -> bool {
    let list = |key: &str| line[key].as_array().into_iter().flatten();
    let ran = list("snapshots").any(|seen| seen["status"]["phase"] == "Running");
    let refused = |event: &Value| {
        let (reason, message) = (event["reason"].as_str(), event["message"].as_str());
        reason.is_some_and(|reason| reason.starts_with("OutOf"))
            || message.is_some_and(|message| message.starts_with("The node had condition: "))
    };
    ran && list("events").any(refused)
}

fn was_evicted(status: &Value) -> bool {
    let disrupted = |condition: &Value| {
        condition["type"] == "DisruptionTarget" && condition["status"] == "True"
    };
    status["phase"] == "Failed"
        && status["reason"] == "Evicted"
        && status["conditions"].as_array().is_some_and(|all| all.iter().any(disrupted))
}

/// Returns the difference from the right answer for a line that records an upstream defect.
pub(super) fn wrong_answer(
    context: &ReplayContext,
    line: &Value,
    replayed: &ReplayedPod,
) -> Option<Difference> {
    let whole = context.trace.whole(&replayed.namespace, &replayed.name);
    let status = whole.last().map(|pod| pod["status"].clone()).unwrap_or_default();
    is_wrong(line["quirk"].as_str().unwrap_or_default(), &status)
}

fn is_wrong(quirk: &str, status: &Value) -> Option<Difference> {
    let containers = status["containerStatuses"].as_array().map(Vec::as_slice).unwrap_or_default();
    let lost = |c: &Value| c["state"]["terminated"]["reason"] == "ContainerStatusUnknown";
    let (expected, right) = match quirk {
        "evicted-exit-0" => (
            "Failed with the reason Evicted or Preempting",
            status["phase"] == "Failed"
                && matches!(status["reason"].as_str(), Some("Evicted" | "Preempting")),
        ),
        "evicted-container-lost" => (
            "Failed with the reason Evicted, and containers with their own exit",
            status["phase"] == "Failed"
                && status["reason"] == "Evicted"
                && !containers.iter().any(lost),
        ),
        _ => ("a right answer that is known here", false),
    };
    (!right).then(|| Difference {
        what: "the right answer".to_owned(),
        expected: expected.to_owned(),
        got: status.to_string(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn evicted_pod_has_failed_whatever_its_containers_report() {
        let check = |phase: &str, reason: &str, right: bool| {
            let status = json!({"phase": phase, "reason": reason});
            assert_eq!(is_wrong("evicted-exit-0", &status).is_none(), right, "{phase} {reason}");
        };
        check("Failed", "Evicted", true);
        check("Failed", "Preempting", true);
        check("Succeeded", "", false);
        check("Failed", "Error", false);
    }

    #[test]
    fn running_pod_rejected_at_restart_is_recognized() {
        let line = |phase: &str, reason: &str, message: &str| {
            json!({
                "snapshots": [{"status": {"phase": phase}}],
                "events": [{"reason": reason, "message": message}],
            })
        };
        let pressure = "The node had condition: [DiskPressure]. ";
        assert!(was_turned_away(&line("Running", "Evicted", pressure)));
        assert!(was_turned_away(&line("Running", "OutOfmemory", "Node didn't have enough")));
        assert!(!was_turned_away(&line("Pending", "Evicted", pressure)));
        assert!(!was_turned_away(&line("Running", "Evicted", "The node was low on resource")));
        let mut status = json!({"phase": "Failed", "reason": "Evicted", "conditions": []});
        assert!(!was_evicted(&status));
        status["conditions"] = json!([{"type": "DisruptionTarget", "status": "True"}]);
        assert!(was_evicted(&status));
    }

    #[test]
    fn a_mirror_is_deleted_by_a_step_of_its_own() {
        let line = |action: &str| json!({"steps": [{"t": 0.0}, {"t": 1.0, "action": action}]});
        assert!(mirror_was_deleted(&line("delete mirror pod with grace 0")));
        assert!(!mirror_was_deleted(&line("remove static pod file")));
    }

    #[test]
    fn a_container_that_ended_is_not_lost() {
        let status = |reason: &str| {
            let ended = json!({"state": {"terminated": {"reason": reason}}});
            json!({"phase": "Failed", "reason": "Evicted", "containerStatuses": [ended]})
        };
        assert!(is_wrong("evicted-container-lost", &status("Completed")).is_none());
        assert!(is_wrong("evicted-container-lost", &status("ContainerStatusUnknown")).is_some());
        assert!(is_wrong("another", &status("Completed")).is_some());
    }
}
