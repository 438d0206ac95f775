use objects::timestamp::Timestamp;

use super::*;
use crate::observed::{ContainerState, RuntimeContainer, RuntimeSandbox};

fn pod(value: Value) -> Pod {
    serde_json::from_value(value).unwrap()
}

/// A container `name=state`: `run`, `made`, `unknown`, or an exit code; attempts after a `#`.
fn observed(text: &str) -> RuntimePod {
    let containers = text.split(' ').filter(|word| !word.is_empty()).map(|word| {
        let (name, state) = word.split_once('=').unwrap();
        let (state, attempt) = state.split_once('#').unwrap_or((state, "0"));
        let attempt: u32 = attempt.parse().unwrap();
        let exit_code: i32 = state.parse().unwrap_or(0);
        RuntimeContainer {
            id: format!("{name}{attempt}"),
            sandbox: "s".to_owned(),
            name: name.to_owned(),
            attempt,
            state: match state {
                "run" => ContainerState::Running,
                "made" => ContainerState::Created,
                "unknown" => ContainerState::Unknown,
                _ => ContainerState::Exited,
            },
            created_at: i64::from(attempt),
            started_at: 1_000_000_000,
            finished_at: 2_000_000_000,
            exit_code,
            reason: if exit_code == 0 { "Completed" } else { "Error" }.to_owned(),
            message: String::new(),
            image: "i".to_owned(),
            image_id: "sha256:1".to_owned(),
            hash: String::new(),
        }
    });
    let sandbox = RuntimeSandbox {
        id: "s".to_owned(),
        attempt: 0,
        ready: true,
        created_at: 0,
        ips: Vec::new(),
        host_network: true,
    };
    RuntimePod::new(vec![sandbox], containers.collect())
}

fn inputs() -> StatusInputs {
    StatusInputs { runtime: "containerd".to_owned(), ..StatusInputs::default() }
}

#[test]
fn the_phase_follows_policy_rules_and_progress() {
    // Containers `i` (init), `s` (sidecar) and `a`, `b`.
    let rule = json!([{"action": "Restart", "exitCodes": {"operator": "In", "values": [42]}}]);
    let check = |policy: &str, text: &str, finished: bool, phase: Phase| {
        let pod = pod(json!({"spec": {
            "restartPolicy": policy, "hostNetwork": true,
            "initContainers": [{"name": "i"}, {"name": "s", "restartPolicy": "Always"}],
            "containers": [{"name": "a"},
                {"name": "b", "restartPolicy": policy, "restartPolicyRules": rule}],
        }}));
        let status = generate(&pod, &observed(text), &StatusInputs { finished, ..inputs() });
        assert_eq!(status.phase, phase, "{policy}: {text}, finished {finished}");
    };
    check("Always", "", false, Phase::Pending);
    check("Always", "i=run", false, Phase::Pending);
    check("Always", "i=1", false, Phase::Pending);
    check("Never", "i=1", false, Phase::Failed);
    check("OnFailure", "i=1", false, Phase::Pending);
    check("Always", "i=0 s=run", false, Phase::Pending);
    check("Always", "i=0 s=run a=run", false, Phase::Pending);
    check("Always", "i=0 s=run a=run b=made", false, Phase::Pending);
    check("Always", "i=0 s=run a=run b=run", false, Phase::Running);
    check("Always", "i=0 s=1 a=run b=run", false, Phase::Running);
    check("Always", "i=0 s=1 a=1 b=0", false, Phase::Running);
    check("Always", "i=0 s=1 a=1 b=0", true, Phase::Failed);
    check("Always", "i=0 s=1 a=0 b=0", true, Phase::Succeeded);
    // A running sidecar keeps the phase, however the other containers exited.
    check("Never", "i=0 s=run a=0 b=0", false, Phase::Running);
    check("Never", "i=0 s=0 a=0 b=0", false, Phase::Succeeded);
    check("Never", "i=0 s=0 a=0 b=1", false, Phase::Failed);
    check("Never", "i=0 s=0 a=0 b=42", false, Phase::Running);
    check("Never", "i=0 s=0 a=0 b=42", true, Phase::Failed);
    check("OnFailure", "i=0 s=0 a=0 b=1", false, Phase::Running);
    check("OnFailure", "i=0 s=0 a=0 b=0", false, Phase::Succeeded);
}

fn running_before() -> Value {
    json!({"phase": "Running", "containerStatuses": [
        {"name": "a", "state": {"running": {}}, "restartCount": 2, "containerID": "containerd://x"}
    ]})
}

