//! Resource quotas: [`charge`] decides on one request and returns the quotas with their new usage,
//! [`recompute`] counts from scratch.
//!
//! A quota enforces its status (`hard`, `used`), as upstream: one whose status is not calculated
//! yet limits nothing. The classes of QoS resources are the exception: they are a permission, and
//! apply from the moment the quota exists. If any quota that covers a pod lists classes, a resource
//! that none of them lists cannot be used, and each that lists the resource must list the class.
//!
//! The API server decides which requests count (no subresource but a pod's resize), and stores the
//! result so that two concurrent requests cannot both pass.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde_json::{Map, Value, json};

use crate::catalog::Resource;
use crate::pod::resources::read_list as amounts;
use crate::quantity::Quantity;
use crate::resources::{self, ResourceList};
use crate::timestamp::Timestamp;

mod classes;
mod scope;
#[cfg(test)]
mod tests;
mod usage;

pub use usage::usage;

/// A quota rejects a request. Shown after `… is forbidden: `.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum QuotaRefusal {
    /// Containers that do not specify a bounded resource, by resource.
    Unspecified {
        quota: String,
        missing: BTreeMap<String, Vec<String>>,
    },
    /// The quota's usage is not known yet.
    UnknownStatus {
        quota: String,
        resources: Vec<String>,
    },
    /// The object requests a negative amount.
    Negative {
        resources: Vec<String>,
    },
    Exceeded {
        quota: String,
        requested: ResourceList,
        used: ResourceList,
        limited: ResourceList,
    },
    /// A class that the quotas of the namespace do not list.
    ClassNotAllowed {
        quota: String,
        level: Level,
        resource: String,
        class: String,
    },
    ClassExceeded {
        quota: String,
        level: Level,
        resource: String,
        class: String,
        requested: i64,
        used: i64,
        limited: i64,
    },
}

/// The level of a class: of pods or of containers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    Pod,
    Container,
}

impl Level {
    fn field(self) -> &'static str {
        match self {
            Level::Pod => "pod",
            Level::Container => "container",
        }
    }
}

fn pairs(list: &ResourceList) -> String {
    let pairs: Vec<String> = list.iter().map(|(name, amount)| format!("{name}={amount}")).collect();
    pairs.join(",")
}

impl fmt::Display for QuotaRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            QuotaRefusal::Unspecified { quota, missing } => {
                let lists: Vec<String> = missing
                    .iter()
                    .map(|(resource, names)| format!("{resource} for: {}", names.join(",")))
                    .collect();
                write!(f, "failed quota: {quota}: must specify {}", lists.join("; "))
            }
            QuotaRefusal::UnknownStatus { quota, resources } => {
                write!(f, "status unknown for quota: {quota}, resources: {}", resources.join(","))
            }
            QuotaRefusal::Negative { resources } => {
                write!(f, "quota usage is negative for resource(s): {}", resources.join(","))
            }
            QuotaRefusal::Exceeded { quota, requested, used, limited } => write!(
                f,
                "exceeded quota: {quota}, requested: {}, used: {}, limited: {}",
                pairs(requested),
                pairs(used),
                pairs(limited)
            ),
            QuotaRefusal::ClassNotAllowed { quota, level, resource, class } => write!(
                f,
                "failed quota: {quota}: class {class} of {} resource {resource} is not allowed",
                level.field()
            ),
            QuotaRefusal::ClassExceeded {
                quota,
                level,
                resource,
                class,
                requested,
                used,
                limited,
            } => {
                let name = format!("{}.{resource}/{class}", level.field());
                write!(
                    f,
                    "exceeded quota: {quota}, requested: {name}={requested}, used: {name}={used}, limited: {name}={limited}"
                )
            }
        }
    }
}

