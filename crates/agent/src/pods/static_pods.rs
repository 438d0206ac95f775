//! Static pods: [`Files`] reads them from manifests, [`watch()`] again and again; [`mirror`] shows them in
//! the API.
//!
//! ```text
//!   staticPodPath ──▶ Files::look ──▶ pods ──▶ Pods ──▶ workers
//!                          └──▶ problems, told once           └──▶ mirror pods, which only show
//! ```
//!
//! As upstream has it: a directory of manifests or one file, a pod in each, names that begin with a point
//! left alone. A manifest that is wrong is no pod, and no matter to the others. Lets nobody in and ends
//! nobody: that is for [`crate::pods::pod_set`].

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, ErrorKind, Read as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use objects::FeatureGates;
use objects::timestamp::Timestamp;

use crate::clock::Clock;
use crate::pods::pod_set::Read;

mod identity;
mod manifest;
pub mod mirror;
mod references;

pub use identity::Identities;
pub use manifest::{Around, CONFIG_HASH, ManifestError, read};

/// Bytes of the largest manifest that is read. Upstream's figure.
const LARGEST: u64 = 10 << 20;

/// Where static pods are, and how often they are looked for.
#[derive(Debug, Clone)]
pub struct Settings {
    /// `staticPodPath`.
    pub path: PathBuf,
    /// `fileCheckFrequency`.
    pub every: Duration,
    /// The node's name.
    pub node: String,
    pub gates: FeatureGates,
}

/// A manifest that is no pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    pub file: PathBuf,
    pub why: String,
}

/// What one look found.
#[derive(Debug, Default)]
pub struct Found {
    pub pods: Vec<Read>,
    /// Those that were not there at the last look.
    pub problems: Vec<Problem>,
    /// Whether `pods` are others than at the last look.
    pub changed: bool,
}

/// Manifests as they were last read.
#[derive(Debug)]
pub struct Files {
    settings: Settings,
    known: BTreeMap<PathBuf, Known>,
    /// What was wrong with the place itself.
    trouble: Option<String>,
}

#[derive(Debug)]
struct Known {
    /// `None` if it could not be read.
    text: Option<String>,
    outcome: Result<Read, String>,
}

impl Files {
    #[must_use]
    pub fn new(settings: Settings) -> Files {
        Files { settings, known: BTreeMap::new(), trouble: None }
    }

    /// Reads all manifests; those that are as they were are not looked at twice.
    pub fn look(&mut self, now: Timestamp) -> Found {
        let mut found = Found::default();
        let paths = match manifests(&self.settings.path) {
            Ok(paths) => paths,
            // Nothing is ended because a disk does not answer.
            Err(error) => {
                let why = error.to_string();
                if self.trouble.as_ref() != Some(&why) {
                    let file = self.settings.path.clone();
                    found.problems.push(Problem { file, why: why.clone() });
                    self.trouble = Some(why);
                }
                found.pods = self.pods();
                return found;
            }
        };
        self.trouble = None;
        let before = self.known.len();
        self.known.retain(|path, _| paths.contains(path));
        found.changed = self.known.len() != before;
        for path in paths {
            found.changed |= self.take(path, now, &mut found.problems);
        }
        found.pods = self.pods();
        found
    }

    fn pods(&self) -> Vec<Read> {
        self.known.values().filter_map(|known| known.outcome.clone().ok()).collect()
    }

    /// Whether the manifest is another one than before.
    fn take(&mut self, path: PathBuf, now: Timestamp, problems: &mut Vec<Problem>) -> bool {
        let (text, outcome) = match contents(&path) {
            Ok(None) => return self.known.remove(&path).is_some(),
            Ok(Some(text)) => {
                // Its name may have become free, so what was wrong is tried again.
                let same = self.known.get(&path).filter(|known| known.text.as_ref() == Some(&text));
                if same.is_some_and(|known| known.outcome.is_ok()) {
                    return false;
                }
                let outcome = self.parse(&path, &text, now);
                (Some(text), outcome)
            }
            Err(error) => (None, Err(error.to_string())),
        };
        let before = self.known.get(&path).map(|known| &known.outcome);
        if let Err(why) = &outcome {
            if before == Some(&Err(why.clone())) {
                return false;
            }
            problems.push(Problem { file: path.clone(), why: why.clone() });
        }
        let changed = outcome.is_ok() || before.is_some_and(Result::is_ok);
        self.known.insert(path, Known { text, outcome });
        changed
    }

    fn parse(&self, path: &Path, text: &str, now: Timestamp) -> Result<Read, String> {
        let around = Around { node: &self.settings.node, gates: &self.settings.gates };
        let place = path.to_string_lossy();
        let read = read(text, &place, around, now).map_err(|error| error.to_string())?;
        let others = self.known.iter().filter(|(other, _)| *other != path);
        for (other, known) in others {
            if let Ok(has) = &known.outcome
                && has.pod.full_name() == read.pod.full_name()
            {
                let (name, other) = (read.pod.full_name(), other.display());
                return Err(format!("metadata.name: {name} is the pod of {other} already"));
            }
        }
        Ok(read)
    }
}

impl PartialEq for Read {
    /// The text is the pod.
    fn eq(&self, other: &Read) -> bool {
        self.text == other.text
    }
}

/// The files to read, by name. None if there is nothing at the path.
fn manifests(path: &Path) -> io::Result<Vec<PathBuf>> {
    match fs::metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
        Ok(metadata) if !metadata.is_dir() => return Ok(vec![path.to_owned()]),
        Ok(_) => {}
    }
    let mut paths = Vec::new();
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        if !entry.file_name().to_string_lossy().starts_with('.') {
            paths.push(entry.path());
        }
    }
    paths.sort();
    Ok(paths)
}

/// The text of a manifest; `None` of what is none, such as a directory, or is gone by now.
fn contents(path: &Path) -> io::Result<Option<String>> {
    let metadata = match fs::metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        metadata => metadata?,
    };
    if !metadata.is_file() {
        return Ok(None);
    }
    let mut text = String::new();
    let read = fs::File::open(path)?.take(LARGEST + 1).read_to_string(&mut text)?;
    if u64::try_from(read).unwrap_or(u64::MAX) > LARGEST {
        let words = format!("more than {LARGEST} bytes; a manifest has at most that many");
        return Err(io::Error::new(ErrorKind::InvalidData, words));
    }
    Ok(Some(text))
}

/// Looks at once and then again and again, until `take` says that nobody listens.
pub async fn watch(
    settings: Settings,
    clock: Arc<dyn Clock>,
    mut take: impl FnMut(Found) -> bool + Send,
) {
    let mut timer = tokio::time::interval(settings.every);
    timer.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut files = Files::new(settings);
    let mut first = true;
    loop {
        timer.tick().await;
        let now = clock.now();
        let looking = tokio::task::spawn_blocking(move || {
            let found = files.look(now);
            (files, found)
        });
        let Ok((same, found)) = looking.await else { return };
        files = same;
        let news = first || found.changed || !found.problems.is_empty();
        first = false;
        if news && !take(found) {
            return;
        }
    }
}

#[cfg(test)]
mod tests;
