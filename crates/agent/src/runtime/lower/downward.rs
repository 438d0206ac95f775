//! The downward API: fields ([`field`]) and resources ([`resource`]) of a pod by their paths.
//!
//! Used for environment variables and for files of volumes.

use objects::Quantity;
use objects::resources::{CPU, EPHEMERAL_STORAGE, MEMORY, is_huge_pages, is_pod_level};
use placement::{CpuId, CpuSet};

use super::input::{NodeEnvironment, PodInput};
use super::{LowerError, annotations, qos};
use lifecycle::spec::{Container, Labels, Pod, ResourceFieldRef, ResourceList};

/// Returns the value of a field, such as `metadata.labels['app']` or `status.podIP`.
pub fn field(input: &PodInput<'_>, pod_ips: &[String], path: &str) -> Result<String, LowerError> {
    let (pod, node_env) = (input.pod, input.node_env);
    let first = |list: &[String]| list.first().cloned().unwrap_or_default();
    Ok(match path {
        "metadata.name" => pod.metadata.name.clone(),
        "metadata.namespace" => pod.metadata.namespace.clone(),
        "metadata.uid" => pod.metadata.uid.clone(),
        "metadata.labels" => render(&pod.metadata.labels),
        "metadata.annotations" => render(&annotations::of_pod(input)),
        "spec.nodeName" => pod.spec.node_name.clone(),
        "spec.serviceAccountName" => pod.spec.service_account_name.clone(),
        "status.hostIP" => first(&node_env.ips),
        "status.hostIPs" => node_env.ips.join(","),
        "status.podIP" => first(pod_ips),
        "status.podIPs" => pod_ips.join(","),
        _ => {
            let (map, key) = subscript(path).ok_or_else(|| unsupported(path))?;
            let value = match map {
                "metadata.labels" => pod.metadata.labels.get(key).cloned(),
                "metadata.annotations" => {
                    assigned(input, key).or_else(|| annotations::of_pod(input).remove(key))
                }
                _ => return Err(unsupported(path)),
            };
            value.unwrap_or_default()
        }
    })
}

/// Returns the CPUs or memory nodes of a container, requested as an annotation that no pod has: a path that
/// every API server accepts, and that is empty if another agent runs the pod. `None` for any other
/// annotation.
///
/// `berth.dev/assigned-cpus.<container>` are its CPUs, `berth.dev/assigned-mems.<container>` its memory
/// nodes, as lists such as `2-3,8`. Empty for any.
fn assigned(input: &PodInput<'_>, key: &str) -> Option<String> {
    let affinity = |name: &str| {
        input.pod.container(name)?;
        Some(input.affinities.get(name).cloned().unwrap_or_default())
    };
    if let Some(name) = key.strip_prefix(ASSIGNED_CPUS) {
        return Some(affinity(name)?.cpus.to_string());
    }
    let mems = affinity(key.strip_prefix(ASSIGNED_MEMS)?)?.mems;
    Some(mems.iter().map(|node| CpuId(node.0)).collect::<CpuSet>().to_string())
}

/// The prefixes of the two annotations.
const ASSIGNED_CPUS: &str = "berth.dev/assigned-cpus.";
const ASSIGNED_MEMS: &str = "berth.dev/assigned-mems.";

fn unsupported(path: &str) -> LowerError {
    LowerError::FieldPath(path.to_owned())
}

/// Splits `a.b['key']` into its two parts.
fn subscript(path: &str) -> Option<(&str, &str)> {
    path.strip_suffix("']")?.split_once("['")
}

/// Formats labels or annotations, one per line: `key="value"`.
#[must_use]
pub fn render(map: &Labels) -> String {
    let lines: Vec<String> =
        map.iter().map(|(key, value)| format!("{key}={}", quote(value))).collect();
    lines.join("\n")
}

/// Quotes a text as Go's `%q` does.
fn quote(text: &str) -> String {
    let mut quoted = String::from("\"");
    for char in text.chars() {
        match char {
            '"' => quoted.push_str("\\\""),
            '\\' => quoted.push_str("\\\\"),
            '\u{7}' => quoted.push_str("\\a"),
            '\u{8}' => quoted.push_str("\\b"),
            '\u{c}' => quoted.push_str("\\f"),
            '\n' => quoted.push_str("\\n"),
            '\r' => quoted.push_str("\\r"),
            '\t' => quoted.push_str("\\t"),
            '\u{b}' => quoted.push_str("\\v"),
            _ if char.is_ascii_control() => quoted.push_str(&format!("\\x{:02x}", char as u32)),
            _ if char.is_control() => quoted.push_str(&format!("\\u{:04x}", char as u32)),
            _ => quoted.push(char),
        }
    }
    quoted.push('"');
    quoted
}

/// Returns the value of a resource, such as `limits.cpu`, in units of the divisor, rounded up. `own` is the
/// container of the variable. A missing limit is the pod's, or the node's allocatable amount.
pub fn resource(
    pod: &Pod,
    node_env: &NodeEnvironment,
    own: Option<&Container>,
    selector: &ResourceFieldRef,
) -> Result<String, LowerError> {
    let missing = || LowerError::NoContainer(selector.container_name.clone());
    let container = match (selector.container_name.as_str(), own) {
        ("", Some(own)) => own,
        (name, _) => pod.container(name).ok_or_else(missing)?.1,
    };
    let unsupported = || LowerError::ResourceField(selector.resource.clone());
    let (kind, name) = selector.resource.split_once('.').ok_or_else(unsupported)?;
    let is_known = matches!(name, CPU | MEMORY | EPHEMERAL_STORAGE);
    if !is_known && !is_huge_pages(name) {
        return Err(unsupported());
    }
    let amount = match kind {
        "requests" => container.resources.requests.get(name),
        "limits" if is_known => default_limit(pod, node_env, container, name),
        "limits" => container.resources.limits.get(name),
        _ => return Err(unsupported()),
    };
    let zero = Quantity::zero();
    let amount = amount.unwrap_or(&zero);
    let divisor = selector.divisor.as_ref().filter(|divisor| divisor.sign() > 0);
    let (amount, divisor) = match name {
        CPU => (amount.milli_value(), divisor.map_or(1000, Quantity::milli_value)),
        _ => (amount.value(), divisor.map_or(1, Quantity::value)),
    };
    Ok((amount as f64 / divisor.max(1) as f64).ceil().to_string())
}

fn default_limit<'a>(
    pod: &'a Pod,
    node_env: &'a NodeEnvironment,
    container: &'a Container,
    name: &str,
) -> Option<&'a Quantity> {
    fn given<'a>(limits: &'a ResourceList, name: &str) -> Option<&'a Quantity> {
        limits.get(name).filter(|limit| !limit.is_zero())
    }
    given(&container.resources.limits, name)
        .or_else(|| {
            let whole = qos::pod_level(pod).filter(|_| is_pod_level(name))?;
            given(&whole.limits, name)
        })
        .or_else(|| node_env.allocatable.get(name))
}
