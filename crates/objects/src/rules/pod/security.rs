//! Security contexts of pods and containers, HostProcess containers, user namespaces, and fields
//! that are not allowed for Windows. Also the rules for paths that must stay below a directory.

use serde_json::Value;

use super::super::names;
use super::containers::PodContext;
use super::{Scope, containers_of, for_each_container};
use crate::cursor::{BadValue, Causes, Cursor};
use crate::feature_gates::Gate;

const ID: &str = "must be between 0 and 2147483647, inclusive";
const WINDOWS: &str = "cannot be set for a windows pod";

const PROFILE_TYPES: [&str; 3] = ["Localhost", "RuntimeDefault", "Unconfined"];
/// `PATH_MAX` less the final zero.
const APP_ARMOR_LIMIT: usize = 4095;
const SYSCTL_LIMIT: usize = 253;
const SYSCTL: &str = "must have at most 253 characters and match regex \
    ^([a-z0-9]([-_a-z0-9]*[a-z0-9])?[\\./])*[a-z0-9]([-_a-z0-9]*[a-z0-9])?$";

const GMSA_LIMIT: usize = 64 << 10;
const USER_DOMAIN_LIMIT: usize = 256;
const USER_LIMIT: usize = 104;

/// Reports whether a path has `..` as one of its parts.
pub(super) fn has_backsteps(path: &str) -> bool {
    path.split('/').any(|part| part == "..")
}

/// Checks for a relative path without `..`.
pub(super) fn validate_descending_path(at: &Cursor<'_>, path: &str, causes: &mut Causes) {
    if path.starts_with('/') {
        causes.invalid_as(at, path, "must be a relative path");
    }
    validate_no_backsteps(at, path, causes);
}

pub(super) fn validate_no_backsteps(at: &Cursor<'_>, path: &str, causes: &mut Causes) {
    if has_backsteps(path) {
        causes.invalid_as(at, path, "must not contain '..'");
    }
}

/// Checks for a relative path without `..` that does not begin with two dots either: volume updates
/// use such names.
pub(super) fn validate_local_path(at: &Cursor<'_>, path: &str, causes: &mut Causes) {
    validate_descending_path(at, path, causes);
    if path.starts_with("..") && !path.starts_with("../") {
        causes.invalid_as(at, path, "must not start with '..'");
    }
}

fn validate_id(id: &Cursor<'_>, causes: &mut Causes) {
    if id.int().is_some_and(|id| !(0..=i64::from(i32::MAX)).contains(&id)) {
        causes.invalid(id, ID);
    }
}

fn choice(at: &Cursor<'_>, allowed: &[&str], causes: &mut Causes) {
    if at.is_set() && !allowed.contains(&at.text()) {
        causes.not_supported(at, allowed);
    }
}

pub(super) fn validate_pod_context(spec: &Cursor<'_>, scope: Scope, causes: &mut Causes) {
    let context = spec.field("securityContext");
    for field in ["fsGroup", "runAsUser", "runAsGroup"] {
        validate_id(&context.field(field), causes);
    }
    let groups = context.field("supplementalGroups");
    for group in groups.items() {
        validate_id(&group, causes);
    }
    let share = spec.field("shareProcessNamespace");
    if share.is_true() && spec.field("hostPID").is_true() {
        causes.invalid(&share, "ShareProcessNamespace and HostPID cannot both be enabled");
    }
    validate_sysctls(spec, &context.field("sysctls"), scope, causes);
    choice(&context.field("fsGroupChangePolicy"), &["Always", "OnRootMismatch"], causes);
    validate_seccomp(&context.field("seccompProfile"), causes);
    validate_windows_options(&context.field("windowsOptions"), causes);
    validate_app_armor(&context.field("appArmorProfile"), causes);
    choice(&context.field("supplementalGroupsPolicy"), &["Merge", "Strict"], causes);
    choice(&context.field("seLinuxChangePolicy"), &["MountOption", "Recursive"], causes);
}

