//! Scenarios recorded from kube-scheduler: a cluster and steps with their decisions. `scheduling`
//! replays them; here a scenario is one vector.

use serde_json::Value;

use super::{Difference, Vectors};

pub(super) fn check(_: &Vectors, scenario: &Value) -> Vec<Difference> {
    let differences = scheduling::scenario::differences(scenario).into_iter();
    differences
        .map(|d| Difference {
            what: d.what,
            expected: d.expected.to_string(),
            got: d.got.to_string(),
        })
        .collect()
}
