//! The classes of QoS resources that quotas give to a namespace, and their usage.
//!
//! A resource listed for pods is counted by pod. One listed for containers is counted by container;
//! containers without a class are in the pod's. A class with a capacity may be used that many times
//! at once, one without any number of times.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

use super::{Level, QuotaRefusal, name_of, usage::is_alive};
use crate::rules::pod::class_resources::full_name;
use crate::timestamp::Timestamp;
use crate::totals::{class_uses, named_by_containers, pod_classes};

/// The number of uses by level, resource and class.
type Uses = BTreeMap<(Level, String, String), i64>;

const LEVELS: [Level; 2] = [Level::Pod, Level::Container];

fn items(list: &Value) -> &[Value] {
    list.as_array().map(Vec::as_slice).unwrap_or_default()
}

/// Returns the classes that a quota gives, by level and full name, with their capacity.
fn given(classes: &Value) -> BTreeMap<(Level, &str), BTreeMap<&str, i64>> {
    let mut given: BTreeMap<(Level, &str), BTreeMap<&str, i64>> = BTreeMap::new();
    for level in LEVELS {
        for resource in items(&classes[level.field()]) {
            let name = full_name(resource["name"].as_str().unwrap_or_default());
            let listed = given.entry((level, name)).or_default();
            for class in items(&resource["classes"]) {
                if let Some(name) = class["name"].as_str() {
                    listed.insert(name, class["capacity"].as_i64().unwrap_or(0));
                }
            }
        }
    }
    given
}

/// The bounds that a quota enforces: those of its status, or of its spec while there is none.
fn enforced(quota: &Value) -> &Value {
    let of_status = &quota["status"]["qosResources"];
    if of_status.is_null() { &quota["spec"]["qosResources"] } else { of_status }
}

/// Returns the uses of a pod. A resource that the pod itself requests is counted by container if
/// the quotas list it for containers, or if a container names it; else it is counted by pod.
fn uses(pod: &Value, of_containers: &BTreeSet<&str>, now: Timestamp) -> Uses {
    let mut uses = Uses::new();
    if !is_alive(pod, now) {
        return uses;
    }
    let named = named_by_containers(pod);
    let own = pod_classes(pod);
    for (name, class) in &own {
        if !of_containers.contains(name) && !named.contains(name) {
            uses.insert((Level::Pod, (*name).to_owned(), (*class).to_owned()), 1);
        }
    }
    let inherited = own.keys().copied().filter(|name| of_containers.contains(name));
    let names: BTreeSet<&str> = named.iter().copied().chain(inherited).collect();
    for name in names {
        for (class, count) in class_uses(pod, name) {
            uses.insert((Level::Container, name.to_owned(), class.to_owned()), count);
        }
    }
    uses
}

/// Returns the resources that quotas list for containers.
fn container_resources<'a>(classes: impl Iterator<Item = &'a Value>) -> BTreeSet<&'a str> {
    let names = classes.flat_map(|classes| items(&classes["container"]));
    names.filter_map(|resource| resource["name"].as_str()).map(full_name).collect()
}

/// Charges the classes of a pod, to the quotas as they are charged so far. A quota that did not
/// cover the old pod is charged for all of the new one.
pub(super) fn charge(
    quotas: &[&Value],
    pod: &Value,
    old: Option<&Value>,
    covered_before: impl Fn(&Value) -> bool,
    now: Timestamp,
    charged: &mut BTreeMap<String, Value>,
) -> Result<(), QuotaRefusal> {
    let speaking: Vec<&Value> =
        quotas.iter().copied().filter(|quota| enforced(quota).is_object()).collect();
    let Some(first) = speaking.first() else { return Ok(()) };
    let of_containers = container_resources(speaking.iter().map(|quota| enforced(quota)));
    let before = old.map(|old| uses(old, &of_containers, now)).unwrap_or_default();
    for (key, count) in uses(pod, &of_containers, now) {
        let (level, resource, class) = &key;
        let had = before.get(&key).copied().unwrap_or(0);
        let (mut is_listed, mut is_more) = (false, false);
        for quota in &speaking {
            let more = if covered_before(quota) { count - had } else { count };
            is_more |= more > 0;
            let given = given(enforced(quota));
            let Some(classes) = given.get(&(*level, resource.as_str())) else { continue };
            is_listed = true;
            if more <= 0 {
                continue;
            }
            let Some(capacity) = classes.get(class.as_str()) else {
                return Err(refused(quota, *level, resource, class));
            };
            charge_one(quota, &key, more, *capacity, charged)?;
        }
        if is_more && !is_listed {
            return Err(refused(first, *level, resource, class));
        }
    }
    Ok(())
}

