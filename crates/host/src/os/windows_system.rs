//! Identity and usage of this machine on Windows, from the same system calls and registry values as
//! upstream. See [`crate::os`] for the twins.

use std::io;
use std::os::windows::ffi::OsStrExt as _;
use std::path::Path;
use std::time::Duration;

use windows_sys::Win32::Storage::FileSystem::{GetDiskFreeSpaceExW, GetVolumePathNameW};
use windows_sys::Win32::System::Registry::{
    HKEY_LOCAL_MACHINE, REG_ROUTINE_FLAGS, RRF_RT_REG_DWORD, RRF_RT_REG_SZ, RegGetValueW,
};
use windows_sys::Win32::System::SystemInformation::{
    ComputerNamePhysicalDnsHostname, GetComputerNameExW, GetSystemInfo, GetTickCount64,
    GlobalMemoryStatusEx, MEMORYSTATUSEX, SYSTEM_INFO,
};

use crate::system::{FileSystem, Identity, Interface, Memory, ProcessIds, ProcessUsage};

const VERSION: &str = r"SOFTWARE\Microsoft\Windows NT\CurrentVersion";
const HARDWARE: &str = r"SYSTEM\HardwareConfig";
const BOOT: &str =
    r"SYSTEM\CurrentControlSet\Control\Session Manager\Memory Management\PrefetchParameters";

/// The longest registry text that is read, in characters. All relevant texts are short.
const TEXT: usize = 512;

/// Returns the identity of this machine. As upstream, the name is the only id.
#[must_use]
pub fn identity() -> Identity {
    let hostname = computer_name().unwrap_or_default().to_lowercase();
    let number = |name: &str| registry_number(VERSION, name).unwrap_or(0).to_string();
    let build = registry_text(VERSION, "CurrentBuildNumber").unwrap_or_default();
    let version = [number("CurrentMajorVersionNumber"), number("CurrentMinorVersionNumber"), build];
    let uuid = registry_text(HARDWARE, "LastConfig").unwrap_or_default();
    Identity {
        machine_id: hostname.clone(),
        hostname,
        system_uuid: uuid.trim_matches(['{', '}']).to_owned(),
        boot_id: registry_number(BOOT, "BootId").map_or_else(String::new, |id| id.to_string()),
        kernel_version: format!("{}.{}", version.join("."), number("UBR")),
        os_image: registry_text(VERSION, "ProductName").unwrap_or_else(|| "Windows".to_owned()),
        in_user_namespace: false,
    }
}

pub fn memory() -> io::Result<Memory> {
    let mut status = MEMORYSTATUSEX {
        dwLength: u32::try_from(size_of::<MEMORYSTATUSEX>()).unwrap_or(0),
        ..MEMORYSTATUSEX::default()
    };
    // SAFETY: the pointer is to a local whose length it carries.
    if unsafe { GlobalMemoryStatusEx(&mut status) } == 0 {
        return Err(io::Error::last_os_error());
    }
    // Windows' page file counts include physical memory.
    let swap = |with: u64, memory: u64| with.saturating_sub(memory);
    Ok(Memory {
        total: status.ullTotalPhys,
        free: status.ullAvailPhys,
        available: status.ullAvailPhys,
        inactive_file: 0,
        swap_total: swap(status.ullTotalPageFile, status.ullTotalPhys),
        swap_free: swap(status.ullAvailPageFile, status.ullAvailPhys),
    })
}

/// Returns the file system of `path`.
pub fn file_system(path: &Path) -> io::Result<FileSystem> {
    let path: Vec<u16> = path.as_os_str().encode_wide().chain([0]).collect();
    let (mut available, mut capacity) = (0, 0);
    // SAFETY: the path is NUL-terminated and outlives the call; the other pointers are to locals,
    // or null.
    let done = unsafe {
        GetDiskFreeSpaceExW(path.as_ptr(), &mut available, &mut capacity, std::ptr::null_mut())
    };
    if done == 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(FileSystem { capacity, available, inodes: None })
}

/// Returns true if two paths are on the same volume.
pub fn same_file_system(one: &Path, other: &Path) -> io::Result<bool> {
    Ok(volume(one)?.eq_ignore_ascii_case(&volume(other)?))
}

