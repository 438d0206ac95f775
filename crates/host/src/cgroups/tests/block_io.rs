//! Block I/O settings in temporary directories on every system.

use classes::hardware::{CgroupVersion, DeviceEntry, Scheduler};

use super::*;
use crate::block_devices::BlockDevices;

/// A disk `sda` with a partition, and a loop device.
fn devices(place: &Path) -> BlockDevices {
    let put = |path: &str, text: &str| {
        let path = place.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    for (name, device) in [("sda", "8:0"), ("sda1", "8:1"), ("loop0", "7:0"), ("bad", "x")] {
        put(&format!("sys/class/block/{name}/dev"), &format!("{device}\n"));
        put(&format!("dev/{name}"), "");
    }
    put("sys/class/block/sda/queue/scheduler", "none [bfq]\n");
    put("sys/class/block/sda1/partition", "1\n");
    put("sys/class/block/nowhere/dev", "9:9\n");
    BlockDevices { sys: place.join("sys"), dev: place.join("dev") }
}

#[test]
fn block_devices_are_read_with_anomalies() {
    let place = tempfile::tempdir().unwrap();
    let devices = devices(place.path());
    let (tree, anomalies) = devices.observe();
    let paths: Vec<_> = tree.block_devices().map(|(path, of)| (path, of.partition)).collect();
    assert_eq!(paths, [("/dev/loop0", false), ("/dev/sda", false), ("/dev/sda1", true)]);
    let Some(DeviceEntry::Block(disk)) = tree.entries.get("/dev/sda") else {
        panic!("{tree:?}");
    };
    assert_eq!(disk.scheduler, Some(Scheduler::Active("bfq".to_owned())));
    let text: Vec<String> = anomalies.iter().map(ToString::to_string).collect();
    assert!(text.len() == 1 && text[0].contains("contains \"x\""), "{text:?}");
}

#[test]
#[cfg(unix)]
fn links_name_devices_and_partitions_their_disk() {
    let place = tempfile::tempdir().unwrap();
    let devices = devices(place.path());
    let link = |to: &str, at: &str| {
        let at = place.path().join(at);
        fs::create_dir_all(at.parent().unwrap()).unwrap();
        std::os::unix::fs::symlink(to, at).unwrap();
    };
    link("../../sda", "dev/disk/by-id/disk-1");
    let (tree, _) = devices.observe();
    let entry = tree.entries.get("/dev/disk/by-id/disk-1");
    assert_eq!(entry, Some(&DeviceEntry::Link("../../sda".to_owned())));

    // The directory of a partition is inside that of its disk.
    let (class, disk) =
        (place.path().join("sys/class/block"), place.path().join("sys/devices/sda"));
    fs::create_dir_all(disk.parent().unwrap()).unwrap();
    for (from, to) in [("sda", disk.clone()), ("sda1", disk.join("sda1"))] {
        fs::rename(class.join(from), to).unwrap();
    }
    link("../../devices/sda", "sys/class/block/sda");
    link("../../devices/sda/sda1", "sys/class/block/sda1");
    let number = |text: &str| classes::hardware::DeviceNumber::parse(text).unwrap();
    assert_eq!(devices.disk_of(number("8:1")), Some(number("8:0")));
    assert_eq!(devices.disk_of(number("8:0")), Some(number("8:0")));
    assert_eq!(devices.disk_of(number("8:2")), None);

    let tree = Tree::new(Version::V2);
    tree.make("/pod");
    tree.put("io", "/pod", "io.max", "");
    let mut settings = IoSettings::default();
    settings.read(IoFile::Max, "8:1 rbps=5").unwrap();
    let error = tree.cgroups().set_io("/pod", &settings, &devices).unwrap_err().to_string();
    assert!(error.starts_with("device 8:1 is a partition") && error.ends_with("8:0"), "{error}");
    assert_eq!(tree.get("io", "/pod", "io.max"), "");
}

#[test]
fn settings_are_written_and_missing_weight_files_left_out() {
    let place = tempfile::tempdir().unwrap();
    let devices = devices(place.path());
    let tree = Tree::new(Version::V2);
    tree.make("/pod");
    assert_eq!(tree.cgroups().io_files("/pod"), None);
    for (file, text) in [("io.max", ""), ("io.latency", "")] {
        tree.put("io", "/pod", file, text);
    }
    let cgroups = tree.cgroups();
    let files = cgroups.io_files("/pod").unwrap();
    assert_eq!((files.version, files.throttle, files.weight), (CgroupVersion::V2, true, false));
    assert!(files.latency && !files.bfq_weight, "{files:?}");

    let mut settings = IoSettings::default();
    settings.read(IoFile::Max, "8:0 rbps=1048576").unwrap();
    settings.read(IoFile::Latency, "8:0 target=75").unwrap();
    settings.read(IoFile::BfqWeight, "300").unwrap();
    let left_out = cgroups.set_io("/pod", &settings, &devices).unwrap();
    assert_eq!(left_out, [IoFile::BfqWeight].into());
    assert_eq!(tree.get("io", "/pod", "io.max"), "8:0 rbps=1048576");
    assert_eq!(tree.get("io", "/pod", "io.latency"), "8:0 target=75");

    // Values of another version and throttles without a file are errors.
    let mut other = IoSettings::default();
    other.read(IoFile::ReadBpsV1, "8:0 5").unwrap();
    let error = cgroups.set_io("/pod", &other, &devices).unwrap_err().to_string();
    assert_eq!(error, "\"blkio.throttle.read_bps_device\" is not a block I/O file of cgroup v2");
    fs::remove_file(tree.path("io", "/pod").join("io.max")).unwrap();
    let error = cgroups.set_io("/pod", &settings, &devices).unwrap_err().to_string();
    assert_eq!(error, "the kernel has no file io.max for cgroup /pod");
}

#[test]
fn memory_knobs_are_written_and_refused_by_version() {
    let some = Some(Bound::At(8192));
    let knobs = MemoryKnobs { min: some, low: some, high: Some(Bound::Max), ..Default::default() };
    let tree = Tree::new(Version::V2);
    tree.make("/pod");
    for file in ["memory.low", "memory.high", "memory.oom.group"] {
        tree.put("memory", "/pod", file, "0");
    }
    tree.cgroups().set_memory("/pod", &knobs).unwrap();
    let files = ["memory.min", "memory.low", "memory.high"];
    assert_eq!(files.map(|file| tree.get("memory", "/pod", file)), ["8192", "8192", "max"]);
    let group = MemoryKnobs { oom_group: Some(true), ..MemoryKnobs::default() };
    tree.cgroups().set_memory("/pod", &group).unwrap();
    assert_eq!(tree.get("memory", "/pod", "memory.oom.group"), "1");
    let swap = MemoryKnobs { swap_max: some, ..MemoryKnobs::default() };
    let error = tree.cgroups().set_memory("/pod", &swap).unwrap_err().to_string();
    assert!(error.starts_with("the kernel has no file") && error.ends_with("memory.swap.max"));

    let tree = Tree::new(Version::V1);
    tree.make("/pod");
    let error = tree.cgroups().set_memory("/pod", &group).unwrap_err().to_string();
    assert_eq!(error, "cgroup v1 has no memory.oom.group; it needs a machine with cgroup v2");
    tree.put("memory", "/pod", "memory.limit_in_bytes", "4096");
    tree.put("memory", "/pod", "memory.memsw.limit_in_bytes", "0");
    tree.cgroups().set_memory("/pod", &swap).unwrap();
    assert_eq!(tree.get("memory", "/pod", "memory.memsw.limit_in_bytes"), "12288");
}
