//! Guests that run Berth, one at a time: [`Machine`], and [`Node`] once Berth is up.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use client::kind::{NAMESPACES, NODES, PODS};
use client::{Client, DeleteOptions, Kubeconfig, PatchKind, Remote, Scope, Timeouts};
use placement::CpuSet;
use rig::guest::{Disk, Guest, Kernel, Shape};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

/// Timeout for an emulated machine on a busy host; successful waits end earlier.
const TIMEOUT: Duration = Duration::from_secs(300);

/// Polling interval, so that polls do not slow down the guest.
const PAUSE: Duration = Duration::from_millis(200);

/// The agent's log message after it has adopted running containers.
const ADOPTED: &str = "adopted running containers";

/// Two guests of eight emulated CPUs each would not run faster concurrently.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// A guest, with the lock for the only one.
pub(crate) struct Machine {
    guest: Guest,
    _only: MutexGuard<'static, ()>,
}

/// Starts a guest.
pub(crate) fn machine(shape: &Shape) -> Machine {
    let only = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let kernel = std::env::var_os("BERTH_GUEST_KERNEL")
        .expect("BERTH_GUEST_KERNEL is not set: it has to be what tools/guest-kernel prints");
    let kernel = Kernel::new(kernel).unwrap_or_else(|error| panic!("{error}"));
    let guest = Guest::boot(&kernel, disk(), shape).unwrap_or_else(|error| panic!("{error}"));
    Machine { guest, _only: only }
}

/// Returns the disk of all guests, with the binary of these tests.
fn disk() -> &'static Disk {
    static DISK: OnceLock<Disk> = OnceLock::new();
    DISK.get_or_init(|| {
        let at = Path::new(env!("CARGO_TARGET_TMPDIR")).join("guest.ext4");
        let berth = Path::new(env!("CARGO_BIN_EXE_berth"));
        Disk::make(&at, &[berth]).unwrap_or_else(|error| panic!("{error}"))
    })
}

/// Two sockets, each a NUMA node with two cores of two hyper-threads.
pub(crate) fn two_nodes() -> Shape {
    Shape {
        sockets: 2,
        cores: 2,
        threads: 2,
        absent: 0,
        memory_mib: 768,
        distances: vec![vec![10, 21], vec![21, 10]],
    }
}

/// Two sockets with two NUMA nodes each, which are nearer to each other than to those of the other
/// socket.
pub(crate) fn four_nodes() -> Shape {
    let distances = vec![
        vec![10, 12, 21, 21],
        vec![12, 10, 21, 21],
        vec![21, 21, 10, 12],
        vec![21, 21, 12, 10],
    ];
    Shape { memory_mib: 448, distances, ..two_nodes() }
}

impl Machine {
    pub(crate) fn sh(&mut self, script: &str) -> String {
        self.guest.sh(script).unwrap_or_else(|error| panic!("{error}"))
    }

    /// Returns the output of `berth topology`.
    pub(crate) fn topology(&mut self) -> Value {
        serde_json::from_str(&self.sh("berth topology -o json")).unwrap()
    }

    /// Starts a node with a configuration.
    pub(crate) fn up(mut self, config: &Value) -> Node {
        let endpoint = self.guest.start_containerd().unwrap_or_else(|error| panic!("{error}"));
        let runtime = Runtime::new().unwrap();
        let mut node = Node { machine: self, runtime, endpoint, api: None, starts: 0, data: 0 };
        node.start(config);
        let namespace = json!({"metadata": {"name": "test"}});
        node.runtime.block_on(node.api().create(NAMESPACES, "", &namespace)).unwrap();
        node
    }
}

/// A guest that runs Berth.
pub(crate) struct Node {
    machine: Machine,
    runtime: Runtime,
    endpoint: String,
    api: Option<Client>,
    /// Number of starts: each has its own log.
    starts: u32,
    /// Number of the node's data directory.
    data: u32,
}

