use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::schema::{Schema, TypeId};

fn pod() -> (&'static Schema, TypeId) {
    let schema = Schema::served();
    (schema, schema.find("io.k8s.api.core.v1.Pod").unwrap())
}

fn json_patched(object: &Value, patch: &Value) -> Result<Value, PatchError> {
    json(object.clone(), patch.to_string().as_bytes()).map(|patched| patched.value)
}

fn strategic_patched(object: &Value, patch: &Value) -> Result<Value, PatchError> {
    let (schema, id) = pod();
    let patched = strategic(schema, id, object.clone(), patch.to_string().as_bytes());
    patched.map(|patched| patched.value)
}

#[test]
fn json_operations_do_what_the_library_does() {
    let start = json!({"a": {"x": 1, "n": null}, "l": [1, 2, 3], "s": "t"});
    for (operation, wanted) in [
        (
            json!({"op": "add", "path": "/a/y", "value": 2}),
            json!({"a": {"x": 1, "n": null, "y": 2}}),
        ),
        (json!({"op": "add", "path": "/l/-", "value": 4}), json!({"l": [1, 2, 3, 4]})),
        (json!({"op": "add", "path": "/l/3", "value": 4}), json!({"l": [1, 2, 3, 4]})),
        (json!({"op": "add", "path": "/l/-1", "value": 4}), json!({"l": [1, 2, 3, 4]})),
        (json!({"op": "add", "path": "/l/0", "value": 4}), json!({"l": [4, 1, 2, 3]})),
        (json!({"op": "add", "path": "/a~1b~0", "value": 4}), json!({"a/b~": 4})),
        (json!({"op": "add", "path": "/", "value": 4}), json!({"": 4})),
        (json!({"op": "add", "path": "ignored/q", "value": 4}), json!({"q": 4})),
        (json!({"op": "add", "path": "/s"}), json!({"s": null})),
        (json!({"op": "replace", "path": "/absent", "value": 1}), json!({"absent": 1})),
        (json!({"op": "replace", "path": "/l/-1", "value": 9}), json!({"l": [1, 2, 9]})),
        (json!({"op": "remove", "path": "/l/0"}), json!({"l": [2, 3]})),
        (json!({"op": "move", "from": "/a/x", "path": "/x"}), json!({"a": {"n": null}, "x": 1})),
        (json!({"op": "copy", "from": "/a/x", "path": "/l/0"}), json!({"l": [1, 1, 2, 3]})),
        (json!({"op": "copy", "from": "/absent", "path": "/c"}), json!({"c": null})),
        (json!({"op": "test", "path": "/l", "value": [1, 2, 3]}), json!({})),
        (json!({"op": "test", "path": "/absent"}), json!({})),
        (json!({"op": "test", "path": "/a/n", "value": null}), json!({})),
    ] {
        let mut whole = start.clone();
        for (key, value) in wanted.as_object().unwrap() {
            whole[key] = value.clone();
        }
        assert_eq!(json_patched(&start, &json!([operation])), Ok(whole), "{operation}");
    }
}

#[test]
fn the_whole_document_can_be_tested_and_replaced() {
    let patch = json!([
        {"op": "test", "path": "", "value": {"a": 1}}, {"op": "replace", "path": "", "value": {"b": 2}},
        {"op": "add", "path": "/c", "value": 3},
    ]);
    assert_eq!(json_patched(&json!({"a": 1}), &patch), Ok(json!({"b": 2, "c": 3})));
}

#[test]
fn json_operations_that_do_not_fit_are_unprocessable() {
    let start = json!({"a": {"x": 1}, "l": [1, 2, 3], "s": "t"});
    for operation in [
        json!({"op": "add", "path": "/b/y", "value": 2}),
        json!({"op": "add", "path": "/l/4", "value": 2}),
        json!({"op": "add", "path": "/l/-5", "value": 2}),
        json!({"op": "add", "path": "/l/x", "value": 2}),
        json!({"op": "add", "path": "", "value": {}}),
        json!({"op": "add", "path": "/s/x", "value": 2}),
        json!({"op": "add", "value": 2}),
        json!({"op": "replace", "path": "/l/3", "value": 2}),
        json!({"op": "replace", "path": "/l/-", "value": 2}),
        json!({"op": "replace", "path": "", "value": "x"}),
        json!({"op": "replace", "path": ""}),
        json!({"op": "test", "path": "", "value": {}}),
        json!({"op": "test", "path": ""}),
        json!({"op": "remove", "path": "/absent"}),
        json!({"op": "remove", "path": "/l/3"}),
        json!({"op": "move", "from": "/absent", "path": "/c"}),
        json!({"op": "move", "path": "/c"}),
        json!({"op": "test", "path": "/a", "value": {}}),
        json!({"op": "test", "path": "/a/x"}),
        json!({"op": "turn", "path": "/a"}),
        json!({"path": "/a"}),
        json!({}),
        json!(null),
    ] {
        let error = json_patched(&start, &json!([operation])).unwrap_err();
        assert_eq!(error.status(), 422, "{operation}");
        let message = "the server rejected our request due to an error in our request";
        assert_eq!(error.to_string(), message);
    }
}

