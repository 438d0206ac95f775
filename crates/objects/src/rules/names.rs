//! The syntax of texts in objects: names of objects, ports, variables, keys, paths.
//!
//! Every function returns upstream's messages, and none for a valid text, which costs no
//! allocation. Label keys and values are in [`crate::selector`]. The caller checks whether a text
//! is required.

use std::borrow::Cow;

use crate::cursor::{Causes, Cursor};
pub use crate::selector::{label_key_problems, label_value_problems};

/// The messages about a text.
pub type Problems = Vec<Cow<'static, str>>;

pub(crate) const DNS_LABEL: &str = "a lowercase RFC 1123 label must consist of lower case \
    alphanumeric characters or '-', and must start and end with an alphanumeric character (e.g. \
    'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')";

pub(crate) const DNS_SUBDOMAIN: &str = "a lowercase RFC 1123 subdomain must consist of lower case \
    alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character \
    (e.g. 'example.com', regex used for validation is \
    '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";

const DNS_SUBDOMAIN_UNDERSCORE: &str = "a lowercase RFC 1123 subdomain must consist of lower case \
    alphanumeric characters, '_', '-' or '.', and must start and end with an alphanumeric \
    character (e.g. 'example.com', regex used for validation is \
    '_?[a-z0-9]([-_a-z0-9]*[a-z0-9])?(\\._?[a-z0-9]([-_a-z0-9]*[a-z0-9])?)*')";

const DNS_1035_LABEL: &str = "a DNS-1035 label must consist of lower case alphanumeric characters \
    or '-', start with an alphabetic character, and end with an alphanumeric character (e.g. \
    'my-name',  or 'abc-123', regex used for validation is '[a-z]([-a-z0-9]*[a-z0-9])?')";

const CONFIG_KEY: &str = "a valid config key must consist of alphanumeric characters, '-', '_' or \
    '.' (e.g. 'key.name',  or 'KEY_NAME',  or 'key-name', regex used for validation is \
    '[-._a-zA-Z0-9]+')";

const ENV_NAME: &str = "a valid environment variable name must consist only of printable ASCII \
    characters other than '='";

const HTTP_HEADER: &str = "a valid HTTP header must consist of alphanumeric characters or '-' \
    (e.g. 'X-Header-Name', regex used for validation is '[-A-Za-z0-9]+')";

/// The syntax of the names of a kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NameRule {
    DnsSubdomain,
    DnsLabel,
    Dns1035Label,
    /// Anything that is valid between two slashes of a path.
    PathSegment,
}

impl NameRule {
    #[must_use]
    pub fn problems(self, name: &str) -> Problems {
        match self {
            NameRule::DnsSubdomain => dns_subdomain(name),
            NameRule::DnsLabel => dns_label(name),
            NameRule::Dns1035Label => dns_1035_label(name),
            NameRule::PathSegment => path_segment(name),
        }
    }

    /// Returns the problems of a name that the server completes: it may end in a hyphen.
    #[must_use]
    pub fn prefix_problems(self, prefix: &str) -> Problems {
        if self == NameRule::PathSegment {
            return path_segment_marks(prefix);
        }
        match prefix.strip_suffix('-') {
            // Upstream checks the name with its last two characters replaced by a letter.
            Some(rest) if !rest.is_empty() => {
                let mut masked = rest.to_owned();
                masked.pop();
                masked.push('a');
                self.problems(&masked)
            }
            _ => self.problems(prefix),
        }
    }
}

/// Reports every problem of the text at a cursor.
pub(crate) fn report<P: AsRef<str>>(causes: &mut Causes, at: &Cursor<'_>, problems: &[P]) {
    for problem in problems {
        causes.invalid(at, problem.as_ref());
    }
}

