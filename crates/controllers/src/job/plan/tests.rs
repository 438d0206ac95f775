//! Jobs, step by step.

use super::*;
use crate::job::TRACKING;
use crate::observe::{Exit, IndexFailures, Phase};

mod indexes;
mod policies;
mod walks;

fn at(seconds: i64) -> Timestamp {
    Timestamp::new(seconds, 0)
}

fn job(spec: &Value, status: &Value) -> Value {
    json!({"metadata": {"name": "j"}, "spec": spec, "status": status})
}

/// Returns a pod; a finished one ended at 100.
fn made(uid: &str, phase: Phase, tracked: bool, change: impl FnOnce(&mut Pod)) -> Arc<Pod> {
    let mut pod = Pod {
        namespace: "a".to_owned(),
        name: uid.to_owned(),
        uid: uid.to_owned(),
        phase,
        finalizers: tracked.then(|| TRACKING.to_owned()).into_iter().collect(),
        ended: 100,
        ..Pod::default()
    };
    change(&mut pod);
    Arc::new(pod)
}

fn pod(uid: &str, phase: Phase, tracked: bool) -> Arc<Pod> {
    made(uid, phase, tracked, |_| {})
}

fn of_index(uid: &str, phase: Phase, index: i64) -> Arc<Pod> {
    made(uid, phase, true, |pod| pod.completion_index = Some(index))
}

fn deleted(pod: &Arc<Pod>) -> Arc<Pod> {
    Arc::new(Pod { deleting: Some(130), ..(**pod).clone() })
}

fn released(pod: &Arc<Pod>) -> Arc<Pod> {
    Arc::new(Pod { finalizers: Vec::new(), ..(**pod).clone() })
}

fn kinds(status: &Value) -> Vec<&str> {
    let conditions = status["conditions"].as_array().map(Vec::as_slice).unwrap_or_default();
    conditions.iter().map(|c| text(&c["type"])).collect()
}

/// Returns type, reason and message of the newest condition.
fn last(status: &Value) -> (&str, &str, &str) {
    let conditions = status["conditions"].as_array().map(Vec::as_slice).unwrap_or_default();
    let newest = conditions.last().unwrap_or(&Value::Null);
    (text(&newest["type"]), text(&newest["reason"]), text(&newest["message"]))
}

fn names(pods: &[Arc<Pod>]) -> Vec<&str> {
    pods.iter().map(|pod| pod.name.as_str()).collect()
}

fn new_indexes(plan: &Plan) -> Vec<i64> {
    plan.create.iter().filter_map(|new| new.index).collect()
}

#[test]
fn parallelism_and_missing_completions_limit_running_pods() {
    let check = |spec: Value, succeeded: i64, running: usize, expected: usize| {
        let pods: Vec<_> =
            (0..running).map(|i| pod(&i.to_string(), Phase::Running, true)).collect();
        let plan = plan(&job(&spec, &json!({"succeeded": succeeded})), &pods, at(200));
        assert_eq!(plan.create.len(), expected, "{spec} {succeeded} {running}");
    };
    check(json!({"parallelism": 1, "completions": 1}), 0, 0, 1);
    check(json!({"parallelism": 3, "completions": 5}), 0, 1, 2);
    check(json!({"parallelism": 3, "completions": 5}), 4, 0, 1);
    check(json!({"parallelism": 3}), 0, 0, 3);
    check(json!({"parallelism": 3}), 1, 1, 0);
    check(json!({"parallelism": 3, "suspend": true}), 0, 0, 0);
    check(json!({"parallelism": 0, "completions": 1}), 0, 0, 0);
}

#[test]
fn finished_pod_is_counted_once_before_the_job_completes() {
    let spec = json!({"parallelism": 1, "completions": 1, "backoffLimit": 0});
    let done = [pod("a", Phase::Succeeded, true)];
    let first = plan(&job(&spec, &json!({})), &done, at(200));
    assert_eq!(first.status["uncountedTerminatedPods"], json!({"succeeded": ["a"]}));
    assert_eq!((kinds(&first.status), first.release.len()), (vec!["SuccessCriteriaMet"], 1));
    let released = [pod("a", Phase::Succeeded, false)];
    let second = plan(&job(&spec, &first.status), &released, at(201));
    assert_eq!(second.status["succeeded"], 1);
    assert_eq!(second.status["uncountedTerminatedPods"], json!({}));
    assert_eq!(kinds(&second.status), ["SuccessCriteriaMet", "Complete"]);
    let message = "Reached expected number of succeeded pods";
    assert_eq!(last(&second.status), ("Complete", "CompletionsReached", message));
    assert_eq!(second.status["completionTime"], "1970-01-01T00:03:21Z");
    assert_eq!(second.events, [JobEvent::normal("Completed", "Job completed")]);
    assert!(is_finished(&job(&spec, &second.status)));
}

