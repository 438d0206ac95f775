//! Warnings about pods that are accepted but probably wrong: deprecated labels and volumes,
//! duplicates, fractions of bytes, selectors that select nothing.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::super::names;
use super::amounts::quantity;
use super::annotations::{APP_ARMOR, SECCOMP_CONTAINER, SECCOMP_POD, USE_THE_FIELD};
use super::scheduling::{PREFERRED, REQUIRED};
use super::{for_each_container, status};
use crate::cursor::Cursor;
use crate::go;
use crate::problems::MAX_PROBLEMS as MAX_WARNINGS;
use crate::resources::{EPHEMERAL_STORAGE, MEMORY};
use crate::selector::label_value_problems;

const DEPRECATED_ANNOTATIONS: [(&str, &str); 3] = [
    (
        "scheduler.alpha.kubernetes.io/critical-pod",
        "non-functional in v1.16+; use the \"priorityClassName\" field instead",
    ),
    (
        "security.alpha.kubernetes.io/sysctls",
        "non-functional in v1.11+; use the \"sysctls\" field instead",
    ),
    (
        "security.alpha.kubernetes.io/unsafe-sysctls",
        "non-functional in v1.11+; use the \"sysctls\" field instead",
    ),
];

/// Deprecated volume sources, and their names in the warning.
const DEPRECATED_VOLUMES: [(&str, &str, &str); 9] = [
    (
        "photonPersistentDisk",
        "photonPersistentDisk",
        "deprecated in v1.11, non-functional in v1.16+",
    ),
    ("gitRepo", "gitRepo", "deprecated in v1.11, and disabled by default in v1.33+"),
    ("scaleIO", "scaleIO", "deprecated in v1.16, non-functional in v1.22+"),
    ("flocker", "flocker", "deprecated in v1.22, non-functional in v1.25+"),
    ("storageos", "storageOS", "deprecated in v1.22, non-functional in v1.25+"),
    ("quobyte", "quobyte", "deprecated in v1.22, non-functional in v1.25+"),
    ("glusterfs", "glusterfs", "deprecated in v1.25, non-functional in v1.26+"),
    ("cephfs", "cephfs", "deprecated in v1.28, non-functional in v1.31+"),
    ("rbd", "rbd", "deprecated in v1.28, non-functional in v1.31+"),
];

const SELECTS_NOTHING: &str = "a null labelSelector results in matching no pod";

/// Returns the warning about a node label that was renamed.
#[must_use]
pub(in super::super) fn deprecated_node_label(key: &str) -> Option<&'static str> {
    Some(match key {
        "failure-domain.beta.kubernetes.io/zone" => {
            "deprecated since v1.17; use \"topology.kubernetes.io/zone\" instead"
        }
        "failure-domain.beta.kubernetes.io/region" => {
            "deprecated since v1.17; use \"topology.kubernetes.io/region\" instead"
        }
        "beta.kubernetes.io/os" => "deprecated since v1.14; use \"kubernetes.io/os\" instead",
        "beta.kubernetes.io/arch" => "deprecated since v1.14; use \"kubernetes.io/arch\" instead",
        "beta.kubernetes.io/instance-type" => {
            "deprecated since v1.17; use \"node.kubernetes.io/instance-type\" instead"
        }
        _ => return None,
    })
}

pub(super) fn on_create(pod: &Value) -> Vec<String> {
    let mut warnings = Vec::new();
    let top = Cursor::top(pod, "");
    let name = top.field("metadata");
    let problems = names::dns_label(name.field("name").text());
    if !problems.is_empty() {
        let problems: Vec<&str> = problems.iter().map(|problem| problem.as_ref()).collect();
        warnings.push(format!(
            "metadata.name: this is used in the Pod's hostname, which can result in surprising \
             behavior; a DNS label is recommended: [{}]",
            problems.join(" ")
        ));
    }
    collect(&top, false, &mut warnings);
    warnings
}

/// Returns the warnings about a workload's template.
#[must_use]
pub fn template_warnings(template: &Cursor<'_>) -> Vec<String> {
    let mut warnings = Vec::new();
    collect(template, true, &mut warnings);
    warnings
}

fn warn(warnings: &mut Vec<String>, at: &Cursor<'_>, what: &str) {
    warnings.push(format!("{}: {what}", at.path()));
}

