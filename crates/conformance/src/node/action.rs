//! The steps of recorded pods: [`act`] repeats the recorder's action on a pod.
//!
//! Steps of groups, which act on the node, are in [`script`](super::script).
//! [`replay`](super::replay) decides when a step runs.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, bail};
use client::kind::{Kind, PODS};
use client::{DeleteOptions, Error, PatchKind};
use serde_json::{Value, json};

use super::replay::ReplayedPod;
use super::testbed::ReplayContext;

/// A part of a pod with a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Process {
    Sandbox,
    Container,
}

/// Runs a step, and returns the API's response if the step needs one.
pub(super) async fn act(
    context: &ReplayContext,
    replayed: &ReplayedPod,
    action: &Value,
) -> Result<Option<(u64, String)>> {
    let (namespace, name) = (replayed.namespace.as_str(), replayed.name.as_str());
    if let Some(options) = action.get("delete") {
        let options = DeleteOptions {
            grace_seconds: options["gracePeriodSeconds"].as_i64(),
            ..DeleteOptions::default()
        };
        // The recorder deletes the pod at the end even if it is gone.
        client::ignore_not_found(context.api.delete(PODS, namespace, name, &options).await)?;
        return Ok(None);
    }
    if let Some(patch) = action.get("patch") {
        let part = action["subresource"].as_str().unwrap_or_default();
        let kind = PatchKind::StrategicMerge;
        let answer = context.api.patch_subresource(PODS, namespace, name, part, kind, patch).await;
        return Ok(Some(answered(200, &answer)));
    }
    if let Some([method, path]) = action["api"].as_array().map(Vec::as_slice) {
        let (method, path) = (method.as_str().unwrap_or_default(), path.as_str());
        return request(context, method, path.unwrap_or_default(), action).await.map(Some);
    }
    match action.as_str().unwrap_or_default() {
        "kill the sandbox process behind the kubelet" => {
            kill(context, replayed, Process::Sandbox).await?
        }
        "kill the container process behind the kubelet" => {
            kill(context, replayed, Process::Container).await?;
        }
        "remove finalizer" | "remove the finalizer" | "remove finalizers" => {
            let patch = json!({"metadata": {"finalizers": null}});
            let answer = context.api.patch(PODS, namespace, name, PatchKind::Merge, &patch).await;
            return Ok(Some(answered(200, &answer)));
        }
        _ => bail!("a step {action} is not known"),
    }
    Ok(None)
}

fn answered<T>(code: u64, answer: &Result<T, Error>) -> (u64, String) {
    match answer {
        Ok(_) => (code, String::new()),
        Err(error) => (u64::from(error.status()), error.to_string()),
    }
}

/// An object by its API path, `/api/v1/namespaces/a/configmaps/b`.
#[derive(Debug, PartialEq)]
struct Target<'a> {
    kind: Kind,
    namespace: &'a str,
    /// Empty for a collection.
    name: &'a str,
}

