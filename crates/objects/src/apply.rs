//! Field ownership: [`track_update`] maintains `metadata.managedFields` for creates, updates and
//! patches, [`apply()`] is server-side apply.
//!
//! Both follow upstream's order. A create, update or patch is tracked once the request's object is
//! decoded and defaulted, before admission changes it and before the rules restore what the request
//! may not write; `reset` has a table of what those rules restore. An applied object is merged into
//! the live one here, and the caller decodes, defaults, admits and validates the result.
//! [`keep_times`] comes last, before the object is compared with the stored one. Nothing here reads
//! a clock.

use serde_json::Value;
use thiserror::Error;

use crate::catalog;
use crate::schema::{Schema, TypeId};
use crate::timestamp::Timestamp;

mod check;
mod entries;
mod last_applied;
mod merge;
mod reset;
pub mod scale;
mod set;
mod walk;

pub use set::{FieldSet, ParseFieldSetError};

use entries::{Entry, Operation};
use walk::{Difference, Walker};

/// The owner of the fields that an object had before it was first applied to.
const BEFORE_FIRST_APPLY: &str = "before-first-apply";

/// The manager of a write, the API version it uses and the subresource it writes through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FieldManager<'a> {
    pub name: &'a str,
    /// Empty for the object itself.
    pub subresource: &'a str,
    /// `v1` or `apps/v1`.
    pub api_version: &'a str,
}

impl FieldManager<'_> {
    /// Returns the name of a manager that gave none: the printable part of the user agent before
    /// the first `/`, in at most 128 bytes.
    #[must_use]
    pub fn name_of_agent(user_agent: &str) -> String {
        let mut name = String::new();
        for character in user_agent.split('/').next().unwrap_or_default().chars() {
            if character.is_control() {
                continue;
            }
            if name.len() + character.len_utf8() > 128 {
                break;
            }
            name.push(character);
        }
        name
    }
}

/// A field of another owner that an apply would change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conflict {
    /// `"hpa" with subresource "scale" using apps/v1`.
    pub manager: String,
    /// `.spec.replicas`.
    pub field: String,
}

impl Conflict {
    /// The message of the cause in the response, whose reason is `FieldManagerConflict`.
    #[must_use]
    pub fn message(&self) -> String {
        format!("conflict with {}", self.manager)
    }
}

/// Why an object could not be applied.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ApplyError {
    #[error("{}", conflict_text(.0))]
    Conflicts(Vec<Conflict>),
    /// The object cannot be applied.
    #[error("{0}")]
    Invalid(String),
}

impl ApplyError {
    /// The HTTP status of the response. Upstream returns 500 for objects that do not match the
    /// schema.
    #[must_use]
    pub fn status(&self) -> u16 {
        match self {
            ApplyError::Conflicts(_) => 409,
            ApplyError::Invalid(_) => 400,
        }
    }

    #[must_use]
    pub fn reason(&self) -> &'static str {
        match self {
            ApplyError::Conflicts(_) => "Conflict",
            ApplyError::Invalid(_) => "BadRequest",
        }
    }
}

/// Sets the `managedFields` of an object that was created, updated or patched. `live` is the stored
/// object, `None` on create.
///
/// The `managedFields` of `new` are the list to continue from; an empty list, or one empty entry,
/// removes all managers. Through a subresource they are ignored.
pub fn track_update(
    schema: &Schema,
    id: TypeId,
    live: Option<&Value>,
    new: &mut Value,
    by: &FieldManager<'_>,
    now: Timestamp,
) {
    let mut entries = entries_to_go_on_from(live, new, by);
    if entries.is_empty() && live.is_some() {
        // The object is not tracked, or the client has just asked for that.
        entries::write(entries, new);
        return;
    }
    let zero;
    let old = match live {
        Some(live) => live,
        None => {
            zero = schema.zero(id);
            &zero
        }
    };
    let kind = schema.get(id).name.as_str();
    let difference = Walker { schema }.compare(id, old, new);
    update(kind, difference, &mut entries, by, now);
    entries::cap(&mut entries);
    entries::write(entries, new);
}

