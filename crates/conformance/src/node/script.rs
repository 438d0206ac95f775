//! Groups of recorded lives under one script of actions on the node, played alone: [`play`].
//!
//! The lines of a group share their steps. Each step is made when every pod of the group is where it was
//! recorded before that step, and not before as much time has passed since the last one as when it was
//! recorded, up to [`LONGEST`]: some steps are there to let something happen meanwhile. Pods that the
//! script names and the recording does not have are left out, but for one that is told by others.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use client::DeleteOptions;
use client::PatchKind;
use client::kind::{NODES, PODS};
use serde_json::{Value, json};

use super::life::{self, Played};
use super::stage::{NODE, Scene, Shape, Stage, out_of_reach};
use super::text;

/// What is waited for at most by the clock alone, in seconds.
const LONGEST: f64 = 10.0;

/// Why a group cannot be played, if so.
pub(super) fn unplayable(group: &str) -> Option<&'static str> {
    match group {
        "devices" => Some("device plugins are not served"),
        "memstatic" => Some("needs a NUMA node with less memory than the machine says it has"),
        _ => None,
    }
}

/// The node that a group was recorded on.
pub(super) fn shape(group: &str) -> Shape {
    let mut shape = Shape::default();
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
        "maxpods" => shape.config = json!({"maxPods": 3}),
        "cpustatic" => {
            shape.name = "agent-static";
            shape.config = managers;
            // What is reserved has to add up to what the memory manager is told.
            shape.config["systemReserved"] = json!({"memory": "200Mi", "ephemeral-storage": "1Gi"});
            shape.config["kubeReserved"] = json!({"memory": "300Mi", "ephemeral-storage": "2Gi"});
        }
        "numa" => {
            shape.name = "agent-numa";
            shape.machine = "2 sockets x 4 cores x 2 threads mem=12Gi".to_owned();
            shape.config = json!({
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
    shape
}

/// A group that is being played.
struct Playing<'a> {
    stage: &'a mut Stage,
    scene: Scene,
    shape: Shape,
    group: &'a str,
    lines: &'a [Value],
    zero: f64,
    /// By name of the pod.
    played: BTreeMap<String, Played>,
    /// Pods that were deleted.
    deleted: BTreeSet<String>,
    /// Pods that have left the recorded way and are not waited for any more.
    astray: BTreeSet<String>,
    /// Versions of a static pod's file that were written.
    written: usize,
}

/// Plays the lines of a group; gives what came of each, in their order.
pub(super) async fn play(stage: &mut Stage, group: &str, lines: &[Value]) -> Result<Vec<Played>> {
    let shape = shape(group);
    stage.start_agent(&shape).await?;
    let scene = stage.scene();
    let zero = scene.trace.now();
    let mut playing = Playing {
        stage,
        scene,
        shape,
        group,
        lines,
        zero,
        played: BTreeMap::new(),
        deleted: BTreeSet::new(),
        astray: BTreeSet::new(),
        written: 0,
    };
    let steps = lines.first().and_then(|line| line["steps"].as_array()).cloned();
    let mut last = (0.0, playing.scene.trace.now());
    // What is away is away for as long as it was: pods go on meanwhile.
    let mut longest = LONGEST;
    for step in steps.unwrap_or_default() {
        let t = step["t"].as_f64().unwrap_or_default();
        playing.delete_those_gone_by(t).await?;
        playing.until(t).await;
        let rest = (t - last.0).clamp(0.0, longest) - (playing.scene.trace.now() - last.1);
        tokio::time::sleep(Duration::from_secs_f64(rest.max(0.0))).await;
        let action = text(&step, "action");
        playing.step(action).await.with_context(|| format!("step {action:?}"))?;
        match action {
            "container runtime stopped" => longest = f64::INFINITY,
            "container runtime started" => longest = LONGEST,
            _ => {}
        }
        last = (t, playing.scene.trace.now());
    }
    playing.finish().await?;
    let nobody = |line: &Value| Played {
        namespace: life::namespace(&line["manifest"]).to_owned(),
        name: text(line, "id").to_owned(),
        zero,
        answers: Vec::new(),
        refused: None,
    };
    let of = |line: &Value| playing.played.get(text(line, "id")).cloned();
    Ok(lines.iter().map(|line| of(line).unwrap_or_else(|| nobody(line))).collect())
}

impl Playing<'_> {
    fn line(&self, id: &str) -> Option<&Value> {
        self.lines.iter().find(|line| text(line, "id") == id)
    }

    /// Deletes pods that the recorder had deleted by `t`, which the script does not say.
    async fn delete_those_gone_by(&mut self, t: f64) -> Result<()> {
        let mut due = Vec::new();
        for (id, played) in self.played.iter().filter(|(id, _)| !self.deleted.contains(*id)) {
            let Some(line) = self.line(id) else { continue };
            let snapshots = line["snapshots"].as_array().into_iter().flatten();
            let deleted = snapshots.into_iter().find(|snapshot| snapshot["deleting"].is_object());
            let Some(at) = deleted.and_then(|snapshot| snapshot["t"].as_f64()) else { continue };
            if at < t && !is_mirror(played) {
                due.push((id.clone(), at));
            }
        }
        for (id, at) in due {
            if let (Some(line), Some(played)) = (self.line(&id), self.played.get(&id))
                && !self.astray.contains(&id)
            {
                life::until_recorded(&self.scene, line, played, at).await;
            }
            self.delete(&id).await?;
            self.gone(&id).await;
            self.deleted.insert(id);
        }
        Ok(())
    }

    /// Waits until every pod is where it was recorded at `t`.
    async fn until(&mut self, t: f64) {
        let astray = Mutex::new(Vec::new());
        {
            let (scene, astray) = (&self.scene, &astray);
            let on_the_way = self.lines.iter().filter_map(|line| {
                let id = text(line, "id");
                let played = self.played.get(id).filter(|_| !self.astray.contains(id))?;
                Some((id, line, played))
            });
            let waiting = on_the_way.map(|(id, line, played)| async move {
                if !life::until_recorded(scene, line, played, t).await {
                    astray.lock().unwrap_or_else(PoisonError::into_inner).push(id.to_owned());
                }
            });
            join_all(waiting).await;
        }
        self.astray.extend(astray.into_inner().unwrap_or_else(PoisonError::into_inner));
    }

    async fn step(&mut self, action: &str) -> Result<()> {
        let words: Vec<&str> = action.split(' ').collect();
        match words.as_slice() {
            ["create", "and", "bind", name] => self.create(name).await,
            ["kubelet", "stopped", ..] => {
                self.stage.stop_agent().await;
                Ok(())
            }
            ["kubelet", "started"] | ["kubelet", "restarted", "with", "normal", "thresholds"] => {
                self.stage.start_agent(&self.shape).await
            }
            ["kubelet", "healthz", "ok"] => Ok(()),
            ["kubelet", "restarted:", "evictionHard", signal, "raised", "to", value, ..] => {
                let mut shape = self.shape.clone();
                shape.config["evictionHard"] = out_of_reach(signal, value);
                self.stage.start_agent(&shape).await
            }
            ["container", "runtime", "stopped"] => {
                self.stage.close_runtime().await;
                Ok(())
            }
            ["container", "runtime", "started"] => self.stage.open_runtime().await,
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
        let mut played = life::create_and_bind(&self.scene, &line).await?;
        played.zero = self.zero;
        self.played.insert(name.to_owned(), played);
        Ok(())
    }

    /// The pod that takes up what another one is refused, as far as the refusal tells.
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
        self.scene.api.patch(NODES, "", NODE, PatchKind::Merge, patch).await?;
        Ok(())
    }

    async fn resize(&self, name: &str, resources: &Value) -> Result<()> {
        let Some(played) = self.played.get(name) else { return Ok(()) };
        let (pod, _) = self.scene.trace.last(&played.namespace, name).context("there is no pod")?;
        let container = &pod["spec"]["containers"][0]["name"];
        let patch = json!({"spec": {"containers": [{"name": container, "resources": resources}]}});
        let kind = PatchKind::StrategicMerge;
        self.scene
            .api
            .patch_subresource(PODS, &played.namespace, name, "resize", kind, &patch)
            .await?;
        Ok(())
    }

    async fn delete(&self, name: &str) -> Result<()> {
        let Some(played) = self.played.get(name) else { return Ok(()) };
        let options = DeleteOptions::default();
        let done = self.scene.api.delete(PODS, &played.namespace, name, &options).await;
        Ok(client::ignore_not_found(done)?)
    }

    async fn gone(&self, name: &str) {
        let Some(played) = self.played.get(name) else { return };
        let gone = || {
            let last = self.scene.trace.last(&played.namespace, name);
            last.is_none_or(|(_, gone)| gone)
        };
        life::wait(&self.scene, super::stage::PATIENCE, Duration::ZERO, gone).await;
    }

    async fn delete_mirrors(&self, grace_seconds: Option<i64>) -> Result<()> {
        let options = DeleteOptions { grace_seconds, ..DeleteOptions::default() };
        for played in self.played.values() {
            let (namespace, name) = (&played.namespace, &played.name);
            let done = self.scene.api.delete(PODS, namespace, name, &options).await;
            client::ignore_not_found(done)?;
        }
        Ok(())
    }

    /// A static pod's file, if the recording has the pod. Where it was written twice, the recording has
    /// the second version as manifest, and the first as the mirror pod that was made of it.
    fn write(&mut self, name: &str) -> Result<()> {
        let id = format!("{name}-{NODE}");
        let Some(line) = self.line(&id) else { return Ok(()) };
        let mut manifest = life::manifest_here(&self.scene, &line["manifest"]);
        let steps = line["steps"].as_array().into_iter().flatten();
        let same = format!("write static pod file {name}");
        let versions = steps.filter(|step| text(step, "action") == same).count();
        let namespace = life::namespace(&manifest).to_owned();
        if self.written + 1 < versions {
            let first = &line["mirror_pod"];
            manifest["metadata"]["labels"] = first["metadata"]["labels"].clone();
            manifest["spec"]["containers"] = first["spec"]["containers"].clone();
        }
        if versions > 1 {
            self.written += 1;
        }
        let played = Played {
            namespace,
            name: id.clone(),
            zero: self.zero,
            answers: Vec::new(),
            refused: None,
        };
        self.played.insert(id, played);
        self.write_text(name, &manifest.to_string())
    }

    /// Writes as people should: all of it at once.
    fn write_text(&self, name: &str, text: &str) -> Result<()> {
        let draft = self.scene.directory.join("manifest.draft");
        std::fs::write(&draft, text)?;
        std::fs::rename(&draft, self.scene.manifests().join(format!("{name}.json")))?;
        Ok(())
    }

    fn remove_files(&self) -> Result<()> {
        for file in std::fs::read_dir(self.scene.manifests())? {
            std::fs::remove_file(file?.path())?;
        }
        Ok(())
    }

    /// Lets every pod go on to where it was when the recorder deleted it, and deletes it.
    async fn finish(&mut self) -> Result<()> {
        let mut waiting = Vec::new();
        for (id, played) in &self.played {
            let Some(line) = self.line(id) else { continue };
            // What was deleted on the way is not going to be where it was before that.
            if self.astray.contains(id) || self.deleted.contains(id) {
                continue;
            }
            waiting.push(async {
                let snapshots = line["snapshots"].as_array().into_iter().flatten();
                let deleted = snapshots.into_iter().find(|s| s["deleting"].is_object());
                if let Some(t) = deleted.and_then(|snapshot| snapshot["t"].as_f64()) {
                    life::until_recorded(&self.scene, line, played, t).await;
                }
            });
        }
        join_all(waiting).await;
        self.remove_files()?;
        for name in self.played.keys() {
            if !is_mirror(&self.played[name]) {
                self.delete(name).await?;
            }
        }
        let waiting = self.played.iter().map(|(id, played)| async {
            match self.line(id) {
                Some(line) => life::until_end(&self.scene, line, played).await,
                None => self.gone(id).await,
            }
        });
        join_all(waiting).await;
        self.patch_node(&json!({"spec": {"taints": null, "unschedulable": null}})).await
    }
}

/// Whether a pod lives by a file, and the API only shows it.
fn is_mirror(played: &Played) -> bool {
    played.name.ends_with(&format!("-{NODE}"))
}

/// Waits for all of them, at the same time.
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