impl Drop for Node {
    /// A failing test prints the log, which is lost with the guest.
    fn drop(&mut self) {
        if std::thread::panicking() {
            let script = format!(
                "tail -n 300 /var/log/berth-{}.log\n\
                 echo '--- processes'; ps\n\
                 echo '--- memory'; head -n 8 /proc/meminfo\n\
                 echo '--- kernel'; dmesg | tail -n 30",
                self.starts
            );
            match self.machine.guest.run(&script) {
                Ok((_, log)) => eprintln!("--- Berth's log\n{log}"),
                Err(error) => eprintln!("{error}"),
            }
        }
    }
}

impl Node {
    pub(crate) fn sh(&mut self, script: &str) -> String {
        self.machine.sh(script)
    }

    /// Plugs in a CPU that was absent, and switches it on.
    pub(crate) fn plug(&mut self, cpu: u32) {
        self.machine.guest.plug(cpu).unwrap_or_else(|error| panic!("{error}"));
        self.switch(cpu, true);
    }

    /// Switches a CPU on or off.
    pub(crate) fn switch(&mut self, cpu: u32, on: bool) {
        self.sh(&format!("echo {} >/sys/devices/system/cpu/cpu{cpu}/online", u8::from(on)));
    }

    fn api(&self) -> &Client {
        self.api.as_ref().unwrap()
    }

    /// Returns the node's data directory.
    pub(crate) fn data(&self) -> String {
        format!("/var/lib/berth-{}", self.data)
    }

    /// Returns the log of the current process.
    pub(crate) fn log(&mut self) -> String {
        let script = format!("cat /var/log/berth-{}.log", self.starts);
        self.sh(&script)
    }

    /// Starts Berth with a configuration, and waits until the agent has adopted running containers.
    pub(crate) fn start(&mut self, config: &Value) {
        self.starts += 1;
        let mut config = config.clone();
        config["apiVersion"] = "kubelet.config.k8s.io/v1beta1".into();
        config["kind"] = "KubeletConfiguration".into();
        let written = self.machine.guest.write("/etc/berth.json", &config.to_string());
        written.unwrap_or_else(|error| panic!("{error}"));
        let (endpoint, data, starts) = (&self.endpoint, self.data(), self.starts);
        let log = format!("/var/log/berth-{starts}.log");
        let script = format!(
            "berth up --data-dir {data} --config /etc/berth.json --hostname-override node-1 \
             --container-runtime-endpoint {endpoint} --bind-address 0.0.0.0 >{log} 2>&1 &"
        );
        self.sh(&script);
        // Logged once all running containers have been inspected.
        let is_up = format!("grep -q '{ADOPTED}' {log} || ! pidof berth >/dev/null");
        let wait =
            self.machine.guest.wait("Berth is up", &is_up, |status, _| (status == 0).then_some(()));
        wait.unwrap_or_else(|error| panic!("{error}"));
        let (log, kubeconfig) = (self.log(), format!("cat {data}/kubeconfig"));
        assert!(log.contains(ADOPTED), "{log}");
        let text = self.sh(&kubeconfig);
        let mut config = Kubeconfig::parse(&text, Path::new("kubeconfig")).unwrap();
        config.address.port = self.machine.guest.port();
        let patience = Timeouts { connect: TIMEOUT, request: TIMEOUT, ..Timeouts::default() };
        let remote = Remote::new(config, "test", patience).unwrap();
        self.api = Some(Client::new(Arc::new(remote), "test"));
    }

    /// Stops Berth; pods keep running.
    pub(crate) fn stop(&mut self) {
        let script = format!("berth down --keep-pods --data-dir {}", self.data());
        self.sh(&script);
    }

    /// Stops Berth and its pods, and starts with another configuration and an empty data directory.
    pub(crate) fn anew(&mut self, config: &Value) {
        let script = format!("berth down --data-dir {}", self.data());
        self.sh(&script);
        self.data += 1;
        self.start(config);
        let namespace = json!({"metadata": {"name": "test"}});
        self.runtime.block_on(self.api().create(NAMESPACES, "", &namespace)).unwrap();
    }