fn entries_to_go_on_from(live: Option<&Value>, new: &Value, by: &FieldManager<'_>) -> Vec<Entry> {
    let given = entries::list(new).filter(|list| !list.is_null());
    let stored = live.and_then(entries::list);
    match given {
        Some(given) if by.subresource.is_empty() && Some(given) != stored => {
            if entries::is_reset(given) {
                return Vec::new();
            }
            match entries::read(Some(given)) {
                Some(entries) if !entries.is_empty() => entries,
                _ => entries::read_own(live),
            }
        }
        _ => entries::read_own(live),
    }
}

/// Gives changed fields to the manager that changed them.
fn update(
    kind: &str,
    difference: Difference,
    entries: &mut Vec<Entry>,
    by: &FieldManager<'_>,
    now: Timestamp,
) {
    let changed = reset::written(kind, by.subresource, difference.changed);
    if !entries.is_empty() {
        let removed = reset::written(kind, by.subresource, difference.removed);
        entries.retain_mut(|entry| {
            if !is_served(kind, &entry.api_version) {
                return false;
            }
            entry.fields.subtract(&changed);
            entry.fields.subtract(&removed);
            !entry.fields.is_empty()
        });
    }
    if changed.is_empty() {
        return;
    }
    let time = Some(now.to_seconds_text());
    match entries.iter_mut().find(|entry| entry.is_of(by, Operation::Update)) {
        Some(entry) => {
            entry.fields.add(&changed);
            entry.time = time;
        }
        None => entries.push(Entry { time, ..Entry::of(by, Operation::Update, changed) }),
    }
}

/// Reports whether a version of a kind still exists; entries of other versions are dropped.
fn is_served(kind: &str, api_version: &str) -> bool {
    // A Scale is not a resource of its own.
    kind == "Scale" || catalog::of_kind(api_version, kind).is_some()
}

/// Merges an applied object, as the client sent it, into the live one. The result has its
/// `managedFields` set and is neither decoded nor defaulted.
///
/// An empty `live` is a create. With `force`, fields change owner instead of being in conflict.
pub fn apply(
    schema: &Schema,
    id: TypeId,
    live: Option<&Value>,
    applied: &Value,
    by: &FieldManager<'_>,
    force: bool,
    now: Timestamp,
) -> Result<Value, ApplyError> {
    let walker = Walker { schema };
    check_applied(walker, id, applied, by)?;
    let mut entries = entries::read_own(live);
    let mut live = live.cloned().unwrap_or_else(|| schema.zero(id));
    entries::write(Vec::new(), &mut live);
    let kind = schema.get(id).name.as_str();
    if entries.is_empty() {
        let before = FieldManager { name: BEFORE_FIRST_APPLY, ..*by };
        let difference = walker.compare(id, &schema.zero(id), &live);
        update(kind, difference, &mut entries, &before, now);
    }

    let task = Task { walker, id, kind, live: &live, applied, by, now };
    let result = task.run(entries.clone(), force);
    let result = match result {
        Err(ApplyError::Conflicts(conflicts)) if by.name == last_applied::KUBECTL => {
            let allowed = last_applied::allowed(walker, id, &live, by);
            match allowed {
                Some(allowed) => task.upgrade(entries, &allowed),
                None => Err(ApplyError::Conflicts(conflicts)),
            }
        }
        result => result,
    };
    let mut merged = result?;
    if by.name == last_applied::KUBECTL {
        last_applied::renew(&mut merged, applied);
    }
    Ok(merged)
}

