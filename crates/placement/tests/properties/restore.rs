//! State files that no longer fit are detected, explained and migrated without losing valid
//! assignments.

use placement::demand::{PodUid, QosClass, Role};
use placement::node::CpuPolicy;
use placement::restore::{Change, CpuFault, migrate, restore, states_of};
use placement::state_file::{CpuState, MemoryState};
use placement::{CpuSet, Ledger, Node, NumaId, plan};

use crate::machines::regular;
use crate::walks::{Settings, demand, node};

fn small_node() -> Node {
    node(&regular(2, 1, 4, 2), &Settings { policy: 1, ..Settings::default() }).unwrap()
}

/// A node with three pods: 4, 2 and 3 CPUs.
fn busy(node: &Node) -> Ledger {
    let mut ledger = node.empty_ledger();
    for (pod, cpus) in [(1, 4000), (2, 2000), (3, 3000)] {
        let demand = demand(pod, &[(Role::App, cpus, 1, 0)], QosClass::Guaranteed);
        ledger.commit(&plan(node, &ledger, &demand).unwrap());
    }
    ledger
}

#[test]
fn an_unchanged_node_restores_everything() {
    let node = small_node();
    let ledger = busy(&node);
    let (cpu, memory) = states_of(&node, &ledger);
    let migration = migrate(&node, &cpu, &memory);
    assert_eq!(migration.changes, []);
    let taken = restore(&node, &cpu, &memory).unwrap().ledger;
    assert_eq!(taken.cpu.assignments, ledger.cpu.assignments);
    assert_eq!(migration.ledger, taken);
}

#[test]
fn only_the_owner_of_an_offline_cpu_is_affected() {
    let before = small_node();
    let (cpu, memory) = states_of(&before, &busy(&before));
    let lost = cpu.entries["pod2"]["c0"].first().unwrap();
    let mut parts = before.topology.parts();
    parts.cpus.retain(|c| c.cpu != lost);
    let smaller = placement::Topology::new(parts).unwrap();
    let after = node(&smaller, &Settings { policy: 1, ..Settings::default() }).unwrap();

    let refused = restore(&after, &cpu, &memory).unwrap_err();
    assert!(refused.to_string().starts_with("current set of available CPUs"), "{refused}");

    let migration = migrate(&after, &cpu, &memory);
    let released = |change: &&Change| matches!(change, Change::CpusReleased { .. });
    let released: Vec<_> = migration.changes.iter().filter(released).collect();
    let missing: CpuSet = [lost].into_iter().collect();
    assert!(matches!(
        released.as_slice(),
        [Change::CpusReleased { pod, why: CpuFault::Missing(cpus), .. }]
            if pod == "pod2" && *cpus == missing
    ));
    let kept = &migration.ledger.cpu.assignments;
    assert_eq!(kept.keys().map(PodUid::as_str).collect::<Vec<_>>(), ["pod1", "pod3"]);
    after.restore(migration.ledger).expect("a migrated ledger fits");
}

#[test]
fn a_larger_reservation_releases_cpus_of_their_owner() {
    let before = small_node();
    let (cpu, memory) = states_of(&before, &busy(&before));
    let CpuPolicy::Static(policy) = &before.cpu else { unreachable!() };
    let owner = cpu.entries["pod1"]["c0"].clone();
    let mut more = policy.reserved().clone();
    more.union_with(&owner);
    let after = Node {
        cpu: CpuPolicy::new(
            "static",
            &Default::default(),
            Some(&objects::Quantity::from_i64(
                more.len() as i64,
                objects::quantity::Format::DecimalSi,
            )),
            &more,
            before.alignment.policy,
            &placement::gates::Gates::ALL,
            &before.topology,
        )
        .unwrap(),
        ..before.clone()
    };
    let refused = restore(&after, &cpu, &memory).unwrap_err();
    assert!(refused.to_string().starts_with("not all reserved cpus"), "{refused}");
    let migration = migrate(&after, &cpu, &memory);
    let text = migration.to_string();
    assert!(text.contains(&format!("CPU {owner} is reserved for the system now")), "{text}");
    after.restore(migration.ledger).expect("a migrated ledger fits");
}

#[test]
fn less_memory_releases_what_no_longer_fits() {
    let before = small_node();
    let (cpu, memory) = states_of(&before, &busy(&before));
    let mut parts = before.topology.parts();
    for node in &mut parts.nodes {
        node.memory.0 -= 1 << 30;
    }
    let smaller = placement::Topology::new(parts).unwrap();
    let after = node(&smaller, &Settings { policy: 1, ..Settings::default() }).unwrap();
    let refused = restore(&after, &cpu, &memory).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "[memorymanager] the expected machine state is different from the real one"
    );
    let migration = migrate(&after, &cpu, &memory);
    assert!(migration.changes.contains(&Change::MemoryRecounted), "{migration}");
    after.restore(migration.ledger).expect("a migrated ledger fits");
}

#[test]
fn a_missing_node_and_a_changed_policy_are_reported() {
    let before = small_node();
    let (cpu, mut memory) = states_of(&before, &busy(&before));
    memory.entries.get_mut("pod1").unwrap().get_mut("c0").unwrap()[0].numa = vec![NumaId(7)];
    memory.policy = "BestEffort".into();
    let text = migrate(&before, &cpu, &memory).to_string();
    assert!(text.contains("the machine has no NUMA node 7"), "{text}");
    assert!(text.contains("memory manager policy was \"BestEffort\" and is \"Static\""), "{text}");
}

#[test]
fn a_cpu_held_twice_stays_with_the_first_owner() {
    let node = small_node();
    let (mut cpu, memory) = states_of(&node, &busy(&node));
    let theirs = cpu.entries["pod1"]["c0"].clone();
    cpu.entries.get_mut("pod3").unwrap().insert("c0".into(), theirs.clone());
    let migration = migrate(&node, &cpu, &memory);
    assert_eq!(migration.ledger.cpu.assigned(&PodUid::new("pod1"), "c0"), Some(&theirs));
    assert_eq!(migration.ledger.cpu.assigned(&PodUid::new("pod3"), "c0"), None);
    assert!(migration.to_string().contains("belongs to pod pod1 as well"));
}

#[test]
fn empty_states_are_a_fresh_start() {
    let node = small_node();
    let (cpu, memory) = (CpuState::empty("static"), MemoryState::empty("Static"));
    assert_eq!(restore(&node, &cpu, &memory).unwrap().ledger, node.empty_ledger());
    assert_eq!(migrate(&node, &cpu, &memory).changes, []);
}
