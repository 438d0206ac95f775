//! Where running containers are to run: [`Pool`] keeps the ones without CPUs of their own in the shared
//! pool when it changes.
//!
//! ```text
//!   a pod gets CPUs ──▶ the book is written ──▶ every shared container leaves them ──▶ the pod starts
//! ```
//!
//! A container is entered after it is made and before it is started, with the set it was made with; if the
//! pool is another one by then it is moved first. So no container that runs is ever missed: it is either in
//! the list when the pool changes, or sees the new pool before it starts.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use futures::StreamExt as _;
use futures::stream;
use objects::pod::OsName;
use placement::CpuSet;

use crate::look::Brief;
use crate::lower::{Placed, update};
use crate::observed::{ContainerState, RuntimeId};

/// How many containers are moved at a time.
const AT_A_TIME: usize = 8;

/// A container that could not be moved.
#[derive(Debug, thiserror::Error)]
#[error("container {id} cannot be moved to CPUs {cpus}: {cause}")]
pub struct NotMoved {
    pub id: RuntimeId,
    pub cpus: CpuSet,
    pub cause: cri::Error,
}

/// The containers that run or are about to, and where each was told to be.
#[derive(Debug, Default)]
pub struct Pool {
    entered: Mutex<BTreeMap<RuntimeId, Entry>>,
    /// Only one moves containers.
    moving: tokio::sync::Mutex<()>,
}

/// A container and its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    pub pod_uid: String,
    pub container: String,
    pub placed: Placed,
}

impl Pool {
    fn entries(&self) -> MutexGuard<'_, BTreeMap<RuntimeId, Entry>> {
        self.entered.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes up a container with what it was told.
    pub fn enter(&self, id: &RuntimeId, entry: Entry) {
        self.entries().insert(id.clone(), entry);
    }

    /// Forgets a container that has ended.
    pub fn leave(&self, id: &RuntimeId) {
        self.entries().remove(id);
    }

    /// All that are entered.
    #[must_use]
    pub fn all(&self) -> BTreeMap<RuntimeId, Entry> {
        self.entries().clone()
    }

    #[must_use]
    pub fn entry(&self, id: &RuntimeId) -> Option<Entry> {
        self.entries().get(id).cloned()
    }

    /// A container was found where it is to be, although nobody remembers having told it.
    pub fn found(&self, id: &RuntimeId, placed: Placed) {
        if let Some(entry) = self.entries().get_mut(id) {
            entry.placed = placed;
        }
    }

    /// Takes up what ran before the agent was started. Nobody remembers where those without CPUs of their
    /// own were told to be, so they are told again, or looked at, before anything else starts.
    pub fn take_up(&self, briefs: &BTreeMap<String, Brief>, place: impl Fn(&str, &str) -> Placed) {
        for (pod_uid, brief) in briefs {
            for (id, container) in &brief.containers {
                if !matches!(container.state, ContainerState::Created | ContainerState::Running) {
                    continue;
                }
                let booked = place(pod_uid, &container.name);
                let placed = if booked.exclusive { booked } else { Placed::default() };
                let entry =
                    Entry { pod_uid: pod_uid.clone(), container: container.name.clone(), placed };
                self.enter(id, entry);
            }
        }
    }

    /// Nobody moves containers while this is held.
    pub async fn stand_still(&self) -> tokio::sync::MutexGuard<'_, ()> {
        self.moving.lock().await
    }

    /// Tells every shared container that is elsewhere to be where `place` says, which is asked when
    /// nobody else moves containers any more. Returns when all of them are; those that have ended in the
    /// meantime do not count.
    pub async fn follow(
        &self,
        runtime: &cri::Client,
        os: OsName,
        place: impl Fn(&Entry) -> Placed,
    ) -> Result<usize, NotMoved> {
        let _moving = self.moving.lock().await;
        let all = self.all();
        let shared = all.into_iter().filter(|(_, entry)| !entry.placed.exclusive);
        let elsewhere: Vec<(RuntimeId, Placed)> = shared
            .map(|(id, entry)| (id, place(&entry), entry.placed))
            .filter(|(_, place, told)| !place.cpus.is_empty() && place != told)
            .map(|(id, place, _)| (id, place))
            .collect();
        let moved = elsewhere.len();
        let moves = elsewhere.into_iter().map(|(id, placed)| self.put(runtime, os, id, placed));
        let mut outcomes = stream::iter(moves).buffer_unordered(AT_A_TIME);
        let mut failed = None;
        while let Some(outcome) = outcomes.next().await {
            failed = failed.or(outcome.err());
        }
        failed.map_or(Ok(moved), Err)
    }

    /// Tells a container where to be.
    pub async fn put(
        &self,
        runtime: &cri::Client,
        os: OsName,
        id: RuntimeId,
        placed: Placed,
    ) -> Result<(), NotMoved> {
        match runtime.call(update::cpus(os, &placed, &id)).await {
            Ok(_) => {
                if let Some(entry) = self.entries().get_mut(&id) {
                    entry.placed = placed;
                }
                Ok(())
            }
            Err(cause) => match has_ended(runtime, &id).await {
                true => {
                    self.leave(&id);
                    Ok(())
                }
                false => Err(NotMoved { id, cpus: placed.cpus, cause }),
            },
        }
    }
}

/// Whether there is nothing left that could run on the wrong CPUs.
async fn has_ended(runtime: &cri::Client, id: &RuntimeId) -> bool {
    let request = cri::v1::ContainerStatusRequest { container_id: id.clone(), verbose: false };
    match runtime.call(request).await {
        Ok(answer) => answer
            .status
            .is_none_or(|status| status.state() == cri::v1::ContainerState::ContainerExited),
        Err(error) => error.is_not_found(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::look::ContainerBrief;

    #[test]
    fn what_runs_at_the_start_is_taken_up_and_the_dead_are_not() {
        let container = |name: &str, state: ContainerState| ContainerBrief {
            attempt: 0,
            name: name.to_owned(),
            sandbox: "s".to_owned(),
            state,
            created_at: 0,
        };
        let containers = [
            ("1", container("own", ContainerState::Running)),
            ("2", container("shared", ContainerState::Created)),
            ("3", container("dead", ContainerState::Exited)),
        ];
        let containers = containers.map(|(id, of)| (id.to_owned(), of)).into();
        let briefs = BTreeMap::from([("u".to_owned(), Brief { containers, ..Brief::default() })]);
        let pool = Pool::default();
        let own = Placed { cpus: CpuSet::range(1, 2), exclusive: true, ..Placed::default() };
        let shared = Placed { cpus: CpuSet::range(3, 4), ..Placed::default() };
        let place = |_: &str, name: &str| if name == "own" { own.clone() } else { shared.clone() };
        pool.take_up(&briefs, place);
        let entry = |name: &str, placed: &Placed| {
            let (pod_uid, container) = ("u".to_owned(), name.to_owned());
            Some(Entry { pod_uid, container, placed: placed.clone() })
        };
        assert_eq!(pool.entry(&"1".to_owned()), entry("own", &own));
        // Where it is nobody remembers.
        assert_eq!(pool.entry(&"2".to_owned()), entry("shared", &Placed::default()));
        assert_eq!(pool.all().len(), 2);
        pool.found(&"2".to_owned(), shared.clone());
        assert_eq!(pool.entry(&"2".to_owned()), entry("shared", &shared));
    }
}
