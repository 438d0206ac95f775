//! The error of a failed call: [`Error`].
//!
//! The message is exactly the runtime's, because it appears in Events and in pod statuses, where
//! users and scripts search for it.

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
    /// The runtime that was called.
    pub endpoint: Endpoint,
    /// The name of the call, for example `RunPodSandbox`.
    pub method: &'static str,
    /// The side that reported the failure.
    pub origin: Origin,
    /// The runtime's code, or the code that describes the connection failure.
    pub code: Code,
    /// The runtime's message, if the runtime is the origin.
    pub message: String,
}

/// The side that reported a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The runtime returned an error.
    Runtime,
    /// There was no connection, or it was lost before the response. In the latter case it is
    /// unknown whether the runtime has executed the call.
    Connection,
    /// The deadline passed without a response. The runtime may still execute the call.
    Deadline,
}

impl Error {
    /// Returns true if the object does not exist.
    pub fn is_not_found(&self) -> bool {
        self.code == Code::NotFound
    }

    /// Returns true if the runtime does not implement the call.
    pub fn is_unimplemented(&self) -> bool {
        self.code == Code::Unimplemented
    }

    /// Returns true if the runtime is unreachable or not ready.
    pub fn is_unavailable(&self) -> bool {
        self.code == Code::Unavailable
    }

    /// Returns true if the deadline passed: ours, or the runtime's (as for a command of ExecSync).
    pub fn is_deadline(&self) -> bool {
        self.code == Code::DeadlineExceeded
    }

    /// Returns code and message as gRPC's Go library prints them, and as Events of a kubelet
    /// contain them: `rpc error: code = NotFound desc = ...`.
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

    /// Converts the status of the gRPC library. A status that the server sent has no source; a
    /// transport failure has one.
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

/// Returns true if the library's own timer ended before ours.
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

/// Returns the cause of a "transport error": a dial error in the form of gRPC's Go library, or else
/// the texts of all layers without repetitions.
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
        // Skip layers that only repeat the layer below.
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
    fn code_and_message_of_the_runtime_are_kept() {
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
