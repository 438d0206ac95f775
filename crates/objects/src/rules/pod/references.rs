//! The API objects that a pod refers to: secrets, config maps and others.
//!
//! Pure. The Node authorizer lets a node read the objects that its pods refer to; admission rejects
//! mirror pods that refer to any.

use serde_json::Value;

use super::admission::text;

/// The fields in which volumes refer to secrets, besides `secret` and the sources of `projected`.
const VOLUME_SECRETS: [(&str, &str); 9] = [
    ("azureFile", "secretName"),
    ("cephfs", "secretRef"),
    ("cinder", "secretRef"),
    ("csi", "nodePublishSecretRef"),
    ("flexVolume", "secretRef"),
    ("iscsi", "secretRef"),
    ("rbd", "secretRef"),
    ("scaleIO", "secretRef"),
    ("storageos", "secretRef"),
];

/// Volumes that refer to API objects other than secrets and config maps, and the names of the
/// objects in a refusal.
const VOLUME_OBJECTS: [(&str, &str); 5] = [
    ("csi", "csidrivers (via CSI volumes)"),
    ("glusterfs", "endpoints (via glusterFS volumes)"),
    ("persistentVolumeClaim", "persistentvolumeclaims"),
    ("ephemeral", "persistentvolumeclaims (via ephemeral volumes)"),
    ("azureFile", "secrets (via azureFile volumes)"),
];

/// Sources of projected volumes that refer to API objects, and the names of the objects in a
/// refusal.
const PROJECTED_OBJECTS: [(&str, &str); 3] = [
    ("serviceAccountToken", "serviceaccounts (via projected volumes)"),
    ("clusterTrustBundle", "clustertrustbundles"),
    ("podCertificate", "podcertificates"),
];

/// Returns the names of the secrets that a pod's spec refers to.
#[must_use]
pub fn secret_names(spec: &Value) -> Vec<&str> {
    let mut names: Vec<&str> =
        items(spec, "imagePullSecrets").map(|secret| text(secret, "name")).collect();
    for container in containers(spec) {
        names.extend(environment(container, "secretKeyRef", "secretRef"));
    }
    for volume in items(spec, "volumes") {
        names.extend(volume.get("secret").map(|secret| text(secret, "secretName")));
        names.extend(projected(volume, "secret"));
        for (kind, field) in VOLUME_SECRETS {
            names.extend(match &volume[kind][field] {
                Value::String(name) if !name.is_empty() => Some(name.as_str()),
                Value::Object(_) => Some(text(&volume[kind][field], "name")),
                _ => None,
            });
        }
    }
    names
}

/// Returns the names of the config maps that a pod's spec refers to.
#[must_use]
pub fn config_map_names(spec: &Value) -> Vec<&str> {
    let mut names = Vec::new();
    for container in containers(spec) {
        names.extend(environment(container, "configMapKeyRef", "configMapRef"));
    }
    for volume in items(spec, "volumes") {
        names.extend(volume.get("configMap").map(|map| text(map, "name")));
        names.extend(projected(volume, "configMap"));
    }
    names
}

/// Returns the plural of the first kind of API objects that a pod's spec refers to, in upstream's order.
#[must_use]
pub fn api_objects(spec: &Value) -> Option<&'static str> {
    if !text(spec, "serviceAccountName").is_empty() {
        return Some("serviceaccounts");
    }
    if !secret_names(spec).is_empty() {
        return Some("secrets");
    }
    if !config_map_names(spec).is_empty() {
        return Some("configmaps");
    }
    if items(spec, "resourceClaims").next().is_some() {
        return Some("resourceclaims");
    }
    items(spec, "volumes").find_map(|volume| {
        let own = VOLUME_OBJECTS.iter().find(|(kind, _)| volume.get(kind).is_some());
        let sources = items(&volume["projected"], "sources");
        let of_source = |source: &Value| {
            let mut known = PROJECTED_OBJECTS.iter();
            known.find(|(kind, _)| source.get(kind).is_some()).map(|(_, objects)| *objects)
        };
        own.map(|(_, objects)| *objects).or_else(|| sources.into_iter().find_map(of_source))
    })
}

