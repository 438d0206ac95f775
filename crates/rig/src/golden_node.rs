//! Recordings of the kubelet in `testdata/golden-node`: [`lines`] reads them, [`defaulted`] completes their
//! manifests.
//!
//! For tests that compare decisions of the agent with those of the kubelet.

use std::io::BufRead as _;

use serde_json::{Value, json};

/// Returns the lines of a recording.
///
/// # Panics
///
/// If the file is missing or not a compressed list of JSON lines.
#[must_use]
#[allow(clippy::panic, clippy::unwrap_used, reason = "a test without its recording must fail")]
pub fn lines(file: &str) -> Vec<Value> {
    let path = format!("{}/../../testdata/golden-node/{file}", env!("CARGO_MANIFEST_DIR"));
    let file = std::fs::File::open(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
    let reader = std::io::BufReader::new(flate2::read::GzDecoder::new(file));
    reader.lines().map(|line| serde_json::from_str(&line.unwrap()).unwrap()).collect()
}

/// Returns the manifest with the defaults of the API server.
#[must_use]
pub fn defaulted(manifest: &Value) -> Value {
    let mut pod = manifest.clone();
    for list in ["containers", "initContainers"] {
        let found = pod["spec"].get_mut(list).and_then(Value::as_array_mut);
        let Some(containers) = found else { continue };
        for container in containers {
            fill_requests(&mut container["resources"]);
        }
    }
    if pod["spec"]["resources"].is_object() {
        fill_requests(&mut pod["spec"]["resources"]);
    }
    if pod["metadata"]["namespace"].is_null() {
        pod["metadata"]["namespace"] = json!("lives");
    }
    pod["metadata"]["uid"] = json!("<UID>");
    pod
}

fn fill_requests(resources: &mut Value) {
    if resources.is_null() {
        *resources = json!({});
    }
    let Some(limits) = resources["limits"].as_object().cloned() else { return };
    for (name, amount) in limits {
        if resources["requests"][&name].is_null() {
            resources["requests"][&name] = amount;
        }
    }
}
