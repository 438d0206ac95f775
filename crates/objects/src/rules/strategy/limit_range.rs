//! Limit ranges as objects: consistent bounds, defaults derived from bounds, and the classes of QoS
//! resources that one pod or container may be in.
//!
//! [`crate::limits`] applies limit ranges to pods.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

use super::super::checks::{quantity, round_amounts};
use super::super::names::{self, label_key_problems};
use super::super::pod::class_resources;
use super::super::{RuleContext, resource_names};
use super::quota::validate_capacities;
use crate::cursor::{Causes, Cursor};
use crate::feature_gates::Gate;
use crate::quantity::{Format, Quantity};
use crate::resources::may_be_overcommitted;

const LISTS: [&str; 5] = ["max", "min", "default", "defaultRequest", "maxLimitRequestRatio"];

/// Quantities above this many units are compared without their milli-units, as upstream does to
/// stay within 64 bits.
const MILLI_LIMIT: i64 = i64::MAX / 1000;

pub(super) fn set_defaults(range: &mut Value) {
    let limits = range.get_mut("spec").and_then(|spec| spec.get_mut("limits"));
    let Some(limits) = limits else { return };
    // An empty list is stored as null.
    if limits.as_array().is_some_and(Vec::is_empty) {
        *limits = Value::Null;
    }
    for item in limits.as_array_mut().into_iter().flatten() {
        for list in LISTS {
            round_amounts(item.get_mut(list));
        }
        if item["type"] == "Container" {
            derive(item, "max", "default");
            derive(item, "default", "defaultRequest");
            derive(item, "min", "defaultRequest");
        }
    }
}

/// Copies the entries that only the other list has.
fn derive(item: &mut Value, from: &str, to: &str) {
    let Some(source) = item.get(from).and_then(Value::as_object).cloned() else { return };
    let Some(item) = item.as_object_mut().filter(|_| !source.is_empty()) else { return };
    let target = item.entry(to).or_insert_with(|| Value::Object(Map::new()));
    if let Some(target) = target.as_object_mut() {
        for (name, amount) in source {
            target.entry(name).or_insert(amount);
        }
    }
}

/// Without the gate a limit range keeps its classes and gets no new ones.
pub(super) fn prepare(range: &mut Value, old: Option<&Value>, ctx: &RuleContext<'_>) {
    let has_classes = |item: &Value| item.get("qosResources").is_some();
    let old = old.and_then(|old| old["spec"]["limits"].as_array());
    if ctx.gates.enabled(Gate::QosResources)
        || old.is_some_and(|items| items.iter().any(has_classes))
    {
        return;
    }
    let limits = range.get_mut("spec").and_then(|spec| spec.get_mut("limits"));
    for item in limits.and_then(Value::as_array_mut).into_iter().flatten() {
        if let Some(item) = item.as_object_mut() {
            item.remove("qosResources");
        }
    }
}

pub(super) fn validate(range: &Cursor<'_>, causes: &mut Causes) {
    let spec = range.field("spec");
    let limits = spec.field("limits");
    let mut seen = BTreeSet::new();
    for item in limits.items() {
        let kind = item.field("type");
        validate_type(&kind, causes);
        if !seen.insert(kind.value().as_str().unwrap_or_default().to_owned()) {
            causes.duplicate_as(&kind, kind.text());
        }
        validate_names(&item, kind.text(), causes);
        validate_bounds(&item, kind.text(), causes);
        validate_classes(&item, kind.text(), causes);
    }
}

fn validate_type(kind: &Cursor<'_>, causes: &mut Causes) {
    let text = kind.text();
    let problems = label_key_problems(text);
    names::report_as(causes, kind, text, &problems);
    let standard = ["Pod", "Container", "PersistentVolumeClaim"];
    if problems.is_empty() && !text.contains('/') && !standard.contains(&text) {
        causes.invalid(kind, "must be a standard limit type or fully qualified");
    }
}

fn validate_names(item: &Cursor<'_>, kind: &str, causes: &mut Causes) {
    let check = |list: &str, causes: &mut Causes| {
        let list = item.field(list);
        for (name, at) in list.entries() {
            match kind {
                "Pod" | "Container" => resource_names::of_containers(&at, name, causes),
                _ => resource_names::any(&at, name, causes),
            }
        }
    };
    check("max", causes);
    check("min", causes);
    for list in ["default", "defaultRequest"] {
        if kind != "Pod" {
            check(list, causes);
        } else if !item.field(list).is_empty() {
            causes.forbidden(&item.field(list), "may not be specified when `type` is 'Pod'");
        }
    }
    let bounds_storage = |list: &str| item.value()[list].get("storage").is_some();
    if kind == "PersistentVolumeClaim" && !bounds_storage("min") && !bounds_storage("max") {
        let detail =
            "either minimum or maximum storage value is required, but neither was provided";
        causes.required(&item.field("limits"), detail);
    }
    check("maxLimitRequestRatio", causes);
}

