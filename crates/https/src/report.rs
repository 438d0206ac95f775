//! Logging of errors in retry loops: [`ErrorChange`] returns an error once, until it changes.
//!
//! Does not log itself, so that events keep the target and the fields of the loop.

use std::error::Error;

/// Formats an error with its causes: `what failed: why: cause`.
#[must_use]
pub fn error_chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        next = cause.source();
    }
    text
}

/// The last error of a retry loop.
///
/// ```
/// let mut errors = https::ErrorChange::default();
/// let down = std::io::Error::other("connection refused");
/// assert_eq!(errors.failed(&down).as_deref(), Some("connection refused"));
/// assert_eq!(errors.failed(&down), None);
/// assert!(errors.recovered() && !errors.recovered());
/// ```
#[derive(Debug, Default)]
pub struct ErrorChange {
    last: Option<String>,
}

impl ErrorChange {
    /// Records a failure. Returns the text to log, with its causes, if it differs from the last one.
    #[must_use]
    pub fn failed(&mut self, error: &dyn Error) -> Option<String> {
        let text = error_chain(error);
        if self.last.as_ref() == Some(&text) {
            return None;
        }
        self.last = Some(text.clone());
        Some(text)
    }

    /// Records a success. Returns true if it follows a failure.
    #[must_use]
    pub fn recovered(&mut self) -> bool {
        self.last.take().is_some()
    }
}
