//! Mounts on Linux: memory file systems, huge pages, and parts of volumes.
//!
//! See [`crate::os`] for the twin. Existing mounts are read from `/proc/self/mountinfo`, which
//! [`crate::mounts`] parses.

use std::ffi::CString;
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::Path;

use rustix::fs::{Mode, OFlags, ResolveFlags, openat2};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};

use crate::mounts::{self, Mount};
use crate::os::owners;

/// The bit of `CAP_SYS_ADMIN`, which mounting needs.
const SYS_ADMIN: u32 = 21;
/// The modes of directories and files that are created as mount points. They are hidden while
/// something is mounted.
const DIRECTORY_BELOW_MOUNT: u32 = 0o750;
const FILE_BELOW_MOUNT: u32 = 0o640;

/// Returns true if this process may mount.
#[must_use]
pub fn can_mount() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    status
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:"))
        .and_then(|set| u64::from_str_radix(set.trim(), 16).ok())
        .is_some_and(|set| set >> SYS_ADMIN & 1 == 1)
}

/// Returns all mounts that this process sees.
pub fn mounted() -> io::Result<Vec<Mount>> {
    Ok(mounts::parse(&fs::read_to_string("/proc/self/mountinfo")?))
}

/// Mounts a tmpfs on a directory, with a limit of `size` bytes or the kernel's default. It is
/// excluded from swap if the kernel supports that.
pub fn mount_tmpfs(target: &Path, size: Option<u64>) -> io::Result<()> {
    let size = size.map(|size| format!("size={size}"));
    let no_swap = knows_no_swap().then(|| "noswap".to_owned());
    let options: Vec<String> = size.into_iter().chain(no_swap).collect();
    mount("tmpfs", target, "tmpfs", &options.join(","))
}

/// The first kernel version with `noswap`. Older kernels reject the option and log an error, so it
/// is not tried.
const NO_SWAP_SINCE: (u32, u32) = (6, 4);

fn knows_no_swap() -> bool {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    version(&release).is_some_and(|version| version >= NO_SWAP_SINCE)
}

/// Parses the first two numbers of `6.1.0-50-cloud-amd64`.
fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|char: char| !char.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

/// Mounts huge pages of one size on a directory.
pub fn mount_huge_pages(target: &Path, page_size: u64) -> io::Result<()> {
    mount("nodev", target, "hugetlbfs", &format!("pagesize={page_size}"))
}

fn mount(source: &str, target: &Path, kind: &str, options: &str) -> io::Result<()> {
    let options = CString::new(options)?;
    rustix::mount::mount(source, target, kind, MountFlags::empty(), options.as_c_str())?;
    Ok(())
}

/// Unmounts the topmost mount of a path, without following a link.
pub fn unmount(target: &Path) -> io::Result<()> {
    Ok(rustix::mount::unmount(target, UnmountFlags::NOFOLLOW)?)
}

/// Bind-mounts `sub` of `volume` on `target`, which is created as needed. Missing directories of
/// `sub` are created with the mode of the volume.
///
/// Processes with write access to the volume may change links meanwhile. The kernel therefore
/// resolves the path in one call that never leaves the volume (`openat2`, Linux 5.6), and the file
/// that this call returned is mounted, not the path. A repeated call does nothing; if `sub` is
/// another file now, it replaces the mount.
pub fn bind_beneath(volume: &Path, sub: &str, target: &Path) -> io::Result<()> {
    let parts = mounts::components(sub)?;
    let directory = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let base = rustix::fs::open(volume, directory, Mode::empty())?;
    let found = match open_beneath(&base, Path::new(sub), OFlags::PATH) {
        Err(Errno::NOENT) => {
            make_beneath(&base, &parts, owners::mode(&fs::metadata(volume)?))?;
            open_beneath(&base, Path::new(sub), OFlags::PATH)?
        }
        found => found?,
    };
    let found = File::from(found);
    let wanted = found.metadata()?;
    if fs::symlink_metadata(target).is_ok() {
        let points = mounts::at_or_below(&mounted()?, &fs::canonicalize(target)?);
        let is_bound = owners::identity(&fs::metadata(target)?) == owners::identity(&wanted);
        if is_bound && !points.is_empty() {
            return Ok(());
        }
        for point in points {
            unmount(&point)?;
        }
    }
    make_target(target, wanted.is_dir())?;
    let source = format!("/proc/self/fd/{}", found.as_raw_fd());
    Ok(rustix::mount::mount_bind(source, target)?)
}

