//! A tree of resctrl and of cgroups in a temporary directory, and the part of the kernel: files of
//! new groups, and tasks that leave their old group.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use super::super::*;
use crate::cgroups::Cgroups;

/// The schemata of a new group.
pub(super) const FULL: &str = "L2:0=3ff\nL3:0=fffff;1=fffff\nMB:0=100;1=100\n";

/// The files of a machine with four CLOSIDs and eight RMIDs; the L3 alone has more.
const FILES: &[(&str, &str)] = &[
    ("info/last_cmd_status", "ok\n"),
    ("info/L2/cbm_mask", "3ff\n"),
    ("info/L2/min_cbm_bits", "1\n"),
    ("info/L2/num_closids", "4\n"),
    ("info/L2/shareable_bits", "0\n"),
    ("info/L3/cbm_mask", "fffff\n"),
    ("info/L3/min_cbm_bits", "1\n"),
    ("info/L3/num_closids", "16\n"),
    ("info/L3/shareable_bits", "c0000\n"),
    ("info/L3_MON/mon_features", "llc_occupancy\nmbm_total_bytes\nmbm_local_bytes\n"),
    ("info/L3_MON/num_rmids", "8\n"),
    ("info/MB/bandwidth_gran", "10\n"),
    ("info/MB/delay_linear", "1\n"),
    ("info/MB/min_bandwidth", "10\n"),
    ("info/MB/num_closids", "8\n"),
    ("mon_data/mon_L3_00/llc_occupancy", "0\n"),
    ("mon_data/mon_L3_01/llc_occupancy", "0\n"),
    ("schemata", FULL),
    ("tasks", ""),
];

pub(super) fn schemata(text: &str) -> Schemata {
    Schemata::parse(text).unwrap()
}

pub(super) struct Machine {
    place: TempDir,
    pub resctrl: Resctrl,
    pub cgroups: Cgroups,
}

