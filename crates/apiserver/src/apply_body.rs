//! The body of a server-side apply: a partial object, in YAML or JSON.

use objects::yaml::{self, Problem};
use serde_json::{Value, json};

use crate::decode::{self, DecodedBody, FieldValidation};
use crate::error::ApiError;
use crate::request::Request;
use crate::route::ResourcePath;

/// Decodes the configuration that a client applies. [`objects::apply`] checks it against the schema
/// and rejects fields that would be lost.
pub(crate) fn read(request: &Request, path: &ResourcePath) -> Result<DecodedBody, ApiError> {
    let bad = |what: String| ApiError::bad_request(format!("error decoding patch: {what}"));
    let text = std::str::from_utf8(&request.body).map_err(|error| bad(error.to_string()))?;
    let (documents, errors) = decode::parse_yaml(text)?;
    let (repeated, broken): (Vec<_>, Vec<_>) =
        errors.iter().partition(|error| matches!(error.problem, Problem::DuplicateKey { .. }));
    if let Some(error) = broken.first() {
        let (line, problem) = (error.mark.line, &error.problem);
        return Err(bad(format!("error converting YAML to JSON: yaml: line {line}: {problem}")));
    }
    let warnings = match FieldValidation::of(request)? {
        FieldValidation::Ignore => Vec::new(),
        FieldValidation::Warn => decode::repeated_keys(&repeated),
        FieldValidation::Strict if repeated.is_empty() => Vec::new(),
        FieldValidation::Strict => {
            let keys = decode::repeated_keys(&repeated).join("\n  ");
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
    if !name.is_empty() && name != path.name {
        return Err(ApiError::bad_request(format!(
            "the name of the object ({name}) does not match the name on the URL ({})",
            path.name
        )));
    }
    if applied["kind"].is_string()
        && applied["metadata"].is_object()
        && applied["metadata"]["name"].is_null()
    {
        applied["metadata"]["name"] = Value::from(path.name.as_str());
    }
    Ok(DecodedBody { object: applied, warnings })
}
