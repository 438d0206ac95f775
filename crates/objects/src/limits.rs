//! Limit ranges: [`set_defaults`] sets default amounts and classes of containers, [`check_pod`]
//! rejects pods that are outside the bounds.
//!
//! Limit ranges are read as stored, in the order given. Causes are ordered by resource name, where
//! upstream's order is that of a map. The API server decides which requests are checked (creates of
//! pods and claims, resizes of pods).
//!
//! Class bounds: `max` lists the classes that are allowed and the number of uses that one pod or
//! container may have of each; 0 means no limit. A container is in at most one class of a resource,
//! so a bound of a range for containers only lists the allowed classes; one for pods counts its
//! containers.

use std::collections::{BTreeMap, HashSet};
use std::fmt;

use serde_json::{Map, Value, json};

use crate::pod::resources::{Side, read_list as amounts};
use crate::quantity::Quantity;
use crate::resources::ResourceList;
use crate::rules::pod::class_resources::full_name;
use crate::totals::{self, With, class_of, class_uses, pod_classes};

#[cfg(test)]
mod tests;

/// The annotation in which upstream lists the defaults that it set.
const NOTE: &str = "kubernetes.io/limit-ranger";
/// Above this many units, milli-units do not fit in 64 bits.
const MILLI_LIMIT: i64 = i64::MAX / 1000;

/// A limit range rejects an object.
#[derive(Debug, Clone, PartialEq)]
pub struct LimitRefusal {
    /// `Pod`, `Container` or `PersistentVolumeClaim`.
    pub kind: String,
    pub resource: String,
    pub bound: Bound,
}

/// The violated bound and the actual value.
#[derive(Debug, Clone, PartialEq)]
pub enum Bound {
    Min {
        least: Quantity,
        actual: ActualAmount,
    },
    Max {
        most: Quantity,
        actual: ActualAmount,
    },
    Ratio {
        most: Quantity,
        actual: ActualRatio,
    },
    /// A class that is not among those allowed.
    Class {
        class: String,
        allowed: Vec<String>,
    },
    /// A class is used more often than allowed.
    Uses {
        class: String,
        most: i64,
        actual: i64,
    },
}

#[derive(Debug, Clone, PartialEq)]
pub enum ActualAmount {
    Request(Quantity),
    Limit(Quantity),
    NoRequest,
    NoLimit,
}

#[derive(Debug, Clone, PartialEq)]
pub enum ActualRatio {
    Ratio(f64),
    NoRequest,
    NoLimit,
}

impl fmt::Display for LimitRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (kind, resource) = (&self.kind, &self.resource);
        let bounded =
            |f: &mut fmt::Formatter<'_>, word: &str, bound: &Quantity, actual: &ActualAmount| {
                write!(f, "{word} {resource} usage per {kind} is {bound}")?;
                match actual {
                    ActualAmount::Request(amount) => write!(f, ", but request is {amount}"),
                    ActualAmount::Limit(amount) => write!(f, ", but limit is {amount}"),
                    ActualAmount::NoRequest => write!(f, ".  No request is specified"),
                    ActualAmount::NoLimit => write!(f, ".  No limit is specified"),
                }
            };
        match &self.bound {
            Bound::Min { least, actual } => bounded(f, "minimum", least, actual),
            Bound::Max { most, actual } => bounded(f, "maximum", most, actual),
            Bound::Ratio { most, actual } => {
                write!(f, "{resource} max limit to request ratio per {kind} is {most}, but ")?;
                match actual {
                    ActualRatio::Ratio(ratio) => write!(f, "provided ratio is {ratio:.6}"),
                    ActualRatio::NoRequest => write!(f, "no request is specified or request is 0"),
                    ActualRatio::NoLimit => write!(f, "no limit is specified or limit is 0"),
                }
            }
            Bound::Class { class, allowed } => {
                let allowed = allowed.join(", ");
                write!(
                    f,
                    "allowed {resource} classes per {kind} are {allowed}, but class is {class}"
                )
            }
            Bound::Uses { class, most, actual } => write!(
                f,
                "maximum {resource} class {class} usage per {kind} is {most}, but usage is {actual}"
            ),
        }
    }
}

