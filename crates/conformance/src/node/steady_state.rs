//! Pods that run unchanged while a node is inspected: [`SteadyState`].
//!
//! The recording has only the resources and volumes of these pods, not their manifests. The
//! manifests are reconstructed: names, containers and resources from the kind `cgroups`, volumes
//! from `directories`. A container without a cgroup had ended, so it is an init container; one
//! before it with a cgroup is a sidecar.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use client::kind::{Kind, PODS};
use serde_json::{Value, json};

use super::replay::{self, ReplayedPod};
use super::testbed::{NodeVariant, ReplayContext, TIMEOUT};
use super::{IMAGE, script, text};

/// The recorder's namespace.
pub(super) const NAMESPACE: &str = "lives2";
/// Separates a line's kind from its policies in the id.
const POLICY: &str = "-policy-";

/// The recorded pods of one set of policies.
#[derive(Clone, Debug, Default)]
pub(super) struct Plan {
    /// Manifests, and whether the pods ran. Those that ran come first, because they fitted
    /// together, and among them those with exclusive resources.
    pods: Vec<(Value, bool)>,
}

/// The running pods with their ids.
#[derive(Clone, Debug, Default)]
pub(super) struct SteadyState {
    /// By name.
    pub(super) uids: BTreeMap<String, String>,
    /// By `pod/container`.
    pub(super) containers: BTreeMap<String, String>,
    replayed: Vec<ReplayedPod>,
}

/// Returns the policies under which a line was recorded.
pub(super) fn policy(line: &Value) -> &str {
    text(line, "id").split_once(POLICY).map_or("none", |(_, policy)| policy)
}

/// Returns the node that was recorded under these policies, if it is known.
pub(super) fn variant(policy: &str) -> Option<NodeVariant> {
    match policy {
        "none" => Some(NodeVariant::default()),
        "static" => Some(script::variant("cpustatic")),
        _ => None,
    }
}

impl Plan {
    /// Reconstructs the pods from the lines of one set of policies.
    pub(super) fn new(lines: &[Value], policies: &str) -> Plan {
        let line_of_kind = |kind: &str| {
            let mut matching = lines.iter().filter(|line| text(line, "kind") == kind);
            matching.find(|line| policy(line) == policies)
        };
        let (groups, files) = (line_of_kind("cgroups"), line_of_kind("directories"));
        let listed = files.and_then(|line| line["root"].as_array()).cloned().unwrap_or_default();
        let mut pods = Vec::new();
        for (name, pod) in groups.and_then(|line| line["pods"].as_object()).into_iter().flatten() {
            let there = groups.map(|line| &line["cgroups"]).unwrap_or(&Value::Null);
            let ran = has_cgroup(there, name);
            let class = match text(pod, "qosClass") {
                "Guaranteed" => 0,
                "Burstable" => 1,
                _ => 2,
            };
            let manifest = match ran {
                true => manifest(name, pod, there),
                // The order of its containers is unknown.
                false => manifest(name, pod, &Value::Null),
            };
            pods.push((!ran, class, with_volumes(manifest, &listed)));
        }
        pods.sort_by_key(|(refused, class, _)| (*refused, *class));
        Plan { pods: pods.into_iter().map(|(refused, _, manifest)| (manifest, !refused)).collect() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.pods.is_empty()
    }
}

fn has_cgroup(groups: &Value, pod: &str) -> bool {
    let name = format!("pod<UID:{pod}>");
    groups.as_object().is_some_and(|groups| groups.keys().any(|path| path.ends_with(&name)))
}

/// Reports whether a container had ended while the others ran.
fn had_ended(groups: &Value, pod: &str, container: &str) -> bool {
    let id = format!("<CID:{pod}/{container}>");
    groups.as_object().is_some_and(|groups| !groups.keys().any(|path| path.ends_with(&id)))
}

/// Builds a pod with these containers and resources.
fn manifest(name: &str, pod: &Value, groups: &Value) -> Value {
    let listed = pod["containers"].as_array().map(Vec::as_slice).unwrap_or_default();
    let ended = |container: &Value| had_ended(groups, name, text(container, "name"));
    let last_init = listed.iter().rposition(ended);
    let (mut inits, mut containers) = (Vec::new(), Vec::new());
    for (index, of) in listed.iter().enumerate() {
        let waits = ["sh", "-c", "trap 'exit 0' TERM; sleep 3600 & wait"];
        let mut container = json!({
            "name": of["name"], "image": IMAGE, "imagePullPolicy": "Never", "command": waits,
            "resources": of["resources"],
        });
        match last_init {
            Some(last) if index <= last => {
                match ended(of) {
                    true => container["command"] = json!(["true"]),
                    false => container["restartPolicy"] = "Always".into(),
                }
                inits.push(container);
            }
            _ => containers.push(container),
        }
    }
    let mut manifest = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {
            "hostNetwork": true, "terminationGracePeriodSeconds": 5, "restartPolicy": "Always",
            "containers": containers,
        },
    });
    if !inits.is_empty() {
        manifest["spec"]["initContainers"] = inits.into();
    }
    if pod["resources"].is_object() {
        manifest["spec"]["resources"] = pod["resources"].clone();
    }
    manifest
}

