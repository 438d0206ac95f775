//! The containerd daemon of a test: [`Containerd`].

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::wait::wait_until;
use crate::{image, leftovers, processes};

/// The timeout for starting and stopping containerd, which take a tenth of a second on an idle
/// machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// The directories of runc and its helpers on Debian, which the `PATH` of the tests may lack.
const SEARCH: &str = "/usr/sbin:/usr/bin:/sbin:/bin";

/// The required files with their Debian packages.
const NEEDED: &[(&str, &str)] = &[
    ("/usr/bin/containerd", "containerd"),
    ("/usr/bin/containerd-shim-runc-v2", "containerd"),
    ("/usr/bin/ctr", "containerd"),
    ("/usr/sbin/runc", "runc"),
    (image::BINARY, "busybox-static"),
    ("/usr/lib/cni/loopback", "containernetworking-plugins"),
];

/// The reason why a test has no containerd.
#[derive(Debug, thiserror::Error)]
pub enum RigError {
    #[error("the test containerd needs Linux, but this is {0}")]
    NotLinux(&'static str),
    #[error("the test containerd needs root, but this is user {0}")]
    NotRoot(String),
    #[error("{path} is missing: install the Debian package {package}")]
    Missing { path: &'static str, package: &'static str },
    #[error("cannot {what}")]
    Io { what: String, source: io::Error },
    #[error("{what}; its log ends with:\n{log}")]
    Containerd { what: String, log: String },
}

/// A containerd for one test, with the images [`BUSYBOX`](crate::BUSYBOX) and
/// [`PAUSE`](crate::PAUSE). Dropping it removes it with all its containers.
#[derive(Debug)]
pub struct Containerd {
    directory: PathBuf,
    daemon: Option<Child>,
    /// Held locked, so that other rigs do not clean up this one.
    _lock: fs::File,
}

impl Containerd {
    /// Starts a containerd.
    pub fn start() -> Result<Self, RigError> {
        check()?;
        leftovers::sweep();
        let directory = tempfile::Builder::new()
            .prefix(leftovers::PREFIX)
            .tempdir()
            .map_err(failed("make a directory"))?
            .keep();
        let lock = lock(&directory).inspect_err(|_| {
            let _ = fs::remove_dir_all(&directory);
        })?;
        let mut rig = Self { directory, daemon: None, _lock: lock };
        fs::create_dir(rig.directory.join("cni")).map_err(failed("make a directory"))?;
        fs::write(rig.directory.join("config.toml"), config(&rig.directory))
            .map_err(failed("write config.toml"))?;
        rig.restart()?;
        let archive = rig.directory.join("images.tar");
        image::write(&archive).map_err(failed("make the images"))?;
        rig.ctr(&["images", "import", &archive.to_string_lossy()])?;
        Ok(rig)
    }

    /// Returns the endpoint for clients.
    pub fn endpoint(&self) -> String {
        format!("unix://{}/containerd.sock", self.directory.display())
    }

    /// Returns a directory for files of the test, removed with the rig.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Returns the cgroup for pods. The first pod creates it; it is removed with the rig.
    pub fn cgroup_parent(&self) -> String {
        leftovers::cgroup_parent(&self.directory)
    }

    /// Kills the daemon, like a crash. Containers keep running.
    pub fn kill(&mut self) -> Result<(), RigError> {
        if let Some(mut daemon) = self.daemon.take() {
            daemon.kill().map_err(failed("kill containerd"))?;
            daemon.wait().map_err(failed("wait for containerd"))?;
        }
        Ok(())
    }

    /// Stops the daemon, like an upgrade. Containers keep running.
    pub fn stop(&mut self) -> Result<(), RigError> {
        let Some(mut daemon) = self.daemon.take() else { return Ok(()) };
        processes::signal("TERM", &[daemon.id()]);
        let ended = wait_until(PATIENCE, || daemon.try_wait().ok().flatten());
        if ended.is_err() {
            self.daemon = Some(daemon);
            return Err(self.broken("containerd does not end"));
        }
        Ok(())
    }

    /// Stops all threads of the daemon or resumes them: it is alive but does not respond.
    pub fn freeze(&self, frozen: bool) {
        if let Some(daemon) = &self.daemon {
            processes::signal(if frozen { "STOP" } else { "CONT" }, &[daemon.id()]);
            // The signal stops the threads one by one; each may still respond until then.
            if frozen {
                let stopped = || processes::is_stopped(daemon.id()).then_some(());
                wait_until(PATIENCE, stopped).expect("a signal stops a process");
            }
        }
    }

    /// Restarts the daemon, killing it first if it runs. Returns when it responds to `ctr`; CRI may
    /// take a moment longer.
    pub fn restart(&mut self) -> Result<(), RigError> {
        self.kill()?;
        let log = fs::File::options()
            .create(true)
            .append(true)
            .open(self.directory.join("containerd.log"))
            .map_err(failed("open containerd.log"))?;
        let errors = log.try_clone().map_err(failed("open containerd.log"))?;
        let daemon = Command::new("/usr/bin/containerd")
            .arg("--config")
            .arg(self.directory.join("config.toml"))
            .env("PATH", SEARCH)
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(errors)
            .spawn()
            .map_err(failed("start containerd"))?;
        self.daemon = Some(daemon);
        wait_until(PATIENCE, || match self.ctr(&["version"]) {
            Ok(()) => Some(Ok(())),
            Err(_) if self.is_running() => None,
            Err(_) => Some(Err(self.broken("containerd ended at its start"))),
        })
        .unwrap_or_else(|_| Err(self.broken("containerd does not answer")))
    }

