//! Many watchers of a busy store: each sees each event once, in order, at any speed and from any
//! start.

use std::collections::BTreeMap;
use std::sync::Arc;

use store::{Event, Options, Revision, Store, Transaction, Watch};
use tokio::runtime::Builder;

use crate::support::{commit, committed, drain, fresh};

const WRITERS: usize = 8;
const EACH: usize = 150;
const EARLIER: usize = 100;

/// Key and value of the n-th write of a writer: sometimes a new key, mostly an old one.
fn transaction(writer: usize, number: usize) -> Transaction {
    let kind = ["pods", "nodes"][writer % 2];
    let key = |number: usize| format!("/{kind}/{writer}/{}", number % 7);
    let transaction =
        Transaction::new().put(key(number), format!("{writer} {number} {}", "x".repeat(200)));
    match number % 5 {
        0 => transaction.delete(key(number + 1)),
        1 => transaction.put(format!("/quota/{writer}"), number.to_string()),
        _ => transaction,
    }
}

async fn follow(mut watch: Watch, until: Revision) -> Vec<Arc<Event>> {
    let mut events = Vec::new();
    while watch.delivered() < until {
        // There may be no more matching events; then only the delivered revision moves.
        tokio::select! {
            some = watch.next() => events.extend(some.unwrap()),
            () = tokio::task::yield_now() => {}
        }
    }
    events
}

#[test]
fn two_hundred_watchers_see_every_event_once() {
    // Room for a few dozen events, so that slow watchers have to read from the disk.
    let (_directory, store) =
        fresh(Options { recent_bytes: 20_000, segment_bytes: 60_000, reserve_bytes: 0 });
    let beginning = store.revision();
    let earlier: Vec<Revision> =
        (0..EARLIER).map(|number| commit(&store, transaction(number % WRITERS, number))).collect();

    let runtime = Builder::new_multi_thread().worker_threads(2).build().unwrap();
    let prefixes = ["", "/pods/", "/nodes/1/", "/quota/", "/none/"];
    let (go, gone) = tokio::sync::watch::channel(None::<Revision>);
    let watchers: Vec<_> = (0..200)
        .map(|number| {
            let after = match number % 4 {
                0 => beginning,
                1 => earlier[number % EARLIER],
                _ => store.revision(),
            };
            let mut watch = store.watch(prefixes[number % prefixes.len()], after).unwrap();
            let mut gone = gone.clone();
            let slow = number % 3 == 0;
            let task = runtime.spawn(async move {
                let mut events = Vec::new();
                if !slow {
                    // Reads until the writers are done.
                    loop {
                        tokio::select! {
                            some = watch.next() => events.extend(some.unwrap()),
                            _ = gone.changed() => break,
                        }
                    }
                }
                let until = gone.wait_for(Option::is_some).await.unwrap().unwrap();
                events.extend(follow(watch, until).await);
                events
            });
            (number, after, task)
        })
        .collect();

    runtime.block_on(async {
        let writers: Vec<_> = (0..WRITERS)
            .map(|writer| {
                let store = store.clone();
                tokio::spawn(async move {
                    for number in 0..EACH {
                        committed(store.commit(transaction(writer, number)).await.unwrap());
                    }
                })
            })
            .collect();
        for writer in writers {
            writer.await.unwrap();
        }
    });
    go.send(Some(store.revision())).unwrap();

    let all = drain(&mut store.watch("", beginning).unwrap()).unwrap();
    complete(&all, beginning, store.revision());
    for (number, after, task) in watchers {
        let events = runtime.block_on(task).unwrap();
        let prefix = prefixes[number % prefixes.len()];
        let expected = all.iter().filter(|e| e.revision > after && e.key.starts_with(prefix));
        assert!(events.iter().eq(expected), "watcher {number} of {prefix:?} after {after}");
    }
}

/// The history is complete: no revision is missing, and each event contains the previous entry.
fn complete(events: &[Arc<Event>], after: Revision, newest: Revision) {
    let mut revisions: Vec<u64> = events.iter().map(|event| event.revision.get()).collect();
    assert!(revisions.is_sorted());
    revisions.dedup();
    assert!(revisions.into_iter().eq(after.get() + 1..=newest.get()));
    let mut state = BTreeMap::new();
    for event in events {
        assert_eq!(event.previous(), state.get(&event.key), "{event:?}");
        match event.entry() {
            Some(entry) => state.insert(event.key.clone(), entry),
            None => state.remove(&event.key),
        };
    }
}

#[test]
fn waiting_watch_is_woken_by_its_prefix() {
    let (_directory, store) = fresh(Options::default());
    let waiter = |store: &Store, prefix: &str| {
        let mut watch = store.watch(prefix, store.revision()).unwrap();
        std::thread::spawn(move || watch.wait().unwrap())
    };
    let (pods, nodes) = (waiter(&store, "/pods/"), waiter(&store, "/nodes/"));
    commit(&store, Transaction::new().put("/pods/a", ""));
    assert_eq!(&*pods.join().unwrap()[0].key, "/pods/a");
    commit(&store, Transaction::new().put("/nodes/a", ""));
    assert_eq!(&*nodes.join().unwrap()[0].key, "/nodes/a");
}
