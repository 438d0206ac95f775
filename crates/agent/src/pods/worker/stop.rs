//! Stopping of pods: hooks, signals, sandboxes and their removal.
//!
//! Sidecars stop last and in reverse order. All containers share one grace period. A failed stop is retried
//! by the next sync.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use cri::v1;
use futures::FutureExt as _;
use futures::future::{BoxFuture, Shared};
use tokio::sync::oneshot;
use tracing::error;

use super::{Next, RUNTIME_RETRY, Worker, WorkerContext, WorkerMessage};
use crate::observability::events::AgentEvent;
use crate::reclaim::gc::dead_sandboxes;
use crate::runtime::hooks;
use crate::runtime::probes::ProbeReport;
use crate::runtime::relist;
use crate::supervisor::caught;
use lifecycle::observed::{ContainerState, RuntimeContainer, RuntimeId, RuntimePod};
use lifecycle::spec::Pod;
use lifecycle::status::RestartingAll;
use lifecycle::sync_plan::{Kill, KillReason, Plan};

/// The shortest grace period of a container in seconds, whatever is requested. Upstream's value.
const LEAST_GRACE: i64 = 2;

impl Worker {
    /// Stops all running containers, in order. A message that shortens the grace period takes effect
    /// immediately, others when all have stopped.
    pub(super) async fn stop(&mut self, pod: &Pod, grace: i64) {
        let context = self.context.clone();
        let mut manner = StopMethod { grace, hurried: false };
        let hooks = Hooks::default();
        let mut later = Vec::new();
        let mut failures = loop {
            let stopping = stop_in_order(&context, pod, running(&self.observed), manner, &hooks);
            tokio::pin!(stopping);
            let shorter = loop {
                tokio::select! {
                    failures = &mut stopping => break Err(failures),
                    message = self.messages.recv() => match message {
                        // The agent stops; the next one adopts the pod.
                        None => return,
                        // A terminating pod may still serve requests, so its readiness is reported.
                        Some(WorkerMessage::ProbeReported(report)) => {
                            self.handle_probe_report(while_stopping(report));
                            let pod = self.pod_with_last_status();
                            self.update_status(&pod, true);
                        }
                        Some(message) => {
                            let left = shorter(&message, manner.grace);
                            later.push(message);
                            if let Some(left) = left {
                                break Ok(left);
                            }
                        }
                    },
                }
            };
            match shorter {
                Err(failures) => break failures,
                Ok(grace) => manner = StopMethod { grace, hurried: true },
            }
        };
        // No container is left to probe, however long the sandbox takes.
        context.runtime.probes.forget(&pod.metadata.uid);
        for message in later {
            self.handle(message);
        }
        failures.extend(self.stop_sandboxes().await);
        self.report_failures(pod, &failures);
    }

    /// Kills containers and sandboxes of a pod that will restart.
    pub(super) async fn kill_all(&mut self, pod: &Pod, grace: i64) {
        let manner = StopMethod { grace, hurried: false };
        let (running, hooks) = (running(&self.observed), Hooks::default());
        let mut failures = stop_in_order(&self.context, pod, running, manner, &hooks).await;
        failures.extend(self.stop_sandboxes().await);
        self.report_failures(pod, &failures);
    }

    /// Reports failures to stop. They are retried by the next sync.
    fn report_failures(&mut self, pod: &Pod, failures: &[String]) {
        let error = match failures {
            [] => return,
            [one] => one.clone(),
            several => format!("[{}]", several.join(", ")),
        };
        self.sync_errors.add("stop the pod", &error);
        self.context.recorder.pod(pod, AgentEvent::KillFailed { error });
    }

