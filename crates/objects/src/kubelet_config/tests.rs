use proptest::prelude::*;

use super::*;

fn file(fields: &str) -> String {
    format!("apiVersion: {API_VERSION}\nkind: {KIND}\n{fields}")
}

fn config(fields: &str) -> KubeletConfig {
    let (config, warnings) = read(&file(fields)).unwrap_or_else(|f| panic!("{fields}\n{f:#?}"));
    assert_eq!(warnings, [], "{fields}");
    config
}

fn warnings(fields: &str) -> Vec<String> {
    let (_, warnings) = read(&file(fields)).unwrap_or_else(|f| panic!("{fields}\n{f:#?}"));
    warnings.iter().map(ToString::to_string).collect()
}

fn errors(text: &str) -> Vec<String> {
    read(text).unwrap_err().errors.iter().map(ToString::to_string).collect()
}

#[test]
fn an_empty_configuration_is_the_defaults() {
    assert_eq!(config(""), KubeletConfig::default());
}

#[test]
fn real_file_is_read_and_fields_without_effect_are_kept() {
    let config = config(
        "\
address: 0.0.0.0
authentication: {anonymous: {enabled: false}}
clusterDNS: [10.96.0.10]
cgroupDriver: systemd
cpuManagerPolicy: static
cpuManagerPolicyOptions: {full-pcpus-only: \"true\"}
cpuManagerReconcilePeriod: 5s
memoryManagerPolicy: Static
topologyManagerPolicy: single-numa-node
topologyManagerScope: pod
topologyManagerPolicyOptions: {max-allowable-numa-nodes: \"16\"}
reservedSystemCPUs: 0-3,8
systemReserved: {cpu: 500m, memory: 1Gi}
kubeReserved: {cpu: \"1\", memory: 1Gi, pid: \"1000\"}
reservedMemory:
- {numaNode: 0, limits: {memory: 1100Mi, hugepages-2Mi: 4Mi}}
- {numaNode: 1, limits: {memory: 1Gi}}
evictionHard: {memory.available: 200Mi, nodefs.available: 10%}
evictionSoft: {memory.available: 5%}
evictionSoftGracePeriod: {memory.available: 1m30s}
evictionMinimumReclaim: {memory.available: 0Mi}
enforceNodeAllocatable: [pods]
featureGates: {CPUManagerPolicyAlphaOptions: true, AllBeta: false, NodeSwap: true}
maxPods: 250
podPidsLimit: 4096
memorySwap: {swapBehavior: LimitedSwap}
windowsAffinity: cpu-only
",
    );
    assert_eq!(config.cpu_manager_policy, CpuManagerPolicy::Static);
    assert_eq!(config.cpu_manager_policy_options["full-pcpus-only"], "true");
    assert_eq!(config.cpu_manager_reconcile_period, Duration::from_secs(5));
    assert_eq!(config.topology_manager_policy, TopologyManagerPolicy::SingleNumaNode);
    assert_eq!(config.reserved_system_cpus.as_deref(), Some("0-3,8"));
    assert_eq!(config.reserved()["cpu"].to_string(), "1500m");
    assert_eq!(config.reserved_memory[1].numa_node, 1);
    assert_eq!(config.memory_kept_for_eviction(OsName::Linux, 1 << 40), 200 << 20);
    let kept = config.kept_from_pods(OsName::Linux, "memory", 1 << 40);
    assert_eq!(kept.to_string(), "2248Mi");
    assert_eq!(config.pod_pids_limit, Some(4096));
    assert_eq!(config.memory_swap, SwapBehavior::LimitedSwap);
    assert_eq!(config.windows_affinity, WindowsAffinity::CpuOnly);
    assert_eq!(config.untyped["clusterDNS"][0], "10.96.0.10");
    let gates = &config.feature_gates;
    assert!(gates.enabled(crate::feature_gates::Gate::CpuManagerPolicyAlphaOptions));
    assert!(!gates.enabled(crate::feature_gates::Gate::PodLevelResources));
}

#[test]
fn eviction_defaults_hold_unless_something_is_given_and_not_merged() {
    let memory = |fields: &str, os| config(fields).memory_kept_for_eviction(os, 1 << 30);
    assert_eq!(memory("", OsName::Linux), 100 << 20);
    assert_eq!(memory("", OsName::Windows), 500 << 20);
    assert_eq!(memory("evictionHard: {nodefs.available: 5%}", OsName::Linux), 0);
    let merged = "evictionHard: {nodefs.available: 5%}\nmergeDefaultEvictionSettings: true";
    assert_eq!(memory(merged, OsName::Linux), 100 << 20);
    assert_eq!(memory("evictionHard: {memory.available: 50%}", OsName::Linux), 512 << 20);
    assert_eq!(memory("evictionHard: {memory.available: 0%}", OsName::Linux), 0);
}

#[test]
fn the_obvious_spelling_is_accepted_with_a_warning() {
    assert_eq!(
        warnings("cpuManagerPolicy: Static"),
        [
            "line 3, column 19: cpuManagerPolicy: \"Static\" is taken as \"static\"; upstream accepts \
          only \"static\""
        ]
    );
    assert_eq!(warnings("memoryManagerPolicy: static").len(), 1);
    assert_eq!(warnings("topologyManagerPolicy: BestEffort").len(), 1);
    assert_eq!(warnings("cpuManagerPolicyOptions: {full-pcpus-only: true}").len(), 1);
    assert_eq!(warnings("featureGates: {SomethingEntirelyDifferent: true}").len(), 1);
    assert_eq!(warnings("reservedSystemCPUs: 0").len(), 1);
    let file = file("memoryManagerPolicy: static");
    assert_eq!(read(&file).unwrap().0.memory_manager_policy, MemoryManagerPolicy::Static);
}

#[test]
fn all_errors_are_reported_with_positions_and_expected_values() {
    let text = file(
        "\
cpuManagerPolicy: dynamic
cpuManagerPolicyOption: {}
cpuManagerPolicyOptions: {full-pcpu-only: \"true\", align-by-socket: maybe}
topologyManagerPolicyOptions: {max-allowable-numa-nodes: \"4\"}
topologyManagerScope: pods
systemReserved: {cpus: \"1\", memory: 1GB}
kubeReserved: {cpu: \"-1\"}
reservedMemory:
- {numaNode: 0, limits: {memory: 0}}
- {numaNode: 0, limits: {cpu: 1, hugepages-2Mi: 2Mi}, limit: {}}
- {numaNode: 0, limits: {hugepages-2Mi: 2Mi}}
evictionHard: {memory.avaliable: 100Mi, memory.available: 120%, pid.available: 0}
featureGates: {CPUManagerPolicyAlphaOption: true, MemoryQoS: on, PodLevelResources: 5}
maxPods: -1
cpuManagerReconcilePeriod: 10
memoryThrottlingFactor: 2
enforceNodeAllocatable: [pods, none]
",
    );
    let expected = [
        "line 3, column 19: cpuManagerPolicy: \"dynamic\" is not one of \"none\", \"static\"",
        "line 4, column 1: cpuManagerPolicyOption: unknown field \"cpuManagerPolicyOption\"; did \
         you mean \"cpuManagerPolicyOptions\"?",
        "line 5, column 43: cpuManagerPolicyOptions.full-pcpu-only: unknown CPU Manager Policy \
         option: \"full-pcpu-only\"; did you mean \"full-pcpus-only\"?",
        "line 5, column 68: cpuManagerPolicyOptions.align-by-socket: bad value for option \
         \"align-by-socket\": \"maybe\"; expected true or false",
        "line 6, column 58: topologyManagerPolicyOptions.max-allowable-numa-nodes: bad value for \
         option \"max-allowable-numa-nodes\": \"4\"; expected a whole number, 8 or more",
        "line 7, column 23: topologyManagerScope: \"pods\" is not one of \"container\", \"pod\"; \
         did you mean \"pod\"?",
        "line 8, column 24: systemReserved.cpus: cannot reserve \"cpus\" resource; did you mean \
         \"cpu\"?",
        "line 8, column 37: systemReserved.memory: \"1GB\" is not a quantity such as 500m, 2 or \
         1Gi (did you mean \"1G\"?): quantities must match the regular expression \
         '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'",
        "line 9, column 21: kubeReserved.cpu: resource quantity for \"cpu\" cannot be negative: -1",
        "line 11, column 34: reservedMemory[0].limits.memory: invalid configuration: reserved \
         memory may not be zero for NUMA node 0 and resource \"memory\"",
        "line 12, column 31: reservedMemory[1].limits.cpu: invalid configuration: the limit type \
         \"cpu\" for NUMA node 0 is not supported, only [memory hugepages-<HugePageSize>] is \
         accepted",
        "line 12, column 55: reservedMemory[1].limit: unknown field \"limit\"; did you mean \
         \"limits\"?",
        "line 13, column 41: reservedMemory[2].limits.hugepages-2Mi: invalid configuration: the \
         reserved memory has a duplicate value for NUMA node 0 and resource \"hugepages-2Mi\"",
        "line 14, column 34: evictionHard[memory.avaliable]: \"memory.avaliable\" is not one of \
         \"memory.available\", \"allocatableMemory.available\", \"nodefs.available\", \
         \"nodefs.inodesFree\", \"imagefs.available\", \"imagefs.inodesFree\", \
         \"containerfs.available\", \"containerfs.inodesFree\", \"pid.available\"; did you mean \
         \"memory.available\"?",
        "line 14, column 59: evictionHard[memory.available]: \"120%\" must be between 0% and 100%",
        "line 14, column 80: evictionHard[pid.available]: eviction threshold pid.available must be \
         positive: 0",
        "line 15, column 45: featureGates.CPUManagerPolicyAlphaOption: unrecognized feature gate: \
         CPUManagerPolicyAlphaOption; did you mean \"CPUManagerPolicyAlphaOptions\"?",
        "line 15, column 85: featureGates.PodLevelResources: expected true or false, found the \
         number 5",
        "line 16, column 10: maxPods: invalid configuration: maxPods (--max-pods) -1 must not be a \
         negative number",
        "line 17, column 28: cpuManagerReconcilePeriod: expected a duration such as 10s, 100ms or \
         1m30s, found the number 10",
        "line 18, column 25: memoryThrottlingFactor: invalid configuration: memoryThrottlingFactor 2 \
         must be greater than 0 and less than or equal to 1.0",
        "line 19, column 25: enforceNodeAllocatable: invalid configuration: enforceNodeAllocatable \
         (--enforce-node-allocatable) may not contain additional enforcements when \"none\" is \
         specified",
    ];
    let found = errors(&text);
    for (found, expected) in found.iter().zip(expected) {
        assert_eq!(found, expected);
    }
    assert_eq!(found.len(), expected.len(), "{found:#?}");
}

#[test]
fn file_of_another_kind_is_rejected_with_the_expected_kind() {
    assert_eq!(
        errors("kind: Pod\n"),
        [
            "line 1, column 1: apiVersion: missing; write \"apiVersion: \
             kubelet.config.k8s.io/v1beta1\"",
            "line 1, column 7: kind: expected \"KubeletConfiguration\", found the text \"Pod\"",
        ]
    );
    assert!(errors("")[0].contains("the file is empty"));
    assert!(errors(&format!("{}---\n{}", file(""), file("")))[0].contains("a second document"));
    assert!(errors("[1, 2]")[0].contains("expected a map of fields, found a list"));
}

#[test]
fn the_list_of_fields_is_complete_and_sorted() {
    let known = fields::names();
    assert!(known.is_sorted());
    assert_eq!(known.len(), 129);
}

#[test]
fn keywords_are_written_as_they_are_read() {
    assert_eq!(CpuManagerPolicy::Static.to_string(), "static");
    assert_eq!(MemoryManagerPolicy::Static.to_string(), "Static");
    assert_eq!(TopologyManagerPolicy::SingleNumaNode.to_string(), "single-numa-node");
    assert_eq!(EvictionSignal::MemoryAvailable.to_string(), "memory.available");
}

/// Values that upstream's validation rejects, and a part of its message.
const REFUSED: &[(&str, &str)] = &[
    ("address: nowhere", "address \"nowhere\" must be a valid IP address"),
    ("port: 70000", "port (--port) 70000 must be between 1 and 65535, inclusive"),
    ("port: '10250'", "expected a whole number"),
    ("readOnlyPort: -1", "readOnlyPort (--read-only-port) -1 must be between 0 and 65535"),
    ("healthzPort: 65536", "healthzPort (--healthz-port) 65536 must be between 1 and 65535"),
    ("healthzBindAddress: localhost", "must be a valid IP address"),
    ("syncFrequency: 10", "expected a duration"),
    ("fileCheckFrequency: often", "expected a duration"),
    ("imageMinimumGCAge: -1s", "imageMinimumGCAge -1s must not be negative"),
    ("imageMaximumGCAge: 1m", "imageMaximumGCAge 1m must be greater than imageMinimumGCAge 2m"),
    ("nodeLeaseDurationSeconds: -3", "nodeLeaseDurationSeconds must be greater than 0"),
    ("nodeStatusMaxImages: -2", "nodeStatusMaxImages (--node-status-max-images) -2 must be -1"),
    (
        "imageGCHighThresholdPercent: 101",
        "(--image-gc-high-threshold) 101 must be between 0 and 100",
    ),
    (
        "imageGCHighThresholdPercent: 50",
        "imageGCLowThresholdPercent (--image-gc-low-threshold) 80 must be less than \
         imageGCHighThresholdPercent (--image-gc-high-threshold) 50",
    ),
    ("oomScoreAdj: -1001", "oomScoreAdj (--oom-score-adj) -1001 must be between -1000 and 1000"),
    ("iptablesDropBit: 32", "iptablesDropBit (--iptables-drop-bit) 32 must be between 0 and 31"),
    ("eventRecordQPS: -1", "eventRecordQPS (--event-qps) -1 must not be a negative number"),
    ("kubeAPIQPS: -1", "kubeAPIQPS (--kube-api-qps) -1 must not be a negative number"),
    ("maxParallelImagePulls: 0", "maxParallelImagePulls 0 must be a positive number"),
    (
        "maxParallelImagePulls: 3\nserializeImagePulls: true",
        "maxParallelImagePulls cannot be larger than 1 unless SerializeImagePulls",
    ),
    ("containerLogMaxFiles: 1", "containerLogMaxFiles must be greater than 1"),
    ("containerLogMaxWorkers: 0", "containerLogMaxWorkers must be greater than or equal to 1"),
    ("containerLogMaxSize: 10Megs", "expected a quantity of bytes above zero"),
    (
        "containerLogMonitorInterval: 2s",
        "must be a positive time duration greater than or equal to 3s",
    ),
    ("podLogsDir: logs", "pod logs path \"logs\" must be absolute path"),
    ("podLogsDir: /var/../logs", "pod logs path \"/var/../logs\" must be normalized"),
    ("runOnce: true", "Runonce mode has been deprecated and should not be set"),
    ("systemCgroups: /system", "systemCgroups (--system-cgroups) was specified and cgroupRoot"),
    ("hairpinMode: both", "option \"both\" specified for hairpinMode (--hairpin-mode)"),
    ("memoryReservationPolicy: All", "Valid options are \"None\" or \"TieredReservation\""),
    ("registerNode: maybe", "expected true or false"),
    ("clusterDNS: 10.0.0.10", "expected a list"),
    ("shutdownGracePeriod: 500ms", "must be either zero or otherwise >= 1 sec"),
    (
        "shutdownGracePeriod: 10s\nshutdownGracePeriodCriticalPods: 20s",
        "shutdownGracePeriodCriticalPods 20s must be <= shutdownGracePeriod 10s",
    ),
    (
        "crashLoopBackOff: {maxContainerRestartPeriod: 10m}",
        "MaxContainerRestartPeriod (got: 600 seconds) must be set between 1s and 300s",
    ),
    ("registerWithTaints: [{key: a, effect: Never}]", "invalid taint: a=:Never"),
    ("registerWithTaints: [{key: '', effect: NoSchedule}]", "invalid taint"),
    ("allowedUnsafeSysctls: [vm.swappiness]", "are not known to be namespaced"),
    (
        "evictionSoft: {memory.available: 5%}",
        "grace period must be specified for the soft eviction threshold memory.available",
    ),
    (
        "evictionMinimumReclaim: {memory.available: -5Mi}",
        "negative eviction minimum reclaim specified for memory.available",
    ),
    (
        "enforceNodeAllocatable: [pods, kube-reserved-compressible]",
        "kubeReservedCgroup (--kube-reserved-cgroup) must be specified when \"kube-reserved\"",
    ),
    ("enforceNodeAllocatable: [pods, pods]", "duplicated enforcements \"pods\""),
    ("cgroupsPerQOS: false\nenforceNodeAllocatable: [pods]", "must be set to true when \"pods\""),
    (
        "reservedSystemCPUs: '0'\nsystemReservedCgroup: /system",
        "can't use reservedSystemCPUs (--reserved-cpus) with systemReservedCgroup",
    ),
    (
        "enableSystemLogQuery: true\nenableSystemLogHandler: false",
        "enableSystemLogHandler is required for enableSystemLogQuery",
    ),
    (
        "preloadedImagesVerificationAllowlist: [a]",
        "can't set `preloadedImagesVerificationAllowlist`",
    ),
];

#[test]
fn values_are_refused_as_upstream_refuses_them() {
    for (fields, part) in REFUSED {
        let found = errors(&file(fields));
        assert!(found.iter().any(|error| error.contains(part)), "{fields}: {found:?}");
    }
}

#[test]
fn zero_values_and_empty_texts_stand_for_the_defaults() {
    let kubeadm = config(
        "\
authentication:
  anonymous: {enabled: false}
  webhook: {cacheTTL: 0s, enabled: true}
  x509: {clientCAFile: /etc/kubernetes/pki/ca.crt}
authorization: {mode: Webhook, webhook: {cacheAuthorizedTTL: 0s, cacheUnauthorizedTTL: 0s}}
cgroupDriver: systemd
clusterDNS: [10.96.0.10]
clusterDomain: cluster.local
containerRuntimeEndpoint: ''
cpuManagerReconcilePeriod: 0s
crashLoopBackOff: {}
evictionPressureTransitionPeriod: 0s
fileCheckFrequency: 0s
healthzBindAddress: 127.0.0.1
healthzPort: 10248
httpCheckFrequency: 0s
imageMaximumGCAge: 0s
imageMinimumGCAge: 0s
logging:
  flushFrequency: 0
  options: {json: {infoBufferSize: '0'}, text: {infoBufferSize: '0'}}
  verbosity: 0
memorySwap: {}
nodeStatusReportFrequency: 0s
nodeStatusUpdateFrequency: 0s
port: 0
maxPods: 0
nodeLeaseDurationSeconds: 0
containerLogMaxSize: ''
runtimeRequestTimeout: 0s
shutdownGracePeriod: 0s
shutdownGracePeriodCriticalPods: 0s
staticPodPath: /etc/kubernetes/manifests
streamingConnectionIdleTimeout: 0s
syncFrequency: 0s
volumeStatsAggPeriod: 0s
",
    );
    assert_eq!(kubeadm.max_pods, 110);
}

#[test]
fn a_field_without_effect_is_warned_of_by_name() {
    let cases = [
        "rotateCertificates: true",
        "readOnlyPort: 10255",
        "enableServer: false",
        "cgroupsPerQOS: false\nenforceNodeAllocatable: [none]",
        "runtimeRequestTimeout: 15m",
        "tlsCipherSuites: [TLS_AES_128_GCM_SHA256]",
        "logging: {format: json}",
        "crashLoopBackOff: {maxContainerRestartPeriod: 1m}",
        "shutdownGracePeriod: 30s",
        "kubeReservedCgroup: /kube\nenforceNodeAllocatable: [pods]",
    ];
    for fields in cases {
        let name = fields.split(':').next().unwrap();
        let found = warnings(fields);
        let expected = format!("{name}: not supported by Berth: the field has no effect");
        assert!(found.iter().any(|warning| warning.ends_with(&expected)), "{fields}: {found:?}");
    }
    let found = warnings("enforceNodeAllocatable: [pods, kube-reserved]\nkubeReservedCgroup: /k");
    assert!(found.iter().any(|w| w.contains("only pods are held to a limit")), "{found:?}");
    assert_eq!(warnings("runtimeRequestTimeout: 2m0s\nsyncFrequency: 60s"), [""; 0]);
}

#[test]
fn nested_configurations_are_checked_as_upstream() {
    for (fields, expected) in [
        (
            "logging: {format: xml}",
            r#"logging.format: Invalid value: "xml": Unsupported log format"#,
        ),
        (
            "logging: {flushFrequency: -1s}",
            "logging.flushFrequency: Invalid value: \"-1s\": Must be",
        ),
        ("logging: {flushFrequency: soon}", "logging.flushFrequency: expected a duration"),
        ("logging: {verbosity: -2}", "logging.verbosity: "),
        ("logging: {verbosity: 2147483648}", "Invalid value: 2147483648: Must be <= 2147483647"),
        ("logging: {colour: red}", "logging.colour: "),
        (
            "logging: {format: json, vmodule: [{filePattern: a, verbosity: 3}]}",
            "logging.vmodule: Forbidden: Only supported for text log format",
        ),
        ("logging: {vmodule: [{verbosity: 3}]}", "Required value: File pattern must not be empty"),
        ("logging: {vmodule: [{filePattern: 'a=b'}]}", "must not contain equal sign or comma"),
        (
            "logging: {options: {json: {splitStream: true}}}",
            "splitStream: Forbidden: Feature LoggingAlphaOptions is disabled",
        ),
        (
            "logging: {options: {text: {infoBufferSize: 1Ki}}}\nfeatureGates: {AllAlpha: true}",
            "infoBufferSize: Forbidden: Feature LoggingAlphaOptions is disabled",
        ),
        (
            "tracing: {samplingRatePerMillion: -1}",
            "tracing.samplingRatePerMillion: Invalid value: -1: sampling rate must be positive",
        ),
        ("tracing: {samplingRatePerMillion: 1000001}", "less than or equal to one million"),
        (
            "tracing: {endpoint: 'http://a:4317'}",
            "unsupported scheme: http.  Options are none, dns",
        ),
        ("tracing: {endpoint: 'a:b'}", r#"parse "dns://a:b": invalid port ":b" after host"#),
        ("tracing: {samplingRatePerMillion: 2, endpoint: 'ftp://a'}", "unsupported scheme: ftp"),
        ("userNamespaces: {idsPerPod: 5}", "userNamespaces.idsPerPod must not be less than 65536"),
        ("userNamespaces: {idsPerPod: 65537}", "idsPerPod must be a multiple of 65536"),
        ("userNamespaces: {idsPerPod: 4294967296}", "must not be more than 4294967295"),
    ] {
        let found = errors(&file(fields));
        assert!(found.iter().any(|error| error.contains(expected)), "{fields}: {found:?}");
    }
    for fields in [
        "logging: {format: json, flushFrequency: 5s, verbosity: 4}",
        "logging: {flushFrequency: 5000000000, vmodule: [{filePattern: 'a*', verbosity: 3}]}",
        "logging: {options: {text: {splitStream: true}}}\nfeatureGates: {LoggingAlphaOptions: true}",
        "tracing: {endpoint: 'localhost:4317', samplingRatePerMillion: 1000000}",
        "tracing: {endpoint: 'unix:///run/otel.sock'}",
        "tracing: {endpoint: '[::1]:4317'}",
        "userNamespaces: {idsPerPod: 131072}",
    ] {
        let read = read(&file(fields));
        assert!(read.is_ok(), "{fields}: {read:?}");
    }
}

#[test]
fn the_guide_lists_every_field_with_its_effect() {
    let guide = include_str!("../../../../docs/guide/configuration.md");
    for (name, _, effect) in fields::FIELDS {
        let row = match effect {
            fields::Effect::Acted => format!("| `{name}` | yes |"),
            fields::Effect::Partly(part) => format!("| `{name}` | in part: {part} |"),
            fields::Effect::Ignored(_) => format!("| `{name}` | no |"),
        };
        assert!(guide.contains(&row), "the guide lacks this row: {row}");
    }
    let rows = guide.lines().filter(|line| line.starts_with("| `")).count();
    assert_eq!(rows, fields::FIELDS.len(), "the guide has rows of fields that do not exist");
}

proptest! {
    #[test]
    fn no_text_makes_the_reader_panic(text in "\\PC{0,200}") {
        let _ = read(&text);
    }

    #[test]
    fn no_odd_value_of_any_field_makes_the_reader_panic(
        index in 0..fields::FIELDS.len(),
        value in "[-+0-9a-zA-Z.%\\[\\]{}:,\" ]{0,20}",
    ) {
        let name = fields::FIELDS[index].0;
        let _ = read(&file(&format!("{name}: {value}\n")));
        let _ = read(&file(&format!("{name}:\n  memory.available: {value}\n  memory: {value}\n")));
        let _ = read(&file(&format!("{name}:\n- {value}\n- limits: {{memory: {value}}}\n")));
    }
}
