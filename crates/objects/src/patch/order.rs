//! The order of a merged list: items in the patch follow the patch, the others keep their position
//! if the order allows it.

use std::collections::HashMap;

use serde_json::Value;

/// Up to this many items Go uses insertion sort, whose result differs where the order is not total.
const INSERTION_SORT: usize = 20;

/// Identifies an item of a list: by the merge key for structures, else by value.
pub(super) fn identity(item: &Value, merge_key: Option<&str>) -> String {
    let key = merge_key.map_or(Some(item), |key| item.get(key));
    key.map(Value::to_string).unwrap_or_default()
}

/// The position of each item of a list.
pub(super) struct Positions(HashMap<String, usize>);

impl Positions {
    pub(super) fn new(items: &[Value], merge_key: Option<&str>) -> Positions {
        let mut positions = HashMap::with_capacity(items.len());
        for (position, item) in items.iter().enumerate() {
            positions.entry(identity(item, merge_key)).or_insert(position);
        }
        Positions(positions)
    }

    pub(super) fn position(&self, identity: &str) -> Option<usize> {
        self.0.get(identity).copied()
    }
}

struct SortItem {
    value: Value,
    wanted: Option<usize>,
    live: Option<usize>,
}

/// Sorts `merged`: items of `wanted` in its order, the others in the order of `live`, the two
/// interleaved by `live`.
pub(super) fn arrange(
    merged: Vec<Value>,
    wanted: &Positions,
    live: &Positions,
    merge_key: Option<&str>,
) -> Vec<Value> {
    let items = merged.into_iter().map(|value| {
        let identity = identity(&value, merge_key);
        SortItem { value, wanted: wanted.position(&identity), live: live.position(&identity) }
    });
    let (patched, others): (Vec<_>, Vec<_>) = items.partition(|item| item.wanted.is_some());
    let patched = sorted(patched, |item| item.wanted);
    let others = sorted(others, |item| item.live);

    let mut all = Vec::with_capacity(patched.len() + others.len());
    let (mut patched, mut others) = (patched.into_iter().peekable(), others.into_iter().peekable());
    loop {
        let other_first = match (others.peek(), patched.peek()) {
            (Some(other), Some(patch)) => {
                matches!((other.live, patch.live), (Some(other), Some(patch)) if other < patch)
            }
            (Some(_), None) => true,
            (None, Some(_)) => false,
            (None, None) => return all,
        };
        let next = if other_first { others.next() } else { patched.next() };
        all.extend(next.map(|item| item.value));
    }
}

/// Sorts by position. Items without one come before all items that they are compared with.
fn sorted(
    mut items: Vec<SortItem>,
    position: impl Fn(&SortItem) -> Option<usize>,
) -> Vec<SortItem> {
    if items.iter().all(|item| position(item).is_some()) || items.len() > INSERTION_SORT {
        items.sort_by_key(&position);
        return items;
    }
    for end in 1..items.len() {
        let mut at = end;
        while at > 0 {
            let before = match (position(&items[at]), position(&items[at - 1])) {
                (Some(this), Some(other)) => this < other,
                _ => true,
            };
            if !before {
                break;
            }
            items.swap(at, at - 1);
            at -= 1;
        }
    }
    items
}
