//! The address of a runtime: [`Endpoint`], parsed from and rendered as the text of
//! `containerRuntimeEndpoint`.
//!
//! Text only. It compiles and means the same on every system. Connecting shows whether an endpoint
//! is usable on this one.

use std::fmt;
use std::io;
use std::str::FromStr;

/// The largest number of bytes in the path of a unix socket on Linux (`sun_path` without the
/// terminating zero).
const UNIX_PATH_LIMIT: usize = 107;

/// The longest pipe name that Windows accepts, including `\\.\pipe\`.
const PIPE_PATH_LIMIT: usize = 256;

/// A unix socket or a named pipe on this machine.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Endpoint(Place);

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Place {
    /// The absolute path of the socket.
    Unix(String),
    /// The name after `\\.\pipe\`, with backslashes.
    Pipe(String),
}

/// The reason why a text is not an endpoint, with an example of a valid one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EndpointError {
    #[error(
        "the endpoint is empty; it has to be like unix:///run/containerd/containerd.sock, or \
         npipe:////./pipe/containerd-containerd on Windows"
    )]
    Empty,
    #[error("endpoint {0:?}: the path of a socket has to be absolute, like unix:///{1}")]
    Relative(String, String),
    #[error(
        "endpoint {0:?} names no socket; it has to be like unix:///run/containerd/containerd.sock"
    )]
    NoSocket(String),
    #[error("endpoint {0:?} has a zero byte in it, which no path can have")]
    ZeroByte(String),
    #[error("endpoint {text:?}: the name has {length} bytes, and at most {limit} are possible")]
    TooLong { text: String, length: usize, limit: usize },
    #[error(
        "endpoint {0:?} is not a pipe of this machine; it has to be like \
         npipe:////./pipe/containerd-containerd"
    )]
    NotALocalPipe(String),
    #[error(
        "endpoint {text:?}: runtimes are reached by unix:// or npipe://, not by {scheme}://; like \
         unix:///run/containerd/containerd.sock"
    )]
    Scheme { text: String, scheme: String },
}

impl Endpoint {
    /// Parses `unix:///path`, `/path`, `npipe:////./pipe/name`, `npipe://./pipe/name` or
    /// `\\.\pipe\name`; pipes may have slashes in either direction.
    pub fn parse(text: &str) -> Result<Self, EndpointError> {
        let text = text.trim();
        if text.is_empty() {
            return Err(EndpointError::Empty);
        }
        if text.contains('\0') {
            return Err(EndpointError::ZeroByte(text.to_owned()));
        }
        if let Some((scheme, rest)) = scheme(text) {
            return if scheme.eq_ignore_ascii_case("unix") {
                unix(text, rest.strip_prefix("//").unwrap_or(rest))
            } else if scheme.eq_ignore_ascii_case("npipe") {
                pipe(text, rest)
            } else {
                Err(EndpointError::Scheme { text: text.to_owned(), scheme: scheme.to_owned() })
            };
        }
        if text.starts_with(r"\\") || text.starts_with("//./") {
            pipe(text, text)
        } else {
            unix(text, text)
        }
    }

    /// Returns the default endpoints of common runtimes on this system, the most common first.
    pub fn usual() -> Vec<Self> {
        let all: &[&str] = if cfg!(windows) {
            &["npipe:////./pipe/containerd-containerd"]
        } else {
            &[
                "unix:///run/containerd/containerd.sock",
                "unix:///run/crio/crio.sock",
                "unix:///run/k3s/containerd/containerd.sock",
            ]
        };
        all.iter().filter_map(|text| Self::parse(text).ok()).collect()
    }

    /// Returns true if the socket or pipe exists; a process need not listen on it.
    pub fn is_there(&self) -> bool {
        match &self.0 {
            Place::Unix(path) => std::path::Path::new(path).exists(),
            Place::Pipe(name) => std::fs::metadata(format!(r"\\.\pipe\{name}")).is_ok(),
        }
    }

