//! Types as OpenAPI schemas: [`Definitions`] collects requested types and all types that they refer
//! to.

use serde_json::{Map, Value, json};

use super::SpecVersion;
use super::served::{META, ServedTypes};
use crate::schema::{Field, Ownership, Presence, Shape, Type};

const QUANTITY: &str = "io.k8s.apimachinery.pkg.api.resource.Quantity";
const INT_OR_STRING: &str = "io.k8s.apimachinery.pkg.util.intstr.IntOrString";
const RAW_EXTENSION: &str = "io.k8s.apimachinery.pkg.runtime.RawExtension";
const TIME: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.Time";
const MICRO_TIME: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.MicroTime";
const FIELDS: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.FieldsV1";

#[derive(Debug)]
pub(super) struct Definitions<'a> {
    served: &'a ServedTypes<'a>,
    edition: SpecVersion,
    found: Map<String, Value>,
}

impl<'a> Definitions<'a> {
    pub(super) fn new(served: &'a ServedTypes<'a>, edition: SpecVersion) -> Self {
        Definitions { served, edition, found: Map::new() }
    }

    pub(super) fn add_all<'b>(&mut self, names: impl IntoIterator<Item = &'b str>) {
        let mut wanted: Vec<String> = names.into_iter().map(str::to_owned).collect();
        while let Some(name) = wanted.pop() {
            if self.found.contains_key(&name) {
                continue;
            }
            let mut definition = self.define(&name, &mut wanted);
            if self.edition == SpecVersion::V3 {
                wrap_references(&mut definition);
            }
            self.found.insert(name, definition);
        }
    }

    pub(super) fn finish(self) -> Map<String, Value> {
        self.found
    }

    /// Returns a definition with bare references, whose names are pushed to `refers`.
    fn define(&self, name: &str, refers: &mut Vec<String>) -> Value {
        if let Some(definition) = built_in(name, self.edition) {
            return definition;
        }
        let Some(id) = self.served.schema.find(name) else {
            return json!({"type": "object"});
        };
        let type_ = self.served.schema.get(id);
        let mut definition = Map::new();
        insert(&mut definition, "description", type_.doc.as_str());
        insert(&mut definition, "type", "object");
        let properties: Map<String, Value> = type_
            .fields
            .iter()
            .map(|field| (field.name.clone(), self.property(field, refers)))
            .collect();
        if !properties.is_empty() {
            insert(&mut definition, "properties", properties);
        }
        let required = required(type_);
        if !required.is_empty() {
            insert(&mut definition, "required", required);
        }
        if type_.atomic {
            insert(&mut definition, "x-kubernetes-map-type", "atomic");
        }
        let kinds = self.served.kinds_of(type_);
        if !kinds.is_empty() {
            let kinds: Vec<Value> = kinds
                .iter()
                .map(
                    |kind| json!({"group": kind.group, "kind": kind.kind, "version": kind.version}),
                )
                .collect();
            insert(&mut definition, "x-kubernetes-group-version-kind", kinds);
        }
        definition.into()
    }

    fn property(&self, field: &Field, refers: &mut Vec<String>) -> Value {
        let mut property = self.shape(&field.shape, refers);
        insert(&mut property, "description", field.doc.as_str());
        if let Some(format) = &field.format {
            insert(&mut property, "format", format.as_str());
        }
        if !field.one_of.is_empty() {
            let values = field.one_of.clone();
            match property.get_mut("items") {
                Some(Value::Object(items)) => insert(items, "enum", values),
                _ => insert(&mut property, "enum", values),
            }
        }
        if self.edition == SpecVersion::V3
            && let Some(default) = field.default.clone().or_else(|| implied_default(field))
        {
            insert(&mut property, "default", default);
        }
        describe_ownership(field, &mut property);
        describe_strategy(field, &mut property);
        property.into()
    }

    fn shape(&self, shape: &Shape, refers: &mut Vec<String>) -> Map<String, Value> {
        let mut refer = |name: &str| {
            refers.push(name.to_owned());
            json!({"$ref": self.edition.reference(name)})
        };
        let value = match shape {
            Shape::String => json!({"type": "string"}),
            Shape::Bool => json!({"type": "boolean"}),
            Shape::Int32 => json!({"type": "integer", "format": "int32"}),
            Shape::Int64 => json!({"type": "integer", "format": "int64"}),
            Shape::Float64 => json!({"type": "number", "format": "double"}),
            Shape::Bytes => json!({"type": "string", "format": "byte"}),
            Shape::Quantity => refer(QUANTITY),
            Shape::IntOrString => refer(INT_OR_STRING),
            Shape::Time => refer(TIME),
            Shape::MicroTime => refer(MICRO_TIME),
            Shape::Any => refer(RAW_EXTENSION),
            Shape::Fields => refer(FIELDS),
            Shape::Struct(id) => refer(&self.served.schema.get(*id).full_name()),
            Shape::List(inner) => json!({"type": "array", "items": self.element(inner, refers)}),
            Shape::Map(inner) => {
                json!({"type": "object", "additionalProperties": self.element(inner, refers)})
            }
        };
        match value {
            Value::Object(map) => map,
            _ => Map::new(),
        }
    }

    /// Returns the schema of a list item or map value. Go has no pointers there, so zero stands for
    /// a missing value.
    fn element(&self, shape: &Shape, refers: &mut Vec<String>) -> Map<String, Value> {
        let mut element = self.shape(shape, refers);
        if self.edition == SpecVersion::V3
            && let Some(zero) = zero(shape)
        {
            insert(&mut element, "default", zero);
        }
        element
    }
}

