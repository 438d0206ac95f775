//! A machine and who sits where on it, ready to be drawn: in a terminal, as SVG, as a page.
//!
//! Main type: [`Picture`]; [`render_text`], [`render_svg`] and [`render_html`] draw it, all from
//! one arrangement of the machine ([`layout`]). It decides nothing: owners come with the CPUs
//! and memory a plan gave them, and what nobody holds is free. The same picture always gives the
//! same text, and labels are escaped, so they may come from anybody.
//!
//! ```
//! use placement::CpuSet;
//! use planner::machine::parse;
//! use planner::picture::{Ink, CpuOwner, Picture, CpuAssignment, TextOptions, render_text};
//!
//! let mut picture = Picture::new(&parse("4 cores x 2 threads").unwrap());
//! picture.owners.push(CpuOwner::new("shop/cart", CpuAssignment::Exclusive(CpuSet::range(0, 1))));
//! let text = render_text(&picture, TextOptions { width: 60, ink: Ink::Unicode, colours: false });
//! assert!(text.contains("shop/cart"));
//! ```

use objects::pod::OsName;
use placement::demand::MemoryKind;
use placement::{Bytes, CpuSet, Machine, NumaId, Topology};

mod escape;
mod format;
mod html;
pub mod layout;
mod svg;
mod text;

pub use html::{ContainerRow, OwnerRef, Page, RefusedRow, render_html};
pub use svg::{render_svg, render_svg_sheet};
pub use text::{Ink, TextOptions, render_text};

/// A machine with its owners.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Picture {
    /// Heads the picture: the machine's name, perhaps with a count ("epyc × 12").
    pub title: String,
    pub os: OsName,
    pub topology: Topology,
    /// In the order they are named in the legend. The first twelve with a assignment of their own are
    /// told apart by colour alone, later ones by colour and pattern.
    pub owners: Vec<CpuOwner>,
}

/// Somebody who holds or shares CPUs: a container, the system, the pool of everybody else.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CpuOwner {
    /// What people know it by: `namespace/pod`, `system`.
    pub label: String,
    /// What tells it from others with the same label: the container. May be empty.
    pub detail: String,
    pub assignment: CpuAssignment,
    /// Empty if its memory is not bound to nodes.
    pub memory: Vec<MemoryShare>,
    /// One short sentence for the tooltip: why it sits there. May be empty.
    pub note: String,
}

/// The CPUs of an owner and how it holds them. CPUs the machine lacks are not drawn.
///
/// Where owners_by_pod overlap, the exclusive one is drawn over the reserved over the shared one, and the
/// earlier over the later; tooltips name all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CpuAssignment {
    /// Nobody else runs there.
    Exclusive(CpuSet),
    /// Runs there with all others that share.
    SharedPool(CpuSet),
    /// Kept from pods, for the system.
    Reserved(CpuSet),
}

/// Memory of one owner on one node.
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
            owners: Vec::new(),
        }
    }

    /// The CPUs no owner names.
    #[must_use]
    pub fn free(&self) -> CpuSet {
        let mut free = self.topology.all_cpus().clone();
        for owner in &self.owners {
            free.subtract(owner.assignment.cpus());
        }
        free
    }
}

impl CpuOwner {
    #[must_use]
    pub fn new(label: impl Into<String>, assignment: CpuAssignment) -> CpuOwner {
        CpuOwner {
            label: label.into(),
            detail: String::new(),
            assignment,
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

impl CpuAssignment {
    #[must_use]
    pub fn cpus(&self) -> &CpuSet {
        match self {
            CpuAssignment::Exclusive(cpus)
            | CpuAssignment::SharedPool(cpus)
            | CpuAssignment::Reserved(cpus) => cpus,
        }
    }
}
