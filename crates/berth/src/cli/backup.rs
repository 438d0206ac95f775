//! `berth backup` and `berth restore`.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use placement::Bytes;
use serde_json::json;

use super::node::{Output, run};
use super::target::{DataDir, TargetArgs, absolute, client_for};
use super::{BadInput, input};
use crate::backup::{self, BackupError, Summary};
use crate::terminal::{Colours, Terminal};

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    berth backup --data-dir /var/lib/berth /backups/monday\n  \
    berth backup /backups/monday -o json\n\n\
    Works online, while a server or node runs on DIR, and offline. The backup is a directory with a\n\
    consistent snapshot of the store and the cluster's keys. It contains secrets: only its owner can\n\
    read it. It does not contain images, logs or volumes of pods.")]
pub(super) struct BackupArgs {
    /// The directory to create; it must not exist
    #[arg(value_name = "TO", value_parser = absolute())]
    to: PathBuf,
    #[command(flatten)]
    target: TargetArgs,
    #[arg(short, long, default_value = "text", value_enum, value_name = "FORMAT")]
    output: Output,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    berth restore /backups/monday --data-dir /var/lib/berth\n  \
    berth up --data-dir /var/lib/berth\n\n\
    No node may run on DIR, and an existing store is never overwritten. All objects are restored\n\
    unchanged. Clients of the lost cluster must relist. A running agent terminates pods that are not\n\
    in the backup.")]
pub(super) struct RestoreArgs {
    /// The backup to restore
    #[arg(value_name = "FROM", value_parser = absolute())]
    from: PathBuf,
    #[command(flatten)]
    data_dir: DataDir,
    #[arg(short, long, default_value = "text", value_enum, value_name = "FORMAT")]
    output: Output,
}

pub(super) fn back_up(args: &BackupArgs) -> anyhow::Result<ExitCode> {
    let BackupArgs { to, target, output } = args;
    let data_dir = &target.directory();
    let connect = || client_for(data_dir);
    let tell = |bytes: u64| input::note(&format!("{} so far", Bytes(bytes).rounded()));
    let made = run(backup::make(data_dir, to, connect, tell)).map_err(as_bad_input)?;
    let while_it_runs = if made.live { ", taken while it runs" } else { "" };
    let text = format!("backed up {} to {}{while_it_runs}", data_dir.display(), to.display());
    print(&text, &made, data_dir, to, *output)
}

pub(super) fn restore(args: &RestoreArgs) -> anyhow::Result<ExitCode> {
    let RestoreArgs { from, data_dir, output } = args;
    let data_dir = &data_dir.path();
    let restored = backup::restore(from, data_dir).map_err(as_bad_input)?;
    let text = format!("restored {} to {}", from.display(), data_dir.display());
    print(&text, &restored, from, data_dir, *output)
}

/// Turns an error that the user can correct into invalid input.
fn as_bad_input(error: anyhow::Error) -> anyhow::Error {
    match error.downcast::<BackupError>() {
        Ok(unfit) => BadInput::new(unfit.to_string()).into(),
        Err(error) => error,
    }
}

fn print(
    text: &str,
    Summary { contents, bytes, live }: &Summary,
    from: &std::path::Path,
    to: &std::path::Path,
    output: Output,
) -> anyhow::Result<ExitCode> {
    let view = json!({
        "from": from, "to": to, "live": live,
        "revision": contents.revision.get(), "keys": contents.keys, "bytes": bytes,
    });
    let text = match output {
        Output::Json => serde_json::to_string_pretty(&view)? + "\n",
        Output::Yaml => objects::yaml::write::blocks(&view.to_string()),
        Output::Text => format!(
            "{text}\n  {} objects as of revision {}, {}\n",
            contents.keys,
            contents.revision,
            Bytes(*bytes).rounded()
        ),
    };
    Terminal::of_standard_output(Colours::Never).print(&text)?;
    Ok(ExitCode::SUCCESS)
}
