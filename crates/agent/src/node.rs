//! The Node object of this machine: what it is, has and offers ([`object()`], [`status()`]), how it is
//! kept true in the API ([`run()`]), how the runtime is ([`runtime`]), and the [`environment`] that pods of
//! this node share.
//!
//! ```text
//!   facts, configuration ─┐
//!   runtime, images       ├──▶ status ──differs, or 5 min passed──▶ patch     lease, every 10 s
//!   pressure, report     ─┘
//! ```
//!
//! The object and its conditions are pure functions of [`Description`] and [`Observation`]; only
//! `describe`, `run`, `runtime` and `images` touch the world. Whether there is pressure is eviction's to
//! say. Cordons and taints of others are left as they are.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use host::facts::{Identity, Memory};
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
pub use describe::{Given, describe, node_name};
pub use devices::former_devices;
pub use object::{object, status};
pub use resources::{allocatable, capacity};
pub use run::{Sources, Takeover, run};
pub use runtime::RuntimeHealth;
pub use settings::{EVERY_ADDRESS, Settings, SettingsError};

/// What stays as it is while the agent runs.
#[derive(Debug, Clone)]
pub struct Description {
    pub name: String,
    pub hostname: String,
    pub os: OsName,
    /// As Go calls it: `amd64`.
    pub architecture: String,
    pub identity: Identity,
    /// The first one is the node's own.
    pub addresses: Vec<IpAddr>,
    /// Beside the usual ones.
    pub labels: BTreeMap<String, String>,
    /// What the agent says it is.
    pub version: String,
    /// What the agent can do that matters to schedulers.
    pub declared_features: Vec<String>,
    /// Huge pages the kernel knows, in bytes.
    pub huge_page_sizes: Vec<u64>,
    pub config: KubeletConfig,
    pub settings: Settings,
}

/// What is looked at again for every status.
#[derive(Debug, Clone)]
pub struct Observation {
    pub memory: Memory,
    /// Bytes of the file system that pods are on.
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

/// What the node is short of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Pressure {
    pub memory: bool,
    pub disk: bool,
    pub pids: bool,
}

/// An image that is on the node.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Image {
    pub id: String,
    pub digests: Vec<String>,
    pub tags: Vec<String>,
    pub bytes: u64,
    /// Not to be removed: the runtime's own.
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

/// The architecture this was built for, as Go calls it.
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

/// How Go calls an operating system.
#[must_use]
pub fn os_name(os: OsName) -> &'static str {
    match os {
        OsName::Linux => "linux",
        OsName::Windows => "windows",
    }
}

/// A field of an object as a list.
fn list(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

#[cfg(test)]
mod recorded;
#[cfg(test)]
mod tests;
