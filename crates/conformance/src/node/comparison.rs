//! Compares a replayed pod with the recorded one: [`differences`].
//!
//! Compared are states by the rule of [`states`](super::states), with the whole status of each
//! stable state and of the last; Events as a set of type, reason, message, field and source; and
//! runtime calls in order per container, with attempts, grace periods and errors. Times, repeat
//! counts of Events, and the time of clean-up are not compared.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::super::Difference;
use super::calls::{Call, Calls};
use super::replay::{self, ReplayedPod};
use super::states::{
    State, in_order, is_optional_in_ours, may_be_missing, reasons, runs, short_lived_reasons,
    without_artefacts,
};
use super::template::Template;
use super::testbed::{NODE, ReplayContext};
use super::{IMAGE, OTHER_NAME, registry};

/// Tolerance of a grace period in seconds: the time since the deletion is subtracted from it.
const GRACE: i64 = 1;

#[expect(clippy::needless_pass_by_value, reason = "callers format texts inline")]
fn differ(what: impl Into<String>, expected: impl ToString, got: impl ToString) -> Difference {
    Difference { what: what.into(), expected: expected.to_string(), got: got.to_string() }
}

/// Returns the differences between a replayed pod and the recorded one.
pub(super) fn differences(
    context: &ReplayContext,
    line: &Value,
    replayed: &ReplayedPod,
    calls: &Calls,
) -> Vec<Difference> {
    if let Some(expected) = line.get("create_error") {
        return refusal(expected, replayed.refused.as_deref());
    }
    let mut found = Vec::new();
    let mut template = context.template();
    let whole = context.trace.whole(&replayed.namespace, &replayed.name);
    let uid = whole.last().map_or("", |pod| pod["metadata"]["uid"].as_str().unwrap_or_default());
    // A mirror pod's Events are about the pod in the file, whose uid is the hash.
    let _ = template.text("<UID>", uid);
    states(context, line, replayed, &mut template, &mut found);
    answers(line, replayed, &mut template, &mut found);
    events(context, line, replayed, &mut template, &mut found);
    let mut uids: Vec<&str> = Vec::new();
    for pod in &whole {
        let metadata = &pod["metadata"];
        let hash = metadata["annotations"]["kubernetes.io/config.hash"].as_str();
        let id = hash.or(metadata["uid"].as_str()).unwrap_or_default();
        if !uids.contains(&id) {
            uids.push(id);
        }
    }
    let calls: Vec<Call> = uids.iter().flat_map(|uid| calls.for_pod(uid)).cloned().collect();
    requests(line, &calls, &template, &mut found);
    if let (Some(wanted), Some(first)) = (line.get("mirror_pod"), whole.first()) {
        mirror(context, wanted, first, &mut found);
    }
    found
}

/// Compares the parts of a mirror pod that clients depend on.
fn mirror(context: &ReplayContext, wanted: &Value, ours: &Value, found: &mut Vec<Difference>) {
    let view = |pod: &Value| {
        let (metadata, spec) = (&pod["metadata"], &pod["spec"]);
        json!({
            "name": metadata["name"], "namespace": metadata["namespace"],
            "labels": metadata["labels"], "annotations": metadata["annotations"],
            "ownerReferences": metadata["ownerReferences"],
            "tolerations": spec["tolerations"], "nodeName": spec["nodeName"],
            "hostNetwork": spec["hostNetwork"], "containers": spec["containers"],
            "restartPolicy": spec["restartPolicy"], "priority": spec["priority"],
            "terminationGracePeriodSeconds": spec["terminationGracePeriodSeconds"],
        })
    };
    context.template().value(&view(wanted), &view(ours), "mirror pod", found);
}

/// Compares the API server's rejection of a pod.
fn refusal(expected: &Value, got: Option<&str>) -> Vec<Difference> {
    let message = expected["message"].as_str().or_else(|| expected.as_str()).unwrap_or_default();
    match got {
        Some(got) if got == message || message.is_empty() => Vec::new(),
        got => vec![differ("create", message, got.unwrap_or("the pod was created"))],
    }
}

fn list<'a>(line: &'a Value, key: &str) -> &'a [Value] {
    line[key].as_array().map(Vec::as_slice).unwrap_or_default()
}

