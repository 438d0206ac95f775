//! Integers or percentages, as in `maxSurge` and `minAvailable`.

use serde_json::Value;

/// Returns the integer, or the percentage of `of` rounded up or down.
pub(crate) fn scaled_value(value: &Value, of: i64, up: bool) -> i64 {
    match value {
        Value::String(text) => {
            let percent: i64 = text.trim_end_matches('%').parse().unwrap_or(0);
            let product = percent.saturating_mul(of);
            if up { product.saturating_add(99).div_euclid(100) } else { product.div_euclid(100) }
        }
        value => value.as_i64().unwrap_or(0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn percentages_round_up_or_down() {
        for (value, of, up, expected) in [
            (json!("25%"), 10, true, 3),
            (json!("25%"), 10, false, 2),
            (json!(4), 10, true, 4),
            (json!("100%"), 7, false, 7),
            (json!(null), 10, true, 0),
            (json!("x"), 10, true, 0),
        ] {
            assert_eq!(scaled_value(&value, of, up), expected, "{value} of {of}");
        }
    }
}
