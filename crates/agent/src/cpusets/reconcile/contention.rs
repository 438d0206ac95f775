//! Programs and settings that may contend with the agent for cpusets: [`Contender`]. [`contenders`] finds them in
//! what is on the machine ([`HostObservation`]).
//!
//! They are suspects only: the kernel does not record which process changed a cgroup. Stops no process.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use host::files::modification_times;
use host::os::{KUBELET_DIRECTORY, processes};
use host::processes::Process;
use placement::CpuSet;

/// A program or setting that also decides where processes run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Contender {
    Kubelet {
        pid: u32,
    },
    /// Another agent of Berth.
    Agent {
        pid: u32,
    },
    /// A plugin of the runtime that sets cpusets.
    Plugin {
        pid: u32,
        name: String,
    },
    /// State files of a kubelet that were written recently.
    StateFile(PathBuf),
    /// A parent cgroup has too few CPUs: `AllowedCPUs=` of a slice, or written by hand.
    Above {
        cgroup: String,
        cpus: CpuSet,
    },
    /// The first process, and with it every service, is limited to some CPUs: `CPUAffinity=`.
    First {
        cpus: CpuSet,
    },
}

impl fmt::Display for Contender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Contender::Kubelet { pid } => write!(f, "a kubelet (process {pid})"),
            Contender::Agent { pid } => write!(f, "another berth (process {pid})"),
            Contender::Plugin { pid, name } => {
                write!(f, "the runtime's plugin {name} (process {pid})")
            }
            Contender::StateFile(path) => write!(f, "whoever writes {}", path.display()),
            Contender::Above { cgroup, cpus } => {
                write!(f, "cgroup {cgroup}, which has CPUs {cpus} only (AllowedCPUs= of a slice?)")
            }
            Contender::First { cpus } => {
                write!(f, "the init process, which has CPUs {cpus} only (CPUAffinity= of systemd?)")
            }
        }
    }
}

/// Everything on the machine that may contend for cpusets.
#[derive(Debug, Clone, Default)]
pub struct HostObservation {
    pub own_pid: u32,
    pub processes: Vec<Process>,
    pub online: Option<CpuSet>,
    pub first: Option<CpuSet>,
    /// CPUs of the parent cgroups of the container, the topmost first.
    pub above: Vec<(String, CpuSet)>,
    pub changed_files: Vec<PathBuf>,
}

/// Plugins of the runtime that set cpusets. The kernel truncates process names to 15 bytes.
const PLUGINS: [&str; 3] = ["nri-resource-po", "nri-plugin-cpu", "cri-resmgr"];

/// Returns the contenders that could have moved a container with these CPUs.
#[must_use]
pub fn contenders(allocated: &CpuSet, host: &HostObservation) -> Vec<Contender> {
    let others = host.processes.iter().filter(|process| process.pid != host.own_pid);
    let mut found: Vec<Contender> = others.filter_map(contender).collect();
    found.extend(host.changed_files.iter().cloned().map(Contender::StateFile));
    let narrow = host.above.iter().find(|(_, cpus)| !allocated.is_subset(cpus));
    if let Some((cgroup, cpus)) = narrow {
        found.push(Contender::Above { cgroup: cgroup.clone(), cpus: cpus.clone() });
    }
    if let (Some(first), Some(online)) = (&host.first, &host.online)
        && !online.is_subset(first)
    {
        found.push(Contender::First { cpus: first.clone() });
    }
    found
}

fn contender(process: &Process) -> Option<Contender> {
    let pid = process.pid;
    let program = process.command.first().map_or("", String::as_str);
    let program = program.rsplit(['/', '\\']).next().unwrap_or_default();
    // The command line of a script or test may contain the word, so only the program counts.
    if process.name == "kubelet" || program == "kubelet" {
        return Some(Contender::Kubelet { pid });
    }
    let runs_agent = process.command.get(1).is_some_and(|verb| verb == "agent" || verb == "up");
    if program == "berth" && runs_agent {
        return Some(Contender::Agent { pid });
    }
    let plugin = PLUGINS.iter().any(|name| process.name.starts_with(name));
    plugin.then(|| Contender::Plugin { pid, name: process.name.clone() })
}

const STATE_FILES: [&str; 2] = ["cpu_manager_state", "memory_manager_state"];

/// Returns the modification times of the state files of a kubelet. The agent's own files are left out.
pub(super) fn stamps(own_root: &Path) -> BTreeMap<PathBuf, Option<SystemTime>> {
    let directory = Path::new(KUBELET_DIRECTORY);
    if own_root == directory {
        return BTreeMap::new();
    }
    modification_times(directory, &STATE_FILES)
}

/// Reads the current processes and files of this machine.
pub(super) fn observe(
    above: Vec<(String, CpuSet)>,
    changed_files: Vec<PathBuf>,
) -> HostObservation {
    HostObservation {
        own_pid: std::process::id(),
        processes: processes::list(),
        online: online(),
        first: processes::first_process_cpus(),
        above,
        changed_files,
    }
}

pub(super) fn online() -> Option<CpuSet> {
    processes::online_cpus()
}
