//! Containers: the rules that all types of containers share, and what init, ordinary and ephemeral
//! ones may not have.

use std::collections::BTreeSet;

use serde_json::Value;

use super::super::names;
use super::volumes::KnownVolumes;
use super::{Scope, env, handlers, resources, security};
use crate::cursor::{Causes, Cursor};
use crate::pod::is_sidecar;

const EPHEMERAL: &str = "cannot be set for an Ephemeral Container";
const NOT_FOR_INIT: &str = "may not be set for init containers without restartPolicy=Always";
/// The resize policy that restarts a container.
const RESTART: &str = "RestartContainer";
const MOST_RESTART_RULES: usize = 20;
const MOST_EXIT_CODES: usize = 255;

/// The properties of the pod that the rules of containers need.
pub(super) struct PodContext<'a> {
    pub(super) volumes: &'a KnownVolumes<'a>,
    pub(super) claims: BTreeSet<&'a str>,
    pub(super) restart_policy: &'a str,
    /// `None` if it is not given, which is reported elsewhere.
    pub(super) grace_seconds: Option<i64>,
    pub(super) host_users: bool,
    pub(super) os: Option<&'a str>,
    pub(super) scope: Scope,
}

pub(super) fn validate(
    spec: &Cursor<'_>,
    volumes: &KnownVolumes<'_>,
    scope: Scope,
    causes: &mut Causes,
) {
    let claims = spec.field("resourceClaims");
    let os = spec.field("os");
    let pod = PodContext {
        volumes,
        claims: claims
            .items()
            .map(|claim| claim.field("name").text())
            .filter(|name| !name.is_empty())
            .collect(),
        restart_policy: spec.field("restartPolicy").text(),
        grace_seconds: spec.field("terminationGracePeriodSeconds").int(),
        host_users: spec.field("hostUsers").bool() != Some(false),
        os: os.is_set().then(|| os.field("name").text()),
        scope,
    };
    let containers = spec.field("containers");
    let mut names = BTreeSet::new();
    validate_ordinary(&containers, &mut names, &pod, causes);
    let init = spec.field("initContainers");
    validate_init(&init, &mut names, &pod, causes);
    validate_ephemeral(&spec.field("ephemeralContainers"), &names, &pod, causes);
}

fn validate_ordinary<'a>(
    containers: &Cursor<'a>,
    names: &mut BTreeSet<&'a str>,
    pod: &PodContext<'_>,
    causes: &mut Causes,
) {
    if containers.is_empty() {
        return causes.required(containers, "");
    }
    for container in containers.items() {
        validate_common(&container, pod, causes);
        let name = container.field("name");
        if !names.insert(name.text()) {
            causes.duplicate(&name);
        }
        handlers::validate_lifecycle(&container.field("lifecycle"), pod, causes);
        handlers::validate_probes(&container, pod, causes);
        validate_restart_policy(&container, causes);
    }
    let mut ports = BTreeSet::new();
    for container in containers.items() {
        check_host_ports(&container, &container, &mut ports, causes);
    }
}

fn validate_init<'a>(
    containers: &Cursor<'a>,
    names: &mut BTreeSet<&'a str>,
    pod: &PodContext<'_>,
    causes: &mut Causes,
) {
    for container in containers.items() {
        validate_common(&container, pod, causes);
        validate_restart_policy(&container, causes);
        let name = container.field("name");
        if !name.text().is_empty() && !names.insert(name.text()) {
            causes.duplicate(&name);
        }
        // Init containers run one by one, so each is checked alone; upstream's message always names
        // the first.
        let first = containers.index(0);
        check_host_ports(&container, &first, &mut BTreeSet::new(), causes);
        if is_sidecar(container.value()) {
            handlers::validate_lifecycle(&container.field("lifecycle"), pod, causes);
            handlers::validate_probes(&container, pod, causes);
        } else {
            for field in ["lifecycle", "livenessProbe", "readinessProbe", "startupProbe"] {
                let at = container.field(field);
                if at.is_set() {
                    causes.forbidden(&at, NOT_FOR_INIT);
                }
            }
            if !pod.scope.init_restarts {
                validate_no_restarts(&container.field("resizePolicy"), causes);
            }
        }
    }
}

