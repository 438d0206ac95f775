//! Where kubectl sees something else on purpose, and what is not served.
//! `docs/reference/differences.md` has the reasons at length.

use objects::catalog;
use serde_json::Value;

/// A difference that is accounted for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Known {
    Different(&'static str),
    NotServed(&'static str),
}

/// Why a command's difference is meant, if it is.
pub(super) fn judge(_command: &Value, arguments: &[&str]) -> Option<Known> {
    let words = |wanted: &[&str]| wanted.iter().all(|word| arguments.contains(word));
    Some(match arguments {
        ["create" | "get", "role", ..] => Known::NotServed("roles.rbac.authorization.k8s.io"),
        ["autoscale", ..] => Known::NotServed("horizontalpodautoscalers.autoscaling"),
        ["get", "componentstatuses"] => Known::NotServed("componentstatuses"),
        ["get", "--raw", "/readyz?verbose"] => Known::Different("our checks are our own"),
        _ if words(&["auth", "can-i", "--list"]) => Known::Different("roles are built in"),
        _ => return None,
    })
}

/// A recorded list of resources or versions with only what we serve in it.
pub(super) fn only_served(arguments: &[&str], recorded: &str) -> Option<String> {
    let keep: fn(&str) -> bool = match arguments.first() {
        Some(&"api-resources") => resource_is_served,
        Some(&"api-versions") => |line| serves_version(line),
        _ => return None,
    };
    Some(recorded.lines().filter(|line| keep(line)).map(|line| format!("{line}\n")).collect())
}

fn serves_version(version: &str) -> bool {
    let (group, version) = version.split_once('/').unwrap_or(("", version));
    catalog::RESOURCES.iter().any(|r| r.group == group && r.version == version)
}

fn resource_is_served(line: &str) -> bool {
    let words: Vec<&str> = line.split_whitespace().collect();
    match words.as_slice() {
        ["NAME", ..] => true,
        [name] => {
            let (plural, group) = name.split_once('.').unwrap_or((name, ""));
            catalog::RESOURCES.iter().any(|r| r.group == group && r.plural == plural)
        }
        [plural, rest @ ..] => rest.iter().take(2).any(|word| {
            let (group, version) = word.split_once('/').unwrap_or(("", word));
            catalog::find(group, version, plural).is_some()
        }),
        [] => true,
    }
}
