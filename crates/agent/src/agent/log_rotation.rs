//! Rotates logs that grow too large: [`run`]. Between rotations it only reads file sizes.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use cri::v1;
use tokio::sync::{mpsc, oneshot};
use tracing::{info, warn};

use super::AgentMessage;
use crate::runtime::logs::rotate::{Outcome, Policy};
use crate::supervisor::millis;
use client::ErrorLog;
use client::clock::Clock;
use lifecycle::observed::RuntimeId;

/// The log of a running container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunningLog {
    pub container: RuntimeId,
    pub path: PathBuf,
}

/// Checks the logs of all running containers periodically.
pub(super) async fn run(
    (runtime, clock): (cri::Client, Arc<dyn Clock>),
    policy: Policy,
    every: Duration,
    messages: mpsc::UnboundedSender<AgentMessage>,
) {
    let mut timer = tokio::time::interval(every);
    timer.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut errors: BTreeMap<PathBuf, ErrorLog> = BTreeMap::new();
    loop {
        timer.tick().await;
        let (ask, answer) = oneshot::channel();
        if messages.send(AgentMessage::RunningLogs(ask)).is_err() {
            return;
        }
        let Ok(logs) = answer.await else { return };
        errors.retain(|path, _| logs.iter().any(|log| log.path == *path));
        for RunningLog { container, path } in logs {
            let reopen = || async {
                let container_id = container.clone();
                let request = v1::ReopenContainerLogRequest { container_id };
                runtime.call(request).await.map(|_| ())
            };
            match policy.tend(&path, clock.now(), reopen).await {
                Ok(Outcome::Rotated(to)) => {
                    info!(log = %path.display(), to = %to.display(), "rotated a log");
                }
                Ok(Outcome::Kept | Outcome::Made) => {}
                // The container may have exited. A log of a running container is tried again.
                Err(error) => {
                    if errors.entry(path.clone()).or_default().failed(&error) {
                        let (log, retry_in_ms) = (path.display(), millis(every));
                        warn!(%log, container, %error, retry_in_ms, "failed to rotate a log");
                    }
                    continue;
                }
            }
            if let Some(failures) = errors.remove(&path).and_then(|mut log| log.recovered()) {
                info!(log = %path.display(), failures, "checked a log after failures");
            }
        }
    }
}
