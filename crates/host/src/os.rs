//! System calls that differ between systems: twin modules with the same functions.
//!
//! `observe_topology` describes this machine; `create_private_file`, `replace_file` and
//! `sync_directory` are the steps of a crash-safe write; `make_private_directory` excludes other
//! users; `file_identity` distinguishes files. [`owners`] has modes, owners and links of files,
//! [`mounts`] mounts, [`system`] reads the machine's identity and usage, [`processes`] kills
//! processes, [`tuning`] changes their scheduling and limits, [`limits`] raises limits of this
//! process, and [`service`] notifies the service manager. Everything else in the crate is the same everywhere.

#[cfg(not(windows))]
#[path = "os/linux.rs"]
mod imp;

#[cfg(windows)]
#[path = "os/windows.rs"]
mod imp;

#[cfg(not(windows))]
#[path = "os/unix_service.rs"]
pub mod service;

#[cfg(windows)]
#[path = "os/windows_service.rs"]
pub mod service;

#[cfg(not(windows))]
#[path = "os/unix_owners.rs"]
pub mod owners;

#[cfg(windows)]
#[path = "os/windows_owners.rs"]
pub mod owners;

#[cfg(target_os = "linux")]
#[path = "os/linux_mounts.rs"]
pub mod mounts;

#[cfg(not(target_os = "linux"))]
#[path = "os/other_mounts.rs"]
pub mod mounts;
#[cfg(target_os = "linux")]
#[path = "os/linux_system.rs"]
pub mod system;

#[cfg(windows)]
#[path = "os/windows_system.rs"]
pub mod system;

#[cfg(not(any(target_os = "linux", windows)))]
#[path = "os/other_system.rs"]
pub mod system;

#[cfg(target_os = "linux")]
#[path = "os/linux_processes.rs"]
pub mod processes;

#[cfg(not(target_os = "linux"))]
#[path = "os/other_processes.rs"]
pub mod processes;

#[cfg(target_os = "linux")]
#[path = "os/linux_limits.rs"]
pub mod limits;

#[cfg(not(target_os = "linux"))]
#[path = "os/other_limits.rs"]
pub mod limits;

#[cfg(target_os = "linux")]
#[path = "os/linux_tuning.rs"]
pub mod tuning;

#[cfg(not(target_os = "linux"))]
#[path = "os/other_tuning.rs"]
pub mod tuning;

pub use imp::{
    KUBELET_DIRECTORY, ObserveError, create_private_file, file_identity, make_private_directory,
    observe_topology, replace_file, sync_directory,
};
