//! [`Path`]s as path items of either version of OpenAPI.
//!
//! A parameter that all operations of a path have is put at the path, as upstream does.

use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use super::SpecVersion;
use super::definitions::meta;
use super::parameters::Parameter;
use super::paths::{Body, Operation, Path, Response};

/// Old kubectl looks for these among an operation's parameters and does not follow references.
const NOT_SHARED: &[&str] = &["dryRun", "fieldValidation"];

pub(super) fn v2(path: &Path, shared: &mut Map<String, Value>) -> Value {
    let common = common(path);
    let mut item = Map::new();
    for operation in &path.operations {
        let mut parameters = Vec::new();
        if let Some(body) = &operation.body {
            parameters.push(v2_body(body, shared));
        }
        for parameter in operation.parameters.iter().filter(|p| !common.contains(p)) {
            parameters.push(v2_parameter(parameter, shared));
        }
        let mut out = described(operation);
        if !operation.consumes.is_empty() {
            out.insert("consumes".to_owned(), operation.consumes.into());
        }
        out.insert("produces".to_owned(), operation.produces.into());
        out.insert("schemes".to_owned(), json!(["https"]));
        if !parameters.is_empty() {
            out.insert("parameters".to_owned(), parameters.into());
        }
        let responses = responses(operation, |response| {
            let schema = match response {
                Response::Object(name) => json!({"$ref": SpecVersion::V2.reference(name)}),
                Response::Text => json!({"type": "string"}),
            };
            ("schema", schema)
        });
        out.insert("responses".to_owned(), responses.into());
        item.insert(operation.method.to_owned(), out.into());
    }
    if !common.is_empty() {
        let parameters: Vec<Value> = common.iter().map(|p| v2_parameter(p, shared)).collect();
        item.insert("parameters".to_owned(), parameters.into());
    }
    item.into()
}

pub(super) fn v3(path: &Path) -> Value {
    let common = common(path);
    let mut item = Map::new();
    for operation in &path.operations {
        let mut out = described(operation);
        let own: Vec<Value> =
            operation.parameters.iter().filter(|p| !common.contains(p)).map(v3_parameter).collect();
        if !own.is_empty() {
            out.insert("parameters".to_owned(), own.into());
        }
        if let Some(body) = &operation.body {
            let schema = json!({"$ref": SpecVersion::V3.reference(&body.type_)});
            let mut request = Map::new();
            request.insert("content".to_owned(), content(operation.consumes, &schema));
            if body.required {
                request.insert("required".to_owned(), true.into());
            }
            out.insert("requestBody".to_owned(), request.into());
        }
        let responses = responses(operation, |response| {
            let schema = match response {
                Response::Object(name) => json!({"$ref": SpecVersion::V3.reference(name)}),
                Response::Text => json!({"type": "string"}),
            };
            ("content", content(operation.produces, &schema))
        });
        out.insert("responses".to_owned(), responses.into());
        item.insert(operation.method.to_owned(), out.into());
    }
    if !common.is_empty() {
        let parameters: Vec<Value> = common.iter().copied().map(v3_parameter).collect();
        item.insert("parameters".to_owned(), parameters.into());
    }
    item.into()
}

/// Parameters of all operations of the path.
fn common(path: &Path) -> Vec<&Parameter> {
    let Some((first, rest)) = path.operations.split_first() else {
        return Vec::new();
    };
    let everywhere = |p: &&Parameter| rest.iter().all(|operation| operation.parameters.contains(p));
    first.parameters.iter().filter(everywhere).collect()
}

/// The members that both versions of OpenAPI have in common.
fn described(operation: &Operation) -> Map<String, Value> {
    let mut out = Map::new();
    out.insert("description".to_owned(), operation.doc.as_str().into());
    out.insert("operationId".to_owned(), operation.id.as_str().into());
    out.insert("tags".to_owned(), json!([operation.tag]));
    if let Some((action, kind)) = &operation.acts {
        let kind = json!({"group": kind.group, "kind": kind.kind, "version": kind.version});
        out.insert("x-kubernetes-action".to_owned(), (*action).into());
        out.insert("x-kubernetes-group-version-kind".to_owned(), kind);
    }
    out
}

fn responses(
    operation: &Operation,
    body: impl Fn(&Response) -> (&'static str, Value),
) -> Map<String, Value> {
    let mut responses = Map::new();
    for (code, response) in &operation.responses {
        let word = match *code {
            "201" => "Created",
            "202" => "Accepted",
            _ => "OK",
        };
        let (key, value) = body(response);
        responses.insert((*code).to_owned(), json!({"description": word, key: value}));
    }
    responses.insert("401".to_owned(), json!({"description": "Unauthorized"}));
    responses
}

fn content(types: &[&str], schema: &Value) -> Value {
    let entry = |type_: &&str| ((*type_).to_owned(), json!({"schema": schema}));
    Value::Object(types.iter().map(entry).collect())
}

fn v2_body(body: &Body, shared: &mut Map<String, Value>) -> Value {
    let mut parameter = json!({
        "in": "body",
        "name": "body",
        "schema": {"$ref": SpecVersion::V2.reference(&body.type_)},
    });
    if body.required {
        parameter["required"] = true.into();
    }
    // The other parameters have one kind each.
    if body.type_ == meta("Patch") || body.type_ == meta("DeleteOptions") {
        return share("body", parameter, shared);
    }
    parameter
}

fn v2_parameter(parameter: &Parameter, shared: &mut Map<String, Value>) -> Value {
    let mut json = json!({
        "description": parameter.doc,
        "in": parameter.place,
        "name": parameter.name,
        "type": parameter.kind,
        "uniqueItems": true,
    });
    if parameter.place == "path" {
        json["required"] = true.into();
    }
    // The description of a name contains the kind.
    if NOT_SHARED.contains(&parameter.name) || parameter.name == "name" {
        return json;
    }
    share(parameter.name, json, shared)
}

/// Adds a parameter to those of the document and returns a reference to it. Equal parameters share
/// one entry; different ones with the same name are distinguished by a hash.
fn share(name: &str, parameter: Value, shared: &mut Map<String, Value>) -> Value {
    const LETTERS: &[u8; 64] = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_";
    let digest = Sha256::digest(parameter.to_string());
    let suffix: String =
        digest.iter().take(8).map(|byte| char::from(LETTERS[usize::from(byte % 64)])).collect();
    let key = format!("{name}-{suffix}");
    let reference = json!({"$ref": format!("#/parameters/{key}")});
    shared.insert(key, parameter);
    reference
}

fn v3_parameter(parameter: &Parameter) -> Value {
    let mut json = json!({
        "description": parameter.doc,
        "in": parameter.place,
        "name": parameter.name,
        "schema": {"type": parameter.kind, "uniqueItems": true},
    });
    if parameter.place == "path" {
        json["required"] = true.into();
    }
    json
}
