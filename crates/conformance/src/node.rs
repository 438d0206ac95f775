//! Recorded lives of pods, requests to the runtime and facts of a node, played with our own agent on a
//! real runtime and compared.
//!
//! Main entry: [`run`]. The lines of `pods.jsonl` are played many at a time, those of a `group` under one
//! script of node actions alone; what cannot be played here is counted as not served, with the reason.
//! Without a runtime that is everything. This module says what is played; [`verdict`] judges.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context as _, Result, anyhow};
use serde_json::Value;
use tokio::sync::Semaphore;

use super::{Difference, Outcome, Verdict};

mod action;
mod asker;
mod calls;
mod deliberate;
mod endpoints;
mod facts;
mod figures;
mod files;
mod fixtures;
mod groups;
mod life;
mod registry;
mod requests;
mod script;
mod significant;
mod stage;
mod standing;
mod tableau;
mod template;
mod trace;
mod verdict;

use calls::Calls;
use life::Played;
use registry::Registry;
use stage::{Scene, Shape, Stage};

/// Lives played at a time: most of their time is waiting, but each start costs half a second of a CPU.
const AT_A_TIME: usize = 16;

/// The image that recorded pods run.
const IMAGE: &str = "localhost/busybox:1";
/// Another name of the same image.
const OTHER_NAME: &str = "localhost/bbalias:1";
/// What the runtime says where a mount cannot be passed on to others, and why a line is not served then.
const NOT_SHARED: (&str, &str) = ("is not a shared", "the machine's mounts are not shared");
/// What to play with.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// The runtime to play on; without it nothing of this kind is played.
    pub runtime: Option<cri::Endpoint>,
    /// Play only lines whose id, family or group has one of these words in it.
    pub only: Vec<String>,
}

/// What is missing to play anything, and how to get it.
#[derive(Debug, thiserror::Error)]
pub enum CannotPlay {
    #[error("the runtime at {0} does not answer: {1}")]
    NoRuntime(cri::Endpoint, String),
    #[error(
        "the runtime at {0} has no image {1}, which the recorded pods run: a busybox with /bin/sh, \
         imported under that name (ctr --namespace k8s.io images import busybox.tar)"
    )]
    NoImage(cri::Endpoint, &'static str),
}

/// What there is to play with.
#[derive(Debug, Clone, Copy)]
struct Means {
    /// Pods can have a network of their own.
    network: bool,
    /// The runtime has the image under its other name.
    other_name: bool,
    /// A registry that refuses is where the recording's was.
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
    /// Leaves what is asked for.
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

