//! Tests of references and contents, without I/O.

use super::*;
use crate::runtime::lower::hostname::Name;
use lifecycle::spec::HostAlias;

#[test]
fn references_come_from_mounted_volumes_environment_and_pull_secrets() {
    let mut pod = pod(
        json!([
            {"name": "a", "configMap": {"name": "cm1", "optional": true}},
            {"name": "b", "secret": {"secretName": "sec1"}},
            {"name": "p", "projected": {"sources": [
                {"configMap": {"name": "cm1"}},
                {"secret": {"name": "sec2", "optional": true}},
                {"serviceAccountToken": {"path": "token", "expirationSeconds": 3607}},
                {"serviceAccountToken": {"path": "other", "audience": "vault"}},
            ]}},
            {"name": "d", "persistentVolumeClaim": {"claimName": "pvc"}},
            {"name": "e", "emptyDir": {}},
        ]),
        json!({"imagePullSecrets": [{"name": "registry"}]}),
    );
    let unused = json!({"name": "unused", "secret": {"secretName": "nobody"}});
    pod.spec.volumes.push(serde_json::from_value(unused).unwrap());
    pod.spec.containers[0].env = serde_json::from_value(json!([
        {"name": "A", "valueFrom": {"configMapKeyRef": {"name": "cm3", "key": "k", "optional": true}}},
        {"name": "B", "valueFrom": {"secretKeyRef": {"name": "sec2", "key": "k"}}},
    ]))
    .unwrap();
    pod.spec.containers[0].env_from = serde_json::from_value(json!([
        {"configMapRef": {"name": "cm4"}}, {"secretRef": {"name": "sec4", "optional": true}},
    ]))
    .unwrap();
    let found = references(&pod);
    let names = |of: &BTreeMap<String, Need>| -> Vec<String> {
        of.iter()
            .map(
                |(name, need)| {
                    if *need == Need::Required { name.clone() } else { format!("{name}?") }
                },
            )
            .collect()
    };
    assert_eq!(names(&found.config_maps), ["cm1", "cm3?", "cm4"]);
    assert_eq!(names(&found.secrets), ["registry?", "sec1", "sec2", "sec4?"]);
    let tokens: Vec<_> =
        found.tokens.iter().map(|of| (of.audience.as_str(), of.expiration_seconds)).collect();
    assert_eq!(tokens, [("", 3607), ("vault", 3600)]);
    assert_eq!(found.claims.into_iter().collect::<Vec<_>>(), ["pvc"]);
}

/// Returns the files of volume `v` as `path=text mode`, or the event's message.
fn shown(volume: Value, spec: Value) -> Vec<String> {
    let mut volume = volume;
    volume["name"] = "v".into();
    let pod = pod(json!([volume]), spec);
    let (name, content) = contents_of(&pod).remove(0);
    match content {
        Ok(Content::Files { files, .. }) => files
            .iter()
            .map(|(path, file)| {
                let text = String::from_utf8_lossy(&file.data).into_owned();
                let owner = file.owner.map(|owner| format!(" by {owner}")).unwrap_or_default();
                format!("{path}={text} {:o}{owner}", file.mode)
            })
            .collect(),
        Ok(other) => vec![format!("{other:?}")],
        Err(problem) => vec![problem.of(&name).to_string()],
    }
}

fn check(volume: Value, expected: &[&str]) {
    assert_eq!(shown(volume.clone(), json!({})), expected, "{volume}");
}

#[test]
fn config_maps_and_secrets_become_files_with_their_modes() {
    let all = [
        "file.conf=a=1\nb=2\n 644",
        "key1=value1 644",
        "key2=value2 644",
        "raw=\0\u{fffd}\u{fffd} 644",
    ];
    check(json!({"configMap": {"name": "cm1"}}), &all);
    check(
        json!({"configMap": {"name": "cm1", "defaultMode": 256, "items": [
            {"key": "key1", "path": "a/b//c"}, {"key": "key2", "path": "./x", "mode": 511},
        ]}}),
        &["a/b/c=value1 400", "x=value2 777"],
    );
    check(json!({"secret": {"secretName": "sec1"}}), &["pass=s3cret 644", "user=admin 644"]);
    check(
        json!({"secret": {"secretName": "sec1", "items": [{"key": "user", "path": "u"}]}}),
        &["u=admin 644"],
    );
}

