//! Damaged stores of a control plane: [`examine`] one, or [`repair`] it with what can be read.
//!
//! ```text
//!  store ── read ──► .store.unfinished ──► store.repaired        (complete from here on)
//!  store ─────────────────────────────────► store.damaged-1      (nothing of it is removed)
//!  store.repaired ────────────────────────► store
//! ```
//!
//! A crash at any point leaves either the damaged store in its place, or a repaired one that the next
//! repair puts there.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use store::{Examination, Store};
use thiserror::Error;

use crate::instance_lock::InstanceLock;

const UNFINISHED: &str = ".store.unfinished";
const REPAIRED: &str = "store.repaired";

/// Maximum number of damaged stores kept in one data directory.
const MAX_DAMAGED: u32 = 99;

/// An error that the user can correct; all others are failures.
#[derive(Debug, Error)]
pub enum RepairError {
    #[error("{} has no store; --data-dir names the directory of a server or node", .0.display())]
    NothingThere(PathBuf),
    #[error("a server or node runs on {dir}; stop it first (berth down --data-dir {dir})", dir = .0.display())]
    Running(PathBuf),
    #[error("{} has {MAX_DAMAGED} damaged stores already; remove those that are not needed", .0.display())]
    TooManyDamaged(PathBuf),
}

/// The result of a repair.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Repair {
    /// The store is intact.
    NotNeeded(Examination),
    /// Everything that could be read is in the store; the damaged one is in `kept`.
    Done { found: Examination, kept: PathBuf },
    /// A repair that was interrupted was finished.
    Finished,
}

/// Locks an existing data directory.
fn acquire_lock(data_dir: &Path) -> Result<InstanceLock> {
    if !data_dir.join("store").exists() && !data_dir.join(REPAIRED).exists() {
        bail!(RepairError::NothingThere(data_dir.to_owned()));
    }
    let lock = InstanceLock::acquire(data_dir);
    let lock = lock.with_context(|| format!("cannot use {}", data_dir.display()))?;
    lock.ok_or_else(|| RepairError::Running(data_dir.to_owned()).into())
}

fn is_store(path: &Path) -> Result<bool> {
    Store::is_in(path).with_context(|| format!("cannot read {}", path.display()))
}

/// Reports the contents and losses of a data directory's store, without changing it.
pub fn examine(data_dir: &Path) -> Result<Examination> {
    let _lock = acquire_lock(data_dir)?;
    let place = data_dir.join("store");
    if !is_store(&place)? {
        bail!(RepairError::NothingThere(data_dir.to_owned()));
    }
    Ok(Store::examine(&place)?)
}

/// Replaces a damaged store by one with everything that can be read.
pub fn repair(data_dir: &Path) -> Result<Repair> {
    let _lock = acquire_lock(data_dir)?;
    let (place, repaired) = (data_dir.join("store"), data_dir.join(REPAIRED));
    if !is_store(&place)? {
        if !is_store(&repaired)? {
            bail!(RepairError::NothingThere(data_dir.to_owned()));
        }
        // A start without a store has left an empty directory.
        remove(&place)?;
        rename(&repaired, &place)?;
        return Ok(Repair::Finished);
    }
    let found = Store::examine(&place)?;
    if found.is_intact() {
        return Ok(Repair::NotNeeded(found));
    }
    let unfinished = data_dir.join(UNFINISHED);
    for left_over in [&unfinished, &repaired] {
        remove(left_over)?;
    }
    host::files::make_private_directory(&unfinished)?;
    let found = Store::salvage(&place, &unfinished)?;
    let kept = (1..=MAX_DAMAGED)
        .map(|number| data_dir.join(format!("store.damaged-{number}")))
        .find(|path| path.symlink_metadata().is_err())
        .ok_or_else(|| RepairError::TooManyDamaged(data_dir.to_owned()))?;
    rename(&unfinished, &repaired)?;
    rename(&place, &kept)?;
    rename(&repaired, &place)?;
    Ok(Repair::Done { found, kept })
}

