//! What the recording says of the node itself (`node.jsonl`), compared with ours: [`judge`].
//!
//! Played are the Node object, the node's life while agent and runtime are stopped and started or a
//! threshold cannot be met, a start with another policy, and the vocabulary of everything that was played.
//! Figures of the machine's disk and names of images are not compared. What is found on the node while
//! pods stand still is [`super::standing`]'s.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::Result;
use client::kind::NODES;
use serde_json::{Value, json};

use super::super::{Difference, Outcome};
use super::life;
use super::stage::{NODE, PATIENCE, Scene, Shape, Stage};
use super::{not_served, outcome, text};

/// Events that a recorded node had by chance or by what its machine is.
const BY_CHANCE: &[&str] =
    &["CgroupV1", "InvalidDiskCapacity", "ContainerGCFailed", "EvictionThresholdMet"];

/// Why a line is not played, if so.
fn unplayed(line: &Value) -> Option<&'static str> {
    match (text(line, "kind"), text(line, "id")) {
        ("cost", _) => Some("a measurement of another machine"),
        ("node", "node-registered-not-ready") => Some("needs a runtime without a network"),
        ("node" | "vocabulary" | "start-error", _) => None,
        ("node-life", _) => match line["steps"].to_string().contains("device plugin") {
            true => Some("device plugins are not served"),
            false => None,
        },
        ("log", _) => Some("our log has words of its own"),
        _ => Some("a kind of line that is not known"),
    }
}

/// Compares a line; what has to be done to the node for it is done.
pub(super) async fn judge(stage: &mut Stage, line: &Value) -> Result<Outcome> {
    let (kind, id) = (format!("node/{}", text(line, "kind")), text(line, "id"));
    if let Some(why) = unplayed(line) {
        return Ok(not_served(kind, id, why));
    }
    let found = match text(line, "kind") {
        "node" => object(stage, line).await?,
        "node-life" => life(stage, line).await?,
        "start-error" => other_policy(stage, line).await,
        _ => vocabulary(&stage.scene(), line),
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

/// The Node object: labels, conditions, addresses, and the amounts that do not depend on the disk.
async fn object(stage: &Stage, line: &Value) -> Result<Vec<Difference>> {
    let ours: Value = stage.scene().api.get(NODES, "", NODE).await?;
    let theirs = &line["object"];
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
            let of_machine =
                name == "ephemeral-storage" || text(&theirs[list], name).starts_with('<');
            if !of_machine {
                found.extend(differ(&format!("{list} of {name}"), value, &ours[list][name]));
            }
        }
    }
    for name in ["operatingSystem", "architecture", "kubeProxyVersion"] {
        found.extend(differ(name, &theirs["nodeInfo"][name], &ours["nodeInfo"][name]));
    }
    Ok(found)
}

fn conditions(status: &Value) -> Value {
    let conditions = status["conditions"].as_array().into_iter().flatten();
    conditions
        .map(|c| {
            let said = json!([c["status"], c["reason"], c["message"]]);
            (text(c, "type").to_owned(), said)
        })
        .collect::<serde_json::Map<_, _>>()
        .into()
}

/// Does the steps one after the other, and waits for the conditions that were recorded after each.
async fn life(stage: &mut Stage, line: &Value) -> Result<Vec<Difference>> {
    let scene = stage.scene();
    let before: BTreeSet<String> =
        scene.trace.node_events(NODE).iter().map(name_and_count).collect();
    let steps = line["steps"].as_array().cloned().unwrap_or_default();
    let snapshots = line["snapshots"].as_array().cloned().unwrap_or_default();
    let mut found = Vec::new();
    for (index, step) in steps.iter().enumerate() {
        let next = steps.get(index + 1).and_then(|step| step["t"].as_f64()).unwrap_or(f64::MAX);
        let words: Vec<&str> = text(step, "action").split(' ').collect();
        match words.as_slice() {
            ["kubelet", "stopped", ..] => stage.stop_agent().await,
            ["kubelet", "started"] => stage.start_agent(&Shape::default()).await?,
            ["kubelet", "restarted:", "evictionHard", signal, "raised", "to", value, ..] => {
                let hard = json!({ *signal: value.trim_end_matches(',') });
                let config = json!({"evictionHard": hard});
                stage.start_agent(&Shape { config, ..Shape::default() }).await?;
            }
            ["container", "runtime", "stopped"] => stage.close_runtime().await,
            ["container", "runtime", "started"] => stage.open_runtime().await?,
            _ => continue,
        }
        let t = step["t"].as_f64().unwrap_or_default();
        let after = snapshots.iter().rfind(|snapshot| {
            let at = snapshot["t"].as_f64().unwrap_or_default();
            at >= t && at < next
        });
        if let Some(snapshot) = after {
            found.extend(until(&scene, &conditions(snapshot)).await);
        }
    }
    stage.start_agent(&Shape::default()).await?;
    found.extend(events(&scene, line, &before).await);
    Ok(found)
}

