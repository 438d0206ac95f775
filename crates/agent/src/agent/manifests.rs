//! Static pods of the agent: the location of their manifests ([`settings`]), and their changes
//! ([`follow`]).

use std::path::PathBuf;
use std::sync::Arc;

use tokio::sync::mpsc;
use tracing::warn;

use super::AgentMessage;
use crate::node::Description;
use crate::observability::events::AgentEvent;
use crate::observability::recorder::Recorder;
use crate::pods::static_pods::{self, Settings};
use client::clock::Clock;

/// Returns `None` if no location is configured.
pub(super) fn settings(node: &Description) -> Option<Settings> {
    let path = node.config.static_pod_path.as_ref().filter(|path| !path.is_empty())?;
    Some(Settings {
        path: PathBuf::from(path),
        every: node.settings.files_every,
        node: node.name.clone(),
        gates: node.config.feature_gates.clone(),
    })
}

/// Forwards the static pods until the receiver is gone.
pub(super) async fn follow(
    recorder: Recorder,
    clock: Arc<dyn Clock>,
    settings: Settings,
    messages: mpsc::UnboundedSender<AgentMessage>,
) {
    let node = settings.node.clone();
    let take = move |found: static_pods::ManifestScan| {
        for problem in found.problems {
            let (file, error) = (problem.file.display().to_string(), problem.why);
            warn!(file, error, "could not process manifest file");
            recorder.node(&node, AgentEvent::StaticPodFailed { file, error });
        }
        messages.send(AgentMessage::StaticPods(found.pods)).is_ok()
    };
    static_pods::watch(settings, clock, take).await;
}
