//! `berth explain pod` and `berth explain node`: the reasons for a pod's placement or rejection,
//! and possible changes.
//!
//! All data comes from the API: pods, events and node reports. It works with `berth up` and with
//! any cluster whose nodes run Berth's agent. A node accepts a pod if every scheduler filter, the
//! agent's admission ([`filters`]) and its free capacity (`planner::live`) allow it.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::{Args, Subcommand};
use client::kind::{EVENTS, PODS};
use client::{Client, Scope};
use objects::types::Pod;
use objects::yaml::write;
use objects::{Quantity, resources};
use placement::demand::PodUid;
use placement::report::NodeReport;
use planner::live::{Explanation, LiveNode, LivePod, NodeExplanation, Verdict, text};
use planner::picture::{render_svg, render_text};
use planner::report::text::{TextStyle, render_machine};
use serde::Deserialize as _;
use serde_json::Value;

use super::node::{remote, run as block_on};
use super::target::TargetArgs;
use super::{BadInput, input};
use crate::terminal::{Colours, Terminal};

mod filters;

use filters::{ClusterObjects, Scheduling};

/// Maximum number of nodes shown for an unbound pod. Nodes that would accept it come first.
const MOST_NODES: usize = 10;

#[derive(Debug, Args)]
pub(super) struct ExplainArgs {
    #[command(subcommand)]
    what: Subject,
}

#[derive(Debug, Subcommand)]
enum Subject {
    /// Explain the placement or rejection of a pod, and what would change it
    #[command(visible_aliases = ["pods", "po"], after_help = "Examples:\n  \
        berth explain pod db-0\n  \
        berth explain pod/db-0 -n prod\n  \
        berth explain pod prod/db-0 --kubeconfig ~/.kube/config -o yaml\n\n\
        A placed pod is planned again with its own allocation removed (dry run); a different result is\n\
        shown too. For an unbound pod, every node is checked with every filter of the scheduler and the\n\
        admission of the agent.\n\n\
        Exit codes: 0 the pod is placed or a node would accept it, 1 failure, 2 invalid usage, 3 no node\n\
        would accept it.")]
    Pod(PodArgs),
    /// Show the pods on a node's CPUs and memory, the reasons, and the free capacity
    #[command(
        visible_aliases = ["nodes", "no"],
        after_help = "Examples:\n  berth explain node\n  berth explain node/worker-7 -o svg > worker-7.svg"
    )]
    Node(NodeArgs),
}

#[derive(Debug, Args)]
struct Where {
    #[command(flatten)]
    target: TargetArgs,
    /// Kubeconfig of another API server
    #[arg(long, value_name = "FILE", conflicts_with = "data_dir")]
    kubeconfig: Option<PathBuf>,
    /// When to use colours
    #[arg(long, value_enum, default_value_t, value_name = "WHEN")]
    color: Colours,
}

impl Where {
    fn client(&self) -> anyhow::Result<Client> {
        match &self.kubeconfig {
            Some(file) => remote(file, "berth"),
            None => self.target.client(),
        }
    }
}

#[derive(Debug, Args)]
struct PodArgs {
    /// The pod: NAME or NAMESPACE/NAME
    #[arg(value_name = "NAME")]
    name: String,
    /// The pod's namespace [default: default]
    #[arg(short, long, value_name = "NAMESPACE")]
    namespace: Option<String>,
    #[command(flatten)]
    place: Where,
    #[arg(short, long, default_value = "text", value_enum, value_name = "FORMAT")]
    output: super::node::Output,
}

