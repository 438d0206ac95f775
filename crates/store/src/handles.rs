//! Open files that are kept for the next reader: a bounded number for the whole process, however many
//! segments there are.
//!
//! Each file has a cursor of its own, so a file is used by one reader at a time. The files that were
//! used least recently are closed first.

use std::collections::VecDeque;
use std::fs::File;
use std::sync::Mutex;

use crate::sync::lock;

/// Open files at most between reads. More than threads that read at once, far below the 1,024 files
/// that a process may have open by default.
const KEPT: usize = 32;

/// Least recently used first, each with the id of its segment.
static HANDLES: Mutex<VecDeque<(u64, File)>> = Mutex::new(VecDeque::new());

/// Takes an open file of a segment, if one is kept.
pub(crate) fn take(segment: u64) -> Option<File> {
    let mut handles = lock(&HANDLES);
    let at = handles.iter().rposition(|(id, _)| *id == segment)?;
    handles.remove(at).map(|(_, file)| file)
}

/// Keeps an open file for the next reader of a segment.
pub(crate) fn keep(segment: u64, file: File) {
    let mut handles = lock(&HANDLES);
    handles.push_back((segment, file));
    let oldest = if handles.len() > KEPT { handles.pop_front() } else { None };
    drop(handles);
    // Closing may take a while, outside of the lock.
    drop(oldest);
}

/// Closes the files of a segment.
pub(crate) fn close(segment: u64) {
    lock(&HANDLES).retain(|(id, _)| *id != segment);
}
