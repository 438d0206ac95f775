//! The machine that runs the tests.

use host::Anomaly;

#[test]
fn this_machine_can_be_described() {
    let (topology, anomalies) = host::os::observe_topology().unwrap();
    // Systems differ in what they omit (wine does not report memory by node), so the anomalies are
    // printed, not checked.
    for anomaly in &anomalies {
        println!("{anomaly}");
    }
    println!("{topology:#?}");
    let available = std::thread::available_parallelism().unwrap().get();
    assert!(topology.cpus().len() >= available, "{} < {available}", topology.cpus().len());
    let untold = anomalies.iter().any(|a| matches!(a, Anomaly::NoMemory { .. }));
    assert!(untold || topology.nodes().iter().any(|node| node.memory.0 > 0));
}

#[test]
fn this_machine_has_an_identity() {
    let identity = host::os::system::identity();
    println!("{identity:#?}");
    assert!(!identity.hostname.is_empty());
    assert_eq!(identity.hostname, identity.hostname.to_lowercase());
    assert!(identity.kernel_version.starts_with(|c: char| c.is_ascii_digit()));
    assert!(!identity.os_image.is_empty());
}

#[test]
fn this_machine_reports_its_resources() {
    use host::os::system;
    let memory = system::memory().unwrap();
    assert!(memory.total > 0 && memory.free <= memory.total && memory.available <= memory.total);
    let size = system::page_size().unwrap();
    assert!(size.is_power_of_two() && size >= 4096, "{size}");
    let disk = system::file_system(&std::env::temp_dir()).unwrap();
    assert!(disk.capacity > 0 && disk.available <= disk.capacity);
    if let Some(inodes) = disk.inodes {
        assert!(inodes.free <= inodes.total);
    }
    if let Some(ids) = system::process_ids().unwrap() {
        assert!(ids.used > 0 && ids.used <= ids.max);
    }
    assert!(system::uptime().unwrap().as_nanos() > 0);
    assert!(system::huge_page_sizes().iter().all(|size| size.is_power_of_two()));
}

#[test]
fn a_missing_path_has_no_file_system() {
    let nowhere = std::env::temp_dir().join("no such file, nor directory");
    assert!(host::os::system::file_system(&nowhere).is_err());
    assert!(host::os::system::same_file_system(&nowhere, &nowhere).is_err());
}

#[test]
fn a_directory_and_its_contents_share_a_file_system() {
    let directory = tempfile::tempdir().unwrap();
    let inside = directory.path().join("inside");
    std::fs::create_dir(&inside).unwrap();
    assert!(host::os::system::same_file_system(directory.path(), &inside).unwrap());
}
