//! Recorded pod lifecycles, runtime requests and node facts, replayed with our agent on a real
//! runtime and compared.
//!
//! Main entry: [`run`]. The lines of `pods.jsonl` are replayed concurrently, those of a `group`
//! together under one script of node actions. Lines that cannot be replayed here, or all without a
//! runtime, count as not served, with the reason. This module selects what is replayed;
//! [`comparison`] compares.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context as _, Result, anyhow};
use serde_json::Value;
use tokio::sync::Semaphore;

use super::{Difference, Outcome, Verdict};

mod action;
mod agent_client;
mod calls;
mod cgroups;
mod comparison;
mod deliberate;
mod endpoints;
mod files;
mod fixtures;
mod metrics;
mod node_checks;
mod registry;
mod replay;
mod requests;
mod script;
mod states;
mod steady_checks;
mod steady_state;
mod template;
mod testbed;
mod trace;

use calls::Calls;
use registry::Registry;
use replay::ReplayedPod;
use testbed::{NodeVariant, ReplayContext, Testbed};

/// Pods replayed concurrently: they mostly wait, but each start costs half a second of CPU time.
const AT_A_TIME: usize = 16;

/// The image that recorded pods run.
const IMAGE: &str = "localhost/busybox:1";
/// Another name of the same image.
const OTHER_NAME: &str = "localhost/bbalias:1";
/// The runtime's error where mounts are not shared, and the reason why such a line is not served.
const NOT_SHARED: (&str, &str) = ("is not a shared", "the machine's mounts are not shared");
/// Options of a replay.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// The runtime to replay on; without it nothing of this kind is replayed.
    pub runtime: Option<cri::Endpoint>,
    /// Replay only lines whose id, family or group contains one of these words.
    pub only: Vec<String>,
}

/// A missing precondition of a replay, with its remedy.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    #[error("the runtime at {0} does not answer: {1}")]
    NoRuntime(cri::Endpoint, String),
    #[error(
        "the runtime at {0} has no image {1}, which the recorded pods run: a busybox with /bin/sh, \
         imported under that name (ctr --namespace k8s.io images import busybox.tar)"
    )]
    NoImage(cri::Endpoint, &'static str),
}

/// The capabilities of the runtime and the machine.
#[derive(Debug, Clone, Copy)]
struct Capabilities {
    /// Pods can have their own network.
    network: bool,
    /// The runtime has the image under its other name.
    other_name: bool,
    /// A registry that rejects pulls listens at the recorded address.
    registry: bool,
}

/// The lines of the recording's files.
#[derive(Debug, Default)]
pub(super) struct Recording {
    pub(super) pods: Vec<Value>,
    pub(super) cri: Vec<Value>,
    pub(super) node: Vec<Value>,
}

fn text<'a>(line: &'a Value, key: &str) -> &'a str {
    line[key].as_str().unwrap_or_default()
}

fn kind_of(line: &Value) -> String {
    format!("pods/{}", text(line, "family"))
}

fn not_served(kind: String, id: &str, why: impl Into<String>) -> Outcome {
    Outcome {
        kind,
        id: id.to_owned(),
        verdict: Verdict::NotServed,
        quirk: Some(why.into()),
        differences: Vec::new(),
    }
}

impl Recording {
    /// Keeps only the requested lines.
    fn only(&mut self, words: &[String]) {
        if words.is_empty() {
            return;
        }
        let is_asked_for = |line: &Value| {
            ["id", "family", "group", "kind"]
                .iter()
                .any(|key| words.iter().any(|word| text(line, key).contains(word.as_str())))
        };
        for lines in [&mut self.pods, &mut self.cri, &mut self.node] {
            lines.retain(is_asked_for);
        }
    }

