//! `berth state` on the command line.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use agent::ledger::allocations::Allocations;
use agent::ledger::file::LedgerFile;
use placement::CpuSet;
use placement::configured::Configured;
use placement::state_file::CpuState;
use serde_json::json;

const MACHINE: &str = "2 sockets x 4 cores x 2 threads mem=8Gi";

fn berth(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_berth")).args(args).env("NO_COLOR", "1").output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Prepares a directory with a configuration for the machine and the state of one pod with these
/// CPUs.
fn prepare(dir: &Path, cpus: &str) -> String {
    let config = dir.join("kubelet.yaml").display().to_string();
    let made = berth(&["config", "generate", "--machine", MACHINE, "--output-file", &config]);
    assert!(made.status.success(), "{}", text(&made.stderr));
    let mut state = CpuState::empty("static");
    let cpus = CpuSet::parse(cpus).unwrap();
    state.default_cpus = &CpuSet::range(0, 15) - &cpus;
    state.entries.entry("uid".into()).or_default().insert("app".into(), cpus);
    fs::write(dir.join("cpu_manager_state"), state.render()).unwrap();
    config
}

#[test]
fn fitting_state_is_unchanged() {
    let dir = tempfile::tempdir().unwrap();
    let config = prepare(dir.path(), "2,10");
    let path = dir.path().display().to_string();
    let checked = berth(&["state", "check", &path, "--config", &config, "--machine", MACHINE]);
    assert_eq!(checked.status.code(), Some(0), "{}", text(&checked.stderr));
    let before = fs::read(dir.path().join("cpu_manager_state")).unwrap();
    let migrated = berth(&["state", "migrate", &path, "--config", &config, "--machine", MACHINE]);
    assert!(text(&migrated.stdout).contains("nothing to do"));
    assert_eq!(fs::read(dir.path().join("cpu_manager_state")).unwrap(), before);
}

#[test]
fn state_of_a_larger_machine_is_migrated_with_a_backup() {
    let dir = tempfile::tempdir().unwrap();
    let config = prepare(dir.path(), "2,30");
    let path = dir.path().display().to_string();
    let place = [path.as_str(), "--config", &config, "--machine", MACHINE];
    let file = dir.path().join("cpu_manager_state");
    let before = fs::read(&file).unwrap();

    let checked = berth(&[&["state", "check"], &place[..]].concat());
    assert_eq!(checked.status.code(), Some(3));
    assert!(text(&checked.stdout).contains("the machine has no CPU 30"));

    let tried = berth(&[&["state", "migrate", "--dry-run"], &place[..]].concat());
    assert!(tried.status.success());
    assert_eq!(fs::read(&file).unwrap(), before, "a dry run writes nothing");

    let migrated = berth(&[&["state", "migrate"], &place[..]].concat());
    assert!(migrated.status.success(), "{}", text(&migrated.stderr));
    assert_eq!(fs::read(dir.path().join("cpu_manager_state.backup-1")).unwrap(), before);
    let checked = berth(&[&["state", "check"], &place[..]].concat());
    assert_eq!(checked.status.code(), Some(0), "{}", text(&checked.stderr));
}

#[test]
fn damaged_file_counts_as_empty_and_is_backed_up() {
    let dir = tempfile::tempdir().unwrap();
    let config = prepare(dir.path(), "2,10");
    let file = dir.path().join("cpu_manager_state");
    let damaged = "{\"policyName\":\"static\",\"defaultCpuSet\":\"0\",\"checksum\":1}";
    fs::write(&file, damaged).unwrap();
    let path = dir.path().display().to_string();
    let place = [path.as_str(), "--config", &config, "--machine", MACHINE];
    let checked = berth(&[&["state", "check"], &place[..]].concat());
    assert_eq!(checked.status.code(), Some(3));
    assert!(text(&checked.stderr).contains("checkpoint is corrupted"));
    let shown = berth(&["state", "show", &path]);
    assert_eq!(shown.status.code(), Some(2));

    let migrated = berth(&[&["state", "migrate"], &place[..]].concat());
    assert_eq!(migrated.status.code(), Some(0), "{}", text(&migrated.stderr));
    let output = text(&migrated.stdout);
    assert!(
        output.contains("cpu_manager_state cannot be used: ") && output.contains("discarded"),
        "{output}"
    );
    let kept = fs::read(dir.path().join("cpu_manager_state.backup-1")).unwrap();
    assert_eq!(text(&kept), damaged, "the file is kept");
    let checked = berth(&[&["state", "check"], &place[..]].concat());
    assert_eq!(checked.status.code(), Some(0), "{}", text(&checked.stderr));
}

#[test]
fn directory_without_state_files_is_reported() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().display().to_string();
    for output in ["text", "json"] {
        let shown = berth(&["state", "show", &path, "-o", output]);
        assert_eq!((shown.status.code(), text(&shown.stdout).as_str()), (Some(2), ""));
        let errors = text(&shown.stderr);
        assert!(errors.contains("neither cpu_manager_state nor memory_manager_state"), "{errors}");
    }
    prepare(dir.path(), "2,10");
    let shown = berth(&["state", "show", &path]);
    let output = text(&shown.stdout);
    assert!(output.contains("CPU manager (static)"), "{output}");
    assert!(output.contains("memory manager: no memory_manager_state"), "{output}");
    let shown = berth(&["state", "show", &path, "-o", "json"]);
    assert!(!text(&shown.stdout).contains("memoryManager"), "{}", text(&shown.stdout));
}

