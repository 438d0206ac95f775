//! Resize: actuates the allocated resources of a pod, in an order in which it never has less than before nor
//! more than allowed.
//!
//! ```text
//!   more exclusive CPUs ──▶ classes ──▶ pod's cgroup up, containers, down ──▶ fewer exclusive CPUs
//! ```
//!
//! Containers whose resize policy requires a restart are killed before and started after, as planned. Every
//! completed step is saved. A failure is reported and retried.

use cri::v1;
use host::cgroups::{Bound, Limits};
use objects::resources::{CPU, MEMORY};
use placement::Refusal;
use placement::plan::Surplus;
use thiserror::Error;

use super::{Next, RETRY, Worker, WorkerContext};
use crate::cpusets::tracker::RebalanceError;
use crate::ledger::allocations::{AllocatedResources, AllocationError, PodAllocation};
use crate::ledger::file::LedgerError;
use crate::observability::events::{AgentEvent, ResizeStep};
use crate::pods::resize::{self, InUse, Part, Step};
use crate::runtime::lower::{PodInput, update};
use crate::runtime::{PodCgroupError, cgroups};
use lifecycle::observed::RuntimeId;
use lifecycle::placement_demand;
use lifecycle::spec::{Container, Pod, Role};
use lifecycle::status::{ResizeOutcome, Resources, StatusInputs};

/// The reason why a resize could not be actuated.
#[derive(Debug, Error)]
enum ResizeError {
    #[error(transparent)]
    Rebalance(#[from] RebalanceError),
    #[error(transparent)]
    Cgroups(#[from] PodCgroupError),
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The text that upstream reports is the message of the runtime alone.
    #[error("{}", .0.message)]
    Runtime(cri::Error),
    #[error("{0}")]
    Classes(cri::Unsupported),
    #[error("{}", resize::cannot_decrease(.0))]
    InUse(Vec<InUse>),
}

/// A container that is resized while it runs.
struct ContainerResize<'a> {
    role: Role,
    container: &'a Container,
    id: RuntimeId,
    has: AllocatedResources,
    to_have: AllocatedResources,
    /// Its CPUs changed, and with them its CPU quota.
    moves: bool,
    /// Resources whose limit is inherited from the pod and has changed.
    by_pod: Vec<&'static str>,
}

impl Worker {
    /// Reads the actuated resources, if they differ from the allocated ones.
    pub(super) fn refresh_actuated(&mut self) {
        self.actuated = self.context.state.allocations().actuated(&self.pod.metadata.uid).cloned();
        if self.actuated.is_none() {
            self.resize_error = None;
        }
    }

    /// Sets the resize conditions and the actual resources of the status.
    pub(super) fn update_resize_conditions(&mut self, pod: &Pod) {
        let known: &mut StatusInputs = &mut self.status_inputs;
        known.resize.pending.clone_from(&self.pending);
        known.resize.in_progress = None;
        known.actual.clear();
        known.pod_actual = None;
        let Some(has) = &self.actuated else { return };
        let (reason, message) = match &self.resize_error {
            Some(error) => ("Error".to_owned(), error.clone()),
            None => Default::default(),
        };
        let generation = pod.metadata.generation;
        known.resize.in_progress = Some(ResizeOutcome { reason, message, generation });
        for (name, given) in &has.container_resources {
            if let Some(found) = self.observed.container(name) {
                let AllocatedResources { limits, requests, .. } = given.clone();
                known.actual.insert(found.id.clone(), Resources { limits, requests });
            }
        }
        let whole = has.put(pod);
        known.pod_actual = Some(Resources {
            limits: lifecycle::limits(&whole),
            requests: lifecycle::requests(&whole),
        });
    }

    /// Returns true if a running container must restart to get the resources allocated to it and its pod.
    pub(super) fn must_restart_for_resize(&self, container: &Container) -> bool {
        let Some(has) = &self.actuated else { return false };
        // The pod-level resources are saved when all of them are actuated, which may be after the restart.
        let mut has = has.clone();
        if let Some(level) = self.started_with.get(&container.name) {
            has.pod_level_resources.clone_from(level);
        }
        resize::needs_restart(container, &self.pod, &has)
    }

    /// Records that a container was started with the resources allocated to it and its pod.
    pub(super) fn note_started(&mut self, pod: &Pod, container: &Container) {
        let level = PodAllocation::of(pod).pod_level_resources;
        self.started_with.insert(container.name.clone(), level);
        if self.actuated.is_some() {
            let given = AllocatedResources::of(&container.resources);
            let uid = &pod.metadata.uid;
            let done = self.context.state.allocations().actuate(uid, &container.name, given);
            self.note(pod, &done);
        }
    }

    /// Records the event when the last step is done.
    fn note(&self, pod: &Pod, done: &Result<bool, AllocationError>) {
        // A step that could not be saved is repeated after a restart of the agent.
        if matches!(done, Ok(true)) {
            let text = resize::describe(pod, None);
            let event = AgentEvent::Resize { step: ResizeStep::Completed, pod: text };
            self.context.recorder.pod(pod, event);
        }
    }

