//! Requests for pods, replayed through the rules: defaults, admission, preparation, validation,
//! warnings and Pod Security, compared with upstream's responses.
//!
//! Metadata that the server generates is copied from the recorded responses. Steps that need a
//! server (conflicts, bindings, deletion, decoding errors) only update the stored objects.

use std::collections::BTreeMap;

use objects::catalog::{self, Resource};
use objects::cursor::{Cause, Causes, Cursor};
use objects::feature_gates::FeatureGates;
use objects::patch::{self, PatchKind};
use objects::rules::pod::{self, admission};
use objects::rules::{self, RuleContext, Subresource, pod_security};
use objects::schema::Schema;
use serde_json::{Value, json};

use crate::recorded::{Response, Scenario, Step, recorded_at, scenarios};

/// The suffix that replaces the random end of generated names.
const SUFFIX: &str = "bcdfg";

/// Steps whose response may differ, with the reason.
const KNOWN_DIFFERENCES: &[(&str, &str)] = &[];

/// The result of the rules for a request.
#[derive(Debug)]
enum Outcome {
    Accepted {
        object: Value,
        warnings: Vec<String>,
    },
    Invalid(Causes),
    /// 403 with the text after `is forbidden: `.
    Forbidden(String),
}

/// The objects of a scenario while it runs.
struct World<'a> {
    scenario: &'a Scenario,
    labels: Value,
    pods: BTreeMap<String, Value>,
    /// Pods whose stored state is not known until they are read again.
    unknown: Vec<String>,
}

fn pods() -> &'static Resource {
    catalog::find("", "v1", "pods").unwrap()
}

fn decode(mut value: Value) -> Option<Value> {
    if let Some(object) = value.as_object_mut() {
        object.entry("kind").or_insert("Pod".into());
        object.entry("apiVersion").or_insert("v1".into());
    }
    let schema = Schema::served();
    let id = pods().type_id(schema).unwrap();
    schema.decode_value(id, value).ok().map(|decoded| decoded.value)
}

/// Returns `name` and subresource of a path below the namespace's pods.
fn pod_path(path: &str) -> Option<(&str, &str)> {
    let (_, rest) = path.split_once("/namespaces/")?;
    let (_, rest) = rest.split_once('/')?;
    let mut parts = rest.split('/');
    (parts.next() == Some("pods")).then_some(())?;
    Some((parts.next().unwrap_or_default(), parts.next().unwrap_or_default()))
}

