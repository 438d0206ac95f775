//! Directories, files and mounts of pods: [`Volumes`], and their contents.
//!
//! ```text
//!   Pod ──▶ references ──▶ (the API) ──▶ contents ──▶ Volumes::set_up ──▶ MountedVolumes
//!             pure                         pure          rim: disk, mounts
//! ```
//!
//! [`references`] returns the objects that a pod needs, [`contents`] the wanted contents of its volumes; both
//! are pure. [`Volumes`] applies them, and can be called repeatedly: correct files stay, changed ones are
//! replaced atomically. Directories have the kubelet's names. Its methods block. It does not fetch objects or
//! schedule updates. The runtime mounts images. The target of a host path is never removed.

use std::path::{Path, PathBuf};

use host::os::mounts;
use thiserror::Error;

use crate::runtime::lower::LowerError;
use lifecycle::spec::{Pod, Projection, Volume};

mod atomic;
mod contents;
mod directories;
mod excess;
mod host_path;
pub mod hosts;
mod references;
mod set_up;
mod tear_down;

pub use contents::{
    Claim, Claims, Content, Contents, File, Medium, TokenError, Tokens, VolumeInputs, contents,
};
pub use excess::excess;
pub use references::{Need, References, TokenKey, references};

/// The volumes of all pods of a node.
#[derive(Debug, Clone)]
pub struct Volumes {
    root: PathBuf,
    can_mount: bool,
}

impl Volumes {
    /// Uses the directory `root`, `/var/lib/kubelet` with the kubelet. If this process may not mount, memory
    /// volumes are plain directories, and a sub-path is resolved instead of bind-mounted; see
    /// [`Volumes::can_mount`].
    #[must_use]
    pub fn new(root: impl Into<PathBuf>) -> Volumes {
        Volumes { root: root.into(), can_mount: mounts::can_mount() }
    }

    /// Never mounts, even if the process may.
    #[must_use]
    pub fn without_mounts(root: impl Into<PathBuf>) -> Volumes {
        Volumes { root: root.into(), can_mount: false }
    }

    /// Returns the root directory.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Returns true if secrets are in memory, and sub-paths are safe from concurrent changes of links.
    #[must_use]
    pub fn can_mount(&self) -> bool {
        self.can_mount
    }
}

/// The source of a volume's files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FilesKind {
    ConfigMap,
    Secret,
    Projected,
    DownwardApi,
}

impl FilesKind {
    /// Returns the directory name of such volumes.
    fn plugin(self) -> &'static str {
        match self {
            FilesKind::ConfigMap => "kubernetes.io~configmap",
            FilesKind::Secret => "kubernetes.io~secret",
            FilesKind::Projected => "kubernetes.io~projected",
            FilesKind::DownwardApi => "kubernetes.io~downward-api",
        }
    }

    /// Returns true if it is never on a disk.
    fn is_in_memory(self) -> bool {
        self != FilesKind::ConfigMap
    }
}

/// A volume of files as a list of sources: a projected volume has many, the others one.
struct Projections {
    kind: FilesKind,
    sources: Vec<Projection>,
    default_mode: Option<i32>,
}

/// Returns the sources of a volume of files; `None` for other volumes.
fn source_of(volume: &Volume) -> Option<Projections> {
    if let Some(volume_source) = &volume.config_map {
        let source =
            Projection { config_map: Some(volume_source.clone()), ..Projection::default() };
        let (kind, default_mode) = (FilesKind::ConfigMap, volume_source.default_mode);
        return Some(Projections { kind, sources: vec![source], default_mode });
    }
    if let Some(volume_source) = &volume.secret {
        let source = Projection { secret: Some(volume_source.into()), ..Projection::default() };
        let (kind, default_mode) = (FilesKind::Secret, volume_source.default_mode);
        return Some(Projections { kind, sources: vec![source], default_mode });
    }
    if let Some(volume_source) = &volume.downward_api {
        let source =
            Projection { downward_api: Some(volume_source.clone()), ..Projection::default() };
        let (kind, default_mode) = (FilesKind::DownwardApi, volume_source.default_mode);
        return Some(Projections { kind, sources: vec![source], default_mode });
    }
    let volume_source = volume.projected.as_ref()?;
    let (kind, default_mode) = (FilesKind::Projected, volume_source.default_mode);
    Some(Projections { kind, sources: volume_source.sources.clone(), default_mode })
}

