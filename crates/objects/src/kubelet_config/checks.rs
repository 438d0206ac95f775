//! Limits of single values and of combinations, as in upstream's ValidateKubeletConfiguration and
//! with its texts.
//!
//! Main entries: [`types`], [`values`], [`together`] and [`without_effect`]. Fields that depend on
//! feature gates or on the machine are checked by `placement::configured`.

use std::time::Duration;

use super::fields::{Effect, FIELDS, Type, differs};
use super::{Enforcement, KubeletConfig, read_duration};
use crate::duration;
use crate::quantity::Quantity;
use crate::rules::names;
use crate::yaml::read::{At, Findings, Object};

/// An integer with limits. Upstream's message has `{}` in place of the value.
#[derive(Clone, Copy)]
struct Limit {
    field: &'static str,
    least: i64,
    most: i64,
    /// Zero stands for the default.
    zero_is_default: bool,
    message: &'static str,
}

const fn limit(field: &'static str, least: i64, most: i64, message: &'static str) -> Limit {
    Limit { field, least, most, zero_is_default: false, message }
}

const fn or_zero(limit: Limit) -> Limit {
    Limit { zero_is_default: true, ..limit }
}

/// The maximum of the type of most fields.
const HIGHEST: i64 = i32::MAX as i64;

const LIMITS: &[Limit] = &[
    limit("containerLogMaxFiles", 2, HIGHEST, "containerLogMaxFiles must be greater than 1"),
    limit(
        "containerLogMaxWorkers",
        1,
        HIGHEST,
        "containerLogMaxWorkers must be greater than or equal to 1",
    ),
    limit("eventBurst", 0, HIGHEST, "eventBurst (--event-burst) {} must not be a negative number"),
    limit(
        "eventRecordQPS",
        0,
        HIGHEST,
        "eventRecordQPS (--event-qps) {} must not be a negative number",
    ),
    limit(
        "healthzPort",
        0,
        65_535,
        "healthzPort (--healthz-port) {} must be between 1 and 65535, inclusive",
    ),
    limit(
        "imageGCHighThresholdPercent",
        0,
        100,
        "imageGCHighThresholdPercent (--image-gc-high-threshold) {} must be between 0 and 100, \
         inclusive",
    ),
    limit(
        "imageGCLowThresholdPercent",
        0,
        100,
        "imageGCLowThresholdPercent (--image-gc-low-threshold) {} must be between 0 and 100, \
         inclusive",
    ),
    limit(
        "iptablesDropBit",
        0,
        31,
        "iptablesDropBit (--iptables-drop-bit) {} must be between 0 and 31, inclusive",
    ),
    limit(
        "iptablesMasqueradeBit",
        0,
        31,
        "iptablesMasqueradeBit (--iptables-masquerade-bit) {} must be between 0 and 31, inclusive",
    ),
    limit(
        "kubeAPIBurst",
        0,
        HIGHEST,
        "kubeAPIBurst (--kube-api-burst) {} must not be a negative number",
    ),
    limit("kubeAPIQPS", 0, HIGHEST, "kubeAPIQPS (--kube-api-qps) {} must not be a negative number"),
    limit(
        "maxOpenFiles",
        0,
        i64::MAX,
        "maxOpenFiles (--max-open-files) {} must not be a negative number",
    ),
    limit(
        "maxParallelImagePulls",
        1,
        HIGHEST,
        "maxParallelImagePulls {} must be a positive number",
    ),
    limit("maxPods", 0, HIGHEST, "maxPods (--max-pods) {} must not be a negative number"),
    or_zero(limit(
        "nodeLeaseDurationSeconds",
        1,
        HIGHEST,
        "nodeLeaseDurationSeconds must be greater than 0",
    )),
    limit(
        "nodeStatusMaxImages",
        -1,
        HIGHEST,
        "nodeStatusMaxImages (--node-status-max-images) {} must be -1 or greater",
    ),
    limit(
        "oomScoreAdj",
        -1000,
        1000,
        "oomScoreAdj (--oom-score-adj) {} must be between -1000 and 1000, inclusive",
    ),
    limit(
        "podsPerCore",
        0,
        HIGHEST,
        "podsPerCore (--pods-per-core) {} must not be a negative number",
    ),
    or_zero(limit("port", 1, 65_535, "port (--port) {} must be between 1 and 65535, inclusive")),
    limit(
        "readOnlyPort",
        0,
        65_535,
        "readOnlyPort (--read-only-port) {} must be between 0 and 65535, inclusive",
    ),
    limit(
        "registryBurst",
        0,
        HIGHEST,
        "registryBurst (--registry-burst) {} must not be a negative number",
    ),
    limit(
        "registryPullQPS",
        0,
        HIGHEST,
        "registryPullQPS (--registry-qps) {} must not be a negative number",
    ),
];

