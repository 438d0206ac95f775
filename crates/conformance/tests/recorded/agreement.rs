//! API server, scheduler, agent and planner read a pod alike: random pods have the same QoS class, requests,
//! limits, demand and tolerations everywhere.

use lifecycle::admission;
use objects::pod::resources::{PodResources, Side};
use objects::rules::{self, RuleContext};
use objects::schema::Schema;
use objects::timestamp::Timestamp;
use objects::{FeatureGates, Gate, QosClass, ResourceList, catalog, resources, workload};
use placement::demand::{Demand, PodUid};
use proptest::prelude::*;
use scheduling::{Outcome, Scheduler, Settings, Tie};
use serde_json::{Value, json};

const UID: &str = "uid";

/// Requests and limits of a container: absent, zero, one of the two, equal or different.
fn amounts() -> impl Strategy<Value = Value> {
    let of = |small: &'static str, large: &'static str| {
        prop_oneof![
            3 => Just((None, None)),
            1 => Just((Some("0"), None)),
            1 => Just((Some("0"), Some("0"))),
            2 => Just((Some(small), None)),
            2 => Just((None, Some(large))),
            4 => Just((Some(large), Some(large))),
            2 => Just((Some(small), Some(large))),
        ]
    };
    let pages = prop_oneof![4 => Just(None), 1 => Just(Some("4Mi"))];
    (of("500m", "2"), of("1Gi", "2Gi"), pages).prop_map(|(cpu, memory, pages)| {
        // Huge pages need cpu or memory.
        let pages = pages.filter(|_| cpu.1.is_some());
        let lists = [("cpu", cpu), ("memory", memory), ("hugepages-2Mi", (pages, pages))];
        let mut resources = json!({"requests": {}, "limits": {}});
        for (name, (request, limit)) in lists {
            for (list, amount) in [("requests", request), ("limits", limit)] {
                if let Some(amount) = amount {
                    resources[list][name] = amount.into();
                }
            }
        }
        resources
    })
}

/// Resources of the pod as a whole, larger than those of its containers; `Null` is absent.
fn pod_level() -> impl Strategy<Value = Value> {
    let whole = json!({"cpu": "64", "memory": "64Gi", "hugepages-2Mi": "64Mi"});
    prop_oneof![
        4 => Just(Value::Null),
        1 => Just(json!({})),
        1 => Just(json!({"requests": {}, "limits": {}})),
        1 => Just(json!({"requests": {"cpu": "64"}})),
        1 => Just(json!({"requests": {"cpu": "64", "memory": "64Gi"}})),
        1 => Just(json!({"limits": {"cpu": "64", "memory": "64Gi"}})),
        1 => Just(json!({"limits": whole})),
        1 => Just(json!({"requests": whole, "limits": whole})),
    ]
}

fn tolerations() -> impl Strategy<Value = Vec<Value>> {
    let key = prop_oneof![Just("k"), Just("j")];
    let operator = prop_oneof![Just("Equal"), Just("Exists"), Just("Gt"), Just("Lt")];
    let value = prop_oneof![Just("4"), Just("5"), Just("6")];
    let effect = prop_oneof![Just(""), Just("NoSchedule"), Just("NoExecute")];
    let one = (key, operator, value, effect).prop_map(|(key, operator, value, effect)| {
        let value = if operator == "Exists" { "" } else { value };
        json!({"key": key, "operator": operator, "value": value, "effect": effect})
    });
    proptest::collection::vec(one, 0..3)
}

/// A pod as it is written in a manifest.
fn manifest() -> impl Strategy<Value = Value> {
    let init = proptest::collection::vec((amounts(), any::<bool>()), 0..4);
    let apps = proptest::collection::vec(amounts(), 1..4);
    let overhead = prop_oneof![
        2 => Just(Value::Null),
        1 => Just(json!({"cpu": "100m", "memory": "16Mi"})),
    ];
    (init, apps, pod_level(), overhead, tolerations()).prop_map(
        |(init, apps, pod_level, overhead, tolerations)| {
            let container = |name: String, resources: Value| {
                json!({"name": name, "image": "i", "resources": resources})
            };
            let init = init.into_iter().enumerate().map(|(at, (resources, sidecar))| {
                let mut container = container(format!("init-{at}"), resources);
                if sidecar {
                    container["restartPolicy"] = "Always".into();
                }
                container
            });
            let apps = apps.into_iter().enumerate();
            let apps = apps.map(|(at, resources)| container(format!("app-{at}"), resources));
            let mut spec = json!({
                "initContainers": init.collect::<Vec<_>>(),
                "containers": apps.collect::<Vec<_>>(),
                "tolerations": tolerations,
            });
            for (field, value) in [("resources", pod_level), ("overhead", overhead)] {
                if !value.is_null() {
                    spec[field] = value;
                }
            }
            json!({
                "apiVersion": "v1", "kind": "Pod", "spec": spec,
                "metadata": {"name": "p", "namespace": "default", "uid": UID},
            })
        },
    )
}

/// The pod as the API server stores it, and whether it accepts it.
fn stored(manifest: &Value, gates: &FeatureGates) -> (Value, bool) {
    let schema = Schema::served();
    let resource = catalog::of_kind("v1", "Pod").unwrap();
    let decoded = schema.decode_value(resource.type_id(schema).unwrap(), manifest.clone());
    let mut pod = decoded.unwrap().value;
    rules::set_defaults(resource, &mut pod);
    let setting = RuleContext { gates, allow_privileged: true, now: Timestamp::new(0, 0) };
    rules::prepare_create(resource, &mut pod, &setting);
    let causes = rules::validate_create(resource, &pod, &setting);
    let compares =
        |toleration: &Value| matches!(toleration["operator"].as_str(), Some("Gt" | "Lt"));
    let compared = manifest["spec"]["tolerations"].as_array().unwrap().iter().any(compares);
    let accepted = causes.0.is_empty();
    if compared && !gates.enabled(Gate::TaintTolerationComparisonOperators) {
        assert!(!accepted, "{pod}");
    }
    (pod, accepted)
}

