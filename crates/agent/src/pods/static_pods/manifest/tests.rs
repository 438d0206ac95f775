use serde_json::Value;

use super::super::mirror;
use super::*;
use rig::golden_node::lines;

fn now() -> Timestamp {
    Timestamp::new(1_136_214_245, 0)
}

fn try_read(text: &str) -> Result<PodWithManifest, String> {
    let gates = FeatureGates::default();
    let context = ManifestContext { node: "node-1", gates: &gates };
    super::read(text, "/etc/kubernetes/manifests/a.yaml", context, now())
        .map_err(|error| error.to_string())
}

const WEB: &str = "\
apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
  hostNetwork: true
  containers:
  - name: c
    image: busybox
";

#[test]
fn a_manifest_becomes_a_pod_of_this_node() {
    let read = try_read(WEB).unwrap();
    let pod = &read.pod;
    assert_eq!(pod.full_name(), "default/web-node-1");
    assert_eq!(pod.spec.node_name, "node-1");
    assert_eq!(pod.metadata.annotations[CONFIG_HASH], pod.metadata.uid);
    assert_eq!(pod.metadata.annotations[CONFIG_SOURCE], "file");
    assert_eq!(pod.metadata.uid.len(), 32);
    assert_eq!(pod.spec.containers[0].image_pull_policy, "Always");
    assert!(lifecycle::status::is_static(pod));
    assert_eq!(pod.spec.tolerations, [json!({"operator": "Exists", "effect": "NoExecute"})]);
}

#[test]
fn uid_depends_on_the_content_and_path_of_the_manifest() {
    let uid = |text: &str| try_read(text).unwrap().pod.metadata.uid.clone();
    assert_eq!(uid(WEB), uid(&format!("# a remark\n{WEB}")));
    assert_eq!(uid(WEB), uid(&WEB.replace("{name: web}", "{name: web, uid: from-elsewhere}")));
    assert_ne!(uid(WEB), uid(&WEB.replace("busybox", "busybox:2")));
    let gates = FeatureGates::default();
    let context = ManifestContext { node: "node-1", gates: &gates };
    let elsewhere = super::read(WEB, "/b.yaml", context, now()).unwrap();
    assert_ne!(uid(WEB), elsewhere.pod.metadata.uid);
}

#[test]
fn errors_have_their_position() {
    let table = [
        (
            String::new(),
            "line 1, column 1: the file is empty; a static pod is one object of kind Pod",
        ),
        (
            WEB.replace("kind: Pod", "kind: Job"),
            "line 2, column 7: kind: should be \"Pod\", found \"Job\"",
        ),
        (
            WEB.replace("hostNetwork: true", "hostNetwork: often"),
            "line 5, column 16: spec.hostNetwork: expected bool, found string",
        ),
        (
            WEB.replace("  - name: c\n    image: busybox\n", "    []\n"),
            "line 7, column 5: spec.containers: Required value",
        ),
        (
            WEB.replace("image: busybox", "imagePullPolicy: Sometimes\n    image: b"),
            "line 8, column 22: spec.containers[0].imagePullPolicy: Unsupported value: \
             \"Sometimes\": supported values: \"Always\", \"IfNotPresent\", \"Never\"",
        ),
        (
            WEB.replace("image: busybox", "image: b\n    envFrom: [{configMapRef: {name: x}}]"),
            "line 9, column 30: spec.containers[0].envFrom[0].configMapRef: static pods may not \
             reference configmaps",
        ),
        (
            WEB.replace("hostNetwork: true", "serviceAccountName: x"),
            "line 5, column 23: spec.serviceAccountName: static pods may not reference \
             serviceaccounts",
        ),
        (
            format!("{WEB}---\n{WEB}"),
            "line 10, column 1: a second object begins here; a file must contain one static pod",
        ),
    ];
    for (text, wanted) in table {
        assert_eq!(try_read(&text).unwrap_err(), wanted, "{text}");
    }
    let syntax = try_read("metadata: {name: [}").unwrap_err();
    assert!(syntax.starts_with("line 1, column ") && syntax.contains("not YAML"), "{syntax}");
}

#[test]
fn volumes_may_not_come_from_the_api() {
    let with =
        |volume: &str| try_read(&format!("{WEB}  volumes: [{{name: v, {volume}}}]\n")).map(|_| ());
    assert_eq!(with("emptyDir: {}"), Ok(()));
    assert_eq!(with("hostPath: {path: /x}"), Ok(()));
    for (volume, kind) in [
        ("secret: {secretName: s}", "secrets"),
        ("configMap: {name: s}", "configmaps"),
        ("persistentVolumeClaim: {claimName: s}", "persistentvolumeclaims"),
        ("projected: {sources: [{serviceAccountToken: {path: t}}]}", "serviceaccounts"),
    ] {
        let error = with(volume).unwrap_err();
        assert!(error.ends_with(&format!("static pods may not reference {kind}")), "{error}");
    }
}

/// Returns the kubelet's recorded scenarios of the family `static`.
fn recorded() -> Vec<Value> {
    let all = lines("pods.jsonl.gz").into_iter();
    all.filter(|scenario| scenario["family"] == "static").collect()
}

#[test]
fn mirrors_match_the_recorded_ones_of_the_kubelet() {
    let gates = FeatureGates::default();
    let context = ManifestContext { node: "node-1", gates: &gates };
    let mut compared = 0;
    for scenario in recorded() {
        let id = scenario["id"].as_str().unwrap();
        let mut manifest = scenario["manifest"].clone();
        if id == "static-web-node-1" {
            // The recording has the manifest that replaced the mirror's.
            manifest["metadata"]["labels"].as_object_mut().unwrap().remove("rev");
            let command = &mut manifest["spec"]["containers"][0]["command"][2];
            *command = command.as_str().unwrap().replace("echo changed; ", "").into();
        }
        let read = super::read(&manifest.to_string(), "/x.json", context, now());
        if scenario.get("note").is_some() {
            let error = read.unwrap_err().to_string();
            assert!(error.ends_with("static pods may not reference configmaps"), "{id}: {error}");
            continue;
        }
        let read = read.unwrap();
        let Some(recorded) = scenario.get("mirror_pod") else { continue };
        let mut mirror = mirror::object(&read, "node-1", "<UID-1>").unwrap();
        let annotations = &mut mirror["metadata"]["annotations"];
        for name in [CONFIG_HASH, mirror::CONFIG_MIRROR] {
            assert_eq!(annotations[name], read.pod.metadata.uid.as_str(), "{id}");
            annotations[name] = "<CONFIG_HASH>".into();
        }
        annotations[CONFIG_SEEN] = "<TIME>".into();
        let mut wanted = recorded.clone();
        // Fields that the API server sets.
        for field in ["uid", "generation", "creationTimestamp"] {
            wanted["metadata"].as_object_mut().unwrap().remove(field);
        }
        for field in ["priority", "preemptionPolicy"] {
            wanted["spec"].as_object_mut().unwrap().remove(field);
        }
        wanted.as_object_mut().unwrap().remove("status");
        assert_eq!(mirror, wanted, "{id}");
        compared += 1;
    }
    assert_eq!(compared, 3);
}
