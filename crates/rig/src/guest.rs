//! A machine for one test: [`Guest`], emulated by QEMU, with the sockets, cores, threads and NUMA
//! nodes of a [`Shape`], a Debian kernel, cgroup v2 only, and a containerd.
//!
//! A test runs commands in the guest's shell ([`Guest::sh`]) and reads their output. The guest
//! writes to a temporary copy of its disk, so nothing outlives the value. It needs neither root nor
//! hardware virtualization, which cloud machines seldom have.
//!
//! ```text
//!   test ── stdin, stdout ──▶ QEMU ── second serial line ──▶ sh
//!                              │ ◀── first serial line ───── console, kept for when something fails
//!   test ── 127.0.0.1:PORT ──▶ │ ── network ──────────────▶  port 6443
//! ```

use std::fmt::Write as _;
use std::fs;
use std::io::{self, Read as _, Write as _};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::wait::wait_until;

mod cpio;
mod disk;
mod kernel;

pub use disk::Disk;
pub use kernel::Kernel;

/// The boot timeout. Booting takes ten seconds on an idle machine and twenty times as long on a
/// busy one, because eight CPUs are emulated.
const BOOT: Duration = Duration::from_secs(400);

/// The timeout for the first output of the kernel.
const SILENCE: Duration = Duration::from_secs(90);

/// The number of boot attempts. The emulation of many CPUs by few occasionally hangs or exits while
/// the firmware runs.
const STARTS: usize = 3;

/// The timeout of one shell command.
const PATIENCE: Duration = Duration::from_secs(300);

/// The pause between two checks. A check takes CPU time that the guest may need.
const PAUSE: Duration = Duration::from_millis(100);

/// The path in Debian's package.
const QEMU: &str = "/usr/bin/qemu-system-x86_64";

/// All CPUs of a guest run on one thread. With one thread per CPU (`thread=multi`), CPUs sometimes
/// hung for ever, two of them at the same kernel instruction, which the kernel patches at run time;
/// the cause is unknown. One thread was not slower on two cores.
const ACCELERATOR: &str = "tcg,thread=single";

/// A CPU model with hyper-threads.
const MODEL: &str = "Icelake-Server";

/// Switches between the guest's serial line and the QEMU monitor: control-A and c.
const SWITCH: &str = "\x01c";

/// The guest port behind [`Guest::port`], on which an API server listens.
const API: u16 = 6443;

/// The guest's address in QEMU's network.
const ADDRESS: &str = "10.0.2.15";

/// The line that the guest prints when its shell is ready.
const READY: &str = "the shell listens";

/// The reason why a guest could not start or a command failed.
#[derive(Debug, thiserror::Error)]
pub enum GuestError {
    #[error("{path} is missing: {remedy}")]
    Missing { path: String, remedy: String },
    #[error("cannot {what}")]
    Io { what: String, source: io::Error },
    #[error("{program} failed: {output}")]
    Program { program: String, output: String },
    #[error("the kernel has no module {0}")]
    NoModule(String),
    #[error(
        "{what}\n--- last output:\n{output}\n--- QEMU:\n{qemu}\n--- firmware:\n{firmware}\n\
         --- console:\n{console}"
    )]
    Guest { what: String, output: String, qemu: String, firmware: String, console: String },
}

pub(crate) fn failed(what: impl Into<String>) -> impl FnOnce(io::Error) -> GuestError {
    move |source| GuestError::Io { what: what.into(), source }
}

/// The hardware of a machine. CPUs are numbered by thread, core and socket, and assigned to NUMA
/// nodes in that order and in equal parts.
#[derive(Debug, Clone)]
pub struct Shape {
    pub sockets: u32,
    /// Per socket.
    pub cores: u32,
    /// Per core.
    pub threads: u32,
    /// The number of CPUs, the last ones, that are absent until they are plugged in.
    pub absent: u32,
    /// Of each NUMA node.
    pub memory_mib: u32,
    /// The distances between NUMA nodes in the firmware's table, one row per node.
    pub distances: Vec<Vec<u32>>,
}

impl Shape {
    fn cpus(&self) -> u32 {
        self.sockets * self.cores * self.threads
    }

