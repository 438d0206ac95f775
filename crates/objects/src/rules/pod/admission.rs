//! Pod admission that depends on other objects and on defaults of the server: default tolerations,
//! priority, overhead and node selector of the runtime class, topology labels of the node; and the
//! check that a node has enough capacity for a resize.
//!
//! Other objects are looked up through functions of the caller. A refusal is answered with 403 and
//! its text after `pods "name" is forbidden: `.

use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value, json};
use thiserror::Error;

use super::{amounts, equality};
use crate::pod::resources::{PodResources, Side};
use crate::quantity::Quantity;
use crate::resources::{CPU, MEMORY};

/// The seconds that a pod stays on a node that is not ready or not reachable, unless it has its own
/// toleration.
const TOLERATION_SECONDS: i64 = 300;
const NOT_READY: &str = "node.kubernetes.io/not-ready";
const UNREACHABLE: &str = "node.kubernetes.io/unreachable";
const PREEMPT_LOWER: &str = "PreemptLowerPriority";
/// The labels of nodes that are copied to their pods.
const TOPOLOGY: [&str; 2] = ["topology.kubernetes.io/zone", "topology.kubernetes.io/region"];
/// The label of nodes that names their operating system.
const OS: &str = "kubernetes.io/os";

/// Admission rejects a pod.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum PodRefusal {
    #[error("no PriorityClass with name {0} was found")]
    NoPriorityClass(String),
    #[error(
        "the integer value of priority ({given}) must not be provided in pod spec; priority \
         admission controller computed {computed} from the given PriorityClass name"
    )]
    OtherPriority { given: i64, computed: i64 },
    #[error(
        "the string value of PreemptionPolicy ({given}) must not be provided in pod spec; priority \
         admission controller computed {computed} from the given PriorityClass name"
    )]
    OtherPreemption { given: String, computed: String },
    #[error("pod rejected: RuntimeClass {0:?} not found")]
    NoRuntimeClass(String),
    #[error("pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead")]
    OtherOverhead,
    #[error("pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead")]
    UnfoundedOverhead,
    #[error(
        "conflict: runtimeClass.scheduling.nodeSelector[{key}] = {wanted}; \
         pod.spec.nodeSelector[{key}] = {given}"
    )]
    OtherNodes { key: String, wanted: String, given: String },
    #[error("node {0:?} not found")]
    NoNode(String),
    #[error("pod resize is only supported on linux nodes, node {node:?} is {os:?}")]
    NotOnLinux { node: String, os: String },
    #[error("node didn't have enough allocatable resources: {}", .0.join("; "))]
    NotAllocatable(Vec<String>),
}

impl PodRefusal {
    /// The reason of a rejected resize, for programs.
    #[must_use]
    pub fn cause(&self) -> Option<&'static str> {
        match self {
            PodRefusal::NotOnLinux { .. } => Some("UnsupportedPlatform"),
            PodRefusal::NotAllocatable(_) => Some("NodeCapacity"),
            _ => None,
        }
    }
}

pub(super) fn spec_mut(pod: &mut Value) -> Option<&mut Map<String, Value>> {
    pod.get_mut("spec")?.as_object_mut()
}

pub(super) fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value.get(field).and_then(Value::as_str).unwrap_or_default()
}

/// Adds the default tolerations for nodes that are not ready or not reachable. On create and on
/// update of a pod.
pub fn default_tolerations(pod: &mut Value) {
    let Some(spec) = spec_mut(pod) else { return };
    let given = spec.get("tolerations").and_then(Value::as_array).map(Vec::as_slice);
    let tolerates = |key: &str| {
        given.unwrap_or_default().iter().any(|toleration| {
            matches!(text(toleration, "effect"), "" | "NoExecute")
                && (text(toleration, "key").is_empty() || text(toleration, "key") == key)
        })
    };
    let missing: Vec<Value> = [NOT_READY, UNREACHABLE]
        .into_iter()
        .filter(|key| !tolerates(key))
        .map(|key| {
            json!({
                "key": key,
                "operator": "Exists",
                "effect": "NoExecute",
                "tolerationSeconds": TOLERATION_SECONDS,
            })
        })
        .collect();
    if missing.is_empty() {
        return;
    }
    let tolerations = spec.entry("tolerations").or_insert_with(|| json!([]));
    if let Some(tolerations) = tolerations.as_array_mut() {
        tolerations.extend(missing);
    }
}

