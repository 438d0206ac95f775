//! Captures log events in tests: [`capture`].

use std::fmt::{Debug, Write as _};
use std::sync::{Arc, Mutex};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::DefaultGuard;
use tracing::{Event, Metadata, Subscriber};

/// The events of one thread since [`capture`] was called on it.
pub(crate) struct Captured {
    lines: Arc<Mutex<Vec<String>>>,
    _guard: DefaultGuard,
}

impl Captured {
    /// Returns the events, each as `LEVEL message field=value …`.
    pub(crate) fn lines(&self) -> Vec<String> {
        self.lines.lock().unwrap().clone()
    }

    /// Returns the events that contain a text.
    pub(crate) fn with(&self, text: &str) -> Vec<String> {
        self.lines().into_iter().filter(|line| line.contains(text)).collect()
    }
}

/// Captures the events of this thread until the result is dropped. Tasks of a current-thread tokio runtime
/// run on the thread of the test.
pub(crate) fn capture() -> Captured {
    let lines = Arc::default();
    let subscriber = Collector { lines: Arc::clone(&lines) };
    Captured { lines, _guard: tracing::subscriber::set_default(subscriber) }
}

struct Collector {
    lines: Arc<Mutex<Vec<String>>>,
}

impl Subscriber for Collector {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("agent")
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut line = Line::default();
        event.record(&mut line);
        let text = format!("{} {}{}", event.metadata().level(), line.message, line.fields);
        self.lines.lock().unwrap().push(text);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

#[derive(Default)]
struct Line {
    message: String,
    fields: String,
}

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        match field.name() {
            "message" => self.message = format!("{value:?}"),
            name => write!(self.fields, " {name}={value:?}").unwrap(),
        }
    }
}
