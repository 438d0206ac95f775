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
pub fn object(of: &Description, now: &Observation) -> Value {
    let mut spec = Map::new();
    if !of.settings.taints.is_empty() {
        spec.insert("taints".to_owned(), of.settings.taints.clone().into());
    }
    if !of.settings.provider_id.is_empty() {
        spec.insert("providerID".to_owned(), of.settings.provider_id.clone().into());
    }
    json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": of.name,
            "labels": labels(of),
            "annotations": annotations(of, now),
        },
        "spec": spec,
    })
}

pub(super) fn labels(of: &Description) -> BTreeMap<String, String> {
    let mut labels = of.labels.clone();
    let mut put = |name: &str, value: &str| labels.insert(name.to_owned(), value.to_owned());
    put(HOSTNAME, &of.hostname);
    for group in ["kubernetes.io", "beta.kubernetes.io"] {
        put(&format!("{group}/os"), os_name(of.os));
        put(&format!("{group}/arch"), &of.architecture);
    }
    if of.os == OsName::Windows {
        // Without the revision: images are made for a build.
        let build: Vec<&str> = of.identity.kernel_version.split('.').take(3).collect();
        put(WINDOWS_BUILD, &build.join("."));
    }
    labels
}

pub(super) fn annotations(of: &Description, now: &Observation) -> BTreeMap<String, String> {
    let mut annotations = now.report.render();
    if of.settings.attach_detach {
        annotations.insert(ATTACH_DETACH.to_owned(), "true".to_owned());
    }
    annotations
}

/// Returns the status without its conditions.
#[must_use]
pub fn status(of: &Description, now: &Observation) -> Value {
    let addresses = of.addresses.iter().map(|address| address.to_string());
    let addresses = addresses.map(|address| json!({"type": "InternalIP", "address": address}));
    let hostname = json!({"type": "Hostname", "address": of.hostname});
    let mut status = json!({
        "addresses": addresses.chain([hostname]).collect::<Vec<_>>(),
        "capacity": amounts(&capacity(of, now)),
        "allocatable": amounts(&allocatable(of, now)),
        "daemonEndpoints": {"kubeletEndpoint": {"Port": of.settings.port}},
        "nodeInfo": node_info(of, now),
        "images": images(&now.images, of.settings.max_images),
    });
    let mut put = |name: &str, value: Value| status[name] = value;
    if !of.declared_features.is_empty() {
        put("declaredFeatures", of.declared_features.clone().into());
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
        let gates = &of.config.feature_gates;
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
    let told = list.iter().map(|(name, amount)| (name.clone(), Value::from(amount.to_string())));
    told.collect()
}

fn node_info(of: &Description, now: &Observation) -> Value {
    let runtime = match &now.runtime {
        RuntimeHealth::Seen(runtime) => format!("{}://{}", runtime.name, runtime.version),
        RuntimeHealth::Starting | RuntimeHealth::Down => String::new(),
    };
    let identity = &of.identity;
    let mut told = json!({
        "machineID": identity.machine_id,
        "systemUUID": identity.system_uuid,
        "bootID": identity.boot_id,
        "kernelVersion": identity.kernel_version,
        "osImage": identity.os_image,
        "containerRuntimeVersion": runtime,
        "kubeletVersion": of.version,
        "kubeProxyVersion": "",
        "operatingSystem": os_name(of.os),
        "architecture": of.architecture,
    });
    if of.os == OsName::Linux {
        told["runningInUserNamespace"] = identity.in_user_namespace.into();
    }
    if now.memory.swap_total > 0 {
        told["swap"] = json!({"capacity": now.memory.swap_total});
    }
    told
}

/// The largest images come first, because they matter most to a scheduler.
fn images(images: &[Image], most: Option<usize>) -> Value {
    let mut images: Vec<&Image> = images.iter().collect();
    images.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.id.cmp(&b.id)));
    let told = images.into_iter().take(most.unwrap_or(usize::MAX)).map(|image| {
        let names: Vec<&String> = image.digests.iter().chain(&image.tags).take(NAMES).collect();
        json!({"names": names, "sizeBytes": image.bytes})
    });
    told.collect()
}

fn handlers(handlers: &[cri::Handler]) -> Value {
    let mut handlers: Vec<&cri::Handler> = handlers.iter().collect();
    handlers.sort_by(|a, b| a.name.cmp(&b.name));
    let told = handlers.into_iter().map(|handler| {
        let features = json!({
            "recursiveReadOnlyMounts": handler.recursive_read_only_mounts,
            "userNamespaces": handler.user_namespaces,
        });
        json!({"name": handler.name, "features": features})
    });
    told.collect()
}
