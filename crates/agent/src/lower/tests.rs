use super::*;
use objects::pod::OsName;

/// A Linux node with cgroup v1, as the recordings were made on.
pub(super) fn facts() -> NodeFacts {
    NodeFacts {
        os: OsName::Linux,
        ips: vec!["192.0.2.7".to_owned()],
        allocatable: amounts(&[("cpu", "1700m"), ("memory", "8Gi"), ("ephemeral-storage", "10Gi")]),
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
        masked_paths: Vec::new(),
    }
}

pub(super) fn amounts(of: &[(&str, &str)]) -> crate::spec::Amounts {
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
