//! Every field of KubeletConfiguration (`kubelet.config.k8s.io/v1beta1`, Kubernetes 1.34 to 1.37)
//! and of Berth's own: the type of its value, and its effect in Berth.
//!
//! Main items: [`FIELDS`] and [`Effect`]. A name that is not in the table is an error.
//! `docs/guide/configuration.md` lists the same fields for users, and a test compares the two.
//! Limits of values are in `checks`.

use serde_json::Value;

use super::duration_of;

/// The type of a value, as upstream's decoder has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Type {
    /// A typed reader checks the value.
    Own,
    Bool,
    Int32,
    Text,
    Duration,
    Texts,
    Map,
    Maps,
}

/// The effect of a field in Berth.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Effect {
    Acted,
    /// Berth acts on a part of the field. The text names the part.
    Partly(&'static str),
    /// Berth does not act on the field. The values listed, as JSON, describe the behaviour of Berth
    /// and need no warning. Neither do values that are empty or zero.
    Ignored(&'static [&'static str]),
}
use Effect::{Acted, Ignored, Partly};
use Type::{Bool, Duration, Int32, Map, Maps, Own, Text, Texts};

/// Sorted by name.
pub(super) const FIELDS: &[(&str, Type, Effect)] = &[
    ("address", Text, Acted),
    ("allowedUnsafeSysctls", Texts, Acted),
    ("apiVersion", Own, Acted),
    ("authentication", Map, Partly("x509.clientCAFile, webhook.enabled and anonymous.enabled")),
    ("authorization", Map, Partly("mode")),
    ("cgroupDriver", Own, Acted),
    ("cgroupRoot", Own, Acted),
    ("cgroupsPerQOS", Own, Ignored(&["true"])),
    ("clusterDNS", Texts, Acted),
    ("clusterDomain", Text, Acted),
    ("configMapAndSecretChangeDetectionStrategy", Text, Ignored(&["\"Watch\""])),
    ("containerLogMaxFiles", Int32, Acted),
    ("containerLogMaxSize", Text, Acted),
    ("containerLogMaxWorkers", Int32, Ignored(&["1"])),
    ("containerLogMonitorInterval", Duration, Acted),
    ("containerRuntimeEndpoint", Own, Acted),
    ("contentType", Text, Ignored(&["\"application/vnd.kubernetes.protobuf\""])),
    ("cpuCFSQuota", Own, Acted),
    ("cpuCFSQuotaPeriod", Own, Acted),
    ("cpuManagerPolicy", Own, Acted),
    ("cpuManagerPolicyOptions", Own, Acted),
    ("cpuManagerReconcilePeriod", Own, Acted),
    ("crashLoopBackOff", Map, Ignored(&["{\"maxContainerRestartPeriod\": \"5m\"}"])),
    ("draManagerReconcilePeriod", Duration, Ignored(&["\"1m\""])),
    ("enableContentionProfiling", Bool, Ignored(&["false"])),
    ("enableControllerAttachDetach", Bool, Acted),
    ("enableDebugFlagsHandler", Bool, Ignored(&["true", "false"])),
    ("enableDebuggingHandlers", Bool, Ignored(&["true"])),
    ("enableProfilingHandler", Bool, Ignored(&["true", "false"])),
    ("enableServer", Bool, Ignored(&["true"])),
    ("enableSystemLogHandler", Bool, Ignored(&["true", "false"])),
    ("enableSystemLogQuery", Bool, Ignored(&["false"])),
    ("enforceNodeAllocatable", Own, Partly("pods and none")),
    ("eventBurst", Int32, Ignored(&["100"])),
    ("eventRecordQPS", Int32, Ignored(&["50"])),
    ("evictionHard", Own, Acted),
    ("evictionMaxPodGracePeriod", Int32, Acted),
    ("evictionMinimumReclaim", Own, Acted),
    ("evictionPressureTransitionPeriod", Duration, Acted),
    ("evictionSoft", Own, Acted),
    ("evictionSoftGracePeriod", Own, Acted),
    ("failCgroupV1", Own, Acted),
    ("failSwapOn", Own, Acted),
    ("featureGates", Own, Acted),
    ("fileCheckFrequency", Duration, Acted),
    ("hairpinMode", Text, Ignored(&["\"promiscuous-bridge\""])),
    ("healthzBindAddress", Text, Ignored(&["\"127.0.0.1\""])),
    ("healthzPort", Int32, Ignored(&["10248"])),
    ("httpCheckFrequency", Duration, Ignored(&["\"20s\""])),
    ("imageGCHighThresholdPercent", Int32, Acted),
    ("imageGCLowThresholdPercent", Int32, Acted),
    ("imageMaximumGCAge", Duration, Acted),
    ("imageMinimumGCAge", Duration, Acted),
    (
        "imagePullCredentialsVerificationPolicy",
        Text,
        Ignored(&["\"NeverVerifyPreloadedImages\"", "\"NeverVerify\""]),
    ),
    ("imageServiceEndpoint", Text, Ignored(&[])),
    ("iptablesDropBit", Int32, Ignored(&["15"])),
    ("iptablesMasqueradeBit", Int32, Ignored(&["14"])),
    ("kernelMemcgNotification", Bool, Ignored(&["false"])),
    ("kind", Own, Acted),
    ("kubeAPIBurst", Int32, Ignored(&["100"])),
    ("kubeAPIQPS", Int32, Ignored(&["50"])),
    ("kubeReserved", Own, Acted),
    ("kubeReservedCgroup", Own, Ignored(&[])),
    ("kubeletCgroups", Text, Ignored(&[])),
    ("localStorageCapacityIsolation", Bool, Acted),
    (
        "logging",
        Map,
        Ignored(&[
            "{\"format\": \"text\", \"flushFrequency\": \"5s\", \"verbosity\": 2}",
            "{\"format\": \"text\", \"flushFrequency\": \"5s\"}",
            "{\"format\": \"text\"}",
        ]),
    ),
    ("makeIPTablesUtilChains", Bool, Ignored(&["true", "false"])),
    ("maxOpenFiles", Int32, Ignored(&["1000000"])),
    ("maxParallelImagePulls", Int32, Acted),
    ("maxPods", Own, Acted),
    ("memoryManagerPolicy", Own, Acted),
    ("memoryReservationPolicy", Text, Ignored(&["\"None\""])),
    ("memorySwap", Own, Acted),
    ("memoryThrottlingFactor", Own, Acted),
    ("mergeDefaultEvictionSettings", Own, Acted),
    ("nodeLeaseDurationSeconds", Int32, Acted),
    ("nodeStatusMaxImages", Int32, Acted),
    ("nodeStatusReportFrequency", Duration, Acted),
    ("nodeStatusUpdateFrequency", Duration, Acted),
    ("oomScoreAdj", Int32, Ignored(&["-999"])),
    ("podCIDR", Text, Ignored(&[])),
    ("podLogsDir", Text, Partly("berth agent; berth up keeps logs below --data-dir")),
    ("podPidsLimit", Own, Acted),
    ("podsPerCore", Own, Acted),
    ("port", Int32, Acted),
    ("preloadedImagesVerificationAllowlist", Texts, Ignored(&[])),
    ("protectKernelDefaults", Bool, Ignored(&["false"])),
    ("providerID", Text, Acted),
    ("qosReserved", Own, Ignored(&[])),
    ("readOnlyPort", Int32, Ignored(&[])),
    ("registerNode", Bool, Acted),
    ("registerWithTaints", Maps, Acted),
    ("registryBurst", Int32, Ignored(&["10"])),
    ("registryPullQPS", Int32, Ignored(&["5"])),
    ("reservedMemory", Own, Acted),
    ("reservedSystemCPUs", Own, Acted),
    ("resolvConf", Text, Acted),
    ("rotateCertificates", Bool, Ignored(&["false"])),
    ("runOnce", Bool, Ignored(&["false"])),
    ("runtimeRequestTimeout", Duration, Ignored(&["\"2m\""])),
    ("seccompDefault", Bool, Acted),
    ("serializeImagePulls", Bool, Acted),
    ("serverTLSBootstrap", Bool, Ignored(&["false"])),
    ("showHiddenMetricsForVersion", Text, Ignored(&[])),
    ("shutdownGracePeriod", Duration, Ignored(&[])),
    ("shutdownGracePeriodByPodPriority", Maps, Ignored(&[])),
    ("shutdownGracePeriodCriticalPods", Duration, Ignored(&[])),
    ("singleProcessOOMKill", Own, Acted),
    ("staticPodPath", Own, Acted),
    ("staticPodURL", Text, Ignored(&[])),
    ("staticPodURLHeader", Map, Ignored(&[])),
    ("streamingConnectionIdleTimeout", Duration, Ignored(&["\"4h\""])),
    ("syncFrequency", Duration, Ignored(&["\"1m\""])),
    ("systemCgroups", Text, Ignored(&[])),
    ("systemReserved", Own, Acted),
    ("systemReservedCgroup", Own, Ignored(&[])),
    ("tlsCertFile", Text, Partly("berth agent; berth up makes certificates of its own")),
    ("tlsCipherSuites", Texts, Ignored(&[])),
    ("tlsCurvePreferences", Texts, Ignored(&[])),
    ("tlsMinVersion", Text, Ignored(&["\"VersionTLS12\""])),
    ("tlsPrivateKeyFile", Text, Partly("berth agent; berth up makes certificates of its own")),
    ("topologyManagerPolicy", Own, Acted),
    ("topologyManagerPolicyOptions", Own, Acted),
    ("topologyManagerScope", Own, Acted),
    ("tracing", Map, Ignored(&[])),
    ("userNamespaces", Map, Ignored(&[])),
    (
        "volumePluginDir",
        Text,
        Ignored(&["\"/usr/libexec/kubernetes/kubelet-plugins/volume/exec/\""]),
    ),
    ("volumeStatsAggPeriod", Duration, Ignored(&["\"1m\""])),
    // Berth's own.
    ("windowsAffinity", Own, Acted),
];

