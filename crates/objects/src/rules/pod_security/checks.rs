//! The checks of the Pod Security Standards, one function each, in the order of their results:
//! baseline before restricted, each sorted by name.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{Level, Violation};
use crate::go;

const DEFAULT_CAPABILITIES: [&str; 13] = [
    "AUDIT_WRITE",
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    "KILL",
    "MKNOD",
    "NET_BIND_SERVICE",
    "SETFCAP",
    "SETGID",
    "SETPCAP",
    "SETUID",
    "SYS_CHROOT",
];

/// Kernel parameters that a pod may set, and the first version that allows them.
const SAFE_SYSCTLS: [(&str, u32); 12] = [
    ("kernel.shm_rmid_forced", 0),
    ("net.ipv4.ip_local_port_range", 0),
    ("net.ipv4.tcp_syncookies", 0),
    ("net.ipv4.ping_group_range", 0),
    ("net.ipv4.ip_unprivileged_port_start", 0),
    ("net.ipv4.ip_local_reserved_ports", 27),
    ("net.ipv4.tcp_keepalive_time", 29),
    ("net.ipv4.tcp_fin_timeout", 29),
    ("net.ipv4.tcp_keepalive_intvl", 29),
    ("net.ipv4.tcp_keepalive_probes", 29),
    ("net.ipv4.tcp_rmem", 32),
    ("net.ipv4.tcp_wmem", 32),
];

/// Volumes that restricted pods may use.
const ALLOWED_VOLUMES: [&str; 8] = [
    "configMap",
    "csi",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "persistentVolumeClaim",
    "projected",
    "secret",
];

/// The other volumes by their reported name; one that is not listed is `unknown`.
const RESTRICTED_VOLUMES: [&str; 21] = [
    "hostPath",
    "gcePersistentDisk",
    "awsElasticBlockStore",
    "gitRepo",
    "nfs",
    "iscsi",
    "glusterfs",
    "rbd",
    "flexVolume",
    "cinder",
    "cephfs",
    "flocker",
    "fc",
    "azureFile",
    "vsphereVolume",
    "quobyte",
    "azureDisk",
    "photonPersistentDisk",
    "portworxVolume",
    "scaleIO",
    "storageos",
];

const APP_ARMOR_ANNOTATION: &str = "container.apparmor.security.beta.kubernetes.io/";
const SECCOMP_POD_ANNOTATION: &str = "seccomp.security.alpha.kubernetes.io/pod";
const SECCOMP_CONTAINER_ANNOTATION: &str = "container.seccomp.security.alpha.kubernetes.io/";

/// A pod as the checks see it.
struct Subject<'a> {
    annotations: &'a Value,
    spec: &'a Value,
    version: u32,
}

