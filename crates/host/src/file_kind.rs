//! File types: [`FileKind`] and [`kind_of`]; and operations on directory trees:
//! [`begins_file_system`], [`disk_usage`] and [`remove_tree`].
//!
//! The same on every system, except for [`crate::os::owners`]. Nothing here mounts or unmounts.

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
    /// A pipe, or an unknown kind.
    Other,
}

/// Returns the kind of file that `path` leads to; `None` if it does not exist.
pub fn kind_of(path: &Path) -> io::Result<Option<FileKind>> {
    match fs::metadata(path) {
        Ok(metadata) => Ok(Some(owners::kind(&metadata))),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Returns true if a directory is on another file system than its parent. Bind mounts of the same
/// file system are not detected.
#[must_use]
pub fn begins_file_system(path: &Path) -> bool {
    let device = |path: &Path| fs::metadata(path).map(|metadata| owners::identity(&metadata).0);
    match (device(path), device(&path.join(".."))) {
        (Ok(own), Ok(above)) => own != above,
        _ => false,
    }
}

/// Returns the bytes that a directory and its contents take. A file with several names counts once,
/// links are not followed, and other file systems are not entered. Files that vanish meanwhile are
/// not counted.
pub fn disk_usage(path: &Path) -> io::Result<u64> {
    let root = fs::symlink_metadata(path)?;
    let mut counted = BTreeSet::new();
    let mut total = owners::allocated(&root);
    let mut open = if root.is_dir() { vec![path.to_owned()] } else { Vec::new() };
    while let Some(directory) = open.pop() {
        let Some(entries) = present(fs::read_dir(&directory))? else { continue };
        for entry in entries {
            let Some(entry) = present(entry)? else { continue };
            let Some(metadata) = present(entry.metadata())? else { continue };
            let (device, number) = owners::identity(&metadata);
            if device != owners::identity(&root).0 || (number != 0 && !counted.insert(number)) {
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

/// Removes a directory and its contents, but never files of another file system: a mount point is
/// an error and is kept with its contents. Links are removed, not their targets. Bind mounts within
/// one file system look like directories, so callers that may have some check [`crate::mounts`]
/// first.
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
            let text = format!("{} is on another file system", below.display());
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

/// Maps a missing file to `None`.
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
    fn kinds_of_files_and_missing_files_are_reported() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("file");
        fs::write(&file, "x").unwrap();
        assert_eq!(kind_of(directory.path()).unwrap(), Some(FileKind::Directory));
        assert_eq!(kind_of(&file).unwrap(), Some(FileKind::File));
        assert_eq!(kind_of(&directory.path().join("none")).unwrap(), None);
    }

    #[test]
    fn disk_usage_grows_with_files_at_any_depth() {
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
    fn a_file_with_two_names_counts_once() {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("one"), vec![7_u8; 300_000]).unwrap();
        let before = disk_usage(directory.path()).unwrap();
        fs::hard_link(directory.path().join("one"), directory.path().join("two")).unwrap();
        assert!(disk_usage(directory.path()).unwrap() < before + 300_000);
    }

    #[test]
    fn a_tree_is_removed_and_may_be_missing() {
        let directory = tempfile::tempdir().unwrap();
        let tree = directory.path().join("tree");
        fs::create_dir_all(tree.join("a/b")).unwrap();
        fs::write(tree.join("a/file"), "x").unwrap();
        remove_tree(&tree).unwrap();
        assert_eq!(kind_of(&tree).unwrap(), None);
        remove_tree(&tree).unwrap();
    }
}
