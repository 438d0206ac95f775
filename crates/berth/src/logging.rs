//! What the process has to say while it runs: lines on standard error, with a time, a level and fields.

use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::fmt;
use tracing_subscriber::util::SubscriberInitExt as _;

/// Begins to write. Only what people should know: what happens to pods is told in events.
pub fn begin() {
    let lines = fmt().with_writer(std::io::stderr).with_ansi(false).with_target(false);
    // A second call changes nothing.
    let _ = lines.with_max_level(LevelFilter::INFO).finish().try_init();
}
