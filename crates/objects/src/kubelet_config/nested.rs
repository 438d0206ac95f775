//! The nested configurations `logging`, `tracing` and `userNamespaces`, checked as upstream does and
//! with its texts.
//!
//! Main entry: [`check`]. Berth does not act on them; a valid value gets the warning of a field
//! without effect.

use super::read_duration;
use crate::yaml::read::{At, Findings, Object};

/// The gate of the options that are alpha. `AllAlpha` does not enable it.
const ALPHA_OPTIONS: &str = "LoggingAlphaOptions";

/// The number of user ids of which a pod gets a multiple.
const USER_IDS: i64 = 65_536;

pub(super) fn check(object: &Object<'_>, findings: &mut Findings) {
    // Other checks report a value that is not a map.
    let mut quiet = Findings::default();
    if let Some(at) = object.field("logging")
        && let Some(logging) = at.object(&mut quiet)
    {
        check_logging(&logging, has_alpha_options(object), findings);
    }
    if let Some(at) = object.field("tracing")
        && let Some(tracing) = at.object(&mut quiet)
    {
        check_tracing(&tracing, findings);
    }
    if let Some(at) = object.field("userNamespaces")
        && let Some(namespaces) = at.object(&mut quiet)
    {
        check_user_namespaces(&namespaces, findings);
    }
}

fn has_alpha_options(object: &Object<'_>) -> bool {
    let mut quiet = Findings::default();
    let Some(at) = object.field("featureGates") else { return false };
    let gate = at.object(&mut quiet).and_then(|gates| gates.field(ALPHA_OPTIONS));
    gate.is_some_and(|at| at.boolean(&mut quiet) == Some(true))
}

fn invalid(at: &At<'_>, value: &str, problem: &str, findings: &mut Findings) {
    at.error(format!("Invalid value: {value}: {problem}"), findings);
}

fn check_logging(logging: &Object<'_>, alpha_options: bool, findings: &mut Findings) {
    let known = ["flushFrequency", "format", "options", "verbosity", "vmodule"];
    logging.refuse_unknown(&known, findings);
    if let Some(at) = logging.field("flushFrequency") {
        flush_frequency(&at, findings);
    }
    // An empty text stands for the default.
    let format = logging.field("format").and_then(|at| Some((at.text(findings)?, at)));
    let format = format.filter(|(format, _)| !format.is_empty());
    if let Some((format, at)) = &format
        && !["text", "json"].contains(&format.as_str())
    {
        invalid(at, &format!("{format:?}"), "Unsupported log format", findings);
    }
    if let Some(at) = logging.field("verbosity") {
        verbosity(&at, findings);
    }
    if let Some(at) = logging.field("vmodule") {
        let items = at.items(findings);
        if !items.is_empty() && format.is_some_and(|(format, _)| format != "text") {
            at.error("Forbidden: Only supported for text log format", findings);
        }
        for item in items {
            module(&item, findings);
        }
    }
    let Some(at) = logging.field("options") else { return };
    let Some(options) = at.object(findings) else { return };
    options.refuse_unknown(&["json", "text"], findings);
    for (_, at) in options.fields() {
        routing(&at, alpha_options, findings);
    }
}

/// Upstream accepts a number of nanoseconds as well. Zero stands for the default.
fn flush_frequency(at: &At<'_>, findings: &mut Findings) {
    if let Some(nanoseconds) = at.number(&mut Findings::default()) {
        if nanoseconds < 0.0 {
            invalid(at, &nanoseconds.to_string(), "Must be greater than zero", findings);
        }
        return;
    }
    match at.text(&mut Findings::default()) {
        Some(text) if text.starts_with('-') => {
            invalid(at, &format!("{text:?}"), "Must be greater than zero", findings);
        }
        _ => drop(read_duration(at, findings)),
    }
}

/// The type is uint32, of which klog accepts the lower half.
fn verbosity(at: &At<'_>, findings: &mut Findings) {
    let most = i64::from(i32::MAX);
    if let Some(level) = at.integer(0, u32::MAX.into(), findings)
        && level > most
    {
        invalid(at, &level.to_string(), &format!("Must be <= {most}"), findings);
    }
}

