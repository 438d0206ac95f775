//! Environment variables of services: [`of_services`].
//!
//! The service `kubernetes` is always included; the other services of the pod's namespace only if the pod
//! enables service links. Headless services have no address and are skipped.

use std::collections::BTreeMap;
use std::net::SocketAddr;

/// The properties of a service that variables use.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Service {
    pub namespace: String,
    pub name: String,
    /// `None` or empty for headless services.
    pub cluster_ip: String,
    pub ports: Vec<ServicePort>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ServicePort {
    pub name: String,
    pub port: u16,
    /// TCP if empty.
    pub protocol: String,
}

/// The namespace and name of the API server's own service.
const API_SERVICE: (&str, &str) = ("default", "kubernetes");

impl Service {
    fn is_api(&self) -> bool {
        (self.namespace.as_str(), self.name.as_str()) == API_SERVICE
    }

    /// Replaces the address of the API's own service by the one where the API listens, because nothing routes
    /// the cluster IP. Other services stay unchanged.
    #[must_use]
    pub fn with_api_at(mut self, address: SocketAddr) -> Service {
        if self.is_api() {
            self.cluster_ip = address.ip().to_string();
            for port in self.ports.iter_mut().take(1) {
                port.port = address.port();
            }
        }
        self
    }
}

/// Returns the variables of a pod in `namespace`, by name.
#[must_use]
pub fn of_services(services: &[Service], namespace: &str, links: bool) -> BTreeMap<String, String> {
    let has_address = |service: &&Service| !matches!(service.cluster_ip.as_str(), "" | "None");
    // A service of the namespace replaces the API's if it has the same name.
    let always = services.iter().filter(|service| service.is_api());
    let linked = services
        .iter()
        .filter(|service| links && service.namespace == namespace && !service.is_api());
    let mut variables = BTreeMap::new();
    let mut by_name: BTreeMap<&str, &Service> = BTreeMap::new();
    for service in always.chain(linked).filter(has_address) {
        by_name.insert(&service.name, service);
    }
    for service in by_name.values() {
        of_service(service, &mut variables);
    }
    variables
}

fn of_service(service: &Service, variables: &mut BTreeMap<String, String>) {
    let prefix = variable(&service.name);
    let host = &service.cluster_ip;
    variables.insert(format!("{prefix}_SERVICE_HOST"), host.clone());
    for (index, port) in service.ports.iter().enumerate() {
        let number = port.port.to_string();
        let protocol = if port.protocol.is_empty() { "TCP" } else { &port.protocol };
        let lower = protocol.to_lowercase();
        let url = if host.contains(':') {
            format!("{lower}://[{host}]:{number}")
        } else {
            format!("{lower}://{host}:{number}")
        };
        if index == 0 {
            // The first port represents the service.
            variables.insert(format!("{prefix}_SERVICE_PORT"), number.clone());
            variables.insert(format!("{prefix}_PORT"), url.clone());
        }
        if !port.name.is_empty() {
            let name = variable(&port.name);
            variables.insert(format!("{prefix}_SERVICE_PORT_{name}"), number.clone());
        }
        let of_port = format!("{prefix}_PORT_{number}_{}", protocol.to_uppercase());
        variables.insert(format!("{of_port}_PROTO"), lower);
        variables.insert(format!("{of_port}_PORT"), number);
        variables.insert(format!("{of_port}_ADDR"), host.clone());
        variables.insert(of_port, url);
    }
}

fn variable(name: &str) -> String {
    name.replace('-', "_").to_uppercase()
}
