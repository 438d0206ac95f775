//! Paths, symbolic links and globs over the devices of a machine.
//!
//! Main entries: [`expand`], which returns the paths that a glob matches, and [`real_path`], which
//! follows symbolic links. They work on a [`DeviceTree`] and read no file system.

use std::collections::BTreeSet;

use thiserror::Error;

use super::glob::{BadPattern, Pattern, has_wildcard};
use crate::hardware::{DeviceEntry, DeviceTree};

/// The number of symbolic links after which a path counts as a loop.
const MOST_LINKS: usize = 255;

/// The reason why a path leads nowhere.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum PathError {
    #[error("lstat {0}: no such file or directory")]
    NotFound(String),
    #[error("not a directory")]
    NotADirectory,
    #[error("EvalSymlinks: too many links")]
    TooManyLinks,
}

/// Returns the path without symbolic links, `.` and `..`.
pub fn real_path(tree: &DeviceTree, path: &str) -> Result<String, PathError> {
    walk(tree, path, true)
}

/// Returns true if the path exists; a symbolic link at its end is not followed.
fn exists(tree: &DeviceTree, path: &str) -> bool {
    walk(tree, path, false).is_ok()
}

fn walk(tree: &DeviceTree, path: &str, follow_last: bool) -> Result<String, PathError> {
    if !path.starts_with('/') {
        return Err(PathError::NotFound(path.to_owned()));
    }
    let mut ahead: Vec<&str> = path.split('/').rev().collect();
    let mut at = String::new();
    let mut links = 0;
    while let Some(part) = ahead.pop() {
        match part {
            "" | "." => continue,
            ".." => {
                at.truncate(at.rfind('/').unwrap_or(0));
                continue;
            }
            _ => {}
        }
        let last = ahead.is_empty();
        let next = format!("{at}/{part}");
        match tree.entries.get(&next) {
            Some(DeviceEntry::Link(_)) if last && !follow_last => at = next,
            Some(DeviceEntry::Link(target)) => {
                links += 1;
                if links > MOST_LINKS {
                    return Err(PathError::TooManyLinks);
                }
                if target.starts_with('/') {
                    at.clear();
                }
                ahead.extend(target.split('/').rev());
            }
            Some(DeviceEntry::Directory) => at = next,
            Some(_) if last => at = next,
            Some(_) => return Err(PathError::NotADirectory),
            None if has_children(tree, &next) => at = next,
            None => return Err(PathError::NotFound(next)),
        }
    }
    Ok(if at.is_empty() { "/".to_owned() } else { at })
}

fn has_children(tree: &DeviceTree, directory: &str) -> bool {
    children(tree, directory).next().is_some()
}

/// Returns the names in a directory, some of them repeatedly.
fn children<'a>(tree: &'a DeviceTree, directory: &str) -> impl Iterator<Item = &'a str> {
    let prefix = format!("{}/", directory.trim_end_matches('/'));
    let entries = tree.entries.range(prefix.clone()..);
    entries
        .map_while(move |(path, _)| path.strip_prefix(&prefix))
        .filter_map(|rest| rest.split('/').next())
}

/// Returns the paths that a pattern matches, in order.
pub fn expand(tree: &DeviceTree, pattern: &str) -> Result<Vec<String>, BadPattern> {
    let parts: Vec<&str> = pattern.split('/').collect();
    for part in &parts {
        Pattern::parse(part)?;
    }
    let Some(first) = parts.iter().position(|part| has_wildcard(part)) else {
        let found = exists(tree, pattern).then(|| pattern.to_owned());
        return Ok(found.into_iter().collect());
    };
    let mut directories = vec![format!("{}/", parts[..first].join("/"))];
    for part in &parts[first..] {
        let pattern = Pattern::parse(part)?;
        let mut matches = Vec::new();
        for directory in directories {
            let Ok(real) = real_path(tree, &directory) else { continue };
            let names: BTreeSet<&str> = children(tree, &real).collect();
            let shown = super::super::rdt::names::clean(&directory);
            let shown = shown.trim_end_matches('/');
            let names = names.into_iter().filter(|name| pattern.matches(name));
            matches.extend(names.map(|name| format!("{shown}/{name}")));
        }
        directories = matches;
    }
    Ok(directories)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hardware::{BlockDevice, DeviceNumber};

    fn tree() -> DeviceTree {
        let disk = |minor| {
            let number = DeviceNumber { major: 8, minor };
            DeviceEntry::Block(BlockDevice { number, partition: false, scheduler: None })
        };
        let link = |target: &str| DeviceEntry::Link(target.to_owned());
        let entries = [
            ("/dev/sda", disk(0)),
            ("/dev/sdb", disk(16)),
            ("/dev/disk/by-id/ata-SSD", link("../../sda")),
            ("/dev/disk/by-path/chain", link("../by-id/ata-SSD")),
            ("/dev/disk/by-id/gone", link("../../sdz")),
            ("/dev/loop-a", link("loop-b")),
            ("/dev/loop-b", link("loop-a")),
        ];
        DeviceTree { entries: entries.map(|(path, entry)| (path.to_owned(), entry)).into() }
    }

    #[test]
    fn links_lead_to_devices() {
        let tree = tree();
        let real = |path: &str| real_path(&tree, path).map_err(|error| error.to_string());
        assert_eq!(real("/dev/disk/by-path/chain"), Ok("/dev/sda".to_owned()));
        assert_eq!(real("/dev/disk/../sdb"), Ok("/dev/sdb".to_owned()));
        assert_eq!(
            real("/dev/disk/by-id/gone"),
            Err("lstat /dev/sdz: no such file or directory".to_owned())
        );
        assert_eq!(real("/dev/loop-a"), Err("EvalSymlinks: too many links".to_owned()));
        assert_eq!(real("/dev/sda/x"), Err("not a directory".to_owned()));
        assert_eq!(real("/"), Ok("/".to_owned()));
    }

    #[test]
    fn globs_match_one_component_each() {
        let tree = tree();
        let check = |pattern: &str, expected: &[&str]| {
            assert_eq!(expand(&tree, pattern).unwrap(), expected, "{pattern}");
        };
        check("/dev/sd[a-z]", &["/dev/sda", "/dev/sdb"]);
        check("/dev/./sd*", &["/dev/sda", "/dev/sdb"]);
        check("/dev/disk/by-id/*SSD*", &["/dev/disk/by-id/ata-SSD"]);
        check("/dev/*/by-id/gone", &["/dev/disk/by-id/gone"]);
        check("/dev/disk/by-id/gone", &["/dev/disk/by-id/gone"]);
        check("/dev/sda/", &[]);
        check("/dev/**/sda", &[]);
        check("sda", &[]);
        assert!(expand(&tree, "/dev/[").is_err());
    }
}