fn check_applied(
    walker: Walker<'_>,
    id: TypeId,
    applied: &Value,
    by: &FieldManager<'_>,
) -> Result<(), ApplyError> {
    let text = |name: &str| applied.get(name).and_then(Value::as_str).unwrap_or_default();
    let type_ = walker.schema.get(id);
    let (api_version, kind) = (text("apiVersion"), text("kind"));
    let slashed = match api_version.contains('/') {
        true => api_version.to_owned(),
        false => format!("/{api_version}"),
    };
    let type_text = format!("{slashed}, Kind={kind}");
    if Some(kind) != type_.kind.as_deref() || api_version != by.api_version {
        return Err(ApplyError::Invalid(format!("invalid object type: {type_text}")));
    }
    if entries::list(applied).is_some_and(Value::is_array) {
        return Err(ApplyError::Invalid("metadata.managedFields must be nil".to_owned()));
    }
    walker.check(id, applied).map_err(|what| {
        let metadata = applied.get("metadata");
        let name = |name: &str| {
            metadata
                .and_then(|metadata| metadata.get(name))
                .and_then(Value::as_str)
                .unwrap_or_default()
        };
        let (namespace, name) = (name("namespace"), name("name"));
        ApplyError::Invalid(format!(
            "failed to create typed patch object ({namespace}/{name}; {type_text}): {what}"
        ))
    })
}

/// One apply, on a live object without its `managedFields`.
struct Task<'a> {
    walker: Walker<'a>,
    id: TypeId,
    kind: &'a str,
    live: &'a Value,
    applied: &'a Value,
    by: &'a FieldManager<'a>,
    now: Timestamp,
}

impl Task<'_> {
    fn is_own(&self, entry: &Entry) -> bool {
        entry.is_of(self.by, Operation::Apply)
    }

    fn run(&self, mut entries: Vec<Entry>, force: bool) -> Result<Value, ApplyError> {
        let (walker, id) = (self.walker, self.id);
        let merged = walker.merged(id, self.live, self.applied);
        let claimed = walker.claimed(id, self.applied);
        let claimed = reset::written(self.kind, self.by.subresource, claimed);
        let own = entries.iter().position(|entry| self.is_own(entry));
        let (last, last_time) = match own.map(|at| entries.swap_remove(at)) {
            Some(entry) => (entry.fields, entry.time),
            None => (FieldSet::default(), None),
        };
        // Names have no owner, but an applied object has one: its metadata stays.
        let whole = walker.claimed_with_bookkeeping(id, self.applied);
        let whole = reset::written(self.kind, self.by.subresource, whole);
        let merged = self.prune(merged, &whole, &last, &entries);

        let difference = walker.compare(id, self.live, &merged);
        let changed = reset::written(self.kind, self.by.subresource, difference.changed);
        let removed = reset::written(self.kind, self.by.subresource, difference.removed);
        entries.retain(|entry| is_served(self.kind, &entry.api_version));
        if !force {
            let conflicts = conflicts(&entries, &changed);
            if !conflicts.is_empty() {
                return Err(ApplyError::Conflicts(conflicts));
            }
        }
        entries.retain_mut(|entry| {
            entry.fields.subtract(&changed);
            entry.fields.subtract(&removed);
            !entry.fields.is_empty()
        });
        // An apply that changes nothing keeps its time, which may be unset.
        let time = if merged == *self.live { last_time } else { Some(self.now.to_seconds_text()) };
        if !claimed.is_empty() {
            entries.push(Entry { time, ..Entry::of(self.by, Operation::Apply, claimed) });
        }
        let mut merged = merged;
        entries::write(entries, &mut merged);
        Ok(merged)
    }

    /// Applies by force if all conflicts are over fields that client-side apply set and that have
    /// not changed since; otherwise returns the remaining conflicts.
    fn upgrade(&self, entries: Vec<Entry>, allowed: &FieldSet) -> Result<Value, ApplyError> {
        let others = entries.iter().filter(|entry| !self.is_own(entry)).cloned();
        let others = others.map(|mut entry| {
            entry.fields.subtract(allowed);
            entry
        });
        let mut left: Vec<Entry> = others.collect();
        left.extend(entries.iter().filter(|entry| self.is_own(entry)).cloned());
        match self.run(left, false) {
            Err(error) => Err(error),
            Ok(_) => self.run(entries, true),
        }
    }

    /// Removes what the manager applied last time, does not apply now, and no other manager owns.
    fn prune(&self, merged: Value, claimed: &FieldSet, last: &FieldSet, others: &[Entry]) -> Value {
        if last.is_empty() {
            return merged;
        }
        let (walker, id) = (self.walker, self.id);
        let named = |set: FieldSet| walker.with_named_fields(id, set);
        let fields = |object: &Value| named(walker.claimed_with_bookkeeping(id, object));
        let last = named(last.clone());
        let all = fields(&merged);

        let pruned = walker.without(id, &merged, &last);
        let mut owned = claimed.clone();
        for entry in others {
            owned.add(&entry.fields);
        }
        let mut unwanted = all.clone();
        unwanted.subtract(&fields(&pruned));
        unwanted.subtract(&named(owned));
        let pruned = walker.without(id, &merged, &unwanted);

        let mut given_up = all;
        given_up.subtract(&fields(&pruned));
        walker.without(id, &merged, &given_up.intersection(&last))
    }
}

