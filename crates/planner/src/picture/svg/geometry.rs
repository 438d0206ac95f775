//! The positions of a machine's regions and cores on the plane.
//!
//! Main entry: [`place`], which chooses the number of columns so that the drawing is low and has
//! full rows, and gives every region and core its corner. It draws nothing.

use super::super::layout::{Core, Inside, Kind, Layout, Region};

/// The widest machine if possible: a page shows it without scaling ids below legibility.
const WIDEST: u32 = 1090;

/// Sizes in pixels for machines of about the same number of CPUs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scale {
    pub(super) cell: (u32, u32),
    /// Between threads, and around them within a core.
    pub(super) thread_gap: u32,
    pub(super) core_gap: u32,
    /// The size of a CPU's id; 0 if cells are too small for one.
    pub(super) id_font: u32,
    pub(super) letters: bool,
    /// Within groups, sockets and nodes; within caches.
    pad: (u32, u32),
    gap: u32,
    /// Space for the names of groups, sockets and nodes; of caches.
    header: (u32, u32),
    pub(super) bar: u32,
    /// The width of a node's names.
    narrowest: u32,
}

const LARGE: Scale = Scale {
    cell: (58, 30),
    thread_gap: 2,
    core_gap: 8,
    id_font: 14,
    letters: true,
    pad: (14, 8),
    gap: 12,
    header: (32, 16),
    bar: 12,
    narrowest: 330,
};

const MEDIUM: Scale = Scale {
    cell: (23, 16),
    thread_gap: 1,
    core_gap: 3,
    id_font: 10,
    letters: false,
    pad: (9, 5),
    gap: 8,
    header: (24, 14),
    bar: 9,
    narrowest: 158,
};

const SMALL: Scale = Scale {
    cell: (12, 12),
    thread_gap: 1,
    core_gap: 2,
    id_font: 0,
    letters: false,
    pad: (7, 3),
    gap: 6,
    header: (19, 3),
    bar: 6,
    narrowest: 98,
};

/// A region with its position.
#[derive(Debug)]
pub(super) struct Placed<'a> {
    pub(super) region: &'a Region,
    pub(super) x: u32,
    pub(super) y: u32,
    pub(super) width: u32,
    pub(super) height: u32,
    pub(super) inside: Vec<Placed<'a>>,
    pub(super) cores: Vec<PlacedCore<'a>>,
}

/// A core with its position.
#[derive(Debug)]
pub(super) struct PlacedCore<'a> {
    pub(super) core: &'a Core,
    pub(super) x: u32,
    pub(super) y: u32,
}

/// A machine on the plane; its corner is at 0, 0.
#[derive(Debug)]
pub(super) struct Plane<'a> {
    pub(super) scale: Scale,
    pub(super) width: u32,
    pub(super) height: u32,
    pub(super) regions: Vec<Placed<'a>>,
    /// Columns and rows of the threads of a core.
    pub(super) threads: (u32, u32),
}

impl Scale {
    pub(super) fn pad(&self, region: &Region) -> u32 {
        if is_cache(region) { self.pad.1 } else { self.pad.0 }
    }

    pub(super) fn header(&self, region: &Region) -> u32 {
        if is_cache(region) { self.header.1 } else { self.header.0 }
    }

    /// Returns the height below the cores for a memory bar.
    fn footer(&self, region: &Region) -> u32 {
        if region.is(Kind::Node) { self.bar + self.pad.0 } else { 0 }
    }
}

/// Returns true if a region is only a cache, which is drawn lightly.
pub(super) fn is_cache(region: &Region) -> bool {
    matches!(region.names.as_slice(), [name] if name.kind == Kind::Cache)
}

