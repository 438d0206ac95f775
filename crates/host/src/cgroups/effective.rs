//! The limits that the kernel enforces on a process: [`EffectiveLimits`], read from its cgroups and
//! threads.
//!
//! The caller compares them with the intended ones.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use placement::{CpuSet, NumaId};

use super::limits::{PERIOD_V1, QUOTA_V1, parse_bound};
use super::tree::{is_gone, processes_below, read};
use super::{Bound, CgroupError, Cgroups, Quota, Version, failed, names};

/// The limits that the kernel enforces on a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EffectiveLimits {
    /// Its cgroups by controller; the unified one has an empty name.
    pub cgroups: BTreeMap<String, String>,
    /// The configured CPUs of its cpuset; empty if none were written (version 2: any).
    pub cpus: CpuSet,
    /// The effective CPUs of its cpuset.
    pub effective_cpus: CpuSet,
    pub mems: BTreeSet<NumaId>,
    pub effective_mems: BTreeSet<NumaId>,
    pub cpu_share: Option<CpuShare>,
    pub cpu_quota: Option<Quota>,
    pub memory: Option<Bound>,
    pub pids: Option<Bound>,
    /// All processes in the same cpuset or below it, including this one.
    pub processes: Vec<ProcessAffinity>,
}

/// The share of CPU time under contention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CpuShare {
    /// Version 1; the default is 1024.
    Shares(u64),
    /// Version 2; the default is 100.
    Weight(u64),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessAffinity {
    pub pid: u32,
    pub threads: Vec<ThreadAffinity>,
}

/// The CPUs and memory nodes that a thread may use. A thread can restrict itself within its cpuset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ThreadAffinity {
    pub id: u32,
    pub cpus: CpuSet,
    pub mems: BTreeSet<NumaId>,
}

impl Cgroups {
    /// Returns the memory usage in bytes of a cgroup with its descendants; `None` if it is not
    /// accounted.
    pub fn memory_usage(&self, path: &str) -> Result<Option<u64>, CgroupError> {
        let names = names(path)?;
        let Some(hierarchy) = self.layout.of("memory") else { return Ok(None) };
        let file = match self.version() {
            Version::V1 => "memory.usage_in_bytes",
            Version::V2 => "memory.current",
        };
        read_number(&hierarchy.directory(&names).join(file))
    }

    /// Returns the limits of a process and of the processes in its container.
    pub fn effective_limits(&self, pid: u32) -> Result<EffectiveLimits, CgroupError> {
        let cgroups = self.of_process(pid)?;
        let version = self.version();
        let directory = |controller: &str| -> Option<PathBuf> {
            let name = if version == Version::V1 { controller } else { "" };
            self.layout.of(controller)?.of_process(cgroups.get(name)?)
        };
        let (cpuset, cpu) = (directory("cpuset"), directory("cpu"));
        let list = |file: &str| -> Result<CpuSet, CgroupError> {
            match &cpuset {
                Some(directory) => parse_list(&directory.join(file)),
                None => Ok(CpuSet::new()),
            }
        };
        let bound = |controller: &str, file: &str| -> Result<Option<Bound>, CgroupError> {
            match directory(controller) {
                Some(directory) => read_bound(&directory.join(file)),
                None => Ok(None),
            }
        };
        let memory = match version {
            Version::V1 => bound("memory", "memory.limit_in_bytes")?,
            Version::V2 => bound("memory", "memory.max")?,
        };
        let mut pids = BTreeSet::from([pid]);
        if let Some(directory) = &cpuset {
            processes_below(directory, &mut pids)?;
        }
        let mut processes: Vec<ProcessAffinity> =
            pids.into_iter().map(|pid| self.process_affinity(pid)).collect::<Result<_, _>>()?;
        let effective_cpus = list(&version.effective("cpus"))?;
        // An exiting thread has left its cpuset and keeps its old affinity.
        for process in &mut processes {
            let tasks = self.proc.join(process.pid.to_string()).join("task");
            process.threads.retain(|thread| {
                thread.cpus.is_subset(&effective_cpus)
                    || !is_ending(&tasks.join(thread.id.to_string()))
            });
        }
        Ok(EffectiveLimits {
            cpus: list("cpuset.cpus")?,
            effective_cpus,
            mems: nodes(&list("cpuset.mems")?),
            effective_mems: nodes(&list(&version.effective("mems"))?),
            cpu_share: cpu.as_deref().map(|cpu| share(cpu, version)).transpose()?.flatten(),
            cpu_quota: cpu.as_deref().map(|cpu| quota(cpu, version)).transpose()?.flatten(),
            memory,
            pids: bound("pids", "pids.max")?,
            processes: processes
                .into_iter()
                .filter(|process| !process.threads.is_empty())
                .collect(),
            cgroups,
        })
    }

