//! The recorded exchanges, and the objects that they store.
//!
//! Main types: [`Scenario`] and [`Kept`], the objects of a scenario by their path, taken from the
//! recorded responses. Placeholders of times are replaced by times.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::sync::LazyLock;

use flate2::read::GzDecoder;
use objects::catalog::{self, Resource};
use objects::selector::LabelSelector;
use objects::timestamp::Timestamp;
use serde::Deserialize;
use serde_json::Value;

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Scenario {
    pub(crate) id: String,
    /// The recorded server: `default` or `allow-privileged-false`.
    #[serde(default)]
    pub(crate) server: String,
    /// The namespace of the scenario, with its labels.
    #[serde(default)]
    pub(crate) namespace: Value,
    #[serde(default)]
    pub(crate) any_order: Value,
    pub(crate) steps: Vec<Step>,
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Step {
    #[serde(default)]
    pub(crate) name: String,
    pub(crate) request: Request,
    pub(crate) response: Response,
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Request {
    pub(crate) method: String,
    pub(crate) path: String,
    #[serde(default)]
    pub(crate) query: Value,
    #[serde(default)]
    pub(crate) headers: Value,
    #[serde(default)]
    pub(crate) body: Value,
    /// The body of a request that is not JSON, or not to be parsed.
    pub(crate) body_text: Option<String>,
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Response {
    pub(crate) status: u16,
    #[serde(default)]
    pub(crate) body: Value,
    /// A selection of a large response, instead of all of it.
    #[serde(default)]
    pub(crate) body_extract: Value,
    #[serde(default)]
    pub(crate) warnings: Vec<String>,
}

/// The assumed time of the recording.
pub(crate) fn recorded_at() -> Timestamp {
    Timestamp::parse("2026-01-02T03:04:05Z").unwrap()
}

/// The scenarios whose id starts with one of `prefixes`.
pub(crate) fn scenarios(prefixes: &[&str]) -> Vec<Scenario> {
    static ALL: LazyLock<Vec<Scenario>> = LazyLock::new(read);
    let wanted = |s: &&Scenario| prefixes.iter().any(|prefix| s.id.starts_with(prefix));
    let found: Vec<_> = ALL.iter().filter(wanted).cloned().collect();
    assert!(!found.is_empty(), "no scenario {prefixes:?}");
    found
}

fn read() -> Vec<Scenario> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../testdata/golden-api/exchanges.jsonl.gz");
    let mut text = String::new();
    GzDecoder::new(std::fs::File::open(path).unwrap()).read_to_string(&mut text).unwrap();
    let text = text
        .replace("\"<time>\"", "\"2026-01-02T03:04:05Z\"")
        .replace("\"<microtime>\"", "\"2026-01-02T03:04:05.000000Z\"");
    // Ids are bare words, so that they are valid where the real ones were.
    let text = without_brackets(&text, "<uid-");
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Removes the brackets of the placeholders with this prefix.
fn without_brackets(text: &str, start: &str) -> String {
    let mut parts = text.split(start);
    let mut bare = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        bare.push_str(start.trim_start_matches('<'));
        bare.push_str(&part.replacen('>', "", 1));
    }
    bare
}

/// The target of a path.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Target<'a> {
    pub(crate) resource: &'static Resource,
    /// The path of the collection.
    pub(crate) collection: &'a str,
    pub(crate) name: Option<&'a str>,
    pub(crate) subresource: Option<&'a str>,
}

/// Parses a path; `None` if its resource is not served.
pub(crate) fn target(path: &str) -> Option<Target<'_>> {
    let parts: Vec<&str> = path.trim_start_matches('/').split('/').collect();
    let (group, version, rest) = match parts.as_slice() {
        ["api", version, ..] => ("", *version, 2),
        ["apis", group, version, ..] => (*group, *version, 3),
        _ => return None,
    };
    let namespaced = parts.get(rest) == Some(&"namespaces")
        && parts.len() > rest + 2
        && !matches!(parts[rest + 2], "status" | "finalize");
    let at = if namespaced { rest + 2 } else { rest };
    let resource = catalog::find(group, version, parts.get(at)?)?;
    let upto: usize = parts[..=at].iter().map(|part| part.len() + 1).sum();
    Some(Target {
        resource,
        collection: &path[..upto],
        name: parts.get(at + 1).copied(),
        subresource: parts.get(at + 2).copied(),
    })
}

/// The objects of a scenario's responses, by path.
#[derive(Debug, Default)]
pub(crate) struct Kept(pub(crate) BTreeMap<String, Value>);

impl Kept {
    /// Stores the objects of a step's response.
    pub(crate) fn learn(&mut self, step: &Step) {
        let Some(target) = target(&step.request.path) else { return };
        let body = &step.response.body;
        let dry = step.request.query.get("dryRun").is_some();
        if step.response.status >= 300 || dry || step.request.method == "GET" {
            return;
        }
        if body["kind"] == target.resource.kind {
            let name = body["metadata"]["name"].as_str().unwrap_or_default();
            self.0.insert(format!("{}/{name}", target.collection), body.clone());
        } else if step.request.method == "DELETE" {
            self.0.remove(&step.request.path);
        }
    }

    pub(crate) fn get(&self, target: &Target<'_>) -> Option<&Value> {
        self.0.get(&format!("{}/{}", target.collection, target.name?))
    }

    /// Returns the objects of a collection that match the `labelSelector` of the query.
    pub(crate) fn list(&self, target: &Target<'_>, query: &Value) -> Vec<&Value> {
        let prefix = format!("{}/", target.collection);
        let text = query["labelSelector"].as_str().unwrap_or_default();
        let selector = LabelSelector::parse(text).unwrap();
        let within = self.0.iter().filter(|(path, _)| path.starts_with(&prefix));
        within.map(|(_, object)| object).filter(|object| selector.matches_object(object)).collect()
    }
}