type Check = fn(&Subject<'_>) -> Option<Violation>;

/// The checks of baseline, and the version from which restricted has a stricter one instead.
const BASELINE: [(Check, Option<u32>); 12] = [
    (app_armor, None),
    (capabilities_baseline, Some(22)),
    (host_namespaces, None),
    (host_paths, Some(0)),
    (host_ports, None),
    (probe_hosts, None),
    (privileged, None),
    (proc_mount_baseline, None),
    (se_linux, None),
    (seccomp_baseline, Some(19)),
    (sysctls, None),
    (host_process, None),
];

/// The additional checks of restricted, and their first version.
const RESTRICTED: [(Check, u32); 7] = [
    (privilege_escalation, 8),
    (capabilities_restricted, 22),
    (proc_mount_restricted, 35),
    (restricted_volumes, 0),
    (run_as_non_root, 0),
    (run_as_user, 23),
    (seccomp_restricted, 19),
];

pub(super) fn run(level: Level, version: u32, metadata: &Value, spec: &Value) -> Vec<Violation> {
    let annotations = metadata.get("annotations").unwrap_or(&Value::Null);
    let subject = Subject { annotations, spec, version };
    let restricted = level == Level::Restricted;
    let baseline = BASELINE
        .iter()
        .filter(|(_, replaced)| !(restricted && replaced.is_some_and(|since| version >= since)));
    let mut violations: Vec<Violation> =
        baseline.filter_map(|(check, _)| check(&subject)).collect();
    if restricted {
        let further = RESTRICTED.iter().filter(|(_, since)| version >= *since);
        violations.extend(further.filter_map(|(check, _)| check(&subject)));
    }
    violations
}

impl<'a> Subject<'a> {
    fn containers(&self) -> impl Iterator<Item = &'a Value> {
        let spec = self.spec;
        ["initContainers", "containers", "ephemeralContainers"]
            .into_iter()
            .filter_map(move |list| spec.get(list)?.as_array())
            .flatten()
    }

    fn volumes(&self) -> impl Iterator<Item = &'a Value> {
        self.spec.get("volumes").and_then(Value::as_array).into_iter().flatten()
    }

    /// Returns the names of the containers for which `is` is true.
    fn containers_that(&self, is: impl Fn(&'a Value) -> bool) -> Vec<&'a str> {
        self.containers().filter(|container| is(container)).map(name).collect()
    }

    /// From version 1.25 checks that do not apply to Windows are skipped there.
    fn is_windows(&self) -> bool {
        self.version >= 25 && text(self.spec, &["os", "name"]) == Some("windows")
    }

    /// From version 1.35 a pod in a user namespace may run as root.
    fn has_own_users(&self) -> bool {
        self.version >= 35 && get(self.spec, &["hostUsers"]) == Some(&Value::Bool(false))
    }
}

fn get<'a>(value: &'a Value, path: &[&str]) -> Option<&'a Value> {
    path.iter().try_fold(value, |value, field| value.get(field))
}

fn text<'a>(value: &'a Value, path: &[&str]) -> Option<&'a str> {
    get(value, path)?.as_str()
}

fn context<'a>(holder: &'a Value, path: &[&str]) -> Option<&'a Value> {
    get(holder.get("securityContext")?, path)
}

fn is(holder: &Value, path: &[&str], value: bool) -> bool {
    context(holder, path) == Some(&Value::Bool(value))
}

fn name(container: &Value) -> &str {
    container.get("name").and_then(Value::as_str).unwrap_or_default()
}

fn strings<'a>(holder: &'a Value, path: &[&str]) -> impl Iterator<Item = &'a str> {
    let list = context(holder, path).and_then(Value::as_array);
    list.into_iter().flatten().filter_map(Value::as_str)
}

fn plural(one: &'static str, many: &'static str, count: usize) -> &'static str {
    if count == 1 { one } else { many }
}

fn quoted<'a>(words: impl IntoIterator<Item = &'a str>) -> String {
    words.into_iter().map(go::quoted).collect::<Vec<_>>().join(", ")
}

/// `containers "a", "b"`.
fn named(containers: &[&str]) -> String {
    let word = plural("container", "containers", containers.len());
    format!("{word} {}", quoted(containers.iter().copied()))
}

/// `pod and containers "a", "b"`.
fn setters(pod: bool, containers: &[&str]) -> String {
    match (pod, containers) {
        (true, []) => "pod".to_owned(),
        (true, containers) => format!("pod and {}", named(containers)),
        (false, containers) => named(containers),
    }
}

