//! Classes of block I/O in the file format of goresctrl, which containerd and CRI-O read.
//!
//! Main entries: [`Config::parse`] reads a file, [`resolve`](resolve::resolve) turns it into
//! [`Parameters`] for the devices of a machine, [`cgroup`] and [`Parameters::oci`] are what those
//! become. Weights, overriding and error texts are goresctrl's. `docs/adr/0024-class-definitions.md`
//! lists the differences. Nothing here writes to a cgroup.

pub mod cgroup;
pub mod config;
pub mod glob;
pub mod parameters;
pub mod paths;
pub mod resolve;

pub use config::Config;
pub use parameters::{Parameters, Rate};
pub use resolve::{BlockIoError, Warning, resolve};
