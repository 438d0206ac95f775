//! OpenAPI v2 as protobuf, in the messages of gnostic's `openapi.v2`.
//!
//! kubectl's discovery client requests `/openapi/v2` only in this form. Field numbers are next to
//! the names they have there. Only members that our documents have are written. Extensions (`x-…`),
//! which a message has no field for, are written as YAML text; JSON is valid there.

use serde_json::{Map, Value};

use crate::protobuf::wire::{Kind, put_bytes, put_int, put_tag};

/// A message that is being written.
#[derive(Default)]
pub(super) struct Message(Vec<u8>);

impl Message {
    pub(super) fn into_bytes(self) -> Vec<u8> {
        self.0
    }

    pub(super) fn number(&mut self, field: u32, number: f64) {
        put_tag(&mut self.0, field, Kind::Fixed64);
        self.0.extend(number.to_le_bytes());
    }

    pub(super) fn bytes(&mut self, field: u32, bytes: &[u8]) {
        put_bytes(&mut self.0, field, bytes);
    }

    pub(super) fn message(&mut self, field: u32, message: &Message) {
        self.bytes(field, &message.0);
    }

    /// Writes a text if there is one.
    pub(super) fn text(&mut self, field: u32, value: Option<&Value>) {
        if let Some(text) = value.and_then(Value::as_str) {
            self.bytes(field, text.as_bytes());
        }
    }

    pub(super) fn texts(&mut self, field: u32, value: Option<&Value>) {
        for text in value.and_then(Value::as_array).into_iter().flatten() {
            self.text(field, Some(text));
        }
    }

    pub(super) fn flag(&mut self, field: u32, value: Option<&Value>) {
        if value == Some(&Value::Bool(true)) {
            put_int(&mut self.0, field, 1);
        }
    }

    /// Writes a flag of a choice, even if it is false.
    pub(super) fn choice(&mut self, field: u32, flag: bool) {
        put_int(&mut self.0, field, i64::from(flag));
    }

    /// `NamedAny` for everything whose name begins with `x-`.
    pub(super) fn extensions(&mut self, field: u32, json: &Value) {
        for (name, value) in entries(json).filter(|(name, _)| name.starts_with("x-")) {
            self.named(field, name, &any(value));
        }
    }

    /// A name and its value: `name = 1`, `value = 2`.
    pub(super) fn named(&mut self, field: u32, name: &str, value: &Message) {
        let mut named = Message::default();
        named.bytes(1, name.as_bytes());
        named.message(2, value);
        self.message(field, &named);
    }
}

pub(super) fn entries(value: &Value) -> impl Iterator<Item = (&String, &Value)> {
    value.as_object().into_iter().flat_map(Map::iter)
}

/// `Any`: `yaml = 2`.
pub(super) fn any(value: &Value) -> Message {
    let mut any = Message::default();
    any.bytes(2, value.to_string().as_bytes());
    any
}

/// Encodes a document of [`super::v2`].
pub(super) fn encode(document: &Value) -> Vec<u8> {
    let mut out = Message::default();
    out.text(1, document.get("swagger"));
    let mut info = Message::default();
    info.text(1, document["info"].get("title"));
    info.text(2, document["info"].get("version"));
    out.message(2, &info);
    let mut paths = Message::default();
    for (path, item) in entries(&document["paths"]) {
        paths.named(2, path, &path_item(item));
    }
    out.message(8, &paths);
    let mut definitions = Message::default();
    for (name, definition) in entries(&document["definitions"]) {
        definitions.named(1, name, &schema(definition));
    }
    out.message(9, &definitions);
    let mut parameters = Message::default();
    for (name, shared) in entries(&document["parameters"]) {
        parameters.named(1, name, &parameter(shared));
    }
    out.message(10, &parameters);
    for requirement in document["security"].as_array().into_iter().flatten() {
        let mut security = Message::default();
        for (name, scopes) in entries(requirement) {
            let mut array = Message::default();
            array.texts(1, Some(scopes));
            security.named(1, name, &array);
        }
        out.message(12, &security);
    }
    let mut definitions = Message::default();
    for (name, scheme) in entries(&document["securityDefinitions"]) {
        let mut key = Message::default();
        key.text(1, scheme.get("type"));
        key.text(2, scheme.get("name"));
        key.text(3, scheme.get("in"));
        key.text(4, scheme.get("description"));
        let mut item = Message::default();
        item.message(2, &key); // api_key_security
        definitions.named(1, name, &item);
    }
    out.message(13, &definitions);
    out.0
}