    pub(super) async fn kill_one(&mut self, pod: &Pod, kill: &Kill) {
        let Some((role, container)) = pod.container(&kill.container) else { return };
        let event = AgentEvent::Killing { why: kill.message.clone() };
        self.context.recorder.container(pod, role, &container.name, event);
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
            // Upstream uses no grace period here.
            KillReason::RestartAll => 0,
            _ => of_probe.unwrap_or_else(|| pod.grace_seconds()),
        };
        let found = self.observed.containers.iter().find(|found| found.id == kill.id).cloned();
        // A container that was just created is not in the last relist.
        let found = found.unwrap_or_else(|| RuntimeContainer::started(&kill.id, &kill.container));
        let manner = StopMethod { grace, hurried: false };
        // If it keeps running, the next sync kills it again.
        let _ = stop_container(&self.context, pod, &found, manner, None, &Hooks::default()).await;
    }

    /// Kills and removes all containers, so that they restart from the first.
    pub(super) async fn remove_all(&mut self, pod: &Pod, plan: &Plan) -> Next {
        self.status_inputs.restarting_all = RestartingAll::Stopping;
        self.update_status(pod, true);
        for kill in &plan.kill {
            self.kill_one(pod, kill).await;
        }
        for id in &plan.remove {
            if let Err(error) = self.remove(id).await {
                self.sync_errors.add("remove containers", error);
                return Next::After(RUNTIME_RETRY);
            }
        }
        match relist::inspect(&self.context.runtime.cri, &pod.metadata.uid).await {
            Ok(observed) => self.observe(observed),
            Err(error) => {
                self.sync_errors.add("read the pod from the runtime", error);
                return Next::After(RUNTIME_RETRY);
            }
        }
        self.status_inputs.restarting_all = RestartingAll::Removed;
        let pod = self.pod_with_last_status();
        self.update_status(&pod, true);
        self.status_inputs.restarting_all = RestartingAll::No;
        Next::Now
    }

    /// Stops all sandboxes. Returns the errors with upstream's text.
    async fn stop_sandboxes(&self) -> Vec<String> {
        let mut failures = Vec::new();
        for sandbox in &self.observed.sandboxes {
            let request = v1::StopPodSandboxRequest { pod_sandbox_id: sandbox.id.clone() };
            let stopped = self.context.runtime.cri.call(request).await;
            failures.extend(failure("KillPodSandbox", &self.pod.metadata.uid, stopped));
        }
        failures
    }

    /// Removes superseded containers. Of the exited ones, the newest of each name is kept for its log. One
    /// that was created and never started is removed when a newer one exists. A sandbox is removed with the
    /// last of its containers.
    pub(super) async fn remove_superseded(&mut self) {
        let mut met: Vec<&str> = Vec::new();
        let mut kept: Vec<&str> = Vec::new();
        let mut superseded: Vec<RuntimeId> = Vec::new();
        for container in &self.observed.containers {
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
        let sandboxes = dead_sandboxes(&self.observed, &superseded);
        for id in superseded {
            let _ = self.remove(&id).await;
        }
        for id in sandboxes {
            let _ = self.remove_sandbox(&id).await;
        }
    }

    /// Removes the old sandbox's init containers, which run again in the new sandbox.
    pub(super) async fn remove_init_containers(&self, pod: &Pod) {
        let is_init = |found: &&RuntimeContainer| {
            pod.spec.init_containers.iter().any(|container| container.name == found.name)
        };
        for found in self.observed.containers.iter().filter(is_init) {
            // One that cannot be removed is not mistaken for one of the new sandbox.
            let _ = self.remove(&found.id).await;
        }
    }

    async fn remove(&self, id: &RuntimeId) -> Result<(), cri::Error> {
        self.context.state.cpuset_tracker.unregister(id);
        let request = v1::RemoveContainerRequest { container_id: id.clone() };
        match self.context.runtime.cri.call(request).await {
            Err(error) if !error.is_not_found() => Err(error),
            _ => Ok(()),
        }
    }

    async fn remove_sandbox(&self, id: &RuntimeId) -> Result<(), cri::Error> {
        // A sandbox whose creation was interrupted is neither ready nor stopped, and must be stopped first.
        let request = v1::StopPodSandboxRequest { pod_sandbox_id: id.clone() };
        let _ = self.context.runtime.cri.call(request).await;
        let request = v1::RemovePodSandboxRequest { pod_sandbox_id: id.clone() };
        match self.context.runtime.cri.call(request).await {
            Err(error) if !error.is_not_found() => Err(error),
            _ => Ok(()),
        }
    }

    /// Removes as many containers and sandboxes as possible. Returns the first error.
    pub(super) async fn remove_everything(&mut self) -> Result<(), cri::Error> {
        let mut done = Ok(());
        for container in &self.observed.containers {
            done = done.and(self.remove(&container.id).await);
        }
        for sandbox in &self.observed.sandboxes {
            done = done.and(self.remove_sandbox(&sandbox.id).await);
        }
        done
    }
}

