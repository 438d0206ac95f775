//! Setup of volumes: [`Volumes::set_up`] and [`Volumes::sub_paths`].
//!
//! Both are idempotent, and are called whenever something may have changed.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;

use host::file_kind::begins_file_system;
use host::mounts::resolve_beneath;
use host::os::{mounts, owners};

use super::contents::{Content, Contents, File, Medium};
use super::directories::{EMPTY_DIR, checked, make};
use super::{Problem, VolumeError, Volumes, atomic, fs_group, go_error, host_path};
use crate::runtime::lower::env::Environment;
use crate::runtime::lower::{MountedVolume, MountedVolumes, expansion};
use lifecycle::spec::{Container, Pod};

/// Every user may write to an empty directory; access is limited by the directories above it.
const EMPTY_DIR_MODE: u32 = 0o777;
/// The permissions of a volume's group: read, and write if the volume is writable; directories can be
/// entered, and new files also belong to the group.
const GROUP_READ: u32 = 0o440;
const GROUP_WRITE: u32 = 0o660;
const GROUP_DIRECTORY: u32 = 0o2110;

impl Volumes {
    /// Applies `contents` to the volumes of a pod, and returns their paths. A failed volume does not keep the
    /// others from being set up.
    pub fn set_up(
        &self,
        pod: &Pod,
        contents: &Contents,
    ) -> Result<MountedVolumes, Vec<VolumeError>> {
        let uid = &pod.metadata.uid;
        self.make_pod_directories(uid).map_err(|error| vec![error])?;
        let mut mounted = MountedVolumes::default();
        let mut errors = Vec::new();
        for (name, content) in contents {
            let volume = match content {
                Ok(content) => self.set_up_one(pod, name, content),
                Err(problem) => Err(problem.clone()),
            };
            match volume {
                Ok(volume) => {
                    mounted.volumes.insert(name.clone(), volume);
                }
                Err(problem) => errors.push(problem.of(name)),
            }
        }
        if errors.is_empty() { Ok(mounted) } else { Err(errors) }
    }

    fn set_up_one(
        &self,
        pod: &Pod,
        name: &str,
        content: &Content,
    ) -> Result<MountedVolume, Problem> {
        let at = |path: &Path, read_only| MountedVolume::Path {
            host_path: path.to_string_lossy().into_owned(),
            read_only,
            relabel: true,
        };
        match content {
            Content::EmptyDir(medium) => {
                let path = self.empty_dir(&pod.metadata.uid, name).map_err(problem)?;
                let group = fs_group(pod);
                self.make_empty(&pod.metadata.uid, name, &path, *medium, group)?;
                Ok(at(&path, false))
            }
            Content::Files { kind, files, size } => {
                let medium = match kind.is_in_memory() {
                    true => Medium::Memory { size: *size },
                    false => Medium::Disk,
                };
                let path = self
                    .volume_directory(&pod.metadata.uid, kind.plugin(), name)
                    .map_err(problem)?;
                self.write_files(pod, name, &path, medium, files)?;
                Ok(at(&path, true))
            }
            Content::HostPath { path, kind } => {
                host_path::check(path, kind)?;
                Ok(MountedVolume::Path {
                    host_path: path.clone(),
                    read_only: false,
                    // The host's files keep their labels.
                    relabel: false,
                })
            }
            Content::Image(image) => Ok(MountedVolume::Image(image.clone())),
        }
    }

    fn write_files(
        &self,
        pod: &Pod,
        name: &str,
        path: &Path,
        medium: Medium,
        files: &BTreeMap<String, File>,
    ) -> Result<(), Problem> {
        let group = fs_group(pod);
        let wrapped = format!("wrapped_{name}");
        self.make_empty(&pod.metadata.uid, &wrapped, path, medium, group)?;
        atomic::write(path, files, |new| match group {
            Some(group) => give_to_group(new, group, GROUP_READ),
            None => Ok(()),
        })?;
        Ok(())
    }

    /// Creates an empty directory once: changes by containers stay.
    fn make_empty(
        &self,
        uid: &str,
        name: &str,
        path: &Path,
        medium: Medium,
        group: Option<u32>,
    ) -> Result<(), Problem> {
        let plugins = self.pod_directory(uid).map_err(problem)?.join("plugins").join(EMPTY_DIR);
        let marks = plugins.join(checked("volume", name).map_err(problem)?);
        let ready = marks.join("ready");
        let is_mounted = self.can_mount && begins_file_system(path);
        let is_there = match medium {
            Medium::Disk => path.is_dir(),
            Medium::Memory { .. } | Medium::HugePages { .. } => {
                is_mounted || (!self.can_mount && path.is_dir())
            }
        };
        if ready.exists() && is_there {
            return Ok(());
        }
        let io = |step, error| io_problem(step, path, &error);
        fs::create_dir_all(path).map_err(|error| io("mkdir", error))?;
        if !is_mounted {
            owners::set_mode(path, EMPTY_DIR_MODE).map_err(|error| io("chmod", error))?;
            self.mount(path, medium)?;
        }
        if let Some(group) = group {
            give_to_group(path, group, GROUP_WRITE).map_err(|error| io("chown", error))?;
        }
        make(&marks).map_err(problem)?;
        fs::write(&ready, "").map_err(|error| io_problem("create", &ready, &error))?;
        // The kubelet's mode; the content is not sensitive.
        owners::set_mode(&ready, 0o644).map_err(|error| io_problem("chmod", &ready, &error))
    }

