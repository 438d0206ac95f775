//! Cgroups in temporary directories on every system, and real ones if available.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use placement::{CpuSet, NumaId};

use super::effective::parse_cgroups;
use super::*;

mod block_io;
#[cfg(target_os = "linux")]
mod real;

const HYBRID: &str = "\
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct
34 31 0:31 /docker/x /elsewhere rw,relatime - cgroup cgroup rw,cpuset
34 31 0:31 / /sys/fs/cgroup/cpuset rw,relatime - cgroup cgroup rw,cpuset,clone_children
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
40 31 0:37 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,xattr,name=systemd
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
";
const UNIFIED: &str =
    "31 23 0:28 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";

#[test]
fn a_hybrid_machine_is_version_1_with_all_hierarchies() {
    let layout = Layout::parse(HYBRID).unwrap();
    assert_eq!(layout.version(), Version::V1);
    let point = |name: &str| layout.of(name).map(|of| of.point.to_str().unwrap().to_owned());
    assert_eq!(point("cpu").as_deref(), Some("/sys/fs/cgroup/cpu,cpuacct"));
    assert_eq!(point("cpuacct"), point("cpu"));
    assert_eq!(point("cpuset").as_deref(), Some("/sys/fs/cgroup/cpuset"));
    assert_eq!(point("pids"), None);
    assert_eq!(point("clone_children"), None);
    let points = |hierarchies: Vec<&layout::Hierarchy>| -> Vec<String> {
        hierarchies
            .iter()
            .map(|h| h.point.file_name().unwrap().to_str().unwrap().to_owned())
            .collect()
    };
    assert_eq!(points(layout.limiting()), ["cpu,cpuacct", "cpuset", "memory"]);
    assert_eq!(points(layout.all()), ["cpu,cpuacct", "cpuset", "memory", "systemd", "unified"]);
}

#[test]
fn version_2_has_one_hierarchy_and_none_is_an_error() {
    let layout = Layout::parse(UNIFIED).unwrap();
    assert_eq!(layout.version(), Version::V2);
    assert_eq!(layout.of("memory"), layout.of("cpu"));
    for text in ["", "31 23 0:28 / /x rw - cgroup cgroup rw,cpuset\n", "nonsense"] {
        let error = Layout::parse(text).unwrap_err();
        assert!(error.to_string().starts_with("no cgroup file system is mounted"), "{error}");
    }
}

#[test]
fn a_cgroup_directory_is_relative_to_its_mount() {
    let hierarchy = layout::Hierarchy { point: "/cg".into(), root: "/docker/x".to_owned() };
    assert_eq!(hierarchy.of_process("/docker/x/a"), Some(PathBuf::from("/cg/a")));
    assert_eq!(hierarchy.of_process("/docker/xy"), None);
    let whole = layout::Hierarchy { point: "/cg".into(), root: "/".to_owned() };
    assert_eq!(whole.of_process("/a/b"), Some(PathBuf::from("/cg/a/b")));
    assert_eq!(whole.of_process("/../up"), None);
}

#[test]
fn cgroups_of_a_process_are_parsed_by_controller() {
    let found = parse_cgroups("9:name=systemd:/\n1:cpu,cpuacct:/a:b\n0::/u\nnonsense\n");
    let found: Vec<_> = found.iter().map(|(name, path)| format!("{name}={path}")).collect();
    assert_eq!(found, ["=/u", "cpu=/a:b", "cpuacct=/a:b", "name=systemd=/"]);
}

#[test]
fn only_paths_below_the_root_are_cgroups() {
    for path in ["", "/", "//", "a", "/a/../b", "/./a", "/a\0"] {
        let error = names(path).unwrap_err().to_string();
        assert!(
            error.ends_with("is not a path below the root, such as \"/kubepods/pod1\""),
            "{error}"
        );
    }
    assert_eq!(names("/a//b/").unwrap(), ["a", "b"]);
}

