//! The Node object and its status as upstream writes them: [`object`] and [`status`].
//!
//! [`super::conditions`] computes the conditions. The annotations are the report and upstream's own.

use std::collections::BTreeMap;

use objects::Gate;
use objects::pod::OsName;
use serde_json::{Map, Value, json};

use super::resources::{allocatable, capacity};
use super::{Description, Image, Observation, RuntimeHealth, os_name, qos_resources};

/// Maximum number of reported names of an image. Upstream's value.
const NAMES: usize = 5;

const HOSTNAME: &str = "kubernetes.io/hostname";
const WINDOWS_BUILD: &str = "node.kubernetes.io/windows-build";
const ATTACH_DETACH: &str = "volumes.kubernetes.io/controller-managed-attach-detach";

/// Labels that are corrected on an existing node. Other labels belong to their writers.
pub(super) const OWN_LABELS: [&str; 6] = [
    HOSTNAME,
    "kubernetes.io/os",
    "kubernetes.io/arch",
    "beta.kubernetes.io/os",
    "beta.kubernetes.io/arch",
    WINDOWS_BUILD,
];

/// Returns the object that registers a node, without a status.
#[must_use]
pub fn object(description: &Description, now: &Observation) -> Value {
    let mut spec = Map::new();
    if !description.settings.taints.is_empty() {
        spec.insert("taints".to_owned(), description.settings.taints.clone().into());
    }
    if !description.settings.provider_id.is_empty() {
        spec.insert("providerID".to_owned(), description.settings.provider_id.clone().into());
    }
    json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": description.name,
            "labels": labels(description),
            "annotations": annotations(description, now),
        },
        "spec": spec,
    })
}

pub(super) fn labels(description: &Description) -> BTreeMap<String, String> {
    let mut labels = description.labels.clone();
    let mut put = |name: &str, value: &str| labels.insert(name.to_owned(), value.to_owned());
    put(HOSTNAME, &description.hostname);
    for group in ["kubernetes.io", "beta.kubernetes.io"] {
        put(&format!("{group}/os"), os_name(description.os));
        put(&format!("{group}/arch"), &description.architecture);
    }
    if description.os == OsName::Windows {
        // Without the revision: images are made for a build.
        let build: Vec<&str> = description.identity.kernel_version.split('.').take(3).collect();
        put(WINDOWS_BUILD, &build.join("."));
    }
    labels
}

pub(super) fn annotations(
    description: &Description,
    now: &Observation,
) -> BTreeMap<String, String> {
    let mut annotations = now.report.render();
    if description.settings.attach_detach {
        annotations.insert(ATTACH_DETACH.to_owned(), "true".to_owned());
    }
    annotations
}

/// Returns the status without its conditions.
#[must_use]
pub fn status(description: &Description, now: &Observation) -> Value {
    let addresses = description.addresses.iter().map(|address| address.to_string());
    let addresses = addresses.map(|address| json!({"type": "InternalIP", "address": address}));
    let hostname = json!({"type": "Hostname", "address": description.hostname});
    let mut status = json!({
        "addresses": addresses.chain([hostname]).collect::<Vec<_>>(),
        "capacity": amounts(&capacity(description, now)),
        "allocatable": amounts(&allocatable(description, now)),
        "daemonEndpoints": {"kubeletEndpoint": {"Port": description.settings.port}},
        "nodeInfo": node_info(description, now),
        "images": images(&now.images, description.settings.max_images),
    });
    let mut put = |name: &str, value: Value| status[name] = value;
    if !description.declared_features.is_empty() {
        put("declaredFeatures", description.declared_features.clone().into());
    }
    if let RuntimeHealth::Seen(runtime) = &now.runtime {
        if !runtime.handlers.is_empty() {
            put("runtimeHandlers", handlers(&runtime.handlers));
        }
        if runtime.tells_features {
            put(
                "features",
                json!({"supplementalGroupsPolicy": runtime.supplemental_groups_policy}),
            );
        }
        let gates = &description.config.feature_gates;
        if gates.enabled(Gate::QosResources)
            && let Some(advertised) = &runtime.classes
        {
            let strict = gates.enabled(Gate::QosResourcesStrictNames);
            put("qosResources", qos_resources::status(advertised, strict));
        }
    }
    status
}

fn amounts(list: &objects::ResourceList) -> Value {
    let result = list.iter().map(|(name, amount)| (name.clone(), Value::from(amount.to_string())));
    result.collect()
}

fn node_info(description: &Description, now: &Observation) -> Value {
    let runtime = match &now.runtime {
        RuntimeHealth::Seen(runtime) => format!("{}://{}", runtime.name, runtime.version),
        RuntimeHealth::Starting | RuntimeHealth::Down => String::new(),
    };
    let identity = &description.identity;
    let mut result = json!({
        "machineID": identity.machine_id,
        "systemUUID": identity.system_uuid,
        "bootID": identity.boot_id,
        "kernelVersion": identity.kernel_version,
        "osImage": identity.os_image,
        "containerRuntimeVersion": runtime,
        "kubeletVersion": description.version,
        "kubeProxyVersion": "",
        "operatingSystem": os_name(description.os),
        "architecture": description.architecture,
    });
    if description.os == OsName::Linux {
        result["runningInUserNamespace"] = identity.in_user_namespace.into();
    }
    if now.memory.swap_total > 0 {
        result["swap"] = json!({"capacity": now.memory.swap_total});
    }
    result
}

/// The largest images come first, because they matter most to a scheduler.
fn images(images: &[Image], most: Option<usize>) -> Value {
    let mut images: Vec<&Image> = images.iter().collect();
    images.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.id.cmp(&b.id)));
    let result = images.into_iter().take(most.unwrap_or(usize::MAX)).map(|image| {
        let names: Vec<&String> = image.digests.iter().chain(&image.tags).take(NAMES).collect();
        json!({"names": names, "sizeBytes": image.bytes})
    });
    result.collect()
}

fn handlers(handlers: &[cri::Handler]) -> Value {
    let mut handlers: Vec<&cri::Handler> = handlers.iter().collect();
    handlers.sort_by(|a, b| a.name.cmp(&b.name));
    let result = handlers.into_iter().map(|handler| {
        let features = json!({
            "recursiveReadOnlyMounts": handler.recursive_read_only_mounts,
            "userNamespaces": handler.user_namespaces,
        });
        json!({"name": handler.name, "features": features})
    });
    result.collect()
}
