//! Recorded facts of a node while pods run on it (kinds `cgroups`, `state-files`, `directories`,
//! `podresources`, `http`, `metrics`), compared with ours: [`check_all`].
//!
//! The lines of one set of policies were recorded with the same pods, so they are checked together:
//! the pods are started, everything is compared, the pods are deleted, and the remains are
//! compared.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use agent::observability::pod_resources::{self, v1};
use anyhow::Result;
use host::cgroups::{Cgroups, Layout};
use http::Method;
use objects::pod::OsName;
use serde_json::{Map, Value, json};

use super::super::{Difference, Outcome};
use super::steady_state::{self, NAMESPACE, Plan, SteadyState};
use super::testbed::{NodeVariant, ReplayContext, Testbed};
use super::{cgroups, endpoints, files, metrics, not_served, outcome, text};

const KINDS: &[&str] =
    &["cgroups", "state-files", "directories", "podresources", "http", "metrics"];

/// Reports whether a line is of these kinds.
pub(super) fn is_about(line: &Value) -> bool {
    KINDS.contains(&text(line, "kind"))
}

/// Compares all such lines; `all` are the lines of the whole recording, which define the pods.
pub(super) async fn check_all(
    testbed: &mut Testbed,
    lines: &[Value],
    all: &[Value],
) -> Result<Vec<Outcome>> {
    let mut outcomes = Vec::new();
    let policies: BTreeSet<&str> = lines.iter().map(steady_state::policy).collect();
    for policy in policies {
        let lines: Vec<&Value> =
            lines.iter().filter(|line| steady_state::policy(line) == policy).collect();
        let Some(variant) = steady_state::variant(policy) else {
            outcomes.extend(lines.iter().map(|line| {
                let kind = format!("node/{}", text(line, "kind"));
                let why = "it is not known how that node was configured";
                not_served(kind, text(line, "id"), why)
            }));
            continue;
        };
        eprintln!("        a node to look at, policy {policy}");
        outcomes.extend(check_under(testbed, &variant, &lines, &Plan::new(all, policy)).await?);
    }
    Ok(outcomes)
}

/// Compares the lines of one set of policies.
async fn check_under(
    testbed: &mut Testbed,
    variant: &NodeVariant,
    lines: &[&Value],
    plan: &Plan,
) -> Result<Vec<Outcome>> {
    let context = testbed.context();
    let root = context.root(variant);
    testbed.start_agent(variant).await?;
    let before = files::state(&root);
    let replayed = SteadyState::start(&context, plan).await;
    let mut found: BTreeMap<&str, Result<Vec<Difference>>> = BTreeMap::new();
    if let Ok(steady_state) = &replayed {
        // Additional pods would appear among the recorded ones.
        let (figures, others): (Vec<&Value>, Vec<&Value>) =
            lines.iter().partition(|line| text(line, "kind") == "metrics");
        for line in others {
            let differences = while_pods_run(&context, variant, steady_state, line, &before).await;
            found.insert(text(line, "id"), differences);
        }
        if !figures.is_empty() {
            steady_state::provoke_metrics(&context).await?;
        }
        for line in figures {
            let differences = while_pods_run(&context, variant, steady_state, line, &before).await;
            found.insert(text(line, "id"), differences);
        }
        steady_state::remove_metric_pods(&context).await?;
        steady_state.end(&context).await?;
        for line in lines {
            if let Some(Ok(found)) = found.get_mut(text(line, "id")) {
                found.extend(afterwards(&context, &root, line).await);
            }
        }
    } else {
        testbed.clear().await;
    }
    let outcomes = lines.iter().map(|line| {
        let (kind, id) = (format!("node/{}", text(line, "kind")), text(line, "id"));
        if let Some(why) = skip_reason(line, plan) {
            return not_served(kind, id, why);
        }
        let differences = match (&replayed, found.remove(id)) {
            (Err(error), _) => Err(format!("{error:#}")),
            (_, Some(Err(error))) => Err(format!("{error:#}")),
            (_, Some(Ok(differences))) => Ok(differences),
            (_, None) => Ok(Vec::new()),
        };
        let differences = differences.unwrap_or_else(|got| {
            let (what, expected) = ("the node".to_owned(), "to be looked at".to_owned());
            vec![Difference { what, expected, got }]
        });
        outcome(kind, line, differences)
    });
    Ok(outcomes.collect())
}

