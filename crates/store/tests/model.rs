//! Compares the store with a trivial model: random transactions, snapshots, watches, compactions,
//! backups and reopenings, with files and feeds so small that every path is taken.

use std::collections::BTreeMap;
use std::path::PathBuf;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;
use store::{
    Change, CompactError, Entry, Event, Options, Outcome, ReadError, Revision, Store, Transaction,
    Watch, WatchError,
};

use crate::support::{drain, open};

#[derive(Clone, Debug)]
enum Condition {
    Absent,
    Present,
    /// Expects the actual modification revision, or another one.
    Modified {
        right: bool,
    },
}

#[derive(Clone, Debug)]
enum Step {
    Commit { conditions: Vec<(usize, Condition)>, writes: Vec<(usize, Option<u8>)> },
    Snapshot { at: Index, prefix: usize, after: Option<usize> },
    Watch { at: Index, prefix: usize },
    Follow,
    Compact { at: Index },
    Backup,
    Reopen,
}

const KEYS: [&str; 6] = ["/a", "/a/1", "/a/2", "/b/1", "/b/1/2", "/c"];
const PREFIXES: [&str; 5] = ["", "/", "/a", "/b/", "/c"];

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let key = 0..KEYS.len();
    let condition = prop_oneof![
        1 => Just(Condition::Absent),
        4 => Just(Condition::Present),
        4 => prop::bool::weighted(0.8).prop_map(|right| Condition::Modified { right }),
    ];
    let write = (key.clone(), prop::option::weighted(0.7, any::<u8>()));
    let commit = (vec((key.clone(), condition), 0..2), vec(write, 0..4))
        .prop_map(|(conditions, writes)| Step::Commit { conditions, writes });
    let prefix = 0..PREFIXES.len();
    let snapshot = (any::<Index>(), prefix.clone(), prop::option::of(key))
        .prop_map(|(at, prefix, after)| Step::Snapshot { at, prefix, after });
    let watch = (any::<Index>(), prefix).prop_map(|(at, prefix)| Step::Watch { at, prefix });
    let step = prop_oneof![
        20 => commit,
        4 => snapshot,
        2 => watch,
        3 => Just(Step::Follow),
        1 => any::<Index>().prop_map(|at| Step::Compact { at }),
        1 => Just(Step::Backup),
        1 => Just(Step::Reopen),
    ];
    vec(step, 1..80)
}

type State = BTreeMap<String, Entry>;

/// All past states, and the changes between them.
struct Model {
    /// By revision, starting with the first.
    states: Vec<State>,
    events: Vec<Vec<Event>>,
    oldest: Revision,
}

impl Model {
    fn newest(&self) -> Revision {
        Revision::from(self.states.len() as u64)
    }

    fn state(&self, revision: Revision) -> &State {
        &self.states[revision.get() as usize - 1]
    }

    fn commit(
        &mut self,
        transaction: &[(usize, Condition, Revision)],
        writes: &[(usize, Option<u8>)],
    ) -> Outcome {
        let now = self.state(self.newest());
        for (key, condition, revision) in transaction {
            let found = now.get(KEYS[*key]);
            let holds = match condition {
                Condition::Absent => found.is_none(),
                Condition::Present => found.is_some(),
                Condition::Modified { .. } => {
                    found.is_some_and(|found| found.modified == *revision)
                }
            };
            if !holds {
                return Outcome::Conflict { key: KEYS[*key].into(), found: found.cloned() };
            }
        }
        let revision = Revision::from(self.newest().get() + 1);
        let mut after = now.clone();
        let mut events = Vec::new();
        let last: BTreeMap<&str, Option<u8>> =
            writes.iter().map(|(key, value)| (KEYS[*key], *value)).collect();
        for (key, value) in last {
            let previous = now.get(key).cloned();
            let change = match (value, previous) {
                (Some(value), previous) => {
                    let created = previous.as_ref().map_or(revision, |previous| previous.created);
                    let value = payload(value);
                    let entry = Entry {
                        key: key.into(),
                        value: value.clone(),
                        created,
                        modified: revision,
                    };
                    after.insert(key.into(), entry);
                    Change::Put { value, created, previous }
                }
                (None, Some(previous)) => {
                    after.remove(key);
                    Change::Deleted { previous }
                }
                (None, None) => continue,
            };
            events.push(Event { revision, key: key.into(), change });
        }
        if !events.is_empty() {
            self.states.push(after);
            self.events.push(events);
        }
        Outcome::Committed { revision: self.newest() }
    }

