//! Rules that the recordings do not cover, one table for each kind.

use serde_json::{Value, json};

use crate::catalog::{self, Resource};
use crate::cursor::Causes;
use crate::feature_gates::{FeatureGates, Gate};
use crate::rules::{self, RuleContext, Subresource};
use crate::timestamp::Timestamp;

fn gates() -> FeatureGates {
    let mut gates = FeatureGates::default();
    gates.set(Gate::QosResources, true).unwrap();
    gates
}

fn resource(api_version: &str, kind: &str) -> &'static Resource {
    catalog::of_kind(api_version, kind).unwrap()
}

fn texts(causes: &Causes) -> Vec<String> {
    causes.0.iter().map(|cause| format!("{}: {}", cause.field, cause.message)).collect()
}

fn named(resource: &Resource, object: &Value) -> Value {
    let mut object = object.clone();
    if object["metadata"].get("name").is_none() {
        object["metadata"]["name"] = "x".into();
    }
    object["metadata"]["uid"] = "u".into();
    if resource.namespaced {
        object["metadata"]["namespace"] = "n".into();
    }
    object
}

/// Returns the result of a create: the object as it would be stored, and the causes.
fn created(kind: (&str, &str), object: &Value) -> (Value, Vec<String>) {
    let gates = gates();
    let ctx = RuleContext { gates: &gates, allow_privileged: true, now: Timestamp::new(0, 0) };
    let resource = resource(kind.0, kind.1);
    let mut object = named(resource, object);
    rules::set_defaults(resource, &mut object);
    rules::prepare_create(resource, &mut object, &ctx);
    let causes = rules::validate_create(resource, &object, &ctx);
    (object, texts(&causes))
}

fn check(kind: (&str, &str), object: &Value, expected: &[&str]) {
    assert_eq!(created(kind, object).1, expected, "{object}");
}

fn check_update(
    kind: (&str, &str),
    old: &Value,
    new: &Value,
    subresource: Subresource,
    expected: &[&str],
) {
    let gates = gates();
    let ctx = RuleContext { gates: &gates, allow_privileged: true, now: Timestamp::new(0, 0) };
    let resource = resource(kind.0, kind.1);
    let (old, new) = (named(resource, old), named(resource, new));
    let (mut old, mut new) = (old, new);
    for object in [&mut old, &mut new] {
        object["metadata"]["resourceVersion"] = "1".into();
        rules::set_defaults(resource, object);
    }
    rules::prepare_update(resource, &mut new, &old, subresource, &ctx);
    let causes = rules::validate_update(resource, &new, &old, subresource, &ctx);
    assert_eq!(texts(&causes), expected, "{new}");
}

#[test]
fn nothing_in_an_object_makes_a_rule_fail() {
    let gates = gates();
    let ctx = RuleContext { gates: &gates, allow_privileged: true, now: Timestamp::new(0, 0) };
    for resource in catalog::RESOURCES {
        for odd in [
            json!(null),
            json!([]),
            json!("x"),
            json!({"metadata": 1, "spec": [], "status": "x"}),
            json!({"spec": {"template": 1, "selector": [], "ports": {"a": 1}, "limits": [1, null]}}),
            json!({"spec": null, "status": null, "metadata": null, "data": [], "qosResources": 3}),
        ] {
            let mut object = odd.clone();
            rules::set_defaults(resource, &mut object);
            rules::prepare_create(resource, &mut object, &ctx);
            let _ = rules::validate_create(resource, &object, &ctx);
            let _ = rules::warnings(resource, &object, None);
            for subresource in [Subresource::Main, Subresource::Status, Subresource::Finalize] {
                let mut object = odd.clone();
                rules::prepare_update(resource, &mut object, &json!({}), subresource, &ctx);
                let _ = rules::validate_update(resource, &object, &odd, subresource, &ctx);
            }
        }
    }
}

