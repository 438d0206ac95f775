//! Changes of resources: what a pod was allocated is put in force, in an order in which it never has
//! less than it had, nor more than it may.
//!
//! ```text
//!   CPUs of its own: more ──▶ classes ──▶ pod's cgroup up, containers, down ──▶ fewer CPUs of its own
//! ```
//!
//! Containers whose policy wants a restart are killed before and started after, as planned. Every step
//! that is done is written down; a failure is told, and tried again.

use cri::v1;
use host::cgroups::{Bound, Limits};
use objects::resources::{CPU, MEMORY};
use placement::plan::Surplus;

use super::{Next, RETRY, Worker};
use crate::context::Hands;
use crate::ledger::allocations::{Given, PodGiven};
use crate::ledger::file::BookError;
use crate::observability::events::{ResizeStep, Told};
use crate::pods::resize::{self, InUse, Part, Step};
use crate::runtime::cgroups;
use crate::runtime::lower::update;
use crate::runtime::observed::RuntimeId;
use crate::spec::demand::placement_demand;
use crate::spec::{Container, Pod, Role};
use crate::status::{Known, ResizeSaid, Resources};

/// A container that gets something else while it runs.
struct Changing<'a> {
    role: Role,
    container: &'a Container,
    id: RuntimeId,
    has: Given,
    to_have: Given,
    /// It has other CPUs, and with them another limit of its time.
    placed_anew: bool,
    /// Resources whose limit is its pod's, and another one now.
    by_pod: Vec<&'static str>,
}

impl Worker {
    /// What is in force, if that is not what was allocated.
    pub(super) fn refresh_actuated(&mut self) {
        self.actuated = self.hands.allocations().actuated(&self.pod.metadata.uid).cloned();
        if self.actuated.is_none() {
            self.resize_error = None;
        }
    }

    /// Puts into words what is not in force yet.
    pub(super) fn tell_resize(&mut self, pod: &Pod) {
        let known: &mut Known = &mut self.known;
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
        known.resize.in_progress = Some(ResizeSaid { reason, message, generation });
        for (name, given) in &has.container_resources {
            if let Some(found) = self.seen.container(name) {
                let Given { limits, requests, .. } = given.clone();
                known.actual.insert(found.id.clone(), Resources { limits, requests });
            }
        }
        let whole = has.put(pod);
        known.pod_actual =
            Some(Resources { limits: crate::limits(&whole), requests: crate::requests(&whole) });
    }

    /// Returns whether a container that runs has to start again to have what it and its pod were allocated.
    pub(super) fn must_restart_for_resize(&self, container: &Container) -> bool {
        let Some(has) = &self.actuated else { return false };
        // What the pod has is written down when all of it is in force, which may be later than the restart.
        let mut has = has.clone();
        if let Some(level) = self.started_with.get(&container.name) {
            has.pod_level_resources.clone_from(level);
        }
        resize::needs_restart(container, &self.pod, &has)
    }

    /// Notes that a container was started with what it and its pod were allocated.
    pub(super) fn note_started(&mut self, pod: &Pod, container: &Container) {
        let level = PodGiven::of(pod).pod_level_resources;
        self.started_with.insert(container.name.clone(), level);
        if self.actuated.is_some() {
            let given = Given::of(&container.resources);
            let uid = &pod.metadata.uid;
            let done = self.hands.allocations().actuate(uid, &container.name, given);
            self.note(pod, &done.map_err(|error| error.to_string()));
        }
    }

    /// Tells when the last step is done.
    fn note(&self, pod: &Pod, done: &Result<bool, String>) {
        // What could not be written down is done once more after a restart.
        if *done == Ok(true) {
            let text = resize::describe(pod, None);
            let told = Told::Resize { step: ResizeStep::Completed, pod: text };
            self.hands.recorder.pod(pod, told);
        }
    }

    /// Puts in force what was allocated, as far as that needs no restart.
    pub(super) async fn resize(&mut self, pod: &Pod) -> Result<(), Next> {
        let Some(has) = self.actuated.clone() else { return Ok(()) };
        match self.put_in_force(pod, &has).await {
            Ok(()) => {
                self.resize_error = None;
                Ok(())
            }
            Err(error) => {
                let text = resize::describe(pod, Some(&error));
                let told = Told::Resize { step: ResizeStep::Error, pod: text };
                self.hands.recorder.pod(pod, told);
                self.resize_error = Some(error);
                let pod = self.pod_as_told();
                self.tell(&pod, true);
                Err(Next::After(RETRY))
            }
        }
    }

