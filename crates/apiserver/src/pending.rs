//! TEMPORARY stand-ins.
use objects::cursor::Causes;
use objects::schema::{Schema, TypeId};
use objects::timestamp::Timestamp;
use serde_json::{Value, json};
pub fn to_events_group(o: Value) -> Value { o }
pub fn from_events_group(o: Value) -> Value { o }
pub fn scale_of(o: &Value) -> Value { json!({"kind":"Scale","apiVersion":"autoscaling/v1","metadata":o["metadata"],"spec":{"replicas":o["spec"]["replicas"]},"status":{"replicas":0}}) }
pub fn validate_binding(_: &Value) -> Causes { Causes::default() }
pub fn bound(old: &Value, _b: &Value, node: &str, _now: Timestamp) -> Value { let mut p = old.clone(); p["spec"]["nodeName"] = node.into(); p }
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation { Update, Apply }
#[derive(Debug, Clone)]
pub struct Writer { pub manager: String, pub operation: Operation, pub api_version: String, pub subresource: String }
#[derive(Debug)]
pub struct ApplyConflict;
impl ApplyConflict { pub fn message(&self) -> String { String::new() } pub fn field(&self) -> String { String::new() } }
#[derive(Debug)]
pub enum ApplyError { Conflicts(Vec<ApplyConflict>), Other }
impl std::fmt::Display for ApplyError { fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result { f.write_str("apply") } }
pub fn track_update(_: &Schema, _: TypeId, _: Option<&Value>, _: &mut Value, _: &Writer, _: Timestamp) {}
pub fn apply(_: &Schema, _: TypeId, _: Option<&Value>, applied: Value, _: &Writer, _: bool, _: Timestamp) -> Result<Value, ApplyError> { Ok(applied) }
