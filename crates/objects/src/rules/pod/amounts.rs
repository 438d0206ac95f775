//! Resource amounts of a pod as values: what its containers add up to, and the QoS class.
//!
//! Resource lists are read from canonical values here; whether the amounts make sense is checked
//! in [`super::resources`].

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::is_sidecar;
use crate::quantity::Quantity;
use crate::resources::{CPU, MEMORY, is_pod_level};

/// Resource name → amount.
pub(super) type Amounts<'a> = BTreeMap<&'a str, Quantity>;

/// Which of the two lists of `resources`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    Requests,
    Limits,
}

impl Side {
    pub(super) fn field(self) -> &'static str {
        match self {
            Side::Requests => "requests",
            Side::Limits => "limits",
        }
    }
}

/// A quantity in a canonical value; zero if it is none.
pub(super) fn quantity(value: &Value) -> Quantity {
    value.as_str().and_then(|text| Quantity::parse(text).ok()).unwrap_or_default()
}

/// `resources.requests` or `resources.limits`, as it stands.
pub(super) fn list(resources: &Value, side: Side) -> Option<&Map<String, Value>> {
    resources.get(side.field())?.as_object()
}

fn amounts(resources: &Value, side: Side) -> Amounts<'_> {
    let entries = list(resources, side).into_iter().flatten();
    entries.map(|(name, value)| (name.as_str(), quantity(value))).collect()
}

fn add<'a>(sum: &mut Amounts<'a>, more: &Amounts<'a>) {
    for (name, amount) in more {
        let total = match sum.get(name) {
            // Amounts too far apart to add: the larger one stands in.
            Some(have) => have.checked_add(amount).unwrap_or_else(|| have.max(amount).clone()),
            None => amount.clone(),
        };
        sum.insert(name, total);
    }
}

fn raise<'a>(most: &mut Amounts<'a>, other: &Amounts<'a>) {
    for (name, amount) in other {
        match most.get_mut(name) {
            Some(have) if *have >= *amount => {}
            Some(have) => *have = amount.clone(),
            None => {
                most.insert(name, amount.clone());
            }
        }
    }
}

/// What the containers need together: all containers and sidecars at once, and before that every
/// init container beside the sidecars started so far.
pub(super) fn of_containers(spec: &Value, side: Side) -> Amounts<'_> {
    let items = |field: &str| spec.get(field).and_then(Value::as_array).into_iter().flatten();
    let mut total = Amounts::new();
    for container in items("containers") {
        add(&mut total, &amounts(&container["resources"], side));
    }
    let (mut sidecars, mut at_start) = (Amounts::new(), Amounts::new());
    for container in items("initContainers") {
        let mut own = amounts(&container["resources"], side);
        if is_sidecar(container) {
            add(&mut total, &own);
            add(&mut sidecars, &own);
            raise(&mut at_start, &sidecars);
        } else {
            add(&mut own, &sidecars);
            raise(&mut at_start, &own);
        }
    }
    raise(&mut total, &at_start);
    total
}

/// What the pod requests in all: what it says for itself, else its containers together, and its overhead.
pub(super) fn requests(spec: &Value) -> Amounts<'_> {
    let mut total = of_containers(spec, Side::Requests);
    total.extend(amounts(&spec["resources"], Side::Requests));
    let overhead = spec.get("overhead").and_then(Value::as_object).into_iter().flatten();
    add(&mut total, &overhead.map(|(name, value)| (name.as_str(), quantity(value))).collect());
    total
}

/// How firmly the pod's requests are promised to it, in the word of `status.qosClass`.
#[must_use]
pub fn qos_class(spec: &Value) -> &'static str {
    let mut sums = [Amounts::new(), Amounts::new()];
    let mut every_limit_given = true;
    let mut count = |resources: &'_ Value, limits_may_lack: bool| -> (usize, usize) {
        let mut counted = [0, 0];
        for (at, side) in [Side::Requests, Side::Limits].into_iter().enumerate() {
            let Some(list) = list(resources, side) else { continue };
            for name in [CPU, MEMORY] {
                let Some(value) = list.get(name) else { continue };
                let amount = quantity(value);
                if amount.sign() > 0 {
                    counted[at] += 1;
                    add(&mut sums[at], &Amounts::from([(name, amount)]));
                }
            }
        }
        every_limit_given &= limits_may_lack || counted[1] == 2;
        (counted[0], counted[1])
    };
    match spec.get("resources").filter(|resources| is_given(resources)) {
        Some(pod_level) => {
            let limits = list(pod_level, Side::Limits).is_none_or(Map::is_empty);
            count(pod_level, limits);
        }
        None => {
            for container in super::containers_of(spec).take(counted_containers(spec)) {
                count(&container["resources"], false);
            }
        }
    }
    let [requests, limits] = sums;
    if requests.is_empty() && limits.is_empty() {
        "BestEffort"
    } else if every_limit_given && requests == limits {
        "Guaranteed"
    } else {
        "Burstable"
    }
}

/// Whether a pod's own `resources` say anything; if not, its containers are looked at.
fn is_given(resources: &Value) -> bool {
    let lists = [Side::Requests, Side::Limits].into_iter().filter_map(|side| list(resources, side));
    lists.flat_map(Map::keys).any(|name| is_pod_level(name))
}

/// Init containers and containers; ephemeral containers come after them and have no resources.
fn counted_containers(spec: &Value) -> usize {
    let len = |field: &str| spec.get(field).and_then(Value::as_array).map_or(0, Vec::len);
    len("initContainers") + len("containers")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_class_follows_requests_and_limits_of_all_containers() {
        let container = |requests: Value, limits: Value| json!({"resources": {"requests": requests, "limits": limits}});
        let both = json!({"cpu": "1", "memory": "1Gi"});
        let guaranteed = json!({"containers": [container(both.clone(), both.clone())]});
        assert_eq!(qos_class(&guaranteed), "Guaranteed");
        let one_without =
            json!({"containers": [container(both.clone(), both.clone()), {"resources": {}}]});
        assert_eq!(qos_class(&one_without), "Burstable");
        assert_eq!(qos_class(&json!({"containers": [{"resources": {}}]})), "BestEffort");
        let pod_level = json!({"resources": {"requests": both, "limits": both}, "containers": [{"resources": {}}]});
        assert_eq!(qos_class(&pod_level), "Guaranteed");
        let nothing_said = json!({"resources": {}, "containers": guaranteed["containers"]});
        assert_eq!(qos_class(&nothing_said), "Guaranteed");
    }

    #[test]
    fn sidecars_count_beside_the_init_containers_that_follow() {
        let cpu = |amount: &str| json!({"requests": {"cpu": amount}});
        let spec = json!({
            "containers": [{"resources": cpu("1")}],
            "initContainers": [
                {"resources": cpu("1"), "restartPolicy": "Always"},
                {"resources": cpu("5")},
            ],
        });
        assert_eq!(of_containers(&spec, Side::Requests)["cpu"].to_string(), "6");
    }
}