fn collect(holder: &Cursor<'_>, is_template: bool, warnings: &mut Vec<String>) {
    let (meta, spec) = (holder.field("metadata"), holder.field("spec"));
    let annotations = meta.field("annotations");
    warn_about_nodes(&spec, warnings);
    for (key, what) in DEPRECATED_ANNOTATIONS {
        let at = annotations.key(key);
        if at.is_set() {
            warn(warnings, &at, what);
        }
    }
    let volumes = spec.field("volumes");
    for volume in volumes.items() {
        warn_about_volume(&volume, warnings);
    }
    warn_about_paths(&volumes, warnings);
    warn_about_names(&spec, warnings);
    for resource in [MEMORY, EPHEMERAL_STORAGE] {
        warn_about_fraction(&spec.field("overhead").key(resource), warnings);
    }
    let context = spec.field("securityContext");
    let profile = annotations.key(SECCOMP_POD);
    if profile.is_set() && !context.field("seccompProfile").is_set() {
        let what = "non-functional in v1.27+; use the \"seccompProfile\" field instead";
        warn(warnings, &profile, what);
    }
    let app_armor = context.field("appArmorProfile").is_set();
    for_each_container(&spec, |container| {
        warn_about_container(container, &annotations, is_template && !app_armor, warnings);
    });
    warn_about_ports(&spec, warnings);
    let grace = spec.field("terminationGracePeriodSeconds");
    if grace.int().is_some_and(|seconds| seconds < 0) {
        let what = "must be >= 0; negative values are invalid and will be treated as 1";
        warn(warnings, &grace, what);
    }
    warn_about_affinity(&spec, warnings);
    let dns = spec.field("dnsConfig");
    let servers = dns.field("nameservers");
    for server in servers.items() {
        warnings.extend(status::ip_warning(&server));
    }
    let aliases = spec.field("hostAliases");
    for alias in aliases.items() {
        warnings.extend(status::ip_warning(&alias.field("ip")));
    }
}

fn warn_about_nodes(spec: &Cursor<'_>, warnings: &mut Vec<String>) {
    let selector = spec.field("nodeSelector");
    for (key, at) in selector.entries() {
        if let Some(what) = deprecated_node_label(key) {
            warn(warnings, &at, what);
        }
    }
    let affinity = spec.field("affinity");
    let node = affinity.field("nodeAffinity");
    let required = node.field(REQUIRED);
    let terms = required.field("nodeSelectorTerms");
    for term in terms.items() {
        warn_about_term(&term, false, warnings);
    }
    let preferred = node.field(PREFERRED);
    for term in preferred.items() {
        warn_about_term(&term.field("preference"), true, warnings);
    }
    let constraints = spec.field("topologySpreadConstraints");
    for constraint in constraints.items() {
        let key = constraint.field("topologyKey");
        if let Some(what) = deprecated_node_label(key.text()) {
            warn(warnings, &key, &format!("{} is {what}", key.text()));
        }
        let selector = constraint.field("labelSelector");
        if !selector.is_set() {
            warn(warnings, &selector, SELECTS_NOTHING);
        }
    }
}

fn warn_about_term(term: &Cursor<'_>, check_values: bool, warnings: &mut Vec<String>) {
    let expressions = term.field("matchExpressions");
    for expression in expressions.items() {
        let key = expression.field("key");
        if let Some(what) = deprecated_node_label(key.text()) {
            warn(warnings, &key, &format!("{} is {what}", key.text()));
        }
        if check_values {
            let values = expression.field("values");
            for value in values.items() {
                for problem in label_value_problems(value.text()) {
                    warn(warnings, &value, &format!("{} is invalid, {problem}", value.text()));
                }
            }
        }
    }
}

fn warn_about_volume(volume: &Cursor<'_>, warnings: &mut Vec<String>) {
    let deprecated = |field: &str| DEPRECATED_VOLUMES.iter().any(|(name, _, _)| *name == field);
    if !volume.entries().any(|(field, _)| field == "ephemeral" || deprecated(field)) {
        return;
    }
    for (field, called, what) in DEPRECATED_VOLUMES {
        let source = volume.field(field);
        if source.is_set() {
            warn(warnings, &source.called(called), what);
        }
        if field == "glusterfs" {
            let ephemeral = volume.field("ephemeral");
            let template = ephemeral.field("volumeClaimTemplate");
            let spec = template.field("spec");
            let resources = spec.field("resources");
            let requests = resources.field("requests");
            warn_about_fraction(&requests.key("storage"), warnings);
        }
    }
}

/// The path of a file in a volume, and its source.
struct File {
    path: String,
    source: String,
}

impl File {
    fn new(path: &str, source: &str) -> File {
        File { path: path.trim_end_matches('/').to_owned(), source: source.to_owned() }
    }

    fn render(&self) -> String {
        let path = go::quoted(&self.path);
        if self.source.is_empty() { path } else { format!("{path} ({})", self.source) }
    }

    fn overlaps(&self, other: &File) -> bool {
        let below = |a: &str, b: &str| a.strip_prefix(b).is_some_and(|rest| rest.starts_with('/'));
        self.path == other.path || below(&self.path, &other.path) || below(&other.path, &self.path)
    }
}