    async fn put_in_force(&mut self, pod: &Pod, has: &PodGiven) -> Result<(), String> {
        let mut changing = Vec::new();
        let of_pod = resize::of_pod(has, pod, Part::All);
        for (role, container) in pod.containers() {
            let (before, to_have) = (has.container(container), Given::of(&container.resources));
            let is_own = |resource: &&str| container.resources.limits.contains_key(*resource);
            let by_pod: Vec<_> = of_pod.iter().copied().filter(|of| !is_own(of)).collect();
            if role == Role::Ephemeral || (before.agrees(&to_have) && by_pod.is_empty()) {
                continue;
            }
            match self.seen.container(&container.name).filter(|found| found.is_running()) {
                Some(_) if self.must_restart_for_resize(container) => {}
                Some(found) => changing.push(Changing {
                    role,
                    container,
                    id: found.id.clone(),
                    has: before,
                    to_have,
                    placed_anew: false,
                    by_pod,
                }),
                // It starts with what it was allocated, if it does.
                None => self.note_started(pod, container),
            }
        }
        let hands = self.hands.clone();
        hands.widen(pod).await?;
        let before = self.limits.clone();
        let (from, to) =
            (before.unwrap_or_else(|| self.limits_of(&has.put(pod))), self.limits_of(pod));
        self.check_usage(pod, &from, &to, &changing).await?;
        for of in changing.iter().filter(|of| of.has.classes != of.to_have.classes) {
            let mut request = update::classes(of.container, &of.id);
            if let Some(unsaid) = hands.classes().fit_update(&mut request).first() {
                return Err(unsaid.to_string());
            }
            hands.runtime.call(request).await.map_err(|error| error.message)?;
        }
        for of in &mut changing {
            of.has.classes.clone_from(&of.to_have.classes);
        }
        let mut level = has.pod_level_resources.clone();
        self.take_steps(pod, (&from, &to), &mut level, &mut changing).await?;
        if hands.narrow(pod).await? {
            // Who shares CPUs again is held to its time again.
            for of in &mut changing {
                of.placed_anew = true;
            }
            let shared = self.limits_of(pod);
            self.take_steps(pod, (&to, &shared), &mut level, &mut changing).await?;
        }
        for of in changing {
            let done = hands.allocations().actuate(&pod.metadata.uid, &of.container.name, of.has);
            self.note(pod, &done.map_err(|error| error.to_string()));
        }
        if hands.allocations().actuated(&pod.metadata.uid).is_some() {
            let level = PodGiven::of(pod).pod_level_resources;
            let done = hands.allocations().actuate_pod(&pod.metadata.uid, level);
            self.note(pod, &done.map_err(|error| error.to_string()));
        }
        Ok(())
    }