#[test]
fn secrets_have_what_their_type_needs() {
    const SECRET: (&str, &str) = ("v1", "Secret");
    let (made, causes) =
        created(SECRET, &json!({"stringData": {"a": "hello"}, "data": {"a": "eA=="}}));
    assert!(causes.is_empty());
    assert_eq!(made["data"], json!({"a": "aGVsbG8="}));
    assert_eq!(made["type"], "Opaque");
    assert!(made.get("stringData").is_none());
    let of_type = |kind: &str, data: Value| json!({"type": kind, "data": data});
    check(
        SECRET,
        &of_type("kubernetes.io/tls", json!({"tls.crt": ""})),
        &["data[tls.key]: Required value"],
    );
    check(
        SECRET,
        &of_type("kubernetes.io/basic-auth", json!({})),
        &["data[username]: Required value", "data[password]: Required value"],
    );
    check(
        SECRET,
        &of_type("kubernetes.io/ssh-auth", json!({})),
        &["data[ssh-privatekey]: Required value"],
    );
    check(
        SECRET,
        &of_type("kubernetes.io/dockerconfigjson", json!({".dockerconfigjson": ""})),
        &[
            "data[.dockerconfigjson]: Invalid value: \"<secret contents redacted>\": unexpected end of JSON input",
        ],
    );
    check(
        SECRET,
        &of_type("kubernetes.io/service-account-token", json!({})),
        &["metadata.annotations[kubernetes.io/service-account.name]: Required value"],
    );
    check_update(
        SECRET,
        &json!({"type": "a", "immutable": true, "data": {"a": "eA=="}}),
        &json!({"type": "b", "data": {}}),
        Subresource::Main,
        &[
            "type: Invalid value: \"b\": field is immutable",
            "immutable: Forbidden: field is immutable when `immutable` is set",
            "data: Forbidden: field is immutable when `immutable` is set",
        ],
    );
}

#[test]
fn config_maps_are_small_and_their_keys_unique() {
    const MAP: (&str, &str) = ("v1", "ConfigMap");
    check(
        MAP,
        &json!({"data": {"a": "x"}, "binaryData": {"a": "eA=="}}),
        &["data[a]: Invalid value: \"a\": duplicate of key present in binaryData"],
    );
    check(
        MAP,
        &json!({"data": {"a": "x".repeat((1 << 20) + 1)}}),
        &["[]: Too long: may not be more than 1048576 bytes"],
    );
}

#[test]
fn namespaces_go_through_their_phases() {
    const NAMESPACE: (&str, &str) = ("v1", "Namespace");
    let active = json!({"status": {"phase": "Active"}});
    check_update(
        NAMESPACE,
        &active,
        &json!({"status": {"phase": "Terminating"}}),
        Subresource::Status,
        &[
            "status.Phase: Invalid value: \"Terminating\": may only be 'Active' if `deletionTimestamp` is empty",
        ],
    );
    check_update(
        NAMESPACE,
        &active,
        &json!({"spec": {"finalizers": ["mine"]}}),
        Subresource::Finalize,
        &[
            "spec.finalizers[0]: Invalid value: \"mine\": name is neither a standard finalizer name nor is it fully qualified",
        ],
    );
    let (made, causes) =
        created(NAMESPACE, &json!({"spec": {"finalizers": ["a.io/b"]}, "status": {"phase": "X"}}));
    assert!(causes.is_empty());
    assert_eq!(made["spec"]["finalizers"], json!(["a.io/b", "kubernetes"]));
    assert_eq!(made["status"], json!({"phase": "Active"}));
}

#[test]
fn quotas_fit_their_scopes() {
    const QUOTA: (&str, &str) = ("v1", "ResourceQuota");
    check(
        QUOTA,
        &json!({"spec": {"hard": {"bogus": "1", "pods": "1.5"}}}),
        &[
            "spec.hard[bogus]: Invalid value: \"bogus\": must be a standard resource type or fully qualified",
            "spec.hard[bogus]: Invalid value: \"bogus\": must be a standard resource for quota",
            "spec.hard[pods]: Invalid value: \"1.5\": must be an integer",
        ],
    );
    let scopes = json!(["BestEffort", "NotBestEffort"]);
    check(
        QUOTA,
        &json!({"spec": {"hard": {"cpu": "1"}, "scopes": scopes}}),
        &[
            "spec.scopes: Invalid value: [\"BestEffort\",\"NotBestEffort\"]: unsupported scope applied to resource",
            "spec.scopes: Invalid value: [\"BestEffort\",\"NotBestEffort\"]: conflicting scopes",
        ],
    );
    let expression = json!({"scopeName": "PriorityClass", "operator": "In"});
    check(
        QUOTA,
        &json!({"spec": {"scopeSelector": {"matchExpressions": [expression]}}}),
        &[
            "spec.scopeSelector.matchExpressions.values: Required value: must be at least one value when `operator` is 'In' or 'NotIn' for scope selector",
        ],
    );
    check_update(
        QUOTA,
        &json!({"spec": {"scopes": ["BestEffort"]}}),
        &json!({"spec": {}}),
        Subresource::Main,
        &["spec.scopes: Invalid value: null: field is immutable"],
    );
}

