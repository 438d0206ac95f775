//! Who runs on a data directory, and how he is asked to end: [`InstanceLock`], the same on every system.
//!
//! A process that runs on a directory holds its lock file, which ends with it however it ends. It is asked
//! to end by a file beside, which it looks for. Stops nothing itself.

use std::fs::{self, File, TryLockError};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Held while somebody runs.
const LOCK: &str = "berth.lock";
/// The process that runs, for people.
const PROCESS: &str = "berth.pid";
/// There when somebody is to end.
const REQUEST: &str = "berth.down";
/// Between two looks for a request.
const POLL_INTERVAL: Duration = Duration::from_millis(250);

/// What becomes of pods when their node ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PodsOnExit {
    Keep,
    Stop,
}

/// The one process that runs on a directory.
#[derive(Debug)]
pub struct InstanceLock {
    directory: PathBuf,
    _lock: File,
}

impl InstanceLock {
    /// Becomes it; `None` if another one is.
    pub fn acquire(directory: &Path) -> io::Result<Option<InstanceLock>> {
        fs::create_dir_all(directory)?;
        let Some(lock) = lock(directory)? else { return Ok(None) };
        // A request was for whoever ran before.
        remove(&directory.join(REQUEST))?;
        fs::write(directory.join(PROCESS), format!("{}\n", std::process::id()))?;
        Ok(Some(InstanceLock { directory: directory.to_owned(), _lock: lock }))
    }

    /// Waits until somebody asks to end.
    pub async fn shutdown_requested(&self) -> PodsOnExit {
        let request = self.directory.join(REQUEST);
        loop {
            if let Ok(text) = fs::read_to_string(&request) {
                return if text.trim() == "keep-pods" {
                    PodsOnExit::Keep
                } else {
                    PodsOnExit::Stop
                };
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }
}

impl Drop for InstanceLock {
    fn drop(&mut self) {
        // Only for people.
        let _ = remove(&self.directory.join(PROCESS));
        let _ = remove(&self.directory.join(REQUEST));
    }
}

fn lock(directory: &Path) -> io::Result<Option<File>> {
    let file =
        File::options().create(true).truncate(false).write(true).open(directory.join(LOCK))?;
    match file.try_lock() {
        Ok(()) => Ok(Some(file)),
        Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Reports whether a process has run on the directory.
#[must_use]
pub fn is_data_dir(directory: &Path) -> bool {
    directory.join(LOCK).exists()
}

/// The process that runs on the directory, if one does; its number as far as it is known.
pub fn holder(directory: &Path) -> io::Result<Option<Option<u32>>> {
    if !directory.join(LOCK).exists() || lock(directory)?.is_some() {
        return Ok(None);
    }
    let text = fs::read_to_string(directory.join(PROCESS)).unwrap_or_default();
    Ok(Some(text.trim().parse().ok()))
}

/// Asks whoever runs on the directory to end, and waits until he has; whether he did in time.
pub fn request_shutdown(directory: &Path, pods: PodsOnExit, timeout: Duration) -> io::Result<bool> {
    let text = match pods {
        PodsOnExit::Keep => "keep-pods\n",
        PodsOnExit::Stop => "stop-pods\n",
    };
    fs::write(directory.join(REQUEST), text)?;
    let started = Instant::now();
    while started.elapsed() < timeout {
        if holder(directory)?.is_none() {
            return Ok(true);
        }
        std::thread::sleep(POLL_INTERVAL);
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn one_runs_and_ends_when_asked_to() {
        let directory = tempfile::tempdir().unwrap();
        assert_eq!(holder(directory.path()).unwrap(), None);
        let lock = InstanceLock::acquire(directory.path()).unwrap().unwrap();
        assert!(InstanceLock::acquire(directory.path()).unwrap().is_none());
        assert_eq!(holder(directory.path()).unwrap(), Some(Some(std::process::id())));
        let path = directory.path().to_owned();
        let timeout = Duration::from_secs(60);
        let asking =
            std::thread::spawn(move || request_shutdown(&path, PodsOnExit::Keep, timeout).unwrap());
        assert_eq!(lock.shutdown_requested().await, PodsOnExit::Keep);
        drop(lock);
        assert!(asking.join().unwrap());
        assert_eq!(holder(directory.path()).unwrap(), None);
        // What was asked of the one before is not asked of the next.
        fs::write(directory.path().join(REQUEST), "stop-pods").unwrap();
        drop(InstanceLock::acquire(directory.path()).unwrap().unwrap());
        assert!(!directory.path().join(REQUEST).exists());
    }
}
