//! Registry credentials from a pod's pull secrets: [`matching`].
//!
//! Both formats are supported, `kubernetes.io/dockerconfigjson` and `kubernetes.io/dockercfg`. Invalid
//! secrets are skipped: the registry reports missing credentials.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use cri::v1;
use serde::Deserialize;

/// The data of one secret.
pub type SecretData = BTreeMap<String, Vec<u8>>;

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct DockerConfig {
    auths: BTreeMap<String, Entry>,
}

#[derive(Debug, Default, Clone, Deserialize)]
#[serde(default)]
struct Entry {
    username: String,
    password: String,
    auth: String,
}

/// Returns the credentials for an image, the most specific first.
#[must_use]
pub fn matching(image: &str, secrets: &[SecretData]) -> Vec<v1::AuthConfig> {
    let mut found: Vec<(usize, v1::AuthConfig)> = Vec::new();
    for secret in secrets {
        for (registry, entry) in entries(secret) {
            let place = without_scheme(&registry);
            if is_for(place, image)
                && let Some(auth) = entry.read()
            {
                found.push((place.len(), auth));
            }
        }
    }
    found.sort_by_key(|(length, _)| std::cmp::Reverse(*length));
    found.into_iter().map(|(_, auth)| auth).collect()
}

fn entries(secret: &SecretData) -> BTreeMap<String, Entry> {
    if let Some(bytes) = secret.get(".dockerconfigjson") {
        return serde_json::from_slice::<DockerConfig>(bytes).unwrap_or_default().auths;
    }
    let old = secret.get(".dockercfg");
    old.and_then(|bytes| serde_json::from_slice(bytes).ok()).unwrap_or_default()
}

impl Entry {
    fn read(self) -> Option<v1::AuthConfig> {
        let (username, password) = match self.auth.is_empty() {
            true => (self.username, self.password),
            false => {
                let text = String::from_utf8(STANDARD.decode(self.auth.trim()).ok()?).ok()?;
                let (user, password) = text.split_once(':')?;
                (user.to_owned(), password.trim_end_matches('\0').to_owned())
            }
        };
        let empty = username.is_empty() && password.is_empty();
        (!empty).then(|| v1::AuthConfig { username, password, ..Default::default() })
    }
}

fn without_scheme(registry: &str) -> &str {
    let bare = registry.strip_prefix("https://").or_else(|| registry.strip_prefix("http://"));
    let bare = bare.unwrap_or(registry).trim_end_matches('/');
    // The path of a registry's API contains its version.
    bare.strip_suffix("/v1").or_else(|| bare.strip_suffix("/v2")).unwrap_or(bare)
}

/// Returns true if the credentials of a registry (host, port, path; `*` matches a part of the host) apply to
/// an image.
fn is_for(place: &str, image: &str) -> bool {
    let full = with_registry(image);
    let (host, path) = place.split_once('/').unwrap_or((place, ""));
    let (image_host, image_path) = full.split_once('/').unwrap_or((&full, ""));
    let (host, image_host) = (canonical(host), canonical(image_host));
    let parts: Vec<&str> = host.split('.').collect();
    let image_parts: Vec<&str> = image_host.split('.').collect();
    parts.len() == image_parts.len()
        && parts.iter().zip(&image_parts).all(|(pattern, part)| fits(pattern, part))
        && image_path.starts_with(path)
}

fn canonical(host: &str) -> &str {
    if host == "index.docker.io" { "docker.io" } else { host }
}

fn fits(pattern: &str, part: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == part,
        Some((start, end)) => {
            part.len() >= start.len() + end.len() && part.starts_with(start) && part.ends_with(end)
        }
    }
}

fn with_registry(image: &str) -> String {
    match image.split_once('/') {
        Some((first, _)) if first.contains(['.', ':']) || first == "localhost" => image.to_owned(),
        _ => format!("docker.io/{image}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secret(key: &str, text: &str) -> SecretData {
        BTreeMap::from([(key.to_owned(), text.as_bytes().to_vec())])
    }

    #[test]
    fn the_most_specific_credentials_come_first() {
        let new = r#"{"auths": {
            "https://registry.example/v2/": {"auth": "dXNlcjpwYXNz"},
            "registry.example/team": {"username": "team", "password": "t"},
            "*.other.example": {"username": "star", "password": "s"},
            "broken.example": {"auth": "%%"}}}"#;
        let old = r#"{"index.docker.io": {"username": "hub", "password": "h"}}"#;
        let secrets = [secret(".dockerconfigjson", new), secret(".dockercfg", old)];
        let names = |image: &str| -> Vec<String> {
            matching(image, &secrets).into_iter().map(|auth| auth.username).collect()
        };
        assert_eq!(names("registry.example/team/app:1"), ["team", "user"]);
        assert_eq!(names("registry.example/x"), ["user"]);
        assert_eq!(names("a.other.example/x"), ["star"]);
        assert_eq!(names("a.b.other.example/x"), [""; 0]);
        assert_eq!(names("busybox"), ["hub"]);
        assert_eq!(names("broken.example/x"), [""; 0]);
        assert_eq!(matching("x", &[secret(".dockerconfigjson", "not json")]), []);
    }
}
