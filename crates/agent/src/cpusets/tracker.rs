//! The CPUs that running containers are limited to: [`CpusetTracker`] moves the ones without CPUs of their own
//! when the shared pool changes.
//!
//! ```text
//!   a pod gets CPUs ──▶ the book is written ──▶ every shared container leaves them ──▶ the pod starts
//! ```
//!
//! A container is entered after it is made and before it is started ([`CpusetTracker::register`]), and nothing moves it
//! until it has started: a runtime may only store an update that arrives during the start. So no container
//! that runs is missed. Either it sees the new pool before it starts, or it is moved right after.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::StreamExt as _;
use futures::stream;
use objects::pod::OsName;
use placement::CpuSet;

use crate::runtime::lower::{ContainerAffinity, update};
use crate::runtime::relist::PodSummary;
use lifecycle::observed::{ContainerState, RuntimeId};

/// Number of containers that are moved at a time.
const AT_A_TIME: usize = 8;

/// A container that could not be moved.
#[derive(Debug, thiserror::Error)]
#[error("container {id} cannot be moved to CPUs {cpus}: {cause}")]
pub struct RebalanceError {
    pub id: RuntimeId,
    pub cpus: CpuSet,
    pub cause: cri::Error,
}

/// The containers that run or are about to start, with the cpuset that each was given.
#[derive(Debug, Default)]
pub struct CpusetTracker {
    containers: Mutex<BTreeMap<RuntimeId, Slot>>,
    /// Only one task at a time moves containers.
    moving: tokio::sync::Mutex<()>,
}

/// A tracked container.
#[derive(Debug)]
struct Slot {
    entry: TrackedContainer,
    /// Locked while the container starts or is moved.
    busy: Arc<tokio::sync::Mutex<()>>,
}

/// Keeps the pool from moving a container, for as long as it exists.
#[derive(Debug)]
pub struct StartGuard {
    _busy: tokio::sync::OwnedMutexGuard<()>,
}

/// A container and its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrackedContainer {
    pub pod_uid: String,
    pub container: String,
    pub affinity: ContainerAffinity,
}

impl CpusetTracker {
    fn entries(&self) -> MutexGuard<'_, BTreeMap<RuntimeId, Slot>> {
        self.containers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a container that is about to start, with the placement it was made with. Nothing else moves it
    /// until the returned value is dropped, after the runtime has started it.
    pub async fn register(&self, id: &RuntimeId, entry: TrackedContainer) -> StartGuard {
        let busy: Arc<tokio::sync::Mutex<()>> = Arc::default();
        // No other task has the lock yet, so this does not wait.
        let held = Arc::clone(&busy).lock_owned().await;
        self.entries().insert(id.clone(), Slot { entry, busy });
        StartGuard { _busy: held }
    }

    /// Removes a container that has ended.
    pub fn unregister(&self, id: &RuntimeId) {
        self.entries().remove(id);
    }

    /// Returns all containers.
    #[must_use]
    pub fn all(&self) -> BTreeMap<RuntimeId, TrackedContainer> {
        self.entries().iter().map(|(id, slot)| (id.clone(), slot.entry.clone())).collect()
    }

    #[must_use]
    pub fn entry(&self, id: &RuntimeId) -> Option<TrackedContainer> {
        self.entries().get(id).map(|slot| slot.entry.clone())
    }

    /// Notes the placement in which a container was found, although the agent did not ask for it.
    pub fn note_cpuset(&self, id: &RuntimeId, affinity: ContainerAffinity) {
        if let Some(slot) = self.entries().get_mut(id) {
            slot.entry.affinity = affinity;
        }
    }

    /// Adds the containers that ran before the agent was started. The CPUs of those without CPUs of their own
    /// are not known, so they are read or set before anything else starts.
    pub fn adopt(
        &self,
        summaries: &BTreeMap<String, PodSummary>,
        place: impl Fn(&str, &str) -> ContainerAffinity,
    ) {
        for (pod_uid, summary) in summaries {
            for (id, container) in &summary.containers {
                if !matches!(container.state, ContainerState::Created | ContainerState::Running) {
                    continue;
                }
                let allocated = place(pod_uid, &container.name);
                let affinity =
                    if allocated.exclusive { allocated } else { ContainerAffinity::default() };
                let entry = TrackedContainer {
                    pod_uid: pod_uid.clone(),
                    container: container.name.clone(),
                    affinity,
                };
                self.entries().insert(id.clone(), Slot { entry, busy: Arc::default() });
            }
        }
    }

