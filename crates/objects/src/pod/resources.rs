//! Resources of a pod as a whole: [`PodResources`], from which its QoS class, effective requests and
//! effective limits follow.
//!
//! The API server, the scheduler, the agent and the planner each hold pods in a form of their own. Each
//! lends the amounts to a [`PodResources`] and asks it, so that all four agree. Amounts are taken as they
//! are: defaults have been set before. Single containers are placed by `placement`.

use std::borrow::Cow;

use serde_json::Value;

use super::{QosClass, Role};
use crate::quantity::Quantity;
use crate::resources::{self, CPU, MEMORY, ResourceList};

/// Requests or limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    Requests,
    Limits,
}

impl Side {
    pub const BOTH: [Side; 2] = [Side::Requests, Side::Limits];

    /// The name of the list in `resources`.
    #[must_use]
    pub fn field(self) -> &'static str {
        match self {
            Side::Requests => "requests",
            Side::Limits => "limits",
        }
    }
}

/// Amounts that can be summed over the containers of a pod.
pub trait Summable: Clone + Default {
    fn add(&mut self, other: &Self);
    /// Raises each amount to that of `other` where it is less.
    fn raise(&mut self, other: &Self);
}

impl Summable for ResourceList {
    fn add(&mut self, other: &ResourceList) {
        resources::add(self, other);
    }

    fn raise(&mut self, other: &ResourceList) {
        resources::raise(self, other);
    }
}

macro_rules! summable_numbers {
    ($($number:ty)*) => {$(
        impl Summable for $number {
            fn add(&mut self, other: &$number) {
                *self = self.saturating_add(*other);
            }

            fn raise(&mut self, other: &$number) {
                *self = (*self).max(*other);
            }
        }
    )*};
}
summable_numbers!(u32 u64 usize i64);

/// Returns what containers need together at the moment they need most: all app containers with all
/// sidecars, or one init container with the sidecars started before it. Init containers and sidecars are
/// given in the order in which they start.
pub fn peak<A: Summable>(containers: impl IntoIterator<Item = (Role, A)>) -> A {
    let (mut apps, mut sidecars, mut starting) = (A::default(), A::default(), A::default());
    for (role, mut own) in containers {
        match role {
            Role::App => apps.add(&own),
            Role::Sidecar => {
                sidecars.add(&own);
                starting.raise(&sidecars);
            }
            Role::Init => {
                own.add(&sidecars);
                starting.raise(&own);
            }
        }
    }
    apps.add(&sidecars);
    apps.raise(&starting);
    apps
}

/// Requests and limits of a container, or of the pod as a whole.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Requirements<'a> {
    requests: Cow<'a, ResourceList>,
    limits: Cow<'a, ResourceList>,
}

impl<'a> Requirements<'a> {
    #[must_use]
    pub fn new(requests: &'a ResourceList, limits: &'a ResourceList) -> Requirements<'a> {
        Requirements { requests: Cow::Borrowed(requests), limits: Cow::Borrowed(limits) }
    }

    /// Reads `resources` of an object.
    fn of_value(resources: &Value) -> Requirements<'a> {
        let list = |side: Side| Cow::Owned(read_list(&resources[side.field()]));
        Requirements { requests: list(Side::Requests), limits: list(Side::Limits) }
    }

    #[must_use]
    pub fn get(&self, side: Side) -> &ResourceList {
        match side {
            Side::Requests => &self.requests,
            Side::Limits => &self.limits,
        }
    }

    pub(crate) fn set(&mut self, side: Side, list: ResourceList) {
        match side {
            Side::Requests => self.requests = Cow::Owned(list),
            Side::Limits => self.limits = Cow::Owned(list),
        }
    }

    /// Reports whether the list gives a resource that can be set for a pod as a whole. Without one,
    /// `spec.resources` of a pod counts as absent.
    #[must_use]
    pub fn is_pod_level(&self) -> bool {
        Side::BOTH
            .into_iter()
            .flat_map(|side| self.get(side).keys())
            .any(|n| resources::is_pod_level(n))
    }
}

/// Reads a list of amounts. An amount that cannot be read is left out.
pub(crate) fn read_list(list: &Value) -> ResourceList {
    let entries = list.as_object().into_iter().flatten();
    let read = |(name, amount): (&String, &Value)| {
        Some((name.clone(), Quantity::parse(amount.as_str()?).ok()?))
    };
    entries.filter_map(read).collect()
}

/// A container of a pod and its resources.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerResources<'a> {
    pub name: &'a str,
    pub role: Role,
    pub requirements: Requirements<'a>,
}

