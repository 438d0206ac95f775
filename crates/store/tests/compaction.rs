//! Compaction, backup and restore.

use std::fs;
use std::io::{self, Write};
use std::thread;

use store::{BackupError, Options, ReadError, RestoreError, Store, Transaction, WatchError};

use crate::support::{SMALL, commit, delete, drain, entry, files, fresh, open, put};

#[test]
fn compaction_keeps_newest_values_and_later_history() {
    let (directory, store) = fresh(SMALL);
    let old = put(&store, "old", "1");
    put(&store, "gone", "1");
    let gone = delete(&store, "gone");
    let point = put(&store, "often", "1");
    let later = put(&store, "often", "2");
    store.compact(point).wait().unwrap();
    let check = |store: &Store| {
        assert_eq!(store.oldest(), point);
        assert!(
            matches!(store.snapshot(Some(gone)), Err(ReadError::Compacted { oldest }) if oldest == point)
        );
        assert!(matches!(store.watch("", gone), Err(ReadError::Compacted { .. })));
        let then = store.snapshot(Some(point)).unwrap();
        assert_eq!(then.get("often").unwrap(), Some(entry("often", "1", point, point)));
        assert_eq!(then.get("gone").unwrap(), None);
        assert_eq!(store.get("old").unwrap(), Some(entry("old", "1", old, old)));
        let events = drain(&mut store.watch("", point).unwrap()).unwrap();
        assert_eq!(events.len(), 1);
        assert_eq!(events[0].previous(), Some(&entry("often", "1", point, point)));
        assert_eq!(events[0].revision, later);
    };
    check(&store);
    store.close();
    check(&open(directory.path(), SMALL));
}

#[test]
fn compaction_frees_space_and_keeps_deletions() {
    let (directory, store) = fresh(SMALL);
    let value = "x".repeat(500);
    put(&store, "deleted", &value);
    let kept = put(&store, "kept", &value);
    delete(&store, "deleted");
    for _ in 0..100 {
        put(&store, "busy", &value);
    }
    let before: u64 = files(directory.path()).iter().map(|(_, length)| length).sum();
    store.compact(store.revision()).wait().unwrap();
    let after: u64 = files(directory.path()).iter().map(|(_, length)| length).sum();
    assert!(after < before / 2, "{before} before, {after} after: {:?}", files(directory.path()));
    let check = |store: &Store| {
        assert_eq!(store.get("deleted").unwrap(), None);
        assert_eq!(store.get("kept").unwrap(), Some(entry("kept", &value, kept, kept)));
        assert_eq!(store.snapshot(None).unwrap().count("", None), 2);
    };
    check(&store);
    let newest = store.revision();
    store.close();
    let store = open(directory.path(), SMALL);
    check(&store);
    assert_eq!(store.revision(), newest);
    assert_eq!(put(&store, "busy", "").get(), newest.get() + 1);
}

#[test]
fn empty_store_keeps_its_revision() {
    let (directory, store) = fresh(SMALL);
    for _ in 0..50 {
        put(&store, "a", &"x".repeat(500));
    }
    let newest = delete(&store, "a");
    store.compact(newest).wait().unwrap();
    store.close();
    let store = open(directory.path(), SMALL);
    assert_eq!((store.revision(), store.oldest()), (newest, newest));
    assert_eq!(store.snapshot(None).unwrap().count("", None), 0);
}

#[test]
fn snapshot_survives_compaction() {
    let (directory, store) = fresh(SMALL);
    for number in 0..100 {
        put(&store, &format!("/{number:03}"), &format!("old {number}"));
    }
    let snapshot = store.snapshot(None).unwrap();
    let mut range = snapshot.range("", None);
    let first = range.next().unwrap().unwrap();
    for number in 0..300 {
        put(&store, &format!("/{:03}", number % 100), &"new".repeat(100));
    }
    store.compact(store.revision()).wait().unwrap();
    let rest: Vec<_> = range.map(|entry| entry.unwrap()).collect();
    let values = [first].into_iter().chain(rest).map(|entry| entry.value);
    assert!(values.eq((0..100).map(|number| format!("old {number}"))));
    assert!(store.snapshot(Some(snapshot.revision())).is_err(), "but no new one gets it");

    drop(snapshot);
    let before = files(directory.path());
    store.compact(store.revision()).wait().unwrap();
    let length = |files: Vec<(String, u64)>| files.iter().map(|(_, length)| *length).sum::<u64>();
    assert!(length(files(directory.path())) < length(before), "what it held is given back later");
}

#[test]
fn checkpoint_may_be_older_than_the_compaction_point() {
    let (directory, store) = fresh(SMALL);
    let fill = |store: &Store| {
        for _ in 0..60 {
            put(store, "busy", &"x".repeat(300));
        }
    };
    fill(&store);
    let snapshot = store.snapshot(None).unwrap();
    fill(&store);
    let newest = store.revision();
    store.compact(newest).wait().unwrap();
    let checkpoint = format!("{:020}.base", snapshot.revision().get());
    assert!(files(directory.path()).iter().any(|(name, _)| *name == checkpoint), "{checkpoint}");
    let value = snapshot.get("busy").unwrap();
    store.close();
    let store = open(directory.path(), SMALL);
    assert_eq!((store.revision(), store.oldest()), (newest, newest));
    assert_eq!(snapshot.get("busy").unwrap(), value, "still there, for who still has it");
}

