//! Kills a process that writes under load, repeatedly and at random moments, and audits the store
//! each time: acknowledged writes exist, entries are complete, and no revision was used twice.
//!
//! The writing process is this test binary, which then runs only [`the_process_that_is_killed`].

use std::collections::BTreeMap;
use std::env;
use std::io::{BufRead, BufReader, Write, stdout};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use store::{CommitError, CompactError, Options, Revision, Store, Transaction};

use crate::support::{committed, drain, open};

/// The directory of the killed process's store.
const DIRECTORY: &str = "STORE_KILL_DIRECTORY";
const WRITERS: u64 = 6;
/// A few kilobytes, so that segments, checkpoints and the feed are replaced while a process runs.
const OPTIONS: Options =
    Options { recent_bytes: 10_000, segment_bytes: 100_000, reserve_bytes: 50_000 };

/// Wine takes a second to start a process.
fn rounds() -> u64 {
    if env::consts::FAMILY == "windows" { 12 } else { 300 }
}

#[test]
fn the_process_that_is_killed() {
    let Some(directory) = env::var_os(DIRECTORY) else { return };
    let store = open(Path::new(&directory), OPTIONS);
    println!("\nopen {}", store.revision());
    thread::scope(|scope| {
        for writer in 0..WRITERS {
            let store = &store;
            scope.spawn(move || write_forever(store, writer));
        }
        // Constant compaction, so that kills interrupt it as well.
        loop {
            let point = store.revision().get().saturating_sub(50).max(1);
            match store.compact(point.into()).wait() {
                Err(CompactError::Storage(error)) if error.is_full() => {}
                done => done.unwrap(),
            }
        }
    });
}

/// Each transaction puts the next number under two keys, so that a partial transaction would be
/// visible, and alternately creates and deletes a third key.
fn write_forever(store: &Store, writer: u64) {
    let [left, right, third] = keys(writer);
    loop {
        let found = store.get(&left).unwrap();
        let number = found.as_ref().map_or(0, |entry| parse(&entry.value)) + 1;
        let transaction = match found {
            Some(found) => Transaction::new().expect_modified_at(&*left, found.modified),
            None => Transaction::new().expect_absent(&*left),
        };
        let transaction = transaction.put(&*left, value(number)).put(&*right, value(number));
        let transaction = match number % 2 {
            0 => transaction.put(&*third, value(number)),
            _ => transaction.delete(&*third),
        };
        let revision = match store.commit(transaction).wait() {
            // Compaction frees space again.
            Err(CommitError::Storage(error)) if error.is_full() => continue,
            done => committed(done.unwrap()),
        };
        // One call, so that lines of other threads are not interleaved.
        stdout().write_all(format!("ack {writer} {number} {revision}\n").as_bytes()).unwrap();
    }
}

fn keys(writer: u64) -> [String; 3] {
    ["left", "right", "third"].map(|name| format!("/{writer}/{name}"))
}

/// A number, followed by up to some kilobytes derived from it.
fn value(number: u64) -> Vec<u8> {
    let mut value = number.to_le_bytes().to_vec();
    value.resize(8 + (number * 37 % 3000) as usize, number as u8);
    value
}

fn parse(bytes: &[u8]) -> u64 {
    let number = u64::from_le_bytes(*bytes.first_chunk().unwrap());
    assert!(bytes == value(number), "a torn value of {} bytes: {number}", bytes.len());
    number
}

/// The output of the process.
enum Output {
    Open(Revision),
    Acknowledged { writer: u64, number: u64, revision: Revision },
}