fn is_sysctl(name: &str) -> bool {
    let word = |word: &str| {
        let end = |b: Option<&u8>| b.is_some_and(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
        let bytes = word.as_bytes();
        let inner =
            |b: &u8| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'-' | b'_');
        end(bytes.first()) && end(bytes.last()) && bytes.iter().all(inner)
    };
    name.len() <= SYSCTL_LIMIT && name.split(['.', '/']).all(word)
}

/// Returns the namespace of a kernel parameter.
fn sysctl_namespace(name: &str) -> Option<&'static str> {
    // With a slash before any dot, slashes separate the parts.
    let at = name.find(['.', '/'])?;
    let dotted = match name.as_bytes()[at] {
        b'/' => name.replace('/', "."),
        _ => name.to_owned(),
    };
    let name = dotted.as_str();
    if ["kernel.sem"].contains(&name)
        || ["kernel.shm", "kernel.msg", "fs.mqueue."].iter().any(|p| name.starts_with(p))
    {
        Some("ipc")
    } else if name.starts_with("net.") {
        Some("net")
    } else {
        None
    }
}

fn host_sysctl_detail(spec: &Value, name: &str) -> Option<&'static str> {
    let is = |field: &str| spec.get(field) == Some(&Value::Bool(true));
    match sysctl_namespace(name) {
        Some("net") if is("hostNetwork") => Some("may not be specified when 'hostNetwork' is true"),
        Some("ipc") if is("hostIPC") => Some("may not be specified when 'hostIPC' is true"),
        _ => None,
    }
}

pub(super) fn has_host_sysctls(spec: &Value) -> bool {
    let sysctls = spec.get("securityContext").and_then(|c| c.get("sysctls"));
    sysctls.and_then(Value::as_array).into_iter().flatten().any(|sysctl| {
        host_sysctl_detail(spec, sysctl["name"].as_str().unwrap_or_default()).is_some()
    })
}

fn validate_sysctls(spec: &Cursor<'_>, sysctls: &Cursor<'_>, scope: Scope, causes: &mut Causes) {
    let mut seen = std::collections::BTreeSet::new();
    for sysctl in sysctls.items() {
        let name = sysctl.field("name");
        let text = name.text();
        if text.is_empty() {
            causes.required(&name, "");
        } else if !is_sysctl(text) {
            causes.invalid(&name, SYSCTL);
        } else if seen.contains(text) {
            causes.duplicate(&name);
        }
        if !scope.host_sysctls
            && let Some(detail) = host_sysctl_detail(spec.value(), text)
        {
            causes.invalid(&name, detail);
        }
        seen.insert(text);
    }
}

fn validate_seccomp(profile: &Cursor<'_>, causes: &mut Causes) {
    if !profile.is_set() {
        return;
    }
    let kind = profile.field("type");
    match kind.text() {
        "" => causes.required(&kind, "type is required when seccompProfile is set"),
        text if PROFILE_TYPES.contains(&text) => {}
        _ => causes.not_supported(&kind, &PROFILE_TYPES),
    }
    let path = profile.field("localhostProfile");
    if kind.text() == "Localhost" {
        if path.is_set() {
            validate_descending_path(&path, path.text(), causes);
        } else {
            causes.required(&path, "must be set when seccomp type is Localhost");
        }
    } else if path.is_set() {
        let shown = BadValue::literal(format!(
            "{{\"Type\":{},\"LocalhostProfile\":{}}}",
            kind.value(),
            path.value()
        ));
        causes.invalid_as(&path, shown, "can only be set when seccomp type is Localhost");
    }
}

/// Validates an AppArmor profile that is not part of an object.
pub(super) fn app_armor_problems(profile: &Value) -> Causes {
    let mut causes = Causes::default();
    validate_app_armor(&Cursor::top(profile, ""), &mut causes);
    causes
}

