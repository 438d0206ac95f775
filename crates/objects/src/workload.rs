//! Input of the planner: pods and the kinds that create pods.
//!
//! Main type: [`Workload`]; entry: [`read`], from a YAML or JSON text to workloads, or to every
//! mistake in it with its place. Pods and templates are decoded, defaulted and validated as the API
//! server does it. Objects of other kinds are skipped and named. The caller decides how many nodes a
//! `DaemonSet` runs on.

use std::fmt;
use std::sync::Arc;

use self::pod::Position;
use crate::catalog;
use crate::field::{FieldError, FieldPath};
use crate::rules::names;
use crate::schema::{Schema, Shape, TypeId};
use crate::suggest::nearest;
use crate::types::Pod;
use crate::yaml::read::{At, Findings, Object};
use crate::yaml::{self, Mark, Node, Problem, YamlError};

mod pod;

/// A kind that is a pod or makes pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum WorkloadKind {
    Pod,
    Deployment,
    ReplicaSet,
    StatefulSet,
    DaemonSet,
    Job,
    CronJob,
    ReplicationController,
}

impl WorkloadKind {
    const ALL: [WorkloadKind; 8] = [
        WorkloadKind::Pod,
        WorkloadKind::Deployment,
        WorkloadKind::ReplicaSet,
        WorkloadKind::StatefulSet,
        WorkloadKind::DaemonSet,
        WorkloadKind::Job,
        WorkloadKind::CronJob,
        WorkloadKind::ReplicationController,
    ];

    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            WorkloadKind::Pod => "Pod",
            WorkloadKind::Deployment => "Deployment",
            WorkloadKind::ReplicaSet => "ReplicaSet",
            WorkloadKind::StatefulSet => "StatefulSet",
            WorkloadKind::DaemonSet => "DaemonSet",
            WorkloadKind::Job => "Job",
            WorkloadKind::CronJob => "CronJob",
            WorkloadKind::ReplicationController => "ReplicationController",
        }
    }

    /// The API group and version the kind is served in.
    #[must_use]
    pub fn api_version(self) -> &'static str {
        match self {
            WorkloadKind::Pod | WorkloadKind::ReplicationController => "v1",
            WorkloadKind::Job | WorkloadKind::CronJob => "batch/v1",
            _ => "apps/v1",
        }
    }

    /// Returns the field names of `spec`: those of the schema, where the API server serves the kind.
    fn spec_names(self) -> Vec<&'static str> {
        let own: &[&str] = match self {
            WorkloadKind::StatefulSet => &[
                "minReadySeconds",
                "ordinals",
                "persistentVolumeClaimRetentionPolicy",
                "podManagementPolicy",
                "replicas",
                "revisionHistoryLimit",
                "selector",
                "serviceName",
                "template",
                "updateStrategy",
                "volumeClaimTemplates",
            ],
            WorkloadKind::ReplicationController => {
                &["minReadySeconds", "replicas", "selector", "template"]
            }
            WorkloadKind::CronJob => &[
                "concurrencyPolicy",
                "failedJobsHistoryLimit",
                "jobTemplate",
                "schedule",
                "startingDeadlineSeconds",
                "successfulJobsHistoryLimit",
                "suspend",
                "timeZone",
            ],
            served => return served.served_spec_names(),
        };
        own.to_vec()
    }

    fn served_spec_names(self) -> Vec<&'static str> {
        let schema = Schema::served();
        let resource = catalog::of_kind(self.api_version(), self.name());
        let kind = resource.and_then(|resource| resource.type_id(schema));
        let spec = kind.and_then(|id| schema.get(id).field("spec"));
        match spec.map(|field| &field.shape) {
            Some(Shape::Struct(id)) => field_names(*id),
            _ => Vec::new(),
        }
    }
}

impl fmt::Display for WorkloadKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// How many pods a workload runs at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Replicas {
    Count(u32),
    /// One on every node that takes it.
    PerNode,
}