fn refused(quota: &Value, level: Level, resource: &str, class: &str) -> QuotaRefusal {
    let (resource, class) = (resource.to_owned(), class.to_owned());
    QuotaRefusal::ClassNotAllowed { quota: name_of(quota), level, resource, class }
}

fn charge_one(
    quota: &Value,
    key: &(Level, String, String),
    count: i64,
    capacity: i64,
    charged: &mut BTreeMap<String, Value>,
) -> Result<(), QuotaRefusal> {
    let name = name_of(quota);
    let known = quota["status"]["qosResourcesUsage"].is_object();
    let mut counted = ClassUsage::new(enforced(quota));
    counted.read(&charged.get(&name).unwrap_or(quota)["status"]["qosResourcesUsage"]);
    let used = counted.uses.get(key).copied().unwrap_or(0);
    let (level, resource, class) = key.clone();
    if capacity > 0 && !known {
        let resources = vec![format!("{}.{resource}/{class}", level.field())];
        return Err(QuotaRefusal::UnknownStatus { quota: name, resources });
    }
    if capacity > 0 && used.saturating_add(count) > capacity {
        return Err(QuotaRefusal::ClassExceeded {
            quota: name,
            level,
            resource,
            class,
            requested: count,
            used,
            limited: capacity,
        });
    }
    if !known {
        // The first count is made from all pods, not from this one.
        return Ok(());
    }
    counted.uses.insert(key.clone(), used.saturating_add(count));
    let changed = charged.entry(name).or_insert_with(|| quota.clone());
    if let Some(status) = changed.get_mut("status").and_then(Value::as_object_mut) {
        status.insert("qosResourcesUsage".to_owned(), counted.rendered());
    }
    Ok(())
}

/// The uses of all classes of a quota.
#[derive(Debug)]
pub(super) struct ClassUsage<'a> {
    classes: &'a Value,
    of_containers: BTreeSet<&'a str>,
    uses: Uses,
}

impl<'a> ClassUsage<'a> {
    pub(super) fn new(classes: &'a Value) -> ClassUsage<'a> {
        let of_containers = container_resources(std::iter::once(classes));
        ClassUsage { classes, of_containers, uses: Uses::new() }
    }

    pub(super) fn add(&mut self, pod: &Value, now: Timestamp) {
        for (key, count) in uses(pod, &self.of_containers, now) {
            let sum = self.uses.entry(key).or_default();
            *sum = sum.saturating_add(count);
        }
    }

    /// Adds a usage of a status.
    fn read(&mut self, usage: &Value) {
        for ((level, resource), classes) in given(usage) {
            for (class, count) in classes {
                self.uses.insert((level, resource.to_owned(), class.to_owned()), count);
            }
        }
    }

    /// Renders the usage for a status: the classes of the quota, in its order and spelling.
    pub(super) fn rendered(&self) -> Value {
        let mut out = Map::new();
        for level in LEVELS {
            let resources = items(&self.classes[level.field()]).iter().map(|resource| {
                let name = resource["name"].as_str().unwrap_or_default();
                let classes = items(&resource["classes"]).iter().map(|class| {
                    let class = class["name"].as_str().unwrap_or_default();
                    let key = (level, full_name(name).to_owned(), class.to_owned());
                    match self.uses.get(&key).copied().unwrap_or(0) {
                        0 => json!({"name": class}),
                        count => json!({"name": class, "capacity": count}),
                    }
                });
                let classes: Vec<Value> = classes.collect();
                match classes.is_empty() {
                    true => json!({"name": name}),
                    false => json!({"name": name, "classes": classes}),
                }
            });
            let resources: Vec<Value> = resources.collect();
            if !resources.is_empty() {
                out.insert(level.field().to_owned(), resources.into());
            }
        }
        Value::Object(out)
    }
}
