//! Benchmarks of the store. `cargo bench -p store --bench store`; results are written to stdout.
//!
//! Measured with 50,000 values of 2 KB on two virtual cores and ext4, once on an idle machine and
//! once with both cores busy compiling, where most of a sync is waiting for a core:
//!
//! | | idle | busy |
//! |---|--:|--:|
//! | sync of 64 KiB, written in place | 0.17 ms | 4.0 ms |
//! | durable commits, 1 caller | 4,000 /s | 400 /s |
//! | durable commits, 32 callers | 32,000 /s | 7,200 to 10,500 /s |
//! | durable commits, 128 callers | 39,000 /s | 17,000 to 38,000 /s |
//! | CPU for a commit, callers included, 32 callers | 19 us | 32 us |
//! | slowest commit while compacting | – | 17 ms |
//! | gets, one thread | 228,000 /s | 186,000 /s |
//! | list of all | 151 ms | 191 ms |
//! | events to 200 watchers | 1,480,000 /s | 740,000 /s |
//! | CPU for one of these | 0.3 us | 0.36 us |
//! | open | 110 ms | 240 ms |
//! | resident, 3 MB of it the empty process and 4 MB recent events | 18 MB | 19 MB |

#![allow(clippy::unwrap_used, clippy::panic, reason = "a bench that fails has nothing to say")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use store::{Options, Outcome, Revision, Store, Transaction};
use tokio::runtime::Runtime;

const KEYS: u64 = 50_000;
const VALUE: usize = 2048;

fn main() {
    let runtime = Runtime::new().unwrap();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store");
    println!("sync of 64 KiB, written in place   {:>10.0} us", sync_time(directory.path()));

    let before = memory();
    let store = Store::open(&path, Options::default()).unwrap();
    println!("resident, empty store              {:>10.1} MB", mb(before));
    let loading = Instant::now();
    runtime.block_on(load(&store));
    println!("load {KEYS} values by 256 callers {:>10.0} /s", KEYS as f64 / secs(loading));
    println!("resident, {KEYS} values          {:>10.1} MB", mb(memory()));

    for callers in [1, 32, 128] {
        commits(&runtime, &store, callers, "");
    }
    println!("resident, after updates            {:>10.1} MB", mb(memory()));

    let time = Instant::now();
    for number in 0..200_000 {
        store.get(&key(number * 7919 % KEYS)).unwrap().unwrap();
    }
    println!("gets, one thread                   {:>10.0} /s", 200_000.0 / secs(time));

    list(&store, "after updates");
    let time = Instant::now();
    let compaction = store.compact(store.revision());
    let compaction = runtime.spawn(async move {
        compaction.await.unwrap();
        1e3 * secs(time)
    });
    commits(&runtime, &store, 32, ", compacting");
    let time = runtime.block_on(compaction).unwrap();
    println!("compact, beside that               {time:>10.0} ms");
    store.compact(store.revision()).wait().unwrap();
    list(&store, "compacted");
    println!("resident, compacted                {:>10.1} MB", mb(memory()));

    watch(&runtime, &store);

    store.close();
    let time = Instant::now();
    let store = Store::open(&path, Options::default()).unwrap();
    println!("open, {KEYS} keys                {:>10.0} ms", 1e3 * secs(time));
    let time = Instant::now();
    store.backup(&directory.path().join("backup")).unwrap();
    println!("backup                             {:>10.0} ms", 1e3 * secs(time));
}

fn key(number: u64) -> String {
    let scrambled = number.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
    format!("/registry/pods/namespace-{:03}/some-workload-{scrambled:08x}", number % 50)
}

fn value(seed: u64) -> Bytes {
    (0..VALUE as u64).map(|at| (at.wrapping_mul(seed | 1) >> 3) as u8).collect()
}

