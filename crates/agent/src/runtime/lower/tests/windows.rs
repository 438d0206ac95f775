//! Windows: host processes, users, CPU limits, processor groups, paths.

use placement::CpuSet;
use placement::windows::groups_of;

use super::*;

fn world() -> World {
    let mut world = World::new();
    world.node_env.os = OsName::Windows;
    world.node_env.cpu_count = 4;
    world.node_env.root_dir = r"C:\var\lib\kubelet".to_owned();
    world.node_env.log_dir = r"C:\var\log\pods".to_owned();
    world
}

#[test]
fn windows_pod_has_no_linux_fields() {
    let mut world = world();
    world.image_user.name = "ContainerUser".to_owned();
    let volume =
        MountedVolume::Path { host_path: r"\data".to_owned(), read_only: false, relabel: false };
    world.mounted.volumes.insert("v".to_owned(), volume);
    let pod = pod(json!({
        "securityContext": {"windowsOptions": {"gmsaCredentialSpec": "{}", "runAsUserName": "a"}},
        "containers": [{"name": "c", "terminationMessagePath": "/dev/termination-log",
            "resources": {"limits": {"cpu": "1", "memory": "1Gi"}},
            "volumeMounts": [{"name": "v", "mountPath": "/v"}, {"name": "v", "mountPath": r"d:\v"}],
            "securityContext": {"windowsOptions": {"runAsUserName": "b"}}}],
    }));
    let sandbox = world.sandbox(&pod).unwrap();
    assert_eq!(sandbox.linux, None);
    assert_eq!(sandbox.log_directory, r"C:\var\log\pods\lives_p_u-1");
    let of_pod = sandbox.windows.unwrap().security_context.unwrap();
    assert_eq!((of_pod.run_as_username.as_str(), of_pod.credential_spec.as_str()), ("a", "{}"));
    let config = world.made(&pod);
    assert_eq!((config.linux, config.log_path.as_str()), (None, r"c\0.log"));
    let paths: Vec<_> =
        config.mounts.iter().map(|m| (m.container_path.as_str(), m.host_path.as_str())).collect();
    let hosts = r"C:\Windows\System32\drivers\etc\hosts";
    assert_eq!(paths[0], ("c:/v", r"c:\data"));
    assert_eq!(paths[1].0, r"d:\v");
    assert_eq!(paths[2], (hosts, r"C:\var\lib\kubelet\pods\u-1\etc-hosts"));
    assert_eq!(paths[3].0, "c:/dev/termination-log");
    let windows = config.windows.unwrap();
    let own = windows.security_context.unwrap();
    assert_eq!((own.run_as_username.as_str(), own.credential_spec.as_str()), ("b", "{}"));
    let resources = windows.resources.unwrap();
    assert_eq!((resources.cpu_maximum, resources.memory_limit_in_bytes), (2500, 1 << 30));
    assert_eq!((resources.cpu_shares, resources.cpu_count), (0, 0));
}

#[test]
fn cpu_limits_stay_within_the_machine() {
    for (limit, expected) in [("0", 0), ("1m", 2), ("1500m", 3750), ("4", 10_000), ("64", 10_000)] {
        let pod = pod_of(json!({"resources": {"limits": {"cpu": limit}}}));
        let resources = resources::of_windows_container(&world().node_env, &pod.spec.containers[0]);
        assert_eq!(resources.cpu_maximum, expected, "{limit}");
    }
    let mut big = world().node_env;
    big.cpu_count = 256;
    let pod = pod_of(json!({"resources": {"limits": {"cpu": "1m"}}}));
    assert_eq!(resources::of_windows_container(&big, &pod.spec.containers[0]).cpu_maximum, 1);
}