    /// Keeps other tasks from moving containers, for as long as the returned value exists.
    pub async fn lock(&self) -> tokio::sync::MutexGuard<'_, ()> {
        self.moving.lock().await
    }

    /// Moves every container without exclusive CPUs to the result of `place`, and returns how many had to
    /// move. Containers that get exclusive CPUs are moved last, after all others have left these CPUs. A
    /// container that is starting is waited for. One that has exited does not count.
    pub async fn rebalance(
        &self,
        runtime: &cri::Client,
        os: OsName,
        place: impl Fn(&TrackedContainer) -> ContainerAffinity,
    ) -> Result<usize, RebalanceError> {
        let _moving = self.moving.lock().await;
        let mut moved = 0;
        for to_exclusive in [false, true] {
            let all = self.all().into_iter();
            let elsewhere = all.filter(|(_, entry)| {
                target(entry, &place).is_some_and(|target| target.exclusive == to_exclusive)
            });
            let moves = elsewhere.map(|(id, _)| self.rebalance_one(runtime, os, id, &place));
            let mut outcomes = stream::iter(moves).buffer_unordered(AT_A_TIME);
            let mut failed = None;
            while let Some(outcome) = outcomes.next().await {
                match outcome {
                    Ok(one) => moved += usize::from(one),
                    Err(error) => failed = failed.or(Some(error)),
                }
            }
            if let Some(failed) = failed {
                return Err(failed);
            }
        }
        Ok(moved)
    }

    /// Moves one container, unless it is already there when it has started.
    async fn rebalance_one(
        &self,
        runtime: &cri::Client,
        os: OsName,
        id: RuntimeId,
        place: &impl Fn(&TrackedContainer) -> ContainerAffinity,
    ) -> Result<bool, RebalanceError> {
        let Some(_busy) = self.wait_for(&id).await else { return Ok(false) };
        let Some(target) = self.entry(&id).and_then(|entry| target(&entry, place)) else {
            return Ok(false);
        };
        self.update(runtime, os, id, target).await.map(|()| true)
    }

    /// Waits until a container has started. Returns `None` if the container is not in the pool.
    async fn wait_for(&self, id: &RuntimeId) -> Option<tokio::sync::OwnedMutexGuard<()>> {
        let busy = self.entries().get(id).map(|slot| Arc::clone(&slot.busy))?;
        Some(busy.lock_owned().await)
    }

    /// Moves a container. Waits for it if it is starting.
    pub async fn set_cpuset(
        &self,
        runtime: &cri::Client,
        os: OsName,
        id: RuntimeId,
        affinity: ContainerAffinity,
    ) -> Result<(), RebalanceError> {
        let _busy = self.wait_for(&id).await;
        self.update(runtime, os, id, affinity).await
    }

    /// Moves a container that is about to start.
    pub async fn set_cpuset_before_start(
        &self,
        runtime: &cri::Client,
        os: OsName,
        id: RuntimeId,
        affinity: ContainerAffinity,
        _starting: &StartGuard,
    ) -> Result<(), RebalanceError> {
        self.update(runtime, os, id, affinity).await
    }

    async fn update(
        &self,
        runtime: &cri::Client,
        os: OsName,
        id: RuntimeId,
        affinity: ContainerAffinity,
    ) -> Result<(), RebalanceError> {
        match runtime.call(update::cpus(os, &affinity, &id)).await {
            Ok(_) => {
                self.note_cpuset(&id, affinity);
                Ok(())
            }
            Err(cause) => match has_ended(runtime, &id).await {
                true => {
                    self.unregister(&id);
                    Ok(())
                }
                false => Err(RebalanceError { id, cpus: affinity.cpus, cause }),
            },
        }
    }
}

/// Returns where a container without CPUs of its own is to go, if it is elsewhere.
fn target(
    entry: &TrackedContainer,
    place: &impl Fn(&TrackedContainer) -> ContainerAffinity,
) -> Option<ContainerAffinity> {
    if entry.affinity.exclusive {
        return None;
    }
    let target = place(entry);
    (!target.cpus.is_empty() && target != entry.affinity).then_some(target)
}

/// Returns true if no process of the container can run on the wrong CPUs.
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
    use futures::FutureExt as _;

    use super::*;
    use crate::runtime::relist::ContainerSummary;

    #[test]
    fn only_running_containers_are_adopted_at_the_start() {
        let container = |name: &str, state: ContainerState| ContainerSummary {
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
        let summaries =
            BTreeMap::from([("u".to_owned(), PodSummary { containers, ..PodSummary::default() })]);
        let tracker = CpusetTracker::default();
        let own = ContainerAffinity {
            cpus: CpuSet::range(1, 2),
            exclusive: true,
            ..ContainerAffinity::default()
        };
        let shared =
            ContainerAffinity { cpus: CpuSet::range(3, 4), ..ContainerAffinity::default() };
        let place = |_: &str, name: &str| if name == "own" { own.clone() } else { shared.clone() };
        tracker.adopt(&summaries, place);
        let entry = |name: &str, affinity: &ContainerAffinity| {
            let (pod_uid, container) = ("u".to_owned(), name.to_owned());
            Some(TrackedContainer { pod_uid, container, affinity: affinity.clone() })
        };
        assert_eq!(tracker.entry(&"1".to_owned()), entry("own", &own));
        // Its cpuset is unknown.
        assert_eq!(tracker.entry(&"2".to_owned()), entry("shared", &ContainerAffinity::default()));
        assert_eq!(tracker.all().len(), 2);
        tracker.note_cpuset(&"2".to_owned(), shared.clone());
        assert_eq!(tracker.entry(&"2".to_owned()), entry("shared", &shared));
    }

    #[tokio::test]
    async fn a_container_is_not_moved_before_it_has_started() {
        let tracker = CpusetTracker::default();
        let id = "1".to_owned();
        let entry = TrackedContainer {
            pod_uid: "u".to_owned(),
            container: "c".to_owned(),
            affinity: ContainerAffinity {
                cpus: CpuSet::range(0, 3),
                ..ContainerAffinity::default()
            },
        };
        let starting = tracker.register(&id, entry).await;
        assert!(tracker.wait_for(&id).now_or_never().is_none());
        drop(starting);
        assert!(matches!(tracker.wait_for(&id).now_or_never(), Some(Some(_))));
        assert!(matches!(tracker.wait_for(&"2".to_owned()).now_or_never(), Some(None)));
    }
}
