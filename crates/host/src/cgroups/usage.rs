//! What is used in a cgroup: [`Usage`], read from the kernel's accounting.
//!
//! What a kernel does not count is `None`, never zero. Nothing is summed here: a cgroup's figures have
//! those of the cgroups below it already.

use std::collections::BTreeMap;
use std::path::Path;

use super::limits::parse_bound;
use super::{Bound, CgroupError, Cgroups, Version, names};

/// What everything in a cgroup and below it uses. Times in nanoseconds, amounts in bytes.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Usage {
    pub cpu: Option<u64>,
    pub cpu_user: Option<u64>,
    pub cpu_system: Option<u64>,
    pub memory: Option<u64>,
    /// The most there ever was.
    pub memory_peak: Option<u64>,
    /// What is used without the files that nobody used lately, as upstream reckons it.
    pub working_set: Option<u64>,
    pub rss: Option<u64>,
    pub cache: Option<u64>,
    pub mapped_files: Option<u64>,
    pub active_files: Option<u64>,
    pub inactive_files: Option<u64>,
    pub swap: Option<u64>,
    pub page_faults: Option<u64>,
    pub major_page_faults: Option<u64>,
    /// How often the limit was met.
    pub limit_hits: Option<u64>,
    pub oom_kills: Option<u64>,
    /// Periods of the CPU limit there were, those in which it was met, and for how long.
    pub periods: Option<u64>,
    pub throttled_periods: Option<u64>,
    pub throttled: Option<u64>,
    pub memory_limit: Option<Bound>,
    /// How much may be swapped out.
    pub swap_limit: Option<Bound>,
    /// Processes and threads there are, and may be.
    pub threads: Option<u64>,
    pub threads_limit: Option<Bound>,
}

impl Cgroups {
    /// What a cgroup uses; `None` if there is none.
    pub fn usage(&self, path: &str) -> Result<Option<Usage>, CgroupError> {
        let names = if path == "/" { Vec::new() } else { names(path)? };
        let directory = |controller: &str| Some(self.layout.of(controller)?.directory(&names));
        if !directory("memory").is_some_and(|of| of.is_dir()) {
            return Ok(None);
        }
        let file = |controller: &str, name: &str| text(&directory(controller)?.join(name));
        let mut usage = match self.version() {
            Version::V1 => version_1(&file),
            Version::V2 => version_2(&file),
        };
        let bound = |controller: &str, name: &str| parse_bound(file(controller, name)?.trim());
        let limit = match self.version() {
            Version::V1 => "memory.limit_in_bytes",
            Version::V2 => "memory.max",
        };
        usage.memory_limit = bound("memory", limit);
        usage.swap_limit = match self.version() {
            // Of memory and swap together.
            Version::V1 => {
                match (bound("memory", "memory.memsw.limit_in_bytes"), usage.memory_limit) {
                    (Some(Bound::At(both)), Some(Bound::At(memory))) => {
                        Some(Bound::At(both.saturating_sub(memory)))
                    }
                    (both, _) => both,
                }
            }
            Version::V2 => bound("memory", "memory.swap.max"),
        };
        usage.threads = file("pids", "pids.current").and_then(|text| text.trim().parse().ok());
        usage.threads_limit = bound("pids", "pids.max");
        usage.working_set = usage.memory.map(|all| {
            let idle = usage.inactive_files.unwrap_or(0);
            all.saturating_sub(idle)
        });
        Ok(Some(usage))
    }
}

/// What is gone or is not counted says nothing.
fn text(file: &Path) -> Option<String> {
    std::fs::read_to_string(file).ok()
}

/// Lines of a word and a number.
fn table(text: &str) -> BTreeMap<&str, u64> {
    let pair = |line| {
        let (name, number) = str::split_once(line, ' ')?;
        Some((name, number.trim().parse().ok()?))
    };
    text.lines().filter_map(pair).collect()
}

fn version_1(file: &dyn Fn(&str, &str) -> Option<String>) -> Usage {
    let number = |controller, name| -> Option<u64> { file(controller, name)?.trim().parse().ok() };
    let memory = file("memory", "memory.stat").unwrap_or_default();
    let memory = table(&memory);
    // Without those below a cgroup on older kernels; `total_` has them.
    let of = |name: &str| memory.get(format!("total_{name}").as_str()).copied();
    let cpu = file("cpu", "cpu.stat").unwrap_or_default();
    let cpu = table(&cpu);
    let oom = file("memory", "memory.oom_control").unwrap_or_default();
    Usage {
        cpu: number("cpuacct", "cpuacct.usage"),
        cpu_user: number("cpuacct", "cpuacct.usage_user"),
        cpu_system: number("cpuacct", "cpuacct.usage_sys"),
        memory: number("memory", "memory.usage_in_bytes"),
        memory_peak: number("memory", "memory.max_usage_in_bytes"),
        rss: of("rss"),
        cache: of("cache"),
        mapped_files: of("mapped_file"),
        active_files: of("active_file"),
        inactive_files: of("inactive_file"),
        swap: of("swap"),
        page_faults: of("pgfault"),
        major_page_faults: of("pgmajfault"),
        limit_hits: number("memory", "memory.failcnt"),
        oom_kills: table(&oom).get("oom_kill").copied(),
        periods: cpu.get("nr_periods").copied(),
        throttled_periods: cpu.get("nr_throttled").copied(),
        throttled: cpu.get("throttled_time").copied(),
        ..Usage::default()
    }
}

