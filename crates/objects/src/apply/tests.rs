use proptest::prelude::*;
use serde_json::{Map, json};

use super::*;
use crate::schema::Schema;

fn id_of(name: &str) -> TypeId {
    Schema::served().find(name).unwrap()
}

fn pods() -> TypeId {
    id_of("io.k8s.api.core.v1.Pod")
}

fn maps() -> TypeId {
    id_of("io.k8s.api.core.v1.ConfigMap")
}

fn by(name: &str) -> FieldManager<'_> {
    FieldManager { name, subresource: "", api_version: "v1" }
}

fn at(seconds: i64) -> Timestamp {
    Timestamp::new(seconds, 0)
}

/// Returns `new` after a write by a manager, with a uid, as it is stored.
fn tracked(
    id: TypeId,
    live: Option<&Value>,
    new: &Value,
    who: &FieldManager<'_>,
    now: i64,
) -> Value {
    let mut new = new.clone();
    track_update(Schema::served(), id, live, &mut new, who, at(now));
    new["metadata"]["uid"] = "u".into();
    new
}

fn applied(
    id: TypeId,
    live: Option<&Value>,
    config: &Value,
    name: &str,
    force: bool,
) -> Result<Value, ApplyError> {
    apply(Schema::served(), id, live, config, &by(name), force, at(100))
}

fn map(data: &Value) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m"}, "data": data})
}

/// kubectl sends this after it has migrated the ownership of client-side apply.
#[test]
fn giving_up_the_last_annotation_keeps_the_name() {
    let mut live = map(&json!({"a": "1"}));
    live["metadata"]["annotations"] = json!({"note": "x"});
    let live = applied(maps(), None, &live, "one", false).unwrap();
    let left = applied(maps(), Some(&live), &map(&json!({"b": "2"})), "one", false).unwrap();
    assert_eq!(left["metadata"]["name"], "m");
    assert!(left["metadata"]["annotations"].is_null(), "{left}");
    assert_eq!(left["data"], json!({"b": "2"}));
}

/// `manager operation subresource -> fields`, one line for each entry.
fn owners(object: &Value) -> Vec<String> {
    let list = object["metadata"]["managedFields"].as_array();
    let line = |entry: &Value| {
        let text = |name: &str| entry[name].as_str().unwrap_or_default().to_owned();
        let parts = [text("manager"), text("operation"), text("subresource")];
        let parts: Vec<String> = parts.into_iter().filter(|word| !word.is_empty()).collect();
        format!("{} {}", parts.join(" "), entry["fieldsV1"])
    };
    list.into_iter().flatten().map(line).collect()
}

#[test]
fn a_creator_owns_what_it_set_and_what_was_defaulted() {
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "p", "namespace": "n", "labels": {"run": "p"}},
        "spec": {
            "containers": [{"name": "c", "image": "i", "resources": {},
                "ports": [{"containerPort": 80, "protocol": "TCP"}], "command": ["a", "b"]}],
            "dnsPolicy": "ClusterFirst", "securityContext": {}, "tolerations": [{"key": "k"}]},
        "status": {"phase": "Pending"},
    });
    let wanted = json!({
        "f:metadata": {"f:labels": {".": {}, "f:run": {}}},
        "f:spec": {
            "f:containers": {"k:{\"name\":\"c\"}": {".": {}, "f:command": {}, "f:image": {}, "f:name": {},
                "f:ports": {".": {}, "k:{\"containerPort\":80,\"protocol\":\"TCP\"}":
                    {".": {}, "f:containerPort": {}, "f:protocol": {}}},
                "f:resources": {}}},
            "f:dnsPolicy": {}, "f:securityContext": {}, "f:tolerations": {}},
    });
    let stored = tracked(pods(), None, &pod, &by("kubectl"), 1);
    assert_eq!(
        stored["metadata"]["managedFields"],
        json!([{
            "manager": "kubectl", "operation": "Update", "apiVersion": "v1",
            "time": "1970-01-01T00:00:01Z", "fieldsType": "FieldsV1", "fieldsV1": wanted,
        }])
    );
}

