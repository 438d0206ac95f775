//! Cases that the recordings do not contain: gates that are off, classes, and rules of rarely used
//! fields.

use serde_json::{Value, json};

use super::super::{self as rules, RuleContext, Subresource};
use super::class_resources;
use crate::catalog::{self, Resource};
use crate::feature_gates::FeatureGates;
use crate::timestamp::Timestamp;

fn pods() -> &'static Resource {
    catalog::find("", "v1", "pods").unwrap()
}

fn ctx(gates: &FeatureGates) -> RuleContext<'_> {
    RuleContext { gates, allow_privileged: true, now: Timestamp::new(0, 0) }
}

/// Builds a pod as it would be stored, from a spec without containers and one container.
fn pod(spec: &Value, container: &Value) -> Value {
    let mut pod = json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p", "namespace": "n", "resourceVersion": "1"},
        "spec": {"containers": [{"name": "c", "image": "app:1", "resources": {}}]},
    });
    for (field, value) in spec.as_object().unwrap() {
        pod["spec"][field] = value.clone();
    }
    for (field, value) in container.as_object().unwrap() {
        pod["spec"]["containers"][0][field] = value.clone();
    }
    rules::set_defaults(pods(), &mut pod);
    pod
}

fn created(pod: &Value, gates: &str) -> Vec<String> {
    let gates = FeatureGates::parse(gates).unwrap();
    let mut pod = pod.clone();
    rules::prepare_create(pods(), &mut pod, &ctx(&gates));
    shown(rules::validate_create(pods(), &pod, &ctx(&gates)))
}

#[test]
fn app_armor_annotation_warns_unless_a_field_is_set() {
    let key = "container.apparmor.security.beta.kubernetes.io/c";
    let expected = "metadata.annotations[container.apparmor.security.beta.kubernetes.io/c]: deprecated \
                since v1.30; use the \"appArmorProfile\" field instead";
    let default = json!({"type": "RuntimeDefault"});
    let check = |annotation: &str, spec: Value, container: Value, warned: bool, field: Value| {
        let mut pod = pod(&spec, &container);
        pod["spec"]["containers"][0]["name"] = "c".into();
        pod["metadata"]["annotations"] = json!({key: annotation});
        let gates = FeatureGates::default();
        let warnings = rules::prepare_create(pods(), &mut pod, &ctx(&gates));
        assert_eq!(warnings, if warned { vec![expected] } else { vec![] }, "{annotation} {pod}");
        let context = &pod["spec"]["containers"][0]["securityContext"];
        assert_eq!(context["appArmorProfile"], field, "{annotation} {pod}");
    };
    let of_pod = json!({"securityContext": {"appArmorProfile": default}});
    check("runtime/default", json!({}), json!({}), true, default.clone());
    check("runtime/default", of_pod.clone(), json!({}), false, Value::Null);
    check("unconfined", of_pod.clone(), json!({}), true, json!({"type": "Unconfined"}));
    check("unconfined", json!({}), of_pod, false, default);
    check("nonsense", json!({}), json!({}), true, Value::Null);
    check("unconfined", json!({"os": {"name": "windows"}}), json!({}), false, Value::Null);
}

fn updated(new: &Value, old: &Value, subresource: Subresource, gates: &str) -> Vec<String> {
    let gates = FeatureGates::parse(gates).unwrap();
    let mut new = new.clone();
    rules::prepare_update(pods(), &mut new, old, subresource, &ctx(&gates));
    shown(rules::validate_update(pods(), &new, old, subresource, &ctx(&gates)))
}

fn shown(causes: crate::cursor::Causes) -> Vec<String> {
    causes.0.into_iter().map(|cause| format!("{}: {}", cause.field, cause.message)).collect()
}

fn with_class(class: &str) -> Value {
    let classes = json!([{"name": "k8s.io/rdt", "class": class}]);
    pod(&json!({}), &json!({"resources": {"qosResources": classes}}))
}

