//! Events in their two forms: `v1` and `events.k8s.io/v1` are views of one object with different
//! names for the same fields. [`to_events`] and [`to_core`] convert between them.
//!
//! The newer form has stricter rules, and requires a time.

use serde_json::{Map, Value};

use super::super::checks::is_same;
use super::super::names;
use crate::cursor::{Causes, Cursor};

/// The fields that differ: in `v1` and in `events.k8s.io/v1`.
const RENAMED: [(&str, &str); 7] = [
    ("involvedObject", "regarding"),
    ("message", "note"),
    ("source", "deprecatedSource"),
    ("firstTimestamp", "deprecatedFirstTimestamp"),
    ("lastTimestamp", "deprecatedLastTimestamp"),
    ("count", "deprecatedCount"),
    ("reportingComponent", "reportingController"),
];

/// Fields that are written even when they are empty.
const ALWAYS_CORE: [&str; 2] = ["reportingComponent", "reportingInstance"];

const WORD_LIMIT: usize = 128;
const NOTE_LIMIT: usize = 1024;

/// Converts a `v1` event to `events.k8s.io/v1`.
#[must_use]
pub fn to_events(event: &Value) -> Value {
    let mut out = rename(event, |(core, events)| (core, events));
    out.insert("apiVersion".to_owned(), "events.k8s.io/v1".into());
    // Omitted when empty here, and always written in the other form.
    for field in ["reportingController", "reportingInstance", "note"] {
        if out.get(field).is_some_and(|value| value == "") {
            out.remove(field);
        }
    }
    Value::Object(out)
}

/// Converts an `events.k8s.io/v1` event to `v1`.
#[must_use]
pub fn to_core(event: &Value) -> Value {
    let mut out = rename(event, |(core, events)| (events, core));
    out.insert("apiVersion".to_owned(), "v1".into());
    for field in ALWAYS_CORE {
        out.entry(field).or_insert_with(|| "".into());
    }
    for field in ["involvedObject", "source"] {
        out.entry(field).or_insert_with(|| Value::Object(Map::new()));
    }
    Value::Object(out)
}

fn rename<'n>(
    event: &Value,
    order: impl Fn((&'n str, &'n str)) -> (&'n str, &'n str),
) -> Map<String, Value> {
    let mut out = Map::new();
    for (name, value) in event.as_object().into_iter().flatten() {
        let renamed = RENAMED.iter().map(|pair| order(*pair)).find(|(from, _)| from == name);
        out.insert(renamed.map_or(name.as_str(), |(_, to)| to).to_owned(), value.clone());
    }
    out
}

pub(super) fn validate(
    event: &Cursor<'_>,
    group: &str,
    old: Option<&Cursor<'_>>,
    causes: &mut Causes,
) {
    let is_core = group.is_empty();
    // Messages use the stored form for both.
    let core = if is_core { event.value().clone() } else { to_core(event.value()) };
    let top = Cursor::top(&core, "");
    let component = top.field("reportingComponent").called(if is_core {
        "reportingComponent"
    } else {
        "reportingController"
    });
    validate_namespace(&top, causes);
    if top.field("eventTime").is_set() {
        validate_reporter(&top, &component, causes);
    }
    let namespace = core["metadata"]["namespace"].as_str().unwrap_or_default();
    let at = top.field("namespace");
    names::report_as(causes, &at, namespace, &names::dns_subdomain(namespace));
    if !is_core {
        if old.is_none() {
            validate_new(&top, causes);
        } else {
            validate_series_change(&top, old, causes);
        }
    }
}

/// Checks that the event is in the namespace of its object.
fn validate_namespace(event: &Cursor<'_>, causes: &mut Causes) {
    let own = event.value()["metadata"]["namespace"].as_str().unwrap_or_default();
    let object = event.field("involvedObject");
    let about = object.field("namespace");
    let fits = match (event.field("eventTime").is_set(), about.text()) {
        (false, "") => matches!(own, "" | "default"),
        (false, namespace) => namespace == own,
        (true, "") => matches!(own, "default" | "kube-system"),
        (true, _) => true,
    };
    if !fits {
        causes.invalid_as(&about, about.text(), "does not match event.namespace");
    }
}