/// The keywords that a field accepts.
const CHOICES: &[(&str, &str, &[&str])] = &[
    (
        "hairpinMode",
        "hairpinMode (--hairpin-mode)",
        &["none", "hairpin-veth", "promiscuous-bridge"],
    ),
    (
        "imagePullCredentialsVerificationPolicy",
        "imagePullCredentialsVerificationPolicy",
        &[
            "NeverVerify",
            "NeverVerifyPreloadedImages",
            "NeverVerifyAllowlistedImages",
            "AlwaysVerify",
        ],
    ),
    ("memoryReservationPolicy", "memoryReservationPolicy", &["None", "TieredReservation"]),
];

fn invalid(at: &At<'_>, message: impl AsRef<str>, findings: &mut Findings) {
    at.error(format!("invalid configuration: {}", message.as_ref()), findings);
}

/// Reads an integer within the limits of its field. Zero is `None` where it stands for the default.
pub(super) fn number(object: &Object<'_>, field: &str, findings: &mut Findings) -> Option<i64> {
    let at = object.field(field)?;
    let Some(limit) = LIMITS.iter().find(|limit| limit.field == field) else {
        return at.integer(i32::MIN.into(), HIGHEST, findings);
    };
    let number = at.integer(i64::from(i32::MIN), limit.most.max(HIGHEST), findings)?;
    if number == 0 && limit.zero_is_default {
        return None;
    }
    if (limit.least..=limit.most).contains(&number) {
        return Some(number);
    }
    invalid(&at, limit.message.replace("{}", &number.to_string()), findings);
    None
}

/// Checks the types of all fields without a typed reader, and the limits of numbers.
pub(super) fn types(object: &Object<'_>, findings: &mut Findings) {
    for (name, kind, _) in FIELDS {
        let Some(at) = object.field(name) else { continue };
        match kind {
            Type::Own => {}
            Type::Bool => {
                at.boolean(findings);
            }
            Type::Int32 => {
                number(object, name, findings);
            }
            Type::Text => {
                at.text(findings);
            }
            Type::Duration => {
                read_duration(&at, findings);
            }
            Type::Map => {
                at.object(findings);
            }
            Type::Texts => {
                for item in at.items(findings) {
                    item.text(findings);
                }
            }
            Type::Maps => {
                for item in at.items(findings) {
                    item.object(findings);
                }
            }
        }
    }
}

/// Returns the text of a field whose type has been checked. An empty text stands for the default.
fn text<'a>(object: &Object<'a>, field: &str) -> Option<(At<'a>, String)> {
    let at = object.field(field)?;
    let text = at.text(&mut Findings::default())?;
    (!text.is_empty()).then_some((at, text))
}

fn is_on(object: &Object<'_>, field: &str) -> Option<bool> {
    object.field(field)?.boolean(&mut Findings::default())
}

fn time(object: &Object<'_>, field: &str) -> Duration {
    let at = object.field(field);
    let time = at.and_then(|at| read_duration(&at, &mut Findings::default()));
    time.unwrap_or_default()
}

