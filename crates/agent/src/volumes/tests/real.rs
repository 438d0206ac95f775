//! Tests of volumes on this machine, with mounts if this process may mount, and without.

use std::fs;

use host::os::{mounts, owners};

use super::*;
use crate::runtime::lower::env::Environment;

/// Formats the permission bits, on systems that have them.
fn mode(path: &Path) -> String {
    format!("{:o}", owners::mode(&fs::symlink_metadata(path).unwrap()))
}

#[test]
#[cfg_attr(windows, ignore = "not on wine: symbolic links are not created")]
fn volumes_have_the_kubelets_paths() {
    for place in Place::both() {
        let pod = pod(
            json!([
                {"name": "e", "emptyDir": {}},
                {"name": "m", "emptyDir": {"medium": "Memory", "sizeLimit": "4Mi"}},
                {"name": "c", "configMap": {"name": "cm1"}},
                {"name": "s", "secret": {"secretName": "sec1"}},
                {"name": "d", "downwardAPI": {"items": [
                    {"path": "name", "fieldRef": {"fieldPath": "metadata.name"}}]}},
                {"name": "p", "projected": {"sources": [
                    {"serviceAccountToken": {"path": "token", "expirationSeconds": 3607}}]}},
            ]),
            json!({}),
        );
        let mounted = place.set_up(&pod).unwrap();
        let volumes = place.pod_directory().join("volumes");
        for (name, plugin, read_only, probe) in [
            ("e", "kubernetes.io~empty-dir", false, None),
            ("m", "kubernetes.io~empty-dir", false, None),
            ("c", "kubernetes.io~configmap", true, Some(("key1", "value1"))),
            ("s", "kubernetes.io~secret", true, Some(("user", "admin"))),
            ("d", "kubernetes.io~downward-api", true, Some(("name", "p"))),
            ("p", "kubernetes.io~projected", true, Some(("token", "the token"))),
        ] {
            let path = volumes.join(plugin).join(name);
            let expected = MountedVolume::Path {
                host_path: path.to_string_lossy().into_owned(),
                read_only,
                relabel: true,
            };
            assert_eq!(mounted.volumes[name], expected);
            if let Some((file, text)) = probe {
                assert_eq!(read(&path.join(file)), text);
            }
        }
        assert_eq!(place.set_up(&pod).unwrap(), mounted);
        place.volumes.remove("u-1").unwrap();
        assert!(!place.pod_directory().exists());
    }
}

#[test]
#[cfg_attr(windows, ignore = "not on wine: symbolic links are not created")]
fn secrets_are_in_memory_and_config_maps_on_disk() {
    let place = Place::new(Volumes::new);
    let pod = pod(
        json!([
            {"name": "c", "configMap": {"name": "cm1"}},
            {"name": "s", "secret": {"secretName": "sec1"}},
            {"name": "m", "emptyDir": {"medium": "Memory", "sizeLimit": "4Mi"}},
        ]),
        json!({}),
    );
    let set_up = place.set_up(&pod).unwrap();
    let mounted = mounts::mounted().unwrap();
    let found = |volume: &str| {
        let path = fs::canonicalize(place.path(&set_up, volume)).unwrap();
        mounted.iter().find(|mount| mount.point == path)
    };
    assert_eq!(found("c"), None);
    for volume in ["s", "m"] {
        assert_eq!(found(volume).is_some(), place.volumes.can_mount(), "{volume}");
    }
    if let Some(memory) = found("m") {
        assert_eq!(memory.kind, "tmpfs");
        assert!(memory.options.contains(&"size=4096k".to_owned()), "{memory:?}");
    }
    place.volumes.tear_down("u-1").unwrap();
    assert!(!place.pod_directory().join("volumes").exists());
    place.volumes.tear_down("u-1").unwrap();
}

