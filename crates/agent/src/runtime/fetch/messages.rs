//! Connections and their error texts, which are those of Go's libraries, as users know them from a kubelet's
//! Events.

use std::error::Error as _;
use std::io::{self, ErrorKind};

use thiserror::Error;
use tokio::net::TcpStream;

/// Formats `host:port`, with brackets if the host contains colons.
pub(crate) fn join(host: &str, port: u16) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

/// The reason why a connection was not established, for example
/// `dial tcp 10.0.0.1:80: connect: connection refused`.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub(crate) enum DialError {
    #[error("dial tcp: lookup {0}: no such host")]
    Lookup(String),
    /// With the cause as Go names it.
    #[error("dial tcp {address}: connect: {cause}")]
    Connect { address: String, cause: String },
}

/// Connects to the first address that answers.
pub(crate) async fn dial(host: &str, port: u16) -> Result<TcpStream, DialError> {
    let addresses = tokio::net::lookup_host((host, port)).await;
    let addresses: Vec<_> = addresses.map(Iterator::collect).unwrap_or_default();
    if addresses.is_empty() {
        return Err(DialError::Lookup(host.to_owned()));
    }
    let connected = TcpStream::connect(addresses.as_slice()).await;
    connected.map_err(|error| {
        let address = addresses.first().map_or_else(|| join(host, port), ToString::to_string);
        DialError::Connect { address, cause: errno(&error) }
    })
}

/// Returns Go's text for an OS error.
fn errno(error: &io::Error) -> String {
    match error.kind() {
        ErrorKind::ConnectionRefused => "connection refused".to_owned(),
        ErrorKind::ConnectionReset => "connection reset by peer".to_owned(),
        ErrorKind::HostUnreachable => "no route to host".to_owned(),
        ErrorKind::NetworkUnreachable => "network is unreachable".to_owned(),
        ErrorKind::TimedOut => "connection timed out".to_owned(),
        ErrorKind::BrokenPipe => "broken pipe".to_owned(),
        _ => {
            let text = error.to_string();
            let text = text.split(" (os error").next().unwrap_or(&text);
            text.to_lowercase()
        }
    }
}

/// Returns the error text for a broken HTTP exchange between these `ends`; `line` is the first line of the
/// answer.
pub(super) fn broken(error: &hyper::Error, ends: &str, line: &str) -> String {
    if error.is_incomplete_message() {
        return "EOF".to_owned();
    }
    if error.is_parse() {
        return format!("net/http: HTTP/1.x transport connection broken: {}", malformed(line));
    }
    let mut source = error.source();
    while let Some(inner) = source {
        if let Some(io) = inner.downcast_ref::<io::Error>() {
            return if io.kind() == ErrorKind::UnexpectedEof {
                "EOF".to_owned()
            } else {
                format!("read tcp {ends}: read: {}", errno(io))
            };
        }
        source = inner.source();
    }
    error.to_string()
}

/// Returns the error of an invalid first line of an answer.
fn malformed(line: &str) -> String {
    let Some((version, status)) = line.split_once(' ') else {
        return format!("malformed HTTP response {line:?}");
    };
    let status = status.trim_start_matches(' ');
    let code = status.split(' ').next().unwrap_or_default();
    if code.len() != 3 || !code.bytes().all(|byte| byte.is_ascii_digit()) {
        return format!("malformed HTTP status code {code:?}");
    }
    let mut numbers = version.strip_prefix("HTTP/").unwrap_or_default().split('.');
    let is_digit = |text: Option<&str>| {
        text.is_some_and(|text| text.len() == 1 && text.bytes().all(|byte| byte.is_ascii_digit()))
    };
    if !(is_digit(numbers.next()) && is_digit(numbers.next()) && numbers.next().is_none()) {
        return format!("malformed HTTP version {version:?}");
    }
    // `hyper` is stricter than Go for some lines.
    format!("malformed HTTP response {line:?}")
}
