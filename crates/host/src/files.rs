//! Crash-safe files: written completely or not at all.
//!
//! Main entries: [`write_atomically`] and [`back_up`]; [`make_private_directory`] excludes other
//! users, and [`identity`] distinguishes files. The contents are opaque. Each file has one writer;
//! callers must not write the same file from two processes at once.
//!
//! A kill or a power failure at any instant leaves the old or the new content:
//!
//! ```text
//! create temp ── write ── sync temp ── rename over the file ── sync directory
//!      old         old        old             old or new             new
//! ```
//!
//! - Before the rename the file has not been touched. A crash leaves a temporary file of a fixed
//!   name,
//!   which is never read and which the next write removes: crashes do not accumulate files.
//! - The rename is atomic for every reader. The temporary file was synced before it, so the new
//!   name
//!   never leads to content that is not on disk yet.
//! - After the directory was synced the new name itself is on disk, and only then does the function
//!   return success. (On Windows the rename writes through instead.)
//! - Both names are in one directory, hence on one file system: the rename cannot become a copy.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::io::{self, ErrorKind, Write as _};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use thiserror::Error;
use tracing::debug;

use crate::os;

/// The largest number of backups of one file; beyond it, an operator must remove some.
const MAX_BACKUPS: u32 = 999;

/// The reason why a file was not written. The old content, if any, is still there.
#[derive(Debug, Error)]
pub enum WriteError {
    #[error("{0} does not name a file in a directory")]
    NotAFile(PathBuf),
    #[error("cannot {step} {path}")]
    Io { step: &'static str, path: PathBuf, source: io::Error },
    #[error("{0} has {MAX_BACKUPS} backups already; remove those that are not needed")]
    TooManyBackups(PathBuf),
}

/// The steps after which tests simulate a crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Created,
    Written,
    Synced,
    Renamed,
}

/// Replaces the content of `path` by `bytes`.
pub fn write_atomically(path: &Path, bytes: &[u8]) -> Result<(), WriteError> {
    let result = write_in_steps(path, bytes, |_| Ok(()));
    if result.is_err() {
        // The write has already failed; the next one removes a leftover.
        if let Ok(temporary) = temporary(path)
            && let Err(error) = fs::remove_file(&temporary)
            && error.kind() != ErrorKind::NotFound
        {
            debug!(path = %temporary.display(), %error, "failed to remove a temporary file");
        }
    }
    result
}

fn write_in_steps(
    path: &Path,
    bytes: &[u8],
    mut after: impl FnMut(Step) -> io::Result<()>,
) -> Result<(), WriteError> {
    let temporary = temporary(path)?;
    let failed = |step, path: &Path| {
        let path = path.to_owned();
        move |source| WriteError::Io { step, path, source }
    };
    match fs::remove_file(&temporary) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            return Err(failed("remove the left-over", &temporary)(error));
        }
        _ => {}
    }
    let mut file = os::create_private_file(&temporary)
        .and_then(|file| after(Step::Created).map(|()| file))
        .map_err(failed("create", &temporary))?;
    file.write_all(bytes)
        .and_then(|()| after(Step::Written))
        .map_err(failed("write", &temporary))?;
    file.sync_all().and_then(|()| after(Step::Synced)).map_err(failed("flush", &temporary))?;
    // Windows does not rename an open file.
    drop(file);
    os::replace_file(&temporary, path)
        .and_then(|()| after(Step::Renamed))
        .map_err(failed("replace", path))?;
    let directory = directory_of(path);
    os::sync_directory(directory).map_err(failed("flush the directory", directory))
}

/// Copies `path` to the first free sibling name `<name>.backup-N` and returns that name; `None` if
/// the file does not exist. Never overwrites an older backup.
pub fn back_up(path: &Path) -> Result<Option<PathBuf>, WriteError> {
    let bytes = match fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(source) => {
            return Err(WriteError::Io { step: "read", path: path.to_owned(), source });
        }
    };
    for number in 1..=MAX_BACKUPS {
        let backup = sibling(path, "", &format!(".backup-{number}"))?;
        if fs::symlink_metadata(&backup).is_ok() {
            continue;
        }
        write_atomically(&backup, &bytes)?;
        return Ok(Some(backup));
    }
    Err(WriteError::TooManyBackups(path.to_owned()))
}

/// Creates a directory that only its owner (on Windows also administrators and the system) can
/// enter, and missing parents with default permissions. An existing directory is made private.
pub fn make_private_directory(path: &Path) -> Result<(), WriteError> {
    let failed =
        |source| WriteError::Io { step: "make the directory", path: path.to_owned(), source };
    let above = directory_of(path);
    fs::create_dir_all(above).map_err(failed)?;
    os::make_private_directory(path).map_err(failed)?;
    os::sync_directory(above).map_err(failed)
}

/// The identity of an open file, independent of its name. Valid while the handle is open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identity(u64, u64);

