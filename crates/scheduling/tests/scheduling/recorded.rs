//! Recorded decisions of kube-scheduler, by scenario.

use std::io::Read as _;

use scheduling::scenario;
use serde_json::Value;

const SCENARIOS: &[u8] = include_bytes!("../../../../testdata/golden-sched/scenarios.jsonl.gz");

#[test]
fn every_recorded_scenario_matches() {
    let mut text = String::new();
    flate2::read::GzDecoder::new(SCENARIOS).read_to_string(&mut text).unwrap();
    let mut different = Vec::new();
    let mut count = 0;
    for line in text.lines() {
        let line: Value = serde_json::from_str(line).unwrap();
        count += 1;
        for difference in scenario::differences(&line) {
            different.push(format!(
                "{} ({}): {}\n    expected {}\n    got      {}",
                line["name"], line["note"], difference.what, difference.expected, difference.got
            ));
        }
    }
    assert_eq!(count, 409);
    assert!(different.is_empty(), "{} differences:\n{}", different.len(), different.join("\n"));
}
