//! Stopping: hooks, signals, sandboxes, and what is left of them.
//!
//! Sidecars go last and in reverse order; all share one grace. What cannot be stopped now is tried again
//! by the next round.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use cri::v1;
use futures::FutureExt as _;
use futures::future::{BoxFuture, Shared};
use tokio::sync::oneshot;

use super::{Next, Order, RUNTIME_RETRY, Worker};
use crate::context::Hands;
use crate::observability::events::Told;
use crate::pods::sync_plan::{Kill, KillReason, Plan};
use crate::reclaim::gc::dead_sandboxes;
use crate::runtime::hooks;
use crate::runtime::observed::{ContainerSeen, ContainerState, PodSeen, RuntimeId};
use crate::runtime::probes::ProbeReport;
use crate::runtime::relist;
use crate::spec::Pod;
use crate::status::RestartingAll;

/// Seconds every container has to end, whatever is asked. Upstream's figure.
const LEAST_GRACE: i64 = 2;

impl Worker {
    /// Ends everything that runs, in order. An order that leaves less time is followed at once, others
    /// when everything has stopped.
    pub(super) async fn stop(&mut self, pod: &Pod, grace: i64) {
        let hands = self.hands.clone();
        let mut manner = Manner { grace, hurried: false };
        let hooks = Hooks::default();
        let mut later = Vec::new();
        let mut failures = loop {
            let stopping = stop_in_order(&hands, pod, running(&self.seen), manner, &hooks);
            tokio::pin!(stopping);
            let shorter = loop {
                tokio::select! {
                    failures = &mut stopping => break Err(failures),
                    order = self.orders.recv() => match order {
                        // The agent ends; the pod is taken up again by the next one.
                        None => return,
                        // Somebody may still be served by what is to end.
                        Some(Order::Probe(report)) => {
                            self.take_report(while_stopping(report));
                            let pod = self.pod_as_told();
                            self.tell(&pod, true);
                        }
                        Some(order) => {
                            let left = shorter(&order, manner.grace);
                            later.push(order);
                            if let Some(left) = left {
                                break Ok(left);
                            }
                        }
                    },
                }
            };
            match shorter {
                Err(failures) => break failures,
                Ok(grace) => manner = Manner { grace, hurried: true },
            }
        };
        // Nobody is there any more who could be asked, however long the sandbox takes.
        hands.probes.forget(&pod.metadata.uid);
        for order in later {
            self.take(order);
        }
        failures.extend(self.stop_sandboxes().await);
        self.tell_failures(pod, &failures);
    }

    /// Kills containers and sandboxes of a pod that goes on.
    pub(super) async fn kill_all(&mut self, pod: &Pod, grace: i64) {
        let manner = Manner { grace, hurried: false };
        let (running, hooks) = (running(&self.seen), Hooks::default());
        let mut failures = stop_in_order(&self.hands, pod, running, manner, &hooks).await;
        failures.extend(self.stop_sandboxes().await);
        self.tell_failures(pod, &failures);
    }

    /// What could not be stopped is tried again by the next round, and said by each.
    fn tell_failures(&self, pod: &Pod, failures: &[String]) {
        let error = match failures {
            [] => return,
            [one] => one.clone(),
            several => format!("[{}]", several.join(", ")),
        };
        self.hands.recorder.pod(pod, Told::KillFailed { error });
    }

    pub(super) async fn kill_one(&mut self, pod: &Pod, kill: &Kill) {
        let Some((role, container)) = pod.container(&kill.container) else { return };
        let told = Told::Killing { why: kill.message.clone() };
        self.hands.recorder.container(pod, role, &container.name, told);
        let probe = match kill.reason {
            KillReason::Liveness => container.liveness_probe.as_ref(),
            KillReason::Startup => container.startup_probe.as_ref(),
            KillReason::Changed
            | KillReason::Unknown
            | KillReason::Resize
            | KillReason::RestartAll => None,
        };
        let of_probe = probe.and_then(|probe| probe.termination_grace_period_seconds);
        let grace = match kill.reason {
            // Upstream leaves no time for it.
            KillReason::RestartAll => 0,
            _ => of_probe.unwrap_or_else(|| pod.grace_seconds()),
        };
        let found = self.seen.containers.iter().find(|found| found.id == kill.id).cloned();
        // One that was just made is not in the last look.
        let found = found.unwrap_or_else(|| ContainerSeen::started(&kill.id, &kill.container));
        let manner = Manner { grace, hurried: false };
        // One that goes on is killed again by the next round.
        let _ = stop_container(&self.hands, pod, &found, manner, None, &Hooks::default()).await;
    }

