//! The resource usage of a cgroup: [`Usage`], read from the kernel's accounting.
//!
//! A value that the kernel does not count is `None`, never zero. Nothing is summed here: the values
//! of a cgroup include its descendants.

use std::collections::BTreeMap;
use std::path::Path;

use super::limits::parse_bound;
use super::{Bound, CgroupError, Cgroups, Version, names};

/// The usage of a cgroup and its descendants. Times are in nanoseconds, amounts in bytes.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Usage {
    pub cpu: Option<u64>,
    pub cpu_user: Option<u64>,
    pub cpu_system: Option<u64>,
    pub memory: Option<u64>,
    /// The largest usage so far.
    pub memory_peak: Option<u64>,
    /// Usage without inactive file pages, as upstream computes it.
    pub working_set: Option<u64>,
    pub rss: Option<u64>,
    pub cache: Option<u64>,
    pub mapped_files: Option<u64>,
    pub active_files: Option<u64>,
    pub inactive_files: Option<u64>,
    pub swap: Option<u64>,
    pub page_faults: Option<u64>,
    pub major_page_faults: Option<u64>,
    /// The number of times that the limit was reached.
    pub limit_hits: Option<u64>,
    pub oom_kills: Option<u64>,
    /// The number of CFS periods, the number of throttled periods, and the throttled time.
    pub periods: Option<u64>,
    pub throttled_periods: Option<u64>,
    pub throttled: Option<u64>,
    pub memory_limit: Option<Bound>,
    /// The limit of swap usage.
    pub swap_limit: Option<Bound>,
    /// The number of processes and threads, and its limit.
    pub threads: Option<u64>,
    pub threads_limit: Option<Bound>,
    /// Processes in the cgroup itself, without its descendants.
    pub processes: Option<u64>,
    /// Relative weight in the unit of version 1, and the CPU limit in microseconds per period.
    pub cpu_shares: Option<u64>,
    pub cpu_quota: Option<Bound>,
    pub cpu_period: Option<u64>,
    /// File pages that are dirty, and those under writeback.
    pub dirty_files: Option<u64>,
    pub written_files: Option<u64>,
    /// Memory of the kernel for this cgroup.
    pub kernel_memory: Option<u64>,
    /// Pages that were scanned for reclaim, and pages that were reclaimed.
    pub pages_scanned: Option<u64>,
    pub pages_reclaimed: Option<u64>,
    /// Pages that were evicted and needed again.
    pub refaults_anonymous: Option<u64>,
    pub refaults_file: Option<u64>,
    /// The number of throttlings by `memory.high`, and of hits of `memory.max`; version 2 only.
    pub high_events: Option<u64>,
    pub max_events: Option<u64>,
    pub disks: Vec<DiskUsage>,
    pub pressure: Pressure,
}

/// Reads and writes of one disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct DiskUsage {
    pub major: u32,
    pub minor: u32,
    pub bytes_read: u64,
    pub bytes_written: u64,
    pub reads: u64,
    pub writes: u64,
}

/// The time that some or all tasks were stalled on CPU, memory and I/O; version 2 only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Pressure {
    pub cpu: Option<Stalled>,
    pub memory: Option<Stalled>,
    pub io: Option<Stalled>,
}

/// Nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Stalled {
    pub some: u64,
    pub full: u64,
}

impl Cgroups {
    /// Returns the usage of a cgroup; `None` if it does not exist.
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
            // The limit of memory and swap together.
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
        let lines = |text: String| u64::try_from(text.lines().count()).unwrap_or(u64::MAX);
        usage.processes = file("pids", "cgroup.procs").map(lines);
        usage.working_set = usage.memory.map(|all| {
            let idle = usage.inactive_files.unwrap_or(0);
            all.saturating_sub(idle)
        });
        Ok(Some(usage))
    }

    /// Returns the names of disks by device number.
    #[must_use]
    pub fn disks(&self) -> BTreeMap<(u32, u32), String> {
        text(&self.proc.join("diskstats")).map(|text| disks(&text)).unwrap_or_default()
    }
}

