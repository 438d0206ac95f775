//! [`Shared`]: the state shared by callers, watchers and the store's threads.
//!
//! Locks are taken in the order of the fields. No lock is held while a file is written or synced.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64};

use crate::feed::Feed;
use crate::index::Index;
use crate::queue::Queue;
use crate::revision::Revision;
use crate::space::Space;
use parking_lot::{Mutex, RwLock};

pub(crate) struct Shared {
    pub(crate) queue: Queue,
    /// The store is closing: optional work is skipped.
    pub(crate) closing: AtomicBool,
    /// The revisions in use by snapshots, with the number of snapshots.
    pub(crate) pins: Mutex<BTreeMap<Revision, usize>>,
    pub(crate) index: RwLock<Index>,
    pub(crate) feed: Mutex<Feed>,
    pub(crate) space: Space,
    /// Bytes appended to the log since the store was opened.
    pub(crate) appended: AtomicU64,
}
