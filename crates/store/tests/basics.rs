//! The guarantees of the API, one per test.

use std::sync::{Arc, Mutex};
use std::task::{Context, Wake, Waker};

use store::{
    Change, CommitError, OpenError, Options, Outcome, ReadError, Store, Transaction, WatchError,
};

use crate::support::{commit, drain, entry, fresh, open, put};

#[test]
fn commits_are_read_now_and_after_reopening() {
    let (directory, store) = fresh(Options::default());
    let first = put(&store, "/pods/a", "1");
    let second = put(&store, "/pods/a", "2");
    let third = commit(&store, Transaction::new().delete("/pods/a").put("/pods/b", "3"));
    assert_eq!(store.revision(), third);
    let check = |store: &Store| {
        assert_eq!(store.get("/pods/a").unwrap(), None);
        assert_eq!(store.get("/pods/b").unwrap(), Some(entry("/pods/b", "3", third, third)));
        let then = store.snapshot(Some(second)).unwrap();
        assert_eq!(then.get("/pods/a").unwrap(), Some(entry("/pods/a", "2", first, second)));
        assert_eq!(then.get("/pods/b").unwrap(), None);
        assert_eq!(store.revision(), third);
    };
    check(&store);
    store.close();
    check(&open(directory.path(), Options::default()));
}

#[test]
fn failed_condition_writes_nothing_and_returns_the_entry() {
    let (_directory, store) = fresh(Options::default());
    let first = put(&store, "a", "1");
    let conflict = |transaction: Transaction| {
        let outcome = store.commit(transaction.put("a", "no").put("z", "no")).wait().unwrap();
        let Outcome::Conflict { key, found } = outcome else { panic!("{outcome:?}") };
        (key.to_string(), found)
    };
    let found = Some(entry("a", "1", first, first));
    assert_eq!(conflict(Transaction::new().expect_absent("a")), ("a".into(), found.clone()));
    assert_eq!(
        conflict(Transaction::new().expect_present("a").expect_modified_at("a", 77.into())),
        ("a".into(), found)
    );
    assert_eq!(conflict(Transaction::new().expect_present("b")), ("b".into(), None));
    assert_eq!(store.revision(), first);
    assert_eq!(store.get("z").unwrap(), None);
}

#[test]
fn transaction_without_changes_has_no_revision() {
    let (_directory, store) = fresh(Options::default());
    let first = put(&store, "a", "1");
    assert_eq!(commit(&store, Transaction::new().expect_present("a")), first);
    assert_eq!(commit(&store, Transaction::new().delete("b")), first);
    assert_eq!(store.revision(), first);
}

#[test]
fn watch_returns_whole_transactions_with_previous_entries() {
    let (_directory, store) = fresh(Options::default());
    let first = put(&store, "/pods/a", "1");
    let mut watch = store.watch("/pods/", first).unwrap();
    assert_eq!(watch.delivered(), first);
    put(&store, "/nodes/n", "x");
    let third = commit(&store, Transaction::new().put("/pods/a", "2").put("/pods/b", "3"));
    let fourth = commit(&store, Transaction::new().delete("/pods/a"));
    let mut events = Vec::new();
    while events.len() < 3 {
        events.extend(watch.wait().unwrap());
    }
    assert_eq!(watch.delivered(), fourth);
    let told: Vec<_> = events.iter().map(|event| (event.revision, &*event.key)).collect();
    assert_eq!(told, [(third, "/pods/a"), (third, "/pods/b"), (fourth, "/pods/a")]);
    assert_eq!(events[0].previous(), Some(&entry("/pods/a", "1", first, first)));
    assert_eq!(events[1].previous(), None);
    let previous = entry("/pods/a", "2", first, third);
    assert_eq!(events[2].change, Change::Deleted { previous });
    let last = put(&store, "/nodes/n", "y");
    assert_eq!(watch.delivered(), last, "nothing of it concerns the watch");
}

#[test]
fn range_is_ordered_and_continues_after_a_key() {
    let (_directory, store) = fresh(Options::default());
    for number in 0..300 {
        commit(&store, Transaction::new().put(format!("/a/{number:03}"), vec![number as u8; 9]));
    }
    put(&store, "/b", "");
    let snapshot = store.snapshot(None).unwrap();
    let keys = |prefix, after| -> Vec<String> {
        snapshot.range(prefix, after).map(|entry| entry.unwrap().key.to_string()).collect()
    };
    assert_eq!(keys("/a/", None).len(), 300);
    assert!(keys("/a/", None).is_sorted());
    assert_eq!(keys("/a/", Some("/a/297")), ["/a/298", "/a/299"]);
    assert_eq!(keys("", Some("/a/299")), ["/b"]);
    assert_eq!(snapshot.count("/a/", Some("/a/199")), 100);
    assert_eq!(snapshot.count("", None), 301);
}

