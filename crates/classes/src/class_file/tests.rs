//! Reading of class files, and sets of classes on a machine.

use super::*;
use crate::class_set::{ClassSet, ClassSetError, Imports};
use crate::hardware::{CgroupVersion, Cgroups, Hardware};
use crate::rdt::Tree;
use crate::rdt::names::Prefix;

const FILE: &str = "
apiVersion: berth.dev/v1alpha1
kind: ClassFile
blockio:
  config: {Classes: {slow: [{Weight: 50}], fast: [{Weight: 500}]}}
  default: fast
  capacities: {slow: 3}
resources:
- name: example.com/files
  default: few
  classes:
  - {name: many, capacity: 4, rlimits: [{type: RLIMIT_NOFILE, soft: 1024, hard: unlimited}]}
  - {name: few, rlimits: [{type: RLIMIT_NOFILE, soft: 64, hard: 64}]}
- name: example.com/memory
  level: pod
  mutable: true
  classes: [{name: safe, memory: {min: 1Gi, high: 4Gi, oomGroup: true, oomScoreAdj: -500}}]
- name: example.com/latency
  classes:
  - {name: batch, scheduling: {policy: SCHED_BATCH, nice: 5, ioPriority: {class: idle}}}
";

fn hardware(version: CgroupVersion, bfq_weight: bool) -> Hardware {
    let cgroups = Cgroups { version, throttle: true, weight: false, bfq_weight, latency: false };
    Hardware { cgroups: Some(cgroups), ..Hardware::default() }
}

fn build(text: &str, hardware: &Hardware) -> Result<ClassSet, Vec<ClassSetError>> {
    let file = ClassFile::parse(text).unwrap();
    let (tree, prefix) = (Tree::default(), Prefix::default());
    ClassSet::build(&file, &Imports::default(), hardware, &tree, &prefix).0
}

#[test]
fn a_set_advertises_every_class_with_its_capacity() {
    let set = build(FILE, &hardware(CgroupVersion::V2, true)).unwrap();
    let advertised = serde_json::to_value(set.advertised(Level::Container)).unwrap();
    assert_eq!(
        advertised,
        serde_json::json!([
            {"name": "example.com/files", "mutable": false,
             "classes": [{"name": "few", "capacity": 0}, {"name": "many", "capacity": 4}]},
            {"name": "example.com/latency", "mutable": false,
             "classes": [{"name": "batch", "capacity": 0}]},
            {"name": "k8s.io/blockio", "mutable": false,
             "classes": [{"name": "fast", "capacity": 0}, {"name": "slow", "capacity": 3}]},
        ])
    );
    let pod = set.advertised(Level::Pod);
    assert_eq!(pod.len(), 1);
    assert!(pod[0].mutable);
}

#[test]
fn memory_classes_become_cgroup_files() {
    let file = ClassFile::parse(FILE).unwrap();
    let class = &file.resources["example.com/memory"].classes["safe"];
    let Effect::Memory(memory) = &class.effect else { panic!("{class:?}") };
    let files: Vec<(&str, String)> = memory.unified().into_iter().collect();
    assert_eq!(
        files,
        [
            ("memory.high", "4294967296".to_owned()),
            ("memory.min", "1073741824".to_owned()),
            ("memory.oom.group", "1".to_owned()),
        ]
    );
    assert_eq!(memory.oom_score_adj, Some(-500));
}

#[test]
fn errors_have_line_and_field() {
    let check = |resource: &str, expected: &str| {
        let text = format!("apiVersion: {API_VERSION}\nkind: {KIND}\n{resource}\n");
        let errors = ClassFile::parse(&text).unwrap_err();
        let texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
        assert!(texts.iter().any(|text| text.contains(expected)), "{expected}: {texts:?}");
    };
    let class = |class: &str| format!("resources: [{{name: a.b/c, classes: [{class}]}}]");
    check("resorces: []", "line 3, column 1: resorces: unknown field");
    check("resources: [{name: files, classes: []}]", "write example.com/files");
    check("resources: [{name: k8s.io/net, classes: []}]", "Kubernetes' own");
    check("resources: [{name: A.b/c, classes: []}]", "DNS subdomain");
    check("resources: [{name: a.b/c, level: node, classes: []}]", "container or pod");
    check("resources: [{name: a.b/c, default: x, classes: []}]", "there is no class \"x\"");
    check(&class("{name: a}"), "give one of rlimits, memory and scheduling");
    check(&class("{name: a, rlimits: [{type: NOFILE, soft: 1, hard: 1}]}"), "one of RLIMIT_AS");
    check(
        &class("{name: a, rlimits: [{type: RLIMIT_CPU, soft: 2, hard: 1}]}"),
        "the soft limit 2 is above the hard limit 1",
    );
    check(&class("{name: a, memory: {min: 2Gi, high: 1Gi}}"), "above high");
    check(&class("{name: a, memory: {oomScoreAdj: 2000}}"), "between -1000 and 1000");
    check(&class("{name: a, scheduling: {policy: SCHED_FIFO}}"), "with a priority");
    check(&class("{name: a, scheduling: {nice: 20}}"), "between -20 and 19");
    check(&class("{name: a, scheduling: {ioPriority: {class: idle, level: 1}}}"), "class idle");
    check("rdt: {}", "give either config or configFile");
    check("rdt: {config: {partition: {}}}", "rdt.config.partition: unknown field");
}

#[test]
fn a_set_is_refused_as_a_whole() {
    let v1 = build(FILE, &hardware(CgroupVersion::V1, true)).unwrap_err();
    assert!(matches!(v1[..], [ClassSetError::NeedsCgroupV2 { file: "memory.high", .. }]), "{v1:?}");
    let no_bfq = build(FILE, &hardware(CgroupVersion::V2, false)).unwrap_err();
    assert_eq!(no_bfq.len(), 2, "{no_bfq:?}");
    let unknown = FILE.replace("default: fast", "default: faster");
    let unknown = build(&unknown, &hardware(CgroupVersion::V2, true)).unwrap_err();
    assert!(unknown[0].to_string().contains("\"faster\""), "{unknown:?}");
    let rdt = FILE.replace("blockio:", "rdt: {config: {partitions: {}}}\nblockio:");
    let rdt = build(&rdt, &hardware(CgroupVersion::V2, true)).unwrap_err();
    assert_eq!(rdt, [ClassSetError::NoResctrl]);
}

#[test]
fn references_are_left_to_the_caller() {
    let text =
        format!("apiVersion: {API_VERSION}\nkind: {KIND}\nrdt: {{configFile: /etc/rdt.yaml}}");
    let file = ClassFile::parse(&text).unwrap();
    assert_eq!(file.references(), ["/etc/rdt.yaml"]);
}