/// Charges a request to the quotas of its namespace: `old` is the object that an update replaces.
/// Returns the quotas that change, with their new status.
pub fn charge(
    quotas: &[&Value],
    resource: &Resource,
    object: &Value,
    old: Option<&Value>,
    now: Timestamp,
) -> Result<Vec<Value>, QuotaRefusal> {
    if !usage::is_counted(resource, old.is_some()) {
        return Ok(Vec::new());
    }
    let in_scope = |quota: &&&Value| scope::covers(quota, resource, object);
    let covering: Vec<&Value> = quotas.iter().filter(in_scope).copied().collect();
    let mut bounding = Vec::new();
    for quota in &covering {
        let hard = amounts(&quota["status"]["hard"]);
        let bounded: Vec<String> =
            hard.keys().filter(|name| usage::is_of(resource, name)).cloned().collect();
        if bounded.is_empty() {
            continue;
        }
        let missing = usage::unspecified(resource, object, &bounded);
        if !missing.is_empty() {
            return Err(QuotaRefusal::Unspecified { quota: name_of(quota), missing });
        }
        if bounded.iter().any(|name| quota["status"]["used"].get(name).is_none()) {
            let quota = name_of(quota);
            return Err(QuotaRefusal::UnknownStatus { quota, resources: bounded });
        }
        bounding.push(*quota);
    }
    let requested = usage(resource, object, now);
    let negative: Vec<String> =
        requested.iter().filter(|(_, a)| a.is_negative()).map(|(name, _)| name.clone()).collect();
    if !negative.is_empty() {
        return Err(QuotaRefusal::Negative { resources: negative });
    }
    // A quota that covered the object before is charged for the increase. One that the update moves
    // the object into is charged for all of it. The quota it leaves is corrected by the next count,
    // so that an update that is rejected later frees nothing.
    let more =
        old.map(|old| without_zeros(subtract(requested.clone(), &usage(resource, old, now))));
    let all = without_zeros(requested);
    let covered_before = |quota: &Value| old.is_some_and(|old| scope::covers(quota, resource, old));
    let mut charged: BTreeMap<String, Value> = BTreeMap::new();
    for quota in bounding {
        let delta = more.as_ref().filter(|_| covered_before(quota)).unwrap_or(&all);
        if let Some(used) = charge_one(quota, delta)? {
            let mut changed = quota.clone();
            changed["status"]["used"] = used;
            charged.insert(name_of(quota), changed);
        }
    }
    if resource.group.is_empty() && resource.kind == "Pod" {
        classes::charge(&covering, object, old, covered_before, now, &mut charged)?;
    }
    Ok(charged.into_values().collect())
}

fn name_of(quota: &Value) -> String {
    quota["metadata"]["name"].as_str().unwrap_or_default().to_owned()
}

fn without_zeros(list: ResourceList) -> ResourceList {
    list.into_iter().filter(|(_, amount)| !amount.is_zero()).collect()
}

/// Returns the increase of each amount; decreases count as zero.
fn subtract(mut new: ResourceList, old: &ResourceList) -> ResourceList {
    for (name, amount) in &mut new {
        if let Some(before) = old.get(name) {
            let more = amount.checked_sub(before).filter(|more| !more.is_negative());
            *amount = more.unwrap_or_else(Quantity::zero);
        }
    }
    new
}

/// Returns the new `used` of one quota, `None` if it does not change.
fn charge_one(quota: &Value, delta: &ResourceList) -> Result<Option<Value>, QuotaRefusal> {
    let hard = amounts(&quota["status"]["hard"]);
    let mut requested = delta.clone();
    requested.retain(|name, _| hard.contains_key(name));
    if requested.is_empty() {
        return Ok(None);
    }
    let used = amounts(&quota["status"]["used"]);
    let mut after = used.clone();
    resources::add(&mut after, &requested);
    let is_exceeded = |name: &String| after.get(name) > hard.get(name);
    let exceeded: BTreeSet<&String> = requested.keys().filter(|name| is_exceeded(name)).collect();
    if exceeded.is_empty() {
        return Ok(Some(rendered(&after)));
    }
    let mask = |list: &ResourceList| -> ResourceList {
        let within = |(name, _): &(&String, &Quantity)| exceeded.contains(name);
        list.iter().filter(within).map(|(name, amount)| (name.clone(), amount.clone())).collect()
    };
    Err(QuotaRefusal::Exceeded {
        quota: name_of(quota),
        requested: mask(&requested),
        used: mask(&used),
        limited: mask(&hard),
    })
}

fn rendered(list: &ResourceList) -> Value {
    let entries = list.iter().map(|(name, amount)| (name.clone(), amount.to_string().into()));
    Value::Object(entries.collect())
}

/// Computes the status of a quota from all objects of its namespace, each with its resource.
#[must_use]
pub fn recompute<'a>(
    quota: &Value,
    objects: impl IntoIterator<Item = (&'a Resource, &'a Value)>,
    now: Timestamp,
) -> Value {
    let hard = amounts(&quota["spec"]["hard"]);
    let mut used: ResourceList = hard.keys().map(|name| (name.clone(), Quantity::zero())).collect();
    let mut counted = classes::ClassUsage::new(&quota["spec"]["qosResources"]);
    for (resource, object) in objects {
        if !scope::covers(quota, resource, object) {
            continue;
        }
        let mut more = usage(resource, object, now);
        more.retain(|name, _| hard.contains_key(name) && usage::is_of(resource, name));
        resources::add(&mut used, &more);
        if resource.group.is_empty() && resource.kind == "Pod" {
            counted.add(object, now);
        }
    }
    let mut status = Map::new();
    if !hard.is_empty() {
        status.insert("hard".to_owned(), quota["spec"]["hard"].clone());
        status.insert("used".to_owned(), rendered(&used));
    }
    if let Some(given) = quota["spec"].get("qosResources").filter(|given| !given.is_null()) {
        status.insert("qosResources".to_owned(), given.clone());
        status.insert("qosResourcesUsage".to_owned(), counted.rendered());
    }
    json!(status)
}
