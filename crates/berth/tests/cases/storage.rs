//! The store of a control plane on a full disk under a running server, and a damaged store on the
//! command line.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use client::kind::CONFIG_MAPS;
use client::{Client, DeleteOptions, Kubeconfig, PatchKind, Remote, Timeouts};
use serde_json::{Value, json};
use store::{Options, Store, Transaction};

const TIMEOUT: Duration = Duration::from_secs(60);

/// A `berth server` process on a separate file system of 48 MB.
struct Small {
    process: Child,
    /// The data directory, as seen by this process.
    data_dir: PathBuf,
    _dir: tempfile::TempDir,
}

impl Small {
    /// Starts the server; `None` if this process may not mount file systems.
    fn start() -> Option<Small> {
        // As root, or in a user namespace.
        let allowed = |unshare: &str| {
            let mount = format!("{unshare} mount -t tmpfs none /mnt");
            Command::new("sh").args(["-c", &mount]).output().is_ok_and(|done| done.status.success())
        };
        let unshare = ["-m", "-rm"].into_iter().find(|how| allowed(&format!("unshare {how}")))?;
        let dir = tempfile::tempdir().unwrap();
        let mut process = Command::new("unshare")
            .args([unshare, "sh", "-c"])
            .arg(
                "mount -t tmpfs -o size=48m none \"$1\" && head -c 20000000 /dev/zero > \"$1/filler\" \
                 && exec \"$0\" server --https-listen-port 0 --data-dir \"$1/data\"",
            )
            .arg(env!("CARGO_BIN_EXE_berth"))
            .arg(dir.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut output = BufReader::new(process.stdout.take().unwrap());
        let mut line = String::new();
        while !line.contains("is ready") {
            line.clear();
            assert!(output.read_line(&mut line).unwrap() > 0, "the server does not start");
        }
        std::thread::spawn(move || output.read_to_end(&mut Vec::new()));
        let root = PathBuf::from(format!("/proc/{}/root", process.id()));
        let data_dir = root.join(dir.path().strip_prefix("/").unwrap()).join("data");
        Some(Small { process, data_dir, _dir: dir })
    }

    fn client(&self) -> Client {
        let config = Kubeconfig::read(&self.data_dir.join("kubeconfig")).unwrap();
        let remote = Remote::new(config, "berth-test", Timeouts::default()).unwrap();
        Client::new(Arc::new(remote), "test")
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn map(name: &str) -> Value {
    json!({
        "kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": name},
        "data": {"text": "x".repeat(500_000)},
    })
}

async fn document(api: &Client, path: &'static str) -> Result<String, client::Error> {
    let mut body = api.document(path).await?;
    let mut text = Vec::new();
    while let Some(chunk) = body.next().await {
        text.extend_from_slice(&chunk);
    }
    Ok(String::from_utf8_lossy(&text).into_owned())
}

async fn wait_for_metric(api: &Client, line: &str) {
    let begun = Instant::now();
    loop {
        let text = document(api, "/metrics").await.unwrap();
        if text.lines().any(|found| found == line) {
            return;
        }
        assert!(begun.elapsed() < TIMEOUT, "{line}\n{text}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn full_disk_is_reported_allows_deletions_and_recovers() {
    let Some(server) = Small::start() else {
        eprintln!("skipped: this process may not mount file systems");
        return;
    };
    let api = server.client();
    document(&api, "/readyz").await.unwrap();
    let held = json!({
        "kind": "ConfigMap", "apiVersion": "v1",
        "metadata": {"name": "held", "finalizers": ["example.com/held"]},
    });
    api.create(CONFIG_MAPS, "default", &held).await.unwrap();
    let mut made = Vec::new();
    let refused = loop {
        let name = format!("map-{}", made.len());
        match api.create(CONFIG_MAPS, "default", &map(&name)).await {
            Ok(_) => made.push(name),
            Err(error) => break error,
        }
        assert!(made.len() < 100, "50 MB on a disk of 48");
    };
    assert_eq!(refused.status(), 500);
    assert!(refused.to_string().contains("no space left"), "{refused}");
    assert!(made.len() > 5, "{made:?}");

    wait_for_metric(&api, "berth_store_full 1").await;
    let unready = document(&api, "/readyz").await.unwrap_err().to_string();
    assert!(unready.contains("[-]storage-space failed"), "{unready}");
    document(&api, "/livez").await.unwrap();
    // Deletions work, also of an object with a finalizer, which needs two writes.
    api.delete(CONFIG_MAPS, "default", "held", &DeleteOptions::default()).await.unwrap();
    let free = json!({"metadata": {"finalizers": null}});
    api.patch(CONFIG_MAPS, "default", "held", PatchKind::Merge, &free).await.unwrap();
    let gone = api.get::<Value>(CONFIG_MAPS, "default", "held").await.unwrap_err();
    assert!(gone.is_not_found(), "{gone}");
    let kept = made.pop().unwrap();
    api.delete(CONFIG_MAPS, "default", &kept, &DeleteOptions::default()).await.unwrap();
    let gone = api.get::<Value>(CONFIG_MAPS, "default", &kept).await.unwrap_err();
    assert!(gone.is_not_found(), "{gone}");
    api.create(CONFIG_MAPS, "default", &map("refused")).await.unwrap_err();

    fs::remove_file(server.data_dir.parent().unwrap().join("filler")).unwrap();
    wait_for_metric(&api, "berth_store_full 0").await;
    api.create(CONFIG_MAPS, "default", &map("again")).await.unwrap();
    document(&api, "/readyz").await.unwrap();
    for name in made {
        api.get::<Value>(CONFIG_MAPS, "default", &name).await.unwrap();
    }
}

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
