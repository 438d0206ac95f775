//! What an agent may touch: its node, the pods bound to it, and what those pods use.

use http::Method;
use serde_json::Value;

use crate::api::{Api, denied};
use crate::identity::Attempt;
use crate::parts::core;
use crate::read;
use crate::refusal::Refusal;
use crate::request::Call;
use crate::route::Place;
use crate::stored;

/// Refuses what is not the node's own.
pub(crate) fn check(api: &Api, call: &Call, place: &Place, verb: &str) -> Result<(), Refusal> {
    let Some(node) = call.user().node() else { return Ok(()) };
    let part = crate::write::part_name(place);
    let no = || {
        denied(
            call.user(),
            &Attempt::on(verb, place.resource, part, &place.namespace, &place.name),
        )
    };
    let own = match place.resource.plural {
        "nodes" => body_name(call) == node,
        "pods" if place.name.is_empty() && call.method == Method::POST => {
            // Mirror pods: an agent tells of the static pods it runs.
            let pod: Value = serde_json::from_slice(&call.body).unwrap_or_default();
            pod["spec"]["nodeName"] == node
                && pod["metadata"]["annotations"]["kubernetes.io/config.mirror"].is_string()
        }
        "pods" if place.name.is_empty() => selects_node(call, node),
        "pods" => pod_is_on(api, place, node)?,
        "secrets" | "configmaps" => used_on(api, place, node)?,
        "serviceaccounts" => account_used_on(api, place, node)?,
        _ => false,
    };
    if own { Ok(()) } else { Err(no()) }
}

fn body_name(call: &Call) -> String {
    let body: Value = serde_json::from_slice(&call.body).unwrap_or_default();
    body["metadata"]["name"].as_str().unwrap_or_default().to_owned()
}

/// Whether a list or watch is of the node's pods alone.
fn selects_node(call: &Call, node: &str) -> bool {
    objects::selector::FieldSelector::parse(call.query.text("fieldSelector"))
        .is_ok_and(|selector| selector.requires_exactly("spec.nodeName") == Some(node))
}

fn pod_is_on(api: &Api, place: &Place, node: &str) -> Result<bool, Refusal> {
    let pod = read::load(place.resource, &read::find(api, place)?)?;
    Ok(pod["spec"]["nodeName"] == node)
}

/// The pods of a namespace that are bound to the node.
fn pods_on(api: &Api, namespace: &str, node: &str) -> Result<Vec<Value>, Refusal> {
    let pods = core("pods")?;
    let snapshot = api.store().snapshot(None).map_err(|error| read::read_failed(&error))?;
    let mut found = Vec::new();
    for entry in snapshot.range(&stored::prefix(pods, namespace), None) {
        let entry = entry.map_err(|error| read::broken(&error))?;
        let pod = read::load(pods, &entry)?;
        if pod["spec"]["nodeName"] == node {
            found.push(pod);
        }
    }
    Ok(found)
}

/// Whether a pod of the node uses a secret or config map: as a volume, in the environment, or to
/// pull images.
fn used_on(api: &Api, place: &Place, node: &str) -> Result<bool, Refusal> {
    let kind = place.resource.plural;
    let uses = |pod: &Value| mentions(&pod["spec"], kind, &place.name);
    Ok(pods_on(api, &place.namespace, node)?.iter().any(uses))
}

/// Whether a pod's spec refers to an object, wherever references may stand.
fn mentions(spec: &Value, kind: &str, name: &str) -> bool {
    let fields: &[&str] = match kind {
        "secrets" => &["secret", "secretRef", "secretKeyRef"],
        _ => &["configMap", "configMapRef", "configMapKeyRef"],
    };
    match spec {
        Value::Object(map) => map.iter().any(|(field, value)| {
            let named = |value: &Value| value["name"] == name || value["secretName"] == name;
            (fields.contains(&field.as_str()) && named(value))
                || (kind == "secrets"
                    && field == "imagePullSecrets"
                    && value.as_array().is_some_and(|list| list.iter().any(named)))
                || mentions(value, kind, name)
        }),
        Value::Array(items) => items.iter().any(|item| mentions(item, kind, name)),
        _ => false,
    }
}

fn account_used_on(api: &Api, place: &Place, node: &str) -> Result<bool, Refusal> {
    let uses = |pod: &Value| {
        let account = pod["spec"]["serviceAccountName"].as_str().filter(|name| !name.is_empty());
        account.unwrap_or("default") == place.name
    };
    Ok(pods_on(api, &place.namespace, node)?.iter().any(uses))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn references_are_found_wherever_they_stand() {
        let spec = json!({
            "imagePullSecrets": [{"name": "pull"}],
            "volumes": [
                {"name": "a", "secret": {"secretName": "vol"}},
                {"name": "b", "projected": {"sources": [{"configMap": {"name": "cm"}}]}},
            ],
            "containers": [{"env": [{"valueFrom": {"secretKeyRef": {"name": "env"}}}], "envFrom": [{"configMapRef": {"name": "cm2"}}]}],
        });
        for name in ["pull", "vol", "env"] {
            assert!(mentions(&spec, "secrets", name), "{name}");
        }
        for name in ["cm", "cm2"] {
            assert!(mentions(&spec, "configmaps", name), "{name}");
        }
        assert!(!mentions(&spec, "secrets", "cm") && !mentions(&spec, "configmaps", "vol"));
    }
}