/// Returns the message of a response with these refusals; `None` without any.
#[must_use]
pub fn message(refusals: &[LimitRefusal]) -> Option<String> {
    match refusals {
        [] => None,
        [one] => Some(one.to_string()),
        more => {
            let mut seen = HashSet::new();
            let texts = more.iter().map(LimitRefusal::to_string);
            let texts: Vec<String> = texts.filter(|text| seen.insert(text.clone())).collect();
            match texts.as_slice() {
                [one] => Some(one.clone()),
                texts => Some(format!("[{}]", texts.join(", "))),
            }
        }
    }
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

fn items<'a>(range: &'a Value, kind: &'a str) -> impl Iterator<Item = &'a Value> {
    list(&range["spec"]["limits"]).iter().filter(move |item| item["type"] == kind)
}

/// Sets the missing amounts of a pod's containers, from each range in turn.
pub fn set_defaults(pod: &mut Value, ranges: &[&Value]) {
    for range in ranges {
        let (mut limits, mut requests) = (Map::new(), Map::new());
        for item in items(range, "Container") {
            let entries = |field: &str| item[field].as_object().cloned().unwrap_or_default();
            limits.extend(entries("default"));
            requests.extend(entries("defaultRequest"));
        }
        let mut notes = Vec::new();
        for (field, word) in [("containers", "container"), ("initContainers", "init container")] {
            let containers = pod.pointer_mut(&format!("/spec/{field}"));
            for container in containers.and_then(Value::as_array_mut).into_iter().flatten() {
                let set = fill(container, "requests", &requests);
                note(&mut notes, &set, "request", word, container);
                let set = fill(container, "limits", &limits);
                note(&mut notes, &set, "limit", word, container);
            }
        }
        if !notes.is_empty() {
            let text = format!("LimitRanger plugin set: {}", notes.join("; "));
            set_annotation(pod, text);
        }
        set_default_classes(pod, range);
    }
}

/// Adds the defaults that a container's list does not have; returns their names.
fn fill(container: &mut Value, side: &str, defaults: &Map<String, Value>) -> Vec<String> {
    let present = |name: &String| container["resources"][side].get(name).is_some();
    let mut missing: Vec<String> = defaults.keys().filter(|name| !present(name)).cloned().collect();
    missing.sort_unstable();
    let Some(fields) = container.as_object_mut().filter(|_| !missing.is_empty()) else {
        return missing;
    };
    let resources = fields.entry("resources").or_insert_with(|| json!({}));
    if let Some(resources) = resources.as_object_mut() {
        let list = resources.entry(side).or_insert_with(|| json!({}));
        if let Some(list) = list.as_object_mut() {
            list.extend(missing.iter().map(|name| (name.clone(), defaults[name].clone())));
        }
    }
    missing
}

fn note(notes: &mut Vec<String>, set: &[String], side: &str, word: &str, container: &Value) {
    if !set.is_empty() {
        let name = container["name"].as_str().unwrap_or_default();
        notes.push(format!("{} {side} for {word} {name}", set.join(", ")));
    }
}

fn set_annotation(pod: &mut Value, text: String) {
    let Some(pod) = pod.as_object_mut() else { return };
    let meta = pod.entry("metadata").or_insert_with(|| json!({}));
    if let Some(meta) = meta.as_object_mut() {
        let annotations = meta.entry("annotations").or_insert_with(|| json!({}));
        if let Some(annotations) = annotations.as_object_mut() {
            annotations.insert(NOTE.to_owned(), text.into());
        }
    }
}

/// Sets the default class of a pod and of containers that have none.
fn set_default_classes(pod: &mut Value, range: &Value) {
    let defaults = |kind: &'static str| {
        let resources = items(range, kind).flat_map(|item| list(&item["qosResources"]));
        resources.filter_map(|resource| {
            let class = resource["default"].as_str().filter(|class| !class.is_empty())?;
            Some((resource["name"].as_str()?, class))
        })
    };
    for (name, class) in defaults("Pod") {
        if pod_classes(pod).contains_key(full_name(name)) {
            continue;
        }
        if let Some(spec) = pod.get_mut("spec").and_then(Value::as_object_mut) {
            push_class(spec, name, class);
        }
    }
    for (name, class) in defaults("Container") {
        for field in ["initContainers", "containers"] {
            let count = list(&pod["spec"][field]).len();
            for index in 0..count {
                if class_of(pod, &pod["spec"][field][index], full_name(name)).is_some() {
                    continue;
                }
                let container = pod.pointer_mut(&format!("/spec/{field}/{index}"));
                let Some(container) = container.and_then(Value::as_object_mut) else { continue };
                let resources = container.entry("resources").or_insert_with(|| json!({}));
                if let Some(resources) = resources.as_object_mut() {
                    push_class(resources, name, class);
                }
            }
        }
    }
}

