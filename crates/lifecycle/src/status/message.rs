//! Termination messages, from the file of a container or from its log.
//!
//! The texts are arguments; nothing is read here.

/// Maximum size of the message file.
pub const FILE_BYTES: usize = 4096;
/// Maximum size of a log that replaces the file.
pub const LOG_BYTES: usize = 2048;
pub const LOG_LINES: usize = 80;
/// Maximum size of the messages of all containers of a pod.
const POD_BYTES: usize = 12 * 1024;

/// The texts of an exited container.
#[derive(Debug, Clone, Copy, Default)]
pub struct TerminationOutput<'a> {
    /// The file at `terminationMessagePath`, if it exists.
    pub file: Option<&'a str>,
    pub log: &'a str,
}

/// Returns true if the log is needed for the message.
#[must_use]
pub fn needs_log(policy: &str, exit_code: i32, file: Option<&str>) -> bool {
    policy == "FallbackToLogsOnError" && exit_code != 0 && file.is_none_or(str::is_empty)
}

/// Returns the message of an exited container: the runtime's, and the container's own.
#[must_use]
pub fn compose(runtime: &str, policy: &str, exit_code: i32, left: TerminationOutput<'_>) -> String {
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

/// Returns the last lines of a log, up to the maximum size.
fn log_end(log: &str) -> &str {
    let body = log.strip_suffix('\n').unwrap_or(log);
    let from = match LOG_LINES {
        0 => body.len(),
        lines => body.rmatch_indices('\n').nth(lines - 1).map_or(0, |(at, _)| at + 1),
    };
    end(&log[from..], LOG_BYTES)
}

/// Returns the last bytes of a text, in whole characters.
fn end(text: &str, most: usize) -> &str {
    let mut from = text.len().saturating_sub(most);
    while !text.is_char_boundary(from) {
        from += 1;
    }
    &text[from..]
}

/// Shortens a message to the share of one of `containers`.
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
