//! Configurations checked on machines, and generated for them.

use objects::kubelet_config::{
    self, CpuManagerPolicy, MemoryManagerPolicy, TopologyManagerPolicy, TopologyManagerScope,
};
use objects::pod::OsName;
use placement::Bytes;
use placement::Machine;
use placement::configured::Configured;
use placement::node::{CpuPolicy, MemoryPolicy};
use planner::generate::{GenerateError, GenerateOptions, ReserveCpus, generate};
use planner::machine::shape;
use proptest::prelude::*;

const HEAD: &str = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";

fn configured(machine: &str, config: &str) -> Result<Configured, Vec<String>> {
    let machine = shape::parse(machine).unwrap();
    let (config, _) = kubelet_config::read(&format!("{HEAD}{config}")).unwrap();
    Configured::new(&machine, &config)
        .map_err(|errors| errors.iter().map(ToString::to_string).collect())
}

#[test]
fn mistakes_have_the_kubelets_message_and_a_correction() {
    let check = |machine: &str, config: &str, expected: &[&str]| {
        let errors = configured(machine, config).unwrap_err();
        assert_eq!(errors, expected, "{config}");
    };
    let linux = "2s 1n 4c 2t mem=8Gi";
    check(
        linux,
        "cpuManagerPolicy: static",
        &["cpuManagerPolicy: [cpumanager] the static policy requires systemreserved.cpu + \
           kubereserved.cpu to be greater than zero; write reservedSystemCPUs: \"0,8\""],
    );
    check(
        linux,
        "memoryManagerPolicy: Static",
        &["reservedMemory: the total amount \"0\" of type \"memory\" is not equal to the value \
           \"100Mi\" determined by Node Allocatable feature; systemReserved and kubeReserved (0) \
           and the hard eviction threshold (100Mi) make 100Mi; write reservedMemory: [{numaNode: \
           0, limits: {memory: 50Mi}}, {numaNode: 1, limits: {memory: 50Mi}}]"],
    );
    check(
        linux,
        "memoryManagerPolicy: BestEffort\ncpuManagerPolicy: static\nsystemReserved: {cpu: 500m}\n\
         cpuManagerPolicyOptions: {align-by-socket: \"true\"}\nreservedMemory:\n- numaNode: 4\n  \
         limits: {memory: 1Gi}",
        &[
            "cpuManagerPolicyOptions[align-by-socket]: new static policy error: CPU Manager Policy \
             Alpha-level Options not enabled, but option \"align-by-socket\" provided; write \
             featureGates: {CPUManagerPolicyAlphaOptions: true}",
            "memoryManagerPolicy: policy \"BestEffort\" is not available on Linux: \
             memoryManagerPolicy can be \"None\" or \"Static\" there; write memoryManagerPolicy: \
             Static",
        ],
    );
    check(
        linux,
        "reservedSystemCPUs: 0-99",
        &["reservedSystemCPUs: reserved-cpus: 0-99 is not a subset of online-cpus: 0-15; the \
           machine has no CPU 16-99; \"0,8\" would do"],
    );
    check(
        linux,
        "reservedSystemCPUs: 0-15",
        &["reservedSystemCPUs: every CPU is reserved, so no pod would get any; leave some: \
           \"0,8\" would do"],
    );
    check(
        linux,
        "systemReserved: {cpu: 17, memory: 1Ti}",
        &[
            "systemReserved.cpu: invalid Node Allocatable configuration. Resource \"cpu\" has a \
             reservation of 17 but capacity of 16. Expected capacity >= reservation.; reserve \
             less than 16 in systemReserved and kubeReserved",
            "systemReserved.memory: invalid Node Allocatable configuration. Resource \"memory\" \
             has a reservation of 1048676Mi but capacity of 16Gi. Expected capacity >= \
             reservation.; reserve less than 16Gi in systemReserved and kubeReserved, evictionHard \
             included",
        ],
    );
    check(
        linux,
        "memoryManagerPolicy: Static\nsystemReserved: {memory: 9116Mi}\nreservedMemory:\n\
         - numaNode: 1\n  limits: {memory: 9Gi}",
        &["reservedMemory[0].limits.memory: 9Gi is more than NUMA node 1 has; it has 8Gi besides \
           huge pages; share the rest out to other nodes"],
    );
    check(
        "4c os=windows mem=8Gi",
        "memoryManagerPolicy: Static",
        &["memoryManagerPolicy: policy \"Static\" is not available on Windows: \
           memoryManagerPolicy can be \"None\" or \"BestEffort\" there; write \
           memoryManagerPolicy: BestEffort"],
    );
}

