//! Pods and pod templates of manifests, read as the API server reads them: [`read`] decodes with its
//! schema, sets its defaults, validates with its rules, and locates every problem in the text. It does
//! not run admission, which depends on other objects.

use std::sync::LazyLock;

use serde::Deserialize as _;
use serde_json::Value;

use crate::catalog::{self, Resource};
use crate::feature_gates::{FeatureGates, Gate};
use crate::field::{FieldPath, Step};
use crate::pod::resources::{Side, read_list};
use crate::resources::{CPU, EPHEMERAL_STORAGE, MEMORY};
use crate::rules::{self, RuleContext};
use crate::schema::{DecodeError, Schema, Shape, TypeId};
use crate::suggest::nearest;
use crate::timestamp::Timestamp;
use crate::types::Pod;
use crate::yaml::read::Findings;
use crate::yaml::{self, Node, Problem, Resolved, YamlError, did_you_mean};

const POD: &str = "io.k8s.api.core.v1.Pod";
const TEMPLATE: &str = "io.k8s.api.core.v1.PodTemplateSpec";

/// Manifests are read with the class resources of KEP-3008, and with all operators of tolerations.
static GATES: LazyLock<FeatureGates> = LazyLock::new(|| {
    let mut gates = FeatureGates::default();
    for gate in [Gate::QosResources, Gate::TaintTolerationComparisonOperators] {
        let set = gates.set(gate, true);
        debug_assert!(set.is_ok());
    }
    gates
});

/// The document that a pod is in, and its path in it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Position<'a> {
    pub(super) document: &'a Node,
    pub(super) prefix: &'a FieldPath,
}

impl Position<'_> {
    fn problem(&self, path: &FieldPath, problem: Problem) -> YamlError {
        let path = path.under(self.prefix);
        YamlError { mark: self.document.locate(&path), path, problem }
    }
}

/// Reads a pod, or the template of a workload, at `node`. Returns `None` if something in it cannot be read.
pub(super) fn read(
    node: &Node,
    is_template: bool,
    position: Position<'_>,
    findings: &mut Findings,
) -> Option<Pod> {
    let schema = Schema::served();
    let resource = catalog::of_kind("v1", "Pod")?;
    let id = schema.find(if is_template { TEMPLATE } else { POD })?;
    let decoded = match schema.decode_value(id, node.to_json()) {
        Ok(decoded) => decoded,
        Err(error) => {
            let mut failures = failures(schema, id, node, &FieldPath::root());
            if failures.is_empty() {
                failures.push((FieldPath::root(), Problem::Other(error.to_string())));
            }
            let located =
                failures.into_iter().map(|(path, problem)| position.problem(&path, problem));
            findings.errors.extend(located);
            return None;
        }
    };
    let unknown = |text: &String| {
        let path = FieldPath::parse(text.strip_prefix("unknown field \"")?.strip_suffix('"')?);
        Some(unknown_field(schema, id, node, &path, position.prefix))
    };
    findings.errors.extend(decoded.strict.iter().filter_map(unknown));
    let mut pod = decoded.value;
    for (path, message) in roundings(&pod) {
        findings.warnings.push(position.problem(&path, Problem::Other(message)));
    }
    validate(&mut pod, resource, node, is_template, position, findings);
    Pod::deserialize(pod).ok()
}

/// Sets the defaults of a pod and validates it as a new one.
fn validate(
    pod: &mut Value,
    resource: &Resource,
    node: &Node,
    is_template: bool,
    position: Position<'_>,
    findings: &mut Findings,
) {
    // The pod may be one of a cluster: a status and ephemeral containers are not given to new ones.
    for (object, field) in [("", "status"), ("/spec", "ephemeralContainers")] {
        if let Some(Value::Object(object)) = pod.pointer_mut(object) {
            object.remove(field);
        }
    }
    rules::set_defaults(resource, pod);
    let mut new = pod.clone();
    let metadata = &mut new["metadata"];
    let text = |field: &str| metadata[field].as_str().unwrap_or_default().to_owned();
    if is_template {
        metadata["name"] = "template".into();
    } else if text("name").is_empty() && !text("generateName").is_empty() {
        metadata["name"] = format!("{}x", text("generateName")).into();
    }
    if metadata["namespace"].as_str().is_none_or(str::is_empty) {
        metadata["namespace"] = "default".into();
    }
    let context = RuleContext { gates: &GATES, allow_privileged: true, now: Timestamp::new(0, 0) };
    for cause in rules::validate_create(resource, &new, &context).0 {
        let path = FieldPath::parse(&cause.field);
        if is_defaulted(&path, node) {
            continue;
        }
        let meant = meant(&path);
        let problem = position.problem(&path, Problem::Other(cause.message + &meant));
        // A misspelt name breaks several rules; the suggestion is given once.
        if meant.is_empty() || findings.errors.iter().all(|error| error.path != problem.path) {
            findings.errors.push(problem);
        }
    }
}

/// Reports whether a path leads to a request that was set from the limit, whose own problem is enough.
fn is_defaulted(path: &FieldPath, node: &Node) -> bool {
    let [above @ .., Step::Field(list), Step::Key(name)] = path.steps() else { return false };
    let lists = above.iter().try_fold(node, |node, step| node.at(step));
    let has = |list: &str| lists.and_then(|lists| lists.get(list)?.get(name)).is_some();
    list == "requests" && !has("requests") && has("limits")
}