impl World<'_> {
    fn ctx<'a>(&self, gates: &'a FeatureGates) -> RuleContext<'a> {
        let allow_privileged = self.scenario.server != "allow-privileged-false";
        RuleContext { gates, allow_privileged, now: recorded_at() }
    }

    fn policy(&self) -> pod_security::Policy {
        pod_security::Policy::of_labels(&self.labels, &mut Causes::default())
    }

    fn create(&self, body: &Value) -> Option<Outcome> {
        let gates = FeatureGates::default();
        let ctx = self.ctx(&gates);
        let mut object = decode(body.clone())?;
        let namespace = &self.scenario.namespace["name"];
        object["metadata"]["namespace"] = namespace.clone();
        rules::set_defaults(pods(), &mut object);
        admission::default_tolerations(&mut object);
        for resolved in [
            admission::resolve_priority(&mut object, |name| class(name?)),
            admission::resolve_runtime_class(&mut object, |_| None),
        ] {
            if let Err(refusal) = resolved {
                return Some(Outcome::Forbidden(refusal.to_string()));
            }
        }
        rules::prepare_create(pods(), &mut object, &ctx);
        let meta = object["metadata"].as_object_mut()?;
        if !meta.contains_key("name")
            && let Some(prefix) = meta.get("generateName").and_then(Value::as_str)
        {
            let name = format!("{prefix}{SUFFIX}");
            meta.insert("name".to_owned(), name.into());
        }
        let causes = rules::validate_create(pods(), &object, &ctx);
        if !causes.is_empty() {
            return Some(Outcome::Invalid(causes));
        }
        if let Err(refusal) = admission::check_overhead(&object, None) {
            return Some(Outcome::Forbidden(refusal.to_string()));
        }
        let mut warnings = rules::warnings(pods(), &object, None);
        let review = pod_security::review_pod(&self.policy(), &object["metadata"], &object["spec"]);
        if let Some(refusal) = review.refusal {
            return Some(Outcome::Forbidden(refusal));
        }
        warnings.extend(review.warnings);
        Some(Outcome::Accepted { object, warnings })
    }

    fn update(&self, old: &Value, new: Value, subresource: Subresource) -> Option<Outcome> {
        let gates = FeatureGates::default();
        let ctx = self.ctx(&gates);
        let mut object = decode(new)?;
        let meta = object["metadata"].as_object_mut()?;
        meta.entry("namespace").or_insert_with(|| self.scenario.namespace["name"].clone());
        if !meta.contains_key("resourceVersion") || meta["resourceVersion"] == "0" {
            let version = old["metadata"]["resourceVersion"].clone();
            meta.insert("resourceVersion".to_owned(), version);
        }
        rules::set_defaults(pods(), &mut object);
        if subresource == Subresource::Main {
            admission::default_tolerations(&mut object);
            admission::keep_priority(&mut object, old);
        }
        rules::prepare_update(pods(), &mut object, old, subresource, &ctx);
        let causes = rules::validate_update(pods(), &object, old, subresource, &ctx);
        if !causes.is_empty() {
            return Some(Outcome::Invalid(causes));
        }
        let mut warnings = Vec::new();
        if subresource == Subresource::Status {
            warnings.extend(pod::status_warnings(&object));
        } else if pod_security::is_significant(&object, old) {
            let review =
                pod_security::review_pod(&self.policy(), &object["metadata"], &object["spec"]);
            if let Some(refusal) = review.refusal {
                return Some(Outcome::Forbidden(refusal));
            }
            warnings.extend(review.warnings);
        }
        Some(Outcome::Accepted { object, warnings })
    }

    /// Returns the patched object; `None` if the patch is invalid, which the server reports.
    fn patched(&self, old: &Value, step: &Step) -> Option<Value> {
        let content = step.request.headers.get("Content-Type").and_then(Value::as_str);
        let kind = PatchKind::of_content_type(content.unwrap_or_default())?;
        let text = step.request.body.to_string();
        let schema = Schema::served();
        let patched = match kind {
            PatchKind::Json => patch::json(old.clone(), text.as_bytes()),
            PatchKind::Merge => patch::merge(old.clone(), text.as_bytes()),
            PatchKind::Strategic => {
                let id = pods().type_id(schema).unwrap();
                patch::strategic(schema, id, old.clone(), text.as_bytes())
            }
            PatchKind::Apply => return None,
        };
        patched.ok().map(|patched| patched.value)
    }

    /// Returns the result of the rules for a step; `None` where a server is needed.
    fn run(&mut self, step: &Step) -> Option<Outcome> {
        let (method, path) = (step.request.method.as_str(), step.request.path.as_str());
        if method == "PATCH" && path.matches('/').count() == 4 {
            return self.relabel(step);
        }
        if step.request.query.get("dryRun").is_some() {
            return None;
        }
        if method == "POST" && pod_path(path).is_none() && !path.ends_with("/nodes") {
            return self.template(&step.request.body);
        }
        let (name, subresource) = pod_path(path)?;
        match (method, name, subresource) {
            ("POST", "", "") => self.create(&step.request.body),
            ("GET", name, "" | "status" | "resize" | "ephemeralcontainers") if !name.is_empty() => {
                let object = self.pods.get(name)?.clone();
                Some(Outcome::Accepted { object, warnings: Vec::new() })
            }
            ("PUT" | "PATCH", name, subresource) => {
                let subresource = match subresource {
                    "" => Subresource::Main,
                    "status" => Subresource::Status,
                    "resize" => Subresource::Resize,
                    "ephemeralcontainers" => Subresource::EphemeralContainers,
                    _ => return None,
                };
                let old = self.pods.get(name)?.clone();
                let new = match method {
                    "PUT" => step.request.body.clone(),
                    _ => self.patched(&old, step)?,
                };
                self.update(&old, new, subresource)
            }
            _ => None,
        }
    }

    /// Returns the warnings about the template of a workload.
    fn template(&self, body: &Value) -> Option<Outcome> {
        const PLACES: [&str; 3] = ["spec.template", "spec.jobTemplate.spec.template", "template"];
        let find = |path: &str| path.split('.').try_fold(body, |value, field| value.get(field));
        let (place, template) = PLACES.iter().find_map(|path| Some((path, find(path)?)))?;
        let schema = Schema::served();
        let id = schema.find("io.k8s.api.core.v1.PodTemplateSpec")?;
        let mut template = schema.decode_value(id, template.clone()).ok()?.value;
        pod::set_template_defaults(&mut template);
        pod::drop_template_fields(&mut template, &Value::Null);
        let gates = FeatureGates::default();
        let mut causes = Causes::default();
        let at = Cursor::top(&template, place);
        pod::validate_template(&at, &Value::Null, &self.ctx(&gates), &mut causes);
        if !causes.is_empty() {
            return Some(Outcome::Invalid(causes));
        }
        let review =
            pod_security::review_template(&self.policy(), &template["metadata"], &template["spec"]);
        let mut warnings = pod::template_warnings(&at);
        warnings.extend(review.warnings);
        Some(Outcome::Accepted { object: Value::Null, warnings })
    }

    fn relabel(&mut self, step: &Step) -> Option<Outcome> {
        let labels = step.request.body["metadata"].get("labels")?;
        let mut new = self.labels.clone();
        if !new.is_object() {
            new = json!({});
        }
        for (key, value) in labels.as_object()? {
            new[key] = value.clone();
        }
        let mut causes = Causes::default();
        let policy = pod_security::Policy::of_labels(&new, &mut causes);
        if !causes.is_empty() {
            return Some(Outcome::Invalid(causes));
        }
        let name = self.scenario.namespace["name"].as_str()?;
        let pods = self.pods.values();
        let warnings = pod_security::review_namespace(name, &self.policy(), &policy, pods);
        if step.request.query.get("dryRun").is_none() {
            self.labels = new;
        }
        Some(Outcome::Accepted { object: Value::Null, warnings })
    }

    /// Stores the object of the recorded response.
    fn keep(&mut self, step: &Step, ours: Option<Value>) {
        let Some((name, _)) = pod_path(&step.request.path) else { return };
        let body = &step.response.body;
        let named = body["metadata"]["name"].as_str().map(str::to_owned);
        let name = if name.is_empty() { named.unwrap_or_default() } else { name.to_owned() };
        if step.response.status >= 400 {
            return;
        }
        if step.request.query.get("dryRun").is_some() {
            return;
        }
        if !step.response.body_extract.is_null() {
            return;
        }
        let is_pod = body["kind"] == "Pod";
        match step.request.method.as_str() {
            "DELETE" if body["metadata"].get("deletionTimestamp").is_none() || !is_pod => {
                self.pods.remove(&name);
            }
            _ if is_pod => {
                let mut object = ours.unwrap_or_else(|| body.clone());
                for field in ["uid", "resourceVersion", "creationTimestamp"] {
                    if let Some(value) = body["metadata"].get(field) {
                        object["metadata"][field] = value.clone();
                    }
                }
                self.pods.insert(name.clone(), object);
                self.unknown.retain(|unknown| *unknown != name);
            }
            "GET" => {}
            // A binding or eviction: its effect is visible when the pod is next read.
            _ => {
                self.pods.remove(&name);
                self.unknown.push(name);
            }
        }
    }
}

