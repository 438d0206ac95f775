//! Renders a picture as SVG: one file for light and dark mode, without scripts or fonts.
//!
//! Main entry: [`render_svg`]. Colours and patterns are in [`style`], positions in [`geometry`].
//! Every CPU and every piece of memory has a tooltip; the description repeats the content as text.

use objects::pod::OsName;
use std::fmt::Write as _;

use placement::CpuId;
use placement::topology::Cpu;
use placement::windows::{GROUP_SIZE, GroupId};

use super::escape::{shorten, xml};
use super::layout::{Kind, Layout, NodeMemory, Use};
use super::{CpuAssignment, Picture, format};

mod geometry;
mod legend;
pub(super) mod style;

use geometry::{Placed, PlacedCore, Plane, is_cache};

/// Around the machine.
const MARGIN: u32 = 22;

/// The narrowest picture: titles need space too.
const NARROWEST: u32 = 520;

/// Up to this width a machine has its legend on the right.
const BESIDE: u32 = 420;

/// The longest name in a tooltip.
const NAME: usize = 100;

/// Above this many CPUs cells have no tooltips, or files would be too large to open.
const MAX_TOOLTIPS: usize = 4096;

const PROLOGUE: &str = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n";

/// Renders a picture as an SVG file.
#[must_use]
pub fn render_svg(picture: &Picture) -> String {
    let mut out = String::from(PROLOGUE);
    draw(picture, "berth", true, &mut out);
    out
}

/// Renders several pictures below each other in one SVG file.
#[must_use]
pub fn render_svg_sheet(pictures: &[Picture]) -> String {
    const GAP: u32 = 16;
    let mut drawn = String::new();
    let (mut width, mut bottom) = (NARROWEST, 0);
    for (index, picture) in pictures.iter().enumerate() {
        // A nested element takes its position from the enclosing group.
        let _ = writeln!(drawn, "<g transform=\"translate(0 {bottom})\">");
        let size = draw(picture, &format!("berth{index}"), false, &mut drawn);
        drawn.push_str("</g>\n");
        width = width.max(size.0);
        bottom += size.1 + GAP;
    }
    let height = bottom.saturating_sub(GAP).max(1);
    format!(
        "{PROLOGUE}<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"berth\" \
         viewBox=\"0 0 {width} {height}\" width=\"{width}\" height=\"{height}\">\n\
         <style>\n{}</style>\n<defs>\n{}</defs>\n{drawn}</svg>\n",
        style::sheet(),
        style::PATTERNS
    )
}

/// Writes a picture as an `svg` element, and returns its width and height. Ids start with `prefix`;
/// with `whole` the style sheet and the patterns are included.
pub(super) fn draw(picture: &Picture, prefix: &str, whole: bool, out: &mut String) -> (u32, u32) {
    let layout = Layout::new(picture);
    let plane = geometry::place(&layout, picture.topology.cpus().len());
    let tooltips = picture.topology.cpus().len() <= MAX_TOOLTIPS;
    let mut canvas =
        Canvas { picture, layout: &layout, plane: &plane, tooltips, out: String::new() };

    let nobody = picture.owners.is_empty();
    let beside = plane.width <= BESIDE && layout.without_cpus.is_empty() && !nobody;
    let mut width = (plane.width + 2 * MARGIN).max(NARROWEST);
    if beside {
        width = plane.width + 2 * MARGIN + 28 + legend::COLUMN + 30;
    }
    let top = MARGIN + 54;
    canvas.text(MARGIN, MARGIN + 17, "ti tx", title(picture));
    canvas.text(MARGIN, MARGIN + 37, "fa mu", &format::facts(picture).join(" · "));
    let _ = write!(canvas.out, "<g transform=\"translate({MARGIN} {top})\">");
    for region in &plane.regions {
        canvas.region(region);
    }
    canvas.out.push_str("</g>\n");
    let mut bottom = top + plane.height + 14;
    bottom = canvas.memory_nodes(bottom, width - 2 * MARGIN);
    bottom = match (nobody, beside) {
        (true, _) => bottom - 4,
        (false, false) => legend::draw(&mut canvas, [MARGIN, bottom + 6], width - 2 * MARGIN),
        (false, true) => {
            let left = MARGIN + plane.width + 28;
            legend::draw(&mut canvas, [left, top], legend::COLUMN + 30).max(bottom)
        }
    };
    let height = bottom + MARGIN - 6;

    let _ = write!(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"berth\" role=\"img\" \
         aria-labelledby=\"{prefix}-title {prefix}-desc\" viewBox=\"0 0 {width} {height}\" \
         width=\"{width}\" height=\"{height}\">\n<title id=\"{prefix}-title\">{}</title>\n\
         <desc id=\"{prefix}-desc\">{}</desc>\n",
        xml(title(picture)),
        xml(&description(picture, &layout)),
    );
    if whole {
        let _ = write!(out, "<style>\n{}</style>\n", style::sheet());
        let _ = write!(out, "<defs>\n{}</defs>\n", style::PATTERNS);
    }
    let (w, h) = (width - 1, height - 1);
    let _ = writeln!(
        out,
        "<rect class=\"bg\" x=\".5\" y=\".5\" width=\"{w}\" height=\"{h}\" rx=\"10\"/>"
    );
    out.push_str(&canvas.out);
    out.push_str("</svg>\n");
    (width, height)
}

