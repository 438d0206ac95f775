//! Logging of errors in retry loops: [`ErrorLog`] reports changes, not repetitions.
//!
//! A loop calls [`ErrorLog::failed`] after each failure and [`ErrorLog::recovered`] after each success. The
//! results show when to log. The loop writes the message itself, so that events keep its target and fields.

use std::error::Error;
use std::fmt::Display;

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
#[derive(Debug, Default)]
pub struct ErrorLog {
    /// `None` unless the last attempt failed.
    last: Option<String>,
    failures: u32,
}

impl ErrorLog {
    /// Records a failed attempt. Returns true if its error differs from that of the attempt before, so that
    /// it is to be logged.
    pub fn failed(&mut self, error: &(impl Display + ?Sized)) -> bool {
        self.failures = self.failures.saturating_add(1);
        let text = error.to_string();
        let changed = self.last.as_ref() != Some(&text);
        self.last = Some(text);
        changed
    }

    /// Records a successful attempt. Returns the number of failed attempts before it, or `None` if the
    /// attempt before it succeeded too.
    pub fn recovered(&mut self) -> Option<u32> {
        self.last.take()?;
        Some(std::mem::take(&mut self.failures))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_is_logged_when_it_changes() {
        let mut errors = ErrorLog::default();
        assert_eq!(errors.recovered(), None);
        assert!(errors.failed("refused"));
        assert!(!errors.failed("refused"));
        assert!(errors.failed("timed out"));
        assert!(errors.failed("refused"));
    }

    #[test]
    fn recovery_is_logged_once_with_the_failures_before() {
        let mut errors = ErrorLog::default();
        errors.failed("refused");
        errors.failed("refused");
        assert_eq!(errors.recovered(), Some(2));
        assert_eq!(errors.recovered(), None);
        assert!(errors.failed("refused"), "an error after a success is news");
    }
}
