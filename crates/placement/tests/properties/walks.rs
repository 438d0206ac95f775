//! Long random walks of admit, remove, start, restart and reconfigure: every reached state is
//! sound, and nothing is ever allocated twice.

use std::collections::BTreeMap;

use objects::pod::OsName;
use objects::pod::resources::{ContainerResources, PodResources, Requirements};
use objects::{Quantity, ResourceList};
use placement::alignment::{Alignment, AlignmentPolicy, NodeLimit, Scope};
use placement::demand::{Demand, MemoryKind, PodUid, QosClass, Role};
use placement::gates::Gates;
use placement::memory::reserve::Entry;
use placement::node::{CpuPolicy, MemoryPolicy};
use placement::restore::{restore, states_of};
use placement::state_file::{CpuState, MemoryState};
use placement::windows::AffinityMode;
use placement::{CpuSet, Ledger, Node, Topology, plan};
use proptest::prelude::*;

use crate::machines::regular;

#[derive(Clone, Debug, Default)]
pub(crate) struct Settings {
    pub(crate) policy: usize,
    pub(crate) scope: bool,
    pub(crate) prefer_closest: bool,
    pub(crate) options: Vec<&'static str>,
    pub(crate) windows: bool,
    pub(crate) union: bool,
}

#[derive(Clone, Debug)]
enum Step {
    Admit(usize, Vec<(Role, i64, u64, u64)>, QosClass),
    Remove(usize),
    Start(usize, usize),
    Restart,
    Reconfigure(Settings),
}

fn settings() -> impl Strategy<Value = Settings> {
    let options = prop_oneof![
        Just(vec![]),
        Just(vec!["full-pcpus-only"]),
        Just(vec!["distribute-cpus-across-numa"]),
        Just(vec!["distribute-cpus-across-numa", "full-pcpus-only"]),
        Just(vec!["distribute-cpus-across-cores"]),
        Just(vec!["prefer-align-cpus-by-uncorecache"]),
        Just(vec!["align-by-socket", "distribute-cpus-across-numa"]),
    ];
    (0..4usize, any::<bool>(), any::<bool>(), options, any::<bool>(), any::<bool>()).prop_map(
        |(policy, scope, prefer_closest, options, windows, union)| Settings {
            policy,
            scope,
            prefer_closest,
            options,
            windows,
            union,
        },
    )
}

fn step() -> impl Strategy<Value = Step> {
    let role = prop_oneof![Just(Role::Init), Just(Role::Sidecar), Just(Role::App)];
    let milli = prop_oneof![4 => (0..9i64).prop_map(|n| n * 1000), 1 => 1..4000i64];
    let container = (role, milli, 0..12u64, 0..3u64);
    let qos = prop_oneof![
        5 => Just(QosClass::Guaranteed),
        1 => Just(QosClass::Burstable),
        1 => Just(QosClass::BestEffort)
    ];
    prop_oneof![
        10 => (0..12usize, prop::collection::vec(container, 1..4), qos)
            .prop_map(|(pod, containers, qos)| Step::Admit(pod, containers, qos)),
        5 => (0..12usize).prop_map(Step::Remove),
        3 => (0..12usize, 0..3usize).prop_map(|(pod, container)| Step::Start(pod, container)),
        1 => Just(Step::Restart),
        1 => settings().prop_map(Step::Reconfigure),
    ]
}

/// The node under some settings; `None` where they contradict each other.
pub(crate) fn node(topology: &Topology, settings: &Settings) -> Option<Node> {
    let options: BTreeMap<String, String> =
        settings.options.iter().map(|o| ((*o).to_owned(), "true".to_owned())).collect();
    let closest: BTreeMap<String, String> = settings
        .prefer_closest
        .then(|| ("prefer-closest-numa-nodes".to_owned(), "true".to_owned()))
        .into_iter()
        .collect();
    let scope = if settings.scope { Scope::Pod } else { Scope::Container };
    let policy = AlignmentPolicy::NAMES[settings.policy];
    let alignment =
        Alignment::new(policy, scope.name(), &closest, topology, NodeLimit::None).unwrap();
    let cpu = CpuPolicy::new(
        "static",
        &options,
        Some(&Quantity::parse("2").unwrap()),
        &CpuSet::parse("0-1").unwrap(),
        alignment.policy,
        &Gates::ALL,
        topology,
    );
    let (os, policy) =
        if settings.windows { (OsName::Windows, "BestEffort") } else { (OsName::Linux, "Static") };
    let limits: BTreeMap<String, Quantity> =
        [("memory".to_owned(), Quantity::parse("1Gi").unwrap())].into();
    let entry = Entry { numa_node: 0, limits: limits.clone() };
    let memory = MemoryPolicy::new(policy, os, &[entry], &limits, topology).unwrap();
    let affinity_mode = if settings.union { AffinityMode::Union } else { AffinityMode::CpuOnly };
    Some(Node { topology: topology.clone(), os, cpu: cpu.ok()?, memory, alignment, affinity_mode })
}

