//! Users and privileges of containers.

use cri::v1::security_profile::ProfileType;

use super::*;

fn of(world: &World, pod: &Pod) -> v1::LinuxContainerSecurityContext {
    world.made(pod).linux.unwrap().security_context.unwrap()
}

#[test]
fn container_settings_override_the_pods() {
    let mut world = World::new();
    world.volume_groups = vec![7];
    let pod = pod(json!({
        "securityContext": {
            "runAsUser": 1, "runAsGroup": 2, "fsGroup": 5, "supplementalGroups": [6],
            "supplementalGroupsPolicy": "Strict", "seLinuxOptions": {"level": "s0"},
            "sysctls": [{"name": "net.a", "value": "1"}],
        },
        "containers": [{"name": "c", "securityContext": {
            "runAsUser": 10, "privileged": true, "readOnlyRootFilesystem": true,
            "allowPrivilegeEscalation": false, "procMount": "Unmasked",
            "capabilities": {"add": ["NET_ADMIN"], "drop": ["ALL"]},
        }}],
    }));
    let sc = of(&world, &pod);
    assert_eq!((sc.run_as_user.unwrap().value, sc.run_as_group.unwrap().value), (10, 2));
    assert_eq!(sc.supplemental_groups, [5, 6, 7]);
    assert_eq!(sc.supplemental_groups_policy(), v1::SupplementalGroupsPolicy::Strict);
    assert_eq!(sc.selinux_options.unwrap().level, "s0");
    assert!(sc.privileged && sc.readonly_rootfs && sc.no_new_privs);
    assert!(sc.masked_paths.is_empty() && sc.readonly_paths.is_empty());
    let capabilities = sc.capabilities.unwrap();
    assert_eq!(capabilities.add_capabilities, ["NET_ADMIN"]);
    assert_eq!(capabilities.drop_capabilities, ["ALL"]);

    let linux = world.sandbox(&pod).unwrap().linux.unwrap();
    assert_eq!(linux.sysctls["net.a"], "1");
    let sc = linux.security_context.unwrap();
    assert_eq!((sc.run_as_user.unwrap().value, sc.privileged), (1, true));
    assert_eq!(sc.supplemental_groups, [5, 7, 6]);
    assert_eq!(sc.seccomp.unwrap().profile_type(), ProfileType::RuntimeDefault);

    let mut other = pod;
    other.spec.security_context.supplemental_groups_policy = Some("Loose".to_owned());
    let error = world.sandbox(&other).unwrap_err();
    assert_eq!(error.to_string(), "unsupported supplementalGroupsPolicy: Loose");
}

#[test]
fn user_of_the_image_is_the_default() {
    let mut world = World::new();
    world.image_user = ImageUser { uid: None, name: "web".to_owned() };
    let sc = of(&world, &pod_of(json!({})));
    assert_eq!((sc.run_as_user, sc.run_as_username.as_str()), (None, "web"));
    let sc = of(&world, &pod_of(json!({"securityContext": {"runAsUser": 5}})));
    assert_eq!((sc.run_as_user.unwrap().value, sc.run_as_username.as_str()), (5, ""));
    world.node_env.masked_paths = vec!["/sys/devices/system/cpu/cpu0/thermal_throttle".to_owned()];
    let sc = of(&world, &pod_of(json!({})));
    assert_eq!((sc.masked_paths.len(), sc.readonly_paths.len()), (13, 5));
}

#[test]
fn profiles_come_from_the_container_or_the_pod() {
    let mut world = World::new();
    let seccomp = |world: &World, pod: &Pod| {
        let config = world.container(pod, "c").map_err(|error| error.to_string())?;
        let profile = config.linux.unwrap().security_context.unwrap().seccomp.unwrap();
        Ok::<_, String>((profile.profile_type(), profile.localhost_ref))
    };
    let plain = pod_of(json!({}));
    assert_eq!(seccomp(&world, &plain), Ok((ProfileType::Unconfined, String::new())));
    world.node_env.seccomp_default = true;
    assert_eq!(seccomp(&world, &plain), Ok((ProfileType::RuntimeDefault, String::new())));
    let both = pod(json!({
        "securityContext": {"seccompProfile": {"type": "Unconfined"}},
        "containers": [{"name": "c", "securityContext": {
            "seccompProfile": {"type": "Localhost", "localhostProfile": "a/b.json"},
        }}],
    }));
    let file = "/var/lib/kubelet/seccomp/a/b.json".to_owned();
    assert_eq!(seccomp(&world, &both), Ok((ProfileType::Localhost, file)));
    let nameless = pod_of(json!({"securityContext": {"seccompProfile": {"type": "Localhost"}}}));
    let text = "localhostProfile must be set if seccompProfile type is Localhost.".to_owned();
    assert_eq!(seccomp(&world, &nameless), Err(text));

    #[allow(deprecated, reason = "both forms are sent")]
    let apparmor = |pod: &Pod| {
        let sc = of(&world, pod);
        sc.apparmor.map(|profile| (profile.profile_type(), sc.apparmor_profile))
    };
    assert_eq!(apparmor(&plain), None);
    let mut pod = pod(json!({"securityContext": {"appArmorProfile": {"type": "Unconfined"}}}));
    assert_eq!(apparmor(&pod), Some((ProfileType::Unconfined, "unconfined".to_owned())));
    let key = "container.apparmor.security.beta.kubernetes.io/c".to_owned();
    pod.metadata.annotations.insert(key, "localhost/x".to_owned());
    assert_eq!(apparmor(&pod), Some((ProfileType::Localhost, "localhost/x".to_owned())));
    pod.spec.containers[0].security_context.app_armor_profile =
        serde_json::from_value(json!({"type": "RuntimeDefault"})).unwrap();
    assert_eq!(apparmor(&pod), Some((ProfileType::RuntimeDefault, "runtime/default".to_owned())));
}

