//! Attacks on the data directory: a store that is missing, cut short or damaged, a burst of writes,
//! and a full disk.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::Arc;
use std::time::{Duration, Instant};

use client::kind::CONFIG_MAPS;
use client::{Client, DeleteOptions, Kubeconfig, PatchKind, Remote, Timeouts};
use http::{Method, StatusCode};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::server::{Launch, Server, Who, await_line, limited};

const TIMEOUT: Duration = Duration::from_secs(90);

const MIB: u64 = 1 << 20;

fn config_map(name: &str, text: &str) -> Value {
    json!({
        "kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": name}, "data": {"text": text},
    })
}

fn path_of(name: &str) -> String {
    format!("/api/v1/namespaces/default/configmaps/{name}")
}

/// Starts a server, creates config maps, and kills the server.
async fn killed_with(names: &[&str]) -> Server {
    let mut server = Server::start();
    for name in names {
        let object = config_map(name, &format!("text of {name}"));
        server.admin().create(CONFIG_MAPS, "default", &object).await.unwrap();
    }
    server.kill();
    server
}

/// Runs `berth store COMMAND` and returns its exit code and output.
fn berth_store(command: &str, server: &Server) -> (Option<i32>, String) {
    let mut berth = limited(None);
    berth.args(["store", command, "--data-dir"]).arg(server.data_dir());
    let output = berth.output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8_lossy(&text).into_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_without_a_store_do_not_start_a_new_cluster() {
    let mut server = killed_with(&["kept"]).await;
    let (store, away) = (server.data_dir().join("store"), server.data_dir().join("away"));
    // A file system that is not mounted leaves an empty directory.
    fs::rename(&store, &away).unwrap();
    fs::create_dir(&store).unwrap();
    for _ in 0..2 {
        let exit = server.try_start(&[]).unwrap_err();
        assert_eq!(exit.code, Some(1));
        for part in ["store is empty", "berth restore", "berth store repair"] {
            assert!(exit.log.contains(part), "{part}: {}", exit.log);
        }
    }
    fs::remove_dir_all(&store).unwrap();
    fs::rename(&away, &store).unwrap();
    server.try_start(&[]).unwrap();
    let answer = server.ask(Who::Admin, Method::GET, &path_of("kept"), &[], "").await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.text());
}

