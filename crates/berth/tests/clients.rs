//! Real clients with a real `berth server`: at least three versions of kubectl, PyPI's client, and
//! kube-rs.
//!
//! Needs the feature `clients`, and the directory that `tools/clients` makes in `BERTH_CLIENTS`. A
//! missing client fails its test, so that no test passes without running. The commands and expected
//! outputs of kubectl are in `clients/sessions/*.txt`; `clients/session.rs` describes the format.

#![allow(
    clippy::panic,
    clippy::unwrap_used,
    reason = "clippy.toml allows them in tests, not helpers"
)]

use std::path::{Path, PathBuf};
use std::process::Command;

#[path = "clients/kube_rs.rs"]
mod kube_rs;
#[path = "clients/server.rs"]
mod server;
#[path = "clients/session.rs"]
mod session;

use rig::clients::{client, newest_kubectl};
use server::Server;
use session::{Client, Session};

/// Minimum number of commands for a valid run.
const ENOUGH: usize = 60;

/// Runs every session with a kubectl, each on its own server.
fn play(kubectl: PathBuf) {
    let client = Client::at(kubectl);
    let mut commands = 0;
    let mut complaints = Vec::new();
    for session in Session::all() {
        let server = Server::start();
        commands += session.play(&client, &server, &mut complaints);
    }
    assert!(
        complaints.is_empty(),
        "kubectl {}: {} of {commands} commands\n\n{}",
        client.version(),
        complaints.len(),
        complaints.join("\n\n")
    );
    assert!(commands >= ENOUGH, "only {commands} commands were run");
}

#[test]
fn kubectl_of_debian_12_works() {
    play(client("kubectl-1.20"));
}

#[test]
fn kubectl_of_debian_13_works() {
    play(client("kubectl-1.32"));
}

#[test]
fn newest_kubectl_works() {
    play(newest_kubectl());
}

/// Any version that is installed.
#[test]
fn kubectl_on_the_path_works() {
    play(client("kubectl-machine"));
}

#[test]
fn pypi_client_works() {
    let server = Server::start();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients/python_client.py");
    let output = Command::new(client("python/bin/python"))
        .arg(script)
        .arg(server.kubeconfig())
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}
