//! Tables of inputs and requests; [`World`] is a node with one pod.

use std::collections::BTreeMap;

use objects::pod::OsName;
use serde_json::{Value, json};

use super::*;
use lifecycle::spec::{Pod, ResourceList};

mod affinity;
mod amounts;
mod env;
mod mounts;
mod names;
mod security;
mod windows;

/// Returns a Linux node with cgroup v1, like that of the recordings.
pub(crate) fn node_env() -> NodeEnvironment {
    NodeEnvironment {
        os: OsName::Linux,
        ips: vec!["192.0.2.7".to_owned()],
        allocatable: amounts_of(&[
            ("cpu", "1700m"),
            ("memory", "8Gi"),
            ("ephemeral-storage", "10Gi"),
        ]),
        memory_capacity: 16 << 30,
        swap_capacity: 4 << 30,
        cpu_count: 2,
        root_dir: "/var/lib/kubelet".to_owned(),
        log_dir: "/var/log/pods".to_owned(),
        cgroups: Cgroups {
            driver: CgroupDriver::Cgroupfs,
            version: CgroupVersion::V1,
            root: "/".to_owned(),
            swap_controller: true,
        },
        cpu_quota_period: Some(100_000),
        huge_page_sizes: vec![2 << 20, 1 << 30],
        page_size: 4096,
        dns: Dns {
            resolv_conf: Some("nameserver 192.0.2.53\n".to_owned()),
            cluster_servers: vec!["10.0.0.10".to_owned()],
            cluster_domain: "cluster.local".to_owned(),
        },
        seccomp_default: false,
        single_process_oom_kill: true,
        swap: SwapBehavior::NoSwap,
        memory_throttling: None,
        selinux: false,
        qos_classes: true,
        host_process: true,
        masked_paths: Vec::new(),
    }
}

fn amounts_of(of: &[(&str, &str)]) -> ResourceList {
    of.iter().map(|(name, text)| ((*name).to_owned(), text.parse().unwrap())).collect()
}

pub(super) fn service(namespace: &str, name: &str, ip: &str, ports: &[(&str, u16)]) -> Service {
    let port = |(name, port): &(&str, u16)| ServicePort {
        name: (*name).to_owned(),
        port: *port,
        protocol: "TCP".to_owned(),
    };
    Service {
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        cluster_ip: ip.to_owned(),
        ports: ports.iter().map(port).collect(),
    }
}

/// Returns a pod with one container `c`, merged with `spec`; metadata is the recordings'.
fn pod(spec: Value) -> Pod {
    let mut object = json!({
        "metadata": {"name": "p", "namespace": "lives", "uid": "u-1"},
        "spec": {"containers": [{"name": "c", "image": "busybox"}]},
    });
    let Value::Object(spec) = spec else { panic!("{spec} is not a spec") };
    for (name, value) in spec {
        object["spec"][&name] = value;
    }
    serde_json::from_value(object).unwrap()
}

/// Returns a pod whose only container `c` has these fields.
fn pod_of(mut container: Value) -> Pod {
    container["name"] = "c".into();
    pod(json!({"containers": [container]}))
}

/// All inputs of a request.
pub(crate) struct World {
    pub node_env: NodeEnvironment,
    pub affinities: BTreeMap<String, ContainerAffinity>,
    pub user_namespace: Option<IdRange>,
    pub volume_groups: Vec<i64>,
    pub pod_ips: Vec<String>,
    pub image_user: ImageUser,
    pub mounted: MountedVolumes,
    pub configs: Configs,
    pub env_files: BTreeMap<(String, String), EnvFile>,
    pub services: Vec<Service>,
    pub target: Option<String>,
    pub attached: DeviceAttachments,
    pub recursive_read_only: bool,
    pub source: PodSource,
}

impl World {
    pub(crate) fn new() -> World {
        World {
            node_env: node_env(),
            affinities: BTreeMap::new(),
            user_namespace: None,
            volume_groups: Vec::new(),
            pod_ips: vec!["10.1.0.5".to_owned()],
            image_user: ImageUser::default(),
            mounted: MountedVolumes::default(),
            configs: Configs::default(),
            env_files: BTreeMap::new(),
            services: Vec::new(),
            target: None,
            attached: DeviceAttachments::default(),
            recursive_read_only: false,
            source: PodSource { origin: ConfigSource::Api, seen: "now".to_owned() },
        }
    }

    pub(crate) fn input<'a>(&'a self, pod: &'a Pod) -> PodInput<'a> {
        PodInput {
            pod,
            node_env: &self.node_env,
            source: &self.source,
            affinities: &self.affinities,
            user_namespace: self.user_namespace,
            volume_groups: &self.volume_groups,
        }
    }

    pub(super) fn sandbox(&self, pod: &Pod) -> Result<v1::PodSandboxConfig, LowerError> {
        sandbox(&self.input(pod), 0).map(|sandbox| sandbox.config)
    }