#[test]
fn watch_behind_the_compaction_point_fails() {
    let (_directory, store) = fresh(SMALL);
    let start = store.revision();
    let mut watch = store.watch("", start).unwrap();
    for number in 0..50 {
        put(&store, &number.to_string(), &"x".repeat(200));
    }
    store.compact(store.revision()).wait().unwrap();
    let error = drain(&mut watch).unwrap_err();
    assert!(matches!(error, WatchError::Compacted { oldest } if oldest == store.revision()));
}

#[test]
fn compaction_runs_concurrently_with_readers_and_writers() {
    let (directory, store) =
        fresh(Options { recent_bytes: 5_000, segment_bytes: 20_000, reserve_bytes: 0 });
    let writers = 4;
    thread::scope(|scope| {
        let running: Vec<_> = (0..writers)
            .map(|writer| {
                let store = &store;
                scope.spawn(move || {
                    for number in 0..150 {
                        let key = format!("/{writer}/{}", number % 10);
                        let revision = put(store, &key, &format!("{number}{}", "x".repeat(300)));
                        let found = store.get(&key).unwrap().unwrap();
                        assert_eq!(found.modified, revision);
                        assert!(found.value.starts_with(number.to_string().as_bytes()));
                    }
                })
            })
            .collect();
        while !running.iter().all(thread::ScopedJoinHandle::is_finished) {
            store.compact(store.revision()).wait().unwrap();
            let snapshot = store.snapshot(None).unwrap();
            let count = snapshot.range("", None).filter(Result::is_ok).count();
            assert_eq!(count, snapshot.count("", None));
        }
    });
    let expected: Vec<_> =
        store.snapshot(None).unwrap().range("", None).map(|entry| entry.unwrap()).collect();
    assert_eq!(expected.len(), writers * 10);
    store.close();
    let store = open(directory.path(), SMALL);
    let found = store.snapshot(None).unwrap().range("", None).map(|entry| entry.unwrap());
    assert!(found.eq(expected));
}

#[test]
fn a_backup_is_taken_under_load_and_restored_elsewhere() {
    let (directory, store) = fresh(SMALL);
    let file = directory.path().join("backup");
    for number in 0..100 {
        put(&store, &format!("/{number}"), "x");
    }
    let (at, rest) = thread::scope(|scope| {
        let writer = scope.spawn(|| {
            for _ in 0..100 {
                commit(&store, Transaction::new().put("left", "l").put("right", "r"));
                commit(&store, Transaction::new().delete("left").delete("right"));
            }
        });
        let at = store.backup(&file).unwrap();
        writer.join().unwrap();
        (at, store.snapshot(Some(at)).unwrap())
    });
    let place = directory.path().join("restored");
    let contents = Store::restore(&file, &place).unwrap();
    assert_eq!(contents.revision, at);
    assert_eq!(Store::inspect_backup(&file).unwrap(), contents);
    let restored = open(&place, SMALL);
    // Revisions assigned after the backup are not assigned again, and watches from them fail.
    let lost = store.revision();
    assert!(lost < restored.revision(), "{lost}");
    assert!(matches!(restored.watch("", lost), Err(ReadError::Compacted { .. })));
    let there = |snapshot: store::Snapshot| snapshot.range("", None).map(|entry| entry.unwrap());
    assert!(there(restored.snapshot(None).unwrap()).eq(there(rest)));
    put(&restored, "new", "1");
    restored.close();
    assert!(open(&place, SMALL).get("new").unwrap().is_some());
}

#[test]
fn incomplete_backup_stream_is_an_error() {
    struct Narrow(Vec<u8>);
    impl Write for Narrow {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let room = 100_000 - self.0.len();
            self.0.extend_from_slice(&bytes[..bytes.len().min(room)]);
            Ok(bytes.len().min(room))
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let (directory, store) = fresh(SMALL);
    for number in 0..200 {
        put(&store, &format!("/{number}"), &"x".repeat(1000));
    }
    let mut narrow = Narrow(Vec::new());
    let cut = store.stream_backup(&mut narrow);
    assert!(matches!(cut, Err(BackupError::Sink(_))), "{cut:?}");
    let file = directory.path().join("backup");
    fs::write(&file, narrow.0).unwrap();
    assert!(Store::inspect_backup(&file).is_err());
}

#[test]
fn restore_refuses_existing_stores_and_damaged_backups() {
    let (directory, store) = fresh(SMALL);
    put(&store, "a", "1");
    let file = directory.path().join("backup");
    store.backup(&file).unwrap();
    put(&store, "a", "2");
    store.backup(&file).unwrap();
    store.close();
    let refused = Store::restore(&file, directory.path());
    assert!(matches!(refused, Err(RestoreError::Exists(_))), "{refused:?}");
    assert_eq!(open(directory.path(), SMALL).get("a").unwrap().unwrap().value, "2");

    let whole = fs::read(&file).unwrap();
    let place = directory.path().join("restored");
    for length in 0..whole.len() {
        fs::write(&file, &whole[..length]).unwrap();
        assert!(Store::restore(&file, &place).is_err(), "cut at {length}");
    }
    for at in 0..whole.len() {
        let mut damaged = whole.clone();
        damaged[at] ^= 0x10;
        fs::write(&file, damaged).unwrap();
        assert!(Store::restore(&file, &place).is_err(), "changed at {at}");
    }
    fs::write(&file, whole).unwrap();
    Store::restore(&file, &place).unwrap();
    assert_eq!(open(&place, SMALL).get("a").unwrap().unwrap().value, "2");
}
