//! Nodes: taints, pod CIDRs, the status, and the classes of QoS resources that a node offers.

use std::collections::{BTreeSet, HashSet};

use serde_json::{Value, json};

use super::super::checks::{cidr, is_same, parse_cidr, part_mut, round_amounts};
use super::super::names::{self, label_key_problems, label_value_problems};
use super::super::pod::class_resources;
use super::super::{RuleContext, Subresource, resource_names};
use super::quota::{resource_names_of, validate_capacities};
use crate::cursor::{BadValue, Causes, Cursor};
use crate::feature_gates::Gate;

const NOT_READY: &str = "node.kubernetes.io/not-ready";

/// The lists of QoS resources in a node's status, and the alternative spelling that is accepted.
const SPELLINGS: [(&str, &str); 2] =
    [("podQOSResources", "podQoSResources"), ("containerQOSResources", "containerQoSResources")];

/// Renames the alternative spelling of the lists of QoS resources in a request's body, before it is
/// decoded. A list with the right name wins.
pub fn respell(node: &mut Value) {
    let resources = node.get_mut("status").and_then(|status| status.get_mut("qosResources"));
    let Some(resources) = resources.and_then(Value::as_object_mut) else { return };
    for (ours, other) in SPELLINGS {
        if let Some(list) = resources.remove(other) {
            resources.entry(ours).or_insert(list);
        }
    }
}

pub(super) fn set_defaults(node: &mut Value) {
    set_pod_networks(node);
    let Some(status) = node.get_mut("status") else { return };
    round_amounts(status.get_mut("capacity"));
    round_amounts(status.get_mut("allocatable"));
    if let Some(status) = status.as_object_mut()
        && !status.contains_key("allocatable")
        && let Some(capacity) = status.get("capacity").cloned()
    {
        status.insert("allocatable".to_owned(), capacity);
    }
}

/// Sets `podCIDR` to the first of `podCIDRs`; where they differ the older field wins.
fn set_pod_networks(node: &mut Value) {
    let spec = &node["spec"];
    let single = spec["podCIDR"].as_str().unwrap_or_default().to_owned();
    let first = spec["podCIDRs"][0].as_str().unwrap_or_default().to_owned();
    if single == first {
        return;
    }
    if let Some(spec) = part_mut(node, "spec") {
        if single.is_empty() {
            spec.insert("podCIDR".to_owned(), first.into());
        } else {
            spec.insert("podCIDRs".to_owned(), json!([single]));
        }
    }
}

/// Adds the not-ready taint to a new node.
pub(super) fn prepare_create(node: &mut Value, ctx: &RuleContext<'_>) {
    drop_disabled(node, &Value::Null, ctx);
    let Some(spec) = part_mut(node, "spec") else { return };
    let taints = spec.entry("taints").or_insert_with(|| json!([]));
    if !taints.is_array() {
        *taints = json!([]);
    }
    let is_it = |taint: &Value| taint["key"] == NOT_READY && taint["effect"] == "NoSchedule";
    if let Some(taints) = taints.as_array_mut().filter(|taints| !taints.iter().any(is_it)) {
        taints.push(json!({"key": NOT_READY, "effect": "NoSchedule"}));
    }
}

pub(super) fn prepare_update(
    node: &mut Value,
    old: &Value,
    part: Subresource,
    ctx: &RuleContext<'_>,
) {
    if part == Subresource::Main || part == Subresource::Status {
        drop_disabled(node, old, ctx);
    }
}

/// Removes fields of disabled features that the old node did not have.
fn drop_disabled(node: &mut Value, old: &Value, ctx: &RuleContext<'_>) {
    let mut drop = |part: &str, field: &str| {
        let fields = node.get_mut(part).and_then(Value::as_object_mut);
        if let Some(fields) = fields.filter(|_| old[part].get(field).is_none()) {
            fields.remove(field);
        }
    };
    drop("spec", "configSource");
    drop("status", "config");
    if !ctx.gates.enabled(Gate::QosResources) {
        drop("status", "qosResources");
    }
}

pub(super) fn validate(
    node: &Cursor<'_>,
    old: Option<&Cursor<'_>>,
    ctx: &RuleContext<'_>,
    causes: &mut Causes,
) {
    validate_taints(node, causes);
    validate_amounts(node, causes);
    let spec = node.field("spec");
    let networks = spec.field("podCIDRs");
    for network in networks.items() {
        cidr(&network, network.text(), causes);
    }
    let families: Vec<bool> = networks
        .items()
        .filter_map(|network| parse_cidr(network.value().as_str()?).map(|(ip, _)| ip.is_ipv4()))
        .collect();
    let count = networks.len();
    let both = families.contains(&true) && families.contains(&false);
    if count > 1 && families.len() == count && (!both || count > 2) {
        causes.invalid(&networks, "may specify no more than one CIDR for each IP family");
    }
    validate_classes(node, old, ctx, causes);
}

fn validate_amounts(node: &Cursor<'_>, causes: &mut Causes) {
    let status = node.field("status");
    for list in ["capacity", "allocatable"] {
        let list = status.field(list);
        for (name, _) in list.entries() {
            resource_names::amount(&list.field(name), name, causes);
        }
    }
}

