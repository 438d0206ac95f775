//! Validation of a pod's spec as a whole: the order of the checks, and fields that have no file of
//! their own.

use std::collections::BTreeSet;

use serde_json::Value;

use super::super::{meta, names};
use super::{
    META, Scope, annotations, class_resources, containers, env, for_each_container, resources,
    scheduling, security, volumes,
};
use crate::cursor::{Causes, Cursor};

const MOST_NAME_SERVERS: usize = 3;
const MOST_SEARCH_PATHS: usize = 32;
const MOST_SEARCH_CHARACTERS: usize = 2048;

/// The longest `hostnameOverride`.
const HOSTNAME_OVERRIDE_LIMIT: usize = 64;

/// Validates everything but the metadata, on create and on update.
pub(super) fn validate_pod(pod: &Cursor<'_>, scope: Scope, causes: &mut Causes) {
    let (meta, spec) = (pod.field("metadata"), pod.field("spec"));
    meta::validate(&meta, META, causes);
    annotations::validate(&meta.field("annotations"), &spec, scope, causes);
    validate(&spec, &meta, scope, causes);
    if spec.field("serviceAccountName").text().is_empty() {
        let volumes = spec.field("volumes");
        for volume in volumes.items() {
            let projected = volume.field("projected");
            let sources = projected.field("sources");
            for source in sources.items() {
                let token = source.field("serviceAccountToken");
                if token.is_set() {
                    let detail = "must not be specified when serviceAccountName is not set";
                    causes.forbidden(&token, detail);
                }
            }
        }
    }
    for list in ["containers", "initContainers"] {
        let list = spec.field(list);
        for container in list.items() {
            containers::validate_image_of_pod(&container, causes);
        }
    }
}

pub(super) fn validate_only_on_create(pod: &Cursor<'_>, causes: &mut Causes) {
    let spec = pod.field("spec");
    let ephemeral = spec.field("ephemeralContainers");
    if !ephemeral.is_empty() {
        causes.forbidden(&ephemeral, "cannot be set on create");
    }
    let node = spec.field("nodeName");
    if !node.text().is_empty() && !spec.field("schedulingGates").is_empty() {
        causes.forbidden(&node, "cannot be set until all schedulingGates have been cleared");
    }
    let meta = pod.field("metadata");
    annotations::validate_agreement(&meta.field("annotations"), &spec, causes);
}

/// Validates a template: its labels and annotations, and the spec.
pub(super) fn validate_template(template: &Cursor<'_>, scope: Scope, causes: &mut Causes) {
    let meta = template.field("metadata");
    let none = Value::Null;
    meta::validate_labels(&template.field("labels").at_value(meta.field("labels").value()), causes);
    let at = template.field("annotations").at_value(meta.field("annotations").value());
    meta::validate_annotations(&at, causes);
    let spec = template.field("spec");
    annotations::validate(&at, &spec, scope, causes);
    validate(&spec, &Cursor::top(&none, ""), scope, causes);
    annotations::validate_agreement(&at, &spec, causes);
    let ephemeral = spec.field("ephemeralContainers");
    if !ephemeral.is_empty() {
        causes.forbidden(&ephemeral, "ephemeral containers not allowed in pod template");
    }
}