/// Adds the volumes found in a pod's directory: `[path, kind, mode, gid, target]`.
fn with_volumes(mut manifest: Value, listed: &[Value]) -> Value {
    let name = text(&manifest["metadata"], "name").to_owned();
    let own = format!("/pods/<UID:{name}>/");
    let mut volumes: BTreeMap<String, Value> = BTreeMap::new();
    let (mut group, mut sub_path) = (0, None);
    for entry in listed {
        let path = entry[0].as_str().unwrap_or_default();
        let Some((_, below)) = path.split_once(&own) else { continue };
        let parts: Vec<&str> = below.split('/').collect();
        group = group.max(entry[3].as_u64().unwrap_or(0));
        let sticky = entry[2].as_str().is_some_and(|mode| mode.len() == 4 && mode.starts_with('3'));
        match parts.as_slice() {
            ["volumes", "kubernetes.io~empty-dir", volume] => {
                let source = if sticky { json!({"medium": "Memory"}) } else { json!({}) };
                volumes.insert((*volume).to_owned(), json!({"name": volume, "emptyDir": source}));
            }
            ["volumes", plugin, volume, file] if entry[1] == "link" && *file != "..data" => {
                let entry = volumes.entry((*volume).to_owned()).or_insert_with(|| json!({}));
                let item = json!({"key": file, "path": file});
                match *plugin {
                    "kubernetes.io~configmap" => {
                        add(entry, volume, "configMap", "name", "cm1", item)
                    }
                    "kubernetes.io~secret" => {
                        add(entry, volume, "secret", "secretName", "sec1", item)
                    }
                    _ => {
                        let token = json!({"serviceAccountToken": {"path": file}});
                        *entry = json!({"name": volume, "projected": {"sources": [token]}});
                    }
                }
            }
            ["volume-subpaths", volume, container, index] => {
                sub_path = Some((
                    (*volume).to_owned(),
                    (*container).to_owned(),
                    index.parse::<usize>().unwrap_or(0),
                ));
            }
            _ => {}
        }
    }
    if volumes.is_empty() {
        return manifest;
    }
    let mut mounts: Vec<Value> = volumes
        .keys()
        .map(|volume| json!({"name": volume, "mountPath": format!("/volumes/{volume}")}))
        .collect();
    let mut mounted = 0;
    if let Some((volume, container, index)) = sub_path {
        // The directory in the volume is the sub-path.
        let inside = format!("{own}volumes/kubernetes.io~empty-dir/{volume}/");
        let part = listed.iter().find_map(|entry| entry[0].as_str()?.split_once(&inside));
        if let Some((_, part)) = part {
            while mounts.len() < index {
                let path = format!("/again/{}", mounts.len());
                mounts.push(json!({"name": volume, "mountPath": path}));
            }
            let path = format!("/part/{volume}");
            let mount = json!({"name": volume, "mountPath": path, "subPath": part});
            mounts.insert(index.min(mounts.len()), mount);
        }
        let containers =
            manifest["spec"]["containers"].as_array().map(Vec::as_slice).unwrap_or_default();
        mounted =
            containers.iter().position(|found| found["name"] == container.as_str()).unwrap_or(0);
    }
    manifest["spec"]["containers"][mounted]["volumeMounts"] = mounts.into();
    manifest["spec"]["volumes"] = volumes.into_values().collect();
    if manifest["spec"]["volumes"].to_string().contains("serviceAccountToken") {
        manifest["spec"]["serviceAccountName"] = "default".into();
        manifest["spec"]["automountServiceAccountToken"] = false.into();
    }
    if group > 0 {
        manifest["spec"]["securityContext"] = json!({"fsGroup": group});
    }
    manifest
}

fn add(entry: &mut Value, volume: &str, kind: &str, by: &str, source: &str, item: Value) {
    entry["name"] = volume.into();
    entry[kind][by] = source.into();
    match entry[kind]["items"].as_array_mut() {
        Some(items) => items.push(item),
        None => entry[kind]["items"] = json!([item]),
    }
}

