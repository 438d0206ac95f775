//! Files that differ from what was written: truncated by a crash, damaged, foreign, or misplaced.
//! Opening must report an error or show a past state; it never panics and never invents data.

use std::fs;
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use store::{CommitError, OpenError, Options, StorageError, Store, Transaction};

use crate::support::{SMALL, delete, files, fresh, open, put};

const LARGE: Options = Options { recent_bytes: 1_000, segment_bytes: 1 << 20, reserve_bytes: 0 };

/// A closed store whose only log has one frame per commit, with the ends of the frames.
fn with_frames(commits: usize) -> (tempfile::TempDir, PathBuf, Vec<usize>) {
    let (directory, store) = fresh(LARGE);
    let log = directory.path().join("0000000001.log");
    let mut ends = vec![used(&log)];
    for number in 0..commits {
        put(&store, &format!("/{}", number % 3), &format!("value {number}"));
        ends.push(used(&log));
    }
    store.close();
    (directory, log, ends)
}

/// The length of a file without the zeros at its end.
fn used(path: &Path) -> usize {
    let bytes = fs::read(path).unwrap();
    bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1)
}

/// Opens the store and, on success, reads everything.
fn visit(path: &Path) -> Result<Store, OpenError> {
    let store = Store::open(path, LARGE)?;
    let snapshot = store.snapshot(None).unwrap();
    for entry in snapshot.range("", None) {
        entry.unwrap();
    }
    Ok(store)
}

fn damaged(error: &OpenError) -> bool {
    matches!(error, OpenError::Storage(StorageError::Damaged { .. }))
}

#[test]
fn truncated_log_opens_as_a_past_state() {
    let (directory, log, ends) = with_frames(4);
    let whole = fs::read(&log).unwrap();
    for length in ends[0]..=ends[4] {
        fs::write(&log, &whole[..length]).unwrap();
        let commits = ends.iter().filter(|end| **end <= length).count() as u64 - 1;
        let store = visit(directory.path()).unwrap();
        assert_eq!(store.revision().get(), 1 + commits, "cut at {length}");
        let next = put(&store, "/next", "x");
        store.close();
        assert_eq!(open(directory.path(), LARGE).get("/next").unwrap().unwrap().modified, next);
    }
}

#[test]
fn partial_last_batch_is_complete_or_absent() {
    let (directory, log, ends) = with_frames(3);
    let whole = fs::read(&log).unwrap();
    // A power failure leaves any subset of the blocks of a write, and zeros for the others.
    for block in [1, 7, 16] {
        for lost in ends[2]..ends[3] {
            let mut torn = whole.clone();
            torn[lost..(lost + block).min(ends[3])].fill(0);
            fs::write(&log, &torn).unwrap();
            let expected = if torn == whole { 4 } else { 3 };
            assert_eq!(visit(directory.path()).unwrap().revision(), expected.into());
        }
    }
}

#[test]
fn damaged_acknowledged_data_is_a_permanent_error() {
    let (directory, log, ends) = with_frames(4);
    let whole = fs::read(&log).unwrap();
    for at in 0..ends[3] {
        for damage in [0, whole[at] ^ 0x40] {
            let mut bytes = whole.clone();
            if bytes[at] == damage {
                continue;
            }
            bytes[at] = damage;
            fs::write(&log, &bytes).unwrap();
            let error = visit(directory.path()).unwrap_err();
            assert!(damaged(&error) || at < 12, "byte {at} set to {damage}: {error:?}");
        }
    }
    fs::write(&log, &whole).unwrap();
    assert_eq!(visit(directory.path()).unwrap().revision(), 5.into());
}

#[test]
fn missing_file_is_named() {
    let (directory, store) = fresh(SMALL);
    for number in 0..60 {
        put(&store, &format!("{number}"), &"x".repeat(300));
    }
    store.close();
    let logs: Vec<_> = files(directory.path()).into_iter().map(|(name, _)| name).collect();
    let logs: Vec<_> = logs.into_iter().filter(|name| name.ends_with(".log")).collect();
    assert!(logs.len() > 3, "{logs:?}");
    for missing in &logs[..logs.len() - 1] {
        let (from, to) = (directory.path().join(missing), directory.path().join("away"));
        fs::rename(&from, &to).unwrap();
        let error = Store::open(directory.path(), SMALL).unwrap_err();
        assert!(matches!(&error, OpenError::Missing(path) if *path == from), "{error:?}");
        fs::rename(&to, &from).unwrap();
    }
    open(directory.path(), SMALL);
}

