//! The place of a node: which data directory or API server a command is about.
//!
//! Main types: [`DataDir`], for commands that start or restore a control plane, and [`TargetArgs`], for
//! commands that look for one that runs. Nothing is started or connected to here.

use std::env;
use std::path::{Path, PathBuf};

use clap::Args;
use clap::builder::{PathBufValueParser, TypedValueParser};
use client::Client;

use super::BadInput;
use super::node::remote;
use crate::instance_lock;

/// The data directory where no other is given.
pub(super) const DEFAULT_DATA_DIR: &str = "/var/lib/berth";

/// The environment variable that names the data directory.
const DATA_DIR: &str = "BERTH_DATA_DIR";

/// The environment variable that names the files kubectl reads.
const KUBECONFIG: &str = "KUBECONFIG";

/// The file of an administrator in a data directory.
const ADMINISTRATOR: &str = "kubeconfig";

/// Makes a path absolute: it is handed to other processes, the runtime first of all.
pub(super) fn absolute() -> impl TypedValueParser<Value = PathBuf> {
    PathBufValueParser::new().try_map(std::path::absolute)
}

/// The directory a control plane is made in.
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

/// The control plane a command looks for.
#[derive(Debug, Args)]
pub(super) struct TargetArgs {
    /// Directory that `berth up` or `berth server` was given
    /// [default: $BERTH_DATA_DIR, the node of $KUBECONFIG, or /var/lib/berth]
    #[arg(long, value_name = "DIR", value_parser = absolute())]
    data_dir: Option<PathBuf>,
}

/// A control plane that was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Target {
    /// By its data directory on this machine.
    Directory(PathBuf),
    /// By a kubeconfig alone: it may run anywhere.
    Kubeconfig(PathBuf),
}

impl TargetArgs {
    /// The data directory, whether or not a node runs on it.
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

    /// A client of the API server that was found.
    pub(super) fn client(&self) -> anyhow::Result<Client> {
        match self.resolve() {
            Target::Kubeconfig(file) => remote(&file, "berth"),
            Target::Directory(directory) => client_for(&directory),
        }
    }
}

/// A client of the control plane on a data directory, as its administrator.
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

/// The first file of `KUBECONFIG` that exists, as kubectl reads the variable; the first one of all if none
/// exists, so that an error names it.
fn kubeconfig_of_environment() -> Option<PathBuf> {
    let list = env::var_os(KUBECONFIG)?;
    let files: Vec<PathBuf> =
        env::split_paths(&list).filter(|file| !file.as_os_str().is_empty()).collect();
    let file = files.iter().find(|file| file.exists()).or(files.first())?;
    std::path::absolute(file).ok()
}
