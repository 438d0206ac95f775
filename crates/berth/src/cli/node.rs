//! `berth up`, `berth down` and `berth status`: the node of this machine with its own control plane.

use std::io::Write as _;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use clap::Args;
use client::kind::{NODES, PODS};
use client::{Client, Kubeconfig, Remote, Scope, Timeouts};
use objects::Gate;
use placement::{Bytes, Machine};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinError;

use super::node_options::{NodeOptions, with_gates};
use super::target::{DataDir, Target, TargetArgs, client_for};
use super::{BadInput, admission, begin_logging, input};
use crate::instance_lock::{self, InstanceLock, PodsOnExit};
use crate::logging::LogOptions;
use crate::server;
use crate::tasks::TaskError;
use crate::terminal::{Colours, Terminal};
use crate::up::{self, AgentSettings, Node};

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    berth up --data-dir ./here\n  \
    berth up --config kubelet.yaml --container-runtime-endpoint unix:///run/containerd/containerd.sock\n  \
    kubectl --kubeconfig ./here/kubeconfig get nodes\n\n\
    Without an endpoint, the default sockets of containerd and CRI-O are tried. Without a runtime the\n\
    API is served and pods stay Pending.\n\
    Ctrl-C and `berth down --keep-pods` stop the node and keep pods running; the next start adopts\n\
    them. `berth down` stops pods first.")]