/// Returns the mount point of the volume of a path.
fn volume(path: &Path) -> io::Result<String> {
    // The call accepts missing paths and returns the volume of a parent.
    let path = std::fs::canonicalize(path)?;
    let path: Vec<u16> = path.as_os_str().encode_wide().chain([0]).collect();
    let mut mount = vec![0; path.len() + 1];
    let room = u32::try_from(mount.len()).map_err(io::Error::other)?;
    // SAFETY: the path is NUL-terminated; the pointer is to `room` characters. Both outlive the call.
    if unsafe { GetVolumePathNameW(path.as_ptr(), mount.as_mut_ptr(), room) } == 0 {
        return Err(io::Error::last_os_error());
    }
    let text = String::from_utf16_lossy(&mount);
    Ok(text.trim_end_matches('\0').to_owned())
}

/// Returns `None`: Windows has no relevant limit.
pub fn process_ids() -> io::Result<Option<ProcessIds>> {
    Ok(None)
}

/// Returns the time since boot.
pub fn uptime() -> io::Result<Duration> {
    // SAFETY: takes nothing.
    Ok(Duration::from_millis(unsafe { GetTickCount64() }))
}

pub fn page_size() -> io::Result<u64> {
    let mut system = SYSTEM_INFO::default();
    // SAFETY: the pointer is to a local.
    unsafe { GetSystemInfo(&mut system) };
    Ok(u64::from(system.dwPageSize))
}

/// Returns nothing: Windows containers have no huge pages.
#[must_use]
pub fn huge_page_sizes() -> Vec<u64> {
    Vec::new()
}

/// Not implemented on Windows.
pub fn busy() -> io::Result<u64> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Not implemented on Windows.
pub fn interfaces(_process: Option<u32>) -> io::Result<Vec<Interface>> {
    Err(io::ErrorKind::Unsupported.into())
}

#[must_use]
pub fn default_interface() -> Option<String> {
    None
}

/// Not implemented on Windows.
pub fn this_process() -> io::Result<ProcessUsage> {
    Err(io::ErrorKind::Unsupported.into())
}

fn computer_name() -> Option<String> {
    let mut name = [0; 256];
    let mut length = u32::try_from(name.len()).ok()?;
    // SAFETY: the pointer is to `length` characters.
    let done = unsafe {
        GetComputerNameExW(ComputerNamePhysicalDnsHostname, name.as_mut_ptr(), &mut length)
    };
    (done != 0).then(|| String::from_utf16_lossy(&name[..length as usize]))
}

/// Reads a registry value into `room` and returns the number of bytes.
fn registry(key: &str, name: &str, kind: REG_ROUTINE_FLAGS, room: &mut [u16]) -> Option<usize> {
    let wide = |text: &str| text.encode_utf16().chain([0]).collect::<Vec<u16>>();
    let (key, name) = (wide(key), wide(name));
    let mut length = u32::try_from(size_of_val(room)).ok()?;
    // SAFETY: both names are NUL-terminated; the pointer is to `length` bytes; the type is not wanted.
    let failed = unsafe {
        RegGetValueW(
            HKEY_LOCAL_MACHINE,
            key.as_ptr(),
            name.as_ptr(),
            kind,
            std::ptr::null_mut(),
            room.as_mut_ptr().cast(),
            &mut length,
        )
    };
    (failed == 0).then_some(length as usize)
}

fn registry_text(key: &str, name: &str) -> Option<String> {
    let mut room = [0; TEXT];
    let bytes = registry(key, name, RRF_RT_REG_SZ, &mut room)?;
    let text = String::from_utf16_lossy(&room[..(bytes / 2).min(TEXT)]);
    Some(text.trim_end_matches('\0').to_owned())
}

fn registry_number(key: &str, name: &str) -> Option<u32> {
    let mut room = [0; 2];
    let bytes = registry(key, name, RRF_RT_REG_DWORD, &mut room)?;
    (bytes == 4).then(|| u32::from(room[0]) | u32::from(room[1]) << 16)
}

/// Returns nothing: Windows has no `/sys`.
#[must_use]
pub fn masked_cpu_paths() -> Vec<String> {
    Vec::new()
}