/// Waits until the node's conditions are as they should be; what they are if they never are.
async fn until(scene: &Scene, wanted: &Value) -> Option<Difference> {
    let mut last = Value::Null;
    let looking = async {
        loop {
            if let Ok(node) = scene.api.get::<Value>(NODES, "", NODE).await {
                last = conditions(&node["status"]);
            }
            if last == *wanted {
                return;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    let came = tokio::time::timeout(2 * PATIENCE, looking).await.is_ok();
    if came { None } else { differ("conditions", wanted, &last) }
}

fn name_and_count(event: &Value) -> String {
    format!("{} {}", text(&event["metadata"], "name"), event["count"])
}

/// The Events of the node that are new, by type, reason and message.
async fn events(scene: &Scene, line: &Value, before: &BTreeSet<String>) -> Vec<Difference> {
    let wanted: BTreeSet<String> = line["events"]
        .as_array()
        .into_iter()
        .flatten()
        .filter(|event| !BY_CHANCE.contains(&text(event, "reason")))
        .map(told)
        .collect();
    let ours = || -> BTreeSet<String> {
        let all = scene.trace.node_events(NODE);
        all.iter().filter(|event| !before.contains(&name_and_count(event))).map(told).collect()
    };
    life::wait(scene, PATIENCE, Duration::ZERO, || wanted.is_subset(&ours())).await;
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

fn told(event: &Value) -> String {
    format!("{} {}: {}", text(event, "type"), text(event, "reason"), text(event, "message"))
}

/// A start with another policy. Upstream refuses it and asks for the file to be deleted; ours takes over
/// what fits and keeps the old file beside the new one.
async fn other_policy(stage: &mut Stage, line: &Value) -> Vec<Difference> {
    let change = text(line, "change");
    let (what, expected) = ("start".to_owned(), text(line, "message").to_owned());
    if !change.starts_with("cpuManagerPolicy none -> static") {
        return vec![Difference { what, expected, got: format!("not known how: {change}") }];
    }
    let shape = Shape::default();
    let file = stage.scene().root(&shape).join("cpu_manager_state");
    let before = std::fs::read_to_string(&file).unwrap_or_default();
    let config = json!({"cpuManagerPolicy": "static", "reservedSystemCPUs": "0"});
    let started = stage.start_agent(&Shape { config, ..shape.clone() }).await;
    let got = match started {
        Ok(()) if is_kept(&file, &before) => MIGRATED.to_owned(),
        Ok(()) => "it started, and the old file is gone".to_owned(),
        Err(error) => format!("{error:#}"),
    };
    let got = match stage.start_agent(&shape).await {
        Ok(()) => stage.scene().template().localised(&got),
        Err(error) => format!("it did not start again: {error:#}"),
    };
    vec![Difference { what, expected, got }]
}

/// What comes of a start with another policy when all is well.
pub(super) const MIGRATED: &str = "it started, and kept the old file beside the new one";

/// Whether a file that has been replaced is beside the new one as it was.
fn is_kept(file: &std::path::Path, before: &str) -> bool {
    let (Some(directory), Some(name)) = (file.parent(), file.file_name()) else { return false };
    let start = format!("{}.backup-", name.to_string_lossy());
    let beside = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let mut backups = beside.filter(|of| of.file_name().to_string_lossy().starts_with(&start));
    !before.is_empty()
        && backups.any(|of| std::fs::read_to_string(of.path()).is_ok_and(|text| text == before))
}

/// Whether anything was said of pods that the recorded kubelet has no word for.
fn vocabulary(scene: &Scene, line: &Value) -> Vec<Difference> {
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
    for ((namespace, name), _) in scene.trace.lives() {
        for event in scene.trace.events(&namespace, &name) {
            let word = format!("{} {}", text(&event, "type"), text(&event, "reason"));
            if !events.contains(&word) {
                found.push(Difference {
                    what: format!("event of {name}"),
                    expected: "one of the recording's".to_owned(),
                    got: word,
                });
            }
        }
        for pod in scene.trace.whole(&namespace, &name) {
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
    fn what_is_not_played_says_why() {
        let check = |kind: &str, id: &str, played: bool| {
            let line = json!({"kind": kind, "id": id, "steps": []});
            assert_eq!(unplayed(&line).is_none(), played, "{kind} {id}");
        };
        check("cost", "burst", false);
        check("node", "node-policy-none", true);
        check("node-life", "kubelet-restart", true);
        check("something", "new", false);
    }

    #[test]
    fn conditions_are_compared_by_what_they_say() {
        let status = json!({"conditions": [
            {"type": "Ready", "status": "True", "reason": "R", "message": "m", "lastHeartbeatTime": "t"},
        ]});
        assert_eq!(conditions(&status), json!({"Ready": ["True", "R", "m"]}));
    }

    #[test]
    fn an_old_file_is_kept_only_if_it_is_as_it_was() {
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
