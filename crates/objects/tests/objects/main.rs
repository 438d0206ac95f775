//! What this crate's pure functions make of the exchanges recorded from upstream's API server.

mod kinds;
mod recorded;
mod tables;
mod views;
