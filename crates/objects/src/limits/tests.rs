//! Bounds that no recording shows, classes, and that setting defaults is idempotent.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

fn range(limits: Value) -> Value {
    let spec = Value::Object(Map::from_iter([("limits".to_owned(), limits)]));
    Value::Object(Map::from_iter([("spec".to_owned(), spec)]))
}

fn check(limits: Value, pod: &Value, expected: &[&str]) {
    let range = range(limits);
    let made: Vec<String> = check_pod(pod, &[&range]).iter().map(ToString::to_string).collect();
    assert_eq!(made, expected);
}

#[test]
fn a_ratio_is_of_limit_to_request() {
    let pod =
        |resources: Value| json!({"spec": {"containers": [{"name": "c", "resources": resources}]}});
    let limits = json!([{"type": "Container", "maxLimitRequestRatio": {"cpu": "2"}}]);
    let fine = pod(json!({"requests": {"cpu": "500m"}, "limits": {"cpu": "1"}}));
    check(limits.clone(), &fine, &[]);
    let above = pod(json!({"requests": {"cpu": "400m"}, "limits": {"cpu": "1"}}));
    let text = "cpu max limit to request ratio per Container is 2, but provided ratio is 2.500000";
    check(limits.clone(), &above, &[text]);
    let open = pod(json!({"requests": {"cpu": "400m"}}));
    let text = "cpu max limit to request ratio per Container is 2, but no limit is specified or limit is 0";
    check(limits, &open, &[text]);
}

#[test]
fn sidecars_count_in_addition_to_containers() {
    let container = |cpu: &str| json!({"name": "c", "resources": {"requests": {"cpu": cpu}, "limits": {"cpu": cpu}}});
    let mut sidecar = container("1");
    sidecar["restartPolicy"] = "Always".into();
    let pod = json!({"spec": {"initContainers": [sidecar, container("3")], "containers": [container("2")]}});
    let limits = json!([{"type": "Pod", "max": {"cpu": "3"}}]);
    check(limits, &pod, &["maximum cpu usage per Pod is 3, but limit is 4"]);
}

#[test]
fn only_the_first_violated_range_is_reported() {
    let pod = json!({"spec": {"containers": [{"name": "c", "resources": {}}]}});
    let one = range(json!([{"type": "Container", "min": {"cpu": "1"}}]));
    let two = range(json!([{"type": "Container", "min": {"memory": "1"}}]));
    let refusals = check_pod(&pod, &[&one, &two]);
    assert_eq!(
        message(&refusals).unwrap(),
        "minimum cpu usage per Container is 1.  No request is specified"
    );
}

#[test]
fn classes_are_given_where_none_is_asked_for() {
    let range = range(json!([
        {"type": "Pod", "qosResources": [{"name": "v.io/net", "default": "slow"}]},
        {"type": "Container", "qosResources": [{"name": "rdt", "default": "bronze"}, {"name": "blockio", "default": "low"}]},
    ]));
    let mut pod = json!({"spec": {
        "qosResources": [{"name": "k8s.io/blockio", "class": "high"}],
        "containers": [
            {"name": "a"},
            {"name": "b", "resources": {"qosResources": [{"name": "k8s.io/rdt", "class": "gold"}]}},
        ],
    }});
    set_defaults(&mut pod, &[&range]);
    let expected =
        json!([{"name": "k8s.io/blockio", "class": "high"}, {"name": "v.io/net", "class": "slow"}]);
    assert_eq!(pod["spec"]["qosResources"], expected);
    let containers = &pod["spec"]["containers"];
    let bronze = json!([{"name": "rdt", "class": "bronze"}]);
    assert_eq!(containers[0]["resources"]["qosResources"], bronze);
    assert_eq!(containers[1]["resources"]["qosResources"].as_array().unwrap().len(), 1);
}

#[test]
fn classes_outside_the_bounds_are_refused() {
    let asks = |class: &str| json!({"name": "c", "resources": {"qosResources": [{"name": "rdt", "class": class}]}});
    let pod = json!({"spec": {"containers": [asks("gold"), asks("gold"), asks("silver")]}});
    let limits = json!([
        {"type": "Container", "qosResources": [{"name": "k8s.io/rdt", "max": [{"name": "gold", "capacity": 1}]}]},
        {"type": "Pod", "qosResources": [{"name": "k8s.io/rdt", "max": [{"name": "gold", "capacity": 1}, {"name": "silver", "capacity": 0}]}]},
    ]);
    check(
        limits,
        &pod,
        &[
            "allowed k8s.io/rdt classes per Container are gold, but class is silver",
            "maximum k8s.io/rdt class gold usage per Pod is 1, but usage is 2",
        ],
    );
}

fn amounts_strategy() -> impl Strategy<Value = Value> {
    let names = prop::sample::select(vec!["cpu", "memory", "ephemeral-storage", "v.io/x"]);
    let amounts = prop::sample::select(vec!["1", "500m", "2Gi", "0"]);
    prop::collection::btree_map(names, amounts, 0..4).prop_map(|map| json!(map))
}

fn classes_strategy() -> impl Strategy<Value = Value> {
    let names = prop::sample::select(vec!["rdt", "k8s.io/rdt", "v.io/net"]);
    let classes = prop::sample::select(vec!["gold", "silver"]);
    prop::collection::btree_map(names, classes, 0..2).prop_map(|map| {
        map.into_iter().map(|(name, class)| json!({"name": name, "class": class})).collect()
    })
}

fn container_strategy() -> impl Strategy<Value = Value> {
    (amounts_strategy(), amounts_strategy(), classes_strategy()).prop_map(|(requests, limits, classes)| {
        json!({"name": "c", "resources": {"requests": requests, "limits": limits, "qosResources": classes}})
    })
}

fn range_strategy() -> impl Strategy<Value = Value> {
    (amounts_strategy(), amounts_strategy(), classes_strategy(), classes_strategy()).prop_map(
        |(limits, requests, of_containers, of_pods)| {
            let defaults = |list: Value| -> Vec<Value> {
                let list = list.as_array().cloned().unwrap_or_default();
                list.iter().map(|c| json!({"name": c["name"], "default": c["class"]})).collect()
            };
            range(json!([
                {"type": "Container", "default": limits, "defaultRequest": requests, "qosResources": defaults(of_containers)},
                {"type": "Pod", "qosResources": defaults(of_pods)},
            ]))
        },
    )
}

proptest! {
    #[test]
    fn defaults_settle_at_once(
        containers in prop::collection::vec(container_strategy(), 1..4),
        init in prop::collection::vec(container_strategy(), 0..2),
        ranges in prop::collection::vec(range_strategy(), 0..3),
    ) {
        let ranges: Vec<&Value> = ranges.iter().collect();
        let mut once = json!({"spec": {"containers": containers, "initContainers": init}});
        set_defaults(&mut once, &ranges);
        let mut twice = once.clone();
        set_defaults(&mut twice, &ranges);
        prop_assert_eq!(once, twice);
    }
}
