//! Kills processes and lists those of this machine on Linux. See [`crate::os`] for the twin.

use std::io;
use std::path::Path;

use placement::CpuSet;

use rustix::io::Errno;
use rustix::process::{Pid, Signal};

use crate::processes::{self, Process};

/// Kills a process. A process that has already ended is not an error.
pub fn kill(pid: u32) -> io::Result<()> {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    let pid = pid.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "no process id"))?;
    match rustix::process::kill_process(pid, Signal::KILL) {
        Err(Errno::SRCH) => Ok(()),
        done => Ok(done?),
    }
}

/// Returns the processes of this machine by id.
#[must_use]
pub fn list() -> Vec<Process> {
    processes::list(Path::new("/proc"))
}

/// Returns the CPUs of the first process, which its descendants inherit; `None` if unknown.
#[must_use]
pub fn first_process_cpus() -> Option<CpuSet> {
    processes::first_process_cpus(Path::new("/proc"))
}

/// Returns the online CPUs; `None` if unknown.
#[must_use]
pub fn online_cpus() -> Option<CpuSet> {
    processes::online_cpus(Path::new("/sys/devices/system/cpu"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_listed() {
        assert!(list().iter().any(|process| process.pid == std::process::id()));
    }

    #[test]
    fn the_first_process_uses_online_cpus() {
        let (Some(first), Some(online)) = (first_process_cpus(), online_cpus()) else { return };
        assert!(!first.is_disjoint(&online), "{first} and {online}");
    }
}
