//! `berth plan`: reads machines, a configuration and manifests, runs `planner`, and prints the
//! report.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use objects::pod::OsName;
use objects::{KubeletConfig, Workload};
use placement::Bytes;
use placement::Machine;
use placement::configured::Configured;
use placement::node::CpuPolicy;
use planner::generate::{GenerateOptions, Generated, generate};
use planner::picture::render_svg;
use planner::report::picture::{page, picture};
use planner::report::text::{TextStyle, render};
use planner::report::{Options, Report};
use planner::simulate::{MAX_MACHINES, Shape, Simulation, Strategy, how_many, numbered, simulate};

use super::BadInput;
use super::input::{self, Configuration, note};
use crate::terminal::{Colours, Terminal};

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    berth plan -f pods.yaml\n  \
    berth plan -f pods.yaml --machine examples/machines/epyc-2s-nps4.yaml --explain\n  \
    berth plan -f pods.yaml --machine \"2 sockets x 2 numa x 8 cores x 2 threads mem=64Gi\"\n  \
    berth plan -f pods.yaml --machines 100x edge.yaml --strategy spread -o json\n  \
    berth plan -f pods.yaml --machine edge.yaml --how-many\n  \
    berth plan -f pods.yaml -o html --output-file plan.html\n  \
    kubectl get deploy -o yaml | berth plan -f - --config /var/lib/kubelet/config.yaml\n\n\
    The default machine is this one; the default configuration is that of `berth config generate`.\n\
    Machines are files (berth topology -o yaml, hwloc XML, lscpu, captures) or descriptions.\n\n\
    Exit codes: 0 all pods placed, 2 invalid usage or input, 3 some pods refused.")]
