//! A worker that panics.

use std::time::Duration;

use super::*;
use rig::logs::capture;

fn pod() -> Arc<Pod> {
    let metadata = Metadata {
        name: "p".to_owned(),
        namespace: "n".to_owned(),
        uid: "u".to_owned(),
        ..Metadata::default()
    };
    Arc::new(Pod { metadata, ..Pod::default() })
}

#[tokio::test(start_paused = true)]
async fn worker_that_panics_is_logged_and_reported_after_its_backoff() {
    let log = capture("agent");
    let (reports, mut reported) = mpsc::unbounded_channel();
    let mut backoff = RestartBackoff::new(WORKER_RESTART);
    for (number, least) in [(1, 1_000), (2, 2_000), (3, 4_000)] {
        let begun = tokio::time::Instant::now();
        run_worker(async { panic!("no sandbox") }, pod(), backoff, reports.clone()).await;
        assert!(begun.elapsed() >= Duration::from_millis(least), "{number}");
        let Some(WorkerReport::Panicked(uid, next)) = reported.recv().await else {
            panic!("no report of panic {number}");
        };
        assert_eq!(uid, "u");
        backoff = next;
    }
    let lines = log.lines();
    assert_eq!(lines.len(), 3, "{lines:?}");
    let first = "ERROR a pod worker panicked; the pod gets a new one pod=\"n/p\" uid=\"u\" \
                 cause=panicked: no sandbox retry_in_ms=1";
    assert!(lines[0].starts_with(first), "{lines:?}");
}

#[tokio::test]
async fn worker_that_ends_is_not_reported() {
    let log = capture("agent");
    let (reports, mut reported) = mpsc::unbounded_channel();
    let backoff = RestartBackoff::new(WORKER_RESTART);
    run_worker(async {}, pod(), backoff, reports).await;
    assert_eq!(reported.recv().await, None);
    assert_eq!(log.lines(), [""; 0]);
}