fn items<'a>(holder: &'a Value, list: &str) -> impl Iterator<Item = &'a Value> {
    holder.get(list).and_then(Value::as_array).into_iter().flatten()
}

fn containers(spec: &Value) -> impl Iterator<Item = &Value> {
    ["initContainers", "containers", "ephemeralContainers"]
        .into_iter()
        .flat_map(|list| items(spec, list))
}

/// Returns the names in a container's environment: of single variables, and of all keys at once.
fn environment<'a>(
    container: &'a Value,
    single: &'a str,
    whole: &'a str,
) -> impl Iterator<Item = &'a str> {
    let variables = items(container, "env")
        .filter_map(move |variable| variable["valueFrom"].get(single))
        .map(|reference| text(reference, "name"));
    let sources = items(container, "envFrom")
        .filter_map(move |source| source.get(whole))
        .map(|reference| text(reference, "name"));
    variables.chain(sources)
}

/// Returns the names in the sources of a projected volume.
fn projected<'a>(volume: &'a Value, kind: &'a str) -> impl Iterator<Item = &'a str> {
    let sources = items(&volume["projected"], "sources");
    sources.filter_map(move |source| source.get(kind)).map(|reference| text(reference, "name"))
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
                {"name": "a", "secret": {"secretName": "volume"}},
                {"name": "b", "projected": {"sources": [
                    {"configMap": {"name": "m1"}}, {"secret": {"name": "projected"}},
                ]}},
                {"name": "c", "azureFile": {"secretName": "azure"}},
                {"name": "d", "iscsi": {"secretRef": {"name": "iscsi"}}},
                {"name": "e", "csi": {"nodePublishSecretRef": {"name": "csi"}}},
                {"name": "f", "configMap": {"name": "m2"}},
                {"name": "name-of-a-volume", "emptyDir": {}},
            ],
            "initContainers": [{"envFrom": [{"secretRef": {"name": "init"}}]}],
            "containers": [{
                "name": "c",
                "env": [
                    {"valueFrom": {"secretKeyRef": {"name": "key", "key": "k"}}},
                    {"valueFrom": {"configMapKeyRef": {"name": "m3", "key": "k"}}},
                ],
            }],
            "ephemeralContainers": [{"envFrom": [{"configMapRef": {"name": "m4"}}]}],
        });
        let secrets = ["pull", "init", "key", "volume", "projected", "azure", "iscsi", "csi"];
        assert_eq!(secret_names(&spec), secrets);
        assert_eq!(config_map_names(&spec), ["m3", "m4", "m1", "m2"]);
    }

    #[test]
    fn any_reference_to_an_object_is_named_by_its_kind() {
        let volume = |source: Value| json!({"volumes": [{"name": "v"}, source]});
        let projected = |source: Value| volume(json!({"projected": {"sources": [source]}}));
        for (spec, expected) in [
            (json!({"containers": [{}]}), None),
            (json!({"serviceAccountName": ""}), None),
            (json!({"serviceAccountName": "a"}), Some("serviceaccounts")),
            (json!({"imagePullSecrets": [{}]}), Some("secrets")),
            (volume(json!({"configMap": {"name": "m"}})), Some("configmaps")),
            (json!({"resourceClaims": [{"name": "r"}]}), Some("resourceclaims")),
            (volume(json!({"csi": {"driver": "d"}})), Some("csidrivers (via CSI volumes)")),
            (volume(json!({"persistentVolumeClaim": {}})), Some("persistentvolumeclaims")),
            (volume(json!({"hostPath": {"path": "/"}})), None),
            (projected(json!({"downwardAPI": {}})), None),
            (projected(json!({"clusterTrustBundle": {}})), Some("clustertrustbundles")),
            (
                projected(json!({"serviceAccountToken": {}})),
                Some("serviceaccounts (via projected volumes)"),
            ),
        ] {
            assert_eq!(api_objects(&spec), expected, "{spec}");
        }
    }
}
