//! Resource names and lists.
//!
//! Main type: [`ResourceList`]. The rules for names are upstream's: overcommittable, extended and
//! huge-page resources. The capacity of a machine is not known here.

use std::collections::BTreeMap;

use crate::quantity::Quantity;

pub const CPU: &str = "cpu";
pub const MEMORY: &str = "memory";
pub const EPHEMERAL_STORAGE: &str = "ephemeral-storage";
pub const HUGEPAGES_PREFIX: &str = "hugepages-";

/// The names of compute resources in quotas. Those without a prefix are requests.
pub(crate) const QUOTA_COMPUTE: [&str; 9] = [
    CPU,
    MEMORY,
    EPHEMERAL_STORAGE,
    "requests.cpu",
    "requests.memory",
    "requests.ephemeral-storage",
    "limits.cpu",
    "limits.memory",
    "limits.ephemeral-storage",
];

/// Resource name → amount.
pub type ResourceList = BTreeMap<String, Quantity>;

/// Reports whether a resource is huge pages, such as `hugepages-2Mi`.
#[must_use]
pub fn is_huge_pages(name: &str) -> bool {
    name.starts_with(HUGEPAGES_PREFIX)
}

/// Reports whether a quota of this name bounds huge pages.
pub(crate) fn is_quota_huge_pages(name: &str) -> bool {
    is_huge_pages(name.strip_prefix("requests.").unwrap_or(name))
}

/// The page size of a huge-pages resource in bytes.
#[must_use]
pub fn huge_page_size(name: &str) -> Option<i64> {
    let size = name.strip_prefix(HUGEPAGES_PREFIX)?;
    Quantity::parse(size).ok()?.checked_value().filter(|bytes| *bytes > 0)
}

/// Reports whether the resource belongs to Kubernetes and not to a vendor.
#[must_use]
pub fn is_native(name: &str) -> bool {
    !name.contains('/') || name.contains("kubernetes.io/")
}

/// Reports whether the resource belongs to a vendor, such as `nvidia.com/gpu`. Such resources are
/// counted in whole units.
#[must_use]
pub fn is_extended(name: &str) -> bool {
    !is_native(name) && !name.starts_with("requests.")
}

/// Reports whether a request may be lower than the limit.
#[must_use]
pub fn may_be_overcommitted(name: &str) -> bool {
    is_native(name) && !is_huge_pages(name)
}

/// Reports whether `spec.resources` of a pod may list the resource.
#[must_use]
pub fn is_pod_level(name: &str) -> bool {
    name == CPU || name == MEMORY || is_huge_pages(name)
}

/// Adds every amount of `other` to `list`.
pub fn add(list: &mut ResourceList, other: &ResourceList) {
    for (name, amount) in other {
        let sum = match list.get(name) {
            // Amounts whose magnitudes differ too much to be added are rejected by validation; the
            // larger one is used here.
            Some(have) => have.checked_add(amount).unwrap_or_else(|| have.max(amount).clone()),
            None => amount.clone(),
        };
        list.insert(name.clone(), sum);
    }
}

/// Raises every amount of `list` to that of `other`.
pub fn raise(list: &mut ResourceList, other: &ResourceList) {
    for (name, amount) in other {
        match list.get_mut(name) {
            Some(have) if *have >= *amount => {}
            Some(have) => *have = amount.clone(),
            None => {
                list.insert(name.clone(), amount.clone());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_upstreams_rules() {
        assert!(is_extended("nvidia.com/gpu") && !is_extended("cpu"));
        assert!(!is_extended("example.kubernetes.io/x"));
        assert!(may_be_overcommitted("memory") && !may_be_overcommitted("hugepages-2Mi"));
        assert!(!may_be_overcommitted("nvidia.com/gpu"));
        assert_eq!(huge_page_size("hugepages-2Mi"), Some(2 << 20));
        assert_eq!(huge_page_size("hugepages-"), None);
        assert_eq!(huge_page_size("memory"), None);
    }
}
