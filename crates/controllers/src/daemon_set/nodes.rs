//! Which nodes a daemon set wants a pod on, and how the pod is kept to its node.

use std::collections::BTreeMap;
use std::sync::Arc;

use objects::selector::NodeSelector;
use serde::Deserialize as _;
use serde_json::{Value, json};

use crate::observe::{Node, Taint, Toleration};
use crate::world::text;

/// What a set thinks of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Want {
    /// A pod should be there.
    Run,
    /// One may stay, none is made.
    Keep,
    /// None should be there.
    Leave,
}

/// Troubles of a node that daemons are there in spite of, with their effects. Upstream's list.
const TOLERATED: [(&str, &str); 6] = [
    ("node.kubernetes.io/not-ready", "NoExecute"),
    ("node.kubernetes.io/unreachable", "NoExecute"),
    ("node.kubernetes.io/disk-pressure", "NoSchedule"),
    ("node.kubernetes.io/memory-pressure", "NoSchedule"),
    ("node.kubernetes.io/pid-pressure", "NoSchedule"),
    ("node.kubernetes.io/unschedulable", "NoSchedule"),
];

/// The tolerations of a pod with those every daemon has.
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

/// Keeps a pod to one node, whatever else its affinity asks of nodes.
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
pub(super) fn wants(
    set: &Value,
    nodes: &BTreeMap<String, Arc<Node>>,
    compare: bool,
) -> BTreeMap<String, Want> {
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
    // A selector that cannot be read selects nothing.
    let affinity = (!required.is_null()).then(|| NodeSelector::deserialize(required).ok());
    let all = nodes.iter();
    all.map(|(name, node)| {
        (name.clone(), want(spec, node, affinity.as_ref(), &tolerations, compare))
    })
    .collect()
}

fn want(
    spec: &Value,
    node: &Node,
    affinity: Option<&Option<NodeSelector>>,
    tolerations: &[Toleration],
    compare: bool,
) -> Want {
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
        return Want::Leave;
    }
    let untolerated = |effect: &str| {
        let taints = node.taints.iter().filter(|taint| taint.effect == effect);
        taints
            .into_iter()
            .any(|taint: &Taint| !tolerations.iter().any(|t| t.tolerates(taint, compare)))
    };
    match (untolerated("NoExecute"), untolerated("NoSchedule")) {
        (true, _) => Want::Leave,
        (false, true) => Want::Keep,
        (false, false) => Want::Run,
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
    fn nodes_are_wanted_by_labels_affinity_and_taints() {
        let check = |spec: &Value, node: Node, expected: Want| {
            let set = json!({"spec": {"template": {"spec": spec}}});
            let nodes = BTreeMap::from([("n".to_owned(), Arc::new(node.clone()))]);
            assert_eq!(wants(&set, &nodes, false)["n"], expected, "{spec} {node:?}");
        };
        let plain = json!({});
        check(&plain, node(&[], &[]), Want::Run);
        check(&plain, node(&[], &[("node.kubernetes.io/unschedulable", "NoSchedule")]), Want::Run);
        check(&plain, node(&[], &[("node.kubernetes.io/unreachable", "NoExecute")]), Want::Run);
        check(&plain, node(&[], &[("mine", "NoSchedule")]), Want::Keep);
        check(&plain, node(&[], &[("mine", "NoExecute")]), Want::Leave);
        check(&plain, node(&[], &[("mine", "PreferNoSchedule")]), Want::Run);
        check(
            &json!({"tolerations": [{"operator": "Exists"}]}),
            node(&[], &[("mine", "NoExecute")]),
            Want::Run,
        );
        check(&json!({"nodeSelector": {"a": "b"}}), node(&[("a", "b")], &[]), Want::Run);
        check(&json!({"nodeSelector": {"a": "b"}}), node(&[("a", "c")], &[]), Want::Leave);
        check(&json!({"nodeName": "other"}), node(&[], &[]), Want::Leave);
        let affinity = json!({"affinity": {"nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
                {"matchExpressions": [{"key": "a", "operator": "Exists"}]},
            ]},
        }}});
        check(&affinity, node(&[("a", "x")], &[]), Want::Run);
        check(&affinity, node(&[], &[]), Want::Leave);
        check(
            &json!({"hostNetwork": true}),
            node(&[], &[("node.kubernetes.io/network-unavailable", "NoSchedule")]),
            Want::Run,
        );
    }

    #[test]
    fn a_pod_is_kept_to_its_node_beside_what_else_it_asks() {
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
