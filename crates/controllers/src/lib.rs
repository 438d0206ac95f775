//! Loops that speak only the API: scheduler, workloads, garbage collection, node lifecycle and the
//! rest of what turns stored objects into a working cluster.
//!
//! Main function: [`run`]. Each loop observes through informers, plans with a pure function over what
//! it saw, and acts through [`Client`]; none knows of another, and none knows where the API is.

mod client;
mod clock;
mod counters;
mod daemon_set;
mod deployment;
mod disruption;
mod garbage;
mod informer;
mod job;
mod key;
pub mod kind;
mod namespace;
mod node_lifecycle;
mod observe;
mod options;
mod quota;
mod record;
mod replica_set;
mod run;
mod scheduler;
mod share;
mod sweep;
mod taint_eviction;
mod work;
mod workload;
mod world;

pub use client::{
    Body, BoxFuture, Client, DeleteOptions, Error, Lines, Notice, PatchKind, Propagation, Refused,
    Request, Response, Scope, Transport, TransportError, Watch,
};
pub use counters::{Counters, PendingPods, Reading};
pub use informer::{Cache, Change, Index, Project, Reflector, Until, Update};
pub use key::Key;
pub use kind::Kind;
pub use options::{Loop, Options, Selection, UnknownLoop};
pub use run::{Handle, StartError, run};
