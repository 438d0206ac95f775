//! Server-side printing for `kubectl get`: [`columns`] and [`cells`] of every kind, and the `Table`
//! documents.
//!
//! Column names, their order, types and priorities are upstream's, because clients print them and
//! scripts parse them; the descriptions are ours. The server selects the form (`Accept:
//! …;as=Table`) and the objects.

use serde_json::{Map, Value, json};

use crate::catalog::Resource;
use crate::rules::TEMPLATE_GENERATION;
use crate::timestamp::Timestamp;

mod age;
mod definitions;
mod kinds;
mod pod;
#[cfg(test)]
mod tests;

pub use age::human_duration;

/// One column of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Column {
    pub name: &'static str,
    /// `string`, `integer`, `boolean` or `date`.
    pub shape: &'static str,
    /// `name` for the column that names the object, else empty.
    pub format: &'static str,
    /// 0 is always shown, 1 only with `-o wide`.
    pub priority: i32,
    pub description: &'static str,
}

/// The version of `meta.k8s.io` in which a client requested the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TableVersion {
    #[default]
    V1,
    V1Beta1,
}

impl TableVersion {
    #[must_use]
    pub fn api_version(self) -> &'static str {
        match self {
            TableVersion::V1 => "meta.k8s.io/v1",
            TableVersion::V1Beta1 => "meta.k8s.io/v1beta1",
        }
    }
}

/// How much of an object is in its row: the query parameter `includeObject`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum IncludeObject {
    None,
    #[default]
    Metadata,
    Object,
}

/// An unknown value of `includeObject`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "Unable to convert to Table as requested: includeObject: Invalid value: {}: must be 'Metadata', 'Object', 'None', or empty",
    crate::go::quoted(.0)
)]
pub struct IncludeObjectError(pub String);

impl IncludeObject {
    pub fn parse(word: &str) -> Result<IncludeObject, IncludeObjectError> {
        match word {
            "" | "Metadata" => Ok(IncludeObject::Metadata),
            "None" => Ok(IncludeObject::None),
            "Object" => Ok(IncludeObject::Object),
            other => Err(IncludeObjectError(other.to_owned())),
        }
    }
}

/// The options of a table in a response.
#[derive(Debug, Clone, Copy)]
pub struct TableOptions {
    pub version: TableVersion,
    pub include: IncludeObject,
    /// Watch events after the first leave the columns out.
    pub with_columns: bool,
}

impl Default for TableOptions {
    fn default() -> TableOptions {
        TableOptions {
            version: TableVersion::V1,
            include: IncludeObject::Metadata,
            with_columns: true,
        }
    }
}

/// The columns of a resource's table.
#[must_use]
pub fn columns(resource: &Resource) -> &'static [Column] {
    definitions::of(resource)
}

/// An object's cells, one for each of the [`columns`].
#[must_use]
pub fn cells(resource: &Resource, object: &Value, now: Timestamp) -> Vec<Value> {
    kinds::cells(resource, object, now)
}

/// Returns the table of a list. `list_meta` is the `metadata` of the list.
#[must_use]
pub fn of_list<'a>(
    resource: &Resource,
    list_meta: Value,
    items: impl IntoIterator<Item = &'a Value>,
    form: TableOptions,
    now: Timestamp,
) -> Value {
    let rows = items.into_iter().map(|object| row(resource, object, form, now)).collect();
    table(columns(resource), list_meta, rows, form)
}

/// Returns the table of one object: the response to a get, create, update or delete, or the object
/// of a watch event.
#[must_use]
pub fn of_object(resource: &Resource, object: &Value, form: TableOptions, now: Timestamp) -> Value {
    let rows = vec![row(resource, object, form, now)];
    table(columns(resource), meta_of(object), rows, form)
}

/// Returns the table of the `scale` of a workload.
#[must_use]
pub fn of_scale(scale: &Value, form: TableOptions, now: Timestamp) -> Value {
    let row = json!({"cells": kinds::scale(scale, now), "object": carried(scale, form)});
    table(definitions::SCALE, meta_of(scale), vec![row], form)
}

fn meta_of(object: &Value) -> Value {
    let mut meta = Map::new();
    if let Some(version) = object["metadata"]["resourceVersion"].as_str() {
        meta.insert("resourceVersion".to_owned(), version.into());
    }
    Value::Object(meta)
}

fn table(columns: &[Column], meta: Value, rows: Vec<Value>, form: TableOptions) -> Value {
    let definitions = match form.with_columns {
        true => columns.iter().map(definition).collect(),
        false => Value::Null,
    };
    let mut table = Map::new();
    table.insert("kind".to_owned(), "Table".into());
    table.insert("apiVersion".to_owned(), form.version.api_version().into());
    table.insert("metadata".to_owned(), meta);
    table.insert("columnDefinitions".to_owned(), definitions);
    table.insert("rows".to_owned(), Value::Array(rows));
    Value::Object(table)
}

/// Returns the `columnDefinitions` of a resource's table.
#[must_use]
pub fn column_definitions(resource: &Resource) -> Value {
    columns(resource).iter().map(definition).collect()
}

fn definition(column: &Column) -> Value {
    json!({
        "name": column.name,
        "type": column.shape,
        "format": column.format,
        "description": column.description,
        "priority": column.priority,
    })
}

/// Returns the row of an object.
#[must_use]
pub fn row(resource: &Resource, object: &Value, form: TableOptions, now: Timestamp) -> Value {
    let mut row = Map::new();
    row.insert("cells".to_owned(), cells(resource, object, now).into());
    if let Some(condition) = row_condition(resource, object) {
        row.insert("conditions".to_owned(), Value::Array(vec![condition]));
    }
    row.insert("object".to_owned(), carried(object, form));
    Value::Object(row)
}

/// Returns the part of an object that its row contains.
fn carried(object: &Value, form: TableOptions) -> Value {
    match form.include {
        IncludeObject::None => Value::Null,
        IncludeObject::Metadata => partial_metadata(object, form.version),
        IncludeObject::Object => object.clone(),
    }
}

/// Returns `PartialObjectMetadata`: the metadata alone.
#[must_use]
pub fn partial_metadata(object: &Value, version: TableVersion) -> Value {
    let mut metadata = object.get("metadata").cloned().unwrap_or_else(|| json!({}));
    drop_internal(&mut metadata);
    json!({
        "kind": "PartialObjectMetadata",
        "apiVersion": version.api_version(),
        "metadata": metadata,
    })
}

/// The template generation of a daemon set is an annotation only in the whole object.
fn drop_internal(metadata: &mut Value) {
    let Some(meta) = metadata.as_object_mut() else { return };
    let annotations = meta.get_mut("annotations").and_then(Value::as_object_mut);
    let Some(annotations) = annotations else { return };
    if annotations.remove(TEMPLATE_GENERATION).is_some() && annotations.is_empty() {
        meta.remove("annotations");
    }
}

/// A completed pod is marked, so that a client can hide it.
fn row_condition(resource: &Resource, object: &Value) -> Option<Value> {
    if (resource.group, resource.kind) != ("", "Pod") {
        return None;
    }
    let phase = object["status"]["phase"].as_str()?;
    let message = match phase {
        "Succeeded" => "The pod has completed successfully.",
        "Failed" => "The pod failed.",
        _ => return None,
    };
    Some(json!({"type": "Completed", "status": "True", "reason": phase, "message": message}))
}
