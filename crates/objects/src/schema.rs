//! The schema of every object that the API serves: [`Schema`], read from the text files in `api/`.
//!
//! One definition is the source of decoding ([`decode`]), canonical form, strategic merge,
//! server-side apply, protobuf, OpenAPI and `kubectl explain`. ADR 0007 explains why objects are
//! values under a schema and not one Rust struct per kind. Defaults and validation are elsewhere.

use std::collections::HashMap;
use std::sync::LazyLock;

use serde_json::Value;

pub mod decode;
pub mod numbers;
mod parse;
pub mod syntax;

pub use decode::{DecodeError, Decoded};
pub use numbers::{Number, Wire};
pub use parse::SchemaError;

/// The texts of `api/`, by file name.
const TEXTS: &[(&str, &str)] = &[
    ("apidiscovery_v2.api", include_str!("../api/apidiscovery_v2.api")),
    ("apps_v1.api", include_str!("../api/apps_v1.api")),
    ("authentication_v1.api", include_str!("../api/authentication_v1.api")),
    ("authorization_v1.api", include_str!("../api/authorization_v1.api")),
    ("autoscaling_v1.api", include_str!("../api/autoscaling_v1.api")),
    ("batch_v1.api", include_str!("../api/batch_v1.api")),
    ("coordination_v1.api", include_str!("../api/coordination_v1.api")),
    ("core_v1.api", include_str!("../api/core_v1.api")),
    ("events_v1.api", include_str!("../api/events_v1.api")),
    ("meta_v1.api", include_str!("../api/meta_v1.api")),
    ("node_v1.api", include_str!("../api/node_v1.api")),
    ("policy_v1.api", include_str!("../api/policy_v1.api")),
    ("scheduling_v1.api", include_str!("../api/scheduling_v1.api")),
    ("scheduling_v1alpha3.api", include_str!("../api/scheduling_v1alpha3.api")),
    ("version.api", include_str!("../api/version.api")),
];

/// The index of a type in a [`Schema`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TypeId(u16);

/// All types.
#[derive(Debug, Default)]
pub struct Schema {
    types: Vec<Type>,
    by_name: HashMap<String, TypeId>,
}

/// A structure: a kind or a part of one.
#[derive(Debug, Clone, Default)]
pub struct Type {
    /// `io.k8s.api.core.v1`.
    pub package: String,
    pub name: String,
    pub doc: String,
    /// Server-side apply owns it as a whole.
    pub atomic: bool,
    /// The kind whose objects have this type.
    pub kind: Option<String>,
    /// The kind whose lists have this type.
    pub list_of: Option<String>,
    /// By name.
    pub fields: Vec<Field>,
    /// By protobuf number.
    pub wire: Wire,
}

#[derive(Debug, Clone)]
pub struct Field {
    pub name: String,
    /// The position in protobuf.
    pub number: Number,
    pub shape: Shape,
    pub presence: Presence,
    /// A Go pointer: OpenAPI implies no default.
    pub pointer: bool,
    /// Its index among the fields as declared, which is Go's order.
    pub position: usize,
    /// Required in OpenAPI.
    pub required: bool,
    /// The ownership of a list, map or structure in server-side apply.
    pub ownership: Ownership,
    /// The treatment in a strategic merge patch.
    pub strategy: Strategy,
    /// The values a string may have.
    pub one_of: Vec<String>,
    pub default: Option<Value>,
    pub format: Option<String>,
    pub doc: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Shape {
    String,
    Bool,
    Int32,
    Int64,
    Float64,
    Quantity,
    IntOrString,
    /// RFC 3339, whole seconds.
    Time,
    /// RFC 3339 with six digits of fraction.
    MicroTime,
    /// Base64 text.
    Bytes,
    /// Any JSON.
    Any,
    /// The field sets of `managedFields`.
    Fields,
    Struct(TypeId),
    List(Box<Shape>),
    /// From strings.
    Map(Box<Shape>),
}

/// When a field is written, which depends on its declaration in Go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Presence {
    /// Left out when zero or empty.
    NonZero,
    /// Omitted when not given; an explicit zero stays.
    Given,
    /// Always written: zero, `null` or `{}`.
    Always,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Ownership {
    /// A list without a mark is atomic, a map or structure granular.
    #[default]
    Unmarked,
    Atomic,
    Set,
    /// A list of structures identified by these fields.
    Map(Vec<String>),
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Strategy {
    pub merge: bool,
    pub merge_key: Option<String>,
    pub retain_keys: bool,
    /// The patch's structure replaces the old one instead of being merged into it.
    pub replace: bool,
}

impl Schema {
    /// The schema of the served API.
    ///
    /// # Panics
    ///
    /// If a built-in text is malformed, which a test rules out.
    #[must_use]
    #[expect(clippy::panic, reason = "the texts are constants that a test reads")]
    pub fn served() -> &'static Schema {
        static SERVED: LazyLock<Schema> =
            LazyLock::new(|| Schema::parse(TEXTS).unwrap_or_else(|error| panic!("{error}")));
        &SERVED
    }

    /// Parses texts, each with its file name.
    pub fn parse(texts: &[(&str, &str)]) -> Result<Schema, SchemaError> {
        parse::parse(texts)
    }

    #[must_use]
    pub fn get(&self, id: TypeId) -> &Type {
        &self.types[usize::from(id.0)]
    }

    /// Finds a type by full name: `io.k8s.api.core.v1.Pod`.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<TypeId> {
        self.by_name.get(name).copied()
    }

    pub fn types(&self) -> impl Iterator<Item = (TypeId, &Type)> {
        (0..).map(TypeId).zip(&self.types)
    }
}

impl Type {
    #[must_use]
    pub fn field(&self, name: &str) -> Option<&Field> {
        self.place(name).map(|place| &self.fields[place])
    }

    /// Returns the index of a field in [`Type::fields`].
    fn place(&self, name: &str) -> Option<usize> {
        self.fields.binary_search_by(|field| field.name.as_str().cmp(name)).ok()
    }

    /// `io.k8s.api.core.v1.Pod`.
    #[must_use]
    pub fn full_name(&self) -> String {
        format!("{}.{}", self.package, self.name)
    }
}

impl Field {
    /// Reports whether server-side apply owns the value as a whole.
    #[must_use]
    pub fn is_atomic(&self, schema: &Schema) -> bool {
        match (&self.ownership, &self.shape) {
            (Ownership::Atomic, _) | (Ownership::Unmarked, Shape::List(_)) => true,
            (_, Shape::Struct(id)) => schema.get(*id).atomic,
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests;
