//! Settings that take one of a few keywords. The case is ignored if the meaning is clear: the CPU
//! manager takes `static`, the memory manager `Static`, and users mix them up.

use super::eviction::SIGNALS;
use super::{
    CgroupDriver, CpuManagerPolicy, Enforcement, EvictionSignal, MemoryManagerPolicy, SwapBehavior,
    TopologyManagerPolicy, TopologyManagerScope, WindowsAffinity,
};
use crate::suggest::nearest;
use crate::yaml::read::{At, Findings};

/// The keywords of a setting and their values.
pub(super) type Keywords<T> = &'static [(&'static str, T)];

/// A setting with a fixed set of keywords.
pub(super) trait Keyword: Copy + 'static {
    const KEYWORDS: Keywords<Self>;
}

impl Keyword for CpuManagerPolicy {
    const KEYWORDS: Keywords<Self> =
        &[("none", CpuManagerPolicy::None), ("static", CpuManagerPolicy::Static)];
}

impl Keyword for MemoryManagerPolicy {
    const KEYWORDS: Keywords<Self> = &[
        ("None", MemoryManagerPolicy::None),
        ("Static", MemoryManagerPolicy::Static),
        ("BestEffort", MemoryManagerPolicy::BestEffort),
    ];
}

impl Keyword for TopologyManagerPolicy {
    const KEYWORDS: Keywords<Self> = &[
        ("none", TopologyManagerPolicy::None),
        ("best-effort", TopologyManagerPolicy::BestEffort),
        ("restricted", TopologyManagerPolicy::Restricted),
        ("single-numa-node", TopologyManagerPolicy::SingleNumaNode),
    ];
}

impl Keyword for TopologyManagerScope {
    const KEYWORDS: Keywords<Self> =
        &[("container", TopologyManagerScope::Container), ("pod", TopologyManagerScope::Pod)];
}

impl Keyword for WindowsAffinity {
    const KEYWORDS: Keywords<Self> =
        &[("union", WindowsAffinity::Union), ("cpu-only", WindowsAffinity::CpuOnly)];
}

impl Keyword for CgroupDriver {
    const KEYWORDS: Keywords<Self> =
        &[("cgroupfs", CgroupDriver::Cgroupfs), ("systemd", CgroupDriver::Systemd)];
}

impl Keyword for SwapBehavior {
    const KEYWORDS: Keywords<Self> =
        &[("NoSwap", SwapBehavior::NoSwap), ("LimitedSwap", SwapBehavior::LimitedSwap)];
}

impl Keyword for Enforcement {
    const KEYWORDS: Keywords<Self> = &[
        ("none", Enforcement::None),
        ("pods", Enforcement::Pods),
        ("system-reserved", Enforcement::SystemReserved),
        ("system-reserved-compressible", Enforcement::SystemReservedCompressible),
        ("kube-reserved", Enforcement::KubeReserved),
        ("kube-reserved-compressible", Enforcement::KubeReservedCompressible),
    ];
}

impl Keyword for EvictionSignal {
    const KEYWORDS: Keywords<Self> = SIGNALS;
}

/// Returns the keyword of a value.
pub(super) fn keyword<T: Keyword + PartialEq>(value: T) -> &'static str {
    T::KEYWORDS.iter().find(|(_, meaning)| *meaning == value).map_or("", |(word, _)| word)
}

macro_rules! display {
    ($($type:ty),*) => {$(
        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(keyword(*self))
            }
        }
    )*};
}

display!(
    CgroupDriver,
    CpuManagerPolicy,
    Enforcement,
    MemoryManagerPolicy,
    SwapBehavior,
    TopologyManagerPolicy,
    TopologyManagerScope,
    WindowsAffinity
);

/// Reads a keyword. Returns `None` if it is empty, which means the default, or wrong, which is
/// reported.
pub(super) fn read<T: Keyword>(at: &At<'_>, findings: &mut Findings) -> Option<T> {
    let text = at.text(findings)?;
    if text.is_empty() { None } else { interpret(&text, at, findings) }
}

/// Interprets a keyword that was read at `at` or is a key of it.
pub(super) fn interpret<T: Keyword>(text: &str, at: &At<'_>, findings: &mut Findings) -> Option<T> {
    if let Some((_, meaning)) = T::KEYWORDS.iter().find(|(word, _)| *word == text) {
        return Some(*meaning);
    }
    let letters = |word: &str| -> String {
        word.chars().filter(|c| c.is_ascii_alphanumeric()).collect::<String>().to_ascii_lowercase()
    };
    if let Some((word, meaning)) =
        T::KEYWORDS.iter().find(|(word, _)| letters(word) == letters(text))
    {
        at.warn(format!("{text:?} is taken as {word:?}; upstream accepts only {word:?}"), findings);
        return Some(*meaning);
    }
    let words: Vec<_> = T::KEYWORDS.iter().map(|(word, _)| format!("{word:?}")).collect();
    let meant = crate::yaml::did_you_mean(nearest(text, T::KEYWORDS.iter().map(|(word, _)| *word)));
    let text = crate::yaml::shortened(text);
    at.error(format!("{text:?} is not one of {}{meant}", words.join(", ")), findings);
    None
}
