//! `/metrics/cadvisor`: usage of containers, pods and all pods together, with cAdvisor's names: [`families`].
//!
//! As in cAdvisor, a container has all labels, a pod has no `container`, `image` and `name`, and the group of all pods
//! has `id` alone. Sockets and file descriptors are not counted.

use host::cgroups::{Bound, DiskUsage, Usage};
use host::system::Traffic;
use metrics::{Family, Kind};

use super::resource::since_1970;
use super::{ContainerUsage, Snapshot, known};

const SECOND: f64 = 1e9;

/// One metric of a cgroup: its name, help, type and reader.
struct UsageMetric {
    name: &'static str,
    help: &'static str,
    kind: Kind,
    value: fn(&Usage) -> Option<f64>,
}

fn seconds(nanos: Option<u64>) -> Option<f64> {
    nanos.map(|nanos| nanos as f64 / SECOND)
}

fn count(value: Option<u64>) -> Option<f64> {
    value.map(|value| value as f64)
}

/// Zero means unlimited, as in cAdvisor.
fn limit(bound: Option<Bound>) -> Option<f64> {
    bound.map(|bound| match bound {
        Bound::At(at) => at as f64,
        Bound::Max => 0.0,
    })
}

/// cAdvisor omits these without a limit.
fn bounded(bound: Option<Bound>) -> Option<f64> {
    match bound? {
        Bound::At(at) => Some(at as f64),
        Bound::Max => None,
    }
}

