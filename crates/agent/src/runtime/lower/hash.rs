//! The hash that matches a running container with its definition: [`hash`] and [`is_of`].
//!
//! The hash covers the name and the image, which cannot change while a container runs. It equals the
//! kubelet's exactly, because the kubelet and Berth compare it when a node moves from one to the other.
//! Resources are not part of it.

use serde::Serialize;

use super::annotations;
use lifecycle::spec::Container;

/// The hashed fields, in the order of Go's sorted keys.
#[derive(Serialize)]
struct Hashed<'a> {
    image: &'a str,
    name: &'a str,
}

/// Returns the hash as the kubelet writes it: lower-case hexadecimal digits without padding.
#[must_use]
pub fn hash(container: &Container) -> String {
    let hashed = Hashed { image: &container.image, name: &container.name };
    // Two strings always serialize.
    let json = annotations::json(&hashed).unwrap_or_default();
    // The kubelet hashes Go's dump of the bytes, not the bytes themselves.
    let bytes: Vec<String> = json.bytes().map(|byte| byte.to_string()).collect();
    format!("{:x}", fnv1a_32(format!("([]uint8)[{}]", bytes.join(" ")).as_bytes()))
}

/// Returns true if a container with the hash `found` was created from this definition. The hash of an older
/// Berth is also accepted, so that an upgrade restarts no containers.
#[must_use]
pub fn is_of(container: &Container, found: &str) -> bool {
    found == hash(container) || found == former_hash(container)
}

/// Returns the hash that Berth wrote before it used the kubelet's.
fn former_hash(container: &Container) -> String {
    // A byte that no UTF-8 text contains separates the two fields.
    let bytes = [container.name.as_bytes(), &[0xff], container.image.as_bytes()].concat();
    format!("{:x}", fnv1a_64(&bytes))
}

fn fnv1a_32(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193))
}

fn fnv1a_64(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn container(name: &str, image: &str) -> Container {
        let (name, image) = (name.to_owned(), image.to_owned());
        Container { name, image, ..Container::default() }
    }

    /// Recorded from a kubelet.
    #[test]
    fn hash_equals_the_kubelets() {
        let digest = "0123456789abcdef".repeat(4);
        let by_digest = format!("registry.example/x/y@sha256:{digest}");
        let table = [
            ("c", "busybox", "ad819b5c"),
            ("app", "localhost/busybox:1", "87103ce5"),
            ("nginx", "nginx:1.27", "91edee8f"),
            ("a-b", by_digest.as_str(), "bdc93391"),
            ("x", "", "b41f3dd"),
            ("quote", "a\"b", "539c1f8"),
            ("amp", "a<b>&c", "bcb0a215"),
            ("uni", "bild/ümlaut:ß", "c138cd34"),
            ("init", "registry.k8s.io/pause:3.10", "901b96c5"),
            ("sidecar", "envoyproxy/envoy:v1.31-latest", "4412da85"),
        ];
        for (name, image, expected) in table {
            assert_eq!(hash(&container(name, image)), expected, "{name} {image}");
        }
    }

    #[test]
    fn hashes_of_a_kubelet_and_an_older_berth_are_recognized() {
        let known = container("c", "busybox:1");
        assert!(is_of(&known, &hash(&known)));
        assert!(is_of(&known, "835e206ee2d88402"));
        for other in [container("c", "busybox:2"), container("d", "busybox:1")] {
            assert!(!is_of(&known, &hash(&other)));
            assert!(!is_of(&known, &former_hash(&other)));
        }
        assert!(!is_of(&known, ""));
    }
}
