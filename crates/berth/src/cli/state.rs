//! `berth state`: shows the kubelet's state files, checks them against a machine and a
//! configuration, and migrates them. `placement` decides what fits; `host` writes the files.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;
use placement::Node;
use placement::restore::{migrate, restore, states_of};
use placement::state_file::{CpuState, Gates, Manager, MemoryState, RestoreError, StateFileError};
use serde_json::{Map, Value, json};

use super::{BadInput, input};
use crate::terminal::{Colours, Terminal};

#[derive(Debug, clap::Args)]
pub(super) struct StateArgs {
    #[command(subcommand)]
    command: StateCommand,
}

#[derive(Debug, clap::Subcommand)]
enum StateCommand {
    /// Show the contents of a directory's state files
    #[command(after_help = "Examples:\n  berth state show /var/lib/kubelet\n  \
        berth state show /var/lib/kubelet -o json")]
    Show {
        /// Directory with cpu_manager_state and memory_manager_state
        dir: PathBuf,
        #[arg(short, long, default_value = "text", value_enum, value_name = "FORMAT")]
        output: Output,
    },
    /// Check whether the state files fit a configuration and a machine
    #[command(after_help = "Examples:\n  \
        berth state check /var/lib/kubelet --config /var/lib/kubelet/config.yaml\n\n\
        Exit codes: 0 they fit, 2 invalid input, 3 they do not fit.")]
    Check(StateLocation),
    /// Rewrite the state files with the entries that still fit, and list the others
    #[command(after_help = "Examples:\n  \
        berth state migrate /var/lib/kubelet --config kubelet.yaml --dry-run\n  \
        berth state migrate /var/lib/kubelet --config kubelet.yaml\n\n\
        The old files are kept next to the new ones as *.backup-N. An unreadable file counts as empty, as\n\
        in Berth's agent. Stop the kubelet or agent that uses the directory first.")]
    Migrate {
        #[command(flatten)]
        place: StateLocation,
        /// Only show what would change
        #[arg(long)]
        dry_run: bool,
    },
}

