//! Resctrl in temporary directories on every system: a tree captured from a machine with two L3
//! caches, and the changes that the kernel makes to it.

use std::fs;

use super::*;
use machine::{FULL, Machine, schemata};

mod crash;
mod machine;

fn group(class: &str) -> GroupName {
    GroupName::of_class(class).unwrap()
}

fn control(class: &str) -> ControlGroup {
    ControlGroup::of_class(class).unwrap()
}

fn workload(cgroup: &str, class: &str, container: Option<&str>) -> Workload {
    let monitor = container.map(|name| MonitorName::of_container("uid", name).unwrap());
    Workload { cgroup: cgroup.to_owned(), group: control(class), monitor }
}

/// Gold has the upper half of the L3, bronze the lower.
fn two_classes() -> Desired {
    let gold = schemata("L2:0=3ff\nL3:0=ffc00;1=ffc00\nMB:0=100;1=100\n");
    let bronze = schemata("L2:0=3\nL3:0=3ff;1=3ff\nMB:0=20;1=20\n");
    let classes = [(group("gold"), gold), (group("bronze"), bronze)].into();
    Desired { root: None, classes, workloads: Vec::new() }
}

#[test]
fn the_whole_file_system_is_found_with_its_options() {
    let text = "\
30 23 0:27 /gold /elsewhere rw,relatime - resctrl resctrl rw
31 23 0:27 / /sys/fs/resctrl rw,relatime - resctrl resctrl rw,cdp,mba_MBps
";
    let resctrl = Resctrl::mounted(text).unwrap();
    assert_eq!(resctrl.root(), Path::new("/sys/fs/resctrl"));
    assert_eq!(resctrl.options(), ["rw", "cdp", "mba_MBps"]);
    let error = Resctrl::mounted("31 23 0:28 / /sys rw - sysfs sysfs rw\n").unwrap_err();
    assert!(error.to_string().contains("mount -t resctrl resctrl /sys/fs/resctrl"), "{error}");
}

#[test]
#[cfg(not(target_os = "linux"))]
fn other_systems_report_that_resctrl_is_missing() {
    let error = Resctrl::observe().unwrap_err();
    assert_eq!(error.to_string(), "resctrl is only available on Linux");
}

