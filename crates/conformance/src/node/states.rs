//! The part of a pod's state that clients depend on: [`State`], and a lifecycle as a sequence of
//! states: [`runs`].
//!
//! The rule of the comparison, in three parts:
//!
//! 1. A state is *significant* by phase, reason, conditions (type, status, reason), every container's
//!    state (kind, reason, exit code, restarts, ready, started, last end), resources, the generation that
//!    was observed, and whether the pod is being deleted. Times, ids, messages and the number of snapshots
//!    are not part of it. Equivalent wordings that only depend on when the kubelet last synced count
//!    as one: a container that has ended and will be restarted is `terminated`, or `waiting` with
//!    `CrashLoopBackOff` or the error of its last start; a missing image is `ErrImagePull` or
//!    `ImagePullBackOff`; a pod whose containers have all ended but which is not finished keeps its
//!    previous phase, `Pending` or `Running`. Consecutive snapshots with the same significant state
//!    are one *run*.
//! 2. A recorded run is *stable* if it lasted for [`STABLE`] or is the last. A polling client sees
//!    it, so it must occur in ours, and all stable runs in the recorded order. Faster changes depend
//!    on a race of two writers, and may be missing. States before the first start and after the last
//!    exit last as long as the runtime takes, which was up to [`BUSY`] on the recorded machine.
//! 3. Every phase, waiting reason, and reason and exit code of an exit that was recorded for
//!    [`SHORT_LIVED`] must occur, and no other may occur. Reasons of a container that has not started
//!    (`ContainerCreating`, `PodInitializing`) and the phase `Running` of a pod that ended at once may
//!    be missing if they were not stable; `CrashLoopBackOff` may occur for a container that was
//!    recorded to end twice.
//!
//! Resources of a finished pod are not compared: the recorded kubelet read them from a cgroup that
//! was being removed.
//!
//! Nothing is awaited here; this module only reads recorded and our own snapshots.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use serde_json::Value;

/// Minimum duration of a stable state in seconds: the kubelet syncs once a second, so a state of
/// less than two may fall between two syncs.
pub(super) const STABLE: f64 = 2.0;

/// Longest start or stop on the busy recorded machine, in seconds.
pub(super) const BUSY: f64 = 5.0;

/// A reason reported for less than this, in seconds, may be missed in a race of two writes.
const SHORT_LIVED: f64 = 0.5;

/// The kernel's value for "no limit" on cgroup v1, as the recorded kubelet read it.
const ARTEFACT: &str = "9007199254740988Ki";

/// Reasons of a container that has not started.
const NOT_YET: &[&str] = &["ContainerCreating", "PodInitializing"];

/// A significant state as texts for comparison and messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct State {
    /// With equivalent wordings normalised.
    same: String,
    /// As reported.
    exact: String,
    /// True before the first start and after the last exit.
    passing: bool,
    /// Number of container restarts.
    pub(super) restarts: u64,
}

impl std::fmt::Display for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.exact)
    }
}

impl State {
    /// Reads a snapshot, recorded or ours.
    pub(super) fn of(snapshot: &Value) -> State {
        let status = &snapshot["status"];
        let phase = text(status, "phase");
        let is_over = matches!(phase.as_str(), "Succeeded" | "Failed");
        // A container that waits for its restart counts as well.
        let has_ended = |c: &Value| {
            let (state, last) = (one_state(&c["state"]), one_state(&c["lastState"]));
            normalised_state(&state, &last).starts_with("ended")
        };
        let apps = status["containerStatuses"].as_array().map(Vec::as_slice).unwrap_or_default();
        let all_ended = !apps.is_empty() && apps.iter().all(has_ended) && !is_over;
        let not_yet = |c: &Value| {
            let reason = text(&c["state"]["waiting"], "reason");
            NOT_YET.contains(&reason.as_str())
        };
        let nothing_yet = !is_over && containers(status).all(not_yet);
        let mut rest = String::new();
        let reason = text(status, "reason");
        if !reason.is_empty() {
            let _ = write!(rest, " reason={reason}");
        }
        if let Some(generation) = status["observedGeneration"].as_i64() {
            let _ = write!(rest, " g{generation}");
        }
        if snapshot["deleting"].is_object() {
            rest.push_str(" deleting");
        }
        let _ = write!(rest, " [{}]", conditions(status));
        let (mut same, mut exact) = (rest.clone(), rest);
        for container in containers(status) {
            let _ = write!(exact, " {}", container_state(container, true));
            let _ = write!(same, " {}", container_state(container, is_over));
        }
        if !is_over {
            for key in ["resources", "allocatedResources"] {
                let amounts = amounts(key, &status[key]);
                exact.push_str(&amounts);
                same.push_str(&amounts);
            }
        }
        let restarts = containers(status).filter_map(|c| c["restartCount"].as_u64()).sum();
        let phase_shown = if all_ended { "Ending" } else { phase.as_str() };
        State {
            same: format!("{phase_shown}{same}"),
            exact: format!("{phase}{exact}"),
            passing: all_ended || nothing_yet,
            restarts,
        }
    }

