//! Strategic merge patch: a merge patch that merges lists by the keys of the schema, with the
//! directives `$patch`, `$retainKeys`, `$setElementOrder/…` and `$deleteFromPrimitiveList/…`.
//!
//! Errors for which upstream returns 500 (no merge key, an unknown directive, an order that does
//! not match) are malformed patches here.

use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value};

use super::order::{Positions, arrange, identity};
use super::{PatchError, Patched, json_name, text};
use crate::go;
use crate::schema::{Schema, Shape, Strategy, TypeId};

const DIRECTIVE: &str = "$patch";
const RETAIN_KEYS: &str = "$retainKeys";
const SET_ORDER: &str = "$setElementOrder";
const DELETE_FROM: &str = "$deleteFromPrimitiveList";

/// Merges a patch into an object of a type.
pub fn strategic(
    schema: &Schema,
    id: TypeId,
    object: Value,
    patch: &[u8],
) -> Result<Patched, PatchError> {
    let read = text::read(patch)?;
    let patch = match read.value {
        Value::Object(patch) => patch,
        Value::Null => Map::new(),
        other => {
            let found = json_name(&other);
            return Err(malformed(format!(
                "json: cannot unmarshal {found} into Go value of type map[string]interface {{}}"
            )));
        }
    };
    let mut object = match object {
        Value::Object(object) => object,
        _ => Map::new(),
    };
    Merger { schema }.merge_maps(&mut object, patch, MapType::Struct(id))?;
    Ok(Patched { value: Value::Object(object), strict: read.strict })
}

fn malformed(text: impl Into<String>) -> PatchError {
    PatchError::Malformed(text.into())
}

/// The type of a map in the schema.
#[derive(Clone, Copy)]
enum MapType<'s> {
    Struct(TypeId),
    /// A map with values of a shape.
    Map(&'s Shape),
    /// A map whose contents the schema does not describe.
    Opaque,
}

impl MapType<'_> {
    fn new(shape: &Shape) -> MapType<'_> {
        match shape {
            Shape::Struct(id) => MapType::Struct(*id),
            Shape::Map(value) => MapType::Map(value),
            _ => MapType::Opaque,
        }
    }
}

static UNMARKED: Strategy =
    Strategy { merge: false, merge_key: None, retain_keys: false, replace: false };

struct Merger<'s> {
    schema: &'s Schema,
}

impl<'s> Merger<'s> {
    fn lookup(
        &self,
        map_type: MapType<'s>,
        key: &str,
    ) -> Result<(&'s Shape, &'s Strategy), PatchError> {
        let unknown = |name: &str| {
            malformed(format!(
                "unable to find api field in struct {name} for the json field {key:?}"
            ))
        };
        match map_type {
            MapType::Map(value) => Ok((value, &UNMARKED)),
            MapType::Opaque => Err(unknown("RawExtension")),
            MapType::Struct(id) => {
                let type_ = self.schema.get(id);
                let field = type_.field(key).ok_or_else(|| unknown(&type_.name))?;
                Ok((&field.shape, &field.strategy))
            }
        }
    }

    fn lookup_list(
        &self,
        map_type: MapType<'s>,
        key: &str,
    ) -> Result<(&'s Shape, &'s Strategy), PatchError> {
        match self.lookup(map_type, key)? {
            (Shape::List(item), strategy) => Ok((item, strategy)),
            _ => Err(malformed("expected slice or array type, but got: struct")),
        }
    }

