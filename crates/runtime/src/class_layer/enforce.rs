//! The seam between the layer and the parts of a machine that put classes in force: [`Enforce`].

use std::fmt;
use std::sync::Arc;

use super::catalog::{Assignments, ClassCatalog, Level};
use super::edit::Adjustment;

/// A container or sandbox whose classes are put in force.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subject {
    pub level: Level,
    /// The runtime's id of the container or sandbox.
    pub id: String,
    /// Its first process, in the PID namespace of the machine.
    pub pid: u32,
}

/// The reason why classes are not in force.
#[derive(Debug, thiserror::Error)]
#[error("failed to put class {class:?} of QoS resource {resource:?} in force")]
pub struct EnforceError {
    pub resource: String,
    pub class: String,
    #[source]
    pub source: Box<dyn std::error::Error + Send + Sync>,
}

/// Puts classes in force. Methods may block; the layer calls them outside of async threads.
pub trait Enforce: fmt::Debug + Send + Sync {
    /// Returns the resources that are offered now.
    fn catalog(&self) -> Arc<ClassCatalog>;

    /// Returns the adjustment of a new container that puts those of its classes in force at its creation that the
    /// runtime supports.
    fn adjust(&self, classes: &Assignments) -> Result<Adjustment, EnforceError>;

    /// Puts the classes of a running container or sandbox in force. Classes that are in force already are not touched, so
    /// the call can be repeated.
    fn apply(&self, subject: &Subject, classes: &Assignments) -> Result<(), EnforceError>;

    /// Releases what is held for a container or sandbox that was removed.
    fn release(&self, id: &str);
}