    /// Returns all lines as not served.
    fn skipped(&self, why: &str) -> Vec<Outcome> {
        let pods = self.pods.iter().map(|line| not_served(kind_of(line), text(line, "id"), why));
        let kinds = [("cri", &self.cri), ("node", &self.node)];
        let others = kinds.into_iter().flat_map(|(file, lines)| {
            lines.iter().map(move |line| {
                not_served(format!("{file}/{}", text(line, "kind")), text(line, "id"), why)
            })
        });
        pods.chain(others).collect()
    }
}

/// Replays a recording.
pub(super) fn run(mut recording: Recording, options: &Options) -> Result<Vec<Outcome>> {
    let of_node = recording.node.clone();
    recording.only(&options.only);
    let Some(runtime) = &options.runtime else {
        return Ok(recording.skipped("needs --container-runtime-endpoint"));
    };
    if recording.pods.is_empty() && recording.cri.is_empty() && recording.node.is_empty() {
        return Ok(Vec::new());
    }
    let tokio = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    tokio.block_on(replay(recording, of_node, runtime))
}

/// Replays a recording; `of_node` has all its lines about the node, also those not requested.
async fn replay(
    recording: Recording,
    of_node: Vec<Value>,
    runtime: &cri::Endpoint,
) -> Result<Vec<Outcome>> {
    let client = cri::Client::new(runtime.clone());
    check_runtime(&client, runtime).await?;
    let registry = Registry::start().await;
    let capabilities = Capabilities {
        network: testbed::network_is_ready(&client).await,
        other_name: has_image(&client, OTHER_NAME).await,
        registry: registry.is_some(),
    };
    let mut testbed = Testbed::start(runtime).await?;
    let outcomes = replay_on(&mut testbed, recording, &of_node, capabilities).await;
    testbed.end().await;
    outcomes
}

async fn replay_on(
    testbed: &mut Testbed,
    recording: Recording,
    of_node: &[Value],
    capabilities: Capabilities,
) -> Result<Vec<Outcome>> {
    fixtures::make(&testbed.context()).await?;
    testbed.start_agent(&NodeVariant::default()).await?;
    let mut outcomes = Vec::new();
    let mut alone = Vec::new();
    let mut groups: BTreeMap<String, Vec<Value>> = BTreeMap::new();
    for line in recording.pods {
        let why = match line["group"].as_str() {
            Some(group) => script::skip_reason(group).map(str::to_owned),
            None => skip_reason(&line, capabilities),
        };
        if let Some(why) = why {
            outcomes.push(not_served(kind_of(&line), text(&line, "id"), why));
        } else if let Some(group) = line["group"].as_str() {
            groups.entry(group.to_owned()).or_default().push(line);
        } else {
            alone.push(line);
        }
    }
    let mut lives = BTreeMap::new();
    outcomes.extend(replay_serially(&testbed.context(), alone, &mut lives).await?);
    outcomes.extend(
        replay_requests(&testbed.context(), &recording.cri, &lives, capabilities.network).await?,
    );
    for (group, lines) in groups {
        eprintln!("        group {group}, {} pods", lines.len());
        outcomes.extend(replay_group(testbed, &group, &lines).await?);
    }
    let (standing, others): (Vec<Value>, Vec<Value>) =
        recording.node.into_iter().partition(steady_checks::is_about);
    outcomes.extend(steady_checks::check_all(testbed, &standing, of_node).await?);
    testbed.start_agent(&NodeVariant::default()).await?;
    for line in &others {
        outcomes.push(node_checks::check(testbed, line).await?);
    }
    Ok(outcomes)
}