#[derive(Debug, clap::Args)]
struct StateLocation {
    /// Directory with cpu_manager_state and memory_manager_state
    dir: PathBuf,
    /// The kubelet's configuration
    #[arg(long, value_name = "FILE")]
    config: String,
    /// The machine: a file or a description [default: this machine]
    #[arg(long, value_name = "FILE|WORDS")]
    machine: Option<String>,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Output {
    Text,
    Json,
    Yaml,
}

/// Exit code: some pods cannot keep their allocation.
const DOES_NOT_FIT: u8 = 3;

pub(super) fn run(args: StateArgs) -> anyhow::Result<ExitCode> {
    match args.command {
        StateCommand::Show { dir, output } => show(&dir, output),
        StateCommand::Check(place) => check(&place),
        StateCommand::Migrate { place, dry_run } => migrate_files(&place, dry_run),
    }
}

fn print(text: &str) -> anyhow::Result<()> {
    Ok(Terminal::of_standard_output(Colours::Never).print(text)?)
}

fn node(place: &StateLocation) -> anyhow::Result<Node> {
    let configuration = input::configuration(&place.config)?;
    let machine = input::machine(place.machine.as_deref())?;
    Ok(configuration.check(&machine)?.node)
}

/// Reads a state file; `None` if it does not exist.
fn read(dir: &Path, manager: Manager) -> anyhow::Result<Option<Vec<u8>>> {
    let path = dir.join(manager.file_name());
    match fs::read(&path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == ErrorKind::NotFound && dir.is_dir() => Ok(None),
        Err(error) => Err(BadInput::new(format!("{}: {error}", path.display())).into()),
    }
}

/// Returns the state of a file written under any policy.
fn ignore_policy<T>(
    parse: impl Fn(&str) -> Result<T, StateFileError>,
    configured: &str,
) -> Result<T, StateFileError> {
    match parse(configured) {
        Err(StateFileError::PolicyDiffers { stored, .. }) => parse(&stored),
        other => other,
    }
}

/// The contents of the state files of a directory.
struct States {
    cpu: Option<CpuState>,
    memory: Option<MemoryState>,
    /// Files without usable state.
    unusable: Vec<RestoreError>,
}

/// Reads both files; the caller handles unusable ones.
fn states(dir: &Path) -> anyhow::Result<States> {
    let gates = Gates { pod_level_resource_managers: true, ..Gates::default() };
    let mut unusable = Vec::new();
    let cpu = read(dir, Manager::Cpu)?
        .map(|bytes| ignore_policy(|policy| CpuState::parse(&bytes, policy, gates), "static"));
    let memory = read(dir, Manager::Memory)?
        .map(|bytes| ignore_policy(|policy| MemoryState::parse(&bytes, policy, gates), "Static"));
    let cpu = usable(dir, Manager::Cpu, cpu, &mut unusable);
    let memory = usable(dir, Manager::Memory, memory, &mut unusable);
    Ok(States { cpu, memory, unusable })
}

/// Returns the state of a file if it exists and is usable.
fn usable<T>(
    dir: &Path,
    manager: Manager,
    parsed: Option<Result<T, StateFileError>>,
    unusable: &mut Vec<RestoreError>,
) -> Option<T> {
    match parsed? {
        Ok(state) => Some(state),
        Err(cause) => {
            let path = dir.join(manager.file_name()).display().to_string();
            unusable.push(RestoreError { manager, path, cause });
            None
        }
    }
}

impl States {
    /// Returns both states; missing or unusable files give empty ones, as in the agent.
    fn or_empty(&self, node: &Node) -> (CpuState, MemoryState) {
        let cpu = self.cpu.clone().unwrap_or_else(|| CpuState::empty(node.cpu.policy_name()));
        let memory = self.memory.clone();
        (cpu, memory.unwrap_or_else(|| MemoryState::empty(node.memory.policy_name())))
    }