/// Files that a kubelet wrote; see the README in it.
fn kubelet_state() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/kubelet-state")
}

/// Returns a pod with exclusive CPUs.
fn guaranteed(uid: &str, cpus: &str, memory: &str) -> agent::spec::Pod {
    let amounts = json!({"cpu": cpus, "memory": memory});
    serde_json::from_value(json!({
        "metadata": {"uid": uid},
        "spec": {"containers": [
            {"name": "c", "resources": {"requests": amounts, "limits": amounts}},
        ]},
    }))
    .unwrap()
}

const KUBELET_FILES: [&str; 4] =
    ["cpu_manager_state", "memory_manager_state", "allocated_pods_state", "actuated_pods_state"];

#[test]
fn state_of_a_kubelet_survives_both_moves() {
    let dir = tempfile::tempdir().unwrap();
    for file in KUBELET_FILES {
        fs::copy(kubelet_state().join(file), dir.path().join(file)).unwrap();
    }
    let assert_unchanged = |when: &str| {
        for file in KUBELET_FILES {
            let [recorded, found] = [kubelet_state(), dir.path().to_owned()]
                .map(|directory| fs::read_to_string(directory.join(file)).unwrap());
            assert_eq!(found, recorded, "{file} {when}");
        }
    };
    let [config, machine] = ["kubelet.yaml", "machine.yaml"]
        .map(|file| kubelet_state().join(file).display().to_string());
    let path = dir.path().display().to_string();
    let place = [path.as_str(), "--config", &config, "--machine", &machine];
    let checked = berth(&[&["state", "check"], &place[..]].concat());
    assert_eq!(checked.status.code(), Some(0), "{}", text(&checked.stdout));
    let migrated = berth(&[&["state", "migrate"], &place[..]].concat());
    assert!(text(&migrated.stdout).contains("nothing to do"), "{}", text(&migrated.stdout));
    assert_unchanged("after the commands");

    let config = objects::kubelet_config::read(&fs::read_to_string(config).unwrap()).unwrap().0;
    let machine = berth::machine_source::load_machine(Some(&machine)).unwrap();
    let node = Configured::new(&machine, &config).unwrap().node;
    let (mut ledger, found) = LedgerFile::open(dir.path(), node).unwrap();
    assert_eq!(found, []);
    let uid = "4158fc2b-ec6a-4066-be48-590ffc8842f2";
    let pinned = guaranteed(uid, "1", "64Mi");
    ledger.rewrite().unwrap();
    assert_unchanged("after a rewrite");
    // A pod that is admitted again gets the CPU and the memory that it has.
    let placement = ledger.plan(&agent::placement_demand(&pinned)).unwrap();
    ledger.commit(placement).unwrap();
    assert_unchanged("after the admission");
    assert_eq!(ledger.affinities(&pinned)["c"].cpus, CpuSet::parse("1").unwrap());
    assert!(ledger.release(&placement::demand::PodUid::new(uid)).unwrap());
    let placement = ledger.plan(&agent::placement_demand(&pinned)).unwrap();
    ledger.commit(placement).unwrap();
    assert_unchanged("after a new admission");
    let (allocations, unusable) = Allocations::open(dir.path()).unwrap();
    assert_eq!(unusable, []);
    assert!(allocations.allocated(uid).is_some() && allocations.actuated(uid).is_none());
}

#[test]
fn lost_memory_state_follows_the_cpus() {
    let dir = tempfile::tempdir().unwrap();
    let config = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n\
                  cpuManagerPolicy: static\nmemoryManagerPolicy: Static\n\
                  topologyManagerPolicy: best-effort\nreservedSystemCPUs: '0,4'\n\
                  systemReserved: {memory: 512Mi}\nevictionHard: {memory.available: 100Mi}\n\
                  reservedMemory: [{numaNode: 0, limits: {memory: 306Mi}}, \
                  {numaNode: 1, limits: {memory: 306Mi}}]\n";
    let config = objects::kubelet_config::read(config).unwrap().0;
    let machine = berth::machine_source::load_machine(Some("2 sockets x 4 cores mem=4Gi")).unwrap();
    let open = || {
        let node = Configured::new(&machine, &config).unwrap().node;
        LedgerFile::open(dir.path(), node).unwrap().0
    };
    let admit = |ledger: &mut LedgerFile, pod: &agent::spec::Pod| {
        let placement = ledger.plan(&agent::placement_demand(pod)).unwrap();
        ledger.commit(placement).unwrap();
        ledger.affinities(pod)
    };
    let pods = [guaranteed("a", "2", "256Mi"), guaranteed("b", "2", "256Mi")];
    let mut ledger = open();
    let before = pods.each_ref().map(|pod| admit(&mut ledger, pod));
    let nodes = before.each_ref().map(|affinity| affinity["c"].mems.clone());
    assert_ne!(nodes[0], nodes[1], "each pod has a node of its own");
    let file = dir.path().join("memory_manager_state");
    let written = fs::read_to_string(&file).unwrap();
    for broken in [None, Some("{")] {
        drop(ledger);
        match broken {
            None => fs::remove_file(&file).unwrap(),
            Some(text) => fs::write(&file, text).unwrap(),
        }
        ledger = open();
        // In the other order, in which the first pod would get the first node.
        for (pod, before) in pods.iter().zip(&before).rev() {
            assert_eq!(admit(&mut ledger, pod), *before, "{broken:?}");
        }
        assert_eq!(fs::read_to_string(&file).unwrap(), written, "{broken:?}");
    }
}
