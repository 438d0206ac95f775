//! Image names, for the default pull policy: [`means_latest`].
//!
//! A reference is `[HOST[:PORT]/]PATH[:TAG][@DIGEST]`; the grammar is that of the distribution
//! library. A malformed name has no tag; the node reports it.

const LONGEST_PATH: usize = 255;
const LONGEST_TAG: usize = 128;
const LATEST: &str = "latest";

/// The known digest algorithms, with the number of their digits.
const DIGESTS: [(&str, usize); 3] = [("sha256", 64), ("sha384", 96), ("sha512", 128)];

/// Reports whether the name has the tag `latest`, or neither a tag nor a digest, which means the
/// same.
pub(super) fn means_latest(name: &str) -> bool {
    let (rest, digest) = match name.split_once('@') {
        Some((rest, digest)) => (rest, Some(digest)),
        None => (name, None),
    };
    // A colon after the last slash begins a tag; one before it a port.
    let after_slash = rest.rfind('/').map_or(0, |at| at + 1);
    let (path, tag) = match rest[after_slash..].split_once(':') {
        Some((last, tag)) => (&rest[..after_slash + last.len()], Some(tag)),
        None => (rest, None),
    };
    let readable = digest.is_none_or(is_digest)
        && tag.is_none_or(is_tag)
        && is_path(path)
        // That many digits are the ID of an image, not a name.
        && !(name.len() == 64 && name.bytes().all(is_lower_hex));
    readable && tag.map_or(digest.is_none(), |tag| tag == LATEST)
}

fn is_lower_hex(b: u8) -> bool {
    b.is_ascii_digit() || (b'a'..=b'f').contains(&b)
}

fn is_digest(digest: &str) -> bool {
    digest.split_once(':').is_some_and(|(algorithm, digits)| {
        DIGESTS.contains(&(algorithm, digits.len())) && digits.bytes().all(is_lower_hex)
    })
}

fn is_tag(tag: &str) -> bool {
    let word = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
    tag.len() <= LONGEST_TAG
        && tag.bytes().next().is_some_and(word)
        && tag.bytes().all(|b| word(b) || matches!(b, b'.' | b'-'))
}

fn is_path(path: &str) -> bool {
    let own = match path.split_once('/') {
        Some((first, rest)) if names_host(first) => {
            if !is_host(first) {
                return false;
            }
            rest
        }
        _ => path,
    };
    path.len() <= LONGEST_PATH && own.split('/').all(is_component)
}

/// Reports whether the first of several components is a registry and not a part of the path.
fn names_host(component: &str) -> bool {
    component.contains(['.', ':'])
        || component == "localhost"
        || component.bytes().any(|b| b.is_ascii_uppercase())
}

fn is_host(component: &str) -> bool {
    let is_port = |port: &str| !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit());
    if let Some((address, rest)) = component.strip_prefix('[').and_then(|c| c.split_once(']')) {
        let in_address = |b: u8| b.is_ascii_hexdigit() || b == b':';
        return !address.is_empty()
            && address.bytes().all(in_address)
            && (rest.is_empty() || rest.strip_prefix(':').is_some_and(is_port));
    }
    let (host, port) = match component.split_once(':') {
        Some((host, port)) => (host, Some(port)),
        None => (component, None),
    };
    let is_label = |label: &str| {
        !label.is_empty()
            && !label.starts_with('-')
            && !label.ends_with('-')
            && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
    };
    port.is_none_or(is_port) && host.split('.').all(is_label)
}

/// Reports whether a text consists of lower-case words separated by one dot, one or two underscores
/// or any number of dashes.
fn is_component(component: &str) -> bool {
    let is_word = |b: &u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let bytes = component.as_bytes();
    bytes.first().is_some_and(is_word)
        && bytes.last().is_some_and(is_word)
        && bytes.split(is_word).all(|between| {
            matches!(between, b"" | b"." | b"_" | b"__") || between.iter().all(|b| *b == b'-')
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn valid_name_without_tag_means_latest() {
        let digest = format!("sha256:{}", "a".repeat(64));
        for name in [
            "app",
            "app:latest",
            "host:5000/app",
            "host:5000/a-b/c__d.e:latest",
            "[::1]:5000/app",
            &format!("app:latest@{digest}"),
        ] {
            assert!(means_latest(name), "{name}");
        }
        for name in [
            "",
            "app:1",
            "host:5000/app:1",
            &format!("app@{digest}"),
            &format!("app:1@{digest}"),
            "app:latest@sha256:aa",
            "App",
            "App:latest",
            "host/App",
            " app",
            "a b",
            "app:",
            "a..b",
            "a___b",
            "a//b",
            "-host.x/app",
            &"a".repeat(64),
            &"a".repeat(256),
        ] {
            assert!(!means_latest(name), "{name}");
        }
    }
}
