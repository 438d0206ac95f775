//! A pod's status as the API has it: [`PodStatus`], read leniently and written as upstream writes it.
//!
//! Fields that the agent neither reads nor writes are kept in `other`. Decides nothing.

use std::collections::BTreeMap;

use objects::timestamp::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::containers::{LOST, RESTARTING_ALL};
use crate::spec::ResourceList;

#[derive(Debug, Clone, PartialEq, Default, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PodStatus {
    /// The generation of the pod that the status refers to. Static pods have none.
    #[serde(skip_serializing_if = "is_zero")]
    pub observed_generation: i64,
    pub phase: Phase,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
    #[serde(rename = "hostIP", skip_serializing_if = "String::is_empty")]
    pub host_ip: String,
    #[serde(rename = "hostIPs", skip_serializing_if = "Vec::is_empty")]
    pub host_ips: Vec<Ip>,
    #[serde(rename = "podIP", skip_serializing_if = "String::is_empty")]
    pub pod_ip: String,
    #[serde(rename = "podIPs", skip_serializing_if = "Vec::is_empty")]
    pub pod_ips: Vec<Ip>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_time: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub init_container_statuses: Vec<ContainerStatus>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub container_statuses: Vec<ContainerStatus>,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub qos_class: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ephemeral_container_statuses: Vec<ContainerStatus>,
    #[serde(skip_serializing_if = "ResourceList::is_empty")]
    pub allocated_resources: ResourceList,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resources: Option<Resources>,
    /// Fields of other writers, such as `nominatedNodeName` and `resourceClaimStatuses`.
    #[serde(flatten)]
    pub other: BTreeMap<String, Value>,
}

impl PodStatus {
    /// Reads the status in the API. A status that cannot be read counts as empty and is written again.
    #[must_use]
    pub fn read(status: &Value) -> PodStatus {
        PodStatus::deserialize(status).unwrap_or_default()
    }

    /// Returns the status as it is written.
    #[must_use]
    pub fn to_value(&self) -> Value {
        // Maps with text keys and numbers always serialize.
        serde_json::to_value(self).unwrap_or_default()
    }

    #[must_use]
    pub fn condition(&self, kind: &str) -> Option<&Condition> {
        self.conditions.iter().find(|condition| condition.kind == kind)
    }

    /// Replaces the condition of the same type, or appends it.
    pub(super) fn set_condition(&mut self, condition: Condition) {
        match self.conditions.iter_mut().find(|old| old.kind == condition.kind) {
            Some(old) => *old = condition,
            None => self.conditions.push(condition),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize)]
pub enum Phase {
    #[default]
    Pending,
    Running,
    Succeeded,
    Failed,
    Unknown,
}

impl Phase {
    /// Returns true if a pod never leaves this phase.
    #[must_use]
    pub fn is_terminal(self) -> bool {
        matches!(self, Phase::Succeeded | Phase::Failed)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Condition {
    #[serde(rename = "type")]
    pub kind: String,
    #[serde(skip_serializing_if = "is_zero")]
    pub observed_generation: i64,
    /// `True`, `False` or `Unknown`.
    pub status: String,
    /// Set only for resizes, but always written.
    pub last_probe_time: Option<String>,
    pub last_transition_time: Option<String>,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
}

impl Condition {
    #[must_use]
    pub fn is_true(&self) -> bool {
        self.status == "True"
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize, Serialize)]
#[serde(default)]
pub struct Ip {
    pub ip: String,
}

#[derive(Debug, Clone, PartialEq, Default, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ContainerStatus {
    pub name: String,
    pub state: State,
    pub last_state: State,
    pub ready: bool,
    pub restart_count: u32,
    pub image: String,
    #[serde(rename = "imageID")]
    pub image_id: String,
    #[serde(rename = "containerID", skip_serializing_if = "String::is_empty")]
    pub container_id: String,
    /// Ephemeral containers have none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub started: Option<bool>,
    #[serde(skip_serializing_if = "ResourceList::is_empty")]
    pub allocated_resources: ResourceList,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resources: Option<Resources>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub volume_mounts: Vec<MountStatus>,
    #[serde(flatten)]
    pub other: BTreeMap<String, Value>,
}

impl ContainerStatus {
    /// Returns true if it was ever started.
    #[must_use]
    pub fn has_run(&self) -> bool {
        self.state.running.is_some()
            || self.state.terminated.is_some()
            || self.last_state.terminated.is_some()
    }

    /// Returns true if the count is of a start that is still to come, because the last exit was not
    /// observed.
    #[must_use]
    pub fn is_counted(&self) -> bool {
        let unseen = |end: &Terminated| [LOST, RESTARTING_ALL].contains(&end.reason.as_str());
        self.state.waiting.is_some() && self.last_state.terminated.as_ref().is_some_and(unseen)
    }
}

/// At most one of the three is set. None is set for a last state that never existed.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize, Serialize)]
#[serde(default)]
pub struct State {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waiting: Option<Waiting>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub running: Option<Running>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub terminated: Option<Terminated>,
}

impl State {
    #[must_use]
    pub fn waiting(reason: &str, message: &str) -> State {
        let waiting = Waiting { reason: reason.to_owned(), message: message.to_owned() };
        State { waiting: Some(waiting), ..State::default() }
    }

    #[must_use]
    pub fn terminated(terminated: Terminated) -> State {
        State { terminated: Some(terminated), ..State::default() }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize, Serialize)]
#[serde(default)]
pub struct Waiting {
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Running {
    pub started_at: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Terminated {
    pub exit_code: i32,
    #[serde(skip_serializing_if = "is_no_signal")]
    pub signal: i32,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// Null if it was not observed.
    pub started_at: Option<String>,
    pub finished_at: Option<String>,
    #[serde(rename = "containerID", skip_serializing_if = "String::is_empty")]
    pub container_id: String,
}

/// The effective amounts.
#[derive(Debug, Clone, PartialEq, Default, Deserialize, Serialize)]
#[serde(default)]
pub struct Resources {
    #[serde(skip_serializing_if = "ResourceList::is_empty")]
    pub limits: ResourceList,
    #[serde(skip_serializing_if = "ResourceList::is_empty")]
    pub requests: ResourceList,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub struct MountStatus {
    pub name: String,
    pub mount_path: String,
    #[serde(skip_serializing_if = "is_false")]
    pub read_only: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recursive_read_only: Option<String>,
}

/// Formats a time of the CRI, nanoseconds since 1970, as the API does.
pub(super) fn time_text(nanos: i64) -> String {
    Timestamp::new(nanos.div_euclid(NANOS_PER_SECOND), 0).to_seconds_text()
}

const NANOS_PER_SECOND: i64 = 1_000_000_000;

// serde passes references.
fn is_zero(number: &i64) -> bool {
    *number == 0
}

fn is_no_signal(number: &i32) -> bool {
    *number == 0
}

fn is_false(value: &bool) -> bool {
    !*value
}
