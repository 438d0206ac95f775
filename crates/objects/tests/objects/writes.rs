//! Recorded patches and applies, replayed with the recorded objects: results, field owners, and
//! error texts.
//!
//! There is no server here. The object before a step is the one of the previous recorded response;
//! after an accepted step the recorded response is the stored object. Defaults are not set, so a
//! response may have additional defaults.

use std::collections::BTreeMap;

use objects::apply::{self, ApplyError, FieldManager};
use objects::catalog::Resource;
use objects::patch::{self, PatchError, PatchKind};
use objects::schema::{Schema, TypeId};
use serde_json::{Value, json};

use crate::recorded::{Request, Scenario, recorded_at, scenarios, target};

/// Fields that a server adds to a patched object by defaulting.
const DEFAULTED: &[&str] = &[
    "imagePullPolicy",
    "protocol",
    "resources",
    "securityContext",
    "terminationMessagePath",
    "terminationMessagePolicy",
    "type",
    "lastProbeTime",
    "lastTransitionTime",
    "rollingUpdate",
    "lastHeartbeatTime",
    "containerID",
];

#[derive(Debug, Default)]
struct Counts {
    patched: usize,
    refused: usize,
    applied: usize,
    owners: usize,
}

/// A write request and its target.
struct Write<'a> {
    method: &'a str,
    path: &'a str,
    resource: &'static Resource,
    subresource: &'a str,
    content_type: &'a str,
    manager: &'a str,
    force: bool,
    body: Vec<u8>,
}

impl<'a> Write<'a> {
    fn of(request: &'a Request) -> Option<Write<'a>> {
        let target = target(&request.path)?;
        let header = |name: &str| request.headers.get(name);
        let content_type = match header("Content-Type") {
            None => "application/json",
            Some(given) => given.as_str().unwrap_or_default(),
        };
        let agent = header("User-Agent").and_then(Value::as_str).unwrap_or("golden/1.0");
        let body = match (&request.body_text, &request.body) {
            (Some(text), _) => text.clone().into_bytes(),
            (None, Value::Null) => Vec::new(),
            (None, body) => body.to_string().into_bytes(),
        };
        Some(Write {
            method: &request.method,
            path: &request.path,
            resource: target.resource,
            subresource: target.subresource.unwrap_or_default(),
            content_type,
            manager: request.query["fieldManager"].as_str().or(agent.split('/').next())?,
            force: request.query["force"] == "true",
            body,
        })
    }

    fn type_id(&self) -> TypeId {
        self.resource.type_id(Schema::served()).unwrap()
    }

    /// The path of the object, without subresource.
    fn key(&self) -> &'a str {
        let suffix = self.subresource.len();
        if suffix == 0 { self.path } else { &self.path[..self.path.len() - suffix - 1] }
    }
}

/// With placeholders that need no escapes.
fn bared(value: &Value) -> Value {
    match value {
        Value::String(text) => text.replace(['<', '>'], "").into(),
        Value::Array(items) => items.iter().map(bared).collect(),
        Value::Object(map) => map.iter().map(|(k, v)| (k.clone(), bared(v))).collect(),
        other => other.clone(),
    }
}

/// Collects the differences between `made` and the recording, without defaults and bookkeeping.
fn compare(path: &str, made: &Value, recorded: &Value, found: &mut Vec<String>) {
    match (made, recorded) {
        (Value::Object(made), Value::Object(recorded)) => {
            for (name, value) in made {
                let path = format!("{path}.{name}");
                match recorded.get(name) {
                    Some(other) => compare(&path, value, other, found),
                    None => found.push(format!("{path} is not recorded")),
                }
            }
            for name in recorded.keys().filter(|name| !made.contains_key(*name)) {
                if !DEFAULTED.contains(&name.as_str()) {
                    found.push(format!("{path}.{name} was not made"));
                }
            }
        }
        (Value::Array(made), Value::Array(recorded)) if made.len() == recorded.len() => {
            for (at, (made, recorded)) in made.iter().zip(recorded).enumerate() {
                compare(&format!("{path}[{at}]"), made, recorded, found);
            }
        }
        (made, recorded) if made == recorded => {}
        (made, recorded) => found.push(format!("{path} is {made}, recorded {recorded}")),
    }
}

