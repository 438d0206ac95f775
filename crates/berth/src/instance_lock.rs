//! Single-instance lock on a data directory, and the shutdown request: [`InstanceLock`], the same
//! on every operating system.
//!
//! A process holds the lock file of its data directory; the system releases it when the process
//! ends. A request file in the directory asks the process to stop; the process polls for it. This
//! module stops nothing itself.

use std::fs::{self, File, TryLockError};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The lock file.
const LOCK: &str = "berth.lock";
/// The process id, for users.
const PROCESS: &str = "berth.pid";
/// The request to shut down.
const REQUEST: &str = "berth.down";
/// Polling interval for a request.
const POLL_INTERVAL: Duration = Duration::from_millis(250);

/// The treatment of running pods when the node stops.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PodsOnExit {
    Keep,
    Stop,
}

/// The lock of the only process on a data directory.
#[derive(Debug)]
pub struct InstanceLock {
    directory: PathBuf,
    _lock: File,
}

impl InstanceLock {
    /// Acquires the lock; returns `None` if another process holds it.
    pub fn acquire(directory: &Path) -> io::Result<Option<InstanceLock>> {
        fs::create_dir_all(directory)?;
        let Some(lock) = lock(directory)? else { return Ok(None) };
        // A request applied to the previous process.
        remove(&directory.join(REQUEST))?;
        fs::write(directory.join(PROCESS), format!("{}\n", std::process::id()))?;
        Ok(Some(InstanceLock { directory: directory.to_owned(), _lock: lock }))
    }

    /// Waits for a shutdown request.
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
        // Both files are only informative once the lock is released.
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

/// Returns the process that holds the lock, if any, with its id if it is known.
pub fn holder(directory: &Path) -> io::Result<Option<Option<u32>>> {
    if !directory.join(LOCK).exists() || lock(directory)?.is_some() {
        return Ok(None);
    }
    let text = fs::read_to_string(directory.join(PROCESS)).unwrap_or_default();
    Ok(Some(text.trim().parse().ok()))
}

/// Asks the process that holds the lock to shut down, and waits for it. Returns false on a timeout.
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
    async fn one_process_holds_the_lock_until_shutdown_is_requested() {
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
        // A request to the previous process does not apply to the next one.
        fs::write(directory.path().join(REQUEST), "stop-pods").unwrap();
        drop(InstanceLock::acquire(directory.path()).unwrap().unwrap());
        assert!(!directory.path().join(REQUEST).exists());
    }
}