#[test]
fn hardware_is_read_with_anomalies() {
    let machine = Machine::new();
    let (hardware, anomalies) = machine.resctrl.hardware().unwrap();
    assert_eq!(anomalies, []);
    assert_eq!(hardware.num_closids(), Some(4));
    assert_eq!(hardware.l3.as_ref().and_then(|l3| Some(l3.unified?.cbm_mask.0)), Some(0xfffff));
    assert_eq!(hardware.mb.as_ref().map(|mb| mb.bandwidth_gran), Some(10));
    assert_eq!(hardware.monitoring.as_ref().map(|of| of.num_rmids), Some(8));

    // A directory in place of a file cannot be read. The controls without it are left out.
    for file in ["info/L3_MON/num_rmids", "info/L2/cbm_mask"] {
        let file = machine.path(file);
        fs::remove_file(&file).unwrap();
        fs::create_dir(&file).unwrap();
    }
    machine.put("schemata", "L3:0=fffff;1=fffff\n");
    let (hardware, anomalies) = machine.resctrl.hardware().unwrap();
    let is_there = (hardware.l2.is_some(), hardware.mb.is_some(), hardware.monitoring.is_some());
    assert_eq!((is_there, hardware.num_closids()), ((false, false, false), Some(16)));
    let text: Vec<String> = anomalies.iter().map(ToString::to_string).collect();
    let text = text.join("\n");
    for part in ["num_rmids", "cbm_mask", "no MB resources in root schemata"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    fs::remove_dir_all(machine.path("info")).unwrap();
    assert!(machine.resctrl.hardware().is_err());
}

#[test]
fn classes_and_containers_have_names_with_the_prefix() {
    assert_eq!(control("gold").clos_id(), "berth.gold");
    for root in ["", "system/default"] {
        assert_eq!(control(root), ControlGroup::Root);
    }
    assert_eq!(ControlGroup::Root.clos_id(), "/");
    for class in ["a/b", "a\nb", "a\0", &"x".repeat(250)] {
        let error = ControlGroup::of_class(class).unwrap_err().to_string();
        assert!(error.contains("cannot be the name of a resctrl group"), "{error}");
    }
    let container = MonitorName::of_container("1-2", "web.0").unwrap();
    assert_eq!(container.as_str(), "berth.1-2.web.0");
    assert_eq!((container.pod(), container.container()), ("1-2", Some("web.0")));
    let pod = MonitorName::of_pod("1-2").unwrap();
    assert_eq!((pod.as_str(), pod.pod(), pod.container()), ("berth.1-2", "1-2", None));
    assert!(MonitorName::of_pod("a.b").is_err());
}

#[test]
fn groups_are_created_with_schemata_and_tasks() {
    let mut machine = Machine::new();
    machine.cgroup("/pod/a", &[101, 102]);
    machine.cgroup("/pod/a/below", &[103]);
    machine.cgroup("/pod/b", &[201]);
    let mut desired = two_classes();
    desired.root = Some(schemata("L3:0=3ff;1=3ff\n"));
    desired.workloads =
        vec![workload("/pod/a", "gold", Some("a")), workload("/pod/b", "bronze", None)];
    let left = machine.apply(&desired).unwrap();
    assert_eq!(left, []);
    let observed = machine.resctrl.groups().unwrap();
    let gold = &observed.groups[&control("gold")];
    assert_eq!(gold.tasks, [101, 102, 103].into());
    assert_eq!(gold.monitors.values().next(), Some(&gold.tasks));
    assert!(holds(&gold.schemata, &desired.classes[&group("gold")], 10));
    assert_eq!(observed.groups[&control("bronze")].tasks, [201].into());
    assert!(holds(&observed.groups[&ControlGroup::Root].schemata, &schemata("L3:0=3ff\n"), 10));
    assert_eq!(observed.closids, Some(4));
    let monitors = machine.resctrl.monitors().unwrap();
    let names: Vec<_> = monitors.keys().map(|(group, of)| format!("{group} {of}")).collect();
    assert_eq!(names, ["berth.gold berth.uid.a"]);
}

#[test]
fn groups_of_other_programs_are_never_changed() {
    let mut machine = Machine::new();
    machine.group("containerd", &[7]);
    machine.group("berth.old", &[]);
    machine.group("berth.busy", &[8]);
    let left = machine.apply(&Desired::default()).unwrap();
    let names: Vec<_> = machine.resctrl.control_groups().unwrap().into_iter().collect();
    let names: Vec<_> = names.iter().map(GroupName::as_str).collect();
    assert_eq!(names, ["berth.busy", "containerd"]);
    // A group with tasks is reported and kept, because they would lose their class.
    let text: Vec<_> = left.iter().map(ToString::to_string).collect();
    assert_eq!(text, ["resctrl group berth.busy belongs to no class and has 1 tasks"]);

    let foreign = machine.resctrl.control_groups().unwrap().pop_last().unwrap();
    let (resctrl, monitor) = (&machine.resctrl, MonitorName::of_pod("uid").unwrap());
    let of = ControlGroup::Named(foreign.clone());
    let errors = [
        resctrl.create(&foreign).unwrap_err(),
        resctrl.configure(&of, &schemata(FULL)).unwrap_err(),
        resctrl.remove(&foreign).unwrap_err(),
        resctrl.create_monitor(&of, &monitor).unwrap_err(),
        resctrl.remove_monitor(&of, &monitor).unwrap_err(),
        resctrl.rename_monitor(&monitor, &ControlGroup::Root, &of).unwrap_err(),
    ];
    for error in errors {
        assert!(matches!(&error, ResctrlError::Foreign(name) if name == "containerd"), "{error}");
    }
}

#[test]
fn every_difference_is_reported_and_repaired() {
    let mut machine = Machine::new();
    machine.cgroup("/pod/a", &[101, 102]);
    let mut desired = two_classes();
    desired.workloads = vec![workload("/pod/a", "gold", Some("a"))];
    assert_eq!(machine.apply(&desired).unwrap(), []);
    assert_eq!(machine.drift(&desired), [""; 0]);

    // Another program removes a group, changes another, and moves a task.
    machine.delete_group("berth.gold");
    machine.group("containerd", &[102]);
    machine.put("berth.bronze/schemata", FULL);
    machine.group("berth.old", &[]);
    machine.monitor("berth.bronze", "berth.uid.gone", &[]);
    let drift = machine.drift(&desired);
    let expected = [
        "resctrl group berth.bronze has the schemata L2:0=3ff L3:0=fffff;1=fffff MB:0=100;1=100 \
         instead of L2:0=3 L3:0=3ff;1=3ff MB:0=20;1=20",
        "resctrl group berth.gold is missing",
        "monitoring group berth.uid.a is missing in resctrl group berth.gold",
        "monitoring group berth.uid.gone in resctrl group berth.bronze belongs to no container and \
         has 0 tasks",
        "2 tasks of cgroup /pod/a are in resctrl group /, containerd, not in berth.gold with \
         monitoring group berth.uid.a",
        "resctrl group berth.old belongs to no class and has 0 tasks",
    ];
    assert_eq!(drift, expected);
    // The unused group is removed first, because the missing one needs its CLOSID.
    assert_eq!(machine.apply(&desired).unwrap(), []);
    assert_eq!(machine.tasks("berth.gold"), [101, 102]);
    assert_eq!(machine.tasks("containerd"), [0; 0]);
}

#[test]
fn too_few_closids_are_refused_with_numbers_and_without_changes() {
    let mut machine = Machine::new();
    machine.group("containerd", &[]);
    machine.group("other", &[]);
    let before = machine.files();
    let error = machine.apply(&two_classes()).unwrap_err();
    let expected = "cannot create resctrl groups berth.bronze, berth.gold: the machine has 4 classes \
                    of service (CLOSIDs); the root group uses 1, Berth 0, other programs 2 \
                    (containerd, other)";
    assert_eq!(error.to_string(), expected);
    assert_eq!(machine.files(), before);
}

#[test]
fn schemata_that_read_back_differently_are_an_error() {
    let machine = Machine::new();
    machine.group("berth.gold", &[]);
    // A plain file does not round up as the kernel does.
    let error = machine.resctrl.configure(&control("gold"), &schemata("MB:0=33\n")).unwrap_err();
    let expected = "resctrl group berth.gold has the schemata MB:0=33 after MB:0=33 was written";
    assert_eq!(error.to_string(), expected);
    machine.put("berth.gold/schemata", "nonsense\n");
    let error = machine.resctrl.schemata(&control("gold")).unwrap_err();
    assert!(matches!(error, ResctrlError::Schemata { .. }), "{error}");
}

#[test]
fn errors_quote_the_reason_of_the_kernel() {
    let machine = Machine::new();
    machine.put("info/last_cmd_status", "Mask out of range\n");
    let error = machine.resctrl.configure(&control("gone"), &schemata(FULL)).unwrap_err();
    assert!(error.to_string().ends_with("schemata (Mask out of range)"), "{error}");
    let exhausted = |reason: &str, kind: std::io::ErrorKind| {
        machine.put("info/last_cmd_status", &format!("No task 1\n{reason}\n"));
        machine.resctrl.not_made(&machine.path("berth.x"), "berth.x", kind.into()).to_string()
    };
    use std::io::ErrorKind::{ResourceBusy, StorageFull};
    machine.monitor("", "berth.m", &[]);
    let expected = "cannot create resctrl groups berth.x: the machine has 4 classes of service \
                    (CLOSIDs); the root group uses 1, Berth 0, other programs 0";
    assert_eq!(exhausted("Out of CLOSIDs", StorageFull), expected);
    let expected = "cannot create resctrl group berth.x: the machine has 8 monitoring ids (RMIDs), \
                    and 2 groups use one";
    assert_eq!(exhausted("Out of RMIDs", StorageFull), expected);
    let limbo = "; ids of removed groups are still in the caches, try again later";
    assert_eq!(exhausted("Out of RMIDs", ResourceBusy), format!("{expected}{limbo}"));
    let other = exhausted("No space on L3:0", StorageFull);
    assert!(other.ends_with("berth.x (No space on L3:0)"), "{other}");
}

#[test]
fn broken_task_lists_are_an_error() {
    let machine = Machine::new();
    machine.put("tasks", "1\nx\n");
    let error = machine.resctrl.groups().unwrap_err().to_string();
    assert!(error.ends_with("contains \"x\", not a task"), "{error}");
}

#[test]
fn a_planned_class_file_becomes_groups() {
    let machine = Machine::new();
    let (hardware, _) = machine.resctrl.hardware().unwrap();
    let text = "partitions:\n  all:\n    l3Allocation: 100%\n    classes:\n      gold:\n        \
                l3Allocation: 50%\n      system/default:\n        l3Allocation: 100%\n";
    let planned = |prefix: &str| {
        let config = classes::rdt::Config::parse(text).unwrap();
        let prefix = classes::rdt::names::Prefix(prefix.to_owned());
        let tree = classes::rdt::Tree::default();
        classes::rdt::plan(&config, &hardware, &tree, &prefix, false).0.unwrap()
    };
    let desired = Desired::of_plan(&planned(PREFIX)).unwrap();
    assert_eq!(desired.classes.keys().map(GroupName::as_str).collect::<Vec<_>>(), ["berth.gold"]);
    let gold = &desired.classes[&group("gold")];
    assert!(holds(gold, &schemata("L3:0=3ff;1=3ff\n"), 10), "{gold}");
    assert!(desired.root.is_some_and(|root| holds(&root, &schemata("L3:0=fffff\n"), 10)));
    let error = Desired::of_plan(&planned("")).unwrap_err();
    assert!(matches!(error, ResctrlError::Foreign(name) if name == "gold"));
}
