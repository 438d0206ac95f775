//! Decoding request bodies: JSON, YAML or protobuf into canonical objects, with upstream's error
//! messages.

use std::borrow::Cow;

use objects::catalog::{self, Resource};
use objects::cursor::{Causes, Cursor};
use objects::field::Step;
use objects::protobuf::{self, Envelope, ProtobufError};
use objects::schema::{DecodeError, Decoded, Schema, TypeId};
use objects::yaml::{self, Problem, YamlError};
use serde::de::{IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use crate::error::ApiError;
use crate::request::Request;

/// The maximum size of a body.
pub(crate) const MAX_BODY: usize = 3 * 1024 * 1024;

/// The handling of unknown and duplicate fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FieldValidation {
    Strict,
    Warn,
    Ignore,
}

impl FieldValidation {
    /// Reads `fieldValidation=`; the default is to warn.
    pub(crate) fn of(request: &Request) -> Result<FieldValidation, ApiError> {
        let mut causes = Causes::default();
        let read = FieldValidation::check(request, &mut causes);
        read.ok_or_else(|| ApiError::invalid_kind("meta.k8s.io", "CreateOptions", "", &causes))
    }

    /// Reads `fieldValidation=` together with the other options of a write, whose errors are
    /// reported together.
    pub(crate) fn check(request: &Request, causes: &mut Causes) -> Option<FieldValidation> {
        match request.query.text("fieldValidation") {
            "" | "Warn" => Some(FieldValidation::Warn),
            "Strict" => Some(FieldValidation::Strict),
            "Ignore" => Some(FieldValidation::Ignore),
            other => {
                let given = Value::from(other);
                let at = Cursor::top(&given, "fieldValidation");
                causes.not_supported(&at, &["", "Ignore", "Strict", "Warn"]);
                None
            }
        }
    }
}

/// The media type of a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Notation {
    Json,
    Yaml,
    Protobuf,
}

/// A decoded object with the warnings for the client.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct DecodedBody {
    pub object: Value,
    pub warnings: Vec<String>,
}

/// Decodes a body as an object of the expected kind.
pub(crate) fn body(request: &Request, expected: &Expected<'_>) -> Result<DecodedBody, ApiError> {
    let validation = FieldValidation::of(request)?;
    let mut strict = Vec::new();
    let (header, decoded) = match notation(request)? {
        Notation::Json => from_json(&request.body, &request.body, expected)?,
        Notation::Yaml => {
            let (value, repeated) = from_yaml(&request.body, expected)?;
            strict = repeated;
            from_json(value.to_string().as_bytes(), &request.body, expected)?
        }
        Notation::Protobuf => from_protobuf(&request.body, expected)?,
    };
    let yaml_problems = !strict.is_empty();
    let repeated = strict.len();
    strict.extend(decoded.strict);
    let mut warnings = Vec::new();
    match validation {
        FieldValidation::Ignore => {}
        FieldValidation::Warn => warnings = strict,
        FieldValidation::Strict if strict.is_empty() => {}
        FieldValidation::Strict => {
            let (yaml, fields) = strict.split_at(repeated);
            let mut texts = Vec::new();
            if yaml_problems {
                texts.push(format!("yaml: unmarshal errors:\n  {}", yaml.join("\n  ")));
            }
            texts.extend(fields.iter().cloned());
            let text = format!("strict decoding error: {}", texts.join(", "));
            return Err(expected.cannot_be_handled(&header, &text));
        }
    }
    let mut object = decoded.value;
    if let Value::Object(fields) = &mut object {
        fields.insert("kind".to_owned(), Value::from(expected.kind));
        fields.insert("apiVersion".to_owned(), Value::from(expected.api_version.as_str()));
    }
    Ok(DecodedBody { object, warnings })
}

/// Decodes JSON. `body` is the original body, for messages.
fn from_json(
    json: &[u8],
    body: &[u8],
    expected: &Expected<'_>,
) -> Result<(Header, Decoded), ApiError> {
    let header = expected.check_header(json, body)?;
    let respelt = respell(expected.kind, json);
    let json = respelt.as_deref().unwrap_or(json);
    let decoded = Schema::served()
        .decode(expected.type_id, json)
        .map_err(|error| expected.not_decoded(&header, &error))?;
    Ok((header, decoded))
}

fn from_protobuf(body: &[u8], expected: &Expected<'_>) -> Result<(Header, Decoded), ApiError> {
    let envelope =
        Envelope::read(body).map_err(|error| expected.unrecognized(&error.to_string(), body))?;
    let (api_version, kind) = (Some(envelope.api_version), Some(envelope.kind));
    let header = expected.checked(Header { api_version, kind }, body)?;
    let decoded = protobuf::decode(Schema::served(), expected.type_id, envelope.message)
        .map_err(|error| expected.not_decoded_from_protobuf(&header, &error))?;
    Ok((header, decoded))
}

