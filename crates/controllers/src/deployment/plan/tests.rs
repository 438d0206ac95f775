//! Rollouts, step by step.

use super::*;

fn at() -> Timestamp {
    Timestamp::new(0, 0)
}

fn deployment(replicas: i64, image: &str, surge: &Value, unavailable: &Value) -> Value {
    json!({
        "metadata": {"name": "d", "namespace": "a", "uid": "du", "generation": 1},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": "d"}},
            "revisionHistoryLimit": 1,
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {
                "maxSurge": surge, "maxUnavailable": unavailable,
            }},
            "template": {"metadata": {"labels": {"app": "d"}}, "spec": {"image": image}},
        },
        "status": {},
    })
}

fn set(name: &str, image: &str, revision: i64, replicas: i64, available: i64) -> Arc<Value> {
    Arc::new(json!({
        "metadata": {
            "name": name, "namespace": "a", "uid": name, "generation": 1,
            "creationTimestamp": format!("2026-01-01T00:00:{revision:02}Z"),
            "annotations": {REVISION: revision.to_string()},
        },
        "spec": {
            "replicas": replicas,
            "template": {
                "metadata": {"labels": {"app": "d", HASH: name}}, "spec": {"image": image},
            },
        },
        "status": {
            "replicas": replicas, "availableReplicas": available, "observedGeneration": 1,
        },
    }))
}

fn scales(plan: &Plan) -> Vec<(String, i64, i64)> {
    let scales = plan.actions.iter().filter_map(|action| match action {
        Action::Scale { name, from, to, .. } => Some((name.clone(), *from, *to)),
        _ => None,
    });
    scales.collect()
}

#[test]
fn new_deployment_creates_its_first_replica_set() {
    let plan = plan(&deployment(3, "v1", &json!("25%"), &json!("25%")), &[], &|_| false, at());
    let Some(Action::Create(set)) = plan.actions.first() else { panic!("{plan:?}") };
    assert_eq!(set["spec"]["replicas"], 3);
    let hash = set["metadata"]["labels"][HASH].as_str().unwrap();
    assert_eq!(set["metadata"]["name"], format!("d-{hash}"));
    assert_eq!(set["spec"]["selector"]["matchLabels"][HASH], hash);
    assert_eq!(set["metadata"]["annotations"][REVISION], "1");
    assert_eq!(set["metadata"]["ownerReferences"][0]["uid"], "du");
    assert!(matches!(plan.actions.last(), Some(Action::Own(_))), "{plan:?}");
}

#[test]
fn rollout_respects_max_surge_and_max_unavailable() {
    let check = |surge: i64,
                 unavailable: i64,
                 old: (i64, i64),
                 new: (i64, i64),
                 expected: &[(&str, i64, i64)]| {
        let deployment = deployment(10, "v2", &json!(surge), &json!(unavailable));
        let sets = [set("old", "v1", 1, old.0, old.1), set("new", "v2", 2, new.0, new.1)];
        let plan = plan(&deployment, &sets, &|_| true, at());
        let expected: Vec<_> =
            expected.iter().map(|(name, from, to)| ((*name).to_owned(), *from, *to)).collect();
        assert_eq!(
            scales(&plan),
            expected,
            "surge {surge} unavailable {unavailable} {old:?} {new:?}"
        );
    };
    // The new replica set grows up to the surge.
    check(2, 0, (10, 10), (0, 0), &[("new", 0, 2)]);
    // Then the old one shrinks by the pods that the new one has available.
    check(2, 0, (10, 10), (2, 0), &[]);
    check(2, 0, (10, 10), (2, 1), &[("old", 10, 9)]);
    check(2, 0, (10, 10), (2, 2), &[("old", 10, 8)]);
    check(0, 3, (10, 10), (0, 0), &[("old", 10, 7)]);
    check(0, 3, (7, 7), (3, 0), &[]);
    // Unavailable pods are deleted first, even if no available one may be.
    check(0, 3, (10, 4), (0, 0), &[("old", 10, 7)]);
    check(2, 0, (2, 2), (10, 10), &[("old", 2, 0)]);
    check(2, 0, (0, 0), (10, 10), &[]);
    check(2, 0, (0, 0), (12, 12), &[("new", 12, 10)]);
    // A rollout without surge and without unavailable pods could not progress.
    check(0, 0, (10, 10), (0, 0), &[("old", 10, 9)]);
}