    /// Returns the QEMU command that plugs in a CPU.
    fn plug(&self, cpu: u32) -> String {
        let (core, thread) = (cpu / self.threads, cpu % self.threads);
        let (socket, core) = (core / self.cores, core % self.cores);
        format!(
            "device_add {MODEL}-x86_64-cpu,id=cpu{cpu},socket-id={socket},die-id=0,core-id={core},\
             thread-id={thread}"
        )
    }

    fn arguments(&self) -> Vec<String> {
        let cpus = self.cpus();
        let nodes = u32::try_from(self.distances.len()).unwrap_or(u32::MAX);
        let mut arguments = vec![
            "-m".to_owned(),
            (self.memory_mib * nodes).to_string(),
            "-smp".to_owned(),
            format!(
                "{},maxcpus={cpus},sockets={},cores={},threads={}",
                cpus.saturating_sub(self.absent),
                self.sockets,
                self.cores,
                self.threads
            ),
        ];
        let mut add = |name: &str, value: String| arguments.extend([name.to_owned(), value]);
        let each = cpus / nodes.max(1);
        for node in 0..nodes {
            let (first, last) = (node * each, ((node + 1) * each).saturating_sub(1));
            add("-object", format!("memory-backend-ram,id=m{node},size={}M", self.memory_mib));
            add("-numa", format!("node,nodeid={node},cpus={first}-{last},memdev=m{node}"));
        }
        for (from, row) in self.distances.iter().enumerate() {
            for (to, distance) in row.iter().enumerate().filter(|(to, _)| *to != from) {
                add("-numa", format!("dist,src={from},dst={to},val={distance}"));
            }
        }
        arguments
    }
}

/// A running machine. Dropping it stops it.
#[derive(Debug)]
pub struct Guest {
    qemu: Child,
    shell: ChildStdin,
    output: Receiver<Vec<u8>>,
    /// Output of the shell that has not been consumed yet.
    rest: Vec<u8>,
    commands: u32,
    port: u16,
    shape: Shape,
    directory: TempDir,
}

impl Guest {
    /// Boots a guest and waits for its shell.
    pub fn boot(kernel: &Kernel, disk: &Disk, shape: &Shape) -> Result<Guest, GuestError> {
        let mut guest = Guest::start(kernel, disk, shape)?;
        for _ in 1..STARTS {
            if guest.has_begun() {
                break;
            }
            eprintln!("{}", guest.broken("a guest is started again: its kernel says nothing", ""));
            guest = Guest::start(kernel, disk, shape)?;
        }
        guest.read_until(&format!("{READY}\n"), BOOT, "the start of the guest")?;
        Ok(guest)
    }

    /// Waits for the kernel's first output.
    fn has_begun(&mut self) -> bool {
        let is_over_or_has = wait_until(SILENCE, || {
            let is_over = matches!(self.qemu.try_wait(), Ok(Some(_)));
            (is_over || !self.console().is_empty()).then_some(())
        });
        is_over_or_has.is_ok() && !self.console().is_empty()
    }

