//! State files under test: known files, hostile files, and the properties every state has. The
//! recorded files of an upstream kubelet are run by `berth conformance`.

use proptest::collection::{btree_map, vec};
use proptest::prelude::*;

use super::*;
use crate::{Bytes, CpuId, CpuSet, NumaId};

const ALL: Gates =
    Gates { pod_level_resource_managers: true, in_place_scaling_of_exclusive_cpus: true };

fn cpus(list: &str) -> CpuSet {
    CpuSet::parse(list).unwrap()
}

fn cpu(content: &str) -> Result<CpuState, StateFileError> {
    CpuState::parse(content.as_bytes(), "static", Gates::default())
}

fn memory(content: &str) -> Result<MemoryState, StateFileError> {
    MemoryState::parse(content.as_bytes(), "Static", Gates::default())
}

/// A version 4 file whose `data` is the given text, with the checksum that belongs to it.
fn v4(data: &str) -> String {
    let checksum = fnv1a(&data_preimage(data));
    format!(r#"{{"data":{},"dataChecksum":{checksum}}}"#, go_json::string(data))
}

#[test]
fn data_checksum_equals_upstreams_tests() {
    let data = r#"{"policyName":"none","defaultCPUSet":"1.3"}"#;
    assert_eq!(fnv1a(&data_preimage(data)), 3_033_143_655);
}

#[test]
fn a_file_of_a_1_35_kubelet_is_read() {
    let file = r#"{"policyName":"static","defaultCpuSet":"0-63","checksum":1058907510}"#;
    let expected = CpuState { default_cpus: cpus("0-63"), ..CpuState::empty("static") };
    assert_eq!(cpu(file), Ok(expected));
}

#[test]
fn a_checksum_with_a_newer_type_name_is_valid() {
    let file = r#"{ "policyName": "static", "defaultCPUSet": "7-9",
        "entries": { "pod": { "container1": "4-6", "container2": "1-3" } },
        "checksum": 1942532442 }"#;
    for gates in [Gates::default(), ALL] {
        let state = CpuState::parse(file.as_bytes(), "static", gates).unwrap();
        assert_eq!(state.default_cpus, cpus("7-9"));
        assert_eq!(state.entries["pod"]["container1"], cpus("4-6"));
    }
}

#[test]
fn pods_of_a_1_36_file_need_their_gate() {
    let file = r#"{ "policyName": "static", "defaultCPUSet": "1-2",
        "entries": { "pod1": { "container1": "5-6", "container2": "3-4" } },
        "podEntries": { "pod2": { "cpuSet": "7-9" } },
        "checksum": 766259872 }"#;
    let with = CpuState::parse(file.as_bytes(), "static", ALL).unwrap();
    assert_eq!(with.pod_cpus, PerPod::from([("pod2".into(), cpus("7-9"))]));
    assert_eq!(with.baselines, with.entries, "a file without baselines gives the present CPUs");
    let without = cpu(file).unwrap();
    assert!(without.pod_cpus.is_empty() && without.baselines.is_empty());
}

