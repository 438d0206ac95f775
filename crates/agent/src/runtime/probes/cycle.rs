//! One probe of one container: [`Cycle`] decides when it is due, and evaluates its outcomes.
//!
//! ```text
//!   no container ──appears──▶ waits ──tick──▶ probes ─outcome─▶ waits
//!        ▲                      │                │
//!        └───────gone───────────┘◀──new one── held: liveness failed, or startup is decided
//! ```
//!
//! A probe ticks every period. It runs at a tick if a container exists whose initial delay has passed and
//! that has started. This module executes nothing; time is an argument, in milliseconds of any monotonic
//! clock.

use crate::observability::events::ProbeKind;
use lifecycle::spec::Probe;

pub(crate) type Millis = i64;

/// The defaults of upstream's API server, which static pods do not have.
const DEFAULT_PERIOD: i32 = 10;
const DEFAULT_TIMEOUT: i32 = 1;
const DEFAULT_SUCCESS: i32 = 1;
const DEFAULT_FAILURE: i32 = 3;

/// The timing of a probe, with all defaults set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Timing {
    pub initial_delay: Millis,
    pub period: Millis,
    pub timeout_seconds: i32,
    success_threshold: i32,
    failure_threshold: i32,
}

impl Timing {
    pub(crate) fn of(probe: &Probe) -> Timing {
        let or = |given: i32, usual: i32| if given > 0 { given } else { usual };
        Timing {
            initial_delay: Millis::from(probe.initial_delay_seconds.max(0)) * 1000,
            period: Millis::from(or(probe.period_seconds, DEFAULT_PERIOD)) * 1000,
            timeout_seconds: or(probe.timeout_seconds, DEFAULT_TIMEOUT),
            success_threshold: or(probe.success_threshold, DEFAULT_SUCCESS),
            failure_threshold: or(probe.failure_threshold, DEFAULT_FAILURE),
        }
    }
}

/// A running container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RunningContainer<'a> {
    pub id: &'a str,
    /// The time since its start.
    pub age: Millis,
    /// True if its startup probe has passed or does not exist.
    pub started: bool,
    /// The result of the probe before the agent started.
    pub known: Option<bool>,
}

#[derive(Debug, Clone)]
pub(crate) struct Cycle {
    pub kind: ProbeKind,
    pub timing: Timing,
    /// One of its ticks. The others are whole periods away, and none is before `begins`.
    phase: Millis,
    begins: Millis,
    current: Option<ProbeState>,
}

#[derive(Debug, Clone)]
struct ProbeState {
    id: String,
    /// The end of its initial delay.
    from: Millis,
    started: bool,
    held: bool,
    result: Option<bool>,
    /// The last outcome, and its number of consecutive repetitions.
    last: Option<bool>,
    run: i32,
    state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Due(Millis),
    Asking { since: Millis },
}

impl Cycle {
    /// Creates a probe whose first tick is at `begins`.
    pub(crate) fn new(kind: ProbeKind, timing: Timing, begins: Millis) -> Cycle {
        Cycle { kind, timing, phase: begins, begins, current: None }
    }

    /// Sets the current container. Returns true if it is a new one.
    pub(crate) fn see(&mut self, container: Option<RunningContainer<'_>>, now: Millis) -> bool {
        let Some(seen) = container else {
            self.current = None;
            return false;
        };
        if self.container() == Some(seen.id) {
            if seen.started {
                self.open(now);
            }
            return false;
        }
        let from = now + (self.timing.initial_delay - seen.age).max(0);
        self.current = Some(ProbeState {
            id: seen.id.to_owned(),
            from,
            started: seen.started,
            held: self.kind == ProbeKind::Startup && seen.known == Some(true),
            result: seen.known.or(initial(self.kind)),
            last: None,
            run: 0,
            state: State::Due(self.tick(from.max(now))),
        });
        self.trigger(now);
        true
    }

    /// Probes the readiness of a container that has just started immediately, as upstream does. The next
    /// ticks count from there.
    fn trigger(&mut self, now: Millis) {
        let Some(current) = &self.current else { return };
        if !current.started || !matches!(current.state, State::Due(_)) {
            return;
        }
        let from = current.from.max(now);
        if self.kind == ProbeKind::Readiness && from == now {
            self.phase = now.max(self.begins);
        }
        let tick = self.tick(from);
        if let Some(current) = &mut self.current {
            current.state = State::Due(tick);
        }
    }

    /// Returns the first tick that is not before `at`.
    fn tick(&self, at: Millis) -> Millis {
        let since = (at - self.phase).max(0);
        self.phase + (since + self.timing.period - 1) / self.timing.period * self.timing.period
    }