    /// Kills and removes all containers, so that they start again from the first.
    pub(super) async fn remove_all(&mut self, pod: &Pod, plan: &Plan) -> Next {
        self.known.restarting_all = RestartingAll::Stopping;
        self.tell(pod, true);
        for kill in &plan.kill {
            self.kill_one(pod, kill).await;
        }
        for id in &plan.remove {
            if self.remove(id).await.is_err() {
                return Next::After(RUNTIME_RETRY);
            }
        }
        match relist::closely(&self.hands.runtime, &pod.metadata.uid).await {
            Ok(seen) => self.seen = seen,
            Err(_) => return Next::After(RUNTIME_RETRY),
        }
        self.known.restarting_all = RestartingAll::Removed;
        let pod = self.pod_as_told();
        self.tell(&pod, true);
        self.known.restarting_all = RestartingAll::No;
        Next::Now
    }

    /// What went wrong, in upstream's words.
    async fn stop_sandboxes(&self) -> Vec<String> {
        let mut failures = Vec::new();
        for sandbox in &self.seen.sandboxes {
            let request = v1::StopPodSandboxRequest { pod_sandbox_id: sandbox.id.clone() };
            let stopped = self.hands.runtime.call(request).await;
            failures.extend(failure("KillPodSandbox", &self.pod.metadata.uid, stopped));
        }
        failures
    }

    /// Of containers that ended, the newest of each name is kept for its log. One that was made and
    /// never started goes when there is a newer one. Sandboxes go with the last of their containers.
    pub(super) async fn remove_superseded(&mut self) {
        let mut met: Vec<&str> = Vec::new();
        let mut kept: Vec<&str> = Vec::new();
        let mut superseded: Vec<RuntimeId> = Vec::new();
        for container in &self.seen.containers {
            let name = container.name.as_str();
            let needed = match container.state {
                ContainerState::Running | ContainerState::Unknown => true,
                ContainerState::Created => !met.contains(&name),
                ContainerState::Exited => !kept.contains(&name),
            };
            if !needed {
                superseded.push(container.id.clone());
            } else if container.state == ContainerState::Exited {
                kept.push(name);
            }
            met.push(name);
        }
        let sandboxes = dead_sandboxes(&self.seen, &superseded);
        for id in superseded {
            let _ = self.remove(&id).await;
        }
        for id in sandboxes {
            let _ = self.remove_sandbox(&id).await;
        }
    }

    /// Init containers run again in a new sandbox, and those of the old one are of no use then.
    pub(super) async fn remove_init_containers(&self, pod: &Pod) {
        let is_init = |found: &&ContainerSeen| {
            pod.spec.init_containers.iter().any(|container| container.name == found.name)
        };
        for found in self.seen.containers.iter().filter(is_init) {
            // One that stays is not taken for one of the new sandbox.
            let _ = self.remove(&found.id).await;
        }
    }

    async fn remove(&self, id: &RuntimeId) -> Result<(), cri::Error> {
        self.hands.pool.leave(id);
        let request = v1::RemoveContainerRequest { container_id: id.clone() };
        match self.hands.runtime.call(request).await {
            Err(error) if !error.is_not_found() => Err(error),
            _ => Ok(()),
        }
    }

    async fn remove_sandbox(&self, id: &RuntimeId) -> Result<(), cri::Error> {
        // One whose making was cut short is not ready and yet not stopped, and cannot be removed so.
        let request = v1::StopPodSandboxRequest { pod_sandbox_id: id.clone() };
        let _ = self.hands.runtime.call(request).await;
        let request = v1::RemovePodSandboxRequest { pod_sandbox_id: id.clone() };
        match self.hands.runtime.call(request).await {
            Err(error) if !error.is_not_found() => Err(error),
            _ => Ok(()),
        }
    }

    /// Removes all containers and sandboxes, as far as possible; the first error if not all of them.
    pub(super) async fn remove_everything(&mut self) -> Result<(), cri::Error> {
        let mut done = Ok(());
        for container in &self.seen.containers {
            done = done.and(self.remove(&container.id).await);
        }
        for sandbox in &self.seen.sandboxes {
            done = done.and(self.remove_sandbox(&sandbox.id).await);
        }
        done
    }
}