#[test]
fn shares_convert_to_weights_at_minimum_default_and_maximum() {
    for (shares, weight) in [
        (0, 1),
        (2, 1),
        (3, 2),
        (10, 4),
        (102, 17),
        (512, 59),
        (1024, 100),
        (2048, 174),
        (262_143, 10_000),
        (262_144, 10_000),
        (u64::MAX, 10_000),
    ] {
        assert_eq!(weight_of_shares(shares), weight, "{shares}");
    }
    assert!((2..262_144).all(|shares| weight_of_shares(shares) <= weight_of_shares(shares + 1)));
}

#[test]
fn no_limit_is_the_greatest_bound() {
    assert!(Bound::At(1) < Bound::At(2) && Bound::At(u64::MAX) < Bound::Max);
    for (text, expected) in [
        ("max", Some(Bound::Max)),
        ("-1", Some(Bound::Max)),
        ("9223372036854771712", Some(Bound::Max)),
        ("67108864", Some(Bound::At(64 << 20))),
        ("", None),
        ("many", None),
    ] {
        assert_eq!(limits::parse_bound(text), expected, "{text:?}");
    }
}

/// Cgroups in a temporary directory, with files like the kernel's.
struct Tree {
    directory: tempfile::TempDir,
    version: Version,
}

const FILES_V1: [(&str, &[(&str, &str)]); 4] = [
    ("cpu", &[("cpu.shares", "1024"), ("cpu.cfs_period_us", "100000"), ("cpu.cfs_quota_us", "-1")]),
    (
        "cpuset",
        &[
            ("cpuset.cpus", ""),
            ("cpuset.mems", ""),
            ("cpuset.effective_cpus", "0-3"),
            ("cpuset.effective_mems", "0-1"),
        ],
    ),
    ("memory", &[("memory.limit_in_bytes", "9223372036854771712")]),
    ("pids", &[("pids.max", "max")]),
];
const FILES_V2: [(&str, &str); 10] = [
    ("cgroup.controllers", "cpuset cpu io memory pids"),
    ("cgroup.subtree_control", "pids"),
    ("cpu.weight", "100"),
    ("cpu.max", "max 100000"),
    ("memory.max", "max"),
    ("memory.min", "0"),
    ("pids.max", "max"),
    ("cpuset.cpus", ""),
    ("cpuset.cpus.effective", "0-3"),
    ("cpuset.mems.effective", "0-1"),
];

impl Tree {
    fn new(version: Version) -> Tree {
        let tree = Tree { directory: tempfile::tempdir().unwrap(), version };
        tree.make("");
        if version == Version::V1 {
            tree.put("cpuset", "", "cpuset.cpus", "0-3");
            tree.put("cpuset", "", "cpuset.mems", "0-1");
        }
        tree
    }

    fn path(&self, controller: &str, cgroup: &str) -> PathBuf {
        let root = self.directory.path().join("cgroup");
        let root = if self.version == Version::V1 { root.join(controller) } else { root };
        cgroup.split('/').filter(|name| !name.is_empty()).fold(root, |path, name| path.join(name))
    }

    /// Creates a directory with the files that the kernel would create.
    fn make(&self, cgroup: &str) {
        let files: Vec<(&str, &[(&str, &str)])> = match self.version {
            Version::V1 => FILES_V1.to_vec(),
            Version::V2 => vec![("", &FILES_V2)],
        };
        for (controller, files) in files {
            fs::create_dir_all(self.path(controller, cgroup)).unwrap();
            for (file, text) in files {
                self.put(controller, cgroup, file, text);
            }
            self.put(controller, cgroup, "cgroup.procs", "");
        }
    }

    fn put(&self, controller: &str, cgroup: &str, file: &str, text: &str) {
        fs::write(self.path(controller, cgroup).join(file), text).unwrap();
    }

    fn get(&self, controller: &str, cgroup: &str, file: &str) -> String {
        fs::read_to_string(self.path(controller, cgroup).join(file)).unwrap()
    }