    fn merge_maps(
        &self,
        original: &mut Map<String, Value>,
        mut patch: Map<String, Value>,
        map_type: MapType<'s>,
    ) -> Result<(), PatchError> {
        if let Some(directive) = patch.get(DIRECTIVE) {
            match directive.as_str() {
                Some("replace") => {
                    patch.remove(DIRECTIVE);
                    *original = patch;
                }
                Some("delete") => original.clear(),
                _ => return Err(unknown_directive(directive, &patch)),
            }
            return Ok(());
        }
        retain_keys(original, &mut patch)?;
        self.set_orders(original, &mut patch, map_type)?;
        for (key, mut value) in patch {
            let (key, deletes) = match target(&key, DELETE_FROM) {
                None => (key, false),
                Some(Some(list)) => (list.to_owned(), true),
                Some(None) => return Err(malformed("invalid patch format of primitive list")),
            };
            if value.is_null() {
                original.remove(&key);
                continue;
            }
            match (original.get_mut(&key), value) {
                (Some(Value::Object(current)), Value::Object(value)) => {
                    let (shape, strategy) = self.lookup(map_type, &key)?;
                    if strategy.replace {
                        *current = value;
                    } else {
                        self.merge_maps(current, value, MapType::new(shape))?;
                    }
                }
                (Some(Value::Array(current)), Value::Array(value)) => {
                    let (item, strategy) = self.lookup_list(map_type, &key)?;
                    let items = std::mem::take(current);
                    *current = self.merge_lists(items, value, item, strategy, deletes)?;
                }
                _ if deletes => {}
                (_, taken) => {
                    value = taken;
                    discard_nulls(&mut value);
                    match without_directives(value) {
                        Some(value) => original.insert(key, value),
                        None => original.remove(&key),
                    };
                }
            }
        }
        Ok(())
    }

    /// Merges every list for which the patch gives an order, and removes list and order from the
    /// patch.
    fn set_orders(
        &self,
        original: &mut Map<String, Value>,
        patch: &mut Map<String, Value>,
        map_type: MapType<'s>,
    ) -> Result<(), PatchError> {
        let directives: Vec<String> =
            patch.keys().filter(|key| key.starts_with(SET_ORDER)).cloned().collect();
        for directive in directives {
            let Some(order) = patch.remove(&directive) else { continue };
            let order = list_of(order)?;
            let Some(Some(key)) = target(&directive, SET_ORDER) else {
                return Err(malformed("invalid patch format of setElementOrder list"));
            };
            let live = original.remove(key).map(list_of).transpose()?;
            let patched = patch.remove(key).map(list_of).transpose()?;
            let (item, strategy) = self.lookup_list(map_type, key)?;
            let merge_key = strategy.merge_key.as_deref();
            if let Some(patched) = &patched {
                check_order(patched, &order, merge_key)?;
            }
            let positions = Positions::new(live.as_deref().unwrap_or_default(), merge_key);
            let kind = element_kind(&[
                live.as_deref().unwrap_or_default(),
                patched.as_deref().unwrap_or_default(),
            ]);
            let merged = match (live, patched) {
                (Some(live), None) => live,
                (None, Some(patched)) => {
                    patched.into_iter().filter_map(without_directives).collect()
                }
                (Some(live), Some(patched)) => {
                    self.merge_lists(live, patched, item, strategy, false)?
                }
                (None, None) => continue,
            };
            if kind? == ElementKind::Map {
                // Upstream shows a missing key as an empty one.
                check_keys(&merged, merge_key.unwrap_or_default())?;
                check_keys(&order, merge_key.unwrap_or_default())?;
            }
            let arranged =
                arrange(merged, &Positions::new(&order, merge_key), &positions, merge_key);
            original.insert(key.to_owned(), Value::Array(arranged));
        }
        Ok(())
    }

    fn merge_lists(
        &self,
        original: Vec<Value>,
        patch: Vec<Value>,
        item: &'s Shape,
        strategy: &Strategy,
        deletes: bool,
    ) -> Result<Vec<Value>, PatchError> {
        if !strategy.merge {
            return Ok(patch);
        }
        if original.is_empty() && patch.is_empty() {
            return Ok(original);
        }
        if element_kind(&[&original, &patch])? != ElementKind::Map {
            return Ok(merge_scalars(original, patch, deletes));
        }
        let Some(merge_key) = strategy.merge_key.as_deref() else {
            return Err(malformed("cannot merge lists without merge key for struct"));
        };
        let (original, patch) = take_special(original, patch, merge_key)?;
        let live = Positions::new(&original, Some(merge_key));
        let wanted = Positions::new(&patch, Some(merge_key));
        let mut positions: HashMap<String, usize> = HashMap::with_capacity(original.len());
        for (position, item) in original.iter().enumerate() {
            if item.get(merge_key).is_some() {
                positions.entry(identity(item, Some(merge_key))).or_insert(position);
            }
        }
        let mut merged = original;
        for value in patch {
            if value.get(merge_key).is_none() {
                return Err(no_merge_key(&value, merge_key));
            }
            let identity = identity(&value, Some(merge_key));
            let position = positions.get(&identity).copied();
            match (position.and_then(|position| merged.get_mut(position)), value) {
                (Some(Value::Object(current)), Value::Object(value)) => {
                    self.merge_maps(current, value, MapType::new(item))?;
                }
                (_, value) => {
                    positions.insert(identity, merged.len());
                    merged.push(value);
                }
            }
        }
        check_keys(&merged, merge_key)?;
        Ok(arrange(merged, &wanted, &live, Some(merge_key)))
    }
}