    fn mount(&self, path: &Path, medium: Medium) -> Result<(), Problem> {
        let mounted = match medium {
            Medium::Disk => return Ok(()),
            // Without mounts, use a directory, like the kubelet on Windows.
            Medium::Memory { .. } if !self.can_mount => return Ok(()),
            Medium::Memory { size } => mounts::mount_tmpfs(path, size),
            Medium::HugePages { page_size } => mounts::mount_huge_pages(path, page_size),
        };
        mounted.map_err(|error| io_problem("mount", path, &error))
    }

    /// Creates the sub-paths that a container mounts, and returns their paths by the position of the mount.
    /// `env` is the container's environment, for `subPathExpr`.
    pub fn sub_paths(
        &self,
        pod: &Pod,
        container: &Container,
        mounted: &MountedVolumes,
        env: &Environment,
    ) -> Result<BTreeMap<usize, String>, VolumeError> {
        let mut found = BTreeMap::new();
        for (position, mount) in container.volume_mounts.iter().enumerate() {
            let volume = mounted.volumes.get(&mount.name);
            let Some(MountedVolume::Path { host_path, .. }) = volume else { continue };
            let sub = expansion::sub_path(mount, |name| env.get(name))
                .map_err(VolumeError::SubPathExpr)?;
            if sub.is_empty() {
                continue;
            }
            check_sub_path(&sub)?;
            // The cause is not reported, because it could reveal facts about the host to the owner of the
            // volume; only the failed step is. A path that cannot be examined is not created.
            let is_missing = matches!(Path::new(host_path).join(&sub).try_exists(), Ok(false));
            let failed = |why: String| {
                let (volume, container) = (mount.name.clone(), container.name.clone());
                match is_missing {
                    true => VolumeError::SubPathNotMade { volume, container, why },
                    false => VolumeError::SubPath { volume, container, why },
                }
            };
            let path = if self.can_mount {
                let target = self
                    .pod_directory(&pod.metadata.uid)?
                    .join("volume-subpaths")
                    .join(checked("volume", &mount.name)?)
                    .join(checked("container", &container.name)?);
                make(&target)?;
                let target = target.join(position.to_string());
                mounts::bind_beneath(Path::new(host_path), &sub, &target).map(|()| target)
            } else {
                resolve_beneath(Path::new(host_path), &sub)
            };
            let path = path.map_err(|error| failed(go_error(&error)))?;
            found.insert(position, path.to_string_lossy().into_owned());
        }
        Ok(found)
    }
}

/// Checks a sub-path, because one from variables was never validated.
fn check_sub_path(sub: &str) -> Result<(), VolumeError> {
    if Path::new(sub).is_absolute() || sub.starts_with('/') {
        return Err(VolumeError::SubPathAbsolute(sub.to_owned()));
    }
    match sub.split(['/', '\\']).any(|name| name == "..") {
        true => Err(VolumeError::SubPathBackwards(sub.to_owned())),
        false => Ok(()),
    }
}

fn io_problem(step: &'static str, path: &Path, error: &io::Error) -> Problem {
    Problem::Io { step, path: path.display().to_string(), why: go_error(error) }
}

/// Converts an error on the path of a volume to its problem.
fn problem(error: VolumeError) -> Problem {
    match error {
        VolumeError::Io { step, path, why } => Problem::Io { step, path, why },
        other => Problem::Path(other.to_string()),
    }
}

/// Gives a directory with all its contents to a group, with the permissions of `bits`.
fn give_to_group(path: &Path, group: u32, bits: u32) -> io::Result<()> {
    let metadata = fs::symlink_metadata(path)?;
    owners::set_owner(path, None, Some(group))?;
    if metadata.is_symlink() {
        return Ok(());
    }
    let mode = owners::mode(&metadata) | bits;
    if !metadata.is_dir() {
        return owners::set_mode(path, mode);
    }
    owners::set_mode(path, mode | GROUP_DIRECTORY)?;
    for entry in fs::read_dir(path)? {
        give_to_group(&entry?.path(), group, bits)?;
    }
    Ok(())
}
