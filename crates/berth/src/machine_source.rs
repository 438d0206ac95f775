//! Sources of a machine description: this machine, a file, a directory, standard input, or a
//! description in words.
//!
//! Main entry: [`load_machine`], for every command that takes a machine. `planner` parses text
//! formats, `host` reads sysfs and captures; this module only detects which it is.

use objects::pod::OsName;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use host::tree::Directory;
use host::{Anomaly, Capture};
use placement::Machine;
use placement::Topology;
use planner::machine::{Format, MAX_TEXT, lscpu};

use crate::logging::{Notice, print_notice};

/// The source that an argument names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    ThisMachine,
    StandardInput,
    File(PathBuf),
    /// A sysfs tree, with the matching `proc` if there is one.
    Sysfs(PathBuf, Option<PathBuf>),
    /// `2 sockets x 8 cores`.
    Words(String),
}

/// Reads the machine that an argument names; without one, this machine, unnamed. Prints anomalies
/// of the description to standard error.
pub fn load_machine(argument: Option<&str>) -> anyhow::Result<Machine> {
    let (machine, anomalies) = Source::of(argument)?.read()?;
    let from = argument.unwrap_or("this machine");
    for anomaly in anomalies {
        print_notice(Notice::Warning, &format!("{from}: {anomaly}"));
    }
    Ok(machine)
}

impl Source {
    pub fn of(argument: Option<&str>) -> anyhow::Result<Source> {
        let text = match argument {
            None => return Ok(Source::ThisMachine),
            Some("-") => return Ok(Source::StandardInput),
            Some(text) => text,
        };
        let path = Path::new(text);
        if path.is_dir() {
            return sysfs(path).with_context(|| {
                format!(
                    "{text} is a directory but not the sysfs of a machine: it has neither \
                     devices/system/cpu nor sys/devices/system/cpu"
                )
            });
        }
        if path.exists() {
            return Ok(Source::File(path.into()));
        }
        if looks_like_a_path(text) {
            bail!("{text}: there is no such file or directory");
        }
        Ok(Source::Words(text.to_owned()))
    }

    /// Reads the machine and the anomalies of its description.
    pub fn read(&self) -> anyhow::Result<(Machine, Vec<Anomaly>)> {
        match self {
            Source::ThisMachine => {
                let os = match std::env::consts::OS {
                    "windows" => OsName::Windows,
                    _ => OsName::Linux,
                };
                let (topology, anomalies) =
                    host::os::observe_topology().context("cannot describe this machine")?;
                Ok((named(topology, os, ""), anomalies))
            }
            Source::StandardInput => {
                let text = read_text(io::stdin().lock()).context("standard input")?;
                parse(&text, "standard-input").context("standard input")
            }
            Source::File(path) => {
                let name = || path.display().to_string();
                let file = File::open(path).with_context(name)?;
                let text = read_text(file).with_context(name)?;
                let stem = path.file_stem().unwrap_or_default().to_string_lossy();
                parse(&text, &stem).with_context(name)
            }
            Source::Sysfs(sys, proc) => {
                let tree = Directory { sys: sys.clone(), proc: proc.clone() };
                let (topology, anomalies) =
                    host::sysfs::observe(&tree).with_context(|| sys.display().to_string())?;
                Ok((named(topology, OsName::Linux, &sys.display().to_string()), anomalies))
            }
            Source::Words(text) => {
                let mut machine = planner::machine::parse(text).with_context(|| {
                    format!("{text:?} is not a file, so it was parsed as a description")
                })?;
                if machine.name.is_empty() {
                    machine.name.clone_from(text);
                }
                Ok((machine, Vec::new()))
            }
        }
    }
}

/// Returns the tree of a directory that is or contains a `sys`.
pub fn sysfs(directory: &Path) -> Option<Source> {
    const CPUS: &str = "devices/system/cpu";
    let proc_in = |parent: &Path| Some(parent.join("proc")).filter(|proc| proc.is_dir());
    let inner = directory.join("sys");
    if directory.join(CPUS).is_dir() {
        let proc = directory.parent().and_then(proc_in);
        Some(Source::Sysfs(directory.into(), proc))
    } else if inner.join(CPUS).is_dir() {
        Some(Source::Sysfs(inner, proc_in(directory)))
    } else {
        None
    }
}

fn parse(text: &str, name: &str) -> anyhow::Result<(Machine, Vec<Anomaly>)> {
    if Format::of(text) == Format::Capture {
        let (topology, anomalies) = host::sysfs::observe(&Capture::parse(text)?)?;
        return Ok((named(topology, OsName::Linux, name), anomalies));
    }
    let mut machine = planner::machine::parse(text)?;
    if machine.name.is_empty() {
        name.clone_into(&mut machine.name);
    }
    if is_lscpu_summary(text)
        && let Some(siblings) = lscpu::summary::assumed_siblings(&machine)
    {
        eprintln!(
            "warning: {name}: lscpu's summary does not name sibling CPUs; CPUs {siblings} are taken to \
             share a core, and others likewise. `{}` names them",
            lscpu::COMMAND
        );
    }
    Ok((machine, Vec::new()))
}

fn is_lscpu_summary(text: &str) -> bool {
    match Format::of(text) {
        Format::LscpuSummary => true,
        Format::LscpuJson => !text.contains("\"cpus\""),
        _ => false,
    }
}

fn named(topology: Topology, os: OsName, name: &str) -> Machine {
    Machine { name: name.to_owned(), os, topology }
}

fn read_text(from: impl Read) -> anyhow::Result<String> {
    let mut bytes = Vec::new();
    from.take(MAX_TEXT as u64 + 1).read_to_end(&mut bytes)?;
    if bytes.len() > MAX_TEXT {
        bail!("more than {} MiB; a machine's description is shorter", MAX_TEXT >> 20);
    }
    String::from_utf8(bytes).context("not UTF-8 text")
}

/// Reports whether the text looks like a missing file rather than a description.
fn looks_like_a_path(text: &str) -> bool {
    let endings = [".yaml", ".yml", ".json", ".xml", ".txt"];
    text.contains(['/', '\\']) || endings.iter().any(|ending| text.ends_with(ending))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_file_is_not_taken_for_a_description() {
        let source = |text: &str| Source::of(Some(text));
        assert_eq!(
            source("2 sockets x 8 cores").unwrap(),
            Source::Words("2 sockets x 8 cores".into())
        );
        assert_eq!(source("-").unwrap(), Source::StandardInput);
        assert_eq!(Source::of(None).unwrap(), Source::ThisMachine);
        for missing in ["no/such/place", "nothing.yaml", "C:\\nothing"] {
            let error = source(missing).unwrap_err().to_string();
            assert!(error.starts_with(missing), "{error}");
        }
    }
}
