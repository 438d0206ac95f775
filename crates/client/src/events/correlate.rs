//! Limits repeated events: [`Correlator`], with the rules of upstream's client.
//!
//! ```text
//!   event ──▶ many alike within ten minutes? ──▶ seen before? ──▶ too many of its kind? ──▶ written
//!              all further ones are combined      count up         left out
//! ```
//!
//! Events of `events.k8s.io` are only counted, as upstream's second client does. The time is an argument.
//! Writes nothing. An event that is forgotten here is created again.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use objects::timestamp::Timestamp;

use super::{Event, EventApi, InvolvedObject, Severity};

/// Number of events of one kind and object that may be written at once, ...
const BURST: f64 = 25.0;
/// ... and the time after which one more may be.
const SECONDS_PER_TOKEN: f64 = 300.0;
/// Number of different messages of one kind that are written separately ...
const MOST_ALIKE: usize = 10;
/// ... unless none of the kind occurred in this time. It also ends a series of `events.k8s.io`.
const ALIKE_SECONDS: f64 = 600.0;
/// Maximum number of entries in each of the three caches. Upstream's value.
const MOST_REMEMBERED: usize = 4096;
const COMBINED: &str = "(combined from similar events): ";

/// An event as written to the API.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventRecord {
    /// The name of the event object.
    pub name: String,
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

/// The key of a kind of events: reporter, the object without its parts, type and reason.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct EventGroup {
    component: &'static str,
    object: InvolvedObject,
    severity: Severity,
    reason: Cow<'static, str>,
}

/// The key of equal events.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum EventKey {
    Event { group: EventGroup, field_path: String, message: String },
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
    last: Timestamp,
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
    /// Returns the action for an event that a component reports.
    pub fn observe(&mut self, component: &'static str, event: &Event, now: Timestamp) -> Outcome {
        let group = EventGroup {
            component,
            object: InvolvedObject { field_path: String::new(), ..event.object.clone() },
            severity: event.severity,
            reason: event.reason.clone(),
        };
        let is_core = event.api == EventApi::Core;
        let mut message = event.message.clone();
        let key = if is_core && self.is_one_of_many(&group, &message, now) {
            message.insert_str(0, COMBINED);
            EventKey::Combined(group.clone())
        } else {
            let field_path = event.object.field_path.clone();
            EventKey::Event { group: group.clone(), field_path, message: message.clone() }
        };
        let continues = |previous: &&PreviousEvent| {
            is_core || seconds_between(previous.last, now) < ALIKE_SECONDS
        };
        let previous = self.written.get(&key).filter(continues).cloned();
        let is_known = previous.is_some();
        let previous = previous.unwrap_or_else(|| PreviousEvent {
            name: format!("{}.{:x}", event.object.name, now.unix_nanos()),
            count: 0,
            first: now,
            last: now,
        });
        let count = previous.count.saturating_add(1);
        self.written.put(key, PreviousEvent { count, last: now, ..previous.clone() });
        if is_core && !self.spend(group, now) {
            return Outcome::Skip;
        }
        let PreviousEvent { name, first, .. } = previous;
        let record = EventRecord { name, message, count, first, last: now };
        if is_known { Outcome::Update(record) } else { Outcome::Create(record) }
    }

    /// Returns true if so many different messages of the kind occurred that all further ones are
    /// combined.
    fn is_one_of_many(&mut self, group: &EventGroup, message: &str, now: Timestamp) -> bool {
        let fresh = || SimilarEvents { messages: BTreeSet::new(), last: now };
        let recent = |alike: &&SimilarEvents| seconds_between(alike.last, now) <= ALIKE_SECONDS;
        let mut alike = self.alike.get(group).filter(recent).cloned().unwrap_or_else(fresh);
        alike.messages.insert(message.to_owned());
        alike.last = now;
        let many = alike.messages.len() >= MOST_ALIKE;
        if many {
            alike.messages.pop_first();
        }
        self.alike.put(group.clone(), alike);
        many
    }

    fn spend(&mut self, group: EventGroup, now: Timestamp) -> bool {
        let full = TokenBucket { tokens: BURST, at: now };
        let bucket = self.budgets.get(&group).cloned().unwrap_or(full);
        let refilled = bucket.tokens + seconds_between(bucket.at, now) / SECONDS_PER_TOKEN;
        let tokens = refilled.min(BURST);
        let enough = tokens >= 1.0;
        let tokens = if enough { tokens - 1.0 } else { tokens };
        self.budgets.put(group, TokenBucket { tokens, at: now });
        enough
    }
}

