//! The encoding of objects in the store: keys and values.
//!
//! A value is the object's JSON without `kind`, `apiVersion` and `metadata.resourceVersion`, after
//! four bytes with the offset of the resource version. A response is joined from these parts
//! without parsing the object: kind and version depend on the request, and the revision is known
//! only after the value is written.

use bytes::{BufMut as _, Bytes, BytesMut};
use objects::catalog::Resource;
use objects::protobuf;
use objects::rules::event;
use objects::schema::{DecodeError, Schema};
use serde_json::{Map, Value};
use store::{Entry, Revision};
use thiserror::Error;

use crate::error::ApiError;

/// The prefix of all keys.
const ROOT: &str = "/registry/";

/// A stored value that cannot be decoded.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub(crate) enum CodecError {
    #[error("the stored object {key} is damaged: {what}")]
    Damaged { key: String, what: String },
}

/// Returns the key prefix of a resource, `/registry/pods/`, or of a namespace.
#[must_use]
pub(crate) fn prefix(resource: &Resource, namespace: &str) -> String {
    // Both groups of events are views of the same objects.
    match namespace {
        "" => format!("{ROOT}{}/", resource.plural),
        namespace => format!("{ROOT}{}/{namespace}/", resource.plural),
    }
}

#[must_use]
pub(crate) fn key(resource: &Resource, namespace: &str, name: &str) -> String {
    format!("{}{name}", prefix(resource, if resource.namespaced { namespace } else { "" }))
}

/// Returns true if a resource is a view of another one: events of the newer group.
#[must_use]
pub(crate) fn is_view(resource: &Resource) -> bool {
    resource.group == "events.k8s.io"
}

/// Encodes an object.
#[must_use]
pub(crate) fn encode(resource: &Resource, object: &Value) -> Bytes {
    if is_view(resource) { put(&event::to_core(object)) } else { put(object) }
}

/// The maximum size of an object in protobuf: etcd's limit on requests, which bounds objects
/// upstream.
pub(crate) const MAX_OBJECT: usize = 1536 << 10;

/// Encodes an object written by a client, or returns an error if it is too large.
pub(crate) fn encode_within_limit(resource: &Resource, object: &Value) -> Result<Bytes, ApiError> {
    let bytes = encode(resource, object);
    // Protobuf is shorter than JSON, so only large objects have to be converted.
    if bytes.len() <= MAX_OBJECT {
        return Ok(bytes);
    }
    let size = protobuf_size(resource, object).unwrap_or(bytes.len());
    if size > MAX_OBJECT {
        let what = format!("the object has {size} bytes, limit is {MAX_OBJECT}");
        return Err(ApiError::too_large(what));
    }
    Ok(bytes)
}

fn protobuf_size(resource: &Resource, object: &Value) -> Option<usize> {
    let schema = Schema::served();
    let mut message = Vec::new();
    protobuf::encode(schema, resource.type_id(schema)?, object, &mut message).ok()?;
    Some(message.len())
}

fn put(object: &Value) -> Bytes {
    let mut bytes = BytesMut::with_capacity(2048);
    bytes.put_u32(0);
    let mut mark = 0;
    let Value::Object(fields) = object else {
        bytes.put_slice(b"{}");
        return bytes.freeze();
    };
    let mut separator = b'{';
    for (name, value) in fields {
        if name == "kind" || name == "apiVersion" {
            continue;
        }
        bytes.put_u8(separator);
        separator = b',';
        put_json(&mut bytes, name);
        bytes.put_u8(b':');
        match value {
            Value::Object(metadata) if name == "metadata" => {
                mark = put_metadata(&mut bytes, metadata);
            }
            value => put_json(&mut bytes, value),
        }
    }
    if separator == b'{' {
        bytes.put_u8(b'{');
    }
    bytes.put_u8(b'}');
    bytes[..4].copy_from_slice(&u32::to_be_bytes(mark));
    bytes.freeze()
}

/// Writes the metadata and returns the offset for the revision.
fn put_metadata(bytes: &mut BytesMut, metadata: &Map<String, Value>) -> u32 {
    bytes.put_u8(b'{');
    let mark = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
    let mut first = true;
    for (name, value) in metadata {
        if name == "resourceVersion" {
            continue;
        }
        if !first {
            bytes.put_u8(b',');
        }
        first = false;
        put_json(bytes, name);
        bytes.put_u8(b':');
        put_json(bytes, value);
    }
    bytes.put_u8(b'}');
    mark
}

fn put_json<T: serde::Serialize + ?Sized>(bytes: &mut BytesMut, value: &T) {
    // Writing a JSON value to memory cannot fail.
    let _ = serde_json::to_writer(bytes.writer(), value);
}

