//! URLs of probes and redirects: [`Url`], with only the parts that these need.
//!
//! Paths are given unescaped, and sent with invalid characters escaped as Go does.

use std::fmt::{self, Write as _};

use super::messages;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Url {
    https: bool,
    host: String,
    port: u16,
    /// True if the text contains the port.
    port_written: bool,
    /// The escaped path and query; empty or starting with a slash.
    path: String,
}

impl Url {
    pub(crate) fn new(https: bool, host: &str, port: u16, path: &str) -> Url {
        let slash = if path.is_empty() || path.starts_with('/') { "" } else { "/" };
        let path = format!("{slash}{}", escaped(path));
        Url { https, host: host.to_owned(), port, port_written: true, path }
    }

    /// Resolves a `Location` header relative to this URL, and returns if it was relative; `None` if it is
    /// invalid.
    pub(super) fn join(&self, location: &str) -> Option<(Url, bool)> {
        let at = |rest: &str, https: bool| -> Option<(Url, bool)> {
            let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
            let (authority, path) = rest.split_at(end);
            let authority = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
            let (host, port) = match authority.strip_prefix('[') {
                Some(rest) => {
                    let (host, after) = rest.split_once(']')?;
                    (host, after.strip_prefix(':'))
                }
                None => match authority.split_once(':') {
                    Some((host, port)) => (host, Some(port)),
                    None => (authority, None),
                },
            };
            let port = port.filter(|port| !port.is_empty());
            let number = match port {
                Some(port) => port.parse().ok()?,
                None if https => 443,
                None => 80,
            };
            let url = Url::new(https, host, number, path);
            Some((Url { port_written: port.is_some(), ..url }, false))
        };
        if let Some((scheme, rest)) = location.split_once("://")
            && !scheme.contains(['/', '?', '#'])
        {
            return match scheme.to_ascii_lowercase().as_str() {
                "http" => at(rest, false),
                "https" => at(rest, true),
                _ => None,
            };
        }
        if let Some(rest) = location.strip_prefix("//") {
            return at(rest, self.https);
        }
        let path = self.path.split('?').next().unwrap_or("/");
        let path = if location.starts_with('/') {
            location.to_owned()
        } else if location.starts_with('?') {
            format!("{path}{location}")
        } else {
            let directory = path.rfind('/').map_or("/", |slash| &path[..=slash]);
            format!("{directory}{location}")
        };
        Some((Url { path: without_dots(&escaped(&path)), ..self.clone() }, true))
    }

    pub(crate) fn host(&self) -> &str {
        &self.host
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(super) fn is_https(&self) -> bool {
        self.https
    }

    /// Returns the same URL without TLS.
    pub(crate) fn without_tls(&self) -> Url {
        Url { https: false, ..self.clone() }
    }

    /// Returns the request target.
    pub(super) fn target(&self) -> &str {
        if self.path.is_empty() { "/" } else { &self.path }
    }

    pub(super) fn authority(&self) -> String {
        if self.port_written {
            messages::join(&self.host, self.port)
        } else if self.host.contains(':') {
            format!("[{}]", self.host)
        } else {
            self.host.clone()
        }
    }
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.https { "https" } else { "http" };
        write!(f, "{scheme}://{}{}", self.authority(), self.path)
    }
}

/// Escapes the invalid characters of a path and query. Existing escapes stay; the fragment is removed.
fn escaped(path: &str) -> String {
    let path = path.split('#').next().unwrap_or(path);
    let mut escaped = String::with_capacity(path.len());
    let bytes = path.as_bytes();
    for (at, byte) in bytes.iter().enumerate() {
        let hex = |at: usize| bytes.get(at).is_some_and(u8::is_ascii_hexdigit);
        let fits = match byte {
            b'%' => hex(at + 1) && hex(at + 2),
            b'"' | b'<' | b'>' | b'\\' | b'^' | b'`' | b'{' | b'|' | b'}' => false,
            other => other.is_ascii_graphic(),
        };
        if fits {
            escaped.push(char::from(*byte));
        } else {
            let _ = write!(escaped, "%{byte:02X}");
        }
    }
    escaped
}

/// Returns a path without `.` and `..`.
fn without_dots(path: &str) -> String {
    let (path, query) = match path.find('?') {
        Some(mark) => path.split_at(mark),
        None => (path, ""),
    };
    let mut kept: Vec<&str> = Vec::new();
    let pieces: Vec<&str> = path.split('/').skip(1).collect();
    for (at, piece) in pieces.iter().enumerate() {
        let last = at + 1 == pieces.len();
        match *piece {
            "." | ".." => {
                if *piece == ".." {
                    kept.pop();
                }
                if last {
                    kept.push("");
                }
            }
            other => kept.push(other),
        }
    }
    format!("/{}{query}", kept.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_escaped_as_in_go() {
        let check = |path: &str, text: &str| {
            assert_eq!(Url::new(false, "10.0.0.1", 80, path).to_string(), text);
        };
        check("/healthz?a=b&c", "http://10.0.0.1:80/healthz?a=b&c");
        check("healthz", "http://10.0.0.1:80/healthz");
        check("", "http://10.0.0.1:80");
        check("/a b%20c%zz#part", "http://10.0.0.1:80/a%20b%20c%25zz");
        check("/\u{e9}", "http://10.0.0.1:80/%C3%A9");
        assert_eq!(Url::new(true, "fd00::1", 443, "/").to_string(), "https://[fd00::1]:443/");
    }

    #[test]
    fn locations_are_resolved_relative_to_the_url() {
        let from = Url::new(false, "10.0.0.1", 8080, "/a/b?x");
        let check = |location: &str, text: Option<&str>| {
            let to = from.join(location).map(|(to, _)| to.to_string());
            assert_eq!(to.as_deref(), text, "{location}");
        };
        check("/c", Some("http://10.0.0.1:8080/c"));
        check("c?d", Some("http://10.0.0.1:8080/a/c?d"));
        check("../c", Some("http://10.0.0.1:8080/c"));
        check("../../../..", Some("http://10.0.0.1:8080/"));
        check("?y", Some("http://10.0.0.1:8080/a/b?y"));
        check("//other/x", Some("http://other/x"));
        check("https://10.0.0.1/x", Some("https://10.0.0.1/x"));
        check("http://user:pw@[fd00::1]:81", Some("http://[fd00::1]:81"));
        check("/to?u=http://x", Some("http://10.0.0.1:8080/to?u=http://x"));
        check("ftp://10.0.0.1/x", None);
        check("http://h:99999/", None);
    }
}
