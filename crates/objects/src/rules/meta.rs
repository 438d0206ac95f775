//! `metadata`, for every kind: validation on create and on update, and the fields that a request
//! cannot change. Texts and order are upstream's.
//!
//! The name rule and the scope of a kind are arguments ([`MetaRule`]). Names, uids, times and
//! versions are generated elsewhere.

use std::collections::{BTreeSet, HashSet};

use serde_json::{Map, Value};

use super::names::{self, NameRule, label_key_problems, label_value_problems};
use crate::cursor::{Causes, Cursor};

/// The differences between kinds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MetaRule {
    pub name: NameRule,
    pub namespaced: bool,
    /// A finalizer without a domain must be one of Kubernetes' own, as for the kinds of the core
    /// group.
    pub standard_finalizers: bool,
}

/// The limit on the bytes of all annotations.
pub const ANNOTATIONS_LIMIT: usize = 256 << 10;

const MANAGER_LIMIT: usize = 128;
const SUBRESOURCE_LIMIT: usize = 256;
const IMMUTABLE: &str = "field is immutable";
const STANDARD_FINALIZERS: [&str; 3] = ["kubernetes", "orphan", "foregroundDeletion"];

/// Removes fields that only the server sets on a new object.
pub fn prepare_create(object: &mut Value) {
    if let Some(meta) = metadata_mut(object) {
        for field in ["deletionTimestamp", "deletionGracePeriodSeconds", "selfLink"] {
            meta.remove(field);
        }
    }
}

/// Restores fields that an update cannot change: generation, uid, times.
pub fn prepare_update(object: &mut Value, old: &Value) {
    let old = &old["metadata"];
    let Some(meta) = metadata_mut(object) else { return };
    put_back(meta, old, "generation");
    if !meta.contains_key("uid") {
        put_back(meta, old, "uid");
    }
    if old.get("creationTimestamp").is_some_and(|time| !time.is_null()) {
        put_back(meta, old, "creationTimestamp");
    }
    if old.get("deletionTimestamp").is_some() {
        put_back(meta, old, "deletionTimestamp");
    }
    if old.get("deletionGracePeriodSeconds").is_some()
        && !meta.contains_key("deletionGracePeriodSeconds")
    {
        put_back(meta, old, "deletionGracePeriodSeconds");
    }
    meta.remove("selfLink");
}

/// Restores everything but the version: a request to a subresource cannot change metadata.
pub fn keep_old(object: &mut Value, old: &Value) {
    let old = &old["metadata"];
    let Some(meta) = metadata_mut(object) else { return };
    for field in [
        "deletionTimestamp",
        "generation",
        "labels",
        "annotations",
        "finalizers",
        "ownerReferences",
    ] {
        put_back(meta, old, field);
    }
}

/// Restores the labels, for a status that is written without them.
pub(super) fn keep_labels(object: &mut Value, old: &Value) {
    if let Some(meta) = metadata_mut(object) {
        put_back(meta, &old["metadata"], "labels");
    }
}

/// Removes repeated owner references, and returns the uids of the removed ones.
pub fn distinct_owners(object: &mut Value) -> Vec<String> {
    let owners = object.pointer_mut("/metadata/ownerReferences").and_then(Value::as_array_mut);
    let Some(owners) = owners.filter(|owners| owners.len() > 1) else { return Vec::new() };
    let mut seen = HashSet::with_capacity(owners.len());
    let first: Vec<bool> = owners.iter().map(|owner| seen.insert(owner)).collect();
    let uid = |owner: &Value| owner["uid"].as_str().unwrap_or_default().to_owned();
    let gone = owners.iter().zip(&first).filter(|(_, first)| !**first).map(|(owner, _)| uid(owner));
    let gone = gone.collect();
    let mut first = first.into_iter();
    owners.retain(|_| first.next().unwrap_or(true));
    gone
}

fn put_back(meta: &mut Map<String, Value>, old: &Value, field: &str) {
    match old.get(field) {
        Some(value) => {
            meta.insert(field.to_owned(), value.clone());
        }
        None => {
            meta.remove(field);
        }
    }
}

/// Returns `metadata` of an object, which is created if it is absent.
pub(crate) fn metadata_mut(object: &mut Value) -> Option<&mut Map<String, Value>> {
    let object = object.as_object_mut()?;
    if !object.get("metadata").is_some_and(Value::is_object) {
        object.insert("metadata".to_owned(), Value::Object(Map::new()));
    }
    object.get_mut("metadata")?.as_object_mut()
}