fn title(picture: &Picture) -> &str {
    if picture.title.is_empty() { "machine" } else { &picture.title }
}

/// Returns the picture as text, for screen readers.
fn description(picture: &Picture, layout: &Layout) -> String {
    // A longer description is of no use in a screen reader.
    const MOST: usize = 60;
    let mut text = format!("{}.", format::facts(picture).join(", "));
    for owner in picture.owners.iter().take(MOST) {
        let how = match &owner.assignment {
            CpuAssignment::Exclusive(_) => "holds",
            CpuAssignment::SharedPool(_) => "shares",
            CpuAssignment::Reserved(_) => "reserves",
        };
        let cpus = owner.assignment.cpus();
        let cpus = if cpus.is_empty() { "no CPUs".into() } else { format!("CPUs {cpus}") };
        let _ = write!(text, " {} {how} {cpus}.", shorten(&owner.full_name(), NAME));
    }
    if picture.owners.len() > MOST {
        let _ = write!(text, " And {} more.", picture.owners.len() - MOST);
    }
    if !picture.owners.is_empty() {
        let free = layout.cpus(Use::Free);
        let _ = write!(text, " {} free.", format::count(free.len(), "CPU is", "CPUs are"));
    }
    text
}

/// The drawing surface.
struct Canvas<'a> {
    picture: &'a Picture,
    layout: &'a Layout,
    plane: &'a Plane<'a>,
    /// True if CPUs have tooltips.
    tooltips: bool,
    out: String,
}