    fn start(kernel: &Kernel, disk: &Disk, shape: &Shape) -> Result<Guest, GuestError> {
        if !Path::new(QEMU).exists() {
            let remedy = "install the Debian package qemu-system-x86".to_owned();
            return Err(GuestError::Missing { path: QEMU.to_owned(), remedy });
        }
        let directory = tempfile::Builder::new()
            .prefix("berth-guest-")
            .tempdir()
            .map_err(failed("make a directory"))?;
        let first = directory.path().join("initramfs");
        fs::write(&first, disk::initramfs(kernel)?)
            .map_err(failed("write the first file system"))?;
        // The port is free from here to QEMU's start; QEMU reports an error if another process
        // takes it.
        let port = TcpListener::bind("127.0.0.1:0")
            .and_then(|listener| listener.local_addr())
            .map_err(failed("find a port that is free"))?
            .port();
        let errors =
            fs::File::create(directory.path().join("qemu")).map_err(failed("make a file"))?;
        let mut qemu = Command::new(QEMU)
            .args(["-accel", ACCELERATOR, "-machine", "q35"])
            // With the cache model from which Linux derives sockets.
            .arg("-cpu")
            .arg(format!("{MODEL},level=0x14,l3-cache=on"))
            .args(["-display", "none", "-no-reboot", "-nodefaults"])
            .args(shape.arguments())
            .arg("-serial")
            .arg(format!("file:{}", console(directory.path()).display()))
            .args(["-serial", "mon:stdio"])
            .arg("-debugcon")
            .arg(format!("file:{}", firmware(directory.path()).display()))
            .args(["-global", "isa-debugcon.iobase=0x402"])
            .arg("-drive")
            .arg(format!("file={},format=raw,if=virtio,snapshot=on", disk.path().display()))
            .arg("-netdev")
            .arg(format!("user,id=net,hostfwd=tcp:127.0.0.1:{port}-{ADDRESS}:{API}"))
            .args(["-device", "virtio-net-pci,netdev=net,romfile="])
            .arg("-kernel")
            .arg(kernel.image())
            .arg("-initrd")
            .arg(&first)
            .args(["-append", KERNEL])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(errors)
            .spawn()
            .map_err(failed("start QEMU"))?;
        let (Some(shell), Some(mut from)) = (qemu.stdin.take(), qemu.stdout.take()) else {
            let _ = qemu.kill();
            return Err(failed("talk to QEMU")(io::ErrorKind::BrokenPipe.into()));
        };
        let (sender, output) = channel();
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(count @ 1..) = from.read(&mut buffer) {
                if sender.send(buffer[..count].to_vec()).is_err() {
                    return;
                }
            }
        });
        let rest = Vec::new();
        Ok(Guest { qemu, shell, output, rest, commands: 0, port, shape: shape.clone(), directory })
    }

    /// Returns the local port that is forwarded to the guest's port 6443.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns the guest's console output so far: the kernel's messages.
    pub fn console(&self) -> String {
        let bytes = fs::read(console(self.directory.path())).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Runs a script in a subshell of the guest and returns its exit status and combined output.
    /// Background processes must redirect their output.
    pub fn run(&mut self, script: &str) -> Result<(i32, String), GuestError> {
        self.commands += 1;
        let mark = format!("--- {} ended with ", self.commands);
        let input = format!("(\n{script}\n) </dev/null 2>&1\nprintf '\\n{mark}%d\\n' $?\n");
        let sent = self.shell.write_all(input.as_bytes()).and_then(|()| self.shell.flush());
        if sent.is_err() {
            return Err(self.broken("the guest has ended", script));
        }
        let output = self.read_until(&format!("\n{mark}"), PATIENCE, script)?;
        let status = self.read_until("\n", PATIENCE, script)?;
        Ok((status.trim().parse().unwrap_or(-1), output))
    }

    /// Like [`Guest::run`], but a non-zero status is an error.
    pub fn sh(&mut self, script: &str) -> Result<String, GuestError> {
        match self.run(script)? {
            (0, output) => Ok(output),
            (status, output) => {
                Err(self.broken(&format!("this ended with {status}: {script}"), &output))
            }
        }
    }

    /// Writes a text file in the guest; a missing final newline is added.
    pub fn write(&mut self, path: &str, text: &str) -> Result<(), GuestError> {
        const END: &str = "=== end of file ===";
        let line = if text.ends_with('\n') { "" } else { "\n" };
        self.sh(&format!("cat >'{path}' <<'{END}'\n{text}{line}{END}")).map(drop)
    }

    /// Plugs in an absent CPU and waits until the kernel has found it. The CPU stays offline.
    pub fn plug(&mut self, cpu: u32) -> Result<(), GuestError> {
        let input = format!("{SWITCH}{}\n{SWITCH}", self.shape.plug(cpu));
        let sent = self.shell.write_all(input.as_bytes()).and_then(|()| self.shell.flush());
        if sent.is_err() {
            return Err(self.broken("the guest has ended", &input));
        }
        // QEMU's response precedes the shell's.
        let output = self.sh("true")?;
        if output.contains("Error:") {
            return Err(self.broken(&format!("CPU {cpu} cannot be plugged in"), &output));
        }
        let found = format!("[ -e /sys/devices/system/cpu/cpu{cpu}/online ]");
        self.wait(&format!("CPU {cpu}"), &found, |status, _| (status == 0).then_some(()))
    }

    /// Starts the guest's containerd with the images [`BUSYBOX`](crate::BUSYBOX) and
    /// [`PAUSE`](crate::PAUSE), and returns its endpoint.
    pub fn start_containerd(&mut self) -> Result<String, GuestError> {
        let socket = format!("{}/containerd.sock", disk::CONTAINERD);
        self.sh("containerd --config /etc/containerd.toml >/var/log/containerd.log 2>&1 &")?;
        let import = format!("ctr -a {socket} -n k8s.io images import /var/images.tar");
        self.wait("the images in containerd", &import, |status, _| (status == 0).then_some(()))?;
        Ok(format!("unix://{socket}"))
    }

    /// Repeats a script until `read` returns a value.
    pub fn wait<T>(
        &mut self,
        what: &str,
        script: &str,
        mut read: impl FnMut(i32, &str) -> Option<T>,
    ) -> Result<T, GuestError> {
        let started = Instant::now();
        loop {
            let (status, output) = self.run(script)?;
            if let Some(value) = read(status, &output) {
                return Ok(value);
            }
            if started.elapsed() > PATIENCE {
                return Err(self.broken(&format!("not in time: {what}"), &output));
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// Reads the shell's output up to a mark, which is removed.
    fn read_until(
        &mut self,
        mark: &str,
        timeout: Duration,
        what: &str,
    ) -> Result<String, GuestError> {
        let deadline = Instant::now() + timeout;
        loop {
            let mark = mark.as_bytes();
            if let Some(at) = self.rest.windows(mark.len()).position(|part| part == mark) {
                let after = self.rest.split_off(at + mark.len());
                let mut output = std::mem::replace(&mut self.rest, after);
                output.truncate(at);
                return Ok(String::from_utf8_lossy(&output).into_owned());
            }
            match self.output.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(bytes) => self.rest.extend(bytes),
                Err(error) => {
                    let why = match error {
                        RecvTimeoutError::Timeout => format!("timeout after {timeout:?}: {what}"),
                        RecvTimeoutError::Disconnected => format!("the guest ended in: {what}"),
                    };
                    let output = String::from_utf8_lossy(&self.rest).into_owned();
                    return Err(self.broken(&why, &output));
                }
            }
        }
    }

    fn broken(&mut self, what: &str, output: &str) -> GuestError {
        let state = match self.qemu.try_wait() {
            Ok(Some(status)) => format!("ended: {status}"),
            Ok(None) => "runs".to_owned(),
            Err(error) => format!("state unknown: {error}"),
        };
        let firmware = fs::read(firmware(self.directory.path())).unwrap_or_default();
        let firmware = String::from_utf8_lossy(&firmware).into_owned();
        let qemu = fs::read_to_string(self.directory.path().join("qemu")).unwrap_or_default();
        // QEMU prints this for every CPU, because the emulation lacks features of the model.
        let qemu = qemu.lines().filter(|line| !line.contains("TCG doesn't support")).fold(
            String::new(),
            |mut text, line| {
                let _ = writeln!(text, "{line}");
                text
            },
        );
        let (what, output, qemu) = (what.to_owned(), output.to_owned(), format!("{state}\n{qemu}"));
        GuestError::Guest { what, output, qemu, firmware, console: self.console() }
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        let _ = self.qemu.kill();
        let _ = self.qemu.wait();
    }
}

/// Kernel arguments of every guest: all output on the first serial line from the start, exit
/// instead of reboot, and no time spent on unneeded features.
const KERNEL: &str =
    "console=ttyS0 earlyprintk=serial,ttyS0 panic=-1 mitigations=off nokaslr no_timer_check";

fn console(directory: &Path) -> PathBuf {
    directory.join("console")
}

/// Returns the path of the log of the firmware that boots the kernel.
fn firmware(directory: &Path) -> PathBuf {
    directory.join("firmware")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpus_are_assigned_to_nodes_in_order() {
        let shape = Shape {
            sockets: 2,
            cores: 2,
            threads: 2,
            absent: 1,
            memory_mib: 512,
            distances: vec![vec![10, 21], vec![21, 10]],
        };
        let arguments = shape.arguments().join(" ");
        for part in [
            "-m 1024 -smp 7,maxcpus=8,sockets=2,cores=2,threads=2 ",
            "-numa node,nodeid=0,cpus=0-3,memdev=m0 ",
            "-numa node,nodeid=1,cpus=4-7,memdev=m1 ",
            "-numa dist,src=0,dst=1,val=21 -numa dist,src=1,dst=0,val=21",
        ] {
            assert!(arguments.contains(part), "{part}: {arguments}");
        }
        let plug = "socket-id=1,die-id=0,core-id=0,thread-id=1";
        assert!(shape.plug(5).ends_with(plug), "{}", shape.plug(5));
    }
}
