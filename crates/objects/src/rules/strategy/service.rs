//! Services as objects: consistent types, ports and addresses. Routing is elsewhere.
//!
//! The server allocates addresses and node ports from pools. Between [`super::prepare_create`] and
//! validation it calls [`requested_address`], [`unset_node_ports`] and [`needs_health_port`] to
//! learn what to allocate and sets the results with [`set_address`], [`set_node_port`] and
//! [`set_health_port`]; [`refuse_address`] and [`refuse_node_port`] return the errors.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use serde_json::{Map, Value, json};

use super::super::checks::{
    cidr, default, default_text, is_same, part_mut, port_number, qualified_name,
};
use super::super::meta::validate_labels;
use super::super::names;
use crate::cursor::{BadValue, Causes, Cursor};

/// The session affinity timeout: three hours.
const AFFINITY_SECONDS: i64 = 10_800;
const AFFINITY_LIMIT: i64 = 86_400;
const SOURCE_RANGES: &str = "service.beta.kubernetes.io/load-balancer-source-ranges";
const ONLY_BALANCED: &str = "may only be used when `type` is 'LoadBalancer'";
const KEPT: &str = "may not change once set";

pub(super) fn set_defaults(service: &mut Value) {
    let Some(spec) = part_mut(service, "spec") else { return };
    default_text(spec, "sessionAffinity", "None");
    match spec.get("sessionAffinity").and_then(Value::as_str) {
        Some("None") => {
            spec.remove("sessionAffinityConfig");
        }
        Some("ClientIP") if spec.get("sessionAffinityConfig").is_none_or(has_no_timeout) => {
            let config = json!({"clientIP": {"timeoutSeconds": AFFINITY_SECONDS}});
            spec.insert("sessionAffinityConfig".to_owned(), config);
        }
        _ => {}
    }
    default_text(spec, "type", "ClusterIP");
    let ports = spec.get_mut("ports").and_then(Value::as_array_mut);
    for port in ports.into_iter().flatten().filter_map(Value::as_object_mut) {
        default_text(port, "protocol", "TCP");
        let unset = match port.get("targetPort") {
            Some(Value::String(text)) => text.is_empty(),
            Some(number) => number.as_i64().unwrap_or(0) == 0,
            None => true,
        };
        if unset {
            let number = port.get("port").cloned().unwrap_or_else(|| 0.into());
            port.insert("targetPort".to_owned(), number);
        }
    }
    let kind = spec.get("type").and_then(Value::as_str).unwrap_or_default().to_owned();
    if is_reachable_from_outside(spec) {
        default_text(spec, "externalTrafficPolicy", "Cluster");
    }
    if matches!(kind.as_str(), "ClusterIP" | "NodePort" | "LoadBalancer") {
        default(spec, "internalTrafficPolicy", "Cluster");
    }
    if kind == "LoadBalancer" {
        default(spec, "allocateLoadBalancerNodePorts", true);
    }
    set_ingress_modes(service);
}

fn has_no_timeout(config: &Value) -> bool {
    config["clientIP"]["timeoutSeconds"].is_null()
}

fn is_reachable_from_outside(spec: &Map<String, Value>) -> bool {
    let external = || spec.get("externalIPs").and_then(Value::as_array);
    match spec.get("type").and_then(Value::as_str) {
        Some("LoadBalancer" | "NodePort") => true,
        Some("ClusterIP") => external().is_some_and(|addresses| !addresses.is_empty()),
        _ => false,
    }
}

fn set_ingress_modes(service: &mut Value) {
    if service["spec"]["type"] != "LoadBalancer" {
        return;
    }
    let ingress = service.pointer_mut("/status/loadBalancer/ingress").and_then(Value::as_array_mut);
    for point in ingress.into_iter().flatten().filter_map(Value::as_object_mut) {
        if point.get("ip").and_then(Value::as_str).is_some_and(|ip| !ip.is_empty()) {
            default(point, "ipMode", "VIP");
        }
    }
}

/// Sets `clusterIP` to the first of `clusterIPs`, or the reverse.
pub(super) fn prepare_create(service: &mut Value) {
    let single = service["spec"]["clusterIP"].as_str().unwrap_or_default().to_owned();
    let has_list = service["spec"]["clusterIPs"].as_array().is_some_and(|list| !list.is_empty());
    if let Some(spec) = part_mut(service, "spec")
        && !single.is_empty()
        && !has_list
    {
        spec.insert("clusterIPs".to_owned(), json!([single]));
    }
}

pub(super) fn prepare_update(service: &mut Value, old: &Value) {
    take_allocated(service, old);
    sync_addresses(service, old);
    drop_for_type(service, old);
}