pub(crate) fn demand(pod: usize, containers: &[(Role, i64, u64, u64)], qos: QosClass) -> Demand {
    let mut list: Vec<_> = containers.to_vec();
    // Init containers and sidecars come first, and there is always an app container.
    list.sort_by_key(|(role, ..)| *role == Role::App);
    if list.iter().all(|(role, ..)| *role != Role::App) {
        list.push((Role::App, 1000, 1, 0));
    }
    let lists: Vec<(String, Role, ResourceList)> = list
        .iter()
        .enumerate()
        .map(|(n, (role, milli, memory, huge))| {
            let mut amounts = vec![("cpu", format!("{milli}m")), ("memory", format!("{memory}Gi"))];
            if *huge > 0 {
                amounts.push(("hugepages-1Gi", format!("{huge}Gi")));
            }
            let amounts = amounts.into_iter();
            let amounts = amounts.map(|(name, amount)| (name.to_owned(), amount.parse().unwrap()));
            (format!("c{n}"), *role, amounts.collect())
        })
        .collect();
    let containers = lists.iter().map(|(name, role, requests)| ContainerResources {
        name,
        role: *role,
        requirements: Requirements::new(requests, requests),
    });
    let resources = PodResources::new(containers).with_reported_class(Some(qos));
    Demand::new(&PodUid::new(&format!("pod{pod}")), &resources)
}

/// Checks the invariants of every state.
fn sound(node: &Node, ledger: &Ledger, active: &BTreeMap<usize, Demand>, exact: bool) {
    let CpuPolicy::Static(policy) = &node.cpu else { unreachable!() };
    let mut seen = CpuSet::new();
    for (uid, containers) in &ledger.cpu.assignments {
        let demand = active.values().find(|d| d.uid == *uid).expect("only active pods have CPUs");
        let mut of_pod = CpuSet::new();
        for (index, container) in demand.containers.iter().enumerate() {
            let Some(cpus) = containers.get(&container.name) else { continue };
            assert_eq!(Some(cpus.len()), demand.exclusive_cpus(index), "as many as requested");
            assert!(cpus.is_disjoint(policy.reserved()), "reserved CPUs stay reserved");
            if container.role != Role::Init {
                assert!(of_pod.is_disjoint(cpus), "running containers never share CPUs");
                of_pod.union_with(cpus);
            }
        }
        containers.values().for_each(|cpus| of_pod.union_with(cpus));
        assert!(seen.is_disjoint(&of_pod), "no CPU is handed out twice");
        seen.union_with(&of_pod);
    }
    assert!(seen.is_disjoint(&ledger.cpu.shared), "exclusive CPUs are not shared");
    assert_eq!(&seen | &ledger.cpu.shared, *node.topology.all_cpus(), "no CPU is lost");

    for state in &ledger.memory.nodes {
        for (_, table) in &state.tables {
            assert_eq!(table.reserved + table.free, table.allocatable);
        }
    }
    if exact {
        assert_eq!(booked(ledger), held(ledger), "blocks add up to what is booked");
    }
}

/// Memory booked on nodes, by kind.
fn booked(ledger: &Ledger) -> BTreeMap<MemoryKind, u64> {
    let tables = ledger.memory.nodes.iter().flat_map(|node| &node.tables);
    sums(tables.map(|(kind, table)| (*kind, table.reserved)))
}

/// Memory that containers hold, by kind.
fn held(ledger: &Ledger) -> BTreeMap<MemoryKind, u64> {
    let pods = ledger.memory.assignments.values();
    let blocks = pods.flat_map(|pod| pod.values().flatten());
    sums(blocks.map(|block| (block.kind, block.size)))
}

fn sums(amounts: impl Iterator<Item = (MemoryKind, u64)>) -> BTreeMap<MemoryKind, u64> {
    let mut sums = BTreeMap::new();
    for (kind, amount) in amounts.filter(|(_, amount)| *amount > 0) {
        *sums.entry(kind).or_default() += amount;
    }
    sums
}

