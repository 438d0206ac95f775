//! Selects the nodes that run a pod of a daemon set, and pins pods to their nodes.

use std::collections::BTreeMap;
use std::sync::Arc;

use objects::selector::NodeSelector;
use serde::Deserialize as _;
use serde_json::{Value, json};

use crate::context::text;
use objects::types::{Taint, Toleration};

use crate::observe::Node;

/// The decision whether a node runs a pod of the daemon set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ShouldRun {
    /// The node runs a pod.
    Yes,
    /// A running pod stays, but none is created.
    ContinueOnly,
    /// The node runs no pod; a running pod is deleted.
    No,
}

/// Node taints that daemon pods tolerate, with their effects. Upstream's list.
const TOLERATED: [(&str, &str); 6] = [
    ("node.kubernetes.io/not-ready", "NoExecute"),
    ("node.kubernetes.io/unreachable", "NoExecute"),
    ("node.kubernetes.io/disk-pressure", "NoSchedule"),
    ("node.kubernetes.io/memory-pressure", "NoSchedule"),
    ("node.kubernetes.io/pid-pressure", "NoSchedule"),
    ("node.kubernetes.io/unschedulable", "NoSchedule"),
];

/// Returns the tolerations of a pod together with those of every daemon pod.
pub(super) fn tolerations(spec: &Value) -> Value {
    let mut all = spec["tolerations"].as_array().cloned().unwrap_or_default();
    let on_the_host = spec["hostNetwork"] == true;
    let network = on_the_host.then_some(("node.kubernetes.io/network-unavailable", "NoSchedule"));
    for (key, effect) in TOLERATED.into_iter().chain(network) {
        let toleration = json!({"key": key, "operator": "Exists", "effect": effect});
        if !all.contains(&toleration) {
            all.push(toleration);
        }
    }
    all.into()
}

/// Pins a pod to one node and keeps its other affinity terms.
pub(super) fn pin(spec: &mut Value, node: &str) {
    let field = json!([{"key": "metadata.name", "operator": "In", "values": [node]}]);
    let required =
        &mut spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"];
    match required["nodeSelectorTerms"].as_array_mut().filter(|terms| !terms.is_empty()) {
        Some(terms) => {
            for term in terms {
                term["matchFields"] = field.clone();
            }
        }
        None => *required = json!({"nodeSelectorTerms": [{"matchFields": field}]}),
    }
}

/// `compare` is the gate of tolerations with the operators `Gt` and `Lt`.
pub(super) fn should_run(
    set: &Value,
    nodes: &BTreeMap<String, Arc<Node>>,
    compare: bool,
) -> BTreeMap<String, ShouldRun> {
    let spec = &set["spec"]["template"]["spec"];
    let tolerations = tolerations(spec);
    let tolerations: Vec<Toleration> = tolerations
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|toleration| Toleration::deserialize(toleration).ok())
        .collect();
    let required =
        &spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"];
    // An unreadable selector selects nothing.
    let affinity = (!required.is_null()).then(|| NodeSelector::deserialize(required).ok());
    let all = nodes.iter();
    all.map(|(name, node)| {
        (name.clone(), should_run_on(spec, node, affinity.as_ref(), &tolerations, compare))
    })
    .collect()
}

fn should_run_on(
    spec: &Value,
    node: &Node,
    affinity: Option<&Option<NodeSelector>>,
    tolerations: &[Toleration],
    compare: bool,
) -> ShouldRun {
    let label = |key: &str| node.labels.get(key).map(String::as_str);
    let asked = text(&spec["nodeName"]);
    let mut selector = spec["nodeSelector"].as_object().into_iter().flatten();
    let fits = (asked.is_empty() || asked == node.name)
        && selector.all(|(key, value)| label(key) == value.as_str())
        && match affinity {
            None => true,
            Some(None) => false,
            Some(Some(terms)) => terms.matches(&node.name, label),
        };
    if !fits {
        return ShouldRun::No;
    }
    let untolerated = |effect: &str| {
        let taints = node.taints.iter().filter(|taint| taint.effect == effect);
        taints
            .into_iter()
            .any(|taint: &Taint| !tolerations.iter().any(|t| t.tolerates(taint, compare)))
    };
    match (untolerated("NoExecute"), untolerated("NoSchedule")) {
        (true, _) => ShouldRun::No,
        (false, true) => ShouldRun::ContinueOnly,
        (false, false) => ShouldRun::Yes,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(labels: &[(&str, &str)], taints: &[(&str, &str)]) -> Node {
        let pairs = labels.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned()));
        let taints = taints.iter().map(|(key, effect)| Taint {
            key: (*key).to_owned(),
            effect: (*effect).to_owned(),
            ..Taint::default()
        });
        Node {
            name: "n".to_owned(),
            labels: pairs.collect(),
            taints: taints.collect(),
            ..Node::default()
        }
    }

    #[test]
    fn nodes_are_selected_by_labels_affinity_and_taints() {
        let check = |spec: &Value, node: Node, expected: ShouldRun| {
            let set = json!({"spec": {"template": {"spec": spec}}});
            let nodes = BTreeMap::from([("n".to_owned(), Arc::new(node.clone()))]);
            assert_eq!(should_run(&set, &nodes, false)["n"], expected, "{spec} {node:?}");
        };
        let plain = json!({});
        check(&plain, node(&[], &[]), ShouldRun::Yes);
        check(
            &plain,
            node(&[], &[("node.kubernetes.io/unschedulable", "NoSchedule")]),
            ShouldRun::Yes,
        );
        check(
            &plain,
            node(&[], &[("node.kubernetes.io/unreachable", "NoExecute")]),
            ShouldRun::Yes,
        );
        check(&plain, node(&[], &[("mine", "NoSchedule")]), ShouldRun::ContinueOnly);
        check(&plain, node(&[], &[("mine", "NoExecute")]), ShouldRun::No);
        check(&plain, node(&[], &[("mine", "PreferNoSchedule")]), ShouldRun::Yes);
        check(
            &json!({"tolerations": [{"operator": "Exists"}]}),
            node(&[], &[("mine", "NoExecute")]),
            ShouldRun::Yes,
        );
        check(&json!({"nodeSelector": {"a": "b"}}), node(&[("a", "b")], &[]), ShouldRun::Yes);
        check(&json!({"nodeSelector": {"a": "b"}}), node(&[("a", "c")], &[]), ShouldRun::No);
        check(&json!({"nodeName": "other"}), node(&[], &[]), ShouldRun::No);
        let affinity = json!({"affinity": {"nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
                {"matchExpressions": [{"key": "a", "operator": "Exists"}]},
            ]},
        }}});
        check(&affinity, node(&[("a", "x")], &[]), ShouldRun::Yes);
        check(&affinity, node(&[], &[]), ShouldRun::No);
        check(
            &json!({"hostNetwork": true}),
            node(&[], &[("node.kubernetes.io/network-unavailable", "NoSchedule")]),
            ShouldRun::Yes,
        );
    }

    #[test]
    fn pinning_keeps_the_other_affinity_terms() {
        let mut spec = json!({"affinity": {"nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
                {"matchExpressions": [{"key": "a", "operator": "Exists"}]},
            ]},
        }}});
        pin(&mut spec, "n");
        let terms = &spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
            ["nodeSelectorTerms"];
        assert_eq!(terms[0]["matchFields"][0]["values"][0], "n");
        assert_eq!(terms[0]["matchExpressions"][0]["key"], "a");
        let mut plain = json!({});
        pin(&mut plain, "n");
        assert!(plain["affinity"]["nodeAffinity"].is_object());
    }
}
