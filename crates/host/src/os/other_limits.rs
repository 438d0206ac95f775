//! Limits on this process, where none on open files has to be raised. See [`crate::os`] for the twin.

use std::io;

/// Does nothing: Windows limits open files by memory only.
pub fn raise_open_files() -> io::Result<Option<u64>> {
    Ok(None)
}