fn open_beneath(base: &OwnedFd, path: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
    let beneath = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    openat2(base, path, flags | OFlags::CLOEXEC, Mode::empty(), beneath)
}

fn make_beneath(base: &OwnedFd, parts: &[&Path], mode: u32) -> io::Result<()> {
    let mut parent = open_beneath(base, Path::new(""), OFlags::PATH | OFlags::DIRECTORY)?;
    let mut path = std::path::PathBuf::new();
    for part in parts {
        path.push(part);
        parent = match open_beneath(base, &path, OFlags::PATH | OFlags::DIRECTORY) {
            Err(Errno::NOENT) => {
                rustix::fs::mkdirat(&parent, *part, Mode::from_raw_mode(0o700))?;
                // The directory was created just now, so a link here was planted.
                let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let made = rustix::fs::openat(&parent, *part, flags, Mode::empty())?;
                rustix::fs::fchmod(&made, Mode::from_raw_mode(mode))?;
                made
            }
            found => found?,
        };
    }
    Ok(())
}

fn make_target(target: &Path, is_directory: bool) -> io::Result<()> {
    use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
    let mut directories = fs::DirBuilder::new();
    directories.recursive(true).mode(DIRECTORY_BELOW_MOUNT);
    if let Some(parent) = target.parent() {
        directories.create(parent)?;
    }
    match fs::symlink_metadata(target) {
        Ok(there) if there.is_dir() == is_directory => return Ok(()),
        Ok(there) if there.is_dir() => fs::remove_dir(target)?,
        Ok(_) => fs::remove_file(target)?,
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    if is_directory {
        directories.create(target)
    } else {
        let mut file = fs::OpenOptions::new();
        file.write(true).create_new(true).mode(FILE_BELOW_MOUNT).open(target).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::path::PathBuf;

    use super::*;
    use crate::file_kind::{begins_file_system, disk_usage, remove_tree};

    /// A directory whose mounts are removed on drop.
    struct TestMounts(tempfile::TempDir);

    impl TestMounts {
        /// Returns `None` and prints it if this process may not mount. In CI it must be able to.
        fn new() -> Option<TestMounts> {
            if can_mount() {
                return Some(TestMounts(tempfile::tempdir().unwrap()));
            }
            eprintln!("skipped: mounting needs CAP_SYS_ADMIN");
            assert_ne!(std::env::var("CI").as_deref(), Ok("true"), "CI has to be able to");
            None
        }

        fn make(&self, name: &str) -> PathBuf {
            let path = fs::canonicalize(self.0.path()).unwrap().join(name);
            fs::create_dir_all(&path).unwrap();
            path
        }

        fn mounts(&self) -> Vec<Mount> {
            let root = fs::canonicalize(self.0.path()).unwrap();
            let mounts = mounted().unwrap().into_iter();
            mounts.filter(|mount| mount.point.starts_with(&root)).collect()
        }
    }

    impl Drop for TestMounts {
        fn drop(&mut self) {
            for mount in self.mounts().into_iter().rev() {
                let _ = unmount(&mount.point);
            }
        }
    }

    #[test]
    fn kernel_version_is_parsed_from_a_release() {
        for (release, expected) in [
            ("6.1.0-50-cloud-amd64\n", Some((6, 1))),
            ("6.18.44-fc-v445", Some((6, 18))),
            ("10.0", Some((10, 0))),
            ("6", None),
            ("", None),
        ] {
            assert_eq!(version(release), expected, "{release}");
        }
        assert!(version("6.10").unwrap() > NO_SWAP_SINCE);
    }

    #[test]
    fn tmpfs_is_mounted_with_its_size_and_unmounted() {
        let Some(place) = TestMounts::new() else { return };
        let target = place.make("memory");
        assert!(!begins_file_system(&target));
        mount_tmpfs(&target, Some(1 << 20)).unwrap();
        assert!(begins_file_system(&target));
        let [mount] = place.mounts().try_into().unwrap();
        assert_eq!((mount.kind.as_str(), &mount.point), ("tmpfs", &target));
        assert!(mount.options.contains(&"size=1024k".to_owned()), "{mount:?}");
        assert_eq!(mount.options.contains(&"noswap".to_owned()), knows_no_swap(), "{mount:?}");
        fs::write(target.join("fits"), vec![1_u8; 512 << 10]).unwrap();
        assert!(fs::write(target.join("does not"), vec![1_u8; 2 << 20]).is_err());
        unmount(&target).unwrap();
        assert_eq!(place.mounts(), []);
        assert!(!target.join("fits").exists());
        mount_tmpfs(&target, None).unwrap();
        assert_eq!(place.mounts().len(), 1);
    }

    #[test]
    fn huge_pages_are_mounted_in_the_requested_size_only() {
        let Some(place) = TestMounts::new() else { return };
        let sizes = Path::new("/sys/kernel/mm/hugepages");
        if !sizes.join("hugepages-2048kB").exists() {
            eprintln!("skipped: this machine has no huge pages of 2 MiB");
            return;
        }
        let target = place.make("pages");
        mount_huge_pages(&target, 2 << 20).unwrap();
        let [mount] = place.mounts().try_into().unwrap();
        assert_eq!(mount.kind, "hugetlbfs");
        assert!(mount.options.contains(&"pagesize=2M".to_owned()), "{mount:?}");
        assert!(mount_huge_pages(&place.make("odd"), 3 << 20).is_err());
    }

    #[test]
    fn mounts_below_a_directory_are_neither_counted_nor_removed() {
        let Some(place) = TestMounts::new() else { return };
        let (tree, point) = (place.make("tree"), place.make("tree/a/point"));
        mount_tmpfs(&point, Some(4 << 20)).unwrap();
        fs::write(point.join("data"), vec![1_u8; 1 << 20]).unwrap();
        assert!(disk_usage(&tree).unwrap() < 1 << 20);
        let error = remove_tree(&tree).unwrap_err();
        assert!(error.to_string().ends_with("a/point is on another file system"), "{error}");
        assert_eq!(fs::metadata(point.join("data")).unwrap().len(), 1 << 20);
    }

    #[test]
    fn a_sub_path_is_bound_once_and_rebound_when_replaced() {
        let Some(place) = TestMounts::new() else { return };
        let volume = place.make("volume");
        let target = volume.with_file_name("targets").join("v").join("0");
        fs::write(volume.join("file"), "one").unwrap();
        bind_beneath(&volume, "file", &target).unwrap();
        assert_eq!(fs::read_to_string(&target).unwrap(), "one");
        bind_beneath(&volume, "file", &target).unwrap();
        assert_eq!(place.mounts().len(), 1);
        fs::rename(volume.join("file"), volume.join("old")).unwrap();
        fs::write(volume.join("file"), "two").unwrap();
        bind_beneath(&volume, "file", &target).unwrap();
        assert_eq!(fs::read_to_string(&target).unwrap(), "two");
        bind_beneath(&volume, "now/a/directory", &target).unwrap();
        assert!(target.is_dir());
        assert_eq!(place.mounts().len(), 1);
        bind_beneath(&volume, ".", &target).unwrap();
        assert_eq!(fs::read_to_string(target.join("file")).unwrap(), "two");
    }

    #[test]
    fn no_link_leads_out_of_a_volume() {
        let Some(place) = TestMounts::new() else { return };
        let (volume, outside) = (place.make("volume"), place.make("outside"));
        let target = volume.with_file_name("target");
        fs::create_dir(volume.join("inside")).unwrap();
        symlink("inside", volume.join("good")).unwrap();
        bind_beneath(&volume, "good/new", &target).unwrap();
        assert!(volume.join("inside/new").is_dir());
        for (name, leads_to) in [
            ("up", PathBuf::from("../outside")),
            ("absolute", outside.clone()),
            ("magic", "/proc/self/root".into()),
            ("dangling", "../outside/new".into()),
            ("inside/up", "../../outside".into()),
        ] {
            symlink(&leads_to, volume.join(name)).unwrap();
            for sub in [name.to_owned(), format!("{name}/new")] {
                assert!(bind_beneath(&volume, &sub, &target).is_err(), "{sub}");
            }
        }
        assert_eq!(fs::read_dir(&outside).unwrap().count(), 0);
        assert_eq!(place.mounts().len(), 1);
    }
}
