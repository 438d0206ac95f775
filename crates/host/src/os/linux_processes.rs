//! Kills processes on Linux. See [`crate::os`] for the twin.

use std::io;

use rustix::io::Errno;
use rustix::process::{Pid, Signal};

/// Kills a process. A process that has already ended is not an error.
pub fn kill(pid: u32) -> io::Result<()> {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    let pid = pid.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "no process id"))?;
    match rustix::process::kill_process(pid, Signal::KILL) {
        Err(Errno::SRCH) => Ok(()),
        done => Ok(done?),
    }
}