/// Pods that are alike, and what makes them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Workload {
    pub kind: WorkloadKind,
    pub name: String,
    pub namespace: String,
    pub replicas: Replicas,
    /// The number of the first pod; a stateful set may not begin at zero.
    pub first_ordinal: u32,
    /// Defaults are set. The metadata of a template has no name; see [`Workload::pod_name`].
    pub template: Arc<Pod>,
    /// Where the object begins in its text.
    pub mark: Mark,
}

impl Workload {
    /// A stable name for the workload's pod number `index`, counted from zero.
    #[must_use]
    pub fn pod_name(&self, index: u32) -> String {
        match self.kind {
            WorkloadKind::Pod => self.name.clone(),
            _ => format!("{}-{}", self.name, u64::from(self.first_ordinal) + u64::from(index)),
        }
    }
}

/// An object that runs no pods: one of another kind, or a pod that has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Skipped {
    pub mark: Mark,
    pub kind: String,
    pub name: String,
    /// Why it runs no pods.
    pub why: &'static str,
}

impl fmt::Display for Skipped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} {:?} skipped: {}", self.mark, self.kind, self.name, self.why)
    }
}

/// A text's workloads.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Manifest {
    pub workloads: Vec<Workload>,
    pub skipped: Vec<Skipped>,
    pub warnings: Vec<YamlError>,
}

/// Reads all workloads of a YAML or JSON text, or gives all that is wrong with it.
pub fn read(text: &str) -> Result<Manifest, Vec<YamlError>> {
    let (documents, errors) = yaml::parse(text);
    let mut reading = Reading::default();
    reading.findings.errors = errors;
    for document in &documents {
        reading.object(document, &At::root(document), true);
    }
    let Reading { mut manifest, findings } = reading;
    let findings = findings.sorted();
    if !findings.errors.is_empty() {
        return Err(findings.errors);
    }
    manifest.warnings = findings.warnings;
    Ok(manifest)
}

#[derive(Default)]
struct Reading {
    manifest: Manifest,
    findings: Findings,
}

impl Reading {
    fn object(&mut self, document: &Node, at: &At<'_>, lists_allowed: bool) {
        let findings = &mut self.findings;
        let Some(object) = at.object(findings) else { return };
        let Some(kind) = required_text(&object, "kind", findings) else { return };
        let Some(version) = required_text(&object, "apiVersion", findings) else { return };
        if kind.ends_with("List") && object.field("items").is_some() {
            if lists_allowed {
                self.list(document, &object);
            } else {
                at.error("a list inside a list", findings);
            }
            return;
        }
        let group = version.rsplit_once('/').map_or("", |(group, _)| group);
        let known = WorkloadKind::ALL.into_iter().find(|known| {
            let known_group = known.api_version().rsplit_once('/').map_or("", |(group, _)| group);
            known.name() == kind && known_group == group
        });
        if let Some(known) = known {
            if version != known.api_version() {
                let message =
                    format!("{version:?} is no longer served; read as {:?}", known.api_version());
                if let Some(at) = object.field("apiVersion") {
                    at.warn(message, findings);
                }
            }
            let status = object.field("status").filter(|_| known == WorkloadKind::Pod);
            let phase = status.and_then(|at| at.node.get_text("phase"));
            if matches!(phase, Some("Succeeded" | "Failed")) {
                self.skip(&object, kind, "it has ended");
                return;
            }
            self.workload(document, &object, known);
        } else {
            self.other(&object, kind, &version);
        }
    }

    fn list(&mut self, document: &Node, object: &Object<'_>) {
        object.refuse_unknown(&["apiVersion", "items", "kind", "metadata"], &mut self.findings);
        let Some(items) = object.field("items") else { return };
        for item in items.items(&mut self.findings) {
            self.object(document, &item, false);
        }
    }

