//! Streams to and from an [`Endpoint`]: [`connect`] and [`Listener`], over a unix socket or a named
//! pipe, in twin modules with equal names.
//!
//! It transports bytes; gRPC defines their meaning.

use std::io;

use crate::endpoint::Endpoint;

#[cfg_attr(unix, path = "transport/unix.rs")]
#[cfg_attr(windows, path = "transport/windows.rs")]
mod os;

pub(crate) use os::{ClientStream, connect};
pub use os::{Listener, ServerStream};

/// The reason why listening on an endpoint failed.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    #[error("{0} cannot be listened on here: this system has {1}")]
    OtherSystem(Endpoint, &'static str),
    #[error("{0} is in use: a process answers there")]
    InUse(Endpoint),
    #[error("{0} is in the way: it exists and is not a socket; remove it or name another path")]
    NotASocket(Endpoint),
    #[error("cannot listen on {endpoint}: cannot {what}")]
    Io { endpoint: Endpoint, what: &'static str, source: io::Error },
}

/// Returns the error for an endpoint kind that only other systems have.
fn other_system(has: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::Unsupported, format!("this system has {has}"))
}