/// The grace period that an order gives, in seconds, if it is shorter than the one in force. As upstream, it
/// counts from the order: what has passed of the longer one is not taken off.
fn shorter(order: &Order, grace: i64) -> Option<i64> {
    let asked = match order {
        Order::Pod(pod) if pod.is_terminating() => pod.metadata.deletion_grace_period_seconds?,
        Order::Gone => 0,
        Order::End(ending) => ending.grace?,
        Order::Pod(_) | Order::Resize(_) | Order::Look | Order::Probe(_) | Order::Halt => {
            return None;
        }
    };
    (asked < grace).then_some(asked)
}

/// What counts of a probe while containers are stopped. Whoever could not be asked has just ended, which is
/// told as its end.
fn while_stopping(report: ProbeReport) -> ProbeReport {
    let told = report.told.filter(|told| !matches!(told, Told::ProbeErrored { .. }));
    ProbeReport { told, ..report }
}

/// How containers are stopped.
#[derive(Debug, Clone, Copy)]
struct Manner {
    /// Seconds.
    grace: i64,
    /// They were stopped before with more time, and an event was recorded then.
    hurried: bool,
}

/// The `preStop` hooks that were begun while a pod is stopped, by container. A shorter grace period leaves a
/// hook less time and does not begin it again.
#[derive(Debug, Default)]
struct Hooks(Mutex<BTreeMap<RuntimeId, Shared<BoxFuture<'static, ()>>>>);

impl Hooks {
    /// Begins the hook of a container, unless that is done, and returns its end. A hook that takes longer
    /// than its container runs on until the container's end makes it fail, and the event is recorded then.
    fn begin(
        &self,
        hands: &Hands,
        pod: &Pod,
        found: &ContainerSeen,
    ) -> Option<Shared<BoxFuture<'static, ()>>> {
        let (role, container) = pod.container(&found.name)?;
        let handler = container.lifecycle.pre_stop.clone()?;
        let mut begun = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let hook = begun.entry(found.id.clone()).or_insert_with(|| {
            let (runtime, recorder) = (hands.runtime.clone(), hands.recorder.clone());
            let (pod, container, id) = (pod.clone(), container.clone(), found.id.clone());
            let ip = hands.ip_told(&pod);
            let run = tokio::spawn(async move {
                let done = hooks::run(&runtime, &handler, &container, &id, &ip).await;
                if done.is_err() {
                    recorder.container(&pod, role, &container.name, Told::PreStopFailed);
                }
            });
            async move {
                let _ = run.await;
            }
            .boxed()
            .shared()
        });
        Some(hook.clone())
    }
}

/// What runs or, for all that is known, may be running.
fn running(seen: &PodSeen) -> Vec<ContainerSeen> {
    let may_run = |found: &&ContainerSeen| {
        matches!(found.state, ContainerState::Running | ContainerState::Unknown)
    };
    seen.containers.iter().filter(may_run).cloned().collect()
}

/// That something could not be killed, in upstream's words; what is not there needs no killing.
fn failure<T>(action: &str, of: &str, done: Result<T, cri::Error>) -> Option<String> {
    let error = done.err().filter(|error| !error.is_not_found())?;
    Some(format!("failed to {action:?} for {of:?} with {action}Error: {:?}", error.rpc_text()))
}

/// Everything but sidecars at once, then the sidecars one by one from the last to the first. Returns what
/// went wrong.
async fn stop_in_order(
    hands: &Hands,
    pod: &Pod,
    running: Vec<ContainerSeen>,
    manner: Manner,
    hooks: &Hooks,
) -> Vec<String> {
    for found in running.iter().filter(|_| !manner.hurried) {
        if let Some((role, container)) = pod.container(&found.name) {
            let told = Told::Stopping { container: container.name.clone() };
            hands.recorder.container(pod, role, &container.name, told);
        }
    }
    let position = |found: &ContainerSeen| {
        let mut init = pod.spec.init_containers.iter();
        init.position(|c| c.name == found.name && c.is_sidecar())
    };
    let (mut sidecars, others): (Vec<_>, Vec<_>) =
        running.into_iter().partition(|found| position(found).is_some());
    sidecars.sort_by_key(|found| std::cmp::Reverse(position(found)));
    let stops = others.iter().map(|found| stop_container(hands, pod, found, manner, None, hooks));
    let others = futures::future::join_all(stops).boxed();
    let sidecars = sidecars.iter().map(|found| {
        |turn: Turn| stop_container(hands, pod, found, manner, Some(turn), hooks).boxed()
    });
    in_turns(others, sidecars).await.into_iter().flatten().collect()
}