/// A container that runs once is not restarted for a resize.
fn validate_no_restarts(policies: &Cursor<'_>, causes: &mut Causes) {
    for policy in policies.items() {
        let restart = policy.field("restartPolicy");
        if restart.text() == RESTART {
            let detail = "must not be set to 'RestartContainer' for non-sidecar initContainers";
            causes.invalid(&restart, detail);
        }
    }
}

/// Reports whether an init container that is not a sidecar has a resize policy with a restart.
pub(super) fn has_init_restarts(spec: &Value) -> bool {
    let init = spec.get("initContainers").and_then(Value::as_array).into_iter().flatten();
    init.filter(|container| !is_sidecar(container))
        .filter_map(|container| container.get("resizePolicy")?.as_array())
        .flatten()
        .any(|policy| policy.get("restartPolicy").and_then(Value::as_str) == Some(RESTART))
}

fn validate_ephemeral(
    containers: &Cursor<'_>,
    others: &BTreeSet<&str>,
    pod: &PodContext<'_>,
    causes: &mut Causes,
) {
    let mut names = BTreeSet::new();
    for container in containers.items() {
        validate_common(&container, pod, causes);
        validate_image_of_pod(&container, causes);
        let name = container.field("name");
        if others.contains(name.text()) || !names.insert(name.text()) {
            causes.duplicate(&name);
        }
        let target = container.field("targetContainerName");
        if !target.text().is_empty() && !others.contains(target.text()) {
            causes.not_found(&target);
        }
        for field in [
            "ports",
            "resources",
            "resizePolicy",
            "restartPolicy",
            "restartPolicyRules",
            "livenessProbe",
            "readinessProbe",
            "startupProbe",
            "lifecycle",
        ] {
            let at = container.field(field);
            let given = match field {
                "resources" => !at.is_empty(),
                _ => at.is_set(),
            };
            if given {
                causes.forbidden(&at, EPHEMERAL);
            }
        }
        let mounts = container.field("volumeMounts");
        for mount in mounts.items() {
            for field in ["subPath", "subPathExpr"] {
                let at = mount.field(field);
                if !at.text().is_empty() {
                    causes.forbidden(&at, EPHEMERAL);
                }
            }
        }
    }
}

fn validate_common(container: &Cursor<'_>, pod: &PodContext<'_>, causes: &mut Causes) {
    let name = container.field("name");
    match name.text() {
        "" => causes.required(&name, ""),
        text => names::report(causes, &name, &names::dns_label(text)),
    }
    let image = container.field("image");
    if image.text().is_empty() {
        causes.required(&image, "");
    }
    let policy = container.field("terminationMessagePolicy");
    match policy.text() {
        "File" | "FallbackToLogsOnError" => {}
        "" => causes.required(&policy, ""),
        _ => causes.not_supported(&policy, &["File", "FallbackToLogsOnError"]),
    }
    validate_ports(&container.field("ports"), causes);
    env::validate(&container.field("env"), causes);
    env::validate_from(&container.field("envFrom"), causes);
    env::validate_mounts(container, pod.volumes, causes);
    env::validate_devices(container, pod.volumes, causes);
    validate_pull_policy(&container.field("imagePullPolicy"), causes);
    resources::validate_of_container(&container.field("resources"), pod, causes);
    validate_resize_policies(&container.field("resizePolicy"), pod, causes);
    let context = container.field("securityContext");
    security::validate_context(&context, pod, causes);
}

pub(super) fn validate_pull_policy(policy: &Cursor<'_>, causes: &mut Causes) {
    match policy.text() {
        "Always" | "IfNotPresent" | "Never" => {}
        "" => causes.required(policy, ""),
        _ => causes.not_supported(policy, &["Always", "IfNotPresent", "Never"]),
    }
}

/// Checks that the image of a pod, but not of a template, has no leading or trailing blanks.
pub(super) fn validate_image_of_pod(container: &Cursor<'_>, causes: &mut Causes) {
    let image = container.field("image");
    if image.text().trim().len() != image.text().len() {
        causes.invalid(&image, "must not have leading or trailing whitespace");
    }
}

