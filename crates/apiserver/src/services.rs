//! Addresses and ports of services, allocated from the server's ranges.
//!
//! Services are objects only: nothing routes to them. They still get an address, because clients
//! expect one and because two services must not have the same. [`objects::rules::service`] defines
//! which service needs what.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;

use objects::cursor::Causes;
use objects::rules::service::{self, AddressRefusal, AddressRequest};
use serde_json::Value;

use crate::admission;
use crate::api::Api;
use crate::error::ApiError;
use crate::subresources::core_resource;

/// The range of node ports.
const NODE_PORTS: (u16, u16) = (30000, 32767);

/// Parses a range of addresses such as `10.0.0.0/24`.
fn range(text: &str) -> Option<(u32, u32)> {
    let (address, bits) = text.split_once('/')?;
    let (address, bits): (Ipv4Addr, u32) = (address.parse().ok()?, bits.parse().ok()?);
    if !(8..=30).contains(&bits) {
        return None;
    }
    let size = 1u32 << (32 - bits);
    Some((u32::from(address) & !(size - 1), size))
}

/// Returns the address of the API's own service.
pub(crate) fn first_address(service_range: &str) -> String {
    let (start, _) = range(service_range).unwrap_or((u32::from(Ipv4Addr::new(10, 0, 0, 0)), 256));
    Ipv4Addr::from(start + 1).to_string()
}

/// The addresses and ports of other services.
struct Allocated {
    addresses: BTreeSet<String>,
    ports: BTreeSet<u16>,
}

impl Allocated {
    fn by_others(api: &Api, own: &Value) -> Result<Allocated, ApiError> {
        let mut allocated = Allocated { addresses: BTreeSet::new(), ports: BTreeSet::new() };
        for (_, _, service) in admission::all(api, core_resource("services")?, "")? {
            if service["metadata"]["uid"] == own["metadata"]["uid"] {
                continue;
            }
            allocated.addresses.extend(service["spec"]["clusterIP"].as_str().map(str::to_owned));
            let ports = service["spec"]["ports"].as_array().map(Vec::as_slice).unwrap_or_default();
            allocated.ports.extend(ports.iter().filter_map(|port| number(&port["nodePort"])));
            allocated.ports.extend(number(&service["spec"]["healthCheckNodePort"]));
        }
        Ok(allocated)
    }

    fn free_port(&mut self) -> Option<u16> {
        let (first, last) = NODE_PORTS;
        let count = u32::from(last - first) + 1;
        // Upstream's values: a 32nd of the range, 16 to 128 ports.
        let kept = (count / 32).clamp(16, 128);
        let port = random_order(count, kept)
            .filter_map(|offset| u16::try_from(offset).ok())
            .map(|offset| first + offset)
            .find(|port| !self.ports.contains(port))?;
        self.ports.insert(port);
        Some(port)
    }

    fn free_address(&self, service_range: &str) -> Option<String> {
        let (start, size) = range(service_range)?;
        let usable = size - 2;
        // Upstream's values: a 16th of the range, 16 to 256 addresses.
        let kept = if size > 16 { (size / 16).clamp(16, 256) } else { 0 };
        random_order(usable, kept)
            .map(|offset| Ipv4Addr::from(start + 1 + offset).to_string())
            .find(|address| !self.addresses.contains(address))
    }
}

/// Returns all numbers below `count`, starting at a random one. The first `kept` come last: they
/// are reserved for services that request a certain value.
fn random_order(count: u32, kept: u32) -> impl Iterator<Item = u32> {
    let from = |start: u32, end: u32| {
        let count = end - start;
        let first = u32::try_from(crate::random::below(count.into())).unwrap_or_default();
        (0..count).map(move |step| start + (first + step) % count)
    };
    let kept = kept.min(count);
    from(kept, count).chain(from(0, kept))
}

fn number(value: &Value) -> Option<u16> {
    value.as_u64().and_then(|port| u16::try_from(port).ok()).filter(|port| *port != 0)
}

/// Prepares a new service for validation: rejects duplicate node ports, which are allocated first,
/// and calls [`prepare_health`].
pub(crate) fn prepare(api: &Api, service: &mut Value) -> Result<(), ApiError> {
    if let Some(index) = service::reused_node_port(service) {
        let causes = service::refuse_node_port(service, index, None);
        return Err(invalid(service, &causes)?);
    }
    prepare_health(api, service)
}