#[test]
fn quotas_and_limit_ranges_name_classes_well() {
    let classes = json!({
        "pod": [{"name": "v.io/a", "classes": [{"name": "x"}, {"name": "x", "capacity": -1}]}],
        "container": [{"name": "v.io/a"}, {"name": "made-up"}, {"name": "rdt"}, {"name": "k8s.io/rdt"}],
    });
    check(
        ("v1", "ResourceQuota"),
        &json!({"spec": {"qosResources": classes}}),
        &[
            "spec.qosResources.pod[0].classes[1].name: Duplicate value: \"x\"",
            "spec.qosResources.pod[0].classes[1].capacity: Invalid value: -1: must be greater than or equal to 0",
            "spec.qosResources.container[3].name: Duplicate value: \"k8s.io/rdt\"",
            "spec.qosResources.container[0].name: Invalid value: \"v.io/a\": may not be both a pod-level and a container-level resource",
        ],
    );
    let resources =
        json!([{"name": "rdt", "default": "gold", "max": [{"name": "silver", "capacity": 1}]}]);
    check(
        ("v1", "LimitRange"),
        &json!({"spec": {"limits": [{"type": "Container", "qosResources": resources}]}}),
        &[
            "spec.limits[0].qosResources[0].default: Unsupported value: \"gold\": supported values: \"silver\"",
        ],
    );
}

#[test]
fn a_node_offers_a_resource_to_pods_or_to_containers() {
    const NODE: (&str, &str) = ("v1", "Node");
    let mut body = json!({"status": {"qosResources": {
        "podQoSResources": [{"name": "v.io/net", "classes": [{"name": "a"}]}],
        "containerQOSResources": [{"name": "v.io/net"}],
    }}});
    super::node::respell(&mut body);
    assert!(body["status"]["qosResources"].get("podQOSResources").is_some());
    check(
        NODE,
        &body,
        &[
            "status.qosResources.containerQOSResources[0].name: Invalid value: \"v.io/net\": may not be both a pod-level and a container-level resource",
        ],
    );
    let (made, _) = created(NODE, &json!({"status": {"capacity": {"cpu": "4"}}}));
    assert_eq!(made["status"]["allocatable"], json!({"cpu": "4"}));
    check_update(
        NODE,
        &json!({}),
        &json!({"status": {"addresses": [{"type": "Hostname", "address": "h"}, {"type": "Hostname", "address": "h"}]}}),
        Subresource::Status,
        &["status.addresses[1]: Duplicate value: {\"Type\":\"Hostname\",\"Address\":\"h\"}"],
    );
}

#[test]
fn leases_last_some_time() {
    check(
        ("coordination.k8s.io/v1", "Lease"),
        &json!({"spec": {"leaseDurationSeconds": 0, "leaseTransitions": -1}}),
        &[
            "spec.leaseDurationSeconds: Invalid value: 0: must be greater than 0",
            "spec.leaseTransitions: Invalid value: -1: must be greater than or equal to 0",
        ],
    );
}

#[test]
fn priorities_of_the_system_are_its_own() {
    const CLASS: (&str, &str) = ("scheduling.k8s.io/v1", "PriorityClass");
    check(
        CLASS,
        &json!({"value": 1_000_000_001}),
        &["value: Forbidden: maximum allowed value of a user defined priority is 1000000000"],
    );
    check(
        CLASS,
        &json!({"metadata": {"name": "system-x"}, "value": 1}),
        &[
            "metadata.name: Forbidden: priority class names with 'system-' prefix are reserved for system use only. error: system-x is not a known system priority class",
        ],
    );
    check(
        CLASS,
        &json!({"metadata": {"name": "system-node-critical"}, "value": 2_000_001_000}),
        &[],
    );
    check_update(
        CLASS,
        &json!({"value": 1}),
        &json!({"value": 2, "preemptionPolicy": "Never"}),
        Subresource::Main,
        &[
            "value: Forbidden: may not be changed in an update.",
            "preemptionPolicy: Invalid value: \"Never\": field is immutable",
        ],
    );
}