fn app_armor(subject: &Subject<'_>) -> Option<Violation> {
    let bad = |holder: &'_ Value| {
        let kind = context(holder, &["appArmorProfile", "type"])?.as_str()?.to_owned();
        (!matches!(kind.as_str(), "RuntimeDefault" | "Localhost")).then_some(kind)
    };
    let mut values: BTreeSet<String> = subject.containers().filter_map(&bad).collect();
    let containers = subject.containers_that(|container| bad(container).is_some());
    let of_pod = bad(subject.spec);
    let mut who = Vec::new();
    if of_pod.is_some() {
        who.push("pod".to_owned());
    }
    values.extend(of_pod);
    if !containers.is_empty() {
        who.push(named(&containers));
    }
    let mut shown: Vec<String> = values.into_iter().collect();
    let mut annotations: Vec<String> = subject
        .annotations
        .as_object()
        .into_iter()
        .flatten()
        .filter(|(key, _)| key.starts_with(APP_ARMOR_ANNOTATION))
        .filter_map(|(key, value)| Some((key, value.as_str()?)))
        .filter(|(_, value)| {
            !value.is_empty() && *value != "runtime/default" && !value.starts_with("localhost/")
        })
        .map(|(key, value)| format!("{key}={}", go::quoted(value)))
        .collect();
    if !annotations.is_empty() {
        annotations.sort();
        who.push(plural("annotation", "annotations", annotations.len()).to_owned());
        shown.append(&mut annotations);
    }
    (!who.is_empty()).then(|| Violation {
        reason: plural("forbidden AppArmor profile", "forbidden AppArmor profiles", shown.len()),
        detail: format!(
            "{} must not set AppArmor profile type to {}",
            who.join(" and "),
            quoted(shown.iter().map(String::as_str))
        ),
    })
}

fn capabilities_baseline(subject: &Subject<'_>) -> Option<Violation> {
    let added = |container: &'_ Value| -> Vec<String> {
        strings(container, &["capabilities", "add"])
            .filter(|capability| !DEFAULT_CAPABILITIES.contains(capability))
            .map(str::to_owned)
            .collect()
    };
    let containers = subject.containers_that(|container| !added(container).is_empty());
    let all: BTreeSet<String> = subject.containers().flat_map(added).collect();
    (!containers.is_empty()).then(|| Violation {
        reason: "non-default capabilities",
        detail: format!(
            "{} must not include {} in securityContext.capabilities.add",
            named(&containers),
            quoted(all.iter().map(String::as_str))
        ),
    })
}

fn host_namespaces(subject: &Subject<'_>) -> Option<Violation> {
    let shared: Vec<String> = ["hostNetwork", "hostPID", "hostIPC"]
        .into_iter()
        .filter(|field| subject.spec.get(field) == Some(&Value::Bool(true)))
        .map(|field| format!("{field}=true"))
        .collect();
    (!shared.is_empty()).then(|| Violation { reason: "host namespaces", detail: shared.join(", ") })
}

fn host_paths(subject: &Subject<'_>) -> Option<Violation> {
    let volumes: Vec<&str> =
        subject.volumes().filter(|volume| volume.get("hostPath").is_some()).map(name).collect();
    (!volumes.is_empty()).then(|| Violation {
        reason: "hostPath volumes",
        detail: format!(
            "{} {}",
            plural("volume", "volumes", volumes.len()),
            quoted(volumes.iter().copied())
        ),
    })
}

fn host_ports(subject: &Subject<'_>) -> Option<Violation> {
    let ports = |container: &'_ Value| -> Vec<String> {
        let ports = container.get("ports").and_then(Value::as_array).into_iter().flatten();
        let numbers = ports.filter_map(|port| port.get("hostPort")?.as_i64());
        numbers.filter(|number| *number != 0).map(|number| number.to_string()).collect()
    };
    let containers = subject.containers_that(|container| !ports(container).is_empty());
    let all: BTreeSet<String> = subject.containers().flat_map(ports).collect();
    (!containers.is_empty()).then(|| {
        let all: Vec<&str> = all.iter().map(String::as_str).collect();
        Violation {
            reason: "hostPort",
            detail: format!(
                "{} {} {} {}",
                named(&containers),
                plural("uses", "use", containers.len()),
                plural("hostPort", "hostPorts", all.len()),
                all.join(", ")
            ),
        }
    })
}