/// Replays the pods that only `cri.jsonl` has, and compares the requests of both files.
async fn replay_requests(
    context: &ReplayContext,
    lines: &[Value],
    lives: &BTreeMap<String, ReplayedPod>,
    network: bool,
) -> Result<Vec<Outcome>> {
    let mut outcomes = Vec::new();
    let mut group_replay = tokio::task::JoinSet::new();
    let mut judged: Vec<(Value, Result<ReplayedPod>)> = Vec::new();
    let permits = Arc::new(Semaphore::new(AT_A_TIME));
    for line in lines {
        let (kind, id) = (format!("cri/{}", text(line, "kind")), text(line, "id"));
        let life = lives.get(id).filter(|_| text(line, "kind") == "pod");
        if let Some(why) = requests::skip_reason(line, life.is_some(), network) {
            outcomes.push(not_served(kind, id, why));
        } else if let Some(life) = life {
            judged.push((line.clone(), Ok(life.clone())));
        } else if text(line, "kind") == "pod" {
            let (context, line, permits) = (context.clone(), line.clone(), Arc::clone(&permits));
            group_replay.spawn(async move {
                let _permit = permits.acquire_owned().await;
                let replayed = requests::replay(&context, &line).await;
                (line, replayed)
            });
        }
    }
    while let Some(next) = group_replay.join_next().await {
        judged.push(next.context("a player failed")?);
    }
    let passed = context.passage.since(0);
    let calls = Calls::read(&passed)?;
    let each =
        judged.iter().map(|(line, replayed)| requests::check(context, line, replayed, &calls));
    outcomes.extend(each);
    let deadlines = lines.iter().filter(|line| text(line, "kind") == "deadlines");
    outcomes.extend(deadlines.map(|line| requests::deadlines(line, &passed)));
    Ok(outcomes)
}

/// Replays and compares the lines of a group.
async fn replay_group(testbed: &mut Testbed, group: &str, lines: &[Value]) -> Result<Vec<Outcome>> {
    let replayed = script::replay(testbed, group, lines).await;
    let context = testbed.context();
    let calls = Calls::read(&context.passage.since(0))?;
    Ok(match replayed {
        Ok(replayed) => {
            let each = lines.iter().zip(replayed);
            each.map(|(line, replayed)| check(&context, line, &Ok(replayed), &calls)).collect()
        }
        Err(error) => {
            let why = format!("{error:#}");
            lines
                .iter()
                .map(|line| check(&context, line, &Err(anyhow!(why.clone())), &calls))
                .collect()
        }
    })
}

async fn check_runtime(client: &cri::Client, endpoint: &cri::Endpoint) -> Result<(), ReplayError> {
    let no_runtime = |error: cri::Error| ReplayError::NoRuntime(endpoint.clone(), error.message);
    client.call(cri::v1::VersionRequest::default()).await.map_err(no_runtime)?;
    if !has_image(client, IMAGE).await {
        return Err(ReplayError::NoImage(endpoint.clone(), IMAGE));
    }
    Ok(())
}

async fn has_image(client: &cri::Client, name: &str) -> bool {
    let image = cri::v1::ImageSpec { image: name.to_owned(), ..Default::default() };
    let request = cri::v1::ImageStatusRequest { image: Some(image), verbose: false };
    client.call(request).await.is_ok_and(|answer| answer.image.is_some())
}

/// Returns the reason why a pod cannot be replayed here, if any.
fn skip_reason(line: &Value, capabilities: Capabilities) -> Option<String> {
    let manifest = line["manifest"].to_string();
    let pulled = || line["events"].to_string().contains("Successfully pulled image");
    if manifest.contains(registry::ADDRESS) && (!capabilities.registry || pulled()) {
        return Some("needs the recording's registry".to_owned());
    }
    if capabilities.other_name && manifest.contains(OTHER_NAME) {
        return Some(format!(
            "the runtime has an image {OTHER_NAME}, and the recorded one had not"
        ));
    }
    if line["events"].to_string().contains("<NAMESERVER>") {
        return Some("depends on the machine's resolver".to_owned());
    }
    if !capabilities.network && replay::needs_network(line) {
        return Some("the runtime has no network for pods".to_owned());
    }
    None
}

