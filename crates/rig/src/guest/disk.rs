//! The disk of guests: [`Disk`], with containerd and the programs of a test, and the initramfs that
//! mounts it.
//!
//! The disk is a file with an ext4 file system. Guests write to their own copies, so one disk
//! serves all guests of a test binary.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::cpio::Cpio;
use super::{ADDRESS, GuestError, Kernel, READY, failed};
use crate::{containerd, image};

/// The programs of every guest, in addition to those of a test.
const PROGRAMS: &[(&str, &str)] = &[
    ("/usr/bin/containerd", "containerd"),
    ("/usr/bin/containerd-shim-runc-v2", "containerd"),
    ("/usr/bin/ctr", "containerd"),
    ("/usr/sbin/runc", "runc"),
    ("/usr/lib/cni/loopback", "containernetworking-plugins"),
    (image::BINARY, "busybox-static"),
];

/// The directory for the programs of a test.
const OWN: &str = "/usr/local/bin";

/// The directory of the guest's containerd.
pub(crate) const CONTAINERD: &str = "/var/lib/containerd";

/// The kernel modules for a disk, a network and image layers.
const MODULES: &[&str] = &["virtio_pci", "virtio_blk", "virtio_net", "overlay"];

/// The longest lifetime of a guest.
const LIFE_SECONDS: u32 = 1800;

/// Free space on the disk for unpacked images, logs, and files of pods.
const ROOM_MIB: u64 = 512;

/// A disk for guests.
#[derive(Debug, Clone)]
pub struct Disk {
    path: PathBuf,
}