fn probe_hosts(subject: &Subject<'_>) -> Option<Violation> {
    if subject.version < 34 {
        return None;
    }
    const HANDLERS: [&[&str]; 5] = [
        &["livenessProbe"],
        &["readinessProbe"],
        &["startupProbe"],
        &["lifecycle", "postStart"],
        &["lifecycle", "preStop"],
    ];
    let hosts = |container: &'_ Value| -> Vec<String> {
        let handlers = HANDLERS.into_iter().filter_map(|path| get(container, path));
        handlers
            .flat_map(|handler| {
                ["httpGet", "tcpSocket"]
                    .into_iter()
                    .filter_map(|kind| text(handler, &[kind, "host"]))
            })
            .filter(|host| !host.is_empty())
            .map(str::to_owned)
            .collect()
    };
    let containers: BTreeSet<&str> =
        subject.containers_that(|container| !hosts(container).is_empty()).into_iter().collect();
    (!containers.is_empty()).then(|| {
        let all: BTreeSet<String> = subject.containers().flat_map(hosts).collect();
        let containers: Vec<&str> = containers.into_iter().collect();
        Violation {
            reason: "probe or lifecycle host",
            detail: format!(
                "{} {} {} {}",
                named(&containers),
                plural("uses", "use", containers.len()),
                plural("probe or lifecycle host", "probe or lifecycle hosts", all.len()),
                quoted(all.iter().map(String::as_str))
            ),
        }
    })
}

fn privileged(subject: &Subject<'_>) -> Option<Violation> {
    let containers = subject.containers_that(|container| is(container, &["privileged"], true));
    (!containers.is_empty()).then(|| Violation {
        reason: "privileged",
        detail: format!("{} must not set securityContext.privileged=true", named(&containers)),
    })
}

fn proc_mount_baseline(subject: &Subject<'_>) -> Option<Violation> {
    if subject.has_own_users() { None } else { proc_mount_restricted(subject) }
}

fn proc_mount_restricted(subject: &Subject<'_>) -> Option<Violation> {
    let other = |container: &'_ Value| {
        let kind = context(container, &["procMount"])?.as_str()?.to_owned();
        (kind != "Default").then_some(kind)
    };
    let containers = subject.containers_that(|container| other(container).is_some());
    let kinds: BTreeSet<String> = subject.containers().filter_map(other).collect();
    (!containers.is_empty()).then(|| Violation {
        reason: "procMount",
        detail: format!(
            "{} must not set securityContext.procMount to {}",
            named(&containers),
            quoted(kinds.iter().map(String::as_str))
        ),
    })
}

fn valid_seccomp(holder: &Value) -> Option<Result<(), String>> {
    let profile = context(holder, &["seccompProfile"])?;
    let kind = profile.get("type").and_then(Value::as_str).unwrap_or_default();
    let valid = matches!(kind, "Localhost" | "RuntimeDefault");
    Some(if valid { Ok(()) } else { Err(kind.to_owned()) })
}

/// Returns the profiles that are not allowed.
fn bad_seccomp(subject: &Subject<'_>) -> Option<Violation> {
    let bad = |holder: &'_ Value| valid_seccomp(holder)?.err();
    let containers = subject.containers_that(|container| bad(container).is_some());
    let of_pod = bad(subject.spec);
    if containers.is_empty() && of_pod.is_none() {
        return None;
    }
    let who = setters(of_pod.is_some(), &containers);
    let kinds: BTreeSet<String> = subject.containers().filter_map(bad).chain(of_pod).collect();
    Some(Violation {
        reason: "seccompProfile",
        detail: format!(
            "{who} must not set securityContext.seccompProfile.type to {}",
            quoted(kinds.iter().map(String::as_str))
        ),
    })
}

fn seccomp_baseline(subject: &Subject<'_>) -> Option<Violation> {
    if subject.version >= 19 {
        return bad_seccomp(subject);
    }
    let mut forbidden = BTreeSet::new();
    let mut look = |key: String| {
        if let Some(value) = subject.annotations.get(&key).and_then(Value::as_str) {
            let valid = matches!(value, "runtime/default" | "docker/default")
                || value.starts_with("localhost/");
            if !valid {
                forbidden.insert(format!("{key}={}", go::quoted(value)));
            }
        }
    };
    look(SECCOMP_POD_ANNOTATION.to_owned());
    for container in subject.containers() {
        look(format!("{SECCOMP_CONTAINER_ANNOTATION}{}", name(container)));
    }
    (!forbidden.is_empty()).then(|| {
        let forbidden: Vec<String> = forbidden.into_iter().collect();
        Violation {
            reason: "seccompProfile",
            detail: format!(
                "forbidden {} {}",
                plural("annotation", "annotations", forbidden.len()),
                forbidden.join(", ")
            ),
        }
    })
}

