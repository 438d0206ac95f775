//! `berth explain pod` and `berth explain node`: why a pod is where it is, or why nowhere, and what would
//! change it.
//!
//! Everything is asked of the API: pods, events, and what nodes report of themselves, so that it works
//! with `berth up` and with any cluster whose nodes run Berth's agent. Reasons are `planner`'s.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::{Args, Subcommand};
use client::kind::{EVENTS, NODES, PODS};
use client::{Client, Scope};
use objects::{Pod, workload};
use placement::demand::PodUid;
use placement::layout::{lay_out, lay_out_in_blocks};
use placement::report::NodeReport;
use planner::live::{Explanation, LiveNode, NodeAnswer, Occupant, text};
use planner::picture::{render_svg, render_text};
use planner::report::text::{Look, render_machine};
use serde_json::Value;

use super::node::{DATA_DIR, remote, run as block_on};
use super::{BadInput, input};
use crate::terminal::{Colours, Terminal};

/// With more nodes than this, a pod that waits is told of so many.
const MOST_NODES: usize = 10;

#[derive(Debug, Args)]
pub(super) struct ExplainArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Why a pod is where it is, or has no place, and what would change that
    #[command(after_help = "Examples:\n  berth explain pod db-0\n  \
        berth explain pod db-0 -n prod --kubeconfig ~/.kube/config -o yaml\n\n\
        A pod that has its place is taken away and placed again, in thought: what it would get today is\n\
        said where that is something else. For a pod without one every node is asked.\n\
        Exit code 3 if no node would take it.")]
    Pod(PodArgs),
    /// Who sits where on a node, why, and what is left
    #[command(
        after_help = "Examples:\n  berth explain node\n  berth explain node worker-7 -o svg > worker-7.svg"
    )]
    Node(NodeArgs),
}

#[derive(Debug, Args)]
struct Where {
    /// What `berth up` was told
    #[arg(long, value_name = "DIR", default_value = DATA_DIR)]
    data_dir: PathBuf,
    /// How to reach another API server
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
            None => remote(&self.data_dir.join("kubeconfig"), "berth"),
        }
    }
}

#[derive(Debug, Args)]
struct PodArgs {
    name: String,
    /// The pod's namespace
    #[arg(short, long, value_name = "NAMESPACE", default_value = "default")]
    namespace: String,
    #[command(flatten)]
    place: Where,
    #[arg(short, long, default_value = "text", value_enum, value_name = "FORMAT")]
    output: super::node::Output,
}

#[derive(Debug, Args)]
struct NodeArgs {
    /// The node's name; may be left out where there is one
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
        What::Pod(args) => pod(args),
        What::Node(args) => node(args),
    }
}

fn pod(args: &PodArgs) -> anyhow::Result<ExitCode> {
    let api = args.place.client()?;
    let (pod, nodes, pods, events) = block_on(async {
        let wanted: Result<Value, _> = api.get(PODS, &args.namespace, &args.name).await;
        let pod = match wanted {
            Err(error) if error.is_not_found() => {
                let text = format!("there is no pod {:?} in {:?}", args.name, args.namespace);
                return Err(BadInput::new(text).into());
            }
            other => other?,
        };
        let uid = pod["metadata"]["uid"].as_str().unwrap_or_default();
        let about = Scope {
            namespace: args.namespace.clone(),
            field_selector: format!("involvedObject.uid={uid}"),
            ..Scope::default()
        };
        let events = api.list_values(EVENTS, &about).await?;
        let nodes = api.list_values(NODES, &Scope::default()).await?;
        let pods = api.list_values(PODS, &Scope::default()).await?;
        Ok((pod, nodes, pods, events))
    })?;
    let occupant = occupant(&pod)?;
    let bound = pod["spec"]["nodeName"].as_str();
    // Whoever is refused stays where he is bound; others are told of every node.
    let asked = nodes.iter().filter(|node| bound.is_none_or(|bound| name_of(node) == bound));
    let mut answers = Vec::new();
    for node in asked.take(MOST_NODES) {
        answers.push(match live(node, &pods)? {
            Ok(live) => live.answer(&occupant),
            Err(why) => NodeAnswer::unknown(name_of(node), why),
        });
    }
    if bound.is_none() && nodes.len() > MOST_NODES {
        input::note(&format!("{} nodes are not shown", nodes.len() - MOST_NODES));
    }
    let refused = !answers.is_empty() && answers.iter().all(|answer| answer.refusal.is_some());
    let phase = pod["status"]["phase"].as_str().unwrap_or("Unknown");
    let phase = match bound {
        Some(node) => format!("{phase} on {node}"),
        None => phase.to_owned(),
    };
    let explanation = Explanation::new(&occupant, phase, said(&pod, &events), answers);
    let terminal = Terminal::of_standard_output(args.place.color);
    let json = || serde_json::to_string(&explanation).context("an explanation cannot be written");
    let text = match args.output {
        super::node::Output::Text => {
            text::render(&explanation, Look { colour: terminal.colours, explain: true })
        }
        super::node::Output::Json => lay_out(&json()?),
        super::node::Output::Yaml => lay_out_in_blocks(&json()?),
    };
    terminal.print(&text)?;
    Ok(if refused { ExitCode::from(3) } else { ExitCode::SUCCESS })
}

