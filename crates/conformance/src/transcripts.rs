//! Recorded kubectl commands, repeated with a real kubectl and our API server on a TLS port.
//!
//! Every transcript gets its own server without controllers, like the recorded one. Each command
//! counts as one vector: exit status, output and errors. [`kubectl`] selects the binary,
//! [`printed`] handles placeholders, and [`deliberate`] lists deliberate differences. Without a
//! kubectl on the machine nothing is counted.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use apiserver::certificates;
use apiserver::{
    Api, Body, Caller, Limits, Listener, Options, Query, Request as ApiRequest, StaticToken, User,
};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::{HeaderMap, HeaderValue, Method};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::process::Command;
use tokio::sync::{Semaphore, watch};
use tokio::time::timeout;

use rig::printed;

use super::{Difference, Outcome, Verdict, recorded_plugins};

mod deliberate;
mod kubectl;

use deliberate::Known;
use kubectl::{Kubectl, Minor};

/// Transcripts replayed concurrently; kubectl mostly waits for its own start.
const AT_A_TIME: usize = 4;
/// Timeout of one command. None of them waits longer than two seconds by itself.
const TIMEOUT: Duration = Duration::from_secs(60);
const KIND: &str = "kubectl";

/// Replays all transcripts of a file.
pub(super) fn run(lines: Vec<Value>) -> Result<Vec<Outcome>> {
    let installed = Arc::new(kubectl::installed());
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let permits = Arc::new(Semaphore::new(AT_A_TIME));
        let mut playing = Vec::new();
        for line in lines {
            let (permits, installed) = (Arc::clone(&permits), Arc::clone(&installed));
            playing.push(tokio::spawn(async move {
                let _permit = permits.acquire_owned().await;
                transcript(&line, &installed).await
            }));
        }
        let mut replayed = Vec::new();
        for transcript in playing {
            replayed.extend(transcript.await.context("a transcript panicked")?);
        }
        Ok(into_outcomes(replayed))
    })
}

/// A replayed command.
#[derive(Debug)]
struct CommandReplay {
    /// The transcript and the index of the command; equal for every client.
    command: (String, usize),
    /// The recorded and the used version, if they differ.
    stand_in: Option<(Minor, Minor)>,
    outcome: Outcome,
}

/// Turns replays into outcomes. The output of another client version may differ because of the
/// client. So a difference counts as a failure only if the recorded client differs too, in its own
/// transcript of the same commands; it never counts as passed.
fn into_outcomes(mut replayed: Vec<CommandReplay>) -> Vec<Outcome> {
    let clean: BTreeSet<(String, usize)> = replayed
        .iter()
        .filter(|p| p.stand_in.is_none() && p.outcome.verdict == Verdict::Passed)
        .map(|p| p.command.clone())
        .collect();
    for CommandReplay { command, stand_in, outcome } in &mut replayed {
        if let Some((recorded, found)) = stand_in
            && outcome.verdict == Verdict::Failed
            && clean.contains(command)
        {
            outcome.verdict = Verdict::NotServed;
            outcome.quirk = Some(format!("recorded with kubectl {recorded}, found {found}"));
        }
    }
    replayed.into_iter().map(|p| p.outcome).collect()
}

async fn transcript(line: &Value, installed: &[Kubectl]) -> Vec<CommandReplay> {
    let client = line["client"].as_str().unwrap_or_default();
    let name = line["id"].as_str().unwrap_or_default();
    let name = name.strip_prefix("kubectl/").unwrap_or(name);
    let commands = line["commands"].as_array().map(Vec::as_slice).unwrap_or_default();
    let (stand_in, outcomes) = match Minor::parse(client) {
        None => {
            let why = format!("client: {client:?} is not a version such as 1.32");
            (None, vec![skipped(name.to_owned(), &why)])
        }
        Some(recorded) => {
            let id = format!("{name} {client}");
            match kubectl::nearest(installed, recorded) {
                None => (None, commands.iter().map(|command| absent(&id, command)).collect()),
                Some(kubectl) => {
                    let outcomes = match replay(line, &id, commands, kubectl).await {
                        Ok(outcomes) => outcomes,
                        Err(error) => vec![skipped(id, &format!("{error:#}"))],
                    };
                    let found = kubectl.version;
                    ((found != recorded).then_some((recorded, found)), outcomes)
                }
            }
        }
    };
    let replayed = outcomes.into_iter().enumerate().map(|(index, outcome)| CommandReplay {
        command: (name.to_owned(), index),
        stand_in,
        outcome,
    });
    replayed.collect()
}

fn absent(transcript: &str, command: &Value) -> Outcome {
    Outcome {
        kind: KIND.to_owned(),
        id: command_id(transcript, command),
        verdict: Verdict::NotServed,
        quirk: Some("no kubectl on this machine".to_owned()),
        differences: Vec::new(),
    }
}

fn skipped(id: String, why: &str) -> Outcome {
    Outcome {
        kind: KIND.to_owned(),
        id,
        verdict: Verdict::Failed,
        quirk: None,
        differences: vec![Difference {
            what: "the transcript".into(),
            expected: "to be replayed".into(),
            got: why.to_owned(),
        }],
    }
}