/// Allocates the health check node port of a service, which validation requires.
pub(crate) fn prepare_health(api: &Api, service: &mut Value) -> Result<(), ApiError> {
    if !service::needs_health_port(service) {
        return Ok(());
    }
    let mut allocated = Allocated::by_others(api, service)?;
    match number(&service["spec"]["healthCheckNodePort"]) {
        Some(port) if allocated.ports.contains(&port) => {
            return Err(invalid(service, &service::refuse_health_port(service))?);
        }
        Some(_) => {}
        None => {
            let port = allocated.free_port();
            let port = port.ok_or_else(|| ApiError::internal("no node port is free"))?;
            service::set_health_port(service, port);
        }
    }
    Ok(())
}

fn invalid(service: &Value, causes: &Causes) -> Result<ApiError, ApiError> {
    let name = service["metadata"]["name"].as_str().unwrap_or_default();
    Ok(ApiError::invalid(core_resource("services")?, name, causes))
}

/// Allocates the addresses and ports of a service, or returns why a requested one is not available.
/// Runs after validation, so that requested values are well-formed.
pub(crate) fn allocate(api: &Api, service: &mut Value) -> Result<(), ApiError> {
    let services = core_resource("services")?;
    let name = service["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    let service_range = &api.shared.options.service_range;
    let mut allocated = Allocated::by_others(api, service)?;
    let invalid = |causes| ApiError::invalid(services, &name, &causes);
    let none_left = |what: &str| ApiError::internal(format!("no {what} is free"));
    let causes = service::refuse_families(service);
    if !causes.is_empty() {
        return Err(invalid(causes));
    }
    let address = match service::requested_address(service) {
        AddressRequest::None => None,
        AddressRequest::Any => Some(
            allocated.free_address(service_range).ok_or_else(|| none_left("service address"))?,
        ),
        AddressRequest::This(address) => {
            let offset = range(service_range)
                .zip(address.parse::<Ipv4Addr>().ok())
                .and_then(|((start, size), at)| Some((u32::from(at).checked_sub(start)?, size)));
            let reason = match offset {
                Some((offset, size)) if offset == 0 || offset + 1 == size => {
                    Some(AddressRefusal::Edge)
                }
                Some((offset, size)) if offset < size => {
                    allocated.addresses.contains(&address).then_some(AddressRefusal::Taken)
                }
                _ => Some(AddressRefusal::OutOfRange),
            };
            if let Some(reason) = reason {
                let causes = service::refuse_address(service, reason, service_range);
                return Err(invalid(causes));
            }
            Some(address)
        }
    };
    service::set_address(service, address.as_deref());
    let ports = service["spec"]["ports"].as_array().cloned().unwrap_or_default();
    for (index, port) in ports.iter().enumerate() {
        let Some(port) = number(&port["nodePort"]) else { continue };
        let outside = !(NODE_PORTS.0..=NODE_PORTS.1).contains(&port);
        if outside || allocated.ports.contains(&port) {
            let range = outside.then_some(NODE_PORTS);
            return Err(invalid(service::refuse_node_port(service, index, range)));
        }
    }
    allocated.ports.extend(ports.iter().filter_map(|port| number(&port["nodePort"])));
    let mut given = service::node_ports(service);
    for index in service::unset_node_ports(service) {
        let number = ports.get(index).and_then(|port| port["port"].as_i64()).unwrap_or(0);
        let port = given.get(&number).copied().or_else(|| allocated.free_port());
        let port = port.ok_or_else(|| none_left("node port"))?;
        service::set_node_port(service, index, port);
        given.insert(number, port);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reserved_values_are_allocated_last() {
        let order: Vec<u32> = random_order(254, 16).collect();
        assert!(order[..238].iter().all(|offset| *offset >= 16), "{order:?}");
        let mut all = order;
        all.sort_unstable();
        assert!(all.into_iter().eq(0..254));
        assert!(random_order(2, 16).all(|offset| offset < 2));
        assert_eq!(random_order(0, 0).count(), 0);
    }

    #[test]
    fn ranges_are_parsed_and_start_with_our_address() {
        assert_eq!(first_address("10.0.0.0/24"), "10.0.0.1");
        assert_eq!(first_address("10.43.7.9/16"), "10.43.0.1");
        assert_eq!(first_address("nonsense"), "10.0.0.1");
        assert_eq!(range("10.0.0.0/31"), None);
        assert_eq!(range("0.0.0.0/0"), None);
    }
}
