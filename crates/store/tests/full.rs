//! A full disk: which writes are refused, which still work, and that all writes work again once
//! there is space.
//!
//! The store runs in a separate process: this test binary with a limit on the file size, or on a
//! small file system.

use std::env;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};
use std::thread;
use std::time::{Duration, Instant};

use store::{CommitError, Options, Store, Transaction};

use crate::support::{delete, open, put};

const DIRECTORY: &str = "STORE_FULL_DIRECTORY";
const PATIENCE: Duration = Duration::from_secs(60);
/// The log preallocates 1 MiB.
const LARGE: Options =
    Options { recent_bytes: 10_000, segment_bytes: 16 << 20, reserve_bytes: 64 << 10 };
const SMALL: Options =
    Options { recent_bytes: 10_000, segment_bytes: 1 << 20, reserve_bytes: 1 << 20 };

/// Runs one of the tests below in a process started by a script.
fn run_in(script: &str, test: &str, directory: &Path) -> Output {
    Command::new("sh")
        .args(["-c", script])
        .arg(env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env(DIRECTORY, directory)
        .output()
        .unwrap()
}

fn assert_passed(output: &Output) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success() && out.contains("1 passed"), "{out}\n{err}");
}

fn wait_until(what: &str, holds: impl Fn() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < PATIENCE, "{what}");
        thread::yield_now();
    }
}

/// Puts values of 10 kB until one is refused; returns the number of successful puts.
fn fill(store: &Store) -> u64 {
    let value = "x".repeat(10_000);
    for number in 0.. {
        let put = Transaction::new().put(format!("/{number:05}"), value.clone());
        match store.commit(put).wait() {
            Ok(_) => {}
            Err(CommitError::Storage(error)) if error.is_full() => return number,
            Err(error) => panic!("{error:?}"),
        }
    }
    0
}

fn is_refused(store: &Store) -> bool {
    let refused = store.commit(Transaction::new().put("/ordinary", "x")).wait();
    matches!(refused, Err(CommitError::Storage(error)) if error.is_full())
}

#[test]
fn full_disk_allows_deletions_until_space_returns() {
    if env::consts::FAMILY == "windows" {
        // It has no limit on the size of files.
        return;
    }
    if let Some(directory) = env::var_os(DIRECTORY) {
        return with_a_limit_on_files(Path::new(&directory));
    }
    let directory = tempfile::tempdir().unwrap();
    // The log has 1 MiB when it is created and would have 2 MiB after its first extension. Only the
    // soft limit is set: the process raises it itself.
    let script = "trap '' XFSZ; ulimit -S -f 3000; exec \"$0\" \"$@\"";
    let test = "full::full_disk_allows_deletions_until_space_returns";
    assert_passed(&run_in(script, test, directory.path()));
    let store = open(directory.path(), LARGE);
    assert_eq!(store.get("/00000").unwrap(), None);
    assert_eq!(store.get("/again").unwrap().unwrap().value, "x");
    assert_eq!(store.dropped(), None);
}

fn with_a_limit_on_files(directory: &Path) {
    let store = open(directory, LARGE);
    let there = fill(&store);
    let full = store.health();
    assert!(full.full.as_ref().is_some_and(store::StorageError::is_full), "{full:?}");
    assert!(full.refused > 0);
    assert!(is_refused(&store));

    // Deletions and writes that lead to one succeed; everything can be read.
    for number in 0..there {
        let key = format!("/{number:05}");
        assert_eq!(store.get(&key).unwrap().unwrap().value.len(), 10_000);
        let marked = Transaction::new().put(&*key, "deleting").with_reserve();
        store.commit(marked).wait().unwrap();
        delete(&store, &key);
    }
    assert!(is_refused(&store), "the reserve is not for ordinary writes");
    let newest = store.revision();
    store.close();

    // The same after a restart on the full disk.
    let store = open(directory, LARGE);
    assert_eq!(store.revision(), newest);
    let marked = Transaction::new().put("/more", "x").with_reserve();
    store.commit(marked).wait().unwrap();
    delete(&store, "/more");
    assert!(is_refused(&store));

    let process = format!("--pid={}", std::process::id());
    let raised = Command::new("prlimit").args([&*process, "--fsize=unlimited:"]).status();
    assert!(raised.unwrap().success());
    wait_until("the store finds out that there is space", || store.health().full.is_none());
    put(&store, "/again", "x");
    wait_until("there is a reserve", || fs::metadata(directory.join("reserve")).is_ok());
    store.close();
}

#[test]
fn deletions_and_compaction_free_a_full_disk() {
    if let Some(directory) = env::var_os(DIRECTORY) {
        return on_a_small_disk(Path::new(&directory));
    }
    // Requires root, or a namespace in which every user is root.
    let allowed = |unshare: &str| {
        let mount = format!("{unshare} mount -t tmpfs none /mnt");
        Command::new("sh").args(["-c", &mount]).output().is_ok_and(|done| done.status.success())
    };
    let unshare = ["unshare -m", "unshare -rm"].into_iter().find(|unshare| allowed(unshare));
    let Some(unshare) = unshare else {
        eprintln!("skipped: this process may not mount file systems");
        return;
    };
    let directory = tempfile::tempdir().unwrap();
    let script = format!("mount -t tmpfs -o size=8m none {}", directory.path().display());
    let test = "full::deletions_and_compaction_free_a_full_disk";
    let script = format!("exec {unshare} sh -c '{script} && exec \"$0\" \"$@\"' \"$0\" \"$@\"");
    assert_passed(&run_in(&script, test, directory.path()));
}

fn on_a_small_disk(directory: &Path) {
    let path = directory.join("store");
    let store = open(&path, SMALL);
    wait_until("there is a reserve", || fs::metadata(path.join("reserve")).is_ok());
    let there = fill(&store);
    assert!(there > 500, "{there} values of 10 kB on a disk of 8 MB");
    wait_until("the store is known to be full", || store.health().full.is_some());
    let files = fs::read_dir(&path).unwrap().count();
    for _ in 0..100 {
        assert!(is_refused(&store));
    }
    assert!(fs::read_dir(&path).unwrap().count() <= files + 1, "refused writes leave files");

    for number in 0..there {
        delete(&store, &format!("/{number:05}"));
    }
    store.compact(store.revision()).wait().unwrap();
    wait_until("compaction has made space", || store.health().full.is_none());
    let again = fill(&store);
    assert!(again > 500, "{again} values of 10 kB after compaction");
    let revision = store.revision();
    store.close();
    let store = open(&path, SMALL);
    assert_eq!(store.revision(), revision);
    assert_eq!(store.snapshot(None).unwrap().count("", None), again as usize);
}
