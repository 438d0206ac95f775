//! Renders a picture for the terminal: frames for the parts of the machine, a mark for each CPU.
//!
//! Main entry: [`render_text`]. Small machines show each core as a box with its CPU ids; larger
//! ones a cell per core and a line per cache; on the largest, identical neighbours are drawn once.
//! It does not query the terminal.

use placement::CpuSet;

use super::escape::plain;
use super::layout::{Core, Inside, Kind, Layout, NodeMemory, Region, Use};
use super::{Picture, format};

mod block;
mod legend;

use block::{Block, Frame, Line, Span, Tone};

/// Options of the text renderer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TextOptions {
    /// Columns. Parts that cannot be made narrower exceed this.
    pub width: usize,
    pub ink: Ink,
    /// Use colours with escape sequences.
    pub colours: bool,
}

/// The available characters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ink {
    #[default]
    Unicode,
    Ascii,
}

/// Up to this many CPUs each core is a box of its own.
const SMALL: usize = 32;

/// From this many CPUs identical neighbours are drawn once: more does not fit a screen.
const LARGE: usize = 512;

/// The most columns for the cores of one cache, so that several fit side by side.
const ROW: usize = 47;

/// Draws a picture for the terminal.
#[must_use]
pub fn render_text(picture: &Picture, options: TextOptions) -> String {
    let layout = Layout::new(picture);
    let draw = |lists: bool| {
        let drawing = Drawing {
            layout: &layout,
            options,
            small: picture.topology.cpus().len() <= SMALL,
            fold: picture.topology.cpus().len() >= LARGE,
            lists,
            anybody: !picture.owners.is_empty(),
        };
        drawing.machine(picture)
    };
    let (with, without) = (draw(true), draw(false));
    let fits = |block: &Block| block.width() <= options.width;
    let block = match with.0.len() <= without.0.len() && (fits(&with) || !fits(&without)) {
        true => with,
        false => without,
    };
    print(&block, options)
}

/// The state of a drawing.
struct Drawing<'a> {
    layout: &'a Layout,
    options: TextOptions,
    small: bool,
    fold: bool,
    /// True if each cache names its CPUs.
    lists: bool,
    anybody: bool,
}

