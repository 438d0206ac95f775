//! Names of images: [`with_tag`] adds the default tag to a name without one.
//!
//! A reference is `[HOST[:PORT]/]PATH[:TAG][@DIGEST]`. Grammar and error texts are those of the
//! `distribution` library.

use thiserror::Error;

#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum NameError {
    #[error("couldn't parse image name \"{0}\": invalid reference format")]
    Format(String),
    #[error(
        "couldn't parse image name \"{0}\": invalid repository name ({0}), cannot specify 64-byte \
         hexadecimal strings"
    )]
    Identifier(String),
    #[error(
        "couldn't parse image name \"{name}\": invalid reference format: repository name ({path}) must be lowercase"
    )]
    UpperCase { name: String, path: String },
    #[error(
        "couldn't parse image name \"{0}\": repository name must not be longer than 255 characters"
    )]
    TooLong(String),
}

const LONGEST_PATH: usize = 255;
const LONGEST_TAG: usize = 128;
/// The number of hexadecimal digits of an image ID, which is not a name.
const IDENTIFIER: usize = 64;

/// The registry of images without one, and there the owner of images without one.
const DEFAULT_REGISTRY: &str = "docker.io";
const DEFAULT_OWNER: &str = "library";

/// Returns the name to send to the runtime.
pub fn with_tag(name: &str) -> Result<String, NameError> {
    let bad = || NameError::Format(name.to_owned());
    if name.len() == IDENTIFIER && name.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')) {
        return Err(NameError::Identifier(name.to_owned()));
    }
    let remote = remote(name);
    // Checked first, so this also applies to names that are invalid in other ways.
    if remote.chars().any(char::is_uppercase) {
        return Err(NameError::UpperCase { name: name.to_owned(), path: remote });
    }
    let (rest, digest) = match name.split_once('@') {
        Some((rest, digest)) => (rest, Some(digest)),
        None => (name, None),
    };
    if digest.is_some_and(|digest| !is_digest(digest)) {
        return Err(bad());
    }
    // A colon after the last slash starts a tag; a colon before it starts a port.
    let after_slash = rest.rfind('/').map_or(0, |at| at + 1);
    let (path, tag) = match rest[after_slash..].rfind(':') {
        Some(at) => (&rest[..after_slash + at], Some(&rest[after_slash + at + 1..])),
        None => (rest, None),
    };
    if tag.is_some_and(|tag| !is_tag(tag)) {
        return Err(bad());
    }
    check_path(name, path)?;
    match (tag, digest) {
        (None, None) => Ok(format!("{name}:latest")),
        _ => Ok(name.to_owned()),
    }
}

/// Returns the full name in its registry, without a tag.
fn remote(name: &str) -> String {
    let names_registry = |first: &str| {
        first.contains(['.', ':']) || first == "localhost" || first.chars().any(char::is_uppercase)
    };
    let (registry, rest) = match name.split_once('/') {
        Some((first, rest)) if names_registry(first) => (first, rest),
        _ => (DEFAULT_REGISTRY, name),
    };
    let of_default = [DEFAULT_REGISTRY, "index.docker.io"].contains(&registry);
    let path = rest.split(':').next().unwrap_or_default();
    match of_default && !rest.contains('/') {
        true => format!("{DEFAULT_OWNER}/{path}"),
        false => path.to_owned(),
    }
}

fn check_path(name: &str, path: &str) -> Result<(), NameError> {
    let bad = || NameError::Format(name.to_owned());
    let components: Vec<&str> = path.split('/').collect();
    let of_host = match components.as_slice() {
        [first, _, ..] if is_host(first) => 1,
        _ => 0,
    };
    let own = &components[of_host..];
    if !own.iter().all(|component| is_component(component)) {
        return Err(bad());
    }
    if path.len() > LONGEST_PATH {
        return Err(NameError::TooLong(name.to_owned()));
    }
    Ok(())
}

