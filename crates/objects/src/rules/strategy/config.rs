//! Config maps, secrets and service accounts: keys, sizes, required keys of a secret's type, and
//! immutability.

use serde_json::Value;

use super::super::checks::{is_same, part_mut};
use super::super::names::{self, config_key};
use crate::cursor::{Causes, Cursor};

/// The limit on the data of one object, so that nodes and the store can hold it.
const SIZE_LIMIT: usize = 1 << 20;
const OPAQUE: &str = "Opaque";
/// The text that messages show instead of a secret's contents.
const REDACTED: &str = "<secret contents redacted>";

/// Merges `stringData` into `data` and sets the type of a secret that has none.
pub(super) fn set_secret_defaults(secret: &mut Value) {
    let Some(fields) = secret.as_object_mut() else { return };
    if fields.get("type").and_then(Value::as_str).unwrap_or_default().is_empty() {
        fields.insert("type".to_owned(), OPAQUE.into());
    }
    let Some(Value::Object(texts)) = fields.remove("stringData") else { return };
    if texts.is_empty() {
        return;
    }
    if let Some(data) = part_mut(secret, "data") {
        for (key, text) in texts {
            let encoded = encode_base64(text.as_str().unwrap_or_default().as_bytes());
            data.insert(key, encoded.into());
        }
    }
}

fn encode_base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let mut group = [0; 3];
        group[..chunk.len()].copy_from_slice(chunk);
        let [a, b, c] = group.map(usize::from);
        let digits = [a >> 2, (a & 3) << 4 | b >> 4, (b & 15) << 2 | c >> 6, c & 63];
        for (at, digit) in digits.into_iter().enumerate() {
            text.push(if at <= chunk.len() { char::from(DIGITS[digit]) } else { '=' });
        }
    }
    text
}

/// Decodes a text that is known to be base64.
fn decode_base64(text: &str) -> Vec<u8> {
    let digit = |byte: u8| match byte {
        b'A'..=b'Z' => Some(byte - b'A'),
        b'a'..=b'z' => Some(byte - b'a' + 26),
        b'0'..=b'9' => Some(byte - b'0' + 52),
        b'+' => Some(62),
        b'/' => Some(63),
        _ => None,
    };
    let (mut bytes, mut held, mut bits) = (Vec::with_capacity(text.len() / 4 * 3), 0_u32, 0_u32);
    for value in text.bytes().filter_map(digit) {
        held = (held << 6 | u32::from(value)) & 0xffff;
        bits += 6;
        if bits >= 8 {
            bits -= 8;
            bytes.push((held >> bits & 0xff) as u8);
        }
    }
    bytes
}

/// Returns the number of bytes that a base64 text encodes.
fn base64_size(text: &str) -> usize {
    let digits = text.bytes().filter(|b| !matches!(b, b'=' | b'\n' | b'\r')).count();
    digits * 3 / 4
}

pub(super) fn validate_config_map(map: &Cursor<'_>, causes: &mut Causes) {
    let (data, binary) = (map.field("data"), map.field("binaryData"));
    let mut size = 0_usize;
    for (key, value) in data.entries() {
        names::report_as(causes, &value, key, &config_key(key));
        if binary.value().get(key).is_some() {
            causes.invalid_as(&value, key, "duplicate of key present in binaryData");
        }
        size = size.saturating_add(value.text().len());
    }
    for (key, value) in binary.entries() {
        names::report_as(causes, &value, key, &config_key(key));
        size = size.saturating_add(base64_size(value.text()));
    }
    if size > SIZE_LIMIT {
        // Upstream's path has no name here, which is rendered like this.
        causes.too_long(&Cursor::top(map.value(), "[]"), SIZE_LIMIT);
    }
}

