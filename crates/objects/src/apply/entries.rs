//! `metadata.managedFields`: the fields that each manager owns, as [`Entry`] values. Reads, orders,
//! limits and writes them. Ownership is decided in [`super`].

use std::collections::HashMap;
use std::collections::hash_map::Entry::{Occupied, Vacant};

use serde_json::{Map, Value};

use super::FieldManager;
use super::set::FieldSet;

/// The number of managers with entries of their own; the oldest others share one entry.
const MAX_UPDATERS: usize = 10;

/// The manager of the shared entry.
const ANCIENT: &str = "ancient-changes";

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Operation {
    Apply,
    Update,
}

impl Operation {
    fn name(self) -> &'static str {
        match self {
            Operation::Apply => "Apply",
            Operation::Update => "Update",
        }
    }
}

/// The fields that one manager owns by one kind of operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) manager: String,
    pub(super) operation: Operation,
    pub(super) api_version: String,
    /// RFC 3339 in UTC, so that texts sort as times do.
    pub(super) time: Option<String>,
    pub(super) subresource: String,
    pub(super) fields: FieldSet,
}

impl Entry {
    pub(super) fn of(by: &FieldManager<'_>, operation: Operation, fields: FieldSet) -> Entry {
        Entry {
            manager: by.name.to_owned(),
            operation,
            api_version: by.api_version.to_owned(),
            time: None,
            subresource: by.subresource.to_owned(),
            fields,
        }
    }

    /// Reports whether writes by `by` go to this entry. A manager that applies has one entry for
    /// all versions; one that updates has one for each.
    pub(super) fn is_of(&self, by: &FieldManager<'_>, operation: Operation) -> bool {
        self.operation == operation
            && self.manager == by.name
            && self.subresource == by.subresource
            && (operation == Operation::Apply || self.api_version == by.api_version)
    }

    /// Upstream's key of an entry, used for sorting.
    pub(super) fn identifier(&self) -> String {
        let mut text = format!(
            "{{\"manager\":{},\"operation\":{:?}",
            Value::from(self.manager.as_str()),
            self.operation.name()
        );
        if self.operation == Operation::Update {
            text.push_str(&format!(",\"apiVersion\":{}", Value::from(self.api_version.as_str())));
        }
        if !self.subresource.is_empty() {
            text.push_str(&format!(",\"subresource\":{}", Value::from(self.subresource.as_str())));
        }
        text.push('}');
        text
    }

    fn into_value(self) -> Value {
        let mut entry = Map::new();
        let mut put = |name: &str, text: String| {
            if !text.is_empty() {
                entry.insert(name.to_owned(), Value::String(text));
            }
        };
        put("manager", self.manager);
        put("operation", self.operation.name().to_owned());
        put("apiVersion", self.api_version);
        put("time", self.time.unwrap_or_default());
        put("fieldsType", "FieldsV1".to_owned());
        put("subresource", self.subresource);
        entry.insert("fieldsV1".to_owned(), self.fields.into_value());
        Value::Object(entry)
    }
}

/// The list as it is in an object.
pub(super) fn list(object: &Value) -> Option<&Value> {
    object.get("metadata")?.get("managedFields")
}

/// Reports whether a client asks to remove all managers: an empty list, or one empty entry.
pub(super) fn is_reset(list: &Value) -> bool {
    match list.as_array().map(Vec::as_slice) {
        Some([]) => true,
        Some([Value::Object(only)]) => only.is_empty(),
        _ => false,
    }
}

/// Reads entries; `None` if one of them is malformed.
pub(super) fn read(list: Option<&Value>) -> Option<Vec<Entry>> {
    read_with(list, |fields| FieldSet::parse(fields).ok())
}

/// Reads entries that the server wrote.
pub(super) fn read_own(object: Option<&Value>) -> Vec<Entry> {
    let list = object.and_then(list);
    read_with(list, |fields| Some(FieldSet::trusted(fields))).unwrap_or_default()
}

