//! The processes of this machine ([`list`]), and the CPUs that the first one leaves to all others
//! ([`first_process_cpus`]).
//!
//! They are read from a directory such as `/proc`, so tests can use their own tree on any system; a
//! missing directory has no processes. The caller interprets the result.

use std::fs;
use std::path::Path;

use placement::CpuSet;

/// A process and its command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    pub pid: u32,
    /// The kernel's name of the process, at most 15 bytes.
    pub name: String,
    /// The program and its arguments; empty for kernel threads.
    pub command: Vec<String>,
}

/// Returns the processes of this machine by id. Processes that end meanwhile are skipped.
#[must_use]
pub fn list(proc: &Path) -> Vec<Process> {
    let entries = fs::read_dir(proc).into_iter().flatten().flatten();
    let mut found: Vec<Process> = entries
        .filter_map(|entry| {
            let pid = entry.file_name().to_str()?.parse().ok()?;
            let name = fs::read_to_string(entry.path().join("comm")).ok()?;
            let command = fs::read(entry.path().join("cmdline")).unwrap_or_default();
            Some(Process { pid, name: name.trim_end().to_owned(), command: arguments(&command) })
        })
        .collect();
    found.sort_by_key(|neighbour| neighbour.pid);
    found
}

/// Splits the command line; each argument ends with a zero byte.
fn arguments(command: &[u8]) -> Vec<String> {
    let text = String::from_utf8_lossy(command);
    let text = text.strip_suffix('\0').unwrap_or(&text);
    if text.is_empty() { Vec::new() } else { text.split('\0').map(str::to_owned).collect() }
}

/// Returns the process that listens on a TCP port, from `/proc/net/tcp` and the open files of
/// processes; `None` if unknown, as for other users' processes without root.
#[must_use]
pub fn listener(proc: &Path, port: u16) -> Option<Process> {
    let tables = ["net/tcp", "net/tcp6"].map(|table| fs::read_to_string(proc.join(table)));
    let inode = tables.iter().flatten().flat_map(|table| table.lines()).find_map(|line| {
        // sl local_address rem_address st tx_queue:rx_queue tr:when retrnsmt uid timeout inode …
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        let (_, local) = fields.get(1)?.rsplit_once(':')?;
        let is_it = u16::from_str_radix(local, 16) == Ok(port) && fields.get(3) == Some(&"0A");
        fields.get(9).filter(|_| is_it).map(|inode| format!("socket:[{inode}]"))
    })?;
    list(proc).into_iter().find(|process| {
        let files = fs::read_dir(proc.join(process.pid.to_string()).join("fd"));
        let mut files = files.into_iter().flatten().flatten();
        files.any(|file| fs::read_link(file.path()).is_ok_and(|to| to == Path::new(&inode)))
    })
}

/// Returns the effective user of this process from `/proc/self/status`; `None` if unknown.
#[must_use]
pub fn effective_user(proc: &Path) -> Option<u32> {
    let status = fs::read_to_string(proc.join("self/status")).ok()?;
    // Real, effective, saved and file system user.
    let users = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    users.split_ascii_whitespace().nth(1)?.parse().ok()
}

/// Returns the CPUs of the first process, which its descendants inherit; `None` if unknown.
#[must_use]
pub fn first_process_cpus(proc: &Path) -> Option<CpuSet> {
    let status = fs::read_to_string(proc.join("1/status")).ok()?;
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
    CpuSet::parse(list.trim()).ok()
}

/// Returns the online CPUs from `/sys/devices/system/cpu`; `None` if unknown.
#[must_use]
pub fn online_cpus(cpus: &Path) -> Option<CpuSet> {
    CpuSet::parse(fs::read_to_string(cpus.join("online")).ok()?.trim()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_are_listed_and_other_entries_skipped() {
        let proc = tempfile::tempdir().unwrap();
        let put = |path: &str, text: &str| {
            let path = proc.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        put("12/comm", "kubelet\n");
        put("12/cmdline", "/usr/bin/kubelet\0--config\0/a b\0\0");
        put("2/comm", "kthreadd\n");
        put("2/cmdline", "");
        put("1/status", "Name:\tinit\nCpus_allowed_list:\t0-2\n");
        put("sys/comm", "x");
        put("online", "0-3\n");
        put("self/status", "Name:\tx\nUid:\t1000\t0\t1000\t1000\n");
        assert_eq!(effective_user(proc.path()), Some(0));
        let found = list(proc.path());
        let shown: Vec<_> =
            found.iter().map(|p| format!("{} {} {:?}", p.pid, p.name, p.command)).collect();
        let kubelet = "12 kubelet [\"/usr/bin/kubelet\", \"--config\", \"/a b\", \"\"]";
        assert_eq!(shown, ["2 kthreadd []", kubelet]);
        assert_eq!(first_process_cpus(proc.path()), CpuSet::parse("0-2").ok());
        assert_eq!(online_cpus(proc.path()), CpuSet::parse("0-3").ok());
        let nowhere = proc.path().join("nowhere");
        assert_eq!(list(&nowhere), []);
        assert_eq!((first_process_cpus(&nowhere), online_cpus(&nowhere)), (None, None));
        assert_eq!((listener(&nowhere, 80), effective_user(&nowhere)), (None, None));
    }

    #[test]
    #[cfg_attr(windows, ignore = "not on wine: there is no /proc")]
    fn the_process_that_listens_on_a_port_is_found() {
        let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = socket.local_addr().unwrap().port();
        let found = listener(Path::new("/proc"), port).unwrap();
        assert_eq!(found.pid, std::process::id());
        drop(socket);
        assert_eq!(listener(Path::new("/proc"), port), None);
    }
}
