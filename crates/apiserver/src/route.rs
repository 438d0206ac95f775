//! Routing: parses a path into a [`Target`].
//!
//! Pure text to value. Whether the resource supports the verb, and whether the caller is allowed to
//! use it, is decided elsewhere.

use objects::catalog::{self, Resource, Subresource};
use percent_encoding::percent_decode_str;

/// The target of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Target {
    Resource(ResourcePath),
    /// A path below a group version that names no served resource.
    UnknownResource {
        group: String,
        version: String,
        resource: String,
        namespace: String,
        name: String,
    },
    /// `/api`, `/apis`, `/apis/apps`, `/api/v1`, `/openapi/…`, `/healthz`, … as in the request.
    NonResource(String),
}

/// The path of a resource, one of its objects, or a subresource.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ResourcePath {
    pub resource: &'static Resource,
    /// Empty for all namespaces and for cluster-scoped resources.
    pub namespace: String,
    /// Empty for the collection.
    pub name: String,
    pub subresource: Option<&'static Subresource>,
    /// `/api/v1/watch/…`, the deprecated form of a watch.
    pub old_watch: bool,
}

impl Target {
    /// Parses a path without its query. `None` if it is not a valid path.
    #[must_use]
    pub(crate) fn parse(path: &str) -> Option<Target> {
        let segments: Vec<&str> = path.strip_prefix('/')?.split('/').collect();
        let (group, version, rest) = match segments.as_slice() {
            ["api", version, rest @ ..] => ("", *version, rest),
            ["apis", group, version, rest @ ..] => (*group, *version, rest),
            _ => return Some(Target::NonResource(path.to_owned())),
        };
        let decoded: Vec<String> = rest
            .iter()
            .map(|segment| percent_decode_str(segment).decode_utf8().ok().map(|s| s.into_owned()))
            // Names have no control characters, which are unsafe in files, logs and terminals.
            .map(|segment| segment.filter(|segment| !segment.contains(char::is_control)))
            .collect::<Option<_>>()?;
        let mut rest: Vec<&str> = decoded.iter().map(String::as_str).collect();
        // A trailing slash is ignored.
        if rest.last() == Some(&"") {
            rest.pop();
        }
        if rest.is_empty() {
            return Some(Target::NonResource(path.trim_end_matches('/').to_owned()));
        }
        let old_watch = rest.first() == Some(&"watch");
        if old_watch {
            rest.remove(0);
        }
        Some(resource_target(group, version, &rest, old_watch))
    }
}

fn resource_target(group: &str, version: &str, rest: &[&str], old_watch: bool) -> Target {
    let unknown = |resource: &str, namespace: &str, name: &str| Target::UnknownResource {
        group: group.to_owned(),
        version: version.to_owned(),
        resource: resource.to_owned(),
        namespace: namespace.to_owned(),
        name: name.to_owned(),
    };
    let find = |plural: &str| catalog::find(group, version, plural);
    // `namespaces` is both a resource and the prefix of namespaced ones.
    let (namespace, plural, tail) = match rest {
        ["namespaces", namespace, plural, tail @ ..]
            if !(group.is_empty() && is_namespace_subresource(plural) && tail.is_empty()) =>
        {
            (*namespace, *plural, tail)
        }
        [plural, tail @ ..] => ("", *plural, tail),
        [] => return unknown("", "", ""),
    };
    let name = tail.first().copied().unwrap_or_default();
    let Some(resource) = find(plural) else {
        return unknown(plural, namespace, name);
    };
    // The path of a namespaced object has a namespace, that of a cluster-scoped one has none.
    let fits = resource.namespaced != namespace.is_empty();
    let everywhere = resource.namespaced && tail.is_empty() && namespace.is_empty();
    if !fits && !everywhere {
        return unknown(plural, namespace, name);
    }
    let subresource = match tail {
        [] | [_] => None,
        [_, subresource] => match resource.subresource(subresource) {
            Some(subresource) => Some(subresource),
            None => return unknown(&format!("{plural}/{subresource}"), namespace, name),
        },
        _ => return unknown(plural, namespace, name),
    };
    let (namespace, name) = (namespace.to_owned(), name.to_owned());
    Target::Resource(ResourcePath { resource, namespace, name, subresource, old_watch })
}

fn is_namespace_subresource(segment: &str) -> bool {
    matches!(segment, "finalize" | "status")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(path: &str) -> (String, String, String, String) {
        match Target::parse(path) {
            Some(Target::Resource(path)) => (
                path.resource.qualified(),
                path.namespace,
                path.name,
                path.subresource.map_or(String::new(), |s| s.name.to_owned()),
            ),
            other => (format!("{other:?}"), String::new(), String::new(), String::new()),
        }
    }

    #[test]
    fn paths_name_resources_objects_and_subresources() {
        for (path, expected) in [
            ("/api/v1/pods", ("pods", "", "", "")),
            ("/api/v1/pods/", ("pods", "", "", "")),
            ("/api/v1/namespaces/a/pods", ("pods", "a", "", "")),
            ("/api/v1/namespaces/a/pods/b", ("pods", "a", "b", "")),
            ("/api/v1/namespaces/a/pods/b/status", ("pods", "a", "b", "status")),
            ("/api/v1/namespaces/a", ("namespaces", "", "a", "")),
            ("/api/v1/namespaces/a/status", ("namespaces", "", "a", "status")),
            ("/api/v1/namespaces/a/finalize", ("namespaces", "", "a", "finalize")),
            ("/api/v1/namespaces", ("namespaces", "", "", "")),
            ("/api/v1/nodes/n%2d1", ("nodes", "", "n-1", "")),
            (
                "/apis/apps/v1/namespaces/a/deployments/d/scale",
                ("deployments.apps", "a", "d", "scale"),
            ),
        ] {
            let (resource, namespace, name, subresource) = parsed(path);
            let found = (&*resource, &*namespace, &*name, &*subresource);
            assert_eq!(found, expected, "{path}");
        }
    }

    #[test]
    fn unknown_resources_are_distinct_from_other_paths() {
        for path in [
            "/api/v1/nope",
            "/api/v1/namespaces/a/nope",
            "/api/v1/namespaces/a/nodes",
            "/api/v1/namespaces/a/Pods",
            "/api/v1/pods/b",
            "/api/v1/namespaces/a/pods/b/nope",
            "/api/v1/namespaces/a/pods/b/status/x",
            "/api/v1/../v1/nodes",
            "/api/v2/pods",
            "/apis/apps/v9/deployments",
            "/apis/nope/v1/namespaces/a/things/t",
        ] {
            let target = Target::parse(path);
            assert!(matches!(target, Some(Target::UnknownResource { .. })), "{path}: {target:?}");
        }
        for path in ["/api", "/api/v1", "/apis/apps", "/apis/apps/v9", "/nope", "/", "//api/v1"] {
            let target = Target::parse(path);
            assert!(matches!(target, Some(Target::NonResource(_))), "{path}: {target:?}");
        }
        assert_eq!(Target::parse("nope"), None);
        for path in ["/api/v1/namespaces/a%00/pods", "/api/v1/nodes/n%0a", "/apis/apps/v1/x/%7f"] {
            assert_eq!(Target::parse(path), None, "{path}");
        }
    }
}
