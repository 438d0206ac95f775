//! The body of a server-side apply: a partial object, in YAML or JSON.

use objects::yaml::{self, Problem};
use serde_json::Value;

use crate::refusal::Refusal;
use crate::request::Call;
use crate::route::Place;

/// Reads the configuration a client applies. Whether it fits the schema is for
/// [`objects::apply`] to say: fields that would be lost are refused there.
pub(crate) fn read(call: &Call, place: &Place) -> Result<Value, Refusal> {
    let text = std::str::from_utf8(&call.body)
        .map_err(|error| Refusal::bad_request(format!("error decoding YAML: {error}")))?;
    let (documents, errors) = yaml::parse(text);
    let broken = errors.iter().find(|error| !matches!(error.problem, Problem::DuplicateKey { .. }));
    if let Some(error) = broken {
        return Err(Refusal::bad_request(format!("error decoding YAML: {error}")));
    }
    let mut applied = documents.first().map_or(Value::Null, yaml::Node::to_json);
    if !applied.is_object() {
        return Err(Refusal::bad_request("error decoding YAML: an object is expected"));
    }
    let name = applied["metadata"]["name"].as_str().unwrap_or_default();
    if !name.is_empty() && name != place.name {
        return Err(Refusal::bad_request(format!(
            "the name of the object ({name}) does not match the name on the URL ({})",
            place.name
        )));
    }
    if applied["metadata"].is_null() {
        applied["metadata"] = serde_json::json!({});
    }
    if applied["metadata"].is_object() {
        applied["metadata"]["name"] = Value::from(place.name.as_str());
    }
    Ok(applied)
}