/// The resources of a pod: its containers', its own and its overhead.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PodResources<'a> {
    pub(crate) containers: Vec<ContainerResources<'a>>,
    /// `spec.resources`, if they set anything.
    pod_level: Option<Requirements<'a>>,
    overhead: Cow<'a, ResourceList>,
    reported_class: Option<QosClass>,
}

impl<'a> PodResources<'a> {
    /// Takes init containers and app containers, in the order in which they start. Ephemeral containers
    /// have no resources.
    #[must_use]
    pub fn new(containers: impl IntoIterator<Item = ContainerResources<'a>>) -> PodResources<'a> {
        PodResources { containers: containers.into_iter().collect(), ..PodResources::default() }
    }

    /// Reads the `spec` of a pod.
    #[must_use]
    pub fn of_spec(spec: &'a Value) -> PodResources<'a> {
        let containers = |field: &str| spec[field].as_array().into_iter().flatten();
        let container = |role: Role, container: &'a Value| ContainerResources {
            name: container["name"].as_str().unwrap_or_default(),
            role,
            requirements: Requirements::of_value(&container["resources"]),
        };
        let init = containers("initContainers").map(|c| container(Role::of_init_container(c), c));
        let apps = containers("containers").map(|c| container(Role::App, c));
        let mut resources = PodResources::new(init.chain(apps));
        resources.pod_level =
            Some(Requirements::of_value(&spec["resources"])).filter(Requirements::is_pod_level);
        resources.overhead = Cow::Owned(read_list(&spec["overhead"]));
        resources
    }

    /// Sets `spec.resources`. They count only if they give a resource that a pod can have as a whole.
    #[must_use]
    pub fn with_pod_level(mut self, pod_level: Option<Requirements<'a>>) -> PodResources<'a> {
        self.pod_level = pod_level.filter(Requirements::is_pod_level);
        self
    }

    #[must_use]
    pub fn with_overhead(mut self, overhead: &'a ResourceList) -> PodResources<'a> {
        self.overhead = Cow::Borrowed(overhead);
        self
    }

    #[must_use]
    pub fn without_overhead(mut self) -> PodResources<'a> {
        self.overhead = Cow::default();
        self
    }

    /// Sets `status.qosClass`, which takes precedence over the class that follows from the amounts.
    #[must_use]
    pub fn with_reported_class(mut self, class: Option<QosClass>) -> PodResources<'a> {
        self.reported_class = class;
        self
    }

    #[must_use]
    pub fn containers(&self) -> &[ContainerResources<'a>] {
        &self.containers
    }

    /// Returns `spec.resources`, if they set anything.
    #[must_use]
    pub fn pod_level(&self) -> Option<&Requirements<'a>> {
        self.pod_level.as_ref()
    }

    /// Returns what the containers need together, whatever is set for the pod as a whole.
    #[must_use]
    pub fn of_containers(&self, side: Side) -> ResourceList {
        peak(self.containers.iter().map(|c| (c.role, c.requirements.get(side).clone())))
    }

    /// Returns what the pod needs of a node: pod-level amounts where they are given, else those of the
    /// containers, and overhead. Overhead raises only limits that exist.
    #[must_use]
    pub fn effective(&self, side: Side) -> ResourceList {
        let mut total = self.of_containers(side);
        let pod_level = self.pod_level.iter().flat_map(|level| level.get(side));
        let pod_level = pod_level.filter(|(name, _)| resources::is_pod_level(name));
        total.extend(pod_level.map(|(name, amount)| (name.clone(), amount.clone())));
        let mut overhead = self.overhead.clone();
        if side == Side::Limits && !overhead.is_empty() {
            let is_limited = |name: &String| total.get(name).is_some_and(|limit| !limit.is_zero());
            overhead.to_mut().retain(|name, _| is_limited(name));
        }
        resources::add(&mut total, &overhead);
        total
    }

    /// Returns the QoS class, as upstream computes it: from cpu and memory only, pod-level resources
    /// before those of containers, init containers included.
    #[must_use]
    pub fn qos_class(&self) -> QosClass {
        if let Some(class) = self.reported_class {
            return class;
        }
        let (mut requests, mut limits) = (ResourceList::new(), ResourceList::new());
        let mut all_limited = true;
        let mut count = |of: &Requirements<'_>, limits_may_lack: bool| {
            resources::add(&mut requests, &counted(&of.requests));
            let counted = counted(&of.limits);
            all_limited &= limits_may_lack || counted.len() == 2;
            resources::add(&mut limits, &counted);
        };
        match &self.pod_level {
            Some(level) => count(level, level.limits.is_empty()),
            None => self.containers.iter().for_each(|c| count(&c.requirements, false)),
        }
        if requests.is_empty() && limits.is_empty() {
            QosClass::BestEffort
        } else if all_limited && requests == limits {
            QosClass::Guaranteed
        } else {
            QosClass::Burstable
        }
    }
}

