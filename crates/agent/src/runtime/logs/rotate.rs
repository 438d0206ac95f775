//! Rotation of logs: [`Policy`], with the kubelet's `containerLogMaxSize` and `containerLogMaxFiles` and its
//! names of files.
//!
//! ```text
//! 0.log                         the current file
//! 0.log.20060102-150405         the previous file
//! 0.log.20060101-150405.gz      older files
//! ```
//!
//! The newest of the old files is not compressed yet, because a reader may still have it open. The caller
//! schedules the checks.

use std::fs::{self, File};
use std::future::Future;
use std::io;
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::write::GzEncoder;
use objects::timestamp::Timestamp;
use thiserror::Error;

/// The limits of size and number of files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Policy {
    /// In bytes.
    pub max_size: u64,
    /// Includes the current file.
    pub max_files: usize,
}

impl Default for Policy {
    fn default() -> Policy {
        // The kubelet's defaults.
        Policy { max_size: 10 << 20, max_files: 5 }
    }
}

/// The result of checking a log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// It is not too large.
    Kept,
    /// It was missing, and the runtime was asked to create one.
    Made,
    /// The new name of the old file.
    Rotated(PathBuf),
}

/// The error of a rotation. The runtime continues to write to the log.
#[derive(Debug, Error)]
pub enum RotateError<E: std::error::Error + 'static> {
    #[error("cannot {what} {path:?}: {source}")]
    Io { what: &'static str, path: PathBuf, source: io::Error },
    #[error("the runtime failed to reopen log {path:?}: {source}")]
    Reopen { path: PathBuf, source: E },
}

struct Failed {
    what: &'static str,
    path: PathBuf,
    source: io::Error,
}

fn failed(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Failed {
    move |source| Failed { what, path: path.to_owned(), source }
}

impl<E: std::error::Error> From<Failed> for RotateError<E> {
    fn from(Failed { what, path, source }: Failed) -> RotateError<E> {
        RotateError::Io { what, path, source }
    }
}

const TEMPORARY: &str = ".tmp";
const COMPRESSED: &str = ".gz";

impl Policy {
    /// Checks one log of a running container. `reopen` asks the runtime to start a new file under the name.
    pub async fn tend<E, F>(
        self,
        log: &Path,
        now: Timestamp,
        reopen: impl FnOnce() -> F,
    ) -> Result<Outcome, RotateError<E>>
    where
        E: std::error::Error + 'static,
        F: Future<Output = Result<(), E>>,
    {
        let refused = |source| RotateError::Reopen { path: log.to_owned(), source };
        let size = match fs::metadata(log) {
            Ok(metadata) => metadata.len(),
            // A rotation was interrupted, or the file was deleted.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                reopen().await.map_err(refused)?;
                return Ok(Outcome::Made);
            }
            Err(error) => return Err(failed("look at", log)(error).into()),
        };
        if size < self.max_size {
            return Ok(Outcome::Kept);
        }
        let (path, keep) = (log.to_owned(), self.max_files.saturating_sub(2));
        let tidied = tokio::task::spawn_blocking(move || tidy(&path, keep)).await;
        tidied.map_err(|error| failed("tidy up", log)(io::Error::other(error)))??;
        let rotated = with_suffix(log, &format!(".{}", stamp(now)));
        fs::rename(log, &rotated).map_err(failed("rename", log))?;
        if let Err(error) = reopen().await {
            // The runtime still writes to this file, so restore its name.
            fs::rename(&rotated, log).map_err(failed("rename back", &rotated))?;
            return Err(refused(error));
        }
        Ok(Outcome::Rotated(rotated))
    }
}

