//! Logging of retry loops: [`ErrorLog`] selects the errors that are worth a line.
//!
//! A loop that retries for hours logs each distinct error once, and its recovery. It does not log
//! itself: the message of each loop states what it does next.

use std::error::Error;
use std::fmt::Write as _;

/// The last error that a retry loop logged.
#[derive(Debug, Default)]
pub(crate) struct ErrorLog {
    last: Option<String>,
}

impl ErrorLog {
    /// Returns true if the error must be logged, because it differs from the last one.
    pub(crate) fn is_new(&mut self, error: &str) -> bool {
        if self.last.as_deref() == Some(error) {
            return false;
        }
        self.last = Some(error.to_owned());
        true
    }

    /// Returns true if the recovery must be logged, because an error was.
    pub(crate) fn recovered(&mut self) -> bool {
        self.last.take().is_some()
    }
}

/// Renders an error with its sources.
pub(crate) fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        let _ = write!(text, ": {error}");
        source = error.source();
    }
    text
}

/// Captures the log lines of a test.
#[cfg(test)]
pub(crate) mod capture {
    use std::fmt::{Debug, Write as _};
    use std::sync::{Arc, Mutex};

    use tracing::field::{Field, Visit};
    use tracing::span::{Attributes, Id, Record};
    use tracing::subscriber::DefaultGuard;
    use tracing::{Event, Metadata, Subscriber};

    /// The captured lines, each as level, message and fields.
    #[derive(Debug, Clone, Default)]
    pub(crate) struct Lines(Arc<Mutex<Vec<String>>>);

    struct Capture(Lines);

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

    impl Subscriber for Capture {
        fn enabled(&self, _: &Metadata<'_>) -> bool {
            true
        }

        fn new_span(&self, _: &Attributes<'_>) -> Id {
            Id::from_u64(1)
        }

        fn record(&self, _: &Id, _: &Record<'_>) {}

        fn record_follows_from(&self, _: &Id, _: &Id) {}

        fn event(&self, event: &Event<'_>) {
            let mut line = Line::default();
            event.record(&mut line);
            let level = event.metadata().level();
            let text = format!("{level} {}{}", line.message, line.fields);
            self.0.0.lock().unwrap().push(text);
        }

        fn enter(&self, _: &Id) {}

        fn exit(&self, _: &Id) {}
    }

    impl Lines {
        /// Captures the lines of this thread until the guard is dropped.
        pub(crate) fn start() -> (Lines, DefaultGuard) {
            let lines = Lines::default();
            let guard = tracing::subscriber::set_default(Capture(lines.clone()));
            (lines, guard)
        }

        /// Returns the lines that contain a text.
        pub(crate) fn with(&self, text: &str) -> Vec<String> {
            let lines = self.0.lock().unwrap();
            lines.iter().filter(|line| line.contains(text)).cloned().collect()
        }
    }
}