/// Reports every problem of a text that is not, or not literally, the one at the cursor.
pub(crate) fn report_as<P: AsRef<str>>(
    causes: &mut Causes,
    at: &Cursor<'_>,
    shown: &str,
    problems: &[P],
) {
    for problem in problems {
        causes.invalid_as(at, shown, problem.as_ref());
    }
}

fn too_long(limit: usize) -> Cow<'static, str> {
    format!("must be no more than {limit} characters").into()
}

fn is_lower(byte: u8) -> bool {
    byte.is_ascii_lowercase() || byte.is_ascii_digit()
}

fn is_dns_word(text: &str) -> bool {
    let bytes = text.as_bytes();
    bytes.first().is_some_and(|b| is_lower(*b))
        && bytes.last().is_some_and(|b| is_lower(*b))
        && bytes.iter().all(|b| is_lower(*b) || *b == b'-')
}

fn is_dns_words(text: &str) -> bool {
    text.split('.').all(is_dns_word)
}

#[must_use]
pub fn dns_label(text: &str) -> Problems {
    let mut problems = Problems::new();
    if text.len() > 63 {
        problems.push(too_long(63));
    }
    if !is_dns_word(text) {
        let dots = is_dns_words(text);
        problems.push(if dots { "must not contain dots" } else { DNS_LABEL }.into());
    }
    problems
}

#[must_use]
pub fn dns_subdomain(text: &str) -> Problems {
    let mut problems = Problems::new();
    if text.len() > 253 {
        problems.push(too_long(253));
    }
    if !is_dns_words(text) {
        problems.push(DNS_SUBDOMAIN.into());
    }
    problems
}

/// Checks a search domain, which may contain underscores.
#[must_use]
pub fn dns_subdomain_with_underscore(text: &str) -> Problems {
    let mut problems = Problems::new();
    if text.len() > 253 {
        problems.push(too_long(253));
    }
    let word = |word: &str| {
        let bytes = word.strip_prefix('_').unwrap_or(word).as_bytes();
        bytes.first().is_some_and(|b| is_lower(*b))
            && bytes.last().is_some_and(|b| is_lower(*b))
            && bytes.iter().all(|b| is_lower(*b) || matches!(b, b'-' | b'_'))
    };
    if !text.split('.').all(word) {
        problems.push(DNS_SUBDOMAIN_UNDERSCORE.into());
    }
    problems
}

#[must_use]
pub fn dns_1035_label(text: &str) -> Problems {
    let mut problems = Problems::new();
    if text.len() > 63 {
        problems.push(too_long(63));
    }
    if !is_dns_word(text) || !text.starts_with(|c: char| c.is_ascii_lowercase()) {
        problems.push(DNS_1035_LABEL.into());
    }
    problems
}

#[must_use]
pub fn path_segment(name: &str) -> Problems {
    match name {
        "." => vec!["may not be '.'".into()],
        ".." => vec!["may not be '..'".into()],
        _ => path_segment_marks(name),
    }
}

fn path_segment_marks(name: &str) -> Problems {
    let mut problems = Problems::new();
    if name.contains('/') {
        problems.push("may not contain '/'".into());
    }
    if name.contains('%') {
        problems.push("may not contain '%'".into());
    }
    problems
}

/// Checks a key of a ConfigMap or Secret.
#[must_use]
pub fn config_key(key: &str) -> Problems {
    let mut problems = Problems::new();
    if key.len() > 253 {
        problems.push(too_long(253));
    }
    let allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'_');
    if key.is_empty() || !key.bytes().all(allowed) {
        problems.push(CONFIG_KEY.into());
    }
    match key {
        "." => problems.push("must not be '.'".into()),
        ".." => problems.push("must not be '..'".into()),
        _ if key.starts_with("..") => problems.push("must not start with '..'".into()),
        _ => {}
    }
    problems
}

/// Checks the name of an environment variable.
#[must_use]
pub fn env_name(name: &str) -> Problems {
    let mut problems = Problems::new();
    if name.is_empty() {
        problems.push("environment variable name must be non-empty".into());
    }
    if name.bytes().any(|b| !matches!(b, b' '..=b'~') || b == b'=') {
        problems.push(ENV_NAME.into());
    }
    problems
}

