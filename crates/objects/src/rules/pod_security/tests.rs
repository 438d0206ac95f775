//! Labels and versions; the texts of the checks are compared with recordings.

use serde_json::json;

use super::*;

fn policy(labels: &Value) -> (Policy, Vec<String>) {
    let mut causes = Causes::default();
    let policy = Policy::of_labels(labels, &mut causes);
    let causes = causes.0.into_iter().map(|c| format!("{}: {}", c.field, c.message)).collect();
    (policy, causes)
}

#[test]
fn enforced_level_also_applies_to_warnings() {
    let (policy, causes) = policy(&json!({
        "pod-security.kubernetes.io/enforce": "baseline",
        "pod-security.kubernetes.io/enforce-version": "v1.25",
    }));
    assert!(causes.is_empty());
    assert_eq!(policy.enforce.to_string(), "baseline:v1.25");
    assert_eq!(policy.warn, policy.enforce);
}

#[test]
fn labels_that_cannot_be_read_are_restricted_and_reported() {
    let (policy, causes) = policy(&json!({
        "pod-security.kubernetes.io/enforce": "nonsense",
        "pod-security.kubernetes.io/warn": "nonsense",
        "pod-security.kubernetes.io/warn-version": "1.2",
    }));
    assert_eq!(policy.enforce.level, Level::Restricted);
    assert_eq!(policy.warn.level, Level::Privileged);
    assert_eq!(
        causes[0],
        "metadata.labels[pod-security.kubernetes.io/enforce]: Invalid value: \"nonsense\": must be \
         one of privileged, baseline, restricted"
    );
    assert_eq!(causes.len(), 3);
}

#[test]
fn a_version_has_the_checks_of_its_time() {
    let spec = json!({
        "os": {"name": "windows"},
        "containers": [{"name": "c"}],
        "securityContext": {"runAsNonRoot": true, "sysctls": [{"name": "net.ipv4.tcp_rmem"}]},
    });
    let reasons = |minor| {
        let standard = Standard { level: Level::Restricted, version: Version::Minor(minor) };
        let violations = evaluate(standard, &Value::Null, &spec);
        violations.into_iter().map(|violation| violation.reason).collect::<Vec<_>>()
    };
    assert_eq!(reasons(32), Vec::<&str>::new());
    assert_eq!(reasons(25), ["forbidden sysctls"]);
    assert_eq!(
        reasons(22),
        [
            "forbidden sysctls",
            "allowPrivilegeEscalation != false",
            "unrestricted capabilities",
            "seccompProfile"
        ]
    );
}