/// Returns the newest log file of the store.
fn newest_log(server: &Server) -> PathBuf {
    let files = fs::read_dir(server.data_dir().join("store")).unwrap();
    let paths = files.map(|file| file.unwrap().path());
    paths.filter(|path| path.extension().is_some_and(|end| end == "log")).max().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn write_that_was_cut_short_is_logged_with_its_size() {
    let mut server = killed_with(&["first", "last"]).await;
    let log = newest_log(&server);
    let mut bytes = fs::read(&log).unwrap();
    let wanted = b"text of last";
    let at = bytes.windows(wanted.len()).rposition(|found| found == wanted).unwrap();
    // The rest of the file is room for later writes, which is zero.
    bytes[at..].fill(0);
    fs::write(&log, bytes).unwrap();
    server.try_start(&[]).unwrap();
    let text = server.log();
    let line = text.lines().find(|line| line.contains("dropped the last write")).unwrap();
    for part in [" bytes=", " records=", log.file_name().unwrap().to_str().unwrap()] {
        assert!(line.contains(part), "{part}: {line}");
    }
    for (name, status) in [("first", StatusCode::OK), ("last", StatusCode::NOT_FOUND)] {
        let answer = server.ask(Who::Admin, Method::GET, &path_of(name), &[], "").await;
        assert_eq!(answer.status, status, "{name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn damaged_store_serves_the_rest_after_a_repair() {
    let mut server = killed_with(&["a", "b", "c"]).await;
    let log = newest_log(&server);
    let mut bytes = fs::read(&log).unwrap();
    let wanted = b"text of b";
    let at = bytes.windows(wanted.len()).position(|found| found == wanted).unwrap();
    bytes[at] ^= 1;
    fs::write(&log, bytes).unwrap();

    let exit = server.try_start(&[]).unwrap_err();
    assert_eq!(exit.code, Some(1));
    assert!(exit.log.contains("berth store check"), "{}", exit.log);
    let (code, text) = berth_store("check", &server);
    assert_eq!(code, Some(3), "{text}");
    assert!(text.contains("/configmaps/default/b ") && text.contains("it is gone"), "{text}");
    let (code, text) = berth_store("repair", &server);
    assert_eq!(code, Some(3), "{text}");
    assert!(text.contains("store.damaged-1"), "{text}");
    server.try_start(&[]).unwrap();
    for (name, status) in
        [("a", StatusCode::OK), ("b", StatusCode::NOT_FOUND), ("c", StatusCode::OK)]
    {
        let answer = server.ask(Who::Admin, Method::GET, &path_of(name), &[], "").await;
        assert_eq!(answer.status, status, "{name}");
    }
}

fn size_of(directory: &Path) -> u64 {
    // Compaction removes files while they are counted.
    let files = fs::read_dir(directory).unwrap().flatten();
    files.filter_map(|file| file.metadata().ok()).map(|file| file.len()).sum()
}

/// Written by the burst, and left by it: the history is at most 256 MiB, and compaction needs
/// another copy of all objects.
const BURST: u64 = 512 * MIB;
const LEFT: u64 = 400 * MIB;
const WRITERS: u64 = 4;

#[tokio::test(flavor = "multi_thread")]
async fn burst_of_writes_is_bounded_in_files_and_disk_space() {
    // A file for each of 32 log files would not leave enough for connections.
    let server = Server::launch(&Launch { open_files: Some(64), ..Launch::default() });
    let mut writers = JoinSet::new();
    for writer in 0..WRITERS {
        let admin = server.admin();
        writers.spawn(async move {
            let name = format!("large-{writer}");
            let text = "x".repeat(MIB as usize - 1000);
            admin.create(CONFIG_MAPS, "default", &config_map(&name, &text)).await.unwrap();
            for number in 1..BURST / MIB / WRITERS {
                let text = format!("{number}{text}");
                let change = json!({"data": {"text": text}});
                let changed = admin.patch(CONFIG_MAPS, "default", &name, PatchKind::Merge, &change);
                changed.await.unwrap();
            }
        });
    }
    writers.join_all().await;
    let store = server.data_dir().join("store");
    let ended = Instant::now();
    while size_of(&store) > LEFT {
        let left = size_of(&store) / MIB;
        assert!(ended.elapsed() < TIMEOUT, "the store has {left} MiB");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    server.assert_alive().await;
}

/// A `berth server` process on a file system of 48 MB that only it sees.
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
            let mount = format!("unshare {unshare} mount -t tmpfs none /mnt");
            Command::new("sh").args(["-c", &mount]).output().is_ok_and(|done| done.status.success())
        };
        let unshare = ["-m", "-rm"].into_iter().find(|how| allowed(how))?;
        let dir = tempfile::tempdir().unwrap();
        let berth = limited(None);
        let script = "mount -t tmpfs -o size=48m none \"$0\" && \
                      head -c 20000000 /dev/zero > \"$0/filler\" && exec \"$@\"";
        let mut command = Command::new("unshare");
        command.args([unshare, "sh", "-c", script]).arg(dir.path());
        command.arg(berth.get_program()).args(berth.get_args());
        command.args(["server", "--https-listen-port", "0", "--data-dir"]);
        command.arg(dir.path().join("data"));
        let (process, _) = await_line(command, "is ready").unwrap();
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

fn large(name: &str) -> Value {
    config_map(name, &"x".repeat(500_000))
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
        match api.create(CONFIG_MAPS, "default", &large(&name)).await {
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
    api.create(CONFIG_MAPS, "default", &large("refused")).await.unwrap_err();

    fs::remove_file(server.data_dir.parent().unwrap().join("filler")).unwrap();
    wait_for_metric(&api, "berth_store_full 0").await;
    api.create(CONFIG_MAPS, "default", &large("again")).await.unwrap();
    document(&api, "/readyz").await.unwrap();
    for name in made {
        api.get::<Value>(CONFIG_MAPS, "default", &name).await.unwrap();
    }
}