#[test]
fn foreign_and_unreadable_directories_have_distinct_errors() {
    let (directory, log, _) = with_frames(1);
    let whole = fs::read(&log).unwrap();
    let with = |bytes: &[u8]| {
        fs::write(&log, bytes).unwrap();
        Store::open(directory.path(), LARGE).unwrap_err()
    };
    let mut newer = whole.clone();
    newer[8] = 9;
    assert!(matches!(with(&newer), OpenError::Version { found: 9, .. }));
    assert!(matches!(with(b"SQLite format 3\0"), OpenError::NotAStore { .. }));
    assert!(matches!(with(b""), OpenError::NotAStore { .. }));
    assert!(damaged(&with(&whole[..30])));
    let error = Store::open(&log, LARGE).unwrap_err();
    assert!(matches!(error, OpenError::NotAStore { .. }), "{error:?}");
    let error = with(&newer).to_string();
    assert!(error.contains("format 9") && error.contains("0000000001.log"), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    /// No contents of any file of a store with a checkpoint and several logs make opening panic,
    /// and a store that opens can be read.
    #[test]
    fn no_file_makes_opening_panic(
        which: prop::sample::Index,
        at: prop::sample::Index,
        junk in prop::collection::vec(any::<u8>(), 0..200),
        cut: bool,
    ) {
        let (directory, store) = fresh(SMALL);
        for number in 0..40 {
            put(&store, &format!("{}", number % 8), &"x".repeat(300));
            if number == 30 {
                store.compact(store.revision()).wait().unwrap();
            }
        }
        store.close();
        let files = files(directory.path());
        prop_assert!(files.iter().any(|(name, _)| name.ends_with(".base")));
        let file = directory.path().join(&which.get(&files).0);
        let mut bytes = fs::read(&file).unwrap();
        let at = at.index(bytes.len() + 1);
        let end = if cut { bytes.len() } else { (at + junk.len()).min(bytes.len()) };
        bytes.splice(at..end, junk);
        fs::write(&file, bytes).unwrap();
        if let Ok(store) = Store::open(directory.path(), SMALL) {
            let snapshot = store.snapshot(None).unwrap();
            prop_assert!(snapshot.range("", None).all(|entry| entry.is_ok()));
            put(&store, "new", "value");
        }
    }
}

#[test]
fn store_stays_readable_after_a_refused_write() {
    let (directory, store) = fresh(SMALL);
    let value = "x".repeat(300);
    // A directory at the path of the next segment, which cannot be replaced.
    let obstacle = directory.path().join("0000000002.log");
    fs::create_dir(&obstacle).unwrap();
    fs::write(obstacle.join("file"), "").unwrap();
    let mut last = store.revision();
    let error = loop {
        match store.commit(Transaction::new().put("a", value.clone())).wait() {
            Ok(_) => last = store.revision(),
            Err(error) => break error,
        }
    };
    let CommitError::Storage(StorageError::Io { path, .. }) = &error else { panic!("{error:?}") };
    assert_eq!(*path, obstacle);
    let mut watch = store.watch("", last).unwrap();
    for _ in 0..3 {
        assert!(store.commit(Transaction::new().put("b", "no")).wait().is_err());
        assert!(store.compact(last).wait().is_err());
    }
    assert_eq!(store.revision(), last);
    assert_eq!(store.get("a").unwrap().unwrap().modified, last);
    assert_eq!(store.get("b").unwrap(), None);
    assert_eq!(store.snapshot(None).unwrap().range("", None).count(), 1);

    fs::remove_dir_all(&obstacle).unwrap();
    let next = delete(&store, "a");
    assert_eq!(next.get(), last.get() + 1, "what failed has used up no revision");
    assert_eq!(watch.wait().unwrap()[0].revision, next);
    store.close();
    let store = open(directory.path(), SMALL);
    assert_eq!(store.revision(), next);
    assert_eq!(store.get("b").unwrap(), None);
}

#[test]
fn value_damaged_while_open_is_an_error() {
    let (directory, store) = fresh(LARGE);
    put(&store, "good", "good");
    put(&store, "bad", "bad");
    let log = directory.path().join("0000000001.log");
    let mut bytes = fs::read(&log).unwrap();
    let last = used(&log) - 1;
    bytes[last] ^= 1;
    fs::write(&log, bytes).unwrap();
    assert!(store.get("bad").is_err());
    assert_eq!(store.get("good").unwrap().unwrap().value, "good");
}