#[test]
fn a_broken_newest_version_never_falls_back() {
    let old = r#""policyName":"static","defaultCpuSet":"0-63","checksum":1058907510"#;
    for (fields, text) in [
        (
            r#""data":"{}","dataChecksum":1"#,
            "could not load v4 checkpoint: checkpoint is corrupted",
        ),
        (
            r#""dataChecksum":1"#,
            "failed to deserialize cpu manager checkpoint data: unexpected end",
        ),
        (r#""data":"x""#, "failed to deserialize cpu manager checkpoint data: invalid character"),
        (r#""data":"{}","dataChecksum":-1"#, "deserialize cpu manager checkpoint: json: cannot"),
        (r#""data":7,"dataChecksum":1"#, "deserialize cpu manager checkpoint: json: cannot"),
    ] {
        let error = cpu(&format!("{{{old},{fields}}}")).unwrap_err().to_string();
        assert!(error.starts_with("could not load v4 checkpoint: "), "{error}");
        assert!(error.contains(text), "{error}");
    }
    // Without a trace of the new fields the old ones count.
    assert!(cpu(&format!(r#"{{{old},"data":"","dataChecksum":0}}"#)).is_ok());
}

#[test]
fn errors_of_cpu_lists_name_their_field() {
    for (data, text) in [
        (
            r#"{"policyName":"static","defaultCpuSet":"3-1"}"#,
            r#"could not parse default CPU set "3-1": invalid range "3-1" (3 > 1)"#,
        ),
        (
            r#"{"policyName":"static","entries":{"p":{"c":"x\"y"}}}"#,
            r#"could not parse cpuset "x\"y" for container "c" in pod "p": strconv"#,
        ),
        (
            r#"{"policyName":"static","baselines":{"p":{"c":{"baseline":"2-1"}}}}"#,
            r#"could not parse Baseline cpuset "2-1" for container "c" in pod "p": invalid range"#,
        ),
        (
            r#"{"policyName":"static","podEntries":{"p":{"cpuSet":"2-1"}}}"#,
            "could not load v4 checkpoint: failed to deserialize cpu manager checkpoint data: \
             failed to parse cpuset: invalid range",
        ),
        (
            r#"{"policyName":"static","defaultCpuSet":"0-99999999"}"#,
            r#"could not parse default CPU set "0-99999999": CPU id 99999999 is above"#,
        ),
    ] {
        let error = CpuState::parse(v4(data).as_bytes(), "static", ALL).unwrap_err().to_string();
        assert!(error.starts_with(text), "{error}");
    }
}

#[test]
fn another_policys_file_is_rejected_with_a_remedy() {
    let file = CpuState::empty("static").render();
    let cause = CpuState::parse(file.as_bytes(), "none", ALL).unwrap_err();
    let path = r"C:\var\lib\kubelet\cpu_manager_state".to_owned();
    assert_eq!(
        RestoreError { manager: Manager::Cpu, path, cause }.to_string(),
        "could not restore state from checkpoint: configured policy \"none\" differs from state \
         checkpoint policy \"static\", please drain this node and delete the CPU manager \
         checkpoint file \"C:\\\\var\\\\lib\\\\kubelet\\\\cpu_manager_state\" before restarting \
         Kubelet"
    );
}

#[test]
fn text_is_escaped_as_go_escapes_it() {
    assert_eq!(
        go_json::string("a<b>&\"\\\u{8}\u{c}\n\u{1}\u{7f}\u{2028}é"),
        "\"a\\u003cb\\u003e\\u0026\\\"\\\\\\b\\f\\n\\u0001\u{7f}\\u2028é\""
    );
}

#[test]
fn numa_nodes_are_written_by_text_and_hashed_by_number() {
    let mut state = MemoryState::empty("Static");
    for id in [2, 10] {
        state.nodes.insert(NumaId(id), NodeState::default());
    }
    let file = state.render();
    assert!(file.find("\"10\":").unwrap() < file.find("\"2\":").unwrap(), "{file}");
    let preimage = state.checksum_preimage();
    assert!(preimage.find("[2:<*>").unwrap() < preimage.find(" 10:<*>").unwrap(), "{preimage}");
}

#[test]
fn null_and_missing_fields_hash_as_they_do_in_go() {
    for (json, preimage) in [
        ("{}", "Entries:(state.ContainerMemoryAssignments)map[] "),
        (r#"{"entries":null}"#, "Entries:(state.ContainerMemoryAssignments)<nil> "),
        (r#"{"entries":{"p":null}}"#, "Entries:(state.ContainerMemoryAssignments)map[p:<nil>] "),
        (r#"{"machineState":{"0":{}}}"#, "*state.MemoryTable)<nil> Cells:([]int)<nil>}]"),
        // After a nil pointer the type of the next field is left out.
        (r#"{"machineState":{"0":null}}"#, "(state.NUMANodeMap)map[0:<nil>] Entries:map[] Check"),
    ] {
        let text = checkpoint::preimage_of::<memory::MemoryBody>(json);
        assert!(text.contains(preimage), "{json}: {text}");
    }
}

#[test]
fn impossible_nodes_are_rejected() {
    for (state, error) in [
        (r#"{"0":null}"#, StateFileError::NullNode(0)),
        (r#"{"-1":{}}"#, StateFileError::NoSuchNode(-1)),
        (r#"{"0":{"cells":[4294967296]}}"#, StateFileError::NoSuchNode(4_294_967_296)),
        (
            r#"{"0":{"memoryMap":{"memory":null}}}"#,
            StateFileError::NullTable { node: 0, resource: "memory".into() },
        ),
    ] {
        let file = format!(r#"{{"policyName":"Static","machineState":{state}}}"#);
        assert_eq!(memory(&file), Err(error));
    }
}

#[test]
fn names_match_in_any_case_and_doubled_maps_add_up() {
    let file = r#"{"POLICYNAME":"static","entrieſ":{"p":{"a":"1"}},"entries":{"q":{"b":"2"}},
        "entries":{"q":{"c":"3"}},"defaultcpuset":"0","defaultCpuSet":null}"#;
    let state = cpu(file).unwrap();
    assert_eq!(state.default_cpus, cpus("0"));
    assert_eq!(state.entries["p"]["a"], cpus("1"));
    assert_eq!(state.entries["q"].keys().collect::<Vec<_>>(), ["c"], "a pod given twice is new");
}

#[test]
fn hostile_files_are_errors() {
    let megabyte = |byte: u8| vec![byte; 1 << 20];
    let deep = |open: &str, close: &str| {
        format!("{{\"x\":{}{}}}", open.repeat(100_000), close.repeat(100_000)).into_bytes()
    };
    let files = [
        vec![],
        megabyte(0),
        megabyte(0xff),
        megabyte(b'['),
        megabyte(b'9'),
        deep("[", "]"),
        deep("{\"a\":", "}"),
        b"NaN".to_vec(),
        br#"{"policyName":NaN}"#.to_vec(),
        br#"{"checksum":1e999}"#.to_vec(),
        br#"{"checksum":18446744073709551616}"#.to_vec(),
        br#"{"checksum":1.5}"#.to_vec(),
        br#"{"policyName":"\ud800"}"#.to_vec(),
        b"{} {}".to_vec(),
        b"\xef\xbb\xbf{}".to_vec(),
    ];
    for file in files {
        assert!(CpuState::parse(&file, "static", ALL).is_err());
        assert!(MemoryState::parse(&file, "Static", ALL).is_err());
    }
}

/// Names as hostile as a hand-made file could hold, since a real one holds only tame ones.
fn names() -> impl Strategy<Value = String> {
    prop_oneof!["[a-c]{1,3}", any::<String>()]
}

fn sets() -> impl Strategy<Value = CpuSet> {
    vec(0..1500_u32, 0..6).prop_map(|ids| ids.into_iter().map(CpuId).collect())
}

fn per_container<T: std::fmt::Debug>(
    value: impl Strategy<Value = T>,
) -> impl Strategy<Value = PerContainer<T>> {
    btree_map(names(), btree_map(names(), value, 0..3), 0..3)
}

fn cpu_states() -> impl Strategy<Value = CpuState> {
    let pods = btree_map(names(), sets(), 0..3);
    (names(), sets(), per_container(sets()), pods, per_container(sets())).prop_map(
        |(policy, default_cpus, entries, pod_cpus, baselines)| {
            // A file without baselines is read as one whose baselines are the entries.
            let baselines = if baselines.is_empty() { entries.clone() } else { baselines };
            CpuState { policy, default_cpus, entries, pod_cpus, baselines }
        },
    )
}

fn node_lists() -> impl Strategy<Value = Vec<NumaId>> {
    vec(any::<u32>().prop_map(NumaId), 0..3)
}

fn amounts() -> impl Strategy<Value = Bytes> {
    any::<u64>().prop_map(Bytes)
}

fn memory_states() -> impl Strategy<Value = MemoryState> {
    let table = (amounts(), amounts(), amounts(), amounts(), amounts()).prop_map(
        |(total, system_reserved, allocatable, reserved, free)| MemoryTable {
            total,
            system_reserved,
            allocatable,
            reserved,
            free,
        },
    );
    let node = (any::<i64>(), node_lists(), btree_map(names(), table, 0..3))
        .prop_map(|(assignments, cells, memory)| NodeState { assignments, cells, memory });
    let blocks = || {
        let block = (node_lists(), names(), amounts());
        vec(block.prop_map(|(numa, resource, size)| Block { numa, resource, size }), 0..3)
    };
    let nodes = btree_map((0..70_u32).prop_map(NumaId), node, 0..4);
    let pods = btree_map(names(), blocks(), 0..3);
    (names(), nodes, per_container(blocks()), pods).prop_map(
        |(policy, nodes, entries, pod_blocks)| MemoryState { policy, nodes, entries, pod_blocks },
    )
}

/// The file with one bit of the text of `data` turned.
fn flip(file: &str, place: usize, bit: u8) -> Vec<u8> {
    let start = file.find("\"data\":\"{").unwrap() + "\"data\":\"".len();
    let end = file.rfind("\",\"dataChecksum\":").unwrap();
    let mut bytes = file.as_bytes().to_vec();
    bytes[start + place % (end - start)] ^= 1 << bit;
    bytes
}

/// A file, cut into pieces that garbage is made of: likelier to get far than arbitrary text.
fn near_files() -> impl Strategy<Value = String> {
    let pieces = prop::sample::select(vec![
        "{",
        "}",
        "[",
        "]",
        ":",
        ",",
        "\"",
        "\\",
        "null",
        "0",
        "-1",
        "1e9",
        "true",
        "\"p\"",
        "\"policyName\":",
        "\"static\"",
        "\"Static\"",
        "\"defaultCpuSet\":",
        "\"0-3\"",
        "\"entries\":",
        "{\"p\":{\"c\":",
        "\"podEntries\":",
        "\"baselines\":",
        "\"machineState\":",
        "{\"0\":",
        "\"memoryMap\":",
        "\"cells\":",
        "\"numaAffinity\":",
        "\"checksum\":",
        "\"data\":",
        "\"{}\"",
        "\"dataChecksum\":",
    ]);
    vec(pieces, 0..24).prop_map(|pieces| pieces.concat())
}

proptest! {
    #[test]
    fn a_cpu_state_survives_its_file(state in cpu_states()) {
        let file = state.render();
        prop_assert_eq!(CpuState::parse(file.as_bytes(), &state.policy, ALL), Ok(state));
    }

    #[test]
    fn a_memory_state_survives_its_file(state in memory_states()) {
        let file = state.render();
        prop_assert_eq!(MemoryState::parse(file.as_bytes(), &state.policy, ALL), Ok(state));
    }

    #[test]
    fn old_readers_accept_the_old_fields(state in cpu_states()) {
        let file: serde_json::Value = serde_json::from_str(&state.render()).unwrap();
        let mut old = file.as_object().unwrap().clone();
        old.retain(|name, _| name != "data" && name != "dataChecksum");
        let old = serde_json::to_vec(&old).unwrap();
        let read = CpuState::parse(&old, &state.policy, Gates::default()).unwrap();
        prop_assert_eq!(read.entries, state.entries);
        prop_assert_eq!(read.default_cpus, state.default_cpus);
    }

    #[test]
    fn a_flipped_bit_in_a_cpu_file_is_detected(
        state in cpu_states(), place in any::<usize>(), bit in 0..8_u8,
    ) {
        let file = flip(&state.render(), place, bit);
        prop_assert!(CpuState::parse(&file, &state.policy, ALL).is_err());
    }

    #[test]
    fn a_flipped_bit_in_a_memory_file_is_detected(
        state in memory_states(), place in any::<usize>(), bit in 0..8_u8,
    ) {
        let file = flip(&state.render(), place, bit);
        prop_assert!(MemoryState::parse(&file, &state.policy, ALL).is_err());
    }

    #[test]
    fn no_bytes_make_the_readers_panic(bytes in vec(any::<u8>(), 0..200)) {
        let _ = CpuState::parse(&bytes, "static", ALL);
        let _ = MemoryState::parse(&bytes, "Static", ALL);
    }

    #[test]
    fn no_nearly_right_file_makes_the_readers_panic(file in near_files()) {
        for file in [v4(&file), file] {
            let _ = CpuState::parse(file.as_bytes(), "static", ALL);
            let _ = MemoryState::parse(file.as_bytes(), "Static", ALL);
        }
    }
}