#[rustfmt::skip] // One a line.
const FIGURES: &[UsageMetric] = &[
    UsageMetric { name: "container_cpu_cfs_periods_total", help: "Number of elapsed enforcement period intervals.", kind: Kind::Counter, value:|u| count(u.periods) },
    UsageMetric { name: "container_cpu_cfs_throttled_periods_total", help: "Number of throttled period intervals.", kind: Kind::Counter, value:|u| count(u.throttled_periods) },
    UsageMetric { name: "container_cpu_cfs_throttled_seconds_total", help: "Total time duration the container has been throttled.", kind: Kind::Counter, value:|u| seconds(u.throttled) },
    UsageMetric { name: "container_cpu_system_seconds_total", help: "Cumulative system cpu time consumed in seconds.", kind: Kind::Counter, value:|u| seconds(u.cpu_system) },
    UsageMetric { name: "container_cpu_user_seconds_total", help: "Cumulative user cpu time consumed in seconds.", kind: Kind::Counter, value:|u| seconds(u.cpu_user) },
    UsageMetric { name: "container_memory_cache", help: "Number of bytes of page cache memory.", kind: Kind::Gauge, value:|u| count(u.cache) },
    UsageMetric { name: "container_memory_events_high_total", help: "Cumulative count of memory.high throttle events for the container", kind: Kind::Counter, value:|u| count(u.high_events) },
    UsageMetric { name: "container_memory_events_max_total", help: "Cumulative count of memory.max limit hit events for the container", kind: Kind::Counter, value:|u| count(u.max_events) },
    UsageMetric { name: "container_memory_failcnt", help: "Number of memory usage hits limits", kind: Kind::Counter, value:|u| count(u.limit_hits) },
    UsageMetric { name: "container_memory_file_dirty_bytes", help: "Number of bytes of file cache that has been modified but not yet written back to disk.", kind: Kind::Gauge, value:|u| count(u.dirty_files) },
    UsageMetric { name: "container_memory_file_writeback_bytes", help: "Number of bytes of file cache that is currently being written back to disk.", kind: Kind::Gauge, value:|u| count(u.written_files) },
    UsageMetric { name: "container_memory_kernel_usage", help: "Size of kernel memory allocated in bytes.", kind: Kind::Gauge, value:|u| count(u.kernel_memory) },
    UsageMetric { name: "container_memory_mapped_file", help: "Size of memory mapped files in bytes.", kind: Kind::Gauge, value:|u| count(u.mapped_files) },
    UsageMetric { name: "container_memory_max_usage_bytes", help: "Maximum memory usage recorded in bytes", kind: Kind::Gauge, value:|u| count(u.memory_peak) },
    UsageMetric { name: "container_memory_pgscan_total", help: "Cumulative number of pages scanned by the page reclaim algorithm.", kind: Kind::Counter, value:|u| count(u.pages_scanned) },
    UsageMetric { name: "container_memory_pgsteal_total", help: "Cumulative number of pages reclaimed by the page reclaim algorithm.", kind: Kind::Counter, value:|u| count(u.pages_reclaimed) },
    UsageMetric { name: "container_memory_rss", help: "Size of RSS in bytes.", kind: Kind::Gauge, value:|u| count(u.rss) },
    UsageMetric { name: "container_memory_swap", help: "Container swap usage in bytes.", kind: Kind::Gauge, value:|u| count(u.swap) },
    UsageMetric { name: "container_memory_total_active_file_bytes", help: "Current total active file in bytes.", kind: Kind::Gauge, value:|u| count(u.active_files) },
    UsageMetric { name: "container_memory_total_inactive_file_bytes", help: "Current total inactive file in bytes.", kind: Kind::Gauge, value:|u| count(u.inactive_files) },
    UsageMetric { name: "container_memory_usage_bytes", help: "Current memory usage in bytes, including all memory regardless of when it was accessed", kind: Kind::Gauge, value:|u| count(u.memory) },
    UsageMetric { name: "container_memory_working_set_bytes", help: "Current working set in bytes.", kind: Kind::Gauge, value:|u| count(u.working_set) },
    UsageMetric { name: "container_memory_workingset_refault_anon_total", help: "Cumulative number of refaults of previously evicted anonymous pages.", kind: Kind::Counter, value:|u| count(u.refaults_anonymous) },
    UsageMetric { name: "container_memory_workingset_refault_file_total", help: "Cumulative number of refaults of previously evicted file pages.", kind: Kind::Counter, value:|u| count(u.refaults_file) },
    UsageMetric { name: "container_oom_events_total", help: "Count of out of memory events observed for the container", kind: Kind::Counter, value:|u| count(u.oom_kills) },
    UsageMetric { name: "container_pressure_cpu_stalled_seconds_total", help: "Total time duration no tasks in the container could make progress due to CPU congestion.", kind: Kind::Counter, value:|u| seconds(u.pressure.cpu.map(|of| of.full)) },
    UsageMetric { name: "container_pressure_cpu_waiting_seconds_total", help: "Total time duration tasks in the container have waited due to CPU congestion.", kind: Kind::Counter, value:|u| seconds(u.pressure.cpu.map(|of| of.some)) },
    UsageMetric { name: "container_pressure_io_stalled_seconds_total", help: "Total time duration no tasks in the container could make progress due to IO congestion.", kind: Kind::Counter, value:|u| seconds(u.pressure.io.map(|of| of.full)) },
    UsageMetric { name: "container_pressure_io_waiting_seconds_total", help: "Total time duration tasks in the container have waited due to IO congestion.", kind: Kind::Counter, value:|u| seconds(u.pressure.io.map(|of| of.some)) },
    UsageMetric { name: "container_pressure_memory_stalled_seconds_total", help: "Total time duration no tasks in the container could make progress due to memory congestion.", kind: Kind::Counter, value:|u| seconds(u.pressure.memory.map(|of| of.full)) },
    UsageMetric { name: "container_pressure_memory_waiting_seconds_total", help: "Total time duration tasks in the container have waited due to memory congestion.", kind: Kind::Counter, value:|u| seconds(u.pressure.memory.map(|of| of.some)) },
    UsageMetric { name: "container_spec_cpu_period", help: "CPU period of the container.", kind: Kind::Gauge, value:|u| count(u.cpu_period) },
    UsageMetric { name: "container_spec_cpu_quota", help: "CPU quota of the container.", kind: Kind::Gauge, value:|u| bounded(u.cpu_quota) },
    UsageMetric { name: "container_spec_cpu_shares", help: "CPU share of the container.", kind: Kind::Gauge, value:|u| count(u.cpu_shares) },
    UsageMetric { name: "container_spec_memory_limit_bytes", help: "Memory limit for the container.", kind: Kind::Gauge, value:|u| limit(u.memory_limit) },
    UsageMetric { name: "container_spec_memory_swap_limit_bytes", help: "Memory swap limit for the container.", kind: Kind::Gauge, value:|u| limit(u.swap_limit) },
    UsageMetric { name: "container_threads", help: "Number of threads running inside the container", kind: Kind::Gauge, value:|u| count(u.threads) },
    UsageMetric { name: "container_threads_max", help: "Maximum number of threads allowed inside the container, infinity if value is zero", kind: Kind::Gauge, value:|u| limit(u.threads_limit) },
];

/// One metric of a disk.
struct DiskMetric {
    name: &'static str,
    help: &'static str,
    value: fn(&DiskUsage) -> u64,
}

/// The kernel's disk counters by cgroup.
#[rustfmt::skip] // One a line.
const DISK_FIGURES: &[DiskMetric] = &[
    DiskMetric { name: "container_fs_reads_bytes_total", help: "Cumulative count of bytes read", value:|disk| disk.bytes_read },
    DiskMetric { name: "container_fs_reads_total", help: "Cumulative count of reads completed", value:|disk| disk.reads },
    DiskMetric { name: "container_fs_writes_bytes_total", help: "Cumulative count of bytes written", value:|disk| disk.bytes_written },
    DiskMetric { name: "container_fs_writes_total", help: "Cumulative count of writes completed", value:|disk| disk.writes },
];