#[test]
fn a_structure_that_is_always_there_is_nobodys() {
    let deployment = json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"},
        "spec": {"replicas": 1, "selector": {"matchLabels": {"a": "b"}},
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "25%"}},
            "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c"}]}}},
        "status": {},
    });
    let who = FieldManager { api_version: "apps/v1", ..by("k") };
    let stored = tracked(id_of("io.k8s.api.apps.v1.Deployment"), None, &deployment, &who, 1);
    let wanted = json!({"f:spec": {
        "f:replicas": {}, "f:selector": {},
        "f:strategy": {"f:rollingUpdate": {".": {}, "f:maxSurge": {}}, "f:type": {}},
        "f:template": {"f:metadata": {"f:labels": {".": {}, "f:a": {}}},
            "f:spec": {"f:containers": {"k:{\"name\":\"c\"}": {".": {}, "f:name": {}}}}},
    }});
    assert_eq!(stored["metadata"]["managedFields"][0]["fieldsV1"], wanted);
}

#[test]
fn a_subresource_owns_only_what_it_writes() {
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"},
        "spec": {"containers": [{"name": "c", "image": "i", "resources": {}}]}, "status": {}});
    let live = tracked(pods(), None, &pod, &by("a"), 1);
    let write = |subresource, change: &dyn Fn(&mut Value)| {
        let mut new = live.clone();
        change(&mut new);
        let who = FieldManager { subresource, ..by("b") };
        let entries = owners(&tracked(pods(), Some(&live), &new, &who, 2));
        entries.into_iter().filter(|entry| entry.starts_with('b')).collect::<Vec<_>>()
    };
    let everything = |new: &mut Value| {
        new["status"] = json!({"phase": "Running", "conditions": [{"type": "T", "status": "True", "lastProbeTime": null}]});
        new["metadata"]["labels"] = json!({"l": "1"});
        new["spec"]["nodeName"] = "n".into();
        new["spec"]["containers"][0]["resources"] = json!({"limits": {"cpu": "1"}});
        new["spec"]["ephemeralContainers"] = json!([{"name": "e"}]);
    };
    assert_eq!(
        write("status", &everything),
        [
            r#"b Update status {"f:metadata":{"f:labels":{".":{},"f:l":{}}},"f:status":{"f:conditions":{".":{},"k:{\"type\":\"T\"}":{".":{},"f:lastProbeTime":{},"f:status":{},"f:type":{}}},"f:phase":{}}}"#
        ]
    );
    assert_eq!(
        write("resize", &everything),
        [
            r#"b Update resize {"f:spec":{"f:containers":{"k:{\"name\":\"c\"}":{"f:resources":{"f:limits":{".":{},"f:cpu":{}}}}}}}"#
        ]
    );
    assert_eq!(
        write("ephemeralcontainers", &everything),
        [
            r#"b Update ephemeralcontainers {"f:spec":{"f:ephemeralContainers":{".":{},"k:{\"name\":\"e\"}":{".":{},"f:name":{}}}}}"#
        ]
    );
    let main = write("", &|new| new["status"] = json!({"phase": "Running"}));
    assert_eq!(main, [""; 0]);
    // A list of managers sent through a subresource is ignored.
    assert_eq!(write("status", &|new| new["metadata"]["managedFields"] = json!([])), [""; 0]);
}

#[test]
fn changed_fields_change_owner_and_removed_ones_lose_it() {
    let one = tracked(maps(), None, &map(&json!({"a": "1", "b": "2", "c": "3"})), &by("one"), 1);
    let same = tracked(maps(), Some(&one), &one, &by("two"), 2);
    assert_eq!(same, one);
    let two =
        tracked(maps(), Some(&one), &map(&json!({"a": "9", "b": "2", "d": "4"})), &by("two"), 2);
    let wanted = [
        r#"one Update {"f:data":{".":{},"f:b":{}}}"#,
        r#"two Update {"f:data":{"f:a":{},"f:d":{}}}"#,
    ];
    assert_eq!(owners(&two), wanted);
    let again =
        tracked(maps(), Some(&two), &map(&json!({"a": "9", "b": "3", "d": "4"})), &by("two"), 3);
    let wanted = [
        r#"one Update {"f:data":{".":{}}}"#,
        r#"two Update {"f:data":{"f:a":{},"f:b":{},"f:d":{}}}"#,
    ];
    assert_eq!(owners(&again)[0], wanted[0].replace("{\".\":{}}", "{}"));
    assert_eq!(owners(&again)[1], wanted[1]);
    assert_eq!(again["metadata"]["managedFields"][1]["time"], "1970-01-01T00:00:03Z");
}

