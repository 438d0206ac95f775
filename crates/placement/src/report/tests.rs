//! Errors of a report name the annotation.

use super::*;
use crate::demand::{Demand, PodUid};
use crate::plan;

const HEAD: &str = "apiVersion: berth.dev/v1alpha1\nkind: Machine\n";
const CONFIG_HEAD: &str = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";

fn machine() -> Machine {
    let nodes = "nodes: [{id: 0, cpus: 0-3, memory: 8Gi}, {id: 1, cpus: 4-7, memory: 8Gi}]";
    file::parse(&format!("{HEAD}metadata: {{name: n1}}\n{nodes}")).unwrap()
}

fn config(fields: &str) -> KubeletConfig {
    kubelet_config::read(&format!("{CONFIG_HEAD}{fields}")).unwrap().0
}

fn static_config() -> KubeletConfig {
    config(
        "cpuManagerPolicy: static\ntopologyManagerPolicy: single-numa-node\n\
         reservedSystemCPUs: \"0\"\nmemoryManagerPolicy: Static\n\
         reservedMemory: [{numaNode: 0, limits: {memory: 100Mi}}]",
    )
}

fn pod(uid: &str, cpus: u32) -> Demand {
    let amounts = format!("{{cpu: {cpus}, memory: 1Gi}}");
    let text = format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: p}}\nspec:\n  containers:\n  - name: c\n    \
         image: i\n    resources: {{requests: {amounts}, limits: {amounts}}}\n"
    );
    let manifest = objects::workload::read(&text).unwrap();
    let workload = manifest.workloads.first().unwrap();
    Demand::new(&PodUid::new(uid), &workload.template.spec.resources())
}

/// A report of a machine with one pod of three CPUs on it.
fn report() -> NodeReport {
    let mut report = NodeReport::new(&machine(), &static_config(), Ledger::default()).unwrap();
    let mut ledger = report.ledger().clone();
    let placement = plan(&report.configured().node, &ledger, &pod("uid-1", 3)).unwrap();
    ledger.commit(&placement);
    report.set_ledger(ledger).unwrap();
    report
}

#[test]
fn a_report_has_four_annotations_in_existing_formats() {
    let report = report();
    let annotations = report.render();
    assert_eq!(annotations.len(), ANNOTATIONS.len());
    assert!(ANNOTATIONS.iter().all(|name| annotations.contains_key(*name)), "{annotations:?}");
    assert_eq!(
        annotations[MACHINE],
        "{\"apiVersion\":\"berth.dev/v1alpha1\",\"kind\":\"Machine\",\"os\":\"linux\",\
         \"sockets\":[{\"id\":0,\"cpus\":\"0-7\"}],\
         \"nodes\":[{\"id\":0,\"cpus\":\"0-3\",\"memory\":\"8Gi\"},\
         {\"id\":1,\"cpus\":\"4-7\",\"memory\":\"8Gi\"}],\
         \"uncoreCaches\":[{\"id\":0,\"cpus\":\"0-7\"}]}"
    );
    assert_eq!(
        annotations[CONFIGURATION],
        "{\"apiVersion\":\"kubelet.config.k8s.io/v1beta1\",\"cpuManagerPolicy\":\"static\",\
         \"kind\":\"KubeletConfiguration\",\"memoryManagerPolicy\":\"Static\",\
         \"reservedMemory\":[{\"limits\":{\"memory\":\"100Mi\"},\"numaNode\":0}],\
         \"reservedSystemCPUs\":\"0\",\"topologyManagerPolicy\":\"single-numa-node\"}"
    );
    assert!(annotations[CPU_STATE].contains("\"uid-1\""), "{}", annotations[CPU_STATE]);
    let read = NodeReport::parse(&annotations).unwrap().unwrap();
    assert_eq!(read, report);
    let (node, ledger) = read.into_parts();
    assert_eq!(ledger.cpu.assignments[&PodUid::new("uid-1")].len(), 1);
    // One of four CPUs is the system's and three are the pod's: another three fit on the other node
    // only, and then no more.
    let mut ledger = ledger;
    ledger.commit(&plan(&node, &ledger, &pod("uid-2", 3)).unwrap());
    plan(&node, &ledger, &pod("uid-3", 3)).unwrap_err();
}

