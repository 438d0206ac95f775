//! Logs of the process: lines on standard error with a time, a level and fields.
//!
//! Main type: [`LogOptions`], the flags of every command that runs for a long time. A flag overrides
//! `RUST_LOG`, which overrides the level `info`. Data goes to standard output, logs never do.
//! [`print_notice`] prints what a command reports outside of its log, in the format of the log.

use std::env;
use std::sync::OnceLock;

use clap::{ArgAction, Args, ValueEnum};
use objects::timestamp::Timestamp;
use serde_json::json;
use thiserror::Error;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt;
use tracing_subscriber::util::SubscriberInitExt as _;

/// The environment variable with a filter, as other Rust programs read it.
const VARIABLE: &str = "RUST_LOG";

const LEVELS: &str = "error, warn, info, debug, trace or off";

/// Berth's own crates. `-v` applies to them alone: HTTP and TLS libraries log every frame.
const OWN: &[&str] = &[
    "agent",
    "apiserver",
    "berth",
    "client",
    "controllers",
    "cri",
    "host",
    "https",
    "objects",
    "placement",
    "scheduling",
    "store",
];

/// The logging flags of a command.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Logging")]
pub struct LogOptions {
    /// Log more: -v for debug, -vv for trace, -vvv also for libraries
    #[arg(short, long, action = ArgAction::Count, conflicts_with = "log_level")]
    verbose: u8,
    /// Log level: error, warn, info, debug, trace or off; or directives such as
    /// info,agent=debug,client::remote=trace [default: $RUST_LOG, or info]
    #[arg(long, value_name = "LEVEL", value_parser = checked)]
    log_level: Option<String>,
    /// Log format
    #[arg(long, value_enum, default_value_t, value_name = "FORMAT")]
    log_format: LogFormat,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
enum LogFormat {
    /// A line of text per message
    #[default]
    Text,
    /// A JSON object per line
    Json,
}

/// The format of the logs, once [`begin`] was called.
static FORMAT: OnceLock<LogFormat> = OnceLock::new();

/// A message of a command on standard error that no log level hides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Notice {
    Note,
    Warning,
    Error,
}

/// Prints a message: an object like those of the log if logs are JSON, otherwise a line of text.
pub(crate) fn print_notice(notice: Notice, text: &str) {
    if FORMAT.get() == Some(&LogFormat::Json) {
        let now = Timestamp::since_epoch(https::unix_time());
        anstream::eprintln!("{}", json_notice(notice, text, now));
        return;
    }
    let word = match notice {
        Notice::Note => "\x1b[2mnote:\x1b[0m",
        Notice::Warning => "\x1b[33mwarning:\x1b[0m",
        Notice::Error => "\x1b[1;31merror:\x1b[0m",
    };
    anstream::eprintln!("{word} {text}");
}

fn json_notice(notice: Notice, text: &str, now: Timestamp) -> String {
    let level = match notice {
        Notice::Note => "INFO",
        Notice::Warning => "WARN",
        Notice::Error => "ERROR",
    };
    let timestamp = now.to_micros_text();
    json!({"timestamp": timestamp, "level": level, "message": text, "target": "berth"}).to_string()
}

/// An invalid filter in the environment.
#[derive(Debug, Error)]
#[error("invalid value {value:?} for the environment variable {VARIABLE}: {why}")]
pub struct LogError {
    value: String,
    why: String,
}

impl LogOptions {
    /// Returns the filter in force: that of a flag, of `variable`, or `info`.
    fn filter(&self, variable: Option<String>) -> Result<String, LogError> {
        let own = |level: &str| {
            let directives = OWN.iter().map(|name| format!(",{name}={level}"));
            format!("info{}", directives.collect::<String>())
        };
        match (self.verbose, &self.log_level, variable) {
            (0, Some(filter), _) => Ok(filter.clone()),
            (1, ..) => Ok(own("debug")),
            (2, ..) => Ok(own("trace")),
            (3.., ..) => Ok("trace".to_owned()),
            (0, None, Some(value)) if !value.trim().is_empty() => {
                checked(&value).map_err(|why| LogError { value, why })
            }
            (0, None, _) => Ok("info".to_owned()),
        }
    }
}

