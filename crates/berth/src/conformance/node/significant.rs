//! What of a pod's state clients depend on: [`State`], and a life as a sequence of them: [`runs`].
//!
//! The rule of the comparison, in three parts:
//!
//! 1. A state is *significant* by phase, reason, conditions (type, status, reason), every container's
//!    state (kind, reason, exit code, restarts, ready, started, last end), resources, the generation that
//!    was observed, and whether the pod is being deleted. Snapshots in a row with the same significant
//!    state are one *run*. Times, ids, messages and the number of snapshots are not part of it.
//! 2. A recorded run *stands* if it lasted for [`STANDING`] or is the last. Whoever looks now and then
//!    sees it, so it has to occur in ours, and all of them in the recorded order. What came and went
//!    faster depends on which of two writers was first, and may be missing.
//! 3. Of the words that clients match on (phases, reasons of waiting, reason and exit code of ends) each
//!    that was recorded has to occur, however shortly it was seen, and none may occur that was not. The
//!    words of a container that has not started yet (`ContainerCreating`, `PodInitializing`) may be
//!    missing where they were not seen standing.
//!
//! Nothing is waited for here; this module only reads snapshots, recorded ones and ours alike.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use serde_json::Value;

/// From when on a state counts as one that somebody will see, in seconds: the kubelet looks at its pods
/// once a second, so that a state of under two may be one that two such looks happened to fall around.
pub(super) const STANDING: f64 = 2.0;

/// The kernel's word for "no limit" on cgroup v1, read back by the recorded kubelet.
const ARTEFACT: &str = "9007199254740988Ki";

/// Words that say only that nothing has happened yet.
const NOT_YET: &[&str] = &["ContainerCreating", "PodInitializing"];

/// A significant state, as a text that can be compared and read.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct State(String);

impl std::fmt::Display for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl State {
    /// Of a snapshot, recorded or ours.
    pub(super) fn of(snapshot: &Value) -> State {
        let status = &snapshot["status"];
        let text = |value: &Value, key: &str| value[key].as_str().unwrap_or_default().to_owned();
        let mut all = text(status, "phase");
        for (name, value) in [("reason", text(status, "reason"))] {
            if !value.is_empty() {
                let _ = write!(all, " {name}={value}");
            }
        }
        if let Some(generation) = status["observedGeneration"].as_i64() {
            let _ = write!(all, " g{generation}");
        }
        if snapshot["deleting"].is_object() {
            all.push_str(" deleting");
        }
        let conditions = status["conditions"].as_array().into_iter().flatten();
        let mut conditions: Vec<String> = conditions
            .map(|c| {
                let reason = text(c, "reason");
                let reason = if reason.is_empty() { reason } else { format!("({reason})") };
                format!("{}={}{reason}", text(c, "type"), text(c, "status"))
            })
            .collect();
        conditions.sort_unstable();
        let _ = write!(all, " [{}]", conditions.join(" "));
        for container in containers(status) {
            let _ = write!(all, " {}", container_state(container));
        }
        for key in ["resources", "allocatedResources"] {
            let _ = write!(all, "{}", amounts(key, &status[key]));
        }
        State(all)
    }
}

fn containers(status: &Value) -> impl Iterator<Item = &Value> {
    ["initContainerStatuses", "containerStatuses", "ephemeralContainerStatuses"]
        .into_iter()
        .flat_map(|list| status[list].as_array().into_iter().flatten())
}

fn container_state(container: &Value) -> String {
    let name = container["name"].as_str().unwrap_or_default();
    let mut text = format!("{name}:{}", one_state(&container["state"]));
    let last = one_state(&container["lastState"]);
    if !last.is_empty() {
        let _ = write!(text, " last={last}");
    }
    let _ = write!(text, " restarts={}", container["restartCount"]);
    for flag in ["ready", "started"] {
        if container[flag] == true {
            let _ = write!(text, " {flag}");
        }
    }
    for key in ["resources", "allocatedResources"] {
        text.push_str(&amounts(key, &container[key]));
    }
    text
}

/// Resources; where there are none it does not matter how that is said.
fn amounts(key: &str, value: &Value) -> String {
    let value = without_artefacts(value);
    match &value {
        Value::Null => String::new(),
        Value::Object(fields) if fields.is_empty() => String::new(),
        value => format!(" {key}={value}"),
    }
}

/// Without what the recorded machine's kernel said for "no limit".
pub(super) fn without_artefacts(value: &Value) -> Value {
    let Value::Object(fields) = value else { return value.clone() };
    let mut kept = serde_json::Map::new();
    for (name, value) in fields {
        if value == ARTEFACT {
            continue;
        }
        let inner = without_artefacts(value);
        let emptied = inner.as_object().is_some_and(serde_json::Map::is_empty)
            && value.as_object().is_some_and(|value| !value.is_empty());
        if !emptied {
            kept.insert(name.clone(), inner);
        }
    }
    Value::Object(kept)
}

