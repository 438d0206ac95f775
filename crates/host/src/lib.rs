//! This machine: what it is made of, what is mounted on it, and files that survive a crash. All OS code of the
//! project is here, and inside it only [`os`] differs between systems; parsing of what an OS
//! reports compiles and is tested everywhere.
//!
//! Main entry: [`os::observe_topology`]. Nothing here decides where a container goes.

pub mod anomaly;
pub mod capture;
pub mod cgroups;
pub mod detected;
pub mod file_kind;
pub mod files;
pub mod mounts;
pub mod os;
pub mod processes;
pub mod sysfs;
pub mod system;
pub mod tree;
pub mod windows_topology;

pub use anomaly::Anomaly;
pub use capture::Capture;
