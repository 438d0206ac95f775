//! Recorded runtime requests (`cri.jsonl`), compared with ours field by field: [`check`].
//!
//! The pod of a line is that of `pods.jsonl` with the same id, or is replayed separately: created,
//! bound, and deleted when all recorded containers have started. Requests of one method for one
//! container are compared in order. The order of service variables and the time of clean-up are not
//! compared.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::Result;
use serde_json::{Map, Value};

use super::super::{Difference, Outcome};
use super::calls::{Call, Calls};
use super::replay::{self, ReplayedPod};
use super::testbed::{ReplayContext, TIMEOUT};
use super::{NOT_SHARED, not_served, outcome, text};

/// Timeout of the first probe. Recorded periods are a few seconds.
const FIRST_PROBE: Duration = Duration::from_secs(15);

/// The compared calls.
const COMPARED: &[&str] = &[
    "RunPodSandbox",
    "CreateContainer",
    "StartContainer",
    "StopContainer",
    "UpdateContainerResources",
    "UpdatePodSandboxResources",
    "ExecSync",
    "PullImage",
];

/// Returns the reason why a line cannot be replayed, if any. `of_pods` is true if `pods.jsonl` has
/// its pod.
pub(super) fn skip_reason(line: &Value, of_pods: bool, network: bool) -> Option<&'static str> {
    match text(line, "kind") {
        "pod" | "deadlines" => {}
        "cadence" | "start" => {
            return Some("how often and when the runtime is looked at is our own");
        }
        _ => return Some("a kind of line that is not known"),
    }
    let manifest = &line["manifest"];
    if of_pods || text(line, "kind") != "pod" {
        return None;
    }
    let calls = line["calls"].as_array().map(Vec::as_slice).unwrap_or_default();
    if calls.iter().any(|call| text(call, "call").starts_with("Update")) {
        return Some("the recording lacks the resize of the pod");
    }
    let names: BTreeSet<&str> = ["containers", "initContainers"]
        .iter()
        .flat_map(|list| manifest["spec"][*list].as_array().into_iter().flatten())
        .map(|container| text(container, "name"))
        .collect();
    if calls.iter().any(|call| call["container"].as_str().is_some_and(|name| !names.contains(name)))
    {
        return Some("the recording does not have a container that was added later");
    }
    if manifest["metadata"]["namespace"] == "lives2" {
        return Some("the recording lacks the node");
    }
    if !network && manifest["spec"]["hostNetwork"] != true {
        return Some("the runtime has no network for pods");
    }
    None
}