fn validate_app_armor(profile: &Cursor<'_>, causes: &mut Causes) {
    if !profile.is_set() {
        return;
    }
    let (kind, path) = (profile.field("type"), profile.field("localhostProfile"));
    match kind.text() {
        "Localhost" => {
            let missing = "must be set when AppArmor type is Localhost";
            if !path.is_set() {
                return causes.required(&path, missing);
            }
            if path.text().trim() != path.text() {
                causes.invalid(&path, "must not be padded with whitespace");
            } else if path.text().is_empty() {
                causes.required(&path, missing);
            }
            if path.text().len() > APP_ARMOR_LIMIT {
                causes.too_long(&path, APP_ARMOR_LIMIT);
            }
        }
        "RuntimeDefault" | "Unconfined" => {
            if path.is_set() {
                causes.invalid(&path, "can only be set when AppArmor type is Localhost");
            }
        }
        "" => causes.required(&kind, "type is required when appArmorProfile is set"),
        _ => causes.not_supported(&kind, &PROFILE_TYPES),
    }
}

/// Validates a container's security context.
pub(super) fn validate_context(context: &Cursor<'_>, pod: &PodContext<'_>, causes: &mut Causes) {
    if !context.is_set() {
        return;
    }
    let privileged = context.field("privileged");
    if privileged.is_true() && !pod.scope.allow_privileged {
        causes.forbidden(&privileged, "disallowed by cluster policy");
    }
    validate_id(&context.field("runAsUser"), causes);
    validate_id(&context.field("runAsGroup"), causes);
    let proc_mount = context.field("procMount");
    choice(&proc_mount, &["Default", "Unmasked"], causes);
    if pod.host_users && proc_mount.text() == "Unmasked" {
        causes.invalid(&proc_mount, "`hostUsers` must be false to use `Unmasked`");
    }
    validate_seccomp(&context.field("seccompProfile"), causes);
    if context.field("allowPrivilegeEscalation").bool() == Some(false) {
        if privileged.is_true() {
            let detail = "cannot set `allowPrivilegeEscalation` to false and `privileged` to true";
            causes.invalid_as(context, render_context(context.value()), detail);
        }
        let capabilities = context.field("capabilities");
        let added = capabilities.field("add");
        for _ in added.items().filter(|capability| capability.text() == "CAP_SYS_ADMIN") {
            let detail = "cannot set `allowPrivilegeEscalation` to false and `capabilities.Add` \
                          CAP_SYS_ADMIN";
            causes.invalid_as(context, render_context(context.value()), detail);
        }
    }
    validate_windows_options(&context.field("windowsOptions"), causes);
    validate_app_armor(&context.field("appArmorProfile"), causes);
}

/// Renders a security context as upstream's messages do: every field, with its Go name.
fn render_context(context: &Value) -> BadValue {
    const FIELDS: [(&str, &str); 12] = [
        ("Capabilities", "capabilities"),
        ("Privileged", "privileged"),
        ("SELinuxOptions", "seLinuxOptions"),
        ("WindowsOptions", "windowsOptions"),
        ("RunAsUser", "runAsUser"),
        ("RunAsGroup", "runAsGroup"),
        ("RunAsNonRoot", "runAsNonRoot"),
        ("ReadOnlyRootFilesystem", "readOnlyRootFilesystem"),
        ("AllowPrivilegeEscalation", "allowPrivilegeEscalation"),
        ("ProcMount", "procMount"),
        ("SeccompProfile", "seccompProfile"),
        ("AppArmorProfile", "appArmorProfile"),
    ];
    let null = Value::Null;
    let fields = FIELDS.iter().map(|(go, field)| {
        let value = context.get(field).unwrap_or(&null);
        let shown = match (*field, value) {
            ("capabilities", Value::Object(capabilities)) => {
                let list = |field: &str| capabilities.get(field).unwrap_or(&null).to_string();
                format!("{{\"Add\":{},\"Drop\":{}}}", list("add"), list("drop"))
            }
            _ => value.to_string(),
        };
        format!("\"{go}\":{shown}")
    });
    BadValue::literal(format!("{{{}}}", fields.collect::<Vec<_>>().join(",")))
}

