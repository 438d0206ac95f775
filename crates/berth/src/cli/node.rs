//! `berth up`, `berth down`, `berth status` and `berth agent`: the node of this machine.

use std::io::Write as _;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use clap::Args;
use client::kind::{NODES, PODS};
use client::{Client, Kubeconfig, Patience, Remote, Scope};
use cri::Endpoint;
use objects::{FeatureGates, Gate, KubeletConfig};
use placement::{Bytes, Machine};
use serde_json::{Value, json};
use tokio::sync::watch;

use super::target::{DataDir, Target, TargetArgs, absolute, client_for};
use super::{BadInput, admission, begin_logging, input};
use crate::instance_lock::{self, InstanceLock, PodsOnExit};
use crate::logging::LogOptions;
use crate::server;
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
    /// The node's configuration, a KubeletConfiguration
    #[arg(long, value_name = "FILE")]
    config: Option<String>,
    /// The container runtime, such as unix:///run/containerd/containerd.sock
    #[arg(long, value_name = "ENDPOINT")]
    container_runtime_endpoint: Option<String>,
    /// Feature gates to enable or disable: A=true,B=false
    #[arg(long, value_name = "GATES")]
    feature_gates: Option<String>,
    /// The node's name [default: the machine's host name]
    #[arg(long, value_name = "NAME")]
    hostname_override: Option<String>,
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

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    berth agent --kubeconfig /etc/kubernetes/kubelet.conf --config /var/lib/kubelet/config.yaml\n\n\
    It replaces a kubelet, with the same configuration, state files, directories and port. Stop the\n\
    kubelet first.")]
pub(super) struct AgentArgs {
    /// Kubeconfig with the API server's address and the node's credentials
    #[arg(long, value_name = "FILE")]
    kubeconfig: PathBuf,
    /// The node's configuration, a KubeletConfiguration
    #[arg(long, value_name = "FILE")]
    config: Option<String>,
    /// The container runtime, such as unix:///run/containerd/containerd.sock
    #[arg(long, value_name = "ENDPOINT")]
    container_runtime_endpoint: Option<String>,
    /// Feature gates to enable or disable: A=true,B=false
    #[arg(long, value_name = "GATES")]
    feature_gates: Option<String>,
    /// The node's name [default: the machine's host name]
    #[arg(long, value_name = "NAME")]
    hostname_override: Option<String>,
    /// Directory of state files and pod directories
    #[arg(long, value_name = "DIR", default_value = "/var/lib/kubelet", value_parser = absolute())]
    root_dir: PathBuf,
    #[command(flatten)]
    log: LogOptions,
}

/// Reads and checks the configuration of a node, and returns it with its source as JSON.
fn configuration(
    file: Option<&str>,
    gates: Option<&str>,
    machine: &Machine,
) -> anyhow::Result<(KubeletConfig, Value)> {
    let Some(file) = file else {
        let mut config = KubeletConfig::default();
        if let Some(text) = gates {
            config.feature_gates = with_gates(config.feature_gates, text)?;
        }
        return Ok((config, json!({})));
    };
    let mut given = input::configuration(file)?;
    if let Some(text) = gates {
        given.config.feature_gates = with_gates(given.config.feature_gates, text)?;
    }
    given.check(machine)?;
    let (documents, _) = objects::yaml::parse(&given.text);
    let written = documents.first().map(|document| document.to_json());
    Ok((given.config, written.unwrap_or_else(|| json!({}))))
}

/// Rejects an invalid node name before anything is started.
fn check_name(given: Option<&str>) -> Result<(), BadInput> {
    let hostname = host::os::facts::identity().hostname;
    let checked = agent::node::node_name(given, &hostname);
    checked.map(drop).map_err(|error| BadInput::new(error.to_string()))
}

fn with_gates(gates: FeatureGates, text: &str) -> Result<FeatureGates, BadInput> {
    gates.with(text).map_err(|errors| {
        BadInput(errors.iter().map(|error| format!("--feature-gates: {error}")).collect())
    })
}

