//! A rig leaves nothing behind, however its process ends.

use std::path::{Path, PathBuf};
use std::process::Command;

use rig::{Containerd, wait_until};

use crate::support::{PATIENCE, Runtime};

/// Makes the test below a process that dies with its rig.
const DYING: &str = "BERTH_TEST_DIES_WITH_ITS_RIG";

/// Returns the traces of a rig outside its own directory.
fn traces(directory: &Path) -> Vec<String> {
    let name = directory.file_name().unwrap().to_str().unwrap();
    let mut found = Vec::new();
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    found.extend(mounts.lines().filter(|line| line.contains(name)).map(str::to_owned));
    for line in mounts.lines().filter(|line| line.contains(" - cgroup")) {
        let group = Path::new(line.split(' ').nth(4).unwrap()).join(name);
        if group.exists() {
            found.push(group.display().to_string());
        }
    }
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let command = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let command = String::from_utf8_lossy(&command).replace('\0', " ");
        if command.contains(name) {
            found.push(command);
        }
    }
    found
}

#[tokio::test]
async fn a_rig_removes_everything_it_created() {
    let mut runtime = Runtime::start().await;
    runtime.running("left").await;
    // A container is removed even if containerd does not know that it runs.
    runtime.containerd.kill().unwrap();
    let directory = runtime.containerd.directory().to_owned();
    assert!(traces(&directory).len() > 3, "{:?}", traces(&directory));
    drop(runtime);
    assert_eq!(traces(&directory), [""; 0]);
    assert!(!directory.exists());
}

#[tokio::test]
async fn two_rigs_are_isolated_from_each_other() {
    let (one, other) = (Runtime::start().await, Runtime::start().await);
    one.running("mine").await;
    let list = cri::v1::ListPodSandboxRequest::default();
    assert_eq!(one.client.call(list.clone()).await.unwrap().items.len(), 1);
    assert_eq!(other.client.call(list).await.unwrap().items.len(), 0);
    drop(other);
    assert_eq!(
        one.client.call(cri::v1::ListContainersRequest::default()).await.unwrap().containers.len(),
        1
    );
}

#[tokio::test]
async fn the_next_rig_cleans_up_after_a_dead_one() {
    if std::env::var_os(DYING).is_some() {
        let runtime = Runtime::start().await;
        runtime.running("orphan").await;
        println!("\ndirectory={}", runtime.containerd.directory().display());
        std::process::abort();
    }
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "--nocapture"])
        .arg("leftovers::the_next_rig_cleans_up_after_a_dead_one")
        .env(DYING, "yes")
        .output()
        .unwrap();
    let printed = String::from_utf8_lossy(&output.stdout);
    let directory = printed.lines().find_map(|line| line.strip_prefix("directory="));
    let directory = PathBuf::from(directory.unwrap_or_else(|| panic!("{output:?}")));
    // By this rig, or by one of another test that started earlier and may not have finished.
    let _next = Containerd::start().unwrap();
    wait_until(PATIENCE, || (!directory.exists()).then_some(())).unwrap();
    assert_eq!(traces(&directory), [""; 0]);
}
