//! Deliberate differences, and unserved requests. `docs/reference/differences.md` gives the
//! reasons.

use objects::catalog;
use serde_json::Value;

/// Returns the reason why a step is not counted: this server does not serve its subject.
pub(super) fn not_served(request: &Value, response: &Value) -> Option<String> {
    let path = request["path"].as_str().unwrap_or_default();
    if path.contains("/proxy") || request["query"]["hash"] == "<hash from the index>" {
        return Some(
            if path.contains("/proxy") { "proxy" } else { "what only the recorder knows" }
                .to_owned(),
        );
    }
    // The rejection of an unserved request can be compared.
    let status = response["status"].as_u64().unwrap_or_default();
    let acting = request.get("as").is_some();
    let admin = !acting && matches!(request["user"].as_str(), None | Some("admin"));
    let is_held_to = matches!(status, 401 | 404 | 405) || status == 403 && !admin;
    // The known versions of a group do not depend on nodes.
    if is_held_to && !(acting && status == 404) {
        return None;
    }
    let segments: Vec<&str> = path.trim_matches('/').split('/').collect();
    let (group, version, rest) = match segments.as_slice() {
        ["api", version, rest @ ..] => ("", *version, rest),
        ["apis", group, version, rest @ ..] => (*group, *version, rest),
        ["logs" | ".well-known" | "openid", ..] => return Some(path.to_owned()),
        _ => return None,
    };
    let rest = rest.strip_prefix(&["watch"]).unwrap_or(rest);
    let (plural, tail) = match rest {
        ["namespaces", _, part] if matches!(*part, "status" | "finalize") => {
            ("namespaces", &rest[1..])
        }
        ["namespaces", _, plural, tail @ ..] => (*plural, tail),
        [plural, tail @ ..] => (*plural, tail),
        [] => {
            let known = |r: &&catalog::Resource| r.group == group && r.version == version;
            return (!catalog::RESOURCES.iter().any(|r| known(&r)))
                .then(|| format!("{group}/{version}"));
        }
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

/// Returns the reason for a deliberate difference.
pub(super) fn reason(
    scenario: &str,
    request: &Value,
    expected: &Value,
    got: u16,
) -> Option<&'static str> {
    if scenario.starts_with("quota/charged-before-storage") {
        return Some("a failed create is not charged");
    }
    if scenario == "apply/yaml-and-preconditions" {
        return Some("y and n are letters");
    }
    if request["path"] == "/version" && request.get("as").is_some() {
        return Some("the version is our own");
    }
    let wanted = expected["status"].as_u64().unwrap_or_default();
    let issuer = "https://kubernetes.default.svc.cluster.local";
    let of_issuer = |part: &str| {
        let audiences = expected["body"][part]["audiences"].as_array();
        audiences.is_some_and(|all| all.iter().any(|audience| audience == issuer))
    };
    if got == 201 && (of_issuer("spec") || of_issuer("status")) {
        return Some("tokens are for our own issuer");
    }
    let anonymous = matches!(request["user"].as_str(), Some("none" | "bad"));
    let path = request["path"].as_str().unwrap_or_default();
    let health = ["/healthz", "/livez", "/readyz"].contains(&path);
    let role = request["user"].is_string() && !anonymous;
    match (wanted, got) {
        (200, 200) if health && !request["query"].is_null() => {
            Some("health checks are Berth's own")
        }
        (200, 200)
            if expected["body_text"].as_str().is_some_and(|text| text.contains("kind: Table")) =>
        {
            Some("descriptions are Berth's own")
        }
        (200 | 404, 403) if role => Some("roles are built in"),
        (500, 400..=499) => Some("a bad request is not the server's fault"),
        (403 | 200, 401) if anonymous => Some("no anonymous users"),
        _ => None,
    }
}

/// Removes what we do not serve from a discovery document.
pub(super) fn only_served(document: &mut Value) {
    let served = |group: &str, version: &str, plural: &str| {
        let (plural, part) = plural.split_once('/').unwrap_or((plural, ""));
        catalog::find(group, version, plural)
            .is_some_and(|resource| part.is_empty() || resource.subresource(part).is_some())
    };
    match document["kind"].as_str() {
        Some("APIResourceList") => {
            let group_version = document["groupVersion"].as_str().unwrap_or_default().to_owned();
            let (group, version) = group_version.split_once('/').unwrap_or(("", &group_version));
            if let Some(resources) = document["resources"].as_array_mut() {
                resources
                    .retain(|r| served(group, version, r["name"].as_str().unwrap_or_default()));
            }
        }
        Some("APIGroupList") => {
            if let Some(groups) = document["groups"].as_array_mut() {
                groups.retain(|g| catalog::RESOURCES.iter().any(|r| g["name"] == r.group));
            }
        }
        _ => {}
    }
}
