//! QoS-class resources (KEP-3008): the requests for classes in a pod's spec, and changes to them.
//!
//! The classes of a node and their usage are not known here. Whether a resource can change its
//! class while the container runs depends on the node: [`validate_changes`] takes a function for
//! that.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use serde_json::Value;

use super::super::names::{self, label_key_problems};
use super::containers_of;
use crate::cursor::{Causes, Cursor};
use crate::feature_gates::{FeatureGates, Gate};

/// The official resources, in full and in their short form.
pub const OFFICIAL: [&str; 4] = ["k8s.io/rdt", "k8s.io/blockio", "rdt", "blockio"];

/// Reports whether a resource's name belongs to Kubernetes: it has no domain, or one of the
/// project.
#[must_use]
pub fn is_official(name: &str) -> bool {
    name.split_once('/').is_none_or(|(domain, _)| domain == "k8s.io" || domain.ends_with(".k8s.io"))
}

/// Returns the full name of an official resource in its short form, any other unchanged.
#[must_use]
pub fn full_name(name: &str) -> &str {
    match name {
        "rdt" => "k8s.io/rdt",
        "blockio" => "k8s.io/blockio",
        name => name,
    }
}

/// The rules for the requests of a spec. A stored pod keeps what it has.
#[derive(Debug, Clone, Copy)]
pub(super) struct RequestRules {
    /// Requests are allowed.
    enabled: bool,
    /// Official names must be known.
    strict_names: bool,
}

impl RequestRules {
    pub(super) fn new(gates: &FeatureGates, old_spec: &Value) -> RequestRules {
        let unknown = |request: &Value| request["name"].as_str().is_some_and(is_unknown);
        RequestRules {
            enabled: gates.enabled(Gate::QosResources) || requests_of(old_spec).next().is_some(),
            strict_names: gates.enabled(Gate::QosResourcesStrictNames)
                && !requests_of(old_spec).any(unknown),
        }
    }
}

/// All requests of a spec, of the pod and of its containers.
fn requests_of(spec: &Value) -> impl Iterator<Item = &Value> {
    let of_containers = containers_of(spec).filter_map(|container| container.get("resources"));
    [Some(spec), spec.get("resources")]
        .into_iter()
        .flatten()
        .chain(of_containers)
        .filter_map(|holder| holder.get("qosResources")?.as_array())
        .flatten()
}

/// Validates one list of requests.
pub(super) fn validate(requests: &Cursor<'_>, rules: RequestRules, causes: &mut Causes) {
    if requests.is_empty() {
        return;
    }
    if !rules.enabled {
        let gate = Gate::QosResources.name();
        let detail = format!("may not be set when the {gate} feature gate is disabled");
        causes.forbidden(requests, &detail);
    }
    let mut seen = BTreeSet::new();
    for request in requests.items() {
        let name = request.field("name");
        validate_name(&name, rules.strict_names, causes);
        if !name.text().is_empty() && !seen.insert(full_name(name.text())) {
            causes.duplicate(&name);
        }
        let class = request.field("class");
        match class.text() {
            "" => causes.required(&class, ""),
            text => names::report(causes, &class, &label_key_problems(text)),
        }
    }
}

/// Validates a resource's name in a request or a node's status. With `strict`, an official name
/// must exist.
pub fn validate_name(name: &Cursor<'_>, strict: bool, causes: &mut Causes) {
    if validate_form(name, causes) && strict && is_unknown(name.text()) {
        causes.not_supported(name, &OFFICIAL);
    }
}

/// Reports whether a name is an official one that does not exist.
#[must_use]
pub fn is_unknown(name: &str) -> bool {
    is_official(name) && !OFFICIAL.contains(&name)
}

/// Validates a resource's name in a quota or a limit range. These only bound requests, so a name
/// that may become official later is valid.
pub fn validate_form(name: &Cursor<'_>, causes: &mut Causes) -> bool {
    match name.text() {
        "" => {
            causes.required(name, "");
            false
        }
        text => {
            let problems = label_key_problems(text);
            names::report(causes, name, &problems);
            problems.is_empty()
        }
    }
}

/// Returns the classes of one list by full resource name.
fn classes(requests: &Value) -> BTreeMap<&str, &str> {
    let requests = requests.as_array().into_iter().flatten();
    requests
        .filter_map(|request| {
            let name = request.get("name")?.as_str()?;
            Some((full_name(name), request.get("class")?.as_str()?))
        })
        .collect()
}