fn command_id(transcript: &str, command: &Value) -> String {
    format!("{transcript}: {}", arguments(command).join(" "))
}

/// Returns the command line without the program.
fn arguments(command: &Value) -> Vec<&str> {
    let argv = command["argv"].as_array().map(Vec::as_slice).unwrap_or_default();
    argv.iter().skip(1).filter_map(Value::as_str).collect()
}

async fn replay(
    line: &Value,
    id: &str,
    commands: &[Value],
    kubectl: &Kubectl,
) -> Result<Vec<Outcome>> {
    let namespace = line["namespace"].as_str().context("namespace: absent")?;
    let server = Server::start(namespace).await?;
    let mut outcomes = Vec::new();
    for command in commands {
        let arguments = arguments(command);
        let answer = if command["interrupted_after_label_change"] == true {
            server.run_watch(kubectl, &arguments, command, namespace).await
        } else {
            server.run(kubectl, &arguments, command["stdin"].as_str()).await
        };
        let answer = answer.with_context(|| command_id(id, command))?;
        let differences = compare(command, &arguments, &answer);
        let recorded = command["stdout"].as_str().unwrap_or_default();
        let known = match differences.is_empty() {
            true => None,
            false => deliberate::judge(&arguments, recorded, &answer.stdout),
        };
        let (verdict, quirk) = match known {
            _ if differences.is_empty() => (Verdict::Passed, None),
            Some(Known::Different(why)) => (Verdict::DeliberatelyDifferent, Some(why)),
            Some(Known::NotServed(what)) => (Verdict::NotServed, Some(what)),
            None => (Verdict::Failed, None),
        };
        let quirk = quirk.map(str::to_owned);
        let (kind, id) = (KIND.to_owned(), command_id(id, command));
        outcomes.push(Outcome { kind, id, verdict, quirk, differences });
    }
    server.stop().await;
    Ok(outcomes)
}

/// The result of a command.
struct CommandOutput {
    /// `None` for a watch, which is ended by the runner.
    exit: Option<i32>,
    stdout: String,
    stderr: String,
}

fn compare(command: &Value, arguments: &[&str], answer: &CommandOutput) -> Vec<Difference> {
    let mut differences = Vec::new();
    if let Some(exit) = command["exit"].as_i64() {
        differences.extend(Difference::between("exit", &Some(exit), &answer.exit.map(i64::from)));
    }
    for (what, got) in [("stdout", &answer.stdout), ("stderr", &answer.stderr)] {
        let recorded = command[what].as_str().unwrap_or_default();
        // A shorter list may have narrower columns.
        let served = deliberate::only_served(arguments, recorded);
        let padded = served.is_none();
        let recorded = served.as_deref().unwrap_or(recorded);
        let (recorded, got) = match deliberate::is_unordered(arguments) {
            true => (sorted(recorded), sorted(got)),
            false => (recorded.to_owned(), got.clone()),
        };
        if let Some((expected, got)) = printed::differing(&recorded, &got, padded) {
            differences.push(Difference { what: what.to_owned(), expected, got });
        }
    }
    differences
}

fn sorted(text: &str) -> String {
    let mut lines: Vec<&str> = text.lines().collect();
    lines.sort_unstable();
    lines.join("\n")
}

/// An API server on a port, and an empty home directory of its client.
struct Server {
    dir: TempDir,
    api: Api,
    stop: watch::Sender<bool>,
    serving: tokio::task::JoinHandle<()>,
}

impl Server {
    async fn start(namespace: &str) -> Result<Server> {
        let dir = tempfile::tempdir()?;
        let store = store::Store::open(&dir.path().join("store"), store::Options::default())?;
        let authority = certificates::authority("conformance")?;
        let pair = certificates::server(&authority, &["127.0.0.1".to_owned()])?;
        let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let listener =
            Listener::bind(any, &pair, &authority.certificate, Limits::default()).await?;
        let address = listener.address()?;
        let admin =
            User { uid: "1".to_owned(), ..User::member("admin", apiserver::ADMINISTRATORS) };
        let nobody = User {
            name: "nobody".to_owned(),
            groups: vec!["system:authenticated".to_owned()],
            uid: "2".to_owned(),
            ..User::default()
        };
        let tokens = [admin, nobody].map(|user| StaticToken { token: user.name.clone(), user });
        let options = Options {
            advertised: address.to_string(),
            tokens: tokens.into(),
            plugins: recorded_plugins(),
            ..Options::default()
        };
        let api = Api::new(store, options)
            .await
            .map_err(|refusal| anyhow::anyhow!("the server does not start: {}", refusal.message))?;
        let config = kubeconfig(&authority.certificate, address, namespace);
        std::fs::write(dir.path().join("kubeconfig"), config)?;
        let (stop, stopping) = watch::channel(false);
        let serving = tokio::spawn(listener.serve(api.clone(), stopping));
        let server = Server { dir, api, stop, serving };
        let object = json!({"metadata": {"name": namespace}});
        server.call(Method::POST, "/api/v1/namespaces", "application/json", &object).await?;
        Ok(server)
    }