fn validate_ports(ports: &Cursor<'_>, causes: &mut Causes) {
    let mut seen = BTreeSet::new();
    for port in ports.items() {
        let name = port.field("name");
        if !name.text().is_empty() {
            let problems = names::port_name(name.text());
            names::report(causes, &name, &problems);
            if problems.is_empty() && !seen.insert(name.text()) {
                causes.duplicate(&name);
            }
        }
        let number = port.field("containerPort");
        match number.int() {
            None | Some(0) => causes.required(&number, ""),
            Some(_) => validate_port_number(&number, causes),
        }
        let host = port.field("hostPort");
        if host.int().is_some_and(|number| number != 0) {
            validate_port_number(&host, causes);
        }
        let protocol = port.field("protocol");
        match protocol.text() {
            "SCTP" | "TCP" | "UDP" => {}
            "" => causes.required(&protocol, ""),
            _ => causes.not_supported(&protocol, &["SCTP", "TCP", "UDP"]),
        }
    }
}

pub(super) fn validate_port_number(port: &Cursor<'_>, causes: &mut Causes) {
    if !(1..=65_535).contains(&port.int().unwrap_or(0)) {
        let shown = port.int().unwrap_or(0);
        causes.invalid_as(port, shown, "must be between 1 and 65535, inclusive");
    }
}

fn check_host_ports<'a>(
    container: &Cursor<'a>,
    reported_as: &Cursor<'_>,
    taken: &mut BTreeSet<(&'a str, &'a str, i64)>,
    causes: &mut Causes,
) {
    let ports = container.field("ports");
    let places = reported_as.field("ports");
    for (at, port) in ports.items().enumerate() {
        let number = port.field("hostPort").int().unwrap_or(0);
        let (protocol, ip) = (port.field("protocol").text(), port.field("hostIP").text());
        if number != 0 && !taken.insert((protocol, ip, number)) {
            let place = places.index(at);
            let shown = format!("{protocol}/{ip}/{number}");
            causes.duplicate_as(&place.field("hostPort"), shown.as_str());
        }
    }
}

fn validate_restart_policy(container: &Cursor<'_>, causes: &mut Causes) {
    let policy = container.field("restartPolicy");
    let rules = container.field("restartPolicyRules");
    if !policy.is_set() {
        if !rules.is_empty() {
            causes.required(&policy, "must specify restartPolicy when restart rules are used");
        }
    } else if !matches!(policy.text(), "Always" | "Never" | "OnFailure") {
        causes.not_supported(&policy, &["Always", "Never", "OnFailure"]);
    }
    if rules.len() > MOST_RESTART_RULES {
        causes.too_many(&rules, MOST_RESTART_RULES);
    }
    for rule in rules.items() {
        let action = rule.field("action");
        if !matches!(action.text(), "Restart" | "RestartAllContainers") {
            let supported = ["Restart", "RestartAllContainers"];
            causes.not_supported_as(&action, action.text(), &supported);
        }
        let codes = rule.field("exitCodes");
        if !codes.is_set() {
            causes.required(&codes, "must be specified");
            continue;
        }
        let operator = codes.field("operator");
        if !matches!(operator.text(), "In" | "NotIn") {
            causes.not_supported_as(&operator, operator.text(), &["In", "NotIn"]);
        }
        let values = codes.field("values");
        if values.len() > MOST_EXIT_CODES {
            causes.too_many(&values, MOST_EXIT_CODES);
        }
    }
}

fn validate_resize_policies(policies: &Cursor<'_>, pod: &PodContext<'_>, causes: &mut Causes) {
    let mut seen = BTreeSet::new();
    for policy in policies.items() {
        let resource = policy.field("resourceName").text();
        if !seen.insert(resource) {
            causes.duplicate_as(&policy, resource);
        }
        match resource {
            "cpu" | "memory" => {}
            "" => causes.required(policies, ""),
            _ => causes.not_supported_as(policies, resource, &["cpu", "memory"]),
        }
        let restart = policy.field("restartPolicy").text();
        match restart {
            "NotRequired" | "RestartContainer" => {}
            "" => causes.required(policies, ""),
            _ => {
                let supported = ["NotRequired", "RestartContainer"];
                causes.not_supported_as(policies, restart, &supported);
            }
        }
        if pod.restart_policy == "Never" && restart != "NotRequired" {
            let detail = "must be 'NotRequired' when pod `restartPolicy` is 'Never'";
            causes.invalid_as(policies, restart, detail);
        }
    }
}