/// Restores allocated values that a client left out.
fn take_allocated(service: &mut Value, old: &Value) {
    let is = |service: &Value, kinds: &[&str]| {
        kinds.contains(&service["spec"]["type"].as_str().unwrap_or_default())
    };
    let has_address = &["ClusterIP", "NodePort", "LoadBalancer"];
    let has_ports = &["NodePort", "LoadBalancer"];
    let (old_spec, keeps_address) =
        (&old["spec"], is(service, has_address) && is(old, has_address));
    let keeps_ports = is(service, has_ports) && is(old, has_ports);
    let keeps_health = needs_health_port(service) && needs_health_port(old);
    let Some(spec) = part_mut(service, "spec") else { return };
    let lacks = |spec: &Map<String, Value>, field: &str| {
        spec.get(field).is_none_or(|v| is_same(v, &Value::Null) || v == "" || v == 0)
    };
    if keeps_address
        && lacks(spec, "clusterIP")
        && let Some(value) = old_spec.get("clusterIP")
    {
        spec.insert("clusterIP".to_owned(), value.clone());
    }
    for field in ["ipFamilies", "ipFamilyPolicy"] {
        if keeps_address
            && lacks(spec, field)
            && let Some(value) = old_spec.get(field)
        {
            spec.insert(field.to_owned(), value.clone());
        }
    }
    if keeps_health
        && lacks(spec, "healthCheckNodePort")
        && let Some(value) = old_spec.get("healthCheckNodePort")
    {
        spec.insert("healthCheckNodePort".to_owned(), value.clone());
    }
    if !keeps_ports {
        return;
    }
    // A port is identified by its name: everything else may have changed.
    let name = |port: &Value| port["name"].as_str().unwrap_or_default().to_owned();
    let old_ports = old_spec["ports"].as_array().into_iter().flatten();
    let old_ports: BTreeMap<String, &Value> = old_ports.map(|old| (name(old), old)).collect();
    let Some(ports) = spec.get_mut("ports").and_then(Value::as_array_mut) else { return };
    let mut used: BTreeSet<i64> =
        ports.iter().filter_map(|port| port["nodePort"].as_i64()).collect();
    for port in ports.iter_mut().filter(|port| port["nodePort"].as_i64().unwrap_or(0) == 0) {
        let before = old_ports.get(&name(port));
        let number = before.and_then(|old| old["nodePort"].as_i64()).filter(|n| used.insert(*n));
        if let (Some(number), Some(port)) = (number, port.as_object_mut()) {
            port.insert("nodePort".to_owned(), number.into());
        }
    }
}

/// Accepts a client that knows only one of the two fields for addresses.
fn sync_addresses(service: &mut Value, old: &Value) {
    let (now, was) = (service["spec"]["clusterIP"].clone(), &old["spec"]["clusterIP"]);
    let (list, old_list) = (service["spec"]["clusterIPs"].clone(), &old["spec"]["clusterIPs"]);
    let same_list = is_same(&list, old_list);
    let cleared = now.as_str().unwrap_or_default().is_empty();
    let Some(spec) = part_mut(service, "spec") else { return };
    if now == *was {
        if is_same(&list, &Value::Null) && !is_same(old_list, &Value::Null) {
            spec.insert("clusterIPs".to_owned(), old_list.clone());
        }
    } else if same_list && cleared {
        spec.remove("clusterIPs");
    } else if same_list {
        spec.insert("clusterIPs".to_owned(), json!([now]));
    }
}

