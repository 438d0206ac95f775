//! The legend below the machine: a line per owner, the pools, the free CPUs; distances if there are
//! no owners.
//!
//! Main entry: [`legend`].

use placement::CpuSet;

use super::super::layout::Use;
use super::super::{CpuAssignment, CpuOwner, Picture, format};
use super::Drawing;
use super::block::{Block, Line, Tone};

/// The most nodes whose distances are written as a table.
const TABLE: usize = 8;

pub(super) fn legend(drawing: &Drawing<'_>, picture: &Picture) -> Block {
    match picture.owners.is_empty() {
        true => distances(drawing, picture),
        false => owners(drawing, picture),
    }
}

struct Entry {
    used: Use,
    name: String,
    count: String,
    cpus: String,
    memory: String,
    /// Below the other columns: the members of a pool.
    members: Vec<String>,
}

fn owners(drawing: &Drawing<'_>, picture: &Picture) -> Block {
    let all = picture.topology.all_cpus();
    let entry = |used: Use, name: &str, cpus: &CpuSet| Entry {
        used,
        name: drawing.plain(name),
        count: format::count(cpus.len(), "CPU", "CPUs"),
        cpus: cpus.to_string(),
        memory: String::new(),
        members: Vec::new(),
    };
    let mut entries = Vec::new();
    for (index, owner) in picture.owners.iter().enumerate() {
        if let Some(number) = drawing.layout.number_of(index) {
            let cpus = owner.assignment.cpus() & all;
            let memory = format::shares(&owner.memory);
            let entry = entry(Use::Exclusive(number), &owner.full_name(), &cpus);
            entries.push(Entry { memory, ..entry });
        }
    }
    let pools = [(Use::Reserved, "reserved"), (Use::Shared, "shared pool"), (Use::Free, "free")];
    for (used, name) in pools {
        let cpus = drawing.layout.cpus(used);
        let of_pool: Vec<&CpuOwner> =
            picture.owners.iter().filter(|owner| in_pool(owner, used)).collect();
        // If there is a pool, it contains the free CPUs.
        let nothing_free = used == Use::Free && cpus.is_empty() && entries.len() > 1;
        if nothing_free || (used != Use::Free && of_pool.is_empty()) {
            continue;
        }
        let members = of_pool.iter().map(|o| drawing.plain(&member(o, &cpus, all))).collect();
        entries.push(Entry { members, ..entry(used, name, &cpus) });
    }
    table(drawing, &entries)
}

fn in_pool(owner: &CpuOwner, used: Use) -> bool {
    matches!(
        (&owner.assignment, used),
        (CpuAssignment::SharedPool(_), Use::Shared) | (CpuAssignment::Reserved(_), Use::Reserved)
    )
}

/// Returns a member of a pool, with its differences from the other members.
fn member(owner: &CpuOwner, pool: &CpuSet, all: &CpuSet) -> String {
    let mut about = Vec::new();
    let cpus = owner.assignment.cpus() & all;
    if matches!(owner.assignment, CpuAssignment::SharedPool(_)) && !pool.is_subset(&cpus) {
        about.push(format!("CPUs {cpus}"));
    }
    if !owner.memory.is_empty() {
        about.push(format::shares(&owner.memory));
    }
    match about.is_empty() {
        true => owner.full_name(),
        false => format!("{} ({})", owner.full_name(), about.join(", ")),
    }
}

fn table(drawing: &Drawing<'_>, entries: &[Entry]) -> Block {
    let width = |text: &dyn Fn(&Entry) -> usize| entries.iter().map(text).max().unwrap_or(0);
    // The column after a long name needs a useful width.
    let room = drawing.options.width.max(40);
    let names = width(&|e| e.name.chars().count()).min(room / 2);
    let counts = width(&|e| e.count.len());
    let lists = width(&|e| e.cpus.len()).min(room / 4);
    let mut block = Block::default();
    for entry in entries {
        let cut = |text: &str, width: usize| {
            let mut line = Line::of(Tone::Plain, text);
            line.cut(width, drawing.ellipsis());
            line.0.iter().map(|span| span.1.as_str()).collect::<String>()
        };
        let mut line = Line::of(Tone::Plain, " ");
        line.push(Tone::Used(entry.used), drawing.mark(entry.used));
        line.push(Tone::Plain, " ");
        line.push(Tone::Strong, format!("{:names$}", cut(&entry.name, names)));
        line.push(Tone::Plain, format!("  {:>counts$}", entry.count));
        line.push(Tone::Plain, format!("  {:lists$}", cut(&entry.cpus, lists)));
        line.push(Tone::Faint, format!("  {}", entry.memory));
        line.cut(room, drawing.ellipsis());
        block.push(line);
        members(drawing, &entry.members, room, &mut block);
    }
    block
}

/// Lists the members of a pool; the last line counts those without space.
fn members(drawing: &Drawing<'_>, members: &[String], room: usize, block: &mut Block) {
    const LINES: usize = 3;
    const INDENT: &str = "     ";
    let mut lines: Vec<String> = Vec::new();
    for (at, member) in members.iter().enumerate() {
        let left = members.len() - at;
        let comma = if left > 1 { ", " } else { "" };
        // The last line keeps space for the count.
        let last_line = lines.len() == LINES;
        let rest = if last_line && left > 1 { 16 } else { 0 };
        let fits = |line: &String| {
            line.chars().count() + member.chars().count() + comma.len() + rest <= room
        };
        match lines.last_mut() {
            Some(line) if fits(line) => line.push_str(&format!("{member}{comma}")),
            Some(line) if last_line => {
                line.push_str(&format!("and {left} more"));
                break;
            }
            _ => lines.push(format!("{INDENT}{member}{comma}")),
        }
    }
    for line in lines {
        let mut line = Line::of(Tone::Faint, line);
        line.cut(room, drawing.ellipsis());
        block.push(line);
    }
}

fn distances(drawing: &Drawing<'_>, picture: &Picture) -> Block {
    let mut block = Block::default();
    let nodes = picture.topology.nodes();
    let Some(rows) = picture.topology.distances() else { return block };
    if nodes.len() < 2 {
        return block;
    }
    if nodes.len() > TABLE {
        let mut values: Vec<u32> = rows.iter().flatten().copied().collect();
        values.sort_unstable();
        values.dedup();
        let shown: Vec<String> = values.iter().take(16).map(u32::to_string).collect();
        let more = if values.len() > 16 { drawing.ellipsis() } else { "" };
        let text = format!("distances between nodes: {}{more}", shown.join(", "));
        block.push(Line::of(Tone::Faint, text));
        return block;
    }
    let cells = rows.iter().flatten().map(|d| d.to_string().len());
    let ids = nodes.iter().map(|node| node.id.to_string().len());
    let width = cells.chain(ids).max().unwrap_or(1);
    let mut heading = Line::of(Tone::Faint, format!("distance {:width$}", ""));
    for node in nodes {
        heading.push(Tone::Strong, format!(" {:>width$}", node.id.0));
    }
    block.push(heading);
    for (node, row) in nodes.iter().zip(rows) {
        let mut line = Line::of(Tone::Faint, "         ");
        line.push(Tone::Strong, format!("{:>width$}", node.id.0));
        for distance in row {
            line.push(Tone::Plain, format!(" {distance:>width$}"));
        }
        block.push(line);
    }
    block
}
