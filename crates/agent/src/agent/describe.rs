//! Who this machine is as a node: [`describe`].

use std::collections::BTreeMap;

use host::facts::addresses;
use host::os::facts as os;
use objects::KubeletConfig;
use objects::pod::OsName;

use crate::node::{self, Description, SettingsError};

/// The version of Kubernetes whose kubelet this agent stands in for; clients go by it.
const KUBERNETES: &str = "v1.37.0";

/// This machine as a node of this name, with a server on this port.
pub fn describe(
    config: &KubeletConfig,
    os_name: OsName,
    name: &str,
    port: u16,
) -> Result<Description, Vec<SettingsError>> {
    let identity = os::identity();
    let addresses = addresses::internal(&identity.hostname).into_iter().collect();
    Ok(Description {
        name: name.to_owned(),
        hostname: identity.hostname.clone(),
        os: os_name,
        architecture: node::architecture().to_owned(),
        identity,
        addresses,
        port,
        labels: BTreeMap::new(),
        version: format!("{KUBERNETES}+berth-{}", env!("CARGO_PKG_VERSION")),
        declared_features: Vec::new(),
        huge_page_sizes: os::huge_page_sizes(),
        config: config.clone(),
        settings: node::Settings::of(config)?,
    })
}