    /// Returns the path of a unix socket; `None` for a pipe.
    pub fn unix_path(&self) -> Option<&str> {
        match &self.0 {
            Place::Unix(path) => Some(path),
            Place::Pipe(_) => None,
        }
    }

    /// Returns the pipe as Windows names it (`\\.\pipe\name`); `None` for a socket.
    pub fn pipe_path(&self) -> Option<String> {
        match &self.0 {
            Place::Unix(_) => None,
            Place::Pipe(name) => Some(format!(r"\\.\pipe\{name}")),
        }
    }

    /// Returns the dial error in the form of Go's libraries, as in the kubelet's Events: `dial unix
    /// /run/x.sock: connect: no such file or directory`.
    pub(crate) fn not_reached(&self, error: &io::Error) -> String {
        let text = error.to_string();
        let of_system = text.split_once(" (os error").map(|(text, _)| text);
        match &self.0 {
            Place::Unix(path) => {
                // Errors that are not the system's are our own and keep their text.
                let text = of_system.map_or_else(|| text.clone(), str::to_lowercase);
                format!("dial unix {path}: connect: {text}")
            }
            Place::Pipe(name) => format!(r"open \\.\pipe\{name}: {}", of_system.unwrap_or(&text)),
        }
    }
}

/// Splits the scheme from the rest. A drive (`C:\run`) is not a scheme.
fn scheme(text: &str) -> Option<(&str, &str)> {
    let (scheme, rest) = text.split_once(':')?;
    let is_one = scheme.len() > 1
        && scheme.starts_with(|c: char| c.is_ascii_alphabetic())
        && scheme.chars().all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c));
    is_one.then_some((scheme, rest))
}

fn unix(text: &str, path: &str) -> Result<Endpoint, EndpointError> {
    if !path.starts_with('/') {
        let right = path.trim_start_matches("./").replace('\\', "/");
        return Err(EndpointError::Relative(text.to_owned(), right));
    }
    if path.ends_with('/') {
        return Err(EndpointError::NoSocket(text.to_owned()));
    }
    within(text, path.len(), UNIX_PATH_LIMIT)?;
    Ok(Endpoint(Place::Unix(path.to_owned())))
}

fn pipe(text: &str, path: &str) -> Result<Endpoint, EndpointError> {
    let path = path.replace('/', r"\");
    let path = path.trim_start_matches('\\');
    // `.` is this machine; another name would be a remote one.
    let name = path.strip_prefix(r".\").and_then(|local| {
        let prefix = local.get(..5)?;
        prefix.eq_ignore_ascii_case(r"pipe\").then(|| &local[5..])
    });
    match name {
        Some(name) if !name.is_empty() && !name.starts_with('\\') && !name.ends_with('\\') => {
            within(text, name.len() + r"\\.\pipe\".len(), PIPE_PATH_LIMIT)?;
            Ok(Endpoint(Place::Pipe(name.to_owned())))
        }
        _ => Err(EndpointError::NotALocalPipe(text.to_owned())),
    }
}

fn within(text: &str, length: usize, limit: usize) -> Result<(), EndpointError> {
    if length <= limit {
        return Ok(());
    }
    Err(EndpointError::TooLong { text: text.to_owned(), length, limit })
}

/// Renders the endpoint as in a configuration; parsing the text returns the same endpoint.
impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Place::Unix(path) => write!(f, "unix://{path}"),
            Place::Pipe(name) => write!(f, "npipe:////./pipe/{}", name.replace('\\', "/")),
        }
    }
}

impl FromStr for Endpoint {
    type Err = EndpointError;