fn disks(text: &str) -> BTreeMap<(u32, u32), String> {
    let disk = |line: &str| {
        let mut fields = line.split_ascii_whitespace();
        let numbers = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
        Some((numbers, fields.next()?.to_owned()))
    };
    text.lines().filter_map(disk).collect()
}

/// Parses a device number such as `8:16`.
fn disk_numbers(text: &str) -> Option<(u32, u32)> {
    let (major, minor) = text.split_once(':')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

/// Parses lines with a disk, an operation and an amount: `8:0 Read 4096`.
fn disks_1(bytes: &str, times: &str) -> Vec<DiskUsage> {
    let mut found: BTreeMap<(u32, u32), DiskUsage> = BTreeMap::new();
    let mut each = |text: &str, put: fn(&mut DiskUsage, &str, u64)| {
        for line in text.lines() {
            let mut fields = line.split_ascii_whitespace();
            let (Some(disk), Some(what)) = (fields.next().and_then(disk_numbers), fields.next())
            else {
                continue;
            };
            let Some(much) = fields.next().and_then(|word| word.parse().ok()) else { continue };
            let new = DiskUsage { major: disk.0, minor: disk.1, ..DiskUsage::default() };
            put(found.entry(disk).or_insert(new), what, much);
        }
    };
    each(bytes, |disk, what, bytes| match what {
        "Read" => disk.bytes_read = bytes,
        "Write" => disk.bytes_written = bytes,
        _ => {}
    });
    each(times, |disk, what, times| match what {
        "Read" => disk.reads = times,
        "Write" => disk.writes = times,
        _ => {}
    });
    found.into_values().collect()
}

/// Parses a line per disk: `8:0 rbytes=4096 wbytes=0 rios=1 wios=0 dbytes=0 dios=0`.
fn disks_2(text: &str) -> Vec<DiskUsage> {
    let disk = |line: &str| {
        let mut fields = line.split_ascii_whitespace();
        let (major, minor) = disk_numbers(fields.next()?)?;
        let mut disk = DiskUsage { major, minor, ..DiskUsage::default() };
        for (name, value) in fields.filter_map(|field| field.split_once('=')) {
            let place = match name {
                "rbytes" => &mut disk.bytes_read,
                "wbytes" => &mut disk.bytes_written,
                "rios" => &mut disk.reads,
                "wios" => &mut disk.writes,
                _ => continue,
            };
            *place = value.parse().unwrap_or(0);
        }
        Some(disk)
    };
    text.lines().filter_map(disk).collect()
}

/// Parses `some avg10=0.00 avg60=0.00 avg300=0.00 total=1234` in microseconds, and a line for
/// `full`.
fn stalled(text: &str) -> Option<Stalled> {
    let total = |kind: &str| -> Option<u64> {
        let line = text.lines().find(|line| line.starts_with(kind))?;
        let total = line.split_ascii_whitespace().find_map(|word| word.strip_prefix("total="))?;
        total.parse::<u64>().ok().map(|micros| micros.saturating_mul(1000))
    };
    Some(Stalled { some: total("some ")?, full: total("full ").unwrap_or(0) })
}

/// Converts weights of version 2 to the unit of version 1, as monitoring tools do.
fn shares_of_weight(weight: u64) -> u64 {
    2 + weight.saturating_sub(1).saturating_mul(262_142) / 9_999
}

/// Returns the text of a file; `None` if it is missing or unreadable.
fn text(file: &Path) -> Option<String> {
    std::fs::read_to_string(file).ok()
}

/// Parses lines of a name and a number.
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
    // On older kernels these exclude descendants; `total_` includes them.
    let total = |name: &str| memory.get(format!("total_{name}").as_str()).copied();
    let cpu = file("cpu", "cpu.stat").unwrap_or_default();
    let cpu = table(&cpu);
    let oom = file("memory", "memory.oom_control").unwrap_or_default();
    Usage {
        cpu: number("cpuacct", "cpuacct.usage"),
        cpu_user: number("cpuacct", "cpuacct.usage_user"),
        cpu_system: number("cpuacct", "cpuacct.usage_sys"),
        memory: number("memory", "memory.usage_in_bytes"),
        memory_peak: number("memory", "memory.max_usage_in_bytes"),
        rss: total("rss"),
        cache: total("cache"),
        mapped_files: total("mapped_file"),
        active_files: total("active_file"),
        inactive_files: total("inactive_file"),
        swap: total("swap"),
        page_faults: total("pgfault"),
        major_page_faults: total("pgmajfault"),
        limit_hits: number("memory", "memory.failcnt"),
        oom_kills: table(&oom).get("oom_kill").copied(),
        periods: cpu.get("nr_periods").copied(),
        throttled_periods: cpu.get("nr_throttled").copied(),
        throttled: cpu.get("throttled_time").copied(),
        cpu_shares: number("cpu", "cpu.shares"),
        cpu_period: number("cpu", "cpu.cfs_period_us"),
        // -1 means no limit.
        cpu_quota: file("cpu", "cpu.cfs_quota_us")
            .map(|text| text.trim().parse().map_or(Bound::Max, Bound::At)),
        dirty_files: total("dirty"),
        written_files: total("writeback"),
        kernel_memory: number("memory", "memory.kmem.usage_in_bytes"),
        refaults_anonymous: total("workingset_refault_anon"),
        refaults_file: total("workingset_refault_file"),
        disks: disks_1(
            &file("blkio", "blkio.throttle.io_service_bytes_recursive").unwrap_or_default(),
            &file("blkio", "blkio.throttle.io_serviced_recursive").unwrap_or_default(),
        ),
        ..Usage::default()
    }
}

