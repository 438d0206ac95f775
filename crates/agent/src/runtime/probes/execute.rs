//! Asks a container: [`ask`] carries out one probe and says what came of it, in upstream's words.
//!
//! Whether that is enough to change anything is [`super::cycle`]'s business.

use std::time::Duration;

use cri::v1;

use super::grpc;
use crate::observability::events::{ProbeKind, Told};
use crate::runtime::fetch::{self, Get, messages};
use crate::runtime::lower::expansion;
use crate::spec::{Container, ExecAction, Handler, HttpGetAction, Pod, TcpSocketAction};

/// How much of a command's output is kept: upstream's figure.
const OUTPUT_LIMIT: usize = 10 * 1024;

/// How often a question is put that could not be asked: upstream's figure.
const ATTEMPTS: usize = 3;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Answer {
    Success,
    /// Good, with something to say about it.
    Warning(String),
    Failure(String),
    /// It could not be asked.
    Error(String),
}

impl Answer {
    /// `None` where there is no telling.
    pub(super) fn good(&self) -> Option<bool> {
        match self {
            Answer::Success | Answer::Warning(_) => Some(true),
            Answer::Failure(_) => Some(false),
            Answer::Error(_) => None,
        }
    }

    pub(super) fn told(self, probe: ProbeKind) -> Option<Told> {
        match self {
            Answer::Success => None,
            Answer::Warning(output) => Some(Told::ProbeWarning { probe, output }),
            Answer::Failure(output) => Some(Told::Unhealthy { probe, output }),
            Answer::Error(error) => Some(Told::ProbeErrored { probe, error }),
        }
    }
}

/// Whom to ask what.
pub(super) struct Question<'a> {
    pub pod: &'a Pod,
    pub container: &'a Container,
    pub id: &'a str,
    pub pod_ip: &'a str,
    pub handler: &'a Handler,
    pub timeout_seconds: i32,
}

pub(super) async fn ask(runtime: &cri::Client, question: &Question<'_>) -> Answer {
    let mut answer = once(runtime, question).await;
    for _ in 1..ATTEMPTS {
        if !matches!(answer, Answer::Error(_)) {
            break;
        }
        answer = once(runtime, question).await;
    }
    answer
}

async fn once(runtime: &cri::Client, question: &Question<'_>) -> Answer {
    let seconds = question.timeout_seconds;
    let timeout = Duration::from_secs(u64::try_from(seconds).unwrap_or(1));
    let handler = question.handler;
    if let Some(action) = &handler.exec {
        exec(runtime, question, action, timeout).await
    } else if let Some(action) = &handler.http_get {
        http_get(question, action, timeout).await
    } else if let Some(action) = &handler.tcp_socket {
        tcp_socket(question, action, timeout).await
    } else if let Some(action) = &handler.grpc {
        let service = action.service.as_deref().unwrap_or("");
        grpc::ask(question.pod_ip, action.port, service, timeout).await
    } else {
        let meta = &question.pod.metadata;
        Answer::Error(format!(
            "missing probe handler for {}_{}({}):{}",
            meta.name, meta.namespace, meta.uid, question.container.name
        ))
    }
}

/// What is run. As upstream: only what stands in the spec is known here, and a variable whose value
/// comes from elsewhere is empty.
fn command(container: &Container, action: &ExecAction) -> Vec<String> {
    let value = |name: &[u8]| {
        let found = container.env.iter().rev().find(|env| env.name.as_bytes() == name);
        found.map(|env| env.value.as_bytes())
    };
    action.command.iter().map(|word| expansion::expand_text(word, value)).collect()
}

async fn exec(
    runtime: &cri::Client,
    question: &Question<'_>,
    action: &ExecAction,
    timeout: Duration,
) -> Answer {
    let command = command(question.container, action);
    let request = v1::ExecSyncRequest {
        container_id: question.id.to_owned(),
        cmd: command.clone(),
        timeout: i64::from(question.timeout_seconds),
    };
    match runtime.call(request).await {
        Ok(response) if response.exit_code == 0 => Answer::Success,
        Ok(response) => {
            let mut output = response.stdout;
            output.extend_from_slice(&response.stderr);
            output.truncate(OUTPUT_LIMIT);
            Answer::Failure(String::from_utf8_lossy(&output).into_owned())
        }
        Err(error) if error.is_deadline() => Answer::Failure(format!(
            "command timed out: {:?} timed out after {}",
            command.join(" "),
            objects::duration::render(timeout),
        )),
        Err(error) => Answer::Error(error.rpc_text()),
    }
}

async fn http_get(question: &Question<'_>, action: &HttpGetAction, timeout: Duration) -> Answer {
    let get = match Get::new(action, question.container, question.pod_ip, "kube-probe") {
        Ok(get) => get,
        Err(error) => return Answer::Error(error),
    };
    match fetch::get(&get, Some(timeout)).await {
        Ok(got) => match got.status {
            200..300 => Answer::Success,
            300..400 => Answer::Warning(format!(
                "Probe terminated redirects, Response body: {}",
                String::from_utf8_lossy(&got.body)
            )),
            status => Answer::Failure(format!("HTTP probe failed with statuscode: {status}")),
        },
        Err(error) => Answer::Failure(error.to_string()),
    }
}

async fn tcp_socket(
    question: &Question<'_>,
    action: &TcpSocketAction,
    timeout: Duration,
) -> Answer {
    let port = match fetch::port(&action.port, question.container) {
        Ok(port) => port,
        Err(error) => return Answer::Error(error),
    };
    let host = if action.host.is_empty() { question.pod_ip } else { &action.host };
    match tokio::time::timeout(timeout, messages::dial(host, port)).await {
        Ok(Ok(_)) => Answer::Success,
        Ok(Err(error)) => Answer::Failure(error),
        Err(_) => Answer::Failure(format!("dial tcp {}: i/o timeout", messages::join(host, port))),
    }
}
