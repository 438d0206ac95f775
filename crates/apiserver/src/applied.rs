//! The body of a server-side apply: a partial object, in YAML or JSON.

use objects::schema::Schema;
use objects::yaml;
use serde_json::Value;

use crate::refusal::Refusal;
use crate::request::Call;
use crate::route::Place;
use crate::write::type_id;

/// Reads the configuration a client applies. Fields the schema does not know are refused whatever
/// the client asked for: they would be lost, and the client would come to own nothing.
pub(crate) fn read(call: &Call, place: &Place) -> Result<Value, Refusal> {
    let text = std::str::from_utf8(&call.body)
        .map_err(|error| Refusal::bad_request(format!("error decoding YAML: {error}")))?;
    let (documents, errors) = yaml::parse(text);
    if let Some(error) = errors.first() {
        return Err(Refusal::bad_request(format!("error decoding YAML: {error}")));
    }
    let applied = documents.first().map_or(Value::Null, yaml::Node::to_json);
    if !applied.is_object() {
        return Err(Refusal::bad_request("error decoding YAML: an object is expected"));
    }
    let schema = Schema::served();
    let id = type_id(place.resource)?;
    let decoded = schema
        .decode_value(id, applied.clone())
        .map_err(|error| Refusal::bad_request(format!("failed to create typed patch object ({}/{}; {}, Kind={}): {error}", place.namespace, place.name, gv(place), place.resource.kind)))?;
    if let Some(problem) = decoded.strict.first() {
        let field = problem.split('"').nth(1).unwrap_or_default();
        return Err(Refusal::bad_request(format!(
            "failed to create typed patch object ({}/{}; {}, Kind={}): .{field}: field not \
             declared in schema",
            place.namespace,
            place.name,
            gv(place),
            place.resource.kind
        )));
    }
    for (field, wanted) in
        [("kind", place.resource.kind.to_owned()), ("apiVersion", place.resource.api_version())]
    {
        let given = applied[field].as_str().unwrap_or_default();
        if given != wanted {
            return Err(Refusal::bad_request(format!(
                "the {field} of the applied object ({given:?}) does not match the request ({wanted:?})"
            )));
        }
    }
    let name = applied["metadata"]["name"].as_str().unwrap_or_default();
    if !name.is_empty() && name != place.name {
        return Err(Refusal::bad_request(format!(
            "the name of the object ({name}) does not match the name on the URL ({})",
            place.name
        )));
    }
    let mut applied = applied;
    applied["metadata"]["name"] = Value::from(place.name.as_str());
    Ok(applied)
}

fn gv(place: &Place) -> String {
    format!("{}/{}", place.resource.group, place.resource.version)
}