/// Clears fields that the old type needed and the new one does not, if the client did not change
/// them.
fn drop_for_type(service: &mut Value, old: &Value) {
    let kind = service["spec"]["type"].as_str().unwrap_or_default().to_owned();
    let was = old["spec"]["type"].as_str().unwrap_or_default();
    let same = |service: &Value, field: &str| is_same(&service["spec"][field], &old["spec"][field]);
    let uses_ports = |kind: &str| matches!(kind, "NodePort" | "LoadBalancer");
    let mut gone: Vec<&str> = Vec::new();
    if was != "ExternalName" && kind == "ExternalName" {
        if same(service, "clusterIP") && same(service, "clusterIPs") {
            gone.extend(["clusterIP", "clusterIPs"]);
        }
        gone.extend(["ipFamilies", "ipFamilyPolicy"].into_iter().filter(|f| same(service, f)));
    }
    if needs_health_port(old) && !needs_health_port(service) && same(service, "healthCheckNodePort")
    {
        gone.push("healthCheckNodePort");
    }
    if was == "LoadBalancer" && kind != "LoadBalancer" {
        let fields = ["allocateLoadBalancerNodePorts", "loadBalancerClass"];
        gone.extend(fields.into_iter().filter(|field| same(service, field)));
    }
    let outside =
        |service: &Value| service["spec"].as_object().is_some_and(is_reachable_from_outside);
    if outside(old) && !outside(service) && same(service, "externalTrafficPolicy") {
        gone.push("externalTrafficPolicy");
    }
    let numbers = |service: &Value| -> BTreeSet<i64> {
        let ports = service["spec"]["ports"].as_array().into_iter().flatten();
        ports.filter_map(|port| port["nodePort"].as_i64()).filter(|port| *port != 0).collect()
    };
    let drop_ports =
        uses_ports(was) && !uses_ports(&kind) && numbers(service).is_subset(&numbers(old));
    let Some(spec) = part_mut(service, "spec") else { return };
    for field in gone {
        spec.remove(field);
    }
    let ports = spec.get_mut("ports").and_then(Value::as_array_mut);
    for port in ports.into_iter().flatten().filter_map(Value::as_object_mut).filter(|_| drop_ports)
    {
        port.remove("nodePort");
    }
    if kind != "LoadBalancer"
        && let Some(status) = part_mut(service, "status")
    {
        status.insert("loadBalancer".to_owned(), json!({}));
    }
}

/// The address that a service requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AddressRequest {
    /// No address: headless, or an external name.
    None,
    Any,
    This(String),
}

#[must_use]
pub fn requested_address(service: &Value) -> AddressRequest {
    let spec = &service["spec"];
    match (
        spec["type"].as_str().unwrap_or_default(),
        spec["clusterIP"].as_str().unwrap_or_default(),
    ) {
        ("ExternalName", _) | (_, "None") => AddressRequest::None,
        (_, "") => AddressRequest::Any,
        (_, address) => AddressRequest::This(address.to_owned()),
    }
}

/// Validates the families that a service requests, in a cluster with only IPv4.
#[must_use]
pub fn refuse_families(service: &Value) -> Causes {
    let mut causes = Causes::default();
    let top = Cursor::top(service, "");
    let spec = top.field("spec");
    let (policy, list, families) =
        (spec.field("ipFamilyPolicy"), spec.field("clusterIPs"), spec.field("ipFamilies"));
    if spec.field("type").text() == "ExternalName" {
        return causes;
    }
    let free = is_headless(&spec) && spec.field("selector").is_empty();
    let wanted = match (policy.text(), free) {
        ("", true) => "RequireDualStack",
        ("", false) => "SingleStack",
        (given, _) => given,
    };
    if wanted == "SingleStack" {
        for (list, what) in [(&list, "cluster IPs"), (&families, "IP families")] {
            if list.len() == 2 {
                let detail = format!(
                    "must be 'RequireDualStack' or 'PreferDualStack' when multiple {what} are \
                     specified"
                );
                causes.invalid_as(&policy, wanted, &detail);
            }
        }
    }
    for (index, address) in list.items().enumerate() {
        let is_v6 = names::parse_ip(address.text()).is_some_and(|ip| ip.is_ipv6());
        if is_v6 && index >= families.len() {
            let shown = BadValue::literal(list.value().to_string());
            causes.invalid_as(&address, shown, "IPv6 is not configured on this cluster");
        }
    }
    if free || !causes.is_empty() {
        return causes;
    }
    if wanted == "RequireDualStack" {
        let detail = "this cluster is not configured for dual-stack services";
        causes.invalid_as(&policy, wanted, detail);
    }
    for family in families.items().filter(|family| family.text() == "IPv6") {
        causes.invalid(&family, "not configured on this cluster");
    }
    causes
}

/// Sets the allocated address and its family in a cluster with one family. Also called for headless
/// services, without an address.
pub fn set_address(service: &mut Value, address: Option<&str>) {
    if service["spec"]["type"] == "ExternalName" {
        return;
    }
    let headless = service["spec"]["clusterIP"] == "None";
    let has_selector = service["spec"]["selector"].as_object().is_some_and(|map| !map.is_empty());
    let family = if address.is_some_and(|a| a.contains(':')) { "IPv6" } else { "IPv4" };
    let Some(spec) = part_mut(service, "spec") else { return };
    if let Some(address) = address {
        spec.insert("clusterIP".to_owned(), address.into());
        spec.insert("clusterIPs".to_owned(), json!([address]));
    }
    let other = if family == "IPv4" { "IPv6" } else { "IPv4" };
    // Endpoints of a headless service without a selector are created manually, in any family.
    let (families, policy) = if headless && !has_selector && !spec.contains_key("ipFamilyPolicy") {
        (json!([family, other]), "RequireDualStack")
    } else {
        (json!([family]), "SingleStack")
    };
    default(spec, "ipFamilies", families);
    default(spec, "ipFamilyPolicy", policy);
    let both = headless && !has_selector && spec["ipFamilyPolicy"] != "SingleStack";
    if let Some(families) = spec.get_mut("ipFamilies").and_then(Value::as_array_mut)
        && both
        && families.len() == 1
    {
        let missing = if families[0] == "IPv4" { "IPv6" } else { "IPv4" };
        families.push(missing.into());
    }
}