    /// Returns the effective CPUs of each cgroup above that of a process, the topmost first: a
    /// restriction there applies to all descendants. Unreadable cgroups are skipped.
    #[must_use]
    pub fn cpus_above(&self, found: &EffectiveLimits) -> Vec<(String, CpuSet)> {
        let version = self.version();
        let name = if version == Version::V1 { "cpuset" } else { "" };
        let (Some(path), Some(hierarchy)) = (found.cgroups.get(name), self.layout.of("cpuset"))
        else {
            return Vec::new();
        };
        let mut above: Vec<(String, CpuSet)> = Path::new(path)
            .ancestors()
            .skip(1)
            .filter_map(|path| {
                let path = path.to_str()?;
                let directory = hierarchy.of_process(path)?;
                let cpus = match parse_list(&directory.join(version.effective("cpus"))) {
                    Ok(cpus) if !cpus.is_empty() => cpus,
                    _ => parse_list(&directory.join("cpuset.cpus")).ok()?,
                };
                (!cpus.is_empty()).then(|| (path.to_owned(), cpus))
            })
            .collect();
        above.reverse();
        above
    }

    /// Returns the cgroups of a process by controller, from `/proc/PID/cgroup`. An exiting process
    /// has none: version 1 reports the root of every hierarchy, which limits nothing.
    pub fn of_process(&self, pid: u32) -> Result<BTreeMap<String, String>, CgroupError> {
        let process = self.proc.join(pid.to_string());
        if let Some(found) = of_task(&process)? {
            return Ok(found);
        }
        // The first thread may end before the others.
        for thread in fs::read_dir(process.join("task")).into_iter().flatten().flatten() {
            if let Some(found) = of_task(&thread.path())? {
                return Ok(found);
            }
        }
        Err(CgroupError::NoProcess(pid))
    }

    /// Returns a process with its threads; none if it has ended.
    fn process_affinity(&self, pid: u32) -> Result<ProcessAffinity, CgroupError> {
        let tasks = self.proc.join(pid.to_string()).join("task");
        let mut threads = Vec::new();
        let entries = match fs::read_dir(&tasks) {
            Err(error) if is_over(&error) => return Ok(ProcessAffinity { pid, threads }),
            entries => entries.map_err(failed("list", &tasks))?,
        };
        for entry in entries.flatten() {
            let Some(id) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
                continue;
            };
            let file = entry.path().join("status");
            let text = match fs::read_to_string(&file) {
                Err(error) if is_over(&error) => continue,
                text => text.map_err(failed("read", &file))?,
            };
            let list = |field: &str| {
                let line =
                    text.lines().find_map(|line| line.strip_prefix(field)).unwrap_or_default();
                parse_cpus(&file, line.trim())
            };
            let (cpus, mems) = (list("Cpus_allowed_list:")?, nodes(&list("Mems_allowed_list:")?));
            threads.push(ThreadAffinity { id, cpus, mems });
        }
        threads.sort_by_key(|thread| thread.id);
        Ok(ProcessAffinity { pid, threads })
    }
}

/// Returns the cgroups of a process or thread; `None` if it is exiting.
fn of_task(directory: &Path) -> Result<Option<BTreeMap<String, String>>, CgroupError> {
    let file = directory.join("cgroup");
    let text = match fs::read_to_string(&file) {
        Err(error) if is_over(&error) => return Ok(None),
        text => text.map_err(failed("read", &file))?,
    };
    // Checked after the read: the text is valid if the process is not exiting now.
    Ok((!is_ending(directory)).then(|| parse_cgroups(&text)))
}

