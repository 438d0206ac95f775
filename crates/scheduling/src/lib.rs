//! Which node: filter, score, preempt over a cluster that is kept up to date.
//!
//! Pure: values in, values out; no clock, no files, no logging, no threads. [`Scheduler`] holds a
//! [`Cluster`] and answers, for one pod at a time, where it goes, or why nowhere and whom it would have to
//! push out; [`Queue`] says which pod is next. Decisions are upstream's, with two additions of ours: QoS
//! classes have a capacity that is counted, and a node whose agent would refuse a pod for want of CPUs or
//! memory on one NUMA node is not offered it. Why it is built so is in `docs/adr/0008-scheduler.md`.

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
pub use object::{NodeObject, PodObject};
/// What a node tells of its machine; see [`MachineView::parse`].
pub use placement::report::{ANNOTATIONS, ReportError};
pub use profile::{ProfileError, Search, Settings};
pub use queue::Queue;
pub use scheduler::{
    Attempt, AttemptError, Candidate, Choice, Explanation, Failure, GATED_MESSAGE, NodeScores,
    Nomination, Outcome, Preemption, Scheduler, Tie, event_text,
};
pub use time::Milliseconds;
pub use verdict::{Code, Plugin, Verdict};