/// The priority classes of every server.
fn class(name: &str) -> Option<&'static Value> {
    static CLASSES: std::sync::LazyLock<[Value; 2]> = std::sync::LazyLock::new(|| {
        let class = |name: &str, value: i64| json!({"metadata": {"name": name}, "value": value, "preemptionPolicy": "PreemptLowerPriority"});
        [
            class("system-cluster-critical", 2_000_000_000),
            class("system-node-critical", 2_000_001_000),
        ]
    });
    CLASSES.iter().find(|class| class["metadata"]["name"] == name)
}

/// Returns an object without fields that the server generates.
fn comparable(object: &Value) -> Value {
    let text = object.to_string();
    let suffix = text.find("<suffix-").map(|at| &text[at..at + "<suffix-1>".len()]);
    let text = suffix.map_or(text.clone(), |suffix| text.replace(suffix, SUFFIX));
    let mut object: Value = serde_json::from_str(&text).unwrap();
    if let Some(meta) = object["metadata"].as_object_mut() {
        for field in ["uid", "resourceVersion", "creationTimestamp", "managedFields"] {
            meta.remove(field);
        }
    }
    object
}

/// Renders a cause for the comparison: of texts that end with a diff of Go structures only the
/// first line counts.
fn comparable_cause(reason: &str, field: &str, message: &str) -> String {
    let diff = ["pod updates may not change fields other than", "existing ephemeral containers"];
    let message = match diff.iter().any(|text| message.contains(text)) {
        true => message.lines().next().unwrap_or_default(),
        false => message,
    };
    format!("{reason} {field}: {message}")
}

