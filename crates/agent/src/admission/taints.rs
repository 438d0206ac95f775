//! Taints of the node, and which of them a pod tolerates.

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
    #[must_use]
    pub fn tolerates(&self, taint: &Taint) -> bool {
        let effect = self.effect.is_empty() || self.effect == taint.effect;
        let key = self.key.is_empty() || self.key == taint.key;
        effect && key && self.value_fits(&taint.value)
    }

    fn value_fits(&self, value: &str) -> bool {
        let numbers = || Some((number(value)?, number(&self.value)?));
        match self.operator.as_str() {
            "" | "Equal" => self.value == value,
            "Exists" => true,
            "Gt" => numbers().is_some_and(|(of_taint, own)| of_taint > own),
            "Lt" => numbers().is_some_and(|(of_taint, own)| of_taint < own),
            _ => false,
        }
    }
}

/// A number written the one way it should be.
fn number(text: &str) -> Option<i64> {
    text.parse::<i64>().ok().filter(|number| number.to_string() == text)
}

/// Whether a pod tolerates a taint. A toleration that cannot be read tolerates nothing.
pub(super) fn is_tolerated(pod: &Pod, taint: &Taint) -> bool {
    let read = |value| Toleration::deserialize(value).ok();
    pod.spec.tolerations.iter().filter_map(read).any(|toleration| toleration.tolerates(taint))
}
