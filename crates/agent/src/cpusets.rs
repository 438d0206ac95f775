//! Cpusets of running containers.
//!
//! ```text
//!   ledger ──▶ tracker ──▶ runtime, cgroups
//!                 ▲              │
//!                 └─ reconcile ◀─┘
//! ```
//!
//! - [`tracker`] moves shared containers when the shared pool changes.
//! - [`reconcile`] compares the cpusets in force with the ledger and repairs them.

pub mod tracker;

pub mod reconcile;
