//! Validates the status of a pod as its node reports it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use serde_json::Value;

use super::super::names::{self, label_key_problems};
use super::{Scope, annotations, containers_of};
use crate::cursor::{BadValue, Causes, Cursor};

const NOT_BACK: &str = "may not be transitioned to non-terminated state";
const ONE_OF_EACH: &str = "may specify no more than one IP for each IP family";

pub(super) fn validate_update(
    pod: &Cursor<'_>,
    old: &Cursor<'_>,
    scope: Scope,
    causes: &mut Causes,
) {
    let (meta, old_meta) = (pod.field("metadata"), old.field("metadata"));
    let spec = pod.field("spec");
    let (new_annotations, old_annotations) =
        (meta.field("annotations"), old_meta.field("annotations"));
    annotations::validate_update(&new_annotations, &old_annotations, &spec, scope, causes);
    let (status, old_status) = (pod.field("status"), old.field("status"));
    let conditions = status.field("conditions");
    for condition in conditions.items() {
        validate_generation(&condition.field("observedGeneration"), causes);
        let kind = condition.field("type").text();
        if !matches!(kind, "PodScheduled" | "Ready" | "Initialized") {
            let problems = label_key_problems(kind);
            names::report_as(causes, &condition.field("Type"), kind, &problems);
        }
    }
    let node = status.field("nominatedNodeName");
    if !node.text().is_empty() && node.text() != old_status.field("nominatedNodeName").text() {
        names::report(causes, &node, &names::dns_subdomain(node.text()));
        if !old.field("spec").field("nodeName").text().is_empty() {
            let detail = "may not be set on pods that are already bound to a node";
            causes.forbidden(&node, detail);
        }
    }
    validate_generation(&status.field("observedGeneration"), causes);
    let class = status.field("qosClass");
    if class.text() != old_status.field("qosClass").text() {
        causes.invalid_as(&class, class.text(), "field is immutable");
    }
    let old_spec = old.field("spec").value();
    if !restarts_all(old_spec) {
        for (statuses, list) in
            [("containerStatuses", "containers"), ("initContainerStatuses", "initContainers")]
        {
            let mut by_name: BTreeMap<&str, &Value> = BTreeMap::new();
            for container in old_spec[list].as_array().into_iter().flatten() {
                by_name.entry(container["name"].as_str().unwrap_or_default()).or_insert(container);
            }
            // A container that is not in the spec is not restarted.
            let restarts = |name: &str, code: i64| {
                by_name.get(name).is_some_and(|container| may_restart(old_spec, container, code))
            };
            validate_transitions(&status, &old_status, statuses, restarts, causes);
        }
    }
    let ephemeral = "ephemeralContainerStatuses";
    validate_transitions(&status, &old_status, ephemeral, |_, _| false, causes);
    validate_claims(&status, &spec, causes);
    validate_pod_ips(&status.field("podIPs"), &old_status.field("podIPs"), causes);
    validate_host_ips(&status, &old_status.field("hostIPs"), causes);
    let os = spec.field("os");
    for list in ["containerStatuses", "initContainerStatuses", ephemeral] {
        validate_users(&status.field(list), os.field("name").text(), causes);
    }
    validate_devices(&status.field("containerStatuses"), &spec.field("containers"), causes);
    let init = spec.field("initContainers");
    validate_devices(&status.field("initContainerStatuses"), &init, causes);
    let statuses = status.field(ephemeral);
    for container in statuses.items() {
        let devices = container.field("allocatedResourcesStatus");
        if !devices.is_empty() {
            causes.forbidden(&devices, "must not be specified in container status");
        }
    }
}

fn validate_generation(generation: &Cursor<'_>, causes: &mut Causes) {
    if generation.int().is_some_and(|number| number < 0) {
        causes.invalid(generation, "must be a non-negative integer");
    }
}

/// Reports whether a rule of some container restarts all containers.
fn restarts_all(spec: &Value) -> bool {
    containers_of(spec)
        .filter_map(|container| container.get("restartPolicyRules")?.as_array())
        .flatten()
        .any(|rule| rule["action"] == "RestartAllContainers")
}