#[test]
fn a_client_may_set_or_reset_the_list() {
    let live = tracked(maps(), None, &map(&json!({"a": "1"})), &by("one"), 1);
    let with = |list: Value| {
        let mut new = map(&json!({"a": "1"}));
        new["metadata"]["managedFields"] = list;
        tracked(maps(), Some(&live), &new, &by("two"), 2)
    };
    for reset in [json!([]), json!([{}])] {
        let stored = with(reset);
        assert_eq!(owners(&stored), [""; 0]);
        assert!(stored["metadata"].get("managedFields").is_none());
        // Fields are not tracked until the first apply.
        let next = tracked(maps(), Some(&stored), &map(&json!({"a": "2"})), &by("x"), 3);
        assert_eq!(owners(&next), [""; 0]);
    }
    let own = json!([{"manager": "me", "operation": "Apply", "apiVersion": "v1", "fieldsType": "FieldsV1",
        "fieldsV1": {"f:data": {"f:a": {}}}}]);
    assert_eq!(owners(&with(own)), [r#"me Apply {"f:data":{"f:a":{}}}"#]);
    for wrong in [
        json!([{"manager": "me", "operation": "Turn", "apiVersion": "v1", "fieldsType": "FieldsV1"}]),
        json!([{"manager": "me", "operation": "Apply", "fieldsType": "FieldsV1"}]),
        json!([{"manager": "me", "operation": "Apply", "apiVersion": "v1"}]),
        json!([{"manager": "me", "operation": "Apply", "apiVersion": "v1", "fieldsType": "FieldsV1", "fieldsV1": {"x": {}}}]),
        json!("x"),
        json!(null),
    ] {
        assert_eq!(owners(&with(wrong)), [r#"one Update {"f:data":{".":{},"f:a":{}}}"#]);
    }
    let gone = json!([{"manager": "me", "operation": "Update", "apiVersion": "v9", "fieldsType": "FieldsV1",
        "fieldsV1": {"f:data": {}}}]);
    assert_eq!(owners(&with(gone)), [""; 0]);
}

#[test]
fn the_eleventh_updater_makes_the_oldest_two_share() {
    let mut live = tracked(maps(), None, &map(&json!({"k0": "0"})), &by("m0"), 0);
    let mut data = json!({"k0": "0"});
    for n in 1..12 {
        data[format!("k{n}")] = n.to_string().into();
        live = tracked(maps(), Some(&live), &map(&data), &by(&format!("m{n}")), n);
    }
    let names: Vec<&str> = live["metadata"]["managedFields"]
        .as_array()
        .unwrap()
        .iter()
        .map(|e| e["manager"].as_str().unwrap())
        .collect();
    let wanted = ["ancient-changes", "m3", "m4", "m5", "m6", "m7", "m8", "m9", "m10", "m11"];
    assert_eq!(names, wanted);
    let ancient = &live["metadata"]["managedFields"][0];
    assert_eq!(
        ancient["fieldsV1"],
        json!({"f:data": {".": {}, "f:k0": {}, "f:k1": {}, "f:k2": {}}})
    );
    assert_eq!(ancient["time"], "1970-01-01T00:00:02Z");
}

#[test]
fn lists_are_applied_by_their_kind() {
    let pod = |metadata: Value, spec: Value| {
        let mut pod =
            json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec});
        pod["metadata"]["name"] = "p".into();
        pod
    };
    let live = pod(
        json!({"finalizers": ["x/a", "x/b"]}),
        json!({"containers": [{"name": "a"}, {"name": "b", "image": "i"}, {"name": "c"}], "tolerations": [{"key": "k"}]}),
    );
    let live = tracked(pods(), None, &live, &by("u"), 1);
    for (metadata, spec, wanted_metadata, wanted_spec) in [
        // A set is united, with the applied items in their order.
        (
            json!({"finalizers": ["x/c", "x/a"]}),
            json!({}),
            json!(["x/c", "x/a", "x/b"]),
            json!(null),
        ),
        // Items are merged by name; the items of others keep their position.
        (
            json!({}),
            json!({"containers": [{"name": "c"}, {"name": "d"}, {"name": "a", "tty": true}]}),
            json!(["x/a", "x/b"]),
            json!([{"name": "b", "image": "i"}, {"name": "c"}, {"name": "d"}, {"name": "a", "tty": true}]),
        ),
    ] {
        let merged = applied(pods(), Some(&live), &pod(metadata, spec), "m", false).unwrap();
        assert_eq!(merged["metadata"]["finalizers"], wanted_metadata);
        if !wanted_spec.is_null() {
            assert_eq!(merged["spec"]["containers"], wanted_spec);
        }
    }
    // An atomic value is one field.
    let config = pod(json!({}), json!({"tolerations": [{"key": "z"}]}));
    let error = applied(pods(), Some(&live), &config, "m", false).unwrap_err();
    assert_eq!(
        error.to_string(),
        "Apply failed with 1 conflict: conflict with \"u\" using v1: .spec.tolerations"
    );
    let merged = applied(pods(), Some(&live), &config, "m", true).unwrap();
    assert_eq!(merged["spec"]["tolerations"], json!([{"key": "z"}]));
}

#[test]
fn field_no_longer_applied_is_removed_unless_another_owns_it() {
    let one =
        applied(maps(), None, &map(&json!({"a": "1", "b": "2", "c": "3"})), "one", false).unwrap();
    // `two` shares `a`, and the updater takes `b`.
    let two = applied(maps(), Some(&one), &map(&json!({"a": "1"})), "two", false).unwrap();
    let mut new = two.clone();
    new["data"]["b"] = "9".into();
    let three = tracked(maps(), Some(&two), &new, &by("up"), 101);
    let left = applied(maps(), Some(&three), &map(&json!({})), "one", false).unwrap();
    assert_eq!(left["data"], json!({"a": "1", "b": "9"}));
    assert_eq!(
        owners(&left),
        [
            r#"two Apply {"f:data":{"f:a":{}}}"#,
            r#"one Apply {"f:data":{}}"#,
            r#"up Update {"f:data":{"f:b":{}}}"#,
        ]
    );
    // An apply without effect leaves no time where there was none.
    let entries = two["metadata"]["managedFields"].as_array().unwrap();
    assert!(entries.iter().any(|e| e["manager"] == "two" && e.get("time").is_none()));
}

#[test]
fn list_item_stays_while_another_manager_owns_a_field() {
    let pod = |containers: Value| json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": containers}});
    let config = pod(json!([{"name": "a", "image": "i"}, {"name": "b", "image": "i"}]));
    let live = applied(pods(), None, &config, "one", false).unwrap();
    let two = pod(json!([{"name": "b", "tty": true}]));
    let live = applied(pods(), Some(&live), &two, "two", false).unwrap();
    let live = applied(pods(), Some(&live), &pod(json!([])), "one", false).unwrap();
    assert_eq!(live["spec"]["containers"], json!([{"name": "b", "tty": true}]));
    let live = applied(pods(), Some(&live), &pod(json!([])), "two", false).unwrap();
    assert_eq!(live["spec"]["containers"], Value::Null);
}

#[test]
fn untracked_object_belongs_to_before_first_apply() {
    let mut live = map(&json!({"a": "1", "b": "2"}));
    live["metadata"]["uid"] = "u".into();
    let error = applied(maps(), Some(&live), &map(&json!({"a": "9"})), "m", false).unwrap_err();
    assert_eq!(
        error.to_string(),
        "Apply failed with 1 conflict: conflict with \"before-first-apply\" using v1: .data.a"
    );
    let merged = applied(maps(), Some(&live), &map(&json!({"a": "1"})), "m", false).unwrap();
    assert_eq!(
        owners(&merged),
        [
            r#"m Apply {"f:data":{"f:a":{}}}"#,
            r#"before-first-apply Update {"f:data":{".":{},"f:a":{},"f:b":{}}}"#,
        ]
    );
}

#[test]
fn conflicts_are_listed_by_manager() {
    let live = tracked(maps(), None, &map(&json!({"a": "1", "b": "2", "c": "3"})), &by("u"), 1);
    let live = applied(maps(), Some(&live), &map(&json!({"a": "1"})), "m", false).unwrap();
    let config = map(&json!({"a": "9", "b": "9", "c": "3"}));
    let error = applied(maps(), Some(&live), &config, "n", false).unwrap_err();
    assert_eq!(
        error.to_string(),
        "Apply failed with 3 conflicts: conflicts with \"m\":\n- .data.a\n\
         conflicts with \"u\" using v1:\n- .data.a\n- .data.b"
    );
    assert_eq!((error.status(), error.reason()), (409, "Conflict"));
    let ApplyError::Conflicts(conflicts) = error else { panic!() };
    assert_eq!(conflicts[0].message(), "conflict with \"m\"");
    assert_eq!(conflicts[0].field, ".data.a");
}

#[test]
fn schema_violations_are_reported_with_their_path() {
    let pod = |spec: Value| json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": "n"}, "spec": spec});
    for (spec, expected) in [
        (json!({"bogus": 1}), ".spec.bogus: field not declared in schema"),
        (json!("x"), ".spec: expected map, got &{x}"),
        (json!({"containers": {}}), ".spec.containers: expected list, got &{map[]}"),
        (
            json!({"containers": [{"name": 5}]}),
            ".spec.containers[name=5].name: expected string, got &value.valueUnstructured{Value:5}",
        ),
        (
            json!({"containers": ["x"]}),
            ".spec.containers: element 0: associative list with keys may not have non-map elements",
        ),
        (
            json!({"containers": [null]}),
            ".spec.containers: element 0: associative list with keys may not have a null element",
        ),
        (json!({"priority": "x"}), ".spec.priority: expected numeric (int or float), got string"),
        (json!({"hostNetwork": "x"}), ".spec.hostNetwork: expected boolean, got &{x}"),
        (
            json!({"tolerations": [{"key": true}]}),
            ".spec.tolerations[0].key: expected string, got &value.valueUnstructured{Value:true}",
        ),
        (json!({"overhead": {"cpu": [1]}}), ".spec.overhead.cpu: expected any scalar, got &{[1]}"),
        (
            json!({"hostNetwork": 1, "priority": "x"}),
            "errors:\n  .spec.hostNetwork: expected boolean, got &{1}\n  .spec.priority: expected numeric (int or float), got string",
        ),
    ] {
        let error = applied(pods(), None, &pod(spec), "m", false).unwrap_err();
        let expected =
            format!("failed to create typed patch object (n/p; /v1, Kind=Pod): {expected}");
        assert_eq!((error.status(), error.to_string()), (400, expected));
    }
    let config = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "finalizers": ["a", "a", {}]}});
    let error = applied(pods(), None, &config, "m", false).unwrap_err().to_string();
    let expected = "errors:\n  .metadata.finalizers: duplicate entries for key [=\"a\"]\n  .metadata.finalizers: element 2: associative list without keys has an element that's a map type";
    assert!(error.ends_with(expected), "{error}");
}