/// Returns the indexes of ports that need a node port and have none.
#[must_use]
pub fn unset_node_ports(service: &Value) -> Vec<usize> {
    let spec = &service["spec"];
    let wants = match spec["type"].as_str() {
        Some("NodePort") => true,
        Some("LoadBalancer") => spec["allocateLoadBalancerNodePorts"] != false,
        _ => false,
    };
    let ports = spec["ports"].as_array().into_iter().flatten().enumerate();
    let unset = ports.filter(|(_, port)| wants && port["nodePort"].as_i64().unwrap_or(0) == 0);
    unset.map(|(index, _)| index).collect()
}

pub fn set_node_port(service: &mut Value, index: usize, number: u16) {
    let port = service.pointer_mut(&format!("/spec/ports/{index}"));
    if let Some(port) = port.and_then(Value::as_object_mut) {
        port.insert("nodePort".to_owned(), number.into());
    }
}

/// Returns the port of a service that shares a node port with another port of a different number. A
/// node port leads to one port number, for all protocols.
#[must_use]
pub fn reused_node_port(service: &Value) -> Option<usize> {
    if !matches!(service["spec"]["type"].as_str(), Some("NodePort" | "LoadBalancer")) {
        return None;
    }
    let ports = service["spec"]["ports"].as_array().map(Vec::as_slice).unwrap_or_default();
    let mut used: BTreeMap<i64, i64> = BTreeMap::new();
    ports.iter().position(|port| {
        let number = port["port"].as_i64().unwrap_or(0);
        let node_port = port["nodePort"].as_i64().filter(|port| *port != 0);
        node_port.is_some_and(|port| *used.entry(port).or_insert(number) != number)
    })
}

/// Returns the node ports of a service, by port number. Ports with the same number and different
/// protocols share one.
#[must_use]
pub fn node_ports(service: &Value) -> BTreeMap<i64, u16> {
    let mut found = BTreeMap::new();
    for port in service["spec"]["ports"].as_array().into_iter().flatten() {
        let node_port = port["nodePort"].as_u64().and_then(|number| u16::try_from(number).ok());
        if let Some(node_port) = node_port.filter(|number| *number != 0) {
            found.entry(port["port"].as_i64().unwrap_or(0)).or_insert(node_port);
        }
    }
    found
}

/// Returns the error for a health check port that cannot be allocated.
#[must_use]
pub fn refuse_health_port(service: &Value) -> Causes {
    let mut causes = Causes::default();
    let top = Cursor::top(service, "");
    let spec = top.field("spec");
    causes.invalid(&spec.field("healthCheckNodePort"), "provided port is already allocated");
    causes
}

/// Reports whether the service needs a port for health checks of load balancers.
#[must_use]
pub fn needs_health_port(service: &Value) -> bool {
    let spec = &service["spec"];
    spec["type"] == "LoadBalancer" && spec["externalTrafficPolicy"] == "Local"
}

pub fn set_health_port(service: &mut Value, number: u16) {
    if let Some(spec) = part_mut(service, "spec") {
        default(spec, "healthCheckNodePort", number);
    }
}

/// An address cannot be allocated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AddressRefusal {
    Taken,
    OutOfRange,
    /// The first or last address of the range: network and broadcast address.
    Edge,
}

#[must_use]
pub fn refuse_address(service: &Value, refusal: AddressRefusal, range: &str) -> Causes {
    let mut causes = Causes::default();
    let top = Cursor::top(service, "");
    let spec = top.field("spec");
    let address = spec.field("clusterIP").text();
    let why = match refusal {
        AddressRefusal::Taken => "provided IP is already allocated".to_owned(),
        AddressRefusal::OutOfRange => {
            "the provided network does not match the current range".to_owned()
        }
        AddressRefusal::Edge => format!(
            "the provided IP ({address}) is not in the valid range. The range of valid IPs is \
             {range}"
        ),
    };
    let shown = BadValue::literal(json!([address]).to_string());
    let detail = format!("failed to allocate IP {address}: {why}");
    causes.invalid_as(&spec.field("clusterIPs"), shown, &detail);
    causes
}