impl Canvas<'_> {
    fn text(&mut self, x: u32, y: u32, class: &str, text: &str) {
        let text = xml(text);
        let _ = writeln!(self.out, "<text class=\"{class}\" x=\"{x}\" y=\"{y}\">{text}</text>");
    }

    fn rect(&mut self, class: &str, [x, y, width, height]: [u32; 4], round: u32) {
        let _ = writeln!(
            self.out,
            "<rect class=\"{class}\" x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\" \
             rx=\"{round}\"/>"
        );
    }

    fn region(&mut self, placed: &Placed<'_>) {
        let region = placed.region;
        let place = [placed.x, placed.y, placed.width, placed.height];
        let class = match () {
            () if region.is(Kind::Group) => "gr",
            () if region.is(Kind::Node) => "nd",
            () if is_cache(region) => "ca",
            () => "so",
        };
        let cache = is_cache(region);
        self.rect(class, place, if cache { 4 } else { 7 });
        self.heading(placed);
        for inner in &placed.inside {
            self.region(inner);
        }
        for core in &placed.cores {
            self.core(core);
        }
        if let Some(node) = region.memory {
            let pad = self.plane.scale.pad(region);
            let height = self.plane.scale.bar;
            let y = placed.y + placed.height - pad - height;
            self.bar(node, [placed.x + pad, y, placed.width - 2 * pad, height]);
        }
    }

    /// Names on the left, memory on the right, CPUs between if there is space.
    fn heading(&mut self, placed: &Placed<'_>) {
        let region = placed.region;
        let scale = &self.plane.scale;
        let header = scale.header(region);
        let names: Vec<String> = region.names.iter().map(|name| name_of(*name)).collect();
        let names = names.join(" · ");
        if is_cache(region) {
            // Caches of small machines have no space for names; those of large ones have tooltips.
            if header >= 10 {
                let x = placed.x + scale.pad(region);
                let room = placed.width.saturating_sub(2 * scale.pad(region));
                let with_cpus = format!("{names} · {}", region.cpus);
                let fits = estimate(&with_cpus, 9.5) <= room;
                let text = if fits { with_cpus } else { names };
                self.text(x, placed.y + header - 4, "nt mu", &text);
            }
            return;
        }
        let (class, font, small) =
            if header >= 22 { ("na tx", 12.5, "no mu") } else { ("ns tx", 10.5, "nt mu") };
        let small_font = if header >= 22 { 11.0 } else { 9.5 };
        let pad = scale.pad(region);
        let (left, right) = (placed.x + pad, placed.x + placed.width - pad);
        let base = placed.y + header - if header >= 22 { 8 } else { 6 };
        let mut room = placed.width.saturating_sub(2 * pad);
        self.text(left, base, class, &names);
        // Bold letters are wider.
        let taken = estimate(&names, font * 1.08) + 10;
        room = room.saturating_sub(taken);
        if let Some(node) = region.memory {
            let memory = &self.layout.memory[node];
            let fits = |amounts: &String| estimate(amounts, small_font) <= room;
            let mut wordings = [" of ", "/"].map(|of| self.amounts(memory, of)).to_vec();
            if memory.total.0 > 0 {
                wordings.push(format::amount(memory.total));
            }
            if let Some(amounts) = wordings.into_iter().find(fits) {
                self.text(right, base, &format!("{small} r"), &amounts);
            }
            // The same for all nodes, so that all or none name their CPUs.
            room = room.saturating_sub(estimate("1000Gi of 1000Gi", small_font));
        }
        let cpus = format!("CPUs {}", region.cpus);
        if estimate(&cpus, small_font) <= room && !named_inside(placed, header) {
            self.text(left + taken, base, small, &cpus);
        }
    }

    fn amounts(&self, memory: &NodeMemory, of: &str) -> String {
        if memory.total.0 == 0 {
            return String::new();
        }
        let total = format::amount(memory.total);
        match memory.owned.is_empty() {
            true => total,
            false => format!("{}{of}{total}", format::amount(memory.used())),
        }
    }

    fn core(&mut self, placed: &PlacedCore<'_>) {
        let scale = &self.plane.scale;
        let (width, height) = geometry::core_size(scale, self.plane.threads);
        let across = self.plane.threads.0 as usize;
        let rows = placed.core.cpus.len().div_ceil(across) as u32;
        let step = (scale.cell.0 + scale.thread_gap, scale.cell.1 + scale.thread_gap);
        let height = height.min(rows * step.1 + scale.thread_gap);
        if placed.core.cpus.len() > 1 {
            self.rect("co", [placed.x, placed.y, width, height], 3);
        } else {
            let (x, y) = (placed.x, placed.y);
            self.rect("co", [x, y, step.0 + scale.thread_gap, height], 3);
        }
        for (at, cpu) in placed.core.cpus.iter().enumerate() {
            let x = placed.x + scale.thread_gap + (at % across) as u32 * step.0;
            let y = placed.y + scale.thread_gap + (at / across) as u32 * step.1;
            self.cpu(*cpu, x, y);
        }
    }

    fn cpu(&mut self, id: CpuId, x: u32, y: u32) {
        let scale = self.plane.scale;
        let used = self.layout.use_of(id);
        let (width, height) = scale.cell;
        self.open(used);
        if let Some(cpu) = self.picture.topology.cpu(id).filter(|_| self.tooltips) {
            let tooltip = self.cpu_tooltip(cpu);
            let _ = write!(self.out, "<title>{tooltip}</title>");
        }
        let place = format!("x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\" rx=\"2\"");
        let _ = write!(self.out, "<rect {place}/>");
        if let Some(pattern) = pattern(used) {
            let _ = write!(self.out, "<rect class=\"v v{pattern}\" {place}/>");
        }
        if scale.id_font > 0 {
            let (font, base) = (scale.id_font, y + (height + scale.id_font) / 2 - 1);
            let letter = match used {
                Use::Exclusive(number) if scale.letters => Some(super::text::letter(number)),
                _ => None,
            };
            let middle = if letter.is_some() { x + width * 2 / 3 } else { x + width / 2 };
            let _ = write!(
                self.out,
                "<text class=\"m\" x=\"{middle}\" y=\"{base}\" font-size=\"{font}\">{id}</text>"
            );
            if let Some(letter) = letter {
                let middle = x + width / 4;
                let _ = write!(
                    self.out,
                    "<text class=\"m w\" x=\"{middle}\" y=\"{base}\" font-size=\"{font}\">{letter}</text>"
                );
            }
        }
        self.out.push_str("</g>\n");
    }

    /// Opens the group of a use; its class selects the colours.
    fn open(&mut self, used: Use) {
        let _ = match used {
            Use::Free => write!(self.out, "<g class=\"fr\">"),
            Use::Shared => write!(self.out, "<g class=\"sh\">"),
            Use::Reserved => write!(self.out, "<g class=\"re\">"),
            Use::Exclusive(number) => {
                let colour = number % style::COLOURS;
                write!(self.out, "<g class=\"o{colour}\" data-o=\"{number}\">")
            }
        };
    }

    /// Returns the escaped tooltip: a line for the CPU and one for each of its first users.
    fn cpu_tooltip(&self, cpu: &Cpu) -> String {
        // A pool may have hundreds of members, and each of its CPUs would name them all.
        const MOST: usize = 4;
        let mut text = format!("CPU {}", cpu.cpu);
        if self.picture.os == OsName::Windows {
            let group = GroupId::of(cpu.cpu);
            let _ = write!(text, " (group {group}, processor {})", cpu.cpu.0 % GROUP_SIZE);
        }
        let _ = write!(
            text,
            " · core {} · L3 {} · NUMA {} · socket {}",
            cpu.core, cpu.cache, cpu.numa, cpu.socket
        );
        let users = || {
            let owners = self.picture.owners.iter();
            owners.filter(|owner| owner.assignment.cpus().contains(cpu.cpu))
        };
        for owner in users().take(MOST) {
            let how = match owner.assignment {
                CpuAssignment::Exclusive(_) => "exclusive",
                CpuAssignment::SharedPool(_) => "shared",
                CpuAssignment::Reserved(_) => "reserved",
            };
            let _ = write!(text, "\n{} ({how})", xml(&shorten(&owner.full_name(), NAME)));
            if !owner.note.is_empty() && matches!(owner.assignment, CpuAssignment::Exclusive(_)) {
                let _ = write!(text, ": {}", xml(&shorten(&owner.note, NAME)));
            }
        }
        match users().count() {
            0 if self.picture.owners.is_empty() => {}
            0 => text.push_str("\nfree"),
            all if all > MOST => {
                let _ = write!(text, "\nand {} more", all - MOST);
            }
            _ => {}
        }
        text
    }

    fn bar(&mut self, node: usize, [x, y, width, height]: [u32; 4]) {
        let memory = &self.layout.memory[node];
        if memory.total.0 == 0 {
            return;
        }
        let id = self.picture.topology.nodes()[node].id;
        self.out.push_str("<g class=\"fr\">");
        self.rect("", [x, y, width, height], 2);
        self.out.push_str("</g>\n");
        let at = |bytes: u64| {
            let tenths = u128::from(width) * 10 * u128::from(bytes) / u128::from(memory.total.0);
            tenths as f64 / 10.0
        };
        for piece in memory.pieces() {
            let from = at(piece.start.0);
            let length = at(piece.start.0 + piece.length.0) - from;
            let place = |class: &str| {
                format!(
                    "<rect{class} x=\"{:.1}\" y=\"{y}\" width=\"{length:.1}\" height=\"{height}\"/>",
                    f64::from(x) + from
                )
            };
            let kind = match piece.huge {
                Some(size) => format!("in {} pages", format::amount(size)),
                None => "memory".to_owned(),
            };
            let tooltip = match piece.owned {
                Some(owned) => {
                    let who = self.picture.owners[owned.owner].full_name();
                    let amount = format::amount(owned.amount);
                    format!("NUMA {id}: {amount} {kind} of {}", shorten(&who, NAME))
                }
                None => format!("NUMA {id}: {} {kind} free", format::amount(piece.length)),
            };
            let used = piece.owned.map_or(Use::Free, |owned| owned.by);
            self.open(used);
            let _ = write!(self.out, "<title>{}</title>{}", xml(&tooltip), place(""));
            if let Some(pattern) = pattern(used) {
                self.out.push_str(&place(&format!(" class=\"v v{pattern}\"")));
            }
            if piece.huge.is_some() && piece.owned.is_none() {
                self.out.push_str(&place(" class=\"hp\""));
            }
            self.out.push_str("</g>\n");
        }
        self.rect("ba", [x, y, width, height], 2);
    }

    /// Draws nodes without CPUs below the machine, identical ones in one line.
    fn memory_nodes(&mut self, mut y: u32, width: u32) -> u32 {
        let mut lines = Vec::new();
        for nodes in &self.layout.without_cpus {
            let ids = format::ranges(nodes.ids.iter().map(|id| id.0));
            let mut name = format!("NUMA {}", shorten(&ids, 40));
            if nodes.ids.len() > 1 {
                let _ = write!(name, " × {}", nodes.ids.len());
            }
            let mut about = self.amounts(&self.layout.memory[nodes.node], " of ");
            if about.is_empty() {
                about = "no memory".into();
            } else if nodes.ids.len() > 1 {
                about.push_str(" each");
            }
            lines.push((nodes.node, name, format!("memory only · {about}")));
        }
        let widest = |text: &dyn Fn(&(usize, String, String)) -> u32| lines.iter().map(text).max();
        let names = widest(&|(_, name, _)| estimate(name, 13.5)).unwrap_or(0);
        let abouts = widest(&|(_, _, about)| estimate(about, 11.0)).unwrap_or(0);
        for (node, name, about) in &lines {
            self.rect("nd", [MARGIN, y, width, 28], 7);
            self.text(MARGIN + 9, y + 18, "na tx", name);
            let left = MARGIN + 17 + names;
            self.text(left, y + 18, "no mu", about);
            let bar = left + abouts + 12;
            let right = MARGIN + width - 9;
            if bar + 60 < right {
                self.bar(*node, [bar, y + 10, right - bar, 9]);
            }
            y += 34;
        }
        y
    }
}