/// Decodes the options of a verb, which belong to every group and may name any version.
pub(crate) fn options_from_protobuf(
    body: &[u8],
    kind: &str,
    type_id: TypeId,
) -> Result<Decoded, ApiError> {
    let envelope =
        Envelope::read(body).map_err(|error| ApiError::bad_request(error.to_string()))?;
    let expected = Expected { kind, api_version: envelope.api_version, type_id, alike: "" };
    let (api_version, kind) = (Some(expected.api_version.clone()), Some(envelope.kind));
    let header = expected.checked(Header { api_version, kind }, body)?;
    protobuf::decode(Schema::served(), type_id, envelope.message)
        .map_err(|error| expected.not_decoded_from_protobuf(&header, &error))
}

/// Returns the options of a verb as JSON; `None` if they are in protobuf.
pub(crate) fn options_text(request: &Request) -> Result<Option<Cow<'_, [u8]>>, ApiError> {
    Ok(match notation(request)? {
        Notation::Json => Some(Cow::Borrowed(&request.body)),
        Notation::Yaml => {
            let text = String::from_utf8_lossy(&request.body);
            let (documents, errors) = parse_yaml(&text)?;
            let repeated =
                |error: &&YamlError| matches!(error.problem, Problem::DuplicateKey { .. });
            if let Some(error) = errors.iter().find(|error| !repeated(error)) {
                let what = format!("yaml: line {}: {}", error.mark.line, error.problem);
                return Err(ApiError::bad_request(what));
            }
            let document = documents.first().map_or(Value::Null, yaml::Node::to_json);
            Some(Cow::Owned(document.to_string().into_bytes()))
        }
        Notation::Protobuf => None,
    })
}

/// Replaces the alternative spelling of a node's QoS resources, if it is used.
fn respell(kind: &str, json: &[u8]) -> Option<Vec<u8>> {
    let other = kind == "Node" && json.windows(12).any(|window| window == b"QoSResources");
    if !other {
        return None;
    }
    let mut node = Schema::served().decode_any(json).ok()?;
    objects::rules::node::respell(&mut node);
    Some(node.to_string().into_bytes())
}

/// The expected kind of a body.
#[derive(Debug, Clone)]
pub(crate) struct Expected<'a> {
    pub kind: &'a str,
    pub api_version: String,
    pub type_id: TypeId,
    /// Another version with the same fields, or empty.
    pub alike: &'static str,
}

#[derive(Debug, Default, Deserialize)]
struct Header {
    #[serde(default, rename = "apiVersion")]
    api_version: Option<String>,
    #[serde(default)]
    kind: Option<String>,
}

impl<'a> Expected<'a> {
    /// Expects objects of the resource itself.
    pub(crate) fn of(resource: &'a Resource) -> Result<Expected<'a>, ApiError> {
        let type_name = format!("{}.{}", resource.package, resource.kind);
        Expected::named(resource.kind, resource.api_version(), &type_name)
    }

    /// Expects objects of a type given by its full name.
    pub(crate) fn named(
        kind: &'a str,
        api_version: String,
        type_name: &str,
    ) -> Result<Expected<'a>, ApiError> {
        let type_id = Schema::served().find(type_name);
        let missing = || ApiError::internal(format!("the schema has no type {type_name}"));
        Ok(Expected { kind, api_version, type_id: type_id.ok_or_else(missing)?, alike: "" })
    }

    fn unrecognized(&self, what: &str, body: &[u8]) -> ApiError {
        ApiError::bad_request(format!(
            "the object provided is unrecognized (must be of type {}): {what} ({})",
            self.kind,
            summary(body)
        ))
    }

    fn not_decoded(&self, header: &Header, error: &DecodeError) -> ApiError {
        match error {
            DecodeError::TooLarge(error) => ApiError::too_large(error),
            other => self.cannot_be_handled(header, &other.to_string()),
        }
    }

    fn not_decoded_from_protobuf(&self, header: &Header, error: &ProtobufError) -> ApiError {
        match error {
            ProtobufError::TooLarge(error) => ApiError::too_large(error),
            other => self.cannot_be_handled(header, &other.to_string()),
        }
    }

    fn cannot_be_handled(&self, header: &Header, why: &str) -> ApiError {
        let kind = header.kind.as_deref().filter(|kind| !kind.is_empty()).unwrap_or(self.kind);
        let given = header.api_version.as_deref().filter(|version| !version.is_empty());
        let version = given.unwrap_or(&self.api_version);
        let version = version.rsplit('/').next().unwrap_or(version);
        ApiError::bad_request(format!(
            "{kind} in version {version:?} cannot be handled as a {}: {why}",
            self.kind
        ))
    }

