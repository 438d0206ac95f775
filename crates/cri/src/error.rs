//! What came of a call that failed: [`Error`].
//!
//! The message is kept exactly as the runtime wrote it, since it ends in Events and in the statuses of
//! pods, where people and scripts look for it.

use std::error::Error as _;
use std::fmt::Write as _;
use std::time::Duration;

use tonic::{Code, Status, TimeoutExpired};

use crate::connection::Unreachable;
use crate::endpoint::Endpoint;

/// A call that failed.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{method} of the runtime at {endpoint}: {message}")]
pub struct Error {
    /// Which runtime was asked.
    pub endpoint: Endpoint,
    /// Which call it was, such as `RunPodSandbox`.
    pub method: &'static str,
    /// Who says that it failed.
    pub origin: Origin,
    /// Of the runtime, or the one that stands for what happened to the connection.
    pub code: Code,
    /// The runtime's own words, if it is the origin.
    pub message: String,
}

/// Who says that a call failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The runtime answered with an error.
    Runtime,
    /// There was no connection, or it ended before there was an answer. In the latter case nobody
    /// knows whether the runtime did what it was asked.
    Connection,
    /// There was no answer in time. The runtime may still be at it.
    Deadline,
}

impl Error {
    /// What was asked for does not exist.
    pub fn is_not_found(&self) -> bool {
        self.code == Code::NotFound
    }

    /// The runtime does not know this call.
    pub fn is_unimplemented(&self) -> bool {
        self.code == Code::Unimplemented
    }

    /// The runtime is not there, or is not ready to answer.
    pub fn is_unavailable(&self) -> bool {
        self.code == Code::Unavailable
    }

    /// Time was up: ours, or by the runtime's own word (as for a command of ExecSync).
    pub fn is_deadline(&self) -> bool {
        self.code == Code::DeadlineExceeded
    }

    /// Code and message as gRPC's Go library prints them, which is the form that Events of a kubelet
    /// have them in: `rpc error: code = NotFound desc = ...`.
    pub fn rpc_text(&self) -> String {
        // Code's Debug text is the name of the code in Go, with one exception.
        let code = match self.code {
            Code::Cancelled => "Canceled".to_owned(),
            code => format!("{code:?}"),
        };
        format!("rpc error: code = {code} desc = {}", self.message)
    }

    pub(crate) fn deadline(endpoint: &Endpoint, method: &'static str, after: Duration) -> Self {
        Self {
            endpoint: endpoint.clone(),
            method,
            origin: Origin::Deadline,
            code: Code::DeadlineExceeded,
            message: format!("no answer within {after:?}: context deadline exceeded"),
        }
    }

    /// From what the gRPC library says. A status that a server sent has no source; everything that
    /// went wrong on the way has one.
    pub(crate) fn from_status(endpoint: &Endpoint, method: &'static str, status: &Status) -> Self {
        let (origin, code, message) = if passed_time(status) {
            let message = "context deadline exceeded".to_owned();
            (Origin::Deadline, Code::DeadlineExceeded, message)
        } else if status.source().is_some() {
            (Origin::Connection, Code::Unavailable, innermost(status))
        } else {
            (Origin::Runtime, status.code(), status.message().to_owned())
        };
        Self { endpoint: endpoint.clone(), method, origin, code, message }
    }
}

/// The library's own timer runs beside ours and may be first.
fn passed_time(status: &Status) -> bool {
    let mut next = status.source();
    while let Some(error) = next {
        if error.is::<TimeoutExpired>() {
            return true;
        }
        next = error.source();
    }
    false
}

/// The reason behind "transport error" and its like: that nobody was reached, in the words of gRPC's Go
/// library, or else what the layers say, each thing once.
fn innermost(status: &Status) -> String {
    let mut chain = Vec::new();
    let mut next = status.source();
    while let Some(error) = next {
        if let Some(Unreachable(reason)) = error.downcast_ref() {
            let desc = format!("transport: Error while dialing: {reason}");
            return format!("connection error: desc = {desc:?}");
        }
        chain.push(error.to_string());
        next = error.source();
    }
    let mut text = String::from("connection error");
    let mut last = "";
    for part in &chain {
        // Layers that only repeat what is below them.
        if part == last || part == "transport error" {
            continue;
        }
        let _ = write!(text, ": {part}");
        last = part;
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoint() -> Endpoint {
        Endpoint::parse("unix:///run/x.sock").unwrap()
    }

    #[test]
    fn code_and_words_of_the_runtime_are_kept() {
        let message = "failed to load task: \"x\": not found\n  \u{e9}";
        let error = Error::from_status(&endpoint(), "ExecSync", &Status::not_found(message));
        assert_eq!((error.origin, error.code), (Origin::Runtime, Code::NotFound));
        assert_eq!(error.message, message);
        assert_eq!(error.rpc_text(), format!("rpc error: code = NotFound desc = {message}"));
        assert_eq!(
            error.to_string(),
            format!("ExecSync of the runtime at unix:///run/x.sock: {message}")
        );
    }

    #[test]
    fn codes_are_classified() {
        let check = |code, not_found, unimplemented, unavailable, deadline| {
            let error = Error::from_status(&endpoint(), "Version", &Status::new(code, ""));
            let classes = (
                error.is_not_found(),
                error.is_unimplemented(),
                error.is_unavailable(),
                error.is_deadline(),
            );
            assert_eq!(classes, (not_found, unimplemented, unavailable, deadline), "{code:?}");
        };
        check(Code::NotFound, true, false, false, false);
        check(Code::Unimplemented, false, true, false, false);
        check(Code::Unavailable, false, false, true, false);
        check(Code::DeadlineExceeded, false, false, false, true);
        check(Code::Unknown, false, false, false, false);
    }

    #[test]
    fn codes_are_spelled_as_in_go() {
        let check = |code, spelled: &str| {
            let error = Error::from_status(&endpoint(), "Version", &Status::new(code, "m"));
            assert_eq!(error.rpc_text(), format!("rpc error: code = {spelled} desc = m"));
        };
        check(Code::Cancelled, "Canceled");
        check(Code::Unknown, "Unknown");
        check(Code::InvalidArgument, "InvalidArgument");
        check(Code::DeadlineExceeded, "DeadlineExceeded");
        check(Code::ResourceExhausted, "ResourceExhausted");
        check(Code::FailedPrecondition, "FailedPrecondition");
        check(Code::Unavailable, "Unavailable");
    }
}
