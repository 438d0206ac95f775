//! [`Shared`]: what callers, watchers and the store's threads have in common.
//!
//! Locks are taken in the order of the fields, and none is held while a file is written or synced.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Mutex, RwLock};

use crate::feed::Feed;
use crate::index::Index;
use crate::queue::Queue;
use crate::revision::Revision;
use crate::space::Space;

pub(crate) struct Shared {
    pub(crate) queue: Queue,
    /// Nobody needs the store much longer: what can be left, is.
    pub(crate) closing: AtomicBool,
    /// Revisions that snapshots look at, with the number of these.
    pub(crate) pins: Mutex<BTreeMap<Revision, usize>>,
    pub(crate) index: RwLock<Index>,
    pub(crate) feed: Mutex<Feed>,
    pub(crate) space: Space,
    /// Bytes that were appended to the log since the store was opened.
    pub(crate) appended: AtomicU64,
}
