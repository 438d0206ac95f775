//! Recorded kubectl sessions, and their replay: [`Session`] and [`Client`].
//!
//! A session is a text of commands and their results:
//!
//! ```text
//! # A remark.
//! $ kubectl get pod nope                 the command, with quotes as in a shell, NAME=value before
//!                                        it, and `< FILE` behind it
//! & kubectl label pod a x=y              run as soon as the command above has a watch open
//! | NAME   READY                         a line of its output
//! ! Error from server (NotFound): ...    a line of its error output
//! = 1                                    its exit status, where it is not 0
//! ~ seed/pod.yaml                        the object of this file is served unchanged
//! ```
//!
//! A line `...` matches any lines, a placeholder such as `<age>` anything of its form, and columns
//! may have any width. `{<1.24}`, `{>=1.24}` or `{>=1.24,<1.30}` before a line restricts it to
//! clients of such versions. `$VIEWER` is the kubeconfig of a viewer.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use rig::printed::same_line;
use serde_json::Value;

use crate::server::Server;

/// Timeout of a client's action; long, because the machine may be busy.
const TIMEOUT: Duration = Duration::from_secs(90);

/// A kubectl.
#[derive(Debug)]
pub(crate) struct Client {
    path: PathBuf,
    minor: u32,
}

impl Client {
    pub(crate) fn at(path: PathBuf) -> Client {
        let output =
            Command::new(&path).args(["version", "--client", "-o", "json"]).output().unwrap();
        let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
        let version = answer["clientVersion"]["gitVersion"].as_str().unwrap().to_owned();
        let minor = version.split('.').nth(1).unwrap().parse().unwrap();
        Client { path, minor }
    }

    pub(crate) fn version(&self) -> String {
        format!("1.{}", self.minor)
    }
}

/// A command and its expected result.
#[derive(Debug, Default)]
struct Step {
    line: usize,
    environment: Vec<(String, String)>,
    arguments: Vec<String>,
    stdin: Option<String>,
    /// Run while the command watches.
    meanwhile: Option<Vec<String>>,
    stdout: Vec<String>,
    stderr: Vec<String>,
    exit: i32,
    unchanged: Option<String>,
}

/// A session.
#[derive(Debug)]
pub(crate) struct Session {
    name: String,
    text: String,
}

fn beside(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients").join(name)
}

impl Session {
    /// Returns all sessions, sorted by name.
    pub(crate) fn all() -> Vec<Session> {
        let mut sessions: Vec<Session> = std::fs::read_dir(beside("sessions"))
            .unwrap()
            .map(|entry| {
                let path = entry.unwrap().path();
                let name = path.file_name().unwrap().to_string_lossy().into_owned();
                Session { name, text: std::fs::read_to_string(path).unwrap() }
            })
            .collect();
        assert!(!sessions.is_empty());
        sessions.sort_by(|a, b| a.name.cmp(&b.name));
        sessions
    }

    /// Runs the session, panics on a difference, and returns the number of commands.
    pub(crate) fn play(
        &self,
        client: &Client,
        server: &Server,
        complaints: &mut Vec<String>,
    ) -> usize {
        let steps = self.steps(client);
        let count = steps.len();
        for step in steps {
            if let Err(what) = step.play(client, server) {
                let command = step.arguments.join(" ");
                complaints.push(format!("{}:{}: kubectl {command}\n{what}", self.name, step.line));
            }
        }
        count
    }

    fn steps(&self, client: &Client) -> Vec<Step> {
        let mut steps: Vec<Step> = Vec::new();
        // True while the lines of a command for other versions are skipped.
        let mut passing_over = false;
        for (index, line) in self.text.lines().enumerate() {
            let place = format!("{}:{}", self.name, index + 1);
            let (applies, line) = condition(line, client.minor, &place);
            let Some((kind, rest)) = line.split_at_checked(1) else { continue };
            let rest = rest.strip_prefix(' ').unwrap_or(rest);
            if kind == "#" {
                continue;
            }
            if kind == "$" {
                passing_over = !applies;
            }
            if !applies || passing_over {
                continue;
            }
            if kind == "$" {
                steps.push(Step::of(rest, index + 1, &place));
                continue;
            }
            let step = steps.last_mut().unwrap_or_else(|| panic!("{place}: no command before it"));
            match kind {
                "|" => step.stdout.push(rest.to_owned()),
                "!" => step.stderr.push(rest.to_owned()),
                "=" => step.exit = rest.parse().unwrap_or_else(|_| panic!("{place}: no number")),
                "&" => step.meanwhile = Some(Step::of(rest, index + 1, &place).arguments),
                "~" => step.unchanged = Some(rest.to_owned()),
                other => panic!("{place}: {other:?} is none of # $ & | ! = ~"),
            }
        }
        steps
    }
}