    fn poll<T>(&mut self, what: &str, mut look: impl FnMut(&mut Node) -> Option<T>) -> T {
        let started = Instant::now();
        loop {
            if let Some(found) = look(self) {
                return found;
            }
            if started.elapsed() > TIMEOUT {
                let pods = self.runtime.block_on(self.api().list_values(PODS, &Scope::default()));
                let summary =
                    |pod: &Value| format!("{}: {}", pod["metadata"]["name"], pod["status"]);
                let pods =
                    pods.map(|pods: Vec<Value>| pods.iter().map(summary).collect::<Vec<_>>());
                panic!("not in time: {what}\n{pods:#?}");
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// Waits until a script prints this.
    pub(crate) fn until_output(&mut self, script: &str, wanted: &str) {
        self.poll(&format!("{wanted:?} of {script}"), |node| {
            (node.sh(script) == wanted).then_some(())
        });
    }

    /// Returns the node's object.
    pub(crate) fn object(&self) -> Value {
        self.runtime.block_on(self.api().get(NODES, "", "node-1")).unwrap()
    }

    /// Creates a pod on the node, without the scheduler.
    pub(crate) fn create(&mut self, mut pod: Value) {
        pod["spec"]["nodeName"] = "node-1".into();
        self.runtime.block_on(self.api().create(PODS, "test", &pod)).unwrap();
    }

    pub(crate) fn until(&mut self, name: &str, is: impl Fn(&Value) -> bool) -> Value {
        self.poll(name, |node| {
            let found = node.runtime.block_on(node.api().get(PODS, "test", name));
            found.ok().filter(&is)
        })
    }

    /// Creates a pod and waits until it runs.
    pub(crate) fn run(&mut self, pod: Value) -> Value {
        let name = pod["metadata"]["name"].as_str().unwrap().to_owned();
        self.create(pod);
        self.until(&name, |pod| is_over(pod) || phase(pod) == "Running")
    }

    /// Creates a pod that the agent rejects, and returns its status.
    pub(crate) fn refused(&mut self, pod: Value) -> Value {
        let name = pod["metadata"]["name"].as_str().unwrap().to_owned();
        self.create(pod);
        let mut pod = self.until(&name, |pod| is_over(pod) || phase(pod) == "Running");
        pod["status"].take()
    }

    pub(crate) fn patch(&mut self, name: &str, part: &str, patch: &Value) {
        let kind = PatchKind::StrategicMerge;
        let patched = self.api().patch_subresource(PODS, "test", name, part, kind, patch);
        self.runtime.block_on(patched).unwrap();
    }

    pub(crate) fn delete(&mut self, name: &str) {
        let options = DeleteOptions::default();
        self.runtime.block_on(self.api().delete(PODS, "test", name, &options)).unwrap();
        self.poll(&format!("the end of {name}"), |node| {
            let found: Result<Value, _> = node.runtime.block_on(node.api().get(PODS, "test", name));
            found.is_err_and(|error| error.is_not_found()).then_some(())
        });
    }

    /// Returns the effective cpuset of a pod's only container.
    pub(crate) fn cpuset_of(&mut self, pod: &Value) -> ContainerCpuset {
        self.look(pod).unwrap_or_else(|text| panic!("cgroup and process differ: {text}"))
    }

    /// Returns its cpuset, or the inconsistent values while it is being changed.
    fn look(&mut self, pod: &Value) -> Result<ContainerCpuset, String> {
        let cgroup = cgroup_of(pod);
        let text = self.sh(&format!(
            "cd {cgroup}\n\
             pid=$(head -n 1 cgroup.procs)\n\
             echo \"cpus $(cat cpuset.cpus.effective)\"\n\
             echo \"mems $(cat cpuset.mems.effective)\"\n\
             echo \"pid $pid\"\n\
             grep -E '^(Cpus|Mems)_allowed_list' /proc/$pid/status"
        ));
        let field = |name: &str| {
            let mut lines = text.lines().filter_map(|line| line.strip_prefix(name));
            lines.next().unwrap_or_else(|| panic!("no {name} in {text}")).trim().to_owned()
        };
        let set = |name: &str| {
            CpuSet::parse(&field(name)).unwrap_or_else(|error| panic!("{name}: {error}: {text}"))
        };
        let cpuset = ContainerCpuset { cpus: set("cpus "), mems: set("mems "), pid: field("pid ") };
        let allowed = (set("Cpus_allowed_list:"), set("Mems_allowed_list:"));
        if (&cpuset.cpus, &cpuset.mems) == (&allowed.0, &allowed.1) {
            Ok(cpuset)
        } else {
            Err(text)
        }
    }

    /// Waits until a pod's only container has these CPUs.
    pub(crate) fn until_on(&mut self, pod: &Value, cpus: &str) -> ContainerCpuset {
        let what = format!("{} on CPUs {cpus}", pod["metadata"]["name"]);
        let cpus = set(cpus);
        self.poll(&what, |node| node.look(pod).ok().filter(|cpuset| cpuset.cpus == cpus))
    }

    /// Returns the physical cores of CPUs as the kernel numbers them: socket and core.
    pub(crate) fn cores(&mut self, cpus: &CpuSet) -> BTreeSet<String> {
        let list: Vec<String> = cpus.iter().map(|cpu| cpu.to_string()).collect();
        let text = self.sh(&format!(
            "for cpu in {}; do cd /sys/devices/system/cpu/cpu$cpu/topology\n\
             echo $(cat physical_package_id) $(cat core_id); done",
            list.join(" ")
        ));
        text.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect()
    }
}

/// Returns the CPUs of each socket or NUMA node.
pub(crate) fn cpus(topology: &Value) -> Vec<&Value> {
    topology.as_array().into_iter().flatten().map(|one| &one["cpus"]).collect()
}

/// The effective cpuset of a container: cgroup and first process agree.
#[derive(Debug)]
pub(crate) struct ContainerCpuset {
    pub(crate) cpus: CpuSet,
    /// Memory nodes, in the same set type.
    pub(crate) mems: CpuSet,
    pub(crate) pid: String,
}

/// Returns the cgroup directory of a pod's only container.
pub(crate) fn cgroup_of(pod: &Value) -> String {
    let id = pod["status"]["containerStatuses"][0]["containerID"].as_str().unwrap_or_default();
    assert!(!id.is_empty(), "{pod:#}");
    format!("{}/{}", pod_cgroup(pod), id.trim_start_matches("containerd://"))
}

/// Returns the directory of a pod's cgroup.
pub(crate) fn pod_cgroup(pod: &Value) -> String {
    let class = match pod["status"]["qosClass"].as_str() {
        Some("Burstable") => "/burstable",
        Some("BestEffort") => "/besteffort",
        _ => "",
    };
    let uid = pod["metadata"]["uid"].as_str().unwrap_or_default();
    format!("/sys/fs/cgroup/kubepods{class}/pod{uid}")
}

/// A command that exits on SIGTERM.
pub(crate) const SLEEP: &str = "trap 'exit 0' TERM; sleep 6000 & wait";

/// Returns a pod that runs a script on the host's network, with its requests as limits.
pub(crate) fn pod(name: &str, script: &str, resources: &Value) -> Value {
    json!({
        "metadata": {"name": name},
        "spec": {
            "hostNetwork": true,
            "terminationGracePeriodSeconds": 5,
            "containers": [{
                "name": "c", "image": rig::BUSYBOX, "imagePullPolicy": "Never",
                "command": ["sh", "-c", script],
                "resources": {"requests": resources, "limits": resources},
            }],
        },
    })
}

/// Adds a memory-backed volume to the pod.
pub(crate) fn with_memory_volume(mut pod: Value) -> Value {
    pod["spec"]["volumes"] = json!([{"name": "memory", "emptyDir": {"medium": "Memory"}}]);
    pod["spec"]["containers"][0]["volumeMounts"] =
        json!([{"name": "memory", "mountPath": "/memory"}]);
    pod
}

pub(crate) fn phase(pod: &Value) -> &str {
    pod["status"]["phase"].as_str().unwrap_or_default()
}

pub(crate) fn is_over(pod: &Value) -> bool {
    matches!(phase(pod), "Failed" | "Succeeded")
}

pub(crate) fn set(text: &str) -> CpuSet {
    CpuSet::parse(text).unwrap()
}