/// Increments the generation.
pub fn bump_generation(object: &mut Value) {
    if let Some(meta) = metadata_mut(object) {
        let generation = meta.get("generation").and_then(Value::as_i64).unwrap_or(0);
        meta.insert("generation".to_owned(), generation.saturating_add(1).into());
    }
}

/// Validates the metadata of a new object; also used on update.
pub fn validate(meta: &Cursor<'_>, rule: MetaRule, causes: &mut Causes) {
    let generate_name = meta.field("generateName");
    if !generate_name.text().is_empty() {
        let problems = rule.name.prefix_problems(generate_name.text());
        names::report(causes, &generate_name, &problems);
    }
    let name = meta.field("name");
    if name.text().is_empty() {
        causes.required(&name, "name or generateName is required");
    } else {
        names::report(causes, &name, &rule.name.problems(name.text()));
    }
    let namespace = meta.field("namespace");
    match (rule.namespaced, namespace.text()) {
        (true, "") => causes.required(&namespace, ""),
        (true, text) => names::report(causes, &namespace, &names::dns_label(text)),
        (false, "") => {}
        (false, _) => causes.forbidden(&namespace, "not allowed on this type"),
    }
    let generation = meta.field("generation");
    if generation.int().is_some_and(|number| number < 0) {
        causes.invalid(&generation, "must be greater than or equal to 0");
    }
    validate_labels(&meta.field("labels"), causes);
    validate_annotations(&meta.field("annotations"), causes);
    validate_owners(&meta.field("ownerReferences"), causes);
    validate_finalizers(&meta.field("finalizers"), causes);
    validate_managed_fields(&meta.field("managedFields"), causes);
    if rule.standard_finalizers {
        validate_standard_finalizers(&meta.field("finalizers"), causes);
    }
}

/// Validates the change from `old` metadata.
pub fn validate_update(meta: &Cursor<'_>, old: &Cursor<'_>, rule: MetaRule, causes: &mut Causes) {
    let finalizers = meta.field("finalizers");
    if old.field("deletionTimestamp").is_set() {
        let before = old.field("finalizers");
        let before: BTreeSet<&str> = before.items().map(|item| item.text()).collect();
        let extra: BTreeSet<&str> =
            finalizers.items().map(|item| item.text()).filter(|f| !before.contains(f)).collect();
        if !extra.is_empty() {
            let extra: Vec<String> = extra.into_iter().map(crate::go::quoted).collect();
            let detail = format!(
                "no new finalizers can be added if the object is being deleted, found new \
                 finalizers []string{{{}}}",
                extra.join(", ")
            );
            causes.forbidden(&finalizers, &detail);
        }
    }
    let version = meta.field("resourceVersion");
    if version.text().is_empty() {
        causes.invalid_as(&version, "", "must be specified for an update");
    }
    let generation = meta.field("generation");
    if generation.int().unwrap_or(0) < old.field("generation").int().unwrap_or(0) {
        let shown = generation.int().unwrap_or(0);
        causes.invalid_as(&generation, shown, "must not be decremented");
    }
    for field in ["name", "namespace", "uid"] {
        let (new, old) = (meta.field(field), old.field(field));
        if new.text() != old.text() {
            causes.invalid_as(&new, new.text(), IMMUTABLE);
        }
    }
    for field in ["creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds"] {
        let (new, old) = (meta.field(field), old.field(field));
        if new.value() != old.value() {
            causes.invalid(&new, IMMUTABLE);
        }
    }
    validate_labels(&meta.field("labels"), causes);
    validate_annotations(&meta.field("annotations"), causes);
    validate_owners(&meta.field("ownerReferences"), causes);
    validate_managed_fields(&meta.field("managedFields"), causes);
    if rule.standard_finalizers {
        validate_standard_finalizers(&finalizers, causes);
    }
}

/// Validates labels, and other maps with the same rules such as a node selector.
pub fn validate_labels(labels: &Cursor<'_>, causes: &mut Causes) {
    for (key, value) in labels.entries() {
        names::report_as(causes, labels, key, &label_key_problems(key));
        names::report_as(causes, labels, value.text(), &label_value_problems(value.text()));
    }
}

