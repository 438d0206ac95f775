//! `berth store check` and `berth store repair`: report damage of a store, and rebuild it from the
//! readable part.

use std::fmt::Write as _;
use std::path::Path;
use std::process::ExitCode;

use clap::{Args, Subcommand};
use serde_json::{Value, json};
use store::{Damage, Examination, LostKey, Region, RemainingValue};

use super::BadInput;
use super::node::Output;
use super::target::DataDir;
use crate::repair::{self, Repair, RepairError};
use crate::terminal::{Colours, Terminal};

/// Exit code: the store has lost data.
const LOST: u8 = 3;

#[derive(Debug, Args)]
pub(super) struct StoreArgs {
    #[command(subcommand)]
    command: StoreCommand,
}

#[derive(Debug, Subcommand)]
enum StoreCommand {
    /// Read the whole store, past damage, and report lost data
    #[command(after_help = "Examples:\n  \
        berth store check --data-dir /var/lib/berth\n  \
        berth store check -o json\n\n\
        No node may run on DIR. The store is not changed.\n\n\
        Exit codes: 0 intact, 1 unreadable, 2 invalid usage or input, 3 data is lost.")]
    Check(Target),
    /// Replace a damaged store by one with everything that can be read
    #[command(after_help = "Examples:\n  \
        berth store repair --data-dir /var/lib/berth\n\n\
        No node may run on DIR. The damaged store is kept as DIR/store.damaged-1. Clients must relist, as\n\
        after `berth restore`. Restoring a recent backup may lose less.\n\n\
        Exit codes: 0 intact, or an interrupted repair was finished, 1 repair failed, 2 invalid usage or\n\
        input, 3 repaired with loss of data.")]
    Repair(Target),
}

#[derive(Debug, Args)]
struct Target {
    #[command(flatten)]
    place: DataDir,
    #[arg(short, long, default_value = "text", value_enum, value_name = "FORMAT")]
    output: Output,
}

pub(super) fn run(args: &StoreArgs) -> anyhow::Result<ExitCode> {
    match &args.command {
        StoreCommand::Check(target) => check(target),
        StoreCommand::Repair(target) => repair(target),
    }
}

/// Turns an error that the user can correct into invalid input.
fn as_bad_input(error: anyhow::Error) -> anyhow::Error {
    match error.downcast::<RepairError>() {
        Ok(unfit) => BadInput::new(unfit.to_string()).into(),
        Err(error) => error,
    }
}

fn check(Target { place, output }: &Target) -> anyhow::Result<ExitCode> {
    let data_dir = &place.path();
    let found = repair::examine(data_dir).map_err(as_bad_input)?;
    let mut text = render(data_dir, &found);
    if !found.is_intact() {
        let dir = data_dir.display();
        let _ = writeln!(
            text,
            "To keep what can be read: berth store repair --data-dir {dir}\n\
             To use a backup: mv {dir}/store {dir}/store.old && berth restore BACKUP --data-dir {dir}"
        );
    }
    print(&text, &view(&found), *output)?;
    Ok(code(&found))
}

fn repair(Target { place, output }: &Target) -> anyhow::Result<ExitCode> {
    let data_dir = &place.path();
    let (text, view, code) = match repair::repair(data_dir).map_err(as_bad_input)? {
        Repair::NotNeeded(found) => {
            let text = render(data_dir, &found) + "There is nothing to repair.\n";
            (text, with(view(&found), "repaired", false), ExitCode::SUCCESS)
        }
        Repair::Finished => {
            let text = "Finished a repair that was interrupted.\n".to_owned();
            (text, json!({"repaired": true}), ExitCode::SUCCESS)
        }
        Repair::Done { found, kept } => {
            let text = render(data_dir, &found)
                + &format!("Repaired. The damaged store is kept in {}.\n", kept.display());
            let view = with(with(view(&found), "repaired", true), "kept", json!(kept));
            (text, view, code(&found))
        }
    };
    print(&text, &view, *output)?;
    Ok(code)
}

fn code(found: &Examination) -> ExitCode {
    if found.is_intact() { ExitCode::SUCCESS } else { ExitCode::from(LOST) }
}

fn with(mut view: Value, name: &str, value: impl Into<Value>) -> Value {
    view[name] = value.into();
    view
}