/// Returns true if the caches within a region name their CPUs.
fn named_inside(placed: &Placed<'_>, header: u32) -> bool {
    header >= 22 && !placed.inside.is_empty() && placed.inside.iter().all(|p| is_cache(p.region))
}

/// Returns the pattern over the colour.
fn pattern(used: Use) -> Option<usize> {
    match used {
        Use::Exclusive(number) => match (number / style::COLOURS) % (style::PATTERN_COUNT + 1) {
            0 => None,
            pattern => Some(pattern),
        },
        _ => None,
    }
}

fn name_of(name: super::layout::Name) -> String {
    let word = match name.kind {
        Kind::Group => "processor group",
        Kind::Socket => "socket",
        Kind::Node => "NUMA",
        Kind::Cache => "L3",
    };
    match name.part {
        Some((nth, of)) => format!("{word} {} (part {nth} of {of})", name.id),
        None => format!("{word} {}", name.id),
    }
}

/// Estimates the width of a text, rounded up: viewers have different fonts.
fn estimate(text: &str, font: f64) -> u32 {
    (text.chars().count() as f64 * font * 0.62).ceil() as u32
}

/// Writes a small square in an owner's colour and pattern, for tables.
pub(super) fn chip(number: usize, out: &mut String) {
    let colour = number % style::COLOURS;
    let _ = write!(
        out,
        "<svg class=\"berth chip\" width=\"18\" height=\"18\" aria-hidden=\"true\">\
         <g class=\"o{colour}\"><rect width=\"18\" height=\"18\" rx=\"3\"/>"
    );
    if let Some(pattern) = pattern(Use::Exclusive(number)) {
        let _ = write!(out, "<rect class=\"v v{pattern}\" width=\"18\" height=\"18\" rx=\"3\"/>");
    }
    out.push_str("</g></svg>");
}