/// Returns the reason why a line cannot be compared, if any.
fn skip_reason(line: &Value, plan: &Plan) -> Option<&'static str> {
    let of_pods = !matches!(text(line, "kind"), "http" | "metrics") && line["content"].is_null();
    if of_pods && plan.is_empty() {
        return Some("the recording lacks the pods");
    }
    let version_1 =
        Cgroups::observe().is_ok_and(|cgroups| matches!(cgroups.layout(), Layout::V1 { .. }));
    match text(line, "kind") {
        "cgroups" if !version_1 => Some("recorded with cgroup v1, which is not here"),
        "directories" if std::env::consts::FAMILY != "unix" => Some("recorded on Linux"),
        _ => None,
    }
}

async fn while_pods_run(
    context: &ReplayContext,
    variant: &NodeVariant,
    steady_state: &SteadyState,
    line: &Value,
    before: &BTreeMap<String, String>,
) -> Result<Vec<Difference>> {
    let root = context.root(variant);
    Ok(match text(line, "kind") {
        "cgroups" => cgroups::check(context, steady_state, line),
        "state-files" if line["content"].is_object() => files::record(&root, line),
        "state-files" => files::state_differs(&root, steady_state, line, before),
        "directories" => files::tree_differs(context, &root, steady_state, line),
        "podresources" => resources_differ(line, &resources(&root, line).await),
        "http" => endpoints::check(context, variant, line).await?,
        _ => {
            let response = context.ask(variant, Method::GET, text(line, "path")).await?;
            metrics::check(line, &metrics::read(&response.body))
        }
    })
}

/// Compares recorded facts after the deletion of the pods.
async fn afterwards(context: &ReplayContext, root: &Path, line: &Value) -> Vec<Difference> {
    match text(line, "kind") {
        "cgroups" => cgroups::left(context, line).await,
        "state-files" => files::state_after(root, line),
        _ => Vec::new(),
    }
}

/// Repeats the recorded requests to the agent's Pod Resources API, in the recording's form. The API
/// is rate-limited to ten requests, so there are no others.
async fn resources(root: &Path, line: &Value) -> Map<String, Value> {
    let os = if std::env::consts::OS == "windows" { OsName::Windows } else { OsName::Linux };
    let mut answers = Map::new();
    let endpoint = match pod_resources::endpoint(os, root) {
        Ok(endpoint) => endpoint,
        Err(error) => return Map::from_iter([("error".to_owned(), error.to_string().into())]),
    };
    let client = cri::Client::new(endpoint);
    let error = |error: cri::Error| {
        let code = match error.code {
            cri::Code::Unknown => "UNKNOWN".to_owned(),
            cri::Code::NotFound => "NOT_FOUND".to_owned(),
            other => format!("{other:?}"),
        };
        json!({"error": {"code": code, "message": error.message}})
    };
    let list = client.call(v1::ListPodResourcesRequest::default()).await;
    let pods = |all: v1::ListPodResourcesResponse| {
        let mut pods: Vec<&v1::PodResources> =
            all.pod_resources.iter().filter(|pod| pod.namespace == NAMESPACE).collect();
        pods.sort_by(|a, b| a.name.cmp(&b.name));
        json!({"pod_resources": pods.into_iter().map(pod).collect::<Vec<_>>()})
    };
    answers.insert("List".to_owned(), list.map_or_else(error, pods));
    let all = client.call(v1::AllocatableResourcesRequest::default()).await;
    let all = all.map_or_else(error, |all| held(&all.cpu_ids, &all.memory).into());
    answers.insert("GetAllocatableResources".to_owned(), all);
    let requests = line["answers"].as_object().into_iter().flatten();
    for name in requests.filter_map(|(question, _)| question.strip_prefix("Get ")) {
        let pod_name = if name == "missing" { "nope" } else { name }.to_owned();
        let pod_namespace = NAMESPACE.to_owned();
        let got = client.call(v1::GetPodResourcesRequest { pod_name, pod_namespace }).await;
        let to_json = |got: v1::GetPodResourcesResponse| json!({"pod_resources": got.pod_resources.as_ref().map(pod)});
        answers.insert(format!("Get {name}"), got.map_or_else(error, to_json));
    }
    answers
}

