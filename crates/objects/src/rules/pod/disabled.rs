//! Fields of disabled features: a new pod loses them without a warning, a stored pod keeps what it
//! has. The enabled features are upstream's defaults; fields that Berth acts on have gates of their
//! own and are checked, not dropped. The projected sources `clusterTrustBundle` and
//! `podCertificate` are kept although upstream drops them by default: a pod without them would run
//! with an empty volume, and the agent rejects them by name.

use std::collections::HashMap;

use serde_json::{Map, Value};

type Object = Map<String, Value>;

/// Fields whose features are disabled, and the structures that have them.
const SPEC: [&str; 2] = ["schedulingGroup", "evictionResponders"];
const FILES: [&str; 2] = ["defaultUser", "user"];

/// Reports whether a value contains a field of this name at any depth.
fn uses(value: &Value, field: &str) -> bool {
    match value {
        Value::Object(object) => {
            object.contains_key(field) || object.values().any(|value| uses(value, field))
        }
        Value::Array(items) => items.iter().any(|item| uses(item, field)),
        _ => false,
    }
}

fn items<'a>(object: &'a mut Object, field: &str) -> impl Iterator<Item = &'a mut Object> {
    let items = object.get_mut(field).and_then(Value::as_array_mut);
    items.into_iter().flatten().filter_map(Value::as_object_mut)
}

fn child<'a>(object: &'a mut Object, field: &str) -> Option<&'a mut Object> {
    object.get_mut(field)?.as_object_mut()
}

/// Removes the fields that the stored spec, if any, does not have either.
pub(super) fn drop_from(spec: &mut Object, old: &Value) {
    // The stored spec is searched once for each field, even if the field is given often.
    let mut used: HashMap<String, bool> = HashMap::new();
    let mut drop = |holder: &mut Object, field: &str| {
        if holder.contains_key(field)
            && !*used.entry(field.to_owned()).or_insert_with(|| uses(old, field))
        {
            holder.remove(field);
        }
    };
    for field in SPEC {
        drop(spec, field);
    }
    for volume in items(spec, "volumes") {
        if let Some(directory) = child(volume, "emptyDir") {
            drop(directory, "mode");
        }
        for source in ["secret", "configMap", "downwardAPI", "projected"] {
            let Some(source) = child(volume, source) else { continue };
            drop(source, FILES[0]);
            for file in items(source, "items") {
                drop(file, FILES[1]);
            }
            for projection in items(source, "sources") {
                for holder in ["secret", "configMap", "downwardAPI"] {
                    if let Some(holder) = child(projection, holder) {
                        for file in items(holder, "items") {
                            drop(file, FILES[1]);
                        }
                    }
                }
            }
        }
    }
    for list in ["initContainers", "containers", "ephemeralContainers"] {
        for container in items(spec, list) {
            for mount in items(container, "volumeMounts") {
                drop(mount, "bindMountOptions");
            }
            for probe in ["livenessProbe", "readinessProbe", "startupProbe"] {
                if let Some(probe) = child(container, probe) {
                    drop_from_handler(probe, &mut drop);
                }
            }
            let Some(lifecycle) = child(container, "lifecycle") else { continue };
            for hook in ["postStart", "preStop"] {
                if let Some(hook) = child(lifecycle, hook) {
                    drop_from_handler(hook, &mut drop);
                }
            }
            if lifecycle.contains_key("stopSignal") {
                drop(lifecycle, "stopSignal");
                if lifecycle.is_empty() {
                    container.remove("lifecycle");
                }
            }
        }
    }
}

fn drop_from_handler(handler: &mut Object, drop: &mut impl FnMut(&mut Object, &str)) {
    if let Some(http) = child(handler, "httpGet") {
        drop(http, "protocol");
    }
    if let Some(grpc) = child(handler, "grpc") {
        drop(grpc, "mode");
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn disabled_field_is_dropped_unless_stored() {
        let spec = json!({"containers": [{"name": "c", "lifecycle": {"stopSignal": "SIGTERM"}}]});
        let dropped = |old: &Value| {
            let mut spec = spec.as_object().unwrap().clone();
            drop_from(&mut spec, old);
            Value::Object(spec)
        };
        assert_eq!(dropped(&Value::Null), json!({"containers": [{"name": "c"}]}));
        assert_eq!(dropped(&spec), spec);
    }
}