pub(super) fn validate_secret(secret: &Cursor<'_>, causes: &mut Causes) {
    let data = secret.field("data");
    let mut size = 0_usize;
    for (key, value) in data.entries() {
        names::report_as(causes, &value, key, &config_key(key));
        size = size.saturating_add(base64_size(value.text()));
    }
    if size > SIZE_LIMIT {
        causes.too_long(&data, SIZE_LIMIT);
    }
    let require = |key: &str, causes: &mut Causes| {
        if data.value().get(key).is_none() {
            causes.required(&data.key(key), "");
        }
    };
    match secret.field("type").text() {
        "kubernetes.io/service-account-token" => {
            let meta = secret.field("metadata");
            let annotations = meta.field("annotations");
            let account = annotations.key("kubernetes.io/service-account.name");
            if account.text().is_empty() {
                causes.required(&account, "");
            }
        }
        "kubernetes.io/dockercfg" => validate_json(&data.key(".dockercfg"), causes),
        "kubernetes.io/dockerconfigjson" => validate_json(&data.key(".dockerconfigjson"), causes),
        "kubernetes.io/basic-auth" => {
            let has = |key: &str| data.value().get(key).is_some();
            if !has("username") && !has("password") {
                causes.required(&data.key("username"), "");
                causes.required(&data.key("password"), "");
            }
        }
        "kubernetes.io/ssh-auth" => {
            let key = data.key("ssh-privatekey");
            if key.text().is_empty() {
                causes.required(&key, "");
            }
        }
        "kubernetes.io/tls" => {
            require("tls.crt", causes);
            require("tls.key", causes);
        }
        _ => {}
    }
}

fn validate_json(at: &Cursor<'_>, causes: &mut Causes) {
    if !at.is_set() {
        return causes.required(at, "");
    }
    let bytes = decode_base64(at.text());
    let kind = match serde_json::from_slice(&bytes) {
        Ok(Value::Object(_) | Value::Null) => return,
        Ok(Value::Array(_)) => "array",
        Ok(Value::String(_)) => "string",
        Ok(Value::Number(_)) => "number",
        Ok(Value::Bool(_)) => "bool",
        Err(error) => {
            let go_error = crate::schema::syntax::go_error(&bytes);
            let detail = go_error.unwrap_or_else(|| error.to_string());
            return causes.invalid_as(at, REDACTED, &detail);
        }
    };
    let detail =
        format!("json: cannot unmarshal {kind} into Go value of type map[string]interface {{}}");
    causes.invalid_as(at, REDACTED, &detail);
}

/// Checks that an immutable config map or secret stays immutable and keeps its data.
pub(super) fn validate_frozen(
    object: &Cursor<'_>,
    old: &Cursor<'_>,
    fields: &[&str],
    causes: &mut Causes,
) {
    const DETAIL: &str = "field is immutable when `immutable` is set";
    if !old.field("immutable").is_true() {
        return;
    }
    if !object.field("immutable").is_true() {
        causes.forbidden(&object.field("immutable"), DETAIL);
    }
    for name in fields {
        let (new, old) = (object.field(name), old.field(name));
        if !is_same(new.value(), old.value()) {
            causes.forbidden(&new, DETAIL);
        }
    }
}

/// Keeps only the names of the secrets that an account refers to: they are in its own namespace.
pub(super) fn prepare_account(account: &mut Value) {
    let secrets = account.get_mut("secrets").and_then(Value::as_array_mut);
    for secret in secrets.into_iter().flatten().filter_map(Value::as_object_mut) {
        secret.retain(|field, _| field == "name");
    }
}

pub(super) fn service_account_warnings(account: &Value, old: Option<&Value>) -> Vec<String> {
    const KEY: &str = "kubernetes.io/enforce-mountable-secrets";
    let has = |object: &Value| object["metadata"]["annotations"].get(KEY).is_some();
    if !has(account) || old.is_some_and(has) {
        return Vec::new();
    }
    vec![format!(
        "metadata.annotations[{KEY}]: deprecated in v1.32+; prefer separate namespaces to isolate \
         access to mounted secrets"
    )]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_goes_both_ways() {
        for (text, encoded) in
            [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foob", "Zm9vYg==")]
        {
            assert_eq!(encode_base64(text.as_bytes()), encoded);
            assert_eq!(decode_base64(encoded), text.as_bytes());
            assert_eq!(base64_size(encoded), text.len());
        }
    }
}