    /// Reports whether two states are equivalent for clients.
    pub(super) fn is(&self, other: &State) -> bool {
        self.same == other.same
    }

    /// Reports whether two states are reported identically.
    pub(super) fn is_exactly(&self, other: &State) -> bool {
        self.exact == other.exact
    }
}

fn text(value: &Value, key: &str) -> String {
    value[key].as_str().unwrap_or_default().to_owned()
}

fn conditions(status: &Value) -> String {
    let conditions = status["conditions"].as_array().into_iter().flatten();
    let mut conditions: Vec<String> = conditions
        .map(|c| {
            let reason = text(c, "reason");
            let reason = if reason.is_empty() { reason } else { format!("({reason})") };
            format!("{}={}{reason}", text(c, "type"), text(c, "status"))
        })
        .collect();
    conditions.sort_unstable();
    conditions.join(" ")
}

fn containers(status: &Value) -> impl Iterator<Item = &Value> {
    ["initContainerStatuses", "containerStatuses", "ephemeralContainerStatuses"]
        .into_iter()
        .flat_map(|list| status[list].as_array().into_iter().flatten())
}

fn container_state(container: &Value, exact: bool) -> String {
    let name = text(container, "name");
    let (state, last) = (one_state(&container["state"]), one_state(&container["lastState"]));
    let mut text = match exact {
        true if last.is_empty() => format!("{name}:{state}"),
        true => format!("{name}:{state} last={last}"),
        false => format!("{name}:{}", normalised_state(&state, &last)),
    };
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

/// Normalises equivalent wordings of a container's state.
fn normalised_state(state: &str, last: &str) -> String {
    const BETWEEN: &[&str] = &["CrashLoopBackOff", "RunContainerError", "PostStartHookError"];
    const NO_IMAGE: &[&str] = &["ErrImagePull", "ImagePullBackOff"];
    let is = |words: &[&str]| words.iter().any(|word| state == format!("waiting({word})"));
    let ended = |how: &str| how.replace("terminated", "ended");
    if is(NO_IMAGE) {
        "waiting(no image)".to_owned()
    } else if is(BETWEEN) && !last.is_empty() {
        ended(last)
    } else if state.starts_with("terminated") {
        ended(state)
    } else if last.is_empty() {
        state.to_owned()
    } else {
        format!("{state} last={last}")
    }
}

/// Renders resources; all forms of "none" are equal.
fn amounts(key: &str, value: &Value) -> String {
    let value = without_artefacts(value);
    match &value {
        Value::Null => String::new(),
        Value::Object(fields) if fields.is_empty() => String::new(),
        value => format!(" {key}={value}"),
    }
}

/// Removes the recorded kernel's values for "no limit".
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

/// Consecutive snapshots with the same significant state.
#[derive(Clone, Debug)]
pub(super) struct Run {
    /// The last reported state.
    pub(super) state: State,
    pub(super) first: usize,
    /// Index of its last snapshot.
    pub(super) last: usize,
    pub(super) from: f64,
    /// Start of the next run; `None` for the last.
    pub(super) to: Option<f64>,
}

impl Run {
    /// Reports whether the run must occur in ours.
    pub(super) fn is_stable(&self) -> bool {
        let enough = if self.state.passing { BUSY } else { STABLE };
        self.to.is_none_or(|to| to - self.from >= enough)
    }
}

/// Splits snapshots into runs.
pub(super) fn runs(snapshots: &[Value]) -> Vec<Run> {
    let mut found: Vec<Run> = Vec::new();
    for (index, snapshot) in snapshots.iter().enumerate() {
        let state = State::of(snapshot);
        let t = snapshot["t"].as_f64().unwrap_or_default();
        match found.last_mut() {
            Some(run) if run.state.is(&state) => {
                run.last = index;
                run.state = state;
            }
            last => {
                if let Some(run) = last {
                    run.to = Some(t);
                }
                found.push(Run { state, first: index, last: index, from: t, to: None });
            }
        }
    }
    found
}

/// Returns the indexes of our runs that match the wanted states in order, up to the first missing
/// one.
pub(super) fn in_order<'a>(
    wanted: impl IntoIterator<Item = &'a State>,
    ours: &[Run],
) -> Vec<usize> {
    let mut at = 0;
    let mut found = Vec::new();
    for state in wanted {
        let rest = ours.get(at..).unwrap_or_default();
        let Some(index) = rest.iter().position(|run| run.state.is(state)) else { break };
        found.push(at + index);
        at += index + 1;
    }
    found
}

/// Returns the phases and reasons that clients match on; with `stable_only`, those of stable
/// states.
pub(super) fn reasons(snapshots: &[Value], runs: &[Run], stable_only: bool) -> BTreeSet<String> {
    let mut words = BTreeSet::new();
    let chosen = runs.iter().filter(|run| !stable_only || run.is_stable());
    for snapshot in chosen.flat_map(|run| snapshots.get(run.first..=run.last).unwrap_or_default()) {
        words.extend(reasons_in(&snapshot["status"]));
    }
    words
}