/// Returns the grace period of a message in seconds, if it is shorter than the current one. As upstream, it
/// starts with the message: time already passed is not subtracted.
fn shorter(message: &WorkerMessage, grace: i64) -> Option<i64> {
    let requested = match message {
        WorkerMessage::PodChanged(pod) if pod.is_terminating() => {
            pod.metadata.deletion_grace_period_seconds?
        }
        WorkerMessage::Deleted => 0,
        WorkerMessage::Terminate(termination) => termination.grace?,
        WorkerMessage::PodChanged(_)
        | WorkerMessage::Resize(_)
        | WorkerMessage::RuntimeChanged
        | WorkerMessage::ProbeReported(_)
        | WorkerMessage::Shutdown => {
            return None;
        }
    };
    (requested < grace).then_some(requested)
}

/// Filters a probe report while containers are stopped. A probe error only means that the container has just
/// exited, which is reported separately.
fn while_stopping(report: ProbeReport) -> ProbeReport {
    let event = report.event.filter(|event| !matches!(event, AgentEvent::ProbeErrored { .. }));
    ProbeReport { event, ..report }
}

/// The parameters of stopping containers.
#[derive(Debug, Clone, Copy)]
struct StopMethod {
    /// In seconds.
    grace: i64,
    /// They were stopped before with a longer grace period, and the event was recorded then.
    hurried: bool,
}

