//! Recursive functions: every entry point rejects values that are nested too deep, and accepted
//! values are handled on the stack of a server's thread.

use objects::apply::{self, FieldManager, FieldSet};
use objects::decode_budget::MAX_DEPTH;
use objects::patch::{self, PatchKind};
use objects::protobuf;
use objects::schema::{DecodeError, Schema, TypeId};
use objects::timestamp::Timestamp;
use objects::yaml;
use serde_json::{Value, json};

/// More than any limit, and more than any stack holds.
const HOSTILE: [usize; 3] = [MAX_DEPTH + 1, 1000, 1_000_000];

/// The only kind with a field of any form, which can be nested to any depth.
fn revision() -> (&'static Schema, TypeId) {
    let schema = Schema::served();
    (schema, schema.find("io.k8s.api.apps.v1.ControllerRevision").unwrap())
}

fn nested(open: &str, close: &str, depth: usize) -> String {
    format!("{}1{}", open.repeat(depth), close.repeat(depth))
}

/// Returns an object with this nesting, including itself.
fn text(depth: usize) -> String {
    let data = nested("{\"a\":", "}", depth - 1);
    format!(
        r#"{{"apiVersion":"apps/v1","kind":"ControllerRevision","metadata":{{"name":"r"}},"revision":1,"data":{data}}}"#
    )
}

/// Runs on the stack that threads of a tokio runtime have.
fn on_a_small_stack(work: impl FnOnce() + Send + 'static) {
    let thread = std::thread::Builder::new().stack_size(2 << 20).spawn(work).unwrap();
    thread.join().unwrap();
}