fn read_with(
    list: Option<&Value>,
    fields: impl Fn(&Value) -> Option<FieldSet>,
) -> Option<Vec<Entry>> {
    let mut entries: Vec<Entry> = Vec::new();
    let mut places: HashMap<String, usize> = HashMap::new();
    for value in list.and_then(Value::as_array).into_iter().flatten() {
        let text = |name: &str| value.get(name).and_then(Value::as_str).unwrap_or_default();
        let operation = match text("operation") {
            "Apply" => Operation::Apply,
            "Update" => Operation::Update,
            _ => return None,
        };
        if text("apiVersion").is_empty() || text("fieldsType") != "FieldsV1" {
            return None;
        }
        let entry = Entry {
            manager: text("manager").to_owned(),
            operation,
            api_version: text("apiVersion").to_owned(),
            time: Some(text("time")).filter(|time| !time.is_empty()).map(str::to_owned),
            subresource: text("subresource").to_owned(),
            fields: fields(value.get("fieldsV1").unwrap_or(&Value::Null))?,
        };
        // Of several entries of one manager the last one counts.
        match places.entry(entry.identifier()) {
            Occupied(at) => entries[*at.get()] = entry,
            Vacant(at) => {
                at.insert(entries.len());
                entries.push(entry);
            }
        }
    }
    Some(entries)
}

/// Merges the oldest entries of updates until there are no more than [`MAX_UPDATERS`].
pub(super) fn cap(entries: &mut Vec<Entry>) {
    let updaters = entries.iter().filter(|entry| entry.operation == Operation::Update).count();
    if updaters <= MAX_UPDATERS {
        return;
    }
    let (mut updates, applies): (Vec<Entry>, Vec<Entry>) =
        std::mem::take(entries).into_iter().partition(|e| e.operation == Operation::Update);
    updates.sort_by_cached_key(|entry| (entry.time.clone(), entry.identifier()));

    let mut kept: Vec<Entry> = Vec::with_capacity(updates.len());
    let mut left = updates.len();
    // The first entry of a version becomes its bucket when a second one is merged.
    let mut first_of: HashMap<String, usize> = HashMap::new();
    let mut bucket_of: HashMap<String, usize> = HashMap::new();
    let is_bucket = |entry: &Entry| entry.manager == ANCIENT && entry.subresource.is_empty();
    let mut pending = updates.into_iter();
    while left > MAX_UPDATERS {
        let Some(entry) = pending.next() else { break };
        let version = entry.api_version.clone();
        let Some(first) = first_of.get(&version) else {
            if is_bucket(&entry) {
                bucket_of.insert(version.clone(), kept.len());
            }
            first_of.insert(version, kept.len());
            kept.push(entry);
            continue;
        };
        let bucket = &mut kept[*bucket_of.entry(version).or_insert(*first)];
        ANCIENT.clone_into(&mut bucket.manager);
        bucket.subresource.clear();
        bucket.fields.add(&entry.fields);
        bucket.time = entry.time;
        left -= 1;
    }
    kept.extend(pending);
    kept.extend(applies);
    *entries = kept;
}

/// Writes sorted entries into an object, or removes the list when there are none.
pub(super) fn write(entries: Vec<Entry>, object: &mut Value) {
    let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) else { return };
    match written(entries) {
        Value::Array(list) if list.is_empty() => {
            metadata.remove("managedFields");
        }
        list => {
            metadata.insert("managedFields".to_owned(), list);
        }
    }
}

/// Returns entries as a list: applies first, then by time, then by name.
pub(super) fn written(mut entries: Vec<Entry>) -> Value {
    entries.sort_by(|a, b| {
        let key = |e: &Entry| (e.operation, e.time.clone().unwrap_or_default());
        let names = |e: &Entry| (e.manager.clone(), e.api_version.clone(), e.subresource.clone());
        key(a).cmp(&key(b)).then_with(|| names(a).cmp(&names(b)))
    });
    Value::Array(entries.into_iter().map(Entry::into_value).collect())
}
