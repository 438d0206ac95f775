//! Scheduling and resource limits of a running process tree.

use host::cgroups::Bound;
use host::os::tuning as system;
use host::tuning::{
    IoLevel, IoPriority, Nice, Policy, Property, Rlimit, RlimitKind, Rlimits, Scheduling, Tuning,
    TuningError,
};

use crate::{Own, wait_for_line};

/// A process with a child.
const TREE: &str = "sleep 1000 & echo ready; wait";

#[test]
fn scheduling_covers_the_whole_process_tree() {
    let own = Own::new();
    let mut tree = own.start(TREE);
    wait_for_line(&mut tree);
    let tuning = Tuning::new(own.cgroups.clone(), "/proc");
    let idle = IoPriority::BestEffort(IoLevel::new(6).unwrap());
    let wanted =
        Scheduling { policy: Some(Policy::Batch), nice: Nice::new(7), io_priority: Some(idle) };
    tuning.schedule(&own.path, &wanted).unwrap();
    let threads = own.cgroups.threads(&own.path).unwrap();
    assert!(threads.len() >= 2, "{threads:?}");
    for thread in threads {
        assert_eq!(system::policy(thread).unwrap(), Some(Policy::Batch));
        assert_eq!(system::nice(thread).unwrap(), 7);
        assert_eq!(system::io_priority(thread).unwrap(), Some(idle));
    }
    own.cgroups.kill(&own.path).unwrap();
    tree.wait().unwrap();
}

#[test]
fn resource_limits_cover_the_whole_process_tree() {
    let own = Own::new();
    let mut tree = own.start(TREE);
    wait_for_line(&mut tree);
    let tuning = Tuning::new(own.cgroups.clone(), "/proc");
    let limit = Rlimit::new(Bound::At(100), Bound::At(200)).unwrap();
    let wanted = Rlimits::from([(RlimitKind::OpenFiles, limit)]);
    tuning.limit(&own.path, &wanted).unwrap();
    for pid in own.cgroups.processes(&own.path).unwrap() {
        assert_eq!(tuning.rlimits(pid).unwrap()[&RlimitKind::OpenFiles], limit);
    }
    // Without CAP_SYS_RESOURCE a hard limit cannot be raised again.
    let higher = Rlimit::new(Bound::At(100), Bound::At(300)).unwrap();
    match tuning.limit(&own.path, &Rlimits::from([(RlimitKind::OpenFiles, higher)])) {
        Ok(()) => {
            for pid in own.cgroups.processes(&own.path).unwrap() {
                assert_eq!(tuning.rlimits(pid).unwrap()[&RlimitKind::OpenFiles], higher);
            }
        }
        Err(TuningError::Refused { property, .. }) => {
            assert_eq!(property, Property::Rlimit(RlimitKind::OpenFiles, higher));
        }
        Err(error) => panic!("{error}"),
    }
    own.cgroups.kill(&own.path).unwrap();
    tree.wait().unwrap();
}
