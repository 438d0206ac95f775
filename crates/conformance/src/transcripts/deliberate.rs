//! Deliberate differences in kubectl's output, and unserved commands.
//! `docs/reference/differences.md` gives the reasons.

use objects::catalog;

/// An explained difference.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Known {
    Different(&'static str),
    NotServed(&'static str),
}

/// Explains the difference of a command, if it is deliberate.
pub(super) fn judge(arguments: &[&str], recorded: &str, printed: &str) -> Option<Known> {
    Some(match arguments {
        ["create" | "get", "role", ..] => Known::NotServed("roles.rbac.authorization.k8s.io"),
        ["autoscale", ..] => Known::NotServed("horizontalpodautoscalers.autoscaling"),
        ["get", "componentstatuses"] => Known::NotServed("componentstatuses"),
        ["get", "--raw", "/readyz?verbose"] => Known::Different("health checks are Berth's own"),
        ["auth", "can-i", "--list", ..] if lists_rules(printed) => {
            Known::Different("roles are built in")
        }
        ["explain", ..] if fields(recorded) == fields(printed) => {
            Known::Different("descriptions are Berth's own")
        }
        _ => return None,
    })
}

/// Reports whether a command prints a map in random order.
pub(super) fn is_unordered(arguments: &[&str]) -> bool {
    let of_data = ["cm", "configmap", "configmaps", "secret", "secrets"];
    match arguments {
        ["label" | "annotate", .., "--list"] => true,
        ["describe", kind, ..] => of_data.contains(&kind.split('/').next().unwrap_or(kind)),
        _ => false,
    }
}

/// Reports whether a table of rules was printed, with the rules of every user in it.
fn lists_rules(printed: &str) -> bool {
    printed.starts_with("Resources ")
        && ["selfsubjectaccessreviews.authorization.k8s.io", "[/healthz]", "[/version]"]
            .iter()
            .all(|rule| printed.contains(rule))
}

/// Returns the output of `explain` without its prose: kinds, fields, types and values. Fields of
/// QoS-class resources, which upstream lacks, are left out.
fn fields(text: &str) -> Vec<String> {
    let heads = ["GROUP:", "KIND:", "VERSION:", "FIELD:", "FIELDS:"];
    let is_fact = |line: &&str| {
        line.contains("\t<")
            || heads.iter().any(|head| line.starts_with(head))
            || line.trim_start().starts_with("enum:")
    };
    let indent = |line: &str| line.len() - line.trim_start().len();
    let mut facts = Vec::new();
    // Indentation of our additional field whose own fields are skipped.
    let mut ours = None;
    for line in text.lines().filter(is_fact) {
        ours = ours.filter(|depth| indent(line) > *depth);
        if line.to_ascii_lowercase().contains("qosresources") {
            ours = ours.or(Some(indent(line)));
        }
        if ours.is_none() {
            facts.push(line.to_owned());
        }
    }
    facts
}

/// Reduces a recorded list of resources or versions to those that we serve.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn explain_output_is_compared_without_prose_and_our_fields() {
        let upstream = "KIND:  Q\nFIELDS:\n  a\t<int>\n    Words.\n  b\t<string>\n";
        let ours = "KIND:  Q\nFIELDS:\n  a\t<int>\n    Other words.\n  qosResources\t<X>\n    \
                    name\t<string>\n  b\t<string>\n";
        let explain = ["explain", "q"];
        let meant = Some(Known::Different("descriptions are Berth's own"));
        assert_eq!(judge(&explain, upstream, ours), meant);
        assert_eq!(judge(&explain, upstream, &ours.replace("b\t", "c\t")), None);
    }

    #[test]
    fn lists_of_resources_are_reduced_to_served_ones() {
        let recorded = "NAME SHORTNAMES APIVERSION NAMESPACED KIND\n\
                        pods po v1 true Pod\nnopes v1 true Nope\ndeployments deploy apps/v1 true Deployment\n";
        let kept = only_served(&["api-resources"], recorded).unwrap();
        assert_eq!(kept, recorded.replace("nopes v1 true Nope\n", ""));
        assert_eq!(only_served(&["api-versions"], "v1\nnope/v1\n").as_deref(), Some("v1\n"));
        assert_eq!(only_served(&["get", "pods"], recorded), None);
    }
}
