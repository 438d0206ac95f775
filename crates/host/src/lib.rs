//! This machine: its topology, cgroups, mounts and processes, and crash-safe files. All OS code of
//! the project is here, and only [`os`] differs between systems; parsers of OS output compile and
//! are tested everywhere.
//!
//! Main entry: [`os::observe_topology`]. Nothing here decides on placement.

pub mod anomaly;
pub mod block_devices;
pub mod capture;
pub mod cgroups;
pub mod detected;
pub mod file_kind;
pub mod files;
pub mod mounts;
pub mod os;
pub mod processes;
pub mod resctrl;
pub mod sysfs;
pub mod system;
pub mod tree;
pub mod tuning;
pub mod windows_topology;

pub use anomaly::Anomaly;
pub use capture::Capture;
