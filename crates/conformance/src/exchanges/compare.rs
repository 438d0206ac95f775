//! Compares a response with the recorded one.

use serde_json::Value;

use super::super::Difference;
use super::placeholder::Bindings;
use super::{CapturedResponse, item_names};

pub(super) struct Comparison<'a> {
    pub(super) bindings: &'a mut Bindings,
    pub(super) unstable: &'a [String],
    pub(super) any_order: bool,
    pub(super) managed_fields: bool,
    pub(super) differences: Vec<Difference>,
}

impl Comparison<'_> {
    pub(super) fn response(&mut self, expected: &Value, response: &CapturedResponse, place: &str) {
        let status = expected["status"].as_u64().unwrap_or_default();
        if status != u64::from(response.status) {
            let text = String::from_utf8_lossy(&response.body);
            let text = text.chars().take(600).collect::<String>();
            self.differ("status", &status.to_string(), &format!("{} {text}", response.status));
            let message = &expected["body"]["message"];
            if message.is_string() {
                self.differ("message", &message.to_string(), "");
            }
            return;
        }
        if let Some(media) = expected["content_type"].as_str()
            && !self.bindings.matches(media, &response.content_type)
        {
            self.differ("content type", media, &response.content_type);
        }
        self.warnings(expected, response);
        for (name, value) in expected["headers"].as_object().into_iter().flatten() {
            let got = response.headers.get(name.to_ascii_lowercase());
            let got = got.and_then(|v| v.to_str().ok()).unwrap_or_default();
            let wanted = value.as_str().unwrap_or_default();
            if !self.bindings.matches(wanted, got) {
                self.differ(&format!("header {name}"), wanted, got);
            }
        }
        let place = format!("{place}.response");
        if let Some(events) = expected["events"].as_array() {
            self.events(events, &response.body, &format!("{place}.events"));
        } else if let Some(body) = expected.get("body") {
            self.body(body, &response.body, &format!("{place}.body"));
        } else if let Some(text) = expected["body_text"].as_str() {
            let got = String::from_utf8_lossy(&response.body).into_owned();
            if !self.bindings.matches(text, &got) {
                self.differ("body", text, &got);
            }
        } else if let Some(extract) = expected.get("body_extract") {
            self.extract(extract, &response.body, &format!("{place}.body_extract"));
        }
    }

    fn differ(&mut self, what: &str, expected: &str, got: &str) {
        let (what, expected, got) = (what.to_owned(), expected.to_owned(), got.to_owned());
        self.differences.push(Difference { what, expected, got });
    }

    fn warnings(&mut self, expected: &Value, response: &CapturedResponse) {
        let wanted: Vec<&str> = expected["warnings"]
            .as_array()
            .map(Vec::as_slice)
            .unwrap_or_default()
            .iter()
            .filter_map(Value::as_str)
            .collect();
        let (mut wanted_sorted, mut got_sorted) = (wanted.clone(), response.warnings.clone());
        if self.any_order {
            wanted_sorted.sort_unstable();
            got_sorted.sort_unstable();
        }
        let same = wanted_sorted.len() == got_sorted.len()
            && wanted_sorted.iter().zip(&got_sorted).all(|(w, g)| self.bindings.matches(w, g));
        if !same {
            self.differ("warnings", &format!("{wanted:?}"), &format!("{:?}", response.warnings));
        }
    }

    fn body(&mut self, expected: &Value, bytes: &[u8], place: &str) {
        let Ok(mut got) = serde_json::from_slice::<Value>(bytes) else {
            self.differ("body", &expected.to_string(), &String::from_utf8_lossy(bytes));
            return;
        };
        self.prepare(&mut got);
        let mut expected = expected.clone();
        super::deliberate::only_served(&mut expected);
        if self.any_order && expected["kind"] == "Status" {
            sort_causes(&mut expected);
            sort_causes(&mut got);
        }
        self.value(&expected, &got, place);
    }

    /// Removes what the recording does not have.
    fn prepare(&self, value: &mut Value) {
        match value {
            Value::Array(items) => items.iter_mut().for_each(|item| self.prepare(item)),
            Value::Object(fields) => {
                if !self.managed_fields && fields.contains_key("name") | fields.contains_key("uid")
                {
                    fields.remove("managedFields");
                }
                fields.values_mut().for_each(|value| self.prepare(value));
            }
            _ => {}
        }
    }

    fn value(&mut self, expected: &Value, got: &Value, place: &str) {
        if self.is_unstable(place) {
            return;
        }
        match (expected, got) {
            (Value::Object(wanted), Value::Object(found)) => {
                for (key, value) in wanted {
                    let place = format!("{place}.{key}");
                    match found.get(key) {
                        // Descriptions are worded differently.
                        Some(Value::String(_)) if key == "description" => {}
                        Some(found)
                            if key == "resourceVersion" && is_list_like(place.as_str(), wanted) =>
                        {
                            let (w, f) = (value.as_str(), found.as_str());
                            let ok = matches!((w, f), (Some(w), Some(f)) if self.bindings.at_least(w, f));
                            if !ok {
                                self.differ(&place, &value.to_string(), &found.to_string());
                            }
                        }
                        Some(found) => self.value(value, found, &place),
                        None if self.is_unstable(&place) => {}
                        None => self.differ(&place, &value.to_string(), "absent"),
                    }
                }
                for (key, value) in found {
                    let filled = wanted.keys().any(|wanted| self.bindings.fill(wanted) == *key);
                    let place = format!("{place}.{key}");
                    if !filled && !self.is_unstable(&place) {
                        self.differ(&place, "absent", &value.to_string());
                    }
                }
            }
            (Value::Array(wanted), Value::Array(found)) => {
                if wanted.len() != found.len() {
                    self.differ(place, &expected.to_string(), &got.to_string());
                    return;
                }
                let found = match place.ends_with(".managedFields") {
                    true => in_one_second(wanted, found),
                    false => found.iter().collect(),
                };
                for (index, (wanted, found)) in wanted.iter().zip(found).enumerate() {
                    self.value(wanted, found, &format!("{place}[{index}]"));
                }
            }
            // An allocated port is a number.
            (Value::String(wanted), Value::Number(found)) if wanted.starts_with("<nodeport-") => {
                if !self.bindings.matches(wanted, &found.to_string()) {
                    self.differ(place, wanted, &found.to_string());
                }
            }
            (Value::String(wanted), Value::String(found)) => {
                if !self.bindings.matches(wanted, found) && !same_but_for_go(wanted, found) {
                    self.differ(place, &expected.to_string(), &got.to_string());
                }
            }
            _ if expected == got => {}
            _ => self.differ(place, &expected.to_string(), &got.to_string()),
        }
    }

    fn is_unstable(&self, place: &str) -> bool {
        self.unstable.iter().any(|unstable| place.starts_with(unstable.as_str()))
    }

    fn events(&mut self, expected: &[Value], bytes: &[u8], place: &str) {
        if self.is_unstable(place) {
            return;
        }
        let text = String::from_utf8_lossy(bytes);
        let mut got = Vec::new();
        for line in text.lines() {
            match serde_json::from_str::<Value>(line) {
                Ok(mut event) => {
                    self.prepare(&mut event);
                    got.push(event);
                }
                Err(error) => self.differ(place, "a JSON line", &format!("{error}: {line}")),
            }
        }
        let wanted: Vec<&Value> = expected.iter().filter(|event| counts(event)).collect();
        let found: Vec<&Value> = got.iter().filter(|event| counts(event)).collect();
        if wanted.len() != found.len() {
            let names = |events: &[&Value]| {
                let each = events.iter().map(|event| {
                    format!("{} {}", event["type"], event["object"]["metadata"]["name"])
                });
                each.collect::<Vec<_>>().join(", ")
            };
            self.differ(place, &names(&wanted), &names(&found));
            return;
        }
        for (index, (wanted, found)) in wanted.into_iter().zip(found).enumerate() {
            self.value(wanted, found, &format!("{place}[{index}]"));
        }
    }

    /// Compares a reduced response with the same reduction of ours, where it can be made.
    fn extract(&mut self, expected: &Value, bytes: &[u8], place: &str) {
        let Ok(mut got) = serde_json::from_slice::<Value>(bytes) else {
            if let Some(text) = expected.as_str() {
                let got = String::from_utf8_lossy(bytes).into_owned();
                if !self.bindings.matches(text, &got) {
                    self.differ(place, text, &got);
                }
            }
            return;
        };
        self.prepare(&mut got);
        let Some(kept) = expected.as_object() else { return };
        for (key, wanted) in kept {
            let place = format!("{place}.{key}");
            match key.as_str() {
                "names" => self.value(wanted, &Value::from(item_names(&got)), &place),
                "metadata" => {
                    for (field, wanted) in wanted.as_object().into_iter().flatten() {
                        let (w, g) = (wanted.as_str(), got["metadata"][field].as_str());
                        let ok = match (field.as_str(), w, g) {
                            ("resourceVersion", Some(w), Some(g)) => self.bindings.at_least(w, g),
                            (_, Some(w), Some(g)) => self.bindings.matches(w, g),
                            _ => *wanted == got["metadata"][field],
                        };
                        if !ok {
                            let got = got["metadata"][field].to_string();
                            self.differ(&format!("{place}.{field}"), &wanted.to_string(), &got);
                        }
                    }
                    if wanted.get("continue").is_none() && got["metadata"].get("continue").is_some()
                    {
                        self.differ(&place, "no continue", &got["metadata"].to_string());
                    }
                }
                "name" | "annotations" | "nodeName" | "phase" => {
                    let part = match key.as_str() {
                        "nodeName" => "spec",
                        "phase" => "status",
                        _ => "metadata",
                    };
                    self.value(wanted, &got[part][key].clone(), &place);
                }
                "kind" | "apiVersion" | "message" | "reason" | "code" | "status"
                    if !wanted.is_null() || got.get(key).is_some() =>
                {
                    let found = got.get(key).cloned().unwrap_or(Value::Null);
                    self.value(wanted, &found, &place);
                }
                _ => {}
            }
        }
    }
}