impl<'a> Target<'a> {
    fn parse(path: &'a str) -> Option<Target<'a>> {
        let path = path.split('?').next().unwrap_or_default();
        let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
        let (group, version, rest) = match parts.as_slice() {
            ["api", version, rest @ ..] => ("", *version, rest),
            ["apis", group, version, rest @ ..] => (*group, *version, rest),
            _ => return None,
        };
        let (namespace, plural, name) = match rest {
            ["namespaces", namespace, plural] => (*namespace, *plural, ""),
            ["namespaces", namespace, plural, name] => (*namespace, *plural, *name),
            [plural] => ("", *plural, ""),
            [plural, name] => ("", *plural, *name),
            _ => return None,
        };
        let resource = objects::catalog::find(group, version, plural)?;
        Some(Target { kind: Kind::of(resource), namespace, name })
    }
}

/// Sends a request about another object than the pod, such as a mounted config map.
async fn request(
    context: &ReplayContext,
    method: &str,
    path: &str,
    action: &Value,
) -> Result<(u64, String)> {
    let Target { kind, namespace, name } = Target::parse(path)
        .with_context(|| format!("a step asks the API for {path}, which is not served"))?;
    let (api, body) = (&context.api, &action["body"]);
    Ok(match (method, name) {
        ("POST", "") => answered(201, &api.create(kind, namespace, body).await),
        ("PUT", _) => {
            let mut object = body.clone();
            object["metadata"]["namespace"] = namespace.into();
            object["metadata"]["name"] = name.into();
            answered(200, &api.update(kind, &object).await)
        }
        ("PATCH", _) => {
            let patched = api.patch(kind, namespace, name, PatchKind::Merge, body).await;
            answered(200, &patched)
        }
        ("DELETE", _) if !name.is_empty() => {
            answered(200, &api.delete(kind, namespace, name, &DeleteOptions::default()).await)
        }
        _ => bail!("a step asks the API for {method} {path}, which is not replayed"),
    })
}

/// Kills a process of a pod without the agent.
async fn kill(context: &ReplayContext, replayed: &ReplayedPod, process: Process) -> Result<()> {
    let (pod, _) =
        context.trace.last(&replayed.namespace, &replayed.name).context("there is no pod")?;
    let uid = pod["metadata"]["uid"].as_str().unwrap_or_default().to_owned();
    let info = match process {
        Process::Sandbox => sandbox_info(&context.runtime, uid).await?,
        Process::Container => container_info(&context.runtime, uid).await?,
    };
    let info: Value = serde_json::from_str(info.as_deref().unwrap_or("{}"))?;
    let process = info["pid"].as_u64().context("the runtime reports no process")?;
    let killed = tokio::process::Command::new("kill")
        .args(["-KILL", &process.to_string()])
        .status()
        .await
        .context("cannot run the command kill")?;
    anyhow::ensure!(killed.success(), "process {process} cannot be ended");
    Ok(())
}

fn of_pod(uid: String) -> BTreeMap<String, String> {
    [("io.kubernetes.pod.uid".to_owned(), uid)].into()
}

/// Returns the runtime's information about the newest sandbox of a pod.
async fn sandbox_info(runtime: &cri::Client, uid: String) -> Result<Option<String>> {
    let filter = cri::v1::PodSandboxFilter { label_selector: of_pod(uid), ..Default::default() };
    let request = cri::v1::ListPodSandboxRequest { filter: Some(filter) };
    let found = runtime.call(request).await?.items;
    let id = found.into_iter().next().context("the pod has no sandbox")?.id;
    let request = cri::v1::PodSandboxStatusRequest { pod_sandbox_id: id, verbose: true };
    Ok(runtime.call(request).await?.info.remove("info"))
}

/// Returns the runtime's information about the running container of a pod.
async fn container_info(runtime: &cri::Client, uid: String) -> Result<Option<String>> {
    let state = cri::v1::ContainerState::ContainerRunning.into();
    let filter = cri::v1::ContainerFilter {
        label_selector: of_pod(uid),
        state: Some(cri::v1::ContainerStateValue { state }),
        ..Default::default()
    };
    let request = cri::v1::ListContainersRequest { filter: Some(filter) };
    let found = runtime.call(request).await?.containers;
    let id = found.into_iter().next().context("no container of the pod runs")?.id;
    let request = cri::v1::ContainerStatusRequest { container_id: id, verbose: true };
    Ok(runtime.call(request).await?.info.remove("info"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use client::kind::{CONFIG_MAPS, LEASES, NODES};

    #[test]
    fn objects_are_found_by_their_path() {
        let target = |kind, namespace, name| Some(Target { kind, namespace, name });
        let maps = "/api/v1/namespaces/a/configmaps";
        assert_eq!(Target::parse(maps), target(CONFIG_MAPS, "a", ""));
        let map = "/api/v1/namespaces/a/configmaps/b?fieldManager=x";
        assert_eq!(Target::parse(map), target(CONFIG_MAPS, "a", "b"));
        let lease = "/apis/coordination.k8s.io/v1/namespaces/a/leases/b";
        assert_eq!(Target::parse(lease), target(LEASES, "a", "b"));
        assert_eq!(Target::parse("/api/v1/nodes/n"), target(NODES, "", "n"));
        for path in ["/metrics", "/api/v1/namespaces/a/nothing/b", "/api/v1/namespaces/a/pods/b/c"]
        {
            assert_eq!(Target::parse(path), None, "{path}");
        }
    }
}