impl Machine {
    pub(super) fn new() -> Machine {
        let place = tempfile::tempdir().unwrap();
        let root = place.path().join("resctrl");
        for (path, text) in FILES {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        fs::create_dir(root.join("mon_groups")).unwrap();
        let point = place.path().join("cgroup");
        fs::create_dir(&point).unwrap();
        let point = point.to_str().unwrap().replace('\\', "\\134");
        let mountinfo = format!("31 23 0:28 / {point} rw - cgroup2 cgroup2 rw\n");
        let cgroups = Cgroups::mounted(&mountinfo, "/proc").unwrap();
        Machine { place, resctrl: Resctrl { root, options: vec!["rw".to_owned()] }, cgroups }
    }

    pub(super) fn path(&self, path: &str) -> PathBuf {
        self.resctrl.root.join(path)
    }

    pub(super) fn put(&self, path: &str, text: &str) {
        fs::write(self.path(path), text).unwrap();
    }

    /// Creates a cgroup with tasks, which are in the root group of resctrl.
    pub(super) fn cgroup(&mut self, path: &str, tasks: &[u32]) {
        let directory = self.place.path().join("cgroup").join(path.trim_start_matches('/'));
        fs::create_dir_all(&directory).unwrap();
        fs::write(directory.join("cgroup.threads"), lines(tasks.iter().copied())).unwrap();
        let all = self.tasks("").into_iter().chain(tasks.iter().copied());
        self.put("tasks", &lines(all));
    }

    /// Creates a control group with tasks, as another program does.
    pub(super) fn group(&self, name: &str, tasks: &[u32]) {
        fs::create_dir(self.path(name)).unwrap();
        self.complete();
        for task in tasks {
            self.leave(*task, Path::new(""));
        }
        self.put(&format!("{name}/tasks"), &lines(tasks.iter().copied()));
    }

    pub(super) fn monitor(&self, group: &str, name: &str, tasks: &[u32]) {
        let directory = self.path(group).join("mon_groups").join(name);
        fs::create_dir(&directory).unwrap();
        fs::write(directory.join("tasks"), lines(tasks.iter().copied())).unwrap();
    }

    /// Removes a control group with its tasks, as another program does.
    pub(super) fn delete_group(&self, name: &str) {
        let tasks = self.tasks("").into_iter().chain(self.tasks(name));
        self.put("tasks", &lines(tasks));
        fs::remove_dir_all(self.path(name)).unwrap();
    }

    pub(super) fn tasks(&self, group: &str) -> Vec<u32> {
        let text = fs::read_to_string(self.path(group).join("tasks")).unwrap();
        text.lines().map(|line| line.parse().unwrap()).collect()
    }

    /// Returns the text of all files by path.
    pub(super) fn files(&self) -> BTreeMap<PathBuf, String> {
        fn add(directory: &Path, files: &mut BTreeMap<PathBuf, String>) {
            for entry in fs::read_dir(directory).unwrap().flatten() {
                let path = entry.path();
                if path.is_dir() {
                    add(&path, files);
                } else {
                    let text = fs::read_to_string(&path).unwrap();
                    files.insert(path, text);
                }
            }
        }
        let mut files = BTreeMap::new();
        add(&self.resctrl.root, &mut files);
        files
    }

    pub(super) fn steps(&self, desired: &Desired) -> Result<Vec<Step>, ResctrlError> {
        let observed = self.resctrl.groups()?;
        let drift = self.resctrl.drift(&self.cgroups, desired)?;
        Ok(repair(&observed, &drift)?)
    }

    /// Applies the desired groups step by step, and returns the remaining differences.
    pub(super) fn apply(&mut self, desired: &Desired) -> Result<Vec<Drift>, ResctrlError> {
        for step in self.steps(desired)? {
            self.take(&step)?;
        }
        self.resctrl.drift(&self.cgroups, desired)
    }

    pub(super) fn drift(&self, desired: &Desired) -> Vec<String> {
        let drift = self.resctrl.drift(&self.cgroups, desired).unwrap();
        drift.iter().map(ToString::to_string).collect()
    }

    /// Carries out a step, and what the kernel does with it.
    pub(super) fn take(&mut self, step: &Step) -> Result<(), ResctrlError> {
        match step {
            Step::RemoveGroup(group) => self.clear(&self.path(group.as_str())),
            Step::RemoveMonitor(group, monitor) => {
                self.clear(&self.resctrl.monitor_directory(group, monitor));
            }
            _ => {}
        }
        self.resctrl.take(&self.cgroups, step)?;
        self.complete();
        match step {
            Step::Settle(workload) => {
                for task in self.cgroups.threads(&workload.cgroup)? {
                    self.leave(task, &self.resctrl.directory(&workload.group));
                }
            }
            Step::MoveMonitor { monitor, to, .. } => {
                let directory = self.resctrl.monitor_directory(to, monitor);
                let moved = fs::read_to_string(directory.join("tasks")).unwrap();
                let to = self.resctrl.directory(to);
                for task in moved.lines() {
                    self.leave(task.parse().unwrap(), &to);
                }
                let there = fs::read_to_string(to.join("tasks")).unwrap();
                let all = moved.lines().chain(there.lines()).map(|task| task.parse().unwrap());
                fs::write(to.join("tasks"), lines(all)).unwrap();
            }
            _ => {}
        }
        Ok(())
    }

    /// Empties the directory of a group without tasks: the kernel removes its files with it.
    fn clear(&self, directory: &Path) {
        if fs::read_to_string(directory.join("tasks")).is_ok_and(|tasks| tasks.is_empty()) {
            fs::remove_dir_all(directory).unwrap();
            fs::create_dir(directory).unwrap();
        }
    }

    /// Adds the files of new groups.
    fn complete(&self) {
        let add = |path: PathBuf, text: &str| {
            if !path.exists() {
                fs::write(path, text).unwrap();
            }
        };
        let mut groups = vec![self.resctrl.root.clone()];
        for group in self.resctrl.control_groups().unwrap() {
            let group = self.path(group.as_str());
            add(group.join("schemata"), FULL);
            add(group.join("tasks"), "");
            fs::create_dir_all(group.join("mon_groups")).unwrap();
            groups.push(group);
        }
        for group in groups {
            for monitor in fs::read_dir(group.join("mon_groups")).unwrap().flatten() {
                add(monitor.path().join("tasks"), "");
            }
        }
    }

    /// Removes a task from all groups except one control group.
    fn leave(&self, task: u32, except: &Path) {
        let mut groups: Vec<PathBuf> = vec![self.resctrl.root.clone()];
        let names = self.resctrl.control_groups().unwrap();
        groups.extend(names.iter().map(|name| self.path(name.as_str())));
        for group in groups.into_iter().filter(|group| group != except) {
            let monitors = fs::read_dir(group.join("mon_groups")).unwrap().flatten();
            let monitors: Vec<PathBuf> = monitors.map(|entry| entry.path()).collect();
            for directory in monitors.into_iter().chain([group]) {
                let file = directory.join("tasks");
                let text = fs::read_to_string(&file).unwrap();
                let tasks = text.lines().map(|line| line.parse::<u32>().unwrap());
                fs::write(&file, lines(tasks.filter(|of| *of != task))).unwrap();
            }
        }
    }
}

/// Returns the text of a list of tasks.
fn lines(tasks: impl Iterator<Item = u32>) -> String {
    let tasks: BTreeSet<u32> = tasks.collect();
    tasks.iter().map(|task| format!("{task}\n")).collect()
}
