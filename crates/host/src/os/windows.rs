//! This machine on Windows.
//!
//! Fetches the raw processor records and the memory of each node; [`crate::windows_topology`]
//! parses them. See [`crate::os`] for the twin.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::windows::ffi::OsStrExt as _;
use std::os::windows::io::AsRawHandle as _;
use std::path::Path;

use placement::{Bytes, NumaId, Topology};
use thiserror::Error;
use windows_sys::Win32::Foundation::{ERROR_INSUFFICIENT_BUFFER, LocalFree};
use windows_sys::Win32::Security::Authorization::{
    ConvertStringSecurityDescriptorToSecurityDescriptorW, SDDL_REVISION_1,
};
use windows_sys::Win32::Security::{
    DACL_SECURITY_INFORMATION, PROTECTED_DACL_SECURITY_INFORMATION, PSECURITY_DESCRIPTOR,
    SECURITY_ATTRIBUTES, SetFileSecurityW,
};
use windows_sys::Win32::Storage::FileSystem::{
    BY_HANDLE_FILE_INFORMATION, CreateDirectoryW, GetFileInformationByHandle,
    MOVEFILE_REPLACE_EXISTING, MOVEFILE_WRITE_THROUGH, MoveFileExW,
};
use windows_sys::Win32::System::SystemInformation::{
    GetLogicalProcessorInformationEx, GlobalMemoryStatusEx, LOGICAL_PROCESSOR_RELATIONSHIP,
    MEMORYSTATUSEX, RelationAll, RelationNumaNodeEx,
};
use windows_sys::Win32::System::Threading::GetNumaAvailableMemoryNodeEx;

use crate::anomaly::Anomaly;
use crate::windows_topology::{BufferError, Processors};

/// The number of attempts if processors appear between the two calls for length and bytes.
const ATTEMPTS: usize = 8;

/// Nothing is inherited from the parent; the system, administrators and the owner have full access,
/// here and below.
const PRIVATE_DIRECTORY: &str = "D:P(A;OICI;FA;;;SY)(A;OICI;FA;;;BA)(A;OICI;FA;;;OW)";