    fn from_str(text: &str) -> Result<Self, EndpointError> {
        Self::parse(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn every_usual_spelling_is_parsed_and_rendered_uniformly() {
        let check = |text: &str, rendered: &str| {
            let endpoint = Endpoint::parse(text).unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(endpoint.to_string(), rendered, "{text:?}");
            assert_eq!(rendered.parse(), Ok(endpoint), "{text:?}");
        };
        let unix = "unix:///run/containerd/containerd.sock";
        check(unix, unix);
        check("/run/containerd/containerd.sock", unix);
        check("unix:/run/containerd/containerd.sock", unix);
        check(" UNIX:///run/containerd/containerd.sock\n", unix);
        let pipe = "npipe:////./pipe/containerd-containerd";
        check(pipe, pipe);
        check("npipe://./pipe/containerd-containerd", pipe);
        check(r"npipe://\\.\pipe\containerd-containerd", pipe);
        check(r"\\.\pipe\containerd-containerd", pipe);
        check("//./pipe/containerd-containerd", pipe);
        check("NPIPE:////./PIPE/containerd-containerd", pipe);
        check(
            r"\\.\pipe\ProtectedPrefix\Administrators\cri",
            "npipe:////./pipe/ProtectedPrefix/Administrators/cri",
        );
    }

    #[test]
    fn dial_error_matches_go() {
        let rendered = |endpoint: &str, error: &str| {
            let error = io::Error::other(error.to_owned());
            Endpoint::parse(endpoint).unwrap().not_reached(&error)
        };
        assert_eq!(
            rendered("unix:///run/x.sock", "No such file or directory (os error 2)"),
            "dial unix /run/x.sock: connect: no such file or directory"
        );
        assert_eq!(
            rendered(
                "npipe:////./pipe/x",
                "The system cannot find the file specified. (os error 2)"
            ),
            r"open \\.\pipe\x: The system cannot find the file specified."
        );
    }

    #[test]
    fn paths_are_those_of_the_system() {
        let unix = Endpoint::parse("unix:///run/x.sock").unwrap();
        assert_eq!((unix.unix_path(), unix.pipe_path()), (Some("/run/x.sock"), None));
        let pipe = Endpoint::parse("npipe:////./pipe/x").unwrap();
        assert_eq!((pipe.unix_path(), pipe.pipe_path()), (None, Some(r"\\.\pipe\x".to_owned())));
    }

    #[test]
    fn errors_name_a_valid_spelling() {
        let check = |text: &str, says: &str| {
            let error = Endpoint::parse(text).unwrap_err().to_string();
            assert!(error.contains(says), "{text:?}: {error}");
            assert!(
                text.trim().is_empty() || error.contains(&format!("{:?}", text.trim())),
                "{error}"
            );
        };
        check("", "like unix:///run/containerd/containerd.sock");
        check("  ", "is empty");
        check("run/x.sock", "absolute, like unix:///run/x.sock");
        check("unix://run/x.sock", "absolute, like unix:///run/x.sock");
        check("unix://", "absolute");
        check("unix:///", "names no socket");
        check("/run/", "names no socket");
        check("/run/\0", "zero byte");
        check("tcp://localhost:1234", "not by tcp://");
        check("http://x", "not by http://");
        check(&format!("unix:///{}", "x".repeat(107)), "has 108 bytes, and at most 107");
        check(r"C:\run\x.sock", "absolute");
        check("npipe:////server/pipe/x", "like npipe:////./pipe/containerd-containerd");
        check("npipe:////./pipe/", "not a pipe of this machine");
        check("npipe:////./mailslot/x", "not a pipe of this machine");
        check("npipe://", "not a pipe of this machine");
        check("npipe:////./pip", "not a pipe of this machine");
        check("npipe:////./pipé/x", "not a pipe of this machine");
        check(&format!("npipe:////./pipe/{}", "x".repeat(248)), "has 257 bytes, and at most 256");
    }

    proptest! {
        #[test]
        fn rendering_and_parsing_round_trip(text in r"(unix:|npipe:|)[/\\.]{0,5}(pipe|run)?[/\\]?\PC{0,12}") {
            if let Ok(endpoint) = Endpoint::parse(&text) {
                prop_assert_eq!(Endpoint::parse(&endpoint.to_string()), Ok(endpoint));
            }
        }
    }
}
