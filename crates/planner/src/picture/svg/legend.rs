//! The legend below the machine.
//!
//! Main entry: [`draw`].

use std::collections::BTreeMap;
use std::fmt::Write as _;

use placement::CpuSet;
use placement::demand::MemoryKind;

use super::super::escape::shorten;
use super::super::layout::Use;
use super::super::{CpuAssignment, CpuOwner, format, text};
use super::{Canvas, estimate, pattern};

/// The narrowest column.
pub(super) const COLUMN: u32 = 280;

const ROW: u32 = 40;

/// The most owners in the legend; the page's table and the terminal list all.
const MOST: usize = 60;

struct Entry {
    used: Use,
    name: String,
    detail: String,
    count: String,
    about: String,
}

/// Draws the legend from a corner on and returns its bottom.
pub(super) fn draw(canvas: &mut Canvas<'_>, [left, top]: [u32; 2], width: u32) -> u32 {
    let entries = entries(canvas);
    let columns = (width / COLUMN).clamp(1, 4).min(entries.len().max(1) as u32);
    let column = width / columns;
    // Entries are ordered down the columns.
    let rows = (entries.len() as u32).div_ceil(columns);
    for (at, entry) in entries.iter().enumerate() {
        let (across, down) = (at as u32 / rows, at as u32 % rows);
        let gap = if columns > 1 { 20 } else { 0 };
        draw_entry(canvas, entry, left + across * column, top + down * ROW, column - gap);
    }
    top + rows * ROW
}

fn draw_entry(canvas: &mut Canvas<'_>, entry: &Entry, x: u32, y: u32, width: u32) {
    canvas.open(entry.used);
    canvas.rect("", [x, y + 2, 24, 26], 4);
    if let Some(pattern) = pattern(entry.used) {
        canvas.rect(&format!("v v{pattern}"), [x, y + 2, 24, 26], 4);
    }
    if let (Use::Exclusive(number), true) = (entry.used, canvas.plane.scale.letters) {
        let letter = text::letter(number);
        let x = x + 12;
        let y = y + 20;
        let _ = write!(
            canvas.out,
            "<text class=\"m w\" x=\"{x}\" y=\"{y}\" font-size=\"13\">{letter}</text>"
        );
    }
    canvas.out.push_str("</g>\n");
    if entry.used == Use::Free {
        canvas.rect("ba", [x, y + 2, 24, 26], 4);
    }
    let (left, right) = (x + 33, x + width);
    let count = estimate(&entry.count, 11.0);
    let room = width.saturating_sub(33 + count + 10);
    let letters = |room: u32, font: f64| (f64::from(room) / (font * 0.58)) as usize;
    let name = shorten(&entry.name, letters(room, 13.0)).into_owned();
    canvas.text(left, y + 13, "le tx", &name);
    canvas.text(right, y + 13, "no mu r", &entry.count);
    let mut second = entry.detail.clone();
    if !second.is_empty() && !entry.about.is_empty() {
        second.push_str(" · ");
    }
    second.push_str(&entry.about);
    let second = shorten(&second, letters(width.saturating_sub(33), 11.0)).into_owned();
    canvas.text(left, y + 28, "no mu", &second);
}

fn entries(canvas: &Canvas<'_>) -> Vec<Entry> {
    let picture = canvas.picture;
    let all = picture.topology.all_cpus();
    let mut entries = Vec::new();
    let mut unnamed = 0;
    for (index, owner) in picture.owners.iter().enumerate() {
        let Some(number) = canvas.layout.number_of(index) else { continue };
        if number >= MOST {
            unnamed += 1;
            continue;
        }
        let cpus = owner.assignment.cpus() & all;
        entries.push(Entry {
            used: Use::Exclusive(number),
            name: owner.label.clone(),
            detail: owner.detail.clone(),
            count: format::count(cpus.len(), "CPU", "CPUs"),
            about: about(&cpus, owner),
        });
    }
    if unnamed > 0 {
        entries.push(Entry {
            used: Use::Free,
            name: format!("… and {unnamed} more"),
            detail: "in the same colours".into(),
            count: String::new(),
            about: String::new(),
        });
    }
    for (used, name) in
        [(Use::Reserved, "reserved"), (Use::Shared, "shared pool"), (Use::Free, "free")]
    {
        let cpus = canvas.layout.cpus(used);
        let members: Vec<&CpuOwner> = picture
            .owners
            .iter()
            .filter(|owner| match owner.assignment {
                CpuAssignment::Exclusive(_) => false,
                CpuAssignment::SharedPool(_) => used == Use::Shared,
                CpuAssignment::Reserved(_) => used == Use::Reserved,
            })
            .collect();
        // If there is a pool, it contains the free CPUs.
        let nothing_free = cpus.is_empty() && !entries.is_empty();
        if members.is_empty() && (used != Use::Free || nothing_free) {
            continue;
        }
        entries.push(Entry {
            used,
            name: name.into(),
            detail: pool(&members),
            count: format::count(cpus.len(), "CPU", "CPUs"),
            about: if cpus.is_empty() { String::new() } else { cpus.to_string() },
        });
    }
    entries
}

/// Returns a short list of the members of a pool.
fn pool(members: &[&CpuOwner]) -> String {
    match members {
        [] => String::new(),
        [one] => one.full_name(),
        [first, ..] => format!("{} and {} more", shorten(&first.label, 30), members.len() - 1),
    }
}

fn about(cpus: &CpuSet, owner: &CpuOwner) -> String {
    let mut parts = Vec::new();
    if !cpus.is_empty() {
        parts.push(shorten(&cpus.to_string(), 28).into_owned());
    }
    let mut kinds: BTreeMap<MemoryKind, u64> = BTreeMap::new();
    for share in &owner.memory {
        let sum = kinds.entry(share.kind).or_default();
        *sum = sum.saturating_add(share.amount.0);
    }
    for (kind, sum) in kinds.into_iter().rev() {
        parts.push(format::share(kind, placement::Bytes(sum)));
    }
    let mut nodes: Vec<u32> = owner.memory.iter().map(|share| share.node.0).collect();
    nodes.sort_unstable();
    if !nodes.is_empty() {
        parts.push(format!("NUMA {}", format::ranges(nodes)));
    }
    parts.join(" · ")
}