impl SteadyState {
    /// Starts the pods of a plan one after the other, as the recorder did.
    pub(super) async fn start(context: &ReplayContext, plan: &Plan) -> Result<SteadyState> {
        let accounts = objects::catalog::find("", "v1", "serviceaccounts");
        if let Some(accounts) = accounts {
            let account = json!({"metadata": {"name": "default"}});
            match context.api.create(Kind::of(accounts), NAMESPACE, &account).await {
                Err(error) if !error.is_already_there() => return Err(error.into()),
                _ => {}
            }
        }
        let mut steady_state = SteadyState::default();
        for (manifest, ran) in &plan.pods {
            let replayed = replay::create_and_bind(context, &json!({"manifest": manifest})).await?;
            let ready =
                |pod: &Value| super::testbed::condition(&pod["status"], "Ready") == Some("True");
            let is_ready = || {
                let last = context.trace.last(&replayed.namespace, &replayed.name);
                last.is_some_and(|(pod, _)| {
                    ready(&pod) || (!ran && pod["status"]["phase"] == "Failed")
                })
            };
            let came = replay::wait(context, TIMEOUT, Duration::ZERO, is_ready).await;
            let name = replayed.name.clone();
            let last = context.trace.last(&replayed.namespace, &replayed.name);
            steady_state.replayed.push(replayed);
            let (pod, _) = last.with_context(|| format!("there is no pod {name}"))?;
            ensure!(came, "{name} does not get ready: {}", pod["status"]);
            steady_state.note(&pod);
        }
        Ok(steady_state)
    }

    fn note(&mut self, pod: &Value) {
        let name = text(&pod["metadata"], "name");
        self.uids.insert(name.to_owned(), text(&pod["metadata"], "uid").to_owned());
        for list in ["initContainerStatuses", "containerStatuses"] {
            for status in pod["status"][list].as_array().into_iter().flatten() {
                let id = text(status, "containerID");
                let id = id.split_once("://").map_or(id, |(_, id)| id);
                self.containers.insert(format!("{name}/{}", text(status, "name")), id.to_owned());
            }
        }
    }

    /// Deletes the pods, and waits until they are gone.
    pub(super) async fn end(&self, context: &ReplayContext) -> Result<()> {
        for replayed in &self.replayed {
            super::action::act(context, replayed, &json!({"delete": {}})).await?;
        }
        let gone = || {
            let left = self.replayed.iter().filter(|replayed| {
                let last = context.trace.last(&replayed.namespace, &replayed.name);
                last.is_some_and(|(_, gone)| !gone)
            });
            left.count() == 0
        };
        ensure!(replay::wait(context, TIMEOUT, Duration::ZERO, gone).await, "pods do not go");
        Ok(())
    }

    /// Replaces our ids by the recording's names of pods and containers: `<UID:name>`,
    /// `<CID:pod/container>`.
    pub(super) fn named(&self, ours: &str) -> String {
        let mut named = ours.to_owned();
        for (name, uid) in &self.uids {
            named = named.replace(uid, &format!("<UID:{name}>"));
        }
        for (name, id) in self.containers.iter().filter(|(_, id)| !id.is_empty()) {
            named = named.replace(id, &format!("<CID:{name}>"));
        }
        named
    }
}

/// Starts pods for metrics that count rare events: one is rejected, one ends, one cannot start, one
/// is probed.
pub(super) async fn provoke_metrics(context: &ReplayContext) -> Result<()> {
    let pod = |name: &str, container: Value| {
        let mut container = container;
        container["name"] = "c".into();
        container["image"] = IMAGE.into();
        container["imagePullPolicy"] = "Never".into();
        json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "lives"},
            "spec": {
                "hostNetwork": true, "restartPolicy": "Never", "terminationGracePeriodSeconds": 1,
                "containers": [container],
            },
        })
    };
    let asks = json!({"resources": {"requests": {"cpu": "1000"}}});
    let probe = json!({"exec": {"command": ["true"]}, "periodSeconds": 1});
    let pods = [
        (pod("figures-refused", asks), "Failed"),
        (pod("figures-ended", json!({"command": ["true"]})), "Succeeded"),
        (pod("figures-unstartable", json!({"command": ["/no/such/command"]})), "Failed"),
        (
            pod(
                "figures-probed",
                json!({
                    "command": ["sleep", "3600"], "readinessProbe": probe,
                }),
            ),
            "Running",
        ),
    ];
    let mut replayed = Vec::new();
    for (manifest, phase) in &pods {
        let one = replay::create_and_bind(context, &json!({"manifest": manifest})).await?;
        replayed.push((one, *phase));
    }
    let settled = || {
        replayed.iter().all(|(one, phase)| {
            let last = context.trace.last(&one.namespace, &one.name);
            last.is_some_and(|(pod, _)| {
                pod["status"]["phase"] == *phase
                    && (*phase != "Running"
                        || super::testbed::condition(&pod["status"], "Ready") == Some("True"))
            })
        })
    };
    ensure!(replay::wait(context, TIMEOUT, Duration::ZERO, settled).await, "pods do not settle");
    Ok(())
}

