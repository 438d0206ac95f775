//! A machine with the owners of its CPUs and memory, ready to be drawn: in a terminal, as SVG, as a
//! page.
//!
//! Main type: [`Picture`]; [`render_text`], [`render_svg`] and [`render_html`] draw it from one
//! arrangement of the machine ([`layout`]). It decides nothing: owners come with the CPUs and
//! memory of a plan, and everything else is free. Rendering is deterministic. Labels are escaped,
//! so they may come from any source.
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

/// A machine with the owners of its CPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Picture {
    /// The title: the machine's name, possibly with a count ("epyc × 12").
    pub title: String,
    pub os: OsName,
    pub topology: Topology,
    /// In the order of the legend. The first twelve exclusive owners differ by colour alone, later
    /// ones by colour and pattern.
    pub owners: Vec<CpuOwner>,
}

/// An owner of exclusive or shared CPUs: a container, the system, the shared pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CpuOwner {
    /// Its name: `namespace/pod`, `system`.
    pub label: String,
    /// The container, which distinguishes owners with the same label. May be empty.
    pub detail: String,
    pub assignment: CpuAssignment,
    /// Empty if its memory is not bound to nodes.
    pub memory: Vec<MemoryShare>,
    /// One short sentence for the tooltip: the reason of the placement. May be empty.
    pub note: String,
}

/// The CPUs of an owner and how it holds them. CPUs that the machine lacks are not drawn.
///
/// If assignments overlap, exclusive ones are drawn over reserved over shared ones, and earlier
/// over later ones; tooltips name all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CpuAssignment {
    /// No other owner runs there.
    Exclusive(CpuSet),
    /// Shared with the other owners of the pool.
    SharedPool(CpuSet),
    /// Reserved for the system.
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
    /// Returns the machine without owners.
    #[must_use]
    pub fn new(machine: &Machine) -> Picture {
        Picture {
            title: machine.name.clone(),
            os: machine.os,
            topology: machine.topology.clone(),
            owners: Vec::new(),
        }
    }

    /// Returns the CPUs without an owner.
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

    /// Returns label and detail: `shop/cart · app`.
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