    /// `level` is what the pod as a whole has by now.
    async fn take_steps(
        &mut self,
        pod: &Pod,
        (from, to): (&Limits, &Limits),
        level: &mut Option<Given>,
        changing: &mut [Changing<'_>],
    ) -> Result<(), String> {
        for step in resize::steps(from, to) {
            match step {
                Step::Pod(limits) => {
                    self.hands.limit_pod(pod, limits).await?;
                    self.update_sandbox(pod).await?;
                }
                Step::Containers(resource) => {
                    let pod = resize::with_level(pod, level, resource);
                    for of in changing.iter_mut() {
                        self.change_one(&pod, of, resource).await?;
                    }
                }
            }
        }
        self.limits = Some(to.clone());
        Ok(())
    }

    /// What the pod's cgroup is limited to.
    pub(super) fn limits_of(&self, pod: &Pod) -> Limits {
        let (facts, placed) = (self.hands.facts(), self.hands.placed(pod));
        let input = Hands::input(pod, &facts, &self.source, &placed);
        cgroups::of_pod(&input, self.hands.pids_limit)
    }

    async fn change_one(
        &self,
        pod: &Pod,
        of: &mut Changing<'_>,
        resource: &str,
    ) -> Result<(), String> {
        let anew = of.placed_anew && resource == CPU;
        let same = of.has.agrees_on(resource, &of.to_have);
        if same && !anew && !of.by_pod.contains(&resource) {
            return Ok(());
        }
        of.has.take(resource, &of.to_have);
        let mut container = of.container.clone();
        container.resources.limits.clone_from(&of.has.limits);
        container.resources.requests.clone_from(&of.has.requests);
        let (facts, placed) = (self.hands.facts(), self.hands.placed(pod));
        let input = Hands::input(pod, &facts, &self.source, &placed);
        let request = update::resources(&input, &container, of.role, &of.id);
        self.hands.runtime.call(request).await.map(drop).map_err(|error| error.message)
    }

    /// Runtimes that want to know are told what the pod has.
    async fn update_sandbox(&self, pod: &Pod) -> Result<(), String> {
        let Some(sandbox) = self.seen.newest_sandbox() else { return Ok(()) };
        let (facts, placed) = (self.hands.facts(), self.hands.placed(pod));
        let request =
            update::sandbox(&Hands::input(pod, &facts, &self.source, &placed), &sandbox.id);
        match self.hands.runtime.call(request).await {
            Err(error) if !error.is_unimplemented() => Err(error.message),
            _ => Ok(()),
        }
    }

    /// Memory that is in use is not taken away: somebody would be killed for it.
    async fn check_usage(
        &self,
        pod: &Pod,
        from: &Limits,
        to: &Limits,
        changing: &[Changing<'_>],
    ) -> Result<(), String> {
        let mut in_use = Vec::new();
        if let (Some(Bound::At(limit)), true) = (to.memory, to.memory < from.memory)
            && let Some(usage) = self.hands.memory_usage(pod).await.filter(|usage| *usage > limit)
        {
            in_use.push(InUse::Pod { limit, usage });
        }
        for of in changing {
            let limit = |given: &Given| given.limits.get(MEMORY).map(objects::Quantity::value);
            let (Some(to), before) = (limit(&of.to_have), limit(&of.has)) else { continue };
            let (Ok(limit), true) = (u64::try_from(to), before.is_none_or(|b| to < b)) else {
                continue;
            };
            let request = v1::ContainerStatsRequest { container_id: of.id.clone() };
            let stats = self.hands.runtime.call(request).await.ok().and_then(|said| said.stats);
            let usage = stats.and_then(|stats| stats.memory).and_then(|memory| memory.usage_bytes);
            if let Some(usage) = usage.map(|of| of.value).filter(|usage| *usage > limit) {
                let name = of.container.name.clone();
                in_use.push(InUse::Container { name, limit, usage });
            }
        }
        if in_use.is_empty() { Ok(()) } else { Err(resize::cannot_decrease(&in_use)) }
    }
}

impl Hands {
    /// Containers that have got CPUs in the book are moved to them, once everybody else has left them.
    async fn widen(&self, pod: &Pod) -> Result<(), String> {
        self.follow_pool().await.map_err(|error| error.to_string())?;
        let mut placed = self.placed(pod);
        // Those who share have just followed the pool.
        placed.retain(|_, to| to.exclusive);
        self.move_to(pod, &placed).await
    }

    /// Containers leave the CPUs they have no more, which then are everybody's. Whether there were any.
    async fn narrow(&self, pod: &Pod) -> Result<bool, String> {
        let demand = placement_demand(pod);
        loop {
            let (planned, leaving) = {
                let book = self.book();
                let replanned = book.replan(&demand, Surplus::Returned);
                let planned = replanned.map_err(|refusal| refusal.to_string())?;
                let (now, mut then) = (book.placed(pod), book.placed_by(&planned.placement));
                // Those who share follow the pool, when it has grown.
                then.retain(|name, to| now.get(name).is_some_and(|at| at.exclusive && *at != *to));
                (planned, then)
            };
            if leaving.is_empty() {
                return Ok(false);
            }
            self.move_to(pod, &leaving).await?;
            match self.book().commit(planned) {
                Ok(()) => break,
                // Somebody else's place changed meanwhile.
                Err(BookError::Stale) => {}
                Err(error) => return Err(error.to_string()),
            }
        }
        self.note_booked();
        // Nothing depends on a larger pool; who could not be moved is found by the next check.
        let _ = self.follow_pool().await;
        Ok(true)
    }
}
