//! Checks that many kinds share, on a [`Cursor`] into the object: numbers, percentages, selectors,
//! immutable fields. Also the small steps of preparing objects: fields kept, set, cleared.

use std::net::IpAddr;

use serde_json::{Map, Value};

use super::meta::validate_label_selector;
use super::names::{self, Problems};
use crate::cursor::{BadValue, Causes, Cursor};
use crate::quantity::Quantity;
use crate::selector::LabelSelector;

pub(super) const NOT_NEGATIVE: &str = "must be greater than or equal to 0";
pub(super) const IMMUTABLE: &str = "field is immutable";
pub(super) const NOT_A_PORT: &str = "must be between 1 and 65535, inclusive";
const PERCENT: &str = "a valid percent string must be a numeric string followed by an ending '%' \
    (e.g. '1%',  or '93%', regex used for validation is '[0-9]+%')";

/// Checks that a number is not negative.
pub(super) fn non_negative(at: &Cursor<'_>, causes: &mut Causes) {
    if at.int().is_some_and(|number| number < 0) {
        causes.invalid(at, NOT_NEGATIVE);
    }
}

/// Checks that a value has not changed.
pub(super) fn unchanged(at: &Cursor<'_>, old: &Cursor<'_>, causes: &mut Causes) {
    if !is_same(at.value(), old.value()) {
        causes.invalid(at, IMMUTABLE);
    }
}

/// Compares as upstream does: null, an empty list and an empty map are equal.
pub(super) fn is_same(a: &Value, b: &Value) -> bool {
    let nothing = |value: &Value| match value {
        Value::Null => true,
        Value::Array(items) => items.is_empty(),
        Value::Object(entries) => entries.is_empty(),
        _ => false,
    };
    match (a, b) {
        (Value::Object(a), Value::Object(b)) => {
            let missing = |map: &Map<String, Value>, key: &str| !map.contains_key(key);
            a.iter().all(|(key, value)| is_same(value, b.get(key).unwrap_or(&Value::Null)))
                && b.iter().all(|(key, value)| !missing(a, key) || nothing(value))
        }
        (Value::Array(a), Value::Array(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| is_same(a, b))
        }
        (a, b) => a == b || (nothing(a) && nothing(b)),
    }
}

/// Reads a quantity; `None` if it is absent or malformed.
pub(super) fn quantity(value: &Value) -> Option<Quantity> {
    Quantity::parse(value.as_str()?).ok()
}

/// Checks a number, or a percentage such as `25%`: neither may be negative.
pub(super) fn number_or_percent(at: &Cursor<'_>, causes: &mut Causes) {
    match at.value() {
        Value::String(text) if percent(text).is_none() => causes.invalid(at, PERCENT),
        Value::Number(_) => non_negative(at, causes),
        _ => {}
    }
}

/// Checks that a percentage is at most 100.
pub(super) fn at_most_all(at: &Cursor<'_>, causes: &mut Causes) {
    if percent(at.text()).is_some_and(|share| share > 100) {
        causes.invalid(at, "must not be greater than 100%");
    }
}

/// Returns the number before the `%`.
pub(super) fn percent(text: &str) -> Option<u64> {
    let digits = text.strip_suffix('%')?;
    let all_digits = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
    all_digits.then(|| digits.parse().unwrap_or(u64::MAX))
}

/// Reports whether a number or percentage is not zero. A number written as text counts as well; it
/// is rejected elsewhere.
pub(super) fn is_some_of(at: &Cursor<'_>) -> bool {
    let number = || at.int().or_else(|| at.text().parse().ok());
    percent(at.text()).map_or_else(|| number().is_some_and(|n: i64| n != 0), |share| share != 0)
}

/// Checks a port number.
pub(super) fn port_number(at: &Cursor<'_>, causes: &mut Causes) {
    let number = at.int().unwrap_or(0);
    if !(1..=65_535).contains(&number) {
        causes.invalid_as(at, number, NOT_A_PORT);
    }
}

