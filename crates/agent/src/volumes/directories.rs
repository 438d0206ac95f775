//! Where a pod has its files, by the names they have under a kubelet; and small files of its own.
//!
//! ```text
//! <root>/pods/<uid>/etc-hosts
//!                   containers/<name>/<8 hex>        termination message
//!                   plugins/kubernetes.io~empty-dir/<volume>/ready
//!                   volumes/kubernetes.io~<kind>/<volume>
//!                   volume-subpaths/<volume>/<container>/<position>
//! ```

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use host::file_kind;
use host::os::owners;

use super::{VolumeError, Volumes, words};
use crate::spec::Pod;

/// Modes of directories and files that pods do not write to.
const DIRECTORY: u32 = 0o750;
const HOSTS_FILE: u32 = 0o644;
/// Whoever the container runs as writes its last words.
const TERMINATION_LOG: u32 = 0o666;

/// Fails with what was being done to which path.
pub(super) fn failed(step: &'static str, path: &Path) -> impl FnOnce(io::Error) -> VolumeError {
    let path = path.display().to_string();
    move |error| VolumeError::Io { step, path, why: words(&error) }
}

/// A name that can be one directory's: what comes from a file was checked by nobody.
pub(super) fn checked<'a>(what: &'static str, name: &'a str) -> Result<&'a str, VolumeError> {
    let mut parts = Path::new(name).components();
    match (parts.next(), parts.next()) {
        (Some(std::path::Component::Normal(only)), None) if only == name => Ok(name),
        _ => Err(VolumeError::Name { what, name: name.to_owned() }),
    }
}

/// Makes a directory that pods do not write to, and those above it.
pub(super) fn make(path: &Path) -> Result<(), VolumeError> {
    if path.is_dir() {
        return Ok(());
    }
    if let Some(parent) = path.parent() {
        make(parent)?;
    }
    match fs::create_dir(path) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => {
            return Err(failed("mkdir", path)(error));
        }
        _ => {}
    }
    owners::set_mode(path, DIRECTORY).map_err(failed("chmod", path))
}

impl Volumes {
    /// The directory of all pods.
    pub(super) fn pods_directory(&self) -> PathBuf {
        self.root.join("pods")
    }

    /// The directory of a pod.
    pub fn pod_directory(&self, uid: &str) -> Result<PathBuf, VolumeError> {
        Ok(self.pods_directory().join(checked("pod UID", uid)?))
    }

    /// Makes the directories that every pod has.
    pub fn make_pod_directories(&self, uid: &str) -> Result<(), VolumeError> {
        let directory = self.pod_directory(uid)?;
        make(&directory)?;
        make(&directory.join("volumes"))?;
        make(&directory.join("plugins"))
    }

    /// Writes the pod's file of host names and says where it is. It is written in place: containers
    /// have the file mounted, not its name.
    pub fn write_hosts_file(&self, uid: &str, content: &str) -> Result<PathBuf, VolumeError> {
        let directory = self.pod_directory(uid)?;
        make(&directory)?;
        let path = directory.join("etc-hosts");
        if fs::read(&path).is_ok_and(|there| there == content.as_bytes()) {
            return Ok(path);
        }
        fs::write(&path, content).map_err(failed("write", &path))?;
        owners::set_mode(&path, HOSTS_FILE).map_err(failed("chmod", &path))?;
        Ok(path)
    }

    /// Makes a file for the last words of a container that is about to be made.
    pub fn make_termination_log(&self, uid: &str, container: &str) -> Result<PathBuf, VolumeError> {
        let directory =
            self.pod_directory(uid)?.join("containers").join(checked("container", container)?);
        make(&directory)?;
        let path = directory.join(random_name());
        fs::write(&path, "").map_err(failed("create", &path))?;
        owners::set_mode(&path, TERMINATION_LOG).map_err(failed("chmod", &path))?;
        Ok(path)
    }

    /// UIDs of pods that have a directory, whether they are known or not.
    pub fn pods(&self) -> Result<Vec<String>, VolumeError> {
        let directory = self.pods_directory();
        let entries = match fs::read_dir(&directory) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.map_err(failed("read", &directory))?,
        };
        let names = entries.flatten().filter(|entry| entry.path().is_dir());
        let mut uids: Vec<String> =
            names.filter_map(|entry| entry.file_name().into_string().ok()).collect();
        uids.sort();
        Ok(uids)
    }

    /// What the empty directories of a pod take, in bytes, by volume. Those that are not there (yet, or
    /// any more) are left out.
    pub fn usage(&self, pod: &Pod) -> Result<BTreeMap<String, u64>, VolumeError> {
        let mut usage = BTreeMap::new();
        for volume in pod.spec.volumes.iter().filter(|volume| volume.empty_dir.is_some()) {
            let path = self.empty_dir(&pod.metadata.uid, &volume.name)?;
            match file_kind::disk_usage(&path) {
                Ok(bytes) => {
                    usage.insert(volume.name.clone(), bytes);
                }
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => return Err(failed("measure", &path)(error)),
            }
        }
        Ok(usage)
    }

    /// Where an empty directory is.
    pub(super) fn empty_dir(&self, uid: &str, volume: &str) -> Result<PathBuf, VolumeError> {
        self.volume_directory(uid, EMPTY_DIR, volume)
    }

    pub(super) fn volume_directory(
        &self,
        uid: &str,
        plugin: &str,
        volume: &str,
    ) -> Result<PathBuf, VolumeError> {
        let directory = self.pod_directory(uid)?.join("volumes").join(plugin);
        Ok(directory.join(checked("volume", volume)?))
    }
}

/// The directory of volumes that start out empty.
pub(super) const EMPTY_DIR: &str = "kubernetes.io~empty-dir";

/// Eight hexadecimal digits that nobody else has here. Where the system has no chance to give, the
/// clock has to do: names only have to differ.
pub(super) fn random_name() -> String {
    let number = getrandom::u32().unwrap_or_else(|_| {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        now.map_or(0, |since| since.subsec_nanos())
    });
    format!("{number:08x}")
}