fn conflicts(entries: &[Entry], changed: &FieldSet) -> Vec<Conflict> {
    let mut found: Vec<(String, &Entry, FieldSet)> = entries
        .iter()
        .map(|entry| (entry.identifier(), entry, entry.fields.intersection(changed)))
        .filter(|(_, _, fields)| !fields.is_empty())
        .collect();
    found.sort_by(|(a, ..), (b, ..)| a.cmp(b));
    let conflicts = found.into_iter().flat_map(|(_, entry, fields)| {
        let manager = manager_text(entry);
        let conflict = move |field| Conflict { manager: manager.clone(), field };
        fields.paths().into_iter().map(conflict)
    });
    conflicts.collect()
}

fn manager_text(entry: &Entry) -> String {
    let mut text = crate::go::quoted(&entry.manager);
    if !entry.subresource.is_empty() {
        text.push_str(&format!(" with subresource {:?}", entry.subresource));
    }
    if entry.operation == Operation::Update {
        text.push_str(&format!(" using {}", entry.api_version));
    }
    text
}

fn conflict_text(conflicts: &[Conflict]) -> String {
    if let [one] = conflicts {
        let Conflict { manager, field } = one;
        return format!("Apply failed with 1 conflict: conflict with {manager}: {field}");
    }
    let mut text = format!("Apply failed with {} conflicts: ", conflicts.len());
    let mut current = None;
    for Conflict { manager, field } in conflicts {
        if current != Some(manager) {
            if current.is_some() {
                text.push('\n');
            }
            text.push_str(&format!("conflicts with {manager}:"));
            current = Some(manager);
        }
        text.push_str(&format!("\n- {field}"));
    }
    text
}

/// Restores the times of `managedFields` if nothing else of an object changed, so that a write
/// without effect stays one. Returns true if the object is now equal to the old one, apart from its
/// `resourceVersion`.
pub fn keep_times(live: &Value, new: &mut Value) -> bool {
    let (Some(old), Some(given)) = (entries::list(live), entries::list(new)) else {
        return same_but_for_list(live, new) && entries::list(live) == entries::list(new);
    };
    let (Some(old_list), Some(new_list)) = (old.as_array(), given.as_array()) else { return false };
    let same_entry = |(one, other): (&Value, &Value)| {
        let timeless = |entry: &Value| {
            let mut entry = entry.as_object().cloned().unwrap_or_default();
            entry.remove("time");
            entry
        };
        one == other || timeless(one) == timeless(other)
    };
    let same = old_list.len() == new_list.len()
        && old_list.iter().zip(new_list).all(same_entry)
        && same_but_for_list(live, new);
    if same && old != given {
        let old = old.clone();
        if let Some(metadata) = new.get_mut("metadata").and_then(Value::as_object_mut) {
            metadata.insert("managedFields".to_owned(), old);
        }
    }
    same
}

fn same_but_for_list(one: &Value, other: &Value) -> bool {
    let (Some(one), Some(other)) = (one.as_object(), other.as_object()) else { return false };
    walk::zip(one, other).all(|(name, one, other)| match (name, one, other) {
        ("metadata", Some(Value::Object(one)), Some(Value::Object(other))) => walk::zip(one, other)
            .all(|(name, one, other)| {
                matches!(name, "managedFields" | "resourceVersion") || one == other
            }),
        (_, one, other) => one == other,
    })
}

#[cfg(test)]
mod tests;
