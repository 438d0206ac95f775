//! Jobs, step by step.

use super::*;

fn at(seconds: i64) -> Timestamp {
    Timestamp::new(seconds, 0)
}

fn job(spec: &Value, status: &Value) -> Value {
    json!({"metadata": {"name": "j"}, "spec": spec, "status": status})
}

fn pod(uid: &str, phase: Phase, tracked: bool) -> Arc<Pod> {
    Arc::new(Pod {
        name: uid.to_owned(),
        uid: uid.to_owned(),
        phase,
        finalizers: tracked.then(|| TRACKING.to_owned()).into_iter().collect(),
        finished: matches!(phase, Phase::Succeeded | Phase::Failed).then_some(100),
        ..Pod::default()
    })
}

fn kinds(status: &Value) -> Vec<&str> {
    let conditions = status["conditions"].as_array().map(Vec::as_slice).unwrap_or_default();
    conditions.iter().map(|c| text(&c["type"])).collect()
}

#[test]
fn as_many_pods_run_as_may_and_are_needed() {
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
fn a_pod_that_ends_is_counted_once_and_the_job_ends_after_it() {
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
    assert_eq!(second.status["completionTime"], "1970-01-01T00:03:21Z");
    assert_eq!(second.events[0].1, "Completed");
    let third = plan(&job(&spec, &second.status), &released, at(300));
    assert_eq!((third.status, third.create.len()), (second.status, 0));
}

#[test]
fn too_many_failures_end_a_job_and_its_other_pods() {
    let spec = json!({"parallelism": 2, "completions": 2, "backoffLimit": 0});
    let pods = [pod("bad", Phase::Failed, true), pod("other", Phase::Running, true)];
    let first = plan(&job(&spec, &json!({})), &pods, at(200));
    assert_eq!(kinds(&first.status), ["FailureTarget"]);
    assert_eq!(first.delete[0].name, "other");
    assert!(first.create.is_empty());
    let gone = Arc::new(Pod { deleting: Some(1), ..(*pods[1]).clone() });
    let second = plan(&job(&spec, &first.status), &[gone], at(201));
    assert_eq!(kinds(&second.status), ["FailureTarget"], "the other pod is still ending");
    let third = plan(&job(&spec, &second.status), &[], at(202));
    assert_eq!(kinds(&third.status), ["FailureTarget", "Failed"]);
    assert_eq!((&third.status["failed"], third.events[0].1), (&json!(2), "BackoffLimitExceeded"));
}

#[test]
fn a_failed_pod_is_followed_by_another_after_a_while() {
    let spec = json!({"parallelism": 1, "completions": 1, "backoffLimit": 3});
    let failed = [pod("a", Phase::Failed, false)];
    let job = job(&spec, &json!({"failed": 1, "startTime": "1970-01-01T00:00:00Z"}));
    let early = plan(&job, &failed, at(105));
    assert_eq!((early.create.len(), early.again), (0, Some(5)));
    assert_eq!(plan(&job, &failed, at(110)).create.len(), 1);
}

#[test]
fn a_deadline_ends_a_job() {
    let spec = json!({"parallelism": 1, "completions": 1, "activeDeadlineSeconds": 10});
    let status = json!({"startTime": "1970-01-01T00:01:40Z"});
    let running = [pod("a", Phase::Running, true)];
    assert_eq!(plan(&job(&spec, &status), &running, at(105)).again, Some(5));
    let late = plan(&job(&spec, &status), &running, at(110));
    assert_eq!(late.status["conditions"][0]["reason"], "DeadlineExceeded");
    assert_eq!(late.delete.len(), 1);
}

#[test]
fn every_index_gets_its_pod() {
    let spec = json!({"parallelism": 2, "completions": 4, "completionMode": "Indexed"});
    let mut done = (*pod("a", Phase::Succeeded, true)).clone();
    done.completion_index = Some(1);
    let mut busy = (*pod("b", Phase::Running, true)).clone();
    busy.completion_index = Some(0);
    let pods = [Arc::new(done), Arc::new(busy)];
    let plan = plan(&job(&spec, &json!({})), &pods, at(200));
    assert_eq!(plan.create, [Some(2)]);
    assert_eq!(plan.status["completedIndexes"], "1");
}

#[test]
fn a_suspended_job_has_no_pods_and_no_start() {
    let spec = json!({"parallelism": 1, "completions": 1, "suspend": true});
    let status = json!({"startTime": "1970-01-01T00:00:00Z"});
    let first = plan(&job(&spec, &status), &[pod("a", Phase::Running, true)], at(200));
    assert_eq!((first.delete.len(), first.status.get("startTime")), (1, None));
    assert_eq!((kinds(&first.status), first.events[0].1), (vec!["Suspended"], "Suspended"));
    let spec = json!({"parallelism": 1, "completions": 1, "suspend": false});
    let again = plan(&job(&spec, &first.status), &[], at(300));
    assert_eq!((again.create.len(), again.events[0].1), (1, "Resumed"));
}
