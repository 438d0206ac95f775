//! Reports of nodes round-trip and fit into a Node object.

use objects::kubelet_config;
use objects::pod::OsName;
use objects::pod::resources::PodResources;
use objects::rules::meta::ANNOTATIONS_LIMIT;
use placement::configured::Configured;
use placement::demand::{Demand, PodUid, QosClass};
use placement::report::NodeReport;
use placement::{Ledger, Machine, Topology, plan};
use proptest::prelude::*;
use serde_json::json;

use crate::machines::regular;

const HEAD: &str = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";

/// A uid as the API server gives them, so that sizes are real.
fn uid(n: usize) -> PodUid {
    PodUid::new(&format!("3e1c5e0a-6f4b-4c4e-9a58-{n:012x}"))
}

fn pod(n: usize, containers: &[(i64, u64)]) -> Demand {
    let container = |(at, (milli_cpus, mebibytes)): (usize, &(i64, u64))| {
        let amounts = json!({"cpu": format!("{milli_cpus}m"), "memory": format!("{mebibytes}Mi")});
        let resources = json!({"requests": amounts, "limits": amounts});
        json!({"name": format!("container-{at}"), "resources": resources})
    };
    let containers: Vec<_> = containers.iter().enumerate().map(container).collect();
    let spec = json!({"containers": containers});
    let pod = PodResources::of_spec(&spec).with_reported_class(Some(QosClass::Guaranteed));
    Demand::new(&uid(n), &pod)
}

fn machine(topology: Topology, windows: bool) -> Machine {
    let os = if windows { OsName::Windows } else { OsName::Linux };
    Machine { name: "n1".to_owned(), os, topology }
}

