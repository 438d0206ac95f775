//! Directories, files and mounts of pods: [`Volumes`], and what is to be in them.
//!
//! ```text
//!   Pod ──▶ references ──▶ (the API) ──▶ contents ──▶ Volumes::set_up ──▶ Mounted
//!             pure                         pure          rim: disk, mounts
//! ```
//!
//! [`references`] says what a pod needs, [`contents`] what its volumes are to hold; both are pure.
//! [`Volumes`] makes it so, as often as it is asked: what is right stays as it is, what changed is
//! replaced in one step. Directories have the names they have under a kubelet. Its methods block. It
//! neither fetches anything nor decides when; images are mounted by the runtime; and what a host path
//! leads to is never removed.

use std::path::{Path, PathBuf};

use host::os::mounts;
use thiserror::Error;

use crate::runtime::lower::LowerError;
use crate::spec::{Pod, Projection, Volume};

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
    Claim, Claims, Content, Contents, File, Medium, Tokens, VolumeInputs, contents,
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
    /// Below `root`, `/var/lib/kubelet` with the kubelet. Where this process may not mount, memory
    /// volumes are plain directories and a sub-path is found instead of bound; see
    /// [`Volumes::can_mount`].
    #[must_use]
    pub fn new(root: impl Into<PathBuf>) -> Volumes {
        Volumes { root: root.into(), can_mount: mounts::can_mount() }
    }

    /// The same where nothing is mounted even if it could be.
    #[must_use]
    pub fn without_mounts(root: impl Into<PathBuf>) -> Volumes {
        Volumes { root: root.into(), can_mount: false }
    }

    /// Below which everything is.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Whether secrets are kept in memory, and sub-paths safe from whoever changes links meanwhile.
    #[must_use]
    pub fn can_mount(&self) -> bool {
        self.can_mount
    }
}

/// Whose files a volume has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FilesKind {
    ConfigMap,
    Secret,
    Projected,
    DownwardApi,
}

impl FilesKind {
    /// The directory of such volumes.
    fn plugin(self) -> &'static str {
        match self {
            FilesKind::ConfigMap => "kubernetes.io~configmap",
            FilesKind::Secret => "kubernetes.io~secret",
            FilesKind::Projected => "kubernetes.io~projected",
            FilesKind::DownwardApi => "kubernetes.io~downward-api",
        }
    }

    /// Whether it never is on a disk.
    fn is_in_memory(self) -> bool {
        self != FilesKind::ConfigMap
    }
}

/// A volume of files as a list of sources: a projected one has many, the others one.
struct Projections {
    kind: FilesKind,
    sources: Vec<Projection>,
    default_mode: Option<i32>,
}

/// The sources of a volume of files; `None` for other volumes.
fn source_of(volume: &Volume) -> Option<Projections> {
    if let Some(of) = &volume.config_map {
        let source = Projection { config_map: Some(of.clone()), ..Projection::default() };
        let (kind, default_mode) = (FilesKind::ConfigMap, of.default_mode);
        return Some(Projections { kind, sources: vec![source], default_mode });
    }
    if let Some(of) = &volume.secret {
        let source = Projection { secret: Some(of.into()), ..Projection::default() };
        let (kind, default_mode) = (FilesKind::Secret, of.default_mode);
        return Some(Projections { kind, sources: vec![source], default_mode });
    }
    if let Some(of) = &volume.downward_api {
        let source = Projection { downward_api: Some(of.clone()), ..Projection::default() };
        let (kind, default_mode) = (FilesKind::DownwardApi, of.default_mode);
        return Some(Projections { kind, sources: vec![source], default_mode });
    }
    let of = volume.projected.as_ref()?;
    let (kind, default_mode) = (FilesKind::Projected, of.default_mode);
    Some(Projections { kind, sources: of.sources.clone(), default_mode })
}

/// Why something of a pod's volumes could not be done. The texts of [`VolumeError::SetUp`] and
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
    #[error("{what} {name:?} cannot be the name of a directory")]
    Name { what: &'static str, name: String },
    #[error("{step} {path}: {why}")]
    Io { step: &'static str, path: String, why: String },
    #[error(
        "{0} is mounted inside the pod's directory by someone else; unmount it, and the directory \
         will be removed"
    )]
    ForeignMount(PathBuf),
}

/// What is wrong with a volume, in upstream's words where it has some.
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

/// Why a claim cannot be used, in upstream's words.
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
    /// As the event of this volume has it.
    fn of(self, volume: &str) -> VolumeError {
        let volume = volume.to_owned();
        match self {
            Problem::Claim { .. } => VolumeError::Claim { volume, problem: self },
            problem => VolumeError::SetUp { volume, problem },
        }
    }
}

/// An error of the system as upstream writes it: a sentence inside another.
fn words(error: &std::io::Error) -> String {
    let text = error.to_string();
    let text = text.split(" (os error").next().unwrap_or_default();
    let mut chars = text.chars();
    match chars.next() {
        Some(first) => first.to_lowercase().chain(chars).collect(),
        None => text.to_owned(),
    }
}

/// The group that owns a pod's volumes.
fn fs_group(pod: &Pod) -> Option<u32> {
    pod.spec.security_context.fs_group.and_then(|group| u32::try_from(group).ok())
}

#[cfg(test)]
mod tests;