/// Suggests the resource that a misspelt name may stand for.
fn meant(path: &FieldPath) -> String {
    let [.., Step::Field(list), Step::Key(name)] = path.steps() else { return String::new() };
    let known = [CPU, MEMORY, EPHEMERAL_STORAGE];
    let is_slip = matches!(list.as_str(), "requests" | "limits")
        && !known.contains(&name.as_str())
        && !name.contains('/');
    did_you_mean(nearest(name, known).filter(|_| is_slip))
}

/// Returns all values of a tree that are not of their type, each with its path.
fn failures(schema: &Schema, id: TypeId, node: &Node, at: &FieldPath) -> Vec<(FieldPath, Problem)> {
    let Err(error) = schema.decode_value(id, node.to_json()) else { return Vec::new() };
    let mut found = Vec::new();
    let entries = match &node.value {
        yaml::Value::Map(entries) => entries.as_slice(),
        _ => &[],
    };
    for entry in entries {
        let Some(field) = schema.get(id).field(&entry.key) else { continue };
        let at = at.child(&entry.key);
        match (&field.shape, &entry.value.value) {
            (Shape::Struct(id), yaml::Value::Map(_)) => {
                found.extend(failures(schema, *id, &entry.value, &at));
            }
            (Shape::List(item), yaml::Value::List(items)) => {
                let Shape::Struct(id) = **item else { continue };
                let items = items.iter().enumerate();
                found.extend(items.flat_map(|(n, item)| failures(schema, id, item, &at.index(n))));
            }
            _ => {}
        }
    }
    if found.is_empty() {
        found.push(failure(&error, node, at));
    }
    found
}

fn failure(error: &DecodeError, node: &Node, at: &FieldPath) -> (FieldPath, Problem) {
    let (path, wanted) = match error {
        DecodeError::Type { path, wanted, .. } => (path.as_str(), Some(wanted)),
        DecodeError::Value { path, .. } | DecodeError::TooDeep { path } => (path.as_str(), None),
        DecodeError::Syntax(_) | DecodeError::TooLarge(_) => ("", None),
    };
    let path = FieldPath::parse(path);
    let found = path.steps().iter().try_fold(node, |node, step| node.at(step));
    let problem = match (wanted, found) {
        (Some(wanted), Some(found)) => {
            let unquoted = match &found.value {
                yaml::Value::Scalar(scalar) => Some(scalar).filter(|scalar| {
                    wanted == "string"
                        && matches!(scalar.resolve(), Resolved::Number | Resolved::Bool(_))
                }),
                _ => None,
            };
            let expected = match unquoted {
                Some(scalar) => format!("a text; write it in quotes: {:?}", scalar.text),
                None => in_words(wanted).to_owned(),
            };
            Problem::Expected { expected, found: found.describe() }
        }
        _ => Problem::Other(error.to_string()),
    };
    (path.under(at), problem)
}

/// Returns a Go type in the words of YAML.
fn in_words(wanted: &str) -> &str {
    match wanted {
        "string" => "a text",
        "bool" => "true or false",
        "int32" | "int64" => "a whole number",
        "resource.Quantity" => "a quantity such as 500m, 2 or 1Gi",
        list if list.starts_with("[]") => "a list",
        map if map.starts_with("map[") || map.starts_with("v1.") => "a map of fields",
        other => other,
    }
}

/// Returns the problem of a field that the schema does not have, with the name that may be meant.
fn unknown_field(
    schema: &Schema,
    id: TypeId,
    node: &Node,
    path: &FieldPath,
    prefix: &FieldPath,
) -> YamlError {
    let (name, above) = match path.steps() {
        [above @ .., Step::Field(name) | Step::Key(name)] => (name.as_str(), above),
        above => ("", above),
    };
    let holder = above.iter().try_fold(node, |node, step| node.at(step));
    let mark = holder.and_then(|holder| holder.mark_of_key(name)).unwrap_or(node.mark);
    let known = type_at(schema, id, above).map(|id| schema.get(id).fields.iter());
    let known = known.into_iter().flatten().map(|field| field.name.as_str());
    let problem = Problem::UnknownField {
        name: yaml::shortened(name),
        nearest: nearest(name, known).map(str::to_owned),
    };
    YamlError { mark, path: path.under(prefix), problem }
}

/// Returns the type of the structure at a path.
fn type_at(schema: &Schema, id: TypeId, path: &[Step]) -> Option<TypeId> {
    let top = Shape::Struct(id);
    let shape = path.iter().try_fold(&top, |shape, step| match (shape, step) {
        (Shape::Struct(id), Step::Field(name)) => Some(&schema.get(*id).field(name)?.shape),
        (Shape::List(item), Step::Index(_)) => Some(&**item),
        (Shape::Map(value), _) => Some(&**value),
        _ => None,
    })?;
    match shape {
        Shape::Struct(id) => Some(*id),
        _ => None,
    }
}

/// Returns the amounts of CPU that defaulting rounds up, with their paths.
fn roundings(pod: &Value) -> Vec<(FieldPath, String)> {
    let mut found = Vec::new();
    for field in ["initContainers", "containers"] {
        let containers = pod["spec"][field].as_array().into_iter().flatten();
        for (index, container) in containers.enumerate() {
            for side in Side::BOTH {
                let amounts = read_list(&container["resources"][side.field()]);
                let Some(cpu) = amounts.get(CPU) else { continue };
                let rounded = cpu.clone().round_up_to_milli();
                if rounded == *cpu {
                    continue;
                }
                let at = FieldPath::of("spec").child(field).index(index).child("resources");
                let path = at.child(side.field()).child(CPU);
                let message =
                    format!("{cpu} is finer than a thousandth of a CPU; rounded up to {rounded}");
                found.push((path, message));
            }
        }
    }
    found
}
