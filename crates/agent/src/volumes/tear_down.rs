//! Removal of volumes: [`Volumes::tear_down`], and of all files of a pod: [`Volumes::remove`].
//!
//! Only mounts of [`super::Volumes::set_up`] are unmounted. Any other mount below the pod's directory may be
//! a user's data, so it stops the removal.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use host::file_kind::remove_tree;
use host::mounts::at_or_below;
use host::os::mounts;

use super::directories::failed;
use super::{VolumeError, Volumes};

impl Volumes {
    /// Unmounts and removes the volumes of a pod with their contents. The pod's other files stay. Does
    /// nothing if there are none.
    pub fn tear_down(&self, uid: &str) -> Result<(), VolumeError> {
        let named = self.pod_directory(uid)?;
        let directory = match fs::canonicalize(&named) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            found => found.map_err(failed("resolve", &named))?,
        };
        self.unmount_below(&directory)?;
        for part in ["volume-subpaths", "volumes", "plugins"] {
            let path = directory.join(part);
            remove_tree(&path).map_err(failed("remove", &path))?;
        }
        Ok(())
    }

    /// Removes all files of a pod.
    pub fn remove(&self, uid: &str) -> Result<(), VolumeError> {
        self.tear_down(uid)?;
        let directory = self.pod_directory(uid)?;
        remove_tree(&directory).map_err(failed("remove", &directory))
    }

    fn unmount_below(&self, directory: &Path) -> Result<(), VolumeError> {
        let list = || {
            let mounts = mounts::mounted().map_err(failed("read the mounts of", directory))?;
            Ok(at_or_below(&mounts, directory))
        };
        let points = list()?;
        if let Some(foreign) = points.iter().find(|point| !is_ours(directory, point)) {
            return Err(VolumeError::ForeignMount(foreign.clone()));
        }
        for point in points {
            mounts::unmount(&point).map_err(failed("unmount", &point))?;
        }
        // Do not delete the contents of mounts that appeared in the meantime.
        match list()?.pop() {
            Some(point) => Err(VolumeError::ForeignMount(point)),
            None => Ok(()),
        }
    }
}

/// Returns true if a mount point below a pod's directory is that of a volume or sub-path.
fn is_ours(directory: &Path, point: &Path) -> bool {
    let Ok(below) = point.strip_prefix(directory) else { return false };
    let mut names = below.iter().map(|name| name.to_string_lossy());
    match names.next().as_deref() {
        Some("volumes") => {
            names.next().is_some_and(|plugin| plugin.starts_with("kubernetes.io~"))
                && names.count() == 1
        }
        Some("volume-subpaths") => names.count() == 3,
        _ => false,
    }
}
