//! Damaged stores: the report of an examination, and the result of a salvage.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use store::{Examination, Options, Region, RemainingValue, Revision, Store};

use crate::support::{SMALL, delete, files, fresh, open, put};

const LARGE: Options = Options { recent_bytes: 1_000, segment_bytes: 1 << 20, reserve_bytes: 0 };
const LOG: &str = "0000000001.log";

type Contents = BTreeMap<String, (String, Revision)>;

fn contents(store: &Store) -> Contents {
    let entries = store.snapshot(None).unwrap().range("", None);
    let entries = entries.map(|entry| entry.unwrap()).map(|entry| {
        let value = String::from_utf8(entry.value.to_vec()).unwrap();
        (entry.key.to_string(), (value, entry.modified))
    });
    entries.collect()
}

/// Salvages a store, and returns the examination and the contents of the new store.
fn salvage(path: &Path) -> (Examination, Contents) {
    let examined = Store::examine(path).unwrap();
    let before = files(path);
    let place = tempfile::tempdir().unwrap();
    let to = place.path().join("salvaged");
    assert_eq!(Store::salvage(path, &to).unwrap(), examined);
    assert_eq!(files(path), before, "the damaged store is not touched");
    let store = open(&to, SMALL);
    assert!(store.revision() > examined.revision, "no revision is given out twice");
    (examined, contents(&store))
}

fn length_of(path: &Path) -> usize {
    let bytes = fs::read(path).unwrap();
    bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1)
}

/// A closed store with one key per transaction, with the end of each frame.
fn with_keys(number: usize) -> (tempfile::TempDir, PathBuf, Contents, Vec<usize>) {
    let (directory, store) = fresh(LARGE);
    let log = directory.path().join(LOG);
    let mut ends = vec![length_of(&log)];
    for number in 0..number {
        put(&store, &format!("/key/{number}"), &format!("value {number}"));
        ends.push(length_of(&log));
    }
    let all = contents(&store);
    store.close();
    (directory, log, all, ends)
}

#[test]
fn intact_store_is_reported_and_salvaged_completely() {
    let (directory, store) = fresh(SMALL);
    for number in 0..60 {
        put(&store, &format!("{}", number % 8), &"x".repeat(300));
        if number == 45 {
            store.compact(store.revision()).wait().unwrap();
        }
    }
    delete(&store, "3");
    let all = contents(&store);
    store.close();
    assert!(files(directory.path()).iter().any(|(name, _)| name.ends_with(".base")));
    let (examined, salvaged) = salvage(directory.path());
    assert!(examined.is_intact() && examined.dropped.is_none(), "{examined:?}");
    assert_eq!((examined.keys, examined.lost_bytes()), (7, 0));
    assert_eq!(salvaged, all);
}

#[test]
fn changed_byte_loses_only_its_record() {
    let (directory, log, all, ends) = with_keys(6);
    let whole = fs::read(&log).unwrap();
    for at in 0..ends[5] {
        let mut bytes = whole.clone();
        bytes[at] ^= 0x40;
        fs::write(&log, &bytes).unwrap();
        let (examined, salvaged) = salvage(directory.path());
        assert!(!examined.is_intact(), "byte {at}");
        let Some(frame) = ends.iter().position(|end| *end > at).filter(|frame| *frame > 0) else {
            assert_eq!(salvaged, all, "byte {at} of the header");
            continue;
        };
        let key = format!("/key/{}", frame - 1);
        let revision = all[&key].1;
        let in_head = at < ends[frame - 1] + 12;
        let mut expected = all.clone();
        if !in_head {
            // The record itself is damaged, not only the bytes around it.
            expected.remove(&key);
            assert_eq!(examined.lost_revisions, [(revision, revision)], "byte {at}");
        }
        assert_eq!(salvaged, expected, "byte {at}: {examined:?}");
        let value = at >= ends[frame] - "value 0".len();
        if value {
            let lost = &examined.lost_keys;
            assert_eq!(lost.len(), 1, "byte {at}: {examined:?}");
            assert_eq!(
                (&*lost[0].key, lost[0].revision, lost[0].remaining),
                (&*key, revision, RemainingValue::None)
            );
        }
    }
}

#[test]
fn truncated_end_is_reported_by_examine_and_open() {
    let (directory, log, mut all, ends) = with_keys(3);
    let whole = fs::read(&log).unwrap();
    fs::write(&log, &whole[..ends[3] - 2]).unwrap();
    all.remove("/key/2");
    let (examined, salvaged) = salvage(directory.path());
    assert!(examined.is_intact());
    assert_eq!(salvaged, all);
    let dropped = examined.dropped.unwrap();
    assert_eq!(dropped.offset, ends[2] as u64);
    assert_eq!(dropped.bytes, (ends[3] - 2 - ends[2]) as u64);
    let store = open(directory.path(), LARGE);
    assert_eq!(store.dropped(), Some(&dropped));
    store.close();
    assert_eq!(open(directory.path(), LARGE).dropped(), None, "it is gone");
}

