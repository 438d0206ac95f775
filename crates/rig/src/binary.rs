//! The `berth` binary that a test starts as a process.

use std::path::PathBuf;

/// Names another binary to test, for example one of an older commit.
const VARIABLE: &str = "BERTH_BINARY";

/// Returns the binary named by `BERTH_BINARY`, or the one that cargo built for the test.
#[must_use]
pub fn berth_binary(built: &str) -> PathBuf {
    std::env::var_os(VARIABLE).map_or_else(|| built.into(), PathBuf::from)
}