#[test]
#[cfg_attr(windows, ignore = "not on wine: symbolic links are not created")]
fn changed_config_maps_and_secrets_are_updated_in_running_pods() {
    for place in Place::both() {
        let pod = pod(
            json!([
                {"name": "c", "configMap": {"name": "cm1"}},
                {"name": "s", "secret": {"secretName": "sec1"}},
                {"name": "e", "emptyDir": {}},
            ]),
            json!({}),
        );
        let mounted = place.set_up(&pod).unwrap();
        let kept = place.path(&mounted, "e").join("kept");
        fs::write(&kept, "data").unwrap();
        let mut changed = configs();
        let config_map = changed.config_maps.get_mut("cm1").unwrap();
        config_map.remove("key2");
        config_map.insert("key1".to_owned(), "new".to_owned());
        changed.secrets.get_mut("sec1").unwrap().insert("user".to_owned(), b"root".to_vec());
        place.volumes.set_up(&pod, &contents_with(&pod, &changed)).unwrap();
        assert_eq!(read(&place.path(&mounted, "c").join("key1")), "new");
        assert!(!place.path(&mounted, "c").join("key2").exists());
        assert_eq!(read(&place.path(&mounted, "s").join("user")), "root");
        assert_eq!(read(&kept), "data");
    }
}

#[test]
fn failed_volume_does_not_block_others() {
    for place in Place::both() {
        let pod = pod(
            json!([
                {"name": "bad", "configMap": {"name": "nocm"}},
                {"name": "worse", "nfs": {}},
                {"name": "e", "emptyDir": {}},
            ]),
            json!({}),
        );
        let errors = place.set_up(&pod).unwrap_err();
        assert_eq!(errors.len(), 2, "{errors:?}");
        assert_eq!(
            errors[0],
            "MountVolume.SetUp failed for volume \"bad\" : configmap \"nocm\" not found"
        );
        assert!(place.pod_directory().join("volumes/kubernetes.io~empty-dir/e").is_dir());
    }
}

#[test]
#[cfg_attr(windows, ignore = "not on wine: symbolic links are not created")]
fn modes_and_groups_equal_the_recorded_ones() {
    let place = Place::new(Volumes::new);
    let volumes = json!([
        {"name": "e", "emptyDir": {}},
        {"name": "m", "emptyDir": {"medium": "Memory"}},
        {"name": "c", "configMap": {"name": "cm1", "items": [{"key": "key1", "path": "key1"}]}},
        {"name": "s", "secret": {"secretName": "sec1"}},
        {"name": "p", "projected": {"sources": [
            {"serviceAccountToken": {"path": "token", "expirationSeconds": 3607}}]}},
    ]);
    if !place.volumes.can_mount() {
        // A process without the right to mount cannot change owners either.
        eprintln!("skipped: needs CAP_SYS_ADMIN and CAP_CHOWN");
        assert_ne!(std::env::var("CI").as_deref(), Ok("true"), "CI must have these capabilities");
        return;
    }
    let pod = pod(volumes, json!({"securityContext": {"fsGroup": 2000}}));
    let mounted = place.set_up(&pod).unwrap();
    let log = place.volumes.make_termination_log("u-1", "c").unwrap();
    let hosts = place.volumes.write_hosts_file("u-1", "127.0.0.1 localhost\n").unwrap();
    let directory = place.pod_directory();
    let at = |volume: &str, below: &str| place.path(&mounted, volume).join(below);
    for (path, expected, group) in [
        (directory.clone(), "750", 0),
        (hosts, "644", 0),
        (directory.join("volumes"), "750", 0),
        (directory.join("volumes/kubernetes.io~empty-dir"), "755", 0),
        (at("m", ""), "3777", 2000),
        (at("e", ""), "2777", 2000),
        (at("p", ""), "3777", 2000),
        (at("p", "..data/"), "2755", 2000),
        (at("p", "..data/token"), "640", 2000),
        (at("c", ""), "2777", 2000),
        (at("c", "..data/"), "2755", 2000),
        (at("c", "..data/key1"), "644", 2000),
        (at("s", ""), "3777", 2000),
        (at("s", "..data/user"), "644", 2000),
        (directory.join("containers/c"), "750", 0),
        (log, "666", 0),
        (directory.join("plugins"), "750", 0),
        (directory.join("plugins/kubernetes.io~empty-dir/wrapped_s"), "750", 0),
        (directory.join("plugins/kubernetes.io~empty-dir/wrapped_s/ready"), "644", 0),
        (directory.join("plugins/kubernetes.io~empty-dir/e/ready"), "644", 0),
    ] {
        assert_eq!(mode(&path), expected, "{}", path.display());
        let metadata = fs::symlink_metadata(&path).unwrap();
        assert_eq!(owners::group(&metadata), Some(group), "{}", path.display());
    }
}

