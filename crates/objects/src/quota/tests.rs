//! Scopes, counts and classes that no recording shows, and that charging objects one by one equals
//! counting all.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::catalog;

fn now() -> Timestamp {
    Timestamp::new(1_000_000_000, 0)
}

fn pods() -> &'static Resource {
    catalog::find("", "v1", "pods").unwrap()
}

fn quota(spec: Value) -> Value {
    let mut quota = json!({"metadata": {"name": "q"}});
    quota["spec"] = spec;
    quota["status"] = recompute(&quota, [], now());
    quota
}

fn pod(class: Option<&str>, containers: &[Option<&str>]) -> Value {
    let asks = |class: &str| json!([{"name": "rdt", "class": class}]);
    let containers: Vec<Value> = containers
        .iter()
        .enumerate()
        .map(|(n, class)| match class {
            Some(class) => {
                json!({"name": format!("c{n}"), "resources": {"qosResources": asks(class)}})
            }
            None => json!({"name": format!("c{n}"), "resources": {}}),
        })
        .collect();
    let mut pod = json!({"metadata": {"name": "p"}, "spec": {"containers": containers}});
    if let Some(class) = class {
        pod["spec"]["qosResources"] = json!([{"name": "v.io/net", "class": class}]);
    }
    pod
}

#[test]
fn an_update_is_charged_for_what_it_adds() {
    let pod = |cpu: &str| json!({"spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": cpu}}}]}});
    let quota = quota(json!({"hard": {"requests.cpu": "2", "pods": "1"}}));
    let first = charge(&[&quota], pods(), &pod("1"), None, now()).unwrap().remove(0);
    assert_eq!(first["status"]["used"], json!({"requests.cpu": "1", "pods": "1"}));
    let second = charge(&[&first], pods(), &pod("2"), Some(&pod("1")), now()).unwrap().remove(0);
    assert_eq!(second["status"]["used"], json!({"requests.cpu": "2", "pods": "1"}));
    assert_eq!(charge(&[&second], pods(), &pod("500m"), Some(&pod("1")), now()), Ok(vec![]));
    let refusal = charge(&[&second], pods(), &pod("3"), Some(&pod("2")), now()).unwrap_err();
    assert_eq!(
        refusal.to_string(),
        "exceeded quota: q, requested: requests.cpu=1, used: requests.cpu=2, limited: requests.cpu=2"
    );
}

#[test]
fn update_into_a_scope_is_charged_in_full() {
    let pod = |deadline: Value| {
        json!({"spec": {"activeDeadlineSeconds": deadline, "containers": [
            {"name": "c", "resources": {"requests": {"cpu": "1"}}},
        ]}})
    };
    let (lasting, ending) = (pod(Value::Null), pod(json!(5)));
    let scoped = |name: &str, scope: &str, pods: &str| {
        let hard = json!({"pods": pods, "requests.cpu": "1"});
        let mut quota = quota(json!({"hard": hard, "scopes": [scope]}));
        quota["metadata"]["name"] = name.into();
        quota
    };
    let from = scoped("from", "NotTerminating", "1");
    let into = scoped("into", "Terminating", "1");
    let update = |into: &Value| charge(&[&from, into], pods(), &ending, Some(&lasting), now());
    let charged = update(&into).unwrap();
    assert_eq!(charged.len(), 1, "the quota that the pod leaves is corrected by the next count");
    assert_eq!(charged[0]["metadata"]["name"], "into");
    assert_eq!(charged[0]["status"]["used"], json!({"pods": "1", "requests.cpu": "1"}));
    assert_eq!(
        update(&scoped("into", "Terminating", "0")).unwrap_err().to_string(),
        "exceeded quota: into, requested: pods=1, used: pods=0, limited: pods=0"
    );
    // Within the scope another deadline costs nothing, and leaving the scope is free.
    let sooner = pod(json!(3));
    assert_eq!(charge(&[&into], pods(), &sooner, Some(&ending), now()), Ok(vec![]));
    assert_eq!(charge(&[&into], pods(), &lasting, Some(&ending), now()), Ok(vec![]));
}

#[test]
fn classes_are_charged_when_a_pod_enters_a_quota() {
    let mut into = quota(json!({"scopes": ["Terminating"], "qosResources": {
        "container": [{"name": "k8s.io/rdt", "classes": [{"name": "gold", "capacity": 1}]}],
    }}));
    let lasting = pod(None, &[Some("gold")]);
    let mut ending = lasting.clone();
    ending["spec"]["activeDeadlineSeconds"] = 5.into();
    let update = |into: &Value| charge(&[into], pods(), &ending, Some(&lasting), now());
    into = update(&into).unwrap().remove(0);
    let refusal = update(&into).unwrap_err().to_string();
    assert!(refusal.starts_with("exceeded quota: q"), "{refusal}");
}

