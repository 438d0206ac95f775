//! Controllers that use only the API: scheduler, workloads, garbage collection, node lifecycle and
//! the others that turn stored objects into a working cluster.
//!
//! Main function: [`run`]. Each controller observes through informers, plans with a pure function
//! and acts through a [`client::Client`]. Controllers do not know each other, and they do not know
//! where the API server runs.

mod clock;
mod context;
mod counters;
mod daemon_set;
mod deployment;
mod disruption;
mod garbage;
mod int_or_percent;
mod job;
mod namespace;
mod node_lifecycle;
mod observe;
mod options;
mod quota;
mod record;
mod replica_set;
mod run;
mod scheduler;
mod supervise;
mod sweep;
mod taint_eviction;
mod workload;
mod workqueue;

pub use counters::{Counters, PendingPods};
pub use options::{Controller, Options, Selection, UnknownController};
pub use run::{Handle, StartError, run};