fn push_class(holder: &mut Map<String, Value>, name: &str, class: &str) {
    let requests = holder.entry("qosResources").or_insert_with(|| json!([]));
    if let Some(requests) = requests.as_array_mut() {
        requests.push(json!({"name": name, "class": class}));
    }
}

/// Returns the violations of the first range that rejects a pod.
#[must_use]
pub fn check_pod(pod: &Value, ranges: &[&Value]) -> Vec<LimitRefusal> {
    let checked = ranges.iter().map(|range| check_against(pod, range));
    checked.into_iter().find(|refusals| !refusals.is_empty()).unwrap_or_default()
}

fn check_against(pod: &Value, range: &Value) -> Vec<LimitRefusal> {
    let mut refusals = Vec::new();
    for item in list(&range["spec"]["limits"]) {
        match item["type"].as_str() {
            Some("Container") => {
                let spec = &pod["spec"];
                for container in
                    list(&spec["containers"]).iter().chain(list(&spec["initContainers"]))
                {
                    let resources = &container["resources"];
                    let (requests, limits) =
                        (amounts(&resources["requests"]), amounts(&resources["limits"]));
                    check_amounts(item, "Container", &requests, &limits, &mut refusals);
                    check_container_classes(item, pod, container, &mut refusals);
                }
            }
            Some("Pod") => {
                let requests = totals::of_pod(pod, Side::Requests, With::Spec);
                let limits = totals::of_pod(pod, Side::Limits, With::Spec);
                check_amounts(item, "Pod", &requests, &limits, &mut refusals);
                check_pod_classes(item, pod, range, &mut refusals);
            }
            _ => {}
        }
    }
    refusals
}

/// Returns the violations of the first range that rejects a volume claim.
#[must_use]
pub fn check_claim(claim: &Value, ranges: &[&Value]) -> Vec<LimitRefusal> {
    const KIND: &str = "PersistentVolumeClaim";
    let requests = amounts(&claim["spec"]["resources"]["requests"]);
    for range in ranges {
        let mut refusals = Vec::new();
        for item in items(range, KIND) {
            for (resource, least) in amounts(&item["min"]) {
                let bound = below(&resource, &least, &requests, &ResourceList::new());
                refuse(&mut refusals, KIND, &resource, bound);
            }
            for (resource, most) in amounts(&item["max"]) {
                let actual = match requests.get(&resource) {
                    None => Some(ActualAmount::NoRequest),
                    Some(request) if *request > most => {
                        Some(ActualAmount::Request(request.clone()))
                    }
                    Some(_) => None,
                };
                let bound = actual.map(|actual| Bound::Max { most: most.clone(), actual });
                refuse(&mut refusals, KIND, &resource, bound);
            }
        }
        if !refusals.is_empty() {
            return refusals;
        }
    }
    Vec::new()
}

fn refuse(refusals: &mut Vec<LimitRefusal>, kind: &str, resource: &str, bound: Option<Bound>) {
    if let Some(bound) = bound {
        let (kind, resource) = (kind.to_owned(), resource.to_owned());
        refusals.push(LimitRefusal { kind, resource, bound });
    }
}

fn check_amounts(
    item: &Value,
    kind: &str,
    requests: &ResourceList,
    limits: &ResourceList,
    refusals: &mut Vec<LimitRefusal>,
) {
    for (resource, least) in amounts(&item["min"]) {
        refuse(refusals, kind, &resource, below(&resource, &least, requests, limits));
    }
    for (resource, most) in amounts(&item["max"]) {
        let actual = match (limits.get(&resource), requests.get(&resource)) {
            (None, _) => Some(ActualAmount::NoLimit),
            (Some(limit), _) if *limit > most => Some(ActualAmount::Limit(limit.clone())),
            (_, Some(request)) if *request > most => Some(ActualAmount::Request(request.clone())),
            _ => None,
        };
        let bound = actual.map(|actual| Bound::Max { most: most.clone(), actual });
        refuse(refusals, kind, &resource, bound);
    }
    for (resource, most) in amounts(&item["maxLimitRequestRatio"]) {
        let actual = ratio_above(&most, requests.get(&resource), limits.get(&resource));
        let bound = actual.map(|actual| Bound::Ratio { most: most.clone(), actual });
        refuse(refusals, kind, &resource, bound);
    }
}

