//! OpenAPI documents of the server: [`OpenApi`], from the schema and the catalog.
//!
//! The form is that of kube-apiserver, because clients depend on it: `kubectl explain` reads
//! descriptions and types, `kubectl apply` patch keys and strategies, and every kubectl looks for
//! `dryRun` and `fieldValidation` among the parameters of an operation whose
//! `x-kubernetes-group-version-kind` matches. The API server handles Accept, ETag and gzip.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};
use sha2::{Digest, Sha512};

use crate::catalog::Resource;
use crate::schema::Schema;

mod definitions;
mod operations;
mod parameters;
mod paths;
mod protobuf;
mod protobuf_v3;
mod served;
#[cfg(test)]
mod tests;

use definitions::Definitions;
use served::ServedTypes;

/// The media type in which clients up to kubectl 1.26, and the discovery client of every later one,
/// request `/openapi/v2`; they do not read JSON there.
pub const V2_PROTOBUF: &str = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf";
/// The media type of responses: the same without the `@`, which is not allowed in a media type.
pub const V2_PROTOBUF_ANSWER: &str = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf";
/// The media type of OpenAPI v3, which clients may request in either spelling.
pub const V3_PROTOBUF: &str = "application/com.github.proto-openapi.spec.v3@v1.0+protobuf";
/// The spelling in responses.
pub const V3_PROTOBUF_ANSWER: &str = "application/com.github.proto-openapi.spec.v3.v1.0+protobuf";

/// All documents.
#[derive(Debug, Clone)]
pub struct OpenApi {
    /// `/openapi/v2` as JSON.
    pub v2: Document,
    /// `/openapi/v2` as protobuf.
    pub v2_protobuf: Document,
    /// `/openapi/v3`: the index of the documents.
    pub v3_index: Document,
    /// `/openapi/v3/{key}` by key: `api/v1`, `apis/apps/v1`.
    pub v3: BTreeMap<String, Document>,
}

/// A document and its hash.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Document {
    pub body: Vec<u8>,
    /// SHA-512 in hexadecimal: the ETag (in quotes) and the `hash` of the index.
    pub hash: String,
}

impl Document {
    fn new(body: Vec<u8>) -> Self {
        let mut hash = String::with_capacity(128);
        for byte in Sha512::digest(&body) {
            hash.push(hex(byte >> 4));
            hash.push(hex(byte & 0xf));
        }
        Document { body, hash }
    }

    fn json(value: &Value) -> Self {
        Document::new(value.to_string().into_bytes())
    }
}

fn hex(nibble: u8) -> char {
    char::from(b"0123456789ABCDEF"[usize::from(nibble)])
}

/// The version of OpenAPI. Both have the same content in different places.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SpecVersion {
    V2,
    V3,
}

impl SpecVersion {
    fn reference(self, name: &str) -> String {
        match self {
            SpecVersion::V2 => format!("#/definitions/{name}"),
            SpecVersion::V3 => format!("#/components/schemas/{name}"),
        }
    }
}

impl OpenApi {
    /// Renders the documents of these resources; `version` is the server's, as in `/version`.
    #[must_use]
    pub fn render(schema: &Schema, resources: &[Resource], version: &str) -> OpenApi {
        let served = ServedTypes::new(schema, resources);
        let v2 = v2(&served, version);
        let v3: BTreeMap<_, _> = v3(&served, version)
            .into_iter()
            .map(|(key, document)| (key, Document::json(&document)))
            .collect();
        OpenApi {
            v2_protobuf: Document::new(protobuf::encode(&v2)),
            v2: Document::json(&v2),
            v3_index: index(&v3),
            v3,
        }
    }

    /// Returns `/openapi/v3/{key}` as protobuf. It has the hash of the JSON form, as upstream's
    /// has. Few clients request it, so it is encoded for each request and not cached.
    #[must_use]
    pub fn v3_protobuf(&self, key: &str) -> Option<Document> {
        let Document { body, hash } = self.v3.get(key)?;
        let document: Value = serde_json::from_slice(body).ok()?;
        Some(Document { body: protobuf_v3::encode(&document), hash: hash.clone() })
    }
}

fn security() -> Value {
    json!({
        "description": "Bearer Token authentication",
        "in": "header",
        "name": "authorization",
        "type": "apiKey",
    })
}

fn v2(served: &ServedTypes<'_>, version: &str) -> Value {
    let paths = paths::all(served);
    let mut definitions = Definitions::new(served, SpecVersion::V2);
    let mut shared = Map::new();
    let mut items = Map::new();
    for path in &paths {
        definitions.add_all(path.types());
        items.insert(path.path.clone(), operations::v2(path, &mut shared));
    }
    json!({
        "definitions": definitions.finish(),
        "info": {"title": "Kubernetes", "version": version},
        "parameters": shared,
        "paths": items,
        "security": [{"BearerToken": []}],
        "securityDefinitions": {"BearerToken": security()},
        "swagger": "2.0",
    })
}

/// By key, which is the path of the group and version without the first slash.
fn v3(served: &ServedTypes<'_>, version: &str) -> BTreeMap<String, Value> {
    let mut documents: BTreeMap<String, (Map<String, Value>, Definitions<'_>)> = BTreeMap::new();
    for path in &paths::all(served) {
        let (items, definitions) = documents
            .entry(path.document.clone())
            .or_insert_with(|| (Map::new(), Definitions::new(served, SpecVersion::V3)));
        definitions.add_all(path.types());
        items.insert(path.path.clone(), operations::v3(path));
    }
    let document = |(items, definitions): (Map<String, Value>, Definitions<'_>)| {
        let mut components = Map::new();
        let schemas = definitions.finish();
        if !schemas.is_empty() {
            components.insert("schemas".to_owned(), schemas.into());
        }
        components.insert("securitySchemes".to_owned(), json!({"BearerToken": security()}));
        json!({
            "components": components,
            "info": {"title": "Kubernetes", "version": version},
            "openapi": "3.0.0",
            "paths": items,
        })
    };
    documents.into_iter().map(|(key, parts)| (key, document(parts))).collect()
}

fn index(documents: &BTreeMap<String, Document>) -> Document {
    let entry = |(key, document): (&String, &Document)| {
        let url = format!("/openapi/v3/{key}?hash={}", document.hash);
        (key.clone(), json!({"serverRelativeURL": url}))
    };
    let paths: Map<String, Value> = documents.iter().map(entry).collect();
    Document::json(&json!({"paths": paths}))
}
