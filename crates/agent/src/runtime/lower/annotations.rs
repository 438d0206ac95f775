//! Labels and annotations that identify sandboxes and containers in the runtime.
//!
//! Other tools read them, so names and the JSON of values equal upstream's exactly.

use std::collections::BTreeMap;

use serde::Serialize;

use super::input::{ContainerInput, PodInput};
use super::security;
use lifecycle::spec::{Container, ContainerPort, Handler, HttpHeader, IntOrString, Labels, Pod};

pub const POD_NAME: &str = "io.kubernetes.pod.name";
pub const POD_NAMESPACE: &str = "io.kubernetes.pod.namespace";
pub const POD_UID: &str = "io.kubernetes.pod.uid";
pub const CONTAINER_NAME: &str = "io.kubernetes.container.name";
pub const CONTAINER_HASH: &str = "io.kubernetes.container.hash";
pub const RESTART_COUNT: &str = "io.kubernetes.container.restartCount";
pub const MESSAGE_PATH: &str = "io.kubernetes.container.terminationMessagePath";
pub const MESSAGE_POLICY: &str = "io.kubernetes.container.terminationMessagePolicy";
pub const PRE_STOP: &str = "io.kubernetes.container.preStopHandler";
pub const PORTS: &str = "io.kubernetes.container.ports";
pub const DELETION_GRACE: &str = "io.kubernetes.pod.deletionGracePeriod";
pub const TERMINATION_GRACE: &str = "io.kubernetes.pod.terminationGracePeriod";
pub const CONFIG_SOURCE: &str = "kubernetes.io/config.source";
pub const CONFIG_SEEN: &str = "kubernetes.io/config.seen";
/// Marks a host process, for runtimes without a field for it.
pub const HOST_PROCESS: &str = "microsoft.com/hostprocess-container";

/// Returns the pod's labels and identity.
#[must_use]
pub fn labels_of_pod(pod: &Pod) -> Labels {
    let mut labels = pod.metadata.labels.clone();
    labels.extend(identity(pod));
    labels
}

fn identity(pod: &Pod) -> [(String, String); 3] {
    let of = &pod.metadata;
    [
        (POD_NAME.to_owned(), of.name.clone()),
        (POD_NAMESPACE.to_owned(), of.namespace.clone()),
        (POD_UID.to_owned(), of.uid.clone()),
    ]
}

/// Returns the pod's annotations and source.
#[must_use]
pub fn of_pod(input: &PodInput<'_>) -> Labels {
    let mut annotations = input.pod.metadata.annotations.clone();
    annotations.insert(CONFIG_SOURCE.to_owned(), input.source.origin.as_str().to_owned());
    annotations.insert(CONFIG_SEEN.to_owned(), input.source.seen.clone());
    let of_host = |container: &Container| security::is_host_process(input.pod, container);
    if input.is_windows() && input.pod.containers().any(|(_, container)| of_host(container)) {
        annotations.insert(HOST_PROCESS.to_owned(), "true".to_owned());
    }
    annotations
}

/// Returns a container's labels: only its identity.
#[must_use]
pub fn labels_of_container(pod: &Pod, container: &str) -> Labels {
    let mut labels = BTreeMap::from(identity(pod));
    labels.insert(CONTAINER_NAME.to_owned(), container.to_owned());
    labels
}

/// Returns the properties of a container that are needed after its pod was deleted.
#[must_use]
pub fn of_container(input: &PodInput<'_>, of: &ContainerInput<'_>) -> Labels {
    let (pod, container) = (input.pod, of.container);
    let mut annotations = of.attached.annotations.clone();
    let mut set = |key: &str, value: String| annotations.insert(key.to_owned(), value);
    set(CONTAINER_HASH, super::hash(container));
    set(RESTART_COUNT, of.attempt.to_string());
    set(MESSAGE_PATH, container.termination_message_path.clone());
    set(MESSAGE_POLICY, container.termination_message_policy.clone());
    if let Some(seconds) = pod.metadata.deletion_grace_period_seconds {
        set(DELETION_GRACE, seconds.to_string());
    }
    if let Some(seconds) = pod.spec.termination_grace_period_seconds {
        set(TERMINATION_GRACE, seconds.to_string());
    }
    if let Some(text) =
        container.lifecycle.pre_stop.as_ref().and_then(|hook| json(&HandlerText::from(hook)))
    {
        set(PRE_STOP, text);
    }
    if input.is_windows() && security::is_host_process(pod, container) {
        set(HOST_PROCESS, "true".to_owned());
    }
    if !container.ports.is_empty() {
        let ports: Vec<PortText> = container.ports.iter().map(PortText::from).collect();
        if let Some(text) = json(&ports) {
            set(PORTS, text);
        }
    }
    annotations
}

