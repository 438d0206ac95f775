//! Crashes between any two steps: the next call continues to the same end.

use super::machine::Machine;
use super::*;

/// The changes of a node's life, each from the state before it.
fn life() -> Vec<Desired> {
    let containers = |first: &str, second: &str| {
        vec![workload("/pod/a", first, Some("a")), workload("/pod/b", second, Some("b"))]
    };
    let started = Desired { workloads: containers("gold", "bronze"), ..two_classes() };
    let reclassed = Desired { workloads: containers("bronze", "gold"), ..two_classes() };
    let mut renamed = two_classes();
    let gold = renamed.classes.remove(&group("gold")).unwrap();
    renamed.classes.insert(group("platinum"), gold);
    renamed.workloads = containers("platinum", "");
    vec![two_classes(), started, reclassed, renamed, two_classes(), Desired::default()]
}

fn machine() -> Machine {
    let mut machine = Machine::new();
    machine.cgroup("/pod/a", &[101, 102]);
    machine.cgroup("/pod/b", &[201]);
    machine
}

/// Applies until the remaining differences stay the same.
fn settle(machine: &mut Machine, desired: &Desired) -> Vec<Drift> {
    let mut left = machine.apply(desired).unwrap();
    for _ in 0..3 {
        let again = machine.apply(desired).unwrap();
        if again == left {
            return left;
        }
        left = again;
    }
    panic!("the differences do not settle: {left:?}");
}

#[test]
fn a_crash_after_any_step_leads_to_the_same_end() {
    let life = life();
    let mut crashes = 0;
    for change in 0..life.len() {
        // The number of steps is known when a crash point is beyond the last.
        for point in 0.. {
            let mut machine = machine();
            for desired in &life[..change] {
                settle(&mut machine, desired);
            }
            let steps = machine.steps(&life[change]).unwrap();
            for step in &steps[..point.min(steps.len())] {
                machine.take(step).unwrap();
            }
            let left = settle(&mut machine, &life[change]);
            let end = machine.resctrl.groups().unwrap();

            let mut uninterrupted = self::machine();
            for desired in &life[..change] {
                settle(&mut uninterrupted, desired);
            }
            assert_eq!(settle(&mut uninterrupted, &life[change]), left, "{change}/{point}");
            assert_eq!(uninterrupted.resctrl.groups().unwrap(), end, "{change}/{point}");
            crashes += 1;
            if point >= steps.len() {
                break;
            }
        }
    }
    assert!(crashes > 20, "{crashes}");
}

#[test]
fn a_repeated_step_changes_nothing() {
    let mut machine = machine();
    for desired in life() {
        for step in machine.steps(&desired).unwrap() {
            machine.take(&step).unwrap();
            let before = machine.files();
            // The kernel rejects the move of a group that was moved; see `move_monitor`.
            machine.resctrl.take(&machine.cgroups, &step).unwrap();
            assert_eq!(machine.files(), before, "{step:?}");
        }
    }
}

#[test]
fn a_class_change_moves_the_monitoring_group() {
    let life = life();
    let mut machine = machine();
    settle(&mut machine, &life[1]);
    let steps = machine.steps(&life[2]).unwrap();
    let moved = |step: &&Step| matches!(step, Step::MoveMonitor { .. });
    assert_eq!(steps.iter().filter(moved).count(), 2, "{steps:?}");
    // The counters go along: the directory is the same.
    machine.put("berth.gold/mon_groups/berth.uid.a/id", "1");
    assert_eq!(settle(&mut machine, &life[2]), []);
    assert!(machine.path("berth.bronze/mon_groups/berth.uid.a/id").exists());
    assert_eq!(machine.tasks("berth.bronze"), [101, 102]);
    assert_eq!(machine.tasks("berth.gold"), [201]);
}

#[test]
fn unused_groups_are_removed_first_only_for_their_closids() {
    let mut machine = machine();
    let desired = two_classes();
    machine.group("berth.old", &[]);
    let is_removal = |step: &Step| matches!(step, Step::RemoveGroup(_));
    let steps = machine.steps(&desired).unwrap();
    assert!(!is_removal(&steps[0]) && is_removal(&steps[steps.len() - 1]), "{steps:?}");
    machine.group("containerd", &[]);
    let steps = machine.steps(&desired).unwrap();
    assert!(is_removal(&steps[0]), "{steps:?}");
    assert_eq!(machine.apply(&desired).unwrap(), []);
}

#[test]
fn a_task_that_ended_is_not_outside() {
    let mut machine = machine();
    let workloads = vec![workload("/pod/a", "gold", None)];
    let desired = Desired { workloads, ..two_classes() };
    settle(&mut machine, &desired);
    // The cgroup was listed before the task ended, the groups afterwards.
    machine.put("berth.gold/tasks", "101\n");
    assert_eq!(machine.drift(&desired), [""; 0]);
}