/// Checks a filter. The parser of the library takes any word for a module; a misspelt level would then
/// switch logging off without an error.
fn checked(text: &str) -> Result<String, String> {
    let is_level = |word: &str| {
        ["error", "warn", "info", "debug", "trace", "off"]
            .iter()
            .any(|level| word.eq_ignore_ascii_case(level))
    };
    for directive in text.split(',').map(str::trim) {
        if !is_level(directive) && !directive.contains(['=', '[']) {
            return Err(format!("{directive:?} is neither a level ({LEVELS}) nor TARGET=LEVEL"));
        }
        if let Some((_, level)) = directive.rsplit_once('=')
            && !directive.contains('[')
            && !is_level(level.trim())
        {
            return Err(format!("{level:?} in {directive:?} is not a level ({LEVELS})"));
        }
    }
    EnvFilter::builder().parse(text).map_err(|error| error.to_string())?;
    Ok(text.to_owned())
}

/// Starts logging. Events of pods are sent to the API, not logged.
pub fn begin(options: &LogOptions) -> Result<(), LogError> {
    let _ = FORMAT.set(options.log_format);
    let filter = options.filter(env::var(VARIABLE).ok())?;
    // Checked above.
    let filter = EnvFilter::builder().parse_lossy(filter);
    let lines = fmt().with_writer(std::io::stderr).with_ansi(false).with_env_filter(filter);
    // A second call has no effect.
    let _ = match options.log_format {
        LogFormat::Text => lines.with_target(false).finish().try_init(),
        LogFormat::Json => lines.json().flatten_event(true).finish().try_init(),
    };
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Command {
        #[command(flatten)]
        log: LogOptions,
    }

    #[test]
    fn notices_have_the_fields_of_the_log() {
        for (notice, level) in
            [(Notice::Note, "INFO"), (Notice::Warning, "WARN"), (Notice::Error, "ERROR")]
        {
            let line = json_notice(notice, "a\n\"b\"", Timestamp::new(1_700_000_000, 5_000));
            let object: serde_json::Value = serde_json::from_str(&line).unwrap();
            let expected = json!({
                "timestamp": "2023-11-14T22:13:20.000005Z", "level": level,
                "message": "a\n\"b\"", "target": "berth",
            });
            assert_eq!(object, expected);
            assert!(!line.contains('\n'), "{line}");
        }
    }

    fn options(args: &[&str]) -> Result<LogOptions, String> {
        let args = ["berth"].iter().chain(args);
        Command::try_parse_from(args).map(|command| command.log).map_err(|error| error.to_string())
    }

    #[test]
    fn flags_override_the_variable_which_overrides_the_default() {
        let check = |args: &[&str], variable: Option<&str>, expected: &str| {
            let filter = options(args).unwrap().filter(variable.map(str::to_owned)).unwrap();
            assert!(filter.starts_with(expected), "{args:?} {variable:?}: {filter}");
        };
        check(&[], None, "info");
        check(&[], Some(""), "info");
        check(&[], Some("warn,agent=debug"), "warn,agent=debug");
        check(&["--log-level", "error"], Some("trace"), "error");
        check(&["--log-level", "info,cri=TRACE"], None, "info,cri=TRACE");
        check(&["-v"], Some("error"), "info,agent=debug");
        check(&["--verbose", "-v"], None, "info,agent=trace");
        check(&["-vvv"], None, "trace");
    }

    #[test]
    fn invalid_filters_are_rejected_with_flag_and_value() {
        let check = |value: &str, why: &str| {
            let error = options(&["--log-level", value]).unwrap_err();
            assert!(error.contains("--log-level") && error.contains(value), "{error}");
            assert!(error.contains(why), "{error}");
            let error = options(&[]).unwrap().filter(Some(value.to_owned())).unwrap_err();
            let error = error.to_string();
            assert!(error.contains("RUST_LOG") && error.contains(why), "{error}");
        };
        check("loud", "neither a level");
        check("info,agent", "neither a level");
        check("agent=loud", "not a level");
        let error = options(&["-v", "--log-level", "info"]).unwrap_err();
        assert!(error.contains("cannot be used with"), "{error}");
        let error = options(&["--log-format", "xml"]).unwrap_err();
        assert!(error.contains("--log-format") && error.contains("xml"), "{error}");
    }
}
