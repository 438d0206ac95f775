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

use super::{Description, Settings, SettingsError, architecture};
use crate::fetch::VERSION;

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

/// Describes this machine. One without a network has no address, and is told without.
pub fn describe(config: KubeletConfig, given: Given) -> Result<Description, Vec<SettingsError>> {
    let settings = Settings::of(&config)?;
    let identity = facts::identity();
    let name = given.name.unwrap_or_else(|| identity.hostname.clone());
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
