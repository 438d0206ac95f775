//! Identity and usage of this machine on systems that are neither Linux nor Windows, where the
//! agent does not run: nothing is known. See [`crate::os`] for the twins.

use std::io;
use std::path::Path;
use std::time::Duration;

use crate::system::{FileSystem, Identity, Interface, Memory, ProcessIds, ProcessUsage};

fn unsupported<T>() -> io::Result<T> {
    Err(io::ErrorKind::Unsupported.into())
}

#[must_use]
pub fn identity() -> Identity {
    Identity::default()
}

pub fn memory() -> io::Result<Memory> {
    unsupported()
}

pub fn file_system(_path: &Path) -> io::Result<FileSystem> {
    unsupported()
}

pub fn same_file_system(_one: &Path, _other: &Path) -> io::Result<bool> {
    unsupported()
}

pub fn process_ids() -> io::Result<Option<ProcessIds>> {
    unsupported()
}

pub fn uptime() -> io::Result<Duration> {
    unsupported()
}

pub fn page_size() -> io::Result<u64> {
    unsupported()
}

#[must_use]
pub fn huge_page_sizes() -> Vec<u64> {
    Vec::new()
}

pub fn busy() -> io::Result<u64> {
    unsupported()
}

pub fn interfaces(_process: Option<u32>) -> io::Result<Vec<Interface>> {
    unsupported()
}

#[must_use]
pub fn default_interface() -> Option<String> {
    None
}

pub fn this_process() -> io::Result<ProcessUsage> {
    unsupported()
}

/// Returns nothing: there is no `/sys`.
#[must_use]
pub fn masked_cpu_paths() -> Vec<String> {
    Vec::new()
}