fn recorded_causes(response: &Response) -> Vec<String> {
    let text = |cause: &Value, field: &str| cause[field].as_str().unwrap_or_default().to_owned();
    let body = if response.body.is_null() { &response.body_extract } else { &response.body };
    let causes = body["details"]["causes"].as_array();
    causes
        .into_iter()
        .flatten()
        .map(|c| comparable_cause(&text(c, "reason"), &text(c, "field"), &text(c, "message")))
        .collect()
}

fn recorded_warnings(response: &Response) -> Vec<String> {
    response
        .warnings
        .iter()
        .map(|warning| {
            let quoted = warning.strip_prefix("299 - ").unwrap_or(warning);
            let inner = quoted.strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
            let inner = inner.unwrap_or(quoted);
            inner.replace("\\\"", "\"").replace("\\\\", "\\")
        })
        .collect()
}

/// Returns the differences.
fn compare(outcome: &Outcome, response: &Response, any_order: bool) -> String {
    let sorted = |mut list: Vec<String>| {
        if any_order {
            list.sort();
        }
        list
    };
    match outcome {
        Outcome::Accepted { object, warnings } => {
            if response.status >= 300 {
                return format!("accepted, upstream: {}", response.body["message"]);
            }
            let (ours, theirs) = (sorted(warnings.clone()), sorted(recorded_warnings(response)));
            if ours != theirs {
                return format!("warnings\n   ours {ours:#?}\n upstream {theirs:#?}");
            }
            let (ours, theirs) = match response.body_extract.as_object() {
                // Selected fields by their paths, and notes about the response.
                Some(extract) => {
                    let selected = |path: &str| {
                        path.split('.').fold(object, |value, field| &value[field]).clone()
                    };
                    let paths = || extract.iter().filter(|(path, _)| path.contains('.'));
                    (
                        paths().map(|(path, _)| (path.clone(), selected(path))).collect(),
                        paths().map(|(path, value)| (path.clone(), value.clone())).collect(),
                    )
                }
                None => (comparable(object), comparable(&response.body)),
            };
            match object.is_null() || ours == theirs {
                true => String::new(),
                false => format!("object\n{}", lines(&ours, &theirs, "")),
            }
        }
        Outcome::Invalid(causes) => {
            let ours = causes
                .0
                .iter()
                .map(|Cause { reason, field, message }| comparable_cause(reason, field, message));
            let (ours, theirs) = (sorted(ours.collect()), sorted(recorded_causes(response)));
            match response.status == 422 && ours == theirs {
                true => String::new(),
                false => format!(
                    "causes\n   ours {ours:#?}\n upstream {} {theirs:#?} {}",
                    response.status, response.body["message"]
                ),
            }
        }
        Outcome::Forbidden(text) => {
            let message = response.body["message"].as_str().unwrap_or_default();
            let theirs = message.split_once(" is forbidden: ").map_or("", |(_, text)| text);
            match response.status == 403 && theirs == text {
                true => String::new(),
                false => format!("refusal\n   ours {text}\n upstream {message}"),
            }
        }
    }
}