fn walk(settings: &Settings, steps: Vec<Step>) {
    let topology = regular(2, 2, 4, 2);
    let Some(mut node) = node(&topology, settings) else { return };
    let mut ledger = node.empty_ledger();
    let mut active: BTreeMap<usize, Demand> = BTreeMap::new();
    let mut exact = true;
    for step in steps {
        match step {
            Step::Admit(pod, containers, qos) => {
                let demand = demand(pod, &containers, qos);
                if active.contains_key(&pod) {
                    continue;
                }
                let before = ledger.clone();
                let planned = plan(&node, &ledger, &demand);
                assert_eq!(plan(&node, &ledger, &demand), planned, "same input, same answer");
                assert_eq!(ledger, before, "planning changes nothing");
                let Ok(placement) = planned else { continue };
                ledger.commit(&placement);
                active.insert(pod, demand.clone());
                for (index, placed) in placement.containers.iter().enumerate() {
                    let held = ledger.cpu.assigned(&demand.uid, &placed.name);
                    assert_eq!(held, placed.cpus.as_ref());
                    if let Some(affinity) = placement.affinity(&node, &ledger, index) {
                        let mut others = ledger.cpu.exclusive(Some(&demand.uid));
                        others.subtract(&ledger.cpu.shared);
                        assert!(affinity.cpus.is_disjoint(&others), "never another's CPUs");
                    }
                }
                // Taking back what was just given restores CPUs and memory.
                let mut undone = ledger.clone();
                undone.release(&demand.uid);
                assert_eq!(undone.cpu.shared, before.cpu.shared);
                assert_eq!(undone.cpu.assignments, before.cpu.assignments);
                assert_eq!(undone.memory.assignments, before.memory.assignments);
                exact &= !overbooks(&node) && !mixes(&ledger);
                if exact {
                    assert_eq!(free_memory(&undone), free_memory(&before));
                }
            }
            Step::Remove(pod) => {
                if let Some(demand) = active.remove(&pod) {
                    ledger.release(&demand.uid);
                }
            }
            Step::Start(pod, container) => {
                if let Some(demand) = active.get(&pod) {
                    let container = container.min(demand.containers.len() - 1);
                    ledger.starting(&node, demand, container);
                }
            }
            Step::Restart => {
                // A restart counts anew what had drifted, unless more was promised meanwhile than
                // there is, or pods go again while they mix.
                let mixed = mixes(&ledger);
                ledger = restart(&node, &ledger, &mut active);
                exact |= !mixed && booked(&ledger) == held(&ledger);
            }
            Step::Reconfigure(settings) => {
                // Options may change under running pods; what they have stays.
                let settings = Settings {
                    windows: node.os == OsName::Windows,
                    union: node.affinity_mode == AffinityMode::Union,
                    ..settings
                };
                let Some(next) = crate::walks::node(&topology, &settings) else { continue };
                let held = ledger.cpu.assignments.clone();
                node = next;
                let restored = node.restore(ledger);
                ledger = restored.expect("options do not invalidate what is held").ledger;
                assert_eq!(ledger.cpu.assignments, held);
            }
        }
        exact &= !overbooks(&node) && !mixes(&ledger);
        sound(&node, &ledger, &active, exact);
    }
}

/// A restart keeps everything and readmits running pods where they are.
fn restart(node: &Node, ledger: &Ledger, active: &mut BTreeMap<usize, Demand>) -> Ledger {
    let held = ledger.cpu.assignments.clone();
    // Through the files, as a real restart goes.
    let (cpu, memory) = states_of(node, ledger);
    let gates = placement::state_file::Gates::default();
    let cpu = CpuState::parse(cpu.render().as_bytes(), "static", gates).unwrap();
    let memory =
        MemoryState::parse(memory.render().as_bytes(), node.memory.policy_name(), gates).unwrap();
    let restored = restore(node, &cpu, &memory).expect("every state reached is valid");
    let mut ledger = restored.ledger;
    assert_eq!(ledger.cpu.assignments, held);
    let pods: Vec<_> = active.keys().copied().collect();
    for pod in pods {
        let demand = active[&pod].clone();
        match plan(node, &ledger, &demand) {
            Ok(placement) => {
                for placed in &placement.containers {
                    let before = held.get(&demand.uid).and_then(|c| c.get(&placed.name));
                    assert!(before.is_none() || before == placed.cpus.as_ref(), "CPUs are kept");
                }
                ledger.commit(&placement);
            }
            // As with the kubelet, an init container whose memory was taken back when it ended
            // asks again, and may find no room.
            Err(_) => {
                ledger.release(&demand.uid);
                active.remove(&pod);
            }
        }
    }
    ledger
}

/// Where memory follows the CPUs it is booked on their nodes even if those have too little, as the
/// kubelet does; its sums then no longer hold, and neither do ours.
fn overbooks(node: &Node) -> bool {
    node.os == OsName::Windows && node.affinity_mode == AffinityMode::CpuOnly
}

/// Returns true if a node serves a container alone and a group, or two groups. The kubelet lets
/// that happen where CPUs narrow a group to one of its nodes; releasing memory then credits other
/// nodes than it was taken from, and reservations drift until they are recomputed. A node that
/// looks emptier than it is may be overcommitted.
fn mixes(ledger: &Ledger) -> bool {
    let blocks = || ledger.memory.assignments.values().flat_map(|pod| pod.values().flatten());
    blocks().any(|a| blocks().any(|b| a.nodes != b.nodes && !(a.nodes & b.nodes).is_empty()))
}

/// Free memory of the machine by kind. Between nodes it may move: what a group gives back is
/// credited to its first nodes, as the kubelet does.
fn free_memory(ledger: &Ledger) -> BTreeMap<MemoryKind, u64> {
    let mut free = BTreeMap::new();
    for (kind, table) in ledger.memory.nodes.iter().flat_map(|node| &node.tables) {
        *free.entry(*kind).or_default() += table.free;
    }
    free
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, max_shrink_iters: 5000, ..ProptestConfig::default() })]

    #[test]
    fn every_state_of_a_long_walk_is_sound(
        settings in settings(),
        steps in prop::collection::vec(step(), 1..150),
    ) {
        walk(&settings, steps);
    }
}