#[test]
fn budgets_bound_one_side() {
    const BUDGET: (&str, &str) = ("policy/v1", "PodDisruptionBudget");
    check(
        BUDGET,
        &json!({"spec": {"minAvailable": "101%", "maxUnavailable": -1, "unhealthyPodEvictionPolicy": "X"}}),
        &[
            "spec: Invalid value: {\"MinAvailable\":\"101%\",\"Selector\":null,\"MaxUnavailable\":-1,\"UnhealthyPodEvictionPolicy\":\"X\"}: minAvailable and maxUnavailable cannot be both set",
            "spec.minAvailable: Invalid value: \"101%\": must not be greater than 100%",
            "spec.maxUnavailable: Invalid value: -1: must be greater than or equal to 0",
            "spec.unhealthyPodEvictionPolicy: Unsupported value: \"X\": supported values: \"AlwaysAllow\", \"IfHealthyBudget\"",
        ],
    );
    check(
        BUDGET,
        &json!({"metadata": {"name": "a/b"}}),
        &["metadata.name: Invalid value: \"a/b\": may not contain '/'"],
    );
}

#[test]
fn events_are_where_what_they_are_about_is() {
    check(
        ("v1", "Event"),
        &json!({"involvedObject": {"namespace": "other"}}),
        &["involvedObject.namespace: Invalid value: \"other\": does not match event.namespace"],
    );
    check(
        ("events.k8s.io/v1", "Event"),
        &json!({"regarding": {"namespace": "n"}, "eventTime": "2024-01-01T00:00:00.000000Z", "type": "Odd",
            "reportingController": "c", "reportingInstance": "i", "action": "a", "reason": "r", "series": {"count": 1}}),
        &[
            "series.count: Invalid value: \"\": should be at least 2",
            "series.lastObservedTime: Required value",
            "type: Invalid value: \"\": has invalid value: Odd",
        ],
    );
    let event = |note: &str| {
        json!({"regarding": {"namespace": "n"}, "eventTime": "2024-01-01T00:00:00.000000Z",
        "reportingController": "c", "reportingInstance": "i", "action": "a", "reason": "r", "note": note})
    };
    check_update(
        ("events.k8s.io/v1", "Event"),
        &event("a"),
        &event("b"),
        Subresource::Main,
        &["message: Invalid value: \"b\": field is immutable"],
    );
}

#[test]
fn services_keep_what_was_allocated_for_them() {
    let resource = resource("v1", "Service");
    let gates = gates();
    let ctx = RuleContext { gates: &gates, allow_privileged: true, now: Timestamp::new(0, 0) };
    let old = json!({"spec": {"type": "NodePort", "clusterIP": "10.0.0.5", "clusterIPs": ["10.0.0.5"],
        "ipFamilies": ["IPv4"], "ipFamilyPolicy": "SingleStack", "externalTrafficPolicy": "Cluster",
        "ports": [{"port": 80, "protocol": "TCP", "nodePort": 31000}]}, "status": {"loadBalancer": {}}});
    let updated = |spec: Value| {
        let mut new = json!({"spec": spec});
        rules::set_defaults(resource, &mut new);
        rules::prepare_update(resource, &mut new, &old, Subresource::Main, &ctx);
        new["spec"].clone()
    };
    let same = updated(json!({"type": "NodePort", "ports": [{"port": 80}]}));
    assert_eq!(same["clusterIP"], "10.0.0.5");
    assert_eq!(same["ports"][0]["nodePort"], 31000);
    let mut plain = old["spec"].clone();
    plain["type"] = "ClusterIP".into();
    let plain = updated(plain);
    assert!(
        plain["ports"][0].get("nodePort").is_none() && plain.get("externalTrafficPolicy").is_none()
    );
    let mut outside = old["spec"].clone();
    outside["type"] = "ExternalName".into();
    let outside = updated(outside);
    assert!(outside.get("clusterIP").is_none() && outside.get("ipFamilies").is_none());
    let moved =
        json!({"spec": {"type": "NodePort", "clusterIP": "10.0.0.6", "ports": [{"port": 80}]}});
    check_update(
        ("v1", "Service"),
        &old,
        &moved,
        Subresource::Main,
        &[
            "spec.clusterIPs[0]: Invalid value: null: primary clusterIP can not be unset",
            "spec.clusterIPs: Required value",
        ],
    );
    let mut moved = old.clone();
    moved["spec"]["clusterIP"] = "10.0.0.6".into();
    check_update(
        ("v1", "Service"),
        &old,
        &moved,
        Subresource::Main,
        &["spec.clusterIPs[0]: Invalid value: [\"10.0.0.6\"]: may not change once set"],
    );
}