/// Checks single values that have the right type.
pub(super) fn values(object: &Object<'_>, findings: &mut Findings) {
    for field in ["address", "healthzBindAddress"] {
        if let Some((at, text)) = text(object, field)
            && let Some(problem) = names::ip(&text).first()
        {
            invalid(&at, format!("{field} {text:?} {problem}"), findings);
        }
    }
    for (field, named, choices) in CHOICES {
        if let Some((at, text)) = text(object, field)
            && !choices.contains(&text.as_str())
        {
            let (last, others) = choices.split_last().unwrap_or((&"", &[]));
            let others: Vec<String> = others.iter().map(|word| format!("{word:?}")).collect();
            let others = others.join(", ");
            let message = format!(
                "option {text:?} specified for {named}. Valid options are {others} or {last:?}"
            );
            invalid(&at, message, findings);
        }
    }
    if let Some((at, text)) = text(object, "containerLogMaxSize") {
        let bytes = Quantity::parse(&text).ok().and_then(|amount| amount.checked_value());
        if bytes.is_none_or(|bytes| bytes <= 0 || u64::try_from(bytes).is_err()) {
            at.expected("a quantity of bytes above zero such as 10Mi", findings);
        }
    }
    let least = Duration::from_secs(3);
    if let Some(at) = object.field("containerLogMonitorInterval")
        && read_duration(&at, &mut Findings::default()).is_some_and(|every| every < least)
    {
        let message = "containerLogMonitorInterval must be a positive time duration greater than or \
                       equal to 3s";
        invalid(&at, message, findings);
    }
    if let Some((at, path)) = text(object, "podLogsDir") {
        let problem = match path.as_str() {
            path if !is_absolute(path) => "must be absolute path",
            path if !is_clean(path) => "must be normalized",
            path if !path.is_ascii() => "mut contains ASCII characters only",
            _ => "",
        };
        if !problem.is_empty() {
            invalid(&at, format!("pod logs path {path:?} {problem}"), findings);
        }
    }
    if let Some(at) = object.field("runOnce")
        && is_on(object, "runOnce") == Some(true)
    {
        let message =
            "runOnce (--runOnce) true, Runonce mode has been deprecated and should not be set";
        invalid(&at, message, findings);
    }
    back_off(object, findings);
    sysctls(object, findings);
    taints(object, findings);
}

fn back_off(object: &Object<'_>, findings: &mut Findings) {
    const FIELD: &str = "maxContainerRestartPeriod";
    let mut quiet = Findings::default();
    let Some(at) = object.field("crashLoopBackOff") else { return };
    let Some(settings) = at.object(&mut quiet) else { return };
    settings.refuse_unknown(&[FIELD], findings);
    let Some(at) = settings.field(FIELD) else { return };
    let Some(longest) = read_duration(&at, findings) else { return };
    if !(Duration::from_secs(1)..=Duration::from_secs(300)).contains(&longest) {
        let message = format!(
            "CrashLoopBackOff.MaxContainerRestartPeriod (got: {} seconds) must be set between 1s and \
             300s",
            longest.as_secs_f64()
        );
        invalid(&at, message, findings);
    }
}

/// Only sysctls that are namespaced by the kernel can be set for one pod.
fn sysctls(object: &Object<'_>, findings: &mut Findings) {
    const NAMESPACED: [&str; 5] = ["kernel.shm", "kernel.msg", "kernel.sem", "fs.mqueue.", "net."];
    let Some(at) = object.field("allowedUnsafeSysctls") else { return };
    for item in at.items(&mut Findings::default()) {
        let Some(pattern) = item.text(&mut Findings::default()) else { continue };
        let name = pattern.trim_end_matches('*').replace('/', ".");
        if !NAMESPACED.iter().any(|start| name.starts_with(start)) {
            let message = format!("the sysctls {pattern:?} are not known to be namespaced");
            item.error(message, findings);
        }
    }
}

fn taints(object: &Object<'_>, findings: &mut Findings) {
    const EFFECTS: [&str; 3] = ["NoSchedule", "PreferNoSchedule", "NoExecute"];
    let Some(at) = object.field("registerWithTaints") else { return };
    for item in at.items(&mut Findings::default()) {
        let Some(taint) = item.object(&mut Findings::default()) else { continue };
        taint.refuse_unknown(&["effect", "key", "timeAdded", "value"], findings);
        if let Some(at) = taint.field("timeAdded") {
            invalid(&at, "taint.TimeAdded is not nil", findings);
        }
        let of = |name: &str, findings: &mut Findings| {
            taint.field(name).map(|at| at.text(findings)).unwrap_or_default()
        };
        let before = findings.errors.len();
        let [key, value, effect] = ["key", "value", "effect"].map(|name| of(name, findings));
        if findings.errors.len() > before {
            continue;
        }
        let (key, value) = (key.unwrap_or_default(), value.unwrap_or_default());
        let effect = effect.unwrap_or_default();
        let problems = names::label_key_problems(&key).into_iter();
        let problems = problems.chain(names::label_value_problems(&value));
        let mut problems: Vec<String> = problems.collect();
        if !EFFECTS.contains(&effect.as_str()) {
            problems.push(format!("effect {effect:?} is not one of {}", EFFECTS.join(", ")));
        }
        if !problems.is_empty() {
            let taint = format!("{key}={value}:{effect}");
            item.error(format!("invalid taint: {taint}: {}", problems.join("; ")), findings);
        }
    }
}