/// Returns the identity of an open file.
pub fn identity(file: &fs::File) -> io::Result<Identity> {
    let (volume, index) = os::file_identity(file)?;
    Ok(Identity(volume, index))
}

/// Returns the modification time of each named file of a directory; `None` for a missing one.
#[must_use]
pub fn modification_times(
    directory: &Path,
    names: &[&str],
) -> BTreeMap<PathBuf, Option<SystemTime>> {
    let modified = |name: &&str| {
        let path = directory.join(name);
        let time = fs::metadata(&path).and_then(|metadata| metadata.modified()).ok();
        (path, time)
    };
    names.iter().map(modified).collect()
}

fn temporary(path: &Path) -> Result<PathBuf, WriteError> {
    sibling(path, ".", ".tmp")
}

fn sibling(path: &Path, before: &str, after: &str) -> Result<PathBuf, WriteError> {
    let name = path.file_name().ok_or_else(|| WriteError::NotAFile(path.to_owned()))?;
    let mut sibling = OsString::from(before);
    sibling.push(name);
    sibling.push(after);
    Ok(path.with_file_name(sibling))
}

fn directory_of(path: &Path) -> &Path {
    match path.parent() {
        Some(directory) if !directory.as_os_str().is_empty() => directory,
        _ => Path::new("."),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_identity_does_not_depend_on_the_name() {
        let directory = tempfile::tempdir().unwrap();
        let (one, two) = (directory.path().join("one"), directory.path().join("two"));
        fs::write(&one, "x").unwrap();
        let open = identity(&fs::File::open(&one).unwrap()).unwrap();
        fs::rename(&one, &two).unwrap();
        fs::write(&one, "x").unwrap();
        assert_eq!(identity(&fs::File::open(&two).unwrap()).unwrap(), open);
        assert_ne!(identity(&fs::File::open(&one).unwrap()).unwrap(), open);
    }

    fn names(directory: &Path) -> Vec<String> {
        let mut names: Vec<_> = fs::read_dir(directory)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn content_is_replaced_without_leftovers() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("cpu_manager_state");
        write_atomically(&path, b"old").unwrap();
        write_atomically(&path, b"new").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        assert_eq!(names(directory.path()), ["cpu_manager_state"]);
    }

    #[test]
    fn a_crash_leaves_old_or_new_content() {
        for crash in [Step::Created, Step::Written, Step::Synced, Step::Renamed] {
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().join("state");
            write_atomically(&path, b"old").unwrap();
            let result = write_in_steps(&path, b"newer", |step| {
                if step == crash { Err(io::Error::other("crash")) } else { Ok(()) }
            });
            assert!(result.is_err());
            let expected: &[u8] = if crash == Step::Renamed { b"newer" } else { b"old" };
            assert_eq!(fs::read(&path).unwrap(), expected, "{crash:?}");
            write_atomically(&path, b"newest").unwrap();
            assert_eq!(fs::read(&path).unwrap(), b"newest");
            assert_eq!(names(directory.path()), ["state"], "{crash:?}");
        }
    }

    #[test]
    fn missing_files_have_no_modification_time() {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("a"), "").unwrap();
        let times = modification_times(directory.path(), &["a", "b"]);
        let known: Vec<bool> = times.values().map(Option::is_some).collect();
        assert_eq!(known, [true, false]);
    }

    #[test]
    fn backups_are_numbered_and_never_overwritten() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("state");
        assert_eq!(back_up(&path).unwrap(), None);
        for content in ["one", "two"] {
            fs::write(&path, content).unwrap();
            back_up(&path).unwrap().unwrap();
        }
        assert_eq!(fs::read(directory.path().join("state.backup-1")).unwrap(), b"one");
        assert_eq!(fs::read(directory.path().join("state.backup-2")).unwrap(), b"two");
    }

    #[test]
    fn private_directories_exclude_other_users() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("above").join("private");
        for _ in 0..2 {
            make_private_directory(&path).unwrap();
            write_atomically(&path.join("file"), b"ours").unwrap();
            let made = fs::metadata(&path).unwrap();
            // Windows has no modes.
            assert!([0o700, 0].contains(&os::owners::mode(&made)), "{made:?}");
            os::owners::set_mode(&path, 0o755).unwrap();
        }
        let file = directory.path().join("file");
        fs::write(&file, "").unwrap();
        let refused = make_private_directory(&file).unwrap_err().to_string();
        assert!(refused.contains("make the directory"), "{refused}");
    }

    #[test]
    fn a_missing_directory_is_named_in_the_error() {
        let directory = tempfile::tempdir().unwrap();
        let error = write_atomically(&directory.path().join("none/state"), b"x").unwrap_err();
        assert!(error.to_string().contains("create"), "{error}");
        assert!(matches!(write_atomically(Path::new("/"), b"x"), Err(WriteError::NotAFile(_))));
    }
}