/// `limit` is the maximum file size in blocks of 512 bytes.
fn start(directory: &Path, limit: Option<u64>) -> (Child, Receiver<Output>) {
    let binary = env::current_exe().unwrap();
    let mut command = match limit {
        None => Command::new(binary),
        Some(blocks) => {
            // The signal that accompanies the error would end the process.
            let script = format!("trap '' XFSZ; ulimit -f {blocks}; exec \"$0\" \"$@\"");
            let mut shell = Command::new("sh");
            shell.args(["-c", &script]).arg(binary);
            shell
        }
    };
    let mut child = command
        .args(["--exact", "kill::the_process_that_is_killed", "--nocapture"])
        .env(DIRECTORY, directory)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let (sender, output) = channel();
    thread::spawn(move || {
        for line in lines.map_while(Result::ok) {
            let words: Vec<&str> = line.split(' ').collect();
            let number = |at: usize| words[at].parse::<u64>().unwrap();
            let line = match words[0] {
                "open" => Output::Open(number(1).into()),
                "ack" if words.len() == 4 && line.is_ascii() => Output::Acknowledged {
                    writer: number(1),
                    number: number(2),
                    revision: number(3).into(),
                },
                _ => continue,
            };
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    (child, output)
}

#[test]
fn kills_lose_no_acknowledged_write() {
    kill_again_and_again(rounds(), None);
}

#[test]
fn kills_on_a_failing_disk_lose_no_acknowledged_write() {
    if env::consts::FAMILY == "windows" {
        // It has no limit on the size of files.
        return;
    }
    // A log file would have 200 such blocks, so most end with a refused write.
    kill_again_and_again(40, Some(100));
}

fn kill_again_and_again(rounds: u64, limit: Option<u64>) {
    let directory = tempfile::tempdir().unwrap();
    let mut acknowledged: BTreeMap<u64, (u64, Revision)> = BTreeMap::new();
    let mut newest = Revision::FIRST;
    let mut dice = Dice(0x5EED);
    let mut total = 0;
    for round in 0..rounds {
        let (mut child, output) = start(directory.path(), limit);
        // A random moment: after this many acknowledgements and a random delay.
        let acks = dice.roll(40);
        let mut seen = 0;
        let mut note = |line: Output| match line {
            Output::Open(revision) => assert_eq!(revision, newest, "as it was audited"),
            Output::Acknowledged { writer, number, revision } => {
                assert!(revision > newest, "round {round}: {revision} was used before");
                let last = acknowledged.insert(writer, (number, revision));
                assert!(last.is_none_or(|(last, _)| number > last));
                seen += 1;
            }
        };
        for line in output.iter().take(acks as usize) {
            note(line);
        }
        let and_then_some = Duration::from_micros(dice.roll(3_000));
        if let Ok(line) = output.recv_timeout(and_then_some) {
            note(line);
        }
        child.kill().unwrap();
        child.wait().unwrap();
        output.iter().for_each(note);
        total += seen;
        newest = audit(directory.path(), &mut acknowledged, newest);
    }
    assert!(total > rounds, "only {total} acknowledgements");
}

/// Checks the whole store and returns the newest revision. Everything found counts as acknowledged
/// from now on.
fn audit(
    directory: &Path,
    acknowledged: &mut BTreeMap<u64, (u64, Revision)>,
    before: Revision,
) -> Revision {
    let store = open(directory, OPTIONS);
    let newest = store.revision();
    assert!(newest >= before);
    for writer in 0..WRITERS {
        let [left, right, third] = keys(writer).map(|key| store.get(&key).unwrap());
        let number = left.as_ref().map_or(0, |entry| parse(&entry.value));
        assert_eq!(right.as_ref().map_or(0, |entry| parse(&entry.value)), number, "half of it");
        assert_eq!(third.is_some(), number > 0 && number % 2 == 0, "half of it");
        let (acked, revision) = acknowledged.get(&writer).copied().unwrap_or((0, before));
        let modified = left.map_or(before, |entry| entry.modified);
        // At most one transaction of each writer was pending.
        assert!(number == acked || number == acked + 1, "{number} found, {acked} acknowledged");
        assert!(number != acked || number == 0 || modified == revision, "at another revision");
        acknowledged.insert(writer, (number, modified));
    }
    // The history is complete: every revision since the compaction point has two or three events.
    let events = drain(&mut store.watch("", store.oldest()).unwrap()).unwrap();
    let mut revisions: Vec<_> = events.iter().map(|event| event.revision.get()).collect();
    revisions.dedup();
    assert!(revisions.into_iter().eq(store.oldest().get() + 1..=newest.get()));
    store.close();
    newest
}

/// A repeatable random number generator.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % sides
    }
}
