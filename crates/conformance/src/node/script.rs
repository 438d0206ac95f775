//! Groups of recorded pods under one script of node actions, replayed alone: [`replay`].
//!
//! The lines of a group share their steps. A step runs when every pod of the group has its recorded
//! state, and not earlier after the previous step than recorded, up to [`LONGEST`], because some
//! steps only let time pass. Pods of the script that the recording lacks are left out, except one
//! that other pods' rejections describe.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use client::DeleteOptions;
use client::PatchKind;
use client::kind::{NODES, PODS};
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::replay::{self, ReplayedPod};
use super::testbed::{NODE, NodeVariant, ReplayContext, Testbed, out_of_reach};
use super::text;

/// Longest pause between two steps in seconds.
const LONGEST: f64 = 10.0;

/// Returns the reason why a group cannot be replayed, if any.
pub(super) fn skip_reason(group: &str) -> Option<&'static str> {
    match group {
        "devices" => Some("device plugins are not served"),
        "memstatic" => Some("needs a NUMA node with less memory than the machine reports"),
        _ => None,
    }
}

/// Returns the node that a group was recorded on.
pub(super) fn variant(group: &str) -> NodeVariant {
    let mut variant = NodeVariant::default();
    let managers = json!({
        "cpuManagerPolicy": "static",
        "reservedSystemCPUs": "0",
        "memoryManagerPolicy": "Static",
        "reservedMemory": [{"numaNode": 0, "limits": {"memory": "600Mi"}}],
        "topologyManagerPolicy": "single-numa-node",
        "maxPods": 110,
        "systemReserved": null,
        "kubeReserved": null,
    });
    match group {
        "maxpods" => variant.config = json!({"maxPods": 3}),
        "cpustatic" => {
            variant.name = "agent-static";
            variant.config = managers;
            // Reservations must match those of the memory manager.
            variant.config["systemReserved"] =
                json!({"memory": "200Mi", "ephemeral-storage": "1Gi"});
            variant.config["kubeReserved"] = json!({"memory": "300Mi", "ephemeral-storage": "2Gi"});
        }
        "numa" => {
            variant.name = "agent-numa";
            variant.machine = "2 sockets x 4 cores x 2 threads mem=12Gi".to_owned();
            variant.config = json!({
                "cpuManagerPolicy": "static",
                "cpuManagerPolicyOptions": {"full-pcpus-only": "true"},
                "reservedSystemCPUs": "0,8",
                "topologyManagerPolicy": "single-numa-node",
                "systemReserved": {"memory": "200Mi", "ephemeral-storage": "1Gi"},
                "kubeReserved": {"memory": "300Mi", "ephemeral-storage": "2Gi"},
            });
        }
        _ => {}
    }
    variant
}

/// The replay of a group.
struct GroupReplay<'a> {
    testbed: &'a mut Testbed,
    context: ReplayContext,
    variant: NodeVariant,
    group: &'a str,
    lines: &'a [Value],
    zero: f64,
    /// By name of the pod.
    replayed: BTreeMap<String, ReplayedPod>,
    /// Pods that were deleted.
    deleted: BTreeSet<String>,
    /// Pods that have diverged from the recording and are no longer awaited.
    diverged: BTreeSet<String>,
    /// Versions of a static pod's file that were written.
    written: usize,
}

/// Replays a group and returns the pods of its lines, in order.
pub(super) async fn replay(
    testbed: &mut Testbed,
    group: &str,
    lines: &[Value],
) -> Result<Vec<ReplayedPod>> {
    let variant = variant(group);
    testbed.start_agent(&variant).await?;
    let context = testbed.context();
    let zero = context.trace.now();
    let mut group_replay = GroupReplay {
        testbed,
        context,
        variant,
        group,
        lines,
        zero,
        replayed: BTreeMap::new(),
        deleted: BTreeSet::new(),
        diverged: BTreeSet::new(),
        written: 0,
    };
    let steps = lines.first().and_then(|line| line["steps"].as_array()).cloned();
    let mut last = (0.0, group_replay.context.trace.now());
    // A stopped runtime stays stopped for its recorded time, because pods continue meanwhile.
    let mut longest = LONGEST;
    for step in steps.unwrap_or_default() {
        let t = step["t"].as_f64().unwrap_or_default();
        group_replay.delete_pods_gone_before(t).await?;
        group_replay.until(t).await;
        let rest = (t - last.0).clamp(0.0, longest) - (group_replay.context.trace.now() - last.1);
        tokio::time::sleep(Duration::from_secs_f64(rest.max(0.0))).await;
        let action = text(&step, "action");
        group_replay.step(action).await.with_context(|| format!("step {action:?}"))?;
        match action {
            "container runtime stopped" => longest = f64::INFINITY,
            "container runtime started" => longest = LONGEST,
            _ => {}
        }
        last = (t, group_replay.context.trace.now());
    }
    group_replay.finish().await?;
    let absent = |line: &Value| ReplayedPod {
        namespace: replay::namespace(&line["manifest"]).to_owned(),
        name: text(line, "id").to_owned(),
        zero,
        answers: Vec::new(),
        refused: None,
    };
    let replayed_pod = |line: &Value| group_replay.replayed.get(text(line, "id")).cloned();
    Ok(lines.iter().map(|line| replayed_pod(line).unwrap_or_else(|| absent(line))).collect())
}

