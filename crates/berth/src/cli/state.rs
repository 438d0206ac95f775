//! `berth state`: the kubelet's state files — shown, checked against a machine and a configuration,
//! and migrated to them. What fits is `placement`'s to say, how files are written `host`'s.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;
use placement::Node;
use placement::configured::Configured;
use placement::state_file::{CpuState, Gates, Manager, MemoryState, RestoreError, StateFileError};
use placement::takeover::{migrate, states_of, take_over};
use serde_json::json;

use super::{BadInput, input};
use crate::terminal::{Colours, Terminal};

#[derive(Debug, clap::Args)]
pub(super) struct StateArgs {
    #[command(subcommand)]
    command: StateCommand,
}

#[derive(Debug, clap::Subcommand)]
enum StateCommand {
    /// Show what the state files of a directory say
    #[command(after_help = "Examples:\n  berth state show /var/lib/kubelet\n  \
        berth state show /var/lib/kubelet -o json")]
    Show {
        /// Directory with cpu_manager_state and memory_manager_state
        dir: PathBuf,
        #[arg(short, long, default_value = "text", value_enum, value_name = "FORMAT")]
        output: Output,
    },
    /// Say whether the state files fit a configuration and a machine, and if not, why
    #[command(after_help = "Examples:\n  \
        berth state check /var/lib/kubelet --config /var/lib/kubelet/config.yaml\n\n\
        Exit codes: 0 they fit, 2 wrong input, 3 they do not fit.")]
    Check(Where),
    /// Keep of the state files what still fits, name the rest, and write them anew
    #[command(after_help = "Examples:\n  \
        berth state migrate /var/lib/kubelet --config kubelet.yaml --dry-run\n  \
        berth state migrate /var/lib/kubelet --config kubelet.yaml\n\n\
        The old files are kept beside the new ones as *.backup-N. Stop the kubelet or agent that\n\
        uses the directory first.")]
    Migrate {
        #[command(flatten)]
        place: Where,
        /// Only say what would change
        #[arg(long)]
        dry_run: bool,
    },
}

