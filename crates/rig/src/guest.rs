//! A machine of a test's own: [`Guest`], emulated by QEMU, with as many sockets, cores, threads and NUMA
//! nodes as a [`Shape`] says, a kernel of Debian's, cgroup v2 alone, and a containerd in it.
//!
//! A test says in the guest's shell what is to be done ([`Guest::sh`]) and reads what came of it. Nothing
//! of the guest outlives its value: it writes to a copy of its disk that nobody keeps. Needs no root and
//! no virtualization by the processor, which machines in a cloud seldom have.
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

/// How long a guest may take to start. It takes ten seconds on an idle machine, and twenty times as long on
/// one that others keep busy: eight emulated CPUs are much to ask for.
const BOOT: Duration = Duration::from_secs(400);

/// How long it may take until its kernel says a word, which is the first thing that a kernel does.
const SILENCE: Duration = Duration::from_secs(90);

/// How often one is started whose kernel says nothing: the emulation of many CPUs by few stands still, or
/// ends, now and then while the firmware is at work.
const STARTS: usize = 3;

/// How long anything said in its shell may take.
const PATIENCE: Duration = Duration::from_secs(300);

/// Between two looks. Looking takes the guest's time, which it may need for what is waited for.
const PAUSE: Duration = Duration::from_millis(100);

/// Where Debian's package puts it.
const QEMU: &str = "/usr/bin/qemu-system-x86_64";

/// All CPUs of a guest take turns on one thread. With a thread for each (`thread=multi`) CPUs were seen to
/// stand still for ever, two of them at the same place of the kernel, one that it patches while it runs; why
/// was not found. Guests took no longer with one thread on two cores.
const ACCELERATOR: &str = "tcg,thread=single";

/// A model with hyper-threads.
const MODEL: &str = "Icelake-Server";

/// What goes over from the guest's serial line to QEMU's own commands, and back: control-A and c.
const SWITCH: &str = "\x01c";

/// The guest's port that is reached through [`Guest::port`]: where an API server listens.
const API: u16 = 6443;

/// The guest's own address, in the network that QEMU makes.
const ADDRESS: &str = "10.0.2.15";

/// What the guest says when its shell listens.
const READY: &str = "the shell listens";

/// Why a guest is not there, or did not do what it was told.
#[derive(Debug, thiserror::Error)]
pub enum GuestError {
    #[error("{path} is missing: {remedy}")]
    Missing { path: String, remedy: String },
    #[error("cannot {what}")]
    Io { what: String, source: io::Error },
    #[error("{program} failed: {said}")]
    Program { program: String, said: String },
    #[error("the kernel has no module {0}")]
    NoModule(String),
    #[error(
        "{what}\n--- said last:\n{said}\n--- QEMU:\n{qemu}\n--- firmware:\n{firmware}\n\
         --- console:\n{console}"
    )]
    Guest { what: String, said: String, qemu: String, firmware: String, console: String },
}

pub(crate) fn failed(what: impl Into<String>) -> impl FnOnce(io::Error) -> GuestError {
    move |source| GuestError::Io { what: what.into(), source }
}

/// What a machine is made of. CPUs are numbered thread by thread, core by core, socket by socket, and
/// dealt out to NUMA nodes in that order and in equal parts.
#[derive(Debug, Clone)]
pub struct Shape {
    pub sockets: u32,
    /// Per socket.
    pub cores: u32,
    /// Per core.
    pub threads: u32,
    /// How many of the CPUs, the last ones, are not there before they are plugged in.
    pub absent: u32,
    /// Of each NUMA node.
    pub memory_mib: u32,
    /// Of every NUMA node to every one, as the firmware tells it; as many rows as there are nodes.
    pub distances: Vec<Vec<u32>>,
}

impl Shape {
    fn cpus(&self) -> u32 {
        self.sockets * self.cores * self.threads
    }