/// Returns the key that a directive is about: `None` if it is another key, `Some(None)` if it is
/// malformed.
fn target<'k>(key: &'k str, directive: &str) -> Option<Option<&'k str>> {
    let rest = key.strip_prefix(directive)?;
    Some(rest.strip_prefix('/'))
}

/// Removes the keys that the patch does not list in `$retainKeys`.
fn retain_keys(
    original: &mut Map<String, Value>,
    patch: &mut Map<String, Value>,
) -> Result<(), PatchError> {
    let Some(kept) = patch.remove(RETAIN_KEYS) else { return Ok(()) };
    let bad = || malformed("invalid patch format of retainKeys");
    let Value::Array(kept) = kept else { return Err(bad()) };
    let kept: HashSet<&str> = kept.iter().filter_map(Value::as_str).collect();
    let listed = |(key, value): (&String, &Value)| {
        value.is_null()
            || key.starts_with(DELETE_FROM)
            || key.starts_with(SET_ORDER)
            || kept.contains(key.as_str())
    };
    if !patch.iter().all(listed) {
        return Err(bad());
    }
    original.retain(|key, _| kept.contains(key.as_str()));
    Ok(())
}

fn merge_scalars(original: Vec<Value>, patch: Vec<Value>, deletes: bool) -> Vec<Value> {
    let wanted = Positions::new(&patch, None);
    if deletes {
        let kept =
            original.into_iter().filter(|item| wanted.position(&identity(item, None)).is_none());
        return kept.collect();
    }
    let live = Positions::new(&original, None);
    let mut seen = HashSet::new();
    let both = original.into_iter().chain(patch);
    let merged = both.filter(|item| seen.insert(identity(item, None))).collect();
    arrange(merged, &wanted, &live, None)
}

/// Executes the directives of items; the other items are left to merge.
fn take_special(
    mut original: Vec<Value>,
    patch: Vec<Value>,
    merge_key: &str,
) -> Result<(Vec<Value>, Vec<Value>), PatchError> {
    let mut rest = Vec::with_capacity(patch.len());
    let mut replace = false;
    let mut deleted = HashSet::new();
    for item in patch {
        let Some(directive) = item.get(DIRECTIVE) else {
            rest.push(item);
            continue;
        };
        match directive.as_str() {
            Some("delete") if item.get(merge_key).is_none() => {
                return Err(no_merge_key(&item, merge_key));
            }
            Some("delete") => {
                deleted.insert(identity(&item, Some(merge_key)));
            }
            Some("replace") => replace = true,
            Some("merge") => {
                return Err(malformed("merging lists cannot yet be specified in the patch"));
            }
            _ => {
                let map = item.as_object().cloned().unwrap_or_default();
                return Err(unknown_directive(directive, &map));
            }
        }
    }
    if replace {
        return Ok((rest, Vec::new()));
    }
    if !deleted.is_empty() {
        original.retain(|item| {
            item.get(merge_key).is_none() || !deleted.contains(&identity(item, Some(merge_key)))
        });
    }
    Ok((original, rest))
}

