//! Limits repeated events: [`Correlator`], as the kubelet's client does.
//!
//! ```text
//!   event ──▶ many alike within ten minutes? ──▶ seen before? ──▶ too many of its kind? ──▶ written
//!              all further ones are combined      count up         left out
//! ```
//!
//! The time is an argument. Writes nothing. An event that is forgotten here is created again.

use std::collections::{BTreeMap, BTreeSet};

use objects::timestamp::Timestamp;

use super::{AgentEvent, Severity};

/// Number of events of one kind and object that may be written at once, ...
const BURST: f64 = 25.0;
/// ... and the time after which one more may be.
const SECONDS_PER_TOKEN: f64 = 300.0;
/// Number of different messages of one kind that are written separately ...
const MOST_ALIKE: usize = 10;
/// ... unless none of the kind occurred in this time.
const ALIKE_SECONDS: f64 = 600.0;
/// Maximum number of entries in each of the three caches.
const MOST_REMEMBERED: usize = 4096;
const COMBINED: &str = "(combined from similar events): ";

/// The object of an event.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct InvolvedObject {
    pub kind: String,
    pub namespace: String,
    pub name: String,
    pub uid: String,
    /// The container, as `spec.containers{c}`.
    pub field_path: String,
}

impl InvolvedObject {
    /// Returns `namespace/name`, or the name of an object without a namespace.
    #[must_use]
    pub fn full_name(&self) -> String {
        match self.namespace.as_str() {
            "" => self.name.clone(),
            namespace => format!("{namespace}/{}", self.name),
        }
    }
}

/// An event as written to the API.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventRecord {
    /// The name of the event object.
    pub name: String,
    pub severity: Severity,
    pub reason: String,
    pub message: String,
    pub count: u32,
    pub first: Timestamp,
    pub last: Timestamp,
}

/// The action for an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    Create(EventRecord),
    /// An event object of this name was created before.
    Update(EventRecord),
    /// Too many of its kind occurred.
    Skip,
}

/// The key of a kind of events: the object without its parts, type and reason.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct EventGroup {
    object: InvolvedObject,
    severity: Severity,
    reason: String,
}

/// The key of equal events.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum EventKey {
    Event { about: InvolvedObject, severity: Severity, reason: String, message: String },
    Combined(EventGroup),
}

#[derive(Debug, Clone)]
struct SimilarEvents {
    messages: BTreeSet<String>,
    last: Timestamp,
}

#[derive(Debug, Clone)]
struct PreviousEvent {
    name: String,
    count: u32,
    first: Timestamp,
}

#[derive(Debug, Clone)]
struct TokenBucket {
    tokens: f64,
    at: Timestamp,
}

/// The events so far.
#[derive(Debug, Clone, Default)]
pub struct Correlator {
    alike: LruMap<EventGroup, SimilarEvents>,
    written: LruMap<EventKey, PreviousEvent>,
    // Upstream has one budget for all events of an object. The recorded kubelet has one for each reason,
    // so that a pod whose probe fails for long can still report that it is stopped.
    budgets: LruMap<EventGroup, TokenBucket>,
}

impl Correlator {
    /// Returns the action for an event.
    pub fn observe(
        &mut self,
        about: &InvolvedObject,
        event: &AgentEvent,
        now: Timestamp,
    ) -> Outcome {
        let kind = EventGroup {
            object: InvolvedObject { field_path: String::new(), ..about.clone() },
            severity: event.severity(),
            reason: event.reason().to_owned(),
        };
        let mut message = event.to_string();
        let same = if self.is_one_of_many(&kind, &message, now) {
            message.insert_str(0, COMBINED);
            EventKey::Combined(kind.clone())
        } else {
            EventKey::Event {
                about: about.clone(),
                severity: kind.severity,
                reason: kind.reason.clone(),
                message: message.clone(),
            }
        };
        let before = self.written.get(&same).cloned();
        let known = before.is_some();
        let before = before.unwrap_or_else(|| PreviousEvent {
            name: format!("{}.{:x}", about.name, nanos(now)),
            count: 0,
            first: now,
        });
        let count = before.count.saturating_add(1);
        self.written.put(same, PreviousEvent { count, ..before.clone() });
        if !self.spend(&kind, now) {
            return Outcome::Skip;
        }
        let written = EventRecord {
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

    /// Returns true if so many different messages of the kind occurred that all further ones are
    /// combined.
    fn is_one_of_many(&mut self, kind: &EventGroup, message: &str, now: Timestamp) -> bool {
        let fresh = || SimilarEvents { messages: BTreeSet::new(), last: now };
        let recent = |alike: &&SimilarEvents| seconds_between(alike.last, now) <= ALIKE_SECONDS;
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

    fn spend(&mut self, kind: &EventGroup, now: Timestamp) -> bool {
        let full = TokenBucket { tokens: BURST, at: now };
        let bucket = self.budgets.get(kind).cloned().unwrap_or(full);
        let refilled = bucket.tokens + seconds_between(bucket.at, now) / SECONDS_PER_TOKEN;
        let tokens = refilled.min(BURST);
        let enough = tokens >= 1.0;
        let tokens = if enough { tokens - 1.0 } else { tokens };
        self.budgets.put(kind.clone(), TokenBucket { tokens, at: now });
        enough
    }
}

/// Never negative: a clock that goes back changes nothing.
fn seconds_between(earlier: Timestamp, later: Timestamp) -> f64 {
    let nanos = f64::from(later.nanos()) - f64::from(earlier.nanos());
    let seconds = later.seconds().saturating_sub(earlier.seconds()) as f64;
    (seconds + nanos / 1e9).max(0.0)
}

fn nanos(at: Timestamp) -> i128 {
    i128::from(at.seconds()) * 1_000_000_000 + i128::from(at.nanos())
}

/// Entries by key. The least recently used are dropped when there are too many.
#[derive(Debug, Clone)]
struct LruMap<K, V> {
    entries: BTreeMap<K, (u64, V)>,
    by_use: BTreeMap<u64, K>,
    uses: u64,
}

impl<K, V> Default for LruMap<K, V> {
    fn default() -> LruMap<K, V> {
        LruMap { entries: BTreeMap::new(), by_use: BTreeMap::new(), uses: 0 }
    }
}

impl<K: Ord + Clone, V> LruMap<K, V> {
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