/// Reports whether a container is restarted after it exited with a code: by its rules, by its own
/// policy or by the pod's.
fn may_restart(spec: &Value, container: &Value, code: i64) -> bool {
    let by_policy = |policy: &Value| match policy.as_str() {
        Some("Always") => Some(true),
        Some("OnFailure") => Some(code != 0),
        Some("Never") => Some(false),
        _ => None,
    };
    let by_rules = || {
        let matches = |rule: &&Value| {
            let values = rule["exitCodes"]["values"].as_array().into_iter().flatten();
            let listed = values.into_iter().any(|value| value.as_i64() == Some(code));
            match rule["exitCodes"]["operator"].as_str() {
                Some("In") => listed,
                Some("NotIn") => !listed,
                _ => false,
            }
        };
        let mut rules = container["restartPolicyRules"].as_array().into_iter().flatten();
        rules.find(matches).is_some_and(|rule| rule["action"] == "Restart")
    };
    let own = &container["restartPolicy"];
    (!own.is_null() && by_rules())
        || by_policy(own).or_else(|| by_policy(&spec["restartPolicy"])).unwrap_or(true)
}

/// Checks that a terminated container stays terminated unless it is restarted.
fn validate_transitions(
    status: &Cursor<'_>,
    old: &Cursor<'_>,
    list: &str,
    restarts: impl Fn(&str, i64) -> bool,
    causes: &mut Causes,
) {
    let (new, old) = (status.field(list), old.field(list));
    let live = new.items().filter(|now| !now.field("state").field("terminated").is_set());
    let live: BTreeSet<&str> = live.map(|now| now.field("name").text()).collect();
    for (at, before) in old.items().enumerate() {
        let ended = before.field("state");
        let ended = ended.field("terminated");
        let name = before.field("name").text();
        if !ended.is_set() || restarts(name, ended.field("exitCode").int().unwrap_or(0)) {
            continue;
        }
        if live.contains(name) {
            let place = new.index(at);
            causes.forbidden(&place.field("state"), NOT_BACK);
        }
    }
}

fn validate_claims(status: &Cursor<'_>, spec: &Cursor<'_>, causes: &mut Causes) {
    let (claims, statuses) = (spec.field("resourceClaims"), status.field("resourceClaimStatuses"));
    let claims: BTreeSet<&str> = claims.items().map(|claim| claim.field("name").text()).collect();
    let mut seen = BTreeSet::new();
    for status in statuses.items() {
        let name = status.field("name");
        if !claims.contains(name.text()) {
            let detail = "must match the name of an entry in `spec.resourceClaims`";
            causes.invalid(&name, detail);
        }
        if !seen.insert(name.text()) {
            causes.duplicate(&name);
        }
        let claim = status.field("resourceClaimName");
        if claim.is_set() {
            names::report(causes, &claim, &names::dns_subdomain(claim.text()));
        }
    }
}

/// Reports whether the addresses are of both families.
fn is_dual_stack(ips: &Cursor<'_>) -> bool {
    let mut families = [false; 2];
    for ip in ips.items() {
        match names::parse_ip(ip.field("ip").text()) {
            Some(IpAddr::V4(_)) => families[0] = true,
            Some(IpAddr::V6(_)) => families[1] = true,
            None => return false,
        }
    }
    families == [true, true]
}

fn render_ips(ips: &Cursor<'_>) -> BadValue {
    let ips = ips.items().map(|ip| format!("{{\"IP\":{}}}", Value::from(ip.field("ip").text())));
    BadValue::literal(format!("[{}]", ips.collect::<Vec<_>>().join(",")))
}

fn validate_pod_ips(ips: &Cursor<'_>, old: &Cursor<'_>, causes: &mut Causes) {
    validate_ips(ips, old, causes);
    validate_families(ips, causes);
}

/// Checks that several addresses are one of each family. For an invalid address upstream first
/// reports an internal error.
fn validate_families(ips: &Cursor<'_>, causes: &mut Causes) {
    if ips.len() < 2 {
        return;
    }
    let text = |ip: Cursor<'_>| ip.field("ip").text().to_owned();
    let mut texts = ips.items().map(text).enumerate();
    if let Some((at, text)) = texts.find(|(_, text)| names::parse_ip(text).is_none()) {
        let message = format!(
            "Internal error: failed to check for dual stack with error:invalid IP[{at}]: {text}"
        );
        causes.add("InternalError", ips.path(), message);
    }
    if !is_dual_stack(ips) || ips.len() > 2 {
        causes.invalid_as(ips, render_ips(ips), ONE_OF_EACH);
    }
}

/// Stored addresses may stay in any notation.
fn validate_ips(ips: &Cursor<'_>, old: &Cursor<'_>, causes: &mut Causes) {
    let old: BTreeSet<&str> = old.items().map(|ip| ip.field("ip").text()).collect();
    for ip in ips.items() {
        let text = ip.field("ip").text();
        if !old.contains(text) {
            names::report_as(causes, &ip, text, &names::ip(text));
        }
    }
}