    fn events(&self, prefix: &str, after: Revision) -> Vec<Event> {
        let events = self.events.iter().flatten();
        let events = events.filter(|event| event.revision > after && event.key.starts_with(prefix));
        events.cloned().collect()
    }

    fn range(&self, revision: Revision, prefix: &str, after: Option<&str>) -> Vec<Entry> {
        let entries = self.state(revision).values().filter(|entry| entry.key.starts_with(prefix));
        entries.filter(|entry| after.is_none_or(|after| &*entry.key > after)).cloned().collect()
    }
}

/// Up to 500 bytes, so that some transactions are longer than a segment.
fn payload(seed: u8) -> bytes::Bytes {
    vec![seed; usize::from(seed) * 2].into()
}

struct Follower {
    watch: Watch,
    prefix: &'static str,
    /// The events it has received.
    cursor: Revision,
}

struct Bench {
    directory: tempfile::TempDir,
    store: Store,
    options: Options,
    model: Model,
    followers: Vec<Follower>,
}

impl Bench {
    fn path(&self) -> PathBuf {
        self.directory.path().join("store")
    }

    fn step(&mut self, step: Step) -> Result<(), TestCaseError> {
        let (newest, oldest) = (self.model.newest(), self.model.oldest);
        // From before the oldest to after the newest revision.
        let any = |at: Index| Revision::from(at.index(newest.get() as usize + 2) as u64);
        match step {
            Step::Commit { conditions, writes } => {
                let mut transaction = Transaction::new();
                let mut expected = Vec::new();
                for (key, condition) in conditions {
                    let found = self.model.state(newest).get(KEYS[key]);
                    let modified = found.map_or(newest, |found| found.modified);
                    let revision = match condition {
                        Condition::Modified { right: false } => Revision::from(modified.get() + 1),
                        _ => modified,
                    };
                    transaction = match condition {
                        Condition::Absent => transaction.expect_absent(KEYS[key]),
                        Condition::Present => transaction.expect_present(KEYS[key]),
                        Condition::Modified { .. } => {
                            transaction.expect_modified_at(KEYS[key], revision)
                        }
                    };
                    expected.push((key, condition, revision));
                }
                for (key, value) in &writes {
                    transaction = match value {
                        Some(value) => transaction.put(KEYS[*key], payload(*value)),
                        None => transaction.delete(KEYS[*key]),
                    };
                }
                let outcome = self.store.commit(transaction).wait().unwrap();
                prop_assert_eq!(outcome, self.model.commit(&expected, &writes));
            }
            Step::Snapshot { at, prefix, after } => {
                let at = any(at);
                match self.store.snapshot(Some(at)) {
                    Ok(snapshot) => {
                        prop_assert!(at >= oldest && at <= newest);
                        let (prefix, after) = (PREFIXES[prefix], after.map(|after| KEYS[after]));
                        let expected = self.model.range(at, prefix, after);
                        let range = snapshot.range(prefix, after).collect::<Result<Vec<_>, _>>();
                        prop_assert_eq!(snapshot.count(prefix, after), expected.len());
                        prop_assert_eq!(range.unwrap(), expected);
                        for key in KEYS {
                            let expected = self.model.state(at).get(key).cloned();
                            prop_assert_eq!(snapshot.get(key).unwrap(), expected);
                        }
                    }
                    Err(ReadError::Future { newest: reported }) => {
                        prop_assert!(at > newest && reported == newest);
                    }
                    Err(ReadError::Compacted { oldest: reported }) => {
                        prop_assert!(at < oldest && reported == oldest);
                    }
                    Err(error) => panic!("{error:?}"),
                }
            }
            Step::Watch { at, prefix } => {
                let (cursor, prefix) = (any(at), PREFIXES[prefix]);
                match self.store.watch(prefix, cursor) {
                    Ok(watch) => {
                        prop_assert!(cursor >= oldest && cursor <= newest);
                        self.followers.push(Follower { watch, prefix, cursor });
                    }
                    Err(_) => prop_assert!(cursor < oldest || cursor > newest),
                }
            }
            Step::Follow => self.follow()?,
            Step::Compact { at } => {
                let at = any(at);
                match self.store.compact(at).wait() {
                    Ok(()) => self.model.oldest = oldest.max(at),
                    Err(CompactError::Future { newest: reported }) => {
                        prop_assert!(at > newest && reported == newest);
                    }
                    Err(error) => panic!("{error:?}"),
                }
            }
            Step::Backup => {
                let file = self.directory.path().join("backup");
                let place = self.directory.path().join("restored");
                prop_assert_eq!(self.store.backup(&file).unwrap(), newest);
                let mut streamed = Vec::new();
                prop_assert_eq!(self.store.stream_backup(&mut streamed).unwrap(), newest);
                std::fs::write(&file, streamed).unwrap();
                let keys = self.model.range(newest, "", None).len() as u64;
                let contents = store::Contents { revision: newest, keys };
                prop_assert_eq!(Store::restore(&file, &place).unwrap(), contents);
                let restored = open(&place, self.options);
                prop_assert_eq!(restored.revision(), restored.oldest());
                prop_assert!(restored.revision() > newest);
                let range = restored.snapshot(None).unwrap().range("", None);
                let expected = self.model.range(newest, "", None);
                prop_assert_eq!(range.collect::<Result<Vec<_>, _>>().unwrap(), expected);
                restored.close();
                std::fs::remove_dir_all(place).unwrap();
            }
            Step::Reopen => {
                self.followers.clear();
                self.store.clone().close();
                self.store = open(&self.path(), self.options);
            }
        }
        prop_assert_eq!(self.store.revision(), self.model.newest());
        prop_assert_eq!(self.store.oldest(), self.model.oldest);
        let now = self.model.state(self.model.newest());
        for key in KEYS {
            prop_assert_eq!(self.store.get(key).unwrap(), now.get(key).cloned());
        }
        Ok(())
    }