    async fn stop(self) {
        // The server may have stopped already.
        let _ = self.stop.send(true);
        let _ = self.serving.await;
    }

    /// Sends a request as administrator, without the socket, and returns the response's body.
    async fn call(&self, method: Method, path: &str, kind: &str, body: &Value) -> Result<String> {
        let mut headers = HeaderMap::new();
        headers.insert("content-type", HeaderValue::from_str(kind)?);
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let call = ApiRequest {
            method,
            path: path.to_owned(),
            query: Query::default(),
            headers,
            body: body.into(),
            caller: Caller::Known(User::internal("conformance")),
            source: None,
        };
        let (parts, body) = self.api.handle(call).await.into_response().into_parts();
        let Body::Whole(body) = body else { bail!("{path}: a stream") };
        let text = String::from_utf8_lossy(&body).into_owned();
        if !parts.status.is_success() {
            bail!("{path}: {text}");
        }
        Ok(text)
    }

    fn command(&self, kubectl: &Kubectl, arguments: &[&str]) -> Command {
        let mut command = Command::new(&kubectl.path);
        command
            .args(arguments)
            .env("KUBECONFIG", self.dir.path().join("kubeconfig"))
            .env("HOME", self.dir.path())
            .env_remove("TMPDIR") // a diff names the files it compares
            .env_remove("KUBECTL_EXTERNAL_DIFF")
            .kill_on_drop(true)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    async fn run(
        &self,
        kubectl: &Kubectl,
        arguments: &[&str],
        stdin: Option<&str>,
    ) -> Result<CommandOutput> {
        let mut child = self.command(kubectl, arguments).stdin(Stdio::piped()).spawn()?;
        if let Some(mut pipe) = child.stdin.take() {
            // A command that reads nothing closes the pipe.
            let _ = pipe.write_all(stdin.unwrap_or_default().as_bytes()).await;
        }
        let output = timeout(TIMEOUT, child.wait_with_output())
            .await
            .with_context(|| format!("still running after {TIMEOUT:?}"))??;
        Ok(CommandOutput {
            exit: output.status.code(),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        })
    }

    /// Runs a watch, relabels pod `a` once the watch is open, and ends it when the recorded number
    /// of lines was printed.
    async fn run_watch(
        &self,
        kubectl: &Kubectl,
        arguments: &[&str],
        command: &Value,
        namespace: &str,
    ) -> Result<CommandOutput> {
        let wanted = command["stdout"].as_str().unwrap_or_default().lines().count();
        let before = self.watches().await?;
        let mut child = self.command(kubectl, arguments).stdin(Stdio::null()).spawn()?;
        let deadline = Instant::now() + TIMEOUT;
        while self.watches().await? <= before && child.try_wait()?.is_none() {
            if Instant::now() > deadline {
                bail!("no watch was opened within {TIMEOUT:?}");
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let path = format!("/api/v1/namespaces/{namespace}/pods/a");
        let label = json!({"metadata": {"labels": {"changed": before.to_string()}}});
        let kind = "application/merge-patch+json";
        self.call(Method::PATCH, &path, kind, &label).await?;

        let mut stdout = String::new();
        let mut lines = BufReader::new(child.stdout.take().context("no standard output")?).lines();
        let left = deadline.saturating_duration_since(Instant::now());
        let reading = async {
            for _ in 0..wanted {
                let Some(line) = lines.next_line().await? else { break };
                stdout.push_str(&line);
                stdout.push('\n');
            }
            anyhow::Ok(())
        };
        // A timeout is a difference like any other.
        if let Ok(read) = timeout(left, reading).await {
            read?;
        }
        child.kill().await?;
        let mut stderr = String::new();
        child.stderr.take().context("no error output")?.read_to_string(&mut stderr).await?;
        Ok(CommandOutput { exit: None, stdout, stderr })
    }

    /// Returns the number of watches opened so far.
    async fn watches(&self) -> Result<u64> {
        let text = self.call(Method::GET, "/metrics", "text/plain", &Value::Null).await?;
        let counts = text.lines().filter(|line| {
            line.starts_with("apiserver_request_total{verb=\"watch\",resource=\"pods\"")
        });
        Ok(counts.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).sum())
    }
}

/// Renders contexts for the two users of the recording, with the transcript's namespace.
fn kubeconfig(authority: &str, address: SocketAddr, namespace: &str) -> String {
    let users = ["admin", "nobody"];
    let config = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "admin",
        "clusters": [{"name": "recorded", "cluster": {
            "server": format!("https://{address}"),
            "certificate-authority-data": STANDARD.encode(authority),
        }}],
        "users": users.map(|name| json!({"name": name, "user": {"token": name}})),
        "contexts": users.map(|name| json!({"name": name, "context": {
            "cluster": "recorded", "user": name, "namespace": namespace,
        }})),
    });
    config.to_string()
}
