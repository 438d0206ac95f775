//! Recorded pods, replayed with our agent in a real containerd. Needs root, Linux and Debian's
//! packages; see crates/rig.
//!
//! Only families that take seconds are replayed here, one pod of each kind of lifecycle. The whole
//! recording takes minutes: `berth-conformance testdata/golden-node --container-runtime-endpoint
//! …`.

use std::time::Duration;

use conformance::{Options, run_files};
use rig::Containerd;

use crate::testdata;

/// Timeout on a busy machine; successful waits end earlier.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Pods that end by themselves or by one deletion, without back-off.
const PLAYED: &[&str] = &[
    "exit-never-1",
    "exit-never-two-mixed",
    "run-burstable",
    "run-privileged",
    "cm-env-missing",
    "cm-env-optional",
    "sec-env-missing",
    "hook-prestop-ok",
    "init-resources",
    "term-grace-honoured",
    "term-sigkill-after-grace",
    "tm-file-fail",
    "hostpath-directory-dir",
    "hostpath-file-nofile",
    "reject-outofcpu",
    "reject-os-windows",
    "runtimeclass-ok",
    "runtimeclass-unknown",
    "sec-runasnonroot-uid0",
];

/// Kinds of facts of a node, and a node.
const FOUND: &[&str] = &[
    "cgroups",
    "state-files",
    "directories",
    "podresources",
    "http",
    "metrics",
    "start-error",
    "node-registered-not-ready",
];

#[test]
fn recorded_pods_are_replayed() {
    let containerd = Containerd::start().unwrap_or_else(|error| panic!("{error}"));
    let runtime = cri::Endpoint::parse(&containerd.endpoint()).unwrap();
    let only = PLAYED.iter().map(|word| (*word).to_owned()).collect();
    let options = Options { runtime: Some(runtime), only };
    let report = run_files(
        [testdata("golden-node/pods.jsonl.gz"), testdata("golden-node/cri.jsonl.gz")],
        &options,
    )
    .unwrap();
    assert_eq!(report.failed(), 0, "{}", report.failures());
    // Each of them, and the requests of some.
    assert!(report.passed() >= PLAYED.len(), "{}", report.render(None));
}

#[test]
fn node_facts_match_the_recording() {
    let containerd = Containerd::start().unwrap_or_else(|error| panic!("{error}"));
    let runtime = cri::Endpoint::parse(&containerd.endpoint()).unwrap();
    let only = FOUND.iter().map(|word| (*word).to_owned()).collect();
    let options = Options { runtime: Some(runtime), only };
    let report = run_files([testdata("golden-node/node.jsonl.gz")], &options).unwrap();
    assert_eq!(report.failed(), 0, "{}", report.failures());
    // Cgroups, the Pod Resources API, five responses of the agent's server, probe metrics, and the
    // node without a network that this runtime makes.
    assert!(report.passed() >= 9, "{}", report.render(None));
    // State files, directories, metrics, and a start that upstream rejects.
    assert!(report.deliberately_different() >= 6, "{}", report.render(None));
}

#[test]
fn nothing_passes_without_a_runtime() {
    let report = run_files([testdata("golden-node/pods.jsonl.gz")], &Options::default()).unwrap();
    assert_eq!((report.passed(), report.failed()), (0, 0));
    assert!(report.not_served() > 200, "{}", report.render(None));
}

/// Waits until the runtime has observed the removal of the image, which is asynchronous.
fn until_gone(runtime: &cri::Endpoint) {
    let tokio = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let client = cri::Client::new(runtime.clone());
    let image = cri::v1::ImageSpec { image: rig::BUSYBOX.to_owned(), ..Default::default() };
    let request = cri::v1::ImageStatusRequest { image: Some(image), verbose: false };
    rig::wait_until(TIMEOUT, || {
        let answer = tokio.block_on(client.call(request.clone())).unwrap();
        answer.image.is_none().then_some(())
    })
    .unwrap();
}

#[test]
fn missing_image_is_reported() {
    let containerd = Containerd::start().unwrap_or_else(|error| panic!("{error}"));
    let runtime = cri::Endpoint::parse(&containerd.endpoint()).unwrap();
    containerd.remove_image(rig::BUSYBOX).unwrap();
    until_gone(&runtime);
    let options = Options { runtime: Some(runtime), only: Vec::new() };
    let error = run_files([testdata("golden-node/pods.jsonl.gz")], &options).unwrap_err();
    let text = format!("{error:#}");
    assert!(text.contains("has no image localhost/busybox:1"), "{text}");
}