fn validate(spec: &Cursor<'_>, meta: &Cursor<'_>, scope: Scope, causes: &mut Causes) {
    let grace = spec.field("terminationGracePeriodSeconds");
    if !grace.is_set() {
        causes.required(&grace, "");
    }
    let known = volumes::validate(&spec.field("volumes"), meta, scope, causes);
    let is_mirror = meta.field("annotations").key(annotations::MIRROR).is_set();
    resources::validate_pod_claims(&spec.field("resourceClaims"), is_mirror, causes);
    containers::validate(spec, &known, scope, causes);
    resources::validate_pod_level(spec, scope, causes);
    class_resources::validate(&spec.field("qosResources"), scope.class_resources, causes);
    validate_host_ports(spec, scope, causes);
    one_of(spec, "restartPolicy", &["Always", "OnFailure", "Never"], causes);
    let policies = ["ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"];
    one_of(spec, "dnsPolicy", &policies, causes);
    meta::validate_labels(&spec.field("nodeSelector"), causes);
    security::validate_pod_context(spec, scope, causes);
    scheduling::validate_affinity(&spec.field("affinity"), scope, causes);
    validate_dns(spec, scope, causes);
    validate_gates(spec, causes);
    scheduling::validate_spread(&spec.field("topologySpreadConstraints"), scope, causes);
    security::validate_host_process(spec, scope, causes);
    security::validate_host_users(spec, scope, causes);
    validate_hostname_override(spec, causes);
    dns_name(spec, "serviceAccountName", causes);
    dns_name(spec, "nodeName", causes);
    let deadline = spec.field("activeDeadlineSeconds");
    if deadline.int().is_some_and(|seconds| !(1..=i64::from(i32::MAX)).contains(&seconds)) {
        causes.invalid(&deadline, "must be between 1 and 2147483647, inclusive");
    }
    for field in ["hostname", "subdomain"] {
        let at = spec.field(field);
        if !at.text().is_empty() {
            names::report(causes, &at, &names::dns_label(at.text()));
        }
    }
    scheduling::validate_tolerations(
        &spec.field("tolerations"),
        scope.comparing_tolerations,
        causes,
    );
    validate_host_aliases(&spec.field("hostAliases"), scope, causes);
    dns_name(spec, "priorityClassName", causes);
    let class = spec.field("runtimeClassName");
    if class.is_set() {
        names::report(causes, &class, &names::dns_subdomain(class.text()));
    }
    let preemption = spec.field("preemptionPolicy");
    if preemption.is_set() {
        match preemption.text() {
            "PreemptLowerPriority" | "Never" => {}
            "" => causes.required(&preemption, ""),
            _ => causes.not_supported(&preemption, &["PreemptLowerPriority", "Never"]),
        }
    }
    resources::validate_overhead(&spec.field("overhead"), scope, causes);
    validate_os(spec, causes);
    env::validate_file_volumes(spec, causes);
}

fn dns_name(spec: &Cursor<'_>, field: &str, causes: &mut Causes) {
    let at = spec.field(field);
    if !at.text().is_empty() {
        names::report(causes, &at, &names::dns_subdomain(at.text()));
    }
}

fn one_of(holder: &Cursor<'_>, field: &str, allowed: &[&str], causes: &mut Causes) {
    let at = holder.field(field);
    match at.text() {
        "" => causes.required(&at, ""),
        text if allowed.contains(&text) => {}
        _ => causes.not_supported(&at, allowed),
    }
}

fn validate_host_ports(spec: &Cursor<'_>, scope: Scope, causes: &mut Causes) {
    if !spec.field("hostNetwork").is_true() {
        return;
    }
    let containers = spec.field("containers");
    for container in containers.items() {
        let ports = container.field("ports");
        for port in ports.items() {
            let host = port.field("hostPort");
            let number = host.int().unwrap_or(0);
            let wanted = port.field("containerPort").int().unwrap_or(0);
            if (scope.is_pod || number != 0) && number != wanted {
                let detail = "must match `containerPort` when `hostNetwork` is true";
                causes.invalid_as(&host, number, detail);
            }
        }
    }
}

fn validate_dns(spec: &Cursor<'_>, scope: Scope, causes: &mut Causes) {
    let config = spec.field("dnsConfig");
    let servers = config.field("nameservers");
    if spec.field("dnsPolicy").text() == "None" {
        if !config.is_set() {
            let detail = "must provide `dnsConfig` when `dnsPolicy` is None";
            return causes.required(&config, detail);
        }
        if servers.is_empty() {
            let detail = "must provide at least one DNS nameserver when `dnsPolicy` is None";
            return causes.required(&servers, detail);
        }
    }
    if servers.len() > MOST_NAME_SERVERS {
        let detail = format!("must not have more than {MOST_NAME_SERVERS} nameservers");
        causes.invalid(&servers, &detail);
    }
    if !scope.older_ips {
        for server in servers.items() {
            names::report(causes, &server, &names::ip(server.text()));
        }
    }
    let searches = config.field("searches");
    if searches.len() > MOST_SEARCH_PATHS {
        let detail = format!("must not have more than {MOST_SEARCH_PATHS} search paths");
        causes.invalid(&searches, &detail);
    }
    let characters: usize = searches.items().map(|path| path.text().len() + 1).sum();
    if characters > MOST_SEARCH_CHARACTERS + 1 {
        let detail = format!(
            "must not have more than {MOST_SEARCH_CHARACTERS} characters (including spaces) in \
             the search list"
        );
        causes.invalid(&searches, &detail);
    }
    for search in searches.items() {
        if search.text() != "." {
            let text = search.text().strip_suffix('.').unwrap_or(search.text());
            let problems = names::dns_subdomain_with_underscore(text);
            names::report_as(causes, &search, text, &problems);
        }
    }
    let options = config.field("options");
    for option in options.items() {
        if option.field("name").text().is_empty() {
            causes.required(&option, "must not be empty");
        }
    }
}