#[test]
fn kubectl_goes_over_to_server_side_apply_without_conflicts() {
    let last = map(&json!({"a": "1", "b": "2"}));
    let mut live = last.clone();
    live["data"]["b"] = "changed".into();
    live["metadata"]["annotations"] =
        json!({"kubectl.kubernetes.io/last-applied-configuration": last.to_string()});
    let live = tracked(maps(), None, &live, &by("kubectl-client-side-apply"), 1);
    let config = map(&json!({"a": "9"}));
    assert!(applied(maps(), Some(&live), &config, "other", false).is_err());
    let merged = applied(maps(), Some(&live), &config, "kubectl", false).unwrap();
    assert_eq!(merged["data"], json!({"a": "9", "b": "changed"}));
    let annotation =
        &merged["metadata"]["annotations"]["kubectl.kubernetes.io/last-applied-configuration"];
    assert_eq!(annotation.as_str().unwrap(), format!("{config}\n"));
    // Another manager has changed `b` since, so kubectl may not take it.
    let error = applied(maps(), Some(&live), &map(&json!({"a": "9", "b": "0"})), "kubectl", false);
    assert_eq!(
        error.unwrap_err().to_string(),
        "Apply failed with 1 conflict: conflict with \"kubectl-client-side-apply\" using v1: .data.b"
    );
}