fn files_of(source: &Cursor<'_>, from: &str) -> Vec<File> {
    let items = source.field("items");
    items.items().map(|item| File::new(item.field("path").text(), from)).collect()
}

/// Warns about files of a volume that hide each other.
fn warn_about_paths(volumes: &Cursor<'_>, warnings: &mut Vec<String>) {
    for volume in volumes.items() {
        let name = go::quoted(volume.field("name").text());
        let report = |files: &[File], from: usize, what: &str, warnings: &mut Vec<String>| {
            for (at, file) in files.iter().enumerate().skip(from) {
                for other in files[..at].iter().filter(|other| file.overlaps(other)) {
                    warnings.push(format!(
                        "volume {name} ({what}): overlapping paths: {} with {}",
                        file.render(),
                        other.render()
                    ));
                }
            }
        };
        let config = volume.field("configMap");
        if config.is_set() {
            let owner = format!("ConfigMap {}", go::quoted(config.field("name").text()));
            report(&files_of(&config, ""), 0, &owner, warnings);
        }
        let secret = volume.field("secret");
        if secret.is_set() {
            let owner = format!("Secret {}", go::quoted(secret.field("secretName").text()));
            report(&files_of(&secret, ""), 0, &owner, warnings);
        }
        let downward = volume.field("downwardAPI");
        if downward.is_set() {
            report(&files_of(&downward, ""), 0, "DownwardAPI", warnings);
        }
        let projected = volume.field("projected");
        let sources = projected.field("sources");
        let mut files = Vec::new();
        for source in sources.items() {
            let known = files.len();
            files.extend(projected_files(&source));
            report(&files, known, "Projected", warnings);
            if source.is_empty() {
                warnings.push(format!("volume {name} (Projected) has no sources provided"));
            }
        }
    }
}

fn projected_files(source: &Cursor<'_>) -> Vec<File> {
    for (field, kind) in [("configMap", "ConfigMap"), ("secret", "Secret")] {
        let reference = source.field(field);
        if reference.is_set() {
            let from = format!("{kind} {}", go::quoted(reference.field("name").text()));
            return files_of(&reference, &from);
        }
    }
    let downward = source.field("downwardAPI");
    if downward.is_set() {
        return files_of(&downward, "DownwardAPI");
    }
    let token = source.field("serviceAccountToken");
    if token.is_set() {
        return vec![File::new(token.field("path").text(), "ServiceAccountToken")];
    }
    let bundle = source.field("clusterTrustBundle");
    if bundle.is_set() {
        let name = match bundle.field("name").text() {
            "" => bundle.field("signerName").text(),
            name => name,
        };
        let from = format!("ClusterTrustBundle {}", go::quoted(name));
        return vec![File::new(bundle.field("path").text(), &from)];
    }
    Vec::new()
}

fn warn_about_names(spec: &Cursor<'_>, warnings: &mut Vec<String>) {
    for (list, field, what) in [("hostAliases", "ip", "ip"), ("imagePullSecrets", "name", "name")] {
        let list = spec.field(list);
        let mut seen = BTreeSet::new();
        for item in list.items() {
            let at = item.field(field);
            if !seen.insert(at.text()) {
                warn(warnings, &at, &format!("duplicate {what} {}", go::quoted(at.text())));
            }
        }
    }
    let secrets = spec.field("imagePullSecrets");
    for secret in secrets.items() {
        let name = secret.field("name");
        if name.text().is_empty() {
            warn(warnings, &name, "invalid empty name \"\"");
        }
    }
}

fn warn_about_fraction(at: &Cursor<'_>, warnings: &mut Vec<String>) {
    if at.is_set() && quantity(at.value()).milli_value() % 1000 != 0 {
        let shown = go::quoted(at.text());
        let what = format!("fractional byte value {shown} is invalid, must be an integer");
        warn(warnings, at, &what);
    }
}

fn warn_about_container(
    container: &Cursor<'_>,
    annotations: &Cursor<'_>,
    warn_about_app_armor: bool,
    warnings: &mut Vec<String>,
) {
    let context = container.field("securityContext");
    if !annotations.is_empty() {
        let name = container.field("name").text();
        let key = format!("{SECCOMP_CONTAINER}{name}");
        let profile = annotations.key(&key);
        if profile.is_set() && !context.field("seccompProfile").is_set() {
            let what = "non-functional in v1.27+; use the \"seccompProfile\" field instead";
            warn(warnings, &profile, what);
        }
        let key = format!("{APP_ARMOR}{name}");
        let profile = annotations.key(&key);
        if warn_about_app_armor && profile.is_set() && !context.field("appArmorProfile").is_set() {
            warn(warnings, &profile, USE_THE_FIELD);
        }
    }
    let resources = container.field("resources");
    for resource in [MEMORY, EPHEMERAL_STORAGE] {
        for side in ["limits", "requests"] {
            warn_about_fraction(&resources.field(side).key(resource), warnings);
        }
    }
    let variables = container.field("env");
    if variables.len() < 2 {
        return;
    }
    let mut seen = BTreeSet::new();
    for variable in variables.items() {
        let name = variable.field("name").text();
        if seen.insert(name) {
            continue;
        }
        let value = variable.field("value").text();
        let reference = format!("$({name})");
        let builds_on = value.contains(&reference) && value != reference;
        if variable.field("valueFrom").is_set() || !builds_on {
            let what = format!(
                "hides previous definition of {}, which may be dropped when using apply",
                go::quoted(name)
            );
            warn(warnings, &variable, &what);
        }
    }
}