fn reasons_in(status: &Value) -> BTreeSet<String> {
    let mut words = BTreeSet::from([format!("phase {}", text(status, "phase"))]);
    if let Some(reason) = status["reason"].as_str() {
        words.insert(format!("reason {reason}"));
    }
    for container in containers(status) {
        for state in ["state", "lastState"] {
            let word = one_state(&container[state]);
            if !word.is_empty() && word != "running" {
                words.insert(format!("{} {word}", text(container, "name")));
            }
        }
    }
    words
}

/// Returns reasons that were never reported for [`SHORT_LIVED`] or longer.
pub(super) fn short_lived_reasons(snapshots: &[Value]) -> BTreeSet<String> {
    let mut long = BTreeSet::new();
    let mut all = BTreeSet::new();
    let mut since: BTreeMap<String, f64> = BTreeMap::new();
    for snapshot in snapshots {
        let t = snapshot["t"].as_f64().unwrap_or_default();
        let now = reasons_in(&snapshot["status"]);
        since.retain(|word, from| {
            if t - *from >= SHORT_LIVED {
                long.insert(word.clone());
            }
            now.contains(word)
        });
        for word in now {
            since.entry(word.clone()).or_insert(t);
            all.insert(word);
        }
    }
    // The last reported reasons stay.
    long.extend(since.into_keys());
    all.difference(&long).cloned().collect()
}

/// Reports whether a recorded reason may be missing if it was not stable.
pub(super) fn may_be_missing(word: &str) -> bool {
    word == "phase Running"
        || NOT_YET.iter().any(|not_yet| word.ends_with(&format!("waiting({not_yet})")))
}

/// Reports whether an unrecorded reason is allowed: nothing has started, or a container that was
/// recorded to end more than once waits for its restart.
pub(super) fn is_optional_in_ours(word: &str, recorded: &Run) -> bool {
    if may_be_missing(word) {
        return true;
    }
    word.ends_with("waiting(CrashLoopBackOff)") && recorded.state.restarts > 0
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
        let seen: Vec<_> = runs.iter().map(|run| (run.last, run.is_stable())).collect();
        assert_eq!(seen, [(1, true), (2, false), (3, true)]);
    }

    #[test]
    fn equivalent_reasons_are_one_state() {
        let pod = |state: Value, last: Value| {
            json!({"t": 0.0, "status": {"phase": "Running", "containerStatuses": [
                {"name": "c", "state": state, "lastState": last, "restartCount": 2},
                {"name": "d", "state": {"running": {}}, "restartCount": 0},
            ]}})
        };
        let end = json!({"terminated": {"reason": "Error", "exitCode": 1}});
        let waiting = |reason: &str| json!({"waiting": {"reason": reason}});
        let ended = State::of(&pod(end.clone(), end.clone()));
        let backing_off = State::of(&pod(waiting("CrashLoopBackOff"), end.clone()));
        let running = State::of(&pod(json!({"running": {}}), end.clone()));
        assert!(ended.is(&backing_off) && !ended.is_exactly(&backing_off));
        assert!(!ended.is(&running));
        let alone = |state: Value| {
            let mut pod = pod(state, end.clone());
            pod["status"]["containerStatuses"].as_array_mut().unwrap().truncate(1);
            State::of(&pod)
        };
        assert!(alone(end.clone()).is(&alone(waiting("CrashLoopBackOff"))));
        let pulling = State::of(&pod(waiting("ErrImagePull"), Value::Null));
        assert!(pulling.is(&State::of(&pod(waiting("ImagePullBackOff"), Value::Null))));
        let over = |last: Value| {
            let mut pod = pod(end.clone(), last);
            pod["status"]["phase"] = "Failed".into();
            State::of(&pod)
        };
        assert!(!over(end.clone()).is(&over(Value::Null)), "the last end counts in the end");
    }

    #[test]
    fn order_matters_and_surplus_states_do_not() {
        let life = [at(0.0, "Pending", "A"), at(1.0, "Pending", "B"), at(2.0, "Pending", "C")];
        let runs = runs(&life);
        let [a, b, c] = [0, 1, 2].map(|index| runs[index].state.clone());
        assert_eq!(in_order([&a, &c], &runs), [0, 2]);
        assert_eq!(in_order([&a, &b, &c], &runs).len(), 3);
        assert_eq!(in_order([&c, &a], &runs).len(), 1);
    }

    #[test]
    fn reasons_are_those_that_clients_match_on() {
        let life = [at(0.0, "Pending", "ContainerCreating"), at(9.0, "Failed", "Error")];
        let words = reasons(&life, &runs(&life), false);
        assert!(words.contains("phase Failed") && words.contains("c waiting(Error)"), "{words:?}");
        assert!(may_be_missing("c waiting(ContainerCreating)"));
        assert!(!may_be_missing("c waiting(Error)"));
    }

    #[test]
    fn kernel_value_for_no_limit_is_removed() {
        let read = json!({"limits": {"memory": ARTEFACT}, "requests": {"cpu": "1"}});
        assert_eq!(without_artefacts(&read), json!({"requests": {"cpu": "1"}}));
        assert_eq!(without_artefacts(&json!({})), json!({}));
    }
}
