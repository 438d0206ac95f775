//! A machine and who sits where on it, ready to be drawn: in a terminal, as SVG, as a page.
//!
//! Main type: [`Picture`]; [`render_text`], [`render_svg`] and [`render_html`] draw it, all from
//! one arrangement of the machine ([`layout`]). It decides nothing: occupants come with the CPUs
//! and memory a plan gave them, and what nobody holds is free. The same picture always gives the
//! same text, and labels are escaped, so they may come from anybody.
//!
//! ```
//! use placement::CpuSet;
//! use planner::machine::parse;
//! use planner::picture::{Ink, Occupant, Picture, Seat, TextOptions, render_text};
//!
//! let mut picture = Picture::new(&parse("4 cores x 2 threads").unwrap());
//! picture.occupants.push(Occupant::new("shop/cart", Seat::Exclusive(CpuSet::range(0, 1))));
//! let text = render_text(&picture, TextOptions { width: 60, ink: Ink::Unicode, colours: false });
//! assert!(text.contains("shop/cart"));
//! ```

use objects::pod::OsName;
use placement::demand::MemoryKind;
use placement::{Bytes, CpuSet, Machine, NumaId, Topology};

mod escape;
mod html;
pub mod layout;
mod svg;
mod text;
mod words;

pub use html::{Page, RefusedRow, SeatRef, SeatRow, render_html};
pub use svg::{render_svg, render_svg_sheet};
pub use text::{Ink, TextOptions, render_text};

/// A machine with its occupants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Picture {
    /// Heads the picture: the machine's name, perhaps with a count ("epyc × 12").
    pub title: String,
    pub os: OsName,
    pub topology: Topology,
    /// In the order they are named in the legend. The first twelve with a seat of their own are
    /// told apart by colour alone, later ones by colour and pattern.
    pub occupants: Vec<Occupant>,
}

/// Somebody who holds or shares CPUs: a container, the system, the pool of everybody else.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Occupant {
    /// What people know it by: `namespace/pod`, `system`.
    pub label: String,
    /// What tells it from others with the same label: the container. May be empty.
    pub detail: String,
    pub seat: Seat,
    /// Empty if its memory is not bound to nodes.
    pub memory: Vec<MemoryShare>,
    /// One short sentence for the tooltip: why it sits there. May be empty.
    pub note: String,
}

/// The CPUs of an occupant and how it holds them. CPUs the machine lacks are not drawn.
///
/// Where seats overlap, the exclusive one is drawn over the reserved over the shared one, and the
/// earlier over the later; tooltips name all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Seat {
    /// Nobody else runs there.
    Exclusive(CpuSet),
    /// Runs there with all others that share.
    SharedPool(CpuSet),
    /// Kept from pods, for the system.
    Reserved(CpuSet),
}

/// Memory of one occupant on one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryShare {
    pub node: NumaId,
    pub kind: MemoryKind,
    pub amount: Bytes,
}

impl Picture {
    /// The machine with nobody on it.
    #[must_use]
    pub fn new(machine: &Machine) -> Picture {
        Picture {
            title: machine.name.clone(),
            os: machine.os,
            topology: machine.topology.clone(),
            occupants: Vec::new(),
        }
    }

    /// The CPUs no occupant names.
    #[must_use]
    pub fn free(&self) -> CpuSet {
        let mut free = self.topology.all_cpus().clone();
        for occupant in &self.occupants {
            free.subtract(occupant.seat.cpus());
        }
        free
    }
}

impl Occupant {
    #[must_use]
    pub fn new(label: impl Into<String>, seat: Seat) -> Occupant {
        Occupant {
            label: label.into(),
            detail: String::new(),
            seat,
            memory: Vec::new(),
            note: String::new(),
        }
    }

    /// Label and detail in one: `shop/cart · app`.
    #[must_use]
    pub fn full_name(&self) -> String {
        match self.detail.is_empty() {
            true => self.label.clone(),
            false => format!("{} · {}", self.label, self.detail),
        }
    }
}

impl Seat {
    #[must_use]
    pub fn cpus(&self) -> &CpuSet {
        match self {
            Seat::Exclusive(cpus) | Seat::SharedPool(cpus) | Seat::Reserved(cpus) => cpus,
        }
    }
}