/// Never negative: a clock that goes back changes nothing.
fn seconds_between(earlier: Timestamp, later: Timestamp) -> f64 {
    let nanos = f64::from(later.nanos()) - f64::from(earlier.nanos());
    let seconds = later.seconds().saturating_sub(earlier.seconds()) as f64;
    (seconds + nanos / 1e9).max(0.0)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kind::PODS;

    fn at(seconds: f64) -> Timestamp {
        let nanos = (seconds * 1e9) as i64 + 1_700_000_000_000_000_000;
        Timestamp::new(nanos / 1_000_000_000, (nanos % 1_000_000_000) as u32)
    }

    fn event(field_path: &str, reason: &'static str, message: &str) -> Event {
        let pod = InvolvedObject::new(PODS, "a", "p", "u");
        let object = InvolvedObject { field_path: field_path.to_owned(), ..pod };
        Event::warning(&object, reason, message.to_owned())
    }

    #[test]
    fn after_a_burst_one_event_is_written_every_five_minutes() {
        let mut correlator = Correlator::default();
        let stuck = event("", "ProbeWarning", "Liveness probe errored");
        let mut observe =
            |event: &Event, seconds: f64| correlator.observe("kubelet", event, at(seconds));
        for n in 0..40u32 {
            let outcome = observe(&stuck, f64::from(2 * n));
            assert_eq!(outcome == Outcome::Skip, n >= 25, "{n}: {outcome:?}");
        }
        let other = event("", "FailedPreStopHook", "PreStopHook failed");
        assert!(matches!(observe(&other, 100.0), Outcome::Create(_)));
        assert_eq!(observe(&stuck, 290.0), Outcome::Skip);
        let Outcome::Update(written) = observe(&stuck, 310.0) else { panic!("not refilled") };
        // Events that were left out are counted.
        assert_eq!((written.count, written.first), (42, at(0.0)));
        assert_eq!(observe(&stuck, 320.0), Outcome::Skip);
    }

    #[test]
    fn messages_of_a_kind_are_combined_after_the_tenth() {
        let mut correlator = Correlator::default();
        let mut observe = |n: u32, seconds: f64| {
            let event = event("", "Unhealthy", &n.to_string());
            match correlator.observe("kubelet", &event, at(seconds)) {
                Outcome::Create(written) => (written.message, written.count, true),
                Outcome::Update(written) => (written.message, written.count, false),
                Outcome::Skip => panic!("{n} left out"),
            }
        };
        for n in 0..9 {
            assert_eq!(observe(n, 0.0), (n.to_string(), 1, true));
        }
        let combined = |n: u32| format!("{COMBINED}{n}");
        assert_eq!(observe(9, 1.0), (combined(9), 1, true));
        assert_eq!(observe(10, 2.0), (combined(10), 2, false));
        // After ten minutes without one of the kind they are written separately again.
        assert_eq!(observe(11, 603.0), ("11".to_owned(), 1, true));
    }

    #[test]
    fn events_of_different_containers_are_separate_objects() {
        let mut correlator = Correlator::default();
        let mut observe = |path: &str, seconds: f64| match correlator.observe(
            "kubelet",
            &event(path, "Created", "x"),
            at(seconds),
        ) {
            Outcome::Create(written) => (written.name, true),
            Outcome::Update(written) => (written.name, false),
            Outcome::Skip => panic!("left out"),
        };
        let (a, created) = observe("spec.containers{a}", 0.0);
        assert!(created);
        let (b, created) = observe("spec.containers{b}", 1.0);
        assert!(created);
        assert_ne!(a, b);
        assert_eq!(observe("spec.containers{a}", 2.0), (a.clone(), false));
        assert_eq!(a, "p.17979cfe362a0000");
    }

    #[test]
    fn events_with_an_action_are_neither_combined_nor_limited() {
        let mut correlator = Correlator::default();
        let mut observe = |message: &str, seconds: f64| {
            let event = event("", "FailedScheduling", message).with_action("Scheduling");
            correlator.observe("default-scheduler", &event, at(seconds))
        };
        for n in 0..40 {
            let outcome = observe(&n.to_string(), f64::from(n));
            let Outcome::Create(written) = outcome else { panic!("{n}: {outcome:?}") };
            assert_eq!((written.message, written.count), (n.to_string(), 1));
        }
        let Outcome::Update(written) = observe("39", 40.0) else { panic!("not counted") };
        assert_eq!(written.count, 2);
        // A pause of ten minutes ends the series.
        let Outcome::Create(written) = observe("39", 640.0) else { panic!("not a new series") };
        assert_eq!(written.count, 1);
    }

    #[test]
    fn the_oldest_entries_are_forgotten() {
        let mut map = LruMap::default();
        for key in 0..=MOST_REMEMBERED {
            map.put(key, ());
        }
        map.put(1, ());
        map.put(MOST_REMEMBERED + 1, ());
        assert_eq!((map.entries.len(), map.by_use.len()), (MOST_REMEMBERED, MOST_REMEMBERED));
        let has = [0, 1, 2, 3].map(|key| map.get(&key).is_some());
        assert_eq!(has, [false, true, false, true]);
    }
}