/// Returns `20060102-150405`, in UTC, so that names sort by time in every time zone.
fn stamp(now: Timestamp) -> String {
    let text = now.to_seconds_text();
    text.trim_end_matches('Z').replace(['-', ':'], "").replace('T', "-")
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// Removes temporary and old files, so that `keep` old files are left, and compresses these.
fn tidy(log: &Path, keep: usize) -> Result<(), Failed> {
    let mut old = Vec::new();
    for path in rotated(log)? {
        let compressed = with_suffix(&path, COMPRESSED);
        let name = path.to_string_lossy();
        if name.ends_with(TEMPORARY) || (!name.ends_with(COMPRESSED) && compressed.exists()) {
            remove(&path)?;
        } else {
            old.push(path);
        }
    }
    let excess = old.len().saturating_sub(keep);
    for path in old.drain(..excess) {
        remove(&path)?;
    }
    for path in old {
        if !path.to_string_lossy().ends_with(COMPRESSED) {
            compress(&path)?;
        }
    }
    Ok(())
}

/// Returns the rotated files of a log, the oldest first.
fn rotated(log: &Path) -> Result<Vec<PathBuf>, Failed> {
    let directory = log.parent().unwrap_or(Path::new("."));
    let prefix = format!("{}.", log.file_name().unwrap_or_default().to_string_lossy());
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).map_err(failed("list", directory))? {
        let entry = entry.map_err(failed("list", directory))?;
        if entry.file_name().to_string_lossy().starts_with(&prefix) {
            found.push(entry.path());
        }
    }
    found.sort();
    Ok(found)
}

fn remove(path: &Path) -> Result<(), Failed> {
    fs::remove_file(path).map_err(failed("remove", path))
}

/// Compresses a file. A crash leaves a temporary file or both files; [`tidy`] handles either.
fn compress(path: &Path) -> Result<(), Failed> {
    let temporary = with_suffix(path, TEMPORARY);
    let write = || {
        let mut from = File::open(path)?;
        let mut to = GzEncoder::new(File::create(&temporary)?, Compression::default());
        io::copy(&mut from, &mut to)?;
        to.finish()?.sync_all()
    };
    write().map_err(failed("compress", path))?;
    let compressed = with_suffix(path, COMPRESSED);
    fs::rename(&temporary, &compressed).map_err(failed("rename", &temporary))?;
    remove(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::read::GzDecoder;
    use std::io::Read as _;

    /// Runs a rotation with a runtime that reopens the log or fails.
    async fn tend(
        policy: Policy,
        log: &Path,
        seconds: i64,
        obeys: bool,
    ) -> Result<Outcome, String> {
        let reopen = || async {
            if !obeys {
                return Err(io::Error::other("no"));
            }
            File::create(log).map(|_| ())
        };
        let now = Timestamp::new(1_136_214_245 + seconds, 0);
        policy.tend(log, now, reopen).await.map_err(|error| error.to_string())
    }

    fn names(log: &Path) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(log.parent().unwrap())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[tokio::test]
    async fn large_log_is_rotated_and_old_files_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("0.log");
        let policy = Policy { max_size: 4, max_files: 4 };
        assert_eq!(tend(policy, &log, 0, true).await, Ok(Outcome::Made));
        fs::write(&log, "abc").unwrap();
        assert_eq!(tend(policy, &log, 0, true).await, Ok(Outcome::Kept));
        // Files of interrupted rotations, and the log of another container.
        for name in
            ["0.log.20060101-000000.tmp", "0.log.20060101-000001", "0.log.20060101-000001.gz"]
        {
            fs::write(dir.path().join(name), name).unwrap();
        }
        fs::write(dir.path().join("0.log2"), "other").unwrap();
        for round in 0..4 {
            fs::write(&log, format!("round {round}")).unwrap();
            let rotated = tend(policy, &log, round, true).await.unwrap();
            let name = with_suffix(&log, &format!(".20060102-15040{}", 5 + round));
            assert_eq!(rotated, Outcome::Rotated(name));
        }
        assert_eq!(
            names(&log),
            [
                "0.log",
                "0.log.20060102-150406.gz",
                "0.log.20060102-150407.gz",
                "0.log.20060102-150408",
                "0.log2"
            ]
        );
        let old = File::open(dir.path().join("0.log.20060102-150407.gz")).unwrap();
        let mut text = String::new();
        GzDecoder::new(old).read_to_string(&mut text).unwrap();
        assert_eq!(text, "round 2");
        assert_eq!(fs::read_to_string(&log).unwrap(), "");
    }

    #[tokio::test]
    async fn log_keeps_its_name_if_the_runtime_fails_to_reopen() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("0.log");
        fs::write(&log, "0123456789").unwrap();
        let policy = Policy { max_size: 4, max_files: 2 };
        let error = tend(policy, &log, 0, false).await.unwrap_err();
        assert!(error.contains("0.log") && error.ends_with("no"), "{error}");
        assert_eq!(names(&log), ["0.log"]);
        assert_eq!(fs::read_to_string(&log).unwrap(), "0123456789");
    }
}
