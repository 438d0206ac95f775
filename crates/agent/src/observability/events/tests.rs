use client::events::{Correlator, Event, EventApi, InvolvedObject, Outcome};
use client::kind::PODS;
use objects::timestamp::Timestamp;
use serde_json::Value;

use super::*;
use rig::golden_node::lines;

/// Parses a recorded event from its reason and message.
fn parse_event(reason: &str, message: &str) -> Option<AgentEvent> {
    let text = str::to_owned;
    let quoted =
        |prefix: &str, suffix: &str| message.strip_prefix(prefix)?.strip_suffix(suffix).map(text);
    let probe = |what: &str| {
        let (kind, message_part) = message.split_once(what)?;
        let kind = match kind {
            "Liveness" => ProbeKind::Liveness,
            "Readiness" => ProbeKind::Readiness,
            "Startup" => ProbeKind::Startup,
            _ => return None,
        };
        Some((kind, message_part.to_owned()))
    };
    let resize = |word: &str, step: ResizeStep| {
        let pod = message.strip_prefix(&format!("Pod resize {word}: "))?.to_owned();
        Some(AgentEvent::Resize { step, pod })
    };
    Some(match reason {
        "Pulling" => AgentEvent::Pulling { image: quoted("Pulling image \"", "\"")? },
        "Pulled" if message.starts_with("Container image") => AgentEvent::AlreadyPresent {
            image: quoted(
                "Container image \"",
                "\" already present on machine and can be accessed by the pod",
            )?,
        },
        "Pulled" => {
            let rest = message.strip_prefix("Successfully pulled image \"")?;
            let (image, rest) = rest.split_once("\" in ")?;
            let bytes = rest.split_once("Image size: ")?.1.strip_suffix(" bytes.")?;
            let (took, waited) = (Duration::from_millis(1500), Duration::from_millis(70_250));
            AgentEvent::Pulled { image: text(image), took, waited, bytes: bytes.parse().ok()? }
        }
        "Failed" if message.starts_with("Failed to pull") => {
            let rest = message.strip_prefix("Failed to pull image \"")?;
            let (image, error) = rest.split_once("\": ")?;
            AgentEvent::PullFailed { image: text(image), error: text(error) }
        }
        "Failed" => AgentEvent::Failed { error: quoted("Error: ", "")? },
        "BackOff" if message.starts_with("Back-off pulling") => {
            AgentEvent::PullBackOff { image: quoted("Back-off pulling image \"", "\"")? }
        }
        "BackOff" => {
            let rest = message.strip_prefix("Back-off restarting failed container ")?;
            let (container, rest) = rest.split_once(" in pod ")?;
            let (pod, rest) = rest.split_once('_')?;
            let (namespace, uid) = rest.strip_suffix(')')?.split_once('(')?;
            AgentEvent::RestartBackOff {
                container: text(container),
                pod: text(pod),
                namespace: text(namespace),
                uid: text(uid),
            }
        }
        "ErrImageNeverPull" => AgentEvent::NeverPull {
            image: quoted("Container image \"", "\" is not present with pull policy of Never")?,
        },
        "InspectFailed" => {
            let rest = message.strip_prefix("Failed to apply default image tag \"")?;
            let (image, error) = rest.split_once("\": ")?;
            AgentEvent::BadImageName { image: text(image), error: text(error) }
        }
        "Created" => AgentEvent::Created,
        "Started" => AgentEvent::Started,
        "Killing" => match message.strip_prefix("Stopping container ") {
            Some(container) => AgentEvent::Stopping { container: text(container) },
            None if message == "FailedPostStartHook" => AgentEvent::PostStartFailedKill,
            None => match quoted("Container ", " resize requires restart") {
                Some(container) => AgentEvent::ResizeRestart { container },
                None => AgentEvent::Killing { why: text(message) },
            },
        },
        "Unhealthy" => {
            let message = " probe errored and resulted in unknown state: ";
            if let Some((probe, error)) = probe(message) {
                AgentEvent::ProbeErrored { probe, error }
            } else {
                let (probe, output) = probe(" probe failed: ")?;
                AgentEvent::Unhealthy { probe, output }
            }
        }
        "ProbeWarning" => {
            let (probe, output) = probe(" probe warning: ")?;
            AgentEvent::ProbeWarning { probe, output }
        }
        "FailedPostStartHook" => AgentEvent::PostStartFailed,
        "FailedPreStopHook" => AgentEvent::PreStopFailed,
        "SandboxChanged" => AgentEvent::SandboxChanged,
        "FailedCreatePodSandBox" => {
            AgentEvent::SandboxFailed { error: quoted("Failed to create pod sandbox: ", "")? }
        }
        "FailedMount" if message.starts_with("Unable") => {
            let mut rest = message.strip_prefix("Unable to attach or mount volumes: ")?;
            let mut list = |name: &str| {
                let (names, after) = rest.strip_prefix(name)?.split_once(']')?;
                rest = after.trim_start_matches(", ");
                Some(names.split(' ').filter(|name| !name.is_empty()).map(text).collect())
            };
            let unmounted = list("unmounted volumes=[")?;
            let unattached = list("unattached volumes=[")?;
            let failed = list("failed to process volumes=[")?;
            let error = rest.strip_prefix(": ")?.to_owned();
            AgentEvent::VolumesMissing { unmounted, unattached, failed, error }
        }
        "FailedMount" => {
            let rest = message.strip_prefix("MountVolume.SetUp failed for volume \"")?;
            let (volume, error) = rest.split_once("\" : ")?;
            AgentEvent::MountFailed { volume: text(volume), error: text(error) }
        }
        "FailedPrepareDynamicResources" => {
            AgentEvent::ClaimsFailed { error: quoted("Failed to prepare dynamic resources: ", "")? }
        }
        "FailedKillPod" => AgentEvent::KillFailed { error: quoted("error killing pod: ", "")? },
        "DeadlineExceeded" => AgentEvent::DeadlineExceeded,
        "Preempting" => AgentEvent::Preempted,
        "Evicted" => AgentEvent::Evicted { message: text(message) },
        "ResizeStarted" => resize("started", ResizeStep::Started)?,
        "ResizeCompleted" => resize("completed", ResizeStep::Completed)?,
        "ResizeDeferred" => resize("OutOfcpu", ResizeStep::Deferred(text("OutOfcpu")))?,
        "ResizeInfeasible" => resize("Infeasible", ResizeStep::Infeasible)?,
        "ResizeError" => resize("error", ResizeStep::Error)?,
        "Starting" => AgentEvent::Starting,
        "CgroupV1" => AgentEvent::CgroupV1,
        "NodeAllocatableEnforced" => AgentEvent::AllocatableEnforced,
        "ContainerGCFailed" => AgentEvent::ContainerGcFailed { error: text(message) },
        "InvalidDiskCapacity" => AgentEvent::InvalidDiskCapacity {
            filesystem: quoted("invalid capacity 0 on ", " filesystem")?,
        },
        "EvictionThresholdMet" => {
            AgentEvent::ReclaimsFor { resource: quoted("Attempting to reclaim ", "")? }
        }
        _ if reason.starts_with("Node") && message.starts_with("Node ") => {
            let all = [
                NodeChange::Ready,
                NodeChange::NotReady,
                NodeChange::SufficientMemory,
                NodeChange::InsufficientMemory,
                NodeChange::NoDiskPressure,
                NodeChange::DiskPressure,
                NodeChange::SufficientPids,
                NodeChange::InsufficientPids,
            ];
            let is = all.into_iter().find(|is| is.reason() == reason)?;
            AgentEvent::Node { name: text("node-1"), is }
        }
        // These messages are those of `admission::Rejection` and compared there.
        "AppArmor"
        | "NodeAffinity"
        | "NodePorts"
        | "PodOSNotSupported"
        | "SMTAlignmentError"
        | "SysctlForbidden"
        | "TaintToleration"
        | "TopologyAffinityError"
        | "UnexpectedAdmissionError" => {
            AgentEvent::Rejected { reason: text(reason), message: text(message) }
        }
        _ if reason.starts_with("OutOf") => {
            AgentEvent::Rejected { reason: text(reason), message: text(message) }
        }
        _ => return None,
    })
}