/// Renders CPUs and memory; empty ones are omitted.
fn held(cpus: &[i64], memory: &[v1::ContainerMemory]) -> Map<String, Value> {
    let mut fields = Map::new();
    if !cpus.is_empty() {
        fields.insert("cpu_ids".to_owned(), json!(cpus));
    }
    if !memory.is_empty() {
        let block = |memory: &v1::ContainerMemory| {
            let nodes = memory.topology.iter().flat_map(|topology| &topology.nodes);
            let nodes: Vec<Value> = nodes
                .map(|node| if node.id == 0 { json!({}) } else { json!({"ID": node.id}) })
                .collect();
            json!({"memory_type": memory.memory_type, "size": memory.size, "topology": {"nodes": nodes}})
        };
        fields.insert("memory".to_owned(), memory.iter().map(block).collect());
    }
    fields
}

fn pod(pod: &v1::PodResources) -> Value {
    let container = |container: &v1::ContainerResources| -> Value {
        let mut fields = held(&container.cpu_ids, &container.memory);
        fields.insert("name".to_owned(), container.name.clone().into());
        fields.into()
    };
    let containers: Vec<Value> = pod.containers.iter().map(container).collect();
    json!({"name": pod.name, "namespace": pod.namespace, "containers": containers})
}

/// Compares the responses. The order of pods has no meaning; 64-bit numbers may be strings.
fn resources_differ(line: &Value, ours: &Map<String, Value>) -> Vec<Difference> {
    let mut found = Vec::new();
    for (question, recorded) in line["answers"].as_object().into_iter().flatten() {
        let wanted = ordered(recorded);
        let got = ours.get(question).map(ordered).unwrap_or_default();
        if wanted != got {
            found.push(Difference {
                what: question.clone(),
                expected: wanted.to_string(),
                got: got.to_string(),
            });
        }
    }
    found
}

/// Normalises numbers, the spelling of ids, and the order of pods.
fn ordered(value: &Value) -> Value {
    match value {
        Value::Object(fields) => {
            let field = |(name, value): (&String, &Value)| match name.as_str() {
                "id" => ("ID".to_owned(), ordered(value)),
                _ => (name.clone(), ordered(value)),
            };
            // A field with its default value may be omitted.
            let is_set = |(_, value): &(String, Value)| *value != json!(0);
            fields.iter().map(field).filter(is_set).collect::<Map<_, _>>().into()
        }
        Value::Array(items) => {
            let mut items: Vec<Value> = items.iter().map(ordered).collect();
            if items.iter().all(|item| item["namespace"].is_string()) {
                items.sort_by(|a, b| text(a, "name").cmp(text(b, "name")));
            }
            items.into()
        }
        Value::String(text) => match text.parse::<u64>() {
            Ok(number) => number.into(),
            Err(_) => value.clone(),
        },
        other => other.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn responses_are_compared_without_the_order_of_pods() {
        let pod = |name: &str, cpus: Value| json!({"name": name, "namespace": "n", "containers": [{"name": "c", "cpu_ids": cpus}]});
        let list = |pods: Vec<Value>| json!({"pod_resources": pods});
        let line =
            json!({"answers": {"List": list(vec![pod("b", json!([])), pod("a", json!(["1"]))])}});
        let ours = |cpu: u64| {
            let pods = vec![pod("a", json!([cpu])), pod("b", json!([]))];
            Map::from_iter([("List".to_owned(), list(pods))])
        };
        assert!(resources_differ(&line, &ours(1)).is_empty());
        assert_eq!(resources_differ(&line, &ours(2)).len(), 1);
        assert_eq!(resources_differ(&line, &Map::new()).len(), 1);
    }

    #[test]
    fn numa_node_0_may_be_omitted() {
        let got = ordered(&json!({"nodes": [{"id": "0"}, {"ID": 1}]}));
        assert_eq!(got, json!({"nodes": [{}, {"ID": 1}]}));
    }
}