#[test]
fn json_is_decoded_to_the_limit() {
    let (schema, id) = revision();
    on_a_small_stack(move || {
        assert!(schema.decode(id, text(MAX_DEPTH).as_bytes()).is_ok());
        let error = schema.decode(id, text(MAX_DEPTH + 1).as_bytes()).unwrap_err();
        assert!(matches!(error, DecodeError::TooDeep { .. }), "{error}");
        assert!(error.to_string().contains("exceeded max depth"), "{error}");
        for depth in HOSTILE {
            for data in [nested("{\"a\":", "}", depth), nested("[", "]", depth)] {
                let body = format!(r#"{{"metadata":{{}},"data":{data}}}"#);
                assert!(schema.decode(id, body.as_bytes()).is_err());
                assert!(schema.decode_any(body.as_bytes()).is_err());
                // An unknown field is skipped.
                let body = format!(r#"{{"metadata":{{}},"x":{data}}}"#);
                let _ = schema.decode(id, body.as_bytes());
            }
        }
    });
}

#[test]
fn values_are_decoded_to_the_limit() {
    let (schema, id) = revision();
    on_a_small_stack(move || {
        let value: Value = serde_json::from_str(&text(MAX_DEPTH + 20)).unwrap();
        let error = schema.decode_value(id, value).unwrap_err();
        assert!(matches!(error, DecodeError::TooDeep { .. }), "{error}");
    });
}

#[test]
fn yaml_is_read_to_the_limit() {
    on_a_small_stack(|| {
        assert!(yaml::parse(&nested("[", "]", MAX_DEPTH)).1.is_empty());
        let (documents, _) = yaml::parse(&nested("{a: ", "}", MAX_DEPTH));
        let value = documents[0].to_json();
        assert_eq!(format!("{value}").matches('{').count(), MAX_DEPTH);
        for depth in HOSTILE {
            for (open, close) in [("[", "]"), ("{a: ", "}"), ("- ", ""), ("? ", ""), ("- [", "]")] {
                assert!(!yaml::parse(&nested(open, close, depth)).1.is_empty(), "{open}{depth}");
            }
        }
    });
}

#[test]
fn protobuf_is_decoded_to_the_limit() {
    let (schema, id) = revision();
    let message = |depth: usize| {
        let field = |number: u8, bytes: &[u8]| {
            let mut out = vec![number << 3 | 2];
            let mut length = bytes.len();
            while length >= 0x80 {
                out.push((length & 0x7f) as u8 | 0x80);
                length >>= 7;
            }
            out.push(length as u8);
            out.extend_from_slice(bytes);
            out
        };
        let raw = field(1, nested("{\"a\":", "}", depth).as_bytes());
        field(2, &raw)
    };
    on_a_small_stack(move || {
        let decoded = protobuf::decode(schema, id, &message(MAX_DEPTH - 1)).unwrap();
        // An accepted object can be written and read again.
        let text = decoded.value.to_string();
        assert_eq!(schema.decode(id, text.as_bytes()).unwrap().value, decoded.value);
        for depth in HOSTILE {
            assert!(protobuf::decode(schema, id, &message(depth)).is_err());
            // Nested groups and messages of unknown fields.
            let _ = protobuf::decode(schema, id, &vec![0x7b; depth]);
            let mut unknown = vec![0x7a, 0];
            for _ in 0..depth.min(1000) {
                let length = unknown.len();
                if length < 0x80 {
                    unknown.splice(0..0, [0x7a, length as u8]);
                } else {
                    unknown.splice(0..0, [0x7a, (length & 0x7f) as u8 | 0x80, (length >> 7) as u8]);
                }
            }
            let _ = protobuf::decode(schema, id, &unknown);
        }
    });
}

#[test]
fn patches_are_read_and_merged_to_the_limit() {
    let (schema, id) = revision();
    on_a_small_stack(move || {
        let live: Value = serde_json::from_str(&text(MAX_DEPTH)).unwrap();
        let body = text(MAX_DEPTH);
        let merged = patch::merge(live.clone(), body.as_bytes()).unwrap();
        assert!(schema.decode_value(id, merged.value).is_ok());
        let merged = patch::strategic(schema, id, json!({}), body.as_bytes()).unwrap();
        assert!(schema.decode_value(id, merged.value).is_ok());
        for depth in HOSTILE {
            let body = text(depth);
            let outcomes = [
                patch::merge(live.clone(), body.as_bytes()),
                patch::strategic(schema, id, live.clone(), body.as_bytes()),
                patch::json(
                    live.clone(),
                    format!(r#"[{{"op":"replace","path":"","value":{body}}}]"#).as_bytes(),
                ),
            ];
            for outcome in outcomes {
                let refused =
                    outcome.map_or(true, |made| schema.decode_value(id, made.value).is_err());
                assert!(refused, "{depth}");
            }
            // Directives and nulls in new values.
            for inner in ["{\"$patch\":\"delete\"}", "null"] {
                let data = format!("{}{inner}{}", "{\"a\":[".repeat(depth), "]}".repeat(depth));
                let body = format!(r#"{{"data":{data}}}"#);
                let _ = patch::merge(json!({}), body.as_bytes());
                let _ = patch::strategic(schema, id, json!({}), body.as_bytes());
            }
        }
    });
}

#[test]
fn operations_build_nothing_deeper_than_can_be_read() {
    let operation = json!({"op": "add", "path": "/data", "value": {}});
    let mut path = "/data".to_owned();
    let mut operations = vec![operation];
    for _ in 0..MAX_DEPTH {
        path += "/a";
        operations.push(json!({"op": "add", "path": path, "value": {}}));
    }
    let all = json!(operations).to_string();
    let error = patch::json(json!({}), all.as_bytes()).unwrap_err();
    assert_eq!(error.status(), 422);
    operations.truncate(MAX_DEPTH - 1);
    let most = json!(operations).to_string();
    assert!(patch::json(json!({}), most.as_bytes()).is_ok());
}

#[test]
fn a_refused_patch_is_shown_without_following_long_paths() {
    let (schema, id) = revision();
    on_a_small_stack(move || {
        let live: Value = serde_json::from_str(&text(MAX_DEPTH)).unwrap();
        let long = "/a".repeat(1_000_000);
        let body = json!([{"op": "add", "path": "/revision", "value": "x", "from": long}]);
        let body = body.to_string();
        let patched = patch::json(live.clone(), body.as_bytes()).unwrap().value;
        for kind in [PatchKind::Json, PatchKind::Merge, PatchKind::Strategic] {
            let body = if kind == PatchKind::Json { body.clone() } else { text(MAX_DEPTH) };
            let shown = patch::invalid_value(kind, schema, id, &live, body.as_bytes(), &patched);
            assert!(shown.len() < 4096, "{}", shown.len());
        }
    });
}

#[test]
fn objects_are_applied_to_the_limit() {
    let (schema, id) = revision();
    let by = FieldManager { name: "m", subresource: "", api_version: "apps/v1" };
    let now = Timestamp::new(0, 0);
    on_a_small_stack(move || {
        let config: Value = serde_json::from_str(&text(MAX_DEPTH)).unwrap();
        let mut live = config.clone();
        live["data"] = json!({"b": config["data"], "a": {"a": [config["data"]]}});
        let other = FieldManager { name: "other", ..by };
        apply::track_update(schema, id, None, &mut live, &other, now);
        for force in [true, false] {
            let _ = apply::apply(schema, id, Some(&live), &config, &by, force, now);
        }
        let merged = apply::apply(schema, id, Some(&live), &config, &by, true, now).unwrap();
        // Fields that are no longer applied are removed.
        let mut less = config.clone();
        less["data"] = json!({"b": 1});
        apply::apply(schema, id, Some(&merged), &less, &by, true, now).unwrap();
        // A field of the wrong type is shown with its contents.
        let mut wrong = config.clone();
        wrong["metadata"]["name"] = config["data"].clone();
        assert!(apply::apply(schema, id, None, &wrong, &by, true, now).is_err());
    });
}

#[test]
fn sets_of_fields_are_read_and_combined_to_the_limit() {
    on_a_small_stack(|| {
        let tree = nested("{\"f:a\":", "}", MAX_DEPTH).replace('1', "{}");
        let value: Value = serde_json::from_str(&tree).unwrap();
        let set = FieldSet::parse(&value).unwrap();
        let mut sum = set.clone();
        sum.add(&FieldSet::of(&["f:a", "f:b"]));
        assert_eq!(sum.intersection(&set), set);
        assert_eq!(sum.paths().len(), 2);
        sum.subtract(&set);
        assert_eq!(sum, FieldSet::of(&["f:a", "f:b"]));
        sum.subtract_with_all_below(&FieldSet::of(&["f:a"]));
        assert!(sum.is_empty());
        // Values in path elements are separate JSON.
        for depth in HOSTILE {
            let element = format!("v:{}", nested("[", "]", depth));
            assert!(FieldSet::parse(&json!({element: {}})).is_err() || depth < 127);
        }
    });
}