    fn refuse_unusable(&self) -> Result<(), BadInput> {
        match self.unusable.as_slice() {
            [] => Ok(()),
            unusable => Err(BadInput(unusable.iter().map(ToString::to_string).collect())),
        }
    }
}

fn show(dir: &Path, output: Output) -> anyhow::Result<ExitCode> {
    let states = states(dir)?;
    states.refuse_unusable()?;
    let States { cpu, memory, .. } = &states;
    if cpu.is_none() && memory.is_none() {
        let [cpu, memory] = [Manager::Cpu, Manager::Memory].map(Manager::file_name);
        return Err(BadInput::new(format!(
            "{} has neither {cpu} nor {memory}; the directory of a kubelet is /var/lib/kubelet, that of \
             a node of `berth up` is agent below its --data-dir",
            dir.display()
        ))
        .into());
    }
    let text = match output {
        Output::Json => serde_json::to_string_pretty(&as_json(&states))? + "\n",
        Output::Yaml => objects::yaml::write::blocks(&as_json(&states).to_string()),
        Output::Text => as_text(&states),
    };
    print(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// Renders the states; a manager without a file is omitted.
fn as_json(states: &States) -> Value {
    let nodes = |ids: &[placement::NumaId]| -> Vec<u32> { ids.iter().map(|id| id.0).collect() };
    let mut value = Map::new();
    if let Some(cpu) = &states.cpu {
        let state = json!({
            "policy": cpu.policy,
            "defaultCpuSet": cpu.default_cpus,
            "entries": cpu.entries,
        });
        value.insert("cpuManager".to_owned(), state);
    }
    if let Some(memory) = &states.memory {
        let entries = memory.entries.iter().map(|(pod, containers)| {
            let containers = containers.iter().map(|(name, blocks)| {
                let blocks = blocks.iter().map(|block| {
                    json!({
                        "numaNodes": nodes(&block.numa),
                        "resource": block.resource,
                        "size": block.size.0,
                    })
                });
                (name.clone(), blocks.collect::<Vec<_>>().into())
            });
            (pod.clone(), Value::Object(containers.collect()))
        });
        let state = json!({"policy": memory.policy, "entries": entries.collect::<Map<_, _>>()});
        value.insert("memoryManager".to_owned(), state);
    }
    Value::Object(value)
}

fn as_text(states: &States) -> String {
    let mut text = String::new();
    match &states.cpu {
        None => text += &format!("CPU manager: no {}\n", Manager::Cpu.file_name()),
        Some(cpu) => {
            text += &format!("CPU manager ({}): shared {}\n", cpu.policy, cpu.default_cpus);
            for (pod, containers) in &cpu.entries {
                for (name, cpus) in containers {
                    text += &format!("  {pod} {name}: CPUs {cpus}\n");
                }
            }
        }
    }
    let Some(memory) = &states.memory else {
        return text + &format!("memory manager: no {}\n", Manager::Memory.file_name());
    };
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

fn check(place: &StateLocation) -> anyhow::Result<ExitCode> {
    let node = node(place)?;
    let states = states(&place.dir)?;
    let (cpu, memory) = states.or_empty(&node);
    let migration = migrate(&node, &cpu, &memory);
    let strict = restore(&node, &cpu, &memory);
    let same_policy =
        cpu.policy == node.cpu.policy_name() && memory.policy == node.memory.policy_name();
    let dir = place.dir.display();
    match strict {
        Ok(restored) if same_policy && states.unusable.is_empty() => {
            let note = if restored.memory_recounted {
                ": memory bookings do not add up and would be counted anew (a kubelet refuses this)"
            } else {
                ""
            };
            print(&format!("{dir}: fits{note}\n"))?;
            Ok(ExitCode::SUCCESS)
        }
        strict => {
            if let Err(error) = strict {
                input::warn(&format!("{dir}: {error}"));
            }
            for unusable in &states.unusable {
                input::warn(&unusable.to_string());
            }
            print(&format!("{dir}: does not fit; a migration would\n"))?;
            for unusable in &states.unusable {
                print(&format!("  - {}\n", lost(unusable)))?;
            }
            for change in &migration.changes {
                print(&format!("  - {change}\n"))?;
            }
            input::note("berth state migrate keeps the rest and a backup");
            Ok(ExitCode::from(DOES_NOT_FIT))
        }
    }
}

/// Describes how the agent treats an unusable file.
fn lost(RestoreError { path, cause, .. }: &RestoreError) -> String {
    format!("{path} cannot be used: {cause}; its contents are discarded")
}

fn migrate_files(place: &StateLocation, dry_run: bool) -> anyhow::Result<ExitCode> {
    let node = node(place)?;
    let states = states(&place.dir)?;
    let (cpu, memory) = states.or_empty(&node);
    let migration = migrate(&node, &cpu, &memory);
    let dir = place.dir.display();
    for unusable in &states.unusable {
        print(&format!("{}\n", lost(unusable)))?;
    }
    for change in &migration.changes {
        print(&format!("{change}\n"))?;
    }
    if migration.changes.is_empty() && states.unusable.is_empty() {
        print(&format!("{dir}: fits already; nothing to do\n"))?;
        return Ok(ExitCode::SUCCESS);
    }
    if dry_run {
        input::note("nothing was written (--dry-run)");
        return Ok(ExitCode::SUCCESS);
    }
    let (cpu, memory) = states_of(&node, &migration.ledger);
    let files = [(Manager::Cpu, cpu.render()), (Manager::Memory, memory.render())];
    // Back up both files first: a failure half-way leaves the old state intact.
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
    print(&format!("{dir}: migrated\n"))?;
    Ok(ExitCode::SUCCESS)
}
