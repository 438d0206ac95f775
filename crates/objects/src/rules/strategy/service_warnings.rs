//! Warnings about services: ignored fields, and deprecated values. [`super::service`] validates
//! services.

use serde_json::Value;

use super::super::checks::parse_cidr;
use super::super::pod::ip_warning;
use crate::cursor::Cursor;

const TOPOLOGY_HINTS: &str = "service.kubernetes.io/topology-aware-hints";
const TOPOLOGY_MODE: &str = "service.kubernetes.io/topology-mode";

pub(super) fn warnings(service: &Value) -> Vec<String> {
    let mut warnings = Vec::new();
    let top = Cursor::top(service, "");
    let spec = top.field("spec");
    let is_given = |field: &str| !spec.field(field).value().as_str().unwrap_or_default().is_empty();
    let kind = spec.field("type").text();
    if service["metadata"]["annotations"].get(TOPOLOGY_HINTS).is_some() {
        warnings.push(format!(
            "annotation {TOPOLOGY_HINTS} is deprecated, please use {TOPOLOGY_MODE} instead"
        ));
    }
    let (addresses, externals) = (spec.field("clusterIPs"), spec.field("externalIPs"));
    if !matches!(spec.field("clusterIP").text(), "" | "None") {
        warnings.extend(addresses.items().filter_map(|address| ip_warning(&address)));
    }
    let headless = kind == "ClusterIP" && spec.field("clusterIP").text() == "None";
    if headless {
        if is_given("loadBalancerIP") {
            warnings.push("spec.loadBalancerIP is ignored for headless services".to_owned());
        }
        if !externals.is_empty() {
            warnings.push("spec.externalIPs is ignored for headless services".to_owned());
        }
        if spec.field("sessionAffinity").text() != "None" {
            warnings.push("spec.SessionAffinity is ignored for headless services".to_owned());
        }
    }
    warnings.extend(externals.items().filter_map(|address| ip_warning(&address)));
    if !externals.is_empty() && !headless && kind != "ExternalName" {
        let text =
            "spec.externalIPs is deprecated and may no longer be implemented in some clusters";
        warnings.push(text.to_owned());
    }
    if is_given("loadBalancerIP") {
        warnings.extend(ip_warning(&spec.field("loadBalancerIP")));
    }
    let ranges = spec.field("loadBalancerSourceRanges");
    warnings.extend(ranges.items().filter_map(|range| cidr_warning(&range)));
    if kind == "ExternalName" && !externals.is_empty() {
        warnings.push("spec.externalIPs is ignored when spec.type is \"ExternalName\"".to_owned());
    }
    if kind != "ExternalName" && is_given("externalName") {
        let text = "spec.externalName is ignored when spec.type is not \"ExternalName\"";
        warnings.push(text.to_owned());
    }
    if spec.field("trafficDistribution").text() == "PreferClose" {
        let text =
            "spec.trafficDistribution: \"PreferClose\" is deprecated; use \"PreferSameZone\"";
        warnings.push(text.to_owned());
    }
    warnings
}

/// Returns the warning about a CIDR that is not in canonical notation. Notations that only older
/// versions accepted are rejected before.
fn cidr_warning(at: &Cursor<'_>) -> Option<String> {
    let (address, length) = parse_cidr(at.text())?;
    let better = format!("{address}/{length}");
    (address.is_ipv6() && better != at.text()).then(|| {
        format!(
            "{}: IPv6 CIDR value {:?} should be in RFC 5952 canonical format ({better:?})",
            at.path(),
            at.text()
        )
    })
}