/// Copies the topology labels of a node to its pod or to the binding.
pub fn add_topology(pod: &mut Value, node: &Value) {
    let labels = node["metadata"].get("labels").and_then(Value::as_object);
    let found = labels.into_iter().flatten().filter(|(key, _)| TOPOLOGY.contains(&key.as_str()));
    let found: Vec<(String, Value)> =
        found.map(|(key, value)| (key.clone(), value.clone())).collect();
    let meta = pod.get_mut("metadata").and_then(Value::as_object_mut);
    let Some(meta) = meta.filter(|_| !found.is_empty()) else { return };
    let labels = meta.entry("labels").or_insert_with(|| json!({}));
    if let Some(labels) = labels.as_object_mut() {
        labels.extend(found);
    }
}

/// Rejects a resize of a bound pod to more than its node's allocatable. A resource that the node
/// does not list counts as zero. `node` finds the pod's node by name.
pub fn check_resize<'a>(
    pod: &Value,
    node: impl FnOnce(&str) -> Option<&'a Value>,
) -> Result<(), PodRefusal> {
    let on = text(&pod["spec"], "nodeName");
    if on.is_empty() {
        return Ok(());
    }
    let Some(node) = node(on) else { return Err(PodRefusal::NoNode(on.to_owned())) };
    let labels = node["metadata"].get("labels");
    if let Some(os) = labels.and_then(|labels| labels.get(OS)).and_then(Value::as_str)
        && os != "linux"
    {
        return Err(PodRefusal::NotOnLinux { node: on.to_owned(), os: os.to_owned() });
    }
    let requests = PodResources::of_spec(&pod["spec"]).effective(Side::Requests);
    let more = |name: &str, number: fn(&Quantity) -> i64| {
        let requested = requests.get(name)?;
        let there = amounts::quantity(&node["status"]["allocatable"][name]);
        let (number_requested, number_there) = (number(requested), number(&there));
        (*requested > there)
            .then(|| format!("{name}, requested: {number_requested}, allocatable: {number_there}"))
    };
    let lacking: Vec<String> = [more(CPU, Quantity::milli_value), more(MEMORY, Quantity::value)]
        .into_iter()
        .flatten()
        .collect();
    if lacking.is_empty() { Ok(()) } else { Err(PodRefusal::NotAllocatable(lacking)) }
}

/// Sets the priority of a new pod from its class. `class` finds a PriorityClass by name, the
/// global default with `None`.
pub fn resolve_priority<'a>(
    pod: &mut Value,
    class: impl FnOnce(Option<&str>) -> Option<&'a Value>,
) -> Result<(), PodRefusal> {
    let Some(spec) = spec_mut(pod) else { return Ok(()) };
    let name = spec.get("priorityClassName").and_then(Value::as_str).filter(|n| !n.is_empty());
    let found = class(name);
    let (priority, preemption) = match (name, found) {
        (_, Some(class)) => (
            class.get("value").and_then(Value::as_i64).unwrap_or(0),
            class.get("preemptionPolicy").and_then(Value::as_str).map(str::to_owned),
        ),
        (Some(name), None) => return Err(PodRefusal::NoPriorityClass(name.to_owned())),
        (None, None) => (0, Some(PREEMPT_LOWER.to_owned())),
    };
    if name.is_none()
        && let Some(class) = found
    {
        let name = text(&class["metadata"], "name").to_owned();
        spec.insert("priorityClassName".to_owned(), name.into());
    }
    if let Some(given) = spec.get("priority").and_then(Value::as_i64)
        && given != priority
    {
        return Err(PodRefusal::OtherPriority { given, computed: priority });
    }
    spec.insert("priority".to_owned(), priority.into());
    if let Some(computed) = preemption {
        if let Some(given) = spec.get("preemptionPolicy").and_then(Value::as_str)
            && given != computed
        {
            return Err(PodRefusal::OtherPreemption { given: given.to_owned(), computed });
        }
        spec.insert("preemptionPolicy".to_owned(), computed.into());
    }
    Ok(())
}