#[test]
fn placement_is_lowered_to_processor_groups() {
    let mut world = world();
    let cpus = CpuSet::parse("0-1,64,66").unwrap();
    let affinity =
        ContainerAffinity { groups: groups_of(&cpus), cpus, ..ContainerAffinity::default() };
    world.affinities.insert("c".to_owned(), affinity.clone());
    let expected = [(0, 0b11), (1, 0b101)]
        .map(|(cpu_group, cpu_mask)| v1::WindowsCpuGroupAffinity { cpu_mask, cpu_group });
    let made = world.made(&pod_of(json!({}))).windows.unwrap().resources.unwrap();
    assert_eq!(made.affinity_cpus, expected);
    let id = "id".to_owned();
    let moved = update::cpus(OsName::Windows, &affinity, &id);
    assert_eq!((moved.linux, moved.windows.unwrap().affinity_cpus), (None, expected.to_vec()));
    let pod = pod_of(json!({"resources": {"limits": {"memory": "1Gi"}}}));
    let (role, container) = pod.container("c").unwrap();
    let changed = update::resources(&world.input(&pod), container, role, &id);
    assert_eq!((changed.linux, changed.windows.unwrap().memory_limit_in_bytes), (None, 1 << 30));
}

#[test]
fn host_processes_are_all_or_none() {
    let host = json!({"windowsOptions": {"hostProcess": true}});
    let world = world();
    let all = pod(json!({"hostNetwork": true, "securityContext": host}));
    let sandbox = world.sandbox(&all).unwrap();
    let config = world.made(&all);
    for annotations in [&sandbox.annotations, &config.annotations] {
        assert_eq!(annotations.get(annotations::HOST_PROCESS).map(String::as_str), Some("true"));
    }
    let plain = pod(json!({}));
    let (sandbox_of_plain, plain) = (world.sandbox(&plain).unwrap(), world.made(&plain));
    for annotations in [&sandbox_of_plain.annotations, &plain.annotations] {
        assert!(!annotations.contains_key(annotations::HOST_PROCESS));
    }
    assert!(sandbox.windows.unwrap().security_context.unwrap().host_process);
    assert!(config.windows.unwrap().security_context.unwrap().host_process);
    assert!(config.mounts.is_empty(), "host processes have the host's files");
    let offline = pod(json!({"securityContext": host}));
    let mixed = pod(json!({"hostNetwork": true, "containers": [
        {"name": "c", "securityContext": host}, {"name": "d"},
    ]}));
    for (pod, expected) in [
        (offline, "hostNetwork is required if Pod contains HostProcess containers"),
        (mixed, "pod must not contain both HostProcess and non-HostProcess containers"),
    ] {
        assert_eq!(world.sandbox(&pod).unwrap_err().to_string(), expected);
    }
}

#[test]
fn runtimes_without_host_processes_are_rejected() {
    let host =
        json!({"hostNetwork": true, "securityContext": {"windowsOptions": {"hostProcess": true}}});
    let (host, plain) =
        (world().sandbox(&pod(host)).unwrap(), world().sandbox(&pod(json!({}))).unwrap());
    for (runtime, takes_it) in [
        (Some(("containerd", "v1.7.24")), true),
        (Some(("containerd", "v1.5.18")), false),
        (Some(("cri-dockerd", "0.3.16")), false),
        (None, false),
    ] {
        assert_eq!(sandbox::check_runtime(&host, runtime).is_ok(), takes_it, "{runtime:?}");
        assert_eq!(sandbox::check_runtime(&plain, runtime), Ok(()), "{runtime:?}");
    }
}

#[test]
fn windows_administrator_counts_as_root() {
    let user = |name: &str| ImageUser { uid: None, name: name.to_owned() };
    let non_root = pod(json!({"securityContext": {"runAsNonRoot": true}}));
    let verify = |pod: &Pod, image: &str| {
        verify_run_as_non_root(pod, &pod.spec.containers[0], &user(image), OsName::Windows)
            .map_err(|error| error.to_string())
    };
    assert_eq!(verify(&non_root, "ContainerUser"), Ok(()));
    let text = "container's runAsUser (containeradministrator) which will be regarded as root \
                identity and breaks non-root policy (pod: \"p_lives(u-1)\", container: c)";
    assert_eq!(verify(&non_root, "containeradministrator"), Err(text.to_owned()));
    let named = pod(json!({"securityContext": {
        "runAsNonRoot": true, "windowsOptions": {"runAsUserName": "someone"},
    }}));
    assert_eq!(verify(&named, "ContainerAdministrator"), Ok(()));
}