#[test]
fn host_paths_are_checked_created_and_never_removed() {
    for place in Place::both() {
        let file = place.outside("file");
        let directory = place.outside("directory");
        fs::write(&file, "precious").unwrap();
        fs::create_dir(&directory).unwrap();
        let check = |path: &Path, kind: &str, expected: Result<(), String>| {
            let path = path.to_str().unwrap();
            let pod =
                pod(json!([{"name": "v", "hostPath": {"path": path, "type": kind}}]), json!({}));
            let failed = "MountVolume.SetUp failed for volume \"v\" : ";
            let expected = expected.map_err(|problem| vec![format!("{failed}{problem}")]);
            assert_eq!(place.set_up(&pod).map(|_| ()), expected, "{kind} {path}");
        };
        let shown = |path: &Path| path.display().to_string();
        let not_a = |what: &str| {
            let file = shown(&file);
            Err(format!("hostPath type check failed: {file} is not a {what}, it's a File"))
        };
        let none = place.outside("none");
        let missing = |what: &str| {
            let none = shown(&none);
            Err(format!(
                "hostPath type check failed, {none} is not a {what}, unable to determine its type: \
                 path {none:?} does not exist"
            ))
        };
        check(&file, "", Ok(()));
        check(&none, "", Ok(()));
        check(&file, "File", Ok(()));
        check(&file, "FileOrCreate", Ok(()));
        check(&directory, "Directory", Ok(()));
        check(&directory, "DirectoryOrCreate", Ok(()));
        check(&file, "Directory", not_a("directory"));
        check(&file, "DirectoryOrCreate", not_a("directory"));
        check(&file, "Socket", not_a("socket file"));
        check(&file, "CharDevice", not_a("character device"));
        check(&file, "BlockDevice", not_a("block device"));
        check(&none, "File", missing("file"));
        check(&none, "Directory", missing("directory"));
        check(&file, "Pipe", Err("Pipe is an invalid volume type".to_owned()));
        let backs_up = place.outside("a").join("..").join("b");
        let text = format!("invalid HostPath `{}`: must not contain '..'", shown(&backs_up));
        check(&backs_up, "", Err(text));
        let made = place.outside("made");
        check(&made.join("deep"), "DirectoryOrCreate", Ok(()));
        check(&made.join("file"), "FileOrCreate", Ok(()));
        assert!(made.join("deep").is_dir() && made.join("file").is_file());
        place.volumes.remove("u-1").unwrap();
        assert_eq!(read(&file), "precious");
        assert!(directory.is_dir() && made.join("deep").is_dir());
    }
}

/// Returns a pod whose container mounts volume `d` with sub-paths.
fn with_sub_paths(volume: Value, mounts: Value) -> Pod {
    let mut pod = pod(json!([]), json!({}));
    pod.spec.volumes = serde_json::from_value(json!([volume])).unwrap();
    pod.spec.containers[0].volume_mounts = serde_json::from_value(mounts).unwrap();
    pod
}

