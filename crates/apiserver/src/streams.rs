//! Logs and interactive streams of containers. They live on the node: a request is passed to the
//! node's agent, and answered here only where there is none to pass it to.

use http::StatusCode;
use serde_json::Value;

use crate::api::Api;
use crate::read;
use crate::refusal::Refusal;
use crate::reply::Reply;
use crate::request::Call;
use crate::route::Place;

/// The container a request means: the one it names, or the pod's only one.
fn container(call: &Call, pod: &Value, place: &Place) -> Result<String, Refusal> {
    let named = call.query.text("container");
    let names = |list: &str| {
        let items = pod["spec"][list].as_array().map(Vec::as_slice).unwrap_or_default();
        items.iter().filter_map(|c| c["name"].as_str()).map(str::to_owned).collect::<Vec<_>>()
    };
    let (containers, init, ephemeral) =
        (names("containers"), names("initContainers"), names("ephemeralContainers"));
    let known = |name: &str| {
        [&containers, &init, &ephemeral].iter().any(|list| list.iter().any(|own| own == name))
    };
    match (named, containers.as_slice()) {
        ("", [only]) => Ok(only.clone()),
        ("", _) => {
            let all: Vec<&str> =
                init.iter().chain(&containers).chain(&ephemeral).map(String::as_str).collect();
            Err(Refusal::bad_request(format!(
                "a container name must be specified for pod {}, choose one of: [{}]",
                place.name,
                all.join(" ")
            )))
        }
        (name, _) if known(name) => Ok(name.to_owned()),
        (name, _) => Err(Refusal::bad_request(format!(
            "container {name} is not valid for pod {}",
            place.name
        ))),
    }
}

pub(crate) fn log(api: &Api, call: &Call, place: &Place) -> Result<Reply, Refusal> {
    crate::log_options::check(call, &place.name)?;
    let pod = read::load(place.resource, &read::find(api, place)?)?;
    container(call, &pod, place)?;
    let node = pod["spec"]["nodeName"].as_str().unwrap_or_default();
    if node.is_empty() {
        // Nothing has run, so there is nothing to tell.
        return Ok(Reply::bytes(StatusCode::NO_CONTENT, "", ""));
    }
    // Upstream's words name the node as if it were a pod.
    if crate::admission::named(api, "", "nodes", node)?.is_none() {
        return Err(Refusal::not_found(place.resource, node));
    }
    Err(no_agent(node))
}

pub(crate) fn connect(api: &Api, call: &Call, place: &Place) -> Result<Reply, Refusal> {
    let part = crate::write::part_name(place);
    let pod = read::load(place.resource, &read::find(api, place)?)?;
    if part != "portforward" {
        container(call, &pod, place)?;
    }
    let node = pod["spec"]["nodeName"].as_str().unwrap_or_default();
    if node.is_empty() {
        let message = format!("pod {} does not have a host assigned", place.name);
        return Err(Refusal::bad_request(message));
    }
    Err(no_agent(node))
}

fn no_agent(node: &str) -> Refusal {
    let message = format!("the agent of node {node:?} cannot be reached");
    Refusal::internal(message)
}