    /// Actuates the allocated resources that need no restart.
    pub(super) async fn resize(&mut self, pod: &Pod) -> Result<(), Next> {
        let Some(has) = self.actuated.clone() else { return Ok(()) };
        match self.put_in_force(pod, &has).await {
            Ok(()) => {
                self.resize_error = None;
                Ok(())
            }
            Err(error) => {
                let error = error.to_string();
                let text = resize::describe(pod, Some(&error));
                let event = AgentEvent::Resize { step: ResizeStep::Error, pod: text };
                self.context.recorder.pod(pod, event);
                self.sync_errors.add("resize the pod", &error);
                self.resize_error = Some(error);
                let pod = self.pod_with_last_status();
                self.update_status(&pod, true);
                Err(Next::After(RETRY))
            }
        }
    }

    async fn put_in_force(&mut self, pod: &Pod, has: &PodAllocation) -> Result<(), ResizeError> {
        let mut changing = Vec::new();
        let of_pod = resize::of_pod(has, pod, Part::All);
        for (role, container) in pod.containers() {
            let (before, to_have) =
                (has.container(container), AllocatedResources::of(&container.resources));
            let is_own = |resource: &&str| container.resources.limits.contains_key(*resource);
            let by_pod: Vec<_> =
                of_pod.iter().copied().filter(|resource| !is_own(resource)).collect();
            if role == Role::Ephemeral || (before.agrees(&to_have) && by_pod.is_empty()) {
                continue;
            }
            match self.observed.container(&container.name).filter(|found| found.is_running()) {
                Some(_) if self.must_restart_for_resize(container) => {}
                Some(found) => changing.push(ContainerResize {
                    role,
                    container,
                    id: found.id.clone(),
                    has: before,
                    to_have,
                    moves: false,
                    by_pod,
                }),
                // If it starts, it starts with its allocated resources.
                None => self.note_started(pod, container),
            }
        }
        let context = self.context.clone();
        widen(&context, pod).await?;
        let before = self.limits.clone();
        let (from, to) =
            (before.unwrap_or_else(|| self.limits_of(&has.put(pod))), self.limits_of(pod));
        self.check_usage(pod, &from, &to, &changing).await?;
        for change in changing.iter().filter(|change| change.has.classes != change.to_have.classes)
        {
            let mut request = update::classes(change.container, &change.id);
            if let Some(unsaid) = context.runtime.classes().fit_update(&mut request).first() {
                return Err(ResizeError::Classes(unsaid.clone()));
            }
            context.runtime.cri.call(request).await.map_err(ResizeError::Runtime)?;
        }
        for change in &mut changing {
            change.has.classes.clone_from(&change.to_have.classes);
        }
        let mut level = has.pod_level_resources.clone();
        self.take_steps(pod, (&from, &to), &mut level, &mut changing).await?;
        if narrow(&context, pod).await? {
            // Containers that share CPUs again get their CPU quota again.
            for change in &mut changing {
                change.moves = true;
            }
            let shared = self.limits_of(pod);
            self.take_steps(pod, (&to, &shared), &mut level, &mut changing).await?;
        }
        for change in changing {
            let done = context.state.allocations().actuate(
                &pod.metadata.uid,
                &change.container.name,
                change.has,
            );
            self.note(pod, &done);
        }
        if context.state.allocations().actuated(&pod.metadata.uid).is_some() {
            let level = PodAllocation::of(pod).pod_level_resources;
            let done = context.state.allocations().actuate_pod(&pod.metadata.uid, level);
            self.note(pod, &done);
        }
        Ok(())
    }

