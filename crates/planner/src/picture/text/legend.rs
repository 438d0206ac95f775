//! Who is who below the machine: a line per occupant, the pools, what is free; distances if
//! nobody is there.
//!
//! Main entry: [`legend`].

use placement::CpuSet;

use super::super::layout::Use;
use super::super::{Occupant, Picture, Seat, words};
use super::Drawing;
use super::block::{Block, Line, Tone};

/// The most nodes whose distances are written as a table.
const TABLE: usize = 8;

pub(super) fn legend(drawing: &Drawing<'_>, picture: &Picture) -> Block {
    match picture.occupants.is_empty() {
        true => distances(drawing, picture),
        false => occupants(drawing, picture),
    }
}

struct Entry {
    used: Use,
    name: String,
    count: String,
    cpus: String,
    memory: String,
}

fn occupants(drawing: &Drawing<'_>, picture: &Picture) -> Block {
    let mut entries = Vec::new();
    for (index, occupant) in picture.occupants.iter().enumerate() {
        if let Some(number) = drawing.layout.number_of(index) {
            let cpus = occupant.seat.cpus() & picture.topology.all_cpus();
            entries.push(entry(
                drawing,
                Use::Exclusive(number),
                &occupant.full_name(),
                &cpus,
                occupant,
            ));
        }
    }
    let pools = [(Use::Reserved, "reserved"), (Use::Shared, "shared pool"), (Use::Free, "free")];
    for (used, name) in pools {
        let cpus = drawing.layout.cpus(used);
        let members: Vec<&Occupant> =
            picture.occupants.iter().filter(|o| in_pool(o, used)).collect();
        // Where there is a pool, it is what is left for others.
        let nothing_free = used == Use::Free && cpus.is_empty() && entries.len() > 1;
        if !nothing_free && (used == Use::Free || !members.is_empty()) {
            let nobody = Occupant::new("", Seat::SharedPool(CpuSet::new()));
            entries.push(entry(drawing, used, name, &cpus, &nobody));
        }
        for member in members {
            let mut entry = entry(drawing, used, &member.full_name(), &CpuSet::new(), member);
            entry.name.insert_str(0, "  ");
            entry.count.clear();
            // Only a pool of its own is worth a list.
            let own = member.seat.cpus() & picture.topology.all_cpus();
            if used == Use::Shared && own != cpus {
                entry.cpus = own.to_string();
            }
            entries.push(entry);
        }
    }
    table(drawing, &entries)
}

fn in_pool(occupant: &Occupant, used: Use) -> bool {
    matches!(
        (&occupant.seat, used),
        (Seat::SharedPool(_), Use::Shared) | (Seat::Reserved(_), Use::Reserved)
    )
}

fn entry(drawing: &Drawing<'_>, used: Use, name: &str, cpus: &CpuSet, who: &Occupant) -> Entry {
    Entry {
        used,
        name: drawing.plain(name),
        count: words::count(cpus.len(), "CPU", "CPUs"),
        cpus: cpus.to_string(),
        memory: words::shares(&who.memory),
    }
}

fn table(drawing: &Drawing<'_>, entries: &[Entry]) -> Block {
    let width = |text: &dyn Fn(&Entry) -> usize| entries.iter().map(text).max().unwrap_or(0);
    // What is left of the line after a long name still has to say something.
    let room = drawing.options.width.max(40);
    let names = width(&|e| e.name.chars().count()).min(room / 2);
    let counts = width(&|e| e.count.len());
    let lists = width(&|e| e.cpus.len()).min(room / 4);
    let mut block = Block::default();
    for entry in entries {
        let mut line = Line::default();
        let pool_member = entry.name.starts_with("  ");
        if pool_member {
            line.push(Tone::Plain, "   ");
        } else {
            line.push(Tone::Plain, " ");
            line.push(Tone::Used(entry.used), drawing.mark(entry.used));
            line.push(Tone::Plain, " ");
        }
        let cut = |text: &str, width: usize| {
            let mut line = Line::of(Tone::Plain, text);
            line.cut(width, drawing.ellipsis());
            line.0.iter().map(|span| span.1.as_str()).collect::<String>()
        };
        let name = cut(&entry.name, names);
        line.push(if pool_member { Tone::Plain } else { Tone::Strong }, format!("{name:names$}"));
        line.push(Tone::Plain, format!("  {:>counts$}", entry.count));
        let list = cut(&entry.cpus, lists);
        line.push(Tone::Plain, format!("  {list:lists$}"));
        line.push(Tone::Faint, format!("  {}", entry.memory));
        line.cut(drawing.options.width.max(40), drawing.ellipsis());
        block.push(line);
    }
    block
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
