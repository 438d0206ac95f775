//! The logging flags of `berth server`, with a real process.

use std::io::{BufRead as _, BufReader};
use std::process::Stdio;

use crate::tools::{command, finished};

/// Runs a server until it is ready, stops it, and returns its standard error.
fn log_of(args: &[&str], variable: Option<&str>) -> String {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data").display().to_string();
    let mut server = command(&["server", "--data-dir", &data, "--https-listen-port", "0"]);
    if let Some(value) = variable {
        server.env("RUST_LOG", value);
    }
    let log = dir.path().join("log");
    let mut process = server
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(std::fs::File::create(&log).unwrap())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
    let ready = lines.find(|line| line.as_ref().is_ok_and(|line| line.contains("kubectl")));
    assert!(ready.is_some(), "{}", std::fs::read_to_string(&log).unwrap());
    let (code, _, error) = finished(command(&["down", "--data-dir", &data]), "");
    assert_eq!(code, 0, "{error}");
    assert!(process.wait().unwrap().success());
    std::fs::read_to_string(&log).unwrap()
}

#[test]
fn levels_come_from_flags_then_from_the_variable() {
    assert!(log_of(&[], None).contains("INFO stopped"));
    assert!(!log_of(&[], Some("error")).contains("INFO"));
    assert!(log_of(&["--log-level", "info"], Some("error")).contains("INFO stopped"));
    assert!(log_of(&["-v"], Some("error")).contains("INFO stopped"));
    assert!(!log_of(&["--log-level", "off"], None).contains("stopped"));
}

#[test]
fn json_logs_are_one_object_per_line() {
    let log = log_of(&["--log-format", "json", "-vv"], None);
    let lines: Vec<serde_json::Value> =
        log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let stopped = lines.iter().find(|line| line["message"] == "stopped").unwrap();
    assert_eq!(stopped["level"], "INFO");
    assert!(stopped["timestamp"].is_string() && stopped["target"].is_string(), "{stopped}");
}

#[test]
fn warnings_and_the_last_error_follow_the_log_format() {
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("config.yaml");
    let text = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n\
                cpuManagerPolicy: dynamic\nfailSwapOn: false\n";
    std::fs::write(&config, text).unwrap();
    let config = config.display().to_string();
    let kubeconfig = dir.path().join("none").display().to_string();
    let agent = ["agent", "--kubeconfig", &kubeconfig, "--config", &config];
    let objects_of = |args: &[&str]| {
        let mut agent = command(&agent);
        agent.args(args);
        let (code, out, error) = finished(agent, "");
        assert_eq!((code, out.as_str()), (2, ""), "{error}");
        let parse = |line: &str| serde_json::from_str::<serde_json::Value>(line);
        (error.lines().map(parse).collect::<Result<Vec<_>, _>>(), error)
    };
    for level in ["info", "off"] {
        let (objects, log) = objects_of(&["--log-format", "json", "--log-level", level]);
        let objects = objects.unwrap_or_else(|error| panic!("{error}: {log}"));
        let last = objects.last().unwrap();
        assert_eq!(last["level"], "ERROR", "{log}");
        let message = last["message"].as_str().unwrap();
        assert!(message.contains("cpuManagerPolicy"), "{log}");
        assert!(last["timestamp"].is_string(), "{log}");
    }
    let (objects, log) = objects_of(&[]);
    assert!(objects.is_err(), "{log}");
    assert!(log.contains("error: "), "{log}");
}

#[test]
fn invalid_log_settings_are_rejected_before_the_start() {
    let check = |args: &[&str], variable: &str, parts: &[&str]| {
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path().join("data").display().to_string();
        let mut server = command(&["server", "--data-dir", &data]);
        server.args(args).env("RUST_LOG", variable);
        let (code, out, error) = finished(server, "");
        assert_eq!((code, out.as_str()), (2, ""), "{error}");
        for part in parts {
            assert!(error.contains(part), "{part:?} is missing: {error}");
        }
    };
    check(&["--log-level", "loud"], "", &["--log-level", "loud", "neither a level"]);
    check(&["--log-level", "agent=loud"], "", &["--log-level", "not a level"]);
    check(&["--log-format", "xml"], "", &["--log-format", "xml"]);
    check(&[], "agent=loud", &["RUST_LOG", "agent=loud"]);
}
