//! Recordings of upstream, replayed with Berth. The modules behind features need more than every
//! machine has: `pods` a containerd, `commands` the clients of `tools/clients`.

#![allow(clippy::panic, clippy::unwrap_used, reason = "clippy.toml allows them in tests only")]

use std::path::{Path, PathBuf};

use conformance::{Options, run_dir, run_files};

mod agreement;
#[cfg(feature = "clients")]
mod commands;
#[cfg(feature = "rig")]
mod pods;

fn testdata(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata").join(name)
}

#[test]
fn exchanges_are_answered_as_recorded() {
    let exchanges = testdata("golden-api/exchanges.jsonl.gz");
    let report = run_files([exchanges], &Options::default()).unwrap();
    assert_eq!(report.failed(), 0, "{}", report.failures());
    assert!(report.passed() > 1900, "{}", report.render(None));
}

#[test]
fn nodes_are_authorized_as_recorded() {
    let requests = testdata("golden-access/node.jsonl.gz");
    let report = run_files([requests], &Options::default()).unwrap();
    assert_eq!(report.failed(), 0, "{}", report.failures());
    assert!(report.passed() > 280, "{}", report.render(None));
}

#[test]
fn decisions_are_made_as_recorded() {
    let report = run_dir(&testdata("golden"), &Options::default()).unwrap();
    assert!(report.failed() == 0 && report.passed() > 0, "{}", report.failures());
}
