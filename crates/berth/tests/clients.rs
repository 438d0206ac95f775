//! Real clients against a real `berth server`: kubectl of three and more versions, PyPI's client,
//! kube-rs, and the transcripts recorded from upstream.
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

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

#[path = "clients/kube_rs.rs"]
mod kube_rs;
#[path = "clients/server.rs"]
mod server;
#[path = "clients/session.rs"]
mod session;

use server::Server;
use session::{Client, Session};

/// The fewest commands that count as having tried a kubectl.
const ENOUGH: usize = 60;

/// What `tools/clients` fetched.
fn client(name: &str) -> PathBuf {
    let dir = env::var_os("BERTH_CLIENTS")
        .expect("BERTH_CLIENTS is not set: it has to be what tools/clients prints");
    let path = Path::new(&dir).join(name);
    assert!(path.exists(), "{} is not there; tools/clients fetches it", path.display());
    path
}

/// The kubectl with the highest version, which is not known beforehand.
fn newest() -> PathBuf {
    let dir = client("");
    let mut found: Vec<(u32, PathBuf)> = std::fs::read_dir(dir)
        .unwrap()
        .filter_map(|entry| {
            let path = entry.unwrap().path();
            let name = path.file_name()?.to_str()?.to_owned();
            Some((name.strip_prefix("kubectl-1.")?.parse().ok()?, path))
        })
        .collect();
    found.sort();
    let (minor, path) = found.pop().expect("tools/clients fetches several kubectl");
    assert!(minor > 32, "the newest kubectl is 1.{minor}, which is no newer than the others");
    path
}

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
    play(newest());
}

/// Whatever people have.
#[test]
fn the_kubectl_on_the_path_is_at_home() {
    play(client("kubectl-machine"));
}

#[test]
fn commands_recorded_against_upstream_behave_the_same() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/golden-api");
    let kubectls = env::join_paths([client("kubectl-1.32"), newest()]).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_berth"))
        .args(["conformance", "--show", "--"])
        .arg(file.join("kubectl.jsonl.gz"))
        .env("BERTH_KUBECTL", kubectls)
        .output()
        .unwrap();
    let report = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{report}{}", String::from_utf8_lossy(&output.stderr));
    assert!(!report.contains("no kubectl on this machine"), "{report}");
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