fn states(
    context: &ReplayContext,
    line: &Value,
    replayed: &ReplayedPod,
    template: &mut Template,
    found: &mut Vec<Difference>,
) {
    let recorded = list(line, "snapshots");
    let ours = context.trace.snapshots(&replayed.namespace, &replayed.name, replayed.zero);
    let (recorded_runs, our_runs) = (runs(recorded), runs(&ours));
    let wanted: Vec<_> = recorded_runs.iter().filter(|run| run.is_stable()).collect();
    let matched = in_order(wanted.iter().map(|run| &run.state), &our_runs);
    if let Some(missing) = wanted.get(matched.len()) {
        found.push(differ(
            format!("state {} of {} in order", matched.len() + 1, wanted.len()),
            &missing.state,
            replay::render_runs(&ours),
        ));
    }
    for (run, index) in wanted.iter().zip(&matched) {
        let our_run = &our_runs[*index];
        let same = (our_run.first..=our_run.last)
            .rev()
            .find(|index| State::of(&ours[*index]).is_exactly(&run.state));
        let is_last = run.to.is_none();
        // If the state is equivalent but worded differently, only the last one is compared further.
        let Some(index) = same.or(is_last.then_some(our_run.last)) else { continue };
        let place = format!("status at {:.1} s", run.from);
        let (mut theirs, mut own) = (prepared(&recorded[run.last]), prepared(&ours[index]));
        if logs_two_streams(line) {
            sort_messages(&mut theirs);
            sort_messages(&mut own);
        }
        template.value(&theirs, &own, &place, found);
    }
    let (their_words, our_words) =
        (reasons(recorded, &recorded_runs, false), reasons(&ours, &our_runs, false));
    let standing = reasons(recorded, &recorded_runs, true);
    let short_lived_reasons = short_lived_reasons(recorded);
    for word in their_words.difference(&our_words) {
        if short_lived_reasons.contains(word) {
            continue;
        }
        if !may_be_missing(word) || standing.contains(word) {
            found.push(differ("reported reasons", word, "never reported"));
        }
    }
    for word in our_words.difference(&their_words) {
        if !recorded_runs.last().is_some_and(|last| is_optional_in_ours(word, last)) {
            found.push(differ("reported reasons", "never reported", word));
        }
    }
}

/// Reports whether a message may come from a log of both streams. The runtime copies each stream
/// separately, so the order of their lines is random.
fn logs_two_streams(line: &Value) -> bool {
    let manifest = line["manifest"].to_string();
    manifest.contains("FallbackToLogsOnError") && manifest.contains(">&2")
}

/// Sorts the lines of termination messages.
fn sort_messages(value: &mut Value) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(sort_messages),
        Value::Object(fields) => {
            if let Some(message) = fields.get_mut("terminated").and_then(|of| of.get_mut("message"))
                && let Some(text) = message.as_str()
            {
                let mut lines: Vec<&str> = text.split_inclusive('\n').collect();
                lines.sort_unstable();
                *message = lines.concat().into();
            }
            fields.values_mut().for_each(sort_messages);
        }
        _ => {}
    }
}

/// Turns lists without a defined order into maps, and removes machine-dependent values.
fn prepared(snapshot: &Value) -> Value {
    let mut status = without_artefacts(&snapshot["status"]);
    by_name(&mut status, "conditions", "type");
    for list in ["initContainerStatuses", "containerStatuses", "ephemeralContainerStatuses"] {
        by_name(&mut status, list, "name");
    }
    without_nothing(&mut status);
    if matches!(status["phase"].as_str(), Some("Succeeded" | "Failed"))
        && let Some(fields) = status.as_object_mut()
    {
        fields.remove("resources");
        fields.remove("allocatedResources");
    }
    json!({
        "status": status,
        "deleting": snapshot["deleting"],
        "generation": snapshot["generation"],
        "removed": snapshot["removed"],
    })
}