/// Renders a label selector for messages: in the order in which Go declares its fields.
pub(super) fn render_selector(selector: &Value) -> BadValue {
    BadValue::literal(selector_text(selector))
}

/// The text of [`render_selector`].
pub(super) fn selector_text(selector: &Value) -> String {
    if !selector.is_object() {
        return selector.to_string();
    }
    let mut parts = Vec::new();
    if let Some(labels) = selector.get("matchLabels") {
        parts.push(format!("\"matchLabels\":{labels}"));
    }
    if let Some(expressions) = selector.get("matchExpressions").and_then(Value::as_array) {
        let shown: Vec<String> = expressions
            .iter()
            .map(|expression| {
                let fields = ["key", "operator", "values"];
                let given = fields.iter().filter_map(|field| {
                    expression.get(field).map(|value| format!("\"{field}\":{value}"))
                });
                format!("{{{}}}", given.collect::<Vec<_>>().join(","))
            })
            .collect();
        parts.push(format!("\"matchExpressions\":[{}]", shown.join(",")));
    }
    format!("{{{}}}", parts.join(","))
}

/// Checks and reads a selector; `None` if it is malformed. An absent selector, which selects
/// nothing, is `Some(None)`.
pub(super) fn selector(at: &Cursor<'_>, causes: &mut Causes) -> Option<Option<LabelSelector>> {
    if !at.is_set() {
        return Some(None);
    }
    validate_label_selector(at, false, causes);
    LabelSelector::from_value(at.value()).ok().map(Some)
}

/// Reports whether a selector selects labels; an absent one selects nothing.
pub(super) fn selects(selector: Option<&LabelSelector>, labels: &Value) -> bool {
    selector.is_some_and(|s| s.matches(|key| labels.get(key).and_then(Value::as_str)))
}

/// Reports what is wrong with a qualified name.
pub(super) fn qualified_name(at: &Cursor<'_>, causes: &mut Causes) {
    names::report_as(causes, at, at.text(), &names::label_key_problems(at.text()));
}

/// Checks a CIDR such as `10.9.8.0/24`. Notations that older versions accepted have a message of
/// their own.
pub(super) fn cidr(at: &Cursor<'_>, text: &str, causes: &mut Causes) {
    let Some((address, length)) = parse_cidr(text) else {
        let detail = "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)";
        return causes.invalid_as(at, text, detail);
    };
    let (written, digits) = text.split_once('/').unwrap_or((text, ""));
    if written.parse::<IpAddr>().is_err() || (digits.starts_with('0') && digits != "0") {
        causes.invalid_as(at, text, "must not have leading 0s in IP or prefix length");
    }
    let (bits, host_bits) = match address {
        IpAddr::V4(ip) => (u128::from(ip.to_bits()), 32 - length),
        IpAddr::V6(ip) => (ip.to_bits(), 128 - length),
    };
    let beyond = 1_u128.checked_shl(host_bits).map_or(u128::MAX, |end| end - 1);
    if bits & beyond != 0 {
        causes.invalid_as(at, text, "must not have bits set beyond the prefix length");
    }
}

pub(super) fn parse_cidr(text: &str) -> Option<(IpAddr, u32)> {
    let (address, length) = text.split_once('/')?;
    let address = names::parse_ip(address)?;
    let longest = if address.is_ipv4() { 32 } else { 128 };
    let digits = !length.is_empty() && length.bytes().all(|b| b.is_ascii_digit());
    let length: u32 = length.parse().ok().filter(|_| digits)?;
    (length <= longest).then_some((address, length))
}