fn rename(from: &Path, to: &Path) -> Result<()> {
    let failed = || format!("cannot rename {} to {}", from.display(), to.display());
    fs::rename(from, to).with_context(failed)?;
    host::os::sync_directory(to.parent().unwrap_or(Path::new("."))).with_context(failed)
}

fn remove(directory: &Path) -> Result<()> {
    match fs::remove_dir_all(directory) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", directory.display()))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use store::{Options, Transaction};

    use super::*;

    /// A data directory with a store of three keys, the second of which is damaged.
    fn damaged() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store");
        let store = Store::open(&path, Options::default()).unwrap();
        for key in ["/a", "/b", "/c"] {
            let value = format!("value of {key}");
            store.commit(Transaction::new().put(key, value)).wait().unwrap();
        }
        store.close();
        let log = path.join("0000000001.log");
        let mut bytes = fs::read(&log).unwrap();
        let at = bytes.windows(11).position(|found| found == b"value of /b").unwrap();
        bytes[at] = b'X';
        fs::write(log, bytes).unwrap();
        dir
    }

    fn keys(dir: &Path) -> Vec<String> {
        let store = Store::open(&dir.join("store"), Options::default()).unwrap();
        let entries = store.snapshot(None).unwrap().range("", None);
        entries.map(|entry| entry.unwrap().key.to_string()).collect()
    }

    #[test]
    fn repair_keeps_readable_keys_and_the_damaged_store() {
        let dir = damaged();
        let found = examine(dir.path()).unwrap();
        assert!(!found.is_intact());
        assert_eq!(found.lost_keys[0].key, "/b");
        let before = fs::read(dir.path().join("store/0000000001.log")).unwrap();
        let Repair::Done { found: again, kept } = repair(dir.path()).unwrap() else { panic!() };
        assert_eq!(again, found);
        assert_eq!(fs::read(kept.join("0000000001.log")).unwrap(), before);
        assert_eq!(keys(dir.path()), ["/a", "/c"]);
        assert!(matches!(repair(dir.path()).unwrap(), Repair::NotNeeded(_)));
        let mode = host::os::owners::mode(&fs::metadata(dir.path().join("store")).unwrap());
        // Windows has no modes.
        assert!([0o700, 0].contains(&mode), "{mode:o}");
    }

    #[test]
    fn interrupted_repair_is_restarted_or_finished() {
        let dir = damaged();
        let at = |name: &str| dir.path().join(name);
        // Before anything was renamed, and after the new store was complete.
        for left_over in [UNFINISHED, REPAIRED] {
            fs::create_dir(at(left_over)).unwrap();
            fs::write(at(left_over).join("junk"), "").unwrap();
        }
        assert!(matches!(repair(dir.path()).unwrap(), Repair::Done { .. }));
        assert!(!at(UNFINISHED).exists() && !at(REPAIRED).exists());
        // After the damaged one was moved away; a start has left an empty directory.
        fs::rename(at("store"), at(REPAIRED)).unwrap();
        fs::create_dir(at("store")).unwrap();
        assert_eq!(repair(dir.path()).unwrap(), Repair::Finished);
        assert_eq!(keys(dir.path()), ["/a", "/c"]);
    }

    #[test]
    fn running_or_missing_store_is_left_unchanged() {
        let dir = damaged();
        let lock = InstanceLock::acquire(dir.path()).unwrap();
        for refused in [examine(dir.path()).map(|_| ()), repair(dir.path()).map(|_| ())] {
            let unfit = refused.unwrap_err().downcast::<RepairError>().unwrap();
            assert!(matches!(unfit, RepairError::Running(_)), "{unfit}");
        }
        drop(lock);
        let nowhere = dir.path().join("nowhere");
        let unfit = repair(&nowhere).unwrap_err().downcast::<RepairError>().unwrap();
        assert!(matches!(unfit, RepairError::NothingThere(_)), "{unfit}");
        assert!(!nowhere.exists());
    }
}