/// Removes a version condition from a line, and returns whether it holds.
fn condition<'a>(line: &'a str, minor: u32, place: &str) -> (bool, &'a str) {
    let Some((condition, rest)) = line.strip_prefix('{').and_then(|rest| rest.split_once("} "))
    else {
        return (true, line);
    };
    let holds = |part: &str| {
        let bound = |text: &str| text.parse::<u32>().ok();
        let below = part.strip_prefix("<1.").and_then(bound);
        let least = part.strip_prefix(">=1.").and_then(bound);
        match (below, least) {
            (Some(below), _) => minor < below,
            (_, Some(least)) => minor >= least,
            _ => panic!("{place}: {part:?} is neither <1.24 nor >=1.24"),
        }
    };
    let applies = condition.split(',').all(holds);
    (applies, rest)
}

impl Step {
    fn of(text: &str, line: usize, place: &str) -> Step {
        let mut step = Step { line, ..Step::default() };
        let mut words = words(text).into_iter();
        loop {
            let word = words.next().unwrap_or_else(|| panic!("{place}: no kubectl"));
            match word.split_once('=') {
                Some((name, value)) => step.environment.push((name.to_owned(), value.to_owned())),
                None if word == "kubectl" => break,
                None => panic!("{place}: {word:?} where kubectl should stand"),
            }
        }
        step.arguments = words.collect();
        if let Some(at) = step.arguments.iter().position(|word| word == "<") {
            step.stdin = step.arguments.get(at + 1).cloned();
            step.arguments.truncate(at);
        }
        step
    }

    fn command(&self, arguments: &[String], client: &Client, server: &Server) -> Command {
        let mut command = Command::new(&client.path);
        for argument in arguments {
            let viewer = server.viewer_kubeconfig();
            command.arg(argument.replace("$VIEWER", &viewer.to_string_lossy()));
        }
        command
            .current_dir(beside("files"))
            .env("KUBECONFIG", server.kubeconfig())
            .env("HOME", server.home())
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    fn play(&self, client: &Client, server: &Server) -> Result<(), String> {
        let output = match &self.meanwhile {
            Some(meanwhile) => self.watch(meanwhile, client, server)?,
            None => self.run(client, server)?,
        };
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
        let printed = || format!("  output:\n{stdout}\n  error output:\n{stderr}");
        // An interrupted command has no status of its own.
        if self.meanwhile.is_none() && output.status.code() != Some(self.exit) {
            return Err(format!(
                "  exit {} instead of {}\n{}",
                output.status,
                self.exit,
                printed()
            ));
        }
        for (wanted, got) in [(&self.stdout, &stdout), (&self.stderr, &stderr)] {
            let got: Vec<&str> = got.lines().collect();
            if let Err(line) = agrees(wanted, &got) {
                return Err(format!("  expected: {line}\n{}", printed()));
            }
        }
        self.unchanged.as_deref().map_or(Ok(()), |file| unchanged(file, &stdout))
    }

    fn run(&self, client: &Client, server: &Server) -> Result<Output, String> {
        let mut command = self.command(&self.arguments, client, server);
        if self.stdin.is_some() {
            command.stdin(Stdio::piped());
        }
        let mut child = command.spawn().unwrap();
        if let (Some(file), Some(mut pipe)) = (&self.stdin, child.stdin.take()) {
            let bytes = std::fs::read(beside("files").join(file)).unwrap();
            // A command that reads nothing closes the pipe.
            let _ = pipe.write_all(&bytes);
        }
        let id = child.id();
        let (done, waiting) = mpsc::channel();
        std::thread::spawn(move || done.send(child.wait_with_output()));
        match waiting.recv_timeout(TIMEOUT) {
            Ok(output) => Ok(output.unwrap()),
            Err(_) => Err(format!("  process {id} still runs after {TIMEOUT:?}")),
        }
    }

    /// Starts the command, runs the other one when the server has one more watch, and ends the
    /// command when it has printed the expected number of lines.
    fn watch(
        &self,
        meanwhile: &[String],
        client: &Client,
        server: &Server,
    ) -> Result<Output, String> {
        let deadline = Instant::now() + TIMEOUT;
        let before = self.watches(client, server);
        let mut child = self.command(&self.arguments, client, server).spawn().unwrap();
        while self.watches(client, server) <= before {
            if Instant::now() > deadline {
                let _ = child.kill();
                let _ = child.wait();
                return Err(format!("  no watch was opened within {TIMEOUT:?}"));
            }
        }
        let other = self.command(meanwhile, client, server).output().unwrap();
        let (send, lines) = mpsc::channel();
        let stdout = child.stdout.take().unwrap();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                // The receiver is dropped when enough lines have come.
                let _ = send.send(line);
            }
        });
        let mut printed = String::new();
        for _ in &self.stdout {
            let left = deadline.saturating_duration_since(Instant::now());
            let Ok(line) = lines.recv_timeout(left) else { break };
            printed.push_str(&line);
            printed.push('\n');
        }
        let _ = child.kill();
        let mut output = child.wait_with_output().unwrap();
        output.stdout = printed.into_bytes();
        if !other.status.success() {
            return Err(format!("  meanwhile: {}", String::from_utf8_lossy(&other.stderr)));
        }
        Ok(output)
    }

    /// Returns the number of watches that the server has received.
    fn watches(&self, client: &Client, server: &Server) -> u64 {
        let arguments = ["get", "--raw", "/metrics"].map(str::to_owned);
        let output = self.command(&arguments, client, server).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let counts = text.lines().filter(|line| {
            line.starts_with("apiserver_request_total{verb=\"watch\",resource=\"pods\"")
        });
        counts.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).sum()
    }
}