#[test]
fn optional_sources_may_be_missing() {
    check(json!({"configMap": {"name": "nocm", "optional": true}}), &[]);
    check(json!({"secret": {"secretName": "nosec", "optional": true}}), &[]);
    check(
        json!({"configMap": {"name": "cm1", "optional": true, "items": [
            {"key": "nokey", "path": "a"}, {"key": "key1", "path": "b"}]}}),
        &["b=value1 644"],
    );
}

#[test]
fn volume_problems_have_upstream_texts() {
    let failed = |problem: &str| format!("MountVolume.SetUp failed for volume \"v\" : {problem}");
    let check = |volume: Value, problem: &str| check(volume, &[&failed(problem)]);
    let items = |key: &str, path: &str| json!([{"key": key, "path": path}]);
    check(json!({"configMap": {"name": "nocm"}}), "configmap \"nocm\" not found");
    check(json!({"secret": {"secretName": "nosec"}}), "secret \"nosec\" not found");
    check(
        json!({"configMap": {"name": "cm1", "items": items("nokey", "a")}}),
        "configmap references non-existent config key: nokey",
    );
    check(
        json!({"secret": {"secretName": "sec1", "items": items("nokey", "a")}}),
        "references non-existent secret key: nokey",
    );
    check(
        json!({"projected": {"sources": [{"configMap": {"name": "nocm"}}]}}),
        "configmap \"nocm\" not found",
    );
    check(
        json!({"projected": {"sources": [{"configMap": {"name": "nocm"}}, {"secret": {"name": "nosec"}}]}}),
        "[configmap \"nocm\" not found, secret \"nosec\" not found]",
    );
    check(
        json!({"projected": {"sources": [{"serviceAccountToken": {"path": "t", "audience": "vault", "expirationSeconds": 3607}}]}}),
        "failed to fetch token: serviceaccounts \"x\" not found",
    );
    for (path, problem) in [
        ("", "invalid path: must not be empty: \"\""),
        ("/a", "invalid path: must be relative path: /a"),
        ("a/../b", "invalid path: must not contain '..': a/../b"),
        ("..a", "invalid path: must not start with '..': ..a"),
        (".", "invalid path: must name a file: ."),
    ] {
        check(json!({"configMap": {"name": "cm1", "items": items("key1", path)}}), problem);
    }
    let long = "n".repeat(256);
    check(
        json!({"configMap": {"name": "cm1", "items": items("key1", &long)}}),
        "invalid path: filenames must be less than or equal to 255 characters",
    );
    check(json!({"emptyDir": {"medium": "Paper"}}), "unknown storage medium \"Paper\"");
    check(
        json!({"emptyDir": {"medium": "HugePages"}}),
        "medium HugePages: hugePages storage requested, but there is no resource request for huge pages",
    );
    check(
        json!({"nfs": {"server": "s", "path": "/"}}),
        "volumes of kind \"nfs\" are not supported on this node; emptyDir, hostPath, configMap, secret, \
         projected, downwardAPI and image are",
    );
    check(
        json!({"csi": {"driver": "x.csi.example.com"}}),
        "kubernetes.io/csi: mounter.SetUpAt failed to get CSI client: driver name x.csi.example.com not \
         found in the list of registered CSI drivers",
    );
    check(
        json!({"projected": {"sources": [{"clusterTrustBundle": {"path": "x"}}]}}),
        "sources of kind \"clusterTrustBundle\" are not supported on this node; configMap, secret, \
         downwardAPI and serviceAccountToken are",
    );
    check(
        json!({"persistentVolumeClaim": {"claimName": "there"}}),
        "volumes of kind \"persistentVolumeClaim\" are not supported on this node; emptyDir, hostPath, \
         configMap, secret, projected, downwardAPI and image are",
    );
}

