//! The grammar of `api/*.api`: one type and then one field a line.
//!
//! ```text
//! package io.k8s.api.core.v1
//! type Container : A program to run in a pod.
//!   name   1 string!                               : Name of the container.
//!   ports  6 [ContainerPort] map=containerPort,protocol merge=containerPort : …
//!       A doc goes on where a line is indented by four blanks or more.
//! ```
//!
//! The number is the field's in protobuf: `17`, `2.17` for field 17 of an embedded message 2, `-` for
//! none ([`Number`]).
//! Types: `string`, `bool`, `int32`, `int64`, `float64`, `quantity`, `int-or-string`, `time`,
//! `micro-time`, `bytes`, `any`, `fields`, a type's name, `[T]`, `{T}`; `*` before makes it a
//! pointer, `!` after always written.

use std::collections::HashMap;

use thiserror::Error;

use super::{Field, Number, Ownership, Presence, Schema, Shape, Strategy, Type, TypeId, Wire};

const META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1";

/// An error in a schema's text, with its position.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{file}:{line}: {what}")]
pub struct SchemaError {
    pub file: String,
    pub line: usize,
    pub what: String,
}

/// A field before the names of types are resolved.
struct Draft<'a> {
    line: usize,
    name: &'a str,
    number: &'a str,
    shape: &'a str,
    flags: Vec<&'a str>,
    doc: String,
}

struct TypeDraft<'a> {
    file: &'a str,
    line: usize,
    package: &'a str,
    name: &'a str,
    flags: Vec<&'a str>,
    doc: String,
    fields: Vec<Draft<'a>>,
}

pub(super) fn parse(texts: &[(&str, &str)]) -> Result<Schema, SchemaError> {
    let mut drafts = Vec::new();
    for (file, text) in texts {
        read_file(file, text, &mut drafts)?;
    }
    let mut schema = Schema::default();
    for draft in &drafts {
        let full = format!("{}.{}", draft.package, draft.name);
        let id = TypeId(u16::try_from(schema.by_name.len()).unwrap_or(u16::MAX));
        if schema.by_name.insert(full, id).is_some() {
            return Err(error(draft.file, draft.line, "the type is defined twice"));
        }
    }
    for draft in &drafts {
        let finished = finish(draft, &schema.by_name)?;
        schema.types.push(finished);
    }
    Ok(schema)
}

fn error(file: &str, line: usize, what: impl Into<String>) -> SchemaError {
    SchemaError { file: file.to_owned(), line, what: what.into() }
}

fn read_file<'a>(
    file: &'a str,
    text: &'a str,
    drafts: &mut Vec<TypeDraft<'a>>,
) -> Result<(), SchemaError> {
    let mut package = "";
    for (line, text) in (1..).zip(text.lines()) {
        let word = text.trim();
        let indent = text.len() - text.trim_start().len();
        if word.is_empty() || text.starts_with('#') {
            continue;
        }
        let (head, doc) = word.split_once(" : ").unwrap_or((word, ""));
        let mut words = head.split_whitespace();
        match indent {
            0 => match words.next() {
                Some("package") => package = words.next().unwrap_or_default(),
                Some("type") => {
                    let Some(name) = words.next() else {
                        return Err(error(file, line, "a type needs a name"));
                    };
                    drafts.push(TypeDraft {
                        file,
                        line,
                        package,
                        name,
                        flags: words.collect(),
                        doc: doc.to_owned(),
                        fields: Vec::new(),
                    });
                }
                _ => return Err(error(file, line, "neither `package` nor `type`")),
            },
            2 | 3 => {
                let Some(draft) = drafts.last_mut() else {
                    return Err(error(file, line, "a field before any type"));
                };
                let (Some(name), Some(number), Some(shape)) =
                    (words.next(), words.next(), words.next())
                else {
                    let what = "a field needs a name, a protobuf number and a type";
                    return Err(error(file, line, what));
                };
                let flags = words.collect();
                draft.fields.push(Draft { line, name, number, shape, flags, doc: doc.to_owned() });
            }
            _ => {
                let doc = drafts.last_mut().map(|draft| match draft.fields.last_mut() {
                    Some(field) => &mut field.doc,
                    None => &mut draft.doc,
                });
                let Some(doc) = doc else {
                    return Err(error(file, line, "nothing to go on with"));
                };
                doc.push(' ');
                doc.push_str(word);
            }
        }
    }
    Ok(())
}