/// Restores the priority of a pod on update.
pub fn keep_priority(pod: &mut Value, old: &Value) {
    let Some(spec) = spec_mut(pod) else { return };
    for field in ["priority", "preemptionPolicy"] {
        if !spec.contains_key(field)
            && let Some(value) = old["spec"].get(field)
        {
            spec.insert(field.to_owned(), value.clone());
        }
    }
}

/// Adds overhead, node selector and tolerations of a new pod's runtime class. `class` finds a
/// RuntimeClass by name. A pod that sets an overhead without such a class is rejected later, by
/// [`check_overhead`].
pub fn resolve_runtime_class<'a>(
    pod: &mut Value,
    class: impl FnOnce(&str) -> Option<&'a Value>,
) -> Result<(), PodRefusal> {
    let Some(spec) = spec_mut(pod) else { return Ok(()) };
    let found = match spec.get("runtimeClassName").and_then(Value::as_str) {
        Some(name) => match class(name) {
            Some(class) => Some(class),
            None => return Err(PodRefusal::NoRuntimeClass(name.to_owned())),
        },
        None => None,
    };
    let fixed = found
        .and_then(|class| class.get("overhead"))
        .map(|overhead| overhead.get("podFixed").cloned().unwrap_or_else(|| json!({})));
    match (fixed, spec.get("overhead")) {
        (Some(fixed), Some(given))
            if !equality::same(&json!({"overhead": given}), &json!({"overhead": fixed})) =>
        {
            return Err(PodRefusal::OtherOverhead);
        }
        (Some(fixed), _) => {
            spec.insert("overhead".to_owned(), fixed);
        }
        (None, _) => {}
    }
    let Some(scheduling) = found.and_then(|class| class.get("scheduling")) else { return Ok(()) };
    if let Some(nodes) = scheduling.get("nodeSelector").and_then(Value::as_object) {
        let selector = spec.entry("nodeSelector").or_insert_with(|| json!({}));
        if let Some(selector) = selector.as_object_mut() {
            for (key, wanted) in nodes {
                if let Some(given) = selector.get(key)
                    && given != wanted
                {
                    return Err(PodRefusal::OtherNodes {
                        key: key.clone(),
                        wanted: wanted.as_str().unwrap_or_default().to_owned(),
                        given: given.as_str().unwrap_or_default().to_owned(),
                    });
                }
                selector.insert(key.clone(), wanted.clone());
            }
        }
    }
    if let Some(added) = scheduling.get("tolerations").and_then(Value::as_array)
        && !added.is_empty()
    {
        let given = spec.get("tolerations").and_then(Value::as_array).cloned().unwrap_or_default();
        spec.insert("tolerations".to_owned(), merged_tolerations(given, added).into());
    }
    Ok(())
}

/// Rejects a new pod that sets an overhead if its runtime class has none. Called once the pod is
/// valid.
pub fn check_overhead(pod: &Value, class: Option<&Value>) -> Result<(), PodRefusal> {
    let given = pod["spec"].get("overhead").and_then(Value::as_object);
    let costs = class.is_some_and(|class| class.get("overhead").is_some());
    match given {
        Some(given) if !given.is_empty() && !costs => Err(PodRefusal::UnfoundedOverhead),
        _ => Ok(()),
    }
}