fn validate_reporter(event: &Cursor<'_>, component: &Cursor<'_>, causes: &mut Causes) {
    let too_long = |at: &Cursor<'_>, limit: usize, causes: &mut Causes| {
        if at.text().len() > limit {
            causes.invalid_as(at, "", &format!("can have at most {limit} characters"));
        }
    };
    if component.text().is_empty() {
        causes.required(component, "");
    }
    names::report_as(
        causes,
        component,
        component.text(),
        &names::label_key_problems(component.text()),
    );
    for field in ["reportingInstance", "action", "reason"] {
        let at = event.field(field);
        if at.text().is_empty() {
            causes.required(&at, "");
        }
        too_long(&at, WORD_LIMIT, causes);
    }
    too_long(&event.field("message"), NOTE_LIMIT, causes);
}

/// Validates the additional rules of the newer form for a new event.
fn validate_new(event: &Cursor<'_>, causes: &mut Causes) {
    let meta = event.field("metadata");
    let rule = super::super::meta::MetaRule {
        name: names::NameRule::DnsSubdomain,
        namespaced: true,
        standard_finalizers: true,
    };
    super::super::meta::validate(&meta, rule, causes);
    validate_series(event, causes);
    if !event.field("eventTime").is_set() {
        causes.required(&event.field("eventTime"), "");
    }
    let kind = event.field("type");
    if !matches!(kind.text(), "Normal" | "Warning") {
        causes.invalid_as(&kind, "", &format!("has invalid value: {}", kind.text()));
    }
    for field in ["firstTimestamp", "lastTimestamp"] {
        let at = event.field(field);
        if at.is_set() {
            causes.invalid_as(&at, "", "needs to be unset");
        }
    }
    let count = event.field("count");
    if count.int().unwrap_or(0) != 0 {
        causes.invalid_as(&count, "", "needs to be unset");
    }
    let source = event.field("source");
    let is_given =
        |field: &str| !source.field(field).value().as_str().unwrap_or_default().is_empty();
    if is_given("component") || is_given("host") {
        causes.invalid_as(&source, "", "needs to be unset");
    }
}

fn validate_series(event: &Cursor<'_>, causes: &mut Causes) {
    let series = event.field("series");
    if !series.is_set() {
        return;
    }
    let count = series.field("count");
    if count.int().unwrap_or(0) < 2 {
        causes.invalid_as(&count, "", "should be at least 2");
    }
    let last = series.field("lastObservedTime");
    if !last.is_set() {
        causes.required(&last, "");
    }
}

fn validate_series_change(event: &Cursor<'_>, old: Option<&Cursor<'_>>, causes: &mut Causes) {
    let old_series = old.map_or(&Value::Null, |old| &old.value()["series"]);
    if !is_same(&event.value()["series"], old_series) {
        validate_series(event, causes);
    }
}

/// Checks that only the series has changed.
pub(super) fn validate_change(event: &Cursor<'_>, old: &Cursor<'_>, causes: &mut Causes) {
    let (new, old) = (to_core(event.value()), to_core(old.value()));
    let (new, old) = (Cursor::top(&new, ""), Cursor::top(&old, ""));
    for (field, shown_as) in [
        ("involvedObject", "involvedObject"),
        ("reason", "reason"),
        ("message", "message"),
        ("source", "source"),
        ("firstTimestamp", "firstTimestamp"),
        ("lastTimestamp", "lastTimestamp"),
        ("count", "count"),
        ("type", "type"),
        ("eventTime", "eventTime"),
        ("action", "action"),
        ("related", "related"),
        ("reportingComponent", "reportingController"),
        ("reportingInstance", "reportingInstance"),
    ] {
        let (new, old) = (new.field(field), old.field(field));
        super::super::checks::unchanged(&new.called(shown_as), &old, causes);
    }
}
