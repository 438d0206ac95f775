//! The machine the tests run on.

use host::Anomaly;

#[test]
fn this_machine_can_be_described() {
    let (topology, anomalies) = host::os::observe_topology().unwrap();
    // What a system leaves out differs (wine, for one, does not tell memory by node), so the
    // anomalies are shown, not judged.
    for anomaly in &anomalies {
        println!("{anomaly}");
    }
    println!("{topology:#?}");
    let available = std::thread::available_parallelism().unwrap().get();
    assert!(topology.cpus().len() >= available, "{} < {available}", topology.cpus().len());
    let untold = anomalies.iter().any(|a| matches!(a, Anomaly::NoMemory { .. }));
    assert!(untold || topology.nodes().iter().any(|node| node.memory.0 > 0));
}