/// Returns both lists without tolerations that others cover.
fn merged_tolerations(mut all: Vec<Value>, added: &[Value]) -> Vec<Value> {
    all.extend_from_slice(added);
    // A toleration covers another only if both have the same key, or if it is for all keys.
    let mut by_key: HashMap<&str, Vec<usize>> = HashMap::new();
    for (at, toleration) in all.iter().enumerate() {
        by_key.entry(text(toleration, "key")).or_default().push(at);
    }
    let mut kept = vec![false; all.len()];
    let mut seen: HashSet<&Value> = HashSet::with_capacity(all.len());
    for (at, toleration) in all.iter().enumerate() {
        if !seen.insert(toleration) {
            continue;
        }
        let key = text(toleration, "key");
        let every_key = (!key.is_empty()).then(|| by_key.get("")).flatten();
        let others = every_key.into_iter().chain(by_key.get(key)).flatten();
        let covered = others.take(MAX_COMPARED).any(|other| {
            let (before, other_is) = (*other < at, &all[*other]);
            (!before || kept[*other]) && other_is != toleration && covers(other_is, toleration)
        });
        kept[at] = !covered;
    }
    let mut kept = kept.into_iter();
    all.retain(|_| kept.next().unwrap_or(true));
    all
}

/// The number of other tolerations with the same key that are compared. A pod with more keeps
/// tolerations that it does not need.
const MAX_COMPARED: usize = 100;

