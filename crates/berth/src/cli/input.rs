//! Input and output of commands: machines, configurations and manifests; text to standard output or
//! a file.
//!
//! Main entries: [`machine`], [`configuration`], [`manifests`], [`print`]. Errors are collected,
//! each with its file name; nothing is decided here.

use std::fs;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use agent::node::{Settings, SettingsError};
use anyhow::Context as _;
use objects::{FieldPath, KubeletConfig, Workload, YamlError, kubelet_config, workload};
use placement::Machine;
use placement::configured::{Configured, Finding, HostConditions};

use super::BadInput;
use crate::logging::{Notice, print_notice};
use crate::machine_source::load_machine;
use crate::terminal::Terminal;

/// Reads a machine from a file, a `sys` directory or a description; this machine by default. It
/// always has a name.
pub(super) fn machine(given: Option<&str>) -> anyhow::Result<Machine> {
    let mut machine = load_machine(given).map_err(|error| BadInput::new(format!("{error:#}")))?;
    if given.is_none() {
        machine.name = "this-machine".to_owned();
    } else if given == Some(machine.name.as_str()) {
        // A description makes no useful name.
        machine.name = "machine".to_owned();
    }
    Ok(machine)
}

/// A kubelet configuration with its source text, to locate later findings.
#[derive(Debug)]
pub(super) struct Configuration {
    pub(super) file: String,
    pub(super) text: String,
    pub(super) config: KubeletConfig,
}

/// Reads a configuration, and prints its warnings.
pub(super) fn configuration(file: &str) -> anyhow::Result<Configuration> {
    let text = text_of(file)?;
    match kubelet_config::read(&text) {
        Ok((config, warnings)) => {
            warnings.iter().for_each(|warning| warn(&format!("{file}: {warning}")));
            Ok(Configuration { file: file.to_owned(), text, config })
        }
        Err(findings) => {
            findings.warnings.iter().for_each(|warning| warn(&format!("{file}: {warning}")));
            Err(problems(file, &findings.errors).into())
        }
    }
}

impl Configuration {
    /// Runs every check of a node's start on this machine, so that `config check`, `up` and `agent`
    /// agree. Prints warnings.
    pub(super) fn check_here(&self, machine: &Machine) -> Result<Configured, BadInput> {
        self.check_with(machine, host_conditions())
    }

    /// Runs the checks of a node's start on a machine of which only the topology is known.
    pub(super) fn check(&self, machine: &Machine) -> Result<Configured, BadInput> {
        self.check_with(machine, HostConditions::default())
    }

    fn check_with(
        &self,
        machine: &Machine,
        conditions: HostConditions,
    ) -> Result<Configured, BadInput> {
        let mut findings = conditions.check(&self.config);
        let configured = Configured::new(machine, &self.config);
        findings.extend(configured.as_ref().err().into_iter().flatten().cloned());
        let field = |field: &str, message: String| Finding {
            path: FieldPath::of(field),
            message,
            remedy: None,
        };
        if let Err(errors) = Settings::of(&self.config) {
            let message =
                |error: &SettingsError| format!("{} should be {}", error.value, error.wanted);
            findings.extend(errors.iter().map(|error| field(error.field, message(error))));
        }
        if let Some(Err(error)) =
            self.config.container_runtime_endpoint.as_deref().map(cri::Endpoint::parse)
        {
            findings.push(field("containerRuntimeEndpoint", error.to_string()));
        }
        match configured {
            Ok(configured) if findings.is_empty() => {
                for warning in &configured.warnings {
                    warn(&format!("{} (on {})", self.located(warning), machine.name));
                }
                Ok(configured)
            }
            _ => {
                let on = &machine.name;
                let located = findings.iter().map(|f| format!("{} (on {on})", self.located(f)));
                Err(BadInput(located.collect()))
            }
        }
    }

    /// Formats a finding with its location in the file.
    pub(super) fn located(&self, finding: &Finding) -> String {
        let (documents, _) = objects::yaml::parse(&self.text);
        let place = documents.first().map(|document| document.locate(&finding.path));
        match place.filter(|_| finding.path != FieldPath::root()) {
            Some(mark) => format!("{}: {mark}: {finding}", self.file),
            None => format!("{}: {finding}", self.file),
        }
    }
}

/// Observes the operating system of this machine.
fn host_conditions() -> HostConditions {
    let cgroups = host::cgroups::Cgroups::observe().ok();
    let cgroup_v1 = cgroups.is_some_and(|all| all.version() == host::cgroups::Version::V1);
    let swap = host::os::system::memory().is_ok_and(|memory| memory.swap_total > 0);
    // The page file of Windows is not swap space in this sense.
    HostConditions { cgroup_v1, swap: swap && std::env::consts::OS == "linux" }
}

fn problems(file: &str, errors: &[YamlError]) -> BadInput {
    BadInput(errors.iter().map(|error| format!("{file}: {error}")).collect())
}

/// Reads all workloads of the files, in order. A directory means all manifests in it.
pub(super) fn manifests(files: &[String]) -> anyhow::Result<Vec<Workload>> {
    let mut all = Vec::new();
    let mut mistakes = Vec::new();
    for file in expanded(files)? {
        match workload::read(&text_of(&file)?) {
            Ok(manifest) => {
                for skipped in &manifest.skipped {
                    note(&format!("{file}: {skipped}"));
                }
                for warning in &manifest.warnings {
                    warn(&format!("{file}: {warning}"));
                }
                all.extend(manifest.workloads);
            }
            Err(errors) => mistakes.extend(problems(&file, &errors).0),
        }
    }
    if mistakes.is_empty() { Ok(all) } else { Err(BadInput(mistakes).into()) }
}

fn expanded(files: &[String]) -> anyhow::Result<Vec<String>> {
    let mut all = Vec::new();
    for file in files {
        if !Path::new(file).is_dir() {
            all.push(file.clone());
            continue;
        }
        let entries = fs::read_dir(file).with_context(|| format!("{file} cannot be read"))?;
        let mut inside: Vec<String> = entries
            .filter_map(|entry| Some(entry.ok()?.path()))
            .filter(|path| {
                path.extension().is_some_and(|e| e == "yaml" || e == "yml" || e == "json")
            })
            .map(|path| path.display().to_string())
            .collect();
        inside.sort();
        if inside.is_empty() {
            return Err(BadInput::new(format!("{file}: no .yaml, .yml or .json in there")).into());
        }
        all.extend(inside);
    }
    Ok(all)
}

/// Reads a file, or standard input for `-`.
fn text_of(file: &str) -> anyhow::Result<String> {
    let bytes = if file == "-" {
        let mut bytes = Vec::new();
        io::stdin().read_to_end(&mut bytes).context("standard input cannot be read")?;
        bytes
    } else {
        fs::read(file).map_err(|error| BadInput::new(format!("{file}: {error}")))?
    };
    String::from_utf8(bytes).map_err(|_| BadInput::new(format!("{file}: not UTF-8 text")).into())
}

/// Prints a remark that is not part of the result to standard error.
pub(super) fn note(text: &str) {
    print_notice(Notice::Note, text);
}

pub(super) fn warn(text: &str) {
    print_notice(Notice::Warning, text);
}

/// Writes the result to a file if one is given, or to standard output.
pub(super) fn print(text: &str, terminal: Terminal, to: Option<&PathBuf>) -> anyhow::Result<()> {
    match to {
        Some(path) => {
            fs::write(path, text).with_context(|| format!("{} not written", path.display()))
        }
        None => terminal.print(text).context("standard output cannot be written"),
    }
}