/// The two parts of a stored object, to be joined into a response.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StoredParts<'a> {
    before: &'a [u8],
    after: &'a [u8],
}

impl<'a> StoredParts<'a> {
    /// Splits a value; `None` if it is not valid.
    #[must_use]
    pub(crate) fn split(value: &'a [u8]) -> Option<StoredParts<'a>> {
        let mark = u32::from_be_bytes(value.get(..4)?.try_into().ok()?);
        let mark = usize::try_from(mark).ok()?;
        if mark < 5 || mark > value.len() {
            return None;
        }
        // After the four bytes and the opening brace.
        Some(StoredParts { before: &value[5..mark], after: &value[mark..] })
    }

    /// Writes the object as an item of a list, or with kind and version if `head` is
    /// `"kind":"Pod","apiVersion":"v1",`.
    pub(crate) fn put(self, into: &mut BytesMut, head: &str, revision: Revision) {
        into.put_u8(b'{');
        into.put_slice(head.as_bytes());
        into.put_slice(self.before);
        into.put_slice(b"\"resourceVersion\":\"");
        into.put_slice(revision.to_string().as_bytes());
        let comma: &[u8] = if self.after.first() == Some(&b'}') { b"\"" } else { b"\"," };
        into.put_slice(comma);
        into.put_slice(self.after);
    }

    /// Returns the approximate length that [`StoredParts::put`] writes.
    #[must_use]
    pub(crate) fn len_hint(self) -> usize {
        self.before.len() + self.after.len() + 128
    }
}

/// Returns `"kind":"Pod","apiVersion":"v1",`.
#[must_use]
pub(crate) fn head(api_version: &str, kind: &str) -> String {
    format!("\"kind\":\"{kind}\",\"apiVersion\":\"{api_version}\",")
}

/// Decodes the object of an entry, with kind, version and revision.
pub(crate) fn decode(resource: &Resource, entry: &Entry) -> Result<Value, CodecError> {
    let damaged = |what: String| CodecError::Damaged { key: entry.key.to_string(), what };
    let json = entry.value.get(4..).ok_or_else(|| damaged("it is too short".to_owned()))?;
    let mut object: Value = serde_json::from_slice(json).map_err(|e| damaged(e.to_string()))?;
    let Some(fields) = object.as_object_mut() else {
        return Err(damaged("it is not an object".to_owned()));
    };
    fields.insert("kind".to_owned(), Value::from(resource.kind));
    fields.insert("apiVersion".to_owned(), Value::from(resource.api_version()));
    if let Some(Value::Object(metadata)) = fields.get_mut("metadata") {
        metadata.insert("resourceVersion".to_owned(), Value::from(entry.modified.to_string()));
    }
    Ok(if is_view(resource) { event::to_events(&object) } else { object })
}

/// Converts JSON of the resource's kind into its canonical form.
pub(crate) fn canonical(resource: &Resource, value: Value) -> Result<Value, DecodeError> {
    let schema = Schema::served();
    match resource.type_id(schema) {
        Some(id) => schema.decode_value(id, value).map(|decoded| decoded.value),
        None => Ok(value),
    }
}

#[cfg(test)]
mod tests {
    use objects::catalog;
    use serde_json::json;

    use super::*;

    #[test]
    fn response_is_joined_without_parsing_the_object() {
        let object = json!({
            "kind": "ConfigMap", "apiVersion": "v1", "data": {"a": "b"},
            "metadata": {"name": "c", "resourceVersion": "7", "uid": "u"},
        });
        let configmaps = catalog::find("", "v1", "configmaps").unwrap();
        let bytes = encode(configmaps, &object);
        let mut answer = BytesMut::new();
        let stored = StoredParts::split(&bytes).unwrap();
        stored.put(&mut answer, &head("v1", "ConfigMap"), Revision::from(9));
        let mut expected = object;
        expected["metadata"]["resourceVersion"] = json!("9");
        assert_eq!(serde_json::from_slice::<Value>(&answer).unwrap(), expected);
        assert!(stored.len_hint() >= answer.len());
    }

    #[test]
    fn keys_are_upstreams() {
        let pods = catalog::find("", "v1", "pods").unwrap();
        assert_eq!(key(pods, "a", "b"), "/registry/pods/a/b");
        let nodes = catalog::find("", "v1", "nodes").unwrap();
        assert_eq!(key(nodes, "", "n"), "/registry/nodes/n");
        assert_eq!(prefix(pods, ""), "/registry/pods/");
    }

    #[test]
    fn damaged_values_are_not_split() {
        for bytes in [&b""[..], b"\0\0\0", b"\0\0\0\0{}", b"\xff\xff\xff\xff{}"] {
            assert!(StoredParts::split(bytes).is_none());
        }
    }
}