/// Reports whether a pod with `wide` does not need `narrow`.
fn covers(wide: &Value, narrow: &Value) -> bool {
    if wide == narrow {
        return true;
    }
    let any_key = text(wide, "key").is_empty() && text(wide, "operator") == "Exists";
    if text(narrow, "key") != text(wide, "key") && !any_key {
        return false;
    }
    if !text(wide, "effect").is_empty() && text(narrow, "effect") != text(wide, "effect") {
        return false;
    }
    let seconds = |of: &Value| of.get("tolerationSeconds").and_then(Value::as_i64);
    if text(wide, "effect") == "NoExecute"
        && let Some(limit) = seconds(wide)
        && seconds(narrow).is_none_or(|seconds| seconds > limit)
    {
        return false;
    }
    match text(wide, "operator") {
        "Exists" => true,
        "Equal" | "" => {
            matches!(text(narrow, "operator"), "Equal" | "")
                && text(narrow, "value") == text(wide, "value")
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_toleration_of_everything_needs_no_defaults() {
        let mut pod = json!({"spec": {"tolerations": [{"operator": "Exists"}]}});
        default_tolerations(&mut pod);
        assert_eq!(pod["spec"]["tolerations"].as_array().unwrap().len(), 1);
        let mut pod = json!({"spec": {}});
        default_tolerations(&mut pod);
        assert_eq!(pod["spec"]["tolerations"].as_array().unwrap().len(), 2);
    }

    #[test]
    fn a_class_gives_the_priority_and_contradictions_are_refused() {
        let class = json!({"metadata": {"name": "high"}, "value": 7, "preemptionPolicy": "Never"});
        let mut pod = json!({"spec": {"priorityClassName": "high"}});
        assert_eq!(resolve_priority(&mut pod, |_| Some(&class)), Ok(()));
        assert_eq!(pod["spec"]["priority"], 7);
        let mut pod = json!({"spec": {"priorityClassName": "high", "priority": 3}});
        let refusal = PodRefusal::OtherPriority { given: 3, computed: 7 };
        assert_eq!(resolve_priority(&mut pod, |_| Some(&class)), Err(refusal));
        let mut pod = json!({"spec": {"priorityClassName": "none"}});
        assert_eq!(
            resolve_priority(&mut pod, |_| None).unwrap_err().to_string(),
            "no PriorityClass with name none was found"
        );
    }

    #[test]
    fn resize_beyond_node_capacity_is_rejected() {
        let node = json!({"status": {"allocatable": {"cpu": "1700m", "memory": "1Gi"}}});
        let refused = |mut spec: Value, node: Option<&Value>| {
            spec["nodeName"] = "n".into();
            check_resize(&json!({"spec": spec}), |_| node).err()
        };
        let check = |spec: Value, wanted: &str| {
            let refusal = refused(spec, Some(&node));
            let expected = refusal.map(|refusal| refusal.to_string()).unwrap_or_default();
            assert_eq!(expected, wanted);
        };
        let containers = |cpu: &str, memory: &str| {
            let resources = json!({"requests": {"cpu": cpu, "memory": memory}});
            json!([{"name": "c", "resources": resources}, {"name": "d"}])
        };
        check(json!({"containers": containers("1700m", "1Gi")}), "");
        let no = "node didn't have enough allocatable resources: ";
        let cpu = "cpu, requested: 1750, allocatable: 1700";
        let memory = "memory, requested: 2147483648, allocatable: 1073741824";
        let spec = json!({"containers": containers("1500m", "1Gi"), "overhead": {"cpu": "250m"}});
        check(spec, &format!("{no}{cpu}"));
        let spec = json!({
            "containers": containers("1", "1Mi"),
            "resources": {"requests": {"cpu": "1750m", "memory": "2Gi"}},
        });
        check(spec, &format!("{no}{cpu}; {memory}"));
        check(
            json!({"containers": containers("2", "1Mi"), "resources": {"requests": {"cpu": "1"}}}),
            "",
        );
        let small = || json!({"containers": containers("1", "1Mi")});
        let windows = json!({"metadata": {"labels": {"kubernetes.io/os": "windows"}}});
        let bare = json!({"metadata": {}});
        let none =
            "cpu, requested: 1000, allocatable: 0; memory, requested: 1048576, allocatable: 0";
        for (node, expected, cause) in [
            (None, "node \"n\" not found".to_owned(), None),
            (
                Some(&windows),
                "pod resize is only supported on linux nodes, node \"n\" is \"windows\"".to_owned(),
                Some("UnsupportedPlatform"),
            ),
            (Some(&bare), format!("{no}{none}"), Some("NodeCapacity")),
        ] {
            let refusal = refused(small(), node).unwrap();
            assert_eq!((refusal.to_string(), refusal.cause()), (expected, cause));
        }
        assert_eq!(check_resize(&json!({"spec": small()}), |_| None), Ok(()));
    }

    #[test]
    fn a_runtime_class_adds_its_overhead_and_nodes() {
        let class = json!({
            "overhead": {"podFixed": {"cpu": "250m"}},
            "scheduling": {
                "nodeSelector": {"kata": "yes"},
                "tolerations": [{"key": "kata", "operator": "Exists"}],
            },
        });
        let mut pod = json!({"spec": {"runtimeClassName": "kata", "tolerations": [
            {"key": "kata", "operator": "Equal", "value": "a", "effect": "NoSchedule"}
        ]}});
        assert_eq!(resolve_runtime_class(&mut pod, |_| Some(&class)), Ok(()));
        assert_eq!(pod["spec"]["overhead"]["cpu"], "250m");
        assert_eq!(pod["spec"]["nodeSelector"]["kata"], "yes");
        assert_eq!(pod["spec"]["tolerations"], json!([{"key": "kata", "operator": "Exists"}]));
        let mut pod = json!({"spec": {"overhead": {"cpu": "1"}}});
        assert_eq!(resolve_runtime_class(&mut pod, |_| None), Ok(()));
        assert_eq!(check_overhead(&pod, None), Err(PodRefusal::UnfoundedOverhead));
        assert_eq!(check_overhead(&pod, Some(&json!({}))), Err(PodRefusal::UnfoundedOverhead));
        assert_eq!(check_overhead(&pod, Some(&class)), Ok(()));
    }
}