fn one_state(state: &Value) -> String {
    let reason = |state: &Value| state["reason"].as_str().unwrap_or_default().to_owned();
    if state["running"].is_object() {
        "running".to_owned()
    } else if state["waiting"].is_object() {
        format!("waiting({})", reason(&state["waiting"]))
    } else if state["terminated"].is_object() {
        let ended = &state["terminated"];
        format!("terminated({},{})", reason(ended), ended["exitCode"])
    } else {
        String::new()
    }
}

/// Snapshots in a row with the same significant state.
#[derive(Clone, Debug)]
pub(super) struct Run {
    pub(super) state: State,
    /// Index of its last snapshot.
    pub(super) last: usize,
    pub(super) from: f64,
    /// When the next began; nothing for the last.
    pub(super) to: Option<f64>,
}

impl Run {
    /// Whether it has to occur.
    pub(super) fn stands(&self) -> bool {
        self.to.is_none_or(|to| to - self.from >= STANDING)
    }
}

/// The runs of a life.
pub(super) fn runs(snapshots: &[Value]) -> Vec<Run> {
    let mut found: Vec<Run> = Vec::new();
    for (index, snapshot) in snapshots.iter().enumerate() {
        let state = State::of(snapshot);
        let t = snapshot["t"].as_f64().unwrap_or_default();
        match found.last_mut() {
            Some(run) if run.state == state => run.last = index,
            last => {
                if let Some(run) = last {
                    run.to = Some(t);
                }
                found.push(Run { state, last: index, from: t, to: None });
            }
        }
    }
    found
}

/// Which of our runs are the wanted ones, in order, as far as they are there.
pub(super) fn in_order<'a>(
    wanted: impl IntoIterator<Item = &'a State>,
    ours: &[Run],
) -> Vec<usize> {
    let mut at = 0;
    let mut found = Vec::new();
    for state in wanted {
        let rest = ours.get(at..).unwrap_or_default();
        let Some(index) = rest.iter().position(|run| run.state == *state) else { break };
        found.push(at + index);
        at += index + 1;
    }
    found
}

/// The words of a life that clients match on. With `standing_only`, those of states that stand.
pub(super) fn words(snapshots: &[Value], runs: &[Run], standing_only: bool) -> BTreeSet<String> {
    let mut words = BTreeSet::new();
    let chosen = runs.iter().filter(|run| !standing_only || run.stands());
    for run in chosen {
        let Some(snapshot) = snapshots.get(run.last) else { continue };
        let status = &snapshot["status"];
        words.insert(format!("phase {}", status["phase"].as_str().unwrap_or_default()));
        if let Some(reason) = status["reason"].as_str() {
            words.insert(format!("reason {reason}"));
        }
        for container in containers(status) {
            let name = container["name"].as_str().unwrap_or_default();
            for state in ["state", "lastState"] {
                let word = one_state(&container[state]);
                if !word.is_empty() && word != "running" {
                    words.insert(format!("{name} {word}"));
                }
            }
        }
    }
    words
}

/// Whether a word says only that nothing has happened yet.
pub(super) fn is_not_yet(word: &str) -> bool {
    NOT_YET.iter().any(|not_yet| word.ends_with(&format!("waiting({not_yet})")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn at(t: f64, phase: &str, waiting: &str) -> Value {
        json!({"t": t, "status": {"phase": phase, "containerStatuses": [
            {"name": "c", "state": {"waiting": {"reason": waiting}}, "restartCount": 0}
        ]}})
    }

    #[test]
    fn snapshots_with_one_state_are_one_run() {
        let life = [
            at(0.0, "Pending", "A"),
            at(0.5, "Pending", "A"),
            at(3.0, "Pending", "B"),
            at(3.5, "Failed", "B"),
        ];
        let runs = runs(&life);
        let seen: Vec<_> = runs.iter().map(|run| (run.last, run.stands())).collect();
        assert_eq!(seen, [(1, true), (2, false), (3, true)]);
    }

    #[test]
    fn order_counts_and_surplus_states_do_not() {
        let life = [at(0.0, "Pending", "A"), at(1.0, "Pending", "B"), at(2.0, "Pending", "C")];
        let runs = runs(&life);
        let [a, b, c] = [0, 1, 2].map(|index| runs[index].state.clone());
        assert_eq!(in_order([&a, &c], &runs), [0, 2]);
        assert_eq!(in_order([&a, &b, &c], &runs).len(), 3);
        assert_eq!(in_order([&c, &a], &runs).len(), 1);
    }

    #[test]
    fn words_are_those_that_clients_match_on() {
        let life = [at(0.0, "Pending", "ContainerCreating"), at(9.0, "Failed", "Error")];
        let words = words(&life, &runs(&life), false);
        assert!(words.contains("phase Failed") && words.contains("c waiting(Error)"), "{words:?}");
        assert!(is_not_yet("c waiting(ContainerCreating)"));
        assert!(!is_not_yet("c waiting(Error)"));
    }

    #[test]
    fn what_the_kernel_says_for_no_limit_is_none() {
        let read = json!({"limits": {"memory": ARTEFACT}, "requests": {"cpu": "1"}});
        assert_eq!(without_artefacts(&read), json!({"requests": {"cpu": "1"}}));
        assert_eq!(without_artefacts(&json!({})), json!({}));
    }
}
