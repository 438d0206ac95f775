//! The node's heartbeat: a Lease in `kube-node-lease`, renewed four times per lease duration.
//!
//! It shows only that the agent runs; the status shows the state of the node.

use std::time::Duration;

use client::{Client, Error, kind};
use objects::timestamp::Timestamp;
use serde_json::{Value, json};
use tracing::{info, warn};

use crate::supervisor::millis;
use client::ErrorLog;

const NAMESPACE: &str = "kube-node-lease";

/// Interval after a renewal that failed.
const AGAIN: Duration = Duration::from_secs(1);

/// Returns the lease that follows `before`, renewed at `now`.
pub(super) fn renewed(
    before: Option<Value>,
    name: &str,
    uid: &str,
    seconds: u32,
    now: Timestamp,
) -> Value {
    let mut lease = before.unwrap_or_else(|| {
        json!({
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": name, "namespace": NAMESPACE},
        })
    });
    // The lease is deleted with the node.
    lease["metadata"]["ownerReferences"] =
        json!([{"apiVersion": "v1", "kind": "Node", "name": name, "uid": uid}]);
    lease["spec"]["holderIdentity"] = name.into();
    lease["spec"]["leaseDurationSeconds"] = seconds.into();
    lease["spec"]["renewTime"] = now.to_micros_text().into();
    lease
}

/// Renews the lease forever.
pub(super) async fn run(client: &Client, name: &str, uid: &str, seconds: u32) {
    let every = Duration::from_secs(u64::from(seconds)) / 4;
    let (mut held, mut errors) = (None, ErrorLog::default());
    loop {
        let wait = match renew(client, held.take(), name, uid, seconds).await {
            Ok(lease) => {
                if let Some(failures) = errors.recovered() {
                    info!(node = name, failures, "renewed the node's lease again");
                }
                held = Some(lease);
                every
            }
            // Another writer changed it, or the server is unavailable: read it again.
            Err(error) => {
                let wait = AGAIN.min(every);
                if errors.failed(&error) {
                    let retry_in_ms = millis(wait);
                    warn!(node = name, %error, retry_in_ms, "failed to renew the node's lease");
                }
                wait
            }
        };
        tokio::time::sleep(wait).await;
    }
}

async fn renew(
    client: &Client,
    held: Option<Value>,
    name: &str,
    uid: &str,
    seconds: u32,
) -> Result<Value, Error> {
    let held = match held {
        Some(held) => Some(held),
        None => match client.get(kind::LEASES, NAMESPACE, name).await {
            Ok(found) => Some(found),
            Err(error) if error.is_not_found() => None,
            Err(error) => return Err(error),
        },
    };
    let new = held.is_none();
    let lease = renewed(held, name, uid, seconds, super::run::now());
    if new {
        client.create(kind::LEASES, NAMESPACE, &lease).await
    } else {
        client.update(kind::LEASES, &lease).await
    }
}