pub(super) struct UpArgs {
    #[command(flatten)]
    data_dir: DataDir,
    #[command(flatten)]
    node: NodeOptions,
    /// Address that the API server listens on
    #[arg(long, value_name = "ADDRESS", default_value_t = IpAddr::V4(Ipv4Addr::LOCALHOST))]
    bind_address: IpAddr,
    /// Port that the API server listens on; 0 for a free one
    #[arg(long, value_name = "PORT", default_value_t = 6443)]
    https_listen_port: u16,
    /// Address that the agent listens on [default: `address` of the configuration, or the node's
    /// address]
    #[arg(long, value_name = "ADDRESS")]
    agent_address: Option<IpAddr>,
    /// Port that the agent listens on; 0 for a free one [default: `port` of the configuration, or
    /// 10250]
    #[arg(long, value_name = "PORT")]
    agent_port: Option<u16>,
    #[command(flatten)]
    admission: admission::Args,
    #[command(flatten)]
    log: LogOptions,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    berth down --data-dir ./here\n  \
    berth down --keep-pods                       keep pods running; the next `berth up` adopts them")]
pub(super) struct DownArgs {
    #[command(flatten)]
    target: TargetArgs,
    /// Keep pods running
    #[arg(long)]
    keep_pods: bool,
    /// Seconds to wait for the node to stop
    #[arg(long, value_name = "SECONDS", default_value_t = 120)]
    timeout: u64,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  berth status --data-dir ./here\n  berth status -o json\n\n\
    Exit codes: 0 the node is ready, 1 it is not ready or not running.")]
pub(super) struct StatusArgs {
    #[command(flatten)]
    target: TargetArgs,
    #[arg(short, long, default_value = "text", value_enum, value_name = "FORMAT")]
    output: Output,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub(super) enum Output {
    Text,
    Json,
    Yaml,
}

pub(super) fn up(args: UpArgs) -> anyhow::Result<ExitCode> {
    let started = Instant::now();
    begin_logging(&args.log)?;
    let data_dir = args.data_dir.path();
    let mut control = server::Settings::new(data_dir.clone());
    if let Some(gates) = &args.node.feature_gates {
        control.gates = with_gates(control.gates.clone(), gates)?;
    }
    control.address = SocketAddr::new(args.bind_address, args.https_listen_port);
    args.admission.choose(&mut control.plugins)?;
    let mut setup = args.node.read()?;
    // The API server in this process enables the gate by default.
    let gates = setup.config.feature_gates;
    setup.config.feature_gates = gates.on_unless_said(Gate::QosResources);
    let runtime_text = setup.runtime_text.clone();
    let machine_text = describe(&setup.machine);
    let lock = server::lock_data_dir(&data_dir)?;
    let settings = up::Settings {
        server: control,
        agent: AgentSettings {
            root: data_dir.join("agent"),
            logs: data_dir.join("logs"),
            log_links: None,
            address: args.agent_address,
            port: args.agent_port,
            ..setup.into_agent_settings()
        },
    };
    server::maintenance::raise_limits();
    run(async {
        let node = Node::start(&settings).await?;
        let kubeconfig = data_dir.join("kubeconfig").display().to_string();
        let text = format!(
            "Berth is up after {:.0} ms.\n  API      https://{}\n  \
             agent    {}; --agent-address changes it\n  node     {} ({machine_text})\n  \
             runtime  {runtime_text}\n\
             {}  shell    export KUBECONFIG={kubeconfig}\n  \
             kubectl  kubectl --kubeconfig {kubeconfig} get nodes\n",
            started.elapsed().as_secs_f64() * 1000.0,
            node.server().address(),
            listens_on(node.agent_address()),
            node.name(),
            without_root(),
        );
        // Standard output may be closed.
        let _ = std::io::stdout().write_all(text.as_bytes());
        let (stop, stopping) = watch::channel(None);
        let mut running = tokio::spawn(node.run(stopping));
        notify_service_manager("READY=1");
        let pods = tokio::select! {
            pods = shutdown_requested(&lock) => pods,
            ended = &mut running => return Err(early_end(ended)),
        };
        notify_service_manager("STOPPING=1");
        stop.send_replace(Some(pods));
        running.await.context("the node failed")??;
        tracing::info!("stopped");
        drop(lock);
        Ok(ExitCode::SUCCESS)
    })
}

/// Turns the early end of a node or agent into an error. The cause is logged already.
pub(super) fn early_end(ended: Result<Result<(), TaskError>, JoinError>) -> anyhow::Error {
    match ended {
        Ok(Ok(())) => anyhow::anyhow!("stopped unexpectedly"),
        Ok(Err(error)) => error.into(),
        Err(error) => error.into(),
    }
}

/// Waits for a signal or for `berth down`.
pub(super) async fn shutdown_requested(lock: &InstanceLock) -> PodsOnExit {
    tokio::select! {
        pods = lock.shutdown_requested() => pods,
        () = interrupted() => PodsOnExit::Keep,
    }
}

/// Describes this machine in one line.
fn describe(machine: &Machine) -> String {
    let topology = &machine.topology;
    format!(
        "{} CPUs on {} cores, {} NUMA node{}, {} of memory",
        topology.all_cpus().len(),
        topology.cores().len(),
        topology.nodes().len(),
        if topology.nodes().len() == 1 { "" } else { "s" },
        Bytes(placement::configured::total_memory(topology)).rounded(),
    )
}

/// Lists the features that a node without root lacks; empty with root, or if the user is unknown.
fn without_root() -> &'static str {
    match host::processes::effective_user(Path::new("/proc")) {
        None | Some(0) => "",
        Some(_) => {
            "  user     not root: no cgroups of pods (requests, limits and pinning of pods as a whole), no \
             mounts\n           (secrets, tokens and memory-backed volumes), and often no access to the \
             runtime's socket;\n           run berth up as root for these\n"
        }
    }
}

pub(super) fn notify_service_manager(state: &str) {
    if let Err(error) = host::os::service::notify(state) {
        input::warn(&format!("failed to notify the service manager of {state}: {error}"));
    }
}

/// Formats the address of the agent's server.
pub(super) fn listens_on(address: SocketAddr) -> String {
    let every = if address.ip().is_unspecified() { " (every address of this machine)" } else { "" };
    format!("https://{address}{every}")
}

pub(super) fn run<T>(work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    crate::memory::block_on(work)?
}

/// Waits for SIGINT or SIGTERM.
pub(super) async fn interrupted() {
    let (stop, mut stopping) = watch::channel(false);
    let set = ctrlc::set_handler(move || {
        let _ = stop.send(true);
    });
    if set.is_err() {
        // Without a handler only `berth down` can stop the process gracefully.
        std::future::pending::<()>().await;
    }
    let _ = stopping.wait_for(|stopping| *stopping).await;
}

pub(super) fn down(args: &DownArgs) -> anyhow::Result<ExitCode> {
    let dir = args.target.directory();
    let shown = dir.display();
    let Some(process) =
        instance_lock::holder(&dir).with_context(|| format!("cannot read {shown}"))?
    else {
        input::note(&format!("no node runs on {shown}; nothing to stop"));
        return Ok(ExitCode::SUCCESS);
    };
    let running = running_pods(&dir);
    let pods = if args.keep_pods { PodsOnExit::Keep } else { PodsOnExit::Stop };
    let begun = Instant::now();
    if !instance_lock::request_shutdown(&dir, pods, Duration::from_secs(args.timeout))? {
        anyhow::bail!(
            "the node on {shown} has not stopped after {} s; --timeout allows more time",
            args.timeout
        );
    }
    let process = process.map_or_else(String::new, |id| format!(" (process {id})"));
    let became = match (pods, running) {
        (_, None) => String::new(),
        (PodsOnExit::Stop, Some(1)) => ", 1 running pod was stopped".to_owned(),
        (PodsOnExit::Stop, Some(count)) => format!(", {count} running pods were stopped"),
        (PodsOnExit::Keep, Some(1)) => ", 1 pod keeps running".to_owned(),
        (PodsOnExit::Keep, Some(count)) => format!(", {count} pods keep running"),
    };
    let took = begun.elapsed().as_secs_f64();
    let text = format!("stopped the node on {shown}{process} in {took:.1} s{became}\n");
    Terminal::of_standard_output(Colours::Never).print(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// Counts the running pods of the node; `None` if its API server does not respond.
fn running_pods(dir: &Path) -> Option<usize> {
    let api = client_for(dir).ok()?;
    let pods = run(async { Ok(api.list_values(PODS, &Scope::default()).await?) }).ok()?;
    Some(pods.iter().filter(|pod| pod["status"]["phase"] == "Running").count())
}

pub(super) fn remote(kubeconfig: &Path, name: &'static str) -> anyhow::Result<Client> {
    let config = Kubeconfig::read(kubeconfig)
        .map_err(|error| BadInput(error.to_string().lines().map(str::to_owned).collect()))?;
    let remote = Remote::new(config, name, Timeouts::default())?;
    Ok(Client::new(Arc::new(remote), name))
}

pub(super) fn status(args: &StatusArgs) -> anyhow::Result<ExitCode> {
    let process = match args.target.resolve() {
        // A control plane found by a kubeconfig may run on another machine.
        Target::Kubeconfig(_) => None,
        Target::Directory(directory) => {
            let dir = directory.display();
            match instance_lock::holder(&directory).with_context(|| format!("cannot read {dir}"))? {
                Some(process) => process,
                None => {
                    input::note(&format!(
                        "no node runs on {dir}; start one with berth up --data-dir {dir}, or select \
                         another with --data-dir, BERTH_DATA_DIR or KUBECONFIG"
                    ));
                    return Ok(ExitCode::FAILURE);
                }
            }
        }
    };
    let api = args.target.client()?;
    let (nodes, pods) = run(async {
        let nodes = api.list_values(NODES, &Scope::default()).await?;
        let pods = api.list_values(PODS, &Scope::default()).await?;
        Ok((nodes, pods))
    })?;
    let nodes: Vec<Value> = nodes.iter().map(node_summary).collect();
    let phases = ["Running", "Pending", "Succeeded", "Failed"];
    let count = |phase: &str| pods.iter().filter(|pod| pod["status"]["phase"] == phase).count();
    let counts: serde_json::Map<String, Value> =
        phases.iter().map(|phase| ((*phase).to_owned(), count(phase).into())).collect();
    let ready = nodes.iter().all(|node| node["ready"] == true) && !nodes.is_empty();
    let view = json!({"process": process, "nodes": nodes, "pods": counts});
    let text = match args.output {
        Output::Json => serde_json::to_string_pretty(&view)? + "\n",
        Output::Yaml => objects::yaml::write::blocks(&view.to_string()),
        Output::Text => {
            let mut text = String::new();
            if nodes.is_empty() {
                text += "no node has joined\n";
            }
            for node in &nodes {
                let word = if node["ready"] == true { "ready" } else { "not ready" };
                let field = |name: &str| node[name].as_str().unwrap_or_default().to_owned();
                let why = match field("message") {
                    message if message.is_empty() || node["ready"] == true => String::new(),
                    message => format!(": {message}"),
                };
                text += &format!("node {} is {word}{why}\n", field("name"));
                text += &format!("  runtime {}\n", field("runtime"));
            }
            let counted = phases.iter().map(|phase| format!("{} {phase}", count(phase)));
            text + &format!("pods: {}\n", counted.collect::<Vec<_>>().join(", "))
        }
    };
    Terminal::of_standard_output(Colours::Never).print(&text)?;
    Ok(if ready { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn node_summary(node: &Value) -> Value {
    let conditions = node["status"]["conditions"].as_array().into_iter().flatten();
    let ready = conditions.into_iter().find(|condition| condition["type"] == "Ready");
    let ready = ready.cloned().unwrap_or_default();
    json!({
        "name": node["metadata"]["name"],
        "ready": ready["status"] == "True",
        "message": ready["message"],
        "runtime": node["status"]["nodeInfo"]["containerRuntimeVersion"],
        "allocatable": node["status"]["allocatable"],
    })
}