/// Returns the error for a node port that is taken, or outside the given range.
#[must_use]
pub fn refuse_node_port(service: &Value, index: usize, range: Option<(u16, u16)>) -> Causes {
    let mut causes = Causes::default();
    let top = Cursor::top(service, "");
    let spec = top.field("spec");
    let ports = spec.field("ports");
    let port = ports.index(index);
    let detail = match range {
        None => "provided port is already allocated".to_owned(),
        Some((first, last)) => format!(
            "provided port is not in the valid range. The range of valid ports is {first}-{last}"
        ),
    };
    causes.invalid(&port.field("nodePort"), &detail);
    causes
}

fn is_headless(spec: &Cursor<'_>) -> bool {
    let addresses = spec.field("clusterIPs");
    addresses.len() == 1 && addresses.index(0).text() == "None"
}

pub(super) fn validate(service: &Cursor<'_>, causes: &mut Causes) {
    let spec = service.field("spec");
    let (kind, ports) = (spec.field("type"), spec.field("ports"));
    let headless = is_headless(&spec);
    if ports.is_empty() && !headless && kind.text() != "ExternalName" {
        causes.required(&ports, "");
    }
    match kind.text() {
        "LoadBalancer" | "NodePort" if headless => {
            let addresses = spec.field("clusterIPs");
            let detail = format!("may not be set to 'None' for {} services", kind.text());
            causes.invalid(&addresses.index(0), &detail);
        }
        "ExternalName" => validate_external_name(&spec, causes),
        _ => {}
    }
    let mut port_names = BTreeSet::new();
    for port in ports.items() {
        validate_port(&port, ports.len() > 1, &mut port_names, causes);
    }
    validate_labels(&spec.field("selector"), causes);
    validate_affinity(&spec, causes);
    if kind.text() != "ExternalName" {
        validate_addresses(&spec, causes);
    }
    let externals = spec.field("externalIPs");
    for address in externals.items() {
        validate_external_address(&address, causes);
    }
    match kind.text() {
        "" => causes.required(&kind, ""),
        "ClusterIP" | "ExternalName" | "LoadBalancer" | "NodePort" => {}
        _ => {
            causes.not_supported(&kind, &["ClusterIP", "ExternalName", "LoadBalancer", "NodePort"])
        }
    }
    validate_ports_together(&spec, causes);
    validate_balancing(service, causes);
    validate_class(&spec, None, causes);
    validate_policies(&spec, causes);
}

fn validate_external_name(spec: &Cursor<'_>, causes: &mut Causes) {
    const DETAIL: &str = "may not be set for ExternalName services";
    for field in ["clusterIPs", "ipFamilies"] {
        if !spec.field(field).is_empty() {
            causes.forbidden(&spec.field(field), DETAIL);
        }
    }
    if spec.field("ipFamilyPolicy").is_set() {
        causes.forbidden(&spec.field("ipFamilyPolicy"), DETAIL);
    }
    let name = spec.field("externalName");
    match name.text().strip_suffix('.').unwrap_or(name.text()) {
        "" => causes.required(&name, ""),
        text => names::report_as(causes, &name, text, &names::dns_subdomain(text)),
    }
}

fn validate_port(
    port: &Cursor<'_>,
    needs_name: bool,
    seen: &mut BTreeSet<String>,
    causes: &mut Causes,
) {
    let name = port.field("name");
    match name.text() {
        "" if needs_name => causes.required(&name, ""),
        "" => {}
        text => {
            names::report(causes, &name, &names::dns_label(text));
            if !seen.insert(text.to_owned()) {
                causes.duplicate(&name);
            }
        }
    }
    port_number(&port.field("port"), causes);
    let protocol = port.field("protocol");
    match protocol.text() {
        "" => causes.required(&protocol, ""),
        "TCP" | "UDP" | "SCTP" => {}
        _ => causes.not_supported(&protocol, &["SCTP", "TCP", "UDP"]),
    }
    let target = port.field("targetPort");
    match target.value() {
        Value::String(text) => names::report(causes, &target, &names::port_name(text)),
        _ => port_number(&target, causes),
    }
    if port.field("appProtocol").is_set() {
        qualified_name(&port.field("appProtocol"), causes);
    }
}

