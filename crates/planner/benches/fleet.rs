//! 10,000 pods onto 1,000 machines of 128 CPUs and eight NUMA nodes, report included.
//!
//! The figures are in `docs/measurements.md`.

#![allow(missing_docs)]

use std::fmt::Write as _;
use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use objects::Workload;
use placement::configured::Configured;
use planner::generate::{GenerateOptions, generate};
use planner::machine::shape;
use planner::report::{Options, Report};
use planner::simulate::{Shape, Strategy, numbered, simulate};

const MACHINES: usize = 1_000;
const PODS: u32 = 10_000;

fn machine() -> Shape {
    let machine =
        shape::parse("2s 4n 8c 2t l3=1 mem=64Gi distances=10,12,32").unwrap_or_else(|e| {
            unreachable!("{e}");
        });
    let configured: Configured = match generate(&machine, &GenerateOptions::default()) {
        Ok(generated) => generated.configured,
        Err(error) => unreachable!("{error}"),
    };
    Shape { name: "machine".to_owned(), configured }
}

fn read(text: &str) -> Vec<Workload> {
    match objects::workload::read(text) {
        Ok(manifest) => manifest.workloads,
        Err(errors) => unreachable!("{errors:?}"),
    }
}

fn deployment(name: &str, replicas: u32, limits: &str, out: &mut String) {
    let _ = write!(
        out,
        "---\napiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: {name}}}\nspec:\n  replicas: \
         {replicas}\n  selector: {{matchLabels: {{a: b}}}}\n  template:\n    metadata: {{labels: \
         {{a: b}}}}\n    spec:\n      containers:\n      - name: main\n        image: x\n        \
         resources: {{limits: {{{limits}}}}}\n"
    );
}

/// Six deployments, as in a typical cluster.
fn uniform() -> Vec<Workload> {
    let mut text = String::new();
    for (number, limits) in [
        "cpu: 8, memory: 16Gi",
        "cpu: 3, memory: 6Gi",
        "cpu: 500m, memory: 1Gi",
        "cpu: 16, memory: 40Gi",
        "cpu: 2, memory: 4Gi",
        "memory: 512Mi",
    ]
    .into_iter()
    .enumerate()
    {
        deployment(&format!("w{number}"), PODS / 6 + 1, limits, &mut text);
    }
    read(&text)
}

/// No two consecutive pods are equal: the worst case for cached results.
fn different() -> Vec<Workload> {
    let mut text = String::new();
    for number in 0..PODS {
        let (cpus, memory) = (1 + number * 7 % 12, 1 + number * 13 % 97);
        let limits = format!("cpu: {cpus}, memory: {memory}00Mi");
        deployment(&format!("w{number}"), 1, &limits, &mut text);
    }
    read(&text)
}

fn fleet(criterion: &mut Criterion) {
    let shapes = [machine()];
    let mut group = criterion.benchmark_group("10,000 pods onto 1,000 machines");
    group.sample_size(10);
    for (name, workloads) in [("uniform", uniform()), ("different", different())] {
        for strategy in [Strategy::Pack, Strategy::Spread] {
            group.bench_function(format!("{name}, {}", strategy.name()), |bencher| {
                bencher.iter(|| {
                    let machines = (0..MACHINES).map(|n| (numbered("machine", n), 0));
                    let mut simulation =
                        simulate(black_box(&shapes), machines, &workloads, strategy);
                    Report::new(&mut simulation, &Options::default())
                });
            });
        }
    }
    group.finish();
}

criterion_group!(benches, fleet);
criterion_main!(benches);
