//! Empty directories that exceed their size limit: [`excess`].
//!
//! Pure; [`super::Volumes::usage`] measures.

use std::collections::BTreeMap;

use objects::Quantity;

use lifecycle::spec::Pod;

/// Returns the reason for an eviction if an empty directory exceeds its `sizeLimit`. The text is upstream's,
/// including the space at the end. `usage` is in bytes by volume.
#[must_use]
pub fn excess(pod: &Pod, usage: &BTreeMap<String, u64>) -> Option<String> {
    pod.spec.volumes.iter().find_map(|volume| {
        let limit = volume.empty_dir.as_ref()?.size_limit.as_ref()?;
        let bytes = u64::try_from(Quantity::value(limit)).ok().filter(|bytes| *bytes > 0)?;
        let used = usage.get(&volume.name)?;
        let name = &volume.name;
        (*used > bytes)
            .then(|| format!("Usage of EmptyDir volume {name:?} exceeds the limit \"{limit}\". "))
    })
}
