//! Taints of nodes and tolerations of pods, with interned texts; `objects` decides which tolerate which.
//!
//! Main function: [`untolerated`]. Which taints keep a pod away and which only make a node less preferred is
//! for filters and scores.

use objects::taint;
pub(crate) use objects::taint::Effect;
use objects::types;

use crate::interner::{Interner, Symbol};

pub(crate) type Taint = taint::Taint<Symbol>;
pub(crate) type Toleration = taint::Toleration<Symbol>;

/// The key of the taint that an unschedulable node has in effect.
pub(crate) const UNSCHEDULABLE: &str = "node.kubernetes.io/unschedulable";

pub(crate) fn taint(taint: &types::Taint, symbols: &mut Interner) -> Taint {
    Taint::new(&taint.key, &taint.value, &taint.effect, |text| symbols.intern(text))
}

/// Returns the taint of an unschedulable node.
pub(crate) fn unschedulable(symbols: &mut Interner) -> Taint {
    Taint::new(UNSCHEDULABLE, "", "NoSchedule", |text| symbols.intern(text))
}

pub(crate) fn toleration(of: &types::Toleration, symbols: &mut Interner) -> Toleration {
    Toleration::new(&of.key, &of.operator, &of.value, &of.effect, |text| symbols.intern(text))
}

/// Returns true if a `NoSchedule` or `NoExecute` taint is not tolerated.
pub(crate) fn untolerated(taints: &[Taint], tolerations: &[Toleration], compare: bool) -> bool {
    taints
        .iter()
        .filter(|t| matches!(t.effect, Effect::NoSchedule | Effect::NoExecute))
        .any(|taint| !tolerations.iter().any(|t| t.tolerates(taint, compare)))
}
