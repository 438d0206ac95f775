//! Places the pods of workloads on a fleet of machines.
//!
//! Main type: [`Simulation`], made by [`simulate`] for given machines or by [`how_many`] for as
//! many machines of one shape as needed. Workloads are placed in the given order, and nothing is
//! moved. `placement` decides on each machine; [`crate::report`] renders the result.
//!
//! Machines of the same shape that took the same pods in the same order are in the same state, and
//! a pod leads from a state to the same next state. So each state is stored once with its
//! transitions, and thousands of machines cost little more than one:
//!
//! ```text
//!   empty ──db──▶ ● ──web──▶ ● ◀── machines 1 to 99
//!                 │          └─db──✗ TopologyAffinityError
//!                 └─db──▶ ●      ◀── machine 100
//! ```

use std::collections::{BTreeSet, HashMap};
use std::fmt::Write as _;
use std::sync::Arc;

use objects::Workload;
use objects::pod::OsName;
use objects::types::Pod;
use objects::workload::Replicas;
use placement::configured::{Capacity, Configured};
use placement::demand::{Demand, PodUid};
use placement::plan::ContainerPlacement;
use placement::rationale::Refusal;
use placement::{Ledger, plan};

mod rejection;

pub use rejection::Rejection;
pub(crate) use rejection::precheck;

/// Identical machines.
#[derive(Clone, Debug)]
pub struct Shape {
    pub name: String,
    pub configured: Configured,
}

/// The choice among the machines that fit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Strategy {
    /// The first in the given order, so that later ones stay empty.
    #[default]
    Pack,
    /// The one with the lowest share of requested CPUs and memory.
    Spread,
}

impl Strategy {
    pub const NAMES: [&str; 2] = ["pack", "spread"];

    #[must_use]
    pub fn parse(name: &str) -> Option<Strategy> {
        match name {
            "pack" => Some(Strategy::Pack),
            "spread" => Some(Strategy::Spread),
            _ => None,
        }
    }

    #[must_use]
    pub fn name(self) -> &'static str {
        Self::NAMES[self as usize]
    }
}

/// The most machines that [`how_many`] tries.
pub const MAX_MACHINES: usize = 100_000;

/// Everything about a pod that decides where it can be placed. Pods of one class are
/// interchangeable.
#[derive(Clone, Debug)]
pub struct Class {
    /// With an empty uid.
    pub demand: Demand,
    pub need: Capacity,
    /// The requested operating system, and true if by `spec.os` rather than by a node selector.
    pub os: Option<(OsName, bool)>,
    /// The only machine it may be placed on, by name.
    pub node_name: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ClassId(u32);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct StateId(u32);

/// A pod: the number of its workload and its own number within it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PodRef {
    pub workload: u32,
    pub index: u32,
}

/// The result of placing a pod of a class.
#[derive(Clone, Debug)]
enum Transition {
    Placed(StateId),
    Rejected(Arc<Rejection>),
}

/// The free capacity of a machine. Stored in one array for all machines: most checks of a large
/// fleet need only these numbers.
#[derive(Clone, Copy, Debug)]
struct FreeCapacity {
    milli_cpus: u64,
    memory: u64,
}

#[derive(Debug)]
struct State {
    shape: usize,
    /// The previous state and the class of the pod that was placed.
    parent: Option<(StateId, ClassId)>,
    depth: u32,
    used: Capacity,
    /// Kept while machines are in this state; it can be rebuilt from an ancestor's.
    ledger: Option<Ledger>,
    machines: u32,
    /// The placement of the pod that led here.
    placed: Arc<[ContainerPlacement]>,
    transitions: HashMap<ClassId, Transition>,
}

/// A machine of the fleet.
#[derive(Debug)]
pub struct FleetMachine {
    pub name: String,
    pub shape: usize,
    state: StateId,
    /// In order of placement.
    pub pods: Vec<PodRef>,
}

