//! Output of `lscpu` in its several forms.

use planner::machine::MachineError;
use planner::machine::lscpu::{parse_json, parse_table};
use proptest::prelude::*;

/// As of util-linux 2.38: numbers.
const NEW: &str = r#"{ "cpus": [
    {"cpu": 0, "node": 0, "socket": 0, "core": 0, "l1d:l1i:l2:l3": "0:0:0:0", "online": true},
    {"cpu": 1, "node": 1, "socket": 1, "core": 1, "l1d:l1i:l2:l3": "1:1:1:1", "online": true},
    {"cpu": 2, "node": 0, "socket": 0, "core": 0, "l1d:l1i:l2:l3": "0:0:0:0", "online": true},
    {"cpu": 3, "node": null, "socket": null, "core": null, "l1d:l1i:l2:l3": "-", "online": false}
]}"#;

/// As of util-linux 2.34: texts.
const OLD: &str = r#"{ "cpus": [
    {"cpu": "0", "node": "0", "socket": "0", "core": "0", "l1d:l1i:l2:l3": "0:0:0:0", "online": "yes"},
    {"cpu": "1", "node": "1", "socket": "1", "core": "1", "l1d:l1i:l2:l3": "1:1:1:1", "online": "yes"},
    {"cpu": "2", "node": "0", "socket": "0", "core": "0", "l1d:l1i:l2:l3": "0:0:0:0", "online": "yes"},
    {"cpu": "3", "node": "-", "socket": "-", "core": "-", "l1d:l1i:l2:l3": "-", "online": "no"}
]}"#;

const PARSABLE: &str = "# The following is the parsable format, which can be fed to other
# programs. Each different item in every column has an unique ID
# starting usually from zero.
# CPU,Core,Socket,Node,,L1d,L1i,L2,L3
0,0,0,0,,0,0,0,0
1,1,1,1,,1,1,1,1
2,0,0,0,,0,0,0,0
";

const ALIGNED: &str = "CPU NODE SOCKET CORE L1d:L1i:L2:L3 ONLINE    MAXMHZ
  0    0      0    0 0:0:0:0          yes 3800.0000
  1    1      1    1 1:1:1:1          yes 3800.0000
  2    0      0    0 0:0:0:0          yes 3800.0000
  3    -      -    - -                 no
";

#[test]
fn all_forms_of_one_machine_agree() {
    let machine = parse_json(NEW).unwrap();
    let t = &machine.topology;
    assert_eq!(t.all_cpus().to_string(), "0-2");
    assert_eq!(t.cores()[0].cpus.to_string(), "0,2");
    assert_eq!((t.nodes().len(), t.sockets().len(), t.caches().len()), (2, 2, 2));
    for text in [OLD, PARSABLE, ALIGNED] {
        assert_eq!(planner::machine::parse(text).unwrap(), machine, "{text}");
    }
}

#[test]
fn repeated_core_ids_per_socket_are_different_cores() {
    let machine = parse_table("# CPU,Core,Socket\n0,0,0\n1,0,1\n").unwrap();
    assert_eq!(machine.topology.cores().len(), 2);
}

