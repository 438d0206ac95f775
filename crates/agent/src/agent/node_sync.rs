//! Copies labels, taints and allocatable from the Node object, and features from the runtime, for
//! admission: [`take`] once, [`run`] on every change.

use std::sync::{Arc, PoisonError, RwLock};

use serde_json::Value;
use tokio::sync::watch;

use crate::node::{RuntimeHealth, qos_resources};
use crate::node_state::NodeState;
use lifecycle::admission::{self, NoHostProcesses};

/// Repeats [`take`] on every change, as long as it is polled.
pub(super) async fn run(
    state: Arc<NodeState>,
    node: Arc<RwLock<admission::Node>>,
    mut object: watch::Receiver<Option<Arc<Value>>>,
    mut health: watch::Receiver<RuntimeHealth>,
) {
    loop {
        let changed = tokio::select! {
            changed = object.changed() => changed,
            changed = health.changed() => changed,
        };
        if changed.is_err() {
            return;
        }
        let (now, runtime) =
            (object.borrow_and_update().clone(), health.borrow_and_update().clone());
        take(&state, &node, now.as_deref(), &runtime);
    }
}

/// Copies labels, taints, allocatable and the features of the runtime.
pub(super) fn take(
    state: &NodeState,
    node: &RwLock<admission::Node>,
    object: Option<&Value>,
    runtime: &RuntimeHealth,
) {
    let mut view = node.write().unwrap_or_else(PoisonError::into_inner);
    view.host_process = state.node_env().host_process;
    if let RuntimeHealth::Seen(runtime) = runtime {
        view.supplemental_groups_policy = runtime.supplemental_groups_policy;
        let checked = cri::check_host_processes(&runtime.name, &runtime.version);
        view.no_host_processes = checked.err().map(|no| NoHostProcesses(no.to_string()));
        view.classes = runtime.classes.as_ref().map(qos_resources::offer).unwrap_or_default();
    }
    let Some(object) = object else { return };
    view.observe(object);
    if state.node_env().allocatable != view.allocatable {
        state.update_node_env(|node_env| node_env.allocatable.clone_from(&view.allocatable));
    }
}