#[test]
fn host_process_is_rejected_without_the_gate_unless_stored() {
    let context = json!({"windowsOptions": {"hostProcess": true}});
    let pod = pod(&json!({"hostNetwork": true, "securityContext": context}), &json!({}));
    assert!(created(&pod, "").is_empty());
    let off = "WindowsHostProcessContainers=false";
    assert_eq!(
        created(&pod, off),
        ["spec: Forbidden: hostProcess may not be set when the WindowsHostProcessContainers \
          feature gate is disabled"]
    );
    let mut labelled = pod.clone();
    labelled["metadata"]["labels"] = json!({"a": "b"});
    assert!(updated(&labelled, &pod, Subresource::Main, off).is_empty());
}

#[test]
fn class_requests_are_rejected_without_the_gate_unless_stored() {
    let asking = with_class("gold");
    let refused = created(&asking, "");
    assert_eq!(
        refused,
        ["spec.containers[0].resources.qosResources: Forbidden: may not be set when the \
          QOSResources feature gate is disabled"]
    );
    assert!(created(&asking, "QOSResources=true").is_empty());
    let mut labelled = asking.clone();
    labelled["metadata"]["labels"] = json!({"a": "b"});
    assert!(updated(&labelled, &asking, Subresource::Main, "").is_empty());
    let pod_level =
        json!([{"name": "blockio", "class": "slow"}, {"name": "acme.com/x", "class": "a"}]);
    let pod = pod(&json!({"qosResources": pod_level}), &json!({}));
    assert!(created(&pod, "QOSResources=true").is_empty());
    assert_eq!(pod["spec"]["qosResources"][0]["name"], "blockio");
}

#[test]
fn container_class_changes_through_pod_and_resize() {
    let (gold, silver) = (with_class("gold"), with_class("silver"));
    for subresource in [Subresource::Main, Subresource::Resize] {
        assert!(
            updated(&silver, &gold, subresource, "QOSResources=true").is_empty(),
            "{subresource:?}"
        );
        assert!(!updated(&with_class(""), &gold, subresource, "QOSResources=true").is_empty());
    }
    let mut bumped = silver.clone();
    let gates = FeatureGates::parse("QOSResources=true").unwrap();
    rules::prepare_update(pods(), &mut bumped, &gold, Subresource::Main, &ctx(&gates));
    assert_eq!(bumped["metadata"]["generation"], 1);
    let refused = class_resources::validate_changes(&silver, &gold, |_| Some(false));
    assert_eq!(
        shown(refused),
        [
            "spec.containers[0].resources.qosResources[0].class: Forbidden: may not be changed while \
          the container runs"
        ]
    );
}

#[test]
fn pod_level_classes_do_not_change() {
    let with = |class: &str| {
        let classes = json!([{"name": "acme.com/net", "class": class}]);
        pod(&json!({"qosResources": classes}), &json!({}))
    };
    let refused = updated(&with("b"), &with("a"), Subresource::Main, "QOSResources=true");
    assert_eq!(refused.len(), 1);
    assert!(refused[0].starts_with("spec: Forbidden: pod updates may not change"), "{refused:?}");
    assert!(
        refused[0]
            .ends_with("- spec.qosResources[0].class: \"a\"\n+ spec.qosResources[0].class: \"b\"")
    );
}