fn finish(draft: &TypeDraft<'_>, names: &HashMap<String, TypeId>) -> Result<Type, SchemaError> {
    let mut finished = Type {
        package: draft.package.to_owned(),
        name: draft.name.to_owned(),
        doc: draft.doc.clone(),
        ..Type::default()
    };
    for flag in &draft.flags {
        match flag.split_once('=') {
            None if *flag == "atomic" => finished.atomic = true,
            Some(("kind", kind)) => finished.kind = Some(kind.to_owned()),
            Some(("list", kind)) => finished.list_of = Some(kind.to_owned()),
            _ => return Err(error(draft.file, draft.line, format!("unknown flag {flag:?}"))),
        }
    }
    for field in &draft.fields {
        let read = read_field(field, draft, names).map_err(|what| {
            let what = format!("{}: {what}", field.name);
            error(draft.file, field.line, what)
        })?;
        finished.fields.push(read);
    }
    if finished.kind.is_some() || finished.list_of.is_some() {
        for (name, doc) in
            [("apiVersion", "API version of the object."), ("kind", "Kind of the object.")]
        {
            let number = Number::Nowhere;
            finished.fields.push(implied(name, number, Shape::String, Presence::NonZero, doc));
        }
    }
    if let Some(kind) = &finished.list_of {
        let known = |name: String| {
            let missing = || error(draft.file, draft.line, format!("no type {name}"));
            names.get(&name).copied().map(Shape::Struct).ok_or_else(missing)
        };
        let item = known(format!("{}.{kind}", draft.package))?;
        let metadata = known(format!("{META}.ListMeta"))?;
        let items = Shape::List(Box::new(item));
        let doc = "Items of the list.";
        let mut items = implied("items", Number::Own(2), items, Presence::Always, doc);
        items.required = true;
        finished.fields.push(items);
        let doc = "Standard list metadata.";
        let number = Number::Own(1);
        finished.fields.push(implied("metadata", number, metadata, Presence::Always, doc));
    }
    for (position, field) in finished.fields.iter_mut().enumerate() {
        field.position = position;
    }
    finished.fields.sort_by(|a, b| a.name.cmp(&b.name));
    if let Some(pair) = finished.fields.windows(2).find(|pair| pair[0].name == pair[1].name) {
        let what = format!("the field {:?} is defined twice", pair[0].name);
        return Err(error(draft.file, draft.line, what));
    }
    finished.wire =
        Wire::of(&finished.fields).map_err(|what| error(draft.file, draft.line, what))?;
    Ok(finished)
}

fn implied(name: &str, number: Number, shape: Shape, presence: Presence, doc: &str) -> Field {
    Field {
        name: name.to_owned(),
        number,
        shape,
        presence,
        pointer: false,
        position: 0,
        required: false,
        ownership: Ownership::Unmarked,
        strategy: Strategy::default(),
        one_of: Vec::new(),
        default: None,
        format: None,
        doc: doc.to_owned(),
    }
}

fn read_field(
    draft: &Draft<'_>,
    type_draft: &TypeDraft<'_>,
    names: &HashMap<String, TypeId>,
) -> Result<Field, String> {
    let number = Number::parse(draft.number)?;
    let (text, always) = match draft.shape.strip_suffix('!') {
        Some(text) => (text, true),
        None => (draft.shape, false),
    };
    let (text, pointer) = match text.strip_prefix('*') {
        Some(text) => (text, true),
        None => (text, false),
    };
    let shape = read_shape(text, type_draft.package, names)?;
    // A structure or a time that is not a pointer is written even when zero.
    let solid = matches!(shape, Shape::Struct(_) | Shape::Time | Shape::MicroTime);
    let presence = match (pointer, always || solid) {
        (_, true) if !pointer || always => Presence::Always,
        (true, _) => Presence::Given,
        _ => Presence::NonZero,
    };
    let mut field = implied(draft.name, number, shape, presence, &draft.doc);
    field.pointer = pointer;
    field.required = always;
    for flag in &draft.flags {
        match flag.split_once('=').map_or((*flag, None), |(name, value)| (name, Some(value))) {
            ("atomic", None) => field.ownership = Ownership::Atomic,
            ("set", None) => field.ownership = Ownership::Set,
            ("map", Some(keys)) => {
                field.ownership = Ownership::Map(keys.split(',').map(str::to_owned).collect());
            }
            ("merge", key) => {
                field.strategy.merge = true;
                field.strategy.merge_key = key.map(str::to_owned);
            }
            ("retainKeys", None) => field.strategy.retain_keys = true,
            ("replace", None) => field.strategy.replace = true,
            ("enum", Some(values)) => {
                field.one_of = values.split('|').map(str::to_owned).collect();
            }
            ("default", Some(json)) => {
                let value = serde_json::from_str(json);
                field.default = Some(value.map_err(|e| format!("default {json:?}: {e}"))?);
            }
            ("format", Some(format)) => field.format = Some(format.to_owned()),
            ("omitzero", None) => field.presence = Presence::NonZero,
            ("optional", None) => field.required = false,
            ("required", None) => field.required = true,
            _ => return Err(format!("unknown flag {flag:?}")),
        }
    }
    Ok(field)
}

fn read_shape(text: &str, package: &str, names: &HashMap<String, TypeId>) -> Result<Shape, String> {
    let inner = |text: &str| read_shape(text, package, names).map(Box::new);
    if let Some(item) = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
        return Ok(Shape::List(inner(item)?));
    }
    if let Some(value) = text.strip_prefix('{').and_then(|rest| rest.strip_suffix('}')) {
        return Ok(Shape::Map(inner(value)?));
    }
    Ok(match text {
        "string" => Shape::String,
        "bool" => Shape::Bool,
        "int32" => Shape::Int32,
        "int64" => Shape::Int64,
        "float64" => Shape::Float64,
        "quantity" => Shape::Quantity,
        "int-or-string" => Shape::IntOrString,
        "time" => Shape::Time,
        "micro-time" => Shape::MicroTime,
        "bytes" => Shape::Bytes,
        "any" => Shape::Any,
        "fields" => Shape::Fields,
        name => {
            let candidates =
                [format!("{package}.{name}"), format!("{META}.{name}"), name.to_owned()];
            let found = candidates.iter().find_map(|name| names.get(name));
            Shape::Struct(*found.ok_or_else(|| format!("no type {name:?}"))?)
        }
    })
}