/// Comes when whoever is waited for has ended.
type Turn = oneshot::Receiver<()>;

/// Everybody begins at once; each of those `in_turn` is told when the one before has ended, and the first
/// when all of `together` have.
async fn in_turns<'a, T: Send + 'a, F>(
    together: BoxFuture<'a, Vec<T>>,
    in_turn: impl IntoIterator<Item = F>,
) -> Vec<T>
where
    F: FnOnce(Turn) -> BoxFuture<'a, T>,
{
    // A turn comes by the drop of its other end.
    let (ended, mut turn) = oneshot::channel::<()>();
    let together = async move {
        let done = together.await;
        drop(ended);
        done
    };
    let mut each = Vec::new();
    for one in in_turn {
        let (ended, next) = oneshot::channel::<()>();
        let one = one(std::mem::replace(&mut turn, next));
        each.push(async move {
            let done = one.await;
            drop(ended);
            done
        });
    }
    let (mut done, in_turn) = tokio::join!(together, futures::future::join_all(each));
    done.extend(in_turn);
    done
}

/// Runs the hook of a container, waits for its turn, and then has the runtime stop it: all in the time
/// that there is. Returns what went wrong.
async fn stop_container(
    hands: &Hands,
    pod: &Pod,
    found: &ContainerSeen,
    manner: Manner,
    turn: Option<Turn>,
    hooks: &Hooks,
) -> Option<String> {
    let mut left = manner.grace;
    if found.state == ContainerState::Running
        && left > 0
        && let Some(hook) = hooks.begin(hands, pod, found)
    {
        let begun = Instant::now();
        let _ = tokio::time::timeout(seconds(left), hook).await;
        left = left.saturating_sub(seconds_since(begun));
    }
    if let Some(turn) = turn.filter(|_| left > 0) {
        let begun = Instant::now();
        let _ = tokio::time::timeout(seconds(left), turn).await;
        left = left.saturating_sub(seconds_since(begun));
    }
    let timeout = left.max(LEAST_GRACE);
    let request = v1::StopContainerRequest { container_id: found.id.clone(), timeout };
    failure("KillContainer", &found.name, hands.runtime.call(request).await)
}

fn seconds(count: i64) -> Duration {
    Duration::from_secs(u64::try_from(count).unwrap_or(0))
}

fn seconds_since(begun: Instant) -> i64 {
    i64::try_from(begun.elapsed().as_secs()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::observability::events::ProbeKind;

    #[test]
    fn a_container_that_cannot_be_asked_any_more_is_not_told_of_while_it_is_stopped() {
        let probe = ProbeKind::Readiness;
        let told = |told: Told| {
            let name = || "c".to_owned();
            let report = ProbeReport {
                pod: name(),
                container: name(),
                id: name(),
                kind: probe,
                healthy: Some(false),
                told: Some(told),
            };
            let counts = while_stopping(report);
            assert_eq!(counts.healthy, Some(false));
            counts.told.is_some()
        };
        assert!(told(Told::Unhealthy { probe, output: "no".to_owned() }));
        assert!(!told(Told::ProbeErrored { probe, error: "no such task".to_owned() }));
    }

    #[tokio::test(start_paused = true)]
    async fn sidecars_begin_at_once_and_end_in_turn() {
        let begun = tokio::time::Instant::now();
        let log = Mutex::new(Vec::new());
        let note = |what: &str| {
            log.lock().unwrap().push(format!("{what} at {}", begun.elapsed().as_secs()));
        };
        let sleep = |count: u64| tokio::time::sleep(Duration::from_secs(count));
        let others = async {
            sleep(5).await;
            note("apps end");
            vec!["apps"]
        };
        let sidecar = |name: &'static str, hook: u64| {
            let note = &note;
            move |turn: Turn| {
                let life = async move {
                    sleep(hook).await;
                    note(&format!("{name} is asked"));
                    let _ = turn.await;
                    sleep(1).await;
                    note(&format!("{name} ends"));
                    name
                };
                life.boxed()
            }
        };
        let done = in_turns(others.boxed(), [sidecar("last", 2), sidecar("first", 3)]).await;
        assert_eq!(done, ["apps", "last", "first"]);
        let expected = [
            "last is asked at 2",
            "first is asked at 3",
            "apps end at 5",
            "last ends at 6",
            "first ends at 7",
        ];
        assert_eq!(*log.lock().unwrap(), expected);
    }
}