pub fn validate_annotations(annotations: &Cursor<'_>, causes: &mut Causes) {
    let mut size = 0_usize;
    for (key, value) in annotations.entries() {
        size = size.saturating_add(key.len()).saturating_add(value.text().len());
        if key.bytes().any(|b| b.is_ascii_uppercase()) || !key.is_ascii() {
            let problems = label_key_problems(&key.to_lowercase());
            names::report_as(causes, annotations, key, &problems);
        } else {
            names::report_as(causes, annotations, key, &label_key_problems(key));
        }
    }
    if size > ANNOTATIONS_LIMIT {
        causes.too_long(annotations, ANNOTATIONS_LIMIT);
    }
}

fn validate_owners(owners: &Cursor<'_>, causes: &mut Causes) {
    let mut controller: Option<String> = None;
    for owner in owners.items() {
        for field in ["apiVersion", "kind", "name", "uid"] {
            let at = owner.field(field);
            let text = at.text();
            if text.is_empty() {
                causes.required(&at, "must not be empty");
            } else if field == "apiVersion"
                && (text.ends_with('/') || text.matches('/').count() > 1)
            {
                causes.invalid(&at, "version must not be empty");
            }
        }
        if owner.field("apiVersion").text() == "v1" && owner.field("kind").text() == "Event" {
            causes.invalid(&owner, "/v1, Kind=Event is disallowed from being an owner");
        }
        if owner.field("controller").is_true() {
            let name = format!("{}/{}", owner.field("kind").text(), owner.field("name").text());
            match &controller {
                Some(first) => {
                    let detail = format!(
                        "Only one reference can have Controller set to true. Found \"true\" in \
                         references for {first} and {name}"
                    );
                    causes.invalid_as(owners, OwnerList(owners.value()), &detail);
                }
                None => controller = Some(name),
            }
        }
    }
}

/// Owner references as messages show them: in the order in which Go declares their fields.
struct OwnerList<'a>(&'a Value);

impl From<OwnerList<'_>> for crate::cursor::BadValue {
    fn from(owners: OwnerList<'_>) -> crate::cursor::BadValue {
        const ORDER: [&str; 6] =
            ["apiVersion", "kind", "name", "uid", "controller", "blockOwnerDeletion"];
        let items = owners.0.as_array().into_iter().flatten().map(|owner| {
            let fields = ORDER
                .iter()
                .filter_map(|field| owner.get(field).map(|value| format!("\"{field}\":{value}")));
            format!("{{{}}}", fields.collect::<Vec<_>>().join(","))
        });
        crate::cursor::BadValue::literal(format!("[{}]", items.collect::<Vec<_>>().join(",")))
    }
}

fn validate_finalizers(finalizers: &Cursor<'_>, causes: &mut Causes) {
    let (mut orphan, mut foreground) = (false, false);
    for finalizer in finalizers.items() {
        let text = finalizer.text();
        names::report_as(causes, finalizers, text, &label_key_problems(text));
        orphan |= text == "orphan";
        foreground |= text == "foregroundDeletion";
    }
    if orphan && foreground {
        let detail = "finalizer orphan and foregroundDeletion cannot be both set";
        causes.invalid(finalizers, detail);
    }
}

fn validate_standard_finalizers(finalizers: &Cursor<'_>, causes: &mut Causes) {
    for finalizer in finalizers.items() {
        let text = finalizer.text();
        if !text.contains('/') && !STANDARD_FINALIZERS.contains(&text) {
            let detail = "name is neither a standard finalizer name nor is it fully qualified";
            causes.invalid(&finalizer, detail);
        }
    }
}

fn validate_managed_fields(entries: &Cursor<'_>, causes: &mut Causes) {
    for entry in entries.items() {
        let operation = entry.field("operation");
        if !matches!(operation.text(), "Apply" | "Update") {
            causes.invalid_as(&operation, operation.text(), "must be `Apply` or `Update`");
        }
        let format = entry.field("fieldsType");
        if !matches!(format.text(), "" | "FieldsV1") {
            causes.invalid(&format, "must be `FieldsV1`");
        }
        validate_manager(&entry.field("manager"), causes);
        let subresource = entry.field("subresource");
        if subresource.text().len() > SUBRESOURCE_LIMIT {
            causes.too_long(&subresource, SUBRESOURCE_LIMIT);
        }
    }
}

