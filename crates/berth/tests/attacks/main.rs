//! Attacks on a `berth server` over TLS, and on a node, each of which once stopped or slowed it,
//! lost data, or had no effect where it should have been refused.
//!
//! The server is a separate process with a memory limit ([`server::Server`]). There is a module per
//! kind of attack. A test sends the attack and then asserts that an administrator still gets
//! responses from the same process.
//!
//! `BERTH_BINARY` names another binary to attack. Each test fails with a binary of the commit
//! before its defect was corrected, except those whose comment states a reason.

#![allow(clippy::panic, clippy::unwrap_used)]

mod access;
mod certificates;
mod configuration;
mod flood;
mod input;
#[cfg(feature = "rig")]
mod pinning;
mod server;
mod storage;
mod survival;
mod transport;
