//! Environment variables that name services: [`of_services`].
//!
//! The service `kubernetes` is always there; the others of the pod's namespace where the pod wants
//! them. Headless services have no address to name.

use std::collections::BTreeMap;
use std::net::SocketAddr;

/// A service, as far as variables speak of it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Service {
    pub namespace: String,
    pub name: String,
    /// `None` or empty for headless ones.
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

/// Where the API server's own service is, and how it is called.
const API_SERVICE: (&str, &str) = ("default", "kubernetes");

impl Service {
    fn is_api(&self) -> bool {
        (self.namespace.as_str(), self.name.as_str()) == API_SERVICE
    }

    /// The service with the API where it really answers: its own service names that address instead
    /// of one that nothing routes to. Others stay as they are.
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

/// The variables a pod of `namespace` gets, by name.
#[must_use]
pub fn of_services(services: &[Service], namespace: &str, links: bool) -> BTreeMap<String, String> {
    let has_address = |service: &&Service| !matches!(service.cluster_ip.as_str(), "" | "None");
    // A service of the namespace takes the place of the API's if it is called the same.
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
            // The first port stands for the service.
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