#[derive(Debug, Args)]
struct NodeArgs {
    /// The node's name; optional if there is only one node
    name: Option<String>,
    #[command(flatten)]
    place: Where,
    #[arg(short, long, default_value = "text", value_enum, value_name = "FORMAT")]
    output: NodeOutput,
    /// Draw with plain ASCII characters
    #[arg(long)]
    ascii: bool,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum NodeOutput {
    Text,
    Json,
    Yaml,
    Svg,
}

pub(super) fn run(args: &ExplainArgs) -> anyhow::Result<ExitCode> {
    match &args.what {
        Subject::Pod(args) => pod(args),
        Subject::Node(args) => node(args),
    }
}

/// Rewrites `explain pod/db-0`, kubectl's notation, to `explain pod db-0`.
pub(super) fn split_resource(mut args: Vec<OsString>) -> Vec<OsString> {
    const KINDS: [&str; 6] = ["pod", "pods", "po", "node", "nodes", "no"];
    if args.get(1).is_none_or(|command| command != "explain") {
        return args;
    }
    let split = args.get(2).and_then(|word| word.to_str()?.split_once('/'));
    if let Some((kind, name)) = split.filter(|(kind, _)| KINDS.contains(kind)) {
        let words = [kind, name].map(OsString::from);
        args.splice(2..3, words);
    }
    args
}

impl PodArgs {
    /// Returns the pod's namespace and name.
    fn namespace_and_name(&self) -> Result<(String, String), BadInput> {
        let given = self.namespace.as_deref();
        let Some((namespace, name)) = self.name.split_once('/') else {
            return Ok((given.unwrap_or("default").to_owned(), self.name.clone()));
        };
        if let Some(given) = given.filter(|given| *given != namespace) {
            return Err(BadInput::new(format!(
                "two namespaces are given: {namespace:?} in {:?}, and {given:?} with --namespace",
                self.name
            )));
        }
        Ok((namespace.to_owned(), name.to_owned()))
    }
}

fn pod(args: &PodArgs) -> anyhow::Result<ExitCode> {
    let (namespace, name) = args.namespace_and_name()?;
    let api = args.place.client()?;
    let (pod, cluster_objects, events) = block_on(async {
        let wanted: Result<Value, _> = api.get(PODS, &namespace, &name).await;
        let pod = match wanted {
            Err(error) if error.is_not_found() => {
                let text = format!("there is no pod {name:?} in {namespace:?}");
                return Err(BadInput::new(text).into());
            }
            other => other?,
        };
        let uid = pod["metadata"]["uid"].as_str().unwrap_or_default();
        let about = Scope {
            namespace: namespace.clone(),
            field_selector: format!("involvedObject.uid={uid}"),
            ..Scope::default()
        };
        let events = api.list_values(EVENTS, &about).await?;
        Ok((pod, ClusterObjects::read(&api).await?, events))
    })?;
    let occupant = occupant(&pod)?;
    let bound = pod["spec"]["nodeName"].as_str();
    let scheduling = match bound {
        Some(_) => Scheduling::default(),
        None => Scheduling::of(&cluster_objects, &pod)?,
    };
    // A bound pod stays on its node; for an unbound pod every node is checked.
    let mut candidates: Vec<&Value> = cluster_objects
        .nodes
        .iter()
        .filter(|node| bound.is_none_or(|bound| name_of(node) == bound))
        .collect();
    candidates.sort_by_key(|node| scheduling.refusals(name_of(node)).next().is_some());
    let mut reported = reported_reasons(&pod, &events);
    if let Some(bound) = bound.filter(|_| candidates.is_empty()) {
        reported.push(format!("it is bound to the node {bound:?}, which does not exist"));
    }
    if candidates.is_empty() && bound.is_none() {
        reported.extend(scheduling.everywhere.iter().map(|refusal| refusal.message.clone()));
    }
    reported.extend(scheduling.preemption.clone());
    let mut answers = Vec::new();
    for node in candidates.iter().take(MOST_NODES) {
        answers.push(answer(node, &cluster_objects, &scheduling, &pod, &occupant)?);
    }
    if candidates.len() > MOST_NODES {
        input::note(&format!("{} nodes are not shown", candidates.len() - MOST_NODES));
    }
    let refused = answers.iter().all(|answer| !answer.refusals.is_empty());
    let phase = pod["status"]["phase"].as_str().unwrap_or("Unknown");
    let phase = match bound {
        Some(node) => format!("{phase} on {node}"),
        None => phase.to_owned(),
    };
    let explanation = Explanation::new(&occupant, phase, reported, answers);
    let terminal = Terminal::of_standard_output(args.place.color);
    let json = || serde_json::to_string(&explanation).context("an explanation cannot be written");
    let text = match args.output {
        super::node::Output::Text => {
            text::render(&explanation, TextStyle { colour: terminal.colours, explain: true })
        }
        super::node::Output::Json => write::pretty_json(&json()?),
        super::node::Output::Yaml => write::blocks(&json()?),
    };
    terminal.print(&text)?;
    Ok(if refused { ExitCode::from(3) } else { ExitCode::SUCCESS })
}

/// Returns one node's answer, with every reason against the pod.
fn answer(
    node: &Value,
    cluster_objects: &ClusterObjects,
    scheduling: &Scheduling,
    pod: &Value,
    occupant: &LivePod,
) -> anyhow::Result<NodeExplanation> {
    let mut answer = match live(node, cluster_objects)? {
        Ok(live) => {
            let mut answer = live.explain(occupant);
            if answer.verdict != Verdict::Has {
                for refusal in filters::admission(cluster_objects, node, pod)? {
                    answer.refuse(refusal);
                }
            }
            answer
        }
        Err(why) => NodeExplanation::unknown(name_of(node), why),
    };
    let has_room = answer.refusals.is_empty();
    for refusal in scheduling.refusals(name_of(node)) {
        if has_room || !filters::is_about_room(refusal) {
            answer.refuse(refusal.clone());
        }
    }
    // A pod that is bound to a node without a running agent does not start.
    let waits = pod["spec"]["nodeName"].is_string() && pod["status"]["phase"] == "Pending";
    if let Some(refusal) = filters::not_ready(node).filter(|_| waits) {
        answer.refuse(refusal);
    }
    Ok(answer)
}

fn node(args: &NodeArgs) -> anyhow::Result<ExitCode> {
    let api = args.place.client()?;
    let cluster_objects = block_on(async { Ok(ClusterObjects::read(&api).await?) })?;
    let nodes = &cluster_objects.nodes;
    let names = || nodes.iter().map(name_of).collect::<Vec<_>>().join(", ");
    let node = match (&args.name, nodes.as_slice()) {
        (None, [only]) => only,
        (None, []) => return Err(BadInput::new("there are no nodes").into()),
        (None, _) => {
            return Err(BadInput::new(format!("which node? There are {}", names())).into());
        }
        (Some(name), _) => nodes.iter().find(|node| name_of(node) == name).ok_or_else(|| {
            BadInput::new(format!("there is no node {name:?}; there are: {}", names()))
        })?,
    };
    let live = live(node, &cluster_objects)?
        .map_err(|why| BadInput::new(format!("node {:?}: {why}", name_of(node))))?;
    let report = live.machine_report(true);
    let terminal = Terminal::of_standard_output(args.place.color);
    let json = || serde_json::to_string(&report).context("a report cannot be written");
    let text = match args.output {
        NodeOutput::Text => {
            let look = TextStyle { colour: terminal.colours, explain: true };
            render_text(&live.picture(), terminal.text(args.ascii))
                + "\n"
                + &render_machine(&report, look)
        }
        NodeOutput::Json => write::pretty_json(&json()?),
        NodeOutput::Yaml => write::blocks(&json()?),
        NodeOutput::Svg => render_svg(&live.picture()),
    };
    terminal.print(&text)?;
    Ok(ExitCode::SUCCESS)
}

fn name_of(object: &Value) -> &str {
    object["metadata"]["name"].as_str().unwrap_or_default()
}

/// Returns a node with the pods that hold its resources, or the reason why its state is unknown.
fn live(
    node: &Value,
    cluster_objects: &ClusterObjects,
) -> anyhow::Result<Result<LiveNode, String>> {
    let name = name_of(node);
    let annotations: BTreeMap<String, String> =
        serde_json::from_value(node["metadata"]["annotations"].clone()).unwrap_or_default();
    let report = match NodeReport::parse(&annotations) {
        Ok(Some(report)) => report,
        Ok(None) => return Ok(Err("it reports no machine; Berth's agent does".to_owned())),
        Err(error) => return Ok(Err(format!("what it reports cannot be used: {error}"))),
    };
    let pods = cluster_objects.active_pods(Some(name)).map(occupant).collect::<Result<_, _>>()?;
    Ok(Ok(LiveNode::new(name, report, pods, &devices(node))))
}

/// Returns the amounts of a node's resources that its report does not count.
fn devices(node: &Value) -> BTreeMap<String, u64> {
    let reported = |name: &str| {
        matches!(name, resources::CPU | resources::MEMORY | "pods")
            || resources::is_huge_pages(name)
    };
    let allocatable = node["status"]["allocatable"].as_object().into_iter().flatten();
    let count = |(name, amount): (&String, &Value)| {
        let amount = Quantity::parse(amount.as_str()?).ok()?.checked_value()?;
        Some((name.clone(), u64::try_from(amount).ok()?))
    };
    allocatable.filter(|(name, _)| !reported(name)).filter_map(count).collect()
}

fn occupant(object: &Value) -> anyhow::Result<LivePod> {
    let metadata = &object["metadata"];
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let (namespace, name) = (text(&metadata["namespace"]), text(&metadata["name"]));
    let owner = &metadata["ownerReferences"][0];
    let workload = match owner.is_object() {
        true => format!("{}/{}", text(&owner["kind"]), text(&owner["name"])),
        false => format!("Pod/{name}"),
    };
    let pod = Pod::deserialize(object)
        .with_context(|| format!("pod {namespace}/{name} cannot be read"))?;
    Ok(LivePod { uid: PodUid::new(&pod.metadata.uid), namespace, name, workload, pod })
}

/// Returns the messages of scheduler and agent about the pod's placement.
fn reported_reasons(pod: &Value, events: &[Value]) -> Vec<String> {
    let mut reported = Vec::new();
    let status = &pod["status"];
    if let (Some(reason), Some(message)) = (status["reason"].as_str(), status["message"].as_str()) {
        reported.push(format!("{reason}: {message}"));
    }
    let conditions = status["conditions"].as_array().into_iter().flatten();
    for condition in conditions.filter(|condition| condition["type"] == "PodScheduled") {
        if let Some(message) = condition["message"].as_str().filter(|text| !text.is_empty()) {
            reported.push(message.to_owned());
        }
    }
    for event in events {
        let reason = event["reason"].as_str().unwrap_or_default();
        let about_place = ["Placed", "NotPlaced", "MemoryAffinityNotGuaranteed"].contains(&reason)
            || reason.starts_with("Placement");
        if about_place {
            reported.push(format!("{reason}: {}", event["message"].as_str().unwrap_or_default()));
        }
    }
    reported
}