fn se_linux(subject: &Subject<'_>) -> Option<Violation> {
    let mut types = BTreeSet::new();
    let (mut user, mut role) = (false, false);
    let mut is_bad = |holder: &Value| {
        let Some(options) = context(holder, &["seLinuxOptions"]) else { return false };
        let part = |field: &str| options.get(field).and_then(Value::as_str).unwrap_or_default();
        let mut bad = false;
        let kind = part("type");
        let allowed = matches!(kind, "" | "container_t" | "container_init_t" | "container_kvm_t")
            || (subject.version >= 31 && kind == "container_engine_t");
        if !allowed {
            bad = true;
            types.insert(kind.to_owned());
        }
        if !part("user").is_empty() {
            bad = true;
            user = true;
        }
        if !part("role").is_empty() {
            bad = true;
            role = true;
        }
        bad
    };
    let of_pod = is_bad(subject.spec);
    let containers: Vec<&str> =
        subject.containers().filter(|container| is_bad(container)).map(name).collect();
    if !of_pod && containers.is_empty() {
        return None;
    }
    let mut data = Vec::new();
    if !types.is_empty() {
        let word = plural("type", "types", types.len());
        data.push(format!("{word} {}", quoted(types.iter().map(String::as_str))));
    }
    if user {
        data.push("user may not be set".to_owned());
    }
    if role {
        data.push("role may not be set".to_owned());
    }
    Some(Violation {
        reason: "seLinuxOptions",
        detail: format!(
            "{} set forbidden securityContext.seLinuxOptions: {}",
            setters(of_pod, &containers),
            data.join("; ")
        ),
    })
}

fn sysctls(subject: &Subject<'_>) -> Option<Violation> {
    let sysctls = context(subject.spec, &["sysctls"]).and_then(Value::as_array);
    let forbidden: Vec<&str> = sysctls
        .into_iter()
        .flatten()
        .map(name)
        .filter(|name| {
            let safe = SAFE_SYSCTLS.iter().find(|(safe, _)| safe == name);
            safe.is_none_or(|(_, since)| subject.version < *since)
        })
        .collect();
    (!forbidden.is_empty())
        .then(|| Violation { reason: "forbidden sysctls", detail: forbidden.join(", ") })
}

fn host_process(subject: &Subject<'_>) -> Option<Violation> {
    const PATH: [&str; 2] = ["windowsOptions", "hostProcess"];
    let containers = subject.containers_that(|container| is(container, &PATH, true));
    let of_pod = is(subject.spec, &PATH, true);
    (of_pod || !containers.is_empty()).then(|| Violation {
        reason: "hostProcess",
        detail: format!(
            "{} must not set securityContext.windowsOptions.hostProcess=true",
            setters(of_pod, &containers)
        ),
    })
}

fn privilege_escalation(subject: &Subject<'_>) -> Option<Violation> {
    if subject.is_windows() {
        return None;
    }
    let containers = subject.containers_that(|c| !is(c, &["allowPrivilegeEscalation"], false));
    (!containers.is_empty()).then(|| Violation {
        reason: "allowPrivilegeEscalation != false",
        detail: format!(
            "{} must set securityContext.allowPrivilegeEscalation=false",
            named(&containers)
        ),
    })
}