fn name(damage: &Damage) -> String {
    damage.path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

fn view(found: &Examination) -> Value {
    let damages = found.damages.iter().map(|damage| match damage.region {
        Region::Missing => json!({"file": name(damage), "missing": true}),
        Region::Bytes { offset, length } => json!({
            "file": name(damage), "offset": offset, "bytes": length, "recordsRead": damage.saved,
        }),
    });
    let keys = found.lost_keys.iter().map(|LostKey { key, revision, remaining }| {
        let (word, now) = match remaining {
            RemainingValue::None => ("Gone", None),
            RemainingValue::Older(now) => ("OlderValue", Some(now.get())),
            RemainingValue::Newer(now) => ("HistoryOnly", Some(now.get())),
        };
        json!({"key": key, "revision": revision.get(), "result": word, "revisionNow": now})
    });
    let revisions = found.lost_revisions.iter();
    let revisions =
        revisions.map(|(first, last)| json!({"first": first.get(), "last": last.get()}));
    let dropped = found.dropped.as_ref().map(|dropped| {
        json!({
            "file": dropped.path.file_name().unwrap_or_default().to_string_lossy(),
            "offset": dropped.offset, "bytes": dropped.bytes, "records": dropped.records,
        })
    });
    json!({
        "intact": found.is_intact(),
        "files": found.usage.files,
        "bytes": found.usage.bytes,
        "revision": found.revision.get(),
        "keys": found.keys,
        "damages": damages.collect::<Vec<_>>(),
        "lost": {
            "bytes": found.lost_bytes(),
            "revisions": revisions.collect::<Vec<_>>(),
            "keys": keys.collect::<Vec<_>>(),
            "unnamedKeys": found.unnamed_keys,
        },
        "unfinishedWrite": dropped,
    })
}

fn render(data_dir: &Path, found: &Examination) -> String {
    let state = if found.is_intact() { "intact" } else { "damaged" };
    let mut text = format!(
        "{}: {state}\n  {} keys can be read, up to revision {}; {} files, {} bytes\n",
        data_dir.join("store").display(),
        found.keys,
        found.revision,
        found.usage.files,
        found.usage.bytes
    );
    if let Some(dropped) = &found.dropped {
        let _ = writeln!(
            text,
            "  the last write was cut short and is dropped at the next start: {} bytes, {} records; \
             it was not acknowledged",
            dropped.bytes, dropped.records
        );
    }
    if found.is_intact() {
        return text;
    }
    let _ = writeln!(text, "Damaged: {} bytes", found.lost_bytes());
    for damage in &found.damages {
        let _ = match damage.region {
            Region::Missing => writeln!(text, "  {}: the file is missing", name(damage)),
            Region::Bytes { offset, length } => writeln!(
                text,
                "  {}: {length} bytes from byte {offset} on; {} records in them can be read",
                name(damage),
                damage.saved
            ),
        };
    }
    let _ = writeln!(text, "Lost:");
    for (first, last) in &found.lost_revisions {
        let _ = match first == last {
            true => writeln!(text, "  revision {first}"),
            false => writeln!(text, "  revisions {first} to {last}"),
        };
    }
    for LostKey { key, revision, remaining } in &found.lost_keys {
        let _ = match remaining {
            RemainingValue::None => writeln!(text, "  {key} of revision {revision}: it is gone"),
            RemainingValue::Older(now) => writeln!(
                text,
                "  {key} of revision {revision}: its value of revision {now} comes back"
            ),
            RemainingValue::Newer(now) => writeln!(
                text,
                "  {key} of revision {revision}: only history, it has a value of revision {now}"
            ),
        };
    }
    if found.unnamed_keys > 0 {
        let _ = writeln!(text, "  {} more keys that cannot be named", found.unnamed_keys);
    }
    let nothing = found.lost_revisions.is_empty() && found.lost_keys.is_empty();
    if nothing && found.unnamed_keys == 0 {
        let _ = writeln!(text, "  nothing that can be named");
    }
    text
}

fn print(text: &str, view: &Value, output: Output) -> anyhow::Result<()> {
    let text = match output {
        Output::Json => serde_json::to_string_pretty(view)? + "\n",
        Output::Yaml => objects::yaml::write::blocks(&view.to_string()),
        Output::Text => text.to_owned(),
    };
    Ok(Terminal::of_standard_output(Colours::Never).print(&text)?)
}
