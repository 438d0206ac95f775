//! Renders the report for a terminal: a table per machine, the remaining capacity, refused pods and
//! remedies.
//!
//! Main entry: [`render`]. The caller decides about colours.

use std::fmt::Write as _;

use objects::pod::OsName;

use super::{
    ContainerReport, MachineReport, PodReport, RefusedReport, RemainingCapacity, RemainingOnNode,
    RemedyReport, Report,
};

/// With more machines than this each gets a line instead of a table.
const MAX_TABLES: usize = 4;

/// The most refused pods listed.
const MAX_REFUSED: usize = 50;

/// The style of the text.
#[derive(Clone, Copy, Debug, Default)]
pub struct TextStyle {
    pub colour: bool,
    /// A table per machine, whatever their number, with every explanation.
    pub explain: bool,
}

impl TextStyle {
    fn paint(self, code: &str, text: &str) -> String {
        if self.colour { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }

    pub(crate) fn bold(self, text: &str) -> String {
        self.paint("1", text)
    }

    pub(crate) fn dim(self, text: &str) -> String {
        self.paint("2", text)
    }

    pub(crate) fn red(self, text: &str) -> String {
        self.paint("31", text)
    }

    pub(crate) fn green(self, text: &str) -> String {
        self.paint("32", text)
    }

    pub(crate) fn yellow(self, text: &str) -> String {
        self.paint("33", text)
    }
}

/// Renders the report as text.
#[must_use]
pub fn render(report: &Report, style: TextStyle) -> String {
    let mut out = String::new();
    if report.machines.len() > MAX_TABLES && !style.explain {
        overview(&report.machines, style, &mut out);
    } else {
        for machine in &report.machines {
            table(machine, style, &mut out);
        }
    }
    if !report.refused.is_empty() {
        let _ = writeln!(out, "{}", style.bold("Refused"));
        let most = if style.explain { usize::MAX } else { MAX_REFUSED };
        for refused in report.refused.iter().take(most) {
            refused_pods(refused, style, &mut out);
        }
        if let Some(more) = report.refused.get(most..).filter(|more| !more.is_empty()) {
            let pods = more.iter().map(|refused| u64::from(refused.count)).sum();
            let _ = writeln!(out, "  … and {} more; --explain lists all", plural(pods, "pod"));
        }
        out.push('\n');
    }
    closing(report, style, &mut out);
    out
}

/// Renders one machine with its pods.
#[must_use]
pub fn render_machine(machine: &MachineReport, style: TextStyle) -> String {
    let mut out = String::new();
    table(machine, style, &mut out);
    out
}

fn closing(report: &Report, style: TextStyle, out: &mut String) {
    let summary = &report.summary;
    let machines = plural(summary.machines as u64, "machine");
    let place = match summary.machines_needed {
        Some(_) => format!("; {} needed", style.bold(&machines)),
        None if summary.machines_used == summary.machines => format!(" on {machines}"),
        None => format!(" on {} of {machines}", summary.machines_used),
    };
    let _ = if summary.refused == 0 {
        writeln!(out, "{}{place}", style.green(&format!("{} placed", plural(summary.pods, "pod"))))
    } else {
        let refused = style.red(&format!("{} refused", summary.refused));
        let pods = plural(summary.pods, "pod");
        writeln!(out, "{pods}: {} placed{place}, {refused}", summary.placed)
    };
}

/// Formats mebibytes for reading: 724636Mi as 707.6Gi, rounded down.
fn human(amount: &str) -> String {
    let mebibytes = amount.strip_suffix("Mi").and_then(|number| number.parse::<u64>().ok());
    match mebibytes.filter(|mebibytes| *mebibytes >= 10 * 1024) {
        Some(mebibytes) => {
            format!("{}.{}Gi", mebibytes / 1024, mebibytes % 1024 * 10 / 1024)
        }
        None => amount.to_owned(),
    }
}

fn plural(count: u64, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

fn headline(machine: &MachineReport, style: TextStyle, out: &mut String) {
    let memory = if machine.memory == "0" { "memory unknown" } else { &machine.memory };
    let about = format!(
        "{} · {} · {} · {memory}",
        machine.os,
        plural(machine.cpus as u64, "CPU"),
        plural(machine.numa_nodes as u64, "NUMA node"),
    );
    let _ = writeln!(out, "{}  {}", style.bold(&machine.name), style.dim(&about));
    if !machine.configuration.is_empty() {
        let _ = writeln!(out, "{}", style.dim(&machine.configuration));
    }
}

/// One row of a machine's table; a run of pods that differ only in name is one.
struct Row {
    cells: Vec<String>,
    notes: Vec<String>,
    warning: Option<String>,
}

fn table(machine: &MachineReport, style: TextStyle, out: &mut String) {
    headline(machine, style, out);
    let windows = machine.os == OsName::Windows;
    let mut head = vec!["POD", "CONTAINER", "CPUS", "MEMORY"];
    if windows {
        head.push("AFFINITY");
    }
    head.push("WHY");
    let mut rows = Vec::new();
    for run in runs(&machine.pods) {
        let (Some(first), Some(last)) = (run.first(), run.last()) else { continue };
        let name = match run.len() {
            1 => shown_name(first),
            2 => format!("{}, {}", shown_name(first), last.name),
            n => format!("{} … {} ({n})", shown_name(first), last.name),
        };
        for (number, container) in first.containers.iter().enumerate() {
            let pod = if number == 0 { name.clone() } else { String::new() };
            let mut row = container_row(pod, container, windows);
            if style.explain && number == 0 {
                row.notes
                    .insert(0, format!("{}, {}: {}", first.workload, first.qos_class, first.why));
            }
            rows.push(row);
        }
    }
    if rows.is_empty() {
        let _ = writeln!(out, "  no pods");
    } else {
        write_rows(&head, &rows, style, out);
    }
    left(&machine.left, style, out);
    out.push('\n');
}

fn write_rows(head: &[&str], rows: &[Row], style: TextStyle, out: &mut String) {
    let widths = widths(head, rows);
    let _ = writeln!(out, "  {}", style.dim(&line(head, &widths)));
    for row in rows {
        let cells: Vec<&str> = row.cells.iter().map(String::as_str).collect();
        let _ = writeln!(out, "  {}", line(&cells, &widths));
        for note in &row.notes {
            let _ = writeln!(out, "      {}", style.dim(note));
        }
        if let Some(warning) = &row.warning {
            let _ = writeln!(out, "      {} {warning}", style.yellow("warning:"));
        }
    }
}

/// The containers of one pod.
pub(crate) fn containers(containers: &[ContainerReport], style: TextStyle, out: &mut String) {
    let windows = containers.iter().any(|container| !container.affinity.is_empty());
    let mut head = vec!["CONTAINER", "CPUS", "MEMORY"];
    if windows {
        head.push("AFFINITY");
    }
    head.push("WHY");
    let row = |container| {
        let mut row = container_row(String::new(), container, windows);
        row.cells.remove(0);
        row
    };
    let rows: Vec<Row> = containers.iter().map(row).collect();
    write_rows(&head, &rows, style, out);
}

fn shown_name(pod: &PodReport) -> String {
    match pod.namespace.as_str() {
        "default" => pod.name.clone(),
        namespace => format!("{namespace}/{}", pod.name),
    }
}

/// Groups consecutive pods of one workload with the same placement.
fn runs(pods: &[PodReport]) -> impl Iterator<Item = &[PodReport]> {
    pods.chunk_by(|a, b| {
        let own = |pod: &PodReport| pod.containers.iter().any(|c| c.cpus.is_some());
        a.workload == b.workload
            && a.namespace == b.namespace
            && !own(a)
            && a.containers == b.containers
    })
}

fn container_row(pod: String, container: &ContainerReport, windows: bool) -> Row {
    let name = match container.role {
        "app" => container.name.clone(),
        role => format!("{} ({role})", container.name),
    };
    let cpus = container.cpus.as_ref().map_or_else(|| "shared".to_owned(), ToString::to_string);
    let memory = memory(container);
    let mut cells = vec![pod, name, cpus, memory];
    if windows {
        let groups: Vec<String> =
            container.affinity.iter().map(|g| format!("{}:{}", g.group, g.mask)).collect();
        cells.push(if groups.is_empty() { "none".to_owned() } else { groups.join(" ") });
    }
    cells.push(container.why.clone());
    let notes = container.explanation.iter().filter(|note| **note != container.why);
    Row { cells, notes: notes.cloned().collect(), warning: container.warning.clone() }
}

/// Returns the NUMA nodes of a container's memory.
pub(super) fn memory(container: &ContainerReport) -> String {
    let memory: Vec<String> = container
        .memory
        .iter()
        .map(|block| {
            let ids: Vec<String> = block.numa_nodes.iter().map(ToString::to_string).collect();
            let nodes = if ids.len() == 1 { "node" } else { "nodes" };
            let kind = match block.resource.as_str() {
                "memory" => String::new(),
                other => format!(" {other}"),
            };
            format!("{}{kind} on {nodes} {}", block.size, ids.join(","))
        })
        .collect();
    if memory.is_empty() { "any node".to_owned() } else { memory.join(" + ") }
}

fn widths(head: &[&str], rows: &[Row]) -> Vec<usize> {
    let mut widths: Vec<usize> = head.iter().map(|cell| cell.chars().count()).collect();
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(&row.cells) {
            *width = (*width).max(cell.chars().count());
        }
    }
    widths
}

fn line(cells: &[&str], widths: &[usize]) -> String {
    let mut out = String::new();
    for (number, (cell, width)) in cells.iter().zip(widths).enumerate() {
        if number + 1 == cells.len() {
            out.push_str(cell);
        } else {
            let _ = write!(out, "{cell:width$}  ");
        }
    }
    out.trim_end().to_owned()
}

fn left(left: &RemainingCapacity, style: TextStyle, out: &mut String) {
    let requests = &left.requests;
    let asked: Vec<String> =
        requests.iter().map(|(name, amount)| format!("{name} {}", human(amount))).collect();
    let _ = write!(out, "  {} ", style.bold("left:"));
    if let (Some(cpus), Some(largest)) = (left.exclusive_cpus, left.largest_on_one_node) {
        let _ = write!(
            out,
            "{} to hand out; a container could still have {largest} on one NUMA node\n        ",
            plural(cpus as u64, "CPU")
        );
    }
    let _ = writeln!(out, "requests may add {}", asked.join(", "));
    if let Some(shared) = &left.shared_cpus {
        let _ = writeln!(out, "        shared CPUs: {shared}");
    }
    numa_nodes(&left.numa_nodes, out);
}

/// Writes the remaining capacity of each NUMA node.
pub(crate) fn numa_nodes(nodes: &[RemainingOnNode], out: &mut String) {
    // Nodes with equal capacity are listed together; a machine may have many.
    let mut groups: Vec<(Vec<String>, String)> = Vec::new();
    for node in nodes {
        let mut parts = Vec::new();
        parts.extend(node.exclusive_cpus.map(|cpus| plural(cpus as u64, "CPU")));
        parts.extend(node.memory.iter().map(|(name, amount)| match name.as_str() {
            "memory" => human(amount),
            other => format!("{} {other}", human(amount)),
        }));
        let parts = parts.join(", ");
        match groups.last_mut() {
            Some((ids, same)) if *same == parts => ids.push(node.numa_node.to_string()),
            _ => groups.push((vec![node.numa_node.to_string()], parts)),
        }
    }
    for (ids, parts) in groups {
        let nodes = match ids.as_slice() {
            [one] => format!("node {one}"),
            [first, .., last] => format!("nodes {first}–{last}, each"),
            [] => continue,
        };
        let _ = writeln!(out, "        {nodes}: {parts}");
    }
}

/// Writes one line per machine, equal ones together.
fn overview(machines: &[MachineReport], style: TextStyle, out: &mut String) {
    let head = ["MACHINE", "PODS", "LEFT TO HAND OUT", "ON ONE NODE", "LEFT TO REQUEST", "RUNS"];
    let mut rows: Vec<(Vec<String>, String, usize)> = Vec::new();
    for machine in machines {
        let left = &machine.left;
        let number = |n: Option<usize>| n.map_or_else(|| "-".to_owned(), |n| format!("{n} CPUs"));
        let of = |name: &str| left.requests.get(name).cloned().unwrap_or_else(|| "?".to_owned());
        let cells = vec![
            machine.name.clone(),
            machine.pods.len().to_string(),
            number(left.exclusive_cpus),
            number(left.largest_on_one_node),
            format!("cpu {}, memory {}", of("cpu"), human(&of("memory"))),
            counted_workloads(&machine.pods),
        ];
        match rows.last_mut() {
            Some((same, last, count)) if same[1..] == cells[1..] => {
                last.clone_from(&machine.name);
                *count += 1;
            }
            _ => rows.push((cells, machine.name.clone(), 1)),
        }
    }
    let rows: Vec<Row> = rows
        .into_iter()
        .map(|(mut cells, last, count)| {
            if count > 1 {
                cells[0] = format!("{} … {last} ({count})", cells[0]);
            }
            Row { cells, notes: Vec::new(), warning: None }
        })
        .collect();
    let widths = widths(&head, &rows);
    let _ = writeln!(out, "{}", style.dim(&line(&head, &widths)));
    for row in &rows {
        let cells: Vec<&str> = row.cells.iter().map(String::as_str).collect();
        let _ = writeln!(out, "{}", line(&cells, &widths));
    }
    out.push('\n');
}

fn counted_workloads(pods: &[PodReport]) -> String {
    let mut counts: Vec<(&str, usize)> = Vec::new();
    for pod in pods {
        match counts.iter_mut().find(|(workload, _)| *workload == pod.workload) {
            Some((_, count)) => *count += 1,
            None => counts.push((&pod.workload, 1)),
        }
    }
    let counts: Vec<String> =
        counts.iter().map(|(workload, count)| format!("{count} × {workload}")).collect();
    if counts.is_empty() { "nothing".to_owned() } else { counts.join(", ") }
}

fn refused_pods(refused: &RefusedReport, style: TextStyle, out: &mut String) {
    let name = match refused.namespace.as_str() {
        "default" => refused.name.clone(),
        namespace => format!("{namespace}/{}", refused.name),
    };
    let more = match refused.count {
        1 => String::new(),
        n => format!(" and {} more like it", n - 1),
    };
    let _ = writeln!(out, "  {}{more}  {}", style.bold(&name), style.red(&refused.reason));
    let _ = writeln!(out, "      {}", refused.message);
    if let Some(detail) = &refused.detail {
        let _ = writeln!(out, "      {}", style.dim(detail));
    }
    if refused.machines.values().sum::<usize>() > 1 {
        let by_reason: Vec<String> =
            refused.machines.iter().map(|(reason, count)| format!("{count} × {reason}")).collect();
        let _ =
            writeln!(out, "      {}", style.dim(&format!("machines: {}", by_reason.join(", "))));
    }
    let Some(found) = &refused.remedies else { return };
    let place = refused.tried_on.as_ref().map(|name| format!(" on {name}")).unwrap_or_default();
    remedies(found, &place, style, out);
}

/// Writes the changes that would make a pod fit.
pub(crate) fn remedies(remedies: &[RemedyReport], place: &str, style: TextStyle, out: &mut String) {
    if remedies.is_empty() {
        let _ = writeln!(out, "      {}", style.dim("no single change would make it fit"));
        return;
    }
    let _ = writeln!(out, "      any of these would make it fit{place}:");
    for remedy in remedies {
        let _ = writeln!(out, "        {} {}", style.green("·"), remedy.text);
    }
}
