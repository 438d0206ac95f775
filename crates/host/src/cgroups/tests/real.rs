//! Cgroups of this machine, below one that the test creates.

use std::process::{Child, Command};
use std::sync::atomic::{AtomicU32, Ordering};

use super::*;

/// A cgroup that is removed with its contents.
struct Own {
    cgroups: Cgroups,
    path: String,
}

static COUNT: AtomicU32 = AtomicU32::new(0);

impl Own {
    /// Returns `None` and prints it if this process may not create cgroups. In CI it must be able
    /// to.
    fn new() -> Option<Own> {
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = format!("/berth-test-{}-{number}", std::process::id());
        let made = Cgroups::observe().and_then(|cgroups| {
            cgroups.ensure(&path, &Limits::default())?;
            Ok(cgroups)
        });
        match made {
            Ok(cgroups) => Some(Own { cgroups, path }),
            Err(error) => {
                eprintln!("skipped: no cgroup can be made: {error:?}");
                assert_ne!(std::env::var("CI").as_deref(), Ok("true"), "CI has to be able to");
                None
            }
        }
    }

    fn below(&self, name: &str) -> String {
        format!("{}/{name}", self.path)
    }

    /// Starts a waiting process in a cgroup `c` below another one, like a runtime: in version 2,
    /// processes exist only in leaf cgroups.
    fn start(&self, above: &str) -> (String, Child) {
        let path = format!("{above}/c");
        let names = names(&path).unwrap();
        match self.cgroups.version() {
            Version::V1 => self.cgroups.ensure(&path, &Limits::default()).unwrap(),
            Version::V2 => {
                let hierarchy = self.cgroups.layout.of("cpu").unwrap();
                fs::create_dir(hierarchy.directory(&names)).unwrap();
            }
        }
        let child = Command::new("sleep").arg("1000").spawn().unwrap();
        for hierarchy in self.cgroups.layout.limiting() {
            let file = hierarchy.directory(&names).join("cgroup.procs");
            tree::write_existing(&file, &child.id().to_string()).unwrap();
        }
        (path, child)
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        if let Err(error) = self.cgroups.remove(&self.path) {
            eprintln!("{} is left behind: {error:?}", self.path);
        }
    }
}

#[test]
fn a_cgroup_limits_its_process_and_kills_it_on_removal() {
    let Some(own) = Own::new() else { return };
    let pod = own.below("pod1");
    let limits = Limits { huge_pages: BTreeMap::new(), unified: BTreeMap::new(), ..some_limits() };
    own.cgroups.ensure(&pod, &limits).unwrap();
    assert!(own.cgroups.exists(&pod));
    let (container, mut child) = own.start(&pod);
    own.cgroups.update(&container, &limits).unwrap();
    let effective = own.cgroups.effective_limits(child.id()).unwrap();
    assert_eq!(effective.memory, Some(Bound::At(64 << 20)));
    assert_eq!(effective.cpu_quota, Some(Quota { time: Bound::At(15_000), period: 100_000 }));
    let share = match own.cgroups.version() {
        Version::V1 => CpuShare::Shares(102),
        Version::V2 => CpuShare::Weight(17),
    };
    assert_eq!(effective.cpu_share, Some(share));
    assert!(!effective.effective_cpus.is_empty() && !effective.effective_mems.is_empty());
    let [process] = effective.processes.as_slice() else { panic!("{effective:?}") };
    assert_eq!((process.pid, process.threads.len()), (child.id(), 1));
    assert_eq!(process.threads[0].cpus, effective.effective_cpus);
    let first: CpuSet = effective.effective_cpus.first().into_iter().collect();
    let cpuset = own.cgroups.layout.of("cpuset").unwrap();
    let file = cpuset.directory(&names(&container).unwrap()).join("cpuset.cpus");
    tree::write_existing(&file, &first.to_string()).unwrap();
    let effective = own.cgroups.effective_limits(child.id()).unwrap();
    assert_eq!((&effective.cpus, &effective.effective_cpus), (&first, &first));
    assert_eq!(effective.processes[0].threads[0].cpus, first);
    assert_eq!(own.cgroups.processes(&own.path).unwrap(), [child.id()].into());
    own.cgroups.remove(&pod).unwrap();
    assert!(!own.cgroups.exists(&pod));
    assert!(!child.wait().unwrap().success());
    assert!(own.cgroups.children(&own.path).unwrap().is_empty());
}

#[test]
fn a_quota_changes_with_its_period() {
    let Some(own) = Own::new() else { return };
    let (pod, container) = (own.below("pod1"), own.below("pod1/c"));
    let set = |path: &str, time: Bound, period: u64| {
        let cpu_quota = Some(Quota { time, period });
        let limits = Limits { cpu_quota, ..Limits::default() };
        own.cgroups.ensure(path, &limits)
    };
    set(&pod, Bound::At(100_000), 100_000).unwrap();
    set(&container, Bound::At(50_000), 100_000).unwrap();
    // A fifth of the period with the old quota would exceed the parent's share.
    set(&container, Bound::At(10_000), 20_000).unwrap();
    set(&container, Bound::At(90_000), 100_000).unwrap();
    set(&container, Bound::Max, 100_000).unwrap();
    set(&pod, Bound::Max, 50_000).unwrap();
    if own.cgroups.version() == Version::V1 {
        set(&pod, Bound::At(10_000), 100_000).unwrap();
        let error = set(&container, Bound::At(20_000), 100_000).unwrap_err();
        assert!(error.to_string().contains("cpu.cfs_quota_us"), "{error}");
    }
}

#[test]
fn a_frozen_process_is_killed() {
    let Some(own) = Own::new() else { return };
    let Some(freezer) = own.cgroups.layout.of("freezer") else { return };
    if own.cgroups.version() == Version::V2 {
        return;
    }
    let pod = own.below("pod1");
    own.cgroups.ensure(&pod, &Limits::default()).unwrap();
    let (_, mut child) = own.start(&pod);
    let state = freezer.directory(&names(&pod).unwrap()).join("freezer.state");
    tree::write_existing(&state, "FROZEN").unwrap();
    own.cgroups.remove(&pod).unwrap();
    assert!(!child.wait().unwrap().success());
}
