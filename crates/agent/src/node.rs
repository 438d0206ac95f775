//! The Node object of this machine: its contents ([`object()`], [`status()`]), the loop that keeps it up to
//! date in the API ([`run()`]), the state of the runtime ([`runtime`]), and the [`environment`] that all pods
//! of this node share.
//!
//! ```text
//!   facts, configuration ─┐
//!   runtime, images       ├──▶ status ──differs, or 5 min passed──▶ patch     lease, every 10 s
//!   pressure, report     ─┘
//! ```
//!
//! The object and its conditions are pure functions of [`Description`] and [`Observation`]; only
//! `describe`, `run`, `runtime` and `images` do I/O. Pressure is decided by eviction. Cordons and taints of
//! other writers are kept.

use lifecycle::eviction::Pressure;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use host::system::{Identity, Memory};
use objects::KubeletConfig;
use objects::pod::OsName;
use placement::report::NodeReport;
use serde_json::Value;

mod changes;
mod conditions;
mod describe;
mod devices;
pub mod environment;
pub mod images;
mod lease;
mod object;
pub mod qos_resources;
mod resources;
mod run;
pub mod runtime;
mod settings;

pub use conditions::{Conditions, conditions};
pub use describe::{NodeOptions, describe, node_name};
pub use devices::former_devices;
pub use object::{object, status};
pub use resources::{allocatable, capacity};
pub use run::{StatusInputs, Takeover, run};
pub use runtime::RuntimeHealth;
pub use settings::{EVERY_ADDRESS, Settings, SettingsError};

/// Properties that do not change while the agent runs.
#[derive(Debug, Clone)]
pub struct Description {
    pub name: String,
    pub hostname: String,
    pub os: OsName,
    /// Go's name: `amd64`.
    pub architecture: String,
    pub identity: Identity,
    /// The first one is the node's primary address.
    pub addresses: Vec<IpAddr>,
    /// Labels in addition to the usual ones.
    pub labels: BTreeMap<String, String>,
    /// The reported version of the agent.
    pub version: String,
    /// Features of the agent that schedulers depend on.
    pub declared_features: Vec<String>,
    /// Huge page sizes of the kernel in bytes.
    pub huge_page_sizes: Vec<u64>,
    pub config: KubeletConfig,
    pub settings: Settings,
}

/// Values that are read again for every status.
#[derive(Debug, Clone)]
pub struct Observation {
    pub memory: Memory,
    /// Size in bytes of the file system of the pods' directory.
    pub storage: u64,
    pub runtime: RuntimeHealth,
    pub images: Arc<Vec<Image>>,
    pub pressure: Pressure,
    pub report: Arc<NodeReport>,
    /// Devices of plug-ins, by resource.
    pub devices: BTreeMap<String, Devices>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Devices {
    pub all: u64,
    pub healthy: u64,
}

/// An image on the node.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Image {
    pub id: String,
    pub digests: Vec<String>,
    pub tags: Vec<String>,
    pub bytes: u64,
    /// Used by the runtime itself and never removed.
    pub pinned: bool,
}

impl From<cri::v1::Image> for Image {
    fn from(image: cri::v1::Image) -> Image {
        Image {
            id: image.id,
            digests: image.repo_digests,
            tags: image.repo_tags,
            bytes: image.size,
            pinned: image.pinned,
        }
    }
}

/// Returns the architecture of this build, with Go's name.
#[must_use]
pub fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "x86" => "386",
        "aarch64" => "arm64",
        "powerpc64" => "ppc64le",
        other => other,
    }
}

/// Returns Go's name of an operating system.
#[must_use]
pub fn os_name(os: OsName) -> &'static str {
    match os {
        OsName::Linux => "linux",
        OsName::Windows => "windows",
    }
}

/// Returns a field of an object as a list.
fn list(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

#[cfg(test)]
mod recorded;
#[cfg(test)]
mod tests;
