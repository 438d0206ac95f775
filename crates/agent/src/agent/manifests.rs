//! Static pods of the agent: the location of their manifests ([`settings`]), and their changes
//! ([`follow`]).

use std::path::PathBuf;
use std::sync::Arc;

use tokio::sync::mpsc;
use tracing::warn;

use super::Happening;
use crate::context::Hands;
use crate::node::Description;
use crate::observability::events::Told;
use crate::pods::static_pods::{self, Settings};

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
    hands: Arc<Hands>,
    settings: Settings,
    happened: mpsc::UnboundedSender<Happening>,
) {
    let node = settings.node.clone();
    let take = {
        let hands = Arc::clone(&hands);
        move |found: static_pods::Found| {
            for problem in found.problems {
                let (file, error) = (problem.file.display().to_string(), problem.why);
                warn!(file, error, "could not process manifest file");
                hands.recorder.node(&node, Told::StaticPodFailed { file, error });
            }
            happened.send(Happening::Files(found.pods)).is_ok()
        }
    };
    static_pods::watch(settings, Arc::clone(&hands.clock), take).await;
}
