//! Policies of a job: [`verdict`] on a failed pod, and [`success`] by the succeeded indexes.

use serde_json::Value;

use super::indexes::Indexes;
use crate::context::text;
use crate::observe::{Exit, Pod};

/// The effect of a failed pod on its job.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Count,
    Ignore,
    /// Its index is not retried.
    FailIndex,
    /// The job fails with this message.
    FailJob(String),
}

/// Returns the action of the first matching rule of a `podFailurePolicy`. A pod that matches no
/// rule counts as failed.
pub(super) fn verdict(policy: &Value, pod: &Pod) -> Verdict {
    for (at, rule) in policy["rules"].as_array().into_iter().flatten().enumerate() {
        let Some(evidence) = evidence(rule, pod) else { continue };
        match text(&rule["action"]) {
            "Count" => return Verdict::Count,
            "Ignore" => return Verdict::Ignore,
            "FailIndex" => return Verdict::FailIndex,
            "FailJob" => {
                let message = format!("{evidence} matching FailJob rule at index {at}");
                return Verdict::FailJob(message);
            }
            // Rules with unknown actions are skipped; upstream may add actions.
            _ => {}
        }
    }
    Verdict::Count
}

/// Returns upstream's text for the property of the pod that matches a rule.
fn evidence(rule: &Value, pod: &Pod) -> Option<String> {
    let name = format!("{}/{}", pod.namespace, pod.name);
    let codes = &rule["onExitCodes"];
    if codes.is_object() {
        let Exit { container, code } = pod.exits.iter().find(|exit| fits(codes, exit))?;
        return Some(format!("Container {container} for pod {name} failed with exit code {code}"));
    }
    let patterns = rule["onPodConditions"].as_array()?;
    let is_asked = |(kind, status): &&(String, String)| {
        patterns.iter().any(|pattern| {
            pattern["type"] == **kind && pattern["status"].as_str().unwrap_or("True") == status
        })
    };
    let (kind, _) = pod.conditions.iter().find(is_asked)?;
    Some(format!("Pod {name} has condition {kind}"))
}

fn fits(codes: &Value, exit: &Exit) -> bool {
    let named = codes["containerName"].as_str().is_none_or(|name| name == exit.container);
    let listed = codes["values"].as_array().is_some_and(|all| all.iter().any(|v| *v == exit.code));
    named
        && match text(&codes["operator"]) {
            "In" => listed,
            "NotIn" => !listed,
            _ => false,
        }
}

/// Returns upstream's text for the first matching rule of a `successPolicy`.
pub(super) fn success(policy: &Value, completions: i64, done: &Indexes) -> Option<String> {
    if done.is_empty() {
        return None;
    }
    let mut rules = policy["rules"].as_array()?.iter();
    let at = rules.position(|rule| is_met(rule, completions, done))?;
    Some(format!("Matched rules at index {at}"))
}