    /// Returns the time of the next probe. `None` while a probe runs, or if the container is held or has not
    /// started.
    pub(crate) fn due(&self) -> Option<Millis> {
        let current = self.current.as_ref()?;
        let open = self.kind == ProbeKind::Startup || current.started;
        match current.state {
            State::Due(at) if open && !current.held => Some(at),
            _ => None,
        }
    }

    /// Records that the container is being probed.
    pub(crate) fn ask(&mut self, now: Millis) -> Option<&str> {
        let current = self.current.as_mut()?;
        current.state = State::Asking { since: now };
        Some(&current.id)
    }

    /// Records the outcome of probing `id`; `None` means unknown. Returns the probe's result if it changed.
    pub(crate) fn answer(&mut self, id: &str, good: Option<bool>, now: Millis) -> Option<bool> {
        let since = match &self.current {
            Some(ProbeState { id: asked, state: State::Asking { since }, .. }) if asked == id => {
                *since
            }
            _ => return None,
        };
        // Ticks that passed in the meantime count as one.
        let next = self.tick(since + 1).max(now);
        let Timing { success_threshold, failure_threshold, .. } = self.timing;
        let current = self.current.as_mut()?;
        current.state = State::Due(next);
        let good = good?;
        current.run = if current.last == Some(good) { current.run.saturating_add(1) } else { 1 };
        current.last = Some(good);
        let threshold = if good { success_threshold } else { failure_threshold };
        if current.run < threshold {
            return None;
        }
        // A container that will be restarted is not probed until a new one replaces it, and a successful
        // startup is not probed again.
        current.held = match self.kind {
            ProbeKind::Startup => true,
            ProbeKind::Liveness => !good,
            ProbeKind::Readiness => false,
        };
        let changed = current.result != Some(good);
        current.result = Some(good);
        changed.then_some(good)
    }

    /// Records that the container's startup probe has passed.
    pub(crate) fn open(&mut self, now: Millis) {
        if let Some(current) = &mut self.current
            && !current.started
        {
            current.started = true;
            self.trigger(now);
        }
    }

    /// Returns the ID of the probed container.
    pub(crate) fn container(&self) -> Option<&str> {
        self.current.as_ref().map(|current| current.id.as_str())
    }

    /// Returns the probe's result for its container.
    pub(crate) fn result(&self) -> Option<bool> {
        self.current.as_ref()?.result
    }
}

