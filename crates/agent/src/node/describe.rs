//! This machine as a node: [`describe`] asks it once, when the agent starts.
//!
//! What the configuration does not say, such as the node's name, comes from the command line as
//! [`Given`] or from the machine. Waits for the resolver.

use std::collections::BTreeMap;
use std::net::IpAddr;

use host::facts::addresses;
use host::os::facts;
use objects::KubeletConfig;
use objects::pod::OsName;
use objects::rules::names::dns_subdomain;

use super::{Description, Settings, SettingsError, architecture};
use crate::runtime::fetch::VERSION;

/// What can be said otherwise than in the configuration.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Given {
    /// Instead of the machine's own name.
    pub name: Option<String>,
    pub addresses: Vec<IpAddr>,
    pub labels: BTreeMap<String, String>,
}

/// What schedulers and API servers go by, in order: a pod that needs one of these is not given a node that
/// does not declare it. Upstream's other ones are not declared: what they stand for is not done here, or
/// is not shown to be done in full.
const DECLARED_FEATURES: [&str; 2] =
    ["InPlacePodLevelResourcesVerticalScaling", "RestartAllContainersOnContainerExits"];

/// The node's name: the one that is given, or the machine's own, in lower case as upstream has it. An API
/// server refuses a node whose name is not a DNS subdomain, so other names are refused here.
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

/// Describes this machine. One without a network has no address, and is told without.
pub fn describe(config: KubeletConfig, given: Given) -> Result<Description, Vec<SettingsError>> {
    let settings = Settings::of(&config)?;
    let identity = facts::identity();
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
        huge_page_sizes: facts::huge_page_sizes(),
        config,
        settings,
    })
}