#[test]
fn services_are_checked_port_by_port() {
    check(
        ("v1", "Service"),
        &json!({"spec": {"externalIPs": ["127.0.0.1", "x"], "loadBalancerClass": "a.io/b", "ports": [
            {"name": "a", "port": 80, "targetPort": "BAD"},
            {"name": "a", "port": 80, "protocol": "X", "nodePort": 31000},
        ]}}),
        &[
            "spec.ports[0].targetPort: Invalid value: \"BAD\": must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)",
            "spec.ports[0].targetPort: Invalid value: \"BAD\": must contain at least one letter (a-z)",
            "spec.ports[1].name: Duplicate value: \"a\"",
            "spec.ports[1].protocol: Unsupported value: \"X\": supported values: \"SCTP\", \"TCP\", \"UDP\"",
            "spec.externalIPs[0]: Invalid value: \"127.0.0.1\": may not be in the loopback range (127.0.0.0/8, ::1/128)",
            "spec.externalIPs[1]: Invalid value: \"x\": must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)",
            "spec.ports[1].nodePort: Forbidden: may not be used when `type` is 'ClusterIP'",
            "spec.loadBalancerClass: Forbidden: may only be used when `type` is 'LoadBalancer'",
        ],
    );
}

fn job(spec: Value) -> Value {
    let container = json!({"name": "c", "image": "i", "terminationMessagePolicy": "File", "imagePullPolicy": "Always"});
    let mut job = json!({});
    job["spec"] = spec;
    job["spec"]["template"] =
        json!({"spec": {"containers": [container], "restartPolicy": "Never"}});
    job
}

#[test]
fn jobs_have_policies_that_make_sense() {
    const JOB: (&str, &str) = ("batch/v1", "Job");
    check(
        JOB,
        &job(json!({"completionMode": ""})),
        &[
            "spec.completionMode: Unsupported value: \"\": supported values: \"NonIndexed\", \"Indexed\"",
        ],
    );
    let codes = json!({"operator": "In", "values": [0, 2, 1], "containerName": "nope"});
    let rules = json!([{"action": "FailIndex", "onExitCodes": codes}, {"action": "X"}]);
    check(
        JOB,
        &job(json!({"podFailurePolicy": {"rules": rules}})),
        &[
            "spec.podFailurePolicy.rules[0].action: Invalid value: \"FailIndex\": requires the backoffLimitPerIndex to be set",
            "spec.podFailurePolicy.rules[0].onExitCodes.containerName: Invalid value: \"nope\": must be one of the container or initContainer names in the pod template",
            "spec.podFailurePolicy.rules[0].onExitCodes.values[0]: Invalid value: 0: must not be 0 for the In operator",
            "spec.podFailurePolicy.rules[0].onExitCodes.values: Invalid value: [0,2,1]: must be ordered",
            "spec.podFailurePolicy.rules[1].action: Unsupported value: \"X\": supported values: \"Count\", \"FailIndex\", \"FailJob\", \"Ignore\"",
            "spec.podFailurePolicy.rules[1]: Invalid value: specifying one of OnExitCodes and OnPodConditions is required",
        ],
    );
    check(
        JOB,
        &job(
            json!({"completionMode": "Indexed", "completions": 3, "parallelism": 1, "successPolicy": {"rules": [
                {"succeededIndexes": "0-9", "succeededCount": 5},
            ]}}),
        ),
        &[
            "spec.successPolicy.rules[0].succeededIndexes: Invalid value: \"0-9\": error parsing succeededIndexes: too large index: \"9\"",
            "spec.successPolicy.rules[0].succeededCount: Invalid value: 5: must be less than or equal to 3 (the number of specified completions)",
            "spec.successPolicy.rules[0].succeededCount: Invalid value: 5: must be less than or equal to 0 (the number of indexes in the specified succeededIndexes field)",
        ],
    );
}