#[test]
fn scaling_moves_ownership_of_replicas() {
    let scale_id = id_of("io.k8s.api.autoscaling.v1.Scale");
    let apps = FieldManager { api_version: "apps/v1", ..by("kubectl") };
    let deployment = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"},
        "spec": {"replicas": 3, "paused": true}});
    let id = id_of("io.k8s.api.apps.v1.Deployment");
    let live = apply(Schema::served(), id, None, &deployment, &apps, false, at(1)).unwrap();
    let scale = |replicas: i64, owners: Value| json!({"apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": {"name": "d", "managedFields": owners, "uid": "u"}, "spec": {"replicas": replicas}, "status": {}});
    let hpa = FieldManager { name: "hpa", subresource: "scale", api_version: "autoscaling/v1" };
    let scaled = |live: &Value, from: i64, to: i64| {
        let old = scale(from, scale::to_scale(live));
        let mut new = scale(to, scale::to_scale(live));
        track_update(Schema::served(), scale_id, Some(&old), &mut new, &hpa, at(2));
        let mut workload = live.clone();
        workload["metadata"]["managedFields"] = scale::to_workload(live, &new, "apps/v1");
        workload
    };
    let wanted = [
        r#"kubectl Apply {"f:spec":{"f:paused":{}}}"#,
        r#"hpa Update scale {"f:spec":{"f:replicas":{}}}"#,
    ];
    let once = scaled(&live, 3, 5);
    assert_eq!(owners(&once), wanted);
    assert_eq!(scaled(&once, 5, 6), once);
    assert_eq!(scaled(&live, 3, 3), live);
    // A manager that applies to the subresource owns the replicas too.
    let config = json!({"apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": {"name": "d"}, "spec": {"replicas": 9}});
    let other = FieldManager { name: "other", ..hpa };
    let old = scale(5, scale::to_scale(&once));
    let error = apply(Schema::served(), scale_id, Some(&old), &config, &other, false, at(3));
    assert_eq!(
        error.unwrap_err().to_string(),
        "Apply failed with 1 conflict: conflict with \"hpa\" with subresource \"scale\" using autoscaling/v1: .spec.replicas"
    );
}