#[test]
fn lost_revision_reports_the_state_of_its_key() {
    let (directory, store) = fresh(LARGE);
    put(&store, "/a", "first of a");
    let second = put(&store, "/a", "second of a");
    put(&store, "/b", "first of b");
    put(&store, "/b", "second of b");
    let newest = put(&store, "/b", "third of b");
    put(&store, "/c", "c");
    store.close();
    let log = directory.path().join(LOG);
    let mut bytes = fs::read(&log).unwrap();
    for value in ["second of a", "second of b"] {
        let at = bytes.windows(value.len()).position(|found| found == value.as_bytes()).unwrap();
        bytes[at] = b'X';
    }
    fs::write(&log, bytes).unwrap();
    let (examined, salvaged) = salvage(directory.path());
    let remaining: Vec<_> =
        examined.lost_keys.iter().map(|lost| (&*lost.key, lost.remaining)).collect();
    let first = Revision::from(second.get() - 1);
    assert_eq!(
        remaining,
        [("/a", RemainingValue::Older(first)), ("/b", RemainingValue::Newer(newest))]
    );
    assert_eq!(salvaged["/a"].0, "first of a");
    assert_eq!(salvaged["/b"].0, "third of b");
    assert_eq!(examined.damages.len(), 2);
}

#[test]
fn missing_file_loses_only_its_contents() {
    let (directory, store) = fresh(SMALL);
    for number in 0..60 {
        put(&store, &format!("{number:02}"), &"x".repeat(300));
    }
    let all = contents(&store);
    store.close();
    let missing = directory.path().join("0000000002.log");
    fs::rename(&missing, directory.path().join("away")).unwrap();
    let (examined, salvaged) = salvage(directory.path());
    assert_eq!(examined.damages.len(), 1, "{examined:?}");
    assert_eq!(
        (&examined.damages[0].path, examined.damages[0].region),
        (&missing, Region::Missing)
    );
    let [(first, last)] = examined.lost_revisions[..] else { panic!("{examined:?}") };
    let expected = all.into_iter().filter(|(_, (_, at))| *at < first || *at > last);
    assert_eq!(salvaged, expected.collect());
}

#[test]
fn damaged_checkpoint_loses_only_damaged_keys() {
    let (directory, store) = fresh(SMALL);
    for number in 0..300 {
        put(
            &store,
            &format!("/{:03}", number % 150),
            &format!("value {number} {}", "x".repeat(900)),
        );
    }
    store.compact(store.revision()).wait().unwrap();
    let all = contents(&store);
    store.close();
    let listed = files(directory.path());
    let checkpoint = &listed.iter().find(|(name, _)| name.ends_with(".base")).unwrap().0;
    let checkpoint = directory.path().join(checkpoint);
    let whole = fs::read(&checkpoint).unwrap();
    assert!(whole.len() > 2 * (64 << 10), "more than one frame");
    for at in (0..whole.len()).step_by(997) {
        let mut bytes = whole.clone();
        let end = (at + 1500).min(bytes.len());
        bytes[at..end].fill(0xA5);
        fs::write(&checkpoint, bytes).unwrap();
        let (examined, salvaged) = salvage(directory.path());
        assert!(!examined.is_intact(), "{at}");
        // 1,500 bytes hold parts of at most three records of 950 bytes; all others are intact.
        assert!(salvaged.len() + 3 >= all.len(), "{at}: {} of {}", salvaged.len(), all.len());
        assert!(salvaged.iter().all(|(key, value)| all[key] == *value), "{at}");
        let lost = (all.len() - salvaged.len()) as u64;
        let told = examined.lost_keys.iter().filter(|lost| !salvaged.contains_key(&lost.key));
        let told = told.count() as u64 + examined.unnamed_keys;
        // Unless the count itself is damaged, every key is accounted for.
        assert!(told == lost || end > whole.len() - 100, "{at}: {told} of {lost}: {examined:?}");
    }
}

#[test]
fn examine_refuses_locked_and_foreign_directories() {
    let (directory, store) = fresh(SMALL);
    assert!(matches!(Store::examine(directory.path()), Err(store::OpenError::Locked(_))));
    store.close();
    let empty = tempfile::tempdir().unwrap();
    assert!(matches!(Store::examine(empty.path()), Err(store::OpenError::NotAStore { .. })));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    /// No file contents make an examination panic, and salvaged values were written at some time.
    #[test]
    fn nothing_is_made_up(
        which: prop::sample::Index,
        at: prop::sample::Index,
        junk in prop::collection::vec(any::<u8>(), 0..300),
        cut: bool,
    ) {
        let (directory, store) = fresh(SMALL);
        let mut written = Vec::new();
        for number in 0..40 {
            let (key, value) = (format!("{}", number % 8), format!("{number} {}", "x".repeat(300)));
            put(&store, &key, &value);
            written.push((key, value));
            if number == 30 {
                store.compact(store.revision()).wait().unwrap();
            }
        }
        store.close();
        let files: Vec<_> = files(directory.path()).into_iter().filter(|(name, _)| name != "lock").collect();
        let file = directory.path().join(&which.get(&files).0);
        let mut bytes = fs::read(&file).unwrap();
        let at = at.index(bytes.len() + 1);
        let end = if cut { bytes.len() } else { (at + junk.len()).min(bytes.len()) };
        bytes.splice(at..end, junk);
        fs::write(&file, bytes).unwrap();
        let place = tempfile::tempdir().unwrap();
        let to = place.path().join("salvaged");
        if Store::salvage(directory.path(), &to).is_ok() {
            for (key, (value, _)) in contents(&open(&to, SMALL)) {
                prop_assert!(written.contains(&(key, value)));
            }
        }
    }
}
