//! What the Node object and the runtime say that admission and requests go by: [`take`], and [`keep`],
//! which follows them.

use std::sync::{Arc, PoisonError, RwLock};

use serde_json::Value;
use tokio::sync::watch;

use crate::admission;
use crate::context::Hands;
use crate::node::{RuntimeHealth, qos_resources};

/// Follows both for as long as it is polled.
pub(super) async fn keep(
    hands: Arc<Hands>,
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
        take(&hands, &node, now.as_deref(), &runtime);
    }
}

/// Takes labels, taints, allocatable amounts and what the runtime offers.
pub(super) fn take(
    hands: &Hands,
    node: &RwLock<admission::Node>,
    object: Option<&Value>,
    runtime: &RuntimeHealth,
) {
    let mut view = node.write().unwrap_or_else(PoisonError::into_inner);
    view.host_process = hands.facts().host_process;
    if let RuntimeHealth::Seen(runtime) = runtime {
        view.supplemental_groups_policy = runtime.supplemental_groups_policy;
        view.no_host_processes = cri::check_host_processes(&runtime.name, &runtime.version).err();
        view.classes = runtime.classes.as_ref().map(qos_resources::offer).unwrap_or_default();
    }
    let Some(object) = object else { return };
    view.observe(object);
    let mut facts = hands.facts.write().unwrap_or_else(PoisonError::into_inner);
    if facts.allocatable != view.allocatable {
        Arc::make_mut(&mut facts).allocatable.clone_from(&view.allocatable);
    }
}