/// Renders the values that differ, ours before upstream's.
fn lines(ours: &Value, theirs: &Value, at: &str) -> String {
    match (ours, theirs) {
        (Value::Object(a), Value::Object(b)) => {
            let keys: std::collections::BTreeSet<_> = a.keys().chain(b.keys()).collect();
            let of = |map: &serde_json::Map<String, Value>, key: &str| {
                map.get(key).cloned().unwrap_or_default()
            };
            let parts = keys.into_iter().filter(|key| a.get(*key) != b.get(*key));
            parts.map(|key| lines(&of(a, key), &of(b, key), &format!("{at}.{key}"))).collect()
        }
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
            let parts = a.iter().zip(b).enumerate().filter(|(_, (a, b))| a != b);
            parts.map(|(n, (a, b))| lines(a, b, &format!("{at}[{n}]"))).collect()
        }
        _ => format!("  {at}: {ours} but {theirs}\n"),
    }
}

/// Reports whether only a server can give this response.
fn needs_a_server(response: &Response) -> bool {
    let message = response.body["message"].as_str().unwrap_or_default();
    matches!(response.status, 400 | 404 | 405 | 409 | 410 | 415 | 500)
        || response.body["kind"] == "Table"
        || response.body["details"]["causes"][0]["field"] == "patch"
        || message.contains("admission webhook")
}

#[test]
fn pods_are_answered_as_upstream_answers_them() {
    let areas = [
        "pod-default",
        "pod-invalid",
        "pod-warning",
        "pod-create",
        "pod-noprivileged",
        "hostprocess",
        "podsecurity",
        "pod-update",
        "pod-status",
        "pod-resize",
        "pod-ephemeralcontainers",
        "pod-binding",
        "pod-mirror",
        "table/pod-state",
        "conflict",
    ];
    let mut counts: BTreeMap<String, (usize, usize, usize)> = BTreeMap::new();
    let mut differences = Vec::new();
    for scenario in scenarios(&areas) {
        let area = scenario.id.split('/').next().unwrap().to_owned();
        let mut world = World {
            scenario: &scenario,
            labels: scenario.namespace["labels"].clone(),
            pods: BTreeMap::new(),
            unknown: Vec::new(),
        };
        let any_order = !scenario.any_order.is_null();
        for (at, step) in scenario.steps.iter().enumerate() {
            let outcome = if needs_a_server(&step.response) { None } else { world.run(step) };
            let count = counts.entry(area.clone()).or_default();
            let mut ours = None;
            match outcome {
                None => count.2 += 1,
                Some(outcome) => {
                    let difference = compare(&outcome, &step.response, any_order);
                    let known = KNOWN_DIFFERENCES.iter().any(|(id, _)| *id == scenario.id);
                    if difference.is_empty() {
                        count.0 += 1;
                        if let Outcome::Accepted { object, .. } = outcome
                            && !object.is_null()
                        {
                            ours = Some(object);
                        }
                    } else {
                        count.1 += 1;
                        if !known {
                            let id = &scenario.id;
                            let name = &step.name;
                            differences.push(format!("{id} step {at} {name}: {difference}"));
                        }
                    }
                }
            }
            world.keep(step, ours);
        }
    }
    for (area, (same, different, skipped)) in &counts {
        println!("{area}: {same} agree, {different} differ, {skipped} need a server");
    }
    assert!(differences.is_empty(), "{} differ:\n{}", differences.len(), differences.join("\n"));
}