#[test]
#[cfg_attr(windows, ignore = "not on wine: symbolic links are not created")]
fn sub_path_is_created_inside_its_volume() {
    for place in Place::both() {
        let pod = with_sub_paths(
            json!({"name": "d", "emptyDir": {}}),
            json!([
                {"name": "d", "mountPath": "/all"},
                {"name": "d", "mountPath": "/a", "subPath": "x/y"},
                {"name": "d", "mountPath": "/b", "subPathExpr": "$(POD)/z"},
            ]),
        );
        let mounted = place.set_up(&pod).unwrap();
        let env = Environment(vec![("POD".to_owned(), b"p".to_vec())]);
        let container = &pod.spec.containers[0];
        let make = || place.volumes.sub_paths(&pod, container, &mounted, &env).unwrap();
        let paths = make();
        assert_eq!(paths.keys().collect::<Vec<_>>(), [&1, &2]);
        fs::write(Path::new(&paths[&1]).join("f"), "1").unwrap();
        fs::write(Path::new(&paths[&2]).join("g"), "2").unwrap();
        let volume = place.path(&mounted, "d");
        assert_eq!(read(&volume.join("x/y/f")), "1");
        assert_eq!(read(&volume.join("p/z/g")), "2");
        assert_eq!(mode(&volume.join("x")), "777");
        assert_eq!(make(), paths);
        if place.volumes.can_mount() {
            let expected = place.pod_directory().join("volume-subpaths/d/c/1");
            assert_eq!(Path::new(&paths[&1]), expected);
        }
        place.volumes.remove("u-1").unwrap();
        assert!(!place.pod_directory().exists());
    }
}

#[test]
#[cfg_attr(windows, ignore = "not on wine: symbolic links are not created")]
fn config_map_file_as_sub_path_is_updated_on_restart() {
    for place in Place::both() {
        let pod = with_sub_paths(
            json!({"name": "d", "configMap": {"name": "cm1"}}),
            json!([{"name": "d", "mountPath": "/etc/file.conf", "subPath": "key1"}]),
        );
        let mounted = place.set_up(&pod).unwrap();
        let (container, env) = (&pod.spec.containers[0], Environment::default());
        let path = |mounted: &MountedVolumes| {
            let paths = place.volumes.sub_paths(&pod, container, mounted, &env).unwrap();
            PathBuf::from(&paths[&0])
        };
        assert_eq!(read(&path(&mounted)), "value1");
        let mut changed = configs();
        let config_map = changed.config_maps.get_mut("cm1").unwrap();
        config_map.insert("key1".to_owned(), "new".to_owned());
        let mounted = place.volumes.set_up(&pod, &contents_with(&pod, &changed)).unwrap();
        assert_eq!(read(&path(&mounted)), "new");
    }
}

#[test]
#[cfg_attr(windows, ignore = "not on wine: symbolic links are not created")]
fn sub_path_outside_its_volume_is_rejected_with_upstream_text() {
    for place in Place::both() {
        let escape = |sub: &str| {
            let pod = with_sub_paths(
                json!({"name": "d", "emptyDir": {}}),
                json!([{"name": "d", "mountPath": "/a", "subPathExpr": sub}]),
            );
            let mounted = place.set_up(&pod).unwrap();
            let volume = place.path(&mounted, "d");
            if fs::symlink_metadata(volume.join("link")).is_err() {
                owners::link(place.directory.path(), &volume.join("link"), true).unwrap();
                fs::write(volume.join("file"), "").unwrap();
            }
            let env = Environment(vec![("UP".to_owned(), b"..".to_vec())]);
            place.volumes.sub_paths(&pod, &pod.spec.containers[0], &mounted, &env)
        };
        let at = "for volumeMount \"d\" of container \"c\"";
        for (sub, expected) in [
            ("link", format!("failed to prepare subPath {at}")),
            ("file/below", format!("failed to prepare subPath {at}")),
            ("link/new", format!("failed to create subPath directory {at}")),
            ("$(UP)/x", "unable to provision SubPath `../x`: must not contain '..'".to_owned()),
            (
                "a/../../x",
                "unable to provision SubPath `a/../../x`: must not contain '..'".to_owned(),
            ),
            ("/etc", "error SubPath `/etc` must not be an absolute path".to_owned()),
            ("$(NAME)/$(ID)", "missing value for ID, NAME".to_owned()),
        ] {
            assert_eq!(escape(sub).unwrap_err().to_string(), expected, "{sub}");
        }
        assert!(!place.outside("new").exists());
    }
}