#[test]
fn managers_are_inactive_on_windows_without_the_gate() {
    let config = "cpuManagerPolicy: static\nreservedSystemCPUs: \"0\"\n";
    let asleep = configured("4c os=windows mem=8Gi", config).unwrap();
    assert_eq!(asleep.node.cpu, CpuPolicy::None);
    assert_eq!(
        asleep.warnings[0].to_string(),
        "cpuManagerPolicy: does nothing on Windows while the feature gate \
         WindowsCPUAndMemoryAffinity is off; write featureGates: {WindowsCPUAndMemoryAffinity: true}"
    );
    let gate = "featureGates: {WindowsCPUAndMemoryAffinity: true}";
    let awake = configured("4c os=windows mem=8Gi", &format!("{config}{gate}")).unwrap();
    assert!(matches!(awake.node.cpu, CpuPolicy::Static(_)));
    assert!(awake.warnings.is_empty());
}

#[test]
fn reserved_cpu_list_replaces_reserved_amounts() {
    let config = "cpuManagerPolicy: static\nreservedSystemCPUs: 0-1\nkubeReserved: {cpu: 7}\n\
                  systemReserved: {memory: 1Gi}\nmaxPods: 50\npodsPerCore: 4\n";
    let configured = configured("4c 2t mem=16Gi hugepages-1Gi=4", config).unwrap();
    let allocatable = &configured.allocatable;
    assert_eq!(allocatable.milli_cpus, 6000);
    assert_eq!(Bytes(allocatable.memory), Bytes::mib(11 * 1024 - 100));
    assert_eq!(allocatable.others["hugepages-1Gi"], 4 << 30);
    assert_eq!(allocatable.pods, 32);
    assert_eq!(configured.warnings.len(), 1);
}

#[test]
fn options_are_written() {
    let machine = shape::parse("2s 1n 4c 2t mem=8Gi name=small").unwrap();
    let options = GenerateOptions {
        topology_manager: TopologyManagerPolicy::SingleNumaNode,
        scope: TopologyManagerScope::Pod,
        policy_options: [("full-pcpus-only".to_owned(), "true".to_owned())].into(),
        reserved_cpus: Some(ReserveCpus::Count(3)),
        reserved_memory: Some(1 << 30),
        ..GenerateOptions::default()
    };
    let generated = generate(&machine, &options).unwrap();
    assert_eq!(
        generated.text,
        "# For small with linux: 16 CPUs, 8 cores, 2 NUMA nodes, 16Gi of memory.
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration

# Containers of Guaranteed pods that ask for whole CPUs get CPUs of their own.
cpuManagerPolicy: static
cpuManagerPolicyOptions:
  full-pcpus-only: \"true\"
# Kept for the system and the kubelet: 4 CPUs (2 whole cores).
reservedSystemCPUs: \"0-1,8-9\"

# Containers of Guaranteed pods get memory from NUMA nodes of their own choice.
memoryManagerPolicy: Static
systemReserved:
  memory: 1Gi
# Adds up to systemReserved and the hard eviction threshold (100Mi unless evictionHard
# says otherwise): 1124Mi in all.
reservedMemory:
- numaNode: 0
  limits: {memory: 562Mi}
- numaNode: 1
  limits: {memory: 562Mi}

# CPUs and memory come from one NUMA node, or not at all.
topologyManagerPolicy: single-numa-node
topologyManagerScope: pod
"
    );
}

