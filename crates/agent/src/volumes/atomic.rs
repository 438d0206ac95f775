//! Atomic updates of a volume's files: [`write()`].
//!
//! ```text
//!   <volume>/key      -> ..data/key                   links that users see
//!            dir      -> ..data/dir
//!            ..data   -> ..2026_02_01_15_04_05.1a2b3c4d
//!            ..2026_02_01_15_04_05.1a2b3c4d/key       the files
//!                                          dir/file
//! ```
//!
//! New files are written to a new directory, which gets its owners, and then `..data` is replaced atomically:
//! readers see either all old files or all new ones. A crash at any point leaves one of the two. The next
//! write removes directories without links. Nothing is synced to disk: after a power failure no container
//! runs that could have seen the old files.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Component, Path, PathBuf};

use host::file_kind::remove_tree;
use host::os::owners;

use super::contents::File;
use super::directories::random_name;
use super::{Problem, go_error};

/// The link that makes files visible, and its replacement.
const DATA: &str = "..data";
const NEW_DATA: &str = "..data_tmp";
/// The mode of directories. The mode of each file limits its readers.
const DIRECTORY: u32 = 0o755;

/// Replaces the files of the volume at `target`. `finish` gets the new directory before it becomes visible,
/// to set owners. Returns true if anything was written.
pub(super) fn write(
    target: &Path,
    files: &BTreeMap<String, File>,
    finish: impl FnOnce(&Path) -> io::Result<()>,
) -> Result<bool, Problem> {
    for path in files.keys() {
        check(path)?;
    }
    let data = target.join(DATA);
    let old = match fs::read_link(&data) {
        Ok(old) => Some(old),
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        Err(error) => return Err(failed("readlink", &data)(error)),
    };
    let is_written = match &old {
        Some(old) => is_same(&target.join(old), files).map_err(failed("read", target))?,
        None => false,
    };
    if !is_written {
        let new = make_directory(target).map_err(failed("mkdir", target))?;
        let replaced = fill(&new, files)
            .and_then(|()| finish(&new).map_err(failed("chown", &new)))
            .and_then(|()| replace(target, &new).map_err(failed("replace", &data)));
        if let Err(problem) = replaced {
            // The error is returned; the next write removes a remaining directory.
            let _ = remove_tree(&new);
            return Err(problem);
        }
    }
    // Check links even if nothing changed: a crash may have preceded them.
    let current = fs::read_link(&data).map_err(failed("readlink", &data))?;
    let made = show(target, &target.join(&current)).map_err(failed("link", target))?;
    clean(target, &current).map_err(failed("clean", target))?;
    Ok(!is_written || made)
}

fn failed(step: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Problem {
    let path = path.display().to_string();
    move |error| Problem::Io { step, path, why: go_error(&error) }
}

/// Rejects a path that this system may interpret as leading elsewhere.
fn check(path: &str) -> Result<(), Problem> {
    let is_plain = Path::new(path).components().all(|part| matches!(part, Component::Normal(_)));
    if is_plain && !path.is_empty() {
        return Ok(());
    }
    Err(Problem::Path(format!("invalid path: must be relative path: {path}")))
}

/// Returns true if a directory has exactly these files. Modes come from the pod's spec and do not change.
fn is_same(directory: &Path, files: &BTreeMap<String, File>) -> io::Result<bool> {
    let mut there = BTreeSet::new();
    list(directory, &mut PathBuf::new(), &mut there)?;
    if there.len() != files.len() {
        return Ok(false);
    }
    for (path, file) in files {
        let path = Path::new(path);
        if !there.contains(path) || fs::read(directory.join(path))? != file.data {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Lists the files below a directory; none if it does not exist.
fn list(root: &Path, below: &mut PathBuf, found: &mut BTreeSet<PathBuf>) -> io::Result<()> {
    let entries = match fs::read_dir(root.join(&below)) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        let entry = entry?;
        below.push(entry.file_name());
        if entry.file_type()?.is_dir() {
            list(root, below, found)?;
        } else {
            found.insert(below.clone());
        }
        below.pop();
    }
    Ok(())
}

fn make_directory(target: &Path) -> io::Result<PathBuf> {
    let now = time::UtcDateTime::now();
    let stamp = format!(
        "..{:04}_{:02}_{:02}_{:02}_{:02}_{:02}.{}",
        now.year(),
        u8::from(now.month()),
        now.day(),
        now.hour(),
        now.minute(),
        now.second(),
        random_name()
    );
    let directory = target.join(stamp);
    fs::create_dir(&directory)?;
    owners::set_mode(&directory, DIRECTORY)?;
    Ok(directory)
}

fn fill(directory: &Path, files: &BTreeMap<String, File>) -> Result<(), Problem> {
    for (name, file) in files {
        let path = directory.join(name);
        if let Some(parent) = path.parent() {
            make_parents(directory, parent).map_err(failed("mkdir", parent))?;
        }
        fs::write(&path, &file.data).map_err(failed("write", &path))?;
        owners::set_mode(&path, file.mode).map_err(failed("chmod", &path))?;
        if file.owner.is_some() {
            owners::set_owner(&path, file.owner, None).map_err(failed("chown", &path))?;
        }
    }
    Ok(())
}

fn make_parents(root: &Path, directory: &Path) -> io::Result<()> {
    if directory == root || directory.is_dir() {
        return Ok(());
    }
    if let Some(parent) = directory.parent() {
        make_parents(root, parent)?;
    }
    fs::create_dir(directory)?;
    owners::set_mode(directory, DIRECTORY)
}

fn replace(target: &Path, new: &Path) -> io::Result<()> {
    let name = new.file_name().map(Path::new).ok_or(ErrorKind::InvalidInput)?;
    let link = target.join(NEW_DATA);
    match owners::remove_link(&link) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    owners::link(name, &link, true)?;
    owners::replace_link(&link, &target.join(DATA))
}

/// Creates the visible links to everything in `current`, and removes the others.
fn show(target: &Path, current: &Path) -> io::Result<bool> {
    let mut made = false;
    let mut visible = BTreeSet::new();
    for entry in fs::read_dir(current)? {
        let entry = entry?;
        let name = entry.file_name();
        let link = target.join(&name);
        if fs::symlink_metadata(&link).is_err() {
            let leads_to = Path::new(DATA).join(&name);
            owners::link(&leads_to, &link, entry.file_type()?.is_dir())?;
            made = true;
        }
        visible.insert(name);
    }
    for entry in fs::read_dir(target)? {
        let entry = entry?;
        let name = entry.file_name();
        let is_ours = entry.file_type()?.is_symlink() && !name.to_string_lossy().starts_with("..");
        let leads_to = Path::new(DATA).join(&name);
        if is_ours && !visible.contains(&name) && fs::read_link(entry.path())? == leads_to {
            owners::remove_link(&entry.path())?;
            made = true;
        }
    }
    Ok(made)
}

/// Removes directories of earlier writes.
fn clean(target: &Path, current: &Path) -> io::Result<()> {
    for entry in fs::read_dir(target)? {
        let entry = entry?;
        let name = entry.file_name();
        let is_old = entry.file_type()?.is_dir() && name.to_string_lossy().starts_with("..");
        if is_old && Path::new(&name) != current {
            remove_tree(&entry.path())?;
        }
    }
    Ok(())
}
