//! Policies for failure, success and replacement.

use super::*;

fn exit(uid: &str, code: i32) -> Arc<Pod> {
    let exit = Exit { container: "main".to_owned(), code };
    made(uid, Phase::Failed, true, |pod| pod.exits = vec![exit])
}

fn with_rules(rules: &Value) -> Value {
    json!({
        "parallelism": 2, "completions": 2, "backoffLimit": 1, "podReplacementPolicy": "Failed",
        "podFailurePolicy": {"rules": rules},
    })
}

#[test]
fn rule_action_decides_how_a_failure_counts() {
    let rule = |action: &str| json!([{"action": action, "onExitCodes": {"operator": "In", "values": [42]}}]);
    for (action, code, reason, counted) in [
        ("Count", 42, "BackoffLimitExceeded", json!({"failed": ["a", "b"]})),
        ("Ignore", 42, "", json!({})),
        ("Ignore", 7, "BackoffLimitExceeded", json!({"failed": ["a", "b"]})),
        ("FailJob", 42, "PodFailurePolicy", json!({"failed": ["a", "b"]})),
        ("FailJob", 7, "BackoffLimitExceeded", json!({"failed": ["a", "b"]})),
    ] {
        let pods = [exit("a", code), exit("b", code)];
        let plan = plan(&job(&with_rules(&rule(action)), &json!({})), &pods, at(900));
        assert_eq!(last(&plan.status).1, reason, "{action} {code}");
        assert_eq!(plan.status["uncountedTerminatedPods"], counted, "{action} {code}");
        assert_eq!(names(&plan.release), ["a", "b"], "{action} {code}");
    }
}

#[test]
fn fail_job_rule_fails_the_job_after_its_pods() {
    let rules = json!([{"action": "FailJob", "onExitCodes": {"operator": "In", "values": [42]}}]);
    let spec = with_rules(&rules);
    let pods = [exit("a", 42), pod("b", Phase::Running, true)];
    let first = plan(&job(&spec, &json!({})), &pods, at(200));
    let why =
        "Container main for pod a/a failed with exit code 42 matching FailJob rule at index 0";
    assert_eq!(last(&first.status), ("FailureTarget", "PodFailurePolicy", why));
    assert_eq!((names(&first.delete), first.create.len()), (vec!["b"], 0));
    let going = [released(&pods[0]), released(&deleted(&pods[1]))];
    let second = plan(&job(&spec, &first.status), &going, at(201));
    assert_eq!((kinds(&second.status).len(), &second.status["terminating"]), (1, &json!(1)));
    let third = plan(&job(&spec, &second.status), &going[..1], at(202));
    assert_eq!(last(&third.status), ("Failed", "PodFailurePolicy", why));
    assert_eq!(third.events, [JobEvent::warning("PodFailurePolicy", why)]);
    assert_eq!(third.status["failed"], 2);
}

#[test]
fn ignored_disruption_is_not_counted() {
    let rules = json!([{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}]);
    let evicted = made("a", Phase::Failed, true, |pod| {
        pod.conditions = vec![("DisruptionTarget".to_owned(), "True".to_owned())];
    });
    let pods = [evicted, pod("b", Phase::Running, true)];
    let plan = plan(&job(&with_rules(&rules), &json!({})), &pods, at(200));
    assert_eq!((names(&plan.release), plan.create.len()), (vec!["a"], 1));
    assert_eq!(plan.status["uncountedTerminatedPods"], json!({}));
}