#[test]
fn invalid_directory_names_are_rejected() {
    let place = Place::new(Volumes::new);
    let uids = ["", ".", "..", "a/b", "/etc"];
    for uid in uids {
        let expected = format!("pod UID {uid:?} is not a valid directory name");
        assert_eq!(place.volumes.remove(uid).unwrap_err().to_string(), expected);
        assert!(place.volumes.make_termination_log("u-1", uid).is_err(), "{uid}");
    }
    let pod = pod(json!([{"name": "../../x", "emptyDir": {}}]), json!({}));
    let errors = place.set_up(&pod).unwrap_err();
    assert!(errors[0].contains("volume \"../../x\" is not a valid directory name"), "{errors:?}");
}

#[test]
fn foreign_mount_stops_the_removal() {
    let place = Place::new(Volumes::new);
    if !place.volumes.can_mount() {
        eprintln!("skipped: needs CAP_SYS_ADMIN");
        return;
    }
    let pod = pod(json!([{"name": "e", "emptyDir": {}}]), json!({}));
    let mounted = place.set_up(&pod).unwrap();
    let precious = place.outside("precious");
    fs::create_dir(&precious).unwrap();
    fs::write(precious.join("data"), "x").unwrap();
    let point = place.path(&mounted, "e").join("point");
    mounts::bind_beneath(place.directory.path(), "precious", &point).unwrap();
    let error = place.volumes.remove("u-1").unwrap_err();
    assert!(error.to_string().contains("is mounted inside the pod's directory"), "{error}");
    assert_eq!(read(&precious.join("data")), "x");
    mounts::unmount(&point).unwrap();
    place.volumes.remove("u-1").unwrap();
    assert_eq!(read(&precious.join("data")), "x");
}

#[test]
fn pod_directories_are_listed_and_measured() {
    for place in Place::both() {
        assert_eq!(place.volumes.pods().unwrap(), Vec::<String>::new());
        let pod = pod(
            json!([{"name": "e", "emptyDir": {}}, {"name": "m", "emptyDir": {"medium": "Memory"}}]),
            json!({}),
        );
        assert_eq!(place.volumes.usage(&pod).unwrap(), BTreeMap::new());
        let mounted = place.set_up(&pod).unwrap();
        let before = place.volumes.usage(&pod).unwrap();
        for volume in ["e", "m"] {
            fs::write(place.path(&mounted, volume).join("x"), vec![7_u8; 1 << 20]).unwrap();
        }
        let after = place.volumes.usage(&pod).unwrap();
        for volume in ["e", "m"] {
            let grown = after[volume] - before[volume];
            assert!((1 << 20..1 << 21).contains(&grown), "{volume}: {grown}");
        }
        assert_eq!(place.volumes.pods().unwrap(), ["u-1"]);
    }
}

#[test]
fn hosts_file_is_rewritten_in_place_and_logs_differ() {
    let place = Place::new(Volumes::new);
    let write = |text: &str| place.volumes.write_hosts_file("u-1", text).unwrap();
    let path = write("one");
    let file = fs::File::open(&path).unwrap();
    assert_eq!(write("two"), path);
    assert_eq!(std::io::read_to_string(file).unwrap(), "two");
    let log = || place.volumes.make_termination_log("u-1", "c").unwrap();
    let (one, two) = (log(), log());
    assert_ne!(one, two);
    let name = one.file_name().unwrap().to_str().unwrap();
    assert!(name.len() == 8 && name.bytes().all(|byte| byte.is_ascii_hexdigit()), "{name}");
}
