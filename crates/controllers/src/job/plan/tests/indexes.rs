//! Indexed jobs.

use super::*;

fn spec(completions: i64, parallelism: i64) -> Value {
    json!({
        "completions": completions, "parallelism": parallelism, "completionMode": "Indexed",
        "backoffLimit": 1000,
    })
}

#[test]
fn every_index_gets_a_pod() {
    let pods = [of_index("a", Phase::Succeeded, 1), of_index("b", Phase::Running, 0)];
    let plan = plan(&job(&spec(4, 2), &json!({})), &pods, at(200));
    assert_eq!(plan.create, [NewPod { index: Some(2), failures: None }]);
    assert_eq!(plan.status["completedIndexes"], "1");
    // The index keeps a pod from being counted again.
    assert_eq!(plan.status["succeeded"], 1);
    assert_eq!(plan.status["uncountedTerminatedPods"], json!({}));
}

#[test]
fn index_counts_once_whatever_the_number_of_its_pods() {
    let pods = [of_index("a", Phase::Succeeded, 1), of_index("b", Phase::Succeeded, 1)];
    let plan = plan(&job(&spec(2, 1), &json!({"completedIndexes": "1"})), &pods, at(200));
    assert_eq!((&plan.status["succeeded"], kinds(&plan.status).len()), (&json!(1), 0));
    assert_eq!(names(&plan.release), ["a", "b"]);
}

#[test]
fn pods_without_index_and_duplicates_are_deleted() {
    let early = |uid: &str, index| {
        made(uid, Phase::Running, true, |pod| {
            (pod.completion_index, pod.node, pod.ready) = (Some(index), "n".into(), Some(50));
        })
    };
    let pods = [
        of_index("double", Phase::Pending, 0),
        early("first", 0),
        of_index("second", Phase::Running, 1),
        of_index("beyond", Phase::Running, 2),
        pod("bare", Phase::Running, true),
    ];
    let plan = plan(&job(&spec(2, 9), &json!({})), &pods, at(200));
    let mut gone = names(&plan.delete);
    gone.sort_unstable();
    assert_eq!(gone, ["bare", "beyond", "double"]);
    assert_eq!(plan.status["active"], 2);
}

#[test]
fn failed_pod_without_index_is_released_uncounted() {
    let pods = [of_index("beyond", Phase::Failed, 7), of_index("fine", Phase::Running, 0)];
    let plan = plan(&job(&spec(1, 1), &json!({})), &pods, at(200));
    assert_eq!(names(&plan.release), ["beyond"]);
    assert_eq!(plan.status["uncountedTerminatedPods"], json!({}));
}

#[test]
fn indexed_job_grows_and_shrinks() {
    let status = json!({"completedIndexes": "0,2-4", "succeeded": 4});
    let grown = plan(&job(&spec(7, 7), &status), &[], at(200));
    assert_eq!(new_indexes(&grown), [1, 5, 6]);
    let pods = [of_index("one", Phase::Running, 1), of_index("far", Phase::Running, 5)];
    let shrunk = plan(&job(&spec(3, 3), &status), &pods, at(200));
    assert_eq!(names(&shrunk.delete), ["far"]);
    assert_eq!(shrunk.status["completedIndexes"], "0,2");
    assert_eq!(shrunk.status["succeeded"], 2);
    let least = plan(&job(&spec(1, 1), &status), &pods, at(200));
    assert_eq!(last(&least.status).1, "CompletionsReached");
}

fn per_index(limit: i64, extra: &Value) -> Value {
    let mut spec = spec(3, 3);
    spec["backoffLimitPerIndex"] = limit.into();
    for (key, value) in extra.as_object().into_iter().flatten() {
        spec[key] = value.clone();
    }
    spec
}

fn failed(uid: &str, index: i64, counted: i64) -> Arc<Pod> {
    made(uid, Phase::Failed, true, |pod| {
        pod.completion_index = Some(index);
        pod.index_failures.counted = counted;
    })
}

fn running(index: i64) -> Arc<Pod> {
    of_index(&format!("r{index}"), Phase::Running, index)
}

#[test]
fn each_index_has_its_own_backoff() {
    let spec = per_index(2, &json!({}));
    let pods = [failed("a", 0, 0), failed("b", 1, 1), running(2)];
    let early = plan(&job(&spec, &json!({})), &pods, at(105));
    assert_eq!((early.create.len(), early.again), (0, Some(5)));
    // Their replacements inherit both failure counts, so neither is released or counted.
    assert_eq!((early.release.len(), &early.status["uncountedTerminatedPods"]), (0, &json!({})));
    assert_eq!(early.status["failedIndexes"], "");
    let later = plan(&job(&spec, &early.status), &pods, at(112));
    let failures = IndexFailures { counted: 1, ignored: 0 };
    assert_eq!(later.create, [NewPod { index: Some(0), failures: Some(failures) }]);
    assert_eq!(later.again, Some(8));
    let followed = [pods[0].clone(), running(0), pods[1].clone(), running(2)];
    let counted = plan(&job(&spec, &later.status), &followed, at(113));
    assert_eq!(names(&counted.release), ["a"]);
    assert_eq!(counted.status["uncountedTerminatedPods"], json!({"failed": ["a"]}));
    let first = plan(&job(&spec, &json!({})), &[], at(100));
    let none = Some(IndexFailures::default());
    assert!(first.create.len() == 3 && first.create.iter().all(|new| new.failures == none));
}

