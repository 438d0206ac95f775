//! Limits of this process on systems where the limit of open files need not be raised. See
//! [`crate::os`] for the twin.

use std::io;

/// Does nothing: Windows limits open files by memory only.
pub fn raise_open_files() -> io::Result<Option<u64>> {
    Ok(None)
}
