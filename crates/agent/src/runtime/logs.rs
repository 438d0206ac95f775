//! Logs of containers, as the runtime writes them to files.
//!
//! - [`line`]: one line of such a file.
//! - [`reader`]: what `kubectl logs` is told of it: the last lines, since when, and what is still to
//!   come, over rotations.
//! - [`rotate`]: keeps files from growing without end.
//!
//! Whose log a file is, and who may read it, is known elsewhere.

pub mod line;
pub mod reader;
pub mod rotate;
