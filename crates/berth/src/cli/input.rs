//! What commands are given and where they write: machines, configurations and manifests from files,
//! words or standard input; text to standard output or a file.
//!
//! Main entries: [`machine`], [`configuration`], [`manifests`], [`print`]. Mistakes are collected
//! with the name of the file in front; nothing is decided here.

use std::fs;
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use host::capture::Capture;
use host::tree::Directory;
use objects::pod::OsName;
use objects::{FieldPath, KubeletConfig, Workload, YamlError, kubelet_config, workload};
use planner::configured::Finding;
use planner::machine::{Format, Machine, shape};

use super::BadInput;

/// A machine from a file, a `sys` directory or words; this machine if nothing is given.
pub(super) fn machine(given: Option<&str>) -> anyhow::Result<Machine> {
    let Some(given) = given else { return this_machine() };
    let path = Path::new(given);
    let mut machine = if path.is_dir() {
        from_directory(path)?
    } else if path.exists() {
        from_file(given)?
    } else if looks_like_a_path(given) {
        return Err(BadInput::new(format!(
            "there is no file {given:?}; a machine is a file or words like {:?}",
            shape::EXAMPLE
        ))
        .into());
    } else {
        Machine::parse(given).map_err(|error| BadInput::new(chain("--machine", &error)))?
    };
    if machine.name.is_empty() {
        let stem = path.file_stem().filter(|_| path.exists());
        machine.name = stem.map_or("machine".into(), |stem| stem.to_string_lossy().into_owned());
    }
    Ok(machine)
}

fn looks_like_a_path(given: &str) -> bool {
    let endings = ["yaml", "yml", "json", "xml", "txt"];
    let ending = Path::new(given).extension().and_then(|ending| ending.to_str());
    !given.contains(' ')
        && (given.contains(['/', '\\']) || ending.is_some_and(|e| endings.contains(&e)))
}

fn this_machine() -> anyhow::Result<Machine> {
    let (topology, anomalies) =
        host::os::observe_topology().context("this machine could not be looked at")?;
    for anomaly in anomalies {
        warn(&format!("this machine: {anomaly}"));
    }
    let os = if cfg!(windows) { OsName::Windows } else { OsName::Linux };
    Ok(Machine { name: "this-machine".to_owned(), os, topology })
}

fn from_directory(path: &Path) -> anyhow::Result<Machine> {
    // A tree may be given by its root or by its `sys`.
    let inner = path.join("sys");
    let tree = match inner.is_dir() {
        true => Directory { sys: inner, proc: Some(path.join("proc")) },
        false => Directory { sys: path.to_owned(), proc: None },
    };
    observed(&tree, &path.display().to_string())
}

fn from_file(given: &str) -> anyhow::Result<Machine> {
    let text = text_of(given)?;
    if Format::of(&text) == Format::Capture {
        let capture = Capture::parse(&text).map_err(|error| BadInput::new(chain(given, &error)))?;
        return observed(&capture, given);
    }
    Ok(Machine::parse(&text).map_err(|error| BadInput::new(chain(given, &error)))?)
}

fn observed(tree: &impl host::tree::Tree, given: &str) -> anyhow::Result<Machine> {
    let (topology, anomalies) =
        host::sysfs::observe(tree).map_err(|error| BadInput::new(chain(given, &error)))?;
    for anomaly in anomalies {
        warn(&format!("{given}: {anomaly}"));
    }
    Ok(Machine { name: String::new(), os: OsName::Linux, topology })
}

/// An error with its causes, behind what it is about.
fn chain(about: &str, error: &dyn std::error::Error) -> String {
    let mut text = format!("{about}: {error}");
    let mut cause = error.source();
    while let Some(error) = cause {
        text += &format!(": {error}");
        cause = error.source();
    }
    text
}

/// A kubelet's configuration with the text it was read from, for the places of later findings.
#[derive(Debug)]
pub(super) struct Configuration {
    pub(super) file: String,
    pub(super) text: String,
    pub(super) config: KubeletConfig,
}

/// Reads a configuration; warnings are printed.
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
    /// A finding with its place in the file.
    pub(super) fn located(&self, finding: &Finding) -> String {
        let (documents, _) = objects::yaml::parse(&self.text);
        let place = documents.first().map(|document| document.locate(&finding.path));
        match place.filter(|_| finding.path != FieldPath::root()) {
            Some(mark) => format!("{}: {mark}: {finding}", self.file),
            None => format!("{}: {finding}", self.file),
        }
    }
}

fn problems(file: &str, errors: &[YamlError]) -> BadInput {
    BadInput(errors.iter().map(|error| format!("{file}: {error}")).collect())
}

/// Reads all workloads of some files, in order. A directory stands for the manifests in it.
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

/// The text of a file, or of standard input for `-`.
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

/// Something to know that is not the answer.
pub(super) fn note(text: &str) {
    anstream::eprintln!("\x1b[2mnote:\x1b[0m {text}");
}

pub(super) fn warn(text: &str) {
    anstream::eprintln!("\x1b[33mwarning:\x1b[0m {text}");
}

/// Writes the answer; colours go only where there is a terminal that wants them.
pub(super) fn print(text: &str, to: Option<&PathBuf>) -> anyhow::Result<()> {
    if let Some(path) = to {
        let plain = anstream::adapter::strip_str(text).to_string();
        return fs::write(path, plain).with_context(|| format!("{} not written", path.display()));
    }
    match anstream::stdout().lock().write_all(text.as_bytes()) {
        // Whoever reads has read enough.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        result => result.context("standard output cannot be written"),
    }
}
