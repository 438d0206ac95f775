//! Artificial Linux machines as the files of a capture.
//!
//! Main type: [`Fake`]. It writes files like a kernel; tests then change or remove some.

use std::collections::BTreeMap;

use host::{Anomaly, Capture};
use placement::{CpuSet, Topology};

pub(crate) const CPU: &str = "sys/devices/system/cpu";
pub(crate) const NODE: &str = "sys/devices/system/node";

/// The files of a machine.
#[derive(Clone)]
pub(crate) struct Fake {
    pub(crate) files: BTreeMap<String, String>,
}

impl Fake {
    /// Builds a machine in Linux numbering: first threads of all cores, then second threads. Each
    /// NUMA node has one L3 and 16 GiB.
    pub(crate) fn new(sockets: u32, nodes: u32, cores: u32, threads: u32) -> Fake {
        let mut fake = Fake { files: BTreeMap::new() };
        let (all_nodes, all_cores) = (sockets * nodes, sockets * nodes * cores);
        let all_cpus = all_cores * threads;
        fake.set(format!("{CPU}/online"), CpuSet::range(0, all_cpus - 1));
        fake.set(format!("{CPU}/present"), CpuSet::range(0, all_cpus - 1));
        fake.set(format!("{NODE}/online"), CpuSet::range(0, all_nodes - 1));
        for cpu in 0..all_cpus {
            let core = cpu % all_cores;
            let node = core / cores;
            let siblings: CpuSet =
                (0..threads).map(|t| placement::CpuId(core + t * all_cores)).collect();
            let topology = format!("{CPU}/cpu{cpu}/topology");
            fake.set(format!("{topology}/core_id"), core % (nodes * cores));
            fake.set(format!("{topology}/physical_package_id"), node / nodes);
            fake.set(format!("{topology}/core_cpus_list"), &siblings);
            fake.set(format!("{topology}/thread_siblings_list"), &siblings);
            let cache = format!("{CPU}/cpu{cpu}/cache");
            fake.cache(&format!("{cache}/index0"), 1, "Data", core, &siblings);
            fake.cache(&format!("{cache}/index1"), 1, "Instruction", core, &siblings);
            fake.cache(&format!("{cache}/index2"), 2, "Unified", core, &siblings);
            let sharers = node_cpus(node, cores, threads, all_cores);
            fake.cache(&format!("{cache}/index3"), 3, "Unified", node, &sharers);
        }
        for node in 0..all_nodes {
            let directory = format!("{NODE}/node{node}");
            fake.set(format!("{directory}/cpulist"), node_cpus(node, cores, threads, all_cores));
            fake.set(
                format!("{directory}/meminfo"),
                format!("Node {node} MemTotal:  16777216 kB\nNode {node} MemFree:  1 kB"),
            );
            let row: Vec<_> = (0..all_nodes)
                .map(|other| match other {
                    _ if other == node => "10",
                    _ if other / nodes == node / nodes => "12",
                    _ => "21",
                })
                .collect();
            fake.set(format!("{directory}/distance"), row.join(" "));
            fake.set(format!("{directory}/hugepages/hugepages-2048kB/nr_hugepages"), 0);
            fake.set(format!("{directory}/hugepages/hugepages-1048576kB/nr_hugepages"), 2);
        }
        fake
    }

    fn cache(&mut self, path: &str, level: u32, kind: &str, id: u32, sharers: &CpuSet) {
        self.set(format!("{path}/level"), level);
        self.set(format!("{path}/type"), kind);
        self.set(format!("{path}/id"), id);
        self.set(format!("{path}/shared_cpu_list"), sharers);
    }

    pub(crate) fn set(&mut self, path: impl Into<String>, text: impl ToString) {
        self.files.insert(path.into(), format!("{}\n", text.to_string()));
    }

    /// Removes every file whose path contains `part`.
    pub(crate) fn remove(&mut self, part: &str) {
        self.files.retain(|path, _| !path.contains(part));
    }

    /// Takes a CPU offline like the kernel: removes its topology and cache files, and its number
    /// from all lists.
    pub(crate) fn offline(&mut self, cpu: u32) {
        self.remove(&format!("{CPU}/cpu{cpu}/"));
        for (path, text) in &mut self.files {
            if (path.ends_with("_list") || path.ends_with("online") || path.ends_with("cpulist"))
                && !path.starts_with(&format!("{NODE}/online"))
            {
                let mut list = CpuSet::parse(text.trim()).unwrap();
                list.remove(placement::CpuId(cpu));
                *text = format!("{list}\n");
            }
        }
        self.set(format!("{CPU}/cpu{cpu}/online"), 0);
    }

    pub(crate) fn capture(&self) -> Capture {
        Capture::from_files(self.files.clone())
    }

    pub(crate) fn observe(&self) -> (Topology, Vec<Anomaly>) {
        host::sysfs::observe(&self.capture()).unwrap()
    }
}

fn node_cpus(node: u32, cores: u32, threads: u32, all_cores: u32) -> CpuSet {
    (0..threads)
        .flat_map(|t| (0..cores).map(move |c| node * cores + c + t * all_cores))
        .map(placement::CpuId)
        .collect()
}
