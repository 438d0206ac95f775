//! OpenAPI v3 as protobuf, in the messages of gnostic's `openapi.v3`.
//!
//! Entry: [`encode`]. Field numbers are next to the names they have in a document. Only members
//! that our documents have are written.

use serde_json::Value;

use super::protobuf::{Message, any, entries};

/// Encodes a document of [`super::v3`].
pub(super) fn encode(document: &Value) -> Vec<u8> {
    let mut out = Message::default();
    out.text(1, document.get("openapi"));
    let mut info = Message::default();
    info.text(1, document["info"].get("title"));
    info.text(6, document["info"].get("version"));
    out.message(2, &info);
    let mut paths = Message::default();
    for (path, item) in entries(&document["paths"]) {
        paths.named(1, path, &path_item(item));
    }
    out.message(4, &paths);
    let mut components = Message::default();
    let mut schemas = Message::default();
    for (name, given) in entries(&document["components"]["schemas"]) {
        schemas.named(1, name, &schema_or_reference(given));
    }
    components.message(1, &schemas);
    let mut schemes = Message::default();
    for (name, given) in entries(&document["components"]["securitySchemes"]) {
        let mut scheme = Message::default();
        scheme.text(1, given.get("type"));
        scheme.text(2, given.get("description"));
        scheme.text(3, given.get("name"));
        scheme.text(4, given.get("in"));
        schemes.named(1, name, &wrapped(&scheme));
    }
    components.message(7, &schemes);
    out.message(5, &components);
    out.into_bytes()
}

/// Wraps a message in `…OrReference`: field 1.
fn wrapped(message: &Message) -> Message {
    let mut out = Message::default();
    out.message(1, message);
    out
}

fn path_item(item: &Value) -> Message {
    let mut out = Message::default();
    for (field, method) in [(4, "get"), (5, "put"), (6, "post"), (7, "delete"), (10, "patch")] {
        if let Some(given) = item.get(method) {
            out.message(field, &operation(given));
        }
    }
    parameters(&mut out, 13, item.get("parameters"));
    out
}

fn operation(json: &Value) -> Message {
    let mut out = Message::default();
    out.texts(1, json.get("tags"));
    out.text(3, json.get("description"));
    out.text(5, json.get("operationId"));
    parameters(&mut out, 6, json.get("parameters"));
    if let Some(given) = json.get("requestBody") {
        let mut body = Message::default();
        body.message(2, &content(&given["content"]));
        body.flag(3, given.get("required"));
        out.message(7, &wrapped(&body));
    }
    let mut responses = Message::default();
    for (code, entry) in entries(&json["responses"]) {
        let mut response = Message::default();
        response.text(1, entry.get("description"));
        if let Some(given) = entry.get("content") {
            response.message(3, &content(given));
        }
        responses.named(2, code, &wrapped(&response));
    }
    out.message(8, &responses);
    out.extensions(13, json);
    out
}

/// `MediaTypes`: a schema for each.
fn content(json: &Value) -> Message {
    let mut out = Message::default();
    for (media, given) in entries(json) {
        let mut entry = Message::default();
        entry.message(1, &schema_or_reference(&given["schema"]));
        out.named(1, media, &entry);
    }
    out
}

fn parameters(out: &mut Message, field: u32, json: Option<&Value>) {
    for given in json.and_then(Value::as_array).into_iter().flatten() {
        let mut parameter = Message::default();
        parameter.text(1, given.get("name"));
        parameter.text(2, given.get("in"));
        parameter.text(3, given.get("description"));
        parameter.flag(4, given.get("required"));
        parameter.message(10, &schema_or_reference(&given["schema"]));
        out.message(field, &wrapped(&parameter));
    }
}

fn schema_or_reference(json: &Value) -> Message {
    let Some(target) = json.get("$ref") else { return wrapped(&schema(json)) };
    let mut reference = Message::default();
    reference.text(1, Some(target));
    let mut out = Message::default();
    out.message(2, &reference);
    out
}

fn schema(json: &Value) -> Message {
    let mut out = Message::default();
    out.flag(1, json.get("nullable"));
    out.flag(20, json.get("uniqueItems"));
    out.texts(23, json.get("required"));
    for value in json.get("enum").and_then(Value::as_array).into_iter().flatten() {
        out.message(24, &any(value));
    }
    out.text(25, json.get("type"));
    for (field, name) in [(26, "allOf"), (27, "oneOf"), (28, "anyOf")] {
        for given in json.get(name).and_then(Value::as_array).into_iter().flatten() {
            out.message(field, &schema_or_reference(given));
        }
    }
    if let Some(given) = json.get("items") {
        out.message(30, &wrapped(&schema_or_reference(given)));
    }
    if let Some(given) = json.get("properties") {
        let mut properties = Message::default();
        for (name, property) in entries(given) {
            properties.named(1, name, &schema_or_reference(property));
        }
        out.message(31, &properties);
    }
    if let Some(given) = json.get("additionalProperties") {
        out.message(32, &wrapped(&schema_or_reference(given)));
    }
    if let Some(given) = json.get("default") {
        out.message(33, &default_value(given));
    }
    out.text(34, json.get("description"));
    out.text(35, json.get("format"));
    out.extensions(36, json);
    out
}

/// A default is a number, a flag or a text; gnostic leaves the message empty for anything else.
fn default_value(json: &Value) -> Message {
    let mut out = Message::default();
    if let Some(number) = json.as_f64() {
        out.number(1, number);
    }
    if let Some(flag) = json.as_bool() {
        out.choice(2, flag);
    }
    out.text(3, Some(json));
    out
}