    /// An object of another kind: skipped, unless it looks like a slip.
    fn other(&mut self, object: &Object<'_>, kind: String, version: &str) {
        let names = WorkloadKind::ALL.map(WorkloadKind::name);
        if let Some(wanted) = WorkloadKind::ALL.into_iter().find(|known| known.name() == kind)
            && !version.contains('.')
        {
            let message = format!("{kind} is in {:?}, found {version:?}", wanted.api_version());
            if let Some(at) = object.field("apiVersion") {
                at.error(message, &mut self.findings);
            }
        } else if !version.contains('.')
            && let Some(meant) = nearest(&kind, names)
            && let Some(at) = object.field("kind")
        {
            at.error(format!("unknown kind {kind:?}; did you mean {meant:?}?"), &mut self.findings);
        } else {
            self.skip(object, kind, "it runs no pods");
        }
    }

    fn skip(&mut self, object: &Object<'_>, kind: String, why: &'static str) {
        let metadata = object.field("metadata");
        let name = metadata.and_then(|at| at.node.get_text("name")).unwrap_or_default().to_owned();
        self.manifest.skipped.push(Skipped { mark: object.mark(), kind, name, why });
    }

    fn workload(&mut self, document: &Node, object: &Object<'_>, kind: WorkloadKind) {
        let findings = &mut self.findings;
        let prefix = object.at.path();
        let made = if kind == WorkloadKind::Pod {
            let position = Position { document, prefix: &prefix };
            let pod = pod::read(object.at.node, false, position, findings);
            pod.map(|pod| Made { replicas: Replicas::Count(1), first_ordinal: 0, pod })
        } else {
            object.refuse_unknown(OBJECT, findings);
            let metadata = object.field("metadata");
            if let Some(metadata) = metadata.as_ref().and_then(|at| at.object(findings)) {
                let names = Schema::served().find(METADATA).map(field_names).unwrap_or_default();
                metadata.refuse_unknown(&names, findings);
            }
            let mut problems = name_problems(object);
            let made = made(document, object, kind, &mut problems, findings);
            findings.locate(document, &prefix, problems);
            made
        };
        let Some(Made { replicas, first_ordinal, pod }) = made else { return };
        let metadata = object.at.node.get("metadata");
        let text = |field| metadata.and_then(|metadata| metadata.get_text(field));
        let text = |field| text(field).filter(|text| !text.is_empty());
        self.manifest.workloads.push(Workload {
            kind,
            name: text("name").or(text("generateName")).unwrap_or_default().to_owned(),
            namespace: text("namespace").unwrap_or("default").to_owned(),
            replicas,
            first_ordinal,
            template: Arc::new(pod),
            mark: object.mark(),
        });
    }
}

const OBJECT: &[&str] = &["apiVersion", "kind", "metadata", "spec", "status"];
const TEMPLATE: &[&str] = &["metadata", "spec"];
const METADATA: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";

fn field_names(id: TypeId) -> Vec<&'static str> {
    Schema::served().get(id).fields.iter().map(|field| field.name.as_str()).collect()
}

/// Returns the errors in the name and the namespace of a workload.
fn name_problems(object: &Object<'_>) -> Vec<FieldError> {
    let metadata = object.at.node.get("metadata");
    let text = |field| metadata.and_then(|metadata| metadata.get_text(field)).unwrap_or_default();
    let path = FieldPath::of("metadata");
    if text("name").is_empty() && text("generateName").is_empty() {
        let detail = "name or generateName is required";
        return vec![FieldError::required(path.child("name"), detail)];
    }
    let check = |field: &'static str, check: fn(&str) -> names::Problems| {
        let given = Some(text(field)).filter(|text| !text.is_empty());
        let problems = given.map(check).unwrap_or_default().into_iter();
        let invalid = |problem| FieldError::invalid(path.child(field), text(field), problem);
        problems.map(invalid).collect::<Vec<_>>()
    };
    [check("name", names::dns_subdomain), check("namespace", names::dns_label)].concat()
}

