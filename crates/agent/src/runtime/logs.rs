//! Logs of containers, in the files that the runtime writes.
//!
//! - [`line`]: one line of such a file.
//! - [`reader`]: serves `kubectl logs`: tail, since and follow, across rotations.
//! - [`rotate`]: limits the size of files.
//!
//! Ownership of and access to logs are checked elsewhere.

pub mod line;
pub mod reader;
pub mod rotate;
