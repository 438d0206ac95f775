//! Integration tests of the binary's library.

#![allow(clippy::panic, clippy::unwrap_used)]

use std::path::Path;

use berth::conformance::{Options, run_dir, run_files};

#[path = "cases/backup.rs"]
mod backup;
#[path = "cases/certificates.rs"]
mod certificates;
#[path = "cases/controllers.rs"]
mod controllers;
#[path = "cases/plan.rs"]
mod plan;
#[path = "cases/plugins.rs"]
mod plugins;
#[path = "cases/remote.rs"]
mod remote;
#[path = "cases/state.rs"]
mod state;
#[path = "cases/storage.rs"]
mod storage;
#[path = "cases/tools.rs"]
mod tools;
#[path = "cases/topology.rs"]
mod topology;

/// Every recorded exchange with kube-apiserver about what we serve is answered the same.
#[test]
fn recorded_exchanges_are_answered_as_upstream_does() {
    let exchanges = testdata("golden-api/exchanges.jsonl.gz");
    let report = run_files([exchanges], &Options::default()).unwrap();
    assert_eq!(report.failed(), 0, "{}", report.failures());
    assert!(report.passed() > 1900, "{}", report.render(None));
}

/// Every recorded request of a node about what we serve is allowed or refused the same.
#[test]
fn nodes_are_allowed_and_refused_as_upstream_does() {
    let requests = testdata("golden-access/node.jsonl.gz");
    let report = run_files([requests], &Options::default()).unwrap();
    assert_eq!(report.failed(), 0, "{}", report.failures());
    assert!(report.passed() > 280, "{}", report.render(None));
}

fn testdata(name: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata").join(name)
}

#[test]
fn every_recorded_decision_of_the_kubelet_is_ours_too() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/golden");
    let report = run_dir(&dir, &Options::default()).unwrap();
    assert!(report.failed() == 0 && report.passed() > 0, "{}", report.failures());
}
