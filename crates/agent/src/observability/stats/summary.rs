//! `/stats/summary`, upstream's summary of the usage of the node and its pods: [`render`].

use host::cgroups::{Bound, Usage};
use host::system::{FileSystem, Interface};
use objects::timestamp::Timestamp;
use serde_json::{Map, Value, json};

use super::{ContainerUsage, Group, Images, NodeUsage, PodUsage, Snapshot};

/// Builds an object without the unknown fields.
fn known<const N: usize>(fields: [(&str, Option<Value>); N]) -> Map<String, Value> {
    let there = fields.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?)));
    there.collect()
}

fn number(value: Option<u64>) -> Option<Value> {
    value.map(Value::from)
}

/// Adds the time to the fields; returns nothing if no field is known.
fn at(time: &Value, mut fields: Map<String, Value>) -> Option<Value> {
    if fields.is_empty() {
        return None;
    }
    fields.insert("time".to_owned(), time.clone());
    Some(fields.into())
}

pub(super) fn render(snapshot: &Snapshot) -> Value {
    let time = Value::from(snapshot.at.to_seconds_text());
    let pods: Vec<Value> = snapshot.pods.iter().map(|of| pod(of, snapshot, &time)).collect();
    json!({"node": node(&snapshot.node, &time), "pods": pods})
}

fn text(of: Option<Timestamp>) -> Option<Value> {
    of.map(|of| of.to_seconds_text().into())
}

fn cpu(time: &Value, used: Option<u64>, rate: Option<u64>) -> Option<Value> {
    at(time, known([("usageCoreNanoSeconds", number(used)), ("usageNanoCores", number(rate))]))
}

fn memory(time: &Value, usage: &Usage) -> Option<Value> {
    let available = match (usage.memory_limit, usage.working_set) {
        (Some(Bound::At(limit)), Some(used)) => Some(limit.saturating_sub(used)),
        _ => None,
    };
    at(
        time,
        known([
            ("availableBytes", number(available)),
            ("usageBytes", number(usage.memory)),
            ("workingSetBytes", number(usage.working_set)),
            ("rssBytes", number(usage.rss)),
            ("pageFaults", number(usage.page_faults)),
            ("majorPageFaults", number(usage.major_page_faults)),
        ]),
    )
}

/// Returns the bytes that a cgroup may swap out, at most those of the machine.
pub(super) fn swap_limit(usage: &Usage, node: &NodeUsage) -> Option<u64> {
    let total = node.memory?.swap_total;
    Some(match usage.swap_limit? {
        Bound::At(limit) => limit.min(total),
        Bound::Max => total,
    })
}

fn disk(time: &Value, of: FileSystem, used: Option<u64>, inodes: Option<u64>) -> Option<Value> {
    let counted = of.inodes;
    let taken = counted.map(|counted| counted.total.saturating_sub(counted.free));
    at(
        time,
        known([
            ("availableBytes", number(Some(of.available))),
            ("capacityBytes", number(Some(of.capacity))),
            ("usedBytes", number(used.or(Some(of.capacity.saturating_sub(of.available))))),
            ("inodesFree", number(counted.map(|counted| counted.free))),
            ("inodes", number(counted.map(|counted| counted.total))),
            ("inodesUsed", number(inodes.or(taken))),
        ]),
    )
}

fn interface(of: &Interface) -> Value {
    json!({
        "name": of.name,
        "rxBytes": of.received.bytes,
        "rxErrors": of.received.errors,
        "txBytes": of.sent.bytes,
        "txErrors": of.sent.errors,
    })
}

fn network(time: &Value, all: &[Interface], first: &str) -> Value {
    let interfaces: Vec<Value> = all.iter().map(interface).collect();
    let mut network = json!({"name": first});
    if let Some(of) = all.iter().find(|of| of.name == first) {
        network = interface(of);
    }
    network["time"] = time.clone();
    network["interfaces"] = interfaces.into();
    network
}