#[test]
fn unusable_claims_have_upstream_texts() {
    let of_claim = |volume: Value, wanted: &str| {
        let text = format!(
            "Unable to attach or mount volumes: unmounted volumes=[v], unattached volumes=[], failed to \
             process volumes=[v]: error processing PVC lives/{wanted}"
        );
        check(volume, &[text.as_str()]);
    };
    let claim = |name: &str| json!({"persistentVolumeClaim": {"claimName": name}});
    let missing = "failed to fetch PVC from API server: persistentvolumeclaims \"nopvc\" not found";
    of_claim(claim("nopvc"), &format!("nopvc: {missing}"));
    of_claim(claim("leaving"), "leaving: PVC is being deleted");
    of_claim(claim("waiting"), "waiting: PVC is not bound");
    of_claim(claim("vague"), "vague: PVC has empty pvc.Spec.VolumeName");
    // The claim created for the pod has its name and the volume's.
    of_claim(json!({"ephemeral": {"volumeClaimTemplate": {}}}), "p-v: PVC is not bound");
}

#[test]
fn token_is_private_if_user_or_group_is_set() {
    let volume = json!({"projected": {"defaultMode": 420, "sources": [
        {"serviceAccountToken": {"path": "token", "expirationSeconds": 3607}},
        {"configMap": {"name": "cm1", "items": [{"key": "key1", "path": "ca.crt"}]}},
    ]}});
    let first = |spec: Value| shown(volume.clone(), spec).pop().unwrap();
    assert_eq!(first(json!({})), "token=the token 644");
    assert_eq!(first(json!({"securityContext": {"fsGroup": 2000}})), "token=the token 600");
    assert_eq!(
        first(json!({"securityContext": {"runAsUser": 1000}})),
        "token=the token 600 by 1000"
    );
    let other = json!({
        "securityContext": {"runAsUser": 1000},
        "initContainers": [{"name": "i", "securityContext": {"runAsUser": 1001}}],
    });
    assert_eq!(first(other), "token=the token 644");
}

#[test]
fn downward_api_files_have_fields_and_resources() {
    check(
        json!({"downwardAPI": {"items": [
            {"path": "name", "fieldRef": {"fieldPath": "metadata.name"}},
            {"path": "res/cpu", "mode": 256, "resourceFieldRef": {"containerName": "c", "resource": "limits.cpu", "divisor": "1m"}},
        ]}}),
        &["name=p 644", "res/cpu=1700 400"],
    );
    check(
        json!({"downwardAPI": {"items": [{"path": "x", "fieldRef": {"fieldPath": "spec.magic"}}]}}),
        &["MountVolume.SetUp failed for volume \"v\" : unsupported fieldPath: spec.magic"],
    );
}

#[test]
fn memory_volume_size_is_the_smallest_limit() {
    let allocatable = 8 << 30;
    let limits = |memory: &str| {
        json!({"containers": [{
            "name": "c", "volumeMounts": [{"name": "v", "mountPath": "/v"}],
            "resources": {"limits": {"memory": memory}, "requests": {"memory": memory}},
        }]})
    };
    let check = |source: Value, spec: Value, expected: u64| {
        let medium = Content::EmptyDir(Medium::Memory { size: Some(expected) });
        assert_eq!(shown(json!({"emptyDir": source}), spec), [format!("{medium:?}")]);
    };
    check(json!({"medium": "Memory"}), json!({}), allocatable);
    check(json!({"medium": "Memory", "sizeLimit": "4Mi"}), json!({}), 4 << 20);
    check(json!({"medium": "Memory", "sizeLimit": "0"}), json!({}), allocatable);
    check(json!({"medium": "Memory", "sizeLimit": "100Gi"}), json!({}), allocatable);
    check(json!({"medium": "Memory"}), limits("64Mi"), 64 << 20);
    check(json!({"medium": "Memory", "sizeLimit": "1Gi"}), limits("64Mi"), 64 << 20);
}