fn insert(map: &mut Map<String, Value>, key: &str, value: impl Into<Value>) {
    map.insert(key.to_owned(), value.into());
}

/// In the order of the schema.
fn required(type_: &Type) -> Vec<Value> {
    let mut fields: Vec<&Field> = type_.fields.iter().filter(|field| field.required).collect();
    fields.sort_by_key(|field| field.position);
    fields.iter().map(|field| field.name.as_str().into()).collect()
}

/// Returns Go's zero value of a missing field that is neither a pointer nor `omitempty`.
fn implied_default(field: &Field) -> Option<Value> {
    let always = field.presence == Presence::Always;
    let struct_ = matches!(field.shape, Shape::Struct(_));
    if field.pointer || !(always || struct_) {
        return None;
    }
    zero(&field.shape)
}

/// Types with their own encoding (quantities, times) have none.
fn zero(shape: &Shape) -> Option<Value> {
    match shape {
        Shape::String => Some("".into()),
        Shape::Bool => Some(false.into()),
        Shape::Int32 | Shape::Int64 | Shape::Float64 => Some(0.into()),
        Shape::Struct(_) => Some(json!({})),
        _ => None,
    }
}

fn describe_ownership(field: &Field, property: &mut Map<String, Value>) {
    let list = matches!(field.shape, Shape::List(_));
    match &field.ownership {
        Ownership::Unmarked => {}
        Ownership::Atomic if list => insert(property, "x-kubernetes-list-type", "atomic"),
        Ownership::Atomic => insert(property, "x-kubernetes-map-type", "atomic"),
        Ownership::Set => insert(property, "x-kubernetes-list-type", "set"),
        Ownership::Map(keys) => {
            insert(property, "x-kubernetes-list-type", "map");
            insert(property, "x-kubernetes-list-map-keys", keys.clone());
        }
    }
}

fn describe_strategy(field: &Field, property: &mut Map<String, Value>) {
    let strategy = &field.strategy;
    let words = [
        (strategy.merge, "merge"),
        (strategy.retain_keys, "retainKeys"),
        (strategy.replace, "replace"),
    ];
    let words: Vec<&str> = words.iter().filter(|(is, _)| *is).map(|(_, word)| *word).collect();
    if !words.is_empty() {
        insert(property, "x-kubernetes-patch-strategy", words.join(","));
    }
    if let Some(key) = &strategy.merge_key {
        insert(property, "x-kubernetes-patch-merge-key", key.as_str());
    }
}

/// OpenAPI 3.0 ignores siblings of a reference, so a reference with siblings is put into an
/// `allOf`.
fn wrap_references(value: &mut Value) {
    match value {
        Value::Object(map) => {
            map.values_mut().for_each(wrap_references);
            if map.len() > 1
                && let Some(target) = map.remove("$ref")
            {
                map.insert("allOf".to_owned(), json!([{"$ref": target}]));
            }
        }
        Value::Array(items) => items.iter_mut().for_each(wrap_references),
        _ => {}
    }
}

/// Types with their own encoding. OpenAPI v2 has no `oneOf`.
fn built_in(name: &str, edition: SpecVersion) -> Option<Value> {
    let v3 = edition == SpecVersion::V3;
    Some(match name {
        QUANTITY => {
            let doc = "An exact number with an optional suffix, for example 100m, 1.5Gi or 2e3. \
                       Suffixes: k, M, G, T, P, E (powers of 1000), Ki, Mi, Gi, Ti, Pi, Ei (powers of \
                       1024), and m, u, n.";
            match v3 {
                true => {
                    json!({"description": doc, "oneOf": [{"type": "string"}, {"type": "number"}]})
                }
                false => json!({"description": doc, "type": "string"}),
            }
        }
        INT_OR_STRING => {
            let doc = "An integer or a string, for example the number or name of a port, or a percentage.";
            let format = "int-or-string";
            match v3 {
                true => json!({
                    "description": doc,
                    "format": format,
                    "oneOf": [{"type": "integer"}, {"type": "string"}],
                }),
                false => json!({"description": doc, "format": format, "type": "string"}),
            }
        }
        TIME => json!({
            "description": "A time in RFC 3339 form, in whole seconds.",
            "format": "date-time",
            "type": "string",
        }),
        MICRO_TIME => json!({
            "description": "A time in RFC 3339 form, with microseconds.",
            "format": "date-time",
            "type": "string",
        }),
        RAW_EXTENSION => json!({"description": "Any JSON.", "type": "object"}),
        FIELDS => json!({
            "description": "A set of fields: every key is a field (f:name), a list's item by key \
                            (k:{...}), value (v:...) or index (i:0), or the item itself (.).",
            "type": "object",
        }),
        _ => return None,
    })
}

/// Full name of a type of the metadata package.
pub(super) fn meta(name: &str) -> String {
    format!("{META}.{name}")
}
