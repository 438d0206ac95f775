//! The values read from a store: [`Entry`], a key with its value, and [`Event`], a change of one.
//!
//! Keys and values are shared, so a clone only increments reference counts.

use std::sync::Arc;

use bytes::Bytes;

use crate::revision::Revision;

/// A key and its value as of some revision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub key: Arc<str>,
    pub value: Bytes,
    /// The revision at which the key was created, after it had been absent.
    pub created: Revision,
    /// The revision at which this value was written.
    pub modified: Revision,
}

/// The effect of one transaction on one key. The events of a transaction are in key order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    pub revision: Revision,
    pub key: Arc<str>,
    pub change: Change,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    Put {
        value: Bytes,
        /// The event's own revision if the key was absent before.
        created: Revision,
        previous: Option<Entry>,
    },
    Deleted {
        previous: Entry,
    },
}

impl Event {
    /// Returns the key after this event; `None` if it was deleted.
    pub fn entry(&self) -> Option<Entry> {
        match &self.change {
            Change::Put { value, created, .. } => Some(Entry {
                key: self.key.clone(),
                value: value.clone(),
                created: *created,
                modified: self.revision,
            }),
            Change::Deleted { .. } => None,
        }
    }

    /// Returns the key before this event; `None` if it was absent.
    pub fn previous(&self) -> Option<&Entry> {
        match &self.change {
            Change::Put { previous, .. } => previous.as_ref(),
            Change::Deleted { previous } => Some(previous),
        }
    }

    /// Returns the approximate memory that the event takes.
    pub(crate) fn weight(&self) -> usize {
        let value = match &self.change {
            Change::Put { value, .. } => value.len(),
            Change::Deleted { .. } => 0,
        };
        let previous = self.previous().map_or(0, |previous| previous.value.len());
        size_of::<Self>() + self.key.len() + value + previous
    }
}
