//! Pods from YAML trees: names checked, what is acted on read, the rest kept. Values are taken as
//! written; defaulting and validation come after.

use super::names::{
    CLASS_REQUEST, CONTAINER, OBJECT_META, POD_SECURITY_CONTEXT, POD_SPEC, RESOURCES,
    SECURITY_CONTEXT, WINDOWS_OPTIONS,
};
use super::{Container, ObjectMeta, OsName, Pod, PodSpec, RestartPolicy};
use crate::resources::{
    CPU, ClassName, ClassRequest, ClassResource, ResourceList, ResourceRequirements,
};
use crate::yaml::Problem;
use crate::yaml::read::{At, Findings, Object};

/// Reads `metadata` and `spec` of a pod or a pod template.
pub(crate) fn pod(object: &Object<'_>, findings: &mut Findings) -> Pod {
    let metadata = object.field("metadata").map(|at| metadata(&at, findings)).unwrap_or_default();
    let spec = object.field("spec").map(|at| spec(&at, findings)).unwrap_or_default();
    Pod { metadata, spec }
}

pub(crate) fn metadata(at: &At<'_>, findings: &mut Findings) -> ObjectMeta {
    let Some(object) = at.object(findings) else { return ObjectMeta::default() };
    object.refuse_unknown(OBJECT_META, findings);
    let mut text = |name| object.field(name).and_then(|at| at.text(findings)).unwrap_or_default();
    let (name, generate_name) = (text("name"), text("generateName"));
    let (namespace, uid) = (text("namespace"), text("uid"));
    let mut texts = |name| object.field(name).map(|at| at.text_map(findings)).unwrap_or_default();
    ObjectMeta {
        name,
        generate_name,
        namespace,
        uid,
        labels: texts("labels"),
        annotations: texts("annotations"),
        untyped: object.untyped(&[
            "name",
            "generateName",
            "namespace",
            "uid",
            "labels",
            "annotations",
        ]),
    }
}

fn spec(at: &At<'_>, findings: &mut Findings) -> PodSpec {
    let Some(object) = at.object(findings) else { return PodSpec::default() };
    object.refuse_unknown(POD_SPEC, findings);
    if let Some(at) = object.field("ephemeralContainers") {
        let known = [CONTAINER, &["targetContainerName"]].concat();
        for item in at.items(findings) {
            if let Some(container) = item.object(findings) {
                container.refuse_unknown(&known, findings);
            }
        }
    }
    let text = |name: &str, findings: &mut Findings| {
        object.field(name).and_then(|at| at.text(findings)).filter(|text| !text.is_empty())
    };
    PodSpec {
        init_containers: containers(&object, "initContainers", findings),
        containers: containers(&object, "containers", findings),
        resources: object.field("resources").map(|at| resources(&at, findings)),
        qos_resources: class_requests(&object, findings),
        overhead: object.field("overhead").map(|at| at.quantity_map(findings)).unwrap_or_default(),
        node_name: text("nodeName", findings),
        node_selector: object
            .field("nodeSelector")
            .map(|at| at.text_map(findings))
            .unwrap_or_default(),
        os: object.field("os").and_then(|at| os(&at, findings)),
        host_network: object
            .field("hostNetwork")
            .and_then(|at| at.boolean(findings))
            .unwrap_or(false),
        host_process: host_process(&object, POD_SECURITY_CONTEXT, findings),
        priority: object
            .field("priority")
            .and_then(|at| at.integer(i32::MIN.into(), i32::MAX.into(), findings))
            .and_then(|n| i32::try_from(n).ok()),
        priority_class_name: text("priorityClassName", findings),
        untyped: object.untyped(&[
            "initContainers",
            "containers",
            "resources",
            "qosResources",
            "overhead",
            "nodeName",
            "nodeSelector",
            "os",
            "hostNetwork",
            "priority",
            "priorityClassName",
        ]),
    }
}

fn containers(object: &Object<'_>, field: &str, findings: &mut Findings) -> Vec<Container> {
    let Some(at) = object.field(field) else { return Vec::new() };
    at.items(findings).iter().map(|item| container(item, findings)).collect()
}