    fn cgroups(&self) -> Cgroups {
        let root = self.directory.path().join("cgroup");
        // The kernel escapes paths; temporary directories on Windows need escapes too.
        let shown =
            |path: &Path| path.to_str().unwrap().replace('\\', "\\134").replace(' ', "\\040");
        let text = match self.version {
            Version::V1 => FILES_V1
                .iter()
                .map(|(name, _)| {
                    format!("1 1 0:1 / {} rw - cgroup cgroup rw,{name}\n", shown(&root.join(name)))
                })
                .collect(),
            Version::V2 => format!("1 1 0:1 / {} rw - cgroup2 cgroup2 rw\n", shown(&root)),
        };
        Cgroups::mounted(&text, self.directory.path().join("proc")).unwrap()
    }
}

fn some_limits() -> Limits {
    Limits {
        cpu_shares: Some(102),
        cpu_quota: Some(Quota { time: Bound::At(15_000), period: 100_000 }),
        memory: Some(Bound::At(64 << 20)),
        pids: Some(Bound::At(500)),
        huge_pages: BTreeMap::from([("2MB".to_owned(), Bound::At(0))]),
        unified: BTreeMap::from([("memory.min".to_owned(), "4096".to_owned())]),
    }
}

#[test]
fn version_1_writes_limits_and_inherits_cpus() {
    let tree = Tree::new(Version::V1);
    let pod = "/kubepods/burstable/podu";
    for cgroup in ["kubepods", "kubepods/burstable", pod] {
        tree.make(cgroup);
    }
    // The state after a CPU came back online: the root has it, the others do not.
    tree.put("cpuset", "kubepods", "cpuset.cpus", "0-2");
    let cgroups = tree.cgroups();
    cgroups.ensure(pod, &some_limits()).unwrap();
    for (controller, file, expected) in [
        ("cpu", "cpu.shares", "102"),
        ("cpu", "cpu.cfs_quota_us", "15000"),
        ("cpu", "cpu.cfs_period_us", "100000"),
        ("memory", "memory.limit_in_bytes", "67108864"),
        ("pids", "pids.max", "500"),
        ("cpuset", "cpuset.cpus", "0-3"),
        ("cpuset", "cpuset.mems", "0-1"),
    ] {
        assert_eq!(tree.get(controller, pod, file), expected, "{file}");
    }
    assert_eq!(tree.get("cpuset", "kubepods", "cpuset.cpus"), "0-3");
    assert_eq!(tree.get("cpu", "kubepods", "cpu.shares"), "1024");
    let none = Limits {
        cpu_quota: Some(Quota { time: Bound::Max, period: 100_000 }),
        memory: Some(Bound::Max),
        pids: Some(Bound::Max),
        ..Limits::default()
    };
    cgroups.update(pod, &none).unwrap();
    assert_eq!(tree.get("cpu", pod, "cpu.cfs_quota_us"), "-1");
    assert_eq!(tree.get("memory", pod, "memory.limit_in_bytes"), "-1");
    assert_eq!(tree.get("pids", pod, "pids.max"), "max");
    assert_eq!(tree.get("cpu", pod, "cpu.shares"), "102");
}

#[test]
fn version_2_writes_limits_and_enables_controllers() {
    let tree = Tree::new(Version::V2);
    for cgroup in ["kubepods", "kubepods/podu"] {
        tree.make(cgroup);
    }
    tree.cgroups().ensure("/kubepods/podu", &some_limits()).unwrap();
    for (file, expected) in [
        ("cpu.weight", "17"),
        ("cpu.max", "15000 100000"),
        ("memory.max", "67108864"),
        ("pids.max", "500"),
        ("memory.min", "4096"),
        ("cpuset.cpus", ""),
    ] {
        assert_eq!(tree.get("", "kubepods/podu", file), expected, "{file}");
    }
    for cgroup in ["", "kubepods", "kubepods/podu"] {
        let enabled = tree.get("", cgroup, "cgroup.subtree_control");
        assert_eq!(enabled, "+cpu +cpuset +io +memory", "{cgroup}");
    }
}

