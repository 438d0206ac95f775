//! Recorded creates and updates of every kind but pods, replayed through decoding, defaults and
//! validation: the resulting object, or the causes, must be the recorded ones.
//!
//! Steps that need more than pure functions are left out: admission by other objects, conflicts,
//! patches other than merge patches.

use objects::FeatureGates;
use objects::catalog::Resource;
use objects::cursor::Causes;
use objects::rules::{self, RuleContext, Subresource, service};
use objects::schema::Schema;
use serde_json::{Value, json};

use crate::recorded::{self, Kept, Scenario, Step, Target};

const SCENARIOS: [&str; 16] = [
    "daemonset/",
    "deployment/",
    "event/",
    "job/",
    "lease/",
    "limitrange/",
    "misc/",
    "namespace/",
    "node/",
    "priorityclass/",
    "quota/",
    "replicaset/",
    "runtimeclass/",
    "scale/",
    "service/",
    "table/",
];

#[test]
fn recorded_objects_and_causes_come_out_the_same() {
    let (mut compared, mut wrong) = (0, Vec::new());
    for scenario in recorded::scenarios(&SCENARIOS) {
        let mut kept = Kept::default();
        for step in &scenario.steps {
            match replay(&scenario, step, &kept) {
                Some(Ok(())) => compared += 1,
                Some(Err(problem)) => wrong.push(format!(
                    "{} {} {}: {problem}",
                    scenario.id, step.request.method, step.request.path
                )),
                None => {}
            }
            kept.learn(step);
        }
    }
    assert!(
        wrong.is_empty(),
        "{} of {}:\n{}",
        wrong.len(),
        compared + wrong.len(),
        wrong.join("\n")
    );
    assert!(compared >= 200, "{compared}");
}

fn ctx(gates: &FeatureGates) -> RuleContext<'_> {
    RuleContext { gates, allow_privileged: true, now: recorded::recorded_at() }
}

/// Returns the result of one step, if it can be replayed.
fn replay(scenario: &Scenario, step: &Step, kept: &Kept) -> Option<Result<(), String>> {
    let target = recorded::target(&step.request.path)?;
    let is_other = matches!(target.resource.kind, "Pod" | "Binding")
        || !matches!(step.response.status, 200 | 201 | 422)
        || matches!(target.subresource, Some("scale"));
    let is_generated = step.request.body["metadata"].get("generateName").is_some();
    if is_other || is_generated {
        return None;
    }
    let gates = FeatureGates::default();
    let ctx = ctx(&gates);
    let (object, causes) = match (step.request.method.as_str(), target.name) {
        ("POST", None) => create(&target, step, &ctx),
        ("PUT", Some(_)) => update(&target, step, step.request.body.clone(), kept, &ctx)?,
        ("PATCH", Some(_))
            if step.request.headers["Content-Type"] == "application/merge-patch+json" =>
        {
            let mut merged = kept.get(&target)?.clone();
            merge(&mut merged, &step.request.body);
            update(&target, step, merged, kept, &ctx)?
        }
        _ => return None,
    };
    Some(compare(scenario, step, &object, &causes))
}

fn decoded(resource: &Resource, body: Value) -> Value {
    let schema = Schema::served();
    let id = resource.type_id(schema).unwrap();
    let mut object = schema.decode_value(id, body).unwrap().value;
    object["kind"] = resource.kind.into();
    object["apiVersion"] = resource.api_version().into();
    object
}

fn create(target: &Target<'_>, step: &Step, ctx: &RuleContext<'_>) -> (Value, Causes) {
    let mut object = decoded(target.resource, step.request.body.clone());
    rules::set_defaults(target.resource, &mut object);
    let answer = &step.response.body["metadata"];
    object["metadata"]["uid"] = answer.get("uid").cloned().unwrap_or_else(|| "uid-1".into());
    for field in ["name", "resourceVersion", "creationTimestamp", "namespace"] {
        if let Some(value) = answer.get(field) {
            object["metadata"][field] = value.clone();
        }
    }
    if target.resource.namespaced {
        let namespace =
            step.request.path.split('/').skip_while(|part| *part != "namespaces").nth(1);
        object["metadata"]["namespace"] = namespace.into();
    }
    rules::prepare_create(target.resource, &mut object, ctx);
    if target.resource.kind == "Service" {
        allocate(&mut object);
    }
    let causes = rules::validate_create(target.resource, &object, ctx);
    (object, causes)
}