fn version_2(file: &dyn Fn(&str, &str) -> Option<String>) -> Usage {
    let number = |name| -> Option<u64> { file("memory", name)?.trim().parse().ok() };
    let memory = file("memory", "memory.stat").unwrap_or_default();
    let memory = table(&memory);
    let of = |name: &str| memory.get(name).copied();
    let cpu = file("cpu", "cpu.stat").unwrap_or_default();
    let cpu = table(&cpu);
    // Microseconds.
    let time = |name: &str| cpu.get(name).map(|micros| micros.saturating_mul(1000));
    let events = file("memory", "memory.events").unwrap_or_default();
    let events = table(&events);
    Usage {
        cpu: time("usage_usec"),
        cpu_user: time("user_usec"),
        cpu_system: time("system_usec"),
        memory: number("memory.current"),
        memory_peak: number("memory.peak"),
        rss: of("anon"),
        cache: of("file"),
        mapped_files: of("file_mapped"),
        active_files: of("active_file"),
        inactive_files: of("inactive_file"),
        swap: number("memory.swap.current"),
        page_faults: of("pgfault"),
        major_page_faults: of("pgmajfault"),
        limit_hits: events.get("max").copied(),
        oom_kills: events.get("oom_kill").copied(),
        periods: cpu.get("nr_periods").copied(),
        throttled_periods: cpu.get("nr_throttled").copied(),
        throttled: time("throttled_usec"),
        ..Usage::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(mounts: &[(&str, &str)], files: &[(&str, &str)]) -> (tempfile::TempDir, Cgroups) {
        let tree = tempfile::tempdir().unwrap();
        let point = |name: &str| tree.path().join(name).display().to_string();
        let lines: String = mounts
            .iter()
            .map(|(name, rest)| format!("32 31 0:29 / {} rw - {rest}\n", point(name)))
            .collect();
        for (name, text) in files {
            let file = tree.path().join(name);
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(file, text).unwrap();
        }
        let cgroups = Cgroups::mounted(&lines, "/proc").unwrap();
        (tree, cgroups)
    }

    #[test]
    fn version_1_counts_in_several_trees() {
        let mounts = [
            ("cpu", "cgroup cgroup rw,cpu,cpuacct"),
            ("memory", "cgroup cgroup rw,memory"),
            ("pids", "cgroup cgroup rw,pids"),
        ];
        let files = [
            ("cpu/a/cpuacct.usage", "7000\n"),
            ("cpu/a/cpuacct.usage_user", "5000\n"),
            ("cpu/a/cpu.stat", "nr_periods 4\nnr_throttled 2\nthrottled_time 90\n"),
            ("memory/a/memory.usage_in_bytes", "1000\n"),
            ("memory/a/memory.stat", "rss 1\ntotal_rss 300\ntotal_inactive_file 200\n"),
            ("memory/a/memory.oom_control", "oom_kill_disable 0\noom_kill 3\n"),
            ("memory/a/memory.limit_in_bytes", "9223372036854771712\n"),
            ("memory/b/memory.limit_in_bytes", "4096\n"),
            ("memory/b/memory.memsw.limit_in_bytes", "6144\n"),
            ("pids/a/pids.current", "6\n"),
            ("pids/a/pids.max", "max\n"),
        ];
        let (_tree, cgroups) = machine(&mounts, &files);
        let usage = cgroups.usage("/a").unwrap().unwrap();
        assert_eq!((usage.cpu, usage.cpu_user, usage.cpu_system), (Some(7000), Some(5000), None));
        assert_eq!(
            (usage.memory, usage.working_set, usage.rss),
            (Some(1000), Some(800), Some(300))
        );
        assert_eq!((usage.throttled_periods, usage.oom_kills), (Some(2), Some(3)));
        assert_eq!((usage.memory_limit, usage.threads), (Some(Bound::Max), Some(6)));
        assert_eq!(usage.threads_limit, Some(Bound::Max));
        assert_eq!(cgroups.usage("/b").unwrap().unwrap().swap_limit, Some(Bound::At(2048)));
        assert_eq!(cgroups.usage("/c").unwrap(), None);
    }

    #[test]
    fn version_2_counts_in_one() {
        let files = [
            ("all/a/cpu.stat", "usage_usec 7\nuser_usec 5\nsystem_usec 2\nthrottled_usec 1\n"),
            ("all/a/memory.current", "1000\n"),
            ("all/a/memory.stat", "anon 300\nfile 500\ninactive_file 1200\n"),
            ("all/a/memory.max", "4096\n"),
            ("all/a/memory.events", "low 0\nmax 8\noom_kill 1\n"),
        ];
        let (_tree, cgroups) = machine(&[("all", "cgroup2 cgroup2 rw")], &files);
        let usage = cgroups.usage("/a").unwrap().unwrap();
        assert_eq!((usage.cpu, usage.throttled), (Some(7000), Some(1000)));
        assert_eq!((usage.working_set, usage.rss, usage.swap), (Some(0), Some(300), None));
        assert_eq!((usage.memory_limit, usage.limit_hits), (Some(Bound::At(4096)), Some(8)));
        assert_eq!((usage.oom_kills, usage.threads), (Some(1), None));
    }
}