/// A port, with the fields that can conflict.
struct ContainerPort<'a> {
    list: &'static str,
    container: usize,
    index: usize,
    number: i64,
    protocol: &'a str,
    name: &'a str,
    host_ip: &'a str,
    host_port: i64,
}

impl ContainerPort<'_> {
    fn place(&self, spec: &Cursor<'_>) -> String {
        let list = spec.field(self.list);
        let container = list.index(self.container);
        let ports = container.field("ports");
        ports.index(self.index).path()
    }
}

fn ports_of<'a>(spec: &Cursor<'a>) -> Vec<ContainerPort<'a>> {
    let mut all = Vec::new();
    for list in ["initContainers", "containers", "ephemeralContainers"] {
        let containers = spec.field(list);
        for (at, container) in containers.items().enumerate() {
            let ports = container.field("ports");
            for (index, port) in ports.items().enumerate() {
                all.push(ContainerPort {
                    list,
                    container: at,
                    index,
                    number: port.field("containerPort").int().unwrap_or(0),
                    protocol: port.field("protocol").text(),
                    name: port.field("name").text(),
                    host_ip: port.field("hostIP").text(),
                    host_port: port.field("hostPort").int().unwrap_or(0),
                });
            }
        }
    }
    all
}

fn warn_about_ports(spec: &Cursor<'_>, warnings: &mut Vec<String>) {
    let ports = ports_of(spec);
    let mut by_number: BTreeMap<(i64, &str), Vec<&ContainerPort<'_>>> = BTreeMap::new();
    for port in &ports {
        if !port.host_ip.is_empty() && port.host_port == 0 {
            warnings.push(format!(
                "{}: hostIP set without hostPort: {{Name:{} HostPort:0 ContainerPort:{} \
                 Protocol:{} HostIP:{}}}",
                port.place(spec),
                port.name,
                port.number,
                port.protocol,
                port.host_ip
            ));
        }
        let alike = by_number.entry((port.number, port.protocol)).or_default();
        for other in alike.iter().copied() {
            // All pairs of ports are compared; this limits the number of warnings.
            if warnings.len() >= MAX_WARNINGS {
                break;
            }
            let same_port = port.host_port == other.host_port;
            let what = if same_port && port.host_ip == other.host_ip {
                "duplicate"
            } else if port.host_port == 0 || other.host_port == 0 {
                "overlapping"
            } else if same_port && port.host_ip.is_empty() != other.host_ip.is_empty() {
                "dangerously ambiguous"
            } else {
                continue;
            };
            let (here, there) = (port.place(spec), other.place(spec));
            warnings.push(format!("{here}: {what} port definition with {there}"));
        }
        if alike.len() < MAX_WARNINGS {
            alike.push(port);
        }
    }
    // Only the first of several ports with one name is found by it.
    let mut by_name: BTreeMap<&str, &ContainerPort<'_>> = BTreeMap::new();
    for port in ports.iter().filter(|port| !port.name.is_empty()) {
        if let Some(first) = by_name.get(port.name) {
            let (here, there) = (port.place(spec), first.place(spec));
            let name = go::quoted(port.name);
            warnings.push(format!(
                "{here}: duplicate port name {name} with {there}, services and probes that \
                 select ports by name will use {there}"
            ));
        } else {
            by_name.insert(port.name, port);
        }
    }
}

fn warn_about_affinity(spec: &Cursor<'_>, warnings: &mut Vec<String>) {
    let affinity = spec.field("affinity");
    for kind in ["podAffinity", "podAntiAffinity"] {
        let pods = affinity.field(kind);
        let required = pods.field(REQUIRED);
        for term in required.items() {
            let selector = term.field("labelSelector");
            if !selector.is_set() {
                warn(warnings, &selector, SELECTS_NOTHING);
            }
        }
        let preferred = pods.field(PREFERRED);
        for term in preferred.items() {
            let term = term.field("podAffinityTerm");
            let selector = term.field("labelSelector");
            if !selector.is_set() {
                warn(warnings, &selector, SELECTS_NOTHING);
            }
        }
    }
}