fn validate_affinity(spec: &Cursor<'_>, causes: &mut Causes) {
    let (affinity, config) = (spec.field("sessionAffinity"), spec.field("sessionAffinityConfig"));
    match affinity.text() {
        "" => causes.required(&affinity, ""),
        "ClientIP" => {
            const DETAIL: &str = "when session affinity type is ClientIP";
            let client = config.field("clientIP");
            let timeout = client.field("timeoutSeconds");
            if !config.is_set() {
                causes.required(&config, DETAIL);
            } else if !client.is_set() {
                causes.required(&client, DETAIL);
            } else if !timeout.is_set() {
                causes.required(&timeout, DETAIL);
            } else if timeout.int().is_none_or(|s| s <= 0 || s > AFFINITY_LIMIT) {
                let detail = format!("must be greater than 0 and less than {AFFINITY_LIMIT}");
                causes.invalid(&timeout, &detail);
            }
        }
        "None" if config.is_set() => {
            causes.forbidden(&config, "must not be set when session affinity is None");
        }
        "None" => {}
        _ => causes.not_supported(&affinity, &["ClientIP", "None"]),
    }
}

fn validate_addresses(spec: &Cursor<'_>, causes: &mut Causes) {
    let (single, list) = (spec.field("clusterIP"), spec.field("clusterIPs"));
    let families = spec.field("ipFamilies");
    let first = list.index(0).value().as_str().unwrap_or_default();
    match (single.text(), list.is_empty()) {
        ("", true) => {}
        ("", false) => causes.invalid(&list, "must be empty when `clusterIP` is not specified"),
        (_, true) => causes.required(&list, ""),
        (text, false) if text != first => {
            causes.invalid(&list, "first value must match `clusterIP`");
        }
        _ => {}
    }
    let mut seen = BTreeSet::new();
    for family in families.items() {
        if !matches!(family.text(), "IPv4" | "IPv6") {
            causes.not_supported(&family, &["IPv4", "IPv6"]);
        }
        if !seen.insert(family.text().to_owned()) {
            causes.duplicate(&family);
        }
    }
    let policy = spec.field("ipFamilyPolicy");
    let policies = ["PreferDualStack", "RequireDualStack", "SingleStack"];
    if policy.is_set() && !policies.contains(&policy.text()) {
        causes.not_supported(&policy, &policies);
    }
    let mut kinds: Vec<bool> = Vec::new();
    let mut wrong = false;
    for (index, address) in list.items().enumerate() {
        if index == 0 && address.text() == "None" {
            if list.len() > 1 {
                wrong = true;
                causes.invalid(&list, "'None' must be the first and only value");
            }
            continue;
        }
        let problems = names::ip(address.text());
        wrong |= !problems.is_empty();
        names::report(causes, &address, &problems);
        kinds.extend(names::parse_ip(address.text()).map(|ip| ip.is_ipv4()));
    }
    if list.len() > 2 {
        causes.invalid(&list, "may only hold up to 2 values");
    }
    if wrong {
        return;
    }
    if list.len() > 1 && !(kinds.contains(&true) && kinds.contains(&false)) {
        causes.invalid(&list, "may specify no more than one IP for each IP family");
    }
    if is_headless(spec) {
        return;
    }
    for (index, (address, family)) in list.items().zip(families.items()).enumerate() {
        let is_v4 = names::parse_ip(address.text()).is_some_and(|ip| ip.is_ipv4());
        if (family.text() == "IPv4") != is_v4 && matches!(family.text(), "IPv4" | "IPv6") {
            let detail = format!(
                "expected an {} value as indicated by `ipFamilies[{index}]`",
                family.text()
            );
            causes.invalid(&address, &detail);
        }
    }
}

/// Checks an external address: not an unspecified, loopback or link-local one.
fn validate_external_address(at: &Cursor<'_>, causes: &mut Causes) {
    let problems = names::ip(at.text());
    names::report(causes, at, &problems);
    let Some(ip) = names::parse_ip(at.text()).filter(|_| problems.is_empty()) else { return };
    let (link_local, link_multicast) = match ip {
        IpAddr::V4(ip) => (ip.is_link_local(), ip.octets()[..3] == [224, 0, 0]),
        IpAddr::V6(ip) => {
            (ip.segments()[0] & 0xffc0 == 0xfe80, ip.segments()[0] & 0xff0f == 0xff02)
        }
    };
    if ip.is_unspecified() {
        causes.invalid(at, &format!("may not be unspecified ({})", at.text()));
    }
    if ip.is_loopback() {
        causes.invalid(at, "may not be in the loopback range (127.0.0.0/8, ::1/128)");
    }
    if link_local {
        causes.invalid(at, "may not be in the link-local range (169.254.0.0/16, fe80::/10)");
    }
    if link_multicast {
        let detail = "may not be in the link-local multicast range (224.0.0.0/24, ff02::/10)";
        causes.invalid(at, detail);
    }
}