fn node(node: &NodeUsage, time: &Value) -> Value {
    let total = node.memory.map(|memory| {
        let working_set = memory.total.saturating_sub(memory.outside_working_set());
        known([
            ("availableBytes", number(Some(memory.outside_working_set()))),
            ("usageBytes", number(Some(memory.total.saturating_sub(memory.free)))),
            ("workingSetBytes", number(Some(working_set))),
            ("rssBytes", number(node.root.rss)),
            ("pageFaults", number(node.root.page_faults)),
            ("majorPageFaults", number(node.root.major_page_faults)),
        ])
    });
    let swap = node.memory.map(|memory| {
        let used = memory.swap_total.saturating_sub(memory.swap_free);
        known([
            ("swapAvailableBytes", number(Some(memory.swap_free))),
            ("swapUsageBytes", number(Some(used))),
        ])
    });
    let runtime = node.images.and_then(|Images { disk: of, used, inodes }| {
        let of = disk(time, of, used, inodes)?;
        Some(json!({"imageFs": of, "containerFs": of}))
    });
    let processes = node.processes.and_then(|ids| {
        let ids = [("maxpid", number(Some(ids.max))), ("curproc", number(Some(ids.used)))];
        at(time, known(ids))
    });
    // Without a default route any interface will do.
    let any = || node.interfaces.first().map(|of| of.name.as_str());
    let first = node.default_interface.as_deref().or_else(any).unwrap_or_default();
    let interfaces = match node.interfaces.is_empty() {
        true => None,
        false => Some(network(time, &node.interfaces, first)),
    };
    let pods = node.pods.iter().map(|(_, group)| together("pods", group, node, time));
    known([
        ("nodeName", Some(node.name.as_str().into())),
        ("systemContainers", Some(pods.collect())),
        ("startTime", text(node.booted)),
        ("cpu", cpu(time, node.cpu, node.cpu_rate)),
        ("memory", total.and_then(|total| at(time, total))),
        ("swap", swap.and_then(|swap| at(time, swap))),
        ("network", interfaces),
        ("fs", node.disk.and_then(|of| disk(time, of, None, None))),
        ("runtime", runtime),
        ("rlimit", processes),
    ])
    .into()
}

/// A group of processes that is not a pod.
fn together(name: &str, group: &Group, node: &NodeUsage, time: &Value) -> Value {
    known([
        ("name", Some(name.into())),
        ("startTime", text(node.agent_began)),
        ("cpu", cpu(time, group.usage.cpu, group.cpu_rate)),
        ("memory", memory(time, &group.usage)),
        ("swap", at(time, known([("swapUsageBytes", number(group.usage.swap))]))),
    ])
    .into()
}

fn pod(pod: &PodUsage, snapshot: &Snapshot, time: &Value) -> Value {
    let node = &snapshot.node;
    let containers: Vec<Value> =
        pod.containers.iter().map(|of| container(of, snapshot, time)).collect();
    let group = pod.group.as_ref();
    let written = pod.containers.iter().filter_map(|of| Some(of.written?.0));
    let logs = pod.containers.iter().filter_map(|of| of.logs);
    let stored: u64 = written.chain(logs).fold(pod.volumes, u64::saturating_add);
    let files = pod.containers.iter().map(|of| {
        of.written.and_then(|(_, inodes)| inodes).unwrap_or(0) + of.log_files.unwrap_or(0)
    });
    let files = files.sum();
    let first = pod.interfaces.as_ref().map(|all| match all.iter().any(|of| of.name == "eth0") {
        true => network(time, all, "eth0"),
        false => network(time, all, ""),
    });
    known([
        ("podRef", Some(json!({"name": pod.name, "namespace": pod.namespace, "uid": pod.uid}))),
        ("startTime", text(pod.started)),
        ("containers", Some(containers.into())),
        ("cpu", group.and_then(|group| cpu(time, group.usage.cpu, group.cpu_rate))),
        ("memory", group.and_then(|group| memory(time, &group.usage))),
        ("swap", group.and_then(|of| at(time, known([("swapUsageBytes", number(of.usage.swap))])))),
        ("network", first),
        ("ephemeral-storage", node.disk.and_then(|of| disk(time, of, Some(stored), Some(files)))),
    ])
    .into()
}

fn container(of: &ContainerUsage, snapshot: &Snapshot, time: &Value) -> Value {
    let (node, usage) = (&snapshot.node, &of.group.usage);
    let own = node.images.map(|images| images.disk);
    let root = own.zip(of.written);
    let root = root.and_then(|(own, (bytes, inodes))| disk(time, own, Some(bytes), inodes));
    let logs = node.disk.zip(of.logs);
    let logs = logs.and_then(|(own, bytes)| disk(time, own, Some(bytes), of.log_files));
    let left =
        swap_limit(usage, node).zip(usage.swap).map(|(limit, used)| limit.saturating_sub(used));
    let swap =
        known([("swapAvailableBytes", number(left)), ("swapUsageBytes", number(usage.swap))]);
    known([
        ("name", Some(of.name.as_str().into())),
        ("startTime", text(of.started)),
        ("cpu", cpu(time, usage.cpu, of.group.cpu_rate)),
        ("memory", memory(time, usage)),
        ("rootfs", root),
        ("logs", logs),
        ("swap", at(time, swap)),
    ])
    .into()
}
