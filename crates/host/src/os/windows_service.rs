//! Speaking to the service manager, on Windows: nobody asks there in this way.
//!
//! See [`crate::os`] for the twin.

use std::io;

/// Does nothing.
pub fn notify(_state: &str) -> io::Result<()> {
    Ok(())
}