/// The pods that a workload's `spec` creates.
struct Made {
    replicas: Replicas,
    first_ordinal: u32,
    pod: Pod,
}

fn made(
    document: &Node,
    object: &Object<'_>,
    kind: WorkloadKind,
    problems: &mut Vec<FieldError>,
    findings: &mut Findings,
) -> Option<Made> {
    let path = FieldPath::of("spec");
    let Some(at) = object.field("spec") else {
        problems.push(FieldError::required(path, ""));
        return None;
    };
    let spec = at.object(findings)?;
    spec.refuse_unknown(&kind.spec_names(), findings);
    if kind != WorkloadKind::CronJob {
        return templated(document, &spec, kind, &path, problems, findings);
    }
    let suspended = suspended(&spec, findings);
    let path = path.child("jobTemplate");
    let Some(template) = spec.field("jobTemplate") else {
        problems.push(FieldError::required(path, ""));
        return None;
    };
    let template = template.object(findings)?;
    template.refuse_unknown(TEMPLATE, findings);
    let path = path.child("spec");
    let Some(at) = template.field("spec") else {
        problems.push(FieldError::required(path, ""));
        return None;
    };
    let job = at.object(findings)?;
    job.refuse_unknown(&WorkloadKind::Job.spec_names(), findings);
    let mut made = templated(document, &job, WorkloadKind::Job, &path, problems, findings)?;
    if suspended {
        made.replicas = Replicas::Count(0);
    }
    Some(made)
}

/// The pods of a `spec` that has a pod template.
fn templated(
    document: &Node,
    spec: &Object<'_>,
    kind: WorkloadKind,
    path: &FieldPath,
    problems: &mut Vec<FieldError>,
    findings: &mut Findings,
) -> Option<Made> {
    let replicas = match kind {
        WorkloadKind::DaemonSet => Replicas::PerNode,
        WorkloadKind::Job => Replicas::Count(running_at_once(spec, findings)),
        _ => Replicas::Count(count(spec, "replicas", findings).unwrap_or(1)),
    };
    let first_ordinal = spec
        .field("ordinals")
        .filter(|_| kind == WorkloadKind::StatefulSet)
        .and_then(|at| {
            let ordinals = at.object(findings)?;
            ordinals.refuse_unknown(&["start"], findings);
            count(&ordinals, "start", findings)
        })
        .unwrap_or(0);
    let Some(template) = spec.field("template") else {
        problems.push(FieldError::required(path.child("template"), ""));
        return None;
    };
    template.object(findings)?;
    let position = Position { document, prefix: &template.path() };
    let pod = pod::read(template.node, true, position, findings)?;
    Some(Made { replicas, first_ordinal, pod })
}

/// The most pods a job runs at a time.
fn running_at_once(spec: &Object<'_>, findings: &mut Findings) -> u32 {
    let parallelism = count(spec, "parallelism", findings).unwrap_or(1);
    let completions = count(spec, "completions", findings).unwrap_or(u32::MAX);
    if suspended(spec, findings) { 0 } else { parallelism.min(completions) }
}

fn suspended(spec: &Object<'_>, findings: &mut Findings) -> bool {
    let Some(at) = spec.field("suspend") else { return false };
    let suspended = at.boolean(findings) == Some(true);
    if suspended {
        at.warn("suspended: counted as running no pods", findings);
    }
    suspended
}

fn count(spec: &Object<'_>, field: &str, findings: &mut Findings) -> Option<u32> {
    let number = spec.field(field)?.integer(0, i32::MAX.into(), findings)?;
    u32::try_from(number).ok()
}

fn required_text(object: &Object<'_>, field: &str, findings: &mut Findings) -> Option<String> {
    let Some(at) = object.field(field) else {
        findings.errors.push(YamlError {
            mark: object.mark(),
            path: object.at.path().child(field),
            problem: Problem::Other("missing; every Kubernetes object has one".to_owned()),
        });
        return None;
    };
    at.text(findings)
}

#[cfg(test)]
mod tests;
