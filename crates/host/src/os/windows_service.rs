//! Notifications of the service manager on Windows, which has no such protocol.
//!
//! See [`crate::os`] for the twin.

use std::io;

/// Does nothing.
pub fn notify(_state: &str) -> io::Result<()> {
    Ok(())
}
