//! Scheduling and resource limits of processes on Linux. See [`crate::os`] for the twin.
//!
//! rustix has no calls for scheduling policies and I/O priorities, so those use libc.

use std::io;

use rustix::process::{Pid, Resource};

use crate::cgroups::Bound;
use crate::tuning::{IoPriority, Nice, Policy, Rlimit, RlimitKind, numbers};

/// `IOPRIO_WHO_PROCESS`: the number is that of a thread.
const WHO_THREAD: libc::c_int = 1;

fn id(pid: u32) -> io::Result<libc::pid_t> {
    let error = || io::Error::new(io::ErrorKind::InvalidInput, "not a process id");
    libc::pid_t::try_from(pid).ok().filter(|pid| *pid > 0).ok_or_else(error)
}

fn process(pid: u32) -> io::Result<Option<Pid>> {
    Ok(Pid::from_raw(id(pid)?))
}

/// Returns the niceness of a thread.
pub fn nice(pid: u32) -> io::Result<i32> {
    Ok(rustix::process::getpriority_process(process(pid)?)?)
}

/// Sets the niceness of a thread.
pub fn set_nice(pid: u32, nice: Nice) -> io::Result<()> {
    Ok(rustix::process::setpriority_process(process(pid)?, nice.get())?)
}

/// Returns the scheduling policy of a thread; `None` for a policy that is not known here.
pub fn policy(pid: u32) -> io::Result<Option<Policy>> {
    let pid = id(pid)?;
    let mut parameters = libc::sched_param { sched_priority: 0 };
    // SAFETY: the calls take a number and a pointer to a value that outlives them.
    let (policy, read) =
        unsafe { (libc::sched_getscheduler(pid), libc::sched_getparam(pid, &raw mut parameters)) };
    if policy < 0 || read < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(numbers::policy(policy, parameters.sched_priority))
}

/// Sets the scheduling policy of a thread.
pub fn set_policy(pid: u32, policy: Policy) -> io::Result<()> {
    let pid = id(pid)?;
    let (policy, sched_priority) = numbers::of_policy(policy);
    let parameters = libc::sched_param { sched_priority };
    // SAFETY: the call takes numbers and a pointer to a value that outlives it.
    let done = unsafe { libc::sched_setscheduler(pid, policy, &raw const parameters) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Returns the I/O priority of a thread; `None` for a class that is not known here.
pub fn io_priority(pid: u32) -> io::Result<Option<IoPriority>> {
    let pid = id(pid)?;
    // SAFETY: the call takes two numbers.
    let found = unsafe { libc::syscall(libc::SYS_ioprio_get, WHO_THREAD, pid) };
    let number = u32::try_from(found).map_err(|_| io::Error::last_os_error())?;
    Ok(numbers::io_priority(number))
}

/// Sets the I/O priority of a thread.
pub fn set_io_priority(pid: u32, priority: IoPriority) -> io::Result<()> {
    let pid = id(pid)?;
    let number = numbers::of_io_priority(priority);
    // SAFETY: the call takes three numbers.
    let done = unsafe { libc::syscall(libc::SYS_ioprio_set, WHO_THREAD, pid, number) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Sets a resource limit of a process.
pub fn set_rlimit(pid: u32, kind: RlimitKind, limit: Rlimit) -> io::Result<()> {
    let number = |bound: Bound| match bound {
        Bound::At(value) => Some(value),
        Bound::Max => None,
    };
    let limit =
        rustix::process::Rlimit { current: number(limit.soft()), maximum: number(limit.hard()) };
    rustix::process::prlimit(process(pid)?, resource(kind), limit)?;
    Ok(())
}

fn resource(kind: RlimitKind) -> Resource {
    match kind {
        RlimitKind::AddressSpace => Resource::As,
        RlimitKind::Core => Resource::Core,
        RlimitKind::CpuSeconds => Resource::Cpu,
        RlimitKind::Data => Resource::Data,
        RlimitKind::FileSize => Resource::Fsize,
        RlimitKind::Locks => Resource::Locks,
        RlimitKind::LockedMemory => Resource::Memlock,
        RlimitKind::MessageQueues => Resource::Msgqueue,
        RlimitKind::Nice => Resource::Nice,
        RlimitKind::OpenFiles => Resource::Nofile,
        RlimitKind::Processes => Resource::Nproc,
        RlimitKind::ResidentSet => Resource::Rss,
        RlimitKind::RealtimePriority => Resource::Rtprio,
        RlimitKind::RealtimeTime => Resource::Rttime,
        RlimitKind::PendingSignals => Resource::Sigpending,
        RlimitKind::Stack => Resource::Stack,
    }
}
