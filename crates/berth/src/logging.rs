//! Logs of the process: lines on standard error with a time, a level and fields.

use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::fmt;
use tracing_subscriber::util::SubscriberInitExt as _;

/// Starts logging. Events of pods are sent to the API, not logged.
pub fn begin() {
    let lines = fmt().with_writer(std::io::stderr).with_ansi(false).with_target(false);
    // A second call has no effect.
    let _ = lines.with_max_level(LevelFilter::INFO).finish().try_init();
}