/// Removes empty resources, which upstream reports depending on whether the pod's cgroup still
/// existed, and all names of an image but one, which the runtime chooses.
fn without_nothing(status: &mut Value) {
    let Some(fields) = status.as_object_mut() else { return };
    let is_nothing = |value: &Value| value.as_object().is_some_and(Map::is_empty);
    fields.retain(|name, value| name != "resources" || !is_nothing(value));
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    for (name, value) in fields {
        match name.as_str() {
            "image" if text(value) == OTHER_NAME || text(value).starts_with(registry::ADDRESS) => {
                *value = IMAGE.into();
            }
            "imageID" => {
                let id = text(value);
                *value = id.rsplit('@').next().unwrap_or_default().into();
            }
            // The id is its own or its predecessor's, depending on the last status before the
            // deletion.
            "lastState" if value["terminated"]["containerID"].is_string() => {
                value["terminated"]["containerID"] = Value::Null;
                without_nothing(value);
            }
            "message" if value.is_string() => *value = figures(&text(value)).into(),
            _ => without_nothing(value),
        }
    }
}

fn by_name(status: &mut Value, list: &str, key: &str) {
    let Some(items) = status.get(list).and_then(Value::as_array) else { return };
    let named = items
        .iter()
        .map(|item| (item[key].as_str().unwrap_or_default().to_owned(), without_artefacts(item)));
    status[list] = Value::Object(named.collect::<Map<_, _>>());
}

/// Removes parts of a message that depend on the machine and on other pods: used and available
/// amounts in a rejection (except the number of pods, which is configured), process ids, the length
/// of a random directory name, and the resolver's error.
fn figures(message: &str) -> String {
    let mut text = message.to_owned();
    if !message.contains("resource: pods") {
        for word in ["used: ", "capacity: "] {
            text = after_each(&text, word, |c| {
                c.is_ascii_digit() || "<>_".contains(c) || c.is_ascii_uppercase()
            });
        }
    }
    text = after_each(&text, "current usage (", |c| c.is_ascii_digit());
    if let Some((before, _)) = text.split_once("cannot decrease memory limits: ") {
        // The name of pod or container depends on which was measured first.
        text = format!("{before}cannot decrease memory limits: N");
    }
    if let Some((before, _)) = text.split_once("dial tcp: lookup ") {
        text = format!("{before}dial tcp: lookup N");
    }
    let lines = text.split_inclusive('\n').map(|line| {
        let is_process = message.starts_with("PID ") && !line.starts_with("PID ");
        let is_link = line.contains("..data -> ..");
        match (is_process, is_link) {
            // The first process of a pod with a shared process namespace is the sandbox's, which
            // the runtime chooses; the others show that it is shared.
            (true, _) if line.trim_start().starts_with("1 ") => "1\n".to_owned(),
            (true, _) => {
                let rest = line.trim_start().trim_start_matches(|c: char| c.is_ascii_digit());
                format!("N{rest}")
            }
            (_, true) => {
                let columns: Vec<&str> = line.split_whitespace().collect();
                let columns = columns.iter().enumerate().filter(|(index, _)| *index != 4);
                columns.map(|(_, word)| *word).collect::<Vec<_>>().join(" ") + "\n"
            }
            _ => line.to_owned(),
        }
    });
    lines.collect()
}

/// Replaces characters of a class after a word by one letter.
fn after_each(text: &str, word: &str, class: fn(char) -> bool) -> String {
    let mut parts = text.split(word);
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |all, part| {
        let rest = part.trim_start_matches(class);
        let figure = if rest.len() < part.len() { "N" } else { "" };
        format!("{all}{word}{figure}{rest}")
    })
}

fn answers(
    line: &Value,
    replayed: &ReplayedPod,
    template: &mut Template,
    found: &mut Vec<Difference>,
) {
    for (index, code, message) in &replayed.answers {
        let response = &list(line, "steps")[*index]["response"];
        let Some(expected) = response["code"].as_u64() else { continue };
        if expected != *code {
            found.push(differ(
                format!("answer of step {index}"),
                expected,
                format!("{code} {message}"),
            ));
        } else if let Some(wanted) = response["message"].as_str()
            && !template.text(&figures(wanted), &figures(message))
        {
            found.push(differ(format!("answer of step {index}"), wanted, message));
        }
    }
}

/// Makes recorded ids match any id, because each attempt has a new one.
fn any_id(text: &str) -> String {
    after_each(text, "<ID", |c| c == '-' || c.is_ascii_digit()).replace("<IDN>", "<ANY_ID>")
}

