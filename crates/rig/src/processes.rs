//! Reads processes from `/proc` and kills them by id.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::wait::wait_until;

/// The timeout for a killed process to disappear.
const PATIENCE: Duration = Duration::from_secs(10);

/// A running process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Process {
    pub(crate) id: u32,
    parent: u32,
    arguments: Vec<String>,
}

/// Returns every process except zombies.
pub(crate) fn all() -> Vec<Process> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| read(entry.file_name().to_str()?.parse().ok()?)).collect()
}

fn read(id: u32) -> Option<Process> {
    let directory = Path::new("/proc").join(id.to_string());
    let parent = parent(&fs::read_to_string(directory.join("stat")).ok()?)?;
    let arguments = fs::read(directory.join("cmdline")).ok()?;
    let arguments = arguments.split(|byte| *byte == 0);
    let arguments = arguments.map(|text| String::from_utf8_lossy(text).into_owned()).collect();
    Some(Process { id, parent, arguments })
}

/// Returns the parent's id from `/proc/ID/stat`; `None` for a zombie. The name before it is in
/// parentheses and may contain parentheses.
fn parent(stat: &str) -> Option<u32> {
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_ascii_whitespace();
    let state = fields.next()?;
    if matches!(state, "Z" | "X") { None } else { fields.next()?.parse().ok() }
}

/// Returns true if every thread of the process is stopped by a signal.
pub(crate) fn is_stopped(id: u32) -> bool {
    let threads = fs::read_dir(format!("/proc/{id}/task")).into_iter().flatten().flatten();
    let mut stats = threads.map(|thread| fs::read_to_string(thread.path().join("stat")));
    stats.all(|stat| stat.is_ok_and(|stat| state(&stat) == Some("T")))
}

/// Returns the state letter from `/proc/ID/stat`.
fn state(stat: &str) -> Option<&str> {
    stat.rsplit_once(')')?.1.split_ascii_whitespace().next()
}

impl Process {
    /// Returns true if the process was started with these two consecutive arguments.
    pub(crate) fn has_arguments(&self, name: &str, value: &str) -> bool {
        self.arguments.windows(2).any(|pair| pair[0] == name && pair[1] == value)
    }
}

/// Returns the descendants of these processes.
pub(crate) fn descendants(roots: &[u32], among: &[Process]) -> Vec<u32> {
    let mut found: Vec<u32> = Vec::new();
    let mut parents = roots.to_vec();
    while let Some(parent) = parents.pop() {
        for process in among.iter().filter(|process| process.parent == parent) {
            if !found.contains(&process.id) {
                found.push(process.id);
                parents.push(process.id);
            }
        }
    }
    found
}

/// Sends a signal with the shell's built-in `kill`, which every machine has.
pub(crate) fn signal(name: &str, processes: &[u32]) {
    for process in processes {
        let script = format!("kill -{name} {process} 2>/dev/null");
        let _ = Command::new("sh").args(["-c", &script]).status();
    }
}

/// Kills processes and waits for their end. Returns true if all are gone.
pub(crate) fn kill(processes: &[u32]) -> bool {
    signal("KILL", processes);
    wait_until(PATIENCE, || processes.iter().all(|id| read(*id).is_none()).then_some(())).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parent_is_parsed_after_any_process_name() {
        assert_eq!(parent("12 (a) S) S 7 1 1"), Some(7));
        assert_eq!(parent("12 (sh) Z 7 1 1"), None);
        assert_eq!(parent("12 (sh"), None);
        assert_eq!(parent(""), None);
    }

    #[test]
    fn descendants_are_found_recursively() {
        let process = |id, parent| Process { id, parent, arguments: Vec::new() };
        let all = [process(2, 1), process(3, 2), process(4, 3), process(5, 1), process(6, 6)];
        let mut found = descendants(&[2, 6], &all);
        found.sort_unstable();
        assert_eq!(found, [3, 4, 6]);
    }

    #[test]
    fn arguments_are_matched_in_pairs() {
        let arguments = ["shim", "-id", "x", "-address", "/a/sock"].map(str::to_owned).to_vec();
        let process = Process { id: 2, parent: 1, arguments };
        assert!(process.has_arguments("-address", "/a/sock"));
        assert!(!process.has_arguments("-address", "/a/so"));
        assert!(!process.has_arguments("-id", "/a/sock"));
    }
}
