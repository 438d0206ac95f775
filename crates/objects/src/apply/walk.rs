//! Walks objects along the schema: the difference of two ([`Walker::compare`]), the fields that one
//! sets ([`Walker::claimed`]), and the path elements of list items.
//!
//! The rules are those of structured-merge-diff: a structure or map is granular unless marked
//! atomic, a list is atomic unless it is a set or has keys. [`super::merge`] merges and
//! [`super::check`] checks applied objects.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt::Write as _;

use serde_json::{Map, Value};

use super::set::{FieldSet, Node, make_member};
use crate::schema::{Field, Ownership, Presence, Schema, Shape, Type, TypeId};

pub(super) static UNMARKED: Ownership = Ownership::Unmarked;
static ANY: Shape = Shape::Any;

/// The type of a value in the schema: its shape and its ownership there.
#[derive(Debug, Clone, Copy)]
pub(super) struct TypeRef<'s> {
    pub(super) shape: &'s Shape,
    pub(super) ownership: &'s Ownership,
}

impl<'s> TypeRef<'s> {
    pub(super) fn field(field: &'s Field) -> TypeRef<'s> {
        TypeRef { shape: &field.shape, ownership: &field.ownership }
    }

    /// The type of a list item or of a map's value, which has no marks of its own.
    pub(super) fn inner(shape: &'s Shape) -> TypeRef<'s> {
        TypeRef { shape, ownership: &UNMARKED }
    }
}

/// The granularity at which a value is owned.
#[derive(Debug, Clone, Copy)]
pub(super) enum Granularity<'s> {
    /// As a whole.
    Leaf,
    Struct(&'s Type),
    /// By key, with values of this type.
    Map(TypeRef<'s>),
    /// A list whose items are identified by value.
    Set,
    /// A list whose items are identified by fields.
    Keyed(&'s Shape, &'s [String]),
}

/// The difference of two objects.
#[derive(Debug, Clone, Default)]
pub(super) struct Difference {
    /// New fields and fields with another value.
    pub(super) changed: FieldSet,
    pub(super) removed: FieldSet,
}

/// Fields at and below a node, if there are any.
type Subtree = Option<Node>;

#[derive(Debug, Clone, Copy)]
pub(super) struct Walker<'s> {
    pub(super) schema: &'s Schema,
}

/// Fields that the server maintains and that have no owner.
const UNOWNED: &[&str] = &["apiVersion", "kind"];
const UNOWNED_METADATA: &[&str] = &[
    "clusterName",
    "creationTimestamp",
    "generation",
    "managedFields",
    "name",
    "namespace",
    "resourceVersion",
    "selfLink",
    "uid",
];

impl<'s> Walker<'s> {
    pub(super) fn granularity(self, type_ref: TypeRef<'s>, value: &Value) -> Granularity<'s> {
        match (type_ref.shape, type_ref.ownership) {
            (_, Ownership::Atomic) => Granularity::Leaf,
            (Shape::Struct(id), _) => {
                let type_ = self.schema.get(*id);
                if type_.atomic { Granularity::Leaf } else { Granularity::Struct(type_) }
            }
            (Shape::Map(value), _) => Granularity::Map(TypeRef::inner(value)),
            (Shape::List(_), Ownership::Set) => Granularity::Set,
            (Shape::List(item), Ownership::Map(keys)) => Granularity::Keyed(item, keys),
            // Maps that the schema does not know are granular.
            (Shape::Any | Shape::Fields, _) if value.is_object() => {
                Granularity::Map(TypeRef::inner(&ANY))
            }
            _ => Granularity::Leaf,
        }
    }

    /// Returns the difference of two objects, without the fields that the server maintains.
    pub(super) fn compare(self, id: TypeId, old: &Value, new: &Value) -> Difference {
        let empty = Map::new();
        let type_ = self.schema.get(id);
        let (old, new) = (old.as_object().unwrap_or(&empty), new.as_object().unwrap_or(&empty));
        let mut comparison = Comparison::default();
        for (name, old, new) in zip(old, new) {
            if UNOWNED.contains(&name) {
                continue;
            }
            let Some(field) = type_.field(name) else { continue };
            match (name, old, new) {
                ("metadata", Some(Value::Object(old)), Some(Value::Object(new))) => {
                    let mut below = Comparison::default();
                    if let Shape::Struct(id) = field.shape {
                        let metadata = self.schema.get(id);
                        for (name, old, new) in zip(old, new) {
                            if !UNOWNED_METADATA.contains(&name) {
                                self.compare_field(metadata, name, old, new, &mut below);
                            }
                        }
                    }
                    comparison.put(name, below);
                }
                _ => self.compare_field(type_, name, old, new, &mut comparison),
            }
        }
        Difference { changed: FieldSet(comparison.changed), removed: FieldSet(comparison.removed) }
    }

    /// Returns the difference of two structures, with all fields.
    pub(super) fn compare_all(self, id: TypeId, old: &Value, new: &Value) -> Difference {
        let shape = Shape::Struct(id);
        let walker = Walker { schema: self.schema };
        let (changed, removed) = walker.differ(TypeRef::inner(&shape), Some(old), Some(new));
        let set = |subtree: Subtree| FieldSet(subtree.unwrap_or_default());
        Difference { changed: set(changed), removed: set(removed) }
    }

    fn compare_field(
        self,
        type_: &'s Type,
        name: &str,
        old: Option<&Value>,
        new: Option<&Value>,
        to: &mut Comparison,
    ) {
        if let Some(field) = type_.field(name) {
            let (changed, removed) = self.differ(TypeRef::field(field), old, new);
            to.insert(|| format!("f:{name}"), changed, removed);
        }
    }

    /// Returns what changed and what was removed at and below a node.
    fn differ(
        self,
        type_ref: TypeRef<'s>,
        old: Option<&Value>,
        new: Option<&Value>,
    ) -> (Subtree, Subtree) {
        let (old, new) = match (old, new) {
            (None, None) => return (None, None),
            (None, Some(new)) => return (Some(self.whole(type_ref, new)), None),
            (Some(old), None) => return (None, Some(self.whole(type_ref, old))),
            (Some(old), Some(new)) if old == new => return (None, None),
            (Some(old), Some(new)) => (old, new),
        };
        if is_bare(old) && is_bare(new) {
            // Empty against null: the value itself has changed.
            return (Some(Node::new()), None);
        }
        let present = if is_bare(new) { old } else { new };
        let granularity = self.granularity(type_ref, present);
        let fits = match granularity {
            Granularity::Leaf => false,
            Granularity::Struct(_) | Granularity::Map(_) => is_map(old) && is_map(new),
            Granularity::Set | Granularity::Keyed(..) => is_list(old) && is_list(new),
        };
        if !fits {
            return (Some(Node::new()), None);
        }
        let empty = Map::new();
        let mut comparison = Comparison::default();
        match granularity {
            Granularity::Leaf => {}
            Granularity::Struct(type_) => {
                let maps = (old.as_object().unwrap_or(&empty), new.as_object().unwrap_or(&empty));
                for (name, old, new) in zip(maps.0, maps.1) {
                    self.compare_field(type_, name, old, new, &mut comparison);
                }
            }
            Granularity::Map(inner) => {
                let maps = (old.as_object().unwrap_or(&empty), new.as_object().unwrap_or(&empty));
                for (name, old, new) in zip(maps.0, maps.1) {
                    let (changed, removed) = self.differ(inner, old, new);
                    comparison.insert(|| format!("f:{name}"), changed, removed);
                }
            }
            Granularity::Set | Granularity::Keyed(..) => {
                self.differ_items(granularity, old, new, &mut comparison)
            }
        }
        comparison.into_subtrees()
    }

    fn differ_items(
        self,
        granularity: Granularity<'s>,
        old: &Value,
        new: &Value,
        comparison: &mut Comparison,
    ) {
        let mut items: BTreeMap<String, (Vec<&Value>, Vec<&Value>)> = BTreeMap::new();
        for item in old.as_array().into_iter().flatten() {
            if let Some(element) = self.element(granularity, item) {
                items.entry(element).or_default().0.push(item);
            }
        }
        for item in new.as_array().into_iter().flatten() {
            if let Some(element) = self.element(granularity, item) {
                items.entry(element).or_default().1.push(item);
            }
        }
        let type_ref = item_type(granularity);
        for (element, (old, new)) in items {
            let (changed, removed) = match (old.as_slice(), new.as_slice()) {
                (old @ ([] | [_]), new @ ([] | [_])) => {
                    self.differ(type_ref, old.first().copied(), new.first().copied())
                }
                // Items with the same key are owned as one.
                ([_, _, ..], [_, _, ..]) => ((old != new).then(Node::new), None),
                ([_, _, ..], new) => {
                    let (changed, _) = self.differ(type_ref, None, new.first().copied());
                    (changed, Some(Node::new()))
                }
                (old, _) => {
                    let (_, removed) = self.differ(type_ref, old.first().copied(), None);
                    (Some(Node::new()), removed)
                }
            };
            comparison.insert(|| element, changed, removed);
        }
    }

    /// Returns everything at and below a value that was added or removed as a whole.
    fn whole(self, type_ref: TypeRef<'s>, value: &Value) -> Node {
        let mut node = Node::new();
        match (self.granularity(type_ref, value), value) {
            (Granularity::Struct(type_), Value::Object(map)) => {
                for (name, value) in map {
                    if let Some(field) = type_.field(name) {
                        let below = self.whole(TypeRef::field(field), value);
                        node.insert(prefixed("f:", name), Value::Object(below));
                    }
                }
            }
            (Granularity::Map(inner), Value::Object(map)) => {
                for (name, value) in map {
                    let below = self.whole(inner, value);
                    node.insert(prefixed("f:", name), Value::Object(below));
                }
            }
            (granularity @ (Granularity::Set | Granularity::Keyed(..)), Value::Array(items)) => {
                for item in items {
                    let Some(element) = self.element(granularity, item) else { continue };
                    let again = node.contains_key(&element);
                    let below =
                        if again { Node::new() } else { self.whole(item_type(granularity), item) };
                    node.insert(element, Value::Object(below));
                }
            }
            _ => {}
        }
        make_member(&mut node);
        node
    }

    /// Returns the fields that an applied object claims, without those that the server maintains.
    pub(super) fn claimed(self, id: TypeId, object: &Value) -> FieldSet {
        let mut set = self.claimed_with_bookkeeping(id, object);
        for name in UNOWNED {
            set.0.remove(&prefixed("f:", name));
        }
        let mut unowned = Node::new();
        let mut metadata = Node::new();
        for name in UNOWNED_METADATA {
            metadata.insert(prefixed("f:", name), Value::Object(Node::new()));
        }
        make_member(&mut metadata);
        unowned.insert("f:metadata".to_owned(), Value::Object(metadata));
        set.subtract(&FieldSet(unowned));
        set
    }

    pub(super) fn claimed_with_bookkeeping(self, id: TypeId, object: &Value) -> FieldSet {
        let shape = Shape::Struct(id);
        let walker = Walker { schema: self.schema };
        FieldSet(walker.claims(TypeRef::inner(&shape), object).unwrap_or_default())
    }

    fn claims(self, type_ref: TypeRef<'s>, value: &Value) -> Subtree {
        let granularity = self.granularity(type_ref, value);
        let mut node = Node::new();
        match (granularity, value) {
            (Granularity::Leaf, _) => return Some(node),
            (_, Value::Null) => return None,
            (Granularity::Struct(type_), Value::Object(map)) => {
                for (name, value) in map {
                    let Some(field) = type_.field(name) else { continue };
                    let below = self.claims(TypeRef::field(field), value);
                    if let Some(below) = below.or(is_empty_map(value).then(Node::new)) {
                        node.insert(prefixed("f:", name), Value::Object(below));
                    }
                }
            }
            (Granularity::Map(inner), Value::Object(map)) => {
                for (name, value) in map {
                    let mut below = self.claims(inner, value).unwrap_or_default();
                    make_member(&mut below);
                    node.insert(prefixed("f:", name), Value::Object(below));
                }
            }
            (Granularity::Set | Granularity::Keyed(..), Value::Array(items)) => {
                let mut claims: BTreeMap<String, Node> = BTreeMap::new();
                for item in items {
                    let Some(element) = self.element(granularity, item) else { continue };
                    match claims.entry(element) {
                        Entry::Occupied(mut twice) => twice.get_mut().clear(),
                        Entry::Vacant(first) => {
                            let mut below =
                                self.claims(item_type(granularity), item).unwrap_or_default();
                            make_member(&mut below);
                            first.insert(below);
                        }
                    }
                }
                node.extend(claims.into_iter().map(|(e, below)| (e, Value::Object(below))));
            }
            _ => return Some(node),
        }
        (!node.is_empty()).then_some(node)
    }

    /// Returns the path element of a list's item; `None` if the item is malformed.
    pub(super) fn element(self, granularity: Granularity<'s>, item: &Value) -> Option<String> {
        self.try_element(granularity, item).ok()
    }

    /// Returns the path element of a list's item, or what is wrong with the item.
    pub(super) fn try_element(
        self,
        granularity: Granularity<'s>,
        item: &Value,
    ) -> Result<String, String> {
        match granularity {
            Granularity::Keyed(shape, keys) => self.keyed(shape, keys, item),
            _ => match item {
                Value::Object(_) => {
                    Err("associative list without keys has an element that's a map type".into())
                }
                Value::Array(_) => {
                    Err("not supported: associative list with lists as elements".into())
                }
                Value::Null => {
                    Err("associative list without keys has an element that's an explicit null"
                        .into())
                }
                scalar => {
                    let mut element = String::from("v:");
                    write_json(&mut element, scalar);
                    Ok(element)
                }
            },
        }
    }

    fn keyed(self, shape: &Shape, keys: &[String], item: &Value) -> Result<String, String> {
        let item = match item {
            Value::Object(item) => item,
            Value::Null => {
                return Err("associative list with keys may not have a null element".into());
            }
            _ => return Err("associative list with keys may not have non-map elements".into()),
        };
        let mut element = String::with_capacity(32);
        element.push_str("k:{");
        let mut write = |name: &String| {
            if element.len() > 3 {
                element.push(',');
            }
            write_text(&mut element, name);
            element.push(':');
            match item.get(name) {
                Some(value) => write_json(&mut element, value),
                None => write_json(&mut element, &self.key_default(shape, name)?),
            }
            Ok::<(), String>(())
        };
        if keys.is_sorted() {
            keys.iter().try_for_each(&mut write)?;
        } else {
            let mut sorted: Vec<&String> = keys.iter().collect();
            sorted.sort();
            sorted.into_iter().try_for_each(&mut write)?;
        }
        element.push('}');
        Ok(element)
    }

    /// Returns the value of a key that an item leaves out: its default, or zero where OpenAPI
    /// implies that.
    fn key_default(self, shape: &Shape, name: &str) -> Result<Value, String> {
        let field = match shape {
            Shape::Struct(id) => self.schema.get(*id).field(name),
            _ => None,
        };
        let implied = |field: &Field| match (field.presence, &field.shape) {
            (Presence::Always, Shape::String) => Some(Value::from("")),
            (Presence::Always, Shape::Int32 | Shape::Int64) => Some(Value::from(0)),
            (Presence::Always, Shape::Bool) => Some(Value::from(false)),
            _ => None,
        };
        let default = field.and_then(|field| field.default.clone().or_else(|| implied(field)));
        default.ok_or_else(|| {
            format!(
                "associative list with keys has an element that omits key field {name:?} \
                 (and doesn't have default value)"
            )
        })
    }

    /// Makes members of the named fields on the path to a set's members. Only members are removed,
    /// and a structure is otherwise not one.
    pub(super) fn with_named_fields(self, id: TypeId, mut set: FieldSet) -> FieldSet {
        let shape = Shape::Struct(id);
        let walker = Walker { schema: self.schema };
        walker.name_fields(&shape, &mut set.0);
        set
    }

    fn name_fields(self, shape: &Shape, node: &mut Node) {
        for (element, below) in node.iter_mut() {
            let Value::Object(below) = below else { continue };
            if below.is_empty() {
                continue;
            }
            match (element.strip_prefix("f:"), shape) {
                (Some(name), Shape::Struct(id)) => {
                    if let Some(field) = self.schema.get(*id).field(name) {
                        self.name_fields(&field.shape, below);
                        make_member(below);
                    }
                }
                (Some(_), Shape::Map(value)) => self.name_fields(value, below),
                (None, Shape::List(item)) => self.name_fields(item, below),
                _ => {}
            }
        }
    }
}

pub(super) fn item_type(granularity: Granularity<'_>) -> TypeRef<'_> {
    match granularity {
        Granularity::Keyed(item, _) => TypeRef::inner(item),
        _ => TypeRef::inner(&ANY),
    }
}

/// Null, or a map or list with nothing in it.
pub(super) fn is_bare(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(items) => items.is_empty(),
        Value::Object(map) => map.is_empty(),
        _ => false,
    }
}

fn is_empty_map(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Object(map) => map.is_empty(),
        _ => false,
    }
}

fn is_map(value: &Value) -> bool {
    matches!(value, Value::Object(_) | Value::Null)
}

fn is_list(value: &Value) -> bool {
    matches!(value, Value::Array(_) | Value::Null)
}

/// A difference while it is being computed.
#[derive(Default)]
struct Comparison {
    changed: Node,
    removed: Node,
}

impl Comparison {
    fn insert(&mut self, element: impl FnOnce() -> String, changed: Subtree, removed: Subtree) {
        match (changed, removed) {
            (None, None) => {}
            (Some(changed), None) => {
                self.changed.insert(element(), Value::Object(changed));
            }
            (None, Some(removed)) => {
                self.removed.insert(element(), Value::Object(removed));
            }
            (Some(changed), Some(removed)) => {
                let element = element();
                self.changed.insert(element.clone(), Value::Object(changed));
                self.removed.insert(element, Value::Object(removed));
            }
        }
    }

    fn put(&mut self, name: &str, below: Comparison) {
        let (changed, removed) = below.into_subtrees();
        self.insert(|| prefixed("f:", name), changed, removed);
    }

    fn into_subtrees(self) -> (Subtree, Subtree) {
        let subtree = |node: Node| (!node.is_empty()).then_some(node);
        (subtree(self.changed), subtree(self.removed))
    }
}

pub(super) fn prefixed(prefix: &str, name: &str) -> String {
    let mut element = String::with_capacity(prefix.len() + name.len());
    element.push_str(prefix);
    element.push_str(name);
    element
}

/// Iterates over the keys of two maps in order, with the value of each map.
pub(super) fn zip<'v>(
    one: &'v Map<String, Value>,
    other: &'v Map<String, Value>,
) -> impl Iterator<Item = (&'v str, Option<&'v Value>, Option<&'v Value>)> {
    let (mut one, mut other) = (one.iter().peekable(), other.iter().peekable());
    std::iter::from_fn(move || {
        let order = match (one.peek(), other.peek()) {
            (None, None) => return None,
            (Some(_), None) => std::cmp::Ordering::Less,
            (None, Some(_)) => std::cmp::Ordering::Greater,
            (Some((one, _)), Some((other, _))) => one.cmp(other),
        };
        let left = if order.is_le() { one.next() } else { None };
        let right = if order.is_ge() { other.next() } else { None };
        let key = left.or(right).map(|(key, _)| key.as_str())?;
        Some((key, left.map(|(_, value)| value), right.map(|(_, value)| value)))
    })
}

fn write_json(text: &mut String, value: &Value) {
    match value {
        Value::String(string) => write_text(text, string),
        other => {
            let _ = write!(text, "{other}");
        }
    }
}

/// Writes a JSON string; strings rarely need escapes.
fn write_text(text: &mut String, string: &str) {
    let plain = |byte: u8| byte >= 0x20 && byte != b'"' && byte != b'\\';
    if string.bytes().all(plain) {
        text.push('"');
        text.push_str(string);
        text.push('"');
    } else {
        let _ = write!(text, "{}", Value::from(string));
    }
}