    /// Takes the steps of a resize; `level` is the current pod-level allocation.
    async fn take_steps(
        &mut self,
        pod: &Pod,
        (from, to): (&Limits, &Limits),
        level: &mut Option<AllocatedResources>,
        changing: &mut [ContainerResize<'_>],
    ) -> Result<(), ResizeError> {
        for step in resize::steps(from, to) {
            match step {
                Step::Pod(limits) => {
                    self.context.runtime.limit_pod(pod, limits).await?;
                    self.update_sandbox(pod).await?;
                }
                Step::Containers(resource) => {
                    let pod = resize::with_level(pod, level, resource);
                    for change in changing.iter_mut() {
                        self.change_one(&pod, change, resource).await?;
                    }
                }
            }
        }
        self.limits = Some(to.clone());
        Ok(())
    }

    /// Returns the limits of the pod's cgroup.
    pub(super) fn limits_of(&self, pod: &Pod) -> Limits {
        let (node_env, affinities) =
            (self.context.state.node_env(), self.context.state.affinities(pod));
        let input = PodInput::new(pod, &node_env, &self.source, &affinities);
        cgroups::of_pod(&input, self.context.runtime.pids_limit)
    }

    async fn change_one(
        &self,
        pod: &Pod,
        change: &mut ContainerResize<'_>,
        resource: &str,
    ) -> Result<(), ResizeError> {
        let anew = change.moves && resource == CPU;
        let same = change.has.agrees_on(resource, &change.to_have);
        if same && !anew && !change.by_pod.contains(&resource) {
            return Ok(());
        }
        change.has.take(resource, &change.to_have);
        let mut container = change.container.clone();
        container.resources.limits.clone_from(&change.has.limits);
        container.resources.requests.clone_from(&change.has.requests);
        let (node_env, affinities) =
            (self.context.state.node_env(), self.context.state.affinities(pod));
        let input = PodInput::new(pod, &node_env, &self.source, &affinities);
        let request = update::resources(&input, &container, change.role, &change.id);
        self.context.runtime.cri.call(request).await.map(drop).map_err(ResizeError::Runtime)
    }

    /// Sends the pod's resources to runtimes that implement `UpdatePodSandboxResources`.
    async fn update_sandbox(&self, pod: &Pod) -> Result<(), ResizeError> {
        let Some(sandbox) = self.observed.newest_sandbox() else { return Ok(()) };
        let (node_env, affinities) =
            (self.context.state.node_env(), self.context.state.affinities(pod));
        let request =
            update::sandbox(&PodInput::new(pod, &node_env, &self.source, &affinities), &sandbox.id);
        match self.context.runtime.cri.call(request).await {
            Err(error) if !error.is_unimplemented() => Err(ResizeError::Runtime(error)),
            _ => Ok(()),
        }
    }

    /// Rejects a memory limit below current usage, which would get a process OOM-killed.
    async fn check_usage(
        &self,
        pod: &Pod,
        from: &Limits,
        to: &Limits,
        changing: &[ContainerResize<'_>],
    ) -> Result<(), ResizeError> {
        let mut in_use = Vec::new();
        if let (Some(Bound::At(limit)), true) = (to.memory, to.memory < from.memory)
            && let Some(usage) =
                self.context.runtime.memory_usage(pod).await.filter(|usage| *usage > limit)
        {
            in_use.push(InUse::Pod { limit, usage });
        }
        for change in changing {
            let limit =
                |given: &AllocatedResources| given.limits.get(MEMORY).map(objects::Quantity::value);
            let (Some(to), before) = (limit(&change.to_have), limit(&change.has)) else { continue };
            let (Ok(limit), true) = (u64::try_from(to), before.is_none_or(|b| to < b)) else {
                continue;
            };
            let request = v1::ContainerStatsRequest { container_id: change.id.clone() };
            let stats = self
                .context
                .runtime
                .cri
                .call(request)
                .await
                .ok()
                .and_then(|response| response.stats);
            let usage = stats.and_then(|stats| stats.memory).and_then(|memory| memory.usage_bytes);
            if let Some(usage) = usage.map(|bytes| bytes.value).filter(|usage| *usage > limit) {
                let name = change.container.name.clone();
                in_use.push(InUse::Container { name, limit, usage });
            }
        }
        if in_use.is_empty() { Ok(()) } else { Err(ResizeError::InUse(in_use)) }
    }
}

/// Moves containers to their new exclusive CPUs, after all other containers have left these.
async fn widen(context: &WorkerContext, pod: &Pod) -> Result<(), ResizeError> {
    let (state, runtime) = (&context.state, &context.runtime.cri);
    state.rebalance(runtime).await?;
    let mut affinities = state.affinities(pod);
    // Containers on shared CPUs have just followed the pool.
    affinities.retain(|_, to| to.exclusive);
    Ok(state.move_containers(runtime, pod, &affinities).await?)
}

/// Moves containers off the CPUs that they no longer have, which then become shared. Returns true if there
/// were any.
async fn narrow(context: &WorkerContext, pod: &Pod) -> Result<bool, ResizeError> {
    let (state, runtime) = (&context.state, &context.runtime.cri);
    let demand = placement_demand(pod);
    loop {
        let (planned, leaving) = {
            let ledger = state.ledger();
            let planned = ledger.replan(&demand, Surplus::Returned)?;
            let (now, mut then) =
                (ledger.affinities(pod), ledger.affinities_by(&planned.placement));
            // Containers on shared CPUs follow the pool when it has grown.
            then.retain(|name, to| now.get(name).is_some_and(|at| at.exclusive && *at != *to));
            (planned, then)
        };
        if leaving.is_empty() {
            return Ok(false);
        }
        state.move_containers(runtime, pod, &leaving).await?;
        match state.ledger().commit(planned) {
            Ok(()) => break,
            // The ledger changed in the meantime.
            Err(LedgerError::Stale) => {}
            Err(error) => return Err(error.into()),
        }
    }
    state.share_released_cpus(runtime).await;
    Ok(true)
}