#[test]
fn too_many_failures_fail_the_job() {
    let spec = json!({"parallelism": 2, "completions": 2, "backoffLimit": 0});
    let pods = [pod("bad", Phase::Failed, true), pod("other", Phase::Running, true)];
    let first = plan(&job(&spec, &json!({})), &pods, at(200));
    assert_eq!(kinds(&first.status), ["FailureTarget"]);
    assert_eq!(names(&first.delete), ["other"]);
    assert_eq!(names(&first.release), ["bad", "other"]);
    // A pod that the job cuts short has failed.
    assert_eq!(first.status["uncountedTerminatedPods"], json!({"failed": ["bad", "other"]}));
    assert_eq!((&first.status["active"], &first.status["terminating"]), (&json!(null), &json!(1)));
    assert!(first.create.is_empty());
    let going = released(&deleted(&pods[1]));
    let second = plan(&job(&spec, &first.status), &[going], at(201));
    assert_eq!(kinds(&second.status), ["FailureTarget"], "the other pod is still ending");
    assert_eq!(second.status["failed"], 2);
    let third = plan(&job(&spec, &second.status), &[], at(202));
    assert_eq!(kinds(&third.status), ["FailureTarget", "Failed"]);
    let message = "Job has reached the specified backoff limit";
    assert_eq!(third.events, [JobEvent::warning("BackoffLimitExceeded", message)]);
    assert_eq!((&third.status["failed"], &third.status["terminating"]), (&json!(2), &json!(0)));
}

#[test]
fn container_restarts_count_against_the_backoff_limit() {
    let check = |policy: &str, limit: i64, restarts: &[(Phase, i64)], fails: bool| {
        let spec = json!({
            "parallelism": 3, "completions": 3, "backoffLimit": limit,
            "template": {"spec": {"restartPolicy": policy}},
        });
        let one = |(n, (phase, restarts)): (usize, &(Phase, i64))| {
            made(&n.to_string(), *phase, true, |pod| pod.all_restarts = *restarts)
        };
        let pods: Vec<_> = restarts.iter().enumerate().map(one).collect();
        let found = kinds(&plan(&job(&spec, &json!({})), &pods, at(200)).status).len();
        assert_eq!(found == 1, fails, "{policy} {limit} {restarts:?}");
    };
    check("OnFailure", 3, &[(Phase::Running, 2), (Phase::Pending, 1)], true);
    check("OnFailure", 4, &[(Phase::Running, 2), (Phase::Pending, 1)], false);
    check("OnFailure", 3, &[(Phase::Running, 2), (Phase::Succeeded, 1)], false);
    check("OnFailure", 0, &[(Phase::Running, 1)], true);
    check("OnFailure", 0, &[(Phase::Running, 0)], false);
    check("Never", 0, &[(Phase::Running, 9)], false);
}

#[test]
fn failed_pod_is_replaced_after_a_delay() {
    let spec = json!({"parallelism": 1, "completions": 2, "backoffLimit": 30});
    let status = json!({"startTime": "1970-01-01T00:00:00Z"});
    let ended =
        |phase: Phase, end: i64| made(&end.to_string(), phase, false, |pod| pod.ended = end);
    let check = |pods: &[Arc<Pod>], now: i64, wait: Option<i64>| {
        let plan = plan(&job(&spec, &status), pods, at(now));
        assert_eq!(plan.again, wait, "{now}");
        assert_eq!(plan.create.len(), usize::from(wait.is_none()), "{now}");
    };
    let failed: Vec<_> = (1..=9).map(|n| ended(Phase::Failed, n * 10)).collect();
    check(&failed[..1], 15, Some(5));
    check(&failed[..1], 20, None);
    check(&failed[..3], 31, Some(39));
    check(&failed[..3], 70, None);
    check(&failed, 100, Some(590));
    // A success resets the back-off.
    let mut mended = failed[..2].to_vec();
    mended.push(ended(Phase::Succeeded, 15));
    check(&mended, 21, Some(9));
    mended.push(ended(Phase::Succeeded, 20));
    check(&mended, 21, None);
}

#[test]
fn deadline_fails_the_job() {
    let spec = json!({"parallelism": 1, "completions": 1, "activeDeadlineSeconds": 10});
    let status = json!({"startTime": "1970-01-01T00:01:40Z"});
    let running = [pod("a", Phase::Running, true)];
    assert_eq!(plan(&job(&spec, &status), &running, at(105)).again, Some(5));
    let late = plan(&job(&spec, &status), &running, at(110));
    let message = "Job was active longer than specified deadline";
    assert_eq!(last(&late.status), ("FailureTarget", "DeadlineExceeded", message));
    assert_eq!(late.delete.len(), 1);
}