fn validate_host_ips(status: &Cursor<'_>, old: &Cursor<'_>, causes: &mut Causes) {
    let ips = status.field("hostIPs");
    let first = ips.index(0);
    let first = first.field("ip");
    if ips.is_empty() {
        return;
    }
    if status.field("hostIP").text() != first.text() {
        causes.invalid_as(&first, first.text(), "must be equal to `hostIP`");
    }
    validate_ips(&ips, old, causes);
    validate_families(&ips, causes);
}

fn validate_users(statuses: &Cursor<'_>, os: &str, causes: &mut Causes) {
    for status in statuses.items() {
        let user = status.field("user");
        let linux = user.field("linux");
        if !linux.is_set() {
            continue;
        }
        let at = status.field("linux").at_value(linux.value());
        if os == "windows" {
            causes.forbidden(&at, "cannot be set for a windows pod");
            continue;
        }
        let groups = at.field("supplementalGroups");
        for id in [at.field("uid"), at.field("gid")].into_iter().chain(groups.items()) {
            if id.int().is_some_and(|id| !(0..=i64::from(i32::MAX)).contains(&id)) {
                causes.invalid(&id, "must be between 0 and 2147483647, inclusive");
            }
        }
    }
}

/// Checks that the health of devices is reported only for resources that the container requests.
fn validate_devices(statuses: &Cursor<'_>, containers: &Cursor<'_>, causes: &mut Causes) {
    let mut by_name = BTreeMap::new();
    for container in containers.items() {
        by_name.entry(container.field("name").text()).or_insert(container);
    }
    for status in statuses.items() {
        let devices = status.field("allocatedResourcesStatus");
        let container = by_name.get(status.field("name").text());
        for device in devices.items() {
            let name = device.field("name");
            if let Some(container) = container {
                let resources = container.field("resources");
                let (found, detail) = match name.text().strip_prefix("claim:") {
                    Some(claim) => {
                        let claims = resources.field("claims");
                        let found = claims.items().any(|reference| {
                            let (name, request) =
                                (reference.field("name").text(), reference.field("request").text());
                            match claim.strip_prefix(name) {
                                Some("") => request.is_empty(),
                                Some(rest) => {
                                    !request.is_empty() && rest.strip_prefix('/') == Some(request)
                                }
                                None => false,
                            }
                        });
                        (
                            found,
                            "must match one of the container's resource claims in a format \
                             'claim:<claimName>/<request>' or 'claim:<claimName>' if request is \
                             empty",
                        )
                    }
                    None => (
                        resources.field("requests").key(name.text()).is_set(),
                        "must match one of the container's resource requests",
                    ),
                };
                if !found {
                    causes.invalid(&name, detail);
                }
            }
            let mut seen = BTreeSet::new();
            let healths = device.field("resources");
            for health in healths.items() {
                let state = health.field("health");
                if !matches!(state.text(), "Healthy" | "Unhealthy" | "Unknown") {
                    let supported = ["Healthy", "Unhealthy", "Unknown"];
                    causes.not_supported_as(&state, state.text(), &supported);
                }
                let id = health.field("resourceID");
                if !seen.insert(id.text()) {
                    causes.duplicate(&id);
                }
            }
        }
    }
}

/// Warns about addresses in deprecated notations.
pub(super) fn warnings(pod: &Value) -> Vec<String> {
    let mut warnings = Vec::new();
    let top = Cursor::top(pod, "");
    let status = top.field("status");
    for list in ["podIPs", "hostIPs"] {
        let list = status.field(list);
        for ip in list.items() {
            warnings.extend(ip_warning(&ip.field("ip")));
        }
    }
    warnings
}

/// Returns the warning about an address in a deprecated notation.
pub(in super::super) fn ip_warning(at: &Cursor<'_>) -> Option<String> {
    let text = at.text();
    let address = names::parse_ip(text)?;
    let strict = text.parse::<IpAddr>().ok();
    let mapped = match strict {
        Some(IpAddr::V6(v6)) => v6.to_ipv4_mapped(),
        _ => None,
    };
    if strict.is_none() || mapped.is_some() {
        let better = mapped.map_or(address, IpAddr::V4);
        return Some(format!(
            "{}: non-standard IP address {text:?} will be considered invalid in a future \
             Kubernetes release: use \"{better}\"",
            at.path()
        ));
    }
    (address.is_ipv6() && address.to_string() != text).then(|| {
        format!(
            "{}: IPv6 address {text:?} should be in RFC 5952 canonical format (\"{address}\")",
            at.path()
        )
    })
}