/// Checks that the items of the patch are in the order that it asks for.
fn check_order(
    patch: &[Value],
    order: &[Value],
    merge_key: Option<&str>,
) -> Result<(), PatchError> {
    if order.is_empty() || patch.is_empty() {
        return Ok(());
    }
    if merge_key.is_some() {
        for item in patch {
            if !item.is_object() {
                return Err(wrong_kind("map[string]interface {}", item));
            }
        }
    }
    let is_special = |item: &&Value| item.get(DIRECTIVE).is_some();
    let mut items = patch.iter().filter(|item| !is_special(item)).peekable();
    for wanted in order {
        let Some(item) = items.peek() else { return Ok(()) };
        if let Some(key) = merge_key {
            check_keys(std::slice::from_ref(*item), key)?;
            check_keys(std::slice::from_ref(wanted), key)?;
        }
        if identity(item, merge_key) == identity(wanted, merge_key) {
            items.next();
        }
    }
    match items.next() {
        None => Ok(()),
        Some(_) => Err(malformed(format!(
            "The order in patch list:\n{}\n doesn't match {SET_ORDER} list:\n{}\n",
            go::value(&Value::Array(patch.to_vec())),
            go::value(&Value::Array(order.to_vec())),
        ))),
    }
}

fn check_keys(items: &[Value], merge_key: &str) -> Result<(), PatchError> {
    for item in items {
        match item {
            Value::Object(map) if map.contains_key(merge_key) => {}
            Value::Object(_) => return Err(no_merge_key(item, merge_key)),
            other => return Err(wrong_kind("map[string]interface {}", other)),
        }
    }
    Ok(())
}

fn no_merge_key(item: &Value, merge_key: &str) -> PatchError {
    let item = go::value(item);
    malformed(format!("map: {item} does not contain declared merge key: {merge_key}"))
}

fn unknown_directive(directive: &Value, map: &Map<String, Value>) -> PatchError {
    let map = go::value(&Value::Object(map.clone()));
    malformed(format!("unknown patch type: {} in map: {map}", go::value(directive)))
}

fn wrong_kind(wanted: &str, found: &Value) -> PatchError {
    let found = if found.is_null() { "%!s(<nil>)" } else { go::type_name(found) };
    malformed(format!("expected a {wanted}, but received a {found}"))
}

fn list_of(value: Value) -> Result<Vec<Value>, PatchError> {
    match value {
        Value::Array(items) => Ok(items),
        other => Err(wrong_kind("[]interface {}", &other)),
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ElementKind {
    Null,
    Bool,
    Int,
    Float,
    String,
    List,
    Map,
}

/// Returns the common kind of all items.
fn element_kind(lists: &[&[Value]]) -> Result<ElementKind, PatchError> {
    let mut found = None;
    for item in lists.iter().copied().flatten() {
        let kind = match item {
            Value::Null => ElementKind::Null,
            Value::Bool(_) => ElementKind::Bool,
            Value::Number(number) if number.is_f64() => ElementKind::Float,
            Value::Number(_) => ElementKind::Int,
            Value::String(_) => ElementKind::String,
            Value::Object(_) => ElementKind::Map,
            Value::Array(_) if found.is_none() => {
                let why = "lists of lists are not supported".to_owned();
                return Err(PatchError::DoesNotApply(why));
            }
            Value::Array(_) => ElementKind::List,
        };
        if *found.get_or_insert(kind) != kind {
            let lists = lists.iter().map(|items| Value::Array(items.to_vec())).collect();
            let lists = go::value(&Value::Array(lists));
            return Err(malformed(format!("list element types are not identical: {lists}")));
        }
    }
    found.ok_or_else(|| malformed("no elements in any of the given slices"))
}

fn discard_nulls(value: &mut Value) {
    match value {
        Value::Object(map) => {
            map.retain(|_, value| !value.is_null());
            map.values_mut().for_each(discard_nulls);
        }
        Value::Array(items) => items.iter_mut().for_each(discard_nulls),
        _ => {}
    }
}

/// Returns a new value without directives; `None` if it is only a directive.
fn without_directives(value: Value) -> Option<Value> {
    match value {
        Value::Object(map) if map.contains_key(DIRECTIVE) => None,
        Value::Object(map) => {
            let kept = map.into_iter();
            let kept = kept.filter_map(|(key, value)| Some((key, without_directives(value)?)));
            Some(Value::Object(kept.collect()))
        }
        Value::Array(items) => {
            Some(Value::Array(items.into_iter().filter_map(without_directives).collect()))
        }
        other => Some(other),
    }
}
