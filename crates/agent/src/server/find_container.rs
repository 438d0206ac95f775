//! Finds the container that a request names; errors have upstream's texts. Pure: takes a pod of the API
//! and returns an id of the runtime.

use http::StatusCode;
use serde_json::Value;

use super::Refusal;

fn lists<'a>(value: &'a Value, names: [&'static str; 3]) -> impl Iterator<Item = &'a Value> {
    names.into_iter().flat_map(|name| value[name].as_array().into_iter().flatten())
}

/// Returns every container of a pod's spec.
pub(super) fn containers(pod: &Value) -> impl Iterator<Item = &Value> {
    lists(&pod["spec"], ["initContainers", "containers", "ephemeralContainers"])
}

/// Returns every container status.
pub(super) fn statuses(pod: &Value) -> impl Iterator<Item = &Value> {
    let names = ["initContainerStatuses", "containerStatuses", "ephemeralContainerStatuses"];
    lists(&pod["status"], names)
}

/// Returns the container's spec.
pub(super) fn container<'a>(pod: &'a Value, name: &str) -> Option<&'a Value> {
    containers(pod).find(|container| container["name"] == name)
}

/// Returns `containerd://ID` without the runtime's name, or an empty string.
fn id(value: &Value) -> &str {
    let id = value["containerID"].as_str().unwrap_or_default();
    id.split_once("://").map_or(id, |(_, id)| id)
}

/// Returns the runtime's id of the container whose log is requested.
pub(super) fn logged<'a>(
    pod: &'a Value,
    pod_name: &str,
    name: &str,
    previous: bool,
) -> Result<&'a str, Refusal> {
    if container(pod, name).is_none() {
        let text = format!("container {name:?} not found in pod {pod_name:?}");
        return Err(Refusal::new(StatusCode::NOT_FOUND, text));
    }
    let bad = |text: &str| Refusal::bad(format!("container {name:?} in pod {pod_name:?} {text}"));
    let Some(status) = statuses(pod).find(|status| status["name"] == name) else {
        return Err(bad("is not available"));
    };
    let (state, last) = (&status["state"], &status["lastState"]["terminated"]);
    if previous {
        let found = id(last);
        if found.is_empty() {
            let text =
                format!("previous terminated container {name:?} in pod {pod_name:?} not found");
            return Err(Refusal::bad(text));
        }
        return Ok(found);
    }
    if state["running"].is_object() {
        return Ok(id(status));
    }
    for terminated in [&state["terminated"], last] {
        if !id(terminated).is_empty() {
            return Ok(id(terminated));
        }
    }
    if state["terminated"].is_object() || last.is_object() {
        return Err(bad("is terminated"));
    }
    let text = match state["waiting"]["reason"].as_str() {
        Some("ErrImagePull") => "is waiting to start: image can't be pulled".to_owned(),
        Some("ImagePullBackOff") => {
            "is waiting to start: trying and failing to pull image".to_owned()
        }
        Some(reason) => format!("is waiting to start: {reason}"),
        None => "is waiting to start - no logs yet".to_owned(),
    };
    Err(bad(&text))
}

/// Returns the runtime's id of a running container.
pub(super) fn running<'a>(pod: &'a Value, name: &str) -> Result<&'a str, Refusal> {
    let status = statuses(pod).find(|status| status["name"] == name);
    match status.filter(|status| status["state"]["running"].is_object()).map(id) {
        Some(id) if !id.is_empty() => Ok(id),
        _ => {
            let text = format!("container not found ({name:?})");
            Err(Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, text))
        }
    }
}
