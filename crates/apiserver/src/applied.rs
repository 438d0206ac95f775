//! The body of a server-side apply: a partial object, in YAML or JSON.

use objects::yaml::{self, Problem};
use serde_json::{Value, json};

use crate::incoming::{self, FieldValidation, Incoming};
use crate::refusal::Refusal;
use crate::request::Call;
use crate::route::Place;

/// Reads the configuration a client applies. Whether it fits the schema is for
/// [`objects::apply`] to say: fields that would be lost are refused there.
pub(crate) fn read(call: &Call, place: &Place) -> Result<Incoming, Refusal> {
    let bad = |what: String| Refusal::bad_request(format!("error decoding patch: {what}"));
    let text = std::str::from_utf8(&call.body).map_err(|error| bad(error.to_string()))?;
    let (documents, errors) = incoming::parse_yaml(text)?;
    let (repeated, broken): (Vec<_>, Vec<_>) =
        errors.iter().partition(|error| matches!(error.problem, Problem::DuplicateKey { .. }));
    if let Some(error) = broken.first() {
        let (line, problem) = (error.mark.line, &error.problem);
        return Err(bad(format!("error converting YAML to JSON: yaml: line {line}: {problem}")));
    }
    let warnings = match FieldValidation::of(call)? {
        FieldValidation::Ignore => Vec::new(),
        FieldValidation::Warn => incoming::repeated_keys(&repeated),
        FieldValidation::Strict if repeated.is_empty() => Vec::new(),
        FieldValidation::Strict => {
            let keys = incoming::repeated_keys(&repeated).join("\n  ");
            return Err(bad(format!("yaml: unmarshal errors:\n  {keys}")));
        }
    };
    let mut applied = documents.first().map_or_else(|| json!({}), yaml::Node::to_json);
    if !applied.is_object() {
        let found = match applied {
            Value::Array(_) => "array",
            Value::String(_) => "string",
            Value::Number(_) => "number",
            _ => "bool",
        };
        return Err(bad(format!(
            "error unmarshaling JSON: while decoding JSON: json: cannot unmarshal {found} into Go \
             value of type map[string]interface {{}}"
        )));
    }
    let name = applied["metadata"]["name"].as_str().unwrap_or_default();
    if !name.is_empty() && name != place.name {
        return Err(Refusal::bad_request(format!(
            "the name of the object ({name}) does not match the name on the URL ({})",
            place.name
        )));
    }
    if applied["kind"].is_string()
        && applied["metadata"].is_object()
        && applied["metadata"]["name"].is_null()
    {
        applied["metadata"]["name"] = Value::from(place.name.as_str());
    }
    Ok(Incoming { object: applied, warnings })
}