/// A consumer with a cgroup, with cAdvisor's labels.
struct MeasuredGroup<'a> {
    labels: [(&'static str, &'a str); 6],
    usage: &'a Usage,
}

fn labels<'a>(
    container: Option<&'a ContainerUsage>,
    id: &'a str,
    namespace: &'a str,
    pod: &'a str,
) -> [(&'static str, &'a str); 6] {
    let field = |text: fn(&ContainerUsage) -> &str| container.map(text).unwrap_or_default();
    [
        ("container", field(|container| &container.name)),
        ("id", id),
        ("image", field(|container| &container.image)),
        ("name", field(|container| &container.id)),
        ("namespace", namespace),
        ("pod", pod),
    ]
}

fn measured(snapshot: &Snapshot) -> Vec<MeasuredGroup<'_>> {
    let mut all = Vec::new();
    if let Some((path, group)) = &snapshot.node.pods {
        all.push(MeasuredGroup { labels: labels(None, path, "", ""), usage: &group.usage });
    }
    for pod in &snapshot.pods {
        let (space, name) = (pod.namespace.as_str(), pod.name.as_str());
        if let Some(group) = &pod.group {
            all.push(MeasuredGroup {
                labels: labels(None, &pod.path, space, name),
                usage: &group.usage,
            });
        }
        for container in &pod.containers {
            let labels = labels(Some(container), &container.path, space, name);
            all.push(MeasuredGroup { labels, usage: &container.group.usage });
        }
    }
    all
}

pub(super) fn families(snapshot: &Snapshot) -> Vec<Family> {
    let at = Some(snapshot.at);
    let all = measured(snapshot);
    let mut families: Vec<Family> = FIGURES
        .iter()
        .map(|UsageMetric { name, help, kind, value }| {
            known(*kind, *name, *help, at, all.iter().map(|one| (one.labels, value(one.usage))))
        })
        .collect();
    let totals = all.iter().map(|one| {
        let [container, rest @ ..] = one.labels;
        let labels: Vec<_> = [container, ("cpu", "total")].into_iter().chain(rest).collect();
        (labels, seconds(one.usage.cpu))
    });
    let name = "container_cpu_usage_seconds_total";
    let help = "Cumulative cpu time consumed in seconds.";
    families.push(known(Kind::Counter, name, help, at, totals));
    families.push(failures(&all, snapshot));
    families.extend(disks(&all, snapshot));
    families.extend(containers(snapshot));
    families.extend(networks(snapshot));
    families.extend(machine(snapshot));
    let error = if snapshot.failed { 1.0 } else { 0.0 };
    let help = "1 if there was an error while getting container metrics, 0 otherwise";
    families.push(Family::single(Kind::Gauge, "container_scrape_error", help, error));
    families
}

/// Returns the page faults of each cgroup and those below it.
fn failures(all: &[MeasuredGroup<'_>], snapshot: &Snapshot) -> Family {
    let samples = all.iter().flat_map(|one| {
        let faults =
            [("pgfault", one.usage.page_faults), ("pgmajfault", one.usage.major_page_faults)];
        faults.map(|(kind, faults)| {
            let [container, rest @ ..] = one.labels;
            let labels: Vec<_> = [container, ("failure_type", kind)]
                .into_iter()
                .chain(rest)
                .chain([("scope", "hierarchy")])
                .collect();
            (labels, count(faults))
        })
    });
    let name = "container_memory_failures_total";
    let help = "Cumulative count of memory allocation failures.";
    known(Kind::Counter, name, help, Some(snapshot.at), samples)
}

/// A disk of a cgroup, with the texts of its labels.
struct MeasuredDisk<'a> {
    group: &'a MeasuredGroup<'a>,
    usage: &'a DiskUsage,
    device: String,
    major: String,
    minor: String,
}