/// A pod placed on a simulated machine.
#[derive(Clone, Debug)]
pub struct SimulatedPod {
    pub pod: PodRef,
    pub uid: PodUid,
    pub class: ClassId,
    pub containers: Arc<[ContainerPlacement]>,
}

/// Pods of one workload that no machine took, for the same reasons.
#[derive(Clone, Debug)]
pub struct RefusedPods {
    pub workload: u32,
    pub first: u32,
    pub count: u32,
    pub class: ClassId,
    /// The only machine tried, for a pod of a daemon set.
    pub only: Option<usize>,
    /// The shape of which more machines were available.
    pub spare: Option<usize>,
    /// By reason: the first machine that rejected the pods, and the number of machines. Empty
    /// without machines.
    pub rejections: Vec<(Arc<Rejection>, usize, usize)>,
}

/// The amount of work done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Placement attempts, cached or computed.
    pub attempts: u64,
    /// Placements computed.
    pub planned: u64,
}

/// The fleet with its pods.
#[derive(Debug)]
pub struct Simulation<'a> {
    pub shapes: &'a [Shape],
    pub workloads: &'a [Workload],
    pub strategy: Strategy,
    pub machines: Vec<FleetMachine>,
    pub refused: Vec<RefusedPods>,
    pub work: Work,
    /// By machine.
    free: Vec<FreeCapacity>,
    classes: Vec<Class>,
    class_ids: HashMap<String, ClassId>,
    states: Vec<State>,
    /// By shape: the empty state.
    empty: Vec<StateId>,
}

/// Places workloads on machines, given by name and number of shape.
#[must_use]
pub fn simulate<'a>(
    shapes: &'a [Shape],
    machines: impl IntoIterator<Item = (String, usize)>,
    workloads: &'a [Workload],
    strategy: Strategy,
) -> Simulation<'a> {
    let mut simulation = Simulation::new(shapes, workloads, strategy);
    for (name, shape) in machines {
        simulation.open(name, shape);
    }
    simulation.run(None);
    simulation
}

/// Places workloads on as many machines of one shape as they need. Pods that are still refused fit
/// on no machine of that shape.
#[must_use]
pub fn how_many<'a>(
    shape: &'a Shape,
    workloads: &'a [Workload],
    strategy: Strategy,
) -> Simulation<'a> {
    let shapes = std::slice::from_ref(shape);
    let mut packed = Simulation::new(shapes, workloads, Strategy::Pack);
    packed.run(Some(0));
    if strategy == Strategy::Pack {
        return packed;
    }
    // Spreading needs all machines from the start, and may need more of them than packing.
    let hopeless = packed.pods_refused();
    let enough = packed.machines.len().max(1);
    (enough..=MAX_MACHINES.min(enough * 4))
        .map(|count| {
            let machines = (0..count).map(|n| (numbered(&shape.name, n), 0));
            simulate(shapes, machines, workloads, strategy)
        })
        .find(|spread| spread.pods_refused() <= hopeless)
        .unwrap_or(packed)
}

/// Returns the name of machine number `index` of a shape.
#[must_use]
pub fn numbered(shape: &str, index: usize) -> String {
    format!("{shape}-{}", index + 1)
}

