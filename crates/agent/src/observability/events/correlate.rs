//! Keeping one thing from being told too often: [`Correlator`], as the kubelet's client does it.
//!
//! ```text
//!   told ──▶ many alike within ten minutes? ──▶ told before? ──▶ too many of its kind? ──▶ written
//!             all further ones are one            count up         left out
//! ```
//!
//! The time is an argument. Writes nothing; what was written and forgotten here is written anew.

use std::collections::{BTreeMap, BTreeSet};

use objects::timestamp::Timestamp;

use super::{Severity, Told};

/// So many events of one kind of one object may be written at once, ...
const BURST: f64 = 25.0;
/// ... and one more in this time.
const SECONDS_PER_TOKEN: f64 = 300.0;
/// So many different messages of one kind are told apart ...
const MOST_ALIKE: usize = 10;
/// ... unless nothing of the kind was told for this time.
const ALIKE_SECONDS: f64 = 600.0;
/// So much is remembered of each of the three.
const MOST_REMEMBERED: usize = 4096;
const COMBINED: &str = "(combined from similar events): ";

/// The object an event is about.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct About {
    pub kind: String,
    pub namespace: String,
    pub name: String,
    pub uid: String,
    /// The container, as `spec.containers{c}`.
    pub field_path: String,
}

/// An event as it stands in the API.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Written {
    /// The name of the event object.
    pub name: String,
    pub severity: Severity,
    pub reason: String,
    pub message: String,
    pub count: u32,
    pub first: Timestamp,
    pub last: Timestamp,
}

/// What is to be done about an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    Create(Written),
    /// One of this name was created before.
    Update(Written),
    /// Too many of its kind were told.
    Skip,
}

/// What makes events one kind: the object but for its parts, type and reason.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Kind {
    object: About,
    severity: Severity,
    reason: String,
}

/// What makes events the same.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Same {
    Event { about: About, severity: Severity, reason: String, message: String },
    Combined(Kind),
}

#[derive(Debug, Clone)]
struct Alike {
    messages: BTreeSet<String>,
    last: Timestamp,
}

#[derive(Debug, Clone)]
struct Before {
    name: String,
    count: u32,
    first: Timestamp,
}

#[derive(Debug, Clone)]
struct Bucket {
    tokens: f64,
    at: Timestamp,
}

/// Remembers what was told.
#[derive(Debug, Clone, Default)]
pub struct Correlator {
    alike: Recent<Kind, Alike>,
    told: Recent<Same, Before>,
    // Upstream has one budget for all of an object; the kubelet that was recorded has one for each
    // reason, so that a pod whose probe fails for long can still say that it is stopped.
    budgets: Recent<Kind, Bucket>,
}

impl Correlator {
    /// What is to be written because of this.
    pub fn observe(&mut self, about: &About, told: &Told, now: Timestamp) -> Outcome {
        let kind = Kind {
            object: About { field_path: String::new(), ..about.clone() },
            severity: told.severity(),
            reason: told.reason().to_owned(),
        };
        let mut message = told.to_string();
        let same = if self.is_one_of_many(&kind, &message, now) {
            message.insert_str(0, COMBINED);
            Same::Combined(kind.clone())
        } else {
            Same::Event {
                about: about.clone(),
                severity: kind.severity,
                reason: kind.reason.clone(),
                message: message.clone(),
            }
        };
        let before = self.told.get(&same).cloned();
        let known = before.is_some();
        let before = before.unwrap_or_else(|| Before {
            name: format!("{}.{:x}", about.name, nanos(now)),
            count: 0,
            first: now,
        });
        let count = before.count.saturating_add(1);
        self.told.put(same, Before { count, ..before.clone() });
        if !self.spend(&kind, now) {
            return Outcome::Skip;
        }
        let written = Written {
            name: before.name,
            severity: kind.severity,
            reason: kind.reason,
            message,
            count,
            first: before.first,
            last: now,
        };
        if known { Outcome::Update(written) } else { Outcome::Create(written) }
    }

    /// Whether so many different ones of the kind were told that all further ones are one.
    fn is_one_of_many(&mut self, kind: &Kind, message: &str, now: Timestamp) -> bool {
        let fresh = || Alike { messages: BTreeSet::new(), last: now };
        let recent = |alike: &&Alike| seconds_between(alike.last, now) <= ALIKE_SECONDS;
        let mut alike = self.alike.get(kind).filter(recent).cloned().unwrap_or_else(fresh);
        alike.messages.insert(message.to_owned());
        alike.last = now;
        let many = alike.messages.len() >= MOST_ALIKE;
        if many {
            alike.messages.pop_first();
        }
        self.alike.put(kind.clone(), alike);
        many
    }

    fn spend(&mut self, kind: &Kind, now: Timestamp) -> bool {
        let full = Bucket { tokens: BURST, at: now };
        let bucket = self.budgets.get(kind).cloned().unwrap_or(full);
        let refilled = bucket.tokens + seconds_between(bucket.at, now) / SECONDS_PER_TOKEN;
        let tokens = refilled.min(BURST);
        let enough = tokens >= 1.0;
        let tokens = if enough { tokens - 1.0 } else { tokens };
        self.budgets.put(kind.clone(), Bucket { tokens, at: now });
        enough
    }
}

/// Never below zero: a clock that goes back takes nothing away.
fn seconds_between(earlier: Timestamp, later: Timestamp) -> f64 {
    let nanos = f64::from(later.nanos()) - f64::from(earlier.nanos());
    let seconds = later.seconds().saturating_sub(earlier.seconds()) as f64;
    (seconds + nanos / 1e9).max(0.0)
}

fn nanos(at: Timestamp) -> i128 {
    i128::from(at.seconds()) * 1_000_000_000 + i128::from(at.nanos())
}

/// Entries by key; those that were not used for longest go first when there are too many.
#[derive(Debug, Clone)]
struct Recent<K, V> {
    entries: BTreeMap<K, (u64, V)>,
    by_use: BTreeMap<u64, K>,
    uses: u64,
}

impl<K, V> Default for Recent<K, V> {
    fn default() -> Recent<K, V> {
        Recent { entries: BTreeMap::new(), by_use: BTreeMap::new(), uses: 0 }
    }
}

impl<K: Ord + Clone, V> Recent<K, V> {
    fn get(&self, key: &K) -> Option<&V> {
        self.entries.get(key).map(|(_, value)| value)
    }

    fn put(&mut self, key: K, value: V) {
        self.uses += 1;
        if let Some((used, _)) = self.entries.insert(key.clone(), (self.uses, value)) {
            self.by_use.remove(&used);
        }
        self.by_use.insert(self.uses, key);
        if self.entries.len() > MOST_REMEMBERED
            && let Some((_, oldest)) = self.by_use.pop_first()
        {
            self.entries.remove(&oldest);
        }
    }
}
