//! The recorded exchanges (`testdata/golden-api`), as [`Scenario`] values.
//!
//! The API server's tests replay the requests; here only the responses matter.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::sync::LazyLock;

use flate2::read::GzDecoder;
use serde_json::Value;

/// One line of the recording.
#[derive(Debug)]
pub(crate) struct Scenario {
    pub(crate) id: String,
    pub(crate) steps: Vec<Value>,
}

/// All scenarios, in the order of the file.
pub(crate) fn scenarios() -> &'static [Scenario] {
    static SCENARIOS: LazyLock<Vec<Scenario>> = LazyLock::new(|| {
        let path = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../../testdata/golden-api/exchanges.jsonl.gz");
        let file = File::open(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let lines = BufReader::new(GzDecoder::new(file)).lines();
        lines.map(|line| scenario(&line.unwrap())).collect()
    });
    &SCENARIOS
}

fn scenario(line: &str) -> Scenario {
    let mut value: Value = serde_json::from_str(line).unwrap();
    Scenario {
        id: value["id"].as_str().unwrap().to_owned(),
        steps: match value["steps"].take() {
            Value::Array(steps) => steps,
            other => panic!("steps are {other}"),
        },
    }
}

/// Returns the first response of a scenario to a request for a path.
pub(crate) fn answer(scenario: &str, path: &str) -> &'static Value {
    let scenario = scenarios().iter().find(|s| s.id == scenario).unwrap();
    let step = scenario.steps.iter().find(|step| step["request"]["path"] == path).unwrap();
    let response = &step["response"];
    response.get("body").or(response.get("body_extract")).unwrap()
}
