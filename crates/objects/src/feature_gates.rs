//! Feature gates: which of upstream's gates are enabled.
//!
//! Main type: [`FeatureGates`]. Gates that change what Berth decides are a [`Gate`] with stage and
//! default as in Kubernetes 1.37; the other gates of a kubelet are known by name and have no
//! effect. The code that reads a gate decides its meaning.

use std::collections::BTreeMap;
use std::fmt;

use thiserror::Error;

use crate::suggest::nearest;
use crate::yaml::did_you_mean;

/// The maturity of a feature.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    Alpha,
    Beta,
    /// The feature is always on: the gate is accepted but cannot be disabled.
    Ga,
    Deprecated,
}

macro_rules! gates {
    ($($gate:ident, $name:literal, $stage:ident, $default:literal;)*) => {
        /// A gate that Berth acts on.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Gate { $(#[doc = concat!("`", $name, "`")] $gate,)* }

        impl Gate {
            /// All gates, in the order of the reference.
            pub const ALL: &'static [Gate] = &[$(Gate::$gate,)*];

            #[must_use]
            pub fn name(self) -> &'static str {
                match self { $(Gate::$gate => $name,)* }
            }

            #[must_use]
            pub fn stage(self) -> Stage {
                match self { $(Gate::$gate => Stage::$stage,)* }
            }

            #[must_use]
            pub fn default(self) -> bool {
                match self { $(Gate::$gate => $default,)* }
            }
        }
    };
}

gates! {
    CpuManagerPolicyAlphaOptions, "CPUManagerPolicyAlphaOptions", Alpha, false;
    CpuManagerPolicyBetaOptions, "CPUManagerPolicyBetaOptions", Beta, true;
    CpuManagerPolicyOptions, "CPUManagerPolicyOptions", Ga, true;
    TopologyManagerPolicyAlphaOptions, "TopologyManagerPolicyAlphaOptions", Alpha, false;
    TopologyManagerPolicyBetaOptions, "TopologyManagerPolicyBetaOptions", Beta, true;
    TopologyManagerPolicyOptions, "TopologyManagerPolicyOptions", Ga, true;
    WindowsCpuAndMemoryAffinity, "WindowsCPUAndMemoryAffinity", Alpha, false;
    WindowsHostNetwork, "WindowsHostNetwork", Deprecated, false;
    WindowsHostProcessContainers, "WindowsHostProcessContainers", Beta, true;
    WindowsGracefulNodeShutdown, "WindowsGracefulNodeShutdown", Beta, true;
    InPlacePodVerticalScaling, "InPlacePodVerticalScaling", Ga, true;
    InPlacePodVerticalScalingExclusiveCpus,
        "InPlacePodVerticalScalingExclusiveCPUs", Alpha, false;
    InPlacePodVerticalScalingExclusiveMemory,
        "InPlacePodVerticalScalingExclusiveMemory", Alpha, false;
    PodLevelResources, "PodLevelResources", Beta, true;
    PodLevelResourceManagers, "PodLevelResourceManagers", Beta, false;
    MemoryQos, "MemoryQoS", Beta, true;
    CustomCpuCfsQuotaPeriod, "CustomCPUCFSQuotaPeriod", Alpha, false;
    KubeletPodResourcesGet, "KubeletPodResourcesGet", Ga, true;
    DraNodeAllocatableResources, "DRANodeAllocatableResources", Alpha, false;
    TaintTolerationComparisonOperators, "TaintTolerationComparisonOperators", Alpha, false;
    QosResources, "QOSResources", Alpha, false;
    // A gate of Berth: upstream has no QoS-class resources yet.
    QosResourcesStrictNames, "QOSResourcesStrictNames", Beta, true;
}

const ALL_ALPHA: &str = "AllAlpha";
const ALL_BETA: &str = "AllBeta";

