//! Taints of nodes and tolerations of pods.
//!
//! Main types: [`Taint`], [`Toleration`] and [`untolerated`]. Which taints keep a pod away and which
//! only make a node less liked is for filters and scores.

use crate::interner::{Interner, Symbol};
use crate::object;

/// What a taint does to pods that do not tolerate it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Effect {
    NoSchedule,
    PreferNoSchedule,
    NoExecute,
    /// None that scheduling acts on.
    Other,
}

impl Effect {
    fn new(word: &str) -> Effect {
        match word {
            "NoSchedule" => Effect::NoSchedule,
            "PreferNoSchedule" => Effect::PreferNoSchedule,
            "NoExecute" => Effect::NoExecute,
            _ => Effect::Other,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Taint {
    pub(crate) key: Symbol,
    pub(crate) value: Symbol,
    pub(crate) effect: Effect,
    /// The value, if it is a whole number written as one.
    pub(crate) number: Option<i64>,
}

/// The key of the taint that an unschedulable node has in effect.
pub(crate) const UNSCHEDULABLE: &str = "node.kubernetes.io/unschedulable";

impl Taint {
    pub(crate) fn new(taint: &object::Taint, symbols: &mut Interner) -> Taint {
        Taint {
            key: symbols.intern(&taint.key),
            value: symbols.intern(&taint.value),
            effect: Effect::new(&taint.effect),
            number: canonical(&taint.value),
        }
    }

    pub(crate) fn unschedulable(symbols: &mut Interner) -> Taint {
        Taint {
            key: symbols.intern(UNSCHEDULABLE),
            value: symbols.intern(""),
            effect: Effect::NoSchedule,
            number: None,
        }
    }
}

/// A number written the one way it should be: no sign but a minus, no leading zeros.
fn canonical(text: &str) -> Option<i64> {
    text.parse::<i64>().ok().filter(|number| number.to_string() == text)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Toleration {
    /// `None` is every key.
    key: Option<Symbol>,
    /// `None` is every effect.
    effect: Option<Effect>,
    test: Test,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Test {
    Equal(Symbol),
    Exists,
    Above(Option<i64>),
    Below(Option<i64>),
    Never,
}

impl Toleration {
    pub(crate) fn new(toleration: &object::Toleration, symbols: &mut Interner) -> Toleration {
        let named = |text: &str| (!text.is_empty()).then_some(());
        Toleration {
            key: named(&toleration.key).map(|()| symbols.intern(&toleration.key)),
            effect: named(&toleration.effect).map(|()| Effect::new(&toleration.effect)),
            test: match toleration.operator.as_str() {
                "" | "Equal" => Test::Equal(symbols.intern(&toleration.value)),
                "Exists" => Test::Exists,
                "Gt" => Test::Above(canonical(&toleration.value)),
                "Lt" => Test::Below(canonical(&toleration.value)),
                _ => Test::Never,
            },
        }
    }

    /// Whether it speaks of taints that only make a node less liked.
    pub(crate) fn is_for_preferences(&self) -> bool {
        self.effect.is_none_or(|e| e == Effect::PreferNoSchedule)
    }

    /// `compare` is whether the operators `Gt` and `Lt` are known.
    pub(crate) fn tolerates(&self, taint: &Taint, compare: bool) -> bool {
        self.effect.is_none_or(|e| e == taint.effect)
            && self.key.is_none_or(|k| k == taint.key)
            && match self.test {
                Test::Equal(value) => value == taint.value,
                Test::Exists => true,
                Test::Above(Some(bound)) => compare && taint.number.is_some_and(|n| n > bound),
                Test::Below(Some(bound)) => compare && taint.number.is_some_and(|n| n < bound),
                Test::Above(None) | Test::Below(None) | Test::Never => false,
            }
    }
}

/// Whether a taint that keeps pods away is not tolerated.
pub(crate) fn untolerated(taints: &[Taint], tolerations: &[Toleration], compare: bool) -> bool {
    taints
        .iter()
        .filter(|t| matches!(t.effect, Effect::NoSchedule | Effect::NoExecute))
        .any(|taint| !tolerations.iter().any(|t| t.tolerates(taint, compare)))
}
