//! Taints of nodes and tolerations of pods: [`Toleration::tolerates`].
//!
//! Generic over how texts are held, so that the scheduler can compare interned symbols and other callers
//! borrowed texts. The effect of a taint on pods is for the callers to decide.

use crate::types;

/// The effect of a taint on pods that do not tolerate it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Effect {
    NoSchedule,
    PreferNoSchedule,
    NoExecute,
    /// An effect that this version does not know.
    Other,
}

impl Effect {
    fn parse(text: &str) -> Effect {
        match text {
            "NoSchedule" => Effect::NoSchedule,
            "PreferNoSchedule" => Effect::PreferNoSchedule,
            "NoExecute" => Effect::NoExecute,
            _ => Effect::Other,
        }
    }
}

/// A taint of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Taint<T> {
    pub key: T,
    pub value: T,
    pub effect: Effect,
    /// The value, if it is an integer in canonical form.
    number: Option<i64>,
}

impl<T> Taint<T> {
    /// Makes a taint of the fields of an object; `hold` turns a text into the caller's form.
    pub fn new<'a>(
        key: &'a str,
        value: &'a str,
        effect: &str,
        mut hold: impl FnMut(&'a str) -> T,
    ) -> Taint<T> {
        Taint {
            key: hold(key),
            value: hold(value),
            effect: Effect::parse(effect),
            number: canonical_integer(value),
        }
    }
}

/// Parses an integer in canonical form: no sign but a minus, no leading zeros.
#[must_use]
pub fn canonical_integer(text: &str) -> Option<i64> {
    text.parse::<i64>().ok().filter(|number| number.to_string() == text)
}

/// A toleration of a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Toleration<T> {
    /// `None` is every key.
    key: Option<T>,
    /// `None` is every effect.
    effect: Option<Effect>,
    test: Test<T>,
}

/// The test of a taint's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Test<T> {
    Equal(T),
    Exists,
    Above(Option<i64>),
    Below(Option<i64>),
    Never,
}

impl<T: PartialEq> Toleration<T> {
    /// Makes a toleration of the fields of an object; `hold` turns a text into the caller's form.
    pub fn new<'a>(
        key: &'a str,
        operator: &str,
        value: &'a str,
        effect: &str,
        mut hold: impl FnMut(&'a str) -> T,
    ) -> Toleration<T> {
        Toleration {
            key: (!key.is_empty()).then(|| hold(key)),
            effect: (!effect.is_empty()).then(|| Effect::parse(effect)),
            test: match operator {
                "" | "Equal" => Test::Equal(hold(value)),
                "Exists" => Test::Exists,
                "Gt" => Test::Above(canonical_integer(value)),
                "Lt" => Test::Below(canonical_integer(value)),
                _ => Test::Never,
            },
        }
    }

    /// Reports whether the toleration covers taints that only make a node less preferred.
    pub fn is_for_preferences(&self) -> bool {
        self.effect.is_none_or(|effect| effect == Effect::PreferNoSchedule)
    }

    /// Reports whether the toleration covers the taint. `compare` is the gate
    /// `TaintTolerationComparisonOperators`: without it, `Gt` and `Lt` cover nothing.
    pub fn tolerates(&self, taint: &Taint<T>, compare: bool) -> bool {
        self.effect.is_none_or(|effect| effect == taint.effect)
            && self.key.as_ref().is_none_or(|key| *key == taint.key)
            && match &self.test {
                Test::Equal(value) => *value == taint.value,
                Test::Exists => true,
                Test::Above(Some(bound)) => compare && taint.number.is_some_and(|n| n > *bound),
                Test::Below(Some(bound)) => compare && taint.number.is_some_and(|n| n < *bound),
                Test::Above(None) | Test::Below(None) | Test::Never => false,
            }
    }
}

impl types::Toleration {
    /// Reports whether the toleration covers the taint; see [`Toleration::tolerates`].
    #[must_use]
    pub fn tolerates(&self, taint: &types::Taint, compare: bool) -> bool {
        let taint = Taint::new(&taint.key, &taint.value, &taint.effect, |text| text);
        Toleration::new(&self.key, &self.operator, &self.value, &self.effect, |text| text)
            .tolerates(&taint, compare)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tolerations_match_by_key_value_and_effect() {
        for (key, operator, value, effect, tolerates) in [
            ("k", "", "5", "", true),
            ("k", "Equal", "5", "NoExecute", true),
            ("k", "Equal", "6", "", false),
            ("k", "Exists", "", "NoSchedule", false),
            ("j", "Exists", "", "", false),
            ("", "Exists", "", "", true),
            ("", "Equal", "5", "", true),
            ("", "Equal", "6", "", false),
            ("k", "Gt", "4", "", true),
            ("k", "Gt", "5", "", false),
            ("k", "Gt", "04", "", false),
            ("k", "Lt", "6", "", true),
            ("k", "Lt", "six", "", false),
            ("k", "Other", "5", "", false),
        ] {
            let taint = Taint::new("k", "5", "NoExecute", |text| text);
            let toleration = Toleration::new(key, operator, value, effect, |text| text);
            assert_eq!(toleration.tolerates(&taint, true), tolerates, "{toleration:?}");
            let compares = matches!(operator, "Gt" | "Lt");
            assert_eq!(
                toleration.tolerates(&taint, false),
                tolerates && !compares,
                "{toleration:?}"
            );
        }
    }
}
