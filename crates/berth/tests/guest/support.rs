//! Guests with Berth in them, one after the other: [`Machine`], and [`Node`] once Berth is up in it.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use client::kind::{NAMESPACES, NODES, PODS};
use client::{Client, DeleteOptions, Kubeconfig, PatchKind, Patience, Remote, Scope};
use placement::CpuSet;
use rig::guest::{Disk, Guest, Kernel, Shape};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

/// Long enough for an emulated machine on a busy one; nothing waits for it when all is well.
const PATIENCE: Duration = Duration::from_secs(300);

/// Between two looks through the API of a guest that has better things to do.
const PAUSE: Duration = Duration::from_millis(200);

/// What the agent logs when it is at work.
const ADOPTED: &str = "took up what runs";

/// Two of them at a time are no faster on any machine that has to emulate eight CPUs each.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// A guest, and the right to be the only one.
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

/// The disk of all guests, with the binary that these tests are built with.
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

/// Two sockets with two NUMA nodes each, which are nearer to each other than to those of the other socket.
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

    /// What Berth says of the machine.
    pub(crate) fn topology(&mut self) -> Value {
        serde_json::from_str(&self.sh("berth topology -o json")).unwrap()
    }

    /// Brings a node up with a configuration.
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

/// A guest with Berth in it.
pub(crate) struct Node {
    machine: Machine,
    runtime: Runtime,
    endpoint: String,
    api: Option<Client>,
    /// How often it was started: each start has a log of its own.
    starts: u32,
    /// Which directory the node lives in.
    data: u32,
}

impl Drop for Node {
    /// What was said in a guest is gone with it, so a test that fails shows it.
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

    /// Where the node keeps everything.
    pub(crate) fn data(&self) -> String {
        format!("/var/lib/berth-{}", self.data)
    }

    /// What the present process has said.
    pub(crate) fn log(&mut self) -> String {
        let script = format!("cat /var/log/berth-{}.log", self.starts);
        self.sh(&script)
    }

    /// Starts Berth with a configuration, and waits until the agent is at work.
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
        // Said once it is known what runs, and all of it has been looked at.
        let is_up = format!("grep -q '{ADOPTED}' {log} || ! pidof berth >/dev/null");
        let wait =
            self.machine.guest.wait("Berth is up", &is_up, |status, _| (status == 0).then_some(()));
        wait.unwrap_or_else(|error| panic!("{error}"));
        let (log, kubeconfig) = (self.log(), format!("cat {data}/kubeconfig"));
        assert!(log.contains(ADOPTED), "{log}");
        let text = self.sh(&kubeconfig);
        let mut config = Kubeconfig::parse(&text, Path::new("kubeconfig")).unwrap();
        config.address.port = self.machine.guest.port();
        let patience = Patience { connect: PATIENCE, request: PATIENCE, ..Patience::default() };
        let remote = Remote::new(config, "test", patience).unwrap();
        self.api = Some(Client::new(Arc::new(remote), "test"));
    }

    /// Ends Berth; pods run on.
    pub(crate) fn stop(&mut self) {
        let script = format!("berth down --keep-pods --data-dir {}", self.data());
        self.sh(&script);
    }

    /// Ends Berth and its pods, and begins anew with another configuration, as if it had never been there.
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
            if started.elapsed() > PATIENCE {
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

    /// Waits until a script says this.
    pub(crate) fn until_output(&mut self, script: &str, wanted: &str) {
        self.poll(&format!("{wanted:?} of {script}"), |node| {
            (node.sh(script) == wanted).then_some(())
        });
    }

    /// The node's object.
    pub(crate) fn object(&self) -> Value {
        self.runtime.block_on(self.api().get(NODES, "", "node-1")).unwrap()
    }

    /// Creates a pod on the node, whatever a scheduler thinks of it.
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

    /// Creates a pod that is not to be let in; its status.
    pub(crate) fn refused(&mut self, pod: Value) -> Value {
        let name = pod["metadata"]["name"].as_str().unwrap().to_owned();
        self.create(pod);
        let mut pod = self.until(&name, |pod| is_over(pod) || phase(pod) == "Running");
        pod["status"].take()
    }

    pub(crate) fn patch(&mut self, name: &str, part: &str, patch: &Value) {
        let kind = PatchKind::StrategicMerge;
        let patched = self.api().patch_part(PODS, "test", name, part, kind, patch);
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

    /// Where the only container of a pod really is.
    pub(crate) fn cpuset_of(&mut self, pod: &Value) -> ContainerCpuset {
        self.look(pod).unwrap_or_else(|text| panic!("cgroup and process differ: {text}"))
    }

    /// Where it is; what was read instead while it is being moved.
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

    /// The physical cores of CPUs, as the kernel numbers them: socket and core.
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

/// The CPUs of each of the sockets or nodes of a machine.
pub(crate) fn cpus(topology: &Value) -> Vec<&Value> {
    topology.as_array().into_iter().flatten().map(|one| &one["cpus"]).collect()
}

/// Where a container really is: what its cgroup has and, the same, what its first process has.
#[derive(Debug)]
pub(crate) struct ContainerCpuset {
    pub(crate) cpus: CpuSet,
    /// Memory nodes; a set of numbers is a set of numbers.
    pub(crate) mems: CpuSet,
    pub(crate) pid: String,
}

/// The directory of the cgroup of a pod's only container.
pub(crate) fn cgroup_of(pod: &Value) -> String {
    let id = pod["status"]["containerStatuses"][0]["containerID"].as_str().unwrap_or_default();
    assert!(!id.is_empty(), "{pod:#}");
    format!("{}/{}", pod_cgroup(pod), id.trim_start_matches("containerd://"))
}

/// The directory of a pod's cgroup.
pub(crate) fn pod_cgroup(pod: &Value) -> String {
    let class = match pod["status"]["qosClass"].as_str() {
        Some("Burstable") => "/burstable",
        Some("BestEffort") => "/besteffort",
        _ => "",
    };
    let uid = pod["metadata"]["uid"].as_str().unwrap_or_default();
    format!("/sys/fs/cgroup/kubepods{class}/pod{uid}")
}

/// Ends when asked to.
pub(crate) const SLEEP: &str = "trap 'exit 0' TERM; sleep 6000 & wait";

/// A pod that runs a script, on the host's network, with what it requests as its limits.
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

/// The pod with a volume in memory.
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