#[test]
fn namespaces_are_shared_as_specified() {
    use v1::NamespaceMode::{Container, Node, Pod as OfPod, Target};
    let mut world = World::new();
    world.target = Some("id-1".to_owned());
    for (spec, network, pid, ipc, of_container) in [
        (json!({}), OfPod, Container, OfPod, Target),
        (json!({"shareProcessNamespace": true}), OfPod, OfPod, OfPod, OfPod),
        (json!({"hostNetwork": true, "hostPID": true, "hostIPC": true}), Node, Node, Node, Node),
    ] {
        let pod = pod(spec);
        let linux = world.sandbox(&pod).unwrap().linux.unwrap();
        let of_pod = linux.security_context.unwrap().namespace_options.unwrap();
        assert_eq!((of_pod.network(), of_pod.pid(), of_pod.ipc()), (network, pid, ipc));
        let own = of(&world, &pod).namespace_options.unwrap();
        assert_eq!(own.pid(), of_container);
        assert_eq!(own.target_id.is_empty(), of_container != Target);
    }
}

#[test]
fn user_namespace_maps_ids_and_files() {
    let mut world = World::new();
    let pod = pod(json!({"hostUsers": false}));
    let error = world.sandbox(&pod).unwrap_err().to_string();
    assert_eq!(
        error,
        "can't set `spec.hostUsers: false`, runtime does not support user namespaces"
    );
    world.user_namespace = Some(IdRange { host_id: 65_536, length: 65_536 });
    let mapping = v1::IdMapping { host_id: 65_536, container_id: 0, length: 65_536 };
    let config = world.made(&pod);
    let options = config.linux.unwrap().security_context.unwrap().namespace_options.unwrap();
    let users = options.userns_options.unwrap();
    assert_eq!(users.mode(), v1::NamespaceMode::Pod);
    assert_eq!((&users.uids, &users.gids), (&vec![mapping], &vec![mapping]));
    assert_eq!(config.mounts[0].uid_mappings, [mapping]);
}

#[test]
fn run_as_non_root_is_verified() {
    let image = |uid, name: &str| ImageUser { uid, name: name.to_owned() };
    let of = |whole: Value, own: Value| {
        let containers = json!([{"name": "c", "securityContext": own}]);
        pod(json!({"securityContext": whole, "containers": containers}))
    };
    let non_root = json!({"runAsNonRoot": true});
    let of_whom = "(pod: \"p_lives(u-1)\", container: c)";
    for (pod, user, expected) in [
        (of(json!({}), json!({})), image(Some(0), ""), None),
        (
            of(json!({"runAsNonRoot": true}), json!({"runAsNonRoot": false})),
            image(Some(0), ""),
            None,
        ),
        (
            of(non_root.clone(), json!({"runAsUser": 0})),
            image(Some(5), ""),
            Some("container's runAsUser breaks non-root policy"),
        ),
        (
            of(json!({"runAsUser": 0}), json!({"runAsNonRoot": true, "runAsUser": 3})),
            image(Some(0), ""),
            None,
        ),
        (
            of(non_root.clone(), json!({})),
            image(Some(0), ""),
            Some("container has runAsNonRoot and image will run as root"),
        ),
        (
            of(non_root.clone(), json!({})),
            image(None, "web"),
            Some(
                "container has runAsNonRoot and image has non-numeric user (web), cannot verify user is non-root",
            ),
        ),
        (of(non_root.clone(), json!({})), image(Some(5), ""), None),
        (of(non_root, json!({})), image(None, ""), None),
    ] {
        let container = &pod.spec.containers[0];
        let found = verify_run_as_non_root(&pod, container, &user, OsName::Linux);
        let expected = expected.map(|text| format!("{text} {of_whom}"));
        assert_eq!(found.err().map(|error| error.to_string()), expected);
    }
}

#[test]
fn missing_references_are_reported_before_run_as_non_root() {
    let mut world = World::new();
    world.image_user = ImageUser { uid: Some(0), name: String::new() };
    let check = |with: Value, expected: &str| {
        let mut container = json!({"name": "c", "securityContext": {"runAsNonRoot": true}});
        container.as_object_mut().unwrap().extend(with.as_object().unwrap().clone());
        let pod = pod(json!({"containers": [container]}));
        let error = world.container(&pod, "c").unwrap_err().to_string();
        assert!(error.starts_with(expected), "{error}");
    };
    let missing = json!({"configMapKeyRef": {"name": "nocm", "key": "a"}});
    check(json!({"env": [{"name": "X", "valueFrom": missing}]}), "configmap \"nocm\" not found");
    let mounts = json!([{"name": "v", "mountPath": "/v"}]);
    check(
        json!({"volumeMounts": mounts}),
        "cannot find volume \"v\" to mount into container \"c\"",
    );
    check(json!({}), "container has runAsNonRoot and image will run as root");
}
