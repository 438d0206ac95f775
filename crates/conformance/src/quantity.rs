//! `quantity`: resource quantities as text, as integers and in canonical form.

use anyhow::{Context as _, Result};
use objects::Quantity;
use serde_json::Value;

use super::fields::{flag, string};
use super::{Difference, Vectors};

pub(super) fn check(_: &Vectors, line: &Value) -> Vec<Difference> {
    super::or_malformed(compare(line))
}

fn compare(line: &Value) -> Result<Vec<Difference>> {
    let expected_error = line.get("error").and_then(Value::as_str).map(str::to_owned);
    let quantity = match Quantity::parse(&string(line, "input")?) {
        Ok(quantity) if expected_error.is_none() => quantity,
        other => {
            let got = other.err().map(|error| error.to_string());
            return Ok(Difference::between("error", &expected_error, &got).into_iter().collect());
        }
    };
    let canonical = quantity.to_string();
    let again = Quantity::parse(&canonical).context("our canonical text is not a quantity")?;
    let integer = |key: &str| line.get(key).and_then(Value::as_i64);
    Ok([
        Difference::between("canonical", &string(line, "canonical")?, &canonical),
        Difference::between("value", &integer("value"), &Some(quantity.value())),
        Difference::between("milli_value", &integer("milli_value"), &Some(quantity.milli_value())),
        Difference::between("as_int64", &integer("as_int64"), &quantity.as_i64()),
        Difference::between(
            "as_int64_ok",
            &flag(line, "as_int64_ok"),
            &quantity.as_i64().is_some(),
        ),
        Difference::between(
            "as_int64_ok_canonical",
            &flag(line, "as_int64_ok_canonical"),
            &again.as_i64().is_some(),
        ),
        Difference::between("integral_cpu", &flag(line, "integral_cpu"), &quantity.is_whole_cpus()),
        Difference::between("is_zero", &flag(line, "is_zero"), &quantity.is_zero()),
        Difference::between("sign", &integer("sign"), &Some(i64::from(quantity.sign()))),
    ]
    .into_iter()
    .flatten()
    .collect())
}
