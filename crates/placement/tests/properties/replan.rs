//! Pods that change their number of CPUs while they run: no CPU ever has two owners.

use placement::demand::{PodUid, QosClass, Role};
use placement::plan::{Surplus, replan};
use placement::{CpuSet, Ledger, Node, plan};
use proptest::prelude::*;

use crate::machines::regular;
use crate::walks::{Settings, demand, node};

const APP: Role = Role::App;

fn small_node(policy: usize) -> Node {
    node(&regular(2, 1, 4, 2), &Settings { policy, ..Settings::default() }).unwrap()
}

fn of(ledger: &Ledger, pod: usize, container: &str) -> CpuSet {
    let uid = PodUid::new(&format!("pod{pod}"));
    ledger.cpu.assigned(&uid, container).cloned().unwrap_or_default()
}

/// Changes the CPU request of one container in both steps.
fn change(node: &Node, ledger: &mut Ledger, pod: usize, milli: i64) -> Result<(), String> {
    let to = demand(pod, &[(APP, milli, 1, 0)], QosClass::Guaranteed);
    for surplus in [Surplus::Kept, Surplus::Returned] {
        let placement =
            replan(node, ledger, &to, surplus).map_err(|refusal| refusal.to_string())?;
        ledger.commit(&placement);
    }
    Ok(())
}

fn admit(node: &Node, ledger: &mut Ledger, pod: usize, milli: i64) {
    let wanted = demand(pod, &[(APP, milli, 1, 0)], QosClass::Guaranteed);
    ledger.commit(&plan(node, ledger, &wanted).unwrap());
}

#[test]
fn a_container_keeps_its_cpus_when_its_count_changes() {
    let node = small_node(0);
    let table = [(2000, 4000), (4000, 2000), (3000, 3000), (2000, 2500), (1500, 2000), (4000, 500)];
    for (from, to) in table {
        let mut ledger = node.empty_ledger();
        admit(&node, &mut ledger, 1, from);
        admit(&node, &mut ledger, 2, 2000);
        let (before, other) = (of(&ledger, 1, "c0"), of(&ledger, 2, "c0"));
        change(&node, &mut ledger, 1, to).unwrap();
        let after = of(&ledger, 1, "c0");
        let whole = |milli: i64| if milli % 1000 == 0 { milli as usize / 1000 } else { 0 };
        assert_eq!(after.len(), whole(to), "{from} to {to}");
        assert_eq!(after.count_common(&before), before.len().min(after.len()), "{from} to {to}");
        assert_eq!(of(&ledger, 2, "c0"), other);
        assert!(after.is_disjoint(&ledger.cpu.shared) && after.is_disjoint(&other));
        let mut all = &ledger.cpu.shared | &after;
        all.union_with(&other);
        assert_eq!(&all, node.topology.all_cpus());
    }
}

#[test]
fn cpus_are_returned_only_in_the_second_step() {
    let node = small_node(0);
    let mut ledger = node.empty_ledger();
    admit(&node, &mut ledger, 1, 4000);
    let fewer = demand(1, &[(APP, 1000, 1, 0)], QosClass::Guaranteed);
    let first = replan(&node, &ledger, &fewer, Surplus::Kept).unwrap();
    assert_eq!(first.shared_pool(), &ledger.cpu.shared);
    let second = replan(&node, &ledger, &fewer, Surplus::Returned).unwrap();
    assert_eq!(second.shared_pool().len(), ledger.cpu.shared.len() + 3);
}

#[test]
fn growth_is_refused_without_free_cpus_on_the_node() {
    let node = small_node(0);
    let mut ledger = node.empty_ledger();
    admit(&node, &mut ledger, 1, 2000);
    let before = ledger.clone();
    change(&node, &mut ledger, 1, 15_000).unwrap_err();
    assert_eq!(ledger, before);
    // Eight CPUs to a node, two of them reserved on the first.
    let node = small_node(3);
    let mut ledger = node.empty_ledger();
    admit(&node, &mut ledger, 1, 4000);
    change(&node, &mut ledger, 1, 9000).unwrap_err();
    change(&node, &mut ledger, 1, 6000).unwrap();
    assert_eq!(node.topology.nodes_of(&of(&ledger, 1, "c0")).len(), 1);
}

proptest! {
    #[test]
    fn no_cpu_has_two_owners_after_many_changes(
        changes in prop::collection::vec((0..4usize, 0..9i64), 1..24),
    ) {
        let node = small_node(1);
        let mut ledger = node.empty_ledger();
        for pod in 0..4 {
            admit(&node, &mut ledger, pod, 1000);
        }
        for (pod, cpus) in changes {
            let _ = change(&node, &mut ledger, pod, cpus * 1000);
            let mut seen = ledger.cpu.shared.clone();
            for pod in 0..4 {
                let own = of(&ledger, pod, "c0");
                prop_assert!(own.is_disjoint(&seen));
                seen.union_with(&own);
            }
            prop_assert_eq!(&seen, node.topology.all_cpus());
        }
    }
}