#[test]
fn a_failed_write_names_the_file() {
    let tree = Tree::new(Version::V1);
    let error = tree.cgroups().update("/none", &some_limits()).unwrap_err();
    assert!(error.to_string().contains("cpu.shares"), "{error}");
    assert!(tree.cgroups().ensure("/a/../b", &some_limits()).is_err());
    assert!(!tree.cgroups().exists("/none"));
    assert!(tree.cgroups().exists("/kubepods") == tree.path("cpu", "kubepods").exists());
}

#[test]
fn children_and_processes_are_found_in_every_hierarchy() {
    let tree = Tree::new(Version::V1);
    for cgroup in ["kubepods", "kubepods/poda"] {
        tree.make(cgroup);
    }
    fs::create_dir_all(tree.path("pids", "kubepods/podb/c")).unwrap();
    tree.put("memory", "kubepods/poda", "cgroup.procs", "7\n0\n12\n");
    tree.put("pids", "kubepods/podb/c", "cgroup.procs", "12\n13\n");
    let cgroups = tree.cgroups();
    let children: Vec<_> = cgroups.children("/kubepods").unwrap().into_iter().collect();
    assert_eq!(children, ["poda", "podb"]);
    assert!(cgroups.children("/").unwrap().contains("kubepods"));
    let processes: Vec<_> = cgroups.processes("/kubepods").unwrap().into_iter().collect();
    assert_eq!(processes, [7, 12, 13]);
    assert!(cgroups.processes("/none").unwrap().is_empty());
    assert!(cgroups.exists("/kubepods/poda") && !cgroups.exists("/kubepods/podb"));
}

#[test]
fn memory_in_use_is_read_in_either_version() {
    let table = [(Version::V1, "memory.usage_in_bytes"), (Version::V2, "memory.current")];
    for (version, file) in table {
        let tree = Tree::new(version);
        tree.make("kubepods");
        tree.put("memory", "kubepods", file, "42639360\n");
        assert_eq!(tree.cgroups().memory_usage("/kubepods").unwrap(), Some(42_639_360));
        assert_eq!(tree.cgroups().memory_usage("/none").unwrap(), None);
    }
}

#[test]
fn only_directories_are_removed_deepest_first() {
    let tree = Tree::new(Version::V1);
    for name in ["kubepods/poda/c1", "kubepods/poda/c2/nested", "kubepods/podb"] {
        for controller in ["cpu", "memory"] {
            fs::create_dir_all(tree.path(controller, name)).unwrap();
        }
    }
    let cgroups = tree.cgroups();
    cgroups.remove("/kubepods/poda").unwrap();
    assert_eq!(cgroups.children("/kubepods").unwrap().into_iter().collect::<Vec<_>>(), ["podb"]);
    cgroups.remove("/kubepods/poda").unwrap();
    assert!(matches!(cgroups.remove("/"), Err(CgroupError::Path(_))));
}

#[test]
fn a_busy_cgroup_is_named_in_the_error() {
    let tree = Tree::new(Version::V1);
    // A directory with a file in it cannot be removed, like a cgroup with a process.
    tree.make("kubepods/poda");
    let cgroups = Cgroups { remove_timeout: Duration::ZERO, ..tree.cgroups() };
    let error = cgroups.remove("/kubepods/poda").unwrap_err().to_string();
    assert!(error.starts_with("cgroup /kubepods/poda is still in use after 0ns"), "{error}");
    assert!(cgroups.exists("/kubepods/poda"));
}