/// Returns the compared fields of an Event. Ids match any id, because each command has a new one.
fn event_view(event: &Value, about: &Value) -> Value {
    let or = |value: &Value, default: Value| if value.is_null() { default } else { value.clone() };
    let message = figures(event["message"].as_str().unwrap_or_default());
    json!({
        "type": event["type"],
        "reason": event["reason"],
        "message": any_id(&message),
        "fieldPath": about["fieldPath"],
        "source": or(&event["source"], json!({"component": "kubelet", "host": NODE})),
        "reportingComponent": or(&event["reportingComponent"], "kubelet".into()),
        "reportingInstance": or(&event["reportingInstance"], NODE.into()),
    })
}

/// The reason why a pod is not served whose containers were stopped right after their start.
pub(super) const STOPPED_TOO_EARLY: &str =
    "a container was stopped before it handled signals, which is a race";
/// Within this time after its start, in seconds, a shell may not have set its traps.
const STARTUP: f64 = 0.1;

/// Exit codes of a process that did not handle the signal.
const SIGNAL_EXIT_CODES: [i64; 2] = [137, 143];

/// Reports whether all differences concern the exit of a container that was stopped before its
/// shell handled signals, which is a race. Events must match nevertheless.
pub(super) fn is_by_chance(line: &Value, found: &[Difference]) -> bool {
    let mut started: BTreeMap<&str, f64> = BTreeMap::new();
    let mut stopped_early = false;
    for call in list(line, "cri_calls") {
        let name = call["container"].as_str().unwrap_or_default();
        let number = |key: &str| call[key].as_f64().unwrap_or_default();
        match call["call"].as_str() {
            Some("StartContainer") => {
                started.insert(name, number("t") + number("ms") / 1000.0);
            }
            Some("StopContainer") => {
                stopped_early |= started.get(name).is_some_and(|at| number("t") - at < STARTUP);
            }
            _ => {}
        }
    }
    let ends = list(line, "snapshots")
        .iter()
        .flat_map(|snapshot| list(&snapshot["status"], "containerStatuses"))
        .filter_map(|container| container["state"]["terminated"]["exitCode"].as_i64());
    stopped_early
        && ends.into_iter().any(|code| SIGNAL_EXIT_CODES.contains(&code))
        && !found.is_empty()
        && found.iter().all(|difference| difference.what != "event")
}

/// Reports whether a recorded Event is optional: a probe that coincided with the start or end of
/// its container, and the summary of several.
fn is_chance(line: &Value, event: &Value) -> bool {
    let message = event["message"].as_str().unwrap_or_default();
    if message.starts_with("(combined from similar events)") {
        return true;
    }
    if event["reason"] != "Unhealthy" {
        return false;
    }
    let end = list(line, "snapshots").iter().find(|snapshot| snapshot["deleting"].is_object());
    let killing = list(line, "events").iter().filter(|other| other["reason"] == "Killing");
    let ends: Vec<f64> = end.into_iter().chain(killing).filter_map(|at| at["t"].as_f64()).collect();
    let is_late = |t: &Value| t.as_f64().is_some_and(|t| ends.iter().any(|end| t >= *end));
    let times = event["times"].as_array().cloned().unwrap_or_else(|| vec![event["t"].clone()]);
    match times.iter().filter(|t| !is_late(t)).count() {
        0 => true,
        1 => became_ready(line),
        _ => false,
    }
}

/// Reports whether a container became ready: earlier probe results are random.
fn became_ready(line: &Value) -> bool {
    list(line, "snapshots").iter().any(|snapshot| {
        let statuses = list(&snapshot["status"], "containerStatuses");
        statuses.iter().any(|container| container["ready"] == true)
    })
}

