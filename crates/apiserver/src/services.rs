//! Addresses and ports of services, handed out from the server's range.
//!
//! Services are objects only: nothing routes to them. They still get an address, because clients
//! expect one and because two services must not name the same.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;

use objects::cursor::Causes;
use serde_json::Value;

use crate::api::Api;
use crate::parts::core;
use crate::read;
use crate::refusal::Refusal;
use crate::stored;

/// Ports for services of type NodePort.
const NODE_PORTS: std::ops::RangeInclusive<i64> = 30000..=32767;

/// A range of addresses as `10.0.0.0/24`.
fn range(text: &str) -> Option<(u32, u32)> {
    let (address, bits) = text.split_once('/')?;
    let (address, bits): (Ipv4Addr, u32) = (address.parse().ok()?, bits.parse().ok()?);
    if bits > 30 {
        return None;
    }
    let size = 1u32 << (32 - bits);
    Some((u32::from(address) & !(size - 1), size))
}

/// The address of the API itself.
pub(crate) fn first_address(service_range: &str) -> String {
    let (start, _) = range(service_range).unwrap_or((u32::from(Ipv4Addr::new(10, 0, 0, 0)), 256));
    Ipv4Addr::from(start + 1).to_string()
}

/// Gives a service the address and ports it needs, or says why it cannot have those it names.
pub(crate) fn allocate(api: &Api, service: &mut Value, name: &str) -> Result<(), Refusal> {
    let kind = service["spec"]["type"].as_str().unwrap_or("ClusterIP").to_owned();
    if kind == "ExternalName" {
        return Ok(());
    }
    let (addresses, ports) = taken(api, service)?;
    let given = service["spec"]["clusterIP"].as_str().unwrap_or_default().to_owned();
    if given != "None" {
        let address = if given.is_empty() {
            free_address(api, &addresses)
                .ok_or_else(|| Refusal::internal("no service address is free"))?
        } else {
            check_address(api, &given, &addresses).map_err(|why| {
                let mut causes = Causes::default();
                let message =
                    format!("Invalid value: [{given:?}]: failed to allocate IP {given}: {why}");
                causes.add("FieldValueInvalid", "spec.clusterIPs", message);
                Refusal::invalid_kind("", "Service", name, &causes)
            })?;
            given
        };
        service["spec"]["clusterIP"] = Value::from(address.as_str());
        service["spec"]["clusterIPs"] = Value::from(vec![address]);
    }
    if matches!(kind.as_str(), "NodePort" | "LoadBalancer") {
        allocate_ports(service, &ports, name)?;
    }
    Ok(())
}

fn allocate_ports(
    service: &mut Value,
    taken: &BTreeSet<i64>,
    name: &str,
) -> Result<(), Refusal> {
    let mut taken = taken.clone();
    let ports = service["spec"]["ports"].as_array_mut().map(Vec::as_mut_slice).unwrap_or_default();
    for (index, port) in ports.iter_mut().enumerate() {
        let given = port["nodePort"].as_i64().unwrap_or(0);
        let problem = match given {
            0 => None,
            port if !NODE_PORTS.contains(&port) => {
                Some("provided port is not in the valid range. The range of valid ports is 30000-32767")
            }
            port if taken.contains(&port) => Some("provided port is already allocated"),
            _ => None,
        };
        if let Some(problem) = problem {
            let mut causes = Causes::default();
            let field = format!("spec.ports[{index}].nodePort");
            causes.add("FieldValueInvalid", field, format!("Invalid value: {given}: {problem}"));
            return Err(Refusal::invalid_kind("", "Service", name, &causes));
        }
        let chosen = if given != 0 {
            given
        } else {
            let start = i64::try_from(crate::random::below(2768)).unwrap_or(0);
            let free = (0..2768).map(|step| 30000 + (start + step) % 2768);
            free.into_iter()
                .find(|port| !taken.contains(port))
                .ok_or_else(|| Refusal::internal("no node port is free"))?
        };
        taken.insert(chosen);
        port["nodePort"] = Value::from(chosen);
    }
    Ok(())
}

/// What other services have.
fn taken(api: &Api, own: &Value) -> Result<(BTreeSet<String>, BTreeSet<i64>), Refusal> {
    let services = core("services")?;
    let snapshot = api.store().snapshot(None).map_err(|error| read::read_failed(&error))?;
    let (mut addresses, mut ports) = (BTreeSet::new(), BTreeSet::new());
    for entry in snapshot.range(&stored::prefix(services, ""), None) {
        let entry = entry.map_err(|error| read::broken(&error))?;
        let service = read::load(services, &entry)?;
        if service["metadata"]["uid"] == own["metadata"]["uid"] {
            continue;
        }
        addresses.extend(service["spec"]["clusterIP"].as_str().map(str::to_owned));
        let of = service["spec"]["ports"].as_array().map(Vec::as_slice).unwrap_or_default();
        ports.extend(of.iter().filter_map(|port| port["nodePort"].as_i64()));
    }
    Ok((addresses, ports))
}

fn check_address(api: &Api, given: &str, taken: &BTreeSet<String>) -> Result<(), &'static str> {
    let (start, size) = range(&api.shared.options.service_range).ok_or("there is no range")?;
    let address: Ipv4Addr = given.parse().map_err(|_| "it is no address")?;
    let inside = (start + 1..start + size - 1).contains(&u32::from(address));
    if !inside {
        return Err("the provided network does not match the current range");
    }
    if taken.contains(given) {
        return Err("provided IP is already allocated");
    }
    Ok(())
}

fn free_address(api: &Api, taken: &BTreeSet<String>) -> Option<String> {
    let (start, size) = range(&api.shared.options.service_range)?;
    let usable = u64::from(size - 2);
    let first = crate::random::below(usable);
    (0..usable)
        .map(|step| start + 1 + u32::try_from((first + step) % usable).unwrap_or(0))
        .map(|address| Ipv4Addr::from(address).to_string())
        .find(|address| !taken.contains(address))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_read_and_their_first_address_is_ours() {
        assert_eq!(first_address("10.0.0.0/24"), "10.0.0.1");
        assert_eq!(first_address("10.43.7.9/16"), "10.43.0.1");
        assert_eq!(first_address("nonsense"), "10.0.0.1");
        assert_eq!(range("10.0.0.0/31"), None);
    }
}