#[test]
fn every_name_of_a_resource_is_counted() {
    let pod = json!({"spec": {"containers": [{"name": "c", "resources": {
        "requests": {"cpu": "1", "hugepages-2Mi": "4Mi", "v.io/gpu": "2", "ephemeral-storage": "1Gi"},
        "limits": {"cpu": "2", "hugepages-2Mi": "4Mi", "v.io/gpu": "2"},
    }}], "overhead": {"cpu": "100m"}}});
    let made = rendered(&usage(pods(), &pod, now()));
    let expected = json!({
        "count/pods": "1", "pods": "1", "cpu": "1100m", "requests.cpu": "1100m", "limits.cpu": "2100m",
        "hugepages-2Mi": "4Mi", "requests.hugepages-2Mi": "4Mi", "requests.v.io/gpu": "2",
        "ephemeral-storage": "1Gi", "requests.ephemeral-storage": "1Gi",
    });
    assert_eq!(made, expected);
    let mut done = pod;
    done["status"]["phase"] = "Succeeded".into();
    assert_eq!(rendered(&usage(pods(), &done, now())), json!({"count/pods": "1"}));
}

#[test]
fn services_count_their_ports() {
    let services = catalog::find("", "v1", "services").unwrap();
    let service = json!({"spec": {"type": "LoadBalancer", "ports": [{"port": 1}, {"port": 2}]}});
    let made = rendered(&usage(services, &service, now()));
    let expected = json!({"count/services": "1", "services": "1", "services.nodeports": "2", "services.loadbalancers": "1"});
    assert_eq!(made, expected);
    let deployments = catalog::find("apps", "v1", "deployments").unwrap();
    let quota = quota(json!({"hard": {"count/deployments.apps": "0"}}));
    let refusal = charge(&[&quota], deployments, &json!({}), None, now()).unwrap_err();
    assert!(refusal.to_string().contains("requested: count/deployments.apps=1"), "{refusal}");
}

#[test]
fn scopes_choose_pods() {
    let best_effort = pod(None, &[None]);
    let mut ending = pod(None, &[None]);
    ending["spec"]["activeDeadlineSeconds"] = 5.into();
    ending["spec"]["priorityClassName"] = "high".into();
    let expression = |operator: &str, values: Value| json!({"scopeSelector": {"matchExpressions": [{"scopeName": "PriorityClass", "operator": operator, "values": values}]}});
    for (spec, fits_plain, fits_ending) in [
        (json!({"scopes": ["BestEffort"]}), true, true),
        (json!({"scopes": ["NotBestEffort"]}), false, false),
        (json!({"scopes": ["Terminating"]}), false, true),
        (json!({"scopes": ["NotTerminating", "BestEffort"]}), true, false),
        (json!({"scopes": ["CrossNamespacePodAffinity"]}), false, false),
        (expression("In", json!(["high"])), false, true),
        (expression("NotIn", json!(["high"])), true, false),
        (expression("Exists", json!([])), false, true),
        (expression("DoesNotExist", json!([])), true, false),
    ] {
        let quota = json!({"spec": spec});
        assert_eq!(scope::covers(&quota, pods(), &best_effort), fits_plain, "{quota}");
        assert_eq!(scope::covers(&quota, pods(), &ending), fits_ending, "{quota}");
        let maps = catalog::find("", "v1", "configmaps").unwrap();
        assert!(!scope::covers(&quota, maps, &json!({})));
    }
}

fn class_quota() -> Value {
    quota(json!({"qosResources": {
        "pod": [{"name": "v.io/net", "classes": [{"name": "slow"}, {"name": "normal", "capacity": 2}]}],
        "container": [{"name": "k8s.io/rdt", "classes": [{"name": "gold", "capacity": 2}, {"name": "silver"}]}],
    }}))
}

#[test]
fn a_class_that_was_not_given_cannot_be_used() {
    let quota = class_quota();
    for (asks, text) in [
        (
            pod(Some("fast"), &[None]),
            "failed quota: q: class fast of pod resource v.io/net is not allowed",
        ),
        (
            pod(None, &[Some("platinum")]),
            "failed quota: q: class platinum of container resource k8s.io/rdt is not allowed",
        ),
    ] {
        let refusal = charge(&[&quota], pods(), &asks, None, now()).unwrap_err();
        assert_eq!(refusal.to_string(), text);
    }
    let mut other = pod(None, &[None]);
    other["spec"]["qosResources"] = json!([{"name": "w.io/y", "class": "a"}]);
    let refusal = charge(&[&quota], pods(), &other, None, now()).unwrap_err();
    assert_eq!(
        refusal.to_string(),
        "failed quota: q: class a of pod resource w.io/y is not allowed"
    );
    assert!(charge(&[&quota], pods(), &pod(Some("slow"), &[Some("silver")]), None, now()).is_ok());
    assert_eq!(charge(&[], pods(), &other, None, now()), Ok(vec![]));
}

