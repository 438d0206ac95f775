//! References to API objects, which a static pod must not have.
//!
//! Pure. The first reference in upstream's order is reported.

use objects::FieldPath;
use objects::field::Step;
use serde_json::Value;

/// The kind of objects that each field refers to.
const FIELDS: [(&str, &str); 9] = [
    ("secretKeyRef", "secrets"),
    ("secretRef", "secrets"),
    ("imagePullSecrets", "secrets"),
    ("configMapKeyRef", "configmaps"),
    ("configMapRef", "configmaps"),
    ("serviceAccountToken", "serviceaccounts"),
    ("clusterTrustBundle", "clustertrustbundles"),
    ("persistentVolumeClaim", "persistentvolumeclaims"),
    ("resourceClaims", "resourceclaims"),
];

/// Fields that refer to objects only inside volumes.
const OF_VOLUMES: [(&str, &str); 3] =
    [("secret", "secrets"), ("configMap", "configmaps"), ("ephemeral", "persistentvolumeclaims")];

/// Returns the first reference of a pod to an API object: its path and kind.
pub(super) fn of_api(pod: &Value) -> Option<(FieldPath, &'static str)> {
    let spec = FieldPath::of("spec");
    if pod["spec"]["serviceAccountName"].as_str().is_some_and(|name| !name.is_empty()) {
        return Some((spec.child("serviceAccountName"), "serviceaccounts"));
    }
    let mut found = Vec::new();
    look(&pod["spec"], &spec, false, &mut found);
    // Secrets come before config maps, regardless of their order in the pod.
    let order = |kind: &str| FIELDS.iter().position(|(_, of)| *of == kind);
    found.into_iter().min_by_key(|(_, kind)| order(kind))
}

fn look(
    value: &Value,
    path: &FieldPath,
    in_volumes: bool,
    found: &mut Vec<(FieldPath, &'static str)>,
) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                let path = path.child(name);
                let of = |list: &[(&str, &'static str)]| {
                    list.iter().find(|(field, _)| field == name).map(|(_, kind)| *kind)
                };
                let kind = of(&FIELDS).or_else(|| of(&OF_VOLUMES).filter(|_| in_volumes));
                let there =
                    value.is_object() || value.as_array().is_some_and(|list| !list.is_empty());
                match kind.filter(|_| there) {
                    Some(kind) => found.push((path, kind)),
                    None => look(value, &path, in_volumes || name == "volumes", found),
                }
            }
        }
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                look(item, &path.with(Step::Index(index)), in_volumes, found);
            }
        }
        _ => {}
    }
}