/// Returns the amounts above zero of the resources that decide the QoS class.
fn counted(list: &ResourceList) -> ResourceList {
    [CPU, MEMORY]
        .into_iter()
        .filter_map(|name| list.get_key_value(name))
        .filter(|(_, amount)| amount.sign() > 0)
        .map(|(name, amount)| (name.clone(), amount.clone()))
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn container(requests: &Value, limits: &Value) -> Value {
        json!({"resources": {"requests": requests, "limits": limits}})
    }

    #[test]
    fn qos_class_follows_requests_and_limits_of_all_containers() {
        let both = json!({"cpu": "1", "memory": "1Gi"});
        let guaranteed = json!([container(&both, &both)]);
        let empty = json!({});
        let gpu = json!({"nvidia.com/gpu": "1"});
        let pod = |containers: &Value, pod_level: Value| {
            let spec = json!({"containers": containers, "resources": pod_level});
            PodResources::of_spec(&spec).qos_class()
        };
        for (containers, pod_level, class) in [
            (guaranteed.clone(), Value::Null, QosClass::Guaranteed),
            (json!([guaranteed[0], {"resources": {}}]), Value::Null, QosClass::Burstable),
            (json!([{"resources": {}}]), Value::Null, QosClass::BestEffort),
            (json!([container(&json!({"cpu": "0"}), &empty)]), Value::Null, QosClass::BestEffort),
            (json!([container(&gpu, &gpu)]), Value::Null, QosClass::BestEffort),
            (json!([{}]), json!({"requests": both, "limits": both}), QosClass::Guaranteed),
            (guaranteed.clone(), json!({"requests": {"cpu": "2"}}), QosClass::Burstable),
            // Pod-level resources that set nothing leave the class to the containers.
            (guaranteed.clone(), json!({}), QosClass::Guaranteed),
            (guaranteed.clone(), json!({"requests": {}, "limits": {}}), QosClass::Guaranteed),
            (guaranteed.clone(), json!({"requests": gpu}), QosClass::Guaranteed),
        ] {
            assert_eq!(pod(&containers, pod_level.clone()), class, "{containers} {pod_level}");
        }
        let with_init = json!({"initContainers": [{}], "containers": guaranteed});
        assert_eq!(PodResources::of_spec(&with_init).qos_class(), QosClass::Burstable);
    }

    #[test]
    fn reported_class_takes_precedence() {
        let pod = PodResources::default().with_reported_class(Some(QosClass::Burstable));
        assert_eq!(pod.qos_class(), QosClass::Burstable);
    }

    #[test]
    fn pod_needs_its_peak_and_its_overhead() {
        let cpu = |amount: &str| json!({"cpu": amount});
        let sidecar = json!({"resources": {"requests": cpu("1")}, "restartPolicy": "Always"});
        let spec = json!({
            "overhead": {"cpu": "100m", "memory": "1Mi"},
            "initContainers": [
                container(&cpu("3"), &json!({})), sidecar, container(&cpu("3"), &json!({})),
            ],
            "containers": [container(&cpu("1"), &cpu("0")), container(&cpu("500m"), &cpu("2"))],
        });
        let pod = PodResources::of_spec(&spec);
        assert_eq!(pod.effective(Side::Requests)["cpu"].to_string(), "4100m");
        assert_eq!(pod.effective(Side::Limits)["cpu"].to_string(), "2100m");
        assert_eq!(pod.effective(Side::Limits).len(), 1, "overhead sets no limit");
        let alone = pod.without_overhead();
        assert_eq!(alone.effective(Side::Requests)["cpu"].to_string(), "4");
    }

    #[test]
    fn pod_level_amounts_replace_those_of_containers() {
        let spec = json!({
            "resources": {"requests": {"cpu": "4", "example.com/gpu": "7"}},
            "containers": [container(&json!({"cpu": "1", "memory": "1Gi"}), &json!({}))],
        });
        let pod = PodResources::of_spec(&spec);
        let total = pod.effective(Side::Requests);
        assert_eq!(
            (total["cpu"].to_string(), total["memory"].to_string()),
            ("4".into(), "1Gi".into())
        );
        assert!(!total.contains_key("example.com/gpu"));
        assert_eq!(pod.of_containers(Side::Requests)["cpu"].to_string(), "1");
    }
}
