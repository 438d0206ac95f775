//! The state of the container runtime: [`RuntimeHealth`], read every few seconds by [`watch()`].
//!
//! A runtime that does not answer for half a minute is down. Until then its last state is kept, because a restart takes
//! no longer. Starts and restarts nothing.

use std::sync::Arc;
use std::time::Duration;

use cri::{Condition, Handler, v1};
use tokio::sync::watch;
use tokio::time::Instant;

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
        let told = status.status.unwrap_or_default();
        let find = |wanted: &str| {
            let found = told.conditions.iter().find(|condition| condition.r#type == wanted);
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
            classes: told.resources,
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
        let told = unmet.map(|(what, name, Condition { reason, message, .. })| {
            format!("{what}: {name}=false reason:{reason} message:{message}")
        });
        told.collect()
    }
}

/// Updates `told` until the receivers are gone.
pub async fn watch(client: cri::Client, told: watch::Sender<RuntimeHealth>) {
    let mut version = None;
    let mut answered: Option<Instant> = None;
    let mut ticks = tokio::time::interval(PERIOD);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            () = told.closed() => return,
        }
        // The request has the same limit: a runtime that hangs is as down as one that is gone.
        match ask(&client.within(PATIENCE), &mut version).await {
            Ok(runtime) => {
                answered = Some(Instant::now());
                put(&told, RuntimeHealth::Seen(Arc::new(runtime)));
            }
            Err(_) => {
                // Another runtime may come back.
                version = None;
                if answered.is_some_and(|at| at.elapsed() >= PATIENCE) {
                    put(&told, RuntimeHealth::Down);
                }
            }
        }
    }
}

fn put(told: &watch::Sender<RuntimeHealth>, health: RuntimeHealth) {
    told.send_if_modified(|now| {
        let changed = *now != health;
        if changed {
            *now = health;
        }
        changed
    });
}

async fn ask(
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