#[test]
fn a_suspended_job_may_move() {
    const JOB: (&str, &str) = ("batch/v1", "Job");
    let manual =
        json!({"suspend": true, "manualSelector": true, "selector": {"matchLabels": {"a": "b"}}});
    let mut old = job(manual);
    old["spec"]["template"]["metadata"] = json!({"labels": {"a": "b"}});
    let mut new = old.clone();
    new["spec"]["template"]["spec"]["nodeSelector"] = json!({"k": "v"});
    let resources = json!({"requests": {"cpu": "1"}});
    new["spec"]["template"]["spec"]["containers"][0]["resources"] = resources;
    let moves = |old: &Value, new: &Value| {
        let resource = resource(JOB.0, JOB.1);
        let gates = gates();
        let ctx = RuleContext { gates: &gates, allow_privileged: true, now: Timestamp::new(0, 0) };
        let (mut old, mut new) = (named(resource, old), named(resource, new));
        for object in [&mut old, &mut new] {
            object["metadata"]["resourceVersion"] = "1".into();
            rules::set_defaults(resource, object);
        }
        let causes = rules::validate_update(resource, &new, &old, Subresource::Main, &ctx);
        let fields: Vec<&str> = causes.0.iter().map(|cause| cause.field.as_str()).collect();
        assert!(matches!(fields.as_slice(), [] | ["spec.template"]), "{fields:?}");
        causes.is_empty()
    };
    let with = |status: Value| {
        let mut job = old.clone();
        job["status"] = status;
        job
    };
    let started = "2024-01-01T00:00:00Z";
    let suspended = json!([{"type": "Suspended", "status": "True"}]);
    assert!(moves(&old, &new));
    assert!(!moves(&with(json!({"startTime": started})), &new));
    assert!(moves(&with(json!({"startTime": started, "conditions": suspended})), &new));
    let going = json!({"startTime": started, "conditions": suspended, "active": 1});
    assert!(!moves(&with(going), &new));
    new["spec"]["template"]["spec"]["containers"][0]["image"] = "other".into();
    assert!(!moves(&old, &new));
}

#[test]
fn revisions_do_not_change() {
    const REVISION: (&str, &str) = ("apps/v1", "ControllerRevision");
    check(
        REVISION,
        &json!({"revision": -1}),
        &[
            "data: Required value: data is mandatory",
            "revision: Invalid value: -1: must be greater than or equal to 0",
        ],
    );
    check_update(
        REVISION,
        &json!({"data": {"a": 1}, "revision": 1}),
        &json!({"data": {"a": 2}, "revision": 2}),
        Subresource::Main,
        &["data: Invalid value: {\"a\":2}: field is immutable"],
    );
}

#[test]
fn a_daemon_sets_template_is_numbered() {
    let resource = resource("apps/v1", "DaemonSet");
    let gates = gates();
    let ctx = RuleContext { gates: &gates, allow_privileged: true, now: Timestamp::new(0, 0) };
    let mut set = json!({"metadata": {"name": "d", "generation": 7}, "spec": {"template": {"spec": {"containers": []}}}});
    rules::set_defaults(resource, &mut set);
    rules::prepare_create(resource, &mut set, &ctx);
    assert_eq!(set["metadata"]["generation"], 1);
    let number = |set: &Value| set["metadata"]["annotations"][super::TEMPLATE_GENERATION].clone();
    assert_eq!(number(&set), "1");
    let mut changed = set.clone();
    changed["metadata"]["annotations"] = json!({});
    changed["spec"]["minReadySeconds"] = 5.into();
    rules::prepare_update(resource, &mut changed, &set, Subresource::Main, &ctx);
    assert_eq!(
        (changed["metadata"]["generation"].clone(), number(&changed)),
        (2.into(), "1".into())
    );
    changed["spec"]["template"]["spec"]["hostNetwork"] = true.into();
    let before = changed.clone();
    let mut again = changed;
    again["spec"]["template"]["spec"]["hostNetwork"] = false.into();
    rules::prepare_update(resource, &mut again, &before, Subresource::Main, &ctx);
    assert_eq!((again["metadata"]["generation"].clone(), number(&again)), (3.into(), "2".into()));
}

#[test]
fn accounts_keep_the_names_of_their_secrets() {
    let (made, causes) = created(
        ("v1", "ServiceAccount"),
        &json!({"secrets": [{"name": "a", "namespace": "b", "kind": "c"}, {"name": "d"}]}),
    );
    assert!(causes.is_empty());
    assert_eq!(made["secrets"], json!([{"name": "a"}, {"name": "d"}]));
}

#[test]
fn registry_secrets_hold_an_object() {
    for (encoded, expected) in [
        ("eHg=", "invalid character 'x' looking for beginning of value"),
        ("", "unexpected end of JSON input"),
        ("W10=", "json: cannot unmarshal array into Go value of type map[string]interface {}"),
    ] {
        let secret = json!({"type": "kubernetes.io/dockercfg", "data": {".dockercfg": encoded}});
        let expected =
            format!("data[.dockercfg]: Invalid value: \"<secret contents redacted>\": {expected}");
        check(("v1", "Secret"), &secret, &[&expected]);
    }
}

#[test]
fn absent_counts_are_zero() {
    check_update(
        ("apps/v1", "ReplicaSet"),
        &json!({}),
        &json!({"status": {"replicas": -1}}),
        Subresource::Status,
        &[
            "status.replicas: Invalid value: -1: must be greater than or equal to 0",
            "status.fullyLabeledReplicas: Invalid value: 0: cannot be greater than status.replicas",
            "status.readyReplicas: Invalid value: 0: cannot be greater than status.replicas",
            "status.availableReplicas: Invalid value: 0: cannot be greater than status.replicas",
        ],
    );
}