#[must_use]
pub fn http_header(name: &str) -> Problems {
    let allowed = |b: u8| b.is_ascii_alphanumeric() || b == b'-';
    match !name.is_empty() && name.bytes().all(allowed) {
        true => Problems::new(),
        false => vec![HTTP_HEADER.into()],
    }
}

/// Checks the name of a container's port.
#[must_use]
pub fn port_name(name: &str) -> Problems {
    let mut problems = Problems::new();
    if name.len() > 15 {
        problems.push(too_long(15));
    }
    if name.is_empty() || !name.bytes().all(|b| is_lower(b) || b == b'-') {
        let text = "must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)";
        problems.push(text.into());
    }
    if !name.bytes().any(|b| b.is_ascii_lowercase()) {
        problems.push("must contain at least one letter (a-z)".into());
    }
    if name.contains("--") {
        problems.push("must not contain consecutive hyphens".into());
    }
    if name.starts_with('-') || name.ends_with('-') {
        problems.push("must not begin or end with a hyphen".into());
    }
    problems
}

/// Checks an IP address. Notations that older versions accepted have a message of their own.
#[must_use]
pub fn ip(text: &str) -> Problems {
    let Some(address) = parse_ip(text) else { return vec![NOT_AN_IP.into()] };
    let mut problems = Problems::new();
    if text.parse::<std::net::IpAddr>().is_err() {
        problems.push("must not have leading 0s".into());
    }
    if matches!(address, std::net::IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some()) {
        problems.push("must not be an IPv4-mapped IPv6 address".into());
    }
    problems
}

/// Reads an address as older versions did: with leading zeros.
pub(crate) fn parse_ip(text: &str) -> Option<std::net::IpAddr> {
    if let Ok(address) = text.parse() {
        return Some(address);
    }
    let mut octets = [0; 4];
    let mut parts = text.split('.');
    for octet in &mut octets {
        let part = parts.next()?;
        if part.is_empty() || !part.bytes().all(|b| b.is_ascii_digit()) {
            return None;
        }
        *octet = part
            .trim_start_matches('0')
            .parse()
            .or_else(|error| if part.bytes().all(|b| b == b'0') { Ok(0) } else { Err(error) })
            .ok()?;
    }
    parts.next().is_none().then(|| octets.into())
}

pub(crate) const NOT_AN_IP: &str = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_prefix_may_end_in_a_hyphen() {
        assert!(!NameRule::DnsLabel.problems("web-").is_empty());
        assert!(NameRule::DnsLabel.prefix_problems("web-").is_empty());
        assert!(!NameRule::DnsSubdomain.prefix_problems("Web-").is_empty());
        assert_eq!(
            NameRule::PathSegment.problems("a/b%"),
            ["may not contain '/'", "may not contain '%'"]
        );
    }

    #[test]
    fn addresses_in_older_forms_are_refused_for_their_form() {
        assert!(ip("10.0.0.1").is_empty() && ip("::1").is_empty());
        assert_eq!(ip("010.000.0.1"), ["must not have leading 0s"]);
        assert_eq!(ip("::ffff:1.2.3.4"), ["must not be an IPv4-mapped IPv6 address"]);
        for none in ["1.2.3", "1.2.3.256", "", "1.2.3.4.5", "x"] {
            assert_eq!(ip(none), [NOT_AN_IP]);
        }
    }

    #[test]
    fn ports_and_keys_have_their_rules() {
        assert!(port_name("http").is_empty() && !port_name("80").is_empty());
        assert_eq!(port_name("").len(), 2);
        assert_eq!(config_key(".."), ["must not be '..'"]);
        assert_eq!(env_name("a=b"), [ENV_NAME]);
    }
}
