//! Recorded kubectl commands, repeated with the same kubectl.

use std::env;
use std::process::Command;

use rig::clients::{client, newest_kubectl};

use crate::testdata;

#[test]
fn commands_print_the_recorded_output() {
    let kubectls = env::join_paths([client("kubectl-1.32"), newest_kubectl()]).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_berth-conformance"))
        .args(["--show", "--"])
        .arg(testdata("golden-api/kubectl.jsonl.gz"))
        .env("BERTH_KUBECTL", kubectls)
        .output()
        .unwrap();
    let report = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{report}{}", String::from_utf8_lossy(&output.stderr));
    assert!(!report.contains("no kubectl on this machine"), "{report}");
}