#[derive(Debug, clap::Args)]
struct Where {
    /// Directory with cpu_manager_state and memory_manager_state
    dir: PathBuf,
    /// The kubelet's configuration
    #[arg(long, value_name = "FILE")]
    config: String,
    /// The machine: a file or words; this machine if none is given
    #[arg(long, value_name = "FILE|WORDS")]
    machine: Option<String>,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Output {
    Text,
    Json,
    Yaml,
}

/// Some pods cannot be kept where they are.
const DOES_NOT_FIT: u8 = 3;

pub(super) fn run(args: StateArgs) -> anyhow::Result<ExitCode> {
    match args.command {
        StateCommand::Show { dir, output } => show(&dir, output),
        StateCommand::Check(place) => check(&place),
        StateCommand::Migrate { place, dry_run } => migrate_files(&place, dry_run),
    }
}

fn say(text: &str) -> anyhow::Result<()> {
    Ok(Terminal::of_standard_output(Colours::Never).print(text)?)
}

fn node(place: &Where) -> anyhow::Result<Node> {
    let configuration = input::configuration(&place.config)?;
    let machine = input::machine(place.machine.as_deref())?;
    match Configured::new(&machine, &configuration.config) {
        Ok(configured) => Ok(configured.node),
        Err(findings) => {
            Err(BadInput(findings.iter().map(|f| configuration.located(f)).collect()).into())
        }
    }
}

/// The content of a state file; `None` if there is none.
fn read(dir: &Path, manager: Manager) -> anyhow::Result<Option<Vec<u8>>> {
    let path = dir.join(manager.file_name());
    match fs::read(&path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == ErrorKind::NotFound && dir.is_dir() => Ok(None),
        Err(error) => Err(BadInput::new(format!("{}: {error}", path.display())).into()),
    }
}

/// A file's state whatever policy it was written under: the policy is not what is asked here.
fn whatever_policy<T>(
    parse: impl Fn(&str) -> Result<T, StateFileError>,
    configured: &str,
) -> Result<T, StateFileError> {
    match parse(configured) {
        Err(StateFileError::PolicyDiffers { stored, .. }) => parse(&stored),
        other => other,
    }
}

fn unreadable(dir: &Path, manager: Manager, cause: StateFileError) -> anyhow::Error {
    let path = dir.join(manager.file_name()).display().to_string();
    BadInput::new(RestoreError { manager, path, cause }.to_string()).into()
}

fn states(dir: &Path, node: Option<&Node>) -> anyhow::Result<(CpuState, MemoryState)> {
    let gates = Gates { pod_level_resource_managers: true, ..Gates::default() };
    let cpu_policy = node.map_or("static", |node| node.cpu.policy_name());
    let cpu = match read(dir, Manager::Cpu)? {
        None => CpuState::empty(cpu_policy),
        Some(bytes) => whatever_policy(|policy| CpuState::parse(&bytes, policy, gates), cpu_policy)
            .map_err(|cause| unreadable(dir, Manager::Cpu, cause))?,
    };
    let memory_policy = node.map_or("Static", |node| node.memory.policy_name());
    let memory = match read(dir, Manager::Memory)? {
        None => MemoryState::empty(memory_policy),
        Some(bytes) => {
            whatever_policy(|policy| MemoryState::parse(&bytes, policy, gates), memory_policy)
                .map_err(|cause| unreadable(dir, Manager::Memory, cause))?
        }
    };
    Ok((cpu, memory))
}

fn show(dir: &Path, output: Output) -> anyhow::Result<ExitCode> {
    let (cpu, memory) = states(dir, None)?;
    let nodes = |ids: &[placement::NumaId]| -> Vec<u32> { ids.iter().map(|id| id.0).collect() };
    let value = json!({
        "cpuManager": {
            "policy": cpu.policy,
            "defaultCpuSet": cpu.default_cpus,
            "entries": cpu.entries,
        },
        "memoryManager": {
            "policy": memory.policy,
            "entries": memory.entries.iter().map(|(pod, containers)| {
                let containers = containers.iter().map(|(name, blocks)| {
                    let blocks = blocks.iter().map(|block| json!({
                        "numaNodes": nodes(&block.numa),
                        "resource": block.resource,
                        "size": block.size.0,
                    }));
                    (name.clone(), blocks.collect::<Vec<_>>().into())
                });
                (pod.clone(), serde_json::Value::Object(containers.collect()))
            }).collect::<serde_json::Map<_, _>>(),
        },
    });
    let text = match output {
        Output::Json => serde_json::to_string_pretty(&value)? + "\n",
        Output::Yaml => placement::layout::lay_out_in_blocks(&value.to_string()),
        Output::Text => {
            let mut text = format!("CPU manager ({}): shared {}\n", cpu.policy, cpu.default_cpus);
            for (pod, containers) in &cpu.entries {
                for (name, cpus) in containers {
                    text += &format!("  {pod} {name}: CPUs {cpus}\n");
                }
            }
            text += &format!("memory manager ({})\n", memory.policy);
            for (pod, containers) in &memory.entries {
                for (name, blocks) in containers {
                    for block in blocks {
                        let on: Vec<_> = block.numa.iter().map(ToString::to_string).collect();
                        let (kind, size) = (&block.resource, block.size);
                        text += &format!("  {pod} {name}: {kind} {size} on {}\n", on.join(","));
                    }
                }
            }
            text
        }
    };
    say(&text)?;
    Ok(ExitCode::SUCCESS)
}

fn check(place: &Where) -> anyhow::Result<ExitCode> {
    let node = node(place)?;
    let (cpu, memory) = states(&place.dir, Some(&node))?;
    let migration = migrate(&node, &cpu, &memory);
    let strict = take_over(&node, &cpu, &memory);
    let same_policy =
        cpu.policy == node.cpu.policy_name() && memory.policy == node.memory.policy_name();
    let dir = place.dir.display();
    match strict {
        Ok(restored) if same_policy => {
            let note = if restored.memory_recounted {
                ": memory bookings do not add up and would be counted anew (a kubelet refuses this)"
            } else {
                ""
            };
            say(&format!("{dir}: fits{note}\n"))?;
            Ok(ExitCode::SUCCESS)
        }
        strict => {
            if let Err(error) = strict {
                input::warn(&format!("{dir}: {error}"));
            }
            say(&format!("{dir}: does not fit; a migration would\n"))?;
            for change in &migration.changes {
                say(&format!("  - {change}\n"))?;
            }
            input::note("berth state migrate keeps the rest and a backup");
            Ok(ExitCode::from(DOES_NOT_FIT))
        }
    }
}

fn migrate_files(place: &Where, dry_run: bool) -> anyhow::Result<ExitCode> {
    let node = node(place)?;
    let (cpu, memory) = states(&place.dir, Some(&node))?;
    let migration = migrate(&node, &cpu, &memory);
    let dir = place.dir.display();
    for change in &migration.changes {
        say(&format!("{change}\n"))?;
    }
    if migration.changes.is_empty() {
        say(&format!("{dir}: fits already; nothing to do\n"))?;
        return Ok(ExitCode::SUCCESS);
    }
    if dry_run {
        input::note("nothing was written (--dry-run)");
        return Ok(ExitCode::SUCCESS);
    }
    let (cpu, memory) = states_of(&node, &migration.ledger);
    let files = [(Manager::Cpu, cpu.render()), (Manager::Memory, memory.render())];
    // Both backups first: a failure half-way leaves the old state whole.
    for (manager, _) in &files {
        let path = place.dir.join(manager.file_name());
        if let Some(backup) = host::files::back_up(&path).context("the backup failed")? {
            input::note(&format!("backup: {}", backup.display()));
        }
    }
    for (manager, text) in &files {
        let path = place.dir.join(manager.file_name());
        host::files::write_atomically(&path, text.as_bytes()).context("writing failed")?;
    }
    say(&format!("{dir}: migrated\n"))?;
    Ok(ExitCode::SUCCESS)
}
