//! Tests of reading logs: complete files, and files that grow and are rotated.

use std::fs;
use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::*;

fn logged(second: u32, tag: &str, text: &str) -> String {
    format!("2016-10-06T00:17:{second:02}.5Z stdout {tag} {text}\n")
}

fn whole(path: &Path, options: Options) -> String {
    let mut reader = Reader::open(path, options).unwrap();
    let mut out = Vec::new();
    while reader.step(&mut out).unwrap() == Step::More {}
    reader.finish(&mut out);
    String::from_utf8(out).unwrap()
}

fn file(text: &str) -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("0.log");
    fs::write(&path, text).unwrap();
    (dir, path)
}

fn since(text: &str) -> Option<Timestamp> {
    Some(Timestamp::parse(text).unwrap())
}

#[test]
fn options_select_the_output() {
    let text = [
        logged(1, "F", "one"),
        logged(2, "P", "two "),
        logged(3, "F", "and a half"),
        "nonsense\n".to_owned(),
        logged(4, "F", ""),
        logged(5, "F", "last"),
    ]
    .concat();
    let (_dir, path) = file(&text);
    let check = |options: Options, expected: &str| {
        assert_eq!(whole(&path, options), expected, "{options:?}");
    };
    let all = Options::default();
    check(all, "one\ntwo and a half\n\nlast\n");
    check(Options { tail: Some(0), ..all }, "");
    check(Options { tail: Some(1), ..all }, "last\n");
    check(Options { tail: Some(2), ..all }, "\nlast\n");
    check(Options { tail: Some(99), ..all }, "one\ntwo and a half\n\nlast\n");
    check(Options { since: since("2016-10-06T00:17:04.5Z"), ..all }, "\nlast\n");
    check(Options { since: since("2016-10-06T00:17:06Z"), ..all }, "");
    check(Options { limit: Some(6), ..all }, "one\ntw");
    check(
        Options { timestamps: true, ..all },
        "2016-10-06T00:17:01.500000000Z one\n2016-10-06T00:17:02.500000000Z two and a half\n\
         2016-10-06T00:17:04.500000000Z \n2016-10-06T00:17:05.500000000Z last\n",
    );
    check(Options { limit: Some(5), timestamps: true, ..all }, "2016-");
}

#[test]
fn tail_can_be_longer_than_a_block() {
    let long = "x".repeat(BLOCK);
    let text = [logged(1, "F", "first"), logged(2, "F", &long), logged(3, "F", "last")].concat();
    let (_dir, path) = file(&text);
    let tail = |lines| whole(&path, Options { tail: Some(lines), ..Options::default() });
    assert_eq!(tail(2), format!("{long}\nlast\n"));
    assert_eq!(tail(3), format!("first\n{long}\nlast\n"));
}

#[test]
fn incomplete_last_line_is_output_at_the_end() {
    let (_dir, path) = file(&(logged(1, "F", "one") + "2016-10-06T00:17:02Z stdout F tw"));
    assert_eq!(whole(&path, Options::default()), "one\ntw\n");
}

#[test]
fn error_of_a_missing_log_has_its_path() {
    let error = Reader::open(Path::new("/nowhere/0.log"), Options::default()).unwrap_err();
    assert!(error.to_string().contains("failed to open log file \"/nowhere/0.log\""), "{error}");
}

/// A follower of the log of a container that runs until it is stopped.
struct Following {
    runs: Arc<AtomicBool>,
    chunks: mpsc::Receiver<Bytes>,
    seen: String,
    task: tokio::task::JoinHandle<io::Result<()>>,
}

impl Following {
    fn start(path: &Path, options: Options) -> Following {
        let reader = Reader::open(path, options).unwrap();
        let (sender, chunks) = mpsc::channel(1);
        let runs = Arc::new(AtomicBool::new(true));
        let still = runs.clone();
        let is_running = move || {
            let still = still.clone();
            async move { still.load(Ordering::SeqCst) }
        };
        let task = tokio::spawn(follow(reader, is_running, sender));
        Following { runs, chunks, seen: String::new(), task }
    }

    async fn sees(&mut self, expected: &str) {
        while self.seen != expected {
            let chunk = tokio::time::timeout(Duration::from_secs(20), self.chunks.recv()).await;
            let chunk = chunk.unwrap_or_else(|_| panic!("only {:?} was sent", self.seen)).unwrap();
            self.seen.push_str(std::str::from_utf8(&chunk).unwrap());
            assert!(expected.starts_with(&self.seen), "{:?} is told", self.seen);
        }
    }
}

fn append(path: &Path, text: &str) {
    let mut file = File::options().append(true).open(path).unwrap();
    file.write_all(text.as_bytes()).unwrap();
}

#[tokio::test]
async fn log_is_followed_until_its_container_exits() {
    let (_dir, path) = file(&logged(1, "F", "one"));
    let options = Options { follow: true, ..Options::default() };
    let mut following = Following::start(&path, options);
    following.sees("one\n").await;
    let second = logged(2, "F", "two");
    // An incomplete line is sent when it is complete.
    append(&path, &second[..30]);
    append(&path, &second[30..]);
    following.sees("one\ntwo\n").await;
    append(&path, &logged(3, "F", "three"));
    following.runs.store(false, Ordering::SeqCst);
    following.sees("one\ntwo\nthree\n").await;
    following.task.await.unwrap().unwrap();
    assert!(following.chunks.recv().await.is_none());
}

#[tokio::test]
async fn following_a_rotated_log_loses_no_lines() {
    let (dir, path) = file(&logged(1, "F", "one"));
    let options = Options { follow: true, tail: Some(10), ..Options::default() };
    let mut following = Following::start(&path, options);
    following.sees("one\n").await;
    let old = dir.path().join("0.log.20060102-150405");
    fs::rename(&path, &old).unwrap();
    // The runtime has not reopened its log yet.
    append(&old, &logged(2, "F", "two"));
    following.sees("one\ntwo\n").await;
    append(&old, &logged(3, "F", "three"));
    fs::write(&path, logged(4, "F", "four")).unwrap();
    following.sees("one\ntwo\nthree\nfour\n").await;
    append(&path, &logged(5, "F", "five"));
    following.sees("one\ntwo\nthree\nfour\nfive\n").await;
}

#[tokio::test]
async fn following_ends_at_the_limit_or_without_a_receiver() {
    let (_dir, path) = file(&logged(1, "F", "one"));
    let options = Options { follow: true, ..Options::default() };
    let mut following = Following::start(&path, options);
    following.sees("one\n").await;
    drop(following.chunks);
    following.task.await.unwrap().unwrap();
    let mut following = Following::start(&path, Options { limit: Some(6), ..options });
    following.sees("one\n").await;
    append(&path, &logged(2, "F", "two"));
    following.sees("one\ntw").await;
    following.task.await.unwrap().unwrap();
}