    /// Removes an image.
    pub fn remove_image(&self, name: &str) -> Result<(), RigError> {
        self.ctr(&["images", "remove", "--sync", name])
    }

    fn is_running(&mut self) -> bool {
        self.daemon.as_mut().is_some_and(|daemon| matches!(daemon.try_wait(), Ok(None)))
    }

    /// Runs `ctr`, containerd's client.
    fn ctr(&self, arguments: &[&str]) -> Result<(), RigError> {
        let socket = self.directory.join("containerd.sock");
        let output = Command::new("/usr/bin/ctr")
            .arg("--address")
            .arg(socket)
            .args(["--namespace", "k8s.io"])
            .args(arguments)
            .stdin(Stdio::null())
            .output()
            .map_err(failed("start ctr"))?;
        if output.status.success() {
            return Ok(());
        }
        let errors = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        Err(self.broken(&format!("ctr {} failed: {errors}", arguments.join(" "))))
    }

    fn broken(&self, what: &str) -> RigError {
        let log = fs::read_to_string(self.directory.join("containerd.log")).unwrap_or_default();
        let lines: Vec<_> = log.lines().collect();
        let tail = lines[lines.len().saturating_sub(20)..].join("\n");
        RigError::Containerd { what: what.to_owned(), log: tail }
    }
}

impl Drop for Containerd {
    fn drop(&mut self) {
        self.freeze(false);
        let _ = self.kill();
        let left = leftovers::remove(&self.directory);
        // A test that is already failing must not be aborted by a second panic.
        assert!(left.is_empty() || std::thread::panicking(), "left behind: {left:#?}");
    }
}

/// Fails with the first requirement that this machine lacks.
fn check() -> Result<(), RigError> {
    if std::env::consts::OS != "linux" {
        return Err(RigError::NotLinux(std::env::consts::OS));
    }
    let status =
        fs::read_to_string("/proc/self/status").map_err(failed("read /proc/self/status"))?;
    let user = effective_user(&status);
    if user != "0" {
        return Err(RigError::NotRoot(user.to_owned()));
    }
    match NEEDED.iter().find(|(path, _)| !Path::new(path).exists()) {
        Some(&(path, package)) => Err(RigError::Missing { path, package }),
        None => Ok(()),
    }
}

/// Returns the second of the four user ids in `/proc/self/status`.
fn effective_user(status: &str) -> &str {
    let ids = status.lines().find_map(|line| line.strip_prefix("Uid:")).unwrap_or_default();
    ids.split_ascii_whitespace().nth(1).unwrap_or_default()
}

/// The file is locked before it becomes visible, so a visible file without a lock belongs to a dead
/// rig.
fn lock(directory: &Path) -> Result<fs::File, RigError> {
    let draft = directory.join("lock.draft");
    let lock = fs::File::create(&draft).map_err(failed("make the lock"))?;
    lock.lock().map_err(failed("lock the directory"))?;
    fs::rename(&draft, directory.join(leftovers::LOCK)).map_err(failed("show the lock"))?;
    Ok(lock)
}

fn failed(what: &str) -> impl FnOnce(io::Error) -> RigError {
    move |source| RigError::Io { what: what.to_owned(), source }
}

/// Returns a configuration with all paths below the directory.
pub(crate) fn config(directory: &Path) -> String {
    let directory = directory.display();
    let pause = image::PAUSE;
    format!(
        r#"version = 2
root = "{directory}/root"
state = "{directory}/state"
# They look for kernel modules and file systems that these tests do not use.
disabled_plugins = [
    "io.containerd.snapshotter.v1.aufs",
    "io.containerd.snapshotter.v1.btrfs",
    "io.containerd.snapshotter.v1.devmapper",
    "io.containerd.snapshotter.v1.zfs",
]
[grpc]
  address = "{directory}/containerd.sock"
[plugins."io.containerd.internal.v1.opt"]
  path = "{directory}/opt"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{pause}"
  disable_apparmor = true
  # Machines in a cloud may lack CAP_SYS_RESOURCE, without which the score cannot be lowered.
  restrict_oom_score_adj = true
  netns_mounts_under_state_dir = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "{directory}/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        SystemdCgroup = false
        Root = "{directory}/runc"
"#
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn effective_user_is_parsed() {
        assert_eq!(effective_user("Name:\tx\nUid:\t1000\t0\t1000\t1000\n"), "0");
        assert_eq!(effective_user("Name:\tx\n"), "");
    }

    #[test]
    fn all_configured_paths_are_below_the_directory() {
        let text = config(Path::new("/x/rig"));
        assert_eq!(text.matches("/x/rig/").count(), 6);
        assert!(!text.contains("/var/") && !text.contains("/run/"));
    }
}