fn validate_ports_together(spec: &Cursor<'_>, causes: &mut Causes) {
    let ports = spec.field("ports");
    let node_port = |port: &Cursor<'_>| port.value()["nodePort"].as_i64().unwrap_or(0);
    if spec.field("type").text() == "ClusterIP" {
        for port in ports.items().filter(|port| node_port(port) != 0) {
            let detail = "may not be used when `type` is 'ClusterIP'";
            causes.forbidden(&port.field("nodePort"), detail);
        }
    }
    let mut seen = BTreeSet::new();
    for port in ports.items().filter(|port| node_port(port) != 0) {
        let protocol = port.value()["protocol"].as_str().unwrap_or_default();
        if !seen.insert((protocol, node_port(&port))) {
            causes.duplicate(&port.field("nodePort"));
        }
    }
    let mut seen = BTreeSet::new();
    for port in ports.items() {
        let protocol = port.value()["protocol"].as_str().unwrap_or_default();
        let number = port.value()["port"].as_i64().unwrap_or(0);
        if !seen.insert((protocol, number)) {
            let shown = format!(
                r#"{{"Name":"","Protocol":{},"AppProtocol":null,"Port":{number},"TargetPort":0,"NodePort":0}}"#,
                json!(protocol)
            );
            causes.duplicate_as(&port, BadValue::literal(shown));
        }
    }
}

fn validate_balancing(service: &Cursor<'_>, causes: &mut Causes) {
    let spec = service.field("spec");
    let balanced = spec.field("type").text() == "LoadBalancer";
    let ranges = spec.field("loadBalancerSourceRanges").called("LoadBalancerSourceRanges");
    let meta = service.field("metadata");
    let annotations = meta.field("annotations");
    let annotation = annotations.key(SOURCE_RANGES);
    if !ranges.is_empty() {
        if !balanced {
            causes.forbidden(&ranges, ONLY_BALANCED);
        }
        for range in ranges.items() {
            cidr(&range, range.text().trim(), causes);
        }
    } else if annotation.is_set() {
        if !balanced {
            causes.forbidden(&annotation, ONLY_BALANCED);
        }
        let given = annotation.text().trim();
        for range in given.split(',').filter(|_| !given.is_empty()) {
            cidr(&annotation, range.trim(), causes);
        }
    }
    let allocate = spec.field("allocateLoadBalancerNodePorts");
    if allocate.is_set() && !balanced {
        causes.forbidden(&allocate, ONLY_BALANCED);
    }
    if !allocate.is_set() && balanced {
        causes.required(&Cursor::top(&Value::Null, "allocateLoadBalancerNodePorts"), "");
    }
}

fn validate_class(spec: &Cursor<'_>, old: Option<&Cursor<'_>>, causes: &mut Causes) {
    let class = spec.field("loadBalancerClass");
    let balanced = |spec: &Cursor<'_>| spec.value()["type"] == "LoadBalancer";
    if let Some(old) = old
        && balanced(spec)
        && balanced(old)
        && !is_same(class.value(), old.field("loadBalancerClass").value())
    {
        causes.invalid(&class, KEPT);
    }
    match (balanced(spec), class.is_set()) {
        (true, true) => qualified_name(&class, causes),
        (false, true) => causes.forbidden(&class, ONLY_BALANCED),
        _ => {}
    }
}

fn validate_policies(spec: &Cursor<'_>, causes: &mut Causes) {
    let external = spec.field("externalTrafficPolicy");
    let outside = spec.value().as_object().is_some_and(is_reachable_from_outside);
    match (outside, external.text()) {
        (false, "") | (true, "Cluster" | "Local") => {}
        (false, _) => {
            causes.invalid(&external, "may only be set for externally-accessible services");
        }
        (true, "") => causes.required(&external, ""),
        (true, _) => causes.not_supported(&external, &["Cluster", "Local"]),
    }
    let health = spec.field("healthCheckNodePort");
    let needed = spec.field("type").text() == "LoadBalancer" && external.text() == "Local";
    match (needed, health.int().unwrap_or(0)) {
        (false, 0) => {}
        (false, _) => {
            let detail = "may only be set when `type` is 'LoadBalancer' and \
                          `externalTrafficPolicy` is 'Local'";
            causes.invalid(&health, detail);
        }
        (true, 0) => causes.required(&health, ""),
        (true, _) => port_number(&health, causes),
    }
    let internal = spec.field("internalTrafficPolicy");
    let served = matches!(spec.field("type").text(), "ClusterIP" | "NodePort" | "LoadBalancer");
    if !internal.is_set() && served {
        causes.required(&internal, "");
    } else if internal.is_set() && !matches!(internal.text(), "Cluster" | "Local") {
        causes.not_supported(&internal, &["Cluster", "Local"]);
    }
    let distribution = spec.field("trafficDistribution");
    let distributions = ["PreferClose", "PreferSameNode", "PreferSameZone"];
    if distribution.is_set() && !distributions.contains(&distribution.text()) {
        causes.not_supported(&distribution, &distributions);
    }
}

