//! Real clients against a real `berth server`: kubectl of three and more versions, PyPI's client,
//! and kube-rs.
//!
//! Needs the feature `clients`, and the directory that `tools/clients` makes in `BERTH_CLIENTS`; a
//! client that is missing there fails its test, so that nothing passes by not being run. What each
//! kubectl is asked, and has to answer, stands in `clients/sessions/*.txt`, in a form that
//! `clients/session.rs` describes.

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

/// The fewest commands that count as having tried a kubectl.
const ENOUGH: usize = 60;

/// Plays every session with a kubectl, each on a server of its own.
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
    assert!(commands >= ENOUGH, "only {commands} commands were played");
}

#[test]
fn debian_12s_kubectl_is_at_home() {
    play(client("kubectl-1.20"));
}

#[test]
fn debian_13s_kubectl_is_at_home() {
    play(client("kubectl-1.32"));
}

#[test]
fn the_newest_kubectl_is_at_home() {
    play(newest_kubectl());
}

/// Whatever people have.
#[test]
fn the_kubectl_on_the_path_is_at_home() {
    play(client("kubectl-machine"));
}

#[test]
fn pypis_client_is_at_home() {
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
