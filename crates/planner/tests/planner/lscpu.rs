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
fn core_ids_that_repeat_in_each_socket_are_different_cores() {
    let machine = parse_table("# CPU,Core,Socket\n0,0,0\n1,0,1\n").unwrap();
    assert_eq!(machine.topology.cores().len(), 2);
}

#[test]
fn what_does_not_help_is_refused_with_the_command_that_does() {
    let check = |text: &str, part: &str| {
        let error = match planner::machine::parse(text) {
            Err(MachineError::Lscpu(error)) => error.to_string(),
            other => format!("{other:?}"),
        };
        assert!(error.contains(part), "{text}: {error}");
    };
    check(r#"{"lscpu": [{"field": "CPU(s):", "data": "2"}]}"#, "lscpu -J -e=CPU,CORE");
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
    fn no_text_makes_it_panic(
        rows in "([0-9,:yn -]{0,20}\n){0,6}", json in "[\\[\\]{}\":,a-z0-9 -]{0,80}",
    ) {
        let _ = parse_table(&rows);
        let _ = parse_table(&format!("# CPU,Core,Socket,Node,,L1d,L1i,L2,L3\n{rows}"));
        let _ = parse_table(&format!("CPU NODE SOCKET CORE L1d:L1i:L2:L3 ONLINE\n{rows}"));
        let _ = parse_json(&json);
        let _ = parse_json(&format!("{{\"cpus\": [{json}]}}"));
    }
}
