//! Recorded responses of the kubelet's server (kind `http`), compared with ours: [`check`].
//!
//! Compared are status, media type, fields with their types, and values that do not depend on the
//! machine. Additional fields are allowed.

use anyhow::Result;
use http::Method;
use serde_json::{Map, Value, json};

use super::super::Difference;
use super::agent_client::AgentResponse;
use super::steady_state::NAMESPACE;
use super::testbed::{NodeVariant, ReplayContext};
use super::text;

/// The result for a configuration field without effect on the agent.
pub(super) const NOT_REPORTED: &str = "not reported: without effect on the agent";

fn differ(what: impl Into<String>, expected: &Value, got: &Value) -> Option<Difference> {
    let (expected, got) = (shown(expected), shown(got));
    (expected != got).then(|| Difference { what: what.into(), expected, got })
}

fn shown(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// Repeats the recorded requests and compares the responses.
pub(super) async fn check(
    context: &ReplayContext,
    variant: &NodeVariant,
    line: &Value,
) -> Result<Vec<Difference>> {
    let mut found = Vec::new();
    for recorded in line["endpoints"].as_array().into_iter().flatten() {
        let path = text(recorded, "path");
        let response = context.ask(variant, Method::GET, path).await?;
        found.extend(differ(
            format!("status of {path}"),
            &recorded["code"],
            &response.status.into(),
        ));
        let media = &recorded["content_type"];
        found.extend(differ(format!("media type of {path}"), media, &response.content_type.into()));
        if response.status == 404 && line["not_found_body"].is_string() {
            found.extend(differ(path, &line["not_found_body"], &response.body.into()));
        } else if path == "/healthz" && line["healthz_body"].is_string() {
            found.extend(differ(path, &line["healthz_body"], &response.body.into()));
        }
    }
    for recorded in line["requests"].as_array().into_iter().flatten() {
        let path = recorded[0].as_str().unwrap_or_default();
        let response = context.ask(variant, Method::GET, path).await?;
        found.extend(differ(format!("status of {path}"), &recorded[1], &response.status.into()));
        found.extend(differ(path, &recorded[2], &response.body.into()));
    }
    if let Some([status, output]) = line["run"].as_array().map(Vec::as_slice) {
        let first = line["requests"][0][0].as_str().unwrap_or_default();
        let container = first.trim_start_matches("containerLogs/");
        let word = output.as_str().unwrap_or_default().trim();
        let response =
            context.ask(variant, Method::POST, &format!("run/{container}?cmd=echo+{word}")).await?;
        found.extend(differ("status of run", status, &response.status.into()));
        found.extend(differ("run", output, &response.body.into()));
    }
    let path = text(line, "path");
    if !path.is_empty() {
        let response = context.ask(variant, Method::GET, path).await?;
        found.extend(differ(format!("status of {path}"), &200.into(), &response.status.into()));
        if line["content_type"].is_string() {
            let media = Value::from(response.content_type.as_str());
            found.extend(differ(format!("media type of {path}"), &line["content_type"], &media));
        }
        found.extend(body(context, variant, line, path, &response).await?);
    }
    Ok(found)
}

async fn body(
    context: &ReplayContext,
    variant: &NodeVariant,
    line: &Value,
    path: &str,
    response: &AgentResponse,
) -> Result<Vec<Difference>> {
    if line["lines"].is_array() {
        return Ok(lines(line, &response.body));
    }
    let mut ours = parsed(response);
    let mut found = Vec::new();
    if line["shape"].is_object() {
        // Rates need two samples.
        tokio::time::sleep(std::time::Duration::from_secs(1)).await;
        ours = parsed(&context.ask(variant, Method::GET, path).await?);
        shape_differs(&line["shape"], &kind(&ours), "", &mut found);
        let names: Value = ours["node"]["systemContainers"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|container| container["name"].clone())
            .collect();
        found.extend(differ("systemContainers", &line["system_containers"], &names));
        return Ok(found);
    }
    for (recorded, field) in [("kind_field", "kind"), ("apiVersion", "apiVersion")] {
        if line[recorded].is_string() {
            found.extend(differ(field, &line[recorded], &ours[field]));
        }
    }
    if line["example"].is_object() {
        found.extend(example(context, &line["example"], &ours));
    }
    if line["body"].is_object() {
        configuration(context, &line["body"], &ours, &mut found);
    }
    Ok(found)
}

fn parsed(response: &AgentResponse) -> Value {
    serde_json::from_str(&response.body).unwrap_or_default()
}

/// Compares the pod of the same name in a list, without its times.
fn example(context: &ReplayContext, recorded: &Value, ours: &Value) -> Vec<Difference> {
    let name = &recorded["metadata"]["name"];
    let items = ours["items"].as_array().into_iter().flatten();
    let Some(pod) = items.into_iter().find(|pod| pod["metadata"]["name"] == *name) else {
        return differ("items", name, &Value::Null).into_iter().collect();
    };
    let mut found = Vec::new();
    context.template().value(&without_history(recorded), &without_history(pod), "pod", &mut found);
    found
}

/// Removes fields that the API server wrote.
fn without_history(pod: &Value) -> Value {
    let mut pod = pod.clone();
    if let Some(metadata) = pod["metadata"].as_object_mut() {
        metadata.remove("managedFields");
        metadata.remove("resourceVersion");
    }
    pod
}

/// Compares configuration fields that both have; ports and paths are the machine's.
fn configuration(
    context: &ReplayContext,
    recorded: &Value,
    ours: &Value,
    found: &mut Vec<Difference>,
) {
    /// Fields of the recorded machine rather than of its configuration.
    const PLACES: &[&str] = &[
        "address",
        "authentication",
        "authorization",
        "containerRuntimeEndpoint",
        "healthzPort",
        "logging",
        "port",
        "staticPodPath",
        "podLogsDir",
        "tlsCertFile",
        "tlsPrivateKeyFile",
        "resolvConf",
    ];
    let theirs = recorded["kubeletconfig"].as_object().cloned().unwrap_or_default();
    let ours = ours["kubeletconfig"].as_object().cloned().unwrap_or_default();
    let mut template = context.template();
    let empty = Map::new();
    /// Fields without effect on the agent, which it reports only if they are configured.
    const WITHOUT_EFFECT: &[&str] = &[
        "configMapAndSecretChangeDetectionStrategy",
        "containerLogMaxWorkers",
        "contentType",
        "enableControllerAttachDetach",
        "enableDebugFlagsHandler",
        "enableSystemLogHandler",
        "enableSystemLogQuery",
        "eventBurst",
        "eventRecordQPS",
        "failCgroupV1",
        "hairpinMode",
        "healthzBindAddress",
        "httpCheckFrequency",
        "imagePullCredentialsVerificationPolicy",
        "iptablesDropBit",
        "iptablesMasqueradeBit",
        "kubeAPIBurst",
        "kubeAPIQPS",
        "makeIPTablesUtilChains",
        "maxOpenFiles",
        "memoryReservationPolicy",
        "oomScoreAdj",
        "registryBurst",
        "registryPullQPS",
        "streamingConnectionIdleTimeout",
        "syncFrequency",
        "volumePluginDir",
        "volumeStatsAggPeriod",
    ];
    for (name, value) in theirs.iter().filter(|(name, _)| !PLACES.contains(&name.as_str())) {
        let got = ours.get(name).unwrap_or(&Value::Null);
        // An empty map is equivalent to none.
        if got.is_null() && value.as_object() == Some(&empty) {
            continue;
        }
        if got.is_null() && WITHOUT_EFFECT.contains(&name.as_str()) {
            found.extend(differ(format!("kubeletconfig.{name}"), value, &NOT_REPORTED.into()));
            continue;
        }
        template.value(value, got, &format!("kubeletconfig.{name}"), found);
    }
}

/// Returns the fields with their types; for lists, the union of their items.
fn kind(value: &Value) -> Value {
    match value {
        Value::Null => Value::Null,
        Value::Bool(_) => "bool".into(),
        Value::Number(_) => "number".into(),
        Value::String(text) => match objects::timestamp::Timestamp::parse(text) {
            Ok(_) => "time".into(),
            Err(_) => "string".into(),
        },
        Value::Array(items) => {
            let mut all = Value::Null;
            for item in items {
                merge(&mut all, kind(item));
            }
            json!([all])
        }
        Value::Object(fields) => fields
            .iter()
            .map(|(name, value)| (name.clone(), kind(value)))
            .collect::<Map<_, _>>()
            .into(),
    }
}

fn merge(into: &mut Value, more: Value) {
    match (into, more) {
        (Value::Object(into), Value::Object(more)) => {
            for (name, value) in more {
                merge(into.entry(name).or_insert(Value::Null), value);
            }
        }
        (Value::Array(into), Value::Array(more)) => {
            for (into, more) in into.iter_mut().zip(more) {
                merge(into, more);
            }
        }
        (into, more) if into.is_null() => *into = more,
        _ => {}
    }
}

/// Collects recorded fields that ours lacks or has with another type.
fn shape_differs(recorded: &Value, ours: &Value, place: &str, found: &mut Vec<Difference>) {
    match (recorded, ours) {
        (Value::Object(a), Value::Object(b)) => {
            for (name, wanted) in a {
                let got = b.get(name).unwrap_or(&Value::Null);
                shape_differs(wanted, got, &format!("{place}.{name}"), found);
            }
        }
        (Value::Array(a), Value::Array(b)) => {
            for (wanted, got) in a.iter().zip(b) {
                shape_differs(wanted, got, &format!("{place}[]"), found);
            }
        }
        (wanted, got) => found.extend(differ(format!("shape{place}"), wanted, got)),
    }
}

/// Compares metrics with help and type: every recorded line must exist for some pod, and the
/// recording's pods must have no others.
fn lines(line: &Value, text: &str) -> Vec<Difference> {
    let wanted: Vec<&str> =
        line["lines"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let ours: std::collections::BTreeSet<String> = text.lines().map(sample).collect();
    let missing = wanted.iter().filter(|wanted| !ours.contains(**wanted));
    let mut found: Vec<Difference> = missing
        .map(|wanted| Difference {
            what: "line".to_owned(),
            expected: (*wanted).to_owned(),
            got: "none".to_owned(),
        })
        .collect();
    let here = format!("namespace=\"{NAMESPACE}\"");
    let more = ours.iter().filter(|ours| ours.contains(&here) && !wanted.contains(&ours.as_str()));
    found.extend(more.map(|ours| Difference {
        what: "line".to_owned(),
        expected: "none".to_owned(),
        got: ours.clone(),
    }));
    found
}

/// Replaces pod, value and time in a line by placeholders.
fn sample(line: &str) -> String {
    if line.starts_with('#') {
        return line.to_owned();
    }
    let end = line.rfind('}').map_or_else(|| line.find(' ').unwrap_or(line.len()), |at| at + 1);
    let (name, values) = line.split_at(end);
    let mut name = name.to_owned();
    if let Some(at) = name.find("pod=\"") {
        let from = at + "pod=\"".len();
        let to = name[from..].find('"').map_or(name.len(), |length| from + length);
        name.replace_range(from..to, "<POD>");
    }
    let places = ["<VALUE>", "<MS>"];
    let values = values.split_whitespace().zip(places).map(|(_, place)| format!(" {place}"));
    name + &values.collect::<String>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_compared_without_pod_value_and_time() {
        let check = |line: &str, wanted: &str| assert_eq!(sample(line), wanted);
        check("a{c=\"x\",pod=\"p\"} 1.5 100", "a{c=\"x\",pod=\"<POD>\"} <VALUE> <MS>");
        check("a 1", "a <VALUE>");
        check("# HELP a A 1", "# HELP a A 1");
    }

    #[test]
    fn missing_and_surplus_lines_are_reported() {
        let line = json!({"lines": ["a{namespace=\"lives2\",pod=\"<POD>\"} <VALUE>", "b <VALUE>"]});
        let text = "a{namespace=\"lives2\",pod=\"p\"} 1\nb 2\nc{namespace=\"other\"} 3\n";
        assert!(lines(&line, text).is_empty());
        let found = lines(&line, "b 2\nc{namespace=\"lives2\"} 3\n");
        let got: Vec<&str> = found.iter().map(|found| found.got.as_str()).collect();
        assert_eq!(got, ["none", "c{namespace=\"lives2\"} <VALUE>"]);
    }

    #[test]
    fn shapes_differ_by_fields_and_types() {
        let ours = kind(&json!({"t": "2026-01-01T00:00:00Z", "l": [{"a": 1}, {"b": "x"}], "n": 1}));
        let mut found = Vec::new();
        let wanted = json!({"t": "time", "l": [{"a": "number", "b": "string"}]});
        shape_differs(&wanted, &ours, "", &mut found);
        assert!(found.is_empty(), "{found:?}");
        let wanted = json!({"t": "string", "l": [{"c": "number"}]});
        shape_differs(&wanted, &ours, "", &mut found);
        let response: Vec<&str> = found.iter().map(|found| found.what.as_str()).collect();
        assert_eq!(response, ["shape.l[].c", "shape.t"]);
    }
}
