//! A `berth server` process for one test: [`Server`].

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

/// Runs until dropped.
#[derive(Debug)]
pub(crate) struct Server {
    dir: TempDir,
    process: Child,
}

impl Server {
    /// Starts a server on a free port and waits until it is ready.
    pub(crate) fn start() -> Server {
        let dir = tempfile::tempdir().unwrap();
        let mut process = Command::new(env!("CARGO_BIN_EXE_berth"))
            .args(["server", "--https-listen-port", "0", "--data-dir"])
            .arg(dir.path().join("data"))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let ready = lines.find(|line| line.as_ref().is_ok_and(|line| line.contains("is ready")));
        // Its output ends before that only if it could not start; the error is on standard error
        // already.
        assert!(ready.is_some(), "the server does not start");
        Server { dir, process }
    }

    pub(crate) fn kubeconfig(&self) -> PathBuf {
        self.dir.path().join("data/kubeconfig")
    }

    pub(crate) fn viewer_kubeconfig(&self) -> PathBuf {
        self.dir.path().join("data/viewer.kubeconfig")
    }

    /// An empty home directory for clients with caches.
    pub(crate) fn home(&self) -> &Path {
        self.dir.path()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The process may have exited, which fails the test.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
