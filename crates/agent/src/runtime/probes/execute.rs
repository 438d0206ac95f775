//! Execution of probes: [`probe`] executes one probe and returns its outcome, with upstream's text.
//!
//! [`super::cycle`] decides if the outcome changes anything.

use std::time::Duration;

use cri::v1;

use super::grpc;
use crate::observability::events::{AgentEvent, ProbeKind};
use crate::runtime::fetch::{self, Get, messages};
use crate::runtime::lower::expansion;
use lifecycle::spec::{Container, ExecAction, Handler, HttpGetAction, Pod, TcpSocketAction};

/// The largest output of a command that is kept. Upstream's value.
const OUTPUT_LIMIT: usize = 10 * 1024;

/// The number of attempts after errors. Upstream's value.
const ATTEMPTS: usize = 3;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ProbeOutcome {
    Success,
    /// Success, with a warning.
    Warning(String),
    Failure(String),
    /// The probe could not be executed.
    Error(String),
}

impl ProbeOutcome {
    /// Returns `None` for unknown.
    pub(super) fn good(&self) -> Option<bool> {
        match self {
            ProbeOutcome::Success | ProbeOutcome::Warning(_) => Some(true),
            ProbeOutcome::Failure(_) => Some(false),
            ProbeOutcome::Error(_) => None,
        }
    }

    pub(super) fn event(self, probe: ProbeKind) -> Option<AgentEvent> {
        match self {
            ProbeOutcome::Success => None,
            ProbeOutcome::Warning(output) => Some(AgentEvent::ProbeWarning { probe, output }),
            ProbeOutcome::Failure(output) => Some(AgentEvent::Unhealthy { probe, output }),
            ProbeOutcome::Error(error) => Some(AgentEvent::ProbeErrored { probe, error }),
        }
    }
}

/// A probe and its target.
pub(super) struct ProbeInput<'a> {
    pub pod: &'a Pod,
    pub container: &'a Container,
    pub id: &'a str,
    pub pod_ip: &'a str,
    pub handler: &'a Handler,
    pub timeout_seconds: i32,
}

pub(super) async fn probe(runtime: &cri::Client, question: &ProbeInput<'_>) -> ProbeOutcome {
    let mut answer = probe_once(runtime, question).await;
    for _ in 1..ATTEMPTS {
        if !matches!(answer, ProbeOutcome::Error(_)) {
            break;
        }
        answer = probe_once(runtime, question).await;
    }
    answer
}

async fn probe_once(runtime: &cri::Client, question: &ProbeInput<'_>) -> ProbeOutcome {
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
        grpc::check_health(question.pod_ip, action.port, service, timeout).await
    } else {
        let meta = &question.pod.metadata;
        ProbeOutcome::Error(format!(
            "missing probe handler for {}_{}({}):{}",
            meta.name, meta.namespace, meta.uid, question.container.name
        ))
    }
}

/// Returns the command to run. As upstream, only values in the spec are expanded; a variable from another
/// source is empty.
fn command(container: &Container, action: &ExecAction) -> Vec<String> {
    let value = |name: &[u8]| {
        let found = container.env.iter().rev().find(|env| env.name.as_bytes() == name);
        found.map(|env| env.value.as_bytes())
    };
    action.command.iter().map(|word| expansion::expand_text(word, value)).collect()
}

async fn exec(
    runtime: &cri::Client,
    question: &ProbeInput<'_>,
    action: &ExecAction,
    timeout: Duration,
) -> ProbeOutcome {
    let command = command(question.container, action);
    let request = v1::ExecSyncRequest {
        container_id: question.id.to_owned(),
        cmd: command.clone(),
        timeout: i64::from(question.timeout_seconds),
    };
    match runtime.call(request).await {
        Ok(response) if response.exit_code == 0 => ProbeOutcome::Success,
        Ok(response) => {
            let mut output = response.stdout;
            output.extend_from_slice(&response.stderr);
            output.truncate(OUTPUT_LIMIT);
            ProbeOutcome::Failure(String::from_utf8_lossy(&output).into_owned())
        }
        Err(error) if error.is_deadline() => ProbeOutcome::Failure(format!(
            "command timed out: {:?} timed out after {}",
            command.join(" "),
            objects::go::duration(timeout),
        )),
        Err(error) => ProbeOutcome::Error(error.rpc_text()),
    }
}

async fn http_get(
    question: &ProbeInput<'_>,
    action: &HttpGetAction,
    timeout: Duration,
) -> ProbeOutcome {
    let get = match Get::new(action, question.container, question.pod_ip, "kube-probe") {
        Ok(get) => get,
        Err(error) => return ProbeOutcome::Error(error.to_string()),
    };
    match fetch::get(&get, Some(timeout)).await {
        Ok(got) => match got.status {
            200..300 => ProbeOutcome::Success,
            300..400 => ProbeOutcome::Warning(format!(
                "Probe terminated redirects, Response body: {}",
                String::from_utf8_lossy(&got.body)
            )),
            status => ProbeOutcome::Failure(format!("HTTP probe failed with statuscode: {status}")),
        },
        Err(error) => ProbeOutcome::Failure(error.to_string()),
    }
}

async fn tcp_socket(
    question: &ProbeInput<'_>,
    action: &TcpSocketAction,
    timeout: Duration,
) -> ProbeOutcome {
    let port = match fetch::port(&action.port, question.container) {
        Ok(port) => port,
        Err(error) => return ProbeOutcome::Error(error.to_string()),
    };
    let host = if action.host.is_empty() { question.pod_ip } else { &action.host };
    match tokio::time::timeout(timeout, messages::dial(host, port)).await {
        Ok(Ok(_)) => ProbeOutcome::Success,
        Ok(Err(error)) => ProbeOutcome::Failure(error.to_string()),
        Err(_) => {
            ProbeOutcome::Failure(format!("dial tcp {}: i/o timeout", messages::join(host, port)))
        }
    }
}
