//! `berth topology`: shows a machine as text, picture or file, and captures its sysfs.
//!
//! Main type: [`TopologyArgs`]. [`crate::machine_source`] reads the machine; `planner` draws it.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use clap::{Args, Subcommand, ValueEnum};
use host::tree::Directory;
use placement::machine::file::{render_json, render_yaml};
use planner::picture::{Picture, render_svg, render_text};

use super::BadInput;
use crate::machine_source::{Source, load_machine, sysfs};
use crate::terminal::{Colours, Terminal};

const EXAMPLES: &str = "\
Examples:
  berth topology                                     this machine, drawn
  berth topology --from examples/machines/gb200.yaml
  berth topology --from \"2 sockets x 2 numa x 8 cores x 2 threads mem=64Gi\"
  berth topology --from /mnt/other/sys               an unpacked or mounted sysfs
  lstopo --of xml | berth topology --from - -o svg > machine.svg
  berth topology -o yaml > machine.yaml              to edit, and to plan for with --machine

MACHINE is a file (Berth's own YAML or JSON, hwloc's XML, lscpu's table or JSON, a capture; the
format is detected), a sysfs directory, - for standard input, or a description in words.
Each mark of the drawing is a CPU, each cell a core; on large machines identical neighbours are
drawn once. Anomalies of the machine are reported on standard error.";

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, after_help = EXAMPLES)]
pub(super) struct TopologyArgs {
    #[command(subcommand)]
    command: Option<TopologyCommand>,
    /// Another machine: a file, a sysfs directory, - for standard input, or a description
    #[arg(long, value_name = "MACHINE")]
    from: Option<String>,
    /// Output format
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
    /// Draw with plain ASCII characters
    #[arg(long)]
    ascii: bool,
    /// When to use colours
    #[arg(long, value_enum, default_value_t, value_name = "WHEN")]
    color: Colours,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Output {
    /// Boxes in the terminal
    #[default]
    Text,
    /// Berth's machine file
    Json,
    /// The machine file as YAML
    Yaml,
    /// A picture
    Svg,
}

#[derive(Debug, Subcommand)]
enum TopologyCommand {
    /// Record a Linux machine's sysfs in one file, for --from on another machine
    Capture(CaptureArgs),
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  berth topology capture -o node-7.json
  berth topology --from node-7.json

A capture contains CPU numbers, sibling lists, caches, NUMA nodes, memory sizes and distances, but no
host name, serial number or address.")]
struct CaptureArgs {
    /// The sysfs to record
    #[arg(long, value_name = "DIR", default_value = "/sys")]
    sysfs: PathBuf,
    /// The file to write [default: standard output]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

pub(super) fn run(args: &TopologyArgs) -> anyhow::Result<ExitCode> {
    if let Some(TopologyCommand::Capture(args)) = &args.command {
        capture(args)?;
        return Ok(ExitCode::SUCCESS);
    }
    let machine =
        load_machine(args.from.as_deref()).map_err(|error| BadInput::new(format!("{error:#}")))?;
    let terminal = Terminal::of_standard_output(args.color);
    let mut picture = Picture::new(&machine);
    if picture.title.is_empty() {
        picture.title = "this machine".to_owned();
    }
    let text = match args.output {
        Output::Text => render_text(&picture, terminal.text(args.ascii)),
        Output::Json => render_json(&machine),
        Output::Yaml => render_yaml(&machine),
        Output::Svg => render_svg(&picture),
    };
    terminal.print(&text)?;
    Ok(ExitCode::SUCCESS)
}

fn capture(args: &CaptureArgs) -> anyhow::Result<()> {
    let name = args.sysfs.display();
    let Some(Source::Sysfs(sys, proc)) = sysfs(&args.sysfs) else {
        bail!("{name} is not the sysfs of a Linux machine: it has no devices/system/cpu");
    };
    let text = host::capture::capture(&Directory { sys, proc }).render();
    match args.output.as_deref() {
        None => Terminal::of_standard_output(Colours::Never).print(&text)?,
        Some(path) if path == Path::new("-") => {
            Terminal::of_standard_output(Colours::Never).print(&text)?;
        }
        Some(path) => std::fs::write(path, text)
            .with_context(|| format!("cannot write {}", path.display()))?,
    }
    Ok(())
}
