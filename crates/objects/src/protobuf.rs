//! Kubernetes' protobuf encoding, driven by the same schema as JSON.
//!
//! [`decode`] and [`encode`] convert one message of a type to the canonical value of JSON, and
//! back; [`Envelope`] wraps objects, [`watch_event`] one change of a watch. Upstream has generated
//! code for each type; here one implementation uses the field numbers of `api/*.api`. ADR 0011
//! lists the differences.
//!
//! A message cannot distinguish an empty list or map from an absent one, so both become absent; the
//! kind of an object inside another one is not sent. [`type_of`] maps kinds to types.

mod base64;
mod decode;
mod encode;
mod envelope;
pub(crate) mod wire;

pub use decode::{ProtobufError, decode};
pub use encode::{EncodeError, encode};
pub use envelope::{Envelope, ListEnvelope, MAGIC, watch_event};

use crate::schema::{Schema, TypeId};

/// The media type of objects in their envelope.
pub const MEDIA_TYPE: &str = "application/vnd.kubernetes.protobuf";

/// The media type of a watch: frames of a big-endian length of four bytes and a `WatchEvent`.
pub const WATCH_MEDIA_TYPE: &str = "application/vnd.kubernetes.protobuf;stream=watch";

/// Returns the type of a kind. Kinds like `Status` and `DeleteOptions` belong to every group.
#[must_use]
pub fn type_of(schema: &Schema, api_version: &str, kind: &str) -> Option<TypeId> {
    let (group, version) = api_version.split_once('/').unwrap_or(("core", api_version));
    let group = group.split('.').next().unwrap_or(group);
    let own = format!("io.k8s.api.{group}.{version}.{kind}");
    let everywhere = format!("io.k8s.apimachinery.pkg.apis.meta.v1.{kind}");
    schema.find(&own).or_else(|| schema.find(&everywhere))
}

#[cfg(test)]
mod tests;
