//! A wall clock that jumps under a running server, by more than the lifetime of its certificates.
//!
//! The server reads the clock through a preloaded library, whose source is in `preload`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

use http::{Method, StatusCode};
use https::Clock;
use tempfile::TempDir;
use tokio::time::{Instant, sleep};

use crate::server::{Launch, Server, Who, limited};

/// The server looks at its certificates every minute.
const TIMEOUT: Duration = Duration::from_secs(120);

const DAY: i64 = 24 * 3600;

/// A clock that is shared with processes.
struct MovedClock {
    dir: TempDir,
}

impl MovedClock {
    fn new() -> MovedClock {
        let dir = tempfile::tempdir().unwrap();
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/attacks/preload/clock.rs");
        // The compiler of the same toolchain, or the one on the path.
        let beside = Path::new(env!("CARGO")).with_file_name("rustc");
        let rustc = if beside.exists() { beside } else { PathBuf::from("rustc") };
        let mut command = Command::new(rustc);
        command.args(["--edition", "2024", "--crate-type", "cdylib", "-C", "panic=abort", "-o"]);
        let compiled = command.arg(dir.path().join("clock.so")).arg(source).status().unwrap();
        assert!(compiled.success());
        let clock = MovedClock { dir };
        clock.move_to(0);
        clock
    }

    fn file(&self) -> PathBuf {
        self.dir.path().join("offset")
    }

    fn move_to(&self, day: i64) {
        // A rename, so that no process reads half a number.
        let new = self.dir.path().join("new");
        fs::write(&new, (day * DAY).to_string()).unwrap();
        fs::rename(new, self.file()).unwrap();
    }

    fn environment(&self) -> Vec<(&'static str, PathBuf)> {
        vec![("LD_PRELOAD", self.dir.path().join("clock.so")), ("MOVED_CLOCK", self.file())]
    }

    /// Returns the same time for this process.
    fn clock(&self) -> Clock {
        let file = self.file();
        Clock::new(move || {
            let seconds: i64 = fs::read_to_string(&file).unwrap().parse().unwrap();
            let distance = Duration::from_secs(seconds.unsigned_abs());
            let now = SystemTime::now();
            if seconds < 0 { now - distance } else { now + distance }
        })
    }
}

/// Waits until the server accepts and presents certificates that are valid at its time.
async fn accepted(server: &Server, day: i64) {
    let begun = Instant::now();
    while let Err(error) = server.endpoint(Who::Admin, "h2").connect().await {
        assert!(begun.elapsed() < TIMEOUT, "day {day}: {error}");
        sleep(Duration::from_millis(200)).await;
    }
    let path = "/api/v1/namespaces/default";
    let answer = server.ask(Who::Admin, Method::GET, path, &[], "").await;
    assert_eq!(answer.status, StatusCode::OK, "day {day}: {}", answer.text());
}

/// Moves the clock of a running server to some days, one after the other.
async fn survives(days: &[i64]) {
    let clock = MovedClock::new();
    let environment = clock.environment();
    let launch = Launch { environment, clock: clock.clock(), ..Launch::default() };
    let server = Server::launch(&launch);
    accepted(&server, 0).await;
    for &day in days {
        clock.move_to(day);
        assert!(server.endpoint(Who::Admin, "h2").connect().await.is_err(), "day {day}");
        accepted(&server, day).await;
    }
    // Commands that use the server's own credentials work as well.
    let backup = clock.dir.path().join("backup");
    let mut berth = limited(None);
    berth.arg("backup").arg(&backup).arg("--data-dir").arg(server.data_dir());
    let output = berth.envs(clock.environment()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[tokio::test(flavor = "multi_thread")]
async fn certificates_are_renewed_while_the_server_runs() {
    // Later than the certificates, later than the authority, and before all of them were made.
    tokio::join!(survives(&[400]), survives(&[8000]), survives(&[400, -30]));
}