/// Validates the classes that containers of a running pod are changed to. `mutable` returns whether
/// the class of a resource, by its full name, can change while a container runs; `None` if the node
/// does not have the resource. One that cannot change rejects the whole update.
#[must_use]
pub fn validate_changes(
    pod: &Value,
    old: &Value,
    mutable: impl Fn(&str) -> Option<bool>,
) -> Causes {
    let mut causes = Causes::default();
    let top = Cursor::top(pod, "");
    let spec = top.field("spec");
    for list in ["initContainers", "containers"] {
        let containers = spec.field(list);
        let old_containers = old["spec"].get(list).and_then(Value::as_array);
        let mut by_name: HashMap<&str, &Value> = HashMap::new();
        for old in old_containers.into_iter().flatten() {
            by_name.entry(old["name"].as_str().unwrap_or_default()).or_insert(old);
        }
        for container in containers.items() {
            let name = container.field("name").text();
            let Some(before) = by_name.get(name) else { continue };
            let resources = container.field("resources");
            let requests = resources.field("qosResources");
            let was = classes(&before["resources"]["qosResources"]);
            let is = classes(requests.value());
            let names: BTreeSet<&str> = was.keys().chain(is.keys()).copied().collect();
            for name in names {
                if was.get(name) == is.get(name) {
                    continue;
                }
                let detail = match mutable(name) {
                    Some(true) => continue,
                    Some(false) => "may not be changed while the container runs",
                    None => "may not be changed: the pod's node does not have the resource",
                };
                let entry = requests.items().find(|r| full_name(r.field("name").text()) == name);
                match entry {
                    Some(entry) => causes.forbidden(&entry.field("class"), detail),
                    None => causes.forbidden(&requests.key(name), detail),
                }
            }
        }
    }
    causes
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn check(requests: &Value, enabled: bool) -> Vec<String> {
        let gates = format!("QOSResources={enabled}");
        check_with(requests, &gates, &json!({}))
    }

    fn check_with(requests: &Value, gates: &str, old_spec: &Value) -> Vec<String> {
        let mut causes = Causes::default();
        let rules = RequestRules::new(&FeatureGates::parse(gates).unwrap(), old_spec);
        validate(&Cursor::top(requests, "spec.qosResources"), rules, &mut causes);
        causes.0.into_iter().map(|c| format!("{}: {}", c.field, c.message)).collect()
    }

    #[test]
    fn official_names_must_be_known_and_vendors_names_pass() {
        assert!(check(&json!([{"name": "rdt", "class": "gold"}]), true).is_empty());
        assert!(check(&json!([{"name": "k8s.io/blockio", "class": "a.b"}]), true).is_empty());
        assert!(check(&json!([{"name": "acme.com/net", "class": "x"}]), true).is_empty());
        let unknown = check(&json!([{"name": "k8s.io/net", "class": "x"}]), true);
        assert!(unknown[0].starts_with("spec.qosResources[0].name: Unsupported value"));
        assert_eq!(check(&json!([{"name": "net", "class": "x"}]), true).len(), 1);
    }

    #[test]
    fn unknown_official_names_pass_without_strictness() {
        let lax = "QOSResources=true,QOSResourcesStrictNames=false";
        let requests =
            json!([{"name": "k8s.io/net", "class": "x"}, {"name": "disk", "class": "y"}]);
        assert!(check_with(&requests, lax, &json!({})).is_empty());
        // The syntax of names is still checked.
        let misspelt = json!([{"name": "k8s.io/", "class": "x"}]);
        assert!(!check_with(&misspelt, lax, &json!({})).is_empty());
        // A pod that was admitted so keeps what it has at every level.
        let strict = "QOSResources=true";
        assert_eq!(check_with(&requests, strict, &json!({})).len(), 2);
        for old in [
            json!({"qosResources": requests}),
            json!({"resources": {"qosResources": requests}}),
            json!({"initContainers": [{"resources": {"qosResources": requests}}]}),
        ] {
            assert!(check_with(&requests, strict, &old).is_empty(), "{old}");
        }
        let known = json!({"qosResources": [{"name": "rdt", "class": "gold"}]});
        assert_eq!(check_with(&requests, strict, &known).len(), 2);
    }

    #[test]
    fn a_resource_is_asked_for_once_and_with_a_class() {
        let twice = json!([{"name": "rdt", "class": "a"}, {"name": "k8s.io/rdt", "class": ""}]);
        assert_eq!(
            check(&twice, true),
            [
                "spec.qosResources[1].name: Duplicate value: \"k8s.io/rdt\"",
                "spec.qosResources[1].class: Required value",
            ]
        );
        let off = check(&json!([{"name": "rdt", "class": "a"}]), false);
        assert_eq!(
            off,
            ["spec.qosResources: Forbidden: may not be set when the QOSResources feature gate is \
              disabled"]
        );
    }

    #[test]
    fn a_class_changes_only_where_the_node_allows_it() {
        let pod = |class: &str| {
            json!({"spec": {"containers": [{"name": "c", "resources": {
                "qosResources": [{"name": "rdt", "class": class}]
            }}]}})
        };
        let changes =
            |mutable: Option<bool>| validate_changes(&pod("b"), &pod("a"), |_| mutable).0.len();
        assert_eq!(changes(Some(true)), 0);
        assert_eq!((changes(Some(false)), changes(None)), (1, 1));
        assert!(validate_changes(&pod("a"), &pod("a"), |_| None).is_empty());
    }
}
