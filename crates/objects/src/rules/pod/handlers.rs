//! Probes and lifecycle hooks of containers, and their actions.

use super::super::names;
use super::containers::{PodContext, validate_port_number};
use crate::cursor::{Causes, Cursor};

const NEGATIVE: &str = "must be greater than or equal to 0";

/// Signals that can stop a Windows container.
const WINDOWS_SIGNALS: [&str; 2] = ["SIGKILL", "SIGTERM"];

/// Signals that can stop a Linux container.
#[rustfmt::skip] // A list, not a column.
const LINUX_SIGNALS: [&str; 65] = [
    "SIGABRT", "SIGALRM", "SIGBUS", "SIGCHLD", "SIGCLD", "SIGCONT", "SIGFPE", "SIGHUP", "SIGILL",
    "SIGINT", "SIGIO", "SIGIOT", "SIGKILL", "SIGPIPE", "SIGPOLL", "SIGPROF", "SIGPWR", "SIGQUIT",
    "SIGRTMAX", "SIGRTMAX-1", "SIGRTMAX-10", "SIGRTMAX-11", "SIGRTMAX-12", "SIGRTMAX-13",
    "SIGRTMAX-14", "SIGRTMAX-2", "SIGRTMAX-3", "SIGRTMAX-4", "SIGRTMAX-5", "SIGRTMAX-6",
    "SIGRTMAX-7", "SIGRTMAX-8", "SIGRTMAX-9", "SIGRTMIN", "SIGRTMIN+1", "SIGRTMIN+10",
    "SIGRTMIN+11", "SIGRTMIN+12", "SIGRTMIN+13", "SIGRTMIN+14", "SIGRTMIN+15", "SIGRTMIN+2",
    "SIGRTMIN+3", "SIGRTMIN+4", "SIGRTMIN+5", "SIGRTMIN+6", "SIGRTMIN+7", "SIGRTMIN+8",
    "SIGRTMIN+9", "SIGSEGV", "SIGSTKFLT", "SIGSTOP", "SIGSYS", "SIGTERM", "SIGTRAP", "SIGTSTP",
    "SIGTTIN", "SIGTTOU", "SIGURG", "SIGUSR1", "SIGUSR2", "SIGVTALRM", "SIGWINCH", "SIGXCPU",
    "SIGXFSZ",
];

pub(super) fn validate_probes(container: &Cursor<'_>, pod: &PodContext<'_>, causes: &mut Causes) {
    let liveness = container.field("livenessProbe");
    validate_probe(&liveness, pod, causes);
    validate_single_success(&liveness, causes);
    let readiness = container.field("readinessProbe");
    validate_probe(&readiness, pod, causes);
    let grace = readiness.field("terminationGracePeriodSeconds");
    if grace.is_set() {
        causes.invalid(&grace, "must not be set for readinessProbes");
    }
    let startup = container.field("startupProbe");
    validate_probe(&startup, pod, causes);
    validate_single_success(&startup, causes);
}

fn validate_single_success(probe: &Cursor<'_>, causes: &mut Causes) {
    let threshold = probe.field("successThreshold");
    if probe.is_set() && threshold.int() != Some(1) {
        causes.invalid_as(&threshold, threshold.int().unwrap_or(0), "must be 1");
    }
}

fn validate_probe(probe: &Cursor<'_>, pod: &PodContext<'_>, causes: &mut Causes) {
    if !probe.is_set() {
        return;
    }
    validate_handler(probe, &["exec", "httpGet", "tcpSocket", "grpc"], pod, causes);
    for field in [
        "initialDelaySeconds",
        "timeoutSeconds",
        "periodSeconds",
        "successThreshold",
        "failureThreshold",
    ] {
        let at = probe.field(field);
        if at.int().is_some_and(|number| number < 0) {
            causes.invalid(&at, NEGATIVE);
        }
    }
    let grace = probe.field("terminationGracePeriodSeconds");
    if grace.int().is_some_and(|seconds| seconds <= 0) {
        causes.invalid(&grace, "must be greater than 0");
    }
}

pub(super) fn validate_lifecycle(
    lifecycle: &Cursor<'_>,
    pod: &PodContext<'_>,
    causes: &mut Causes,
) {
    if !lifecycle.is_set() {
        return;
    }
    for hook in ["postStart", "preStop"] {
        let hook = lifecycle.field(hook);
        if hook.is_set() {
            validate_handler(&hook, &["exec", "httpGet", "tcpSocket", "sleep"], pod, causes);
        }
    }
    let signal = lifecycle.field("stopSignal");
    if !signal.is_set() {
        return;
    }
    match pod.os {
        None => {
            let detail = "may not be set for containers with empty `spec.os.name`";
            causes.forbidden(&signal, detail);
        }
        Some("windows") if !WINDOWS_SIGNALS.contains(&signal.text()) => {
            causes.not_supported(&signal, &WINDOWS_SIGNALS);
        }
        Some("linux") if !LINUX_SIGNALS.contains(&signal.text()) => {
            causes.not_supported(&signal, &LINUX_SIGNALS);
        }
        Some(_) => {}
    }
}

/// Checks that there is exactly one action, and validates it.
fn validate_handler(
    handler: &Cursor<'_>,
    actions: &[&str],
    pod: &PodContext<'_>,
    causes: &mut Causes,
) {
    let mut given = false;
    for action in actions {
        let at = handler.field(action);
        if !at.is_set() {
            continue;
        }
        if given {
            causes.forbidden(&at, "may not specify more than 1 handler type");
            continue;
        }
        given = true;
        match *action {
            "exec" => {
                if at.field("command").is_empty() {
                    causes.required(&at.field("command"), "");
                }
            }
            "httpGet" => validate_http(&at, causes),
            "tcpSocket" => validate_port(&at.field("port"), causes),
            "grpc" => validate_port_number(&at.field("port"), causes),
            _ => validate_sleep(&at, pod, causes),
        }
    }
    if !given {
        causes.required(handler, "must specify a handler type");
    }
}

fn validate_http(http: &Cursor<'_>, causes: &mut Causes) {
    if http.field("path").text().is_empty() {
        causes.required(&http.field("path"), "");
    }
    validate_port(&http.field("port"), causes);
    let scheme = http.field("scheme");
    if !matches!(scheme.text(), "HTTP" | "HTTPS") {
        causes.not_supported_as(&scheme, scheme.text(), &["HTTP", "HTTPS"]);
    }
    let headers = http.field("httpHeaders");
    for header in headers.items() {
        let name = header.field("name").text();
        names::report_as(causes, &headers, name, &names::http_header(name));
    }
}

/// Checks a port number or name.
fn validate_port(port: &Cursor<'_>, causes: &mut Causes) {
    match port.value().as_str() {
        Some(name) => names::report(causes, port, &names::port_name(name)),
        None => validate_port_number(port, causes),
    }
}

fn validate_sleep(sleep: &Cursor<'_>, pod: &PodContext<'_>, causes: &mut Causes) {
    let seconds = sleep.field("seconds").int().unwrap_or(0);
    if let Some(grace) = pod.grace_seconds
        && (seconds < 0 || seconds > grace)
    {
        let detail =
            format!("must be non-negative and less than terminationGracePeriodSeconds ({grace})");
        causes.invalid_as(sleep, seconds, &detail);
    }
}