fn below(
    resource: &str,
    least: &Quantity,
    requests: &ResourceList,
    limits: &ResourceList,
) -> Option<Bound> {
    let actual = match (requests.get(resource), limits.get(resource)) {
        (None, _) => ActualAmount::NoRequest,
        (Some(request), _) if request < least => ActualAmount::Request(request.clone()),
        (_, Some(limit)) if limit < least => ActualAmount::Limit(limit.clone()),
        _ => return None,
    };
    Some(Bound::Min { least: least.clone(), actual })
}

fn ratio_above(
    most: &Quantity,
    request: Option<&Quantity>,
    limit: Option<&Quantity>,
) -> Option<ActualRatio> {
    let number = |amount: &Quantity| match amount.value() {
        whole if whole <= MILLI_LIMIT => amount.milli_value() as f64,
        whole => whole as f64 * 1000.0,
    };
    let Some(request) = request.filter(|amount| !amount.is_zero()) else {
        return Some(ActualRatio::NoRequest);
    };
    let Some(limit) = limit.filter(|amount| !amount.is_zero()) else {
        return Some(ActualRatio::NoLimit);
    };
    let ratio = number(limit) / number(request);
    (ratio * 1000.0 > number(most)).then_some(ActualRatio::Ratio(ratio))
}

/// Returns the classes that an item allows of one resource, with the number of uses; 0 means no
/// limit.
fn allowed(resource: &Value) -> BTreeMap<&str, i64> {
    let classes = list(&resource["max"]).iter();
    classes
        .filter_map(|class| {
            Some((class["name"].as_str()?, class["capacity"].as_i64().unwrap_or(0)))
        })
        .collect()
}

/// Returns the bound that a number of uses of a class violates.
fn class_bound(allowed: &BTreeMap<&str, i64>, class: &str, uses: i64) -> Option<Bound> {
    match allowed.get(class) {
        None => Some(Bound::Class {
            class: class.to_owned(),
            allowed: allowed.keys().map(|name| (*name).to_owned()).collect(),
        }),
        Some(most) if *most != 0 && uses > *most => {
            Some(Bound::Uses { class: class.to_owned(), most: *most, actual: uses })
        }
        Some(_) => None,
    }
}

fn check_container_classes(
    item: &Value,
    pod: &Value,
    container: &Value,
    refusals: &mut Vec<LimitRefusal>,
) {
    for resource in list(&item["qosResources"]) {
        let (name, allowed) = (resource["name"].as_str().unwrap_or_default(), allowed(resource));
        if let Some(class) =
            class_of(pod, container, full_name(name)).filter(|_| !allowed.is_empty())
        {
            refuse(refusals, "Container", name, class_bound(&allowed, class, 1));
        }
    }
}

/// A resource that containers name, or that a range has for containers, is counted by container;
/// any other belongs to the pod.
fn check_pod_classes(item: &Value, pod: &Value, range: &Value, refusals: &mut Vec<LimitRefusal>) {
    let of_containers: Vec<&str> = items(range, "Container")
        .flat_map(|item| list(&item["qosResources"]))
        .filter_map(|resource| resource["name"].as_str())
        .map(full_name)
        .chain(totals::named_by_containers(pod))
        .collect();
    for resource in list(&item["qosResources"]) {
        let (name, allowed) = (resource["name"].as_str().unwrap_or_default(), allowed(resource));
        if allowed.is_empty() {
            continue;
        }
        let uses = if of_containers.contains(&full_name(name)) {
            class_uses(pod, full_name(name))
        } else {
            pod_classes(pod).get(full_name(name)).map(|class| (*class, 1)).into_iter().collect()
        };
        for (class, count) in uses {
            refuse(refusals, "Pod", name, class_bound(&allowed, class, count));
        }
    }
}
