//! Concurrent callers: all observations must fit one order of transactions.

use std::thread;

use store::{Options, Outcome, Revision, Store, Transaction};

use crate::support::{commit, drain, fresh, put};

const CALLERS: usize = 16;
const EACH: usize = 250;

fn number(store: &Store, key: &str) -> (u64, Revision) {
    let entry = store.get(key).unwrap().unwrap();
    (str::from_utf8(&entry.value).unwrap().parse().unwrap(), entry.modified)
}

/// Every successful compare-and-set saw the result of the previous one.
#[test]
fn increments_by_compare_and_set_are_never_lost() {
    let (_directory, store) = fresh(Options::default());
    let start = put(&store, "counter", "0");
    let increment = |store: &Store| {
        let (mut now, mut modified) = number(store, "counter");
        loop {
            let next = Transaction::new()
                .expect_modified_at("counter", modified)
                .put("counter", (now + 1).to_string());
            match store.commit(next).wait().unwrap() {
                Outcome::Committed { revision } => return (now + 1, revision),
                // The conflict contains the current entry, so no second read is needed.
                Outcome::Conflict { found, .. } => {
                    let found = found.unwrap();
                    assert!(found.modified > modified, "a conflict with what was expected");
                    modified = found.modified;
                    now = str::from_utf8(&found.value).unwrap().parse().unwrap();
                }
            }
        }
    };
    let mut told: Vec<(u64, Revision)> = thread::scope(|scope| {
        let callers: Vec<_> = (0..CALLERS)
            .map(|_| {
                scope.spawn(|| {
                    let mut last = Revision::from(0);
                    let mut told = Vec::new();
                    for _ in 0..EACH {
                        let (value, revision) = increment(&store);
                        assert!(revision > last, "time goes on for each caller");
                        assert!(store.revision() >= revision);
                        assert!(number(&store, "counter").0 >= value, "read your own write");
                        last = revision;
                        told.push((value, revision));
                    }
                    told
                })
            })
            .collect();
        callers.into_iter().flat_map(|caller| caller.join().unwrap()).collect()
    });
    told.sort_unstable();
    let expected = 1..=(CALLERS * EACH) as u64;
    assert!(told.iter().map(|(value, _)| *value).eq(expected.clone()), "each value once");
    assert!(told.is_sorted_by_key(|(_, revision)| *revision), "in the order of revisions");
    let history = drain(&mut store.watch("counter", start).unwrap()).unwrap();
    let history = history.iter().map(|event| event.entry().unwrap());
    let history =
        history.map(|entry| str::from_utf8(&entry.value).unwrap().parse::<u64>().unwrap());
    assert!(history.eq(expected), "and history says the same");
}

/// Moves money between accounts; the sum is the same in every snapshot.
#[test]
fn no_snapshot_sees_half_a_transaction() {
    const ACCOUNTS: usize = 8;
    const MONEY: u64 = 1000;
    let (_directory, store) =
        fresh(Options { recent_bytes: 10_000, segment_bytes: 20_000, reserve_bytes: 0 });
    let account = |number: usize| format!("/accounts/{number}");
    let opening = (0..ACCOUNTS).fold(Transaction::new(), |transaction, number| {
        transaction.put(account(number), MONEY.to_string())
    });
    let start = commit(&store, opening);
    let sum = |at: Option<Revision>| -> u64 {
        let snapshot = store.snapshot(at).unwrap();
        let entries = snapshot.range("/accounts/", None).map(|entry| entry.unwrap().value);
        entries.map(|value| str::from_utf8(&value).unwrap().parse::<u64>().unwrap()).sum()
    };
    thread::scope(|scope| {
        let movers: Vec<_> = (0..8)
            .map(|mover| {
                let store = &store;
                scope.spawn(move || {
                    for round in 0..100 {
                        let from = account((mover + round) % ACCOUNTS);
                        let to = account((mover + round * 3 + 1) % ACCOUNTS);
                        if from == to {
                            continue;
                        }
                        let ((a, a_at), (b, b_at)) = (number(store, &from), number(store, &to));
                        let moved = a.min(round as u64);
                        let transaction = Transaction::new()
                            .expect_modified_at(&*from, a_at)
                            .expect_modified_at(&*to, b_at)
                            .put(&*from, (a - moved).to_string())
                            .put(&*to, (b + moved).to_string());
                        store.commit(transaction).wait().unwrap();
                    }
                })
            })
            .collect();
        while !movers.iter().all(thread::ScopedJoinHandle::is_finished) {
            assert_eq!(sum(None), MONEY * ACCOUNTS as u64);
        }
    });
    for revision in start.get()..=store.revision().get() {
        assert_eq!(sum(Some(revision.into())), MONEY * ACCOUNTS as u64, "at {revision}");
    }
}
