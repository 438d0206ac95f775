//! What a file is: [`FileKind`], with [`kind_of`]; and whole directories: [`begins_file_system`],
//! [`disk_usage`] and [`remove_tree`].
//!
//! The same on every system but for what [`crate::os::owners`] tells. Nothing here mounts or unmounts.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::Path;

use crate::os::owners;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKind {
    File,
    Directory,
    Socket,
    CharDevice,
    BlockDevice,
    /// A pipe, or what no one has heard of.
    Other,
}

/// What `path` leads to; `None` if there is nothing.
pub fn kind_of(path: &Path) -> io::Result<Option<FileKind>> {
    match fs::metadata(path) {
        Ok(metadata) => Ok(Some(owners::kind(&metadata))),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Whether another file system begins at a directory than the one above it is of. Bind mounts of the same
/// one are not noticed.
#[must_use]
pub fn begins_file_system(path: &Path) -> bool {
    let device = |path: &Path| fs::metadata(path).map(|of| owners::identity(&of).0);
    match (device(path), device(&path.join(".."))) {
        (Ok(own), Ok(above)) => own != above,
        _ => false,
    }
}

/// The bytes that a directory and everything in it take. A file of several names counts once, links
/// are not followed and other file systems not entered. What vanishes meanwhile does not count.
pub fn disk_usage(path: &Path) -> io::Result<u64> {
    let root = fs::symlink_metadata(path)?;
    let mut seen = BTreeSet::new();
    let mut total = owners::allocated(&root);
    let mut open = if root.is_dir() { vec![path.to_owned()] } else { Vec::new() };
    while let Some(directory) = open.pop() {
        let Some(entries) = present(fs::read_dir(&directory))? else { continue };
        for entry in entries {
            let Some(entry) = present(entry)? else { continue };
            let Some(metadata) = present(entry.metadata())? else { continue };
            let (device, number) = owners::identity(&metadata);
            if device != owners::identity(&root).0 || (number != 0 && !seen.insert(number)) {
                continue;
            }
            total = total.saturating_add(owners::allocated(&metadata));
            if metadata.is_dir() {
                open.push(entry.path());
            }
        }
    }
    Ok(total)
}

/// Removes a directory and everything in it, and never anything of another file system: a directory
/// that something is mounted on is an error, and what is below it stays. Links are removed, not what
/// they lead to. Bind mounts within one file system look like directories: who may have any asks
/// [`crate::mounts`] first.
pub fn remove_tree(path: &Path) -> io::Result<()> {
    let Some(root) = present(fs::symlink_metadata(path))? else { return Ok(()) };
    if !root.is_dir() {
        return fs::remove_file(path);
    }
    remove_directory(path, owners::identity(&root).0)
}

fn remove_directory(path: &Path, device: u64) -> io::Result<()> {
    let Some(entries) = present(fs::read_dir(path))? else { return Ok(()) };
    for entry in entries {
        let Some(entry) = present(entry)? else { continue };
        let Some(metadata) = present(entry.metadata())? else { continue };
        let below = entry.path();
        if owners::identity(&metadata).0 != device {
            let text = format!("{} is of another file system", below.display());
            return Err(io::Error::new(ErrorKind::ResourceBusy, text));
        }
        let removed = if metadata.is_dir() {
            remove_directory(&below, device)
        } else if metadata.is_symlink() {
            owners::remove_link(&below)
        } else {
            fs::remove_file(&below)
        };
        present(removed)?;
    }
    present(fs::remove_dir(path)).map(|_| ())
}

/// `None` for what is not there.
fn present<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_is_told_and_so_is_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("file");
        fs::write(&file, "x").unwrap();
        assert_eq!(kind_of(directory.path()).unwrap(), Some(FileKind::Directory));
        assert_eq!(kind_of(&file).unwrap(), Some(FileKind::File));
        assert_eq!(kind_of(&directory.path().join("none")).unwrap(), None);
    }

    #[test]
    fn usage_grows_with_what_is_written_wherever_it_is() {
        let directory = tempfile::tempdir().unwrap();
        let before = disk_usage(directory.path()).unwrap();
        let below = directory.path().join("a/b");
        fs::create_dir_all(&below).unwrap();
        let mut noise = vec![0_u8; 300_000];
        noise.iter_mut().enumerate().for_each(|(at, byte)| *byte = (at * 7 % 251) as u8);
        fs::write(below.join("file"), &noise).unwrap();
        let after = disk_usage(directory.path()).unwrap();
        assert!(after >= before + 300_000, "{before} then {after}");
        assert!(disk_usage(&directory.path().join("none")).is_err());
    }

    #[test]
    #[cfg(not(windows))]
    fn a_file_of_two_names_counts_once() {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("one"), vec![7_u8; 300_000]).unwrap();
        let before = disk_usage(directory.path()).unwrap();
        fs::hard_link(directory.path().join("one"), directory.path().join("two")).unwrap();
        assert!(disk_usage(directory.path()).unwrap() < before + 300_000);
    }

    #[test]
    fn a_tree_is_removed_whole_and_a_missing_one_is_no_error() {
        let directory = tempfile::tempdir().unwrap();
        let tree = directory.path().join("tree");
        fs::create_dir_all(tree.join("a/b")).unwrap();
        fs::write(tree.join("a/file"), "x").unwrap();
        remove_tree(&tree).unwrap();
        assert_eq!(kind_of(&tree).unwrap(), None);
        remove_tree(&tree).unwrap();
    }
}