/// Checks that the bounds and defaults of each resource are consistent.
fn validate_bounds(item: &Cursor<'_>, kind: &str, causes: &mut Causes) {
    let lists: BTreeMap<&str, Cursor<'_>> =
        LISTS.iter().map(|list| (*list, item.field(list))).collect();
    let names: BTreeSet<&str> = lists
        .values()
        .flat_map(|list| list.value().as_object())
        .flatten()
        .map(|(k, _)| k.as_str())
        .collect();
    for name in names {
        let amount = |list: &str| quantity(item.value()[list].get(name)?);
        let (min, max) = (amount("min"), amount("max"));
        // A pod has no defaults, which is already reported.
        let default = |list: &str| if kind == "Pod" { None } else { amount(list) };
        let (limit, request) = (default("default"), default("defaultRequest"));
        let ratio = amount("maxLimitRequestRatio");
        let mut above = |low: &Option<Quantity>,
                         high: &Option<Quantity>,
                         at: &str,
                         shown: &Option<Quantity>,
                         labels: (&str, &str)| {
            if let (Some(low), Some(high), Some(shown)) = (low, high, shown)
                && low > high
            {
                let detail =
                    format!("{} value {low} is greater than {} value {high}", labels.0, labels.1);
                let shown = shown.to_string();
                causes.invalid_as(&lists[at].key(name), shown.as_str(), &detail);
            }
        };
        above(&min, &max, "min", &min, ("min", "max"));
        above(&min, &request, "defaultRequest", &request, ("min", "default request"));
        above(&request, &max, "defaultRequest", &request, ("default request", "max"));
        above(&request, &limit, "defaultRequest", &request, ("default request", "default limit"));
        above(&min, &limit, "default", &min, ("min", "default"));
        above(&limit, &max, "default", &max, ("default", "max"));
        if let Some(ratio) = &ratio {
            let at = lists["maxLimitRequestRatio"].key(name);
            validate_ratio(&at, ratio, min.as_ref(), max.as_ref(), causes);
        }
        if let (Some(limit), Some(request)) = (&limit, &request)
            && !may_be_overcommitted(name)
            && limit != request
        {
            let detail = format!(
                "default value {limit} must equal to defaultRequest value {request} in {name}"
            );
            causes.invalid(&lists["defaultRequest"].key(name), &detail);
        }
    }
}

fn validate_ratio(
    at: &Cursor<'_>,
    ratio: &Quantity,
    min: Option<&Quantity>,
    max: Option<&Quantity>,
    causes: &mut Causes,
) {
    if *ratio < Quantity::from_i64(1, Format::DecimalSi) {
        causes.invalid(at, &format!("ratio {ratio} is less than 1"));
    }
    let (Some(min), Some(max)) = (min, max) else { return };
    let small = |amount: &Quantity| amount.value() < MILLI_LIMIT;
    let (wanted, possible) = if small(ratio) && small(min) && small(max) {
        let possible = max.milli_value() as f64 / min.milli_value() as f64;
        (ratio.milli_value() as f64 / 1000.0, possible)
    } else {
        (ratio.value() as f64, max.value() as f64 / min.value() as f64)
    };
    if wanted > possible {
        causes.invalid(at, &format!("ratio {ratio} is greater than max/min = {possible:.6}"));
    }
}

/// Validates a default and bounds on classes, for pods and containers only.
fn validate_classes(item: &Cursor<'_>, kind: &str, causes: &mut Causes) {
    let resources = item.field("qosResources");
    if resources.is_empty() {
        return;
    }
    if !matches!(kind, "Pod" | "Container") {
        causes.forbidden(&resources, "may only be specified when `type` is 'Pod' or 'Container'");
    }
    let mut seen = BTreeSet::new();
    for resource in resources.items() {
        let name = resource.field("name");
        class_resources::validate_form(&name, causes);
        let text = name.value().as_str().unwrap_or_default();
        if !text.is_empty() && !seen.insert(class_resources::full_name(text).to_owned()) {
            causes.duplicate(&name);
        }
        let (default, max) = (resource.field("default"), resource.field("max"));
        validate_capacities(&max, causes);
        if default.text().is_empty() {
            continue;
        }
        names::report(causes, &default, &label_key_problems(default.text()));
        let allowed: Vec<&str> =
            max.items().map(|class| class.value()["name"].as_str().unwrap_or_default()).collect();
        if !allowed.is_empty() && !allowed.contains(&default.text()) {
            causes.not_supported(&default, &allowed);
        }
    }
}
