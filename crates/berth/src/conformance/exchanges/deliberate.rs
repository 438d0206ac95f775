//! Where our answers differ on purpose, and what is not served. `docs/reference/differences.md`
//! has the reasons at length.

use objects::catalog;
use serde_json::Value;

/// Why a step cannot count: it is about something this server does not serve.
pub(super) fn not_served(request: &Value, response: &Value) -> Option<String> {
    let path = request["path"].as_str().unwrap_or_default();
    // A refusal to serve it is an answer we can be held to.
    let status = response["status"].as_u64().unwrap_or_default();
    if matches!(status, 401 | 403 | 404 | 405) {
        return None;
    }
    let segments: Vec<&str> = path.trim_matches('/').split('/').collect();
    let (group, version, rest) = match segments.as_slice() {
        ["api", version, rest @ ..] => ("", *version, rest),
        ["apis", group, version, rest @ ..] => (*group, *version, rest),
        ["metrics" | "logs" | ".well-known" | "openid", ..] => return Some(path.to_owned()),
        _ => return None,
    };
    let rest = rest.strip_prefix(&["watch"]).unwrap_or(rest);
    let (plural, tail) = match rest {
        ["namespaces", _, part] if matches!(*part, "status" | "finalize") => ("namespaces", &rest[1..]),
        ["namespaces", _, plural, tail @ ..] => (*plural, tail),
        [plural, tail @ ..] => (*plural, tail),
        [] => return None,
    };
    let Some(resource) = catalog::find(group, version, plural) else {
        let known = catalog::RESOURCES.iter().any(|r| r.group == group && r.version == version);
        let name = if known { plural.to_owned() } else { format!("{plural}.{group}") };
        return Some(name);
    };
    match tail {
        [_, part, ..] if plural != "namespaces" && resource.subresource(part).is_none() => {
            Some(format!("{plural}/{part}"))
        }
        _ => None,
    }
}

/// The reason for a difference that is meant.
pub(super) fn reason(request: &Value, expected: &Value, got: u16) -> Option<&'static str> {
    let wanted = expected["status"].as_u64().unwrap_or_default();
    let anonymous = matches!(request["user"].as_str(), Some("none" | "bad"));
    match (wanted, got) {
        (500, 400..=499) => Some("a bad request is not the server's fault"),
        (403 | 200, 401) if anonymous => Some("nobody is anonymous"),
        _ => None,
    }
}