fn container(at: &At<'_>, findings: &mut Findings) -> Container {
    let Some(object) = at.object(findings) else { return Container::default() };
    object.refuse_unknown(CONTAINER, findings);
    Container {
        name: object.field("name").and_then(|at| at.text(findings)).unwrap_or_default(),
        resources: object.field("resources").map(|at| resources(&at, findings)).unwrap_or_default(),
        restart_policy: object.field("restartPolicy").and_then(|at| restart_policy(&at, findings)),
        host_process: host_process(&object, SECURITY_CONTEXT, findings),
        untyped: object.untyped(&["name", "resources", "restartPolicy"]),
    }
}

fn resources(at: &At<'_>, findings: &mut Findings) -> ResourceRequirements {
    let Some(object) = at.object(findings) else { return ResourceRequirements::default() };
    object.refuse_unknown(RESOURCES, findings);
    let mut list = |name| {
        let Some(at) = object.field(name) else { return ResourceList::new() };
        let list = at.quantity_map(findings);
        warn_of_rounding(&at, &list, findings);
        list
    };
    ResourceRequirements {
        requests: list("requests"),
        limits: list("limits"),
        qos_resources: class_requests(&object, findings),
        untyped: object.untyped(&["requests", "limits", "qosResources"]),
    }
}

/// Defaulting rounds amounts up to a thousandth; for CPUs that is worth knowing.
fn warn_of_rounding(at: &At<'_>, list: &ResourceList, findings: &mut Findings) {
    let Some(cpu) = list.get(CPU) else { return };
    let rounded = cpu.clone().round_up_to_milli();
    if rounded == *cpu {
        return;
    }
    if let Some(at) = at.object(findings).and_then(|object| object.field(CPU)) {
        let message = format!("{cpu} is finer than a thousandth of a CPU; rounded up to {rounded}");
        at.warn(message, findings);
    }
}

fn class_requests(object: &Object<'_>, findings: &mut Findings) -> Vec<ClassRequest> {
    let Some(at) = object.field("qosResources") else { return Vec::new() };
    let mut requests = Vec::new();
    for item in at.items(findings) {
        let Some(object) = item.object(findings) else { continue };
        object.refuse_unknown(CLASS_REQUEST, findings);
        let mut text =
            |name| object.field(name).and_then(|at| at.text(findings)).unwrap_or_default();
        requests.push(ClassRequest {
            resource: ClassResource(text("name")),
            class: ClassName(text("class")),
        });
    }
    requests
}

fn os(at: &At<'_>, findings: &mut Findings) -> Option<OsName> {
    let object = at.object(findings)?;
    object.refuse_unknown(&["name"], findings);
    let name = object.field("name")?;
    match name.text(findings)?.as_str() {
        "linux" => Some(OsName::Linux),
        "windows" => Some(OsName::Windows),
        other => {
            not_supported(&name, other, &["linux", "windows"], findings);
            None
        }
    }
}

fn restart_policy(at: &At<'_>, findings: &mut Findings) -> Option<RestartPolicy> {
    match at.text(findings)?.as_str() {
        "Always" => Some(RestartPolicy::Always),
        "OnFailure" => Some(RestartPolicy::OnFailure),
        "Never" => Some(RestartPolicy::Never),
        other => {
            not_supported(at, other, &["Always", "OnFailure", "Never"], findings);
            None
        }
    }
}

fn not_supported(at: &At<'_>, value: &str, supported: &[&str], findings: &mut Findings) {
    findings.errors.push(at.problem(Problem::Field(crate::field::FieldProblem::NotSupported {
        value: value.to_owned(),
        supported: supported.iter().map(|&s| s.to_owned()).collect(),
    })));
}

fn host_process(object: &Object<'_>, known: &[&str], findings: &mut Findings) -> Option<bool> {
    let context = object.field("securityContext")?;
    let context = context.object(findings)?;
    context.refuse_unknown(known, findings);
    let options = context.field("windowsOptions")?;
    let options = options.object(findings)?;
    options.refuse_unknown(WINDOWS_OPTIONS, findings);
    options.field("hostProcess")?.boolean(findings)
}