#[test]
fn a_manager_without_a_name_is_called_after_its_program() {
    assert_eq!(FieldManager::name_of_agent("kubectl/v1.37 (linux/amd64)"), "kubectl");
    assert_eq!(FieldManager::name_of_agent("a\u{7}b"), "ab");
    assert_eq!(FieldManager::name_of_agent(&"é".repeat(100)).len(), 128);
}

#[test]
fn change_of_times_alone_is_not_a_change() {
    let live = tracked(maps(), None, &map(&json!({"a": "1"})), &by("u"), 1);
    let mut new = live.clone();
    new["metadata"]["managedFields"][0]["time"] = "1970-01-01T00:00:09Z".into();
    assert!(keep_times(&live, &mut new));
    assert_eq!(new, live);
    new["metadata"]["managedFields"][0]["time"] = "1970-01-01T00:00:09Z".into();
    new["data"]["a"] = "2".into();
    let changed = new.clone();
    assert!(!keep_times(&live, &mut new));
    assert_eq!(new, changed);
}

#[test]
fn sets_of_fields_are_read_and_put_in_one_form() {
    let given = json!({
        "f:a": {".": {}, "f:b": {}}, "f:c": null, "f:d": {".": {}}, "f:e": {"x:future": {}},
        "f:l": {"k:{ \"b\":1, \"a\":\"x\" }": {}, "v: 1": {}, "i:01": {}},
    });
    let wanted = json!({
        "f:a": {".": {}, "f:b": {}}, "f:c": {}, "f:d": {},
        "f:l": {"k:{\"a\":\"x\",\"b\":1}": {}, "v:1": {}, "i:1": {}},
    });
    let set = FieldSet::parse(&given).unwrap();
    assert_eq!(set.clone().into_value(), wanted);
    assert_eq!(set.paths(), [".a", ".c", ".d", ".a.b", ".l[1]", ".l[a=\"x\",b=1]", ".l[=1]"]);
    assert!(set.has(&["f:a", "f:b"]) && set.has(&["f:a"]) && !set.has(&["f:l"]));
    for wrong in [
        json!(1),
        json!({"f": {}}),
        json!({"fa:": {}}),
        json!({"k:x": {}}),
        json!({"i:x": {}}),
        json!({"v:": {}}),
        json!({"f:a": 1}),
        json!({"é:": {}}),
    ] {
        assert!(FieldSet::parse(&wrong).is_err(), "{wrong}");
    }
}