/// Returns true if the first of several components is a registry and not a part of the path.
fn is_host(component: &str) -> bool {
    let (host, port) = match component.rsplit_once(':') {
        Some((host, port)) if !component.ends_with(']') => (host, Some(port)),
        _ => (component, None),
    };
    let looks_like_one = component.contains(['.', ':'])
        || component == "localhost"
        || component.chars().any(|c| c.is_ascii_uppercase());
    let is_port = |port: &str| !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit());
    let is_v6 = host
        .strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'))
        .is_some_and(|ip| ip.bytes().all(|b| b.is_ascii_hexdigit() || b == b':'));
    let label = |label: &str| {
        !label.is_empty()
            && !label.starts_with('-')
            && !label.ends_with('-')
            && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
    };
    looks_like_one && port.is_none_or(is_port) && (is_v6 || host.split('.').all(label))
}

/// Returns true for lower-case letters and digits, separated by a dot, one or two underscores, or dashes.
fn is_component(component: &str) -> bool {
    let alphanumeric = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let bytes = component.as_bytes();
    let ends = bytes.first().zip(bytes.last());
    if !ends.is_some_and(|(first, last)| alphanumeric(*first) && alphanumeric(*last)) {
        return false;
    }
    component.split(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit()).all(|between| {
        matches!(between, "" | "." | "_" | "__") || between.bytes().all(|b| b == b'-')
    })
}

fn is_tag(tag: &str) -> bool {
    let word = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
    tag.len() <= LONGEST_TAG
        && tag.bytes().next().is_some_and(word)
        && tag.bytes().all(|b| word(b) || b == b'.' || b == b'-')
}

fn is_digest(digest: &str) -> bool {
    const SHORTEST: usize = 32;
    digest.split_once(':').is_some_and(|(algorithm, value)| {
        algorithm.bytes().next().is_some_and(|b| b.is_ascii_alphabetic())
            && algorithm.bytes().all(|b| b.is_ascii_alphanumeric() || b"+.-_".contains(&b))
            && value.len() >= SHORTEST
            && value.bytes().all(|b| b.is_ascii_hexdigit())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_get_the_default_tag() {
        let digest = format!("sha256:{}", "0123456789abcdef".repeat(4));
        let table = [
            ("busybox", "busybox:latest"),
            ("busybox:1", "busybox:1"),
            ("localhost/busybox", "localhost/busybox:latest"),
            ("127.0.0.1:23990/nope", "127.0.0.1:23990/nope:latest"),
            ("[::1]:5000/a/b:v1.2-x", "[::1]:5000/a/b:v1.2-x"),
            ("Example.com/a__b/c-d--e.f", "Example.com/a__b/c-d--e.f:latest"),
        ];
        for (name, full) in table {
            assert_eq!(with_tag(name).as_deref(), Ok(full), "{name}");
        }
        let pinned = format!("a/b@{digest}");
        assert_eq!(with_tag(&pinned), Ok(pinned.clone()));
    }

    #[test]
    fn invalid_names_are_rejected_with_upstream_text() {
        let upper = with_tag("UPPER/Case:1").unwrap_err();
        let text = "couldn't parse image name \"UPPER/Case:1\": invalid reference format: repository \
                    name (Case) must be lowercase";
        assert_eq!(upper.to_string(), text);
        for (name, path) in [
            ("Busybox", "library/Busybox"),
            ("docker.io/Busybox:1", "library/Busybox"),
            ("localhost/Bad Name!", "Bad Name!"),
            ("owner/Busybox:Tag", "owner/Busybox"),
        ] {
            let path = path.to_owned();
            let expected = NameError::UpperCase { name: name.to_owned(), path };
            assert_eq!(with_tag(name), Err(expected));
        }
        assert_eq!(with_tag("busybox:Tag").as_deref(), Ok("busybox:Tag"));
        let id = "0123456789abcdef".repeat(4);
        let text = format!(
            "couldn't parse image name \"{id}\": invalid repository name ({id}), cannot specify \
             64-byte hexadecimal strings"
        );
        assert_eq!(with_tag(&id).unwrap_err().to_string(), text);
        let long = "a".repeat(129);
        let bad =
            ["", ":1", "a:", "a:b:c", "a//b", "-a", "a_", "a___b", "a@sha256:12", "a b", "a/"];
        for name in bad.into_iter().chain([format!("a:{long}").as_str()]) {
            assert!(with_tag(name).is_err(), "{name}");
        }
    }
}