/// Replays a line separately.
pub(super) async fn replay(context: &ReplayContext, recorded: &Value) -> Result<ReplayedPod> {
    let line = without_times(recorded);
    let replayed = replay::create_and_bind(context, &line).await?;
    let started = || {
        let Some((pod, _)) = context.trace.last(&replayed.namespace, &replayed.name) else {
            return false;
        };
        let uid = text(&pod["metadata"], "uid").to_owned();
        Calls::read(&context.passage.since(0))
            .is_ok_and(|calls| has_made_recorded_calls(recorded, &pod, calls.for_pod(&uid)))
    };
    replay::wait(context, TIMEOUT, Duration::from_secs(1), started).await;
    if has_exec_probe(&line) {
        // The first probe runs at a random time within the period.
        let was_probed = || {
            let last = context.trace.last(&replayed.namespace, &replayed.name);
            let uid = last.map(|(pod, _)| text(&pod["metadata"], "uid").to_owned());
            let calls = Calls::read(&context.passage.since(0));
            calls.ok().zip(uid).is_some_and(|(calls, uid)| {
                calls.for_pod(&uid).iter().any(|call| call.method == "ExecSync")
            })
        };
        let looking = async {
            while !was_probed() {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        };
        let _ = tokio::time::timeout(FIRST_PROBE, looking).await;
    }
    super::action::act(context, &replayed, &serde_json::json!({"delete": {}})).await?;
    let gone =
        || context.trace.last(&replayed.namespace, &replayed.name).is_some_and(|(_, gone)| gone);
    replay::wait(context, TIMEOUT, Duration::ZERO, gone).await;
    Ok(replayed)
}

/// Turns the line into one of `pods.jsonl` without recorded states. A namespace that the manifest
/// lacks comes from the requests.
fn without_times(line: &Value) -> Value {
    let mut manifest = line["manifest"].clone();
    let calls = line["calls"].as_array().into_iter().flatten();
    let mut namespaces = calls.map(|call| &call["request"]["config"]["metadata"]["namespace"]);
    if manifest["metadata"]["namespace"].is_null()
        && let Some(namespace) = namespaces.find(|namespace| namespace.is_string())
    {
        manifest["metadata"]["namespace"] = namespace.clone();
    }
    serde_json::json!({"id": line["id"], "manifest": manifest, "objects": line["objects"]})
}

/// Reports whether a container has an exec probe.
fn has_exec_probe(line: &Value) -> bool {
    let spec = &line["manifest"]["spec"];
    let lists = ["containers", "initContainers"];
    let mut containers = lists.iter().flat_map(|list| spec[*list].as_array().into_iter().flatten());
    containers.any(|container| {
        let kinds = ["livenessProbe", "readinessProbe", "startupProbe"];
        kinds.iter().any(|kind| container[*kind]["exec"].is_object())
    })
}

/// Reports whether the recorded calls were made for a pod: everything was pulled and started, and
/// failing starts were tried at least once.
fn has_made_recorded_calls(recorded: &Value, pod: &Value, ours: &[Call]) -> bool {
    let theirs = recorded["calls"].as_array().map(Vec::as_slice).unwrap_or_default();
    let wanted = |method: &str| theirs.iter().filter(|call| text(call, "call") == method).count();
    let done = |method: &str| ours.iter().filter(|call| call.method == method).count();
    let runs = !pod["status"]["containerStatuses"][0]["state"]["waiting"].is_object();
    ["StartContainer", "PullImage"].iter().all(|method| done(method) >= wanted(method))
        && done("CreateContainer") >= wanted("CreateContainer").min(1)
        && (runs || wanted("StartContainer") == 0)
}

/// Compares the requests of a line.
pub(super) fn check(
    context: &ReplayContext,
    line: &Value,
    replayed: &Result<ReplayedPod>,
    calls: &Calls,
) -> Outcome {
    let kind = format!("cri/{}", text(line, "kind"));
    let replayed = match replayed {
        Ok(replayed) => replayed,
        Err(error) => {
            let (what, expected) = ("the pod".to_owned(), "to be replayed".to_owned());
            let got = format!("{error:#}");
            return outcome(kind, line, vec![Difference { what, expected, got }]);
        }
    };
    let Some((pod, _)) = context.trace.last(&replayed.namespace, &replayed.name) else {
        return not_served(kind, text(line, "id"), "there was no pod");
    };
    if context.has_event_containing(replayed, NOT_SHARED.0) {
        return not_served(kind, text(line, "id"), NOT_SHARED.1);
    }
    let uid = text(&pod["metadata"], "uid");
    let mut template = context.template();
    let _ = template.text("<UID>", uid);
    let mut found = Vec::new();
    let mut ours: BTreeMap<(&str, &str), Vec<&Call>> = BTreeMap::new();
    for call in calls.for_pod(uid) {
        let container = call.container.as_deref().unwrap_or_default();
        ours.entry((call.method, container)).or_default().push(call);
    }
    let mut met: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    for recorded in line["calls"].as_array().into_iter().flatten() {
        let key = (text(recorded, "call"), text(recorded, "container"));
        if !COMPARED.contains(&key.0) {
            continue;
        }
        // Upstream changes limits and requests one after the other with an update in between; only
        // the last update is compared.
        if key.0.starts_with("Update") && !is_last(line, recorded) {
            continue;
        }
        let index = met.entry(key).or_default();
        let place =
            format!("{}{}{} {}", key.0, if key.1.is_empty() { "" } else { " " }, key.1, index);
        let call = ours.get(&key).and_then(|calls| match key.0.starts_with("Update") {
            true => calls.last(),
            false => calls.get(*index),
        });
        let is_again = is_another_try(recorded, *index);
        *index += 1;
        let Some(call) = call else {
            if is_again {
                continue;
            }
            let (expected, got) = (recorded["request"].to_string(), "no such call".to_owned());
            found.push(Difference { what: place, expected, got });
            continue;
        };
        let own = own_variables(&line["manifest"], key.1);
        let wanted = in_order_of(prepared(&recorded["request"], &own), &own);
        let mut got = prepared(&call.request, &own);
        without_absent_services(&wanted, &mut got);
        template.value(&wanted, &got, &place, &mut found);
        if let Some(response) = &call.response {
            // Binds the ids in it, which later requests use.
            template.value(&recorded["response"], response, &place, &mut Vec::new());
        }
        if let Some(deadline) = recorded["deadline_s"].as_u64()
            && call.deadline.is_some_and(|ours| ours.abs_diff(deadline) > 1)
        {
            let got = format!("{:?}", call.deadline);
            let what = format!("{place} deadline");
            found.push(Difference { what, expected: deadline.to_string(), got });
        }
    }
    outcome(kind, line, found)
}

/// Reports whether a call is a retry; the number of retries depends on the time.
fn is_another_try(recorded: &Value, index: usize) -> bool {
    index > 0 && recorded["error"].is_object()
}

/// Reports whether no other call of the same method for the same container follows.
fn is_last(line: &Value, call: &Value) -> bool {
    let calls = line["calls"].as_array().map(Vec::as_slice).unwrap_or_default();
    let same =
        |other: &&Value| other["call"] == call["call"] && other["container"] == call["container"];
    calls.iter().rfind(same).is_some_and(|last| std::ptr::eq(last, call))
}

/// Sorts the container's own variables in the recorded request as in the manifest: upstream sends
/// them in random order, ours keeps the manifest's.
fn in_order_of(mut request: Value, own: &[String]) -> Value {
    if let Some(list) = request.pointer_mut("/config/envs/own").and_then(Value::as_array_mut) {
        list.sort_by_key(|variable| own.iter().position(|name| name == text(variable, "key")));
    }
    request
}

/// Removes variables of the recorded Service if it did not exist yet.
fn without_absent_services(wanted: &Value, got: &mut Value) {
    const SERVICE_PREFIX: &str = "MY_DB_";
    let services_in =
        |request: &Value| request.pointer("/config/envs/services").cloned().unwrap_or_default();
    let there = |services: &Value| {
        services
            .as_object()
            .is_some_and(|all| all.keys().any(|name| name.starts_with(SERVICE_PREFIX)))
    };
    if !there(&services_in(wanted))
        && let Some(ours) = got.pointer_mut("/config/envs/services").and_then(Value::as_object_mut)
    {
        ours.retain(|name, _| !name.starts_with(SERVICE_PREFIX));
    }
}

/// Returns the names of a container's own variables, in order.
fn own_variables(manifest: &Value, container: &str) -> Vec<String> {
    ["containers", "initContainers"]
        .iter()
        .flat_map(|list| manifest["spec"][*list].as_array().into_iter().flatten())
        .filter(|found| text(found, "name") == container)
        .flat_map(|found| found["env"].as_array().into_iter().flatten())
        .map(|variable| text(variable, "name").to_owned())
        .collect()
}

/// Sorts service variables by name, after the container's own.
fn prepared(request: &Value, own: &[String]) -> Value {
    let mut request = request.clone();
    let Some(envs) = request.pointer_mut("/config/envs").and_then(Value::as_array_mut) else {
        return request;
    };
    let all = std::mem::take(envs);
    let (first, rest): (Vec<Value>, Vec<Value>) =
        all.into_iter().partition(|variable| own.iter().any(|name| name == text(variable, "key")));
    let named = rest
        .into_iter()
        .map(|variable| (text(&variable, "key").to_owned(), variable["value"].clone()));
    let services: Map<String, Value> = named.collect();
    request["config"]["envs"] = serde_json::json!({"own": first, "services": services});
    request
}

/// Compares the deadlines of calls by method.
pub(super) fn deadlines(line: &Value, passed: &[cri::RecordedCall]) -> Outcome {
    let mut found = Vec::new();
    for (method, seconds) in line["seconds"].as_object().into_iter().flatten() {
        let recorded: BTreeSet<u64> =
            seconds.as_array().into_iter().flatten().filter_map(Value::as_u64).collect();
        // Methods with several deadlines depend on the request.
        let [wanted] = recorded.iter().copied().collect::<Vec<_>>()[..] else { continue };
        let ours: BTreeSet<u64> = passed
            .iter()
            .filter(|passed| passed.method == method.as_str() && method != "ExecSync")
            .filter_map(|passed| passed.deadline)
            .map(|deadline| deadline.as_secs())
            .collect();
        if ours.iter().any(|ours| ours.abs_diff(wanted) > 1) {
            let (expected, got) = (wanted.to_string(), format!("{ours:?}"));
            found.push(Difference { what: method.clone(), expected, got });
        }
    }
    outcome("cri/deadlines".to_owned(), line, found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn own_variables_are_ordered_and_service_variables_are_not() {
        let manifest = json!({"spec": {"containers": [
            {"name": "c", "env": [{"name": "B"}, {"name": "A"}]},
        ]}});
        let own = own_variables(&manifest, "c");
        let with_envs = |keys: &[&str]| {
            let envs: Vec<Value> =
                keys.iter().map(|key| json!({"key": key, "value": "v"})).collect();
            prepared(&json!({"config": {"envs": envs}}), &own)
        };
        assert_eq!(
            with_envs(&["B", "A", "X_PORT", "Y_PORT"]),
            with_envs(&["B", "Y_PORT", "X_PORT", "A"])
        );
        assert_ne!(with_envs(&["B", "A"]), with_envs(&["A", "B"]));
        assert_eq!(in_order_of(with_envs(&["A", "B"]), &own), with_envs(&["B", "A"]));
    }

    #[test]
    fn pod_is_deleted_after_its_recorded_calls() {
        let calls = |methods: &[&'static str]| -> Vec<Call> {
            let call = |method: &&'static str| Call {
                method,
                container: None,
                attempt: None,
                request: Value::Null,
                response: None,
                error: None,
                deadline: None,
            };
            methods.iter().map(call).collect()
        };
        let check = |recorded: &[&str], ours: &[&'static str], state: Value, expected: bool| {
            let recorded: Vec<Value> = recorded.iter().map(|call| json!({"call": call})).collect();
            let pod = json!({"status": {"containerStatuses": [{"state": state}]}});
            let come = has_made_recorded_calls(&json!({"calls": recorded}), &pod, &calls(ours));
            assert_eq!(come, expected, "{recorded:?} {ours:?}");
        };
        let (running, waiting) = (json!({"running": {}}), json!({"waiting": {}}));
        let started = ["CreateContainer", "StartContainer"];
        check(&started, &started, running.clone(), true);
        check(&started, &started, waiting.clone(), false);
        check(&started, &["CreateContainer"], running, false);
        let pulls = ["PullImage", "PullImage"];
        check(&pulls, &["PullImage"], waiting.clone(), false);
        check(&pulls, &pulls, waiting.clone(), true);
        check(&["CreateContainer", "CreateContainer"], &["CreateContainer"], waiting, true);
    }

    #[test]
    fn number_of_retries_is_not_compared() {
        let failed = json!({"call": "PullImage", "error": {"code": "UNKNOWN"}});
        assert!(!is_another_try(&failed, 0) && is_another_try(&failed, 1));
        assert!(!is_another_try(&json!({"call": "CreateContainer"}), 1));
    }

    #[test]
    fn only_exec_probes_are_awaited() {
        let exec = json!({"exec": {"command": ["true"]}});
        let line = |container: Value| json!({"manifest": {"spec": {"containers": [container]}}});
        assert!(has_exec_probe(&line(json!({"name": "c", "readinessProbe": exec}))));
        assert!(!has_exec_probe(&line(json!({"name": "c", "lifecycle": {"preStop": exec}}))));
        assert!(!has_exec_probe(&line(json!({"name": "c", "readinessProbe": {"tcpSocket": {}}}))));
    }

    #[test]
    fn lines_without_recorded_data_are_not_served() {
        let check = |line: Value, expected: bool| {
            assert_eq!(skip_reason(&line, false, true).is_some(), expected, "{line}");
        };
        let spec = json!({"containers": [{"name": "c"}]});
        let call = |name: &str| json!([{"call": name, "container": "c"}]);
        let line =
            |calls: Value| json!({"kind": "pod", "manifest": {"spec": spec}, "calls": calls});
        check(line(call("CreateContainer")), false);
        check(line(call("UpdateContainerResources")), true);
        check(line(json!([{"call": "CreateContainer", "container": "dbg"}])), true);
        check(json!({"kind": "cadence"}), true);
    }
}
