//! Termination messages: what a container leaves to be read, from its file or from its log.
//!
//! The texts are given as values; nothing is read here.

/// As much as is kept of the file a container writes its message to.
pub const FILE_BYTES: usize = 4096;
/// As much as is kept of a log that stands in for the file.
pub const LOG_BYTES: usize = 2048;
pub const LOG_LINES: usize = 80;
/// As much as all containers of a pod may say together.
const POD_BYTES: usize = 12 * 1024;

/// What there is to read of a container that ended.
#[derive(Debug, Clone, Copy, Default)]
pub struct Left<'a> {
    /// The file at `terminationMessagePath`; `None` if there is none.
    pub file: Option<&'a str>,
    pub log: &'a str,
}

/// Whether the log has to be read for a message, and not only the file.
#[must_use]
pub fn needs_log(policy: &str, exit_code: i32, file: Option<&str>) -> bool {
    policy == "FallbackToLogsOnError" && exit_code != 0 && file.is_none_or(str::is_empty)
}

/// The message of a container that ended: the runtime's own, and what the container left.
#[must_use]
pub fn compose(runtime: &str, policy: &str, exit_code: i32, left: Left<'_>) -> String {
    let own = if needs_log(policy, exit_code, left.file) {
        log_end(left.log)
    } else {
        end(left.file.unwrap_or_default(), FILE_BYTES)
    };
    match (runtime.is_empty(), own.is_empty()) {
        (false, false) => format!("{runtime}: {own}"),
        (false, true) => runtime.to_owned(),
        (true, _) => own.to_owned(),
    }
}

/// The last lines of a log, and of these the last bytes.
fn log_end(log: &str) -> &str {
    let body = log.strip_suffix('\n').unwrap_or(log);
    let from = match LOG_LINES {
        0 => body.len(),
        lines => body.rmatch_indices('\n').nth(lines - 1).map_or(0, |(at, _)| at + 1),
    };
    end(&log[from..], LOG_BYTES)
}

/// The last bytes of a text, whole characters only.
fn end(text: &str, most: usize) -> &str {
    let mut from = text.len().saturating_sub(most);
    while !text.is_char_boundary(from) {
        from += 1;
    }
    &text[from..]
}

/// Shortens a message to what one of `containers` may say.
pub(super) fn fit(message: &mut String, containers: usize) {
    let most = POD_BYTES / containers.max(1);
    if message.len() > most {
        let mut to = most;
        while !message.is_char_boundary(to) {
            to -= 1;
        }
        message.truncate(to);
    }
}
