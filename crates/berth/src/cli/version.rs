//! `berth version`: the version of this program.

use std::process::ExitCode;

use agent::node::{architecture, os_name};
use clap::Args;
use objects::pod::OsName;
use serde_json::json;

use super::node::Output;
use crate::terminal::{Colours, Terminal};

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  berth version\n  berth version -o json")]
pub(super) struct VersionArgs {
    #[arg(short, long, default_value = "text", value_enum, value_name = "FORMAT")]
    output: Output,
}

pub(super) fn run(args: &VersionArgs) -> anyhow::Result<ExitCode> {
    let os = if std::env::consts::OS == "windows" { OsName::Windows } else { OsName::Linux };
    let platform = format!("{}/{}", os_name(os), architecture());
    let (berth, kubernetes) = (env!("CARGO_PKG_VERSION"), apiserver::git_version());
    let view = json!({
        "version": berth, "kubernetesVersion": kubernetes, "platform": platform,
    });
    let text = match args.output {
        Output::Json => serde_json::to_string_pretty(&view)? + "\n",
        Output::Yaml => objects::yaml::write::blocks(&view.to_string()),
        Output::Text => format!("berth {berth} ({platform}), Kubernetes {kubernetes}\n"),
    };
    Terminal::of_standard_output(Colours::Never).print(&text)?;
    Ok(ExitCode::SUCCESS)
}