impl Drawing<'_> {
    fn machine(&self, picture: &Picture) -> Block {
        let mut heading = Line::default();
        let title = match picture.title.is_empty() {
            true => "machine",
            false => picture.title.as_str(),
        };
        heading.push(Tone::Strong, self.plain(title));
        heading.cut(self.options.width, self.ellipsis());
        let facts = format::facts(picture);
        let mut block = Block::default();
        let in_one_line = heading.width() + 2 + facts.join(", ").len();
        if in_one_line <= self.options.width {
            heading.push(Tone::Plain, format!("  {}", facts.join(", ")));
        } else {
            block.push(std::mem::take(&mut heading));
        }
        for (at, fact) in facts.iter().enumerate().filter(|_| in_one_line > self.options.width) {
            let comma = if at + 1 < facts.len() { ", " } else { "" };
            if heading.width() > 0 && heading.width() + fact.len() + 1 > self.options.width {
                block.push(std::mem::take(&mut heading));
            }
            heading.push(Tone::Plain, format!("{fact}{comma}"));
        }
        block.push(heading);
        let regions: Vec<&Region> = self.layout.regions.iter().collect();
        block.below(self.side_by_side(&[regions], self.options.width));
        for nodes in &self.layout.without_cpus {
            block.push(self.memory_only(nodes));
        }
        block.below(legend::legend(self, picture));
        block
    }

    fn ascii(&self) -> bool {
        self.options.ink == Ink::Ascii
    }

    fn plain(&self, text: &str) -> String {
        plain(text, self.ascii())
    }

    fn ellipsis(&self) -> &'static str {
        if self.ascii() { "..." } else { "…" }
    }

    fn times(&self) -> char {
        if self.ascii() { 'x' } else { '×' }
    }

    /// The character of a CPU or a piece of memory.
    fn mark(&self, used: Use) -> char {
        match (used, self.ascii()) {
            (Use::Free, false) => '·',
            (Use::Free, true) => '.',
            (Use::Shared, false) => '░',
            (Use::Shared, true) => '~',
            (Use::Reserved, false) => '▒',
            (Use::Reserved, true) => '#',
            (Use::Exclusive(number), _) => letter(number),
        }
    }

    /// Draws frames side by side, as many as fit. Each item of `identical` is a list of siblings;
    /// the lists look the same, and the first is drawn for all.
    fn side_by_side(&self, identical: &[Vec<&Region>], room: usize) -> Block {
        let Some(first) = identical.first() else { return Block::default() };
        let mut slices: Vec<Vec<&Region>> = Vec::new();
        for (at, region) in first.iter().enumerate() {
            let parallel = identical.iter().map(|siblings| siblings[at]);
            match slices.last_mut() {
                Some(slice)
                    if self.fold && !is_row(region) && slice[0].looks_like(region, self.layout) =>
                {
                    slice.extend(parallel);
                }
                _ => slices.push(parallel.collect()),
            }
        }
        if slices.iter().all(|slice| is_row(slice[0])) {
            return self.rows(&slices, room);
        }
        let draw = |slice: &[&Region], width: usize, height: usize| {
            self.frame(slice, identical.len(), room, width, height)
        };
        let natural: Vec<Block> = slices.iter().map(|slice| draw(slice, 0, 0)).collect();
        let width = natural.iter().map(Block::width).max().unwrap_or(0);
        let columns = columns(natural.len(), ((room + 1) / (width + 1)).max(1));
        let mut block = Block::default();
        for (row, heights) in slices.chunks(columns).zip(natural.chunks(columns)) {
            let height = heights.iter().map(|block| block.0.len()).max().unwrap_or(0);
            let width = if slices.len() > 1 { width } else { 0 };
            let mut line: Option<Block> = None;
            for slice in row {
                let next = draw(slice, width, height);
                match &mut line {
                    Some(line) => line.beside(next),
                    None => line = Some(next),
                }
            }
            block.below(line.unwrap_or_default());
        }
        block
    }

    /// Draws the frame of identical regions, found in identical `parents`.
    fn frame(
        &self,
        slice: &[&Region],
        parents: usize,
        room: usize,
        width: usize,
        height: usize,
    ) -> Block {
        let inner = room.saturating_sub(4);
        let mut body = match &slice[0].inside {
            Inside::Cores(cores) => self.cores(cores, inner.min(self.row_limit())),
            Inside::Regions(_) => {
                let children = slice.iter().map(|region| match &region.inside {
                    Inside::Regions(regions) => regions.iter().collect(),
                    Inside::Cores(_) => Vec::new(),
                });
                self.side_by_side(&children.collect::<Vec<_>>(), inner)
            }
        };
        let title = self.title(slice, parents, inner.saturating_sub(2));
        if let Some(node) = slice[0].memory {
            let room = body.width().max(width.saturating_sub(4)).max(title.width() + 2);
            let each = if slice.len() > 1 { " each" } else { "" };
            if let Some(line) = self.memory(&self.layout.memory[node], room, each) {
                // The frame is filled up below the cores, so that bars are level.
                let blank = height.saturating_sub(body.0.len() + 3);
                body.0.extend((0..blank).map(|_| Line::default()));
                body.push(line);
            }
        }
        let frame = match (slice[0].is(Kind::Group), self.ascii()) {
            (false, false) => Frame::THIN,
            (true, false) => Frame::THICK,
            (false, true) => Frame::ASCII,
            (true, true) => Frame::ASCII_THICK,
        };
        body.framed(&title, frame, width, height)
    }

    fn row_limit(&self) -> usize {
        if self.layout.regions.len() == 1 && self.layout.depth == 1 { usize::MAX } else { ROW }
    }

    /// Returns names, the count, and the CPUs if there is space.
    fn title(&self, slice: &[&Region], parents: usize, room: usize) -> Line {
        let mut line = Line::of(Tone::Strong, self.plain(&names(slice)));
        match slice.len() / parents.max(1) {
            _ if slice.len() == 1 => {}
            1 => {}
            n if parents > 1 => line.push(Tone::Plain, format!(" {} {n} in each", self.times())),
            n => line.push(Tone::Plain, format!(" {} {n}", self.times())),
        }
        let mut cpus = CpuSet::new();
        slice.iter().for_each(|region| cpus.union_with(&region.cpus));
        let shown_inside = self.small || (self.lists && slice.len() == 1 && holds_rows(slice[0]));
        if !shown_inside {
            let list = format!("  CPUs {cpus}");
            // A frame is not widened for a list.
            let room = room.min(ROW);
            if line.width() + list.len() <= room {
                line.push(Tone::Faint, list);
            }
        }
        line.cut(room, self.ellipsis());
        line
    }

    /// One line per cache: its name, its cores, its CPUs.
    fn rows(&self, slices: &[Vec<&Region>], room: usize) -> Block {
        let label = |slice: &[&Region]| match slice {
            [one] => self.plain(&names(&[one])),
            _ => "L3".to_owned(),
        };
        let labels = slices.iter().map(|slice| label(slice).chars().count()).max().unwrap_or(0);
        let mut block = Block::default();
        for slice in slices {
            let cores = match &slice[0].inside {
                Inside::Cores(cores) => cores.as_slice(),
                Inside::Regions(_) => &[],
            };
            let limit = room.saturating_sub(labels + 1).min(ROW);
            let mut row = Block(vec![Line::of(Tone::Faint, format!("{:labels$}", label(slice)))]);
            row.beside(self.cores(cores, limit));
            if let ([one], true, false) = (slice.as_slice(), self.lists, self.small) {
                row.beside(Block(vec![Line::of(Tone::Faint, one.cpus.to_string())]));
            }
            block.below(row);
        }
        block
    }

    fn cores(&self, cores: &[Core], room: usize) -> Block {
        if self.small {
            return self.core_boxes(cores, room);
        }
        let threads = cores.iter().map(|core| core.cpus.len()).max().unwrap_or(1);
        // Cores of one thread are grouped by eight, so that they can be counted.
        let (unit, gap) = if threads == 1 { (8, 1) } else { (1, threads + 1) };
        let per_unit = if threads == 1 { unit + gap } else { gap };
        let units = cores.len().div_ceil(unit);
        let fitting = ((room + 1) / per_unit).max(1);
        let rows = units.div_ceil(fitting).max(1);
        let per_row = units.div_ceil(rows).max(1) * unit;
        let mut block = Block::default();
        for row in cores.chunks(per_row) {
            let mut line = Line::default();
            for (at, core) in row.iter().enumerate() {
                if at > 0 && (threads > 1 || at % unit == 0) {
                    line.push(Tone::Plain, " ");
                }
                for cpu in &core.cpus {
                    let used = self.layout.use_of(*cpu);
                    line.push(Tone::Used(used), self.mark(used));
                }
                let missing = threads - core.cpus.len().min(threads);
                line.push(Tone::Plain, " ".repeat(missing));
            }
            block.push(line);
        }
        block
    }

    fn core_boxes(&self, cores: &[Core], room: usize) -> Block {
        let ids = cores.iter().flat_map(|core| &core.cpus).map(|cpu| cpu.to_string().len());
        let digits = ids.max().unwrap_or(1);
        let threads = cores.iter().map(|core| core.cpus.len()).max().unwrap_or(1);
        let frame = if self.ascii() { Frame::ASCII } else { Frame::THIN };
        let width = digits + 2 + 4;
        let columns = columns(cores.len(), ((room + 1) / (width + 1)).max(1));
        let mut block = Block::default();
        for row in cores.chunks(columns) {
            let mut line: Option<Block> = None;
            for core in row {
                let mut cell = Block::default();
                for cpu in &core.cpus {
                    let used = self.layout.use_of(*cpu);
                    let text = format!("{:>digits$} {}", cpu.0, self.mark(used));
                    cell.push(Line::of(Tone::Used(used), text));
                }
                let next = cell.framed(&Line::default(), frame, 0, threads + 2);
                match &mut line {
                    Some(line) => line.beside(next),
                    None => line = Some(next),
                }
            }
            block.below(line.unwrap_or_default());
        }
        block
    }

    /// Returns a node's memory: a bar if some may be owned, and the amounts.
    fn memory(&self, memory: &NodeMemory, room: usize, each: &str) -> Option<Line> {
        if memory.total.0 == 0 {
            return None;
        }
        let mut amounts = format::amount(memory.total);
        if self.anybody {
            amounts = format!("{} of {amounts}", format::amount(memory.used()));
        }
        amounts.push_str(each);
        let mut huge = String::new();
        for (size, bytes) in &memory.huge {
            let count = bytes.0 / size.0.max(1);
            huge.push_str(&format!(", {count} {} {}", self.times(), format::amount(*size)));
        }
        let mut line = Line::of(Tone::Faint, "mem ");
        if self.anybody {
            let bar = room.saturating_sub(amounts.len() + 7).clamp(8, 48);
            line.push(Tone::Faint, "[");
            self.bar(memory, bar, &mut line);
            line.push(Tone::Faint, "] ");
        } else {
            amounts.push_str(&huge);
        }
        line.push(Tone::Plain, amounts);
        Some(line)
    }

    /// Draws the main owner of each of `width` equal parts of the memory.
    fn bar(&self, memory: &NodeMemory, width: usize, line: &mut Line) {
        let pieces = memory.pieces();
        let total = u128::from(memory.total.0);
        for column in 0..width as u128 {
            let middle = (total * (2 * column + 1) / (2 * width as u128)) as u64;
            let piece =
                pieces.iter().find(|p| p.start.0 <= middle && middle - p.start.0 < p.length.0);
            let used = piece.and_then(|piece| piece.owned).map_or(Use::Free, |owned| owned.by);
            line.push(Tone::Used(used), self.mark(used));
        }
    }

    fn memory_only(&self, nodes: &super::layout::MemoryNodes) -> Line {
        let memory = &self.layout.memory[nodes.node];
        let mut line = Line::of(
            Tone::Strong,
            format!("NUMA {}", format::ranges(nodes.ids.iter().map(|id| id.0))),
        );
        let several = nodes.ids.len() > 1;
        if several {
            line.push(Tone::Plain, format!(" {} {}", self.times(), nodes.ids.len()));
        }
        line.push(Tone::Faint, "  no CPUs  ");
        let each = if several { " each" } else { "" };
        match self.memory(memory, 40, each) {
            Some(amounts) => {
                for Span(tone, text) in amounts.0 {
                    line.push(tone, text);
                }
            }
            None => line.push(Tone::Faint, "no memory"),
        }
        line
    }
}