    /// Everything, as not served.
    fn unplayed(&self, why: &str) -> Vec<Outcome> {
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

/// Plays a recording.
pub(super) fn run(mut recording: Recording, options: &Options) -> Result<Vec<Outcome>> {
    let of_node = recording.node.clone();
    recording.only(&options.only);
    let Some(runtime) = &options.runtime else {
        return Ok(recording.unplayed("needs --container-runtime-endpoint"));
    };
    if recording.pods.is_empty() && recording.cri.is_empty() && recording.node.is_empty() {
        return Ok(Vec::new());
    }
    let tokio = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    tokio.block_on(play(recording, of_node, runtime))
}

/// Plays a recording; `of_node` is all it says of its node, asked for or not.
async fn play(
    recording: Recording,
    of_node: Vec<Value>,
    runtime: &cri::Endpoint,
) -> Result<Vec<Outcome>> {
    let client = cri::Client::new(runtime.clone());
    check_runtime(&client, runtime).await?;
    let registry = Registry::start().await;
    let means = Means {
        network: stage::network_is_ready(&client).await,
        other_name: has_image(&client, OTHER_NAME).await,
        registry: registry.is_some(),
    };
    let mut stage = Stage::start(runtime).await?;
    let outcomes = play_on(&mut stage, recording, &of_node, means).await;
    stage.end().await;
    outcomes
}

async fn play_on(
    stage: &mut Stage,
    recording: Recording,
    of_node: &[Value],
    means: Means,
) -> Result<Vec<Outcome>> {
    fixtures::make(&stage.scene()).await?;
    stage.start_agent(&Shape::default()).await?;
    let mut outcomes = Vec::new();
    let mut alone = Vec::new();
    let mut groups: BTreeMap<String, Vec<Value>> = BTreeMap::new();
    for line in recording.pods {
        let why = match line["group"].as_str() {
            Some(group) => script::unplayable(group).map(str::to_owned),
            None => unplayable(&line, means),
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
    outcomes.extend(play_alone(&stage.scene(), alone, &mut lives).await?);
    outcomes.extend(play_requests(&stage.scene(), &recording.cri, &lives, means.network).await?);
    for (group, lines) in groups {
        eprintln!("        group {group}, {} pods", lines.len());
        outcomes.extend(play_group(stage, &group, &lines).await?);
    }
    let (standing, others): (Vec<Value>, Vec<Value>) =
        recording.node.into_iter().partition(standing::is_about);
    outcomes.extend(standing::judge_all(stage, &standing, of_node).await?);
    stage.start_agent(&Shape::default()).await?;
    for line in &others {
        outcomes.push(facts::judge(stage, line).await?);
    }
    Ok(outcomes)
}

/// Plays what `cri.jsonl` has and `pods.jsonl` has not, and compares the requests of both.
async fn play_requests(
    scene: &Scene,
    lines: &[Value],
    lives: &BTreeMap<String, Played>,
    network: bool,
) -> Result<Vec<Outcome>> {
    let mut outcomes = Vec::new();
    let mut playing = tokio::task::JoinSet::new();
    let mut judged: Vec<(Value, Result<Played>)> = Vec::new();
    let permits = Arc::new(Semaphore::new(AT_A_TIME));
    for line in lines {
        let (kind, id) = (format!("cri/{}", text(line, "kind")), text(line, "id"));
        let life = lives.get(id).filter(|_| text(line, "kind") == "pod");
        if let Some(why) = requests::unplayable(line, life.is_some(), network) {
            outcomes.push(not_served(kind, id, why));
        } else if let Some(life) = life {
            judged.push((line.clone(), Ok(life.clone())));
        } else if text(line, "kind") == "pod" {
            let (scene, line, permits) = (scene.clone(), line.clone(), Arc::clone(&permits));
            playing.spawn(async move {
                let _permit = permits.acquire_owned().await;
                let played = requests::play(&scene, &line).await;
                (line, played)
            });
        }
    }
    while let Some(next) = playing.join_next().await {
        judged.push(next.context("a player failed")?);
    }
    let passed = scene.passage.since(0);
    let calls = Calls::read(&passed)?;
    let each = judged.iter().map(|(line, played)| requests::judge(scene, line, played, &calls));
    outcomes.extend(each);
    let deadlines = lines.iter().filter(|line| text(line, "kind") == "deadlines");
    outcomes.extend(deadlines.map(|line| requests::deadlines(line, &passed)));
    Ok(outcomes)
}

/// Plays the lines of a group and judges them.
async fn play_group(stage: &mut Stage, group: &str, lines: &[Value]) -> Result<Vec<Outcome>> {
    let played = script::play(stage, group, lines).await;
    let scene = stage.scene();
    let calls = Calls::read(&scene.passage.since(0))?;
    Ok(match played {
        Ok(played) => {
            let each = lines.iter().zip(played);
            each.map(|(line, played)| judge(&scene, line, &Ok(played), &calls)).collect()
        }
        Err(error) => {
            let why = format!("{error:#}");
            lines
                .iter()
                .map(|line| judge(&scene, line, &Err(anyhow!(why.clone())), &calls))
                .collect()
        }
    })
}

async fn check_runtime(client: &cri::Client, endpoint: &cri::Endpoint) -> Result<(), CannotPlay> {
    let no_runtime = |error: cri::Error| CannotPlay::NoRuntime(endpoint.clone(), error.message);
    client.call(cri::v1::VersionRequest::default()).await.map_err(no_runtime)?;
    if !has_image(client, IMAGE).await {
        return Err(CannotPlay::NoImage(endpoint.clone(), IMAGE));
    }
    Ok(())
}

async fn has_image(client: &cri::Client, name: &str) -> bool {
    let image = cri::v1::ImageSpec { image: name.to_owned(), ..Default::default() };
    let request = cri::v1::ImageStatusRequest { image: Some(image), verbose: false };
    client.call(request).await.is_ok_and(|answer| answer.image.is_some())
}

/// Why a life cannot be played here, if so.
fn unplayable(line: &Value, means: Means) -> Option<String> {
    let manifest = line["manifest"].to_string();
    let pulled = || line["events"].to_string().contains("Successfully pulled image");
    if manifest.contains(registry::ADDRESS) && (!means.registry || pulled()) {
        return Some("needs the recording's registry".to_owned());
    }
    if means.other_name && manifest.contains(OTHER_NAME) {
        return Some(format!(
            "the runtime has an image {OTHER_NAME}, and the recorded one had not"
        ));
    }
    if line["events"].to_string().contains("<NAMESERVER>") {
        return Some("depends on the machine's resolver".to_owned());
    }
    if !means.network && life::needs_network(line) {
        return Some("the runtime has no network for pods".to_owned());
    }
    None
}

/// Plays lives that nothing else belongs to, many at a time, and judges them.
async fn play_alone(
    scene: &Scene,
    lines: Vec<Value>,
    lives: &mut BTreeMap<String, Played>,
) -> Result<Vec<Outcome>> {
    let permits = Arc::new(Semaphore::new(AT_A_TIME));
    let (began, count) = (Instant::now(), lines.len());
    let mut playing = tokio::task::JoinSet::new();
    for together in life::together(lines) {
        let (scene, permits) = (scene.clone(), Arc::clone(&permits));
        playing.spawn(async move {
            let _permit = permits.acquire_owned().await;
            life::play_together(&scene, together).await
        });
    }
    let mut done: Vec<(Value, Result<Played>)> = Vec::new();
    while let Some(next) = playing.join_next().await {
        done.extend(next.context("a player failed")?);
        if done.len().is_multiple_of(20) || done.len() == count {
            eprintln!("{:4.0} s  {} of {count} pods", began.elapsed().as_secs_f64(), done.len());
        }
    }
    for (line, played) in &done {
        if let Ok(played) = played {
            lives.insert(text(line, "id").to_owned(), played.clone());
        }
    }
    let calls = Calls::read(&scene.passage.since(0))?;
    Ok(done.iter().map(|(line, played)| judge(scene, line, played, &calls)).collect())
}

fn judge(scene: &Scene, line: &Value, played: &Result<Played>, calls: &Calls) -> Outcome {
    let differences = match played {
        Ok(played) if line["quirk"].is_string() => {
            let wrong = deliberate::wrong_answer(scene, line, played);
            return quirk_outcome(line, wrong, verdict::differences(scene, line, played, calls));
        }
        Ok(played) if scene.says_of(played, NOT_SHARED.0) => {
            return not_served(kind_of(line), text(line, "id"), NOT_SHARED.1);
        }
        Ok(played) => {
            let found = verdict::differences(scene, line, played, calls);
            if verdict::is_by_chance(line, &found) {
                return not_served(kind_of(line), text(line, "id"), verdict::STRUCK);
            }
            let reason = match found.is_empty() {
                true => None,
                false => deliberate::of_life(scene, line, played),
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
            what: "the life".into(),
            expected: "to be played".into(),
            got: format!("{error:#}"),
        }],
    };
    outcome(kind_of(line), line, differences)
}

/// What comes of a line that records a defect of upstream: ours has to be the right answer, which is known
/// here, and other differences follow from it.
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

/// What differences mean: some are on purpose.
fn outcome(kind: String, line: &Value, differences: Vec<Difference>) -> Outcome {
    let id = text(line, "id").to_owned();
    let (differences, on_purpose) = deliberate::apart(&id, differences);
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