/// The names of all fields.
pub(super) fn names() -> Vec<&'static str> {
    FIELDS.iter().map(|(name, ..)| *name).collect()
}

/// The names of the fields that have a typed reader.
pub(super) fn typed() -> Vec<&'static str> {
    FIELDS.iter().filter(|(_, kind, _)| *kind == Own).map(|(name, ..)| *name).collect()
}

/// Reports whether a value of a field without effect requests something else than Berth does.
pub(super) fn differs(value: &Value, quiet: &[&str]) -> bool {
    let is_quiet =
        |text: &&str| serde_json::from_str(text).is_ok_and(|usual: Value| is_same(value, &usual));
    // The zero value of a switch that is on by default disables something.
    let is_off = *value == Value::Bool(false) && quiet.contains(&"true");
    !(quiet.iter().any(is_quiet) || (is_zero(value) && !is_off))
}

/// Nesting is bounded by the YAML reader.
fn is_same(one: &Value, other: &Value) -> bool {
    match (one, other) {
        (Value::Object(one), Value::Object(other)) => {
            one.len() == other.len()
                && one
                    .iter()
                    .all(|(name, value)| other.get(name).is_some_and(|other| is_same(value, other)))
        }
        (Value::String(text), Value::String(other)) => {
            text == other || duration_of(text).is_some_and(|time| Some(time) == duration_of(other))
        }
        _ => one == other,
    }
}

/// Nesting is bounded by the YAML reader.
fn is_zero(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(on) => !on,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => {
            text.is_empty() || duration_of(text).is_some_and(|time| time.is_zero())
        }
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.values().all(is_zero),
    }
}
