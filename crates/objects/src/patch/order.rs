//! The order of a merged list: what the patch names follows the patch, what only the object has
//! stays where it was as far as that goes.

use std::collections::HashMap;

use serde_json::Value;

/// Up to this many items Go sorts by insertion, which shows where the order is not total.
const INSERTION_SORT: usize = 20;

/// Tells the items of a list apart: by the merge key for structures, else by value.
pub(super) fn identity(item: &Value, merge_key: Option<&str>) -> String {
    let of = merge_key.map_or(Some(item), |key| item.get(key));
    of.map(Value::to_string).unwrap_or_default()
}

/// Where each item of a list is.
pub(super) struct Order(HashMap<String, usize>);

impl Order {
    pub(super) fn of(items: &[Value], merge_key: Option<&str>) -> Order {
        let mut places = HashMap::with_capacity(items.len());
        for (place, item) in items.iter().enumerate() {
            places.entry(identity(item, merge_key)).or_insert(place);
        }
        Order(places)
    }

    pub(super) fn place(&self, identity: &str) -> Option<usize> {
        self.0.get(identity).copied()
    }
}

struct Placed {
    item: Value,
    wanted: Option<usize>,
    live: Option<usize>,
}

/// Puts `merged` in order: the items `wanted` has in its order, the others in the order of
/// `live`, the two interleaved by `live`.
pub(super) fn arrange(
    merged: Vec<Value>,
    wanted: &Order,
    live: &Order,
    merge_key: Option<&str>,
) -> Vec<Value> {
    let placed = merged.into_iter().map(|item| {
        let identity = identity(&item, merge_key);
        Placed { item, wanted: wanted.place(&identity), live: live.place(&identity) }
    });
    let (patched, others): (Vec<_>, Vec<_>) = placed.partition(|placed| placed.wanted.is_some());
    let patched = sorted(patched, |placed| placed.wanted);
    let others = sorted(others, |placed| placed.live);

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
        all.extend(next.map(|placed| placed.item));
    }
}

/// By place. Items without one go before whatever they are compared with.
fn sorted(mut items: Vec<Placed>, place: impl Fn(&Placed) -> Option<usize>) -> Vec<Placed> {
    if items.iter().all(|item| place(item).is_some()) || items.len() > INSERTION_SORT {
        items.sort_by_key(&place);
        return items;
    }
    for end in 1..items.len() {
        let mut at = end;
        while at > 0 {
            let before = match (place(&items[at]), place(&items[at - 1])) {
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