impl Disk {
    /// Creates a disk with programs in the guest's `PATH`. Debug information is stripped, and the
    /// required libraries are added.
    pub fn make(path: &Path, programs: &[&Path]) -> Result<Disk, GuestError> {
        let tree = tempfile::tempdir().map_err(failed("make a directory"))?;
        let root = tree.path();
        for directory in ["dev", "etc", "proc", "root", "run", "sys", "tmp", "var/log"] {
            make(&root.join(directory))?;
        }
        make(&below(root, CONTAINERD).join("cni"))?;
        let mut libraries = BTreeSet::new();
        for (program, package) in PROGRAMS {
            let program = Path::new(program);
            if !program.exists() {
                let remedy = format!("install the Debian package {package}");
                return Err(GuestError::Missing { path: program.display().to_string(), remedy });
            }
            libraries.extend(libraries_of(program)?);
            copy(program, &below(root, &program.to_string_lossy()))?;
        }
        copy(Path::new(image::BINARY), &root.join("bin/busybox"))?;
        for program in programs {
            let to = below(root, OWN).join(program.file_name().unwrap_or_default());
            libraries.extend(libraries_of(program)?);
            copy(program, &to)?;
            let to = to.to_string_lossy();
            output_of("strip", &["--strip-all", &to])?;
        }
        for library in libraries {
            copy(&library, &below(root, &library.to_string_lossy()))?;
        }
        let write = |name: &str, text: &str| {
            fs::write(root.join(name), text).map_err(failed(format!("write {name}")))
        };
        write("etc/passwd", "root:x:0:0:root:/root:/bin/sh\n")?;
        write("etc/group", "root:x:0:\n")?;
        write("etc/resolv.conf", "")?;
        write("etc/inittab", INITTAB)?;
        write("etc/begin", &begin())?;
        write("etc/serve", &serve())?;
        write("etc/containerd.toml", &containerd::config(Path::new(CONTAINERD)))?;
        image::write(&root.join("var/images.tar")).map_err(failed("make the images"))?;
        let draft = path.with_extension("draft");
        let _ = fs::remove_file(&draft);
        let size = format!(
            "{}M",
            mebibytes(root).map_err(failed("compute the size of the disk"))? + ROOM_MIB
        );
        let (from, to) = (root.to_string_lossy(), draft.to_string_lossy());
        // A temporary disk needs neither a journal nor blocks reserved for root.
        let arguments =
            ["-q", "-t", "ext4", "-O", "^has_journal", "-m", "0", "-d", &from, &to, &size];
        output_of("/usr/sbin/mke2fs", &arguments)?;
        // The rename makes the file appear complete.
        fs::rename(&draft, path).map_err(failed(format!("make {}", path.display())))?;
        Ok(Disk { path: path.to_owned() })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

/// Returns the initramfs: the modules, and a script that mounts the disk.
pub(crate) fn initramfs(kernel: &Kernel) -> Result<Vec<u8>, GuestError> {
    let mut archive = Cpio::default();
    for directory in ["bin", "dev", "disk", "modules"] {
        archive.directory(directory);
    }
    archive.device("dev/console", (5, 1));
    let busybox = fs::read(image::BINARY).map_err(failed("read busybox"))?;
    archive.file("bin/busybox", 0o755, &busybox);
    let mut load = String::new();
    for (name, contents) in kernel.modules(MODULES)? {
        archive.file(&format!("modules/{name}.ko"), 0o644, &contents);
        load += &format!("/bin/busybox insmod /modules/{name}.ko\n");
    }
    let init = format!(
        "#!/bin/busybox sh\n\
         # The kernel's first process: loads what the disk needs and goes over to it.\n\
         set -e\n\
         {load}\
         /bin/busybox mount -t devtmpfs none /dev\n\
         until [ -b /dev/vda ]; do /bin/busybox usleep 10000; done\n\
         /bin/busybox mount -t ext4 /dev/vda /disk\n\
         exec /bin/busybox switch_root /disk /bin/busybox init\n"
    );
    archive.file("init", 0o755, init.as_bytes());
    Ok(archive.finish())
}

const INITTAB: &str = "\
::sysinit:/bin/busybox sh /etc/begin
::once:/bin/busybox sh /etc/serve
";

/// Returns the init script: file systems, cgroups, network.
fn begin() -> String {
    format!(
        "\
export PATH=/bin
/bin/busybox --install -s /bin
mount -t proc none /proc
mount -t sysfs none /sys
mount -t devtmpfs none /dev
# Whoever started the guest may have been killed.
(sleep {LIFE_SECONDS}; poweroff -f) &
mkdir -p /dev/pts /dev/shm /dev/hugepages
mount -t devpts none /dev/pts
mount -t tmpfs none /dev/shm
mount -t hugetlbfs none /dev/hugepages
mount -t tmpfs none /run
mount -t tmpfs none /tmp
mount -t cgroup2 none /sys/fs/cgroup
hostname guest
echo '127.0.0.1 localhost' >/etc/hosts
ip link set lo up
ip link set eth0 up
ip address add {ADDRESS}/24 dev eth0
ip route add default via 10.0.2.2
"
    )
}

/// Returns the script of the shell on the second serial line.
fn serve() -> String {
    format!(
        "\
export PATH={OWN}:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root
stty -F /dev/ttyS1 raw -echo
exec </dev/null >/dev/ttyS1 2>&1
echo '{READY}'
# With the line as its input it would take us for somebody at a keyboard.
exec sh /dev/ttyS1
"
    )
}

fn below(root: &Path, path: &str) -> PathBuf {
    root.join(path.trim_start_matches('/'))
}

fn make(directory: &Path) -> Result<(), GuestError> {
    fs::create_dir_all(directory).map_err(failed(format!("make {}", directory.display())))
}

fn copy(from: &Path, to: &Path) -> Result<(), GuestError> {
    if let Some(parent) = to.parent() {
        make(parent)?;
    }
    fs::copy(from, to).map_err(failed(format!("copy {}", from.display()))).map(drop)
}

/// Returns the libraries of a program and its loader; a static program has none.
fn libraries_of(program: &Path) -> Result<BTreeSet<PathBuf>, GuestError> {
    let output = Command::new("ldd")
        .arg(program)
        .env("LC_ALL", "C")
        .stdin(Stdio::null())
        .output()
        .map_err(failed("start ldd"))?;
    Ok(libraries_in(&String::from_utf8_lossy(&output.stdout)))
}

fn libraries_in(listing: &str) -> BTreeSet<PathBuf> {
    let tokens = listing.lines().flat_map(str::split_ascii_whitespace);
    tokens.filter(|token| token.starts_with('/')).map(PathBuf::from).collect()
}

/// Returns the size of a directory, with every file rounded up.
fn mebibytes(directory: &Path) -> std::io::Result<u64> {
    fn bytes(directory: &Path) -> std::io::Result<u64> {
        const BLOCK: u64 = 4096;
        let mut sum = 0;
        for entry in fs::read_dir(directory)? {
            let entry = entry?;
            let meta = entry.metadata()?;
            sum += if meta.is_dir() {
                BLOCK + bytes(&entry.path())?
            } else {
                meta.len().next_multiple_of(BLOCK)
            };
        }
        Ok(sum)
    }
    Ok(bytes(directory)? / (1 << 20) + 1)
}

/// Runs a program and returns its output if it succeeds.
fn output_of(program: &str, arguments: &[&str]) -> Result<String, GuestError> {
    let output = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .map_err(failed(format!("start {program}")))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let output = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(GuestError::Program { program: program.to_owned(), output })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_read_from_a_listing() {
        let listing = "\tlinux-vdso.so.1 (0x00007f)\n\
                       \tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f)\n\
                       \t/lib64/ld-linux-x86-64.so.2 (0x00007f)\n";
        let libraries = ["/lib/x86_64-linux-gnu/libc.so.6", "/lib64/ld-linux-x86-64.so.2"];
        assert_eq!(libraries_in(listing), libraries.map(PathBuf::from).into());
        assert!(libraries_in("\tstatically linked\n").is_empty());
    }
}