fn text() -> impl Strategy<Value = String> {
    "[a-c]"
}

/// Generates a configuration that a client might apply to a pod.
fn config() -> impl Strategy<Value = Value> {
    let labels = prop::option::of(prop::collection::btree_map(text(), text(), 0..3));
    let finalizers = prop::option::of(prop::collection::btree_set("x/[a-c]", 0..3));
    let port = (80_i64..82, prop::option::of(Just("UDP")));
    let ports = prop::collection::btree_map(port, prop::option::of(text()), 0..3);
    let env = prop::collection::btree_map(text(), prop::option::of(text()), 0..3);
    let container = (
        prop::option::of(text()),
        ports,
        env,
        prop::option::of(prop::collection::vec(text(), 0..2)),
    );
    let containers = prop::option::of(prop::collection::btree_map(text(), container, 0..3));
    let atomic = prop::option::of(prop::collection::vec(text(), 0..3));
    (labels, finalizers, containers, atomic, any::<bool>()).prop_map(
        |(labels, finalizers, containers, atomic, reversed)| {
            let mut pod =
                json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {}});
            if let Some(labels) = labels {
                pod["metadata"]["labels"] = json!(labels);
            }
            if let Some(finalizers) = finalizers {
                pod["metadata"]["finalizers"] = json!(finalizers);
            }
            if let Some(atomic) = atomic {
                pod["spec"]["tolerations"] = atomic.iter().map(|key| json!({"key": key})).collect();
            }
            if let Some(containers) = containers {
                let made = containers.into_iter().map(|(name, (image, ports, env, command))| {
                    let mut container = json!({"name": name});
                    if let Some(image) = image {
                        container["image"] = image.into();
                    }
                    if let Some(command) = command {
                        container["command"] = json!(command);
                    }
                    let ports = ports.into_iter().map(|((port, protocol), name)| {
                        let mut made = json!({"containerPort": port});
                        if let Some(protocol) = protocol {
                            made["protocol"] = protocol.into();
                        }
                        if let Some(name) = name {
                            made["name"] = name.into();
                        }
                        made
                    });
                    container["ports"] = ports.collect();
                    let env = env.into_iter().map(|(name, value)| match value {
                        Some(value) => json!({"name": name, "value": value}),
                        None => json!({"name": name}),
                    });
                    container["env"] = env.collect();
                    container
                });
                let mut made: Vec<Value> = made.collect();
                if reversed {
                    made.reverse();
                }
                pod["spec"]["containers"] = made.into();
            }
            pod
        },
    )
}

/// Returns an object as the server would have stored it: decoded, with a uid.
fn stored(id: TypeId, object: Value) -> Value {
    let mut object = Schema::served().decode_value(id, object).unwrap().value;
    object["metadata"]["uid"] = "u".into();
    object
}

