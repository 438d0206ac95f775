//! The log events of requests.

use std::sync::{Arc, Mutex};

use apiserver::{Caller, User};
use http::Method;
use serde_json::Value;

use crate::{Cluster, request, send_as};

/// The log lines of the current thread while the guard lives.
#[derive(Clone, Default)]
struct LogLines(Arc<Mutex<Vec<u8>>>);

impl LogLines {
    fn capture() -> (LogLines, tracing::subscriber::DefaultGuard) {
        let lines = LogLines::default();
        let writer = lines.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_max_level(tracing::Level::DEBUG)
            .with_ansi(false)
            .without_time()
            .with_writer(move || writer.clone())
            .finish();
        (lines, tracing::subscriber::set_default(subscriber))
    }

    fn with(&self, text: &str) -> Vec<String> {
        let all = String::from_utf8(self.0.lock().unwrap().clone()).unwrap();
        all.lines().filter(|line| line.contains(text)).map(str::to_owned).collect()
    }
}

impl std::io::Write for LogLines {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn request_is_logged_with_user_verb_path_and_status() {
    let cluster = Cluster::new().await;
    let (lines, _guard) = LogLines::capture();
    let viewer = || User::member("alice", apiserver::VIEWERS);
    let path = "/api/v1/namespaces/default/pods";
    let (status, _) = send_as(&cluster.api, viewer(), Method::GET, path, Value::Null).await;
    assert_eq!(status, 200);
    let mut anonymous = request(viewer(), Method::GET, path, &Value::Null);
    anonymous.caller = Caller::InvalidCredentials;
    assert_eq!(cluster.api.handle(anonymous).await.status.as_u16(), 401);
    let handled = lines.with("handled a request");
    assert_eq!(handled.len(), 2, "{handled:?}");
    let expected =
        "user=\"alice\" verb=\"list\" path=\"/api/v1/namespaces/default/pods\" status=200";
    assert!(handled[0].contains("DEBUG") && handled[0].contains(expected), "{handled:?}");
    assert!(handled[1].contains("user=\"\"") && handled[1].contains("status=401"), "{handled:?}");
}