fn disks(all: &[MeasuredGroup<'_>], snapshot: &Snapshot) -> Vec<Family> {
    let at = Some(snapshot.at);
    let disks: Vec<MeasuredDisk<'_>> = all
        .iter()
        .flat_map(|group| group.usage.disks.iter().map(move |usage| (group, usage)))
        .map(|(group, usage)| {
            let name = snapshot.node.disk_names.get(&(usage.major, usage.minor));
            let device = name.map(|name| format!("/dev/{name}")).unwrap_or_default();
            let (major, minor) = (usage.major.to_string(), usage.minor.to_string());
            MeasuredDisk { group, usage, device, major, minor }
        })
        .collect();
    let mut families: Vec<Family> = DISK_FIGURES
        .iter()
        .map(|DiskMetric { name, help, value }| {
            let samples = disks.iter().map(|disk| {
                let [container, rest @ ..] = disk.group.labels;
                let device = ("device", disk.device.as_str());
                let labels: Vec<_> = [container, device].into_iter().chain(rest).collect();
                (labels, Some(value(disk.usage) as f64))
            });
            known(Kind::Counter, *name, *help, at, samples)
        })
        .collect();
    let samples = disks.iter().flat_map(|disk| {
        let operations = [("Read", disk.usage.bytes_read), ("Write", disk.usage.bytes_written)];
        operations.map(|(operation, bytes)| {
            let [container, id, image, container_id, namespace, pod] = disk.group.labels;
            let labels = [
                container,
                ("device", disk.device.as_str()),
                id,
                image,
                ("major", disk.major.as_str()),
                ("minor", disk.minor.as_str()),
                container_id,
                namespace,
                ("operation", operation),
                pod,
            ];
            (labels, Some(bytes as f64))
        })
    });
    let name = "container_blkio_device_usage_total";
    families.push(known(Kind::Counter, name, "Blkio Device bytes usage", at, samples));
    families
}

fn containers(snapshot: &Snapshot) -> [Family; 3] {
    let each = |name, help, value: &dyn Fn(&ContainerUsage) -> Option<f64>| {
        let samples = snapshot.pods.iter().flat_map(|pod| {
            pod.containers.iter().map(move |one| {
                (labels(Some(one), &one.path, &pod.namespace, &pod.name), value(one))
            })
        });
        known(Kind::Gauge, name, help, Some(snapshot.at), samples)
    };
    [
        each("container_last_seen", "Last time a container was seen by the exporter", &|_| {
            Some(snapshot.at.seconds() as f64)
        }),
        each(
            "container_processes",
            "Number of processes running inside the container.",
            &|container| count(container.group.usage.processes),
        ),
        each(
            "container_start_time_seconds",
            "Start time of the container since unix epoch in seconds.",
            &|container| container.started.map(since_1970),
        ),
    ]
}

/// Reads one direction of traffic.
type TrafficField = fn(&Traffic) -> u64;

fn networks(snapshot: &Snapshot) -> Vec<Family> {
    let figures: [(&str, &str, TrafficField); 4] = [
        ("bytes_total", "bytes", |traffic| traffic.bytes),
        ("errors_total", "errors encountered while", |traffic| traffic.errors),
        ("packets_dropped_total", "packets dropped while", |traffic| traffic.dropped),
        ("packets_total", "packets", |traffic| traffic.packets),
    ];
    let interfaces: Vec<_> = snapshot
        .pods
        .iter()
        .flat_map(|pod| pod.interfaces.iter().flatten().map(move |interface| (pod, interface)))
        .collect();
    let mut families = Vec::new();
    for (way, past, present) in
        [("receive", "received", "receiving"), ("transmit", "transmitted", "transmitting")]
    {
        for (suffix, what, figure) in figures {
            let word = if what.ends_with("while") { present } else { past };
            let samples = interfaces.iter().map(|(pod, interface)| {
                let traffic = if way == "receive" { &interface.received } else { &interface.sent };
                let [container, id, image, rest @ ..] =
                    labels(None, &pod.path, &pod.namespace, &pod.name);
                let interface = ("interface", interface.name.as_str());
                let labels: Vec<_> =
                    [container, id, image, interface].into_iter().chain(rest).collect();
                (labels, Some(figure(traffic) as f64))
            });
            families.push(known(
                Kind::Counter,
                format!("container_network_{way}_{suffix}"),
                format!("Cumulative count of {what} {word}"),
                Some(snapshot.at),
                samples,
            ));
        }
    }
    families
}

fn machine(snapshot: &Snapshot) -> Vec<Family> {
    let machine = &snapshot.node.machine;
    let labels = [
        ("boot_id", machine.boot_id.as_str()),
        ("machine_id", machine.machine_id.as_str()),
        ("system_uuid", machine.system_uuid.as_str()),
    ];
    let memory = snapshot.node.memory;
    let figures = [
        ("machine_cpu_cores", "Number of logical CPU cores.", Some(machine.cpus as f64)),
        ("machine_cpu_physical_cores", "Number of physical CPU cores.", Some(machine.cores as f64)),
        ("machine_cpu_sockets", "Number of CPU sockets.", Some(machine.sockets as f64)),
        (
            "machine_memory_bytes",
            "Amount of memory installed on the machine.",
            memory.map(|memory| memory.total as f64),
        ),
        (
            "machine_swap_bytes",
            "Amount of swap memory available on the machine.",
            memory.map(|memory| memory.swap_total as f64),
        ),
    ];
    let gauge = |(name, help, value)| known(Kind::Gauge, name, help, None, [(labels, value)]);
    let mut families: Vec<Family> = figures.into_iter().map(gauge).collect();
    let help = "1 if there was an error while getting machine metrics, 0 otherwise.";
    let failed = if memory.is_none() { 1.0 } else { 0.0 };
    families.push(Family::single(Kind::Gauge, "machine_scrape_error", help, failed));
    families
}
