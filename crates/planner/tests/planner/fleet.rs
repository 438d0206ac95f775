//! Placing workloads on machines: the plan of the fleet, its report, and remedies.

use objects::Workload;
use objects::workload::{self, Replicas};
use placement::configured::{Capacity, Configured};
use placement::demand::{Demand, PodUid};
use placement::{CpuSet, Ledger, plan};
use planner::machine::shape;
use planner::remedy::Remedy;
use planner::report::{Options, Report};
use planner::simulate::{Shape, Simulation, Strategy, how_many, numbered, simulate};
use proptest::prelude::*;

/// CPUs by pod and container.
type PlacedCpus = Vec<Vec<Option<CpuSet>>>;

const HEAD: &str = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";

fn shape_of(words: &str, config: &str) -> Shape {
    let machine = shape::parse(words).unwrap();
    let (config, _) = objects::kubelet_config::read(&format!("{HEAD}{config}")).unwrap();
    let configured = Configured::new(&machine, &config).unwrap();
    Shape { name: "m".to_owned(), configured }
}

const STATIC: &str = "cpuManagerPolicy: static\nreservedSystemCPUs: \"0\"\n";

fn pods(text: &str) -> Vec<Workload> {
    workload::read(text).unwrap().workloads
}

/// A deployment whose only container has these limits.
fn deployment(name: &str, replicas: u32, limits: &str) -> String {
    format!(
        "---\napiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: {name}}}\nspec:\n  replicas: \
         {replicas}\n  selector: {{matchLabels: {{a: b}}}}\n  template:\n    metadata: {{labels: \
         {{a: b}}}}\n    spec:\n      containers:\n      - name: main\n        image: x\n        \
         resources: {{limits: {{{limits}}}}}\n"
    )
}

fn run<'a>(
    shapes: &'a [Shape],
    count: usize,
    workloads: &'a [Workload],
    strategy: Strategy,
) -> Simulation<'a> {
    simulate(shapes, (0..count).map(|n| (numbered("m", n), 0)), workloads, strategy)
}

fn counts(simulation: &Simulation<'_>) -> Vec<usize> {
    simulation.machines.iter().map(|machine| machine.pods.len()).collect()
}

#[test]
fn packing_fills_machines_in_order_and_spreading_evens_them_out() {
    let shapes = [shape_of("4c mem=8Gi", STATIC)];
    let workloads = pods(&deployment("a", 4, "cpu: 1, memory: 1Gi"));
    let check = |strategy, expected: &[usize]| {
        assert_eq!(counts(&run(&shapes, 3, &workloads, strategy)), expected);
    };
    check(Strategy::Pack, &[3, 1, 0]);
    check(Strategy::Spread, &[2, 1, 1]);
}

#[test]
fn identical_pods_on_identical_machines_are_planned_once() {
    let shapes = [shape_of("2s 2n 8c 2t mem=64Gi", STATIC)];
    let workloads = pods(
        &[
            deployment("a", 4000, "cpu: 4, memory: 8Gi"),
            deployment("b", 6000, "cpu: 500m, memory: 1Gi"),
        ]
        .concat(),
    );
    let simulation = run(&shapes, 1000, &workloads, Strategy::Pack);
    assert_eq!((simulation.pods_placed(), simulation.pods_refused()), (10_000, 0));
    assert!(simulation.work.planned < 200, "{:?}", simulation.work);
    assert!(simulation.work.attempts < 30_000, "{:?}", simulation.work);
    let spread = run(&shapes, 1000, &workloads, Strategy::Spread);
    assert_eq!(spread.pods_refused(), 0);
    assert!(spread.work.planned < 200, "{:?}", spread.work);
}