/// The result of one component for a pod.
#[derive(Debug, PartialEq)]
struct Reading {
    class: QosClass,
    requests: ResourceList,
    limits: ResourceList,
    demand: Demand,
}

fn reading(pod: &PodResources<'_>) -> Reading {
    Reading {
        class: pod.qos_class(),
        requests: pod.effective(Side::Requests),
        limits: pod.effective(Side::Limits),
        demand: Demand::new(&PodUid::new(UID), pod),
    }
}

fn read_by_agent(pod: &Value) -> Reading {
    let pod: lifecycle::spec::Pod = serde_json::from_value(pod.clone()).unwrap();
    Reading {
        class: lifecycle::qos_class(&pod),
        requests: lifecycle::requests(&pod),
        limits: lifecycle::limits(&pod),
        demand: lifecycle::placement_demand(&pod),
    }
}

/// Returns true if the scheduler accepts the pod on a node with these amounts and this taint.
fn is_scheduled(pod: &Value, allocatable: &Value, taint: Option<&Value>, compare: bool) -> bool {
    let settings = Settings { compare_taints: compare, ..Settings::default() };
    let mut scheduler = Scheduler::new(&settings).unwrap();
    let node = json!({
        "metadata": {"name": "n"},
        "spec": {"taints": taint.into_iter().collect::<Vec<_>>()},
        "status": {"allocatable": allocatable},
    });
    scheduler.cluster_mut().apply_node(&node).unwrap();
    scheduler.cluster_mut().apply_pod(pod).unwrap();
    let attempt = scheduler.attempt("default/p", Tie::FirstByName).unwrap();
    matches!(attempt.outcome, Outcome::Scheduled(_))
}

/// The node that has just what the pod requests, and those that lack one unit of a resource.
fn nodes(requests: &ResourceList) -> (Value, Vec<Value>) {
    let units = |name: &str| -> i64 {
        requests.get(name).map_or(0, |amount| match name {
            resources::CPU => amount.milli_value(),
            _ => amount.value(),
        })
    };
    let unit = |name: &str| if name == resources::CPU { "m" } else { "" };
    let mut fitting = json!({"pods": "1"});
    for name in requests.keys() {
        fitting[name] = format!("{}{}", units(name), unit(name)).into();
    }
    let lacking = requests.keys().filter(|name| units(name) > 0).map(|name| {
        let mut node = fitting.clone();
        node[name] = format!("{}{}", units(name) - 1, unit(name)).into();
        node
    });
    (fitting.clone(), lacking.collect())
}

/// Returns true if agent and scheduler agree on the toleration of a taint.
fn check_tolerations(pod: &Value, allocatable: &Value, compare: bool) {
    let tolerations = pod["spec"]["tolerations"].as_array().into_iter().flatten();
    let tolerations: Vec<admission::Toleration> =
        tolerations.map(|t| serde_json::from_value(t.clone()).unwrap()).collect();
    for (value, effect) in [("5", "NoSchedule"), ("5", "NoExecute"), ("x", "NoSchedule")] {
        let taint = json!({"key": "k", "value": value, "effect": effect});
        let scheduled = is_scheduled(pod, allocatable, Some(&taint), compare);
        let taint = serde_json::from_value(taint).unwrap();
        let tolerated = tolerations.iter().any(|t| t.tolerates(&taint, compare));
        assert_eq!(scheduled, tolerated, "{taint:?} {tolerations:?} {compare}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn all_components_read_a_pod_alike(manifest in manifest(), compare in any::<bool>()) {
        let mut gates = FeatureGates::default();
        gates.set(Gate::TaintTolerationComparisonOperators, compare).unwrap();
        let (pod, accepted) = stored(&manifest, &gates);
        let by_api = reading(&PodResources::of_spec(&pod["spec"]));
        prop_assert_eq!(&pod["status"]["qosClass"], by_api.class.as_str());
        prop_assert_eq!(&read_by_agent(&pod), &by_api, "agent");
        let mut of_file = pod.clone();
        of_file["status"] = json!({});
        prop_assert_eq!(&read_by_agent(&of_file), &by_api, "agent, static pod");
        for pod in [&pod, &of_file] {
            let object: objects::types::Pod = serde_json::from_value(pod.clone()).unwrap();
            prop_assert_eq!(&reading(&object.resources()), &by_api, "scheduler");
        }
        if accepted {
            let planned = workload::read(&manifest.to_string()).unwrap();
            let planned = reading(&planned.workloads[0].template.spec.resources());
            prop_assert_eq!(&planned, &by_api, "planner");
        }
        let (fitting, lacking) = nodes(&by_api.requests);
        let mut untainted = pod.clone();
        untainted["spec"]["tolerations"] = json!([]);
        prop_assert!(is_scheduled(&untainted, &fitting, None, compare), "{}", fitting);
        for node in lacking {
            prop_assert!(!is_scheduled(&untainted, &node, None, compare), "{}", node);
        }
        check_tolerations(&pod, &fitting, compare);
    }
}