pub(super) struct PlanArgs {
    /// Pods or workloads; - for standard input, a directory for all manifests in it
    #[arg(short = 'f', long = "filename", required = true, value_name = "FILE")]
    files: Vec<String>,
    /// Machine to plan for: a file or a description
    #[arg(long, value_name = "FILE|WORDS")]
    machine: Vec<String>,
    /// Several identical machines: 100x FILE
    #[arg(long, num_args = 1..=2, value_names = ["COUNT", "MACHINE"], value_name = "COUNTx MACHINE")]
    machines: Vec<String>,
    /// Use as many machines of the given kind as the pods need
    #[arg(long, conflicts_with = "machines")]
    how_many: bool,
    /// Kubelet configuration of all machines
    #[arg(long, value_name = "FILE")]
    config: Option<String>,
    /// Other resources of each machine, such as nvidia.com/gpu=8
    #[arg(long, value_name = "NAME=COUNT", value_parser = device)]
    resource: Vec<(String, u64)>,
    /// pack: the first machine that accepts a pod; spread: the least requested machine
    #[arg(long, default_value = "pack", value_parser = strategy)]
    strategy: Strategy,
    /// Explain every step of every decision
    #[arg(long)]
    explain: bool,
    /// Output format
    #[arg(short, long, default_value = "text", value_enum, value_name = "FORMAT")]
    output: Output,
    /// When to use colours
    #[arg(long, value_enum, default_value_t, value_name = "WHEN")]
    color: Colours,
    /// Write to this file instead of standard output
    #[arg(long, value_name = "FILE")]
    output_file: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Output {
    /// A table per machine
    Text,
    Json,
    Yaml,
    /// A picture of one machine
    Svg,
    /// Pictures and tables as a self-contained page
    Html,
}

fn strategy(text: &str) -> Result<Strategy, String> {
    Strategy::parse(text).ok_or_else(|| format!("there are {}", Strategy::NAMES.join(", ")))
}

fn device(text: &str) -> Result<(String, u64), String> {
    let (name, count) = text.split_once('=').ok_or("write NAME=COUNT, like nvidia.com/gpu=8")?;
    let count = count.parse().map_err(|_| format!("{count:?} is not a count"))?;
    match objects::resources::is_extended(name) {
        true => Ok((name.to_owned(), count)),
        false => Err(format!("{name:?} is not an extended resource such as nvidia.com/gpu")),
    }
}

pub(super) fn run(args: &PlanArgs) -> anyhow::Result<ExitCode> {
    let mut workloads = input::manifests(&args.files)?;
    if workloads.is_empty() {
        return Err(BadInput::new("the input has no pods").into());
    }
    warn_about_what_is_ignored(&workloads);
    let kinds = kinds(args)?;
    let fleet = fleet(&kinds);
    forget_other_nodes(&mut workloads, &fleet);
    let given = args.config.as_deref().map(input::configuration).transpose()?;
    let devices: BTreeMap<String, u64> = args.resource.iter().cloned().collect();
    let mut shapes = Vec::new();
    let mut options =
        Options { explain: args.explain, how_many: args.how_many, ..Options::default() };
    let mut mistakes = Vec::new();
    for (machine, _) in &kinds {
        match configure(machine, given.as_ref()) {
            Ok((configured, settings)) => {
                options.configurations.push(settings);
                let configured = configured.with_devices(&devices);
                shapes.push(Shape { name: machine.name.clone(), configured });
            }
            Err(BadInput(problems)) => mistakes.extend(problems),
        }
    }
    if !mistakes.is_empty() {
        mistakes.dedup();
        return Err(BadInput(mistakes).into());
    }
    if given.is_none() {
        let text = "no --config: planned with the settings `berth config generate` writes";
        note(text);
        options.notes.push(text.to_owned());
    }
    let mut simulation = if args.how_many {
        let [shape] = shapes.as_slice() else {
            return Err(BadInput::new("--how-many takes one --machine").into());
        };
        how_many(shape, &workloads, args.strategy)
    } else {
        simulate(&shapes, fleet, &workloads, args.strategy)
    };
    let report = Report::new(&mut simulation, &options);
    let terminal = match args.output_file {
        Some(_) => Terminal::of_standard_output(Colours::Never),
        None => Terminal::of_standard_output(args.color),
    };
    let text = match args.output {
        Output::Text => {
            render(&report, TextStyle { colour: terminal.colours, explain: args.explain })
        }
        Output::Json => report.render_json(),
        Output::Yaml => report.render_yaml(),
        Output::Svg => drawn(&mut simulation, &report)?,
        Output::Html => page(&mut simulation, &report),
    };
    input::print(&text, terminal, args.output_file.as_ref())?;
    Ok(if report.summary.refused == 0 { ExitCode::SUCCESS } else { ExitCode::from(3) })
}

/// Draws the machine; a picture shows only one.
fn drawn(simulation: &mut Simulation<'_>, report: &Report) -> anyhow::Result<String> {
    match report.machines.len() {
        1 => Ok(render_svg(&picture(simulation, report, 0))),
        n => {
            let text = format!("-o svg shows one machine and there are {n}; -o html shows several");
            Err(BadInput::new(text).into())
        }
    }
}

/// Returns the requested kinds of machines with their counts.
fn kinds(args: &PlanArgs) -> anyhow::Result<Vec<(Machine, usize)>> {
    let mut kinds = Vec::new();
    for given in &args.machine {
        kinds.push((input::machine(Some(given))?, 1));
    }
    let mut words = args.machines.iter();
    while let Some(word) = words.next() {
        let wrong = || {
            BadInput::new(format!(
                "--machines {word:?}: write a count and a machine, like 100x edge.yaml"
            ))
        };
        let (count, machine) = word.split_once('x').ok_or_else(wrong)?;
        let count: usize = count.trim().parse().map_err(|_| wrong())?;
        if count == 0 || count > MAX_MACHINES {
            let text = format!("--machines {word:?}: from 1 to {MAX_MACHINES} can be planned for");
            return Err(BadInput::new(text).into());
        }
        let machine = match machine.trim() {
            "" => words.next().ok_or_else(wrong)?.as_str(),
            machine => machine,
        };
        kinds.push((input::machine(Some(machine))?, count));
    }
    if kinds.is_empty() {
        kinds.push((input::machine(None)?, 1));
    }
    Ok(kinds)
}

/// Returns every machine's unique name with the index of its kind.
fn fleet(kinds: &[(Machine, usize)]) -> Vec<(String, usize)> {
    let mut fleet: Vec<(String, usize)> = Vec::new();
    let mut given: BTreeMap<&str, usize> = BTreeMap::new();
    for (shape, (machine, count)) in kinds.iter().enumerate() {
        let alike = kinds.iter().filter(|(other, _)| other.name == machine.name).count();
        for _ in 0..*count {
            let number = given.entry(&machine.name).or_default();
            let name = match (alike, *count) {
                (1, 1) => machine.name.clone(),
                _ => numbered(&machine.name, *number),
            };
            *number += 1;
            fleet.push((name, shape));
        }
    }
    fleet
}

/// Applies the given or the recommended configuration to a machine, and describes it in one line.
fn configure(
    machine: &Machine,
    given: Option<&Configuration>,
) -> Result<(Configured, String), BadInput> {
    if let Some(given) = given {
        let configured = given.check(machine)?;
        let text = settings(&configured, &given.config, &given.file);
        return Ok((configured, text));
    }
    match generate(machine, &GenerateOptions::default()) {
        Ok(Generated { configured, config, .. }) => {
            let text = settings(&configured, &config, "recommended settings");
            Ok((configured, text))
        }
        Err(error) => {
            // The machine is too small to reserve anything.
            input::note(&format!("{}: planned without managers: {error}", machine.name));
            let config = KubeletConfig::default();
            let configured = Configured::new(machine, &config)
                .map_err(|f| BadInput(f.iter().map(ToString::to_string).collect()))?;
            let text = settings(&configured, &config, "no managers");
            Ok((configured, text))
        }
    }
}

fn settings(configured: &Configured, config: &KubeletConfig, source: &str) -> String {
    let mut text = format!(
        "{source}: CPU manager {}, memory manager {}, alignment {}",
        config.cpu_manager_policy, config.memory_manager_policy, config.topology_manager_policy
    );
    if configured.node.os == OsName::Windows && configured.node.cpu == CpuPolicy::None {
        text += " (asleep unless WindowsCPUAndMemoryAffinity is on)";
    }
    if let CpuPolicy::Static(policy) = &configured.node.cpu {
        text += &format!("; reserved CPUs {}", policy.reserved());
    }
    let total: u64 = config.reserved_memory.iter().fold(0, |sum, entry| {
        let bytes = entry.limits.get("memory").and_then(|amount| amount.checked_value());
        sum + bytes.and_then(|bytes| u64::try_from(bytes).ok()).unwrap_or(0)
    });
    if total > 0 {
        text += &format!(", memory {}", Bytes(total));
    }
    text
}

/// Clears the node name of pods that were read from a cluster, unless the plan has a machine of
/// that name: their current node is not a constraint. Other pods keep their node name.
fn forget_other_nodes(workloads: &mut [Workload], fleet: &[(String, usize)]) {
    let names: BTreeSet<&str> = fleet.iter().map(|(name, _)| name.as_str()).collect();
    let mut forgotten: BTreeMap<String, usize> = BTreeMap::new();
    for workload in workloads {
        let pod = &workload.template;
        let is_bound = !pod.metadata.uid.is_empty();
        let node = &pod.spec.node_name;
        if is_bound && !node.is_empty() && !names.contains(node.as_str()) {
            *forgotten.entry(node.clone()).or_default() += 1;
            Arc::make_mut(&mut workload.template).spec.node_name.clear();
        }
    }
    for (node, count) in forgotten {
        let pods = if count == 1 { "1 pod runs" } else { &format!("{count} pods run") };
        note(&format!(
            "{pods} on node {node:?}, which is not a machine of this plan: planned for any machine"
        ));
    }
}

/// Warns about constraints that only a scheduler with a cluster can check.
fn warn_about_what_is_ignored(workloads: &[Workload]) {
    for workload in workloads {
        let spec = &workload.template.spec;
        let has_selector = spec.node_selector.keys().any(|label| label != "kubernetes.io/os");
        let fields = [
            ("affinity", spec.affinity.is_some()),
            ("topologySpreadConstraints", !spec.topology_spread_constraints.is_empty()),
            ("resourceClaims", !spec.resource_claims.is_empty()),
            ("nodeSelector", has_selector),
        ];
        let ignored = fields.into_iter().filter(|(_, given)| *given);
        let ignored: Vec<&str> = ignored.map(|(field, _)| field).collect();
        if !ignored.is_empty() {
            note(&format!(
                "{}/{}: {} not looked at: machines have no labels here",
                workload.kind,
                workload.name,
                ignored.join(", ")
            ));
        }
    }
}