#[test]
fn daemon_sets_run_on_every_machine_of_their_system() {
    let daemon = "apiVersion: apps/v1\nkind: DaemonSet\nmetadata: {name: d}\nspec:\n  selector: \
                  {matchLabels: {a: b}}\n  template:\n    metadata: {labels: {a: b}}\n    spec:\n      \
                  os: {name: linux}\n      containers:\n      - {name: d, image: x}\n";
    let workloads = pods(daemon);
    assert_eq!(workloads[0].replicas, Replicas::PerNode);
    let shapes = [shape_of("4c", STATIC), shape_of("4c os=windows", "")];
    let machines = [("a".to_owned(), 0), ("b".to_owned(), 1), ("c".to_owned(), 0)];
    let simulation = simulate(&shapes, machines, &workloads, Strategy::Pack);
    assert_eq!(counts(&simulation), [1, 0, 1]);
    assert!(simulation.refused.is_empty());
}

#[test]
fn how_many_returns_the_minimum() {
    let shape = shape_of("4c 2t mem=16Gi", STATIC);
    let workloads = pods(
        &[
            deployment("a", 7, "cpu: 2, memory: 1Gi"),
            deployment("never", 1, "cpu: 64, memory: 1Gi"),
            deployment("b", 5, "cpu: 3, memory: 1Gi"),
        ]
        .concat(),
    );
    for strategy in [Strategy::Pack, Strategy::Spread] {
        let simulation = how_many(&shape, &workloads, strategy);
        assert_eq!(simulation.pods_refused(), 1, "{strategy:?}");
        let shapes = std::slice::from_ref(&shape);
        let needed = simulation.machines.len();
        let less = run(shapes, needed - 1, &workloads, strategy);
        assert!(less.pods_refused() > 1, "{strategy:?}: {needed}");
        let same = run(shapes, needed, &workloads, strategy);
        assert_eq!(counts(&same), counts(&simulation), "{strategy:?}");
    }
}

#[test]
fn remaining_capacity_still_fits() {
    for options in ["", "cpuManagerPolicyOptions: {full-pcpus-only: \"true\"}\n"] {
        let config = format!("{STATIC}{options}topologyManagerPolicy: single-numa-node\n");
        let shapes = [shape_of("2s 1n 8c 2t mem=32Gi", &config)];
        let workloads = pods(&deployment("a", 3, "cpu: 6, memory: 1Gi"));
        let mut simulation = run(&shapes, 1, &workloads, Strategy::Pack);
        let report = Report::new(&mut simulation, &Options::default());
        let largest = report.machines[0].left.largest_on_one_node.unwrap();
        let fits = |cpus: usize| {
            let mut text = deployment("a", 3, "cpu: 6, memory: 1Gi");
            text += &deployment("b", 1, &format!("cpu: {cpus}, memory: 1Gi"));
            let workloads = pods(&text);
            run(&shapes, 1, &workloads, Strategy::Pack).pods_refused() == 0
        };
        assert!(fits(largest) && !fits(largest + 1) && !fits(largest + 2), "{options}{largest}");
    }
}

#[test]
fn refused_pod_gets_remedies() {
    let config = format!(
        "{STATIC}cpuManagerPolicyOptions: {{full-pcpus-only: \"true\"}}\ntopologyManagerPolicy: \
         single-numa-node\nmaxPods: 3\n"
    );
    let shapes = [shape_of("2s 1n 4c 2t mem=32Gi", &config)];
    let check = |limits: &str, expected: &[&str]| {
        let text = deployment("small", 2, "cpu: 2, memory: 1Gi") + &deployment("big", 1, limits);
        let workloads = pods(&text);
        let mut simulation = run(&shapes, 1, &workloads, Strategy::Pack);
        let report = Report::new(&mut simulation, &Options::default());
        let remedies: Vec<&str> =
            report.refused[0].remedies.iter().flatten().map(|r| r.text.as_str()).collect();
        assert_eq!(remedies, expected, "{limits}");
    };
    let shared =
        "shared CPUs and memory from any node (Burstable): leave out the CPU limit of main";
    check(
        "cpu: 3, memory: 1Gi",
        &[
            "4 CPUs instead of 3 for main: whole cores",
            "at most 2 CPUs instead of 3 for main",
            shared,
        ],
    );
    check(
        "cpu: 10, memory: 1Gi",
        &["at most 8 CPUs instead of 10 for main", shared, "topologyManagerPolicy: restricted"],
    );
    check("cpu: 200m, memory: 80Gi", &["at most 63388Mi of memory instead of 80Gi for main"]);
    check(
        "cpu: 2, memory: 1Gi, example.com/fpga: 2",
        &["a machine with 2 of example.com/fpga (--resource example.com/fpga=2)"],
    );
}