/// Checks a text `domain/name`, such as the value of `managedBy`.
pub(super) fn domain_prefixed_path(at: &Cursor<'_>, causes: &mut Causes) {
    let text = at.text();
    if text.is_empty() {
        return causes.required(at, "");
    }
    let Some((host, path)) = text.split_once('/').filter(|(h, p)| !h.is_empty() && !p.is_empty())
    else {
        return causes.invalid(at, "must be a domain-prefixed path (such as \"acme.io/foo\")");
    };
    let problems: Problems = names::dns_subdomain(host);
    names::report_as(causes, at, host, &problems);
    let allowed = |b: u8| b.is_ascii_alphanumeric() || b"/-._~%!$&'()*+,;=:".contains(&b);
    if !path.bytes().all(allowed) {
        let detail = "a valid path must consist of alphanumeric characters, '-', '.', '_' or '~'";
        causes.invalid_as(at, path, detail);
    }
}

/// Returns the fields of a structure inside an object, which is created if it is absent.
pub(super) fn part_mut<'a>(
    object: &'a mut Value,
    name: &str,
) -> Option<&'a mut Map<String, Value>> {
    let object = object.as_object_mut()?;
    let part = object.entry(name).or_insert_with(|| Value::Object(Map::new()));
    if part.is_null() {
        *part = Value::Object(Map::new());
    }
    part.as_object_mut()
}

/// Sets a field that is absent.
pub(super) fn default(fields: &mut Map<String, Value>, name: &str, value: impl Into<Value>) {
    if fields.get(name).is_none_or(Value::is_null) {
        fields.insert(name.to_owned(), value.into());
    }
}

/// Sets a text that is absent or empty.
pub(super) fn default_text(fields: &mut Map<String, Value>, name: &str, value: &str) {
    if fields.get(name).and_then(Value::as_str).unwrap_or_default().is_empty() {
        fields.insert(name.to_owned(), value.into());
    }
}

/// Restores a top-level field.
pub(super) fn keep(object: &mut Value, old: &Value, name: &str) {
    let Some(fields) = object.as_object_mut() else { return };
    match old.get(name) {
        Some(value) => {
            fields.insert(name.to_owned(), value.clone());
        }
        None => {
            fields.remove(name);
        }
    }
}

pub(super) fn set(object: &mut Value, name: &str, value: impl Into<Value>) {
    if let Some(fields) = object.as_object_mut() {
        fields.insert(name.to_owned(), value.into());
    }
}

/// Rounds every amount of a resource list up to milli-units, the precision that is kept.
pub(super) fn round_amounts(list: Option<&mut Value>) {
    for amount in list.and_then(Value::as_object_mut).into_iter().flat_map(Map::values_mut) {
        if let Some(read) = quantity(amount) {
            let rounded = read.clone().round_up_to_milli();
            if rounded != read {
                *amount = rounded.to_string().into();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn empty_and_absent_are_the_same() {
        assert!(is_same(&json!({"a": [], "b": 1}), &json!({"b": 1, "c": null})));
        assert!(!is_same(&json!({"a": [1]}), &json!({})));
        assert!(!is_same(&json!([1, 2]), &json!([2, 1])));
    }

    #[test]
    fn shares_are_whole_numbers_of_percent() {
        assert_eq!(percent("25%"), Some(25));
        for text in ["25", "%", "-1%", "1.5%", ""] {
            assert_eq!(percent(text), None, "{text}");
        }
    }

    #[test]
    fn cidrs_are_distinguished_from_addresses() {
        assert!(parse_cidr("10.0.0.0/24").is_some() && parse_cidr("fd00::/64").is_some());
        for text in ["10.0.0.0", "10.0.0.0/33", "x/8", "10.0.0.0/", "10.0.0.0/+8"] {
            assert!(parse_cidr(text).is_none(), "{text}");
        }
    }

    #[test]
    fn a_selector_is_shown_labels_first() {
        let selector = json!({"matchLabels": {"a": "b"}, "matchExpressions": [{"operator": "Exists", "key": "k"}]});
        let mut causes = Causes::default();
        causes.invalid_as(&Cursor::top(&selector, "s"), render_selector(&selector), "");
        let shown = r#"Invalid value: {"matchLabels":{"a":"b"},"matchExpressions":[{"key":"k","operator":"Exists"}]}"#;
        assert_eq!(causes.0[0].message, shown);
    }
}
