//! Recorded facts of the node itself (`node.jsonl`), compared with ours: [`check`].
//!
//! Replayed are the Node object, the node's conditions while agent and runtime are restarted or a
//! threshold is exceeded, a start with another policy, and the vocabulary of all replays. Disk
//! sizes and image names are not compared. [`super::steady_checks`] compares the node while pods
//! run on it.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::Result;
use client::kind::NODES;
use serde_json::{Value, json};

use super::super::{Difference, Outcome};
use super::replay;
use super::testbed::{
    NODE, NodeVariant, ReplayContext, TIMEOUT, Testbed, network_is_ready, out_of_reach,
};
use super::{not_served, outcome, steady_state, text};

/// Events that a recorded node had at random or because of its machine.
const BY_CHANCE: &[&str] =
    &["CgroupV1", "InvalidDiskCapacity", "ContainerGCFailed", "EvictionThresholdMet"];

/// Returns the reason why a line is not replayed on a runtime with or without a pod network, if
/// any.
fn skipped(line: &Value, network: bool) -> Option<&'static str> {
    let recorded = line.to_string();
    match network {
        true if recorded.contains("NetworkReady=false") => {
            return Some("needs a runtime without a network");
        }
        false if recorded.contains("kubelet is posting ready status") => {
            return Some("the runtime has no network for pods");
        }
        _ => {}
    }
    match (text(line, "kind"), text(line, "id")) {
        ("cost", _) => Some("a measurement of another machine"),
        ("node", _) if steady_state::variant(steady_state::policy(line)).is_none() => {
            Some("the node's configuration is unknown")
        }
        ("start-error", _) if change_of_policy(text(line, "change")).is_none() => {
            Some("the change is unknown")
        }
        ("node" | "vocabulary" | "start-error", _) => None,
        ("node-life", _) => match line["steps"].to_string().contains("device plugin") {
            true => Some("device plugins are not served"),
            false => None,
        },
        ("log", _) => Some("log messages are not compared"),
        _ => Some("unknown kind of line"),
    }
}

/// Replays and compares a line.
pub(super) async fn check(testbed: &mut Testbed, line: &Value) -> Result<Outcome> {
    let (kind, id) = (format!("node/{}", text(line, "kind")), text(line, "id"));
    let network = network_is_ready(&testbed.context().runtime).await;
    if let Some(why) = skipped(line, network) {
        return Ok(not_served(kind, id, why));
    }
    let found = match text(line, "kind") {
        "node" => object(testbed, line).await?,
        "node-life" => lifecycle(testbed, line).await?,
        "start-error" => other_policy(testbed, line).await,
        _ => vocabulary(&testbed.context(), line),
    };
    Ok(outcome(kind, line, found))
}

fn differ(what: &str, expected: &Value, got: &Value) -> Option<Difference> {
    (expected != got).then(|| Difference {
        what: what.to_owned(),
        expected: expected.to_string(),
        got: got.to_string(),
    })
}