#[test]
fn copies_of_copies_and_towers_end() {
    let doubled = json!({"op": "copy", "from": "/a", "path": "/a/b"});
    let patch = Value::Array(vec![doubled; 200]);
    let error = json_patched(&json!({"a": {"x": "0123456789"}}), &patch).unwrap_err();
    assert_eq!(error.status(), 422);
    let wide = json!({"op": "copy", "from": "/a", "path": "/a/-"});
    let patch = Value::Array(vec![wide; 60]);
    let error = json_patched(&json!({"a": ["0123456789"]}), &patch).unwrap_err();
    assert_eq!(error.status(), 422);
    let long = json!({"a": vec![0; 100_000]});
    let front = json!({"op": "add", "path": "/a/0", "value": 1});
    let error = json_patched(&long, &Value::Array(vec![front; 10_000])).unwrap_err();
    assert_eq!(error.status(), 422);
    let many = Value::Array(vec![json!({"op": "test", "path": "/a"}); MAX_OPERATIONS + 1]);
    let error = json_patched(&json!({}), &many).unwrap_err();
    assert_eq!(error, PatchError::TooManyOperations(10_001));
    assert_eq!(error.status(), 413);
}

#[test]
fn malformed_patches_are_bad_requests() {
    let (schema, id) = pod();
    let object = || json!({"a": 1});
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    let map = "json: cannot unmarshal array into Go value of type map[string]interface {}";
    for (text, as_json, as_merge, as_strategic) in [
        ("[", Err("invalid JSON patch"), Err("invalid JSON patch"), Err("invalid JSON patch")),
        ("", Err("invalid JSON patch"), Err("invalid JSON patch"), Err("invalid JSON patch")),
        (&deep, Err("invalid JSON patch"), Err("invalid JSON patch"), Err("invalid JSON patch")),
        ("null", Ok(()), Err("Invalid JSON Patch"), Ok(())),
        ("[]", Ok(()), Err(&*format!("error decoding patch: {map}")), Err(map)),
    ] {
        let message = |result: Result<Patched, PatchError>| {
            result.map(drop).map_err(|error| {
                assert_eq!(error.status(), 400);
                error.to_string()
            })
        };
        let wanted = |expected: Result<(), &str>| expected.map_err(str::to_owned);
        assert_eq!(message(json(object(), text.as_bytes())), wanted(as_json));
        assert_eq!(message(merge(object(), text.as_bytes())), wanted(as_merge));
        assert_eq!(message(strategic(schema, id, object(), text.as_bytes())), wanted(as_strategic));
    }
    for (text, expected) in [
        (
            "\"\"",
            "error decoding patch: json: cannot unmarshal string into Go value of type []handlers.jsonPatchOp",
        ),
        (
            "[5]",
            "error decoding patch: json: cannot unmarshal number into Go value of type handlers.jsonPatchOp",
        ),
        (
            r#"[{"op":5}]"#,
            "error decoding patch: json: cannot unmarshal number into Go struct field jsonPatchOp.op of type string",
        ),
    ] {
        assert_eq!(json(object(), text.as_bytes()).unwrap_err().to_string(), expected);
    }
}