/// Taints are reported as if they were in the metadata, their old position.
fn validate_taints(node: &Cursor<'_>, causes: &mut Causes) {
    let meta = node.field("metadata");
    let value = &node.value()["spec"]["taints"];
    let taints = meta.field("taints").at_value(value);
    let mut seen = BTreeSet::new();
    for taint in taints.items() {
        let (key, value) = (taint.field("key"), taint.field("value"));
        names::report_as(causes, &key, key.text(), &label_key_problems(key.text()));
        let problems = label_value_problems(value.text());
        if !problems.is_empty() {
            causes.invalid(&value, &problems.join(";"));
        }
        let effect = taint.field("effect");
        match effect.text() {
            "" => causes.required(&effect, ""),
            "NoSchedule" | "PreferNoSchedule" | "NoExecute" => {}
            _ => causes.not_supported(&effect, &["NoSchedule", "PreferNoSchedule", "NoExecute"]),
        }
        if !seen.insert((key.text().to_owned(), effect.text().to_owned())) {
            let shown = render_taint(taint.value());
            let message =
                format!("Duplicate value: {shown}: taints must be unique by key and effect pair");
            causes.add("FieldValueDuplicate", taint.path(), message);
        }
    }
}

/// Renders a taint as Go does.
fn render_taint(taint: &Value) -> String {
    let text = |field: &str| json!(taint[field].as_str().unwrap_or_default());
    format!(
        r#"{{"Key":{},"Value":{},"Effect":{},"TimeAdded":{}}}"#,
        text("key"),
        text("value"),
        text("effect"),
        taint["timeAdded"],
    )
}

/// Validates the change of a node; also the only validation of a status.
pub(super) fn validate_change(
    node: &Cursor<'_>,
    old: &Cursor<'_>,
    ctx: &RuleContext<'_>,
    causes: &mut Causes,
) {
    validate_amounts(node, causes);
    let status = node.field("status");
    let addresses = status.field("addresses");
    let mut seen = HashSet::new();
    for address in addresses.items() {
        if !seen.insert(address.value()) {
            causes.duplicate_as(&address, render_address(address.value()));
        }
    }
    let (spec, old_spec) = (node.field("spec"), old.field("spec"));
    let (networks, old_networks) = (spec.field("podCIDRs"), old_spec.field("podCIDRs"));
    if !old_networks.is_empty() && !is_same(networks.value(), old_networks.value()) {
        let detail = "node updates may not change podCIDR except from \"\" to valid";
        causes.forbidden(&networks, detail);
    }
    validate_taints(node, causes);
    let (external, old_external) = (spec.field("externalID"), old_spec.field("externalID"));
    if external.text() != old_external.text() {
        causes.forbidden(&external, "may not be updated");
    }
    let (provider, old_provider) = (spec.field("providerID"), old_spec.field("providerID"));
    if !old_provider.text().is_empty() && provider.text() != old_provider.text() {
        let how = if provider.text().is_empty() { "cleared" } else { "modified" };
        let detail = format!("field cannot be {how} once set");
        causes.invalid_as(&provider, &Value::Null, &detail);
    }
    validate_classes(node, Some(old), ctx, causes);
}

fn render_address(address: &Value) -> BadValue {
    BadValue::literal(format!(r#"{{"Type":{},"Address":{}}}"#, address["type"], address["address"]))
}

/// Reports whether a stored node has an official name that does not exist.
fn has_unknown_classes(node: &Cursor<'_>) -> bool {
    let resources = &node.value()["status"]["qosResources"];
    let names = SPELLINGS.iter().flat_map(|(list, _)| resource_names_of(&resources[*list]));
    names.into_iter().any(class_resources::is_unknown)
}

/// Validates the QoS resources of a node: a name is used once, for pods or for containers.
fn validate_classes(
    node: &Cursor<'_>,
    old: Option<&Cursor<'_>>,
    ctx: &RuleContext<'_>,
    causes: &mut Causes,
) {
    let strict =
        ctx.gates.enabled(Gate::QosResourcesStrictNames) && !old.is_some_and(has_unknown_classes);
    let status = node.field("status");
    let resources = status.field("qosResources");
    let lists = [resources.field(SPELLINGS[0].0), resources.field(SPELLINGS[1].0)];
    for list in &lists {
        let mut seen = BTreeSet::new();
        for resource in list.items() {
            let name = resource.field("name");
            class_resources::validate_name(&name, strict, causes);
            let text = name.value().as_str().unwrap_or_default();
            if !text.is_empty() && !seen.insert(class_resources::full_name(text).to_owned()) {
                causes.duplicate(&name);
            }
            validate_capacities(&resource.field("classes"), causes);
        }
    }
    let of_pods = resource_names_of(lists[0].value());
    for resource in lists[1].items() {
        let name = resource.field("name");
        if of_pods.contains(class_resources::full_name(name.value().as_str().unwrap_or_default())) {
            causes.invalid(&name, "may not be both a pod-level and a container-level resource");
        }
    }
}

pub(super) fn warnings(node: &Value) -> Vec<String> {
    let mut warnings = Vec::new();
    if node["spec"].get("configSource").is_some() {
        warnings.push(
            "spec.configSource: the feature is no longer supported, use other ways to configure \
             kubelets"
                .to_owned(),
        );
    }
    if !node["spec"]["externalID"].as_str().unwrap_or_default().is_empty() {
        let text = "spec.externalID: this field is deprecated, and is unused by Kubernetes";
        warnings.push(text.to_owned());
    }
    warnings
}