/// Returns true if a process or thread is exiting or has ended, according to its `stat`.
fn is_ending(directory: &Path) -> bool {
    /// The kernel's `PF_EXITING`.
    const ENDING: u64 = 0x4;
    let stat = fs::read_to_string(directory.join("stat")).unwrap_or_default();
    // The name is in parentheses and may contain parentheses; the flags are the seventh field after
    // it.
    let fields = stat.rsplit_once(')').map(|(_, fields)| fields.split_ascii_whitespace());
    let flags = fields.and_then(|mut fields| fields.nth(6)?.parse::<u64>().ok());
    flags.is_none_or(|flags| flags & ENDING != 0)
}

/// Returns true if the process has ended: its files are missing, or reading them fails with
/// `ESRCH`.
fn is_over(error: &std::io::Error) -> bool {
    const NO_PROCESS: i32 = 3;
    is_gone(error) || error.raw_os_error() == Some(NO_PROCESS)
}

/// Parses lines such as `4:memory:/a`, `1:cpu,cpuacct:/a`, `9:name=systemd:/a` and `0::/a`.
pub(super) fn parse_cgroups(text: &str) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    for line in text.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else { continue };
        for controller in controllers.split(',') {
            found.insert(controller.to_owned(), path.to_owned());
        }
    }
    found
}

fn nodes(list: &CpuSet) -> BTreeSet<NumaId> {
    list.iter().map(|id| NumaId(id.0)).collect()
}

fn parse_cpus(file: &Path, text: &str) -> Result<CpuSet, CgroupError> {
    CpuSet::parse(text).map_err(|_| CgroupError::Text {
        path: file.to_owned(),
        text: text.to_owned(),
        expected: "list such as 0-3,8",
    })
}

/// Parses a list of numbers; empty if the kernel has no such file.
fn parse_list(file: &Path) -> Result<CpuSet, CgroupError> {
    match optional(file)? {
        Some(text) => parse_cpus(file, &text),
        None => Ok(CpuSet::new()),
    }
}

fn optional(file: &Path) -> Result<Option<String>, CgroupError> {
    match read(file) {
        Ok(text) => Ok(Some(text)),
        Err(CgroupError::Io { source, .. }) if is_gone(&source) => Ok(None),
        Err(error) => Err(error),
    }
}

fn text_error(file: &Path, text: &str, expected: &'static str) -> CgroupError {
    CgroupError::Text { path: file.to_owned(), text: text.to_owned(), expected }
}

fn read_bound(file: &Path) -> Result<Option<Bound>, CgroupError> {
    let Some(text) = optional(file)? else { return Ok(None) };
    let bound = parse_bound(&text).ok_or_else(|| text_error(file, &text, "number or \"max\""))?;
    Ok(Some(bound))
}

fn read_number(file: &Path) -> Result<Option<u64>, CgroupError> {
    let Some(text) = optional(file)? else { return Ok(None) };
    let number = text.parse().map_err(|_| text_error(file, &text, "number"))?;
    Ok(Some(number))
}

fn share(cpu: &Path, version: Version) -> Result<Option<CpuShare>, CgroupError> {
    Ok(match version {
        Version::V1 => read_number(&cpu.join("cpu.shares"))?.map(CpuShare::Shares),
        Version::V2 => read_number(&cpu.join("cpu.weight"))?.map(CpuShare::Weight),
    })
}

fn quota(cpu: &Path, version: Version) -> Result<Option<Quota>, CgroupError> {
    match version {
        Version::V1 => {
            let time = read_bound(&cpu.join(QUOTA_V1))?;
            let period = read_number(&cpu.join(PERIOD_V1))?;
            Ok(time.zip(period).map(|(time, period)| Quota { time, period }))
        }
        Version::V2 => {
            let file = cpu.join("cpu.max");
            let Some(text) = optional(&file)? else { return Ok(None) };
            let parsed = text.split_once(' ').and_then(|(time, period)| {
                Some(Quota { time: parse_bound(time)?, period: period.parse().ok()? })
            });
            parsed.map(Some).ok_or_else(|| text_error(&file, &text, "time and period"))
        }
    }
}
