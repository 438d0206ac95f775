//! Backups of a control plane: [`make`] creates one, online or offline; [`restore`] restores one
//! into a data directory without a store.
//!
//! A backup is a directory that only its owner can read, with everything that a control plane
//! cannot recreate:
//!
//! ```text
//! store.base    pki/ca.crt    pki/ca.key    pki/token.key    pki/ca-2.crt …
//! ```
//!
//! The agent's state (`DIR/agent`) is not included: it describes the pods of one machine.

use std::fs::{self, File};
use std::io::{ErrorKind, Write as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use client::Client;
use store::{Contents, OpenError, RestoreError, Store};
use thiserror::Error;

use crate::instance_lock;
use crate::server::authorities::irreplaceable;

/// The store's file in a backup.
const STORE: &str = "store.base";
/// Longest pause between two chunks from the server.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Interval of progress reports.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(2);

/// The result of a backup or restore.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Summary {
    pub contents: Contents,
    pub bytes: u64,
    /// True if a running process sent the backup.
    pub live: bool,
}

/// An error that the user can correct; all others are failures.
#[derive(Debug, Error)]
pub enum BackupError {
    #[error("{} exists already; choose a new directory", .0.display())]
    TargetExists(PathBuf),
    #[error("{} has no store; --data-dir names the directory of a server or node", .0.display())]
    NothingThere(PathBuf),
    #[error("{} is not a backup: {what}", path.display())]
    NotABackup { path: PathBuf, what: String },
    #[error("a server or node runs on {dir}; stop it first (berth down --data-dir {dir})", dir = .0.display())]
    Running(PathBuf),
    #[error(
        "{dir} has a store already, which was not changed; to replace it, move it away first \
         (mv {dir}/store {dir}/store.old)",
        dir = .0.display()
    )]
    StoreExists(PathBuf),
    #[error(
        "{} differs from {file} of the backup: it belongs to another cluster; to use the backup's keys, \
         move {} away first",
        dir.join("pki").join(file).display(),
        dir.join("pki").display()
    )]
    OtherKeys { dir: PathBuf, file: String },
}

/// Backs up a data directory into the new directory `to`. `connect` reaches the server that runs on
/// the data directory, if one does. `on_progress` receives the number of bytes from time to time.
pub async fn make(
    data_dir: &Path,
    to: &Path,
    connect: impl FnOnce() -> Result<Client>,
    on_progress: impl FnMut(u64),
) -> Result<Summary> {
    if to.symlink_metadata().is_ok() {
        bail!(BackupError::TargetExists(to.to_owned()));
    }
    let store_dir = data_dir.join("store");
    if !Store::is_in(&store_dir).with_context(|| format!("cannot read {}", store_dir.display()))? {
        bail!(BackupError::NothingThere(data_dir.to_owned()));
    }
    let name = to.file_name().context("the backup needs a name")?.to_string_lossy();
    let unfinished = to.with_file_name(format!(".{name}.unfinished"));
    remove(&unfinished)?;
    let made = fill(data_dir, &unfinished, connect, on_progress).await;
    let made = made.and_then(|summary| {
        fs::rename(&unfinished, to).with_context(|| format!("cannot make {}", to.display()))?;
        let above = to.parent().filter(|above| !above.as_os_str().is_empty());
        host::os::sync_directory(above.unwrap_or(Path::new(".")))?;
        Ok(summary)
    });
    if made.is_err() {
        // The failure is reported already.
        let _ = remove(&unfinished);
    }
    made
}

