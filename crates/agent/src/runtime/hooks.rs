//! Lifecycle hooks: [`run`] executes `postStart` or `preStop` of a container.
//!
//! A failed hook is reported as an Event with a fixed text; the error is logged. As upstream, there is no
//! timeout; the caller can set one.

use std::time::Duration;

use cri::v1;
use thiserror::Error;

use crate::observability::events::AgentEvent;
use crate::runtime::fetch::{self, Failure, Get, GetError, PortError};
use lifecycle::spec::{
    Container, ExecAction, Handler, HttpGetAction, IntOrString, TcpSocketAction,
};

/// The kind of a hook.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hook {
    PostStart,
    PreStop,
}

impl Hook {
    /// Returns the container's handler of this hook.
    #[must_use]
    pub fn of(self, container: &Container) -> Option<&Handler> {
        match self {
            Hook::PostStart => container.lifecycle.post_start.as_ref(),
            Hook::PreStop => container.lifecycle.pre_stop.as_ref(),
        }
    }

    /// Returns the event for a failure.
    #[must_use]
    pub fn failed(self) -> AgentEvent {
        match self {
            Hook::PostStart => AgentEvent::PostStartFailed,
            Hook::PreStop => AgentEvent::PreStopFailed,
        }
    }
}

/// The error of a hook, with upstream's text where it has one.
#[derive(Debug, Error)]
pub enum HookError {
    #[error("command '{command}' exited with {code}: {errors}")]
    Exit { command: String, code: i32, errors: String, output: String },
    #[error("{}", .0.rpc_text())]
    Exec(cri::Error),
    #[error(transparent)]
    Port(#[from] PortError),
    #[error("{0}")]
    Http(String),
    /// Only probes support sockets.
    #[error(
        "invalid handler: &LifecycleHandler{{Exec:nil,HTTPGet:nil,TCPSocket:{},Sleep:nil,}}",
        socket(.0.as_ref())
    )]
    NoHandler(Option<TcpSocketAction>),
}

/// Returns upstream's message for a container whose hook failed.
#[must_use]
pub fn event_message(handler: &Handler, container: &str, pod: &str, error: &HookError) -> String {
    let failed = format!("for Container {container:?} in Pod {pod:?} failed - error: {error}");
    if let Some(action) = &handler.exec {
        let output = match error {
            HookError::Exit { output, .. } => output.as_str(),
            _ => "",
        };
        let command = action.command.join(" ");
        format!("Exec lifecycle hook ([{command}]) {failed}, message: {output:?}")
    } else if let Some(action) = &handler.http_get {
        format!("HTTP lifecycle hook ({}) {failed}", action.path)
    } else {
        format!("Cannot run handler: {error}")
    }
}

/// Formats a socket as Go does: a port is a kind, a number and a name.
fn socket(action: Option<&TcpSocketAction>) -> String {
    let Some(TcpSocketAction { port, host }) = action else { return "nil".to_owned() };
    let port = match port {
        IntOrString::Int(number) => format!("{{0 {number} }}"),
        IntOrString::String(name) => format!("{{1 0 {name}}}"),
    };
    format!("&TCPSocketAction{{Port:{port},Host:{host},}}")
}

/// Runs a hook to completion.
pub async fn run(
    runtime: &cri::Client,
    handler: &Handler,
    container: &Container,
    id: &str,
    pod_ip: &str,
) -> Result<(), HookError> {
    if let Some(action) = &handler.exec {
        exec(runtime, action, id).await
    } else if let Some(action) = &handler.http_get {
        http_get(action, container, pod_ip).await
    } else if let Some(action) = &handler.sleep {
        let seconds = u64::try_from(action.seconds).unwrap_or(0);
        tokio::time::sleep(Duration::from_secs(seconds)).await;
        Ok(())
    } else {
        Err(HookError::NoHandler(handler.tcp_socket.clone()))
    }
}

async fn exec(runtime: &cri::Client, action: &ExecAction, id: &str) -> Result<(), HookError> {
    let request = v1::ExecSyncRequest {
        container_id: id.to_owned(),
        cmd: action.command.clone(),
        timeout: 0,
    };
    let command = action.command.join(" ");
    match runtime.call(request).await {
        Ok(response) if response.exit_code == 0 => Ok(()),
        Ok(response) => Err(HookError::Exit {
            command,
            code: response.exit_code,
            errors: String::from_utf8_lossy(&response.stderr).into_owned(),
            output: String::from_utf8_lossy(&[response.stdout, response.stderr].concat())
                .into_owned(),
        }),
        Err(error) => Err(HookError::Exec(error)),
    }
}

/// Any response is a success, whatever its status.
async fn http_get(
    action: &HttpGetAction,
    container: &Container,
    pod_ip: &str,
) -> Result<(), HookError> {
    let get = Get::new(action, container, pod_ip, "kube-lifecycle")?;
    let failed = |error: GetError| HookError::Http(error.to_string());
    match fetch::get(&get, None).await {
        Ok(_) => Ok(()),
        // Hooks used to be sent without TLS whatever the scheme. Upstream still falls back to that, but
        // without credentials.
        Err(GetError { failure: Failure::NotTls, .. }) => {
            let mut plain = Get { url: get.url.without_tls(), ..get };
            plain.headers.retain(|(name, _)| !name.eq_ignore_ascii_case("authorization"));
            fetch::get(&plain, None).await.map(drop).map_err(failed)
        }
        Err(error) => Err(failed(error)),
    }
}

#[cfg(test)]
mod tests;
