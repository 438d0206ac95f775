//! This machine as a node: [`describe`] reads it once, when the agent starts.
//!
//! Values that the configuration does not have, such as the node's name, come from the command line as
//! [`NodeOptions`] or from the machine. Waits for the resolver.

use std::collections::BTreeMap;
use std::net::IpAddr;

use host::os::system;
use host::system::addresses;
use objects::KubeletConfig;
use objects::pod::OsName;
use objects::rules::names::dns_subdomain;

use super::{Description, Settings, SettingsError, architecture};
use crate::runtime::fetch::VERSION;

/// Values from outside the configuration.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NodeOptions {
    /// Replaces the machine's host name.
    pub name: Option<String>,
    pub addresses: Vec<IpAddr>,
    pub labels: BTreeMap<String, String>,
}

/// Features for schedulers and API servers, sorted: a pod that needs one of them is not bound to a node
/// that does not declare it. Upstream's other features are not declared, because they are not implemented
/// here or not proved to be complete.
const DECLARED_FEATURES: [&str; 2] =
    ["InPlacePodLevelResourcesVerticalScaling", "RestartAllContainersOnContainerExits"];

/// Returns the node's name: the given one, or the machine's host name, in lower case as upstream. Names
/// that are not DNS subdomains are refused here, because an API server refuses them.
pub fn node_name(given: Option<&str>, hostname: &str) -> Result<String, SettingsError> {
    let name = given.unwrap_or(hostname).trim().to_lowercase();
    match dns_subdomain(&name).first() {
        None => Ok(name),
        Some(problem) => Err(SettingsError {
            field: if given.is_some() { "--hostname-override" } else { "the machine's host name" },
            value: format!("{:?}", given.unwrap_or(hostname)),
            wanted: match given {
                Some(_) => format!("a node's name: {problem}"),
                None => format!("a node's name, or --hostname-override has to give one: {problem}"),
            },
        }),
    }
}

/// Describes this machine. A machine without a network has no address.
pub fn describe(
    config: KubeletConfig,
    given: NodeOptions,
) -> Result<Description, Vec<SettingsError>> {
    let settings = Settings::of(&config)?;
    let identity = system::identity();
    let name = node_name(given.name.as_deref(), &identity.hostname).map_err(|error| vec![error])?;
    let found = if given.addresses.is_empty() { addresses::internal(&name) } else { None };
    let mut addresses = given.addresses;
    addresses.extend(found);
    Ok(Description {
        hostname: name.clone(),
        name,
        os: if std::env::consts::OS == "windows" { OsName::Windows } else { OsName::Linux },
        architecture: architecture().to_owned(),
        identity,
        addresses,
        labels: given.labels,
        version: format!("v{VERSION}.0+berth-{}", env!("CARGO_PKG_VERSION")),
        declared_features: DECLARED_FEATURES.map(str::to_owned).into(),
        huge_page_sizes: system::huge_page_sizes(),
        config,
        settings,
    })
}