#[test]
fn resize_during_a_rollout_is_distributed_in_proportion() {
    let mut deployment = deployment(20, "v2", &json!(0), &json!(5));
    let mut sets = [set("old", "v1", 1, 6, 6), set("new", "v2", 2, 4, 4)];
    for set in &mut sets {
        let value = Arc::make_mut(set);
        value["metadata"]["annotations"][DESIRED] = "10".into();
    }
    let found = scales(&plan(&deployment, &sets, &|_| true, at()));
    assert_eq!(found, [("old".to_owned(), 6, 12), ("new".to_owned(), 4, 8)]);
    deployment["spec"]["replicas"] = 5.into();
    let found = scales(&plan(&deployment, &sets, &|_| true, at()));
    assert_eq!(found.iter().map(|(_, _, to)| to).sum::<i64>(), 5, "{found:?}");
}

#[test]
fn rollback_makes_an_old_replica_set_the_newest() {
    let deployment = deployment(3, "v1", &json!(1), &json!(0));
    let sets = [set("one", "v1", 1, 0, 0), set("two", "v2", 2, 3, 3)];
    let plan = plan(&deployment, &sets, &|_| true, at());
    assert_eq!(plan.new.as_deref(), Some("one"));
    assert_eq!(scales(&plan), [("one".to_owned(), 0, 1)]);
    let Some(Action::Annotate { name, patch }) = plan.actions.first() else { panic!("{plan:?}") };
    assert_eq!((name.as_str(), &patch["metadata"]["annotations"][REVISION]), ("one", &json!("3")));
}

#[test]
fn recreate_waits_until_the_old_pods_are_gone() {
    let mut deployment = deployment(3, "v2", &json!(0), &json!(0));
    deployment["spec"]["strategy"] = json!({"type": "Recreate"});
    let running = [set("old", "v1", 1, 3, 3)];
    let first = plan(&deployment, &running, &|_| true, at());
    assert_eq!(scales(&first), [("old".to_owned(), 3, 0)]);
    let down = [set("old", "v1", 1, 0, 0)];
    assert_eq!(plan(&deployment, &down, &|_| true, at()).actions, []);
    let last = plan(&deployment, &down, &|_| false, at());
    assert!(
        matches!(last.actions.first(), Some(Action::Create(set)) if set["spec"]["replicas"] == 3)
    );
}

#[test]
fn paused_deployment_is_scaled_but_not_rolled_out() {
    let mut deployment = deployment(5, "v2", &json!(1), &json!(0));
    deployment["spec"]["paused"] = true.into();
    let sets = [set("old", "v1", 1, 3, 3)];
    assert_eq!(scales(&plan(&deployment, &sets, &|_| true, at())), [("old".to_owned(), 3, 5)]);
}

#[test]
fn old_replica_sets_beyond_the_limit_are_deleted() {
    let mut deployment = deployment(2, "v4", &json!(1), &json!(0));
    deployment["status"] = json!({
        "replicas": 2, "updatedReplicas": 2, "availableReplicas": 2, "observedGeneration": 1,
    });
    let sets = [
        set("a", "v1", 1, 0, 0),
        set("b", "v2", 2, 0, 0),
        set("c", "v3", 3, 0, 0),
        set("d", "v4", 4, 2, 2),
    ];
    let gone: Vec<_> = plan(&deployment, &sets, &|_| false, at())
        .actions
        .into_iter()
        .filter_map(|action| match action {
            Action::Delete { name, .. } => Some(name),
            _ => None,
        })
        .collect();
    assert_eq!(gone, ["a", "b"]);
}