fn path_item(item: &Value) -> Message {
    let mut out = Message::default();
    for (field, method) in [(2, "get"), (3, "put"), (4, "post"), (5, "delete"), (8, "patch")] {
        if let Some(given) = item.get(method) {
            out.message(field, &operation(given));
        }
    }
    parameters(&mut out, 9, item.get("parameters"));
    out
}

fn operation(json: &Value) -> Message {
    let mut out = Message::default();
    out.texts(1, json.get("tags"));
    out.text(3, json.get("description"));
    out.text(5, json.get("operationId"));
    out.texts(6, json.get("produces"));
    out.texts(7, json.get("consumes"));
    parameters(&mut out, 8, json.get("parameters"));
    let mut responses = Message::default();
    for (code, entry) in entries(&json["responses"]) {
        let mut response = Message::default();
        response.text(1, entry.get("description"));
        if let Some(given) = entry.get("schema") {
            let mut item = Message::default();
            item.message(1, &schema(given));
            response.message(2, &item);
        }
        let mut value = Message::default();
        value.message(1, &response);
        responses.named(1, code, &value);
    }
    out.message(9, &responses);
    out.texts(10, json.get("schemes"));
    out.extensions(13, json);
    out
}

/// `ParametersItem`s: a parameter or a reference to one.
fn parameters(out: &mut Message, field: u32, json: Option<&Value>) {
    for given in json.and_then(Value::as_array).into_iter().flatten() {
        let mut item = Message::default();
        if given.get("$ref").is_some() {
            let mut reference = Message::default();
            reference.text(1, given.get("$ref"));
            item.message(2, &reference);
        } else {
            item.message(1, &parameter(given));
        }
        out.message(field, &item);
    }
}

fn parameter(json: &Value) -> Message {
    let mut out = Message::default();
    let mut inner = Message::default();
    match json["in"].as_str() {
        Some("body") => {
            inner.text(1, json.get("description"));
            inner.text(2, json.get("name"));
            inner.text(3, json.get("in"));
            inner.flag(4, json.get("required"));
            inner.message(5, &schema(&json["schema"]));
            out.message(1, &inner); // body_parameter
        }
        place => {
            // The two differ from the fifth field on.
            let query = place == Some("query");
            let (kind, format, unique, which) = if query { (6, 7, 20, 3) } else { (5, 6, 19, 4) };
            inner.flag(1, json.get("required"));
            inner.text(2, json.get("in"));
            inner.text(3, json.get("description"));
            inner.text(4, json.get("name"));
            inner.text(kind, json.get("type"));
            inner.text(format, json.get("format"));
            inner.flag(unique, json.get("uniqueItems"));
            let mut non_body = Message::default();
            non_body.message(which, &inner);
            out.message(2, &non_body);
        }
    }
    out
}

fn schema(json: &Value) -> Message {
    let mut out = Message::default();
    out.text(1, json.get("$ref"));
    out.text(2, json.get("format"));
    out.text(4, json.get("description"));
    out.texts(19, json.get("required"));
    for value in json.get("enum").and_then(Value::as_array).into_iter().flatten() {
        out.message(20, &any(value));
    }
    if let Some(given) = json.get("additionalProperties") {
        let mut item = Message::default();
        item.message(1, &schema(given));
        out.message(21, &item);
    }
    if let Some(name) = json.get("type") {
        let mut item = Message::default();
        item.text(1, Some(name));
        out.message(22, &item);
    }
    if let Some(given) = json.get("items") {
        let mut item = Message::default();
        item.message(1, &schema(given));
        out.message(23, &item);
    }
    if let Some(given) = json.get("properties") {
        let mut properties = Message::default();
        for (name, property) in entries(given) {
            properties.named(1, name, &schema(property));
        }
        out.message(25, &properties);
    }
    out.extensions(31, json);
    out
}
