//! `berth class-layer`: the QoS-class layer between a kubelet or agent and its container runtime.
//!
//! The layer itself is [`runtime::ClassLayer`]. This command reads the files, listens, checks regularly that the classes
//! are in force, and reads the files again when they change.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use cri::{Endpoint, Listener};
use runtime::kernel_classes::{ClassFiles, KernelClasses};
use runtime::{ClassLayer, kernel_classes::ClassFilesError};
use tracing::{info, warn};

use super::node::{interrupted, notify_service_manager, run};
use super::{BadInput, begin_logging};
use crate::logging::LogOptions;
use crate::tasks::TaskSet;
use client::{ErrorLog, error_chain};

/// The time between two checks of what is in force, and of the class files.
const CHECK_INTERVAL: Duration = Duration::from_secs(10);

/// The time that calls have to end after a stop request.
const DRAIN: Duration = Duration::from_secs(5);

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    berth class-layer --runtime unix:///run/containerd/containerd.sock \\\n    \
    --listen unix:///run/berth/class-layer.sock --classes /etc/berth/classes.yaml\n\n\
    Then start the kubelet with --container-runtime-endpoint unix:///run/berth/class-layer.sock. Calls without classes\n\
    are forwarded unchanged. The files are read again when they change; a file with an error changes nothing.")]
pub(super) struct ClassLayerArgs {
    /// Endpoint on which the layer listens
    #[arg(long, value_name = "ENDPOINT")]
    listen: String,
    /// Endpoint of the container runtime
    #[arg(long, value_name = "ENDPOINT")]
    runtime: String,
    /// Class file of Berth
    #[arg(long, value_name = "FILE")]
    classes: Option<PathBuf>,
    /// RDT classes in goresctrl's format, as for containerd and CRI-O
    #[arg(long, value_name = "FILE")]
    rdt_config_file: Option<PathBuf>,
    /// Block I/O classes in goresctrl's format, as for containerd and CRI-O
    #[arg(long, value_name = "FILE")]
    blockio_config_file: Option<PathBuf>,
    /// Directory for classes that are changed while their container runs
    #[arg(long, value_name = "DIR", default_value = "/run/berth/class-layer")]
    state_dir: PathBuf,
    #[command(flatten)]
    log: LogOptions,
}

pub(super) fn run_layer(args: ClassLayerArgs) -> anyhow::Result<ExitCode> {
    begin_logging(&args.log)?;
    let listen = endpoint("--listen", &args.listen)?;
    let runtime = endpoint("--runtime", &args.runtime)?;
    let files = ClassFiles {
        classes: args.classes,
        rdt: args.rdt_config_file,
        blockio: args.blockio_config_file,
    };
    if files == ClassFiles::default() {
        let flags = "--classes, --rdt-config-file and --blockio-config-file";
        return Err(BadInput::new(format!("at least one of {flags} is required")).into());
    }
    let classes = Arc::new(KernelClasses::load(files).map_err(bad_files)?);
    run(async {
        let layer = ClassLayer::new(&runtime, Arc::clone(&classes) as _, &args.state_dir)?;
        let listener =
            Listener::bind(&listen).await.with_context(|| format!("cannot listen on {listen}"))?;
        let text = format!("Berth's class layer runs on {listen}; the runtime: {runtime}\n");
        // Standard output may be closed.
        let _ = std::io::stdout().write_all(text.as_bytes());
        notify_service_manager("READY=1");
        let mut tasks = TaskSet::default();
        tasks.spawn("check of classes", check(classes, layer.clone()));
        let outcome = tokio::select! {
            served = cri::serve_service(listener, layer, interrupted(), DRAIN) => {
                served.map(drop).map_err(anyhow::Error::from)
            }
            failure = tasks.failure() => Err(failure.into()),
        };
        notify_service_manager("STOPPING=1");
        tasks.stop().await;
        outcome.map(|()| ExitCode::SUCCESS)
    })
}

fn endpoint(flag: &str, text: &str) -> Result<Endpoint, BadInput> {
    Endpoint::parse(text).map_err(|error| BadInput::new(format!("{flag}: {error}")))
}

/// Errors of files are the user's; other errors are the machine's.
fn bad_files(error: ClassFilesError) -> anyhow::Error {
    match &error {
        ClassFilesError::Invalid { .. } => {
            BadInput(error.to_string().lines().map(str::to_owned).collect()).into()
        }
        _ => error.into(),
    }
}

/// Puts classes in force again that something else changed, and reads changed files.
async fn check(classes: Arc<KernelClasses>, layer: ClassLayer) {
    let mut seen = contents(&classes);
    let mut runtime_errors = ErrorLog::default();
    loop {
        let now = contents(&classes);
        if now != seen {
            seen = now;
            match classes.reload() {
                Ok(()) => info!("read the changed class files"),
                Err(error) => warn!(
                    error = %error_chain(&error),
                    "failed to read the changed class files; the classes before the change stay"
                ),
            }
        }
        match layer.reconcile().await {
            Ok(failures) => {
                if runtime_errors.recovered().is_some() {
                    info!("the container runtime responds again");
                }
                for (id, status) in failures {
                    warn!(
                        id,
                        error = status.message(),
                        "failed to put classes in force; will retry"
                    );
                }
            }
            Err(error) => {
                if runtime_errors.failed(&error) {
                    warn!(%error, "failed to list the containers of the runtime; will retry");
                }
            }
        }
        tokio::time::sleep(CHECK_INTERVAL).await;
    }
}

/// Returns the contents of the class files. They are small.
fn contents(classes: &KernelClasses) -> BTreeMap<PathBuf, Option<Vec<u8>>> {
    let read = |path: &Path| std::fs::read(path).ok();
    classes.watched_files().into_iter().map(|path| (path.clone(), read(&path))).collect()
}