pub(super) fn validate_change(service: &Cursor<'_>, old: &Cursor<'_>, causes: &mut Causes) {
    let (spec, old_spec) = (service.field("spec"), old.field("spec"));
    let external = |spec: &Cursor<'_>| spec.value()["type"] == "ExternalName";
    if !external(&spec) && !external(&old_spec) {
        validate_address_change(&spec, &old_spec, causes);
        validate_family_change(&spec, &old_spec, causes);
    }
    validate_class(&spec, Some(&old_spec), causes);
    let (health, before) =
        (spec.field("healthCheckNodePort"), old_spec.field("healthCheckNodePort"));
    if needs_health_port(service.value())
        && needs_health_port(old.value())
        && health.int().unwrap_or(0) != before.int().unwrap_or(0)
    {
        causes.forbidden(&health, super::super::checks::IMMUTABLE);
    }
}

fn validate_address_change(spec: &Cursor<'_>, old: &Cursor<'_>, causes: &mut Causes) {
    if is_headless(spec) && is_headless(old) {
        return;
    }
    let (list, before) = (spec.field("clusterIPs"), old.field("clusterIPs"));
    let text = |list: &Cursor<'_>, index: usize| list.value()[index].as_str().map(str::to_owned);
    let shown = || BadValue::literal(list.value().to_string());
    if list.len() == before.len() {
        for index in 0..list.len() {
            if text(&list, index) != text(&before, index) {
                causes.invalid_as(&list.index(index), shown(), KEPT);
            }
        }
        return;
    }
    if list.len() < before.len() && list.is_empty() {
        causes.invalid_as(&list.index(0), shown(), "primary clusterIP can not be unset");
    }
    if !list.is_empty() && !before.is_empty() && text(&list, 0) != text(&before, 0) {
        causes.invalid_as(&list.index(0), shown(), KEPT);
    }
    let policy = spec.field("ipFamilyPolicy");
    if list.len() == 1 && before.len() == 2 && policy.text() != "SingleStack" {
        let detail = "must be set to 'SingleStack' when releasing the secondary clusterIP";
        causes.invalid(&policy, detail);
    }
}

fn validate_family_change(spec: &Cursor<'_>, old: &Cursor<'_>, causes: &mut Causes) {
    let (list, before) = (spec.field("ipFamilies"), old.field("ipFamilies"));
    let text = |list: &Cursor<'_>| list.value()[0].as_str().map(str::to_owned);
    let free = is_headless(spec) && spec.field("selector").is_empty();
    let shown = || BadValue::literal(list.value().to_string());
    if list.is_empty() && !before.is_empty() {
        causes.invalid_as(&list.index(0), shown(), "primary ipFamily can not be unset");
    } else if !free && !list.is_empty() && !before.is_empty() && text(&list) != text(&before) {
        causes.invalid_as(&list.index(0), shown(), KEPT);
    }
}

pub(super) fn validate_status(service: &Cursor<'_>, causes: &mut Causes) {
    let (spec, status) = (service.field("spec"), service.field("status"));
    let balancer = status.field("loadBalancer");
    let ingress = balancer.field("ingress");
    if spec.field("type").text() != "LoadBalancer" && !ingress.is_empty() {
        let detail = "may only be used when `spec.type` is \"LoadBalancer\"";
        return causes.forbidden(&ingress, detail);
    }
    for point in ingress.items() {
        let (ip, host, mode) = (point.field("ip"), point.field("hostname"), point.field("ipMode"));
        let has_ip = !ip.text().is_empty();
        if has_ip {
            names::report(causes, &ip, &names::ip(ip.text()));
        }
        match (has_ip, mode.is_set()) {
            (true, false) => causes.required(&mode, "must be specified when `ip` is set"),
            (false, true) => {
                causes.forbidden(&mode, "may not be specified when `ip` is not set");
            }
            (true, true) if !matches!(mode.text(), "VIP" | "Proxy") => {
                causes.not_supported(&mode, &["Proxy", "VIP"]);
            }
            _ => {}
        }
        if !host.text().is_empty() {
            names::report(causes, &host, &names::dns_subdomain(host.text()));
            if names::parse_ip(host.text()).is_some() {
                causes.invalid(&host, "must be a DNS name, not an IP address");
            }
        }
    }
}
