//! Users, groups and privileges of containers.

use serde::Deserialize;

#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PodSecurityContext {
    pub run_as_user: Option<i64>,
    pub run_as_group: Option<i64>,
    pub run_as_non_root: Option<bool>,
    pub supplemental_groups: Vec<i64>,
    pub supplemental_groups_policy: Option<String>,
    pub fs_group: Option<i64>,
    pub fs_group_change_policy: Option<String>,
    pub sysctls: Vec<Sysctl>,
    pub se_linux_options: Option<SeLinuxOptions>,
    pub seccomp_profile: Option<SeccompProfile>,
    pub app_armor_profile: Option<AppArmorProfile>,
    pub windows_options: Option<WindowsOptions>,
}

#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct SecurityContext {
    pub privileged: Option<bool>,
    pub allow_privilege_escalation: Option<bool>,
    pub read_only_root_filesystem: Option<bool>,
    pub run_as_user: Option<i64>,
    pub run_as_group: Option<i64>,
    pub run_as_non_root: Option<bool>,
    pub capabilities: Option<Capabilities>,
    pub proc_mount: Option<String>,
    pub se_linux_options: Option<SeLinuxOptions>,
    pub seccomp_profile: Option<SeccompProfile>,
    pub app_armor_profile: Option<AppArmorProfile>,
    pub windows_options: Option<WindowsOptions>,
}

#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Capabilities {
    pub add: Vec<String>,
    pub drop: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Sysctl {
    pub name: String,
    pub value: String,
}

#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct SeLinuxOptions {
    pub user: String,
    pub role: String,
    #[serde(rename = "type")]
    pub kind: String,
    pub level: String,
}

#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct SeccompProfile {
    #[serde(rename = "type")]
    pub kind: String,
    pub localhost_profile: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct AppArmorProfile {
    #[serde(rename = "type")]
    pub kind: String,
    pub localhost_profile: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct WindowsOptions {
    pub gmsa_credential_spec_name: Option<String>,
    pub gmsa_credential_spec: Option<String>,
    pub run_as_user_name: Option<String>,
    pub host_process: Option<bool>,
}