#[test]
fn a_class_is_used_as_often_as_its_capacity_allows() {
    let quota = class_quota();
    let asks = pod(None, &[Some("gold"), Some("gold")]);
    let charged = charge(&[&quota], pods(), &asks, None, now()).unwrap().remove(0);
    let usage = &charged["status"]["qosResourcesUsage"]["container"];
    assert_eq!(usage[0]["classes"][0], json!({"name": "gold", "capacity": 2}));
    let refusal =
        charge(&[&charged], pods(), &pod(None, &[Some("gold")]), None, now()).unwrap_err();
    assert_eq!(
        refusal.to_string(),
        "exceeded quota: q, requested: container.k8s.io/rdt/gold=1, used: container.k8s.io/rdt/gold=2, \
         limited: container.k8s.io/rdt/gold=2"
    );
    // An existing pod keeps what it has, even if the quota no longer allows it.
    assert_eq!(charge(&[&charged], pods(), &asks, Some(&asks), now()), Ok(vec![]));
}

#[test]
fn a_class_of_the_pod_is_that_of_its_containers() {
    let quota = class_quota();
    let mut asks = pod(None, &[None, None, Some("silver")]);
    asks["spec"]["qosResources"] = json!([{"name": "rdt", "class": "gold"}]);
    let charged = charge(&[&quota], pods(), &asks, None, now()).unwrap().remove(0);
    let classes = &charged["status"]["qosResourcesUsage"]["container"][0]["classes"];
    assert_eq!(
        *classes,
        json!([{"name": "gold", "capacity": 2}, {"name": "silver", "capacity": 1}])
    );
    assert!(
        charged["status"]["qosResourcesUsage"]["pod"][0]["classes"][0].get("capacity").is_none()
    );
}

#[test]
fn without_a_count_a_bounded_class_waits() {
    let mut quota = class_quota();
    quota["status"] = json!({});
    let refusal = charge(&[&quota], pods(), &pod(None, &[Some("gold")]), None, now()).unwrap_err();
    let text = "status unknown for quota: q, resources: container.k8s.io/rdt/gold";
    assert_eq!(refusal.to_string(), text);
    assert_eq!(charge(&[&quota], pods(), &pod(None, &[Some("silver")]), None, now()), Ok(vec![]));
}

fn pod_strategy() -> impl Strategy<Value = Value> {
    let cpu = prop::sample::select(vec!["100m", "1", "1500m"]);
    let memory = prop::sample::select(vec!["64Mi", "1Gi", "1000k"]);
    let class = prop::option::of(prop::sample::select(vec!["gold", "silver"]));
    let container =
        (cpu, memory, class, any::<bool>()).prop_map(|(cpu, memory, class, sidecar)| {
            let list = json!({"cpu": cpu, "memory": memory});
            let mut container = json!({"resources": {"requests": list, "limits": list}});
            if let Some(class) = class {
                container["resources"]["qosResources"] = json!([{"name": "rdt", "class": class}]);
            }
            if sidecar {
                container["restartPolicy"] = "Always".into();
            }
            container
        });
    let net = prop::option::of(prop::sample::select(vec!["slow", "normal"]));
    let containers = prop::collection::vec(container.clone(), 1..3);
    (containers, prop::collection::vec(container, 0..3), net).prop_map(|(containers, init, net)| {
        let mut pod = json!({"spec": {"containers": containers, "initContainers": init}});
        if let Some(class) = net {
            pod["spec"]["qosResources"] = json!([{"name": "v.io/net", "class": class}]);
        }
        pod
    })
}

proptest! {
    #[test]
    fn charging_one_by_one_equals_counting_all(
        requested in prop::collection::vec(pod_strategy(), 0..8),
        updates in prop::collection::vec((any::<prop::sample::Index>(), pod_strategy()), 0..4),
    ) {
        let mut quota = quota(json!({
            "hard": {"pods": "5", "requests.cpu": "6", "limits.memory": "4Gi", "count/pods": "6"},
            "qosResources": {
                "pod": [{"name": "v.io/net", "classes": [{"name": "slow"}, {"name": "normal", "capacity": 2}]}],
                "container": [{"name": "k8s.io/rdt", "classes": [{"name": "gold", "capacity": 3}, {"name": "silver"}]}],
            },
        }));
        let mut there: Vec<Value> = Vec::new();
        for pod in requested {
            if let Ok(charged) = charge(&[&quota], pods(), &pod, None, now()) {
                quota = charged.into_iter().next().unwrap_or(quota);
                there.push(pod);
            }
        }
        let counted = recompute(&quota, there.iter().map(|pod| (pods(), pod)), now());
        prop_assert_eq!(&quota["status"], &counted);
        // An update is charged for an increase and never refunded for a decrease: the recount does
        // that.
        for (index, pod) in updates {
            if there.is_empty() {
                break;
            }
            let at = index.index(there.len());
            if let Ok(charged) = charge(&[&quota], pods(), &pod, Some(&there[at]), now()) {
                quota = charged.into_iter().next().unwrap_or(quota);
                there[at] = pod;
            }
        }
        let counted = recompute(&quota, there.iter().map(|pod| (pods(), pod)), now());
        let (used, counted) = (amounts(&quota["status"]["used"]), amounts(&counted["used"]));
        for (name, amount) in &counted {
            prop_assert!(amount <= &used[name], "{} {} {}", name, amount, used[name]);
        }
    }
}