fn events(
    context: &ReplayContext,
    line: &Value,
    replayed: &ReplayedPod,
    template: &mut Template,
    found: &mut Vec<Difference>,
) {
    let events = context.trace.events(&replayed.namespace, &replayed.name);
    let mut ours: Vec<(Value, bool)> =
        events.iter().map(|event| (event_view(event, &event["involvedObject"]), false)).collect();
    for recorded in list(line, "events") {
        let wanted = event_view(recorded, recorded);
        let mut there = is_chance(line, recorded);
        for (event, known) in &mut ours {
            let mut differences = Vec::new();
            let mut tried = template.clone();
            tried.value(&wanted, event, "", &mut differences);
            if differences.is_empty() {
                *template = tried;
                (*known, there) = (true, true);
            }
        }
        if !there {
            let like: Vec<String> = ours
                .iter()
                .filter(|(event, _)| event["reason"] == wanted["reason"])
                .map(|(event, _)| brief(event))
                .collect();
            found.push(differ("event", brief(&wanted), like.join(" | ")));
        }
    }
    let by_chance = |event: &Value| {
        let message = event["message"].as_str().unwrap_or_default();
        message.starts_with("(combined from similar events)")
            || (event["reason"] == "Unhealthy" && event["count"] == 1 && became_ready(line))
    };
    let more = ours.iter().zip(&events).filter(|((_, known), event)| !known && !by_chance(event));
    for ((event, _), _) in more {
        found.push(differ("event", "none", template.localised(&brief(event))));
    }
}

fn brief(event: &Value) -> String {
    let text = |key: &str| event[key].as_str().unwrap_or_default().to_owned();
    let place = text("fieldPath");
    let place = if place.is_empty() { place } else { format!(" {place}") };
    format!("{} {}{place}: {}", text("type"), text("reason"), text("message"))
}

/// Returns the runtime calls for each container and for the sandbox.
fn sequence<'a>(
    calls: impl Iterator<Item = (&'a str, Option<&'a str>, Option<u64>, Option<i64>, Option<String>)>,
) -> BTreeMap<String, Vec<(String, Option<i64>)>> {
    let mut all: BTreeMap<String, Vec<(String, Option<i64>)>> = BTreeMap::new();
    for (method, container, attempt, timeout, error) in calls {
        // The time of clean-up and the number of probes are random.
        let counts = matches!(
            method,
            "RunPodSandbox"
                | "CreateContainer"
                | "StartContainer"
                | "StopContainer"
                | "UpdateContainerResources"
        );
        if !counts {
            continue;
        }
        let attempt = attempt.map(|attempt| format!(" attempt {attempt}")).unwrap_or_default();
        let error = error.map(|code| format!(" {code}")).unwrap_or_default();
        let call = format!("{method}{attempt}{error}");
        let calls = all.entry(container.unwrap_or("sandbox").to_owned()).or_default();
        // The number of retries depends on the time.
        let again = !error.is_empty() && calls.last().is_some_and(|(last, _)| *last == call);
        if !again {
            calls.push((call, timeout));
        }
    }
    all
}

