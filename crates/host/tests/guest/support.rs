//! A guest with resctrl, one at a time: [`Machine`].

use std::path::Path;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use rig::guest::{Disk, Guest, Kernel, Shape};
use serde_json::Value;

/// Two guests of several emulated CPUs each would not run faster concurrently.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

pub(crate) struct Machine {
    guest: Guest,
    _only: MutexGuard<'static, ()>,
}

/// Starts a guest with two sockets, so with two L3 caches, and mounts resctrl.
pub(crate) fn machine() -> Machine {
    static DISK: OnceLock<Disk> = OnceLock::new();
    let only = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let kernel = std::env::var_os("BERTH_RDT_KERNEL")
        .expect("BERTH_RDT_KERNEL is not set: it has to be what tools/rdt-kernel prints");
    let kernel = Kernel::new(kernel).unwrap_or_else(|error| panic!("{error}"));
    let disk = DISK.get_or_init(|| {
        let at = Path::new(env!("CARGO_TARGET_TMPDIR")).join("rdt.ext4");
        let program = Path::new(env!("CARGO_BIN_EXE_resctrl"));
        Disk::make(&at, &[program]).unwrap_or_else(|error| panic!("{error}"))
    });
    let shape = Shape {
        sockets: 2,
        cores: 2,
        threads: 1,
        absent: 0,
        memory_mib: 512,
        distances: vec![vec![10, 21], vec![21, 10]],
    };
    let guest = Guest::boot(&kernel, disk, &shape).unwrap_or_else(|error| panic!("{error}"));
    let mut machine = Machine { guest, _only: only };
    machine.sh("mount -t resctrl resctrl /sys/fs/resctrl");
    machine
}

impl Machine {
    pub(crate) fn sh(&mut self, script: &str) -> String {
        self.guest.sh(script).unwrap_or_else(|error| panic!("{error}")).trim().to_owned()
    }

    /// Runs the program and returns its output; a failure panics.
    pub(crate) fn resctrl(&mut self, arguments: &str) -> Value {
        let output = self.sh(&format!("resctrl {arguments}"));
        serde_json::from_str(&output).unwrap_or_else(|error| panic!("{error}: {output}"))
    }

    /// Runs the program and returns its exit status and output.
    pub(crate) fn attempt(&mut self, arguments: &str) -> (i32, String) {
        let done = self.guest.run(&format!("resctrl {arguments}"));
        let (status, output) = done.unwrap_or_else(|error| panic!("{error}"));
        (status, output.trim().to_owned())
    }

    pub(crate) fn write(&mut self, path: &str, value: &Value) {
        let written = self.guest.write(path, &value.to_string());
        written.unwrap_or_else(|error| panic!("{error}"));
    }

    /// Creates a cgroup with a process that sleeps.
    pub(crate) fn cgroup(&mut self, path: &str) {
        self.sh(&format!(
            "mkdir -p /sys/fs/cgroup{path}\n\
             sleep 100000 >/dev/null 2>&1 & echo $! >/sys/fs/cgroup{path}/cgroup.procs"
        ));
    }

    /// Returns the control and monitoring groups, except those of the root group.
    pub(crate) fn groups(&mut self) -> Vec<String> {
        let listing = "cd /sys/fs/resctrl; ls -d */ */mon_groups/*/ 2>/dev/null | sort";
        let lines = self.sh(listing);
        let lines = lines.lines().map(|line| line.trim_end_matches('/').to_owned());
        lines.filter(|line| !["info", "mon_data", "mon_groups"].contains(&line.as_str())).collect()
    }

    /// Returns true if all tasks of a cgroup, and only those, are in a group of resctrl.
    pub(crate) fn is_in(&mut self, cgroup: &str, group: &str) -> bool {
        let tasks = self.sh(&format!("sort /sys/fs/resctrl/{group}/tasks"));
        !tasks.is_empty()
            && tasks == self.sh(&format!("sort /sys/fs/cgroup{cgroup}/cgroup.threads"))
    }
}