/// Returns an object without counters of the server and managers.
fn plain(mut object: Value) -> Value {
    if let Some(metadata) = object["metadata"].as_object_mut() {
        for name in ["resourceVersion", "generation", "managedFields"] {
            metadata.remove(name);
        }
    }
    object
}

fn managers(object: &Value) -> Value {
    object["metadata"]["managedFields"].clone()
}

struct Replay<'a> {
    scenario: &'a Scenario,
    managed: bool,
    stored: BTreeMap<String, Value>,
    /// The managers of the last write, in a scenario that was recorded without them.
    made: Value,
    counts: Counts,
    failures: Vec<String>,
}

impl Replay<'_> {
    fn run(&mut self) {
        for (at, step) in self.scenario.steps.iter().enumerate() {
            let Some(request) = Write::of(&step.request) else { continue };
            let mut body = step.response.body.clone();
            let status = step.response.status;
            let mut found = Vec::new();
            match (request.method, PatchKind::of_content_type(request.content_type)) {
                ("PATCH", Some(PatchKind::Apply)) => {
                    self.apply(&request, status, &body, &mut found)
                }
                ("PATCH", Some(kind)) if request.subresource != "scale" => {
                    self.patch(kind, &request, status, &body, &mut found);
                }
                ("PATCH", None) => assert!(status >= 400),
                ("POST" | "PUT", _) if request.subresource.is_empty() => {
                    self.track(&request, status, &body, &mut found);
                }
                _ => {}
            }
            self.scale(&request, status, &body, &mut found);
            let what = |found| format!("{} step {at} ({}): {found}", self.scenario.id, step.name);
            self.failures.extend(found.into_iter().map(what));
            let dry = step.request.query.get("dryRun").is_some();
            let is_object =
                body["kind"] == request.resource.kind && body["metadata"]["uid"].is_string();
            if (200..300).contains(&status) && is_object && !dry && request.method != "GET" {
                let name = body["metadata"]["name"].as_str().unwrap();
                let key = match request.method {
                    "POST" => format!("{}/{name}", request.path),
                    _ => request.key().to_owned(),
                };
                if !self.managed {
                    body["metadata"]["managedFields"] = std::mem::take(&mut self.made);
                }
                self.stored.insert(key, body);
            }
        }
    }

    fn by<'r>(request: &Write<'r>, api_version: &'r str) -> FieldManager<'r> {
        FieldManager { name: request.manager, subresource: request.subresource, api_version }
    }

    fn patch(
        &mut self,
        kind: PatchKind,
        request: &Write<'_>,
        status: u16,
        body: &Value,
        found: &mut Vec<String>,
    ) {
        let Some(live) = self.stored.get(request.key()) else { return };
        let (schema, id) = (Schema::served(), request.type_id());
        let result = match kind {
            PatchKind::Json => patch::json(live.clone(), &request.body),
            PatchKind::Merge => patch::merge(live.clone(), &request.body),
            _ => patch::strategic(schema, id, live.clone(), &request.body),
        };
        let message = body["message"].as_str().unwrap_or_default();
        let refusal =
            |error: &PatchError| (error.status(), error.to_string(), error.reason().to_owned());
        let patched = match result {
            Ok(patched) => patched,
            Err(error) => {
                let reason = body["reason"].as_str().unwrap_or_default().to_owned();
                // Errors for which upstream returns 500 are client errors here.
                if status != 500 && refusal(&error) != (status, message.to_owned(), reason) {
                    found.push(format!("refused with {error:?}, recorded {status} {message}"));
                }
                self.counts.refused += 1;
                return;
            }
        };
        let decoded = schema.decode_value(id, patched.value.clone());
        if let Some((_, text)) = message.split_once("is invalid: patch: Invalid value: ") {
            // Placeholders are not HTML.
            let bare = |text: &str| text.replace(['<', '>'], "");
            let live = bared(live);
            let patched = bared(&patched.value);
            let shown = patch::invalid_value(kind, schema, id, &live, &request.body, &patched);
            let shown = objects::go::quoted(&shown);
            let text = bare(&text.replace("<time>", &recorded_at().to_seconds_text()));
            if !text.starts_with(&shown) {
                found.push(format!("shown as\n  {shown}\nrecorded\n  {text}"));
            }
        }
        if !(200..300).contains(&status) {
            return;
        }
        let mut decoded = match decoded {
            Ok(decoded) => decoded.value,
            Err(error) => return found.push(format!("does not decode: {error}")),
        };
        if request.subresource.is_empty() && body["kind"] == request.resource.kind {
            compare("", &plain(decoded.clone()), &plain(body.clone()), found);
            self.counts.patched += 1;
        }
        let api_version = request.resource.api_version();
        let by = Self::by(request, &api_version);
        apply::track_update(schema, id, Some(live), &mut decoded, &by, recorded_at());
        self.owners(managers(&decoded), body, found);
    }

    fn track(&mut self, request: &Write<'_>, status: u16, body: &Value, found: &mut Vec<String>) {
        if !(200..300).contains(&status) || body["kind"] != request.resource.kind {
            return;
        }
        let api_version = request.resource.api_version();
        let by = Self::by(request, &api_version);
        let live = self.stored.get(request.path);
        let schema = Schema::served();
        let Ok(sent) = serde_json::from_slice(&request.body) else { return };
        let Ok(mut new) = schema.decode_value(request.type_id(), sent) else { return };
        let now = recorded_at();
        apply::track_update(schema, request.type_id(), live, &mut new.value, &by, now);
        self.owners(managers(&new.value), body, found);
    }

    /// Compares the managers with the recorded ones, or stores them where none were recorded.
    fn owners(&mut self, made: Value, body: &Value, found: &mut Vec<String>) {
        if !self.managed {
            self.made = made;
            return;
        }
        let recorded = managers(body);
        if made != recorded {
            found.push(format!("managers are\n  {made}\nrecorded\n  {recorded}"));
        }
        self.counts.owners += 1;
    }

    fn apply(&mut self, request: &Write<'_>, status: u16, body: &Value, found: &mut Vec<String>) {
        // The server reads YAML and checks that it is a map.
        let Ok(applied) = serde_json::from_slice::<Value>(&request.body) else { return };
        if applied.is_array() {
            return;
        }
        let api_version = request.resource.api_version();
        let by = Self::by(request, &api_version);
        let live = self.stored.get(request.key());
        let schema = Schema::served();
        let id = request.type_id();
        let now = recorded_at();
        let made = apply::apply(schema, id, live, &applied, &by, request.force, now);
        let message = body["message"].as_str().unwrap_or_default();
        match made {
            Ok(mut made) => {
                self.counts.applied += 1;
                if !(200..300).contains(&status) {
                    // The server checks names, uids and validity.
                    if matches!(status, 500 | 415)
                        || body["reason"] == "Conflict" && message.starts_with("Apply")
                    {
                        found.push(format!("applied, recorded {status} {message}"));
                    }
                    return;
                }
                let owners = managers(&made);
                if let Some(live) = live {
                    let decoded = schema.decode_value(id, made.clone()).unwrap();
                    assert_eq!(decoded.strict, [""; 0]);
                    compare("", &plain(decoded.value), &plain(body.clone()), found);
                    apply::keep_times(live, &mut made);
                }
                self.owners(owners, body, found);
            }
            Err(error) => {
                self.counts.refused += 1;
                if error.to_string() != message {
                    found.push(format!("refused with {error}, recorded {status} {message}"));
                }
                if let ApplyError::Conflicts(conflicts) = &error {
                    assert_eq!(status, 409);
                    let causes: Vec<Value> = conflicts
                        .iter()
                        .map(|conflict| {
                            json!({
                                "reason": "FieldManagerConflict",
                                "message": conflict.message(),
                                "field": conflict.field,
                            })
                        })
                        .collect();
                    assert_eq!(body["details"]["causes"], Value::Array(causes));
                } else {
                    assert!(status == 400 || status == 500);
                }
            }
        }
    }

    /// A write to the scale subresource changes the workload, which no response shows: the workload
    /// is updated here.
    fn scale(&mut self, request: &Write<'_>, status: u16, body: &Value, found: &mut Vec<String>) {
        if request.subresource != "scale" || request.method != "PATCH" || status != 200 {
            return;
        }
        let Some(live) = self.stored.get(request.key()).cloned() else { return };
        let schema = Schema::served();
        let id = schema.find("io.k8s.api.autoscaling.v1.Scale").unwrap();
        let mut scale = body.clone();
        scale["spec"]["replicas"] = live["spec"]["replicas"].clone();
        scale["metadata"]["managedFields"] = apply::scale::to_scale(&live);
        let before = scale.clone();
        let sent: Value = serde_json::from_slice(&request.body).unwrap();
        if let Some(replicas) = sent["spec"].get("replicas") {
            scale["spec"]["replicas"] = replicas.clone();
        }
        if scale["spec"] != body["spec"] && sent.is_object() {
            found.push(format!("scaled to {}, recorded {}", scale["spec"], body["spec"]));
        }
        let by = Self::by(request, "autoscaling/v1");
        let now = recorded_at();
        apply::track_update(schema, id, Some(&before), &mut scale, &by, now);
        let api_version = request.resource.api_version();
        let owners = apply::scale::to_workload(&live, &scale, &api_version);
        let mut new = live;
        new["spec"]["replicas"] = body["spec"]["replicas"].clone();
        new["metadata"]["managedFields"] = owners;
        self.stored.insert(request.key().to_owned(), new);
    }
}

