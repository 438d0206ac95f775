//! Limit ranges and quotas of the recorded scenarios, applied to the objects of the requests:
//! defaults, error texts, and the usage of quotas.

use objects::FeatureGates;
use objects::catalog::{self, Resource};
use objects::rules::{self, RuleContext, service};
use objects::schema::Schema;
use objects::{limits, quota};
use serde_json::Value;

use crate::recorded::{self, Kept, Scenario, Step};

#[test]
fn recorded_bounds_are_kept() {
    let mut compared = 0;
    for scenario in recorded::scenarios(&["limitrange/", "quota/"]) {
        // Upstream charges a create that then fails; ours does not have to.
        if scenario.id == "quota/charged-before-storage" {
            continue;
        }
        let mut kept = Kept::default();
        for step in &scenario.steps {
            compared += usize::from(play(&scenario, step, &mut kept));
        }
    }
    assert!(compared >= 83, "{compared}");
}

fn of_kind<'a>(kept: &'a Kept, kind: &str) -> Vec<&'a Value> {
    kept.0.values().filter(|object| object["kind"] == kind).collect()
}

/// Replays a step; returns true if there was something to compare.
fn play(scenario: &Scenario, step: &Step, kept: &mut Kept) -> bool {
    let (method, path) = (step.request.method.as_str(), step.request.path.as_str());
    if method == "POST" && path.ends_with("/persistentvolumeclaims") {
        return play_claim(step, kept);
    }
    let Some(target) = recorded::target(path) else { return false };
    if method == "GET" && target.resource.kind == "ResourceQuota" {
        let expected = &step.response.body;
        let expected: Vec<&Value> = match expected["items"].as_array() {
            Some(items) => items.iter().collect(),
            None => vec![expected],
        };
        for (made, expected) in of_kind(kept, "ResourceQuota").into_iter().zip(expected) {
            // Volume claims are not counted here.
            if scenario.id != "quota/services-pvc" {
                assert_eq!(made["status"], expected["status"], "{}", scenario.id);
            }
        }
        return true;
    }
    let admitted = matches!(target.resource.kind, "Pod" | "Service" | "Secret" | "ConfigMap")
        && method == "POST";
    if !admitted {
        kept.learn(step);
        return false;
    }
    create(scenario, step, target.resource, kept);
    true
}

fn play_claim(step: &Step, kept: &Kept) -> bool {
    let refusals = limits::check_claim(&step.request.body, &of_kind(kept, "LimitRange"));
    if of_kind(kept, "LimitRange").is_empty() {
        return false;
    }
    let name = step.request.body["metadata"]["name"].as_str().unwrap();
    let made = limits::message(&refusals)
        .map(|text| format!("persistentvolumeclaims {name:?} is forbidden: {text}"));
    assert_eq!(made.as_deref(), step.response.body["message"].as_str());
    true
}

fn create(scenario: &Scenario, step: &Step, resource: &Resource, kept: &mut Kept) {
    let gates = FeatureGates::default();
    let ctx = RuleContext { gates: &gates, allow_privileged: true, now: recorded::recorded_at() };
    let schema = Schema::served();
    let body = step.request.body.clone();
    let mut object = schema.decode_value(resource.type_id(schema).unwrap(), body).unwrap().value;
    let namespace = step.request.path.split('/').nth(4).unwrap();
    object["metadata"]["namespace"] = namespace.into();
    rules::set_defaults(resource, &mut object);
    if resource.kind == "Pod" {
        limits::set_defaults(&mut object, &of_kind(kept, "LimitRange"));
    }
    rules::prepare_create(resource, &mut object, &ctx);
    if resource.kind == "Service" {
        service::set_address(&mut object, Some("10.0.0.9"));
        for index in service::unset_node_ports(&object) {
            service::set_node_port(&mut object, index, 30_000);
        }
    }
    let at = format!("{} {}", scenario.id, object["metadata"]["name"]);
    let causes = rules::validate_create(resource, &object, &ctx);
    assert_eq!(causes.is_empty(), step.response.status != 422, "{at}: {causes:?}");
    if !causes.is_empty() {
        return;
    }
    let refused = match limits::message(&limits::check_pod(&object, &of_kind(kept, "LimitRange"))) {
        Some(text) if resource.kind == "Pod" => Err(text),
        _ => quota::charge(&of_kind(kept, "ResourceQuota"), resource, &object, None, ctx.now)
            .map_err(|refusal| refusal.to_string()),
    };
    match refused {
        Err(text) => {
            let name = object["metadata"]["name"].as_str().unwrap();
            let made = format!("{} {name:?} is forbidden: {text}", resource.plural);
            let expected = step.response.body["message"].as_str().unwrap_or_default();
            assert_eq!(words(&made, scenario), words(expected, scenario), "{at}");
            assert_eq!(step.response.status, 403, "{at}");
        }
        Ok(charged) => {
            assert_eq!(step.response.status, 201, "{at}: {}", step.response.body["message"]);
            if resource.kind == "Pod" {
                check_filled(&object, &step.response.body, &at);
            }
            if step.request.query.get("dryRun").is_none() {
                for quota in charged {
                    let name = quota["metadata"]["name"].as_str().unwrap();
                    let path = format!("/api/v1/namespaces/{namespace}/resourcequotas/{name}");
                    assert!(kept.0.insert(path, quota).is_some());
                }
                kept.learn(step);
            }
        }
    }
}

/// Returns a message, or its parts if their order is that of a map.
fn words<'a>(message: &'a str, scenario: &Scenario) -> Vec<&'a str> {
    if scenario.any_order != true {
        return vec![message];
    }
    let mut words: Vec<&str> =
        message.split([',', '[', ']']).map(str::trim).filter(|word| !word.is_empty()).collect();
    words.sort_unstable();
    words
}

fn check_filled(made: &Value, expected: &Value, at: &str) {
    let resources = |pod: &Value| -> Vec<Value> {
        let spec = &pod["spec"];
        let lists = ["initContainers", "containers"].map(|list| spec[list].as_array().cloned());
        lists.into_iter().flatten().flatten().map(|c| c["resources"].clone()).collect()
    };
    assert_eq!(resources(made), resources(expected), "{at}");
    assert_eq!(made["metadata"]["annotations"], expected["metadata"]["annotations"], "{at}");
    assert_eq!(made["status"]["qosClass"], expected["status"]["qosClass"], "{at}");
}

#[test]
fn every_namespaced_kind_can_be_counted() {
    for resource in catalog::RESOURCES.iter().filter(|resource| resource.namespaced) {
        let usage = quota::usage(resource, &Value::Null, recorded::recorded_at());
        assert!(usage.contains_key(&format!("count/{}", resource.qualified())));
    }
}