fn module(item: &At<'_>, findings: &mut Findings) {
    let Some(module) = item.object(findings) else { return };
    module.refuse_unknown(&["filePattern", "verbosity"], findings);
    let pattern = module.field("filePattern").and_then(|at| at.text(findings)).unwrap_or_default();
    if pattern.is_empty() {
        item.error("Required value: File pattern must not be empty", findings);
    } else if pattern.contains(['=', ',']) {
        let problem = "File pattern must not contain equal sign or comma";
        invalid(item, &format!("{pattern:?}"), problem, findings);
    }
    if let Some(at) = module.field("verbosity") {
        verbosity(&at, findings);
    }
}

/// Checks `options.text` or `options.json`.
fn routing(at: &At<'_>, alpha_options: bool, findings: &mut Findings) {
    let Some(options) = at.object(findings) else { return };
    options.refuse_unknown(&["infoBufferSize", "splitStream"], findings);
    let split = options.field("splitStream");
    let split = split.filter(|at| at.boolean(findings) == Some(true));
    let buffer = options.field("infoBufferSize");
    let buffer = buffer.filter(|at| at.quantity(findings).is_some_and(|size| size.sign() != 0));
    if !alpha_options {
        for at in split.iter().chain(&buffer) {
            at.error(format!("Forbidden: Feature {ALPHA_OPTIONS} is disabled"), findings);
        }
    }
}

fn check_tracing(tracing: &Object<'_>, findings: &mut Findings) {
    tracing.refuse_unknown(&["endpoint", "samplingRatePerMillion"], findings);
    if let Some(at) = tracing.field("samplingRatePerMillion")
        && let Some(rate) = at.integer(i32::MIN.into(), i32::MAX.into(), findings)
    {
        let problem = match rate {
            ..0 => "sampling rate must be positive",
            0..=1_000_000 => return endpoint(tracing, findings),
            _ => "sampling rate per million must be less than or equal to one million",
        };
        invalid(&at, &rate.to_string(), problem, findings);
    }
    endpoint(tracing, findings);
}

/// Checks the target of gRPC: `host:port`, or a URL with one of gRPC's schemes.
fn endpoint(tracing: &Object<'_>, findings: &mut Findings) {
    let Some(at) = tracing.field("endpoint") else { return };
    let Some(text) = at.text(findings) else { return };
    let url = if text.contains("//") { text } else { format!("dns://{text}") };
    let value = format!("{url:?}");
    let (scheme, rest) = url.split_once("//").unwrap_or_default();
    let scheme = scheme.strip_suffix(':').unwrap_or_default();
    if !["dns", "unix", "unix-abstract"].contains(&scheme) {
        let problem = format!(
            "unsupported scheme: {scheme}.  Options are none, dns, unix, or unix-abstract.  See \
             https://github.com/grpc/grpc/blob/master/doc/naming.md"
        );
        return invalid(&at, &value, &problem, findings);
    }
    let host = rest.split(['/', '?', '#']).next().unwrap_or_default();
    // The last colon of an IPv6 address is inside of brackets.
    let port = host.rfind(':').map(|at| &host[at..]).filter(|port| !port.contains(']'));
    if let Some(port) = port
        && !port[1..].bytes().all(|byte| byte.is_ascii_digit())
    {
        let problem = format!("parse {value}: invalid port {port:?} after host");
        invalid(&at, &value, &problem, findings);
    }
}

fn check_user_namespaces(namespaces: &Object<'_>, findings: &mut Findings) {
    const FIELD: &str = "idsPerPod";
    namespaces.refuse_unknown(&[FIELD], findings);
    let Some(at) = namespaces.field(FIELD) else { return };
    let Some(ids) = at.integer(i64::MIN, i64::MAX, findings) else { return };
    let most = i64::from(u32::MAX);
    let problem = match ids {
        ..USER_IDS => format!("must not be less than {USER_IDS}"),
        _ if ids % USER_IDS != 0 => format!("must be a multiple of {USER_IDS}"),
        _ if ids > most => format!("must not be more than {most}"),
        _ => return,
    };
    at.error(format!("invalid configuration: userNamespaces.{FIELD} {problem}"), findings);
}
