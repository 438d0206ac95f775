//! `berth config`: checks, shows and generates kubelet configurations. The rules are in `planner`.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;

use objects::Quantity;
use objects::kubelet_config::{
    CpuManagerPolicy, MemoryManagerPolicy, TopologyManagerPolicy, TopologyManagerScope,
};
use placement::CpuSet;
use planner::generate::{GenerateOptions, ReserveCpus, generate};
use planner::view::View;

use super::BadInput;
use super::input;
use crate::terminal::{Colours, Terminal};

#[derive(Debug, clap::Args)]
pub(super) struct ConfigArgs {
    #[command(subcommand)]
    command: ConfigCommand,
}

#[derive(Debug, clap::Subcommand)]
enum ConfigCommand {
    /// Check a configuration, and suggest corrections
    #[command(after_help = "Examples:\n  \
        berth config check /var/lib/kubelet/config.yaml\n  \
        berth config check kubelet.yaml --machine examples/machines/epyc-2s-nps4.yaml\n\n\
        Exit codes: 0 valid, 2 invalid.")]
    Check {
        /// The configuration; - for standard input
        file: String,
        /// Machine to check against: a file or a description such as "2x8" [default: this machine]
        #[arg(long, value_name = "FILE|WORDS")]
        machine: Vec<String>,
    },
    /// Show the effective configuration on a machine
    #[command(after_help = "Examples:\n  \
        berth config show kubelet.yaml --machine \"2 sockets x 8 cores x 2 threads mem=64Gi\"\n  \
        berth config show kubelet.yaml -o json")]
    Show {
        /// The configuration; - for standard input
        file: String,
        /// The machine: a file or a description [default: this machine]
        #[arg(long, value_name = "FILE|WORDS")]
        machine: Option<String>,
        #[arg(short, long, default_value = "text", value_enum, value_name = "FORMAT")]
        output: Output,
    },
    /// Generate a configuration for a machine, with consistent reservations
    Generate(Box<GenerateArgs>),
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Output {
    Text,
    Json,
    Yaml,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    berth config generate\n  \
    berth config generate --topology-manager single-numa-node --option full-pcpus-only\n  \
    berth config generate --machine edge.yaml --reserved-cpus 2 --reserved-memory 1Gi\n  \
    berth config generate --reserved-cpus 0-3,64-67 --output-file kubelet.yaml\n\n\
    The result passes `berth config check` on the same machine.")]
struct GenerateArgs {
    /// The machine: a file or a description [default: this machine]
    #[arg(long, value_name = "FILE|WORDS")]
    machine: Option<String>,
    #[arg(long, default_value = "static", value_name = "POLICY", value_parser = ["none", "static"])]
    cpu_manager: String,
    /// [default: the policy for the machine's operating system]
    #[arg(long, value_name = "POLICY", value_parser = ["None", "Static", "BestEffort"], ignore_case = true)]
    memory_manager: Option<String>,
    #[arg(long, default_value = "best-effort", value_name = "POLICY",
          value_parser = ["none", "best-effort", "restricted", "single-numa-node"])]
    topology_manager: String,
    #[arg(long, default_value = "container", value_parser = ["container", "pod"])]
    scope: String,
    /// A number of CPUs, rounded to whole cores, or a list such as 0-3,64-67 [default: a core per
    /// 64 CPUs]
    #[arg(long, value_name = "COUNT|LIST")]
    reserved_cpus: Option<String>,
    /// Memory for the system, without the eviction threshold [default: a 64th of the machine]
    #[arg(long, value_name = "AMOUNT")]
    reserved_memory: Option<String>,
    /// An option of the CPU or topology manager: NAME or NAME=VALUE
    #[arg(long, value_name = "NAME[=VALUE]")]
    option: Vec<String>,
    #[arg(long, value_name = "COUNT")]
    max_pods: Option<u32>,
    /// Write to this file instead of standard output
    #[arg(long, value_name = "FILE")]
    output_file: Option<PathBuf>,
}

