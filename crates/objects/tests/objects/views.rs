//! Objects in another form: events of both groups, scales of workloads.

use objects::rules::{event, scale};
use serde_json::Value;

use crate::recorded::{self, Kept};

#[test]
fn event_is_readable_in_both_groups() {
    let mut compared = 0;
    for scenario in recorded::scenarios(&["event/"]) {
        let mut kept = Kept::default();
        for step in &scenario.steps {
            let body = &step.response.body;
            if step.request.method == "GET" && body["kind"] == "Event" {
                let name = body["metadata"]["name"].as_str().unwrap();
                let suffix = format!("/events/{name}");
                let stored = kept.0.iter().find(|(path, _)| path.ends_with(&suffix)).unwrap().1;
                let made = match body["apiVersion"].as_str() {
                    Some("v1") => event::to_core(&event::to_events(stored)),
                    _ => event::to_events(&event::to_core(stored)),
                };
                let made = if body["apiVersion"] == "v1" { event::to_core(&made) } else { made };
                assert_eq!(made, *body, "{}", step.request.path);
                compared += 1;
            }
            kept.learn(step);
        }
    }
    assert_eq!(compared, 4);
}

#[test]
fn scale_is_read_from_and_written_to_a_workload() {
    let mut compared = 0;
    for scenario in recorded::scenarios(&["scale/"]) {
        let mut kept = Kept::default();
        for step in &scenario.steps {
            let Some(target) = recorded::target(&step.request.path) else { continue };
            let body = &step.response.body;
            if target.subresource == Some("scale") && body["kind"] == "Scale" {
                let stored = kept.get(&target).unwrap().clone();
                let path = format!("{}/{}", target.collection, target.name.unwrap());
                let wanted = match step.request.method.as_str() {
                    "GET" => scale::of(&stored),
                    "PUT" => step.request.body.clone(),
                    _ => body.clone(),
                };
                assert!(scale::validate(&wanted).is_empty());
                let mut applied = scale::apply(&stored, &wanted);
                applied["metadata"]["resourceVersion"] =
                    body["metadata"]["resourceVersion"].clone();
                assert_eq!(scale::of(&applied), *body);
                kept.0.insert(path, applied);
                compared += 1;
            } else if step.response.status == 422 {
                let causes = scale::validate(&step.request.body);
                let causes = serde_json::to_value(&causes.0).unwrap();
                assert_eq!(causes, body["details"]["causes"]);
                compared += 1;
            }
            kept.learn(step);
        }
    }
    assert_eq!(compared, 8);
}

#[test]
fn the_two_views_of_an_event_turn_into_each_other() {
    let core: Value = serde_json::json!({
        "apiVersion": "v1", "kind": "Event", "metadata": {"name": "e"}, "message": "m", "count": 2,
        "involvedObject": {"kind": "Pod"}, "source": {}, "firstTimestamp": null,
        "lastTimestamp": null, "eventTime": null, "reportingComponent": "", "reportingInstance": "",
    });
    assert_eq!(event::to_core(&event::to_events(&core)), core);
}