/// The error of an operation on a pod's volumes. The texts of [`VolumeError::SetUp`] and
/// [`VolumeError::Claim`] are upstream's messages of `FailedMount` events.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum VolumeError {
    #[error("MountVolume.SetUp failed for volume {volume:?} : {problem}")]
    SetUp { volume: String, problem: Problem },
    #[error(
        "Unable to attach or mount volumes: unmounted volumes=[{volume}], unattached volumes=[], \
         failed to process volumes=[{volume}]: {problem}"
    )]
    Claim { volume: String, problem: Problem },
    #[error("failed to prepare subPath for volumeMount {volume:?} of container {container:?}")]
    SubPath { volume: String, container: String, why: String },
    #[error(
        "failed to create subPath directory for volumeMount {volume:?} of container {container:?}"
    )]
    SubPathNotMade { volume: String, container: String, why: String },
    #[error("error SubPath `{0}` must not be an absolute path")]
    SubPathAbsolute(String),
    #[error("unable to provision SubPath `{0}`: must not contain '..'")]
    SubPathBackwards(String),
    #[error(transparent)]
    SubPathExpr(LowerError),
    #[error("{what} {name:?} is not a valid directory name")]
    Name { what: &'static str, name: String },
    #[error("{step} {path}: {why}")]
    Io { step: &'static str, path: String, why: String },
    #[error(
        "{0} is mounted inside the pod's directory by another process; unmount it so that the \
         directory can be removed"
    )]
    ForeignMount(PathBuf),
}

/// The problem of a volume, with upstream's text where it has one.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Problem {
    #[error("configmap {0:?} not found")]
    NoConfigMap(String),
    #[error("secret {0:?} not found")]
    NoSecret(String),
    #[error("configmap references non-existent config key: {0}")]
    NoConfigMapKey(String),
    #[error("references non-existent secret key: {0}")]
    NoSecretKey(String),
    #[error("failed to fetch token: {0}")]
    Token(String),
    #[error("{0}")]
    Downward(String),
    #[error("{0}")]
    Path(String),
    #[error("unknown storage medium {0:?}")]
    Medium(String),
    #[error(
        "medium {0}: hugePages storage requested, but there is no resource request for huge pages"
    )]
    NoHugePages(String),
    #[error("medium: {0} can't be used if container requests multiple huge page sizes")]
    ManyPageSizes(String),
    #[error("{0}")]
    HostPath(String),
    #[error("error processing PVC {namespace}/{name}: {fault}")]
    Claim { namespace: String, name: String, fault: ClaimFault },
    #[error(
        "kubernetes.io/csi: mounter.SetUpAt failed to get CSI client: driver name {0} not found in \
         the list of registered CSI drivers"
    )]
    NoDriver(String),
    #[error(
        "volumes of kind {kind:?} are not supported on this node; emptyDir, hostPath, configMap, \
         secret, projected, downwardAPI and image are"
    )]
    Unsupported { kind: String },
    #[error(
        "sources of kind {kind:?} are not supported on this node; configMap, secret, downwardAPI \
         and serviceAccountToken are"
    )]
    UnsupportedSource { kind: String },
    #[error("[{}]", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "))]
    Several(Vec<Problem>),
    #[error("{step} {path}: {why}")]
    Io { step: &'static str, path: String, why: String },
}

/// The reason why a claim cannot be used, with upstream's text.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ClaimFault {
    #[error("failed to fetch PVC from API server: persistentvolumeclaims {name:?} not found")]
    Missing { name: String },
    #[error("PVC is being deleted")]
    Deleted,
    #[error("PVC is not bound")]
    Unbound,
    #[error("PVC has empty pvc.Spec.VolumeName")]
    NoVolume,
}

impl Problem {
    /// Converts the problem to the error of this volume.
    fn of(self, volume: &str) -> VolumeError {
        let volume = volume.to_owned();
        match self {
            Problem::Claim { .. } => VolumeError::Claim { volume, problem: self },
            problem => VolumeError::SetUp { volume, problem },
        }
    }
}

/// Formats a system error as upstream does, as a part of a sentence.
fn go_error(error: &std::io::Error) -> String {
    let text = error.to_string();
    let text = text.split(" (os error").next().unwrap_or_default();
    let mut chars = text.chars();
    match chars.next() {
        Some(first) => first.to_lowercase().chain(chars).collect(),
        None => text.to_owned(),
    }
}

/// Returns the group that owns a pod's volumes.
fn fs_group(pod: &Pod) -> Option<u32> {
    pod.spec.security_context.fs_group.and_then(|group| u32::try_from(group).ok())
}

#[cfg(test)]
mod tests;