fn validate_windows_options(options: &Cursor<'_>, causes: &mut Causes) {
    if !options.is_set() {
        return;
    }
    let name = options.field("gmsaCredentialSpecName");
    if name.is_set() {
        names::report(causes, &name, &names::dns_subdomain(name.text()));
    }
    let spec = options.field("gmsaCredentialSpec");
    if spec.is_set() {
        if spec.text().is_empty() {
            causes.invalid(&spec, "gmsaCredentialSpec cannot be an empty string");
        } else if spec.text().len() > GMSA_LIMIT {
            causes.invalid(&spec, "gmsaCredentialSpec size must be under 64 KiB");
        }
    }
    let user = options.field("runAsUserName");
    if user.is_set() {
        validate_user_name(&user, causes);
    }
}

fn validate_user_name(at: &Cursor<'_>, causes: &mut Causes) {
    let text = at.text();
    if text.is_empty() {
        return causes.invalid(at, "runAsUserName cannot be an empty string");
    }
    if text.chars().any(|c| c.is_ascii_control()) {
        return causes.invalid(at, "runAsUserName cannot contain control characters");
    }
    let (domain, user) = match text.split_once('\\') {
        Some((_, user)) if user.contains('\\') => {
            return causes.invalid(at, "runAsUserName cannot contain more than one backslash");
        }
        Some((domain, user)) => (Some(domain), user),
        None => (None, text),
    };
    if domain.is_some_and(|domain| domain.len() >= USER_DOMAIN_LIMIT) {
        causes.invalid(at, "runAsUserName's Domain length must be under 256 characters");
    }
    if domain.is_some_and(|domain| !is_net_bios(domain) && !is_domain(domain)) {
        let detail = "runAsUserName's Domain doesn't match the NetBios nor the DNS format";
        causes.invalid(at, detail);
    }
    if user.is_empty() {
        causes.invalid(at, "runAsUserName's User cannot be empty");
    } else if user.len() > USER_LIMIT {
        let detail = "runAsUserName's User length must not be longer than 104 characters";
        causes.invalid(at, detail);
    }
    if !user.is_empty() && user.bytes().all(|b| matches!(b, b'.' | b' ')) {
        causes.invalid(at, "runAsUserName's User cannot contain only periods or spaces");
    }
    if user
        .contains(['"', '/', '\\', ':', ';', '|', '=', ',', '+', '*', '?', '<', '>', '@', '[', ']'])
    {
        let detail = "runAsUserName's User cannot contain the following characters: \
                      \"/\\:;|=,+*?<>@[]";
        causes.invalid(at, detail);
    }
}

fn is_net_bios(domain: &str) -> bool {
    let length = domain.chars().count();
    (1..=15).contains(&length)
        && !domain.starts_with('.')
        && !domain.contains(['\\', '/', ':', '*', '?', '"', '<', '>', '|'])
}

fn is_domain(domain: &str) -> bool {
    domain.split('.').all(|word| {
        let bytes = word.as_bytes();
        let end = |b: Option<&u8>| b.is_some_and(u8::is_ascii_alphanumeric);
        bytes.len() <= 63
            && end(bytes.first())
            && end(bytes.last())
            && bytes.iter().all(|b| b.is_ascii_alphanumeric() || *b == b'-')
    })
}

fn host_process(holder: &Value) -> Option<bool> {
    holder.get("securityContext")?.get("windowsOptions")?.get("hostProcess")?.as_bool()
}

/// Reports whether a pod or one of its containers sets HostProcess to true.
pub(super) fn uses_host_process(spec: &Value) -> bool {
    host_process(spec) == Some(true)
        || containers_of(spec).any(|container| host_process(container) == Some(true))
}