async fn fill(
    data_dir: &Path,
    to: &Path,
    connect: impl FnOnce() -> Result<Client>,
    on_progress: impl FnMut(u64),
) -> Result<Summary> {
    host::files::make_private_directory(to)?;
    let file = to.join(STORE);
    let live = match Store::open(&data_dir.join("store"), store::Options::default()) {
        Ok(store) => {
            store.backup(&file)?;
            store.close();
            false
        }
        Err(OpenError::Locked(_)) => {
            fetch(&connect()?, &file, on_progress).await?;
            true
        }
        Err(error) => return Err(error.into()),
    };
    // A transfer may have been cut short; check it now rather than at the restore.
    let contents = Store::inspect_backup(&file).context("the backup is incomplete")?;
    let pki = to.join("pki");
    host::files::make_private_directory(&pki)?;
    for key in irreplaceable(&data_dir.join("pki")) {
        let from = data_dir.join("pki").join(&key);
        let bytes = fs::read(&from).with_context(|| format!("cannot read {}", from.display()))?;
        host::files::write_atomically(&pki.join(&key), &bytes)?;
    }
    Ok(Summary { contents, bytes: fs::metadata(&file)?.len(), live })
}

/// Downloads the backup from the running server.
async fn fetch(api: &Client, file: &Path, mut on_progress: impl FnMut(u64)) -> Result<()> {
    let failed = || format!("cannot write {}", file.display());
    let mut body = api
        .document(apiserver::BACKUP_PATH)
        .await
        .context("failed to request a backup from the running server")?;
    let mut out = File::create(file).with_context(failed)?;
    let (mut received, mut reported_at) = (0, Instant::now());
    loop {
        let chunk = tokio::time::timeout(TIMEOUT, body.next());
        let Some(chunk) = chunk.await.context("no data from the server for 30 s")? else { break };
        out.write_all(&chunk).with_context(failed)?;
        received += chunk.len() as u64;
        if reported_at.elapsed() >= PROGRESS_INTERVAL {
            reported_at = Instant::now();
            on_progress(received);
        }
    }
    out.sync_all().with_context(failed)
}

/// Restores a backup into a data directory without a store. Existing keys must be those of the
/// backup.
pub fn restore(from: &Path, data_dir: &Path) -> Result<Summary> {
    let file = from.join(STORE);
    let not_a_backup = |what: String| BackupError::NotABackup { path: from.to_owned(), what };
    let bytes = match fs::metadata(&file) {
        Ok(found) => found.len(),
        Err(error) => bail!(not_a_backup(format!("{STORE} cannot be read: {error}"))),
    };
    let mut keys = Vec::new();
    for key in irreplaceable(&from.join("pki")) {
        match fs::read(from.join("pki").join(&key)) {
            Ok(bytes) => keys.push((key, bytes)),
            Err(error) => bail!(not_a_backup(format!("pki/{key} cannot be read: {error}"))),
        }
    }
    if instance_lock::holder(data_dir)?.is_some() {
        bail!(BackupError::Running(data_dir.to_owned()));
    }
    let store_dir = data_dir.join("store");
    if Store::is_in(&store_dir).with_context(|| format!("cannot read {}", store_dir.display()))? {
        bail!(BackupError::StoreExists(data_dir.to_owned()));
    }
    for (file, bytes) in &keys {
        match fs::read(data_dir.join("pki").join(file)) {
            Ok(there) if there != *bytes => {
                bail!(BackupError::OtherKeys { dir: data_dir.to_owned(), file: file.clone() });
            }
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(error).with_context(|| format!("cannot read pki/{file}")),
        }
    }
    let pki = data_dir.join("pki");
    host::files::make_private_directory(&pki)?;
    for (file, bytes) in &keys {
        host::files::write_atomically(&pki.join(file), bytes)?;
    }
    host::files::make_private_directory(&store_dir)?;
    // The store comes last: if it exists, the restore is complete.
    match Store::restore(&file, &store_dir) {
        Ok(contents) => Ok(Summary { contents, bytes, live: false }),
        Err(RestoreError::Exists(_)) => bail!(BackupError::StoreExists(data_dir.to_owned())),
        Err(error) => Err(error.into()),
    }
}

fn remove(directory: &Path) -> Result<()> {
    match fs::remove_dir_all(directory) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", directory.display()))
        }
        _ => Ok(()),
    }
}