#[test]
fn future_revisions_and_foreign_locks_are_refused() {
    let (directory, store) = fresh(Options::default());
    let newest = store.revision();
    let future = newest.get() + 1;
    let refused = store.snapshot(Some(future.into()));
    assert!(matches!(refused, Err(ReadError::Future { newest: n }) if n == newest));
    assert!(store.watch("", future.into()).is_err());
    let error = Store::open(directory.path(), Options::default()).unwrap_err();
    assert!(error.to_string().contains("in use"), "{error}");
}

#[test]
fn closed_store_refuses_transactions_and_releases_the_directory() {
    let (directory, store) = fresh(Options::default());
    let mut watch = store.watch("", store.revision()).unwrap();
    put(&store, "a", "1");
    let other = store.clone();
    store.close();
    assert!(matches!(other.commit(Transaction::new()).wait(), Err(CommitError::Closed)));
    assert_eq!(watch.wait().unwrap().len(), 1, "what was published is told first");
    assert!(matches!(watch.wait(), Err(WatchError::Closed)));
    assert!(other.get("a").unwrap().is_some());
    open(directory.path(), Options::default());
}

#[test]
fn the_last_handle_closes_the_store() {
    let (directory, store) = fresh(Options::default());
    let other = store.clone();
    drop(store);
    put(&other, "a", "1");
    drop(other);
    open(directory.path(), Options::default());
}

#[test]
fn keys_and_transactions_that_do_not_fit_are_refused() {
    let (_directory, store) = fresh(Options::default());
    let refused = |transaction| store.commit(transaction).wait().unwrap_err();
    let long = "k".repeat(70_000);
    assert!(matches!(refused(Transaction::new().put("", "")), CommitError::Key { length: 0, .. }));
    assert!(matches!(refused(Transaction::new().delete(long)), CommitError::Key { .. }));
    let large = Transaction::new().put("a", vec![0; 9 << 20]);
    assert!(matches!(refused(large), CommitError::TooLarge { .. }));
    commit(&store, Transaction::new().put("a", vec![1; (8 << 20) - 100]));
}

#[test]
fn last_write_to_a_key_counts() {
    let (_directory, store) = fresh(Options::default());
    let mut watch = store.watch("", store.revision()).unwrap();
    commit(&store, Transaction::new().delete("a").put("a", "1").put("a", "2"));
    let events = drain(&mut watch).unwrap();
    assert_eq!(events.len(), 1);
    assert_eq!(events[0].entry().unwrap().value, "2");
}

#[test]
fn commits_beyond_the_queue_size_succeed() {
    let (_directory, store) = fresh(Options::default());
    let commits: Vec<_> = (0..5_000)
        .map(|number| store.commit(Transaction::new().put(format!("{number}"), "x")))
        .collect();
    for commit in commits {
        commit.wait().unwrap();
    }
    assert_eq!(store.snapshot(None).unwrap().count("", None), 5_000);
    assert_eq!(store.revision(), 5_001.into());
}

#[test]
fn last_handle_may_be_dropped_on_a_store_thread() {
    /// A handle held by a task, dropped when the task is woken.
    struct Task(Mutex<Option<Store>>);
    impl Wake for Task {
        fn wake(self: Arc<Self>) {
            self.0.lock().unwrap().take();
        }
    }
    let (directory, store) = fresh(Options::default());
    let mut watch = store.watch("", store.revision()).unwrap();
    let task = Waker::from(Arc::new(Task(Mutex::new(Some(store.clone())))));
    assert!(watch.poll_next(&Context::from_waker(&task)).is_pending());
    let commit = store.commit(Transaction::new().put("a", "1"));
    drop(store);
    commit.wait().unwrap();
    // The threads end by themselves.
    loop {
        match Store::open(directory.path(), Options::default()) {
            Ok(store) => break assert!(store.get("a").unwrap().is_some()),
            Err(OpenError::Locked(_)) => std::thread::yield_now(),
            Err(error) => panic!("{error:?}"),
        }
    }
}
