//! Resource limits of processes: [`RlimitKind`], [`Rlimit`], and the text of `/proc/PID/limits`.

use std::collections::BTreeMap;
use std::fmt;

use thiserror::Error;

use crate::cgroups::Bound;

/// A resource with a limit for each process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RlimitKind {
    AddressSpace,
    Core,
    CpuSeconds,
    Data,
    FileSize,
    Locks,
    LockedMemory,
    MessageQueues,
    Nice,
    OpenFiles,
    Processes,
    ResidentSet,
    RealtimePriority,
    RealtimeTime,
    PendingSignals,
    Stack,
}

/// Kinds, their names in the OCI runtime configuration and in `/proc/PID/limits`.
const NAMES: [(RlimitKind, &str, &str); 16] = [
    (RlimitKind::AddressSpace, "RLIMIT_AS", "Max address space"),
    (RlimitKind::Core, "RLIMIT_CORE", "Max core file size"),
    (RlimitKind::CpuSeconds, "RLIMIT_CPU", "Max cpu time"),
    (RlimitKind::Data, "RLIMIT_DATA", "Max data size"),
    (RlimitKind::FileSize, "RLIMIT_FSIZE", "Max file size"),
    (RlimitKind::Locks, "RLIMIT_LOCKS", "Max file locks"),
    (RlimitKind::LockedMemory, "RLIMIT_MEMLOCK", "Max locked memory"),
    (RlimitKind::MessageQueues, "RLIMIT_MSGQUEUE", "Max msgqueue size"),
    (RlimitKind::Nice, "RLIMIT_NICE", "Max nice priority"),
    (RlimitKind::OpenFiles, "RLIMIT_NOFILE", "Max open files"),
    (RlimitKind::Processes, "RLIMIT_NPROC", "Max processes"),
    (RlimitKind::ResidentSet, "RLIMIT_RSS", "Max resident set"),
    (RlimitKind::RealtimePriority, "RLIMIT_RTPRIO", "Max realtime priority"),
    (RlimitKind::RealtimeTime, "RLIMIT_RTTIME", "Max realtime timeout"),
    (RlimitKind::PendingSignals, "RLIMIT_SIGPENDING", "Max pending signals"),
    (RlimitKind::Stack, "RLIMIT_STACK", "Max stack size"),
];

impl RlimitKind {
    /// Returns the kind of a name such as `RLIMIT_NOFILE`.
    #[must_use]
    pub fn parse(name: &str) -> Option<RlimitKind> {
        NAMES.iter().find(|(_, known, _)| *known == name).map(|(kind, ..)| *kind)
    }

    #[must_use]
    pub fn name(self) -> &'static str {
        NAMES.iter().find(|(kind, ..)| *kind == self).map_or("RLIMIT", |(_, name, _)| name)
    }
}

impl fmt::Display for RlimitKind {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str(self.name())
    }
}

/// A soft limit and a hard limit that is not lower.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rlimit {
    soft: Bound,
    hard: Bound,
}

impl Rlimit {
    /// Returns `None` if the soft limit exceeds the hard limit.
    #[must_use]
    pub fn new(soft: Bound, hard: Bound) -> Option<Rlimit> {
        (soft <= hard).then_some(Rlimit { soft, hard })
    }

    #[must_use]
    pub fn soft(self) -> Bound {
        self.soft
    }

    #[must_use]
    pub fn hard(self) -> Bound {
        self.hard
    }
}

impl fmt::Display for Rlimit {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "{}:{}", self.soft, self.hard)
    }
}

/// The limits of a process or of a class.
pub type Rlimits = BTreeMap<RlimitKind, Rlimit>;

/// The reason why `/proc/PID/limits` cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("the line {line:?} of the limits of a process is not a name with a soft and a hard limit")]
pub struct RlimitsTextError {
    pub line: String,
}

/// Parses `/proc/PID/limits`. Resources that are not known are left out.
pub(super) fn parse(text: &str) -> Result<Rlimits, RlimitsTextError> {
    let mut limits = Rlimits::new();
    // The first line has the titles of the columns.
    for line in text.lines().skip(1) {
        let found = NAMES.iter().find_map(|(kind, _, name)| {
            line.strip_prefix(name).filter(|rest| rest.starts_with(' ')).map(|rest| (*kind, rest))
        });
        let Some((kind, rest)) = found else { continue };
        let mut words = rest.split_ascii_whitespace().map(bound);
        let limit = match (words.next().flatten(), words.next().flatten()) {
            (Some(soft), Some(hard)) => Rlimit::new(soft, hard),
            _ => None,
        };
        let error = || RlimitsTextError { line: line.chars().take(200).collect() };
        limits.insert(kind, limit.ok_or_else(error)?);
    }
    Ok(limits)
}

fn bound(word: &str) -> Option<Bound> {
    if word == "unlimited" { Some(Bound::Max) } else { word.parse().ok().map(Bound::At) }
}