fn version_2(file: &dyn Fn(&str, &str) -> Option<String>) -> Usage {
    let number = |name| -> Option<u64> { file("memory", name)?.trim().parse().ok() };
    let memory = file("memory", "memory.stat").unwrap_or_default();
    let memory = table(&memory);
    let stat = |name: &str| memory.get(name).copied();
    let cpu = file("cpu", "cpu.stat").unwrap_or_default();
    let cpu = table(&cpu);
    // Microseconds.
    let time = |name: &str| cpu.get(name).map(|micros| micros.saturating_mul(1000));
    let events = file("memory", "memory.events").unwrap_or_default();
    let events = table(&events);
    let limit = file("cpu", "cpu.max").unwrap_or_default();
    let limit: Vec<&str> = limit.split_ascii_whitespace().collect();
    Usage {
        cpu: time("usage_usec"),
        cpu_user: time("user_usec"),
        cpu_system: time("system_usec"),
        memory: number("memory.current"),
        memory_peak: number("memory.peak"),
        rss: stat("anon"),
        cache: stat("file"),
        mapped_files: stat("file_mapped"),
        active_files: stat("active_file"),
        inactive_files: stat("inactive_file"),
        swap: number("memory.swap.current"),
        page_faults: stat("pgfault"),
        major_page_faults: stat("pgmajfault"),
        limit_hits: events.get("max").copied(),
        oom_kills: events.get("oom_kill").copied(),
        periods: cpu.get("nr_periods").copied(),
        throttled_periods: cpu.get("nr_throttled").copied(),
        throttled: time("throttled_usec"),
        cpu_shares: file("cpu", "cpu.weight")
            .and_then(|text| text.trim().parse().ok())
            .map(shares_of_weight),
        cpu_period: limit.get(1).and_then(|period| period.parse().ok()),
        cpu_quota: limit.first().and_then(|quota| parse_bound(quota)),
        dirty_files: stat("file_dirty"),
        written_files: stat("file_writeback"),
        kernel_memory: stat("kernel"),
        pages_scanned: stat("pgscan"),
        pages_reclaimed: stat("pgsteal"),
        refaults_anonymous: stat("workingset_refault_anon"),
        refaults_file: stat("workingset_refault_file"),
        high_events: events.get("high").copied(),
        max_events: events.get("max").copied(),
        disks: disks_2(&file("io", "io.stat").unwrap_or_default()),
        pressure: Pressure {
            cpu: file("cpu", "cpu.pressure").as_deref().and_then(stalled),
            memory: file("memory", "memory.pressure").as_deref().and_then(stalled),
            io: file("io", "io.pressure").as_deref().and_then(stalled),
        },
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
    fn version_1_usage_is_read_from_several_hierarchies() {
        let mounts = [
            ("cpu", "cgroup cgroup rw,cpu,cpuacct"),
            ("memory", "cgroup cgroup rw,memory"),
            ("pids", "cgroup cgroup rw,pids"),
            ("blkio", "cgroup cgroup rw,blkio"),
        ];
        let files = [
            ("cpu/a/cpu.shares", "512\n"),
            ("cpu/a/cpu.cfs_quota_us", "-1\n"),
            ("cpu/a/cpu.cfs_period_us", "100000\n"),
            (
                "blkio/a/blkio.throttle.io_service_bytes_recursive",
                "8:16 Read 4096\n8:16 Write 8192\n8:16 Total 12288\nTotal 12288\n",
            ),
            ("blkio/a/blkio.throttle.io_serviced_recursive", "8:16 Write 3\nTotal 3\n"),
            ("pids/a/cgroup.procs", "7\n9\n"),
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
        assert_eq!((usage.processes, usage.cpu_shares), (Some(2), Some(512)));
        assert_eq!((usage.cpu_quota, usage.cpu_period), (Some(Bound::Max), Some(100_000)));
        let disk = DiskUsage {
            major: 8,
            minor: 16,
            bytes_read: 4096,
            bytes_written: 8192,
            reads: 0,
            writes: 3,
        };
        assert_eq!(usage.disks, [disk]);
        assert_eq!(cgroups.usage("/b").unwrap().unwrap().swap_limit, Some(Bound::At(2048)));
        assert_eq!(cgroups.usage("/c").unwrap(), None);
    }

    #[test]
    fn version_2_usage_is_read_from_one_hierarchy() {
        let files = [
            ("all/a/cpu.stat", "usage_usec 7\nuser_usec 5\nsystem_usec 2\nthrottled_usec 1\n"),
            ("all/a/memory.current", "1000\n"),
            ("all/a/memory.stat", "anon 300\nfile 500\ninactive_file 1200\n"),
            ("all/a/memory.max", "4096\n"),
            ("all/a/memory.events", "low 0\nhigh 5\nmax 8\noom_kill 1\n"),
            ("all/a/cpu.weight", "100\n"),
            ("all/a/cpu.max", "50000 100000\n"),
            ("all/a/io.stat", "8:0 rbytes=4096 wbytes=0 rios=1 wios=2 dbytes=0 dios=0\n254:0 \n"),
            (
                "all/a/cpu.pressure",
                "some avg10=0.00 avg60=0.00 avg300=0.00 total=12\n\
                 full avg10=0.00 avg60=0.00 avg300=0.00 total=3\n",
            ),
        ];
        let (_tree, cgroups) = machine(&[("all", "cgroup2 cgroup2 rw")], &files);
        let usage = cgroups.usage("/a").unwrap().unwrap();
        assert_eq!((usage.cpu, usage.throttled), (Some(7000), Some(1000)));
        assert_eq!((usage.working_set, usage.rss, usage.swap), (Some(0), Some(300), None));
        assert_eq!((usage.memory_limit, usage.limit_hits), (Some(Bound::At(4096)), Some(8)));
        assert_eq!((usage.oom_kills, usage.threads), (Some(1), None));
        assert_eq!((usage.high_events, usage.max_events), (Some(5), Some(8)));
        assert_eq!((usage.cpu_quota, usage.cpu_period), (Some(Bound::At(50_000)), Some(100_000)));
        assert_eq!(usage.cpu_shares, Some(2597));
        let (disk, other) = (usage.disks[0], usage.disks[1]);
        assert_eq!((disk.bytes_read, disk.reads, disk.writes), (4096, 1, 2));
        assert_eq!((other.major, other.reads), (254, 0));
        assert_eq!(usage.pressure.cpu, Some(Stalled { some: 12_000, full: 3_000 }));
        assert_eq!(usage.pressure.io, None);
    }

    #[test]
    fn disks_have_names() {
        let text = "   8       0 sda 1 2 3\n 254       1 vda1 0 0 0\nnonsense\n";
        let names = disks(text);
        assert_eq!(names.len(), 2);
        assert_eq!(names[&(254, 1)], "vda1");
    }
}