/// Reports whether all of `part` is in `whole`, with list items found by name, key or value.
fn contains(whole: &Value, part: &Value) -> bool {
    match (whole, part) {
        (Value::Object(whole), Value::Object(part)) => part.iter().all(|(key, part)| {
            let empty = part.as_array().is_some_and(Vec::is_empty)
                || part.as_object().is_some_and(Map::is_empty);
            empty || whole.get(key).is_some_and(|whole| contains(whole, part))
        }),
        (Value::Array(whole), Value::Array(part)) => {
            part.iter().all(|part| whole.iter().any(|whole| contains(whole, part)))
        }
        (whole, part) => whole == part,
    }
}

proptest! {
    #[test]
    fn applying_the_same_twice_changes_nothing(live in config(), other in config(), config in config()) {
        let live = stored(pods(), tracked(pods(), None, &live, &by("u"), 1));
        let live = stored(pods(), applied(pods(), Some(&live), &other, "other", true).unwrap());
        let once = stored(pods(), applied(pods(), Some(&live), &config, "m", true).unwrap());
        let mut twice = stored(pods(), applied(pods(), Some(&once), &config, "m", false).unwrap());
        keep_times(&once, &mut twice);
        prop_assert_eq!(once, twice);
    }

    #[test]
    fn force_never_conflicts_and_what_is_applied_is_there(live in config(), config in config()) {
        let live = stored(pods(), tracked(pods(), None, &live, &by("u"), 1));
        let merged = applied(pods(), Some(&live), &config, "m", true).unwrap();
        prop_assert!(contains(&merged, &config), "{} in {}", config, merged);
    }

    #[test]
    fn apply_without_conflicts_keeps_values_of_other_owners(one in config(), config in config()) {
        let live = stored(pods(), applied(pods(), None, &one, "one", false).unwrap());
        if let Ok(merged) = applied(pods(), Some(&live), &config, "m", false) {
            prop_assert!(contains(&merged, &one), "{} in {}", one, merged);
        }
    }

    #[test]
    fn every_field_has_an_owner(one in config(), two in config(), three in config()) {
        let stored = |mut object: Value| {
            // An object without any owner would not be tracked.
            object["metadata"]["annotations"] = json!({"a": "b"});
            stored(pods(), object)
        };
        let live = tracked(pods(), None, &stored(one), &by("one"), 1);
        let live = tracked(pods(), Some(&live), &stored(two), &by("two"), 2);
        let live = tracked(pods(), Some(&live), &stored(three), &by("one"), 3);
        let mut fields = Walker { schema: Schema::served() }.claimed(pods(), &live);
        for entry in entries::read_own(Some(&live)) {
            fields.subtract(&entry.fields);
        }
        // Fields that are always present have no owner.
        let ours = fields.paths();
        prop_assert!(ours.iter().all(|path| path == ".status" || path == ".spec.containers"), "{:?}", ours);
    }

    #[test]
    fn a_set_survives_being_written(object in config()) {
        let set = Walker { schema: Schema::served() }.claimed(pods(), &object);
        prop_assert_eq!(FieldSet::parse(&set.clone().into_value()), Ok(set));
    }

    #[test]
    fn set_operations_are_those_of_sets(a in config(), b in config()) {
        let walker = Walker { schema: Schema::served() };
        let (a, b) = (walker.claimed(pods(), &a), walker.claimed(pods(), &b));
        let paths = |set: &FieldSet| set.paths().into_iter().collect::<std::collections::BTreeSet<_>>();
        let (in_a, in_b) = (paths(&a), paths(&b));
        let mut union = a.clone();
        union.add(&b);
        prop_assert_eq!(paths(&union), in_a.union(&in_b).cloned().collect());
        prop_assert_eq!(paths(&a.intersection(&b)), in_a.intersection(&in_b).cloned().collect());
        let mut difference = a.clone();
        difference.subtract(&b);
        prop_assert_eq!(paths(&difference), in_a.difference(&in_b).cloned().collect());
        union.subtract(&a);
        union.subtract(&b);
        prop_assert!(union.is_empty());
    }
}