/// Compares lines with the expected ones; returns the first unmatched expectation.
fn agrees(wanted: &[String], got: &[&str]) -> Result<(), String> {
    match wanted {
        [] if got.is_empty() => Ok(()),
        [] => Err("no more lines".to_owned()),
        [any, rest @ ..] if any == "..." => {
            let mut failure = Ok(());
            for from in 0..=got.len() {
                failure = agrees(rest, &got[from..]);
                if failure.is_ok() {
                    return Ok(());
                }
            }
            // The best match is unknown; report the line after the gap.
            rest.first().map_or(failure, |line| Err(format!("... {line}")))
        }
        [first, rest @ ..] => match got {
            [line, others @ ..] if same_line(first, line) => agrees(rest, others),
            _ => Err(first.clone()),
        },
    }
}

/// Splits a command line into words; quotes keep blanks.
fn words(text: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quote = None;
    for character in text.chars() {
        match (quote, character) {
            (None, '\'' | '"') => {
                quote = Some(character);
                word.get_or_insert_default();
            }
            (Some(open), close) if open == close => quote = None,
            (None, ' ') => words.extend(word.take()),
            (_, other) => word.get_or_insert_default().push(other),
        }
    }
    words.extend(word);
    words
}

/// Checks that an object read with `-o json` has every field of its file.
fn unchanged(file: &str, served: &str) -> Result<(), String> {
    let text = std::fs::read_to_string(beside("files").join(file)).unwrap();
    let (documents, errors) = objects::yaml::parse(&text);
    assert!(errors.is_empty() && documents.len() == 1, "{file}: {errors:?}");
    let written = documents[0].to_json();
    let served: Value = serde_json::from_str(served).map_err(|error| format!("  {error}"))?;
    let differing = differing(&written, &served, "");
    differing.map_or(Ok(()), |what| Err(format!("  {file} came back changed: {what}")))
}

/// Returns the first path at which the served object differs from the written one. Lists must have
/// the same length; objects may have additional fields.
fn differing(written: &Value, served: &Value, place: &str) -> Option<String> {
    match (written, served) {
        (Value::Object(written), Value::Object(_)) => written
            .iter()
            .find_map(|(name, value)| differing(value, &served[name], &format!("{place}.{name}"))),
        (Value::Array(written), Value::Array(served)) if written.len() == served.len() => written
            .iter()
            .zip(served)
            .enumerate()
            .find_map(|(index, (w, s))| differing(w, s, &format!("{place}[{index}]"))),
        _ => (written != served).then(|| format!("{place} is {served} and was {written}")),
    }
}

#[test]
fn quotes_keep_blanks_in_words() {
    assert_eq!(words("a 'b c'd  \"\" -p '{\"x\": 1}'"), ["a", "b cd", "", "-p", "{\"x\": 1}"]);
}

#[test]
fn only_gaps_match_any_lines() {
    let lines = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
    let check = |wanted: &str, got: &str, agree: bool| {
        let got: Vec<&str> = got.lines().collect();
        assert_eq!(agrees(&lines(wanted), &got).is_ok(), agree, "{wanted:?} {got:?}");
    };
    check("a\n...\nd", "a\nb\nc\nd", true);
    check("a\n...\nd", "a\nd", true);
    check("a\n...", "a", true);
    check("a\n...\nd", "a\nb", false);
    check("a", "a\nb", false);
    check("a\nb", "a", false);
    check("", "a", false);
    check("web  <age>", "web      12s", true);
}

#[test]
fn conditions_choose_lines_by_version() {
    assert_eq!(condition("{<1.24} | x", 20, ""), (true, "| x"));
    assert_eq!(condition("{<1.24} | x", 24, ""), (false, "| x"));
    assert_eq!(condition("{>=1.24} | x", 24, ""), (true, "| x"));
    assert_eq!(condition("{>=1.24,<1.30} | x", 29, ""), (true, "| x"));
    assert_eq!(condition("{>=1.24,<1.30} | x", 30, ""), (false, "| x"));
    assert_eq!(condition("| x", 24, ""), (true, "| x"));
}

#[test]
fn changed_fields_are_found() {
    let json = |text: &str| serde_json::from_str::<Value>(text).unwrap();
    let written = json(r#"{"a": [{"b": 1}]}"#);
    assert_eq!(differing(&written, &json(r#"{"a": [{"b": 1, "c": 2}], "d": 3}"#), ""), None);
    assert!(differing(&written, &json(r#"{"a": [{"b": 2}]}"#), "").is_some());
    assert!(differing(&written, &json(r#"{"a": []}"#), "").is_some());
    assert!(differing(&written, &json("{}"), "").is_some());
}