    /// Checks kind and version before the rest is decoded.
    fn check_header(&self, json: &[u8], body: &[u8]) -> Result<Header, ApiError> {
        let header: Option<Header> = serde_json::from_slice(json).map_err(|error| {
            let problem = objects::schema::syntax::go_error(json)
                .unwrap_or_else(|| header_type_error(json).unwrap_or_else(|| error.to_string()));
            self.unrecognized(
                &format!("couldn't get version/kind; json parse error: {problem}"),
                body,
            )
        })?;
        self.checked(header.unwrap_or_default(), body)
    }

    /// Checks that kind and version are the expected ones.
    fn checked(&self, header: Header, body: &[u8]) -> Result<Header, ApiError> {
        let kind = header.kind.as_deref().filter(|kind| !kind.is_empty()).unwrap_or(self.kind);
        let given = header.api_version.as_deref().filter(|version| !version.is_empty());
        let version = given.unwrap_or(&self.api_version);
        if version.matches('/').count() > 1 {
            let what = format!("unexpected GroupVersion string: {version}");
            return Err(self.unrecognized(&what, body));
        }
        let version_fits = version == self.api_version || version == self.alike;
        if kind == self.kind && version_fits {
            return Ok(header);
        }
        let why = not_convertible((version, kind), (&self.api_version, self.kind));
        Err(self.cannot_be_handled(&header, &why))
    }
}

/// Returns upstream's reason why an object of one version and kind cannot be converted to another.
fn not_convertible(from: (&str, &str), to: (&str, &str)) -> String {
    let ((version, kind), (expected_version, expected)) = (from, to);
    let list_of = kind.strip_suffix("List").unwrap_or(kind);
    let known = [kind, list_of].iter().any(|k| catalog::of_kind(version, k).is_some());
    if known {
        let short = version.rsplit('/').next().unwrap_or(version);
        let group = match expected_version.split_once('/') {
            Some((group, _)) => group.split('.').next().unwrap_or(group),
            None => "core",
        };
        format!("converting ({short}.{kind}) to ({group}.{expected}): unknown conversion")
    } else {
        let scheme = "pkg/api/legacyscheme/scheme.go:30";
        format!("no kind {kind:?} is registered for version {version:?} in scheme {scheme:?}")
    }
}

/// Returns the reason if a patch changed the kind or version of an object. A removed kind or
/// version is ignored.
pub(crate) fn other_kind(old: &Value, patched: &Value) -> Option<String> {
    let text = |object: &Value, field: &str| object[field].as_str().map(str::to_owned);
    let before = (text(old, "apiVersion")?, text(old, "kind")?);
    let version = text(patched, "apiVersion").unwrap_or_else(|| before.0.clone());
    let kind = text(patched, "kind").unwrap_or_else(|| before.1.clone());
    if (&version, &kind) == (&before.0, &before.1) {
        return None;
    }
    Some(not_convertible((&version, &kind), (&before.0, &before.1)))
}

/// Returns Go's message for a JSON body without a readable kind and version.
fn header_type_error(json: &[u8]) -> Option<String> {
    let Some(JsonType("object")) = serde_json::from_slice(json).ok() else {
        let JsonType(found) = serde_json::from_slice(json).ok()?;
        let target = "struct { APIVersion string \"json:\\\"apiVersion,omitempty\\\"\"; Kind string \
                      \"json:\\\"kind,omitempty\\\"\" }";
        return Some(format!("json: cannot unmarshal {found} into Go value of type {target}"));
    };
    let types: HeaderTypes = serde_json::from_slice(json).ok()?;
    [("apiVersion", types.api_version), ("kind", types.kind)].into_iter().find_map(|(field, of)| {
        let JsonType(found) = of.filter(|JsonType(found)| *found != "string")?;
        Some(format!("json: cannot unmarshal {found} into Go struct field .{field} of type string"))
    })
}

#[derive(Debug, Deserialize)]
struct HeaderTypes {
    #[serde(default, rename = "apiVersion")]
    api_version: Option<JsonType>,
    #[serde(default)]
    kind: Option<JsonType>,
}