/// Gates that occur in real kubelet configurations and have no effect in Berth.
const WITHOUT_EFFECT: &[&str] = &[
    "APIServerIdentity",
    "AllowParsingUserUIDFromCertAuth",
    "AnyVolumeDataSource",
    "AuthorizeNodeWithSelectors",
    "CSIServiceAccountTokenSecrets",
    "CSIVolumeHealth",
    "ChangeContainerStatusOnKubeletRestart",
    "ClusterTrustBundle",
    "ClusterTrustBundleProjection",
    "ComponentFlagz",
    "ComponentStatusz",
    "ContainerCheckpoint",
    "ContainerRestartRules",
    "ContainerStopSignals",
    "CrossNamespaceVolumeDataSource",
    "DRAAdminAccess",
    "DRAConsumableCapacity",
    "DRADeviceBindingConditions",
    "DRADeviceTaints",
    "DRAExtendedResource",
    "DRAPartitionableDevices",
    "DRAPrioritizedList",
    "DRAResourceClaimDeviceStatus",
    "DisableAllocatorDualWrite",
    "DisableCPUQuotaWithExclusiveCPUs",
    "DisableNodeKubeProxyVersion",
    "DynamicResourceAllocation",
    "EnvFiles",
    "EventedPLEG",
    "ExecProbeTimeout",
    "ExternalServiceAccountTokenSigner",
    "GracefulNodeShutdown",
    "GracefulNodeShutdownBasedOnPodPriority",
    "HPAScaleToZero",
    "HostnameOverride",
    "ImageMaximumGCAge",
    "ImageVolume",
    "ImageVolumeWithDigest",
    "InPlacePodLevelResourcesVerticalScaling",
    "InPlacePodVerticalScalingAllocatedStatus",
    "InPlacePodVerticalScalingInitContainers",
    "KubeletCrashLoopBackOffMax",
    "KubeletEnsureSecretPulledImages",
    "KubeletFineGrainedAuthz",
    "KubeletInUserNamespace",
    "KubeletPSI",
    "KubeletPodResourcesDynamicResources",
    "KubeletPodResourcesListUseActivePods",
    "KubeletSeparateDiskGC",
    "KubeletServiceAccountTokenForCredentialProviders",
    "KubeletTracing",
    "LocalStorageCapacityIsolationFSQuotaMonitoring",
    "MaxUnavailableStatefulSet",
    "MemoryPolicy",
    "MutableCSINodeAllocatableCount",
    "NodeDeclaredFeatures",
    "NodeLogQuery",
    "NodeSwap",
    "PLEGOnDemandRelist",
    "PodCertificateRequest",
    "PodLifecycleSleepAction",
    "PodLifecycleSleepActionAllowZero",
    "PodLogsQuerySplitStreams",
    "PodObservedGenerationTracking",
    "PodReadyToStartContainersCondition",
    "PodTopologyLabelsAdmission",
    "ProcMountType",
    "QOSReserved",
    "RecursiveReadOnlyMounts",
    "ReduceDefaultCrashLoopBackOffDecay",
    "RelaxedDNSSearchValidation",
    "RelaxedEnvironmentVariableValidation",
    "ReloadKubeletServerCertificateFile",
    "ResourceHealthStatus",
    "RestartAllContainersOnContainerExits",
    "RotateKubeletServerCertificate",
    "RuntimeClassInImageCriApi",
    "SELinuxChangePolicy",
    "SELinuxMount",
    "SELinuxMountReadWriteOncePod",
    "SchedulerAsyncPreemption",
    "SeparateTaintEvictionController",
    "SidecarContainers",
    "SizeMemoryBackedVolumes",
    "StorageCapacityScoring",
    "SupplementalGroupsPolicy",
    "SystemdWatchdog",
    "UserNamespacesHostNetworkSupport",
    "UserNamespacesPodSecurityStandards",
    "UserNamespacesSupport",
    "VolumeLimitScaling",
];

