//! Captures log events in tests: [`capture`].
//!
//! One subscriber serves the whole process and keeps the events of each thread apart. A subscriber for each
//! test would race with parallel tests, because `tracing` caches which events are enabled.

#![allow(
    clippy::missing_const_for_thread_local,
    reason = "reported for windows-gnu although the initializer is const"
)]

use std::cell::RefCell;
use std::fmt::{Debug, Write as _};
use std::marker::PhantomData;
use std::sync::Once;

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

thread_local! {
    /// The captured crate and its events, while this thread captures them.
    static CAPTURE: RefCell<Option<(&'static str, Vec<String>)>> = const { RefCell::new(None) };
}

/// The events of one thread since [`capture`] was called on it. Dropping it ends the capture.
#[derive(Debug)]
pub struct Captured {
    /// Not `Send`: the events are those of one thread.
    _thread: PhantomData<*const ()>,
}

/// Captures the events of one crate on this thread. Tasks of a current-thread tokio runtime run on the thread of
/// the test.
#[must_use]
pub fn capture(of_crate: &'static str) -> Captured {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        let installed = tracing::subscriber::set_global_default(Collector);
        assert!(installed.is_ok(), "the test process has another global subscriber");
    });
    CAPTURE.set(Some((of_crate, Vec::new())));
    Captured { _thread: PhantomData }
}

impl Captured {
    /// Returns the events so far, each as `LEVEL message field=value …`.
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        CAPTURE.with_borrow(|capture| {
            capture.as_ref().map(|(_, lines)| lines.clone()).unwrap_or_default()
        })
    }

    /// Returns the events that contain a text.
    #[must_use]
    pub fn with(&self, text: &str) -> Vec<String> {
        self.lines().into_iter().filter(|line| line.contains(text)).collect()
    }

    /// Removes and returns the events so far.
    #[must_use]
    pub fn take(&self) -> Vec<String> {
        CAPTURE.with_borrow_mut(|capture| {
            capture.as_mut().map(|(_, lines)| std::mem::take(lines)).unwrap_or_default()
        })
    }
}

impl Drop for Captured {
    fn drop(&mut self) {
        CAPTURE.set(None);
    }
}

struct Collector;

impl Subscriber for Collector {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        CAPTURE.with_borrow_mut(|capture| {
            let Some((of_crate, lines)) = capture else { return };
            let mut target = event.metadata().target().split("::");
            if target.next() != Some(of_crate) {
                return;
            }
            let mut line = Line::default();
            event.record(&mut line);
            lines.push(format!("{} {}{}", event.metadata().level(), line.message, line.fields));
        });
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
        let _ = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            name => write!(self.fields, " {name}={value:?}"),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_of_this_thread_are_captured_until_the_drop() {
        let log = capture("rig");
        tracing::warn!(attempt = 2, "failed to connect");
        std::thread::spawn(|| tracing::warn!("of another thread")).join().unwrap();
        assert_eq!(log.lines(), ["WARN failed to connect attempt=2"]);
        assert_eq!(log.with("connect").len(), 1);
        assert_eq!(log.take().len(), 1);
        drop(log);
        tracing::warn!("not captured");
        let log = capture("other");
        tracing::warn!("of another crate");
        assert!(log.lines().is_empty());
    }
}
