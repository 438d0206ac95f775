//! Taints of the node, and which of them a pod tolerates.

use objects::taint;
use serde::Deserialize;

use crate::spec::Pod;

#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(default)]
pub struct Taint {
    pub key: String,
    pub value: String,
    pub effect: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(default)]
pub struct Toleration {
    /// Empty is every key.
    pub key: String,
    /// `Equal` if empty.
    pub operator: String,
    pub value: String,
    /// Empty is every effect.
    pub effect: String,
}

impl Toleration {
    /// Reports whether the taint is tolerated; `compare` is the gate of the operators `Gt` and `Lt`.
    #[must_use]
    pub fn tolerates(&self, taint: &Taint, compare: bool) -> bool {
        let taint = taint::Taint::new(&taint.key, &taint.value, &taint.effect, |text| text);
        taint::Toleration::new(&self.key, &self.operator, &self.value, &self.effect, |text| text)
            .tolerates(&taint, compare)
    }
}

/// Returns true if a pod tolerates a taint. A toleration that cannot be parsed tolerates nothing.
pub(super) fn is_tolerated(pod: &Pod, taint: &Taint, compare: bool) -> bool {
    let read = |value| Toleration::deserialize(value).ok();
    let mut tolerations = pod.spec.tolerations.iter().filter_map(read);
    tolerations.any(|toleration| toleration.tolerates(taint, compare))
}
