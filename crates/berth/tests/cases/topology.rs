//! `berth topology` on the command line.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// Runs `berth` and returns its exit code, standard output and standard error.
fn berth(args: &[&str], input: &str) -> (i32, String, String) {
    let mut child = Command::new(env!("CARGO_BIN_EXE_berth"))
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // A command that does not read its input may have exited already.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    let output = child.wait_with_output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

fn shipped(path: &str) -> String {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..");
    root.join(path).to_str().unwrap().to_owned()
}

#[test]
fn output_to_a_pipe_has_no_colours() {
    let (code, out, _) = berth(&["topology"], "");
    assert_eq!(code, 0);
    assert!(out.starts_with("this machine") && out.contains("NUMA") && !out.contains('\u{1b}'));
    assert!(out.lines().all(|line| line.chars().count() <= 100), "{out}");
}

#[test]
fn every_source_of_a_machine_gives_the_same_file() {
    let expected = "2 sockets x 4 cores x 2 threads mem=8Gi name=same";
    let (_, yaml, _) = berth(&["topology", "--from", expected, "-o", "yaml"], "");
    let (_, json, _) = berth(&["topology", "--from", expected, "-o", "json"], "");
    for text in [&yaml, &json] {
        let (code, again, errors) = berth(&["topology", "--from", "-", "-o", "yaml"], text);
        assert_eq!((code, &again, errors.as_str()), (0, &yaml, ""));
    }
}

#[test]
fn captures_and_pictures_are_taken_by_name() {
    let capture = shipped("crates/host/tests/data/memory-only.json");
    let (code, out, _) = berth(&["topology", "--from", &capture], "");
    assert!(code == 0 && out.starts_with("memory-only  Linux, 2 sockets"), "{out}");
    let edge = shipped("examples/machines/edge.yaml");
    let (code, svg, _) = berth(&["topology", "--from", &edge, "-o", "svg"], "");
    assert!(code == 0 && svg.contains("<svg ") && svg.contains(">edge</text>"), "{svg}");
    let args = ["topology", "--from", &edge, "--ascii", "--color", "always"];
    let (_, out, _) = berth(&args, "");
    assert!(out.is_ascii() && out.contains('\u{1b}'), "{out}");
}

#[test]
fn a_recorded_sysfs_is_read_back_as_the_same_machine() {
    // The tree is unpacked from a shipped capture, so that this runs on every system.
    let text = std::fs::read_to_string(shipped("crates/host/tests/data/smt-offline.json")).unwrap();
    let capture = host::Capture::parse(&text).unwrap();
    let root = tempfile::tempdir().unwrap();
    for (path, content) in capture.files() {
        let path = root.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    }
    let recorded = root.path().join("smt-offline.json");
    let recorded = recorded.to_str().unwrap();
    let sysfs = root.path().join("sys");
    let (code, _, errors) =
        berth(&["topology", "capture", "--sysfs", sysfs.to_str().unwrap(), "-o", recorded], "");
    assert_eq!((code, errors.as_str()), (0, ""));
    let (_, from_capture, _) = berth(&["topology", "--from", recorded, "-o", "yaml"], "");
    let shipped = shipped("crates/host/tests/data/smt-offline.json");
    let (_, expected, _) = berth(&["topology", "--from", &shipped, "-o", "yaml"], "");
    assert_eq!(from_capture, expected);
    for directory in [root.path(), sysfs.as_path()] {
        let args = ["topology", "--from", directory.to_str().unwrap(), "-o", "json"];
        let (code, out, _) = berth(&args, "");
        assert!(code == 0 && out.contains("Machine"), "{out}");
    }
}

#[test]
fn errors_name_the_file_the_line_and_the_field() {
    let check = |from: &str, input: &str, expected: &[&str]| {
        let (code, out, errors) = berth(&["topology", "--from", from], input);
        assert_eq!((code, out.as_str()), (2, ""), "{errors}");
        for word in expected {
            assert!(errors.contains(word), "{word:?} is not in {errors}");
        }
    };
    let file = "apiVersion: berth.dev/v1alpha1\nkind: Machine\nnodes: 7\n";
    check("-", file, &["standard input", "line 3", "nodes"]);
    check("nothing.yaml", "", &["nothing.yaml", "no such file"]);
    check("2 frobs", "", &["frobs", "2 sockets x 2 numa x 8 cores x 2 threads"]);
    check(&shipped("examples"), "", &["examples", "devices/system/cpu"]);
    check("-", "", &["standard input", "empty"]);
    check("-", "<topology>", &["standard input", "hwloc"]);
    let garbage = "\u{1}?x".repeat(400_000);
    check("-", &garbage, &["standard input"]);
}