/// Returns true if a region is drawn as a line within its parent rather than as a frame.
fn is_row(region: &Region) -> bool {
    matches!(region.inside, Inside::Cores(_))
        && matches!(region.names.as_slice(), [name] if name.kind == Kind::Cache)
}

fn holds_rows(region: &Region) -> bool {
    match &region.inside {
        Inside::Regions(regions) => regions.iter().all(is_row),
        Inside::Cores(_) => false,
    }
}

/// `socket 0 · NUMA 0-3`.
fn names(slice: &[&Region]) -> String {
    let mut parts = Vec::new();
    for (at, name) in slice[0].names.iter().enumerate() {
        let word = match name.kind {
            Kind::Group => "processor group",
            Kind::Socket => "socket",
            Kind::Node => "NUMA",
            Kind::Cache => "L3",
        };
        let mut ids: Vec<u32> =
            slice.iter().filter_map(|region| Some(region.names.get(at)?.id)).collect();
        ids.sort_unstable();
        let mut text = format!("{word} {}", format::ranges(ids));
        if let Some((nth, of)) = name.part {
            text.push_str(&format!(" (part {nth} of {of})"));
        }
        parts.push(text);
    }
    parts.join(" · ")
}

/// Returns how many of `n` to put side by side if `most` fit: fewer if that makes full rows.
fn columns(n: usize, most: usize) -> usize {
    let most = most.clamp(1, n.max(1));
    let full = (most / 2 + 1..=most).rev().find(|columns| n.is_multiple_of(*columns));
    full.unwrap_or(most)
}