/// Replays and compares pods without a group, several at a time.
async fn replay_serially(
    context: &ReplayContext,
    lines: Vec<Value>,
    lives: &mut BTreeMap<String, ReplayedPod>,
) -> Result<Vec<Outcome>> {
    let permits = Arc::new(Semaphore::new(AT_A_TIME));
    let (began, count) = (Instant::now(), lines.len());
    let mut group_replay = tokio::task::JoinSet::new();
    for together in replay::together(lines) {
        let (context, permits) = (context.clone(), Arc::clone(&permits));
        group_replay.spawn(async move {
            let _permit = permits.acquire_owned().await;
            replay::replay_together(&context, together).await
        });
    }
    let mut done: Vec<(Value, Result<ReplayedPod>)> = Vec::new();
    while let Some(next) = group_replay.join_next().await {
        done.extend(next.context("a player failed")?);
        if done.len().is_multiple_of(20) || done.len() == count {
            eprintln!("{:4.0} s  {} of {count} pods", began.elapsed().as_secs_f64(), done.len());
        }
    }
    for (line, replayed) in &done {
        if let Ok(replayed) = replayed {
            lives.insert(text(line, "id").to_owned(), replayed.clone());
        }
    }
    let calls = Calls::read(&context.passage.since(0))?;
    Ok(done.iter().map(|(line, replayed)| check(context, line, replayed, &calls)).collect())
}

fn check(
    context: &ReplayContext,
    line: &Value,
    replayed: &Result<ReplayedPod>,
    calls: &Calls,
) -> Outcome {
    let differences = match replayed {
        Ok(replayed) if line["quirk"].is_string() => {
            let wrong = deliberate::wrong_answer(context, line, replayed);
            return quirk_outcome(
                line,
                wrong,
                comparison::differences(context, line, replayed, calls),
            );
        }
        Ok(replayed) if context.has_event_containing(replayed, NOT_SHARED.0) => {
            return not_served(kind_of(line), text(line, "id"), NOT_SHARED.1);
        }
        Ok(replayed) => {
            let found = comparison::differences(context, line, replayed, calls);
            if comparison::is_by_chance(line, &found) {
                return not_served(kind_of(line), text(line, "id"), comparison::STOPPED_TOO_EARLY);
            }
            let reason = match found.is_empty() {
                true => None,
                false => deliberate::of_pod_as_a_whole(context, line, replayed),
            };
            if let Some(reason) = reason {
                return Outcome {
                    kind: kind_of(line),
                    id: text(line, "id").to_owned(),
                    verdict: Verdict::DeliberatelyDifferent,
                    quirk: Some(reason.to_owned()),
                    differences: found,
                };
            }
            found
        }
        Err(error) => vec![Difference {
            what: "the pod".into(),
            expected: "to be replayed".into(),
            got: format!("{error:#}"),
        }],
    };
    outcome(kind_of(line), line, differences)
}

/// Returns the outcome of a line that records an upstream defect: ours must give the known right
/// answer; other differences follow from that.
fn quirk_outcome(line: &Value, wrong: Option<Difference>, differences: Vec<Difference>) -> Outcome {
    let verdict = if wrong.is_some() { Verdict::Failed } else { Verdict::DeliberatelyDifferent };
    Outcome {
        kind: kind_of(line),
        id: text(line, "id").to_owned(),
        verdict,
        quirk: line["quirk"].as_str().map(str::to_owned),
        differences: wrong.into_iter().chain(differences).collect(),
    }
}

/// Returns the outcome of a line; deliberate differences are separated.
fn outcome(kind: String, line: &Value, differences: Vec<Difference>) -> Outcome {
    let id = text(line, "id").to_owned();
    let (differences, on_purpose) = deliberate::split_deliberate(&id, differences);
    let verdict = match (differences.is_empty(), on_purpose.is_empty()) {
        (false, _) => Verdict::Failed,
        (true, false) => Verdict::DeliberatelyDifferent,
        (true, true) => Verdict::Passed,
    };
    let reason = on_purpose.first().map(|(reason, _)| (*reason).to_owned());
    let mut all = differences;
    all.extend(on_purpose.into_iter().map(|(_, difference)| difference));
    Outcome { kind, id, verdict, quirk: reason, differences: all }
}