pub(super) fn run(args: ConfigArgs) -> anyhow::Result<ExitCode> {
    match args.command {
        ConfigCommand::Check { file, machine } => check(&file, &machine),
        ConfigCommand::Show { file, machine, output } => show(&file, machine.as_deref(), output),
        ConfigCommand::Generate(args) => {
            let machine = input::machine(args.machine.as_deref())?;
            let generated = generate(&machine, &wishes(&args)?).map_err(|error| {
                BadInput(error.to_string().lines().map(str::to_owned).collect())
            })?;
            input::print(&generated.text, plain(), args.output_file.as_ref())?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn plain() -> Terminal {
    Terminal::of_standard_output(Colours::Never)
}

fn check(file: &str, machines: &[String]) -> anyhow::Result<ExitCode> {
    let given = input::configuration(file)?;
    let wanted: Vec<Option<&str>> = match machines {
        [] => vec![None],
        machines => machines.iter().map(|machine| Some(machine.as_str())).collect(),
    };
    let mut mistakes = Vec::new();
    let mut text = String::new();
    for wanted in wanted {
        let machine = input::machine(wanted)?;
        let checked = match wanted {
            None => given.check_here(&machine),
            Some(_) => given.check(&machine),
        };
        match checked {
            Ok(_) => text += &format!("{file} can be used on {}\n", machine.name),
            Err(BadInput(problems)) => mistakes.extend(problems),
        }
    }
    input::print(&text, plain(), None)?;
    if mistakes.is_empty() { Ok(ExitCode::SUCCESS) } else { Err(BadInput(mistakes).into()) }
}

fn show(file: &str, machine: Option<&str>, output: Output) -> anyhow::Result<ExitCode> {
    let given = input::configuration(file)?;
    let machine = input::machine(machine)?;
    let configured = given.check(&machine)?;
    let view = View::new(&machine, &given.config, &configured);
    let text = match output {
        Output::Text => view.render_text(),
        Output::Json => view.render_json(),
        Output::Yaml => view.render_yaml(),
    };
    input::print(&text, plain(), None)?;
    Ok(ExitCode::SUCCESS)
}

fn wishes(args: &GenerateArgs) -> Result<GenerateOptions, BadInput> {
    let reserved_cpus = match &args.reserved_cpus {
        None => None,
        Some(text) => Some(match text.parse() {
            Ok(count) => ReserveCpus::Count(count),
            Err(_) => ReserveCpus::List(
                CpuSet::parse(text)
                    .map_err(|error| BadInput::new(format!("--reserved-cpus {text:?}: {error}")))?,
            ),
        }),
    };
    let reserved_memory = match &args.reserved_memory {
        None => None,
        Some(text) => {
            let wrong = |problem: &str| {
                BadInput::new(format!("--reserved-memory {text:?} cannot be used: {problem}"))
            };
            if text.ends_with(|c: char| c.is_ascii_digit()) {
                return Err(wrong(&format!("it has no unit; write {text}Mi or {text}Gi")));
            }
            let amount = Quantity::parse(text).ok().and_then(|amount| amount.checked_value());
            let bytes = amount.and_then(|bytes| u64::try_from(bytes).ok()).filter(|b| *b > 0);
            Some(bytes.ok_or_else(|| wrong("write an amount like 4Gi"))?)
        }
    };
    let policy_options: BTreeMap<String, String> = args
        .option
        .iter()
        .map(|option| option.split_once('=').unwrap_or((option, "true")))
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect();
    Ok(GenerateOptions {
        cpu_manager: match args.cpu_manager.as_str() {
            "none" => CpuManagerPolicy::None,
            _ => CpuManagerPolicy::Static,
        },
        memory_manager: args.memory_manager.as_deref().map(|policy| {
            match policy.to_ascii_lowercase().as_str() {
                "static" => MemoryManagerPolicy::Static,
                "besteffort" => MemoryManagerPolicy::BestEffort,
                _ => MemoryManagerPolicy::None,
            }
        }),
        topology_manager: match args.topology_manager.as_str() {
            "none" => TopologyManagerPolicy::None,
            "restricted" => TopologyManagerPolicy::Restricted,
            "single-numa-node" => TopologyManagerPolicy::SingleNumaNode,
            _ => TopologyManagerPolicy::BestEffort,
        },
        scope: match args.scope.as_str() {
            "pod" => TopologyManagerScope::Pod,
            _ => TopologyManagerScope::Container,
        },
        policy_options,
        reserved_cpus,
        reserved_memory,
        max_pods: args.max_pods,
    })
}