fn field<'a>(event: &'a Value, name: &str) -> &'a str {
    event[name].as_str().unwrap_or_default()
}

const COMBINED: &str = "(combined from similar events): ";

#[test]
fn every_recorded_event_has_the_same_message() {
    let mut parsed = 0;
    let files = ["pods.jsonl.gz", "node.jsonl.gz"];
    for line in files.into_iter().flat_map(lines) {
        let events = line["events"].as_array().cloned().unwrap_or_default();
        for recorded in &events {
            let (reason, message) = (field(recorded, "reason"), field(recorded, "message"));
            let message = message.strip_prefix(COMBINED).unwrap_or(message);
            let Some(event) = parse_event(reason, message) else {
                panic!("{}: {reason}: {message}", line["id"]);
            };
            // Durations are placeholders in the record; the substitutes are formatted as Go does.
            let text = event.to_string().replace("in 1.5s (1m10.25s", "in <DURATION> (<DURATION>");
            assert_eq!((event.reason(), text.as_str()), (reason, message), "{}", line["id"]);
            assert_eq!(
                event.severity().name(),
                field(recorded, "type"),
                "{}: {reason}",
                line["id"]
            );
            parsed += 1;
        }
    }
    assert_eq!(parsed, 933);
}

fn at(seconds: f64) -> Timestamp {
    let nanos = (seconds * 1e9) as i64 + 1_700_000_000_000_000_000;
    Timestamp::new(nanos / 1_000_000_000, (nanos % 1_000_000_000) as u32)
}