/// Lines of a configuration file: some that decide something, and some that do not.
fn configuration() -> impl Strategy<Value = String> {
    let alignment = prop_oneof![
        Just("none"),
        Just("best-effort"),
        Just("restricted"),
        Just("single-numa-node")
    ];
    let cpus = prop_oneof![
        Just(""),
        Just("cpuManagerPolicy: static\nreservedSystemCPUs: \"0-1\"\n"),
        Just("cpuManagerPolicy: static\nkubeReserved: {cpu: 500m, ephemeral-storage: 1Gi}\n"),
        Just(
            "cpuManagerPolicy: static\nreservedSystemCPUs: 1\nkubeReserved: {cpu: \"0\"}\n\
             cpuManagerPolicyOptions: {full-pcpus-only: \"true\", strict-cpu-reservation: \"1\"}\n"
        ),
        Just(
            "cpuManagerPolicy: static\nsystemReserved: {cpu: 1.5, memory: 0}\n\
             cpuManagerPolicyOptions: {distribute-cpus-across-cores: \"true\"}\n"
        ),
    ];
    let eviction = prop_oneof![
        Just((100, "")),
        Just((256, "evictionHard: {memory.available: 256Mi, nodefs.available: 3%}\n")),
        Just((100, "evictionHard: {pid.available: 7%}\nmergeDefaultEvictionSettings: true\n")),
    ];
    let limits = prop_oneof![Just(""), Just("maxPods: 250\n"), Just("podsPerCore: 3\n")];
    let (pod_scope, closest) = (any::<bool>(), any::<bool>());
    (alignment, pod_scope, closest, cpus, (eviction, any::<bool>()), limits).prop_map(
        |(policy, pod_scope, closest, cpus, ((kept, eviction), memory), limits)| {
            let mut text = format!(
                "{HEAD}topologyManagerPolicy: {policy}\nfeatureGates: {{AllAlpha: true, \
                 CPUManagerPolicyBetaOptions: false}}\nclusterDNS: [10.0.0.10]\n{cpus}{eviction}{limits}"
            );
            if pod_scope {
                text += "topologyManagerScope: pod\n";
            }
            if closest {
                text += "topologyManagerPolicyOptions: {prefer-closest-numa-nodes: \"true\"}\n";
            }
            if memory {
                text += &format!(
                    "memoryManagerPolicy: Static\n\
                     reservedMemory: [{{numaNode: 0, limits: {{memory: {kept}Mi}}}}]\n"
                );
            }
            text
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    #[test]
    fn reports_round_trip(
        shape in prop_oneof![Just((1, 1, 6, 2)), Just((2, 2, 4, 2)), Just((2, 4, 3, 1))],
        windows in any::<bool>(),
        text in configuration(),
        pods in prop::collection::vec(
            prop::collection::vec((prop_oneof![Just(500), Just(1000), Just(2000)], 0..4096u64), 1..3),
            0..12,
        ),
    ) {
        let (sockets, nodes, cores, threads) = shape;
        let machine = machine(regular(sockets, nodes, cores, threads), windows);
        let text = if windows { text.replace(": Static", ": BestEffort") } else { text };
        // Windows keeps more for itself by default; only what the check accepts is reported.
        let text = if windows { text.replace("memory: 100Mi", "memory: 500Mi") } else { text };
        let (config, _) = kubelet_config::read(&text).unwrap();
        let configured = Configured::new(&machine, &config).unwrap();
        let mut ledger = configured.node.empty_ledger();
        for (n, containers) in pods.iter().enumerate() {
            if let Ok(placement) = plan(&configured.node, &ledger, &pod(n, containers)) {
                ledger.commit(&placement);
            }
        }
        let report = NodeReport::new(&machine, &config, ledger).unwrap();
        prop_assert_eq!(&report.configured().node, &configured.node);
        prop_assert_eq!(&report.configured().allocatable, &configured.allocatable);
        let read = NodeReport::parse(&report.render()).unwrap().unwrap();
        prop_assert_eq!(&read, &report);
        // A pod that comes next is decided upon alike on both sides.
        let next = pod(99, &[(2000, 512)]);
        let here = plan(&configured.node, report.ledger(), &next);
        prop_assert_eq!(plan(&read.configured().node, read.ledger(), &next), here);
    }

    #[test]
    fn no_annotation_makes_it_panic(texts in prop::collection::vec(".{0,60}", 4)) {
        let names = placement::report::ANNOTATIONS.map(str::to_owned);
        let _ = NodeReport::parse(&names.into_iter().zip(texts).collect());
    }
}

/// A machine with 110 pods of two containers, and as many of the CPUs and nodes in use as they can.
fn full(topology: Topology) -> NodeReport {
    let nodes = topology.nodes().len();
    let machine = machine(topology, false);
    let text = format!(
        "{HEAD}cpuManagerPolicy: static\nreservedSystemCPUs: \"0-1\"\nmemoryManagerPolicy: Static\n\
         topologyManagerPolicy: best-effort\nreservedMemory: [{{numaNode: 0, limits: {{memory: \
         100Mi}}}}]\n"
    );
    let (config, _) = kubelet_config::read(&text).unwrap();
    let mut report = NodeReport::new(&machine, &config, Ledger::default()).unwrap();
    let mut ledger = report.ledger().clone();
    let cpus = (machine.topology.cpus().len() - 2) / 110;
    let containers = [(cpus.div_ceil(2), 1), (cpus / 2, 1)];
    let memory = nodes as u64 * 12 * 1024 / 220;
    let containers = containers.map(|(cpus, _)| (cpus as i64 * 1000, memory));
    for n in 0..110 {
        let placement = plan(&report.configured().node, &ledger, &pod(n, &containers)).unwrap();
        ledger.commit(&placement);
    }
    report.set_ledger(ledger).unwrap();
    assert_eq!(report.ledger().pods().count(), 110);
    report
}

/// The total size of the annotations in KiB. Measured: 67, 129 and 183 of the 256 that an object
/// may have; the test fails at a tenth more.
#[test]
fn a_report_fits_into_the_annotations_of_a_node() {
    let kibibytes = |topology: Topology| {
        let annotations = full(topology).render();
        annotations.iter().map(|(name, text)| name.len() + text.len()).sum::<usize>() >> 10
    };
    let small = kibibytes(regular(2, 4, 16, 2));
    let large = kibibytes(regular(4, 16, 8, 2));
    // The long form of the machine file, for cores with names of their own.
    let mut parts = regular(4, 16, 8, 2).parts();
    for cpu in &mut parts.cpus {
        cpu.core.0 += 10_000;
    }
    let odd = kibibytes(Topology::new(parts).unwrap());
    let sizes = format!("256 CPUs {small} KiB, 1,024 CPUs {large} KiB, odd cores {odd} KiB");
    assert!(small <= 74 && large <= 142 && odd <= 201, "{sizes}");
    assert!(odd < ANNOTATIONS_LIMIT >> 10, "{sizes}");
}
