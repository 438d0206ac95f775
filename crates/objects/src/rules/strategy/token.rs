//! Requests for a service account's token, which are answered and never stored.

use serde_json::Value;

use super::super::checks::{default, part_mut};
use crate::cursor::{Causes, Cursor};

const HOUR: i64 = 3600;
const LEAST_SECONDS: i64 = 600;
/// A longer lifetime does not fit into the types of verifiers.
const MOST_SECONDS: i64 = 1 << 32;

pub fn set_defaults(request: &mut Value) {
    if let Some(spec) = part_mut(request, "spec") {
        default(spec, "expirationSeconds", HOUR);
    }
}

#[must_use]
pub fn validate(request: &Value) -> Causes {
    let mut causes = Causes::default();
    let top = Cursor::top(request, "");
    let spec = top.field("spec");
    let seconds = spec.field("expirationSeconds");
    if seconds.int().is_some_and(|seconds| seconds < LEAST_SECONDS) {
        causes.invalid(&seconds, "may not specify a duration less than 10 minutes");
    }
    if seconds.int().is_some_and(|seconds| seconds > MOST_SECONDS) {
        causes.invalid(&seconds, "may not specify a duration larger than 2^32 seconds");
    }
    causes
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_token_lasts_at_least_ten_minutes() {
        let mut request = json!({"spec": {}});
        set_defaults(&mut request);
        assert_eq!(request["spec"]["expirationSeconds"], 3600);
        assert!(validate(&request).is_empty());
        let short = validate(&json!({"spec": {"expirationSeconds": 5}}));
        let text = "Invalid value: 5: may not specify a duration less than 10 minutes";
        assert_eq!(short.0[0].message, text);
    }
}
