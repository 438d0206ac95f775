//! A damaged store on the command line.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};
use store::{Options, Store, Transaction};

/// Creates a data directory whose store has lost one of three keys.
fn damaged(dir: &Path) {
    let path = dir.join("store");
    let store = Store::open(&path, Options::default()).unwrap();
    for key in ["/registry/a", "/registry/b", "/registry/c"] {
        store.commit(Transaction::new().put(key, format!("value of {key}"))).wait().unwrap();
    }
    store.close();
    let log = path.join("0000000001.log");
    let mut bytes = fs::read(&log).unwrap();
    let wanted = b"value of /registry/b";
    let at = bytes.windows(wanted.len()).position(|found| found == wanted).unwrap();
    bytes[at] = b'X';
    fs::write(log, bytes).unwrap();
}

fn berth(arguments: &[&str], dir: &Path) -> (Option<i32>, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_berth"));
    let output = command.args(arguments).arg("--data-dir").arg(dir).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

#[test]
fn damaged_store_is_checked_and_repaired() {
    let dir = tempfile::tempdir().unwrap();
    let (code, _, error) = berth(&["store", "check"], dir.path());
    assert_eq!(code, Some(2), "{error}");
    assert!(error.contains("has no store"), "{error}");
    damaged(dir.path());

    let arguments = ["server", "--https-listen-port", "0"];
    let (code, _, error) = berth(&arguments, dir.path());
    assert_eq!(code, Some(1));
    assert!(error.contains("berth store check") && error.contains("damaged at byte"), "{error}");

    let (code, text, error) = berth(&["store", "check"], dir.path());
    assert_eq!(code, Some(3), "{error}");
    for part in ["2 keys can be read", "revision 3\n", "/registry/b of revision 3: it is gone"] {
        assert!(text.contains(part), "{part}\n{text}");
    }
    let (code, text, _) = berth(&["store", "check", "-o", "json"], dir.path());
    let found: Value = serde_json::from_str(&text).unwrap();
    assert_eq!((code, &found["intact"], &found["keys"]), (Some(3), &json!(false), &json!(2)));
    assert_eq!(found["lost"]["revisions"], json!([{"first": 3, "last": 3}]));
    assert_eq!(found["lost"]["keys"][0]["key"], "/registry/b");
    assert_eq!(found["lost"]["keys"][0]["result"], "Gone");

    let (code, text, error) = berth(&["store", "repair"], dir.path());
    assert_eq!(code, Some(3), "{error}");
    assert!(text.contains("store.damaged-1"), "{text}");
    assert!(dir.path().join("store.damaged-1/0000000001.log").exists());
    let (code, text, _) = berth(&["store", "check"], dir.path());
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("intact"), "{text}");
}