/// Checks that all containers or none are HostProcess containers, and that such a pod uses the
/// host's network.
pub(super) fn validate_host_process(spec: &Cursor<'_>, scope: Scope, causes: &mut Causes) {
    let of_pod = host_process(spec.value());
    let (mut host, mut all) = (0, 0);
    for_each_container(spec, |container| {
        all += 1;
        let own = host_process(container.value());
        if let (Some(pod), Some(own)) = (of_pod, own)
            && pod != own
        {
            let context = container.field("securityContext");
            let options = context.field("windowsOptions");
            let detail =
                format!("pod hostProcess value must be identical if both are specified, was {pod}");
            causes.invalid(&options.field("hostProcess"), &detail);
        }
        host += usize::from(own.or(of_pod) == Some(true));
    });
    if host == 0 {
        return;
    }
    if !scope.host_process {
        let gate = Gate::WindowsHostProcessContainers.name();
        let detail = format!("hostProcess may not be set when the {gate} feature gate is disabled");
        causes.forbidden(spec, &detail);
    }
    if host != all {
        let detail = "If pod contains any hostProcess containers then all containers must be \
                      HostProcess containers";
        causes.invalid_as(spec, "", detail);
    }
    if !spec.field("hostNetwork").is_true() {
        let detail = "hostNetwork must be true if pod contains any hostProcess containers";
        causes.invalid_as(&spec.field("hostNetwork"), false, detail);
    }
    if !scope.allow_privileged {
        causes.forbidden(spec, "hostProcess containers are disallowed by cluster policy");
    }
}

/// A pod in a user namespace cannot share namespaces of the node, nor use block devices, whose
/// owner is a user of the node.
pub(super) fn validate_host_users(spec: &Cursor<'_>, scope: Scope, causes: &mut Causes) {
    const DETAIL: &str = "when `hostUsers` is false";
    if spec.field("hostUsers").bool() != Some(false) {
        return;
    }
    // Upstream's messages spell two of the fields like the Go structures.
    for (field, called) in
        [("hostNetwork", "hostNetwork"), ("hostPID", "HostPID"), ("hostIPC", "HostIPC")]
    {
        if spec.field(field).is_true() {
            causes.forbidden(&spec.field(field).called(called), DETAIL);
        }
    }
    if scope.devices_in_user_namespace {
        return;
    }
    for_each_container(spec, |container| {
        let devices = container.field("volumeDevices");
        if !devices.is_empty() {
            causes.forbidden(&devices, DETAIL);
        }
    });
}

pub(super) fn has_devices_of_own_users(spec: &Value) -> bool {
    let devices = |container: &Value| {
        container.get("volumeDevices").and_then(Value::as_array).is_some_and(|d| !d.is_empty())
    };
    spec.get("hostUsers") == Some(&Value::Bool(false)) && containers_of(spec).any(devices)
}

/// Rejects fields that only apply to Linux.
pub(super) fn validate_windows(spec: &Cursor<'_>, causes: &mut Causes) {
    let context = spec.field("securityContext");
    let refuse = |at: &Cursor<'_>, causes: &mut Causes| {
        if at.is_set() {
            causes.forbidden(at, WINDOWS);
        }
    };
    refuse(&context.field("appArmorProfile"), causes);
    refuse(&context.field("seLinuxOptions"), causes);
    for field in ["hostUsers", "hostPID", "hostIPC"] {
        refuse(&spec.field(field), causes);
    }
    for field in ["seccompProfile", "fsGroup", "fsGroupChangePolicy", "sysctls"] {
        refuse(&context.field(field), causes);
    }
    refuse(&spec.field("shareProcessNamespace"), causes);
    for field in [
        "runAsUser",
        "runAsGroup",
        "supplementalGroups",
        "supplementalGroupsPolicy",
        "seLinuxChangePolicy",
    ] {
        refuse(&context.field(field), causes);
    }
    for_each_container(spec, |container| {
        let context = container.field("securityContext");
        for field in [
            "appArmorProfile",
            "seLinuxOptions",
            "seccompProfile",
            "capabilities",
            "readOnlyRootFilesystem",
            "privileged",
            "allowPrivilegeEscalation",
            "procMount",
            "runAsUser",
            "runAsGroup",
        ] {
            refuse(&context.field(field), causes);
        }
    });
}
