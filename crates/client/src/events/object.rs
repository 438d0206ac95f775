//! Event objects and their patches, as upstream's components write them: [`create_body`], [`patch_body`].

use serde_json::{Value, json};

use super::{Event, EventApi, EventRecord, EventSource};
use crate::kind::{EVENTS, Kind, NEW_EVENTS};

/// Returns the kind and the object of a new event.
pub(super) fn create_body(
    source: &EventSource,
    event: &Event,
    record: &EventRecord,
) -> (Kind, Value) {
    let EventSource { component, host } = source;
    let object = &event.object;
    let mut reference = json!({"kind": object.kind, "name": object.name, "uid": object.uid});
    for (field, value) in [
        ("apiVersion", &object.api_version),
        ("namespace", &object.namespace),
        ("fieldPath", &object.field_path),
    ] {
        if !value.is_empty() {
            reference[field] = value.as_str().into();
        }
    }
    let kind = match event.api {
        EventApi::Core => EVENTS,
        EventApi::Events { .. } => NEW_EVENTS,
    };
    let mut body = json!({
        "kind": kind.kind,
        "apiVersion": kind.api_version(),
        "metadata": {"name": record.name, "namespace": object.event_namespace()},
        "reason": event.reason,
        "type": event.severity.name(),
    });
    match event.api {
        EventApi::Core => {
            body["involvedObject"] = reference;
            body["message"] = record.message.as_str().into();
            body["count"] = record.count.into();
            body["firstTimestamp"] = record.first.to_seconds_text().into();
            body["lastTimestamp"] = record.last.to_seconds_text().into();
            body["source"] = json!({"component": component});
            body["reportingComponent"] = (*component).into();
            if let Some(host) = host {
                body["source"]["host"] = host.as_ref().into();
                body["reportingInstance"] = host.as_ref().into();
            }
        }
        EventApi::Events { action } => {
            body["regarding"] = reference;
            body["note"] = record.message.as_str().into();
            body["eventTime"] = record.last.to_micros_text().into();
            body["action"] = action.into();
            body["reportingController"] = (*component).into();
            body["reportingInstance"] = format!("{component}-berth").into();
        }
    }
    (kind, body)
}

/// Returns the patch that counts a repetition. Both groups serve the same objects, so it is for `v1`.
pub(super) fn patch_body(event: &Event, record: &EventRecord) -> Value {
    match event.api {
        EventApi::Core => json!({
            "count": record.count,
            "lastTimestamp": record.last.to_seconds_text(),
            "message": record.message,
        }),
        EventApi::Events { .. } => json!({
            "series": {"count": record.count, "lastObservedTime": record.last.to_micros_text()},
        }),
    }
}

#[cfg(test)]
mod tests {
    use objects::timestamp::Timestamp;

    use super::*;
    use crate::events::InvolvedObject;
    use crate::kind::PODS;

    fn record() -> EventRecord {
        let first = Timestamp::new(1_700_000_000, 5_000);
        let (name, message) = ("p.1".to_owned(), "Created pod: x".to_owned());
        EventRecord { name, message, count: 2, first, last: first.plus_seconds(1) }
    }

    #[test]
    fn core_events_have_a_count_and_a_source() {
        let pod = InvolvedObject::new(PODS, "a", "p", "u");
        let event = Event::normal(&pod, "SuccessfulCreate", String::new());
        let source = EventSource { component: "kubelet", host: Some("n1".into()) };
        let (kind, body) = create_body(&source, &event, &record());
        assert_eq!(kind, EVENTS);
        let expected = json!({
            "kind": "Event", "apiVersion": "v1",
            "metadata": {"name": "p.1", "namespace": "a"},
            "involvedObject": {
                "kind": "Pod", "apiVersion": "v1", "namespace": "a", "name": "p", "uid": "u",
            },
            "reason": "SuccessfulCreate", "message": "Created pod: x", "type": "Normal", "count": 2,
            "firstTimestamp": "2023-11-14T22:13:20Z", "lastTimestamp": "2023-11-14T22:13:21Z",
            "source": {"component": "kubelet", "host": "n1"},
            "reportingComponent": "kubelet", "reportingInstance": "n1",
        });
        assert_eq!(body, expected);
        let patch = json!({
            "count": 2, "lastTimestamp": "2023-11-14T22:13:21Z", "message": "Created pod: x",
        });
        assert_eq!(patch_body(&event, &record()), patch);
    }

    #[test]
    fn events_with_an_action_have_a_series() {
        let node = InvolvedObject {
            kind: "Node".to_owned(),
            api_version: String::new(),
            namespace: String::new(),
            name: "n1".to_owned(),
            uid: "n1".to_owned(),
            field_path: String::new(),
        };
        let event =
            Event::warning(&node, "InvalidNodeReport", String::new()).with_action("Scheduling");
        let source = EventSource { component: "default-scheduler", host: None };
        let (kind, body) = create_body(&source, &event, &record());
        assert_eq!(kind, NEW_EVENTS);
        let expected = json!({
            "kind": "Event", "apiVersion": "events.k8s.io/v1",
            "metadata": {"name": "p.1", "namespace": "default"},
            "regarding": {"kind": "Node", "name": "n1", "uid": "n1"},
            "reason": "InvalidNodeReport", "note": "Created pod: x", "type": "Warning",
            "action": "Scheduling", "eventTime": "2023-11-14T22:13:21.000005Z",
            "reportingController": "default-scheduler",
            "reportingInstance": "default-scheduler-berth",
        });
        assert_eq!(body, expected);
        let series = json!({"count": 2, "lastObservedTime": "2023-11-14T22:13:21.000005Z"});
        assert_eq!(patch_body(&event, &record()), json!({"series": series}));
    }
}