#[test]
fn excess_pod_gets_remedies() {
    let shapes = [shape_of("4c mem=8Gi", "maxPods: 2")];
    let workloads = pods(&(deployment("a", 2, "cpu: 100m") + &deployment("b", 1, "cpu: 200m")));
    let mut simulation = run(&shapes, 1, &workloads, Strategy::Pack);
    let report = Report::new(&mut simulation, &Options::default());
    assert_eq!(report.refused[0].reason, "OutOfpods");
    let remedies: Vec<Remedy> =
        report.refused[0].remedies.iter().flatten().map(|r| r.remedy.clone()).collect();
    assert_eq!(
        remedies,
        [
            Remedy::MaxPods { to: 3 },
            Remedy::WithoutPod { pod: "a-0".to_owned() },
            Remedy::EmptyMachine { shape: "m".to_owned() }
        ]
    );
}

/// Simple first fit: every machine has its own ledger and is tried every time.
fn plainly(
    shape: &Shape,
    machines: usize,
    workloads: &[Workload],
) -> Vec<Vec<Vec<Option<CpuSet>>>> {
    let node = &shape.configured.node;
    let mut fleet: Vec<(Ledger, Capacity, PlacedCpus)> =
        vec![(node.empty_ledger(), Capacity::default(), Vec::new()); machines];
    for (number, workload) in workloads.iter().enumerate() {
        let Replicas::Count(count) = workload.replicas else { continue };
        for index in 0..count {
            let uid = PodUid::new(&format!("{number}/{index}"));
            let demand = Demand::new(&uid, &workload.template.spec.resources());
            let need = Capacity::of(&workload.template);
            for (ledger, used, placed) in &mut fleet {
                let sum = used.plus(&need);
                let all = &shape.configured.allocatable;
                if sum.milli_cpus > all.milli_cpus || sum.memory > all.memory {
                    continue;
                }
                let Ok(placement) = plan(node, ledger, &demand) else { continue };
                ledger.commit(&placement);
                for container in 0..demand.containers.len() {
                    ledger.starting(node, &demand, container);
                }
                *used = sum;
                placed.push(placement.containers.iter().map(|c| c.cpus.clone()).collect());
                break;
            }
        }
    }
    fleet.into_iter().map(|(.., placed)| placed).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// Cached states change the work, never the result.
    #[test]
    fn result_equals_uncached_first_fit(
        wanted in prop::collection::vec((1u32..9, 1u64..7, 1u64..12, any::<bool>()), 1..8),
        machines in 1usize..6,
        policy in prop::sample::select(vec!["none", "best-effort", "restricted", "single-numa-node"]),
    ) {
        let config = format!(
            "{STATIC}memoryManagerPolicy: Static\nsystemReserved: {{memory: 924Mi}}\nreservedMemory: \
             [{{numaNode: 0, limits: {{memory: 1Gi}}}}]\ntopologyManagerPolicy: {policy}\n"
        );
        let shapes = [shape_of("2s 1n 4c 2t mem=16Gi", &config)];
        let text: String = wanted
            .iter()
            .enumerate()
            .map(|(n, (replicas, cpus, memory, fraction))| {
                let cpu = if *fraction { format!("{}00m", cpus) } else { cpus.to_string() };
                deployment(&format!("w{n}"), *replicas, &format!("cpu: {cpu}, memory: {memory}Gi"))
            })
            .collect();
        let workloads = pods(&text);
        let simulation = run(&shapes, machines, &workloads, Strategy::Pack);
        let placed: Vec<Vec<Vec<Option<CpuSet>>>> = (0..machines)
            .map(|machine| {
                let placed_pods = simulation.placed_pods(machine);
                placed_pods
                    .iter()
                    .map(|pod| pod.containers.iter().map(|c| c.cpus.clone()).collect())
                    .collect()
            })
            .collect();
        prop_assert_eq!(placed, plainly(&shapes[0], machines, &workloads));
    }
}