#[test]
fn unusable_output_is_refused_with_the_right_command() {
    let check = |text: &str, part: &str| {
        let error = match planner::machine::parse(text) {
            Err(MachineError::Lscpu(error)) => error.to_string(),
            other => format!("{other:?}"),
        };
        assert!(error.contains(part), "{text}: {error}");
    };
    check(r#"{"lscpu": [{"field": "CPU(s):", "data": "2"}]}"#, "lscpu -J -e=CPU,CORE");
    check(r#"{"lscpu": 7}"#, "lacks the line \"On-line CPU(s) list\"");
    check(r#"{"cpus": 3}"#, "no list \"cpus\"");
    check(r#"{"cpus": [1]}"#, "entry 0");
    check(r#"{"cpus": [{"core": 1}]}"#, "no column CPU");
    check(r#"{"cpus": [{"cpu": 1}]}"#, "no column CORE");
    check(r#"{"cpus": [{"cpu": -1, "core": 0}]}"#, "row 1: cpu is \"-1\"");
    check(r#"{"cpus": [{"cpu": 99999, "core": 0}]}"#, "up to 65535");
    check(r#"{"cpus": []}"#, "at least one CPU");
    check("# CPU,Core\n0,0,0\n", "row 1 has 3 fields for 2 columns");
    check("# CPU,Core\n0,0\n0,0\n", "CPU 0 is listed twice");
}

proptest! {
    #[test]
    fn no_text_panics(
        rows in "([0-9,:yn -]{0,20}\n){0,6}", json in "[\\[\\]{}\":,a-z0-9 -]{0,80}",
    ) {
        let _ = parse_table(&rows);
        let _ = parse_table(&format!("# CPU,Core,Socket,Node,,L1d,L1i,L2,L3\n{rows}"));
        let _ = parse_table(&format!("CPU NODE SOCKET CORE L1d:L1i:L2:L3 ONLINE\n{rows}"));
        let _ = parse_json(&json);
        let _ = parse_json(&format!("{{\"cpus\": [{json}]}}"));
    }
}

/// The summary of plain `lscpu` with these lines.
fn summary(lines: &str) -> String {
    format!("Architecture:        x86_64\nCPU(s):              64\n{lines}")
}

fn cores(text: &str) -> (usize, usize, usize, Vec<String>) {
    let machine = planner::machine::parse(text).unwrap();
    let topology = &machine.topology;
    let cores = topology.cores().iter().take(2).map(|core| core.cpus.to_string()).collect();
    (topology.sockets().len(), topology.nodes().len(), topology.caches().len(), cores)
}

#[test]
fn summary_is_parsed_as_a_regular_machine() {
    let two_sockets = summary(
        "On-line CPU(s) list: 0-63\nThread(s) per core:  2\nCore(s) per socket:  16\nSocket(s): 2\n\
         L3 cache:            128 MiB (8 instances)\nNUMA node(s):        2\n\
         NUMA node0 CPU(s):   0-15,32-47\nNUMA node1 CPU(s):   16-31,48-63\n",
    );
    assert_eq!(cores(&two_sockets), (2, 2, 8, vec!["0,32".to_owned(), "1,33".to_owned()]));
    let side_by_side = two_sockets.replace("0-15,32-47", "0-31").replace("16-31,48-63", "32-63");
    assert_eq!(cores(&side_by_side), (2, 2, 8, vec!["0-1".to_owned(), "2-3".to_owned()]));
    let striped: Vec<String> = (0..64).step_by(2).map(|cpu| cpu.to_string()).collect();
    let odd: Vec<String> = (1..64).step_by(2).map(|cpu| cpu.to_string()).collect();
    let striped = two_sockets
        .replace("0-15,32-47", &striped.join(","))
        .replace("16-31,48-63", &odd.join(","));
    assert_eq!(cores(&striped).3[0], "0,32");
    let one = summary("On-line CPU(s) list: 0,1\nThread(s) per core: 1\nCore(s) per socket: 2\n");
    assert_eq!(cores(&one), (1, 1, 1, vec!["0".to_owned(), "1".to_owned()]));
    // The same as JSON, with nested fields.
    let json = r#"{"lscpu": [{"field": "CPU(s):", "data": "4", "children": [
        {"field": "On-line CPU(s) list:", "data": "0-3"}]}, {"field": "Vendor ID:", "data": "x",
        "children": [{"field": "Model name:", "data": "y", "children": [
        {"field": "Thread(s) per core:", "data": "2"}, {"field": "Core(s) per socket:", "data": "2"},
        {"field": "Socket(s):", "data": "1"}]}]}]}"#;
    assert_eq!(cores(json), (1, 1, 1, vec!["0,2".to_owned(), "1,3".to_owned()]));
}

#[test]
fn inconsistent_summary_is_refused_with_the_right_command() {
    let check = |lines: &str, part: &str| {
        let error = planner::machine::parse(&summary(lines)).unwrap_err();
        let text = format!("{error}: {}", std::error::Error::source(&error).unwrap());
        assert!(text.contains(part) && text.contains("lscpu -J -e=CPU,CORE"), "{lines}: {text}");
    };
    let list = "On-line CPU(s) list: 0-5\n";
    check(&format!("{list}Thread(s) per core: 4\n"), "6 CPUs, which are no whole cores of 4");
    check(&format!("{list}Thread(s) per core: x\n"), "which is not a count");
    check(
        &format!("{list}Thread(s) per core: 1\nCore(s) per socket: 4\nSocket(s): 2\n"),
        "does not make the 6 CPUs that are online",
    );
    check(&format!("{list}Socket(s): 4\n"), "4 sockets cannot share evenly");
    check("On-line CPU(s) list: 5-0\nThread(s) per core: 1\n", "which is not a CPU list");
}

proptest! {
    #[test]
    fn no_summary_panics(
        threads in "[0-9]{1,6}|-|x", sockets in "[0-9]{1,6}", list in "[0-9,-]{0,12}", node in "[0-9]{0,11}",
    ) {
        let text = summary(&format!(
            "On-line CPU(s) list: {list}\nThread(s) per core: {threads}\nSocket(s): {sockets}\n\
             L3 cache: 1 MiB ({sockets} instances)\nNUMA node{node} CPU(s): {list}\n"
        ));
        let _ = planner::machine::parse(&text);
    }
}