fn capabilities_restricted(subject: &Subject<'_>) -> Option<Violation> {
    if subject.is_windows() {
        return None;
    }
    let keeping = subject.containers_that(|container| {
        !strings(container, &["capabilities", "drop"]).any(|capability| capability == "ALL")
    });
    let added = |container: &'_ Value| -> Vec<String> {
        strings(container, &["capabilities", "add"])
            .filter(|capability| *capability != "NET_BIND_SERVICE")
            .map(str::to_owned)
            .collect()
    };
    let adding = subject.containers_that(|container| !added(container).is_empty());
    let mut details = Vec::new();
    if !keeping.is_empty() {
        details.push(format!(
            "{} must set securityContext.capabilities.drop=[\"ALL\"]",
            named(&keeping)
        ));
    }
    if !adding.is_empty() {
        let all: BTreeSet<String> = subject.containers().flat_map(added).collect();
        details.push(format!(
            "{} must not include {} in securityContext.capabilities.add",
            named(&adding),
            quoted(all.iter().map(String::as_str))
        ));
    }
    (!details.is_empty())
        .then(|| Violation { reason: "unrestricted capabilities", detail: details.join("; ") })
}

fn restricted_volumes(subject: &Subject<'_>) -> Option<Violation> {
    let mut types = BTreeSet::new();
    let mut volumes = Vec::new();
    for volume in subject.volumes() {
        if ALLOWED_VOLUMES.iter().any(|kind| volume.get(kind).is_some()) {
            continue;
        }
        volumes.push(name(volume));
        let kind = RESTRICTED_VOLUMES.iter().find(|kind| volume.get(kind).is_some());
        types.insert(kind.copied().unwrap_or("unknown"));
    }
    (!volumes.is_empty()).then(|| Violation {
        reason: "restricted volume types",
        detail: format!(
            "{} {} {} {} {}",
            plural("volume", "volumes", volumes.len()),
            quoted(volumes.iter().copied()),
            plural("uses", "use", volumes.len()),
            plural("restricted volume type", "restricted volume types", types.len()),
            quoted(types)
        ),
    })
}

fn run_as_non_root(subject: &Subject<'_>) -> Option<Violation> {
    const PATH: [&str; 1] = ["runAsNonRoot"];
    if subject.has_own_users() {
        return None;
    }
    let reason = "runAsNonRoot != true";
    let of_pod = is(subject.spec, &PATH, false);
    let explicit = subject.containers_that(|container| is(container, &PATH, false));
    if of_pod || !explicit.is_empty() {
        let who = setters(of_pod, &explicit);
        let detail = format!("{who} must not set securityContext.runAsNonRoot=false");
        return Some(Violation { reason, detail });
    }
    if is(subject.spec, &PATH, true) {
        return None;
    }
    let implicit = subject.containers_that(|container| context(container, &PATH).is_none());
    (!implicit.is_empty()).then(|| Violation {
        reason,
        detail: format!("pod or {} must set securityContext.runAsNonRoot=true", named(&implicit)),
    })
}

fn run_as_user(subject: &Subject<'_>) -> Option<Violation> {
    if subject.has_own_users() {
        return None;
    }
    let is_root =
        |holder: &Value| context(holder, &["runAsUser"]).and_then(Value::as_i64) == Some(0);
    let containers = subject.containers_that(is_root);
    let of_pod = is_root(subject.spec);
    (of_pod || !containers.is_empty()).then(|| Violation {
        reason: "runAsUser=0",
        detail: format!("{} must not set runAsUser=0", setters(of_pod, &containers)),
    })
}

fn seccomp_restricted(subject: &Subject<'_>) -> Option<Violation> {
    if subject.is_windows() {
        return None;
    }
    let bad = bad_seccomp(subject);
    if bad.is_some() || valid_seccomp(subject.spec) == Some(Ok(())) {
        return bad;
    }
    let implicit = subject.containers_that(|container| valid_seccomp(container).is_none());
    (!implicit.is_empty()).then(|| Violation {
        reason: "seccompProfile",
        detail: format!(
            "pod or {} must set securityContext.seccompProfile.type to \"RuntimeDefault\" or \
             \"Localhost\"",
            named(&implicit)
        ),
    })
}
