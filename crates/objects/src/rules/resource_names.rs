//! Resource names and amounts that are valid in quotas, limit ranges, nodes and overhead.

use super::checks::{NOT_NEGATIVE, quantity};
use super::names::{self, label_key_problems};
use crate::cursor::{Causes, Cursor};
use crate::resources::{
    CPU, EPHEMERAL_STORAGE, MEMORY, QUOTA_COMPUTE, is_extended, is_huge_pages, is_native,
    is_quota_huge_pages,
};

/// Resources that are counted in whole objects.
const COUNTED: [&str; 9] = [
    "pods",
    "services",
    "replicationcontrollers",
    "resourcequotas",
    "secrets",
    "configmaps",
    "persistentvolumeclaims",
    "services.nodeports",
    "services.loadbalancers",
];

const CONTAINER: [&str; 3] = [CPU, MEMORY, EPHEMERAL_STORAGE];

/// Reports whether a quota can use the name without an API group.
pub(super) fn is_standard_quota(name: &str) -> bool {
    COUNTED.contains(&name)
        || QUOTA_COMPUTE.contains(&name)
        || name == "requests.storage"
        || is_quota_huge_pages(name)
}

/// Reports whether a name without a domain is valid somewhere.
pub(super) fn is_standard(name: &str) -> bool {
    is_standard_quota(name) || name == "storage"
}

/// Reports whether a resource is counted in whole units.
pub(super) fn is_whole(name: &str) -> bool {
    COUNTED.contains(&name) || is_extended(name)
}

/// Reports whether quotas of a scope can bound the resource.
pub(super) fn fits_scope(scope: &str, name: &str) -> bool {
    const POD_COMPUTE: [&str; 6] =
        ["cpu", "memory", "limits.cpu", "limits.memory", "requests.cpu", "requests.memory"];
    match scope {
        "BestEffort" => name == "pods",
        "Terminating"
        | "NotTerminating"
        | "NotBestEffort"
        | "PriorityClass"
        | "CrossNamespacePodAffinity" => {
            name == "pods" || POD_COMPUTE.contains(&name) || is_quota_huge_pages(name)
        }
        "VolumeAttributesClass" => matches!(name, "persistentvolumeclaims" | "requests.storage"),
        _ => true,
    }
}

/// Validates the name of any resource; `at` is the entry with that key.
pub(super) fn any(at: &Cursor<'_>, name: &str, causes: &mut Causes) {
    let problems = label_key_problems(name);
    names::report_as(causes, at, name, &problems);
    if problems.is_empty() && !name.contains('/') && !is_standard(name) {
        causes.invalid_as(at, name, "must be a standard resource type or fully qualified");
    }
}

/// Validates the name of a resource that containers can request.
pub(super) fn of_containers(at: &Cursor<'_>, name: &str, causes: &mut Causes) {
    any(at, name, causes);
    if !name.contains('/') {
        if !CONTAINER.contains(&name) && !is_huge_pages(name) {
            causes.invalid_as(at, name, "must be a standard resource for containers");
        }
    } else if !is_native(name) && !is_extended(name) {
        causes.invalid_as(at, name, "doesn't follow extended resource name standard");
    }
}

/// Validates the name of a resource that a quota can bound.
pub(super) fn of_quotas(at: &Cursor<'_>, name: &str, causes: &mut Causes) {
    any(at, name, causes);
    if !name.contains('/') && !is_standard_quota(name) {
        causes.invalid_as(at, name, "must be a standard resource for quota");
    }
}

/// Validates the amount of a resource: not negative, and an integer where the resource is counted
/// in units.
pub(super) fn amount(at: &Cursor<'_>, name: &str, causes: &mut Causes) {
    let Some(amount) = quantity(at.value()) else { return };
    if amount.is_negative() {
        causes.invalid(at, NOT_NEGATIVE);
    }
    if is_whole(name) && amount.milli_value() % 1000 != 0 {
        causes.invalid(at, "must be an integer");
    }
}