/// Returns the runtime's endpoint with its description for the banner.
fn runtime(given: Option<&str>, config: &KubeletConfig) -> anyhow::Result<(Endpoint, String)> {
    let named = given.or(config.container_runtime_endpoint.as_deref());
    if let Some(text) = named {
        let endpoint = Endpoint::parse(text)
            .map_err(|error| BadInput::new(format!("--container-runtime-endpoint: {error}")))?;
        return Ok((endpoint.clone(), endpoint.to_string()));
    }
    let usual = Endpoint::usual();
    if let Some(found) = usual.iter().find(|endpoint| endpoint.is_there()) {
        return Ok((found.clone(), found.to_string()));
    }
    let first =
        usual.into_iter().next().context("no default runtime endpoint on this operating system")?;
    let advice = format!(
        "not found; pods stay Pending until containerd listens at {first} (on Debian: apt-get install \
         containerd); --container-runtime-endpoint selects another runtime"
    );
    Ok((first, advice))
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

pub(super) fn up(args: UpArgs) -> anyhow::Result<ExitCode> {
    let started = Instant::now();
    begin_logging(&args.log)?;
    let gates = args.feature_gates.as_deref();
    check_name(args.hostname_override.as_deref())?;
    let machine = input::machine(None)?;
    let (mut config, written) = configuration(args.config.as_deref(), gates, &machine)?;
    let data_dir = args.data_dir.path();
    // The API server in this process enables the gate by default.
    config.feature_gates = config.feature_gates.on_unless_said(Gate::QosResources);
    let (endpoint, runtime_text) = runtime(args.container_runtime_endpoint.as_deref(), &config)?;
    let mut control = server::Settings::new(data_dir.clone());
    if let Some(text) = gates {
        control.gates = with_gates(control.gates.clone(), text)?;
    }
    control.address = SocketAddr::new(args.bind_address, args.https_listen_port);
    args.admission.choose(&mut control.plugins)?;
    let lock = server::lock_data_dir(&data_dir)?;
    let settings = up::Settings {
        server: control,
        node_name: args.hostname_override,
        configuration: written,
        machine,
        runtime: endpoint,
        root: data_dir.join("agent"),
        logs: data_dir.join("logs"),
        log_links: None,
        agent_address: args.agent_address,
        agent_port: args.agent_port,
        config,
    };
    server::maintenance::raise_limits();
    run(async {
        let node = Node::start(&settings).await?;
        let kubeconfig = data_dir.join("kubeconfig").display().to_string();
        let text = format!(
            "Berth is up after {:.0} ms.\n  API      https://{}\n  \
             agent    {}; --agent-address changes it\n  node     {} ({})\n  runtime  {runtime_text}\n\
             {}  shell    export KUBECONFIG={kubeconfig}\n  \
             kubectl  kubectl --kubeconfig {kubeconfig} get nodes\n",
            started.elapsed().as_secs_f64() * 1000.0,
            node.server().address(),
            listens_on(node.agent_address()),
            node.name(),
            describe(&settings.machine),
            without_root(),
        );
        // Standard output may be closed.
        let _ = std::io::stdout().write_all(text.as_bytes());
        let (stop, stopping) = watch::channel(None);
        let running = tokio::spawn(node.run(stopping));
        notify_service_manager("READY=1");
        let pods = tokio::select! {
            pods = lock.shutdown_requested() => pods,
            () = interrupted() => PodsOnExit::Keep,
        };
        notify_service_manager("STOPPING=1");
        stop.send_replace(Some(pods));
        running.await.context("the node failed")?;
        tracing::info!("stopped");
        drop(lock);
        Ok(ExitCode::SUCCESS)
    })
}

/// Lists the features that a node without root lacks; empty with root, or if the user is unknown.
fn without_root() -> &'static str {
    match host::neighbours::effective_user(Path::new("/proc")) {
        None | Some(0) => "",
        Some(_) => {
            "  user     not root: no cgroups of pods (requests, limits and pinning of pods as a whole), no \
             mounts\n           (secrets, tokens and memory-backed volumes), and often no access to the \
             runtime's socket;\n           run berth up as root for these\n"
        }
    }
}

fn notify_service_manager(state: &str) {
    if let Err(error) = host::os::service::tell(state) {
        input::warn(&format!("failed to notify the service manager of {state}: {error}"));
    }
}

/// Formats the address of the agent's server.
fn listens_on(address: SocketAddr) -> String {
    let every = if address.ip().is_unspecified() { " (every address of this machine)" } else { "" };
    format!("https://{address}{every}")
}

pub(super) fn run<T>(work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    crate::memory::runtime()?.block_on(work)
}

/// Waits for SIGINT or SIGTERM.
async fn interrupted() {
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
    let remote = Remote::new(config, name, Patience::default())?;
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
        Output::Yaml => placement::layout::lay_out_in_blocks(&view.to_string()),
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

pub(super) fn agent(args: AgentArgs) -> anyhow::Result<ExitCode> {
    begin_logging(&args.log)?;
    let machine = input::machine(None)?;
    let gates = args.feature_gates.as_deref();
    check_name(args.hostname_override.as_deref())?;
    let (config, written) = configuration(args.config.as_deref(), gates, &machine)?;
    let (endpoint, runtime_text) = runtime(args.container_runtime_endpoint.as_deref(), &config)?;
    let Some(lock) = InstanceLock::acquire(&args.root_dir)
        .with_context(|| format!("cannot use {}", args.root_dir.display()))?
    else {
        anyhow::bail!("an agent runs on {} already", args.root_dir.display());
    };
    let text = |name: &str| config.untyped.get(name).and_then(Value::as_str).map(PathBuf::from);
    let joined = AgentSettings {
        node_name: args.hostname_override,
        configuration: written,
        machine,
        runtime: endpoint,
        logs: text("podLogsDir").unwrap_or_else(|| PathBuf::from("/var/log/pods")),
        log_links: Some(PathBuf::from("/var/log/containers")),
        address: None,
        certificate: (text("tlsCertFile"), text("tlsPrivateKeyFile")),
        client_authority: client_authority(&config),
        root: args.root_dir,
        config,
    };
    server::maintenance::raise_limits();
    run(async {
        let api = remote(&args.kubeconfig, "kubelet")?;
        let (agent, address) = joined.prepare(api).await?;
        let text = format!(
            "Berth's agent runs; the runtime: {runtime_text}\n  agent    {}; `address` and `port` of the \
             configuration change it\n",
            listens_on(address),
        );
        // Standard output may be closed.
        let _ = std::io::stdout().write_all(text.as_bytes());
        let (stop, stopping) = watch::channel(None);
        let running = tokio::spawn(agent.run(stopping));
        notify_service_manager("READY=1");
        let pods = tokio::select! {
            pods = lock.shutdown_requested() => pods,
            () = interrupted() => PodsOnExit::Keep,
        };
        stop.send_replace(Some(pods.into()));
        running.await.context("the agent failed")?;
        drop(lock);
        Ok(ExitCode::SUCCESS)
    })
}

/// Returns `authentication.x509.clientCAFile`.
fn client_authority(config: &KubeletConfig) -> Option<PathBuf> {
    let file = config.untyped.get("authentication")?["x509"]["clientCAFile"].as_str()?;
    Some(PathBuf::from(file))
}