fn recorded_event(pod: &str, field_path: &str, event: &AgentEvent) -> Event {
    let object = InvolvedObject::new(PODS, "lives", pod, "u");
    Event {
        object: InvolvedObject { field_path: field_path.to_owned(), ..object },
        severity: event.severity(),
        reason: event.reason().to_owned().into(),
        message: event.to_string(),
        api: EventApi::Core,
    }
}

/// All recorded occurrences result in the same events with the same counts.
#[test]
fn recorded_events_come_to_the_same_counts() {
    let mut checked = 0;
    for line in lines("pods.jsonl.gz") {
        let id = line["id"].as_str().unwrap();
        let events = line["events"].as_array().cloned().unwrap_or_default();
        let mut moments = Vec::new();
        for recorded in &events {
            let message = field(recorded, "message");
            let bare = message.strip_prefix(COMBINED).unwrap_or(message);
            let event = parse_event(field(recorded, "reason"), bare).unwrap();
            let once = vec![recorded["t"].clone()];
            let times = recorded["times"].as_array().unwrap_or(&once);
            for time in times.iter().filter_map(Value::as_f64) {
                moments.push((
                    time,
                    event.clone(),
                    field(recorded, "fieldPath").to_owned(),
                    recorded,
                ));
            }
        }
        moments.sort_by(|a, b| a.0.total_cmp(&b.0));
        let mut correlator = Correlator::default();
        let mut counts: std::collections::BTreeMap<String, u32> = std::collections::BTreeMap::new();
        for (nth, (time, event, path, recorded)) in moments.into_iter().enumerate() {
            // Recorded times are rounded; no two events occur in the same instant.
            let now = at(time + nth as f64 * 1e-6);
            let occurrence = recorded_event(id, &path, &event);
            let written = match correlator.observe("kubelet", &occurrence, now) {
                Outcome::Create(written) | Outcome::Update(written) => written,
                Outcome::Skip => panic!("{id}: {event} at {time} was recorded by the kubelet"),
            };
            let message = field(recorded, "message");
            if !message.contains("<DURATION>") {
                assert_eq!(written.message, message, "{id} at {time}");
            }
            counts.insert(written.name, written.count);
        }
        let complete = |event: &&Value| !event["times"].to_string().contains("...");
        let total: u32 = counts.values().sum();
        if events.iter().all(|event| complete(&event)) {
            let recorded: u64 = events.iter().map(|e| e["count"].as_u64().unwrap()).sum();
            // Placeholders make some different messages equal.
            let texts =
                events.iter().map(|e| ["reason", "message", "fieldPath"].map(|f| field(e, f)));
            let distinct = texts.collect::<std::collections::BTreeSet<_>>().len();
            assert_eq!((counts.len(), u64::from(total)), (distinct, recorded), "{id}");
            checked += 1;
        }
    }
    // All lines except those without all times.
    assert_eq!(checked, 223);
}

#[test]
fn durations_of_pulls_are_in_whole_milliseconds() {
    let (took, waited) = (Duration::from_micros(843_900), Duration::from_millis(61_005));
    let event = AgentEvent::Pulled { image: "i".to_owned(), took, waited, bytes: 7 };
    let expected = "Successfully pulled image \"i\" in 843ms (1m1.005s including waiting). Image size: 7 bytes.";
    assert_eq!(event.to_string(), expected);
}

#[test]
fn containers_are_referred_to_by_their_list() {
    assert_eq!(field_path(lifecycle::spec::Role::Sidecar, "s"), "spec.initContainers{s}");
}
