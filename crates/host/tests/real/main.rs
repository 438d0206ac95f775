//! Limits of real cgroups and processes of this machine: block I/O of a loop device, memory QoS,
//! scheduling and resource limits.
//!
//! Needs the feature `real`, root, loop devices, and the programs losetup and dd. Every test works in
//! a cgroup of its own and removes it.

#![allow(
    clippy::panic,
    clippy::unwrap_used,
    reason = "clippy.toml allows them in tests, not helpers"
)]

use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use host::cgroups::{Cgroups, Limits, Version};

mod block_io;
mod memory;
mod tuning;

/// A cgroup that is removed with its processes.
struct Own {
    cgroups: Cgroups,
    path: String,
}

static COUNT: AtomicU32 = AtomicU32::new(0);

impl Own {
    fn new() -> Own {
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = format!("/berth-real-{}-{number}", std::process::id());
        let cgroups = Cgroups::observe().unwrap();
        let own = Own { cgroups, path };
        own.cgroups.ensure(&own.path, &Limits::default()).unwrap();
        own
    }

    /// Starts a shell script in the cgroup.
    fn start(&self, script: &str) -> Child {
        let enter = match self.cgroups.version() {
            Version::V1 => format!(
                "for of in blkio cpu memory pids; do\n\
                 echo $$ >/sys/fs/cgroup/$of{}/cgroup.procs || exit 9; done",
                self.path
            ),
            Version::V2 => format!("echo $$ >/sys/fs/cgroup{}/cgroup.procs || exit 9", self.path),
        };
        Command::new("sh")
            .args(["-c", &format!("{enter}\n{script}")])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap()
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        if let Err(error) = self.cgroups.remove(&self.path) {
            eprintln!("{} was left behind: {error}", self.path);
        }
    }
}

/// Waits until a process has entered the cgroup and prints a line.
fn wait_for_line(child: &mut Child) -> String {
    use std::io::{BufRead as _, BufReader};
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    assert!(!line.is_empty(), "the process printed nothing");
    line
}
