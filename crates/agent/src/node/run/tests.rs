//! The log of the registration, against an API that refuses it.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use client::{Body, BoxFuture, Request, Response, Transport, TransportError};
use serde_json::json;

use super::*;
use crate::node::recorded::described;
use rig::logs::capture;

/// Answers each request with the next status, and with the node after the last one.
#[derive(Debug)]
struct Refusing {
    answers: Mutex<Vec<u16>>,
    requests: AtomicUsize,
}

impl Transport for Refusing {
    fn send(&self, _: Request) -> BoxFuture<'_, Result<Response, TransportError>> {
        self.requests.fetch_add(1, Ordering::Relaxed);
        let mut answers = self.answers.lock().unwrap();
        let (status, body) = match answers.is_empty() {
            true => (200, json!({"metadata": {"name": "node-1", "uid": "u-1"}})),
            false => {
                let status = answers.remove(0);
                let reason = if status == 401 { "Unauthorized" } else { "Forbidden" };
                (
                    status,
                    json!({
                        "kind": "Status", "status": "Failure", "code": status,
                        "reason": reason, "message": reason,
                    }),
                )
            }
        };
        let body = Body::Whole(body.to_string().into());
        Box::pin(async move { Ok(Response { status, retry_after: None, body }) })
    }
}

#[tokio::test(start_paused = true)]
async fn registration_logs_each_change_of_the_error_and_the_success() {
    let log = capture("agent");
    let (description, observation) = described(&Value::Null);
    let sources = StatusInputs {
        runtime: watch::channel(RuntimeHealth::Starting).1,
        pressure: watch::channel(Pressure::default()).1,
        images: watch::channel(Arc::default()).1,
        devices: watch::channel(BTreeMap::new()).1,
        report: watch::channel(observation.report).1,
        problems: watch::channel(Vec::new()).1,
        takeover: watch::channel(Takeover::Done).1,
        root: std::env::temp_dir(),
    };
    let api = Arc::new(Refusing {
        answers: Mutex::new(vec![401, 401, 401, 403, 403]),
        requests: AtomicUsize::new(0),
    });
    let client = Client::new(Arc::clone(&api) as Arc<dyn Transport>, "kubelet");
    registered(&client, &description, &sources).await;
    assert!(api.requests.load(Ordering::Relaxed) > 5);
    let lines = log.lines();
    assert_eq!(lines.len(), 3, "{lines:?}");
    let failed = "WARN failed to register the node node=\"node-1\" error=";
    assert!(lines[0].starts_with(failed) && lines[0].contains("Unauthorized"), "{lines:?}");
    assert!(lines[0].contains(" retry_in_ms=1"), "{lines:?}");
    assert!(lines[1].starts_with(failed) && lines[1].contains("Forbidden"), "{lines:?}");
    assert_eq!(lines[2], "INFO the node is registered node=\"node-1\" uid=\"u-1\" attempts=6");
}