    /// Every watch returns exactly the events it has not returned yet, unless it is behind the
    /// compaction point.
    fn follow(&mut self) -> Result<(), TestCaseError> {
        let newest = self.model.newest();
        let oldest = self.model.oldest;
        let mut followers = std::mem::take(&mut self.followers);
        for mut follower in followers.drain(..) {
            match drain(&mut follower.watch) {
                Ok(events) => {
                    let events: Vec<_> = events.iter().map(|event| (**event).clone()).collect();
                    prop_assert_eq!(events, self.model.events(follower.prefix, follower.cursor));
                    prop_assert_eq!(follower.watch.delivered(), newest);
                    follower.cursor = newest;
                    self.followers.push(follower);
                }
                Err(WatchError::Compacted { oldest: reported }) => {
                    prop_assert!(follower.cursor < oldest && reported == oldest);
                }
                Err(error) => panic!("{error:?}"),
            }
        }
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn the_store_does_what_the_model_does(
        steps in steps(),
        recent_bytes in 0..3_000_usize,
        segment_bytes in 100..4_000_u64,
    ) {
        let directory = tempfile::tempdir().unwrap();
        let options = Options { recent_bytes, segment_bytes, reserve_bytes: 0 };
        let store = open(&directory.path().join("store"), options);
        let model = Model { states: vec![State::new()], events: vec![], oldest: store.oldest() };
        let mut bench = Bench { directory, store, options, model, followers: vec![] };
        for step in steps {
            bench.step(step)?;
        }
        bench.step(Step::Follow)?;
        bench.step(Step::Reopen)?;
    }
}