impl<'a> Simulation<'a> {
    fn new(shapes: &'a [Shape], workloads: &'a [Workload], strategy: Strategy) -> Simulation<'a> {
        let mut states = Vec::new();
        let mut empty = Vec::new();
        for (shape, of) in shapes.iter().enumerate() {
            empty.push(StateId(states.len() as u32));
            states.push(State {
                shape,
                parent: None,
                depth: 0,
                used: Capacity::default(),
                ledger: Some(of.configured.node.empty_ledger()),
                machines: 0,
                placed: Arc::from([]),
                transitions: HashMap::new(),
            });
        }
        Simulation {
            shapes,
            workloads,
            strategy,
            machines: Vec::new(),
            refused: Vec::new(),
            work: Work::default(),
            free: Vec::new(),
            classes: Vec::new(),
            class_ids: HashMap::new(),
            states,
            empty,
        }
    }

    /// Returns the number of refused pods.
    #[must_use]
    pub fn pods_refused(&self) -> u64 {
        self.refused.iter().map(|refused| u64::from(refused.count)).sum()
    }

    #[must_use]
    pub fn pods_placed(&self) -> u64 {
        self.machines.iter().map(|machine| machine.pods.len() as u64).sum()
    }

    #[must_use]
    pub fn class(&self, id: ClassId) -> &Class {
        &self.classes[id.0 as usize]
    }

    #[must_use]
    pub fn shape_of(&self, machine: usize) -> &'a Shape {
        &self.shapes[self.machines[machine].shape]
    }

    /// Returns the requests of a machine's pods.
    #[must_use]
    pub fn used(&self, machine: usize) -> &Capacity {
        &self.states[self.machines[machine].state.0 as usize].used
    }

    /// Returns the current ledger of a machine.
    pub fn ledger(&mut self, machine: usize) -> &Ledger {
        let state = self.machines[machine].state;
        self.ensure_ledger(state)
    }

    /// Returns the pods of a machine in order of placement.
    #[must_use]
    pub fn placed_pods(&self, machine: usize) -> Vec<SimulatedPod> {
        let machine = &self.machines[machine];
        let mut path = Vec::with_capacity(machine.pods.len());
        let mut at = &self.states[machine.state.0 as usize];
        while let Some((parent, class)) = at.parent {
            path.push((class, at));
            at = &self.states[parent.0 as usize];
        }
        path.reverse();
        let placed_pods = machine.pods.iter().zip(path).map(|(pod, (class, state))| SimulatedPod {
            pod: *pod,
            uid: uid_at(state.depth),
            class,
            containers: state.placed.clone(),
        });
        placed_pods.collect()
    }

    /// Returns groups of machines in the same state, ordered by their first machine.
    #[must_use]
    pub fn identical_machines(&self) -> Vec<Vec<usize>> {
        let mut groups: Vec<Vec<usize>> = Vec::new();
        let mut by_state: HashMap<StateId, usize> = HashMap::new();
        for (number, machine) in self.machines.iter().enumerate() {
            let group = *by_state.entry(machine.state).or_insert(groups.len());
            match groups.get_mut(group) {
                Some(group) => group.push(number),
                None => groups.push(vec![number]),
            }
        }
        groups
    }

    fn open(&mut self, name: String, shape: usize) {
        let state = self.empty[shape];
        self.states[state.0 as usize].machines += 1;
        self.machines.push(FleetMachine { name, shape, state, pods: Vec::new() });
        let all = &self.shapes[shape].configured.allocatable;
        self.free.push(FreeCapacity { milli_cpus: all.milli_cpus, memory: all.memory });
    }

    /// Places all workloads. `spare` is the shape of machines that may be added.
    fn run(&mut self, spare: Option<usize>) {
        let workloads = self.workloads;
        let mut by_load: BTreeSet<(u64, usize)> = BTreeSet::new();
        if self.strategy == Strategy::Spread {
            by_load.extend((0..self.machines.len()).map(|machine| (0, machine)));
        }
        // Daemon sets, which machines added later must run too.
        let mut everywhere: Vec<(u32, ClassId)> = Vec::new();
        for (number, workload) in workloads.iter().enumerate() {
            let number = number as u32;
            let class = self.intern(&workload.template);
            match workload.replicas {
                Replicas::PerNode => {
                    everywhere.push((number, class));
                    for machine in 0..self.machines.len() {
                        let before = self.load(machine);
                        self.place_daemon(number, class, machine);
                        if by_load.remove(&(before, machine)) {
                            by_load.insert((self.load(machine), machine));
                        }
                    }
                }
                Replicas::Count(count) => match self.strategy {
                    Strategy::Pack => self.pack(number, class, count, spare, &everywhere),
                    Strategy::Spread => self.spread(number, class, count, &mut by_load),
                },
            }
        }
    }

    fn place_daemon(&mut self, workload: u32, class: ClassId, machine: usize) {
        let index = machine as u32;
        if self.try_place(machine, class, PodRef { workload, index }) {
            return;
        }
        let Some(rejection) = self.rejection(machine, class) else { return };
        // A daemon set for another operating system or machine is not missing here.
        if !matches!(*rejection, Rejection::Os { .. } | Rejection::OtherMachine { .. }) {
            let rejections = vec![(rejection, machine, 1)];
            let (only, spare, first) = (Some(machine), None, index);
            let refused = RefusedPods { workload, first, count: 1, class, only, spare, rejections };
            self.refused.push(refused);
        }
    }

    fn pack(
        &mut self,
        workload: u32,
        class: ClassId,
        count: u32,
        spare: Option<usize>,
        everywhere: &[(u32, ClassId)],
    ) {
        // Machines before `start` rejected a pod of this class and have not changed since.
        let mut start = 0;
        for index in 0..count {
            let pod = PodRef { workload, index };
            let found = (start..self.machines.len()).find(|m| self.try_place(*m, class, pod));
            start = match found {
                Some(machine) => machine,
                None if self.add_for(pod, class, spare, everywhere) => self.machines.len() - 1,
                None => return self.refuse(pod, class, count - index, spare),
            };
        }
    }

    fn spread(
        &mut self,
        workload: u32,
        class: ClassId,
        count: u32,
        by_load: &mut BTreeSet<(u64, usize)>,
    ) {
        for index in 0..count {
            let pod = PodRef { workload, index };
            let found = by_load.iter().find(|(_, m)| self.try_place(*m, class, pod)).copied();
            match found {
                Some((load, machine)) => {
                    by_load.remove(&(load, machine));
                    by_load.insert((self.load(machine), machine));
                }
                None => return self.refuse(pod, class, count - index, None),
            }
        }
    }

    /// Adds a machine if it takes the pod.
    fn add_for(
        &mut self,
        pod: PodRef,
        class: ClassId,
        spare: Option<usize>,
        everywhere: &[(u32, ClassId)],
    ) -> bool {
        let Some(shape) = spare else { return false };
        let machine = self.machines.len();
        if machine >= MAX_MACHINES {
            return false;
        }
        let refused = self.refused.len();
        self.open(numbered(&self.shapes[shape].name, machine), shape);
        for (workload, class) in everywhere {
            self.place_daemon(*workload, *class, machine);
        }
        if self.try_place(machine, class, pod) {
            return true;
        }
        if let Some(machine) = self.machines.pop() {
            self.leave_state(machine.state);
        }
        self.free.pop();
        self.refused.truncate(refused);
        false
    }

    /// Records pods that no machine takes, with the reasons of all machines.
    fn refuse(&mut self, pod: PodRef, class: ClassId, count: u32, spare: Option<usize>) {
        let mut rejections: Vec<(Arc<Rejection>, usize, usize)> = Vec::new();
        for machine in 0..self.machines.len() {
            let Some(rejection) = self.rejection(machine, class) else { continue };
            match rejections.iter_mut().find(|(known, ..)| known.reason() == rejection.reason()) {
                Some((.., times)) => *times += 1,
                None => rejections.push((rejection, machine, 1)),
            }
        }
        if let Some(shape) = spare {
            // The reason of an empty machine counts.
            if let Some(rejection) = self.rejection_in(self.empty[shape], class) {
                rejections = vec![(rejection, 0, self.machines.len())];
            }
        }
        // A rejection by placement is more specific than one by counting.
        rejections.sort_by_key(|(rejection, ..)| !matches!(**rejection, Rejection::Placement(_)));
        let PodRef { workload, index } = pod;
        let (first, only) = (index, None);
        self.refused.push(RefusedPods { workload, first, count, class, only, spare, rejections });
    }

    /// Tries to place a pod on a machine.
    fn try_place(&mut self, machine: usize, class: ClassId, pod: PodRef) -> bool {
        self.work.attempts += 1;
        let wanted = &self.classes[class.0 as usize];
        let free = &mut self.free[machine];
        let (milli_cpus, memory) = (wanted.need.milli_cpus, wanted.need.memory);
        if milli_cpus > free.milli_cpus || memory > free.memory {
            return false;
        }
        let named = wanted.node_name.as_ref();
        if named.is_some_and(|name| *name != self.machines[machine].name) {
            return false;
        }
        let from = self.machines[machine].state;
        let Some(to) = self.transition(from, class) else { return false };
        self.states[to.0 as usize].machines += 1;
        self.leave_state(from);
        self.machines[machine].state = to;
        self.machines[machine].pods.push(pod);
        let free = &mut self.free[machine];
        free.milli_cpus -= milli_cpus;
        free.memory -= memory;
        true
    }

    /// Returns the rejection of a pod by a machine; `None` if it fits.
    fn rejection(&mut self, machine: usize, class: ClassId) -> Option<Arc<Rejection>> {
        let wanted = self.class(class).node_name.as_ref();
        match wanted.filter(|name| **name != self.machines[machine].name) {
            Some(wanted) => Some(Arc::new(Rejection::OtherMachine { wanted: wanted.clone() })),
            None => self.rejection_in(self.machines[machine].state, class),
        }
    }

    fn rejection_in(&mut self, state: StateId, class: ClassId) -> Option<Arc<Rejection>> {
        let State { shape, used, .. } = &self.states[state.0 as usize];
        let configured = &self.shapes[*shape].configured;
        if let Some(rejection) = precheck(self.class(class), configured, used) {
            return Some(Arc::new(rejection));
        }
        let known = |transitions: &HashMap<ClassId, Transition>| match transitions.get(&class) {
            Some(Transition::Rejected(rejection)) => Some(rejection.clone()),
            _ => None,
        };
        if !self.states[state.0 as usize].transitions.contains_key(&class) {
            self.transition(state, class);
        }
        known(&self.states[state.0 as usize].transitions)
    }

    fn leave_state(&mut self, id: StateId) {
        let state = &mut self.states[id.0 as usize];
        state.machines -= 1;
        if state.machines == 0 && state.parent.is_some() {
            state.ledger = None;
        }
    }

    /// Returns the state after placing a pod, if it fits; computed once.
    fn transition(&mut self, from: StateId, class: ClassId) -> Option<StateId> {
        match self.states[from.0 as usize].transitions.get(&class) {
            Some(Transition::Placed(to)) => return Some(*to),
            Some(Transition::Rejected(_)) => return None,
            None => {}
        }
        let State { shape, used, .. } = &self.states[from.0 as usize];
        let configured = &self.shapes[*shape].configured;
        // Counting again is cheaper than caching.
        if precheck(&self.classes[class.0 as usize], configured, used).is_some() {
            return None;
        }
        let (transition, to) = match self.compute(from, class) {
            Ok(to) => (Transition::Placed(to), Some(to)),
            Err(refusal) => (Transition::Rejected(Arc::new(Rejection::Placement(refusal))), None),
        };
        self.states[from.0 as usize].transitions.insert(class, transition);
        to
    }

    fn compute(&mut self, from: StateId, class: ClassId) -> Result<StateId, Refusal> {
        let state = &self.states[from.0 as usize];
        let (shape, depth) = (state.shape, state.depth + 1);
        let configured = &self.shapes[shape].configured;
        let wanted = &self.classes[class.0 as usize];
        let used = state.used.plus(&wanted.need);
        let demand = wanted.demand.with_uid(uid_at(depth));
        self.work.planned += 1;
        let ledger = self.ensure_ledger(from);
        let node = &configured.node;
        let placement = plan(node, ledger, &demand)?;
        // The only machine in a state will leave it, so the ledger is moved.
        let state = &mut self.states[from.0 as usize];
        let alone = state.machines == 1 && state.parent.is_some();
        let ledger = if alone { state.ledger.take() } else { state.ledger.clone() };
        let ledger = ledger.map(|ledger| after(ledger, &configured.node, &demand, &placement));
        let to = StateId(self.states.len() as u32);
        self.states.push(State {
            shape,
            parent: Some((from, class)),
            depth,
            used,
            ledger,
            machines: 0,
            placed: placement.containers.into(),
            transitions: HashMap::new(),
        });
        Ok(to)
    }

    /// Returns the ledger of a state, rebuilt from that of an ancestor if it was dropped.
    fn ensure_ledger(&mut self, id: StateId) -> &Ledger {
        let mut path = Vec::new();
        let mut at = id;
        while self.states[at.0 as usize].ledger.is_none()
            && let Some((parent, class)) = self.states[at.0 as usize].parent
        {
            path.push((self.states[at.0 as usize].depth, class));
            at = parent;
        }
        if !path.is_empty() {
            let node = &self.shapes[self.states[at.0 as usize].shape].configured.node;
            let mut ledger = self.states[at.0 as usize].ledger.clone().unwrap_or_default();
            for (depth, class) in path.into_iter().rev() {
                let wanted = &self.classes[class.0 as usize].demand;
                let demand = wanted.with_uid(uid_at(depth));
                self.work.planned += 1;
                // The same placement succeeded before.
                if let Ok(placement) = plan(node, &ledger, &demand) {
                    ledger = after(ledger, node, &demand, &placement);
                }
            }
            self.states[id.0 as usize].ledger = Some(ledger);
        }
        self.states[id.0 as usize].ledger.get_or_insert_default()
    }

    /// Returns the load of a machine in millionths of the scarcer of CPUs and memory.
    #[must_use]
    pub fn load(&self, machine: usize) -> u64 {
        let used = self.used(machine);
        let all = &self.shape_of(machine).configured.allocatable;
        let share = |used: u64, all: u64| {
            u64::try_from(u128::from(used) * 1_000_000 / u128::from(all.max(1))).unwrap_or(u64::MAX)
        };
        share(used.milli_cpus, all.milli_cpus).max(share(used.memory, all.memory))
    }

    fn intern(&mut self, pod: &Pod) -> ClassId {
        let class = Class::of(pod);
        let mut key = String::new();
        // The debug text is equal if and only if the classes are.
        let _ = write!(key, "{class:?}");
        let next = ClassId(self.classes.len() as u32);
        let id = *self.class_ids.entry(key).or_insert(next);
        if id == next {
            self.classes.push(class);
        }
        id
    }
}

/// Returns the uid of the pod placed at this depth. Machines in the same state must have equal
/// ledgers, so the pod's own name cannot be used.
fn uid_at(depth: u32) -> PodUid {
    PodUid::new(&depth.to_string())
}

/// Returns the ledger after a pod has been placed and all its containers have started.
pub(crate) fn after(
    mut ledger: Ledger,
    node: &placement::Node,
    demand: &Demand,
    placement: &placement::Placement,
) -> Ledger {
    ledger.commit(placement);
    for container in 0..demand.containers.len() {
        ledger.starting(node, demand, container);
    }
    ledger
}

impl Class {
    /// Returns the class of a defaulted pod.
    #[must_use]
    pub fn of(pod: &Pod) -> Class {
        let declared = pod.spec.declared_os();
        let os = pod.spec.required_os().map(|os| (os, declared.is_some()));
        let node_name = Some(&pod.spec.node_name).filter(|name| !name.is_empty());
        Class {
            demand: Demand::new(&PodUid::new(""), &pod.spec.resources()),
            need: Capacity::of(pod),
            os,
            node_name: node_name.cloned(),
        }
    }
}
