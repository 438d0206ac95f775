//! Selects a node for a pod: filter, score and preempt over an incrementally updated cluster.
//!
//! Pure: values in, values out; no clock, no files, no logging, no threads. [`Scheduler`] holds a
//! [`Cluster`] and decides, for one pod at a time, its node, or why none fits and which pods it
//! would have to preempt. [`Queue`] orders the pods. Decisions match upstream's, with two
//! additions: QoS classes have a capacity that is counted, and a pod is not sent to a node whose
//! agent would refuse it for lack of CPUs or memory on one NUMA node. The design is in
//! `docs/adr/0008-scheduler.md`.

mod cache;
mod classes;
mod cluster;
mod filters;
mod inter_pod_affinity;
mod interner;
mod labels;
mod machine;
mod node;
mod object;
mod preempt;
mod profile;
pub mod queue;
mod resources;
pub mod scenario;
mod scheduler;
mod score;
mod shape;
mod shape_index;
mod spread;
mod taints;
mod time;
mod topology;
mod verdict;
mod volumes;
mod workloads;

pub use cluster::{Cluster, ObjectError};
pub use machine::MachineView;
/// The machine report of a node; see [`MachineView::parse`].
pub use placement::report::{ANNOTATIONS, ReportError};
pub use profile::{ProfileError, Search, Settings};
pub use queue::Queue;
pub use scheduler::{
    Attempt, AttemptError, Candidate, Choice, Explanation, Failure, GATED_MESSAGE, NodeScores,
    Nomination, Outcome, Preemption, Scheduler, Tie, event_text,
};
pub use time::Milliseconds;
pub use verdict::{Code, Plugin, Verdict};