#[test]
fn a_vanished_container_is_lost_and_keeps_the_phase() {
    let check = |deleting: bool, restarts: u32| {
        let mut value = json!({
            "metadata": {}, "spec": {"containers": [{"name": "a"}], "hostNetwork": true},
            "status": running_before(),
        });
        if deleting {
            value["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        }
        let status = generate(&pod(value), &observed(""), &inputs());
        let container = &status.container_statuses[0];
        let end = container.last_state.terminated.as_ref().unwrap();
        assert_eq!((end.reason.as_str(), end.exit_code), ("ContainerStatusUnknown", 137));
        assert!(end.message.ends_with("The container used to be Running"), "{}", end.message);
        assert_eq!((container.restart_count, status.phase), (restarts, Phase::Running));
    };
    check(false, 3);
    check(true, 2);
}

#[test]
fn a_container_of_unknown_state_that_ran_has_ended() {
    let value = json!({"spec": {"containers": [{"name": "a"}]}, "status": running_before()});
    let status = generate(&pod(value), &observed("a=unknown#2"), &inputs());
    let container = &status.container_statuses[0];
    assert_eq!(container.state.terminated.as_ref().unwrap().exit_code, 137);
    assert_eq!(container.restart_count, 3);
}

#[test]
fn only_containers_that_are_to_start_wait_for_a_reason() {
    let back_off = Waiting { reason: "CrashLoopBackOff".to_owned(), message: "m".to_owned() };
    let check = |policy: &str, exit: &str, waits: bool| {
        let value = json!({"spec": {"containers": [{"name": "a"}], "restartPolicy": policy}});
        let waiting = BTreeMap::from([("a".to_owned(), back_off.clone())]);
        let status = generate(&pod(value), &observed(exit), &StatusInputs { waiting, ..inputs() });
        let container = &status.container_statuses[0];
        let last = container.last_state.terminated.as_ref();
        assert_eq!(container.state.waiting.as_ref(), waits.then_some(&back_off), "{policy} {exit}");
        assert_eq!(last.map(|end| end.container_id.as_str()), waits.then_some("containerd://a0"));
    };
    check("Always", "a=0", true);
    check("OnFailure", "a=1", true);
    check("OnFailure", "a=0", false);
    check("Never", "a=1", false);
}

#[test]
fn containers_are_ready_only_after_their_probes_succeed() {
    let probed = json!({"name": "a", "readinessProbe": {}, "startupProbe": {}});
    let check = |startup: Option<bool>, readiness: Option<bool>, wanted: (bool, bool)| {
        let value = json!({"spec": {"containers": [probed]}});
        let answers = |answer: Option<bool>| answer.map(|a| ("a0".to_owned(), a)).into_iter();
        let inputs = StatusInputs {
            startup: answers(startup).collect(),
            readiness: answers(readiness).collect(),
            ..inputs()
        };
        let status = generate(&pod(value), &observed("a=run"), &inputs);
        let container = &status.container_statuses[0];
        assert_eq!((container.started.unwrap(), container.ready), wanted);
    };
    check(None, None, (false, false));
    check(None, Some(true), (false, false));
    check(Some(true), None, (true, false));
    check(Some(true), Some(false), (true, false));
    check(Some(true), Some(true), (true, true));
}

#[test]
fn a_readiness_gate_holds_until_its_condition_is_true() {
    let check = |conditions: Value, message: &str| {
        let pod = pod(json!({
            "spec": {"containers": [{"name": "a"}], "readinessGates": [{"conditionType": "g/x"}]},
            "status": {"conditions": conditions},
        }));
        let status = generate(&pod, &observed("a=run"), &inputs());
        let ready = status.condition("Ready").unwrap();
        assert_eq!((ready.message.as_str(), ready.is_true()), (message, message.is_empty()));
    };
    check(json!([]), "corresponding condition of pod readiness gate \"g/x\" does not exist.");
    check(
        json!([{"type": "g/x", "status": "False"}]),
        "the status of pod readiness gate \"g/x\" is not \"True\", but False",
    );
    check(json!([{"type": "g/x", "status": "True"}]), "");
}

fn at(seconds: i64) -> Timestamp {
    Timestamp::new(seconds, 0)
}

#[test]
fn merging_keeps_fields_of_other_writers_and_transition_times() {
    let mut pod = pod(json!({
        "metadata": {"generation": 3},
        "spec": {"containers": [{"name": "a"}], "hostNetwork": true},
        "status": {
            "conditions": [{"type": "example.com/x", "status": "True", "lastTransitionTime": "t"}],
            "nominatedNodeName": "n",
        },
    }));
    let first = merge(&pod, generate(&pod, &observed(""), &inputs()), true, at(100)).unwrap();
    assert_eq!(first.start_time.as_deref(), Some("1970-01-01T00:01:40Z"));
    assert_eq!(first.other["nominatedNodeName"], "n");
    pod.status = serde_json::to_value(&first).unwrap();
    let second = merge(&pod, generate(&pod, &observed("a=run"), &inputs()), true, at(200)).unwrap();
    let changed = |kind: &str| second.condition(kind).unwrap().last_transition_time.clone();
    assert_eq!(changed("example.com/x").as_deref(), Some("t"));
    assert_eq!(changed("Initialized"), first.start_time);
    assert_eq!(changed("Ready").as_deref(), Some("1970-01-01T00:03:20Z"));
    assert_eq!(second.start_time, first.start_time);
    assert_eq!(second.condition("Ready").unwrap().observed_generation, 3);
}

#[test]
fn a_pod_that_is_over_stays_over() {
    let check = |old: Value, text: &str, phase: Phase, reason: &str| {
        let pod = pod(json!({
            "spec": {"containers": [{"name": "a"}], "restartPolicy": "OnFailure"}, "status": old,
        }));
        let status = generate(&pod, &observed(text), &inputs());
        let status = merge(&pod, status, false, at(1)).unwrap();
        assert_eq!((status.phase, status.reason.as_str()), (phase, reason));
        assert!(!status.condition("Ready").unwrap().is_true());
    };
    let failed = json!({"phase": "Failed", "reason": "Evicted", "message": "m"});
    check(failed, "a=run", Phase::Failed, "Evicted");
    check(json!({"phase": "Succeeded"}), "a=1", Phase::Succeeded, "");
}

#[test]
fn the_last_phase_waits_until_nothing_can_run() {
    let mut pod = pod(json!({
        "spec": {"containers": [{"name": "a"}], "restartPolicy": "Never"},
        "status": {"phase": "Running"},
    }));
    let inputs = StatusInputs {
        termination: Some(TerminationCause {
            reason: "Preempting".to_owned(),
            message: "m".to_owned(),
            disruption: Some("d".to_owned()),
        }),
        ..inputs()
    };
    let new = generate(&pod, &observed("a=run"), &inputs);
    let held = merge(&pod, new, true, at(1)).unwrap();
    assert_eq!((held.phase, held.reason.as_str()), (Phase::Running, ""));
    assert!(held.condition("DisruptionTarget").is_none());
    assert_eq!(held.condition("Ready").unwrap().reason, "PodFailed");
    pod.status = serde_json::to_value(&held).unwrap();
    // The same for a container that succeeded.
    let new = generate(&pod, &observed("a=0"), &inputs);
    let last = merge(&pod, new, false, at(2)).unwrap();
    assert_eq!((last.phase, last.reason.as_str()), (Phase::Failed, "Preempting"));
    let target = last.condition("DisruptionTarget").unwrap();
    assert_eq!((target.reason.as_str(), target.message.as_str()), ("TerminationByKubelet", "d"));
}

#[test]
fn the_end_of_a_container_is_not_taken_back() {
    let check = |policy: &str, exit_code: i32, refused: bool| {
        let pod = pod(json!({
            "spec": {"containers": [{"name": "a"}], "restartPolicy": policy},
            "status": {"phase": "Running", "containerStatuses": [
                {"name": "a", "state": {"terminated": {"exitCode": exit_code}}},
            ]},
        }));
        let result = merge(&pod, generate(&pod, &observed("a=run#1"), &inputs()), true, at(1));
        assert_eq!(result.is_err(), refused, "{policy} {exit_code}");
    };
    check("Always", 0, false);
    check("OnFailure", 1, false);
    check("OnFailure", 0, true);
    check("Never", 1, true);
}

#[test]
fn messages_are_kept_to_what_fits() {
    let lines: String = (0..100).map(|n| format!("{n}\n")).collect();
    let long_line = "é".repeat(3000);
    let check = |policy: &str, exit: i32, file: Option<&str>, log: &str, wanted: &str| {
        let message = compose("", policy, exit, TerminationOutput { file, log });
        assert_eq!(message, wanted);
    };
    let fall_back = "FallbackToLogsOnError";
    check("File", 1, None, "log", "");
    check("File", 1, Some("file"), "log", "file");
    check(fall_back, 0, Some(""), "log", "");
    check(fall_back, 1, Some(""), "log\n", "log\n");
    check(fall_back, 1, Some("file"), "log", "file");
    let last: String = (20..100).map(|n| format!("{n}\n")).collect();
    check(fall_back, 1, None, &lines, &last);
    check(fall_back, 1, None, &long_line, &"é".repeat(1024));
    check("File", 1, Some(&long_line), "", &"é".repeat(2048));
    assert_eq!(compose("r", "File", 1, TerminationOutput { file: Some("f"), log: "" }), "r: f");
    // All containers share one budget.
    let pod = pod(json!({"spec": {"containers": [
        {"name": "a"}, {"name": "b"}, {"name": "c"}, {"name": "d"},
    ]}}));
    let mut had = observed("a=1 b=0 c=0 d=0");
    had.containers.iter_mut().for_each(|container| container.message = "é".repeat(2000));
    let status = merge(&pod, generate(&pod, &had, &inputs()), false, at(1)).unwrap();
    let kept = status.container_statuses.iter().map(|s| s.state.terminated.as_ref().unwrap());
    assert!(kept.into_iter().all(|end| end.message.len() == 12 * 1024 / 4));
}

#[test]
fn a_host_network_pod_gets_all_addresses_of_the_node() {
    let check = |before: &[&str], host: &[&str], wanted: &[&str]| {
        let ips: Vec<Value> = before.iter().map(|ip| json!({"ip": ip})).collect();
        let pod = pod(json!({
            "spec": {"containers": [], "hostNetwork": true}, "status": {"podIPs": ips},
        }));
        let host_ips = host.iter().map(|ip| (*ip).to_owned()).collect();
        let status = generate(&pod, &observed(""), &StatusInputs { host_ips, ..inputs() });
        let got: Vec<&str> = status.pod_ips.iter().map(|ip| ip.ip.as_str()).collect();
        assert_eq!(got, wanted);
        assert_eq!(status.pod_ip, wanted.first().copied().unwrap_or_default());
    };
    check(&[], &[], &[]);
    check(&[], &["1.2.3.4"], &["1.2.3.4"]);
    check(&["1.2.3.9"], &["1.2.3.4"], &["1.2.3.9"]);
    check(&["1.2.3.4"], &["1.2.3.4", "fd::1"], &["1.2.3.4", "fd::1"]);
    check(&["1.2.3.4"], &["1.2.3.4", "1.2.3.5"], &["1.2.3.4"]);
}

#[test]
fn effective_classes_are_reported_and_other_fields_kept() {
    let pod = pod(json!({
        "spec": {"containers": [{"name": "a"}, {"name": "b"}]}, "status": {"nominatedNodeName": "n"},
    }));
    let class = |name: &str, class: &str| QosResourceRequest {
        name: name.to_owned(),
        class: class.to_owned(),
    };
    let inputs = StatusInputs {
        pod_classes: vec![class("example.com/net", "fast")],
        classes: BTreeMap::from([("a".to_owned(), vec![class("k8s.io/rdt", "gold")])]),
        ..inputs()
    };
    let status = generate(&pod, &observed("a=run b=run"), &inputs);
    let status = serde_json::to_value(merge(&pod, status, true, at(1)).unwrap()).unwrap();
    assert_eq!(status["qosResources"], json!([{"name": "example.com/net", "class": "fast"}]));
    let containers = &status["containerStatuses"];
    assert_eq!(containers[0]["qosResources"], json!([{"name": "k8s.io/rdt", "class": "gold"}]));
    assert!(containers[1].get("qosResources").is_none());
    assert_eq!(status["nominatedNodeName"], "n");
}

#[test]
fn a_reported_exit_stays_when_the_pod_terminates() {
    let end =
        json!({"terminated": {"reason": "Error", "exitCode": 1, "containerID": "containerd://a0"}});
    let value = json!({
        "metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"containers": [{"name": "a"}]},
        "status": {"phase": "Running", "containerStatuses": [{
            "name": "a", "restartCount": 0, "containerID": "containerd://a0",
            "state": {"waiting": {"reason": "CrashLoopBackOff"}}, "lastState": end,
        }]},
    });
    let status = generate(&pod(value), &observed("a=1"), &inputs());
    let container = &status.container_statuses[0];
    assert_eq!(container.state.terminated.as_ref().unwrap().container_id, "containerd://a0");
    let last = container.last_state.terminated.as_ref().unwrap();
    assert_eq!(last.container_id, "containerd://a0");
}

#[test]
fn a_pod_that_is_over_is_not_being_resized() {
    let outcome =
        ResizeOutcome { reason: "Error".to_owned(), message: String::new(), generation: 2 };
    let check = |seen_now: &str, expected: bool| {
        let value = json!({"spec": {"containers": [{"name": "a"}], "restartPolicy": "Never"}});
        let resize = Resize { in_progress: Some(outcome.clone()), ..Resize::default() };
        let inputs = StatusInputs { resize, ..inputs() };
        let status = generate(&pod(value), &observed(seen_now), &inputs);
        assert_eq!(status.condition("PodResizeInProgress").is_some(), expected, "{seen_now}");
    };
    check("a=run", true);
    check("a=0", false);
}