pub(super) fn place<'a>(layout: &'a Layout, cpus: usize) -> Plane<'a> {
    let scale = match cpus {
        0..=32 => LARGE,
        33..=384 => MEDIUM,
        _ => SMALL,
    };
    let cores: Vec<&Core> = layout.regions.iter().flat_map(Region::cores).collect();
    let most = cores.iter().map(|core| core.cpus.len()).max().unwrap_or(1) as u32;
    let threads = match most {
        0..=2 => (1, most.max(1)),
        3..=4 => (2, 2),
        _ => (4, most.div_ceil(4)),
    };
    let outline = Outline::of(&layout.regions);
    let columns = best_columns(&outline, &scale, threads);
    let mut regions = Vec::new();
    let (width, height) = rows(&layout.regions, 0, &columns, &scale, threads, &mut regions);
    Plane { scale, width, height, regions, threads }
}

/// A regular machine as large as the real one, for choosing columns.
struct Outline<'a> {
    /// For each depth: the most siblings, and a region.
    tiers: Vec<(usize, &'a Region)>,
    /// The most cores in an innermost region.
    cores: usize,
}

impl<'a> Outline<'a> {
    fn of(regions: &'a [Region]) -> Outline<'a> {
        let mut outline = Outline { tiers: Vec::new(), cores: 1 };
        outline.add(regions, 0);
        outline
    }

    fn add(&mut self, regions: &'a [Region], depth: usize) {
        let Some(first) = regions.first() else { return };
        match self.tiers.get_mut(depth) {
            Some((most, _)) => *most = regions.len().max(*most),
            None => self.tiers.push((regions.len(), first)),
        }
        for region in regions {
            match &region.inside {
                Inside::Regions(inside) => self.add(inside, depth + 1),
                Inside::Cores(cores) => self.cores = self.cores.max(cores.len()),
            }
        }
    }
}

/// Returns columns per depth, and of cores last.
fn best_columns(outline: &Outline<'_>, scale: &Scale, threads: (u32, u32)) -> Vec<usize> {
    let counts: Vec<usize> = outline.tiers.iter().map(|(n, _)| *n).chain([outline.cores]).collect();
    let mut best: Option<(u64, Vec<usize>)> = None;
    let mut columns = vec![1; counts.len()];
    try_columns(&counts, 0, &mut columns, &mut |columns| {
        let score = score(outline, &counts, columns, scale, threads);
        if best.as_ref().is_none_or(|(least, _)| score < *least) {
            best = Some((score, columns.to_vec()));
        }
    });
    best.map_or_else(|| vec![1; counts.len()], |(_, columns)| columns)
}

/// Tries every useful choice of columns: the fewest for each number of rows.
fn try_columns(
    counts: &[usize],
    depth: usize,
    columns: &mut [usize],
    visit: &mut impl FnMut(&[usize]),
) {
    // More than a dozen rows or columns of anything but cores is never a good choice; the limit
    // also bounds the search on hostile machines.
    const MOST: usize = 12;
    let Some(count) = counts.get(depth) else { return visit(columns) };
    let cores = depth + 1 == counts.len();
    let mut last = 0;
    for rows in 1..=(*count).min(if cores { 2 * MOST } else { MOST }) {
        let next = count.div_ceil(rows);
        if next == last {
            continue;
        }
        last = next;
        columns[depth] = next;
        try_columns(counts, depth + 1, columns, visit);
    }
}

/// Returns the cost of a choice: low and full rows are good, too wide is bad.
fn score(
    outline: &Outline<'_>,
    counts: &[usize],
    columns: &[usize],
    scale: &Scale,
    threads: (u32, u32),
) -> u64 {
    let grid = |depth: usize, (width, height): (u32, u32), gap: u32| {
        let across = columns[depth] as u32;
        let down = counts[depth].div_ceil(columns[depth]) as u32;
        (across * (width + gap) - gap, down * (height + gap) - gap)
    };
    let last = counts.len() - 1;
    let mut size = grid(last, core_size(scale, threads), scale.core_gap);
    let mut ragged = empty_places(counts[last], columns[last]);
    // Frames higher than wide leave no space for names and bars.
    let mut tall = 0u64;
    for (depth, (_, region)) in outline.tiers.iter().enumerate().rev() {
        let (width, height) = region_size(region, size, scale);
        tall += u64::from(height.saturating_sub(width * 3 / 2));
        size = grid(depth, (width, height), scale.gap);
        ragged += empty_places(counts[depth], columns[depth]);
    }
    let too_wide = u64::from(size.0.saturating_sub(WIDEST));
    u64::from(size.1) + too_wide * 50 + ragged + tall * 2
}

fn empty_places(count: usize, columns: usize) -> u64 {
    let places = count.div_ceil(columns) * columns;
    ((places - count) * 2400 / count.max(1)) as u64
}

pub(super) fn core_size(scale: &Scale, threads: (u32, u32)) -> (u32, u32) {
    let span = |n: u32, size: u32| n * (size + scale.thread_gap) + scale.thread_gap;
    (span(threads.0, scale.cell.0), span(threads.1, scale.cell.1))
}

/// Returns the size of a region around its content.
fn region_size(region: &Region, (width, height): (u32, u32), scale: &Scale) -> (u32, u32) {
    let pad = scale.pad(region);
    let narrowest = if is_cache(region) { 0 } else { scale.narrowest };
    let width = (width + 2 * pad).max(narrowest);
    (width, scale.header(region) + height + pad + scale.footer(region))
}

/// Puts regions in rows from 0, 0 on and returns their size; all are equally wide, and equally high
/// within a row.
fn rows<'a>(
    regions: &'a [Region],
    depth: usize,
    columns: &[usize],
    scale: &Scale,
    threads: (u32, u32),
    out: &mut Vec<Placed<'a>>,
) -> (u32, u32) {
    let across = columns.get(depth).copied().unwrap_or(1).max(1);
    for region in regions {
        let mut placed = Placed {
            region,
            x: 0,
            y: 0,
            width: 0,
            height: 0,
            inside: Vec::new(),
            cores: Vec::new(),
        };
        let content = match &region.inside {
            Inside::Regions(inner) => {
                rows(inner, depth + 1, columns, scale, threads, &mut placed.inside)
            }
            Inside::Cores(cores) => core_rows(cores, columns, scale, threads, &mut placed.cores),
        };
        (placed.width, placed.height) = region_size(region, content, scale);
        out.push(placed);
    }
    let width = out.iter().map(|placed| placed.width).max().unwrap_or(0);
    let (mut right, mut y) = (0, 0);
    for row in out.chunks_mut(across) {
        let height = row.iter().map(|placed| placed.height).max().unwrap_or(0);
        for (at, placed) in row.iter_mut().enumerate() {
            let x = at as u32 * (width + scale.gap);
            right = right.max(x + width);
            (placed.width, placed.height) = (width, height);
            shift(placed, x, y);
            let (dx, dy) = (x + scale.pad(placed.region), y + scale.header(placed.region));
            placed.inside.iter_mut().for_each(|inner| shift_all(inner, dx, dy));
            placed.cores.iter_mut().for_each(|core| (core.x, core.y) = (core.x + dx, core.y + dy));
        }
        y += height + scale.gap;
    }
    (right, y.saturating_sub(scale.gap))
}

fn core_rows<'a>(
    cores: &'a [Core],
    columns: &[usize],
    scale: &Scale,
    threads: (u32, u32),
    out: &mut Vec<PlacedCore<'a>>,
) -> (u32, u32) {
    let across = columns.last().copied().unwrap_or(1).max(1);
    let (width, height) = core_size(scale, threads);
    let (mut right, mut bottom) = (0, 0);
    for (at, core) in cores.iter().enumerate() {
        let x = (at % across) as u32 * (width + scale.core_gap);
        let y = (at / across) as u32 * (height + scale.core_gap);
        (right, bottom) = (right.max(x + width), bottom.max(y + height));
        out.push(PlacedCore { core, x, y });
    }
    (right, bottom)
}

fn shift(placed: &mut Placed<'_>, dx: u32, dy: u32) {
    placed.x += dx;
    placed.y += dy;
}

fn shift_all(placed: &mut Placed<'_>, dx: u32, dy: u32) {
    shift(placed, dx, dy);
    placed.inside.iter_mut().for_each(|inner| shift_all(inner, dx, dy));
    placed.cores.iter_mut().for_each(|core| (core.x, core.y) = (core.x + dx, core.y + dy));
}
