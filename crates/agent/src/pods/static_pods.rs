//! Static pods: [`ManifestDirectory`] reads them from manifests, [`watch()`] does so periodically, and
//! [`mirror`] creates their mirror pods in the API.
//!
//! ```text
//!   staticPodPath ──▶ ManifestDirectory ──▶ pods ──▶ pod_set ──▶ workers
//!                          └──▶ problems, reported once  └──▶ mirror pods
//! ```
//!
//! As upstream: a directory of manifests or one file, with one pod in each; names that begin with a dot are
//! ignored. An invalid manifest does not affect the others. Admission and termination are done by
//! [`crate::pods::pod_set`].

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, ErrorKind, Read as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use objects::FeatureGates;
use objects::timestamp::Timestamp;
use tokio::task::JoinError;
use tracing::info;

use crate::pods::pod_set::PodWithManifest;
use client::clock::Clock;

mod identity;
mod manifest;
pub mod mirror;
mod references;

pub use identity::Identities;
pub use manifest::{CONFIG_HASH, ManifestContext, ManifestError, read};

/// The size of the largest manifest that is read, in bytes. Upstream's value.
const LARGEST: u64 = 10 << 20;

/// The path of static pods, and the period of reading it.
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

/// A manifest that is not a valid pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ManifestProblem {
    pub file: PathBuf,
    pub why: String,
}

/// The result of one scan.
#[derive(Debug, Default)]
pub struct ManifestScan {
    pub pods: Vec<PodWithManifest>,
    /// Problems that the last scan did not have.
    pub problems: Vec<ManifestProblem>,
    /// True if `pods` differ from those of the last scan.
    pub changed: bool,
}

/// The manifests as last read.
#[derive(Debug)]
pub struct ManifestDirectory {
    settings: Settings,
    known: BTreeMap<PathBuf, ManifestRecord>,
    /// The last error of reading the directory.
    trouble: Option<String>,
}

#[derive(Debug)]
struct ManifestRecord {
    /// `None` if it could not be read.
    text: Option<String>,
    outcome: Result<PodWithManifest, String>,
}

impl ManifestDirectory {
    #[must_use]
    pub fn new(settings: Settings) -> ManifestDirectory {
        ManifestDirectory { settings, known: BTreeMap::new(), trouble: None }
    }

    /// Reads all manifests. Unchanged ones are not parsed again.
    pub fn scan(&mut self, now: Timestamp) -> ManifestScan {
        let mut found = ManifestScan::default();
        let paths = match manifests(&self.settings.path) {
            Ok(paths) => paths,
            // An I/O error does not terminate the pods.
            Err(error) => {
                let why = error.to_string();
                if self.trouble.as_ref() != Some(&why) {
                    let file = self.settings.path.clone();
                    found.problems.push(ManifestProblem { file, why: why.clone() });
                    self.trouble = Some(why);
                }
                found.pods = self.pods();
                return found;
            }
        };
        if self.trouble.take().is_some() {
            info!(path = %self.settings.path.display(), "read the static pod path again");
        }
        let before = self.known.len();
        self.known.retain(|path, _| paths.contains(path));
        found.changed = self.known.len() != before;
        for path in paths {
            found.changed |= self.take(path, now, &mut found.problems);
        }
        found.pods = self.pods();
        found
    }

    fn pods(&self) -> Vec<PodWithManifest> {
        self.known.values().filter_map(|known| known.outcome.clone().ok()).collect()
    }

    /// Reads one manifest. Returns true if its pod changed.
    fn take(&mut self, path: PathBuf, now: Timestamp, problems: &mut Vec<ManifestProblem>) -> bool {
        let (text, outcome) = match contents(&path) {
            Ok(None) => return self.known.remove(&path).is_some(),
            Ok(Some(text)) => {
                // Parse an invalid manifest again: its name may be free now.
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
            problems.push(ManifestProblem { file: path.clone(), why: why.clone() });
        }
        if outcome.is_ok() && before.is_some_and(Result::is_err) {
            info!(file = %path.display(), "processed the manifest file after failures");
        }
        let changed = outcome.is_ok() || before.is_some_and(Result::is_ok);
        self.known.insert(path, ManifestRecord { text, outcome });
        changed
    }

    fn parse(&self, path: &Path, text: &str, now: Timestamp) -> Result<PodWithManifest, String> {
        let context = ManifestContext { node: &self.settings.node, gates: &self.settings.gates };
        let place = path.to_string_lossy();
        let read = read(text, &place, context, now).map_err(|error| error.to_string())?;
        let others = self.known.iter().filter(|(other, _)| *other != path);
        for (other, known) in others {
            if let Ok(has) = &known.outcome
                && has.pod.full_name() == read.pod.full_name()
            {
                let (name, other) = (read.pod.full_name(), other.display());
                return Err(format!("metadata.name: {other} already defines pod {name}"));
            }
        }
        Ok(read)
    }
}

impl PartialEq for PodWithManifest {
    /// Compares the texts, which determine the pods.
    fn eq(&self, other: &PodWithManifest) -> bool {
        self.text == other.text
    }
}

/// Returns the paths of the manifests, sorted. Empty if the path does not exist.
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

/// Returns the text of a manifest, or `None` if it is not a regular file or no longer exists.
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
        let message = format!("larger than {LARGEST} bytes, the largest size of a manifest");
        return Err(io::Error::new(ErrorKind::InvalidData, message));
    }
    Ok(Some(text))
}

/// Scans immediately and then periodically, until `take` returns false.
pub async fn watch(
    settings: Settings,
    clock: Arc<dyn Clock>,
    mut take: impl FnMut(ManifestScan) -> bool + Send,
) {
    let mut timer = tokio::time::interval(settings.every);
    timer.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut files = ManifestDirectory::new(settings);
    let mut first = true;
    loop {
        timer.tick().await;
        let now = clock.now();
        let looking = tokio::task::spawn_blocking(move || {
            let found = files.scan(now);
            (files, found)
        });
        let (same, found) = match looking.await.map_err(JoinError::try_into_panic) {
            Ok(looked) => looked,
            Err(Ok(panic)) => std::panic::resume_unwind(panic),
            // The tokio runtime ends.
            Err(Err(_)) => return,
        };
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
