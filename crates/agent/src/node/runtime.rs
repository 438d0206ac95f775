//! The state of the container runtime: [`RuntimeHealth`], read every few seconds by [`watch()`].
//!
//! A runtime that does not answer for half a minute is down. Until then its last state is kept, because a restart takes
//! no longer. Starts and restarts nothing.

use std::sync::Arc;
use std::time::Duration;

use cri::{Condition, Handler, v1};
use tokio::sync::watch;
use tokio::time::Instant;
use tracing::{info, warn};

use crate::supervisor::millis;
use client::ErrorLog;

/// Interval between two requests. Upstream's value.
const PERIOD: Duration = Duration::from_secs(5);

/// Time for which a runtime may not answer. Upstream's value.
const PATIENCE: Duration = Duration::from_secs(30);

#[derive(Debug, Clone, PartialEq)]
pub enum RuntimeHealth {
    /// It has not answered yet.
    Starting,
    Down,
    Seen(Arc<Runtime>),
}

/// The properties that a runtime reports.
#[derive(Debug, Clone, PartialEq)]
pub struct Runtime {
    pub name: String,
    pub version: String,
    pub ready: Condition,
    pub network: Condition,
    pub handlers: Vec<Handler>,
    /// True if it reports features at all.
    pub tells_features: bool,
    pub supplemental_groups_policy: bool,
    /// Its classes of QoS resources, if it has the extension.
    pub classes: Option<v1::ResourcesInfo>,
}

impl Runtime {
    #[must_use]
    pub fn new(version: v1::VersionResponse, status: v1::StatusResponse) -> Runtime {
        let runtime_status = status.status.unwrap_or_default();
        let find = |wanted: &str| {
            let found =
                runtime_status.conditions.iter().find(|condition| condition.r#type == wanted);
            match found {
                Some(found) => Condition {
                    status: found.status,
                    reason: found.reason.clone(),
                    message: found.message.clone(),
                },
                None => Condition {
                    message: format!("the runtime does not report {wanted}"),
                    ..Condition::default()
                },
            }
        };
        Runtime {
            name: version.runtime_name,
            version: version.runtime_version,
            ready: find("RuntimeReady"),
            network: find("NetworkReady"),
            handlers: status.runtime_handlers.into_iter().map(Handler::from).collect(),
            tells_features: status.features.is_some(),
            supplemental_groups_policy: status
                .features
                .is_some_and(|features| features.supplemental_groups_policy),
            classes: runtime_status.resources,
        }
    }
}

impl RuntimeHealth {
    /// Returns the problem that keeps the node from being ready, with upstream's text.
    #[must_use]
    pub fn problems(&self) -> Vec<String> {
        let runtime = match self {
            RuntimeHealth::Starting => {
                return vec![
                    "container runtime status check may not have completed yet".to_owned(),
                ];
            }
            RuntimeHealth::Down => return vec!["container runtime is down".to_owned()],
            RuntimeHealth::Seen(runtime) => runtime,
        };
        let conditions = [
            ("container runtime not ready", "RuntimeReady", &runtime.ready),
            ("container runtime network not ready", "NetworkReady", &runtime.network),
        ];
        let unmet = conditions.into_iter().filter(|(.., condition)| !condition.status);
        let problems = unmet.map(|(what, name, Condition { reason, message, .. })| {
            format!("{what}: {name}=false reason:{reason} message:{message}")
        });
        problems.collect()
    }
}

/// Updates `health_sender` until the receivers are gone.
pub async fn watch(client: cri::Client, health_sender: watch::Sender<RuntimeHealth>) {
    let (mut version, mut errors) = (None, ErrorLog::default());
    let mut answered: Option<Instant> = None;
    let mut ticks = tokio::time::interval(PERIOD);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            () = health_sender.closed() => return,
        }
        // The request has the same limit: a runtime that hangs is as down as one that is gone.
        match query(&client.within(PATIENCE), &mut version).await {
            Ok(runtime) => {
                if let Some(failures) = errors.recovered() {
                    info!(failures, "the container runtime answers again");
                }
                answered = Some(Instant::now());
                put(&health_sender, RuntimeHealth::Seen(Arc::new(runtime)));
            }
            Err(error) => {
                if errors.failed(&error) {
                    let retry_in_ms = millis(PERIOD);
                    warn!(%error, retry_in_ms, "failed to read the status of the container runtime");
                }
                // Another runtime may come back.
                version = None;
                if answered.is_some_and(|at| at.elapsed() >= PATIENCE) {
                    put(&health_sender, RuntimeHealth::Down);
                }
            }
        }
    }
}

fn put(health_sender: &watch::Sender<RuntimeHealth>, health: RuntimeHealth) {
    health_sender.send_if_modified(|now| {
        let changed = *now != health;
        if changed {
            log_change(now, &health);
            *now = health;
        }
        changed
    });
}

/// Logs that the runtime became ready or not ready, or that the reason changed.
fn log_change(before: &RuntimeHealth, health: &RuntimeHealth) {
    let problems = health.problems();
    if *before != RuntimeHealth::Starting && before.problems() == problems {
        return;
    }
    let (name, version) = match health {
        RuntimeHealth::Seen(runtime) => (runtime.name.as_str(), runtime.version.as_str()),
        RuntimeHealth::Starting | RuntimeHealth::Down => ("", ""),
    };
    if problems.is_empty() {
        info!(runtime = name, version, "the container runtime is ready");
    } else {
        let reason = problems.join("; ");
        info!(runtime = name, version, reason, "the container runtime is not ready");
    }
}

async fn query(
    client: &cri::Client,
    known: &mut Option<v1::VersionResponse>,
) -> Result<Runtime, cri::Error> {
    let version = match known {
        Some(version) => version.clone(),
        None => {
            let request = v1::VersionRequest { version: "0.1.0".to_owned() };
            known.insert(client.call(request).await?).clone()
        }
    };
    let status = client.call(v1::StatusRequest::default()).await?;
    Ok(Runtime::new(version, status))
}