fn node(args: &NodeArgs) -> anyhow::Result<ExitCode> {
    let api = args.place.client()?;
    let (nodes, pods) = block_on(async {
        let nodes = api.list_values(NODES, &Scope::default()).await?;
        let pods = api.list_values(PODS, &Scope::default()).await?;
        Ok((nodes, pods))
    })?;
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
    let live = live(node, &pods)?
        .map_err(|why| BadInput::new(format!("node {:?}: {why}", name_of(node))))?;
    let report = live.machine_report(true);
    let terminal = Terminal::of_standard_output(args.place.color);
    let json = || serde_json::to_string(&report).context("a report cannot be written");
    let text = match args.output {
        NodeOutput::Text => {
            let look = Look { colour: terminal.colours, explain: true };
            render_text(&live.picture(), terminal.text(args.ascii))
                + "\n"
                + &render_machine(&report, look)
        }
        NodeOutput::Json => lay_out(&json()?),
        NodeOutput::Yaml => lay_out_in_blocks(&json()?),
        NodeOutput::Svg => render_svg(&live.picture()),
    };
    terminal.print(&text)?;
    Ok(ExitCode::SUCCESS)
}

fn name_of(object: &Value) -> &str {
    object["metadata"]["name"].as_str().unwrap_or_default()
}

/// A node with the pods that have something of it, or why nothing is known of it.
fn live(node: &Value, pods: &[Value]) -> anyhow::Result<Result<LiveNode, String>> {
    let name = name_of(node);
    let annotations: BTreeMap<String, String> =
        serde_json::from_value(node["metadata"]["annotations"].clone()).unwrap_or_default();
    let report = match NodeReport::parse(&annotations) {
        Ok(Some(report)) => report,
        Ok(None) => return Ok(Err("it reports no machine; Berth's agent does".to_owned())),
        Err(error) => return Ok(Err(format!("what it reports cannot be used: {error}"))),
    };
    let here = pods.iter().filter(|pod| pod["spec"]["nodeName"] == name);
    let over =
        |pod: &&Value| matches!(pod["status"]["phase"].as_str(), Some("Succeeded" | "Failed"));
    let occupants = here.filter(|pod| !over(pod)).map(occupant).collect::<Result<_, _>>()?;
    Ok(Ok(LiveNode { name: name.to_owned(), report, pods: occupants }))
}

fn occupant(object: &Value) -> anyhow::Result<Occupant> {
    let metadata = &object["metadata"];
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let (namespace, name) = (text(&metadata["namespace"]), text(&metadata["name"]));
    let owner = &metadata["ownerReferences"][0];
    let workload = match owner.is_object() {
        true => format!("{}/{}", text(&owner["kind"]), text(&owner["name"])),
        false => format!("Pod/{name}"),
    };
    // Only what placement reads of it.
    let written = serde_json::json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": object["spec"],
    });
    let read = workload::read(&written.to_string()).map_err(|errors| {
        let errors: Vec<String> = errors.iter().map(ToString::to_string).collect();
        anyhow::anyhow!("pod {namespace}/{name} cannot be read: {}", errors.join("; "))
    })?;
    let first = read.workloads.into_iter().next();
    let pod = first.with_context(|| format!("pod {namespace}/{name} cannot be read"))?;
    Ok(Occupant {
        uid: PodUid::new(&text(&metadata["uid"])),
        namespace,
        name,
        workload,
        pod: Pod::clone(&pod.template),
    })
}

/// What scheduler and agent said of the pod's place.
fn said(pod: &Value, events: &[Value]) -> Vec<String> {
    let mut said = Vec::new();
    let status = &pod["status"];
    if let (Some(reason), Some(message)) = (status["reason"].as_str(), status["message"].as_str()) {
        said.push(format!("{reason}: {message}"));
    }
    let conditions = status["conditions"].as_array().into_iter().flatten();
    for condition in conditions.filter(|condition| condition["type"] == "PodScheduled") {
        if let Some(message) = condition["message"].as_str().filter(|text| !text.is_empty()) {
            said.push(message.to_owned());
        }
    }
    for event in events {
        let reason = event["reason"].as_str().unwrap_or_default();
        let about_place = ["Placed", "NotPlaced", "MemoryAffinityNotGuaranteed"].contains(&reason)
            || reason.starts_with("Placement");
        if about_place {
            said.push(format!("{reason}: {}", event["message"].as_str().unwrap_or_default()));
        }
    }
    said
}