/// Reports whether a path is absolute on Linux or Windows: a configuration is checked for any
/// machine.
fn is_absolute(path: &str) -> bool {
    let mut start = path.chars();
    path.starts_with('/')
        || path.starts_with('\\')
        || (start.next().is_some_and(|drive| drive.is_ascii_alphabetic())
            && start.next() == Some(':')
            && matches!(start.next(), Some('\\' | '/')))
}

fn is_clean(path: &str) -> bool {
    let parts: Vec<&str> = path.split(['/', '\\']).collect();
    let inner = parts.get(1..).unwrap_or_default();
    path == "/" || inner.iter().all(|part| !matches!(*part, "" | "." | ".."))
}

/// Checks combinations of values.
pub(super) fn together(object: &Object<'_>, config: &KubeletConfig, findings: &mut Findings) {
    enforcement(object, config, findings);
    eviction(object, config, findings);
    images(object, findings);
    shutdown(object, findings);
    if let Some((at, _)) = text(object, "systemCgroups")
        && config.cgroup_root.is_none()
    {
        let message = "systemCgroups (--system-cgroups) was specified and cgroupRoot (--cgroup-root) \
                       was not specified";
        invalid(&at, message, findings);
    }
    if let Some(at) = object.field("reservedSystemCPUs")
        && config.reserved_system_cpus.is_some()
        && (config.system_reserved_cgroup.is_some() || config.kube_reserved_cgroup.is_some())
    {
        let message = "can't use reservedSystemCPUs (--reserved-cpus) with systemReservedCgroup \
                       (--system-reserved-cgroup) or kubeReservedCgroup (--kube-reserved-cgroup)";
        invalid(&at, message, findings);
    }
    if let Some(at) = object.field("enableSystemLogQuery")
        && is_on(object, "enableSystemLogQuery") == Some(true)
        && is_on(object, "enableSystemLogHandler") == Some(false)
    {
        invalid(&at, "enableSystemLogHandler is required for enableSystemLogQuery", findings);
    }
    let policy = text(object, "imagePullCredentialsVerificationPolicy").map(|(_, policy)| policy);
    if let Some(at) = object.field("preloadedImagesVerificationAllowlist")
        && !at.items(&mut Findings::default()).is_empty()
        && policy.as_deref() != Some("NeverVerifyAllowlistedImages")
    {
        let message = "can't set `preloadedImagesVerificationAllowlist` if \
                       `imagePullCredentialsVertificationPolicy` is not \
                       \"NeverVerifyAllowlistedImages\"";
        invalid(&at, message, findings);
    }
}

fn enforcement(object: &Object<'_>, config: &KubeletConfig, findings: &mut Findings) {
    use Enforcement::{
        KubeReserved, KubeReservedCompressible, None, SystemReserved, SystemReservedCompressible,
    };
    const FLAG: &str = "enforceNodeAllocatable (--enforce-node-allocatable)";
    let Some(at) = object.field("enforceNodeAllocatable") else { return };
    let wanted = &config.enforce_node_allocatable;
    let groups = [
        (
            [SystemReserved, SystemReservedCompressible],
            "systemReservedCgroup (--system-reserved-cgroup)",
            &config.system_reserved_cgroup,
        ),
        (
            [KubeReserved, KubeReservedCompressible],
            "kubeReservedCgroup (--kube-reserved-cgroup)",
            &config.kube_reserved_cgroup,
        ),
    ];
    for ([whole, compressible], field, cgroup) in groups {
        let (has_whole, has_part) = (wanted.contains(&whole), wanted.contains(&compressible));
        let pair = format!("\"{whole}\" and \"{compressible}\"");
        if has_whole && has_part {
            invalid(&at, format!("both {pair} cannot be specified together in {FLAG}"), findings);
        }
        if (has_whole || has_part) && cgroup.is_none() {
            let message = format!(
                "{field} must be specified when \"{whole}\" or \"{compressible}\" included in {FLAG}"
            );
            invalid(&at, message, findings);
        }
    }
    for (position, one) in wanted.iter().enumerate() {
        if wanted[..position].contains(one) {
            invalid(&at, format!("duplicated enforcements \"{one}\" in {FLAG}"), findings);
        } else if *one == None && wanted.len() > 1 {
            let message = format!(
                "{FLAG} may not contain additional enforcements when \"{one}\" is specified"
            );
            invalid(&at, message, findings);
        } else if *one != None && !config.cgroups_per_qos {
            let message = format!(
                "cgroupsPerQOS (--cgroups-per-qos) must be set to true when \"{one}\" contained in \
                 {FLAG}"
            );
            invalid(&at, message, findings);
        }
    }
}