#[test]
fn keys_given_twice_are_noted_and_the_last_counts() {
    let text = br#"{"data":{"a":"1","a":"2","a":"3"},"l":[{"x":1,"x":2}]}"#;
    let patched = merge(json!({}), text).unwrap();
    assert_eq!(patched.value, json!({"data": {"a": "3"}, "l": [{"x": 2}]}));
    assert_eq!(patched.strict, [r#"duplicate field "data.a""#, r#"duplicate field "l[0].x""#]);
    let text = br#"[{"op":"add","op":"add","path":"/a","value":1,"x":1}]"#;
    assert_eq!(
        json(json!({}), text).unwrap().strict,
        [r#"json patch duplicate field "[0].op""#, r#"json patch unknown field "[0].x""#]
    );
}

#[test]
fn content_types_name_the_patch() {
    assert_eq!(PatchKind::of_content_type("application/json-patch+json"), Some(PatchKind::Json));
    let with_charset = "application/merge-patch+json; charset=utf-8";
    assert_eq!(PatchKind::of_content_type(with_charset), Some(PatchKind::Merge));
    assert_eq!(PatchKind::of_content_type("application/json"), None);
    assert_eq!(PatchKind::of_content_type("application/apply-patch+cbor"), None);
}

#[test]
fn undecodable_values_are_shown_as_upstream_shows_them() {
    let (schema, id) = pod();
    let live = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": "n", "labels": {"b": "<", "a": "1"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let text = br#"{"bogus":{"z":1,"y":2},"metadata":{"labels":{"l":"s"}}}"#;
    let patched = merge(live.clone(), text).unwrap().value;
    assert_eq!(
        invalid_value(PatchKind::Merge, schema, id, &live, text, &patched),
        r#"{"apiVersion":"v1","bogus":{"y":2,"z":1},"kind":"Pod","metadata":{"labels":{"a":"1","b":"\u003c","l":"s"},"name":"p","namespace":"n"},"spec":{"containers":[{"name":"c","image":"i"}]}}"#
    );
    let expected = "map[bogus:map[y:2 z:1] metadata:map[labels:map[l:s]]]";
    assert_eq!(
        invalid_value(PatchKind::Strategic, schema, id, &live, text, &Value::Null),
        expected
    );
    let text = br#"[{"op":"add","path":"/spec/containers/0/bogus","value":1}]"#;
    let patched = json(live.clone(), text).unwrap().value;
    assert_eq!(
        invalid_value(PatchKind::Json, schema, id, &live, text, &patched),
        r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"p","namespace":"n","labels":{"a":"1","b":"\u003c"}},"spec":{"containers":[{"bogus":1,"image":"i","name":"c"}]}}"#
    );
}

#[test]
fn lists_merge_by_their_key_and_keep_their_order() {
    let containers = |items: Value| json!({"spec": {"containers": items}});
    let named = |names: &[&str]| names.iter().map(|n| json!({"name": n})).collect::<Vec<_>>();
    let live = containers(json!(named(&["a", "b", "c"])));
    for (patch, wanted) in [
        (
            json!([{"name": "b", "image": "i"}]),
            json!([{"name": "a"}, {"name": "b", "image": "i"}, {"name": "c"}]),
        ),
        (json!([{"name": "d"}]), json!(named(&["d", "a", "b", "c"]))),
        (json!([{"name": "c"}, {"name": "a"}]), json!(named(&["b", "c", "a"]))),
        (json!([{"name": "a", "$patch": "delete"}]), json!(named(&["b", "c"]))),
        (json!([{"name": "absent", "$patch": "delete"}]), json!(named(&["a", "b", "c"]))),
        (json!([{"$patch": "replace"}, {"name": "z"}]), json!(named(&["z"]))),
        (json!([{"$patch": "replace"}]), json!([])),
        (json!([]), json!(named(&["a", "b", "c"]))),
    ] {
        let patched = strategic_patched(&live, &containers(patch.clone()));
        assert_eq!(patched, Ok(containers(wanted)), "{patch}");
    }
}

#[test]
fn an_order_can_be_asked_for() {
    let live = json!({"spec": {"containers": [{"name": "a"}, {"name": "b"}, {"name": "c"}]}});
    for (order, patch, wanted) in [
        (json!(["c", "a"]), json!(null), json!(["b", "c", "a"])),
        (json!(["c", "d", "a"]), json!([{"name": "d"}]), json!(["b", "c", "d", "a"])),
        (json!(["b"]), json!([{"name": "c", "$patch": "delete"}]), json!(["a", "b"])),
    ] {
        let names = |list: &Value| {
            let names = list.as_array().unwrap().iter().map(|name| json!({"name": name}));
            Value::Array(names.collect())
        };
        let mut spec = json!({"$setElementOrder/containers": names(&order)});
        if !patch.is_null() {
            spec["containers"] = patch;
        }
        let patched = strategic_patched(&live, &json!({"spec": spec})).unwrap();
        assert_eq!(patched["spec"]["containers"], names(&wanted), "{order}");
    }
}

#[test]
fn lists_of_words_are_united_or_cleared_of_words() {
    let live = json!({"metadata": {"finalizers": ["a", "b", "c"]}});
    for (patch, wanted) in [
        (json!({"finalizers": ["d", "b"]}), json!(["d", "a", "b", "c"])),
        (json!({"finalizers": ["b", "b"]}), json!(["a", "b", "c"])),
        (json!({"$deleteFromPrimitiveList/finalizers": ["a", "z"]}), json!(["b", "c"])),
        (json!({"$setElementOrder/finalizers": ["c", "b", "a"]}), json!(["c", "b", "a"])),
        (
            json!({"$deleteFromPrimitiveList/finalizers": ["a"], "$setElementOrder/finalizers": ["d", "c"], "finalizers": ["d"]}),
            json!(["d", "b", "c"]),
        ),
    ] {
        let patched = strategic_patched(&live, &json!({"metadata": patch})).unwrap();
        assert_eq!(patched["metadata"]["finalizers"], wanted, "{patch}");
    }
    let absent = json!({"metadata": {"$deleteFromPrimitiveList/finalizers": ["a"]}});
    assert_eq!(strategic_patched(&json!({"metadata": {}}), &absent), Ok(json!({"metadata": {}})));
}

#[test]
fn directives_replace_delete_and_retain() {
    let live = json!({"metadata": {"labels": {"a": "1", "b": "2"}}, "spec": {"volumes": [{"name": "v", "emptyDir": {"medium": "x"}}]}});
    for (patch, wanted) in [
        (
            json!({"metadata": {"labels": {"$patch": "replace", "c": "3"}}}),
            json!({"labels": {"c": "3"}}),
        ),
        (json!({"metadata": {"labels": {"$patch": "delete"}}}), json!({"labels": {}})),
        (json!({"metadata": {"labels": {"a": null, "z": null}}}), json!({"labels": {"b": "2"}})),
        (
            json!({"metadata": {"annotations": {"x": {"$patch": "delete"}, "y": null, "z": "1"}}}),
            json!({"labels": {"a": "1", "b": "2"}, "annotations": {"z": "1"}}),
        ),
        (
            json!({"metadata": {"annotations": {"$patch": "delete"}}}),
            json!({"labels": {"a": "1", "b": "2"}}),
        ),
    ] {
        assert_eq!(strategic_patched(&live, &patch).unwrap()["metadata"], wanted, "{patch}");
    }
    let patch = json!({"spec": {"volumes": [{"name": "v", "$retainKeys": ["name", "hostPath"], "hostPath": {"path": "/"}}]}});
    let patched = strategic_patched(&live, &patch).unwrap();
    assert_eq!(patched["spec"]["volumes"], json!([{"name": "v", "hostPath": {"path": "/"}}]));
}

#[test]
fn strategic_patches_that_make_no_sense_are_bad_requests() {
    let live = json!({"metadata": {"finalizers": ["a"], "labels": {"a": "b"}}, "spec": {"containers": [{"name": "a"}], "tolerations": [{"key": "k"}]}});
    for (patch, expected) in [
        (
            json!({"spec": {"containers": [{"image": "x"}]}}),
            "map: map[image:x] does not contain declared merge key: name",
        ),
        (
            json!({"spec": {"containers": [{"$patch": "delete"}]}}),
            "map: map[$patch:delete] does not contain declared merge key: name",
        ),
        (
            json!({"spec": {"containers": [{"name": "a", "$patch": "turn"}]}}),
            "unknown patch type: turn in map: map[$patch:turn name:a]",
        ),
        (
            json!({"spec": {"containers": [{"name": "a", "$patch": "merge"}]}}),
            "merging lists cannot yet be specified in the patch",
        ),
        (
            json!({"metadata": {"labels": {"$patch": "merge"}}}),
            "unknown patch type: merge in map: map[$patch:merge]",
        ),
        (
            json!({"spec": {"$setElementOrder/containers": [{"name": "b"}], "containers": [{"name": "a"}]}}),
            "The order in patch list:\n[map[name:a]]\n doesn't match $setElementOrder list:\n[map[name:b]]\n",
        ),
        (
            json!({"spec": {"$setElementOrder/containers": "x"}}),
            "expected a []interface {}, but received a string",
        ),
        (
            json!({"spec": {"$setElementOrderX": []}}),
            "invalid patch format of setElementOrder list",
        ),
        (
            json!({"spec": {"$setElementOrder/bogus": []}}),
            "unable to find api field in struct PodSpec for the json field \"bogus\"",
        ),
        (
            json!({"spec": {"$setElementOrder/tolerations": [{"key": "k"}]}}),
            "map: map[key:k] does not contain declared merge key: ",
        ),
        (
            json!({"metadata": {"$deleteFromPrimitiveListX": []}}),
            "invalid patch format of primitive list",
        ),
        (
            json!({"metadata": {"finalizers": [1]}}),
            "list element types are not identical: [[a] [1]]",
        ),
        (
            json!({"metadata": {"$retainKeys": ["labels"], "annotations": {}}}),
            "invalid patch format of retainKeys",
        ),
        (json!({"metadata": {"$retainKeys": 1}}), "invalid patch format of retainKeys"),
    ] {
        let error = strategic_patched(&live, &patch).unwrap_err();
        assert_eq!((error.status(), error.to_string().as_str()), (400, expected), "{patch}");
    }
    let error = strategic_patched(&live, &json!({"metadata": {"finalizers": [["a"]]}}));
    assert_eq!(error.unwrap_err().status(), 400);
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        (0_i64..4).prop_map(Value::from),
        "[a-c]{0,2}".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 32, 4, |inner| {
        let key = prop_oneof![
            "[a-c]",
            Just("$patch".to_owned()),
            Just("$setElementOrder/finalizers".to_owned()),
            Just("$deleteFromPrimitiveList/finalizers".to_owned()),
            Just("$retainKeys".to_owned()),
            Just("finalizers".to_owned()),
            Just("name".to_owned()),
            Just("containers".to_owned()),
            Just("metadata".to_owned()),
            Just("spec".to_owned()),
        ];
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map(key, inner, 0..5)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

/// The rules of RFC 7386, without any `null` in new values.
fn plainly_merged(target: &Value, patch: &Value) -> Value {
    let Value::Object(patch) = patch else {
        return match (target, patch) {
            (Value::Object(_), patch) => patch.clone(),
            (_, patch) => plainly_new(patch),
        };
    };
    let Value::Object(target) = target else {
        return plainly_new(&Value::Object(patch.clone()));
    };
    let mut merged = target.clone();
    for (key, value) in patch {
        if value.is_null() {
            merged.remove(key);
        } else if let Some(current) = target.get(key) {
            merged.insert(key.clone(), plainly_merged(current, value));
        } else {
            merged.insert(key.clone(), plainly_new(value));
        }
    }
    Value::Object(merged)
}

fn plainly_new(value: &Value) -> Value {
    match value {
        Value::Object(object) => {
            let mut new = serde_json::Map::new();
            for (key, value) in object {
                if !value.is_null() {
                    new.insert(key.clone(), plainly_new(value));
                }
            }
            Value::Object(new)
        }
        Value::Array(items) => Value::Array(items.iter().map(plainly_new).collect()),
        other => other.clone(),
    }
}

proptest! {
    #[test]
    fn a_merge_patch_follows_the_rules(object in any_json(), patch in any_json()) {
        prop_assume!(object.is_object() && patch.is_object());
        let patched = merge(object.clone(), patch.to_string().as_bytes()).unwrap();
        prop_assert_eq!(patched.value, plainly_merged(&object, &patch));
    }

    #[test]
    fn a_strategic_patch_never_panics(object in any_json(), patch in any_json()) {
        let _ = strategic_patched(&object, &patch);
    }

    #[test]
    fn a_json_patch_never_panics(object in any_json(), op in "add|remove|replace|move|copy|test", path in "(/[a-c0-2-]){0,4}", from in "(/[a-c0-2-]){0,4}", value in any_json()) {
        let _ = json_patched(&object, &json!([{"op": op, "path": path, "from": from, "value": value}]));
    }
}