/// Reports whether a `metadata` belongs to a list, a table or a bookmark rather than to an object.
fn is_list_like(place: &str, metadata: &super::Object) -> bool {
    let in_metadata = place.ends_with(".metadata.resourceVersion");
    in_metadata && !metadata.contains_key("name") && !metadata.contains_key("uid")
}

fn sort_causes(status: &mut Value) {
    if let Some(causes) = status["details"]["causes"].as_array_mut() {
        causes.sort_by_key(Value::to_string);
    }
    // The message lists the same causes in the same order; comparing the causes is enough.
    if let Some(message) = status["message"].as_str() {
        let mut parts: Vec<&str> = message.split(", ").collect();
        parts.sort_unstable();
        status["message"] = Value::from(parts.join(", ").replace(['[', ']'], ""));
    }
}

/// Reports whether two messages that quote Go types or structures are equal up to the quotation and
/// up to their first line.
fn same_but_for_go(expected: &str, got: &str) -> bool {
    const MARKS: &[&str] = &[
        "json: cannot unmarshal",
        "unknown conversion",
        "is registered for version",
        "Go struct field",
        "Invalid value: {\"",
        "Invalid value: \"map[",
        "Invalid value: \"{",
        "parsing time",
        "yaml: ",
        "illegal base64",
    ];
    let first = |text: &str| text.lines().next().unwrap_or_default().to_owned();
    if expected.contains('\n') && first(expected) == first(got) {
        return true;
    }
    MARKS.iter().any(|mark| match (expected.find(mark), got.find(mark)) {
        (Some(e), Some(g)) => expected[..e] == got[..g],
        _ => false,
    })
}

/// Sorts field managers as in the recording, where all times are in the same second and the name
/// decides.
fn in_one_second<'a>(wanted: &[Value], found: &'a [Value]) -> Vec<&'a Value> {
    let mut ordered: Vec<&Value> = found.iter().collect();
    let first = found.first().map(|entry| &entry["time"]);
    if found.iter().any(|entry| Some(&entry["time"]) != first) {
        let name = |entry: &Value| {
            ["manager", "operation", "subresource", "apiVersion"].map(|field| entry[field].clone())
        };
        let rank = |entry: &&Value| wanted.iter().position(|wanted| name(wanted) == name(entry));
        ordered.sort_by_key(rank);
    }
    ordered
}

/// Reports whether an event is compared: a bookmark that does not end the initial events is
/// optional.
pub(super) fn counts(event: &Value) -> bool {
    event["type"] != "BOOKMARK" || !event["object"]["metadata"]["annotations"].is_null()
}