#[test]
fn huge_pages_have_the_only_requested_size() {
    let spec = |requests: Value| {
        json!({"containers": [{
            "name": "c", "volumeMounts": [{"name": "v", "mountPath": "/v"}],
            "resources": {"limits": requests, "requests": requests},
        }]})
    };
    let of = |medium: &str, requests: Value| {
        shown(json!({"emptyDir": {"medium": medium}}), spec(requests)).remove(0)
    };
    let two_megabytes = "EmptyDir(HugePages { page_size: 2097152 })";
    let one = json!({"hugepages-2Mi": "4Mi"});
    let both = json!({"hugepages-2Mi": "4Mi", "hugepages-1Gi": "1Gi"});
    assert_eq!(of("HugePages", one.clone()), two_megabytes);
    assert_eq!(of("HugePages-2Mi", both.clone()), two_megabytes);
    assert!(of("HugePages", both).ends_with("multiple huge page sizes"));
    assert!(of("HugePages-1Gi", one.clone()).ends_with("no resource request for huge pages"));
    assert!(of("HugePages-lots", one).ends_with("unknown storage medium \"HugePages-lots\""));
}

#[test]
fn other_volume_kinds_are_passed_through() {
    check(
        json!({"hostPath": {"path": "/srv", "type": "Directory"}}),
        &["HostPath { path: \"/srv\", kind: \"Directory\" }"],
    );
    check(json!({}), &["EmptyDir(Disk)"]);
    let image = shown(json!({"image": {"reference": "busybox:1"}}), json!({}));
    assert!(image[0].starts_with("Image(") && image[0].contains("busybox:1"), "{image:?}");
}

#[test]
fn hosts_file_equals_the_recorded_one() {
    let aliases: Vec<HostAlias> = serde_json::from_value(
        json!([{"ip": "10.1.2.3", "hostnames": ["foo.local", "bar.local"]}]),
    )
    .unwrap();
    let name = Name { host: "web".to_owned(), domain: "svc.lives.svc.cluster.local".to_owned() };
    let expected = "# Kubernetes-managed hosts file.\n127.0.0.1\tlocalhost\n\
        ::1\tlocalhost ip6-localhost ip6-loopback\nfe00::0\tip6-localnet\nfe00::0\tip6-mcastprefix\n\
        fe00::1\tip6-allnodes\nfe00::2\tip6-allrouters\n\
        10.1.0.5\tweb.svc.lives.svc.cluster.local\tweb\n\n\
        # Entries added by HostAliases.\n10.1.2.3\tfoo.local\tbar.local\n";
    assert_eq!(hosts::of_pod(&["10.1.0.5".to_owned()], &name, &aliases), expected);
    let short = Name { host: "web".to_owned(), domain: String::new() };
    assert!(hosts::of_pod(&["::5".to_owned()], &short, &[]).ends_with("allrouters\n::5\tweb\n"));
    let expected = "# Kubernetes-managed hosts file (host network).\n127.0.0.1 localhost\n\
        127.0.0.1 runsc\n";
    assert_eq!(hosts::of_host("127.0.0.1 localhost\n127.0.0.1 runsc\n", &[]), expected);
}

#[test]
fn volume_over_its_limit_has_upstream_text() {
    let pod = pod(
        json!([
            {"name": "free", "emptyDir": {}},
            {"name": "zero", "emptyDir": {"sizeLimit": "0"}},
            {"name": "v", "emptyDir": {"sizeLimit": "1Mi"}},
        ]),
        json!({}),
    );
    let check = |v: u64| {
        let used = [("free", 1 << 40), ("zero", 1 << 30), ("v", v)];
        excess(&pod, &used.map(|(name, bytes)| (name.to_owned(), bytes)).into())
    };
    assert_eq!(check(1 << 20), None);
    let expected = "Usage of EmptyDir volume \"v\" exceeds the limit \"1Mi\". ";
    assert_eq!(check((1 << 20) + 1).as_deref(), Some(expected));
    assert_eq!(excess(&pod, &BTreeMap::new()), None);
}
