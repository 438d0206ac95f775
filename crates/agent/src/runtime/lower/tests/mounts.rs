//! Mounts: order, propagation, recursive read-only, missing volumes.

use super::*;

fn world(paths: &[(&str, bool)]) -> World {
    let mut world = World::new();
    for (name, read_only) in paths {
        let volume = MountedVolume::Path {
            host_path: format!("/host/{name}"),
            read_only: *read_only,
            relabel: true,
        };
        world.mounted.volumes.insert((*name).to_owned(), volume);
    }
    world
}

#[test]
fn mounts_have_upstreams_order() {
    let mut world = world(&[("v", false), ("ro", true)]);
    world.mounted.sub_paths.insert(1, "/host/sub/1".to_owned());
    let image = v1::ImageSpec { image: "sha256:2".to_owned(), ..Default::default() };
    world.mounted.volumes.insert("img".to_owned(), MountedVolume::Image(image));
    let device = v1::Mount { container_path: "/dev/lib".to_owned(), ..Default::default() };
    world.attached.mounts.push(device);
    let mut pod = pod_of(json!({
        "terminationMessagePath": "/dev/termination-log",
        "volumeMounts": [
            {"name": "v", "mountPath": "/v", "readOnly": true},
            {"name": "v", "mountPath": "relative", "subPathExpr": "$(X)"},
            {"name": "ro", "mountPath": "/ro"},
            {"name": "img", "mountPath": "/img", "subPath": "etc"},
        ],
    }));
    let text = |mount: &v1::Mount| {
        let flags = [(mount.readonly, " ro"), (mount.selinux_relabel, " relabel")];
        let flags: String = flags.iter().filter(|(on, _)| *on).map(|(_, flag)| *flag).collect();
        let from = match &mount.image {
            Some(image) => format!("{}:{}", image.image, mount.image_sub_path),
            None => mount.host_path.clone(),
        };
        format!("{} {from}{flags}", mount.container_path)
    };
    let texts =
        |world: &World, pod: &Pod| world.made(pod).mounts.iter().map(text).collect::<Vec<_>>();
    let all = [
        "/dev/lib ",
        "/v /host/v ro",
        "/relative /host/sub/1",
        "/ro /host/ro ro",
        "/img sha256:2:etc",
        "/etc/hosts /var/lib/kubelet/pods/u-1/etc-hosts",
        "/dev/termination-log /var/lib/kubelet/pods/u-1/containers/c/1",
    ];
    assert_eq!(texts(&world, &pod), all);
    world.node_env.selinux = true;
    assert_eq!(texts(&world, &pod)[1], "/v /host/v ro relabel");
    // Without an IP there is no hosts file.
    world.pod_ips.clear();
    assert!(!texts(&world, &pod).iter().any(|text| text.starts_with("/etc/hosts")));
    // The pod's own volume is mounted there.
    world.pod_ips.push("10.1.0.5".to_owned());
    pod.spec.containers[0].volume_mounts[0].mount_path = "/etc/hosts".to_owned();
    let hosts = texts(&world, &pod).into_iter().filter(|text| text.starts_with("/etc/hosts"));
    assert_eq!(hosts.collect::<Vec<_>>(), ["/etc/hosts /host/v ro relabel"]);
}

#[test]
fn unsupported_recursive_read_only_mounts_are_rejected() {
    let cases = [
        (json!({"recursiveReadOnly": "Disabled"}), Ok(false), Ok(false)),
        (json!({"recursiveReadOnly": "IfPossible", "readOnly": true}), Ok(false), Ok(true)),
        (
            json!({"recursiveReadOnly": "Enabled", "readOnly": true, "mountPropagation": "None"}),
            Err(
                "volume \"v\" requested recursive read-only mode, but it is not supported by the runtime",
            ),
            Ok(true),
        ),
        (
            json!({"recursiveReadOnly": "IfPossible"}),
            Err("volume \"v\" requested recursive read-only mode, but it is not read-only"),
            Err("volume \"v\" requested recursive read-only mode, but it is not read-only"),
        ),
        (
            json!({"recursiveReadOnly": "Enabled", "readOnly": true, "mountPropagation": "Bidirectional"}),
            Err(
                "volume \"v\" requested recursive read-only mode, but it is not compatible with propagation \"Bidirectional\"",
            ),
            Err(
                "volume \"v\" requested recursive read-only mode, but it is not compatible with propagation \"Bidirectional\"",
            ),
        ),
        (
            json!({"recursiveReadOnly": "Perhaps", "readOnly": true}),
            Err("unknown recursive read-only mode \"Perhaps\""),
            Err("unknown recursive read-only mode \"Perhaps\""),
        ),
    ];
    for (mut mount, without, with) in cases {
        mount["name"] = "v".into();
        mount["mountPath"] = "/v".into();
        let pod = pod_of(json!({"volumeMounts": [mount]}));
        for (supported, expected) in [(false, without), (true, with)] {
            let mut world = world(&[("v", false)]);
            world.recursive_read_only = supported;
            let found =
                world.container(&pod, "c").map(|config| config.mounts[0].recursive_read_only);
            let found = found.map_err(|error| error.to_string());
            assert_eq!(found, expected.map_err(str::to_owned), "{mount} {supported}");
        }
    }
}

#[test]
fn missing_volumes_are_reported() {
    for (mount, expected) in [
        (
            json!({"name": "gone", "mountPath": "/v"}),
            "cannot find volume \"gone\" to mount into container \"c\"",
        ),
        (
            json!({"name": "v", "mountPath": "/v", "subPath": "x"}),
            "failed to prepare subPath for volumeMount \"v\" of container \"c\"",
        ),
        (
            json!({"name": "v", "mountPath": "/v", "mountPropagation": "Sideways"}),
            "invalid MountPropagation mode: \"Sideways\"",
        ),
    ] {
        let pod = pod_of(json!({"volumeMounts": [mount]}));
        let error = world(&[("v", false)]).container(&pod, "c").unwrap_err();
        assert_eq!(error.to_string(), expected);
    }
}