/// The `preStop` hooks that were started while a pod is stopped, by container. A shorter grace period leaves
/// a hook less time and does not start it again.
#[derive(Debug, Default)]
struct Hooks(Mutex<BTreeMap<RuntimeId, Shared<BoxFuture<'static, ()>>>>);

impl Hooks {
    /// Starts the hook of a container, unless that is done, and returns a future of its end. A hook that
    /// outlasts its container fails when the container exits, and the event is recorded then.
    fn begin(
        &self,
        context: &WorkerContext,
        pod: &Pod,
        found: &RuntimeContainer,
    ) -> Option<Shared<BoxFuture<'static, ()>>> {
        let (role, container) = pod.container(&found.name)?;
        let handler = container.lifecycle.pre_stop.clone()?;
        let mut begun = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let hook = begun.entry(found.id.clone()).or_insert_with(|| {
            let (runtime, recorder) = (context.runtime.cri.clone(), context.recorder.clone());
            let (pod, container, id) = (pod.clone(), container.clone(), found.id.clone());
            let ip = context.reported_ip(&pod);
            let run = tokio::spawn(async move {
                let done = caught(hooks::run(&runtime, &handler, &container, &id, &ip)).await;
                if let Err(cause) = &done {
                    let (pod, uid, container) =
                        (pod.full_name(), &pod.metadata.uid, &container.name);
                    error!(pod, uid, container, %cause, "a preStop hook panicked; it counts as failed");
                }
                if !matches!(done, Ok(Ok(_))) {
                    recorder.container(&pod, role, &container.name, AgentEvent::PreStopFailed);
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

/// Returns the containers that run or may be running.
fn running(observed: &RuntimePod) -> Vec<RuntimeContainer> {
    let may_run = |found: &&RuntimeContainer| {
        matches!(found.state, ContainerState::Running | ContainerState::Unknown)
    };
    observed.containers.iter().filter(may_run).cloned().collect()
}

/// Returns upstream's text for a failed kill; a missing container or sandbox is not a failure.
fn failure<T>(action: &str, of: &str, done: Result<T, cri::Error>) -> Option<String> {
    let error = done.err().filter(|error| !error.is_not_found())?;
    Some(format!("failed to {action:?} for {of:?} with {action}Error: {:?}", error.rpc_text()))
}

/// Stops all containers except sidecars in parallel, then the sidecars one by one from the last to the first.
/// Returns the errors.
async fn stop_in_order(
    context: &WorkerContext,
    pod: &Pod,
    running: Vec<RuntimeContainer>,
    manner: StopMethod,
    hooks: &Hooks,
) -> Vec<String> {
    for found in running.iter().filter(|_| !manner.hurried) {
        if let Some((role, container)) = pod.container(&found.name) {
            let event = AgentEvent::Stopping { container: container.name.clone() };
            context.recorder.container(pod, role, &container.name, event);
        }
    }
    let position = |found: &RuntimeContainer| {
        let mut init = pod.spec.init_containers.iter();
        init.position(|c| c.name == found.name && c.is_sidecar())
    };
    let (mut sidecars, others): (Vec<_>, Vec<_>) =
        running.into_iter().partition(|found| position(found).is_some());
    sidecars.sort_by_key(|found| std::cmp::Reverse(position(found)));
    let stops = others.iter().map(|found| stop_container(context, pod, found, manner, None, hooks));
    let others = futures::future::join_all(stops).boxed();
    let sidecars = sidecars.iter().map(|found| {
        |turn: StopTurn| stop_container(context, pod, found, manner, Some(turn), hooks).boxed()
    });
    in_turns(others, sidecars).await.into_iter().flatten().collect()
}

/// Resolves when the previous container has exited.
type StopTurn = oneshot::Receiver<()>;

/// Starts all futures at once. Each of `in_turn` is notified when the previous one has ended, the first when
/// all of `together` have.
async fn in_turns<'a, T: Send + 'a, F>(
    together: BoxFuture<'a, Vec<T>>,
    in_turn: impl IntoIterator<Item = F>,
) -> Vec<T>
where
    F: FnOnce(StopTurn) -> BoxFuture<'a, T>,
{
    // Dropping the sender resolves the turn.
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

/// Runs the hook of a container, waits for its turn, and then stops it in the runtime, all within the grace
/// period. Returns the error.
async fn stop_container(
    context: &WorkerContext,
    pod: &Pod,
    found: &RuntimeContainer,
    manner: StopMethod,
    turn: Option<StopTurn>,
    hooks: &Hooks,
) -> Option<String> {
    let mut left = manner.grace;
    if found.state == ContainerState::Running
        && left > 0
        && let Some(hook) = hooks.begin(context, pod, found)
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
    failure("KillContainer", &found.name, context.runtime.cri.call(request).await)
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
    fn probe_errors_are_not_reported_while_stopping() {
        let probe = ProbeKind::Readiness;
        let is_kept = |event: AgentEvent| {
            let name = || "c".to_owned();
            let report = ProbeReport {
                pod: name(),
                container: name(),
                id: name(),
                kind: probe,
                healthy: Some(false),
                event: Some(event),
            };
            let counts = while_stopping(report);
            assert_eq!(counts.healthy, Some(false));
            counts.event.is_some()
        };
        assert!(is_kept(AgentEvent::Unhealthy { probe, output: "no".to_owned() }));
        assert!(!is_kept(AgentEvent::ProbeErrored { probe, error: "no such task".to_owned() }));
    }

    #[tokio::test(start_paused = true)]
    async fn sidecars_start_stopping_at_once_and_end_in_turn() {
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
            move |turn: StopTurn| {
                let life = async move {
                    sleep(hook).await;
                    note(&format!("{name} waits"));
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
            "last waits at 2",
            "first waits at 3",
            "apps end at 5",
            "last ends at 6",
            "first ends at 7",
        ];
        assert_eq!(*log.lock().unwrap(), expected);
    }
}