#[test]
fn scaling_down_deletes_the_least_ready_pods_without_failures() {
    let spec = json!({"parallelism": 1, "completions": 5, "backoffLimit": 0});
    let ready = |uid: &str| {
        made(uid, Phase::Running, true, |pod| (pod.node, pod.ready) = ("n".into(), Some(50)))
    };
    let pods = [ready("a"), pod("b", Phase::Pending, true), ready("c")];
    let first = plan(&job(&spec, &json!({})), &pods, at(200));
    assert_eq!(names(&first.delete), ["b", "a"]);
    assert_eq!(names(&first.release), ["b", "a"]);
    let count = |field: &str| first.status[field].as_i64();
    assert_eq!(
        (count("active"), count("ready"), count("terminating")),
        (Some(1), Some(1), Some(2))
    );
    let going = [released(&deleted(&pods[0])), pods[2].clone()];
    let second = plan(&job(&spec, &first.status), &going, at(201));
    assert_eq!((second.status.get("failed"), kinds(&second.status).len()), (None, 0));
}

#[test]
fn suspended_job_has_no_pods_and_no_start_time() {
    let spec = json!({"parallelism": 1, "completions": 1, "backoffLimit": 0, "suspend": true});
    let status = json!({"startTime": "1970-01-01T00:00:00Z"});
    let running = pod("a", Phase::Running, true);
    let first = plan(&job(&spec, &status), std::slice::from_ref(&running), at(200));
    assert_eq!((names(&first.delete), names(&first.release)), (vec!["a"], vec!["a"]));
    assert_eq!(first.status.get("startTime"), None);
    assert_eq!((kinds(&first.status), first.events[0].reason), (vec!["Suspended"], "Suspended"));
    let going = [released(&deleted(&running))];
    let waiting = plan(&job(&spec, &first.status), &going, at(250));
    assert_eq!((&waiting.status, waiting.events.len()), (&first.status, 0));
    let spec = json!({"parallelism": 1, "completions": 1, "backoffLimit": 0, "suspend": false});
    let again = plan(&job(&spec, &waiting.status), &[], at(300));
    assert_eq!((again.create.len(), again.events[0].reason), (1, "Resumed"));
    assert_eq!(again.status["startTime"], "1970-01-01T00:05:00Z");
    assert_eq!(again.status["conditions"][0]["status"], "False");
}

#[test]
fn suspended_job_with_zero_completions_is_complete() {
    let spec = json!({"parallelism": 1, "completions": 0, "suspend": true});
    let first = plan(&job(&spec, &json!({})), &[], at(200));
    assert_eq!(kinds(&first.status), ["SuccessCriteriaMet"]);
    let second = plan(&job(&spec, &first.status), &[], at(201));
    assert_eq!(kinds(&second.status), ["SuccessCriteriaMet", "Complete"]);
    assert_eq!(second.status["startTime"], "1970-01-01T00:03:20Z");
}

#[test]
fn one_success_lets_other_queue_workers_finish() {
    let spec = json!({"parallelism": 2, "backoffLimit": 6});
    let pods = [pod("a", Phase::Succeeded, true), pod("b", Phase::Running, true)];
    let first = plan(&job(&spec, &json!({})), &pods, at(200));
    assert_eq!((first.create.len(), first.delete.len(), kinds(&first.status).len()), (0, 0, 0));
    let second = plan(&job(&spec, &first.status), &[pod("b", Phase::Failed, true)], at(300));
    assert_eq!(last(&second.status).1, "CompletionsReached");
}

#[test]
fn excess_successes_are_reported() {
    let spec = json!({"parallelism": 2, "completions": 1});
    let pods = [pod("a", Phase::Succeeded, true), pod("b", Phase::Succeeded, true)];
    let first = plan(&job(&spec, &json!({})), &pods, at(200));
    let second = plan(&job(&spec, &first.status), &[], at(201));
    let reasons: Vec<_> = second.events.iter().map(|event| (event.warning, event.reason)).collect();
    assert_eq!(reasons, [(true, "TooManySucceededPods"), (false, "Completed")]);
}

#[test]
fn thousands_of_pods_are_counted_in_batches() {
    let spec = json!({"parallelism": 1, "completions": 2000});
    let mut pods: Vec<_> = (0..1200).map(|n| pod(&n.to_string(), Phase::Succeeded, true)).collect();
    let mut status = json!({});
    for counted in [0, 500, 1000] {
        let plan = plan(&job(&spec, &status), &pods, at(200));
        assert_eq!(plan.status["succeeded"].as_i64().unwrap_or(0), counted);
        let listed = plan.status["uncountedTerminatedPods"]["succeeded"].as_array().map(Vec::len);
        assert_eq!(listed, Some(plan.release.len()));
        status = plan.status;
        pods = pods
            .iter()
            .map(|p| if plan.release.contains(p) { released(p) } else { p.clone() })
            .collect();
    }
    assert_eq!(plan(&job(&spec, &status), &pods, at(200)).status["succeeded"], 1200);
}
