//! What earlier checks found: [`History`]. From it follows whether somebody fights over a container, and
//! what was told already. Pure but for what it is told.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::SystemTime;

use crate::runtime::observed::RuntimeId;

/// Repairs of one container that are no accident any more, and within how many checks.
const OFTEN: usize = 3;
const WITHIN: u64 = 5;

/// That a container had to be put back again and again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fight {
    pub times: usize,
    pub checks: u64,
}

/// What is remembered of earlier checks.
#[derive(Debug, Default)]
pub struct History {
    checks: u64,
    containers: BTreeMap<RuntimeId, Past>,
    /// When state files of a kubelet were last written, as they were first seen.
    pub(super) files: Option<BTreeMap<PathBuf, Option<SystemTime>>>,
    /// That it cannot be checked was said.
    pub(super) said_blind: bool,
}

#[derive(Debug, Default)]
struct Past {
    pid: Option<u32>,
    was_right: bool,
    /// The checks in which it was put back.
    repairs: Vec<u64>,
    /// What was last told of it that stays as it is.
    told: Option<String>,
}

impl History {
    /// A check begins; containers that are not there any more are forgotten.
    pub fn begin<'a>(&mut self, there: impl IntoIterator<Item = &'a RuntimeId>) {
        self.checks += 1;
        let there: BTreeSet<&RuntimeId> = there.into_iter().collect();
        self.containers.retain(|id, _| there.contains(id));
    }

    fn past(&mut self, id: &RuntimeId) -> &mut Past {
        self.containers.entry(id.clone()).or_default()
    }

    /// The first process of a container, if it is known.
    #[must_use]
    pub fn pid(&self, id: &RuntimeId) -> Option<u32> {
        self.containers.get(id)?.pid
    }

    pub fn set_pid(&mut self, id: &RuntimeId, pid: Option<u32>) {
        self.past(id).pid = pid;
    }

    /// All was as it should be.
    pub fn right(&mut self, id: &RuntimeId) {
        let past = self.past(id);
        (past.was_right, past.told) = (true, None);
    }

    /// Whether the container ever was where it was put.
    #[must_use]
    pub fn was_right(&self, id: &RuntimeId) -> bool {
        self.containers.get(id).is_some_and(|past| past.was_right)
    }

    /// It was put back. Says if that happened too often.
    pub fn repaired(&mut self, id: &RuntimeId) -> Option<Fight> {
        let now = self.checks;
        let past = self.past(id);
        (past.was_right, past.told) = (true, None);
        past.repairs.retain(|check| check + WITHIN > now);
        past.repairs.push(now);
        let times = past.repairs.len();
        (times >= OFTEN).then_some(Fight { times, checks: WITHIN })
    }

    /// It cannot be put right. Whether that is news.
    pub fn stays(&mut self, id: &RuntimeId, what: &str) -> bool {
        let past = self.past(id);
        let news = past.told.as_deref() != Some(what);
        past.told = Some(what.to_owned());
        news
    }
}
