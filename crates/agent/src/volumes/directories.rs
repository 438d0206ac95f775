//! The directories of a pod, with the kubelet's names, and its own small files.
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

use super::{VolumeError, Volumes, go_error};
use lifecycle::spec::Pod;

/// Modes of directories and files that pods do not write to.
const DIRECTORY: u32 = 0o750;
const HOSTS_FILE: u32 = 0o644;
/// Writable by every user of the container.
const TERMINATION_LOG: u32 = 0o666;

/// Adds the step and the path to an I/O error.
pub(super) fn failed(step: &'static str, path: &Path) -> impl FnOnce(io::Error) -> VolumeError {
    let path = path.display().to_string();
    move |error| VolumeError::Io { step, path, why: go_error(&error) }
}

/// Checks that a name is a single path component: names from manifests were not validated.
pub(super) fn checked<'a>(what: &'static str, name: &'a str) -> Result<&'a str, VolumeError> {
    let mut parts = Path::new(name).components();
    match (parts.next(), parts.next()) {
        (Some(std::path::Component::Normal(only)), None) if only == name => Ok(name),
        _ => Err(VolumeError::Name { what, name: name.to_owned() }),
    }
}

/// Creates a directory that pods do not write to, and its parents.
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
    /// Returns the directory of all pods.
    pub(super) fn pods_directory(&self) -> PathBuf {
        self.root.join("pods")
    }

    /// Returns the directory of a pod.
    pub fn pod_directory(&self, uid: &str) -> Result<PathBuf, VolumeError> {
        Ok(self.pods_directory().join(checked("pod UID", uid)?))
    }

    /// Creates the directories that every pod has.
    pub fn make_pod_directories(&self, uid: &str) -> Result<(), VolumeError> {
        let directory = self.pod_directory(uid)?;
        make(&directory)?;
        make(&directory.join("volumes"))?;
        make(&directory.join("plugins"))
    }

    /// Writes the pod's hosts file and returns its path. It is written in place, because containers mount the
    /// file and not its name.
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

    /// Creates a file for the termination message of a container that is about to be created.
    pub fn make_termination_log(&self, uid: &str, container: &str) -> Result<PathBuf, VolumeError> {
        let directory =
            self.pod_directory(uid)?.join("containers").join(checked("container", container)?);
        make(&directory)?;
        let path = directory.join(random_name());
        fs::write(&path, "").map_err(failed("create", &path))?;
        owners::set_mode(&path, TERMINATION_LOG).map_err(failed("chmod", &path))?;
        Ok(path)
    }

    /// Returns the UIDs of pods that have a directory, known or not.
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

    /// Returns the usage of a pod's empty directories in bytes, by volume. Missing directories are omitted.
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

    /// Returns the path of an empty directory.
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

/// Returns eight random hexadecimal digits. Without a random source, the clock is used: names only have to
/// differ.
pub(super) fn random_name() -> String {
    let number = getrandom::u32().unwrap_or_else(|_| {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        now.map_or(0, |since| since.subsec_nanos())
    });
    format!("{number:08x}")
}
