//! Identity and usage of this machine on Linux, from files of `/proc`, `/sys` and `/etc`.
//!
//! [`crate::system::linux`] parses them; see [`crate::os`] for the twins. Missing values are empty:
//! a container or a small board has no DMI, and nothing depends on all values.

use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::Duration;

use crate::system::{
    FileSystem, Identity, Inodes, Interface, Memory, ProcessIds, ProcessUsage, linux,
};

/// Returns the identity of this machine.
#[must_use]
pub fn identity() -> Identity {
    let machine_id = first(&["/etc/machine-id", "/var/lib/dbus/machine-id"]);
    let uuid = first(&[
        "/sys/class/dmi/id/product_uuid",
        "/proc/device-tree/system-id",
        "/proc/device-tree/vm,uuid",
    ]);
    let system_uuid = if uuid.is_empty() { machine_id.clone() } else { uuid };
    let release = ["/etc/os-release", "/usr/lib/os-release"];
    let os_image = release.iter().find_map(|path| linux::pretty_name(&read(path)?));
    Identity {
        hostname: first(&["/proc/sys/kernel/hostname"]).to_lowercase(),
        machine_id,
        system_uuid,
        boot_id: first(&["/proc/sys/kernel/random/boot_id"]),
        kernel_version: first(&["/proc/sys/kernel/osrelease"]),
        os_image: os_image.unwrap_or_else(|| "Linux".to_owned()),
        in_user_namespace: linux::maps_users(&read("/proc/self/uid_map").unwrap_or_default()),
    }
}

pub fn memory() -> io::Result<Memory> {
    let text = std::fs::read_to_string("/proc/meminfo")?;
    linux::meminfo(&text).ok_or_else(|| odd("/proc/meminfo has no MemTotal in kB"))
}

/// Returns the file system of `path`.
pub fn file_system(path: &Path) -> io::Result<FileSystem> {
    let stat = rustix::fs::statvfs(path)?;
    let bytes = |blocks: u64| blocks.saturating_mul(stat.f_frsize);
    let inodes = Inodes { total: stat.f_files, free: stat.f_ffree };
    Ok(FileSystem {
        capacity: bytes(stat.f_blocks),
        available: bytes(stat.f_bavail),
        // Some file systems (btrfs) create inodes on demand and report none.
        inodes: (inodes.total > 0).then_some(inodes),
    })
}

/// Returns true if two paths are on the same file system.
pub fn same_file_system(one: &Path, other: &Path) -> io::Result<bool> {
    Ok(std::fs::metadata(one)?.dev() == std::fs::metadata(other)?.dev())
}

/// Returns the limit and number of process ids; `None` if the system has no relevant limit.
pub fn process_ids() -> io::Result<Option<ProcessIds>> {
    let number = |path: &str| -> io::Result<u64> {
        let text = std::fs::read_to_string(path)?;
        text.trim().parse().map_err(|_| odd(&format!("{path} holds {text:?}, not a number")))
    };
    let max = number("/proc/sys/kernel/pid_max")?.min(number("/proc/sys/kernel/threads-max")?);
    let load = std::fs::read_to_string("/proc/loadavg")?;
    let used = linux::threads(&load)
        .ok_or_else(|| odd(&format!("/proc/loadavg holds {load:?}, without a count of threads")))?;
    Ok(Some(ProcessIds { max, used }))
}

/// Returns the time since boot.
pub fn uptime() -> io::Result<Duration> {
    let text = std::fs::read_to_string("/proc/uptime")?;
    let seconds =
        linux::uptime(&text).ok_or_else(|| odd(&format!("/proc/uptime holds {text:?}")))?;
    Duration::try_from_secs_f64(seconds).map_err(io::Error::other)
}

pub fn page_size() -> io::Result<u64> {
    let vector = std::fs::read("/proc/self/auxv")?;
    linux::page_size(&vector).ok_or_else(|| odd("/proc/self/auxv has no page size"))
}

/// Returns the sizes of huge pages that the kernel supports, in bytes, ascending.
#[must_use]
pub fn huge_page_sizes() -> Vec<u64> {
    let Ok(entries) = std::fs::read_dir("/sys/kernel/mm/hugepages") else { return Vec::new() };
    let names: Vec<String> =
        entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect();
    linux::huge_page_sizes(names.iter().map(String::as_str))
}

/// Returns the busy time of all CPUs since boot, in nanoseconds.
pub fn busy() -> io::Result<u64> {
    let text = std::fs::read_to_string("/proc/stat")?;
    linux::busy(&text).ok_or_else(|| odd("/proc/stat has no line for all CPUs"))
}

/// Returns the traffic of the machine's network interfaces, or of those in a process' namespace.
pub fn interfaces(process: Option<u32>) -> io::Result<Vec<Interface>> {
    let pid = process.map_or_else(|| "self".to_owned(), |process| process.to_string());
    Ok(linux::interfaces(&std::fs::read_to_string(format!("/proc/{pid}/net/dev"))?))
}

/// Returns the interface of the default route, if there is one.
#[must_use]
pub fn default_interface() -> Option<String> {
    linux::default_interface(&read("/proc/net/route")?).map(str::to_owned)
}

/// Returns the resource usage of this process.
pub fn this_process() -> io::Result<ProcessUsage> {
    let text = std::fs::read_to_string("/proc/self/stat")?;
    let usage = linux::process(&text, page_size()?).ok_or_else(|| odd("/proc/self/stat"))?;
    let open_files = std::fs::read_dir("/proc/self/fd")?.count() as u64;
    Ok(ProcessUsage { open_files, ..usage })
}

fn odd(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// Reads a file; texts of the device tree end with a zero byte.
fn read(path: &str) -> Option<String> {
    let text = std::fs::read_to_string(path).ok()?;
    Some(text.trim_matches(|c: char| c.is_whitespace() || c == '\0').to_owned())
}

fn first(paths: &[&str]) -> String {
    paths.iter().filter_map(|path| read(path)).find(|text| !text.is_empty()).unwrap_or_default()
}

/// Returns the paths below `/sys` that containers must not read: the throttle counters of CPUs.
#[must_use]
pub fn masked_cpu_paths() -> Vec<String> {
    crate::system::thermal_throttle_paths(Path::new("/sys/devices/system/cpu"))
}