#[test]
fn invalid_new_pods_are_rejected_with_their_causes() {
    let device = json!([{"name": "d", "devicePath": "/dev/d"}]);
    let claim = json!([{"name": "d", "persistentVolumeClaim": {"claimName": "c"}}]);
    let fields = |path: &str| json!({"env": [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": path}}}]});
    let file = |volume: &str, path: &str| {
        let file = json!({"volumeName": volume, "path": path, "key": "K"});
        json!({"env": [{"name": "A", "valueFrom": {"fileKeyRef": file}}]})
    };
    let init = |policy: &str, kind: Option<&str>| {
        let policies = json!([{"resourceName": "cpu", "restartPolicy": policy}]);
        let mut container = json!({"name": "i", "image": "app:1", "resizePolicy": policies});
        if let Some(kind) = kind {
            container["restartPolicy"] = kind.into();
        }
        json!({"initContainers": [container]})
    };
    let filled = |from: Value| {
        let mut claim = json!({
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1Gi"}},
        });
        claim.as_object_mut().unwrap().extend(from.as_object().unwrap().clone());
        let template = json!({"volumeClaimTemplate": {"spec": claim}});
        json!({"volumes": [{"name": "v", "ephemeral": template}]})
    };
    let operator =
        |operator: &str| json!({"tolerations": [{"key": "k", "operator": operator, "value": "1"}]});
    let none: &[&str] = &[];
    let cases: Vec<(Value, Value, &[&str])> = vec![
        (
            json!({}),
            fields("status.phase"),
            &["spec.containers[0].env[0].valueFrom.fieldRef.fieldPath: Unsupported value: \
               \"status.phase\": supported values: \"metadata.name\", \"metadata.namespace\", \
               \"metadata.uid\", \"spec.nodeName\", \"spec.serviceAccountName\", \
               \"status.hostIP\", \"status.hostIPs\", \"status.podIP\", \"status.podIPs\""],
        ),
        (
            json!({}),
            fields("spec.foo"),
            &["spec.containers[0].env[0].valueFrom.fieldRef.fieldPath: Invalid value: \
               \"spec.foo\": error converting fieldPath: field label not supported: spec.foo"],
        ),
        (json!({"volumes": [{"name": "v", "emptyDir": {}}]}), file("v", "/a/b"), none),
        (
            json!({"volumes": [{"name": "v", "hostPath": {"path": "/v"}}]}),
            file("v", "a/../b"),
            &[
                "spec.containers[0].env[0].valueFrom.fileKeyRef.path: Invalid value: \
                 \"a/../b\": must not contain '..'",
                "spec.containers[0].env[0].valueFrom.fileKeyRef.volumeName: Invalid value: \"v\": \
                 referenced volume must be of type emptyDir",
            ],
        ),
        (
            json!({}),
            file("w", "a"),
            &["spec.containers[0].env[0].valueFrom.fileKeyRef.volumeName: Not found: \"w\""],
        ),
        (
            json!({"volumes": [{"name": "v", "image": {"reference": "x:1"}}]}),
            json!({"volumeMounts": [{"name": "v", "mountPath": "/v", "subPathExpr": "a"}]}),
            none,
        ),
        (
            init("RestartContainer", None),
            json!({}),
            &["spec.initContainers[0].resizePolicy[0].restartPolicy: Invalid value: \
               \"RestartContainer\": must not be set to 'RestartContainer' for non-sidecar \
               initContainers"],
        ),
        (init("NotRequired", None), json!({}), none),
        (init("RestartContainer", Some("Always")), json!({}), none),
        (
            json!({"hostUsers": false, "hostPID": true, "hostIPC": true, "hostNetwork": true}),
            json!({}),
            &[
                "spec.hostNetwork: Forbidden: when `hostUsers` is false",
                "spec.HostPID: Forbidden: when `hostUsers` is false",
                "spec.HostIPC: Forbidden: when `hostUsers` is false",
            ],
        ),
        (
            json!({"hostUsers": false, "volumes": claim}),
            json!({"volumeDevices": device}),
            &["spec.containers[0].volumeDevices: Forbidden: when `hostUsers` is false"],
        ),
        (json!({"volumes": claim}), json!({"volumeDevices": device}), none),
        (
            json!({"hostnameOverride": "A", "hostNetwork": true, "setHostnameAsFQDN": true,
                   "serviceAccountName": "B"}),
            json!({}),
            &[
                "spec.hostnameOverride: Forbidden: may not be specified when setHostnameAsFQDN is \
                 true",
                "spec.hostnameOverride: Forbidden: may not be specified when hostNetwork is true",
                "spec.hostnameOverride: Invalid value: \"A\": a lowercase RFC 1123 subdomain must \
                 consist of lower case alphanumeric characters, '-' or '.', and must start and \
                 end with an alphanumeric character (e.g. 'example.com', regex used for \
                 validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')",
                "spec.serviceAccountName: Invalid value: \"B\": a lowercase RFC 1123 subdomain \
                 must consist of lower case alphanumeric characters, '-' or '.', and must start \
                 and end with an alphanumeric character (e.g. 'example.com', regex used for \
                 validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')",
            ],
        ),
        (
            filled(json!({"dataSource": {"kind": "Foo", "name": "x"}})),
            json!({}),
            &["spec.volumes[0].ephemeral.volumeClaimTemplate.spec.dataSource: Invalid value: \
               \"Foo\": must be 'PersistentVolumeClaim' when referencing the default apiGroup"],
        ),
        (
            filled(json!({
                "dataSource": {"apiGroup": "a.b", "kind": "Foo", "name": "x"},
                "dataSourceRef": {"apiGroup": "a.b", "kind": "Foo", "name": "y"},
            })),
            json!({}),
            &["spec.volumes[0].ephemeral.volumeClaimTemplate.spec: Invalid value: {}: must match \
               dataSourceRef"],
        ),
        (
            operator("Lt"),
            json!({}),
            &["spec.tolerations[0].operator: Unsupported value: \"Lt\": supported values: \
               \"Equal\", \"Exists\", \"Lt\", \"Gt\""],
        ),
        (
            operator("Foo"),
            json!({}),
            &["spec.tolerations[0].operator: Unsupported value: \"Foo\": supported values: \
               \"Equal\", \"Exists\""],
        ),
    ];
    for (spec, container, expected) in cases {
        assert_eq!(created(&pod(&spec, &container), ""), expected, "{spec} {container}");
    }
}

#[test]
fn warnings_about_files_of_a_volume_come_source_by_source() {
    let file =
        |name: &str| json!({"configMap": {"name": name, "items": [{"key": "k", "path": "p/"}]}});
    let sources = json!([file("a"), {}, file("b")]);
    let volumes = json!([{"name": "v", "projected": {"sources": sources}}]);
    assert_eq!(
        rules::warnings(pods(), &pod(&json!({"volumes": volumes}), &json!({})), None),
        [
            "volume \"v\" (Projected) has no sources provided",
            "volume \"v\" (Projected): overlapping paths: \"p\" (ConfigMap \"b\") with \"p\" \
             (ConfigMap \"a\")",
        ]
    );
}

#[test]
fn a_mirror_of_a_static_pod_has_no_claims() {
    let claims = json!([{"name": "c", "resourceClaimName": "x"}]);
    let mut mirror = pod(&json!({"nodeName": "n", "resourceClaims": claims}), &json!({}));
    assert!(created(&mirror, "").is_empty());
    mirror["metadata"]["annotations"] = json!({"kubernetes.io/config.mirror": "x"});
    assert_eq!(created(&mirror, ""), ["[]: Forbidden: static pods do not support resource claims"]);
}

#[test]
fn stored_pod_keeps_values_that_new_pods_may_not_have() {
    let device = json!([{"name": "d", "devicePath": "/dev/d"}]);
    let claim = json!([{"name": "d", "persistentVolumeClaim": {"claimName": "c"}}]);
    let policies = json!([{"resourceName": "cpu", "restartPolicy": "RestartContainer"}]);
    let stored = pod(
        &json!({"hostUsers": false, "volumes": claim,
                "initContainers": [{"name": "i", "image": "app:1", "resizePolicy": policies}]}),
        &json!({"volumeDevices": device}),
    );
    assert_eq!(created(&stored, "").len(), 2);
    let mut labelled = stored.clone();
    labelled["metadata"]["labels"] = json!({"a": "b"});
    assert_eq!(updated(&labelled, &stored, Subresource::Main, ""), [""; 0]);
}

#[test]
fn impossible_statuses_are_rejected() {
    let with = |spec: Value, container: Value, status: Value| {
        let mut pod = pod(&spec, &container);
        pod["status"] = status;
        pod
    };
    let ended = |name: &str, code: i64| json!({"containerStatuses": [{"name": name, "state": {"terminated": {"exitCode": code}}}]});
    let runs =
        |name: &str| json!({"containerStatuses": [{"name": name, "state": {"running": {}}}]});
    const NOT_BACK: &[&str] =
        &["status.containerStatuses[0].state: Forbidden: may not be transitioned to \
           non-terminated state"];
    let never = || json!({"restartPolicy": "Never"});
    let rule = |action: &str| {
        let codes = json!({"operator": "In", "values": [3]});
        json!({"restartPolicy": "Never", "restartPolicyRules": [{"action": action, "exitCodes": codes}]})
    };
    let none: &[&str] = &[];
    let cases: Vec<(Value, Value, Value, Value, &[&str])> = vec![
        (json!({}), json!({}), ended("c", 1), runs("c"), none),
        (json!({}), json!({}), ended("x", 1), runs("x"), NOT_BACK),
        (never(), json!({}), ended("c", 1), runs("c"), NOT_BACK),
        (never(), rule("Restart"), ended("c", 3), runs("c"), none),
        (never(), rule("Restart"), ended("c", 4), runs("c"), NOT_BACK),
        (never(), rule("RestartAllContainers"), ended("c", 4), runs("c"), none),
        (json!({}), json!({"restartPolicy": "OnFailure"}), ended("c", 0), runs("c"), NOT_BACK),
        (
            json!({"nodeName": "n"}),
            json!({}),
            json!({}),
            json!({"nominatedNodeName": "m", "observedGeneration": -1}),
            &[
                "status.nominatedNodeName: Forbidden: may not be set on pods that are already \
                 bound to a node",
                "status.observedGeneration: Invalid value: -1: must be a non-negative integer",
            ],
        ),
        (
            json!({}),
            json!({}),
            json!({}),
            json!({"conditions": [{"type": "", "observedGeneration": -1}]}),
            &[
                "status.conditions[0].observedGeneration: Invalid value: -1: must be a \
                 non-negative integer",
                "status.conditions[0].Type: Invalid value: \"\": name part must be non-empty",
                "status.conditions[0].Type: Invalid value: \"\": name part must consist of \
                 alphanumeric characters, '-', '_' or '.', and must start and end with an \
                 alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used \
                 for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')",
            ],
        ),
        (
            json!({}),
            json!({}),
            json!({}),
            json!({"hostIP": "1.1.1.1", "hostIPs": [{"ip": "1.1.1.1"}, {"ip": "1.1.1.1"}]}),
            &["status.hostIPs: Invalid value: [{\"IP\":\"1.1.1.1\"},{\"IP\":\"1.1.1.1\"}]: may \
               specify no more than one IP for each IP family"],
        ),
        (
            json!({}),
            json!({}),
            json!({}),
            json!({"podIP": "fd00::1", "podIPs": [{"ip": "fd00::1"}, {"ip": "nope"}]}),
            &[
                "status.podIPs[1]: Invalid value: \"nope\": must be a valid IP address, (e.g. \
                 10.9.8.7 or 2001:db8::ffff)",
                "status.podIPs: Internal error: failed to check for dual stack with \
                 error:invalid IP[1]: nope",
                "status.podIPs: Invalid value: [{\"IP\":\"fd00::1\"},{\"IP\":\"nope\"}]: may \
                 specify no more than one IP for each IP family",
            ],
        ),
    ];
    for (spec, container, old, new, expected) in cases {
        let old = with(spec.clone(), container.clone(), old);
        let new = with(spec, container, new);
        assert_eq!(updated(&new, &old, Subresource::Status, ""), expected, "{new}");
    }
    let old = pod(&json!({}), &json!({}));
    let new = with(json!({}), json!({}), json!({"podIP": "nope", "podIPs": [{"ip": "nope"}]}));
    let refused = updated(&new, &old, Subresource::Status, "");
    assert!(refused[0].starts_with("status.podIPs[0]: Invalid value: \"nope\""), "{refused:?}");
}

#[test]
fn a_resize_can_give_a_pod_resources_of_its_own() {
    let requests = |cpu: &str| json!({"resources": {"requests": {"cpu": cpu}}});
    let old = pod(&json!({}), &requests("1"));
    let more = pod(&requests("2"), &requests("1"));
    assert_eq!(updated(&more, &old, Subresource::Resize, ""), [""; 0]);
    let pages = json!({"cpu": "2", "hugepages-2Mi": "2Mi"});
    let pages = json!({"resources": {"requests": pages, "limits": {"hugepages-2Mi": "2Mi"}}});
    let refused = updated(&pod(&pages, &requests("1")), &old, Subresource::Resize, "");
    assert_eq!(
        refused,
        ["spec: Forbidden: only cpu and memory resources are mutable at pod-level"]
    );
}

#[test]
fn claims_static_pods_and_windows_pods_prevent_a_resize() {
    let claims = json!([{"name": "r", "resourceClaimName": "x"}]);
    let container = |cpu: &str| json!({"requests": {"cpu": cpu}, "claims": [{"name": "r"}]});
    let with = |cpu: &str, init: &str| {
        let init = json!([{"name": "i", "image": "app:1", "resources": container(init)}]);
        let spec = json!({"resourceClaims": claims, "initContainers": init});
        pod(&spec, &json!({"resources": container(cpu)}))
    };
    const OF_INIT: &str = "spec.initContainers[0]: Forbidden: only cpu and memory resources for \
                           init or sidecar containers are mutable";
    for new in [with("2", "1"), with("1", "2"), with("1", "1")] {
        assert_eq!(
            updated(&new, &with("1", "1"), Subresource::Resize, ""),
            ["spec: Forbidden: only cpu and memory resources are mutable", OF_INIT]
        );
    }
    let requests = |cpu: &str| json!({"resources": {"requests": {"cpu": cpu}}});
    let check = |spec: Value, annotations: Value, subresource: Subresource, expected: &str| {
        let with = |cpu: &str| {
            let mut pod = pod(&spec, &requests(cpu));
            pod["metadata"]["annotations"] = annotations.clone();
            pod
        };
        let expected = format!("[]: Forbidden: {expected}");
        assert_eq!(updated(&with("2"), &with("1"), subresource, ""), [expected]);
    };
    let mirror = json!({"kubernetes.io/config.mirror": "x"});
    let bound = || json!({"nodeName": "n"});
    check(bound(), mirror.clone(), Subresource::Resize, "static pods cannot be resized");
    let expected = "static pods do not support ephemeral containers";
    check(bound(), mirror, Subresource::EphemeralContainers, expected);
    let windows = json!({"os": {"name": "windows"}});
    check(windows, json!({}), Subresource::Resize, "windows pods cannot be resized");
}

#[test]
fn narrowed_node_selection_is_rendered_with_every_field() {
    let gated = |terms: Value| {
        let required =
            json!({"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}});
        let affinity = json!({"nodeAffinity": required});
        pod(&json!({"schedulingGates": [{"name": "g"}], "affinity": affinity}), &json!({}))
    };
    let is = |key: &str| json!({"key": key, "operator": "Exists"});
    let of = |value: &str| json!({"key": "metadata.name", "operator": "In", "values": [value]});
    let old = gated(json!([{"matchExpressions": [is("a")]}]));
    let refused = |new: Value| updated(&gated(new), &old, Subresource::Main, "");
    const AT: &str = "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.\
                      nodeSelectorTerms";
    let a = r#"{"Key":"a","Operator":"Exists","Values":null}"#;
    let b = r#"{"Key":"b","Operator":"Exists","Values":null}"#;
    let n = r#"{"Key":"metadata.name","Operator":"In","Values":["n"]}"#;
    assert_eq!(
        refused(json!([{"matchExpressions": [is("b"), is("a")], "matchFields": [of("n")]}])),
        [format!(
            "{AT}[0]: Invalid value: {{\"MatchExpressions\":[{b},{a}],\"MatchFields\":[{n}]}}: only \
             additions are allowed (no mutations or deletions)"
        )]
    );
    assert_eq!(
        refused(json!([{"matchExpressions": [is("a")]}, {"matchExpressions": [is("b")]}])),
        [format!(
            "{AT}: Invalid value: [{{\"MatchExpressions\":[{a}],\"MatchFields\":null}},\
             {{\"MatchExpressions\":[{b}],\"MatchFields\":null}}]: no additions/deletions to \
             non-empty NodeSelectorTerms list are allowed"
        )]
    );
}

#[test]
fn nothing_panics_on_values_of_the_wrong_kind() {
    let gates = FeatureGates::default();
    for odd in [
        json!(null),
        json!([]),
        json!("x"),
        json!({"spec": []}),
        json!({"spec": {"containers": {}, "volumes": 3, "initContainers": [null, 1]}, "metadata": "m", "status": []}),
    ] {
        let mut pod = odd.clone();
        rules::set_defaults(pods(), &mut pod);
        rules::prepare_create(pods(), &mut pod, &ctx(&gates));
        let _ = rules::validate_create(pods(), &pod, &ctx(&gates));
        let _ = rules::warnings(pods(), &pod, None);
        for subresource in [
            Subresource::Main,
            Subresource::Status,
            Subresource::Resize,
            Subresource::EphemeralContainers,
        ] {
            let mut new = odd.clone();
            rules::prepare_update(pods(), &mut new, &pod, subresource, &ctx(&gates));
            let _ = rules::validate_update(pods(), &new, &pod, subresource, &ctx(&gates));
        }
    }
}
