//! Attacks on a `berth server` over TLS, each of which once stopped, slowed down or blinded it.
//!
//! The server is a process of the test's own with a limit on its memory ([`server::Server`]). A module
//! per kind of attack; a test sends the attack and then asserts that an administrator is still
//! answered, and that the process is the same one.

#![allow(clippy::panic, clippy::unwrap_used)]

mod access;
mod flood;
mod input;
mod server;
mod survival;
mod transport;
