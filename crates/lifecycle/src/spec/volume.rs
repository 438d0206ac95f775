//! Volumes that containers can mount.

use objects::Quantity;
use serde::Deserialize;
use serde_json::Value;

use super::LocalSource;

/// A volume with its name. One of the sources is set.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Volume {
    pub name: String,
    pub empty_dir: Option<EmptyDirSource>,
    pub host_path: Option<HostPathSource>,
    pub config_map: Option<ConfigMapSource>,
    pub secret: Option<SecretSource>,
    pub projected: Option<ProjectedSource>,
    #[serde(rename = "downwardAPI")]
    pub downward_api: Option<DownwardApiSource>,
    pub image: Option<ImageSource>,
    pub persistent_volume_claim: Option<ClaimSource>,
    pub ephemeral: Option<EphemeralSource>,
    pub csi: Option<CsiSource>,
    /// Sources that the agent cannot mount, by name.
    #[serde(flatten)]
    pub other: std::collections::BTreeMap<String, Value>,
}

#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct EmptyDirSource {
    /// Empty, `Memory`, `HugePages` or `HugePages-<size>`.
    pub medium: String,
    pub size_limit: Option<Quantity>,
}

#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct HostPathSource {
    pub path: String,
    #[serde(rename = "type")]
    pub kind: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct KeyToPath {
    pub key: String,
    pub path: String,
    pub mode: Option<i32>,
}

#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ConfigMapSource {
    pub name: String,
    pub items: Vec<KeyToPath>,
    pub default_mode: Option<i32>,
    pub optional: Option<bool>,
}

#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct SecretSource {
    pub secret_name: String,
    pub items: Vec<KeyToPath>,
    pub default_mode: Option<i32>,
    pub optional: Option<bool>,
}

#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ProjectedSource {
    pub sources: Vec<Projection>,
    pub default_mode: Option<i32>,
}

/// One source of a projected volume.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Projection {
    pub config_map: Option<ConfigMapSource>,
    /// Named `name` here and `secretName` in a volume.
    pub secret: Option<ConfigMapSource>,
    #[serde(rename = "downwardAPI")]
    pub downward_api: Option<DownwardApiSource>,
    pub service_account_token: Option<ServiceAccountTokenProjection>,
    /// Sources that the agent cannot project, by name.
    #[serde(flatten)]
    pub other: std::collections::BTreeMap<String, Value>,
}

#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ServiceAccountTokenProjection {
    pub audience: String,
    pub expiration_seconds: Option<i64>,
    pub path: String,
}

#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct DownwardApiSource {
    pub items: Vec<DownwardApiFile>,
    pub default_mode: Option<i32>,
}

#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct DownwardApiFile {
    pub path: String,
    pub field_ref: Option<FieldRef>,
    pub resource_field_ref: Option<ResourceFieldRef>,
    pub mode: Option<i32>,
}

#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct FieldRef {
    pub api_version: String,
    pub field_path: String,
}

#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ResourceFieldRef {
    pub container_name: String,
    pub resource: String,
    pub divisor: Option<Quantity>,
}

#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ImageSource {
    pub reference: String,
    pub pull_policy: String,
}

#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ClaimSource {
    pub claim_name: String,
    pub read_only: bool,
}

/// A claim that is created for the pod. The controller that creates it reads the template; the agent only
/// needs to know that there is one.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(default)]
pub struct EphemeralSource {}

#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(default)]
pub struct CsiSource {
    pub driver: String,
}

impl From<&SecretSource> for ConfigMapSource {
    fn from(secret: &SecretSource) -> ConfigMapSource {
        ConfigMapSource {
            name: secret.secret_name.clone(),
            items: secret.items.clone(),
            default_mode: secret.default_mode,
            optional: secret.optional,
        }
    }
}

impl From<&ConfigMapSource> for LocalSource {
    fn from(source: &ConfigMapSource) -> LocalSource {
        LocalSource { name: source.name.clone(), key: String::new(), optional: source.optional }
    }
}