/// A gate could not be set. The first words of each text are upstream's.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum GateError {
    #[error("unrecognized feature gate: {name}{}", did_you_mean(.nearest.as_deref()))]
    Unknown { name: String, nearest: Option<String> },
    #[error("cannot set feature gate {gate} to false, feature is locked to true")]
    Locked { gate: Gate },
    #[error("missing bool value for {name}: write {name}=true or {name}=false")]
    NoValue { name: String },
    #[error("invalid value of {name}: {value:?} is neither true nor false")]
    BadValue { name: String, value: String },
}

impl fmt::Display for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The state of all gates: explicit values, and the defaults for the rest.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FeatureGates {
    set: BTreeMap<Gate, bool>,
    all_alpha: Option<bool>,
    all_beta: Option<bool>,
}

impl FeatureGates {
    /// Reads the notation of `--feature-gates`: `A=true,B=false`. All mistakes are reported.
    pub fn parse(text: &str) -> Result<FeatureGates, Vec<GateError>> {
        FeatureGates::default().with(text)
    }

    /// Returns these gates with those of a text in the same notation changed.
    pub fn with(self, text: &str) -> Result<FeatureGates, Vec<GateError>> {
        let mut gates = self;
        let mut errors = Vec::new();
        for item in text.split(',').map(str::trim).filter(|item| !item.is_empty()) {
            let result = match item.split_once('=') {
                None => Err(GateError::NoValue { name: item.to_owned() }),
                Some((name, value)) => {
                    let (name, value) = (name.trim(), value.trim());
                    parse_bool(value)
                        .ok_or_else(|| GateError::BadValue {
                            name: name.to_owned(),
                            value: value.to_owned(),
                        })
                        .and_then(|value| gates.set_named(name, value))
                }
            };
            errors.extend(result.err());
        }
        if errors.is_empty() { Ok(gates) } else { Err(errors) }
    }

    /// Sets a gate by its name in configuration files, including `AllAlpha` and `AllBeta`.
    pub fn set_named(&mut self, name: &str, value: bool) -> Result<(), GateError> {
        if let Some(gate) = Gate::ALL.iter().copied().find(|gate| gate.name() == name) {
            return self.set(gate, value);
        }
        match name {
            ALL_ALPHA => self.all_alpha = Some(value),
            ALL_BETA => self.all_beta = Some(value),
            name if WITHOUT_EFFECT.contains(&name) => {}
            name => {
                let known = Gate::ALL.iter().map(|gate| gate.name());
                let known =
                    known.chain([ALL_ALPHA, ALL_BETA]).chain(WITHOUT_EFFECT.iter().copied());
                let nearest = nearest(name, known).map(str::to_owned);
                return Err(GateError::Unknown { name: name.to_owned(), nearest });
            }
        }
        Ok(())
    }

    pub fn set(&mut self, gate: Gate, value: bool) -> Result<(), GateError> {
        if gate.stage() == Stage::Ga && !value {
            return Err(GateError::Locked { gate });
        }
        self.set.insert(gate, value);
        Ok(())
    }

    /// Returns these gates with one enabled, unless it or its whole stage was set explicitly.
    #[must_use]
    pub fn on_unless_said(mut self, gate: Gate) -> FeatureGates {
        let of_stage = match gate.stage() {
            Stage::Alpha => self.all_alpha,
            Stage::Beta => self.all_beta,
            Stage::Ga | Stage::Deprecated => None,
        };
        if of_stage.is_none() {
            self.set.entry(gate).or_insert(true);
        }
        self
    }

    /// Reports whether a gate is enabled: its own value, else that of its stage, else its default.
    #[must_use]
    pub fn enabled(&self, gate: Gate) -> bool {
        let of_stage = match gate.stage() {
            Stage::Alpha => self.all_alpha,
            Stage::Beta => self.all_beta,
            Stage::Ga | Stage::Deprecated => None,
        };
        self.set.get(&gate).copied().or(of_stage).unwrap_or_else(|| gate.default())
    }

