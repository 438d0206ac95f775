//! Records events of the controllers: [`Recorder`]. The crate `client` correlates and writes them.

use std::sync::Arc;

use client::events::{Event, EventQueue, EventSource};

use crate::clock::Clock;
use crate::counters::{Counters, count};

/// The most events that may wait to be written.
const QUEUE_CAPACITY: usize = 20_000;
/// The most concurrent writes.
pub(crate) const MAX_WRITES: usize = 32;

/// Queues events in the name of one component. Events that do not fit into the queue are counted and dropped.
#[derive(Debug, Clone)]
pub(crate) struct Recorder {
    events: client::events::Recorder,
    clock: Clock,
    counters: Arc<Counters>,
}

impl Recorder {
    pub(crate) fn new(clock: Clock, counters: Arc<Counters>) -> (Recorder, EventQueue) {
        let source = EventSource { component: "", host: None };
        let (events, queue) = client::events::Recorder::new(source, QUEUE_CAPACITY);
        (Recorder { events, clock, counters }, queue)
    }

    pub(crate) fn named(&self, component: &'static str) -> Recorder {
        Recorder { events: self.events.named(component), ..self.clone() }
    }

    pub(crate) fn record(&self, event: Event) {
        if self.events.record(event, self.clock.now()).is_err() {
            count(&self.counters.events_dropped);
        }
    }
}