#[test]
fn bounds_of_a_strategy_that_does_not_roll_are_numbers() {
    let strategy = json!({"type": "OnDelete", "rollingUpdate": {"maxUnavailable": 2}});
    let (made, _) =
        created(("apps/v1", "DaemonSet"), &json!({"spec": {"updateStrategy": strategy}}));
    let rolling = &made["spec"]["updateStrategy"]["rollingUpdate"];
    assert_eq!(*rolling, json!({"maxUnavailable": 2, "maxSurge": 0}));
    // A number written as text is an error, not zero.
    let strategy = json!({"rollingUpdate": {"maxUnavailable": "5"}});
    let (_, causes) =
        created(("apps/v1", "DaemonSet"), &json!({"spec": {"updateStrategy": strategy}}));
    let of_strategy = causes.iter().filter(|cause| cause.starts_with("spec.updateStrategy"));
    assert_eq!(of_strategy.count(), 1, "{causes:?}");
}

#[test]
fn long_job_name_is_reported_at_its_generated_label() {
    let mut long = job(json!({}));
    let name = "x".repeat(64);
    long["metadata"] = json!({"name": name});
    let expected =
        format!("spec.template.labels: Invalid value: {name:?}: must be no more than 63 bytes");
    check(("batch/v1", "Job"), &long, &[&expected]);
}

#[test]
fn services_warn_of_what_is_ignored() {
    let warned = |spec: Value, annotations: Value| {
        let service = json!({"metadata": {"annotations": annotations}, "spec": spec});
        rules::warnings(resource("v1", "Service"), &service, None)
    };
    let hints = json!({"service.kubernetes.io/topology-aware-hints": "auto"});
    assert_eq!(
        warned(json!({"type": "ClusterIP", "externalName": "a.b"}), hints),
        [
            "annotation service.kubernetes.io/topology-aware-hints is deprecated, please use service.kubernetes.io/topology-mode instead",
            "spec.externalName is ignored when spec.type is not \"ExternalName\"",
        ]
    );
    assert_eq!(
        warned(
            json!({"type": "ExternalName", "externalName": "a.b", "trafficDistribution": "PreferClose"}),
            json!({})
        ),
        ["spec.trafficDistribution: \"PreferClose\" is deprecated; use \"PreferSameZone\""]
    );
    let ignored = |kind: &str, address: &str| {
        let spec = json!({"type": kind, "clusterIP": address, "externalIPs": ["1.2.3.4"], "sessionAffinity": "None"});
        warned(spec, json!({}))
    };
    assert_eq!(
        ignored("ClusterIP", "10.0.0.9"),
        ["spec.externalIPs is deprecated and may no longer be implemented in some clusters"]
    );
    assert_eq!(ignored("ClusterIP", "None"), ["spec.externalIPs is ignored for headless services"]);
    assert_eq!(
        ignored("ExternalName", ""),
        ["spec.externalIPs is ignored when spec.type is \"ExternalName\""]
    );
    let balanced = json!({
        "type": "LoadBalancer", "clusterIP": "FD00::1", "clusterIPs": ["FD00::1"],
        "loadBalancerIP": "fd00:0::2", "loadBalancerSourceRanges": ["fd00:0::/64", "10.0.0.0/8"],
    });
    assert_eq!(
        warned(balanced, json!({})),
        [
            "spec.clusterIPs[0]: IPv6 address \"FD00::1\" should be in RFC 5952 canonical format (\"fd00::1\")",
            "spec.loadBalancerIP: IPv6 address \"fd00:0::2\" should be in RFC 5952 canonical format (\"fd00::2\")",
            "spec.loadBalancerSourceRanges[0]: IPv6 CIDR value \"fd00:0::/64\" should be in RFC 5952 canonical format (\"fd00::/64\")",
        ]
    );
}

#[test]
fn runtime_classes_warn_of_labels_that_have_new_names() {
    let selector = json!({"beta.kubernetes.io/instance-type": "a", "kubernetes.io/os": "linux"});
    let class = json!({"handler": "h", "scheduling": {"nodeSelector": selector}});
    assert_eq!(
        rules::warnings(resource("node.k8s.io/v1", "RuntimeClass"), &class, None),
        [
            "scheduling.nodeSelector: deprecated since v1.17; use \"node.kubernetes.io/instance-type\" instead"
        ]
    );
}