impl GroupReplay<'_> {
    fn line(&self, id: &str) -> Option<&Value> {
        self.lines.iter().find(|line| text(line, "id") == id)
    }

    /// Deletes pods that the recorder deleted before `t` outside the script.
    async fn delete_pods_gone_before(&mut self, t: f64) -> Result<()> {
        let mut due = Vec::new();
        for (id, replayed) in self.replayed.iter().filter(|(id, _)| !self.deleted.contains(*id)) {
            let Some(line) = self.line(id) else { continue };
            let snapshots = line["snapshots"].as_array().into_iter().flatten();
            let deleted = snapshots.into_iter().find(|snapshot| snapshot["deleting"].is_object());
            let Some(at) = deleted.and_then(|snapshot| snapshot["t"].as_f64()) else { continue };
            if at < t && !is_mirror(replayed) {
                due.push((id.clone(), at));
            }
        }
        for (id, at) in due {
            if let (Some(line), Some(replayed)) = (self.line(&id), self.replayed.get(&id))
                && !self.diverged.contains(&id)
            {
                replay::until_recorded(&self.context, line, replayed, at).await;
            }
            self.delete(&id).await?;
            self.gone(&id).await;
            self.deleted.insert(id);
        }
        Ok(())
    }

    /// Waits until every pod has its state of `t`.
    async fn until(&mut self, t: f64) {
        let diverged = Mutex::new(Vec::new());
        {
            let (context, diverged) = (&self.context, &diverged);
            let on_the_way = self.lines.iter().filter_map(|line| {
                let id = text(line, "id");
                let replayed = self.replayed.get(id).filter(|_| !self.diverged.contains(id))?;
                Some((id, line, replayed))
            });
            let waiting = on_the_way.map(|(id, line, replayed)| async move {
                if !replay::until_recorded(context, line, replayed, t).await {
                    diverged.lock().push(id.to_owned());
                }
            });
            join_all(waiting).await;
        }
        self.diverged.extend(diverged.into_inner());
    }

    async fn step(&mut self, action: &str) -> Result<()> {
        let words: Vec<&str> = action.split(' ').collect();
        match words.as_slice() {
            ["create", "and", "bind", name] => self.create(name).await,
            ["kubelet", "stopped", ..] => {
                self.testbed.stop_agent().await;
                Ok(())
            }
            ["kubelet", "started"] | ["kubelet", "restarted", "with", "normal", "thresholds"] => {
                self.testbed.start_agent(&self.variant).await
            }
            ["kubelet", "healthz", "ok"] => Ok(()),
            ["kubelet", "restarted:", "evictionHard", signal, "raised", "to", value, ..] => {
                let mut variant = self.variant.clone();
                variant.config["evictionHard"] = out_of_reach(signal, value);
                self.testbed.start_agent(&variant).await
            }
            ["container", "runtime", "stopped"] => {
                self.testbed.close_runtime().await;
                Ok(())
            }
            ["container", "runtime", "started"] => self.testbed.open_runtime().await,
            ["taint", "node", taint] => {
                let (key, effect) = taint.split_once(':').context("a taint has an effect")?;
                let (key, value) = key.split_once('=').unwrap_or((key, ""));
                let taint = json!({"key": key, "value": value, "effect": effect});
                self.patch_node(&json!({"spec": {"taints": [taint]}})).await
            }
            ["taints", "removed,", "node", "cordoned"] => {
                self.patch_node(&json!({"spec": {"taints": null, "unschedulable": true}})).await
            }
            ["resize", name, "to", "cpu", amount] => {
                self.resize(name, &json!({"requests": {"cpu": amount}})).await
            }
            ["resize", "memory", "of", name, "to", amount] => {
                let amounts = json!({"memory": amount});
                self.resize(name, &json!({"requests": amounts, "limits": amounts})).await
            }
            ["delete", "all"] => Ok(()),
            ["delete", "mirror", "pod", "through", ..] => self.delete_mirrors(None).await,
            ["delete", "mirror", "pod", "with", "grace", "0"] => self.delete_mirrors(Some(0)).await,
            ["delete", name, ..] => {
                self.deleted.insert((*name).to_owned());
                self.delete(name).await
            }
            [name, "is", "gone"] => {
                self.deleted.insert((*name).to_owned());
                self.delete(name).await?;
                self.gone(name).await;
                Ok(())
            }
            ["write", "static", "pod", "file", name] => self.write(name),
            ["write", "a", "broken", ..] => {
                self.write_text("broken", "apiVersion: v1\nkind: [Pod\n")
            }
            ["write", "a", "static", "pod", "file", "that", "fails", "validation"] => {
                let pod = json!({
                    "apiVersion": "v1", "kind": "Pod",
                    "metadata": {"name": "static-invalid", "namespace": "lives2"},
                    "spec": {"containers": []},
                });
                self.write_text("invalid", &pod.to_string())
            }
            ["remove", "all", "static", "pod", "files"] | ["remove", "static", "pod", "file"] => {
                self.remove_files()
            }
            ["memory_manager_state"] => Ok(()),
            _ => bail!("it is not known how this is done"),
        }
    }

    async fn create(&mut self, name: &str) -> Result<()> {
        let line = match self.line(name) {
            Some(line) => line.clone(),
            None => match self.stand_in(name) {
                Some(manifest) => json!({"id": name, "manifest": manifest}),
                None => return Ok(()),
            },
        };
        let mut replayed = replay::create_and_bind(&self.context, &line).await?;
        replayed.zero = self.zero;
        self.replayed.insert(name.to_owned(), replayed);
        Ok(())
    }

    /// Returns a pod that uses the resources for which another one was rejected, as its rejection
    /// describes them.
    fn stand_in(&self, name: &str) -> Option<Value> {
        if self.group != "defer" {
            return None;
        }
        let lines = self.lines.iter().map(Value::to_string);
        let used = lines.into_iter().find_map(|line| {
            let (_, after) = line.split_once("used: ")?;
            after.split(',').next()?.parse::<u64>().ok()
        })?;
        Some(json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "namespace": "lives2"},
            "spec": {
                "hostNetwork": true, "terminationGracePeriodSeconds": 5,
                "containers": [{
                    "name": "c", "image": super::IMAGE, "imagePullPolicy": "Never",
                    "command": ["sh", "-c", "trap 'exit 0' TERM; sleep 3600 & wait"],
                    "resources": {"requests": {"cpu": format!("{used}m")}},
                }],
            },
        }))
    }

    async fn patch_node(&self, patch: &Value) -> Result<()> {
        self.context.api.patch(NODES, "", NODE, PatchKind::Merge, patch).await?;
        Ok(())
    }

    async fn resize(&self, name: &str, resources: &Value) -> Result<()> {
        let Some(replayed) = self.replayed.get(name) else { return Ok(()) };
        let (pod, _) =
            self.context.trace.last(&replayed.namespace, name).context("there is no pod")?;
        let container = &pod["spec"]["containers"][0]["name"];
        let patch = json!({"spec": {"containers": [{"name": container, "resources": resources}]}});
        let kind = PatchKind::StrategicMerge;
        self.context
            .api
            .patch_subresource(PODS, &replayed.namespace, name, "resize", kind, &patch)
            .await?;
        Ok(())
    }

    async fn delete(&self, name: &str) -> Result<()> {
        let Some(replayed) = self.replayed.get(name) else { return Ok(()) };
        let options = DeleteOptions::default();
        let done = self.context.api.delete(PODS, &replayed.namespace, name, &options).await;
        Ok(client::ignore_not_found(done)?)
    }

    async fn gone(&self, name: &str) {
        let Some(replayed) = self.replayed.get(name) else { return };
        let gone = || {
            let last = self.context.trace.last(&replayed.namespace, name);
            last.is_none_or(|(_, gone)| gone)
        };
        replay::wait(&self.context, super::testbed::TIMEOUT, Duration::ZERO, gone).await;
    }

    async fn delete_mirrors(&self, grace_seconds: Option<i64>) -> Result<()> {
        let options = DeleteOptions { grace_seconds, ..DeleteOptions::default() };
        for replayed in self.replayed.values() {
            let (namespace, name) = (&replayed.namespace, &replayed.name);
            let done = self.context.api.delete(PODS, namespace, name, &options).await;
            client::ignore_not_found(done)?;
        }
        Ok(())
    }

    /// Writes a static pod's file, if the recording has the pod. If it was written twice, the
    /// recording has the second version as manifest, and the first as its mirror pod.
    fn write(&mut self, name: &str) -> Result<()> {
        let id = format!("{name}-{NODE}");
        let Some(line) = self.line(&id) else { return Ok(()) };
        let mut manifest = replay::manifest_here(&self.context, &line["manifest"]);
        let steps = line["steps"].as_array().into_iter().flatten();
        let same = format!("write static pod file {name}");
        let versions = steps.filter(|step| text(step, "action") == same).count();
        let namespace = replay::namespace(&manifest).to_owned();
        if self.written + 1 < versions {
            let first = &line["mirror_pod"];
            manifest["metadata"]["labels"] = first["metadata"]["labels"].clone();
            manifest["spec"]["containers"] = first["spec"]["containers"].clone();
        }
        if versions > 1 {
            self.written += 1;
        }
        let replayed = ReplayedPod {
            namespace,
            name: id.clone(),
            zero: self.zero,
            answers: Vec::new(),
            refused: None,
        };
        self.replayed.insert(id, replayed);
        self.write_text(name, &manifest.to_string())
    }

    /// Writes the file atomically.
    fn write_text(&self, name: &str, text: &str) -> Result<()> {
        let draft = self.context.directory.join("manifest.draft");
        std::fs::write(&draft, text)?;
        std::fs::rename(&draft, self.context.manifests().join(format!("{name}.json")))?;
        Ok(())
    }

    fn remove_files(&self) -> Result<()> {
        for file in std::fs::read_dir(self.context.manifests())? {
            std::fs::remove_file(file?.path())?;
        }
        Ok(())
    }

    /// Waits until every pod has its state at the recorded deletion, and deletes it.
    async fn finish(&mut self) -> Result<()> {
        let mut waiting = Vec::new();
        for (id, replayed) in &self.replayed {
            let Some(line) = self.line(id) else { continue };
            // A deleted pod does not reach that state.
            if self.diverged.contains(id) || self.deleted.contains(id) {
                continue;
            }
            waiting.push(async {
                let snapshots = line["snapshots"].as_array().into_iter().flatten();
                let deleted = snapshots.into_iter().find(|s| s["deleting"].is_object());
                if let Some(t) = deleted.and_then(|snapshot| snapshot["t"].as_f64()) {
                    replay::until_recorded(&self.context, line, replayed, t).await;
                }
            });
        }
        join_all(waiting).await;
        self.remove_files()?;
        for name in self.replayed.keys() {
            if !is_mirror(&self.replayed[name]) {
                self.delete(name).await?;
            }
        }
        let waiting = self.replayed.iter().map(|(id, replayed)| async {
            match self.line(id) {
                Some(line) => replay::until_end(&self.context, line, replayed).await,
                None => self.gone(id).await,
            }
        });
        join_all(waiting).await;
        self.patch_node(&json!({"spec": {"taints": null, "unschedulable": null}})).await
    }
}

/// Reports whether a pod is the mirror of a static pod.
fn is_mirror(replayed: &ReplayedPod) -> bool {
    replayed.name.ends_with(&format!("-{NODE}"))
}

/// Waits for all futures concurrently.
async fn join_all<F: Future>(futures: impl IntoIterator<Item = F>) {
    let mut futures: Vec<_> = futures.into_iter().map(|future| Some(Box::pin(future))).collect();
    std::future::poll_fn(|context| {
        for slot in &mut futures {
            if let Some(future) = slot
                && future.as_mut().poll(context).is_ready()
            {
                *slot = None;
            }
        }
        match futures.iter().all(Option::is_none) {
            true => std::task::Poll::Ready(()),
            false => std::task::Poll::Pending,
        }
    })
    .await;
}