/// Returns the result before the first outcome.
fn initial(kind: ProbeKind) -> Option<bool> {
    match kind {
        ProbeKind::Liveness => Some(true),
        ProbeKind::Readiness => Some(false),
        ProbeKind::Startup => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "one";

    fn cycle(kind: ProbeKind, edit: impl FnOnce(&mut Probe)) -> Cycle {
        let mut probe = Probe { period_seconds: 10, failure_threshold: 3, ..Probe::default() };
        edit(&mut probe);
        Cycle::new(kind, Timing::of(&probe), 0)
    }

    fn appeared(id: &str) -> Option<RunningContainer<'_>> {
        Some(RunningContainer { id, age: 0, started: true, known: None })
    }

    fn outcome(cycle: &mut Cycle, good: bool) -> Option<bool> {
        let now = cycle.due().unwrap();
        let id = cycle.ask(now).unwrap().to_owned();
        assert_eq!(cycle.due(), None, "probed twice at a time");
        cycle.answer(&id, Some(good), now + 5)
    }

    #[test]
    fn result_changes_after_consecutive_outcomes_reach_the_threshold() {
        let mut readiness = cycle(ProbeKind::Readiness, |probe| {
            probe.success_threshold = 2;
            probe.failure_threshold = 3;
        });
        readiness.see(appeared(ID), 100);
        let check = |cycle: &mut Cycle, good, changed| {
            assert_eq!(outcome(cycle, good), changed);
        };
        check(&mut readiness, true, None);
        check(&mut readiness, false, None);
        check(&mut readiness, true, None);
        check(&mut readiness, true, Some(true));
        check(&mut readiness, true, None);
        check(&mut readiness, false, None);
        check(&mut readiness, false, None);
        check(&mut readiness, true, None);
        check(&mut readiness, false, None);
        check(&mut readiness, false, None);
        check(&mut readiness, false, Some(false));
        check(&mut readiness, false, None);
    }

    #[test]
    fn unknown_outcome_neither_counts_nor_resets_the_count() {
        let mut liveness = cycle(ProbeKind::Liveness, |probe| probe.failure_threshold = 2);
        liveness.see(appeared(ID), 0);
        assert_eq!(outcome(&mut liveness, false), None);
        let now = liveness.due().unwrap();
        liveness.ask(now);
        assert_eq!(liveness.answer(ID, None, now), None);
        assert_eq!(outcome(&mut liveness, false), Some(false));
    }

    #[test]
    fn failed_container_is_not_probed_until_it_is_replaced() {
        let mut liveness = cycle(ProbeKind::Liveness, |probe| probe.failure_threshold = 1);
        assert!(liveness.see(appeared(ID), 0));
        assert_eq!(outcome(&mut liveness, false), Some(false));
        assert_eq!(liveness.due(), None);
        assert!(!liveness.see(appeared(ID), 20));
        assert_eq!(liveness.due(), None);
        assert!(liveness.see(appeared("two"), 30));
        assert!(liveness.due().is_some());
        assert_eq!(liveness.result(), Some(true));
    }

    #[test]
    fn startup_is_decided_once() {
        let mut startup = cycle(ProbeKind::Startup, |_| {});
        startup.see(Some(RunningContainer { id: ID, age: 0, started: false, known: None }), 0);
        assert_eq!(startup.result(), None);
        assert_eq!(outcome(&mut startup, false), None);
        assert_eq!(outcome(&mut startup, true), Some(true));
        assert_eq!(startup.due(), None);
    }

    #[test]
    fn other_probes_wait_for_startup() {
        for kind in [ProbeKind::Liveness, ProbeKind::Readiness] {
            let mut other = cycle(kind, |_| {});
            let before = RunningContainer { id: ID, age: 0, started: false, known: None };
            other.see(Some(before), 1_000);
            assert_eq!(other.due(), None);
            other.see(Some(RunningContainer { started: true, ..before }), 43_000);
            let at = if kind == ProbeKind::Readiness { 43_000 } else { 50_000 };
            assert_eq!(other.due(), Some(at), "{kind}");
        }
    }

    #[test]
    fn readiness_is_probed_at_once_but_liveness_at_a_tick() {
        let mut readiness = cycle(ProbeKind::Readiness, |_| {});
        readiness.see(appeared(ID), 12_345);
        assert_eq!(readiness.due(), Some(12_345));
        outcome(&mut readiness, false);
        assert_eq!(readiness.due(), Some(22_345));
        let mut liveness = cycle(ProbeKind::Liveness, |_| {});
        liveness.see(appeared(ID), 12_345);
        assert_eq!(liveness.due(), Some(20_000));
    }

    #[test]
    fn the_initial_delay_counts_from_the_start_of_the_container() {
        for kind in [ProbeKind::Liveness, ProbeKind::Readiness, ProbeKind::Startup] {
            let mut probe = cycle(kind, |probe| probe.initial_delay_seconds = 25);
            let seen = RunningContainer { id: ID, age: 4_000, started: true, known: None };
            probe.see(Some(seen), 3_000);
            assert_eq!(probe.due(), Some(30_000), "{kind}");
        }
    }

    #[test]
    fn ticks_that_passed_during_a_probe_count_as_one() {
        let mut probe = cycle(ProbeKind::Liveness, |_| {});
        probe.see(appeared(ID), 0);
        probe.ask(0);
        probe.answer(ID, Some(true), 34_000);
        assert_eq!(probe.due(), Some(34_000));
        outcome(&mut probe, true);
        assert_eq!(probe.due(), Some(40_000));
    }

    #[test]
    fn outcome_for_another_container_is_ignored() {
        let mut probe = cycle(ProbeKind::Liveness, |probe| probe.failure_threshold = 1);
        probe.see(appeared(ID), 0);
        probe.ask(0);
        probe.see(appeared("two"), 1);
        assert_eq!(probe.answer(ID, Some(false), 2), None);
        assert_eq!(probe.result(), Some(true));
        probe.see(None, 3);
        assert_eq!((probe.due(), probe.result()), (None, None));
    }

    #[test]
    fn no_probe_runs_before_the_first_tick() {
        let probe = Probe { period_seconds: 10, ..Probe::default() };
        let mut readiness = Cycle::new(ProbeKind::Readiness, Timing::of(&probe), 7_000);
        readiness.see(appeared(ID), 1_000);
        assert_eq!(readiness.due(), Some(7_000));
    }

    #[test]
    fn known_results_survive_a_restart_of_the_agent() {
        let known = Some(RunningContainer { id: ID, age: 0, started: true, known: Some(true) });
        let mut readiness = cycle(ProbeKind::Readiness, |probe| probe.failure_threshold = 1);
        readiness.see(known, 0);
        assert_eq!(readiness.result(), Some(true));
        assert_eq!(outcome(&mut readiness, false), Some(false));
        let mut startup = cycle(ProbeKind::Startup, |_| {});
        startup.see(known, 0);
        assert_eq!((startup.due(), startup.result()), (None, Some(true)));
    }

    #[test]
    fn defaults_are_those_of_the_api_server() {
        let timing = Timing::of(&Probe::default());
        let expected = Timing {
            initial_delay: 0,
            period: 10_000,
            timeout_seconds: 1,
            success_threshold: 1,
            failure_threshold: 3,
        };
        assert_eq!(timing, expected);
    }
}