#[test]
fn effective_limits_are_read_in_either_version() {
    for version in [Version::V1, Version::V2] {
        let tree = Tree::new(version);
        tree.make("pod/c");
        tree.put("cpuset", "pod/c", "cpuset.cpus", "2-3");
        tree.put("cpuset", "pod/c", "cpuset.mems", "1");
        tree.put("cpuset", "pod/c", "cgroup.procs", "41\n42\n43\n");
        let (share, file) = match version {
            Version::V1 => {
                tree.put("cpu", "pod/c", "cpu.shares", "2048");
                tree.put("cpu", "pod/c", "cpu.cfs_quota_us", "150000");
                tree.put("memory", "pod/c", "memory.limit_in_bytes", "4096");
                tree.put("cpuset", "pod/c", "cpuset.effective_cpus", "3");
                let lines = "4:memory:/pod/c\n3:cpuset:/pod/c\n2:cpu:/pod/c\n1:pids:/pod/c\n0::/\n";
                (CpuShare::Shares(2048), lines)
            }
            Version::V2 => {
                tree.put("", "pod/c", "cpu.weight", "170");
                tree.put("", "pod/c", "cpu.max", "150000 100000");
                tree.put("", "pod/c", "memory.max", "4096");
                tree.put("", "pod/c", "cpuset.cpus.effective", "3");
                (CpuShare::Weight(170), "0::/pod/c\n")
            }
        };
        let proc = tree.directory.path().join("proc");
        let ending = 0x4;
        for (pid, thread, cpus, flags) in [
            (41, 41, "3", 0),
            (41, 45, "3", 0),
            (42, 42, "0-3", 0x40),
            (42, 46, "0-3", ending),
            (47, 47, "0-3", ending),
            (48, 48, "0-3", ending | 0x40),
            (48, 49, "3", 0),
        ] {
            let directory = proc.join(format!("{pid}/task/{thread}"));
            fs::create_dir_all(&directory).unwrap();
            let status = format!("Name:\tx\nCpus_allowed_list:\t{cpus}\nMems_allowed_list:\t1\n");
            fs::write(directory.join("status"), status).unwrap();
            let stat = format!("{thread} (x) y) S 1 2 3 4 5 {flags} 7");
            let root = "4:memory:/\n3:cpuset:/\n2:cpu:/\n1:pids:/\n0::/pod/c\n";
            let cgroup = if flags & ending == 0 { file } else { root };
            let process = proc.join(pid.to_string());
            for directory in [Some(directory), (pid == thread).then_some(process)] {
                let Some(directory) = directory else { continue };
                fs::write(directory.join("stat"), &stat).unwrap();
                fs::write(directory.join("cgroup"), cgroup).unwrap();
            }
        }
        let cgroups = tree.cgroups();
        let found = cgroups.effective_limits(41).unwrap();
        let cpus = |text: &str| CpuSet::parse(text).unwrap();
        assert_eq!(found.cpus, cpus("2-3"));
        assert_eq!(found.effective_cpus, cpus("3"));
        assert_eq!(found.mems, [NumaId(1)].into());
        assert_eq!(found.cpu_share, Some(share));
        assert_eq!(found.cpu_quota, Some(Quota { time: Bound::At(150_000), period: 100_000 }));
        assert_eq!(found.memory, Some(Bound::At(4096)));
        assert_eq!(found.pids, Some(Bound::Max));
        // Process 43 ended meanwhile.
        let threads: Vec<_> = found
            .processes
            .iter()
            .flat_map(|of| {
                of.threads.iter().map(|one| format!("{}/{} {}", of.pid, one.id, one.cpus))
            })
            .collect();
        assert_eq!(threads, ["41/41 3", "41/45 3", "42/42 0-3"]);
        assert!(matches!(cgroups.effective_limits(44), Err(CgroupError::NoProcess(44))));
        // An exiting process is in the root, which has no information about it.
        assert!(matches!(cgroups.effective_limits(47), Err(CgroupError::NoProcess(47))));
        assert_eq!(cgroups.of_process(48).unwrap(), found.cgroups);
        tree.make("pod");
        tree.put("cpuset", "pod", "cpuset.cpus", "0-3");
        tree.put("cpuset", "pod", &version.effective("cpus"), "0-1,3");
        assert!(cgroups.cpus_above(&found).contains(&("/pod".to_owned(), cpus("0-1,3"))));
        tree.put("cpuset", "pod/c", "cpuset.cpus", "two");
        let error = cgroups.effective_limits(41).unwrap_err().to_string();
        assert!(error.ends_with("contains \"two\", not a list such as 0-3,8"), "{error}");
    }
}

#[test]
#[cfg(not(target_os = "linux"))]
fn other_systems_report_that_cgroups_are_missing() {
    assert!(matches!(Cgroups::observe(), Err(CgroupError::NotOnThisSystem)));
}