    /// Returns the container of that name.
    pub(super) fn container(
        &self,
        pod: &Pod,
        name: &str,
    ) -> Result<v1::ContainerConfig, LowerError> {
        let (role, of) = pod.container(name).unwrap();
        let of = ContainerInput {
            container: of,
            role,
            attempt: 0,
            image: "sha256:1",
            image_user: &self.image_user,
            pod_ips: &self.pod_ips,
            mounted: &self.mounted,
            configs: &self.configs,
            env_files: &self.env_files,
            services: &self.services,
            termination_log: Some("/var/lib/kubelet/pods/u-1/containers/c/1"),
            target: self.target.as_ref(),
            attached: &self.attached,
            recursive_read_only: self.recursive_read_only,
        };
        let input = self.input(pod);
        container(&input, &of, super::env::variables(&input, &of)?)
    }

    /// Returns container `c`.
    pub(super) fn made(&self, pod: &Pod) -> v1::ContainerConfig {
        self.container(pod, "c").unwrap()
    }
}

/// Formats variables as `NAME=value`.
pub(super) fn texts(config: &v1::ContainerConfig) -> Vec<String> {
    let text = |variable: &v1::KeyValue| {
        format!("{}={}", variable.key, String::from_utf8_lossy(&variable.value))
    };
    config.envs.iter().map(text).collect()
}

#[test]
fn hash_depends_on_the_image_and_not_the_resources() {
    let of = |container: Value| hash(&pod_of(container).spec.containers[0]);
    let known = of(json!({"image": "busybox:1"}));
    assert_eq!(known, of(json!({"image": "busybox:1", "resources": {"limits": {"cpu": "1"}}})));
    assert_ne!(known, of(json!({"image": "busybox:2"})));
}

#[test]
fn annotations_of_hooks_and_ports_match_upstream() {
    let mut pod = pod_of(json!({
        "lifecycle": {"preStop": {"httpGet": {
            "path": "/a?b=1&c=<2>", "port": "web", "scheme": "HTTP",
            "httpHeaders": [{"name": "X", "value": "y"}],
        }}},
        "ports": [
            {"name": "web", "containerPort": 80, "protocol": "TCP"},
            {"containerPort": 53, "hostPort": 53, "protocol": "UDP", "hostIP": "192.0.2.7"},
        ],
    }));
    pod.metadata.deletion_grace_period_seconds = Some(3);
    let mut world = World::new();
    world.attached.annotations.insert("vendor/x".to_owned(), "y".to_owned());
    let config = world.made(&pod);
    let of = |key: &str| config.annotations[key].as_str();
    assert_eq!(
        of(annotations::PRE_STOP),
        r#"{"httpGet":{"path":"/a?b=1\u0026c=\u003c2\u003e","port":"web","scheme":"HTTP","httpHeaders":[{"name":"X","value":"y"}]}}"#
    );
    assert_eq!(
        of(annotations::PORTS),
        r#"[{"name":"web","containerPort":80,"protocol":"TCP"},{"hostPort":53,"containerPort":53,"protocol":"UDP","hostIP":"192.0.2.7"}]"#
    );
    assert_eq!((of(annotations::DELETION_GRACE), of("vendor/x")), ("3", "y"));
    let ports: Vec<_> = world.sandbox(&pod).unwrap().port_mappings;
    let udp = v1::PortMapping {
        protocol: v1::Protocol::Udp as i32,
        container_port: 53,
        host_port: 53,
        host_ip: "192.0.2.7".to_owned(),
    };
    assert_eq!(ports[1], udp);
    assert_eq!((ports.len(), ports[0].host_port), (2, 0));
}

#[test]
fn stop_signals_have_the_names_of_the_api() {
    let signal = |name: &str| {
        let pod = pod_of(json!({"lifecycle": {"stopSignal": name}}));
        World::new().container(&pod, "c").map(|config| config.stop_signal())
    };
    assert_eq!(signal("SIGUSR1"), Ok(v1::Signal::Sigusr1));
    assert_eq!(signal("SIGRTMIN+1"), Ok(v1::Signal::Sigrtminplus1));
    assert_eq!(signal("SIGRTMAX-1"), Ok(v1::Signal::Sigrtmaxminus1));
    assert_eq!(signal("SIGNOPE"), Err(LowerError::StopSignal("SIGNOPE".to_owned())));
}

#[test]
fn classes_are_set_in_fields_of_the_extension() {
    let mut pod = pod_of(json!({
        "resources": {"qosResources": [{"name": "k8s.io/rdt", "class": "gold"}]},
    }));
    pod.spec.qos_resources =
        serde_json::from_value(json!([{"name": "net", "class": "fast"}])).unwrap();
    let world = World::new();
    let of_container = &world.made(&pod).qos_resources[0];
    assert_eq!((of_container.name.as_str(), of_container.class.as_str()), ("k8s.io/rdt", "gold"));
    let of_pod = &world.sandbox(&pod).unwrap().qos_resources[0];
    assert_eq!((of_pod.name.as_str(), of_pod.class.as_str()), ("net", "fast"));
}