fn eviction(object: &Object<'_>, config: &KubeletConfig, findings: &mut Findings) {
    let Some(at) = object.field("evictionSoft") else { return };
    for signal in config.eviction_soft.keys() {
        if !config.eviction_soft_grace_period.contains_key(signal) {
            let message =
                format!("grace period must be specified for the soft eviction threshold {signal}");
            at.error(message, findings);
        }
    }
}

fn images(object: &Object<'_>, findings: &mut Findings) {
    const HIGH: &str = "imageGCHighThresholdPercent";
    const LOW: &str = "imageGCLowThresholdPercent";
    let mut quiet = Findings::default();
    let high = number(object, HIGH, &mut quiet).unwrap_or(85);
    let low = number(object, LOW, &mut quiet).unwrap_or(80);
    if low >= high
        && let Some(at) = object.field(LOW).or_else(|| object.field(HIGH))
        && quiet.errors.is_empty()
    {
        let message = format!(
            "{LOW} (--image-gc-low-threshold) {low} must be less than {HIGH} \
             (--image-gc-high-threshold) {high}"
        );
        invalid(&at, message, findings);
    }
    let oldest = time(object, "imageMaximumGCAge");
    let youngest = Some(time(object, "imageMinimumGCAge")).filter(|age| !age.is_zero());
    let youngest = youngest.unwrap_or(Duration::from_secs(120));
    if let Some(at) = object.field("imageMaximumGCAge")
        && !oldest.is_zero()
        && oldest <= youngest
    {
        let [oldest, youngest] = [oldest, youngest].map(duration::render);
        let message =
            format!("imageMaximumGCAge {oldest} must be greater than imageMinimumGCAge {youngest}");
        invalid(&at, message, findings);
    }
    let parallel = number(object, "maxParallelImagePulls", &mut quiet).unwrap_or(1);
    if let Some(at) = object.field("maxParallelImagePulls")
        && parallel > 1
        && is_on(object, "serializeImagePulls") == Some(true)
    {
        let message = "maxParallelImagePulls cannot be larger than 1 unless SerializeImagePulls \
                       (--serialize-image-pulls) is set to false";
        invalid(&at, message, findings);
    }
}

fn shutdown(object: &Object<'_>, findings: &mut Findings) {
    const ALL: &str = "shutdownGracePeriod";
    const CRITICAL: &str = "shutdownGracePeriodCriticalPods";
    const BY_PRIORITY: &str = "shutdownGracePeriodByPodPriority";
    let (all, critical) = (time(object, ALL), time(object, CRITICAL));
    if let Some(at) = object.field(CRITICAL)
        && critical > all
    {
        let [all, critical] = [all, critical].map(duration::render);
        invalid(&at, format!("{CRITICAL} {critical} must be <= {ALL} {all}"), findings);
    }
    for (field, period) in [(ALL, all), (CRITICAL, critical)] {
        if let Some(at) = object.field(field)
            && !period.is_zero()
            && period < Duration::from_secs(1)
        {
            let period = duration::render(period);
            let message = format!("{field} {period} must be either zero or otherwise >= 1 sec");
            invalid(&at, message, findings);
        }
    }
    if let Some(at) = object.field(BY_PRIORITY)
        && !at.items(&mut Findings::default()).is_empty()
        && !(all.is_zero() && critical.is_zero())
    {
        let message = format!("Cannot specify both {BY_PRIORITY} and {ALL} at the same time");
        invalid(&at, message, findings);
    }
}

/// Warns about every field that requests something Berth does not do.
pub(super) fn without_effect(object: &Object<'_>, config: &KubeletConfig, findings: &mut Findings) {
    for (name, _, effect) in FIELDS {
        let Some(at) = object.field(name) else { continue };
        if let Effect::Ignored(quiet) = effect
            && differs(&at.node.to_json(), quiet)
        {
            at.warn("not supported by Berth: the field has no effect", findings);
        }
    }
    let unenforced = |one: &&Enforcement| !matches!(**one, Enforcement::Pods | Enforcement::None);
    if let Some(one) = config.enforce_node_allocatable.iter().find(unenforced)
        && let Some(at) = object.field("enforceNodeAllocatable")
    {
        let message = format!("\"{one}\" is not supported by Berth: only pods are held to a limit");
        at.warn(message, findings);
    }
}
