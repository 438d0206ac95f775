//! Merges an applied object into the live one, and removes a set of fields from an object.
//!
//! Merging keeps what only the live object has. Lists with keys and sets are merged item by item in
//! the applied order; other items of the live object keep their position if the order allows it.

use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value};

use super::set::{FieldSet, Node, is_member};
use super::walk::{Granularity, TypeRef, Walker, is_bare, item_type, prefixed, zip};
use crate::schema::{Shape, TypeId};

impl<'s> Walker<'s> {
    /// `applied` over `live`.
    pub(super) fn merged(self, id: TypeId, live: &Value, applied: &Value) -> Value {
        let shape = Shape::Struct(id);
        let walker = Walker { schema: self.schema };
        walker.merge(TypeRef::inner(&shape), Some(live), Some(applied)).unwrap_or_default()
    }

    fn merge(
        self,
        type_ref: TypeRef<'s>,
        live: Option<&Value>,
        applied: Option<&Value>,
    ) -> Option<Value> {
        let (live, applied) = match (live, applied) {
            (Some(live), Some(applied)) => (live, applied),
            (live, applied) => return applied.or(live).cloned(),
        };
        if is_bare(live) && is_bare(applied) {
            return Some(applied.clone());
        }
        let present = if is_bare(applied) { live } else { applied };
        let granularity = self.granularity(type_ref, present);
        match (granularity, live, applied) {
            (Granularity::Leaf, ..) => Some(applied.clone()),
            (_, live, Value::Null) => Some(live.clone()),
            (_, Value::Null, applied) => Some(applied.clone()),
            (
                Granularity::Struct(_) | Granularity::Map(_),
                Value::Object(live),
                Value::Object(applied),
            ) => {
                let merged = zip(live, applied).filter_map(|(name, live, applied)| {
                    let inner = match granularity {
                        Granularity::Struct(type_) => TypeRef::field(type_.field(name)?),
                        Granularity::Map(inner) => inner,
                        _ => return None,
                    };
                    Some((name.to_owned(), self.merge(inner, live, applied)?))
                });
                Some(Value::Object(merged.collect()))
            }
            (
                Granularity::Set | Granularity::Keyed(..),
                Value::Array(live),
                Value::Array(applied),
            ) => Some(Value::Array(self.merge_items(granularity, live, applied))),
            (_, _, applied) => Some(applied.clone()),
        }
    }

    fn merge_items(
        self,
        granularity: Granularity<'s>,
        live: &[Value],
        applied: &[Value],
    ) -> Vec<Value> {
        let with_elements = |items: &[Value]| -> Vec<String> {
            items.iter().map(|item| self.element(granularity, item).unwrap_or_default()).collect()
        };
        let (live_elements, applied_elements) = (with_elements(live), with_elements(applied));
        // A live item that occurs more than once has no counterpart to merge with.
        let mut live_at: HashMap<&str, Option<usize>> = HashMap::with_capacity(live.len());
        for (at, element) in live_elements.iter().enumerate() {
            live_at.entry(element).and_modify(|first| *first = None).or_insert(Some(at));
        }
        let in_applied: HashSet<&str> = applied_elements.iter().map(String::as_str).collect();
        let mut shared =
            applied_elements.iter().map(String::as_str).filter(|e| live_at.contains_key(e));
        let mut next_shared = shared.next();
        let mut done: HashSet<&str> = HashSet::with_capacity(applied.len());
        let mut merged = Vec::with_capacity(live.len().max(applied.len()));
        let with_applied = |element: &str, at: usize| {
            let live = live_at.get(element).copied().flatten().and_then(|at| live.get(at));
            self.merge(item_type(granularity), live, applied.get(at))
        };
        let (mut left, mut right) = (0, 0);
        while left < live_elements.len() || right < applied_elements.len() {
            if let (Some(one), Some(other)) = (live_elements.get(left), applied_elements.get(right))
            {
                if one == other {
                    done.insert(one);
                    merged.extend(with_applied(other, right));
                    left += 1;
                    right += 1;
                    next_shared = shared.next();
                    continue;
                }
                let wanted_later = next_shared.is_some_and(|next| next != one);
                if in_applied.contains(one.as_str()) && wanted_later {
                    left += 1;
                    continue;
                }
            }
            if let Some(one) = live_elements.get(left) {
                if !in_applied.contains(one.as_str()) {
                    merged.extend(live.get(left).cloned());
                    left += 1;
                    continue;
                }
                if done.contains(one.as_str()) {
                    left += 1;
                }
            }
            if let Some(other) = applied_elements.get(right) {
                done.insert(other);
                merged.extend(with_applied(other, right));
                right += 1;
                if next_shared == Some(other) {
                    next_shared = shared.next();
                }
            }
        }
        merged
    }

    /// Returns the object without the members of a set. What becomes empty is set to null.
    pub(super) fn without(self, id: TypeId, object: &Value, set: &FieldSet) -> Value {
        let shape = Shape::Struct(id);
        let walker = Walker { schema: self.schema };
        walker.remove(TypeRef::inner(&shape), object, &set.0)
    }

    fn remove(self, type_ref: TypeRef<'s>, value: &Value, set: &Node) -> Value {
        let granularity = self.granularity(type_ref, value);
        match (granularity, value) {
            (Granularity::Struct(_) | Granularity::Map(_), Value::Object(map)) => {
                let mut kept = Map::new();
                for (name, value) in map {
                    let inner = match granularity {
                        Granularity::Struct(type_) => type_.field(name).map(TypeRef::field),
                        Granularity::Map(inner) => Some(inner),
                        _ => None,
                    };
                    match (set.get(&prefixed("f:", name)), inner) {
                        (Some(Value::Object(below)), _) if is_member(below) => {}
                        (Some(Value::Object(below)), Some(inner)) => {
                            kept.insert(name.clone(), self.remove(inner, value, below));
                        }
                        _ => {
                            kept.insert(name.clone(), value.clone());
                        }
                    }
                }
                if kept.is_empty() { Value::Null } else { Value::Object(kept) }
            }
            (Granularity::Set | Granularity::Keyed(..), Value::Array(items)) => {
                let mut kept = Vec::with_capacity(items.len());
                for item in items {
                    let element = self.element(granularity, item).unwrap_or_default();
                    match set.get(&element) {
                        Some(Value::Object(below)) if is_member(below) => {}
                        Some(Value::Object(below)) => {
                            kept.push(self.remove(item_type(granularity), item, below));
                        }
                        _ => kept.push(item.clone()),
                    }
                }
                if kept.is_empty() { Value::Null } else { Value::Array(kept) }
            }
            (Granularity::Leaf, Value::Object(_) | Value::Array(_)) => Value::Null,
            (_, value) => value.clone(),
        }
    }
}