/// Waits for the Node object of an agent with the recorded configuration; an earlier agent may have
/// left another one.
async fn object(testbed: &mut Testbed, line: &Value) -> Result<Vec<Difference>> {
    let variant = steady_state::variant(steady_state::policy(line)).unwrap_or_default();
    testbed.start_agent(&variant).await?;
    let api = testbed.context().api;
    let mut found = Vec::new();
    let looking = async {
        loop {
            let ours: Value = api.get(NODES, "", NODE).await?;
            found = object_differs(&line["object"], &ours);
            if found.is_empty() {
                return anyhow::Ok(());
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    if let Ok(looked) = tokio::time::timeout(TIMEOUT, looking).await {
        looked?;
    }
    if variant != NodeVariant::default() {
        testbed.start_agent(&NodeVariant::default()).await?;
    }
    Ok(found)
}

/// Compares labels, conditions, addresses, and amounts that do not depend on the machine's memory
/// and disk.
fn object_differs(theirs: &Value, ours: &Value) -> Vec<Difference> {
    let mut found = Vec::new();
    found.extend(differ("labels", &theirs["metadata"]["labels"], &ours["metadata"]["labels"]));
    for (name, value) in theirs["metadata"]["annotations"].as_object().into_iter().flatten() {
        found.extend(differ(name, value, &ours["metadata"]["annotations"][name]));
    }
    let (theirs, ours) = (&theirs["status"], &ours["status"]);
    found.extend(differ("conditions", &conditions(theirs), &conditions(ours)));
    let types = |status: &Value| -> Value {
        let addresses = status["addresses"].as_array().into_iter().flatten();
        addresses.map(|address| address["type"].clone()).collect()
    };
    found.extend(differ("addresses", &types(theirs), &types(ours)));
    for list in ["capacity", "allocatable"] {
        for (name, value) in theirs[list].as_object().into_iter().flatten() {
            let of_machine = matches!(name.as_str(), "ephemeral-storage" | "memory")
                || text(&theirs[list], name).starts_with('<');
            if !of_machine {
                found.extend(differ(&format!("{list} of {name}"), value, &ours[list][name]));
            }
        }
    }
    for name in ["operatingSystem", "architecture", "kubeProxyVersion"] {
        found.extend(differ(name, &theirs["nodeInfo"][name], &ours["nodeInfo"][name]));
    }
    found
}

fn conditions(status: &Value) -> Value {
    let conditions = status["conditions"].as_array().into_iter().flatten();
    conditions
        .map(|c| {
            let fields = json!([c["status"], c["reason"], c["message"]]);
            (text(c, "type").to_owned(), fields)
        })
        .collect::<serde_json::Map<_, _>>()
        .into()
}

/// Runs the steps in order, and waits for the conditions recorded after each.
async fn lifecycle(testbed: &mut Testbed, line: &Value) -> Result<Vec<Difference>> {
    let context = testbed.context();
    let before: BTreeSet<String> =
        context.trace.node_events(NODE).iter().map(name_and_count).collect();
    let steps = line["steps"].as_array().cloned().unwrap_or_default();
    let snapshots = line["snapshots"].as_array().cloned().unwrap_or_default();
    let mut found = Vec::new();
    for (index, step) in steps.iter().enumerate() {
        let next = steps.get(index + 1).and_then(|step| step["t"].as_f64()).unwrap_or(f64::MAX);
        let words: Vec<&str> = text(step, "action").split(' ').collect();
        match words.as_slice() {
            ["kubelet", "stopped", ..] => testbed.stop_agent().await,
            ["kubelet", "started"] => testbed.start_agent(&NodeVariant::default()).await?,
            ["kubelet", "restarted:", "evictionHard", signal, "raised", "to", value, ..] => {
                let config = json!({"evictionHard": out_of_reach(signal, value)});
                testbed.start_agent(&NodeVariant { config, ..NodeVariant::default() }).await?;
            }
            ["container", "runtime", "stopped"] => testbed.close_runtime().await,
            ["container", "runtime", "started"] => testbed.open_runtime().await?,
            _ => continue,
        }
        let t = step["t"].as_f64().unwrap_or_default();
        let after = snapshots.iter().rfind(|snapshot| {
            let at = snapshot["t"].as_f64().unwrap_or_default();
            at >= t && at < next
        });
        if let Some(snapshot) = after {
            found.extend(until(&context, &conditions(snapshot)).await);
        }
    }
    testbed.start_agent(&NodeVariant::default()).await?;
    found.extend(events(&context, line, &before).await);
    Ok(found)
}

/// Waits for the recorded conditions; returns the difference on a timeout.
async fn until(context: &ReplayContext, wanted: &Value) -> Option<Difference> {
    let mut last = Value::Null;
    let looking = async {
        loop {
            if let Ok(node) = context.api.get::<Value>(NODES, "", NODE).await {
                last = conditions(&node["status"]);
            }
            if last == *wanted {
                return;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    let came = tokio::time::timeout(2 * TIMEOUT, looking).await.is_ok();
    if came { None } else { differ("conditions", wanted, &last) }
}

fn name_and_count(event: &Value) -> String {
    format!("{} {}", text(&event["metadata"], "name"), event["count"])
}

/// Compares the new Events of the node by type, reason and message.
async fn events(
    context: &ReplayContext,
    line: &Value,
    before: &BTreeSet<String>,
) -> Vec<Difference> {
    let wanted: BTreeSet<String> = line["events"]
        .as_array()
        .into_iter()
        .flatten()
        .filter(|event| !BY_CHANCE.contains(&text(event, "reason")))
        .map(summary)
        .collect();
    let ours = || -> BTreeSet<String> {
        let all = context.trace.node_events(NODE);
        all.iter().filter(|event| !before.contains(&name_and_count(event))).map(summary).collect()
    };
    replay::wait(context, TIMEOUT, Duration::ZERO, || wanted.is_subset(&ours())).await;
    let ours = ours();
    let missing = wanted.difference(&ours);
    missing
        .map(|event| Difference {
            what: "event".to_owned(),
            expected: event.clone(),
            got: format!("{ours:?}"),
        })
        .collect()
}

fn summary(event: &Value) -> String {
    format!("{} {}: {}", text(event, "type"), text(event, "reason"), text(event, "message"))
}

/// Starts with another policy. Upstream fails and asks to delete the file; ours migrates what fits
/// and keeps the old file next to the new one.
async fn other_policy(testbed: &mut Testbed, line: &Value) -> Vec<Difference> {
    let (what, expected) = ("start".to_owned(), text(line, "message").to_owned());
    let Some((file, [old, new])) = change_of_policy(text(line, "change")) else {
        return Vec::new();
    };
    let variant = NodeVariant::default();
    let file = testbed.context().root(&variant).join(file);
    let with = |config: Value| NodeVariant { config, ..variant.clone() };
    let got = match testbed.start_agent(&with(old)).await {
        Err(error) => format!("it did not start before the change: {error:#}"),
        Ok(()) => {
            let before = std::fs::read_to_string(&file).unwrap_or_default();
            match testbed.start_agent(&with(new)).await {
                Ok(()) if is_kept(&file, &before) => MIGRATED.to_owned(),
                Ok(()) => "it started, and the old file is gone".to_owned(),
                Err(error) => format!("{error:#}"),
            }
        }
    };
    let got = match testbed.start_agent(&variant).await {
        Ok(()) => testbed.context().template().localised(&got),
        Err(error) => format!("it did not start again: {error:#}"),
    };
    vec![Difference { what, expected, got }]
}

/// Parses a change such as `cpuManagerPolicy none -> static with ...` into its state file and the
/// configurations before and after it.
fn change_of_policy(change: &str) -> Option<(&'static str, [Value; 2])> {
    let mut words = change.split(' ');
    let (field, old, arrow, new) = (words.next()?, words.next()?, words.next()?, words.next()?);
    let state_of = |policy: &str| match (field, policy) {
        ("cpuManagerPolicy", "none") | ("memoryManagerPolicy", "None") => Some(json!({})),
        ("cpuManagerPolicy", "static") => {
            Some(json!({"cpuManagerPolicy": "static", "reservedSystemCPUs": "0"}))
        }
        ("memoryManagerPolicy", "Static") => Some(json!({
            "memoryManagerPolicy": "Static",
            "reservedMemory": [{"numaNode": 0, "limits": {"memory": "600Mi"}}],
        })),
        _ => None,
    };
    let file = match field {
        "cpuManagerPolicy" => "cpu_manager_state",
        "memoryManagerPolicy" => "memory_manager_state",
        _ => return None,
    };
    (arrow == "->").then_some(())?;
    Some((file, [state_of(old)?, state_of(new)?]))
}

/// The expected result of a start with another policy.
pub(super) const MIGRATED: &str = "started, and kept the old file next to the new one";

/// Reports whether a replaced file is kept unchanged next to the new one.
fn is_kept(file: &std::path::Path, before: &str) -> bool {
    let (Some(directory), Some(name)) = (file.parent(), file.file_name()) else { return false };
    let start = format!("{}.backup-", name.to_string_lossy());
    let beside = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let mut backups =
        beside.filter(|entry| entry.file_name().to_string_lossy().starts_with(&start));
    !before.is_empty()
        && backups
            .any(|entry| std::fs::read_to_string(entry.path()).is_ok_and(|text| text == before))
}

/// Compares the reasons that pods reported with those that the recorded kubelet knows.
fn vocabulary(context: &ReplayContext, line: &Value) -> Vec<Difference> {
    let words = |key: &str| -> BTreeSet<String> {
        match &line[key] {
            Value::Object(fields) => fields.keys().cloned().collect(),
            Value::Array(items) => {
                items.iter().filter_map(Value::as_str).map(str::to_owned).collect()
            }
            _ => BTreeSet::new(),
        }
    };
    let (events, reasons) = (words("events"), words("container_reasons"));
    let mut found = Vec::new();
    for ((namespace, name), _) in context.trace.all_pods() {
        for event in context.trace.events(&namespace, &name) {
            let word = format!("{} {}", text(&event, "type"), text(&event, "reason"));
            if !events.contains(&word) {
                found.push(Difference {
                    what: format!("event of {name}"),
                    expected: "one of the recording's".to_owned(),
                    got: word,
                });
            }
        }
        for pod in context.trace.whole(&namespace, &name) {
            for state in ["waiting", "terminated"] {
                let statuses = pod["status"]["containerStatuses"].as_array().into_iter().flatten();
                for reason in statuses.filter_map(|c| c["state"][state]["reason"].as_str()) {
                    let known = reasons.iter().any(|word| word.ends_with(reason));
                    if !known {
                        found.push(Difference {
                            what: format!("{state} of {name}"),
                            expected: "one of the recording's".to_owned(),
                            got: reason.to_owned(),
                        });
                    }
                }
            }
        }
    }
    found.dedup_by(|a, b| a.what == b.what && a.got == b.got);
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn skipped_lines_have_a_reason() {
        let check = |kind: &str, id: &str, replayed: bool| {
            let line = json!({"kind": kind, "id": id, "steps": []});
            assert_eq!(skipped(&line, true).is_none(), replayed, "{kind} {id}");
        };
        check("node", "node-policy-static", true);
        check("node", "node-policy-odd", false);
        check("start-error", "start-refused", false);
        check("cost", "burst", false);
        check("node", "node-policy-none", true);
        check("node-life", "kubelet-restart", true);
        check("something", "new", false);
    }

    #[test]
    fn node_lines_need_the_recorded_network_state() {
        let line =
            |message: &str| json!({"kind": "node", "id": "n", "object": {"message": message}});
        let without = line("container runtime network not ready: NetworkReady=false");
        let with = line("kubelet is posting ready status");
        assert!(skipped(&without, true).is_some() && skipped(&without, false).is_none());
        assert!(skipped(&with, false).is_some() && skipped(&with, true).is_none());
    }

    #[test]
    fn changes_of_policy_are_parsed() {
        let (file, [old, new]) =
            change_of_policy("cpuManagerPolicy none -> static with the old state file").unwrap();
        assert_eq!((file, old), ("cpu_manager_state", json!({})));
        assert_eq!(new["cpuManagerPolicy"], "static");
        let (file, [old, _]) = change_of_policy("memoryManagerPolicy Static -> None").unwrap();
        assert_eq!(file, "memory_manager_state");
        assert_eq!(old["memoryManagerPolicy"], "Static");
        assert!(change_of_policy("maxPods 3 -> 4").is_none());
        assert!(change_of_policy("").is_none());
    }

    #[test]
    fn conditions_are_compared_without_times() {
        let status = json!({"conditions": [
            {"type": "Ready", "status": "True", "reason": "R", "message": "m", "lastHeartbeatTime": "t"},
        ]});
        assert_eq!(conditions(&status), json!({"Ready": ["True", "R", "m"]}));
    }

    #[test]
    fn old_file_counts_only_if_unchanged() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("state");
        std::fs::write(&file, "new").unwrap();
        assert!(!is_kept(&file, "old"));
        std::fs::write(directory.path().join("state.backup-1"), "old").unwrap();
        assert!(is_kept(&file, "old"));
        assert!(!is_kept(&file, "other"));
        assert!(!is_kept(&file, ""));
    }
}