/// Go's name for the type of a JSON value.
#[derive(Debug, Clone, Copy)]
struct JsonType(&'static str);

impl<'de> Deserialize<'de> for JsonType {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<JsonType, D::Error> {
        deserializer.deserialize_any(JsonTypeVisitor)
    }
}

struct JsonTypeVisitor;

impl<'de> Visitor<'de> for JsonTypeVisitor {
    type Value = JsonType;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<JsonType, E> {
        Ok(JsonType("null"))
    }

    fn visit_bool<E>(self, _: bool) -> Result<JsonType, E> {
        Ok(JsonType("bool"))
    }

    fn visit_i64<E>(self, _: i64) -> Result<JsonType, E> {
        Ok(JsonType("number"))
    }

    fn visit_u64<E>(self, _: u64) -> Result<JsonType, E> {
        Ok(JsonType("number"))
    }

    fn visit_f64<E>(self, _: f64) -> Result<JsonType, E> {
        Ok(JsonType("number"))
    }

    fn visit_str<E>(self, _: &str) -> Result<JsonType, E> {
        Ok(JsonType("string"))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<JsonType, A::Error> {
        while items.next_element::<IgnoredAny>()?.is_some() {}
        Ok(JsonType("array"))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<JsonType, A::Error> {
        while entries.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(JsonType("object"))
    }
}

/// Returns the start of a body for a message.
fn summary(body: &[u8]) -> String {
    const ENOUGH: usize = 30;
    let (start, more) = match body.get(..ENOUGH) {
        Some(start) if body.len() > ENOUGH => (start, " ..."),
        _ => (body, ""),
    };
    match body.first() {
        None => "<empty>".to_owned(),
        Some(b'{') => format!("{}{more}", String::from_utf8_lossy(start)),
        Some(_) => {
            let hex: String = start.iter().map(|byte| format!("{byte:02x}")).collect();
            format!("{hex}{more}")
        }
    }
}

fn notation(request: &Request) -> Result<Notation, ApiError> {
    let header = request.header("content-type");
    let media = header.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    match media.as_str() {
        // The default is JSON.
        "" | "application/json" => Ok(Notation::Json),
        "application/yaml" => Ok(Notation::Yaml),
        protobuf::MEDIA_TYPE => Ok(Notation::Protobuf),
        _ => {
            let message = "the body of the request was in an unknown format - accepted media types \
                           include: application/json, application/yaml, \
                           application/vnd.kubernetes.protobuf";
            let code = http::StatusCode::UNSUPPORTED_MEDIA_TYPE;
            Err(ApiError::new(code, "UnsupportedMediaType", message))
        }
    }
}

/// The maximum number of values in a YAML body: twice that of the largest object that can be
/// stored.
const MAX_YAML_VALUES: usize = 400_000;

/// Parses the YAML of a body.
pub(crate) fn parse_yaml(text: &str) -> Result<(Vec<yaml::Node>, Vec<YamlError>), ApiError> {
    let (documents, errors) = yaml::parse_within(text, MAX_YAML_VALUES);
    let large = |error: &&YamlError| matches!(error.problem, Problem::TooManyValues { .. });
    match errors.iter().find(large) {
        Some(error) => Err(ApiError::too_large(&error.problem)),
        None => Ok((documents, errors)),
    }
}

/// Returns the first document of a YAML text, and its duplicate keys.
fn from_yaml(body: &[u8], expected: &Expected<'_>) -> Result<(Value, Vec<String>), ApiError> {
    let text = std::str::from_utf8(body)
        .map_err(|error| expected.unrecognized(&format!("yaml: {error}"), body))?;
    let tab = text.lines().position(|line| line.trim_start_matches(' ').starts_with('\t'));
    if tab.is_some() {
        let what = "yaml: found character that cannot start any token";
        return Err(expected.unrecognized(what, body));
    }
    let (documents, errors) = parse_yaml(text)?;
    let (repeated, broken): (Vec<_>, Vec<_>) =
        errors.iter().partition(|error| matches!(error.problem, Problem::DuplicateKey { .. }));
    if let Some(error) = broken.first() {
        let what = format!("yaml: line {}: {}", error.mark.line, error.problem);
        return Err(expected.unrecognized(&what, body));
    }
    let repeated = repeated_keys(&repeated);
    let document = documents.first().map_or(Value::Null, yaml::Node::to_json);
    Ok((document, repeated))
}

/// Returns `line 7: key "a" already set in map`, ordered by line.
pub(crate) fn repeated_keys(errors: &[&YamlError]) -> Vec<String> {
    let mut errors = errors.to_vec();
    errors.sort_by_key(|error| error.mark);
    let text = |error: &&YamlError| {
        let key = match error.path.steps().last() {
            Some(Step::Field(key) | Step::Key(key)) => key.as_str(),
            _ => "",
        };
        format!("line {}: key {key:?} already set in map", error.mark.line)
    };
    errors.iter().map(text).collect()
}
