//! The data directory or API server that a command works on.
//!
//! Main types: [`DataDir`], for commands that start or restore a control plane, and [`TargetArgs`],
//! for commands that look for a running one. Nothing is started or connected here.

use std::env;
use std::path::{Path, PathBuf};

use clap::Args;
use clap::builder::{PathBufValueParser, TypedValueParser};
use client::Client;

use super::BadInput;
use super::node::remote;
use crate::instance_lock;

/// The default data directory.
pub(super) const DEFAULT_DATA_DIR: &str = "/var/lib/berth";

/// The environment variable that names the data directory.
const DATA_DIR: &str = "BERTH_DATA_DIR";

/// The environment variable that names the files kubectl reads.
const KUBECONFIG: &str = "KUBECONFIG";

/// The administrator's kubeconfig in a data directory.
const ADMINISTRATOR: &str = "kubeconfig";

/// Makes the path absolute, because it is passed to other processes such as the runtime.
pub(super) fn absolute() -> impl TypedValueParser<Value = PathBuf> {
    PathBufValueParser::new().try_map(std::path::absolute)
}

/// The data directory of a new control plane.
#[derive(Debug, Args)]
pub(super) struct DataDir {
    /// Directory of the store, the keys and the agent's files
    /// [default: $BERTH_DATA_DIR, or /var/lib/berth]
    #[arg(long, value_name = "DIR", value_parser = absolute())]
    data_dir: Option<PathBuf>,
}

impl DataDir {
    pub(super) fn path(&self) -> PathBuf {
        self.data_dir
            .clone()
            .or_else(from_environment)
            .unwrap_or_else(|| PathBuf::from(DEFAULT_DATA_DIR))
    }
}

/// The flags that select a running control plane.
#[derive(Debug, Args)]
pub(super) struct TargetArgs {
    /// Data directory of the running node
    /// [default: $BERTH_DATA_DIR, the node of $KUBECONFIG, or /var/lib/berth]
    #[arg(long, value_name = "DIR", value_parser = absolute())]
    data_dir: Option<PathBuf>,
}

/// The control plane that was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Target {
    /// A data directory on this machine.
    Directory(PathBuf),
    /// A kubeconfig; the control plane may run anywhere.
    Kubeconfig(PathBuf),
}

impl TargetArgs {
    /// Returns the data directory, even if no node runs on it.
    pub(super) fn directory(&self) -> PathBuf {
        match self.resolve() {
            Target::Directory(directory) => directory,
            Target::Kubeconfig(_) => PathBuf::from(DEFAULT_DATA_DIR),
        }
    }

    pub(super) fn resolve(&self) -> Target {
        let given = self.data_dir.clone().or_else(from_environment);
        if let Some(directory) = given {
            return Target::Directory(directory);
        }
        match kubeconfig_of_environment() {
            None => Target::Directory(PathBuf::from(DEFAULT_DATA_DIR)),
            Some(file) => match file.parent().filter(|parent| instance_lock::is_data_dir(parent)) {
                Some(directory) => Target::Directory(directory.to_owned()),
                None => Target::Kubeconfig(file),
            },
        }
    }

    /// Returns a client of the API server.
    pub(super) fn client(&self) -> anyhow::Result<Client> {
        match self.resolve() {
            Target::Kubeconfig(file) => remote(&file, "berth"),
            Target::Directory(directory) => client_for(&directory),
        }
    }
}

/// Returns an administrator's client of the control plane on a data directory.
pub(super) fn client_for(directory: &Path) -> anyhow::Result<Client> {
    let file = directory.join(ADMINISTRATOR);
    if !file.try_exists().unwrap_or(true) {
        let directory = directory.display();
        return Err(BadInput::new(format!(
            "{directory} holds no control plane: there is no {}. Start one with `berth up`, or name \
             the one you mean with --data-dir, {DATA_DIR} or {KUBECONFIG}",
            file.display()
        ))
        .into());
    }
    remote(&file, "berth")
}

fn from_environment() -> Option<PathBuf> {
    let given = env::var_os(DATA_DIR).filter(|given| !given.is_empty())?;
    std::path::absolute(given).ok()
}

/// Returns the first existing file of `KUBECONFIG`, as kubectl does; the first file if none exists,
/// so that an error names it.
fn kubeconfig_of_environment() -> Option<PathBuf> {
    let list = env::var_os(KUBECONFIG)?;
    let files: Vec<PathBuf> =
        env::split_paths(&list).filter(|file| !file.as_os_str().is_empty()).collect();
    let file = files.iter().find(|file| file.exists()).or(files.first())?;
    std::path::absolute(file).ok()
}