#[test]
fn replacement_policy_decides_when_terminating_pods_are_replaced() {
    let check = |extra: Value, counted: Value, created: usize| {
        let mut spec = json!({"parallelism": 2, "completions": 2, "backoffLimit": 6});
        for (key, value) in extra.as_object().into_iter().flatten() {
            spec[key] = value.clone();
        }
        let going = [deleted(&pod("a", Phase::Running, true)), pod("b", Phase::Running, true)];
        let plan = plan(&job(&spec, &json!({})), &going, at(200));
        assert_eq!(plan.create.len(), created, "{spec}");
        assert_eq!(plan.status["uncountedTerminatedPods"], counted, "{spec}");
        assert_eq!(plan.status["terminating"], 1, "{spec}");
    };
    check(json!({}), json!({"failed": ["a"]}), 1);
    let at_once = json!({"podReplacementPolicy": "TerminatingOrFailed"});
    check(at_once, json!({"failed": ["a"]}), 1);
    check(json!({"podReplacementPolicy": "Failed"}), json!({}), 0);
    check(json!({"podFailurePolicy": {"rules": []}}), json!({}), 0);
}

#[test]
fn terminating_pod_keeps_its_index_under_policy_failed() {
    let check = |policy: &str, phase: Phase, expected: &[i64]| {
        let spec = json!({
            "parallelism": 3, "completions": 3, "completionMode": "Indexed", "backoffLimit": 6,
            "podReplacementPolicy": policy,
        });
        let going = [deleted(&of_index("a", phase, 1)), of_index("b", Phase::Running, 0)];
        let plan = plan(&job(&spec, &json!({})), &going, at(900));
        assert_eq!(new_indexes(&plan), expected, "{policy} {phase:?}");
    };
    check("TerminatingOrFailed", Phase::Running, &[1, 2]);
    check("Failed", Phase::Running, &[2]);
    check("Failed", Phase::Failed, &[1, 2]);
    check("Failed", Phase::Succeeded, &[2]);
}

#[test]
fn success_rule_completes_the_job_early() {
    let spec = json!({
        "parallelism": 3, "completions": 3, "completionMode": "Indexed", "backoffLimit": 6,
        "successPolicy": {"rules": [{"succeededIndexes": "2"}, {"succeededCount": 2}]},
    });
    let pods = [
        of_index("a", Phase::Succeeded, 0),
        of_index("b", Phase::Succeeded, 1),
        of_index("c", Phase::Running, 2),
    ];
    assert!(kinds(&plan(&job(&spec, &json!({})), &pods[..1], at(200)).status).is_empty());
    let first = plan(&job(&spec, &json!({})), &pods, at(200));
    let why = "Matched rules at index 1";
    assert_eq!(last(&first.status), ("SuccessCriteriaMet", "SuccessPolicy", why));
    assert_eq!((names(&first.delete), names(&first.release)), (vec!["c"], vec!["a", "b", "c"]));
    // A pod that is no longer needed has not failed.
    assert_eq!(first.status["uncountedTerminatedPods"], json!({}));
    let going = [released(&deleted(&pods[2]))];
    let second = plan(&job(&spec, &first.status), &going, at(201));
    assert_eq!(kinds(&second.status), ["SuccessCriteriaMet"]);
    let third = plan(&job(&spec, &second.status), &[], at(202));
    assert_eq!(last(&third.status), ("Complete", "SuccessPolicy", why));
    let field = |name: &str| third.status[name].clone();
    assert_eq!((field("succeeded"), field("failed")), (json!(2), json!(null)));
    assert_eq!(third.events, [JobEvent::normal("Completed", "Job completed")]);
}

#[test]
fn decided_outcome_does_not_change() {
    let spec = json!({"parallelism": 2, "completions": 2, "backoffLimit": 0});
    let failed = plan(&job(&spec, &json!({})), &[pod("a", Phase::Failed, true)], at(200));
    let done = [
        pod("b", Phase::Succeeded, true),
        pod("c", Phase::Succeeded, true),
        pod("d", Phase::Running, true),
    ];
    let later = plan(&job(&spec, &failed.status), &done, at(201));
    assert_eq!((kinds(&later.status), names(&later.delete)), (vec!["FailureTarget"], vec!["d"]));
    let met = plan(&job(&spec, &json!({})), &done, at(200));
    let later = plan(&job(&spec, &met.status), &[pod("a", Phase::Failed, true)], at(201));
    assert_eq!(kinds(&later.status), ["SuccessCriteriaMet"]);
}