#[test]
fn recorded_writes_come_out_as_recorded() {
    let mut totals = Counts::default();
    let mut failures = Vec::new();
    for scenario in &scenarios(&[
        "patch-",
        "apply/",
        "managedfields/",
        "fieldvalidation/patch",
        "node/",
        "scale/",
        "job/",
        "replicaset/",
        "deployment/",
        "table/",
        "delete/",
    ]) {
        let managed = ["apply/", "managedfields/"].iter().any(|area| scenario.id.starts_with(area));
        let (stored, counts) = (BTreeMap::new(), Counts::default());
        let made = Value::Null;
        let mut replay = Replay { scenario, managed, stored, made, counts, failures: Vec::new() };
        replay.run();
        totals.patched += replay.counts.patched;
        totals.refused += replay.counts.refused;
        totals.applied += replay.counts.applied;
        totals.owners += replay.counts.owners;
        failures.extend(replay.failures);
    }
    assert!(failures.is_empty(), "{}\n{totals:?}", failures.join("\n"));
    // A recording that is not read would never differ.
    assert!(totals.patched >= 50 && totals.refused >= 20, "{totals:?}");
    assert!(totals.applied >= 15 && totals.owners >= 18, "{totals:?}");
}

#[test]
fn an_empty_list_of_managers_is_not_lost_in_decoding() {
    let schema = Schema::served();
    let id = schema.find("io.k8s.api.core.v1.ConfigMap").unwrap();
    let sent = json!({"metadata": {"name": "a", "managedFields": []}});
    assert_eq!(schema.decode_value(id, sent.clone()).unwrap().value, sent);
}