#[test]
fn replacement_follows_the_last_failed_pod_of_an_index() {
    let pods = [failed("a", 0, 1), failed("b", 0, 0), running(1), running(2)];
    let plan = plan(&job(&per_index(5, &json!({})), &json!({})), &pods, at(900));
    assert_eq!(names(&plan.release), ["b"]);
    assert_eq!(plan.create[0].failures, Some(IndexFailures { counted: 2, ignored: 0 }));
}

#[test]
fn index_over_its_limit_fails_and_others_continue() {
    let spec = per_index(1, &json!({}));
    let pods = [failed("a", 0, 1), running(1), running(2)];
    let first = plan(&job(&spec, &json!({})), &pods, at(900));
    assert_eq!((&first.status["failedIndexes"], first.create.len()), (&json!("0"), 0));
    assert_eq!((names(&first.release), kinds(&first.status).len()), (vec!["a"], 0));
    let rest = [of_index("r1", Phase::Succeeded, 1), of_index("r2", Phase::Succeeded, 2)];
    let second = plan(&job(&spec, &first.status), &rest, at(901));
    assert_eq!(last(&second.status), ("FailureTarget", "FailedIndexes", "Job has failed indexes"));
    let rest: Vec<_> = rest.iter().map(released).collect();
    let third = plan(&job(&spec, &second.status), &rest, at(902));
    assert_eq!(last(&third.status).0, "Failed");
    assert_eq!(third.events[0], JobEvent::warning("FailedIndexes", "Job has failed indexes"));
    let field = |name: &str| third.status[name].clone();
    assert_eq!((field("completedIndexes"), field("failedIndexes")), (json!("1,2"), json!("0")));
    assert_eq!((field("succeeded"), field("failed")), (json!(2), json!(1)));
}

#[test]
fn too_many_failed_indexes_end_a_job_early() {
    let spec = per_index(0, &json!({"maxFailedIndexes": 1}));
    let one = plan(&job(&spec, &json!({})), &[failed("a", 0, 0), running(1)], at(900));
    assert_eq!((&one.status["failedIndexes"], kinds(&one.status).len()), (&json!("0"), 0));
    let pods = [failed("b", 1, 0), running(2)];
    let two = plan(&job(&spec, &one.status), &pods, at(901));
    let message = "Job has exceeded the specified maximal number of failed indexes";
    assert_eq!(last(&two.status), ("FailureTarget", "MaxFailedIndexesExceeded", message));
    assert_eq!((names(&two.delete), &two.status["failedIndexes"]), (vec!["r2"], &json!("0,1")));
}

#[test]
fn result_of_an_index_is_final() {
    let spec = per_index(0, &json!({}));
    let status = json!({"completedIndexes": "0", "failedIndexes": "1"});
    let pods = [failed("late", 0, 0), of_index("lucky", Phase::Succeeded, 1), running(2)];
    let plan = plan(&job(&spec, &status), &pods, at(900));
    assert_eq!(plan.status["completedIndexes"], "0");
    assert_eq!(plan.status["failedIndexes"], "1");
    assert_eq!(names(&plan.release), ["late", "lucky"]);
}

#[test]
fn policy_ignores_failures_or_fails_the_index() {
    let policy = json!({"podFailurePolicy": {"rules": [
        {"action": "Ignore", "onExitCodes": {"operator": "In", "values": [1]}},
        {"action": "FailIndex", "onExitCodes": {"operator": "In", "values": [2]}},
    ]}});
    let spec = per_index(1, &policy);
    let exit = |uid: &str, index, counted, code| {
        let exit = Exit { container: "c".to_owned(), code };
        let pod = failed(uid, index, counted);
        Arc::new(Pod { exits: vec![exit], ..(*pod).clone() })
    };
    let pods = [exit("ignored", 0, 1, 1), exit("fatal", 1, 0, 2), exit("counted", 2, 0, 3)];
    let plan = plan(&job(&spec, &json!({})), &pods, at(900));
    assert_eq!(plan.status["failedIndexes"], "1");
    let failures = |index, counted, ignored| NewPod {
        index: Some(index),
        failures: Some(IndexFailures { counted, ignored }),
    };
    assert_eq!(plan.create, [failures(0, 1, 1), failures(2, 1, 0)]);
    assert_eq!(plan.status["uncountedTerminatedPods"], json!({"failed": ["fatal"]}));
}
