//! Which machine each pod of some workloads goes to, and where on it: the plan of a fleet.
//!
//! Main type: [`Simulation`], made by [`simulate`] for given machines or by [`how_many`] for as
//! many machines of one shape as it takes. Workloads are placed in the order given, and nothing is
//! ever moved. What a machine decides is `placement`'s business; words for people are in
//! [`crate::report`].
//!
//! Machines of the same shape that took the same pods in the same order are in the same state, and
//! a state answers the same question the same way. So states are kept once, each with the answers
//! it has given, and thousands of machines cost little more than one:
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
use objects::pod::{OsName, Pod};
use objects::workload::Replicas;
use placement::configured::{Amounts, Configured};
use placement::demand::{Demand, PodUid};
use placement::plan::ContainerPlacement;
use placement::rationale::Refusal;
use placement::{Ledger, plan};

mod obstacle;

pub use obstacle::Obstacle;
pub(crate) use obstacle::without_placing;

/// Machines that are alike.
#[derive(Clone, Debug)]
pub struct Shape {
    pub name: String,
    pub configured: Configured,
}

/// Which machine a pod goes to, of those that take it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Strategy {
    /// The first in the order given, so that later ones stay empty.
    #[default]
    Pack,
    /// The one whose CPUs and memory are asked for least.
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

/// The most machines [`how_many`] goes up to.
pub const MOST_MACHINES: usize = 100_000;

/// Everything about a pod that decides where it can go. Pods of one class are interchangeable.
#[derive(Clone, Debug)]
pub struct Class {
    /// Under a uid that is nobody's.
    pub demand: Demand,
    pub need: Amounts,
    /// The operating system asked for, and whether by `spec.os` rather than by a node selector.
    pub os: Option<(OsName, bool)>,
    /// The one machine it may go to, by name.
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

/// What placing a pod of some class gave.
#[derive(Clone, Debug)]
enum Answer {
    Taken(StateId),
    Refused(Arc<Obstacle>),
}

/// What of a machine has not been asked for. Kept side by side for all machines: most questions
/// about a large fleet are answered by these numbers alone.
#[derive(Clone, Copy, Debug)]
struct Room {
    milli_cpus: u64,
    memory: u64,
}

#[derive(Debug)]
struct State {
    shape: usize,
    /// Where it came from, and by taking what.
    parent: Option<(StateId, ClassId)>,
    depth: u32,
    used: Amounts,
    /// Kept while machines are in this state; can be made again from an ancestor's.
    ledger: Option<Ledger>,
    machines: u32,
    /// The pod that led here.
    placed: Arc<[ContainerPlacement]>,
    answers: HashMap<ClassId, Answer>,
}

/// A machine of the fleet.
#[derive(Debug)]
pub struct FleetMachine {
    pub name: String,
    pub shape: usize,
    state: StateId,
    /// In the order in which they came.
    pub pods: Vec<PodRef>,
}

/// A pod as it stands on a machine.
#[derive(Clone, Debug)]
pub struct Standing {
    pub pod: PodRef,
    pub uid: PodUid,
    pub class: ClassId,
    pub containers: Arc<[ContainerPlacement]>,
}

/// Pods of one workload that no machine took, for the same reasons.
#[derive(Clone, Debug)]
pub struct Refused {
    pub workload: u32,
    pub first: u32,
    pub count: u32,
    pub class: ClassId,
    /// The only machine that was asked, if it is a daemon set's pod.
    pub only: Option<usize>,
    /// The shape of which there could have been more machines.
    pub spare: Option<usize>,
    /// By reason: the first machine that gave it and how many did. Empty without machines.
    pub obstacles: Vec<(Arc<Obstacle>, usize, usize)>,
}

/// How much was done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Machines asked, whether the answer was known or not.
    pub asked: u64,
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
    pub refused: Vec<Refused>,
    pub work: Work,
    /// By machine.
    room: Vec<Room>,
    classes: Vec<Class>,
    class_ids: HashMap<String, ClassId>,
    states: Vec<State>,
    /// By shape: the state in which nothing has been taken.
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

/// Places workloads on as many machines of one shape as they need; what is refused then fits on no
/// machine of that shape, however many there are.
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
    (enough..=MOST_MACHINES.min(enough * 4))
        .map(|count| {
            let machines = (0..count).map(|n| (numbered(&shape.name, n), 0));
            simulate(shapes, machines, workloads, strategy)
        })
        .find(|spread| spread.pods_refused() <= hopeless)
        .unwrap_or(packed)
}

