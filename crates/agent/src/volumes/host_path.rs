//! Host paths: checks their type, and creates them where allowed.
//!
//! The error texts equal upstream's exactly.

use std::fs;
use std::path::Path;

use host::file_kind::{FileKind, kind_of};
use host::os::owners;

use super::{Problem, go_error};

/// Modes of created directories and files.
const DIRECTORY: u32 = 0o755;
const FILE: u32 = 0o644;

/// Checks a path; `kind` is the type of the volume, empty for any.
pub(super) fn check(path: &str, kind: &str) -> Result<(), Problem> {
    let backs_up = path.split(['/', '\\']).any(|name| name == "..");
    if backs_up {
        return Err(problem(format!("invalid HostPath `{path}`: must not contain '..'")));
    }
    let (expected, what) = match kind {
        "" => return Ok(()),
        "DirectoryOrCreate" => {
            if !exists(path) {
                return make_directory(path);
            }
            (FileKind::Directory, "directory")
        }
        "Directory" => (FileKind::Directory, "directory"),
        "FileOrCreate" => {
            if !exists(path) {
                return make_file(path);
            }
            (FileKind::File, "file")
        }
        "File" => (FileKind::File, "file"),
        "Socket" => (FileKind::Socket, "socket file"),
        "CharDevice" => (FileKind::CharDevice, "character device"),
        "BlockDevice" => (FileKind::BlockDevice, "block device"),
        other => return Err(problem(format!("{other} is an invalid volume type"))),
    };
    let why = match kind_of(Path::new(path)) {
        Ok(Some(kind)) if kind == expected => return Ok(()),
        Ok(Some(FileKind::Other)) => {
            "only recognise file, directory, socket, block device and character device".to_owned()
        }
        Ok(Some(kind)) => {
            let text =
                format!("hostPath type check failed: {path} is not a {what}, it's a {kind:?}");
            return Err(problem(text));
        }
        Ok(None) => format!("path {path:?} does not exist"),
        Err(error) => go_error(&error),
    };
    Err(problem(format!(
        "hostPath type check failed, {path} is not a {what}, unable to determine its type: {why}"
    )))
}

fn problem(text: String) -> Problem {
    Problem::HostPath(text)
}

fn exists(path: &str) -> bool {
    matches!(kind_of(Path::new(path)), Ok(Some(_)))
}

fn make_directory(path: &str) -> Result<(), Problem> {
    // Missing parents are also created, with the same mode.
    let mut missing = Vec::new();
    let mut at = Some(Path::new(path));
    while let Some(directory) = at.filter(|at| !at.as_os_str().is_empty() && !at.exists()) {
        missing.push(directory);
        at = directory.parent();
    }
    let failed = |error: std::io::Error| problem(format!("mkdir {path}: {}", go_error(&error)));
    for directory in missing.into_iter().rev() {
        fs::create_dir(directory).map_err(failed)?;
        owners::set_mode(directory, DIRECTORY).map_err(failed)?;
    }
    Ok(())
}

fn make_file(path: &str) -> Result<(), Problem> {
    let failed = |error: std::io::Error| problem(format!("open {path}: {}", go_error(&error)));
    fs::OpenOptions::new().write(true).create(true).truncate(false).open(path).map_err(failed)?;
    owners::set_mode(Path::new(path), FILE).map_err(failed)
}