#[test]
fn missing_annotations_mean_no_report_or_no_allocations() {
    let mut annotations = BTreeMap::from([("example.com/other".to_owned(), "{".to_owned())]);
    assert_eq!(NodeReport::parse(&annotations).unwrap(), None);
    annotations.extend(report().render());
    annotations.remove(CPU_STATE);
    annotations.remove(MEMORY_STATE);
    let read = NodeReport::parse(&annotations).unwrap().unwrap();
    assert_eq!(*read.ledger(), read.configured().node.empty_ledger());
}

#[test]
fn errors_name_their_annotation() {
    let check = |change: &dyn Fn(&mut BTreeMap<String, String>), expected: &str| {
        let mut annotations = report().render();
        change(&mut annotations);
        let error = NodeReport::parse(&annotations).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}\nexpected {expected}");
    };
    let put = |name: &'static str, text: &'static str| {
        move |annotations: &mut BTreeMap<String, String>| {
            annotations.insert(name.to_owned(), text.to_owned());
        }
    };
    check(
        &|a| drop(a.remove(MACHINE)),
        "annotation berth.dev/machine is missing; a node with berth.dev/kubelet-configuration has \
         it too",
    );
    check(&|a| drop(a.remove(CONFIGURATION)), "berth.dev/kubelet-configuration is missing");
    check(&put(MACHINE, "{}"), "annotation berth.dev/machine is not a machine file: ");
    check(
        &put(CONFIGURATION, "{\"kind\":\"KubeletConfiguration\"}"),
        "annotation berth.dev/kubelet-configuration is not a KubeletConfiguration: ",
    );
    check(
        &put(
            CONFIGURATION,
            "{\"apiVersion\":\"kubelet.config.k8s.io/v1beta1\",\"kind\":\"KubeletConfiguration\",\
             \"reservedSystemCPUs\":\"9\"}",
        ),
        "annotation berth.dev/kubelet-configuration does not suit the machine of \
         berth.dev/machine: reservedSystemCPUs: reserved-cpus: 9 is not a subset",
    );
    check(
        &put(CPU_STATE, "{}"),
        "annotation berth.dev/cpu-manager-state cannot be read as a state file: ",
    );
    check(
        &|a| {
            let broken = a[MEMORY_STATE].replace("uid-1", "uid-2");
            a.insert(MEMORY_STATE.to_owned(), broken);
        },
        "annotation berth.dev/memory-manager-state cannot be read as a state file: could not load \
         v3 checkpoint: checkpoint is corrupted",
    );
    // The same machine with a CPU less, and with a NUMA node less.
    check(
        &|a| {
            let smaller = a[MACHINE].replace("0-7", "0-6").replace("4-7", "4-6");
            a.insert(MACHINE.to_owned(), smaller);
        },
        "annotation berth.dev/cpu-manager-state does not fit the machine and its configuration: ",
    );
    let smaller = "{\"apiVersion\":\"berth.dev/v1alpha1\",\"kind\":\"Machine\",\
                   \"nodes\":[{\"id\":0,\"cpus\":\"0-3\",\"memory\":\"8Gi\"}]}";
    check(
        &put(MACHINE, smaller),
        "annotation berth.dev/memory-manager-state does not fit the machine and its configuration: \
         [memorymanager] the expected machine state is different from the real one",
    );
}

#[test]
fn a_ledger_of_another_machine_is_not_reported() {
    let mut report = report();
    let before = report.clone();
    let mut ledger = report.ledger().clone();
    ledger.cpu.shared.insert(crate::CpuId(70));
    let error = report.set_ledger(ledger).unwrap_err().to_string();
    assert!(error.starts_with("annotation berth.dev/cpu-manager-state does not fit"), "{error}");
    assert_eq!(report, before);
}
