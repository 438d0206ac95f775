//! `berth state` on the command line.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use placement::CpuSet;
use placement::state_file::CpuState;

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