/// Returns the letter of an exclusive owner; from the 63rd on they share one.
pub(super) fn letter(number: usize) -> char {
    let letters = ('A'..='Z').chain('a'..='z').chain('0'..='9');
    letters.into_iter().nth(number).unwrap_or('+')
}

fn print(block: &Block, options: TextOptions) -> String {
    let mut out = String::new();
    for line in &block.0 {
        let mut text = String::new();
        for Span(tone, format) in &line.trimmed().0 {
            match options.colours.then(|| escape_sequence(*tone)).flatten() {
                Some(sequence) => text.push_str(&format!("\u{1b}[{sequence}m{format}\u{1b}[0m")),
                None => text.push_str(format),
            }
        }
        out.push_str(&text);
        out.push('\n');
    }
    out
}

/// Returns the escape sequence for the SVG's colours, as near as 256 colours allow.
fn escape_sequence(tone: Tone) -> Option<String> {
    const GROUNDS: [(u8, u8); 12] = [
        (25, 231),
        (214, 16),
        (36, 16),
        (175, 16),
        (117, 16),
        (166, 231),
        (227, 16),
        (61, 231),
        (89, 231),
        (143, 16),
        (73, 16),
        (133, 231),
    ];
    match tone {
        Tone::Plain => None,
        Tone::Strong => Some("1".into()),
        Tone::Faint | Tone::Used(Use::Free) => Some("2".into()),
        Tone::Used(Use::Shared) => Some("38;5;110".into()),
        Tone::Used(Use::Reserved) => Some("38;5;245".into()),
        Tone::Used(Use::Exclusive(number)) => {
            let (ground, letter) = GROUNDS[number % GROUNDS.len()];
            Some(format!("38;5;{letter};48;5;{ground}"))
        }
    }
}