    /// Returns the explicit values, in the notation of `--feature-gates`.
    #[must_use]
    pub fn render(&self) -> String {
        let stages = [(ALL_ALPHA, self.all_alpha), (ALL_BETA, self.all_beta)];
        let stages = stages.into_iter().filter_map(|(name, value)| Some((name, value?)));
        let gates = self.set.iter().map(|(gate, value)| (gate.name(), *value));
        let items = stages.chain(gates).map(|(name, value)| format!("{name}={value}"));
        items.collect::<Vec<_>>().join(",")
    }
}

/// Parses the booleans of Go's `strconv.ParseBool`, as every flag and option of a kubelet does.
#[must_use]
pub fn parse_bool(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn gate_is_enabled_unless_it_was_set_explicitly() {
        let check = |text: &str, on: bool| {
            let gates = FeatureGates::parse(text).unwrap().on_unless_said(Gate::QosResources);
            assert_eq!(gates.enabled(Gate::QosResources), on, "{text}");
        };
        check("", true);
        check("AllBeta=false", true);
        check("AllAlpha=false", false);
        check("QOSResources=false", false);
        check("AllAlpha=false,QOSResources=true", true);
    }

    fn messages(text: &str) -> Vec<String> {
        FeatureGates::parse(text).unwrap_err().iter().map(ToString::to_string).collect()
    }

    #[test]
    fn gate_follows_its_own_value_then_stage_then_default() {
        let gates = FeatureGates::parse("AllAlpha=true,QOSResources=false, MemoryQoS=0").unwrap();
        assert!(gates.enabled(Gate::CpuManagerPolicyAlphaOptions));
        assert!(!gates.enabled(Gate::QosResources));
        assert!(!gates.enabled(Gate::MemoryQos));
        assert!(gates.enabled(Gate::PodLevelResources));
        assert!(!gates.enabled(Gate::PodLevelResourceManagers));
        let gates = FeatureGates::parse("AllBeta=true").unwrap();
        assert!(gates.enabled(Gate::PodLevelResourceManagers));
        assert_eq!(gates.render(), "AllBeta=true");
        assert!(gates.enabled(Gate::CpuManagerPolicyOptions));
    }

    #[test]
    fn every_mistake_is_named_with_what_was_meant() {
        assert_eq!(
            messages("CPUManagerPolicyAlphaOption=true,Banana=true,MemoryQoS,NodeSwap=maybe"),
            [
                "unrecognized feature gate: CPUManagerPolicyAlphaOption; did you mean \
                 \"CPUManagerPolicyAlphaOptions\"?",
                "unrecognized feature gate: Banana",
                "missing bool value for MemoryQoS: write MemoryQoS=true or MemoryQoS=false",
                "invalid value of NodeSwap: \"maybe\" is neither true nor false",
            ]
        );
        assert_eq!(
            messages("CPUManagerPolicyOptions=false"),
            ["cannot set feature gate CPUManagerPolicyOptions to false, feature is locked to true"]
        );
    }

    #[test]
    fn kubelet_gates_without_effect_are_accepted() {
        assert_eq!(FeatureGates::parse("NodeSwap=true").unwrap(), FeatureGates::default());
    }

    proptest! {
        #[test]
        fn no_text_makes_the_reader_panic(text in "\\PC{0,80}") {
            let _ = FeatureGates::parse(&text);
        }

        #[test]
        fn explicit_gates_survive_a_round_trip(
            set in prop::collection::btree_map(0..Gate::ALL.len(), any::<bool>(), 0..5)
        ) {
            let mut gates = FeatureGates::default();
            for (index, value) in set {
                let _ = gates.set(Gate::ALL[index], value);
            }
            prop_assert_eq!(FeatureGates::parse(&gates.render()).unwrap(), gates);
        }
    }
}