#[test]
fn a_template_is_warned_of_again_when_it_counts() {
    let status = |generation: i64, ready: i64, image: &str| {
        let container = json!({"name": "c", "image": image});
        let volumes = json!([{"name": "v", "gitRepo": {"repository": "r"}}]);
        json!({
            "metadata": {"name": "w", "generation": generation},
            "spec": {
                "minReadySeconds": ready,
                "template": {"spec": {"containers": [container], "volumes": volumes}},
            },
        })
    };
    let warned = |kind: &str, new: &Value| {
        !rules::warnings(resource("apps/v1", kind), new, Some(&status(1, 0, "i"))).is_empty()
    };
    for kind in ["Deployment", "ReplicaSet"] {
        assert!(!warned(kind, &status(1, 0, "i")));
        assert!(warned(kind, &status(2, 5, "i")));
    }
    assert!(!warned("DaemonSet", &status(2, 5, "i")));
    assert!(warned("DaemonSet", &status(2, 0, "j")));
}

#[test]
fn a_deployment_hands_on_its_annotations_and_keeps_its_labels() {
    let resource = resource("apps/v1", "Deployment");
    let gates = gates();
    let ctx = RuleContext { gates: &gates, allow_privileged: true, now: Timestamp::new(0, 0) };
    let old = json!({"metadata": {"name": "d", "generation": 7, "labels": {"a": "b"}}, "spec": {"replicas": 1}});
    let generation = |subresource: Subresource, metadata: &str| {
        let mut new = old.clone();
        new["metadata"][metadata] = json!({"k": "v"});
        rules::prepare_update(resource, &mut new, &old, subresource, &ctx);
        (new["metadata"]["generation"].clone(), new["metadata"]["labels"].clone())
    };
    assert_eq!(generation(Subresource::Main, "annotations"), (8.into(), json!({"a": "b"})));
    assert_eq!(generation(Subresource::Status, "annotations"), (7.into(), json!({"a": "b"})));
    assert_eq!(generation(Subresource::Main, "labels"), (7.into(), json!({"k": "v"})));
    assert_eq!(generation(Subresource::Status, "labels"), (7.into(), json!({"a": "b"})));
}

#[test]
fn families_a_cluster_does_not_have_are_refused() {
    for (spec, expected) in [
        (
            json!({"ipFamilies": ["IPv6"]}),
            "spec.ipFamilies[0]: Invalid value: \"IPv6\": not configured on this cluster",
        ),
        (
            json!({"ipFamilies": ["IPv4", "IPv6"]}),
            "spec.ipFamilyPolicy: Invalid value: \"SingleStack\": must be 'RequireDualStack' or 'PreferDualStack' when multiple IP families are specified",
        ),
        (
            json!({"ipFamilyPolicy": "RequireDualStack"}),
            "spec.ipFamilyPolicy: Invalid value: \"RequireDualStack\": this cluster is not configured for dual-stack services",
        ),
        (
            json!({"clusterIPs": ["fd00::1"]}),
            "spec.clusterIPs[0]: Invalid value: [\"fd00::1\"]: IPv6 is not configured on this cluster",
        ),
    ] {
        let causes = super::service::refuse_families(&json!({"spec": spec}));
        assert_eq!(texts(&causes), [expected]);
    }
    // Endpoints of a headless service without a selector are created manually, in any family.
    let mut free =
        json!({"spec": {"clusterIP": "None", "clusterIPs": ["None"], "ipFamilies": ["IPv6"]}});
    assert!(super::service::refuse_families(&free).is_empty());
    super::service::set_address(&mut free, None);
    assert_eq!(free["spec"]["ipFamilies"], json!(["IPv6", "IPv4"]));
}

#[test]
fn ports_of_one_number_share_a_node_port() {
    let service = |ports: Value| json!({"spec": {"type": "NodePort", "ports": ports}});
    let shared = service(
        json!([{"port": 53, "protocol": "UDP", "nodePort": 30053}, {"port": 53, "protocol": "TCP"}]),
    );
    let number = shared["spec"]["ports"][1]["port"].as_i64().unwrap();
    assert_eq!(super::service::node_ports(&shared).get(&number), Some(&30053));
    assert_eq!(super::service::reused_node_port(&shared), None);
    let reused = service(json!([{"port": 53, "nodePort": 30053}, {"port": 54, "nodePort": 30053}]));
    assert_eq!(super::service::reused_node_port(&reused), Some(1));
}