/// Validates the name of a field manager, in an object or in a query.
pub fn validate_manager(manager: &Cursor<'_>, causes: &mut Causes) {
    if manager.text().len() > MANAGER_LIMIT {
        causes.too_long(manager, MANAGER_LIMIT);
    }
    for (at, character) in manager.text().char_indices() {
        if character.is_control() {
            let code = u32::from(character);
            let detail = format!("invalid character U+{code:04X} (at position {at})");
            causes.invalid(manager, &detail);
        }
    }
}

/// Validates a label selector, which may be absent.
pub fn validate_label_selector(
    selector: &Cursor<'_>,
    allow_invalid_values: bool,
    causes: &mut Causes,
) {
    validate_labels(&selector.field("matchLabels"), causes);
    let expressions = selector.field("matchExpressions");
    for expression in expressions.items() {
        if !validate_value_count(&expression, causes) {
            let operator = expression.field("operator");
            let detail = "not a valid selector operator";
            causes.invalid_as(&operator, operator.text(), detail);
        }
        validate_requirement_names(&expression, allow_invalid_values, causes);
    }
}

/// Checks that a requirement of a selector has values if and only if its operator compares with
/// values. Returns `false` for an operator that is not known.
pub(super) fn validate_value_count(requirement: &Cursor<'_>, causes: &mut Causes) -> bool {
    let values = requirement.field("values");
    match requirement.field("operator").text() {
        "In" | "NotIn" if values.is_empty() => {
            let detail = "must be specified when `operator` is 'In' or 'NotIn'";
            causes.required(&values, detail);
        }
        "Exists" | "DoesNotExist" if !values.is_empty() => {
            let detail = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'";
            causes.forbidden(&values, detail);
        }
        "In" | "NotIn" | "Exists" | "DoesNotExist" => {}
        _ => return false,
    }
    true
}

/// Checks the key and the values of a requirement of a label selector.
pub(super) fn validate_requirement_names(
    requirement: &Cursor<'_>,
    allow_invalid_values: bool,
    causes: &mut Causes,
) {
    let key = requirement.field("key");
    names::report_as(causes, &key, key.text(), &label_key_problems(key.text()));
    if !allow_invalid_values {
        for value in requirement.field("values").items() {
            names::report(causes, &value, &label_value_problems(value.text()));
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const RULE: MetaRule =
        MetaRule { name: NameRule::DnsSubdomain, namespaced: true, standard_finalizers: true };

    fn problems(meta: &Value) -> Vec<String> {
        let mut causes = Causes::default();
        validate(&Cursor::top(meta, "metadata"), RULE, &mut causes);
        causes.0.into_iter().map(|c| format!("{}: {}", c.field, c.message)).collect()
    }

    #[test]
    fn a_good_name_and_namespace_is_enough() {
        assert!(problems(&json!({"name": "a.b", "namespace": "n"})).is_empty());
        let none = problems(&json!({}));
        assert_eq!(none[0], "metadata.name: Required value: name or generateName is required");
        assert_eq!(none[1], "metadata.namespace: Required value");
    }

    #[test]
    fn owners_are_named_once_and_by_a_version() {
        let owner =
            |version: &str| json!({"apiVersion": version, "kind": "K", "name": "n", "uid": "u"});
        let mut object =
            json!({"metadata": {"ownerReferences": [owner("v1"), owner("v2"), owner("v1")]}});
        assert_eq!(distinct_owners(&mut object), ["u"]);
        assert_eq!(object["metadata"]["ownerReferences"], json!([owner("v1"), owner("v2")]));
        assert!(distinct_owners(&mut object).is_empty());
        for version in ["a/b/c", "a/"] {
            let meta = json!({"name": "a", "namespace": "n", "ownerReferences": [owner(version)]});
            let expected = format!(
                "metadata.ownerReferences[0].apiVersion: Invalid value: {version:?}: version must not be empty"
            );
            assert_eq!(problems(&meta), [expected]);
        }
    }

    #[test]
    fn an_update_keeps_what_the_server_made() {
        let old = json!({"metadata": {
            "name": "a", "uid": "u", "generation": 3, "creationTimestamp": "2024-01-01T00:00:00Z"
        }});
        let mut new = json!({"metadata": {"name": "a", "generation": 9}});
        prepare_update(&mut new, &old);
        assert_eq!(new, old);
    }
}