fn requests(line: &Value, calls: &[Call], template: &Template, found: &mut Vec<Difference>) {
    let Some(recorded) = line["cri_calls"].as_array() else { return };
    let number = |value: &Value| value.as_str().and_then(|text| text.parse::<i64>().ok());
    let theirs = sequence(recorded.iter().map(|call| {
        let attempt = call["attempt"].as_u64();
        let code = call["error"]["code"].as_str().map(str::to_owned);
        let (method, container) = (call["call"].as_str(), call["container"].as_str());
        (method.unwrap_or_default(), container, attempt, number(&call["timeout"]), code)
    }));
    // A call interrupted by the agent's exit was not recorded.
    let answered = |call: &&Call| call.response.is_some() || call.error.is_some();
    let ours = sequence(calls.iter().filter(answered).map(|call| {
        let code = call.error.as_ref().map(|(code, _)| code.clone());
        let timeout = number(&call.request["timeout"]);
        (call.method, call.container.as_deref(), call.attempt, timeout, code)
    }));
    let nothing = Vec::new();
    for name in theirs.keys().chain(ours.keys().filter(|name| !theirs.contains_key(*name))) {
        let (wanted, got) =
            (theirs.get(name).unwrap_or(&nothing), ours.get(name).unwrap_or(&nothing));
        let same = wanted.len() == got.len()
            && wanted.iter().zip(got).all(|(wanted, got)| {
                let graces = (wanted.1.unwrap_or(0), got.1.unwrap_or(0));
                wanted.0 == got.0 && (graces.0 - graces.1).abs() <= GRACE
            });
        if !same {
            let summary = |calls: &[(String, Option<i64>)]| {
                let parts = calls.iter().map(|(call, grace)| match grace {
                    Some(grace) => format!("{call} within {grace}"),
                    None => call.clone(),
                });
                parts.collect::<Vec<_>>().join(", ")
            };
            found.push(differ(format!("calls for {name}"), summary(wanted), summary(got)));
        }
    }
    for call in recorded.iter().filter(|call| call["error"].is_object()) {
        let message = call["error"]["message"].as_str().unwrap_or_default();
        let same_call = calls.iter().filter(|ours| call["call"] == ours.method);
        let errors: Vec<&String> =
            same_call.filter_map(|call| call.error.as_ref()).map(|(_, message)| message).collect();
        let wanted = any_id(&figures(message));
        let same = |error: &&String| template.clone().text(&wanted, &figures(error));
        if !errors.is_empty() && !errors.iter().any(same) {
            let what = format!("error of {}", call["call"].as_str().unwrap_or_default());
            found.push(differ(what, message, format!("{errors:?}")));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn configured_amounts_are_compared_and_measured_ones_are_not() {
        assert_eq!(
            figures("resource: cpu, requested: 5, used: 17, capacity: 1700"),
            "resource: cpu, requested: 5, used: N, capacity: N"
        );
        let pods = "resource: pods, requested: 1, used: 3, capacity: 3";
        assert_eq!(figures(pods), pods);
        let processes = |first: &str, id: u32| {
            figures(&format!(
                "PID   USER     COMMAND\n    1 root     {first}\n   {id} root     ps\n"
            ))
        };
        assert_eq!(processes("/pause", 6), processes("/bin/sleep 2147483647", 17));
        assert_ne!(processes("/pause", 6), figures("PID   USER     COMMAND\n    1 root     ps\n"));
    }

    #[test]
    fn lines_of_two_streams_are_compared_in_any_order() {
        let line = |command: &str, policy: &str| {
            let container = json!({"command": [command], "terminationMessagePolicy": policy});
            json!({"manifest": {"spec": {"containers": [container]}}})
        };
        assert!(logs_two_streams(&line("echo a; echo b >&2", "FallbackToLogsOnError")));
        assert!(!logs_two_streams(&line("echo a; echo b", "FallbackToLogsOnError")));
        assert!(!logs_two_streams(&line("echo a; echo b >&2", "File")));
        let mut one = json!({"c": {"state": {"terminated": {"message": "b\na\n"}}}});
        sort_messages(&mut one);
        assert_eq!(one["c"]["state"]["terminated"]["message"], "a\nb\n");
    }

    #[test]
    fn early_exit_reason_is_ignored_but_events_are_compared() {
        let check = |stopped: f64, code: i64, what: &str, expected: bool| {
            let ended = json!({"name": "c", "state": {"terminated": {"exitCode": code}}});
            let line = json!({
                "cri_calls": [
                    {"t": 1.0, "call": "StartContainer", "container": "c", "ms": 100.0},
                    {"t": stopped, "call": "StopContainer", "container": "c", "ms": 5.0},
                ],
                "snapshots": [{"status": {"containerStatuses": [ended]}}],
            });
            let found = [differ(what, "this", "that")];
            assert_eq!(is_by_chance(&line, &found), expected, "{stopped} {code} {what}");
        };
        check(1.12, 137, "calls for c", true);
        check(1.12, 137, "event", false);
        check(1.12, 0, "calls for c", false);
        check(1.3, 137, "calls for c", false);
        assert!(!is_by_chance(&json!({}), &[]));
    }

    #[test]
    fn calls_are_grouped_by_container_without_clean_up() {
        let calls = sequence(
            [
                ("RunPodSandbox", None, None, None, None),
                ("CreateContainer", Some("c"), Some(0), None, None),
                ("StartContainer", Some("c"), None, None, Some("UNKNOWN".to_owned())),
                ("RemoveContainer", Some("c"), None, None, None),
                ("ExecSync", Some("c"), None, None, None),
            ]
            .into_iter(),
        );
        let methods =
            |name: &str| calls[name].iter().map(|(call, _)| call.as_str()).collect::<Vec<_>>();
        assert_eq!(methods("sandbox"), ["RunPodSandbox"]);
        assert_eq!(methods("c"), ["CreateContainer attempt 0", "StartContainer UNKNOWN"]);
    }
}
