//! A cache of open files for reading: a bounded number for the whole process, independent of the
//! number of segments.
//!
//! Each file has its own cursor, so a file is used by one reader at a time. The least recently used
//! files are closed first.

use std::collections::VecDeque;
use std::fs::File;

use parking_lot::Mutex;

/// The maximum number of cached files. More than there are concurrent readers, and far below the
/// 1,024 files that a process may have open by default.
const KEPT: usize = 32;

/// Least recently used first, each with the id of its segment.
static HANDLES: Mutex<VecDeque<(u64, File)>> = Mutex::new(VecDeque::new());

/// Takes an open file of a segment from the cache.
pub(crate) fn take(segment: u64) -> Option<File> {
    let mut handles = HANDLES.lock();
    let at = handles.iter().rposition(|(id, _)| *id == segment)?;
    handles.remove(at).map(|(_, file)| file)
}

/// Returns an open file of a segment to the cache.
pub(crate) fn keep(segment: u64, file: File) {
    let mut handles = HANDLES.lock();
    handles.push_back((segment, file));
    let oldest = if handles.len() > KEPT { handles.pop_front() } else { None };
    drop(handles);
    // Closing may take a while, so it happens outside of the lock.
    drop(oldest);
}

/// Closes the files of a segment.
pub(crate) fn close(segment: u64) {
    HANDLES.lock().retain(|(id, _)| *id != segment);
}