/// The name of machine number `index` of a shape.
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
                used: Amounts::default(),
                ledger: Some(of.configured.node.empty_ledger()),
                machines: 0,
                placed: Arc::from([]),
                answers: HashMap::new(),
            });
        }
        Simulation {
            shapes,
            workloads,
            strategy,
            machines: Vec::new(),
            refused: Vec::new(),
            work: Work::default(),
            room: Vec::new(),
            classes: Vec::new(),
            class_ids: HashMap::new(),
            states,
            empty,
        }
    }

    /// How many pods no machine took.
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

    /// What the pods of a machine ask for.
    #[must_use]
    pub fn used(&self, machine: usize) -> &Amounts {
        &self.states[self.machines[machine].state.0 as usize].used
    }

    /// The ledger of a machine as it stands.
    pub fn ledger(&mut self, machine: usize) -> &Ledger {
        let state = self.machines[machine].state;
        self.ensure_ledger(state)
    }

    /// The pods of a machine, in the order in which they came.
    #[must_use]
    pub fn standing(&self, machine: usize) -> Vec<Standing> {
        let machine = &self.machines[machine];
        let mut path = Vec::with_capacity(machine.pods.len());
        let mut at = &self.states[machine.state.0 as usize];
        while let Some((parent, class)) = at.parent {
            path.push((class, at));
            at = &self.states[parent.0 as usize];
        }
        path.reverse();
        let standing = machine.pods.iter().zip(path).map(|(pod, (class, state))| Standing {
            pod: *pod,
            uid: uid_at(state.depth),
            class,
            containers: state.placed.clone(),
        });
        standing.collect()
    }

    /// Machines that took the same in the same order, and so look the same; by first machine.
    #[must_use]
    pub fn alike(&self) -> Vec<Vec<usize>> {
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
        self.room.push(Room { milli_cpus: all.milli_cpus, memory: all.memory });
    }

    /// Places all workloads. `spare` is the shape of machines that may be added.
    fn run(&mut self, spare: Option<usize>) {
        let workloads = self.workloads;
        let mut by_load: BTreeSet<(u64, usize)> = BTreeSet::new();
        if self.strategy == Strategy::Spread {
            by_load.extend((0..self.machines.len()).map(|machine| (0, machine)));
        }
        // Daemon sets that a machine added later has to run as well.
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
        if self.ask(machine, class, PodRef { workload, index }) {
            return;
        }
        let Some(obstacle) = self.obstacle(machine, class) else { return };
        // A daemon set for another system is not missing here, nor one for another machine.
        if !matches!(*obstacle, Obstacle::Os { .. } | Obstacle::OtherMachine { .. }) {
            let obstacles = vec![(obstacle, machine, 1)];
            let (only, spare, first) = (Some(machine), None, index);
            let refused = Refused { workload, first, count: 1, class, only, spare, obstacles };
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
        // Machines before `start` refused a pod like this and have not changed since.
        let mut start = 0;
        for index in 0..count {
            let pod = PodRef { workload, index };
            let found = (start..self.machines.len()).find(|m| self.ask(*m, class, pod));
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
            let found = by_load.iter().find(|(_, m)| self.ask(*m, class, pod)).copied();
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
        if machine >= MOST_MACHINES {
            return false;
        }
        let refused = self.refused.len();
        self.open(numbered(&self.shapes[shape].name, machine), shape);
        for (workload, class) in everywhere {
            self.place_daemon(*workload, *class, machine);
        }
        if self.ask(machine, class, pod) {
            return true;
        }
        if let Some(machine) = self.machines.pop() {
            self.leave(machine.state);
        }
        self.room.pop();
        self.refused.truncate(refused);
        false
    }

    /// Notes pods that nobody takes, with everybody's reason.
    fn refuse(&mut self, pod: PodRef, class: ClassId, count: u32, spare: Option<usize>) {
        let mut obstacles: Vec<(Arc<Obstacle>, usize, usize)> = Vec::new();
        for machine in 0..self.machines.len() {
            let Some(obstacle) = self.obstacle(machine, class) else { continue };
            match obstacles.iter_mut().find(|(known, ..)| known.reason() == obstacle.reason()) {
                Some((.., times)) => *times += 1,
                None => obstacles.push((obstacle, machine, 1)),
            }
        }
        if let Some(shape) = spare {
            // The reason that counts is that of an empty machine.
            if let Some(obstacle) = self.obstacle_in(self.empty[shape], class) {
                obstacles = vec![(obstacle, 0, self.machines.len())];
            }
        }
        // What was decided by placing says more than what was decided by counting.
        obstacles.sort_by_key(|(obstacle, ..)| !matches!(**obstacle, Obstacle::Placement(_)));
        let PodRef { workload, index } = pod;
        let (first, only) = (index, None);
        self.refused.push(Refused { workload, first, count, class, only, spare, obstacles });
    }

    /// Asks a machine to take a pod, which it then has.
    fn ask(&mut self, machine: usize, class: ClassId, pod: PodRef) -> bool {
        self.work.asked += 1;
        let wanted = &self.classes[class.0 as usize];
        let room = &mut self.room[machine];
        let (milli_cpus, memory) = (wanted.need.milli_cpus, wanted.need.memory);
        if milli_cpus > room.milli_cpus || memory > room.memory {
            return false;
        }
        let named = wanted.node_name.as_ref();
        if named.is_some_and(|name| *name != self.machines[machine].name) {
            return false;
        }
        let from = self.machines[machine].state;
        let Some(to) = self.answer(from, class) else { return false };
        self.states[to.0 as usize].machines += 1;
        self.leave(from);
        self.machines[machine].state = to;
        self.machines[machine].pods.push(pod);
        let room = &mut self.room[machine];
        room.milli_cpus -= milli_cpus;
        room.memory -= memory;
        true
    }

    /// Why a machine does not take a pod; `None` if it does.
    fn obstacle(&mut self, machine: usize, class: ClassId) -> Option<Arc<Obstacle>> {
        let wanted = self.class(class).node_name.as_ref();
        match wanted.filter(|name| **name != self.machines[machine].name) {
            Some(wanted) => Some(Arc::new(Obstacle::OtherMachine { wanted: wanted.clone() })),
            None => self.obstacle_in(self.machines[machine].state, class),
        }
    }

    fn obstacle_in(&mut self, state: StateId, class: ClassId) -> Option<Arc<Obstacle>> {
        let State { shape, used, .. } = &self.states[state.0 as usize];
        let configured = &self.shapes[*shape].configured;
        if let Some(obstacle) = without_placing(self.class(class), configured, used) {
            return Some(Arc::new(obstacle));
        }
        let known = |answers: &HashMap<ClassId, Answer>| match answers.get(&class) {
            Some(Answer::Refused(obstacle)) => Some(obstacle.clone()),
            _ => None,
        };
        if !self.states[state.0 as usize].answers.contains_key(&class) {
            self.answer(state, class);
        }
        known(&self.states[state.0 as usize].answers)
    }

    fn leave(&mut self, id: StateId) {
        let state = &mut self.states[id.0 as usize];
        state.machines -= 1;
        if state.machines == 0 && state.parent.is_some() {
            state.ledger = None;
        }
    }

    /// The state a machine gets into by taking a pod, if it does; computed once.
    fn answer(&mut self, from: StateId, class: ClassId) -> Option<StateId> {
        match self.states[from.0 as usize].answers.get(&class) {
            Some(Answer::Taken(to)) => return Some(*to),
            Some(Answer::Refused(_)) => return None,
            None => {}
        }
        let State { shape, used, .. } = &self.states[from.0 as usize];
        let configured = &self.shapes[*shape].configured;
        // Counting again is cheaper than remembering.
        if without_placing(&self.classes[class.0 as usize], configured, used).is_some() {
            return None;
        }
        let (answer, to) = match self.compute(from, class) {
            Ok(to) => (Answer::Taken(to), Some(to)),
            Err(refusal) => (Answer::Refused(Arc::new(Obstacle::Placement(refusal))), None),
        };
        self.states[from.0 as usize].answers.insert(class, answer);
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
        // A machine that is alone in a state will leave it and takes the ledger along.
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
            answers: HashMap::new(),
        });
        Ok(to)
    }

    /// The ledger of a state, made again from that of an ancestor if nobody kept it.
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
                // The same question had an answer before.
                if let Ok(placement) = plan(node, &ledger, &demand) {
                    ledger = after(ledger, node, &demand, &placement);
                }
            }
            self.states[id.0 as usize].ledger = Some(ledger);
        }
        self.states[id.0 as usize].ledger.get_or_insert_default()
    }

    /// How much of a machine is asked for, in millionths of the scarcer of CPUs and memory.
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
        // The text of everything in it: equal if and only if the classes are.
        let _ = write!(key, "{class:?}");
        let next = ClassId(self.classes.len() as u32);
        let id = *self.class_ids.entry(key).or_insert(next);
        if id == next {
            self.classes.push(class);
        }
        id
    }
}

/// The uid of the pod that came as number `depth`. Machines in the same state must have the same
/// ledger, so the pod's own name is of no use here.
fn uid_at(depth: u32) -> PodUid {
    PodUid::new(&depth.to_string())
}

/// The ledger once a pod has been placed and all its containers have started.
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
    /// The class of a pod whose defaults have been set.
    #[must_use]
    pub fn of(pod: &Pod) -> Class {
        let os = match pod.spec.os {
            Some(os) => Some((os, true)),
            None => pod.spec.wanted_os().map(|os| (os, false)),
        };
        Class {
            demand: Demand::new(&PodUid::new(""), &pod.spec.resources()),
            need: Amounts::of(pod),
            os,
            node_name: pod.spec.node_name.clone(),
        }
    }
}
