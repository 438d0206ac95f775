//! The calls that differ between systems: twin modules with the same functions.
//!
//! `observe_topology` describes this machine; `create_private_file`, `replace_file` and
//! `sync_directory` are the steps of a write that survives a crash; `file_identity` tells files apart. Everything else in the crate is the same everywhere.

#[cfg(not(windows))]
#[path = "os/linux.rs"]
mod imp;

#[cfg(windows)]
#[path = "os/windows.rs"]
mod imp;

pub use imp::{
    ObserveError, create_private_file, file_identity, observe_topology, replace_file,
    sync_directory,
};
