//! How pods live: they run, end, are restarted and deleted.

use crate::support::{Berth, SLEEP, phase, pod};

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_runs_and_goes_when_it_is_deleted() {
    let mut berth = Berth::start(|_| {}).await;
    berth.create(pod("web", SLEEP)).await;
    let running = berth.until("web", |pod| phase(pod) == "Running").await;
    let status = &running["status"]["containerStatuses"][0];
    assert_eq!(status["ready"], true, "{running:#}");
    assert!(status["containerID"].as_str().unwrap().starts_with("containerd://"));
    berth.delete("web").await;
    berth.gone("web").await;
    berth.end().await;
}
