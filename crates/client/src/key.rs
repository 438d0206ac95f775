//! Objects by name: [`Key`].

use std::fmt;
use std::sync::Arc;

/// `namespace/name`, or `name` for kinds without namespaces. Cheap to clone.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key(Arc<str>);

impl Key {
    #[must_use]
    pub fn new(namespace: &str, name: &str) -> Key {
        match namespace {
            "" => Key(name.into()),
            namespace => Key(format!("{namespace}/{name}").into()),
        }
    }

    /// Returns the namespace, empty for kinds without namespaces.
    #[must_use]
    pub fn namespace(&self) -> &str {
        self.0.split_once('/').map_or("", |(namespace, _)| namespace)
    }

    #[must_use]
    pub fn name(&self) -> &str {
        self.0.split_once('/').map_or(&self.0, |(_, name)| name)
    }

    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
