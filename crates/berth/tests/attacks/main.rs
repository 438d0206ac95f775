//! Attacks on a `berth server` over TLS, each of which once stopped or slowed it, or disabled its
//! audit log.
//!
//! The server is a separate process with a memory limit ([`server::Server`]). There is a module per
//! kind of attack. A test sends the attack and then asserts that an administrator still gets
//! responses from the same process.

#![allow(clippy::panic, clippy::unwrap_used)]

mod access;
mod flood;
mod input;
mod server;
mod survival;
mod transport;