/// Deletes the pods of [`provoke_metrics`].
pub(super) async fn remove_metric_pods(context: &ReplayContext) -> Result<()> {
    let options = client::DeleteOptions { grace_seconds: Some(0), ..Default::default() };
    let names: BTreeSet<String> = context
        .trace
        .all_pods()
        .into_iter()
        .filter(|((_, name), gone)| name.starts_with("figures-") && !gone)
        .map(|((_, name), _)| name)
        .collect();
    for name in names {
        client::ignore_not_found(context.api.delete(PODS, "lives", &name, &options).await)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn containers_without_a_cgroup_are_init_containers() {
        let groups = json!({"/k/<CID:p/side>": {}, "/k/<CID:p/main>": {}});
        let listed = json!({"containers": [{"name": "side"}, {"name": "i"}, {"name": "main"}]});
        let spec = manifest("p", &listed, &groups)["spec"].clone();
        assert_eq!(spec["initContainers"][0]["restartPolicy"], "Always");
        assert_eq!(spec["initContainers"][1]["command"], json!(["true"]));
        assert_eq!(spec["containers"][0]["name"], "main");
        let listed =
            json!({"containers": [{"name": "main"}], "resources": {"limits": {"cpu": "1"}}});
        let spec = manifest("p", &listed, &groups)["spec"].clone();
        assert!(spec.get("initContainers").is_none());
        assert_eq!(spec["resources"]["limits"]["cpu"], "1");
    }

    #[test]
    fn pods_that_ran_come_before_rejected_ones() {
        let pod = |class: &str| json!({"qosClass": class, "containers": [{"name": "c"}]});
        let line = json!({
            "kind": "cgroups", "id": "cgroups-policy-x",
            "pods": {"a": pod("Burstable"), "b": pod("BestEffort"), "c": pod("Guaranteed")},
            "cgroups": {
                "/k/pod<UID:b>": {}, "/k/pod<UID:b>/<CID:b/c>": {},
                "/k/pod<UID:c>": {}, "/k/pod<UID:c>/<CID:c/c>": {},
            },
        });
        let plan = Plan::new(std::slice::from_ref(&line), "x");
        let pods: Vec<(&str, bool)> =
            plan.pods.iter().map(|(pod, ran)| (text(&pod["metadata"], "name"), *ran)).collect();
        assert_eq!(pods, [("c", true), ("b", true), ("a", false)]);
        assert!(plan.pods.iter().all(|(pod, _)| pod["spec"]["containers"][0]["name"] == "c"));
        assert!(Plan::new(&[line], "y").is_empty());
    }

    #[test]
    fn volumes_are_reconstructed_from_directories() {
        let own = "/var/lib/kubelet/pods/<UID:p>/";
        let entry = |path: &str, kind: &str, mode: &str, group: u64| {
            json!([format!("{own}{path}"), kind, mode, group])
        };
        let listed = [
            entry("volumes/kubernetes.io~empty-dir/m", "dir", "3777", 2000),
            entry("volumes/kubernetes.io~empty-dir/e", "dir", "2777", 2000),
            entry("volumes/kubernetes.io~empty-dir/e/x", "dir", "2777", 2000),
            entry("volumes/kubernetes.io~configmap/c/key1", "link", "777", 2000),
            entry("volumes/kubernetes.io~configmap/c/..data", "link", "", 0),
            entry("volumes/kubernetes.io~projected/p/token", "link", "777", 2000),
            entry("volume-subpaths/e/c/5", "dir", "2777", 2000),
        ];
        let bare = json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c"}]}});
        let spec = with_volumes(bare.clone(), &listed)["spec"].clone();
        let names: Vec<&str> =
            spec["volumes"].as_array().unwrap().iter().map(|of| text(of, "name")).collect();
        assert_eq!(names, ["c", "e", "m", "p"]);
        assert_eq!(spec["volumes"][0]["configMap"]["items"][0]["key"], "key1");
        assert_eq!(spec["volumes"][2]["emptyDir"]["medium"], "Memory");
        assert_eq!(spec["securityContext"]["fsGroup"], 2000);
        let mounts = spec["containers"][0]["volumeMounts"].as_array().unwrap();
        assert_eq!((mounts.len(), &mounts[5]["subPath"]), (6, &"x".into()));
        assert_eq!(with_volumes(bare.clone(), &[]), bare);
    }

    #[test]
    fn policies_are_parsed_from_the_id() {
        assert_eq!(policy(&json!({"id": "cgroups-policy-static"})), "static");
        assert_eq!(policy(&json!({"id": "metrics-other"})), "none");
        assert!(
            variant("none").is_some() && variant("static").is_some() && variant("odd").is_none()
        );
    }
}