fn is_met(rule: &Value, completions: i64, done: &Indexes) -> bool {
    let enough = |count: i64| rule["succeededCount"].as_i64().is_some_and(|least| count >= least);
    let Some(which) = rule["succeededIndexes"].as_str() else { return enough(done.count()) };
    let wanted = Indexes::parse(which, completions);
    let matching = wanted.shared(done);
    !wanted.is_empty() && (matching == wanted.count() || enough(matching))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(exits: &[(&str, i32)], conditions: &[(&str, &str)]) -> Pod {
        let exit = |(container, code): &(&str, i32)| Exit {
            container: (*container).to_owned(),
            code: *code,
        };
        Pod {
            namespace: "a".to_owned(),
            name: "p".to_owned(),
            exits: exits.iter().map(exit).collect(),
            conditions: conditions.iter().map(|(k, s)| ((*k).into(), (*s).into())).collect(),
            ..Pod::default()
        }
    }

    fn codes(action: &str, operator: &str, values: &[i64], container: Option<&str>) -> Value {
        let mut rule = json!({
            "action": action, "onExitCodes": {"operator": operator, "values": values},
        });
        if let Some(container) = container {
            rule["onExitCodes"]["containerName"] = container.into();
        }
        rule
    }

    #[test]
    fn exit_codes_match_by_operator_and_container() {
        for (rule, exits, fits) in [
            (codes("Ignore", "In", &[1, 42], None), &[("main", 42)][..], true),
            (codes("Ignore", "In", &[1, 42], None), &[("main", 2)], false),
            (codes("Ignore", "In", &[1, 42], None), &[("main", 2), ("init", 1)], true),
            (codes("Ignore", "In", &[42], Some("main")), &[("main", 42)], true),
            (codes("Ignore", "In", &[42], Some("main")), &[("side", 42)], false),
            (codes("Ignore", "NotIn", &[42], None), &[("main", 42)], false),
            (codes("Ignore", "NotIn", &[42], None), &[("main", 1)], true),
            (codes("Ignore", "NotIn", &[0, 42], None), &[("main", 42), ("side", 7)], true),
            (codes("Ignore", "NotIn", &[42], Some("side")), &[("main", 1)], false),
            // No container failed: an end without an exit code matches neither operator.
            (codes("Ignore", "NotIn", &[42], None), &[], false),
            (codes("Ignore", "Between", &[42], None), &[("main", 42)], false),
        ] {
            let found = verdict(&json!({"rules": [rule]}), &pod(exits, &[]));
            let expected = if fits { Verdict::Ignore } else { Verdict::Count };
            assert_eq!(found, expected, "{rule} {exits:?}");
        }
    }

    #[test]
    fn conditions_match_by_type_and_status() {
        let rule = json!({"action": "Ignore", "onPodConditions": [
            {"type": "DisruptionTarget"}, {"type": "Example", "status": "False"},
        ]});
        for (conditions, fits) in [
            (&[("DisruptionTarget", "True")][..], true),
            (&[("DisruptionTarget", "False")], false),
            (&[("Ready", "False"), ("Example", "False")], true),
            (&[("Example", "True")], false),
            (&[], false),
        ] {
            let found = verdict(&json!({"rules": [rule]}), &pod(&[], conditions));
            let expected = if fits { Verdict::Ignore } else { Verdict::Count };
            assert_eq!(found, expected, "{conditions:?}");
        }
    }

    #[test]
    fn first_matching_rule_decides() {
        let policy = json!({"rules": [
            codes("Count", "In", &[1], None),
            {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
            codes("Explode", "In", &[3], None),
            codes("FailIndex", "In", &[2, 3], None),
            codes("FailJob", "NotIn", &[9], Some("main")),
            {"action": "FailJob", "onPodConditions": [{"type": "ConfigIssue", "status": "True"}]},
        ]});
        let disrupted = ("DisruptionTarget", "True");
        let broken =
            "Container main for pod a/p failed with exit code 5 matching FailJob rule at index 4";
        let issue = "Pod a/p has condition ConfigIssue matching FailJob rule at index 5";
        for (exits, conditions, expected) in [
            (&[("main", 1)][..], &[disrupted][..], Verdict::Count),
            (&[("main", 2)], &[disrupted], Verdict::Ignore),
            (&[("main", 2)], &[], Verdict::FailIndex),
            (&[("main", 3)], &[], Verdict::FailIndex),
            (&[("main", 5)], &[], Verdict::FailJob(broken.to_owned())),
            (&[("main", 9)], &[("ConfigIssue", "True")], Verdict::FailJob(issue.to_owned())),
            (&[("side", 5)], &[], Verdict::Count),
            (&[], &[], Verdict::Count),
        ] {
            assert_eq!(verdict(&policy, &pod(exits, conditions)), expected, "{exits:?}");
        }
        assert_eq!(verdict(&Value::Null, &pod(&[("main", 5)], &[])), Verdict::Count);
    }

    #[test]
    fn success_rules_match_by_indexes_and_count() {
        let check = |rules: Value, done: &str, expected: Option<&str>| {
            let found = success(&json!({"rules": rules}), 10, &Indexes::parse(done, 10));
            assert_eq!(found.as_deref(), expected, "{rules} {done}");
        };
        let first = Some("Matched rules at index 0");
        check(json!([{"succeededIndexes": "0,2-4"}]), "0,2-4", first);
        check(json!([{"succeededIndexes": "0,2-4"}]), "0-9", first);
        check(json!([{"succeededIndexes": "0,2-4"}]), "0,1,2,3", None);
        check(json!([{"succeededCount": 3}]), "1,5,9", first);
        check(json!([{"succeededCount": 3}]), "1,5", None);
        check(json!([{"succeededCount": 0}]), "", None);
        check(json!([{"succeededCount": 2, "succeededIndexes": "0,2-4"}]), "1,2,4", first);
        check(json!([{"succeededCount": 2, "succeededIndexes": "0,2-4"}]), "1,2,5-9", None);
        let rules = json!([{"succeededIndexes": "0"}, {"succeededCount": 2}]);
        check(rules.clone(), "3,4", Some("Matched rules at index 1"));
        check(rules, "0,4", first);
        check(json!([{"succeededIndexes": "12-14", "succeededCount": 0}]), "1", None);
        assert_eq!(success(&Value::Null, 10, &Indexes::parse("0-9", 10)), None);
    }
}