/// Sets an address and ports of a service.
fn allocate(service: &mut Value) {
    match service::requested_address(service) {
        service::AddressRequest::None => service::set_address(service, None),
        service::AddressRequest::Any => service::set_address(service, Some("10.0.0.9")),
        service::AddressRequest::This(wanted) => service::set_address(service, Some(&wanted)),
    }
    for index in service::unset_node_ports(service) {
        service::set_node_port(service, index, 30_000);
    }
    if service::needs_health_port(service) {
        service::set_health_port(service, 30_001);
    }
}

fn update(
    target: &Target<'_>,
    step: &Step,
    body: Value,
    kept: &Kept,
    ctx: &RuleContext<'_>,
) -> Option<(Value, Causes)> {
    let old = kept.get(target)?;
    let subresource = match target.subresource {
        None => Subresource::Main,
        Some("status") => Subresource::Status,
        Some("finalize") => Subresource::Finalize,
        Some(_) => return None,
    };
    let mut object = decoded(target.resource, body);
    rules::set_defaults(target.resource, &mut object);
    for field in ["resourceVersion", "namespace"] {
        if let Some(value) = old["metadata"].get(field) {
            object["metadata"][field] = value.clone();
        }
    }
    rules::prepare_update(target.resource, &mut object, old, subresource, ctx);
    let causes = rules::validate_update(target.resource, &object, old, subresource, ctx);
    if let Some(version) = step.response.body["metadata"].get("resourceVersion") {
        object["metadata"]["resourceVersion"] = version.clone();
    }
    Some((object, causes))
}

/// A merge patch (RFC 7386).
fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = json!({});
    }
    for (key, value) in patch {
        if value.is_null() {
            target.as_object_mut().unwrap().remove(key);
        } else {
            merge(&mut target[key.as_str()], value);
            if target[key.as_str()].is_null() {
                target.as_object_mut().unwrap().remove(key);
            }
        }
    }
}

fn compare(
    scenario: &Scenario,
    step: &Step,
    object: &Value,
    causes: &Causes,
) -> Result<(), String> {
    let body = &step.response.body;
    if step.response.status == 422 {
        let mut made: Vec<Value> =
            causes.0.iter().map(|c| serde_json::to_value(c).unwrap()).collect();
        let mut expected = body["details"]["causes"].as_array().cloned().unwrap_or_default();
        // Allocation is the server's.
        if body["message"].as_str().is_some_and(|text| text.contains("failed to allocate")) {
            return Ok(());
        }
        if scenario.any_order == true {
            made.sort_by_key(Value::to_string);
            expected.sort_by_key(Value::to_string);
        }
        // Upstream shows its Go structures here, which are not compared.
        for cause in made.iter_mut().chain(&mut expected) {
            let is_template = cause["field"] == "spec.template"
                && cause["message"]
                    .as_str()
                    .is_some_and(|text| text.ends_with("field is immutable"));
            if is_template {
                cause["message"] = "…: field is immutable".into();
            }
        }
        return match made == expected {
            true => Ok(()),
            false => Err(format!("causes {}\ninstead of {}", json!(made), json!(expected))),
        };
    }
    if !causes.is_empty() {
        return Err(format!("causes {causes:?}"));
    }
    let mut object = object.clone();
    hide_allocated(&mut object);
    let mut expected = body.clone();
    hide_allocated(&mut expected);
    match object == expected {
        true => Ok(()),
        false => Err(format!("{object}\ninstead of {expected}")),
    }
}

/// Removes allocated addresses and ports, which are not compared.
fn hide_allocated(object: &mut Value) {
    if object["kind"] != "Service" {
        return;
    }
    let spec = object["spec"].as_object_mut().unwrap();
    for field in ["clusterIP", "clusterIPs", "healthCheckNodePort"] {
        if spec.get(field).is_some_and(|value| value != "None" && *value != json!(["None"])) {
            spec.insert(field.to_owned(), "…".into());
        }
    }
    for port in spec.get_mut("ports").and_then(Value::as_array_mut).into_iter().flatten() {
        if port.get("nodePort").is_some() {
            port["nodePort"] = "…".into();
        }
    }
}