#[test]
fn impossible_options_are_refused_with_a_reason() {
    let check = |machine: &str, options: GenerateOptions, part: &str| {
        let error = generate(&shape::parse(machine).unwrap(), &options).unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    };
    let base = GenerateOptions::default;
    let count =
        |count| GenerateOptions { reserved_cpus: Some(ReserveCpus::Count(count)), ..base() };
    check("4c mem=8Gi", count(4), "the machine has 4 and pods need at least one");
    check("1c mem=8Gi", base(), "pods need at least one");
    let list = Some(ReserveCpus::List(placement::CpuSet::parse("7").unwrap()));
    check(
        "4c mem=8Gi",
        GenerateOptions { reserved_cpus: list, ..base() },
        "not a subset of online-cpus",
    );
    let all = GenerateOptions { reserved_memory: Some(8 << 30), ..base() };
    check("4c mem=8Gi", all, "8Gi of memory cannot be reserved");
    let option = [("full-cores".to_owned(), "true".to_owned())].into();
    check(
        "4c mem=8Gi",
        GenerateOptions { policy_options: option, ..base() },
        "there is no option \"full-cores\"",
    );
    let memory = Some(MemoryManagerPolicy::Static);
    check("4c", GenerateOptions { memory_manager: memory, ..base() }, "memory is not known");
}

fn example_machines() -> Vec<Machine> {
    let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/machines");
    std::fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|ending| ending == "yaml"))
        .map(|path| planner::machine::parse(&std::fs::read_to_string(path).unwrap()).unwrap())
        .collect()
}

#[test]
fn every_shipped_machine_gets_a_default_configuration() {
    for machine in example_machines() {
        let generated = generate(&machine, &GenerateOptions::default()).unwrap();
        assert!(matches!(generated.configured.node.memory, MemoryPolicy::Static(_)));
        assert_eq!(generated.configured.warnings, [], "{}", generated.text);
    }
}

fn options() -> impl Strategy<Value = GenerateOptions> {
    let topology = prop::sample::select(vec![
        TopologyManagerPolicy::None,
        TopologyManagerPolicy::BestEffort,
        TopologyManagerPolicy::Restricted,
        TopologyManagerPolicy::SingleNumaNode,
    ]);
    let scope =
        prop::sample::select(vec![TopologyManagerScope::Container, TopologyManagerScope::Pod]);
    let cpu = prop::sample::select(vec![CpuManagerPolicy::None, CpuManagerPolicy::Static]);
    let option = prop::sample::select(objects::kubelet_config::CPU_POLICY_OPTIONS.to_vec());
    (
        topology,
        scope,
        cpu,
        prop::collection::btree_set(option, 0..3),
        prop::option::of(0usize..300),
        prop::option::of(1u64..(1 << 40)),
        any::<bool>(),
    )
        .prop_map(
            |(topology_manager, scope, cpu_manager, options, cpus, memory, no_memory)| {
                GenerateOptions {
                    cpu_manager,
                    memory_manager: no_memory.then_some(MemoryManagerPolicy::None),
                    topology_manager,
                    scope,
                    policy_options: options
                        .into_iter()
                        .map(|n| (n.to_owned(), "true".to_owned()))
                        .collect(),
                    reserved_cpus: cpus.map(ReserveCpus::Count),
                    reserved_memory: memory,
                    max_pods: None,
                }
            },
        )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// The checker accepts every generated configuration; refusals of the generator have a reason.
    #[test]
    fn generated_configurations_pass_the_check(options in options()) {
        for machine in example_machines() {
            match generate(&machine, &options) {
                Ok(generated) => {
                    let (config, warnings) = kubelet_config::read(&generated.text).unwrap();
                    prop_assert!(warnings.is_empty(), "{:?}", warnings);
                    let configured = Configured::new(&machine, &config).unwrap();
                    let on = options.cpu_manager == CpuManagerPolicy::Static;
                    let is_static = matches!(configured.node.cpu, CpuPolicy::Static(_));
                    prop_assert_eq!(is_static, on);
                    if machine.os == OsName::Linux {
                        prop_assert!(configured.warnings.is_empty(), "{}", generated.text);
                    }
                }
                Err(GenerateError::Refused(findings)) => {
                    // Only conflicting options may be refused.
                    let about = |f: &placement::configured::Finding| {
                        f.path.to_string().starts_with("cpuManagerPolicyOptions")
                    };
                    prop_assert!(findings.iter().all(about), "{:?}", findings);
                }
                Err(GenerateError::TooManyCpus { .. } | GenerateError::TooMuchMemory { .. }) => {}
                Err(other) => prop_assert!(false, "{other}"),
            }
        }
    }
}