/// Reports whether a spec has addresses in notations that are no longer accepted.
pub(super) fn has_older_ips(spec: &Value) -> bool {
    let servers = spec.get("dnsConfig").and_then(|dns| dns.get("nameservers"));
    let servers = servers.and_then(Value::as_array).into_iter().flatten();
    let aliases = spec.get("hostAliases").and_then(Value::as_array).into_iter().flatten();
    servers
        .chain(aliases.filter_map(|alias| alias.get("ip")))
        .any(|ip| !names::ip(ip.as_str().unwrap_or_default()).is_empty())
}

fn validate_gates(spec: &Cursor<'_>, causes: &mut Causes) {
    let gates = spec.field("readinessGates");
    for gate in gates.items() {
        let at = gate.field("conditionType");
        let problems = names::label_key_problems(at.text());
        names::report_as(causes, &at, at.text(), &problems);
    }
    let gates = spec.field("schedulingGates");
    let mut seen = BTreeSet::new();
    for gate in gates.items() {
        let name = gate.field("name").text();
        names::report_as(causes, &gate, name, &names::label_key_problems(name));
        if !seen.insert(name) {
            causes.duplicate_as(&gate, name);
        }
    }
}

fn validate_hostname_override(spec: &Cursor<'_>, causes: &mut Causes) {
    let name = spec.field("hostnameOverride");
    if !name.is_set() {
        return;
    }
    if spec.field("setHostnameAsFQDN").is_true() {
        causes.forbidden(&name, "may not be specified when setHostnameAsFQDN is true");
    }
    if spec.field("hostNetwork").is_true() {
        causes.forbidden(&name, "may not be specified when hostNetwork is true");
    }
    if name.text().len() > HOSTNAME_OVERRIDE_LIMIT {
        causes.too_long(&name, HOSTNAME_OVERRIDE_LIMIT);
    }
    names::report(causes, &name, &names::dns_subdomain(name.text()));
}

fn validate_host_aliases(aliases: &Cursor<'_>, scope: Scope, causes: &mut Causes) {
    for alias in aliases.items() {
        let ip = alias.field("ip");
        if !scope.older_ips {
            names::report_as(causes, &ip, ip.text(), &names::ip(ip.text()));
        }
        let hosts = alias.field("hostnames");
        for host in hosts.items() {
            names::report(causes, &host, &names::dns_subdomain(host.text()));
        }
    }
}

/// Validates the operating system, and rejects fields that do not apply to it.
fn validate_os(spec: &Cursor<'_>, causes: &mut Causes) {
    let os = spec.field("os");
    if !os.is_set() {
        return;
    }
    match os.field("name").text() {
        "" => causes.required(&os.field("name"), ""),
        "linux" => {
            let refuse = |context: &Cursor<'_>, causes: &mut Causes| {
                let options = context.field("windowsOptions");
                if options.is_set() {
                    let detail = "windows options cannot be set for a linux pod";
                    causes.forbidden(&options, detail);
                }
            };
            refuse(&spec.field("securityContext"), causes);
            for_each_container(spec, |c| refuse(&c.field("securityContext"), causes));
        }
        "windows" => security::validate_windows(spec, causes),
        name => causes.not_supported_as(&os, name, &["linux", "windows"]),
    }
}