    /// What QEMU is told to plug a CPU in.
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

/// A machine that runs. Dropped, it is gone.
#[derive(Debug)]
pub struct Guest {
    qemu: Child,
    shell: ChildStdin,
    said: Receiver<Vec<u8>>,
    /// What came from the shell and was not asked for yet.
    rest: Vec<u8>,
    asked: u32,
    port: u16,
    shape: Shape,
    directory: TempDir,
}

impl Guest {
    /// Starts one, and waits for its shell.
    pub fn boot(kernel: &Kernel, disk: &Disk, shape: &Shape) -> Result<Guest, GuestError> {
        let mut guest = Guest::start(kernel, disk, shape)?;
        for _ in 1..STARTS {
            if guest.has_begun() {
                break;
            }
            eprintln!("{}", guest.broken("a guest is started again: its kernel says nothing", ""));
            guest = Guest::start(kernel, disk, shape)?;
        }
        guest.hear(&format!("{READY}\n"), BOOT, "the start of the guest")?;
        Ok(guest)
    }

    /// Waits for the kernel's first word.
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
        // Nobody holds the port from here to QEMU's start, which then says that it cannot have it.
        let port = TcpListener::bind("127.0.0.1:0")
            .and_then(|listener| listener.local_addr())
            .map_err(failed("find a port that is free"))?
            .port();
        let errors =
            fs::File::create(directory.path().join("qemu")).map_err(failed("make a file"))?;
        let mut qemu = Command::new(QEMU)
            .args(["-accel", ACCELERATOR, "-machine", "q35"])
            // With the caches that Linux takes sockets from.
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
        let (sender, said) = channel();
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(count @ 1..) = from.read(&mut buffer) {
                if sender.send(buffer[..count].to_vec()).is_err() {
                    return;
                }
            }
        });
        let rest = Vec::new();
        Ok(Guest { qemu, shell, said, rest, asked: 0, port, shape: shape.clone(), directory })
    }

    /// Where the guest's port 6443 is reached from here.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Everything on the guest's console so far: the kernel's messages.
    pub fn console(&self) -> String {
        let bytes = fs::read(console(self.directory.path())).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Has the guest's shell do something, in a shell of its own, and gives its exit status and what it
    /// said, on either output. What is to go on afterwards has to say so elsewhere.
    pub fn run(&mut self, script: &str) -> Result<(i32, String), GuestError> {
        self.asked += 1;
        let mark = format!("--- {} ended with ", self.asked);
        let told = format!("(\n{script}\n) </dev/null 2>&1\nprintf '\\n{mark}%d\\n' $?\n");
        let sent = self.shell.write_all(told.as_bytes()).and_then(|()| self.shell.flush());
        if sent.is_err() {
            return Err(self.broken("the guest has ended", script));
        }
        let said = self.hear(&format!("\n{mark}"), PATIENCE, script)?;
        let status = self.hear("\n", PATIENCE, script)?;
        Ok((status.trim().parse().unwrap_or(-1), said))
    }

    /// As [`Guest::run`], for what has to succeed.
    pub fn sh(&mut self, script: &str) -> Result<String, GuestError> {
        match self.run(script)? {
            (0, said) => Ok(said),
            (status, said) => {
                Err(self.broken(&format!("this ended with {status}: {script}"), &said))
            }
        }
    }

    /// Puts a file into the guest, text that ends with a line.
    pub fn write(&mut self, path: &str, text: &str) -> Result<(), GuestError> {
        const END: &str = "=== end of file ===";
        let line = if text.ends_with('\n') { "" } else { "\n" };
        self.sh(&format!("cat >'{path}' <<'{END}'\n{text}{line}{END}")).map(drop)
    }

    /// Plugs a CPU in that is absent, and waits until the kernel has found it. It is not switched on.
    pub fn plug(&mut self, cpu: u32) -> Result<(), GuestError> {
        let told = format!("{SWITCH}{}\n{SWITCH}", self.shape.plug(cpu));
        let sent = self.shell.write_all(told.as_bytes()).and_then(|()| self.shell.flush());
        if sent.is_err() {
            return Err(self.broken("the guest has ended", &told));
        }
        // Before the answer of the shell stands that of QEMU.
        let said = self.sh("true")?;
        if said.contains("Error:") {
            return Err(self.broken(&format!("CPU {cpu} cannot be plugged in"), &said));
        }
        let found = format!("[ -e /sys/devices/system/cpu/cpu{cpu}/online ]");
        self.wait(&format!("CPU {cpu}"), &found, |status, _| (status == 0).then_some(()))
    }

    /// Starts the guest's containerd, with the images [`BUSYBOX`](crate::BUSYBOX) and
    /// [`PAUSE`](crate::PAUSE), and says where it listens.
    pub fn start_containerd(&mut self) -> Result<String, GuestError> {
        let socket = format!("{}/containerd.sock", disk::CONTAINERD);
        self.sh("containerd --config /etc/containerd.toml >/var/log/containerd.log 2>&1 &")?;
        let import = format!("ctr -a {socket} -n k8s.io images import /var/images.tar");
        self.wait("the images in containerd", &import, |status, _| (status == 0).then_some(()))?;
        Ok(format!("unix://{socket}"))
    }

    /// Looks until the shell's answer is worth something.
    pub fn wait<T>(
        &mut self,
        what: &str,
        script: &str,
        mut read: impl FnMut(i32, &str) -> Option<T>,
    ) -> Result<T, GuestError> {
        let started = Instant::now();
        loop {
            let (status, said) = self.run(script)?;
            if let Some(seen) = read(status, &said) {
                return Ok(seen);
            }
            if started.elapsed() > PATIENCE {
                return Err(self.broken(&format!("not in time: {what}"), &said));
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// What the shell says up to a mark, which is taken away.
    fn hear(&mut self, mark: &str, patience: Duration, what: &str) -> Result<String, GuestError> {
        let deadline = Instant::now() + patience;
        loop {
            let mark = mark.as_bytes();
            if let Some(at) = self.rest.windows(mark.len()).position(|part| part == mark) {
                let after = self.rest.split_off(at + mark.len());
                let mut said = std::mem::replace(&mut self.rest, after);
                said.truncate(at);
                return Ok(String::from_utf8_lossy(&said).into_owned());
            }
            match self.said.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(bytes) => self.rest.extend(bytes),
                Err(error) => {
                    let why = match error {
                        RecvTimeoutError::Timeout => format!("no end after {patience:?}: {what}"),
                        RecvTimeoutError::Disconnected => format!("the guest ended in: {what}"),
                    };
                    let said = String::from_utf8_lossy(&self.rest).into_owned();
                    return Err(self.broken(&why, &said));
                }
            }
        }
    }

    fn broken(&mut self, what: &str, said: &str) -> GuestError {
        let state = match self.qemu.try_wait() {
            Ok(Some(status)) => format!("ended: {status}"),
            Ok(None) => "runs".to_owned(),
            Err(error) => format!("nobody knows: {error}"),
        };
        let firmware = fs::read(firmware(self.directory.path())).unwrap_or_default();
        let firmware = String::from_utf8_lossy(&firmware).into_owned();
        let qemu = fs::read_to_string(self.directory.path().join("qemu")).unwrap_or_default();
        // Of every CPU that the emulation does not do all of what the model has.
        let qemu = qemu.lines().filter(|line| !line.contains("TCG doesn't support")).fold(
            String::new(),
            |mut text, line| {
                let _ = writeln!(text, "{line}");
                text
            },
        );
        let (what, said, qemu) = (what.to_owned(), said.to_owned(), format!("{state}\n{qemu}"));
        GuestError::Guest { what, said, qemu, firmware, console: self.console() }
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        let _ = self.qemu.kill();
        let _ = self.qemu.wait();
    }
}

/// For any guest: everything on the first serial line and from the first moment, an end instead of a new
/// start, and no time spent on what an emulated machine does not need.
const KERNEL: &str =
    "console=ttyS0 earlyprintk=serial,ttyS0 panic=-1 mitigations=off nokaslr no_timer_check";

fn console(directory: &Path) -> PathBuf {
    directory.join("console")
}

/// What the firmware says that starts the kernel.
fn firmware(directory: &Path) -> PathBuf {
    directory.join("firmware")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpus_are_dealt_out_to_nodes_in_order() {
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