/// Serializes JSON as Go does, with HTML characters escaped.
pub(super) fn json<T: Serialize>(value: &T) -> Option<String> {
    let text = serde_json::to_string(value).ok()?;
    let escaped = text.replace('<', "\\u003c").replace('>', "\\u003e").replace('&', "\\u0026");
    Some(escaped.replace('\u{2028}', "\\u2028").replace('\u{2029}', "\\u2029"))
}

/// A hook with upstream's order of fields, without empty ones.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct HandlerText<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    exec: Option<ExecText<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    http_get: Option<HttpText<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tcp_socket: Option<TcpText<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sleep: Option<SleepText>,
}

#[derive(Serialize)]
struct ExecText<'a> {
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    command: &'a [String],
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct HttpText<'a> {
    #[serde(skip_serializing_if = "str::is_empty")]
    path: &'a str,
    port: PortNumber<'a>,
    #[serde(skip_serializing_if = "str::is_empty")]
    host: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    scheme: &'a str,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    http_headers: Vec<HeaderText<'a>>,
}

#[derive(Serialize)]
struct HeaderText<'a> {
    name: &'a str,
    value: &'a str,
}

#[derive(Serialize)]
struct TcpText<'a> {
    port: PortNumber<'a>,
    #[serde(skip_serializing_if = "str::is_empty")]
    host: &'a str,
}

#[derive(Serialize)]
struct SleepText {
    seconds: i64,
}

#[derive(Serialize)]
#[serde(untagged)]
enum PortNumber<'a> {
    Number(i64),
    Name(&'a str),
}

impl<'a> From<&'a IntOrString> for PortNumber<'a> {
    fn from(port: &'a IntOrString) -> PortNumber<'a> {
        match port {
            IntOrString::Int(number) => PortNumber::Number(*number),
            IntOrString::String(name) => PortNumber::Name(name),
        }
    }
}

impl<'a> From<&'a Handler> for HandlerText<'a> {
    fn from(handler: &'a Handler) -> HandlerText<'a> {
        let header =
            |header: &'a HttpHeader| HeaderText { name: &header.name, value: &header.value };
        HandlerText {
            exec: handler.exec.as_ref().map(|exec| ExecText { command: &exec.command }),
            http_get: handler.http_get.as_ref().map(|http| HttpText {
                path: &http.path,
                port: (&http.port).into(),
                host: &http.host,
                scheme: &http.scheme,
                http_headers: http.http_headers.iter().map(header).collect(),
            }),
            tcp_socket: handler
                .tcp_socket
                .as_ref()
                .map(|tcp| TcpText { port: (&tcp.port).into(), host: &tcp.host }),
            sleep: handler.sleep.as_ref().map(|sleep| SleepText { seconds: sleep.seconds }),
        }
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct PortText<'a> {
    #[serde(skip_serializing_if = "str::is_empty")]
    name: &'a str,
    #[serde(skip_serializing_if = "is_zero")]
    host_port: u16,
    container_port: u16,
    #[serde(skip_serializing_if = "str::is_empty")]
    protocol: &'a str,
    #[serde(rename = "hostIP", skip_serializing_if = "str::is_empty")]
    host_ip: &'a str,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde hands out references")]
fn is_zero(port: &u16) -> bool {
    *port == 0
}

impl<'a> From<&'a ContainerPort> for PortText<'a> {
    fn from(port: &'a ContainerPort) -> PortText<'a> {
        PortText {
            name: &port.name,
            host_port: port.host_port,
            container_port: port.container_port,
            protocol: &port.protocol,
            host_ip: &port.host_ip,
        }
    }
}