#[derive(Debug, Error)]
pub enum ObserveError {
    #[error("GetLogicalProcessorInformationEx failed")]
    Query(#[source] io::Error),
    #[error("GetLogicalProcessorInformationEx asked for more room {ATTEMPTS} times in a row")]
    Unsteady,
    #[error("GetLogicalProcessorInformationEx returned records that make no sense")]
    Buffer(#[from] BufferError),
}

/// The root directory of a kubelet with default settings.
pub const KUBELET_DIRECTORY: &str = "C:\\var\\lib\\kubelet";

/// Describes this machine.
pub fn observe_topology() -> Result<(Topology, Vec<Anomaly>), ObserveError> {
    let all = processor_information(RelationAll)?;
    // Versions before Windows Server 2022 do not support this relation; their first result is
    // complete to their knowledge.
    let full_nodes = processor_information(RelationNumaNodeEx).ok();
    let processors = Processors::parse(&all, full_nodes.as_deref())?;
    let (memory, mut anomalies) = available_memory(&processors);
    let (topology, odd) = processors.topology(&memory)?;
    anomalies.extend(odd);
    Ok((topology, anomalies))
}

fn processor_information(
    relation: LOGICAL_PROCESSOR_RELATIONSHIP,
) -> Result<Vec<u8>, ObserveError> {
    // The records contain 64-bit fields, so the buffer is made of 64-bit words.
    let mut words: Vec<u64> = Vec::new();
    for _ in 0..ATTEMPTS {
        let mut length = u32::try_from(words.len() * 8).map_err(|_| ObserveError::Unsteady)?;
        // SAFETY: the pointer is to `length` writable bytes, suitably aligned; with a length of 0
        // nothing is written.
        let done = unsafe {
            GetLogicalProcessorInformationEx(relation, words.as_mut_ptr().cast(), &mut length)
        };
        if done != 0 {
            let length = length as usize;
            let bytes = words.iter().flat_map(|word| word.to_ne_bytes()).take(length);
            return Ok(bytes.collect());
        }
        let error = io::Error::last_os_error();
        if error.raw_os_error() != i32::try_from(ERROR_INSUFFICIENT_BUFFER).ok() {
            return Err(ObserveError::Query(error));
        }
        words = vec![0; (length as usize).div_ceil(8)];
    }
    Err(ObserveError::Unsteady)
}

fn available_memory(processors: &Processors) -> (BTreeMap<NumaId, Bytes>, Vec<Anomaly>) {
    let mut memory = BTreeMap::new();
    let mut anomalies = Vec::new();
    let nodes: Vec<NumaId> = if processors.nodes.is_empty() {
        vec![NumaId(0)]
    } else {
        processors.nodes.keys().copied().collect()
    };
    for &node in &nodes {
        match available_on(node) {
            Ok(bytes) => {
                memory.insert(node, bytes);
            }
            Err(error) => {
                let whole = if nodes.len() == 1 { available_in_all() } else { None };
                memory.extend(whole.map(|bytes| (node, bytes)));
                anomalies.push(Anomaly::NoMemory {
                    node,
                    reason: format!("GetNumaAvailableMemoryNodeEx: {error}"),
                    assumed: match whole {
                        Some(_) => "the machine's available memory was taken",
                        None => "none was assumed",
                    },
                });
            }
        }
    }
    (memory, anomalies)
}

fn available_on(node: NumaId) -> io::Result<Bytes> {
    let node = u16::try_from(node.0).map_err(io::Error::other)?;
    let mut bytes = 0;
    // SAFETY: the pointer is to a local.
    match unsafe { GetNumaAvailableMemoryNodeEx(node, &mut bytes) } {
        0 => Err(io::Error::last_os_error()),
        _ => Ok(Bytes(bytes)),
    }
}

/// Returns the available memory of the whole machine, for the single node of a machine that does
/// not report it by node.
fn available_in_all() -> Option<Bytes> {
    let mut status = MEMORYSTATUSEX {
        dwLength: u32::try_from(size_of::<MEMORYSTATUSEX>()).ok()?,
        ..MEMORYSTATUSEX::default()
    };
    // SAFETY: the pointer is to a local whose length it carries.
    let done = unsafe { GlobalMemoryStatusEx(&mut status) };
    (done != 0).then_some(Bytes(status.ullAvailPhys))
}

/// Creates a new file, which inherits the access rights of its directory. Fails if it exists.
pub fn create_private_file(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create_new(true).open(path)
}

/// Creates a directory that only its owner, administrators and the system can enter, or makes an
/// existing one private. New files in it inherit that.
pub fn make_private_directory(path: &Path) -> io::Result<()> {
    let descriptor = Descriptor::parse(PRIVATE_DIRECTORY)?;
    let name = wide(path);
    let attributes = SECURITY_ATTRIBUTES {
        nLength: u32::try_from(size_of::<SECURITY_ATTRIBUTES>()).map_err(io::Error::other)?,
        lpSecurityDescriptor: descriptor.0,
        bInheritHandle: 0,
    };
    // SAFETY: the name is NUL-terminated, and both outlive the call.
    if unsafe { CreateDirectoryW(name.as_ptr(), &raw const attributes) } != 0 {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    if error.kind() != io::ErrorKind::AlreadyExists || !path.is_dir() {
        return Err(error);
    }
    let what = DACL_SECURITY_INFORMATION | PROTECTED_DACL_SECURITY_INFORMATION;
    // SAFETY: as above.
    match unsafe { SetFileSecurityW(name.as_ptr(), what, descriptor.0) } {
        0 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// A security descriptor allocated by the system.
struct Descriptor(PSECURITY_DESCRIPTOR);

impl Descriptor {
    fn parse(text: &str) -> io::Result<Self> {
        let text: Vec<u16> = text.encode_utf16().chain([0]).collect();
        let mut descriptor = std::ptr::null_mut();
        // SAFETY: the text is NUL-terminated, and the pointer is to a local.
        let done = unsafe {
            ConvertStringSecurityDescriptorToSecurityDescriptorW(
                text.as_ptr(),
                SDDL_REVISION_1,
                &raw mut descriptor,
                std::ptr::null_mut(),
            )
        };
        if done == 0 { Err(io::Error::last_os_error()) } else { Ok(Self(descriptor)) }
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        // SAFETY: it came from the call that asks for this, and is freed once.
        unsafe { LocalFree(self.0) };
    }
}

fn wide(path: &Path) -> Vec<u16> {
    path.as_os_str().encode_wide().chain([0]).collect()
}

/// Replaces `to` by `from` atomically and returns when that is on disk.
pub fn replace_file(from: &Path, to: &Path) -> io::Result<()> {
    let (from, to) = (wide(from), wide(to));
    let flags = MOVEFILE_REPLACE_EXISTING | MOVEFILE_WRITE_THROUGH;
    // SAFETY: both are NUL-terminated and outlive the call.
    match unsafe { MoveFileExW(from.as_ptr(), to.as_ptr(), flags) } {
        0 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// Does nothing: [`replace_file`] writes through, and Windows cannot flush a directory.
pub fn sync_directory(_directory: &Path) -> io::Result<()> {
    Ok(())
}

/// Returns volume and index of the file.
pub fn file_identity(file: &File) -> io::Result<(u64, u64)> {
    let mut found = BY_HANDLE_FILE_INFORMATION::default();
    // SAFETY: the handle is open as long as `file` is borrowed, and `found` is writable.
    let done = unsafe { GetFileInformationByHandle(file.as_raw_handle(), &raw mut found) };
    if done == 0 {
        return Err(io::Error::last_os_error());
    }
    let index = (u64::from(found.nFileIndexHigh) << 32) | u64::from(found.nFileIndexLow);
    Ok((u64::from(found.dwVolumeSerialNumber), index))
}