async fn load(store: &Store) {
    let next = Arc::new(AtomicU64::new(0));
    let tasks: Vec<_> = (0..256)
        .map(|_| {
            let (store, next) = (store.clone(), next.clone());
            tokio::spawn(async move {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= KEYS {
                        return;
                    }
                    let transaction = Transaction::new().put(key(number), value(number));
                    committed(store.commit(transaction).await.unwrap());
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
}

/// Updates random existing keys for a while.
fn commits(runtime: &Runtime, store: &Store, callers: u64, meanwhile: &str) {
    const DURATION: Duration = Duration::from_secs(3);
    let done = Arc::new(AtomicU64::new(0));
    let slowest = Arc::new(AtomicU64::new(0));
    let (start, cpu) = (Instant::now(), cpu());
    runtime.block_on(async {
        let tasks: Vec<_> = (0..callers)
            .map(|caller| {
                let (store, done, slowest) = (store.clone(), done.clone(), slowest.clone());
                tokio::spawn(async move {
                    let value = value(caller);
                    let mut number = caller;
                    while start.elapsed() < DURATION {
                        number = (number + callers * 7919) % KEYS;
                        let key = key(number);
                        let transaction = Transaction::new().expect_present(&*key);
                        let began = Instant::now();
                        let outcome = store.commit(transaction.put(key, value.clone())).await;
                        committed(outcome.unwrap());
                        slowest.fetch_max(began.elapsed().as_micros() as u64, Ordering::Relaxed);
                        done.fetch_add(1, Ordering::Relaxed);
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
    });
    let done = done.load(Ordering::Relaxed) as f64;
    let slowest = slowest.load(Ordering::Relaxed) as f64 / 1e3;
    let (rate, cpu) = (done / secs(start), (self::cpu() - cpu) * 1e6 / done);
    println!(
        "commits, {callers:>3} callers{meanwhile:<17} {rate:>7.0} /s, {cpu:.1} us CPU each, \
         slowest {slowest:.1} ms"
    );
}

fn list(store: &Store, state: &str) {
    let time = Instant::now();
    let snapshot = store.snapshot(None).unwrap();
    let bytes: usize =
        snapshot.range("/registry/pods/", None).map(|entry| entry.unwrap().value.len()).sum();
    assert_eq!(bytes as u64, KEYS * VALUE as u64);
    println!("list {KEYS} values, {state:<15}{:>9.0} ms", 1e3 * secs(time));
}

/// 200 watchers of one prefix, and one writer with 16 pending keys.
fn watch(runtime: &Runtime, store: &Store) {
    const WATCHERS: usize = 200;
    const EVENTS: usize = 5_000;
    let (start, cpu) = (Instant::now(), cpu());
    runtime.block_on(async {
        let watchers: Vec<_> = (0..WATCHERS)
            .map(|_| {
                let mut watch = store.watch("/registry/pods/", store.revision()).unwrap();
                tokio::spawn(async move {
                    let mut seen = 0;
                    while seen < EVENTS {
                        seen += watch.next().await.unwrap().len();
                    }
                })
            })
            .collect();
        let writers: Vec<_> = (0..16)
            .map(|writer| {
                let store = store.clone();
                tokio::spawn(async move {
                    for number in (writer..EVENTS as u64).step_by(16) {
                        let transaction = Transaction::new().put(key(number), value(number));
                        committed(store.commit(transaction).await.unwrap());
                    }
                })
            })
            .collect();
        for task in writers.into_iter().chain(watchers) {
            task.await.unwrap();
        }
    });
    let delivered = (WATCHERS * EVENTS) as f64;
    println!("watch, {EVENTS} events to {WATCHERS}         {:>10.0} /s", delivered / secs(start));
    println!(
        "watch, CPU for each delivery       {:>10.2} us",
        (self::cpu() - cpu) * 1e6 / delivered
    );
}

fn committed(outcome: Outcome) -> Revision {
    match outcome {
        Outcome::Committed { revision } => revision,
        Outcome::Conflict { key, .. } => panic!("conflict over {key}"),
    }
}

fn secs(since: Instant) -> f64 {
    since.elapsed().as_secs_f64()
}

fn mb(bytes: u64) -> f64 {
    bytes as f64 / 1e6
}

/// Returns the resident memory of this process; 0 without `/proc`.
fn memory() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    statm.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok()).unwrap_or(0) * 4096
}

/// Returns the CPU time of this process in seconds; 0 without `/proc`.
fn cpu() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<_> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks =
        |at: usize| fields.get(at).and_then(|field| field.parse::<f64>().ok()).unwrap_or(0.0);
    (ticks(11) + ticks(12)) / 100.0
}

/// Returns the median time to sync 64 KiB that are already allocated in the file, in microseconds.
fn sync_time(directory: &std::path::Path) -> f64 {
    use std::io::{Seek, SeekFrom, Write};
    let mut file = std::fs::File::create(directory.join("sync")).unwrap();
    let chunk = vec![7; 64 << 10];
    for _ in 0..100 {
        file.write_all(&chunk).unwrap();
    }
    file.sync_all().unwrap();
    file.seek(SeekFrom::Start(0)).unwrap();
    let mut times: Vec<_> = (0..100)
        .map(|_| {
            let time = Instant::now();
            file.write_all(&chunk).unwrap();
            file.sync_data().unwrap();
            secs(time) * 1e6
        })
        .collect();
    times.sort_by(f64::total_cmp);
    times[50]
}
