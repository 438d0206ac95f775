//! Questions about access, which are answered and never stored.

use serde_json::{Map, Value};

use crate::cursor::{Causes, Cursor};

/// Whether a review of access asks one thing, and says about whom.
#[must_use]
pub fn validate(kind: &str, review: &Value) -> Causes {
    let mut causes = Causes::default();
    let top = Cursor::top(review, "");
    let (spec, metadata) = (top.field("spec"), top.field("metadata"));
    let (resource, other) = (spec.field("resourceAttributes"), spec.field("nonResourceAttributes"));
    match (resource.is_set(), other.is_set()) {
        (true, true) => {
            causes.invalid(&other, "cannot be specified in combination with resourceAttributes");
        }
        (false, false) => {
            let why =
                "exactly one of nonResourceAttributes or resourceAttributes must be specified";
            causes.invalid(&resource, why);
        }
        _ => {}
    }
    let is_own = kind == "SelfSubjectAccessReview";
    let user = spec.field("user");
    if !is_own && user.text().is_empty() && spec.field("groups").is_empty() {
        let empty = Value::from("");
        causes.invalid(&user.at_value(&empty), "at least one of user or group must be specified");
    }
    let is_local = kind == "LocalSubjectAccessReview";
    let none = Map::new();
    let mut given = metadata.value().as_object().unwrap_or(&none).iter();
    // Who made it is noted by the server, not by the client.
    let is_free = |field: &str| field == "managedFields" || (is_local && field == "namespace");
    if given.any(|(field, value)| !value.is_null() && !is_free(field)) {
        let except = if is_local { " except for namespace" } else { "" };
        causes.invalid(&metadata, &format!("must be empty{except}"));
    }
    if is_local {
        let namespace = resource.field("namespace");
        if resource.is_set() && namespace.text() != metadata.field("namespace").text() {
            let given = Value::from(namespace.text());
            causes.invalid(&namespace.at_value(&given), "must match metadata.namespace");
        }
        if other.is_set() {
            causes.invalid(&other, "disallowed on this kind of request");
        }
    }
    causes
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn one_thing_is_asked_about_somebody() {
        let pods = json!({"verb": "get", "resource": "pods", "namespace": "a"});
        let path = json!({"verb": "get", "path": "/metrics"});
        let check = |kind: &str, review: Value, wrong: &[(&str, &str)]| {
            let causes = validate(kind, &review);
            let found: Vec<(&str, &str)> = causes
                .0
                .iter()
                .map(|cause| {
                    let (_, why) = cause.message.rsplit_once(": ").unwrap();
                    (cause.field.as_str(), why)
                })
                .collect();
            assert_eq!(found, wrong, "{kind} {review}");
        };
        let own = "SelfSubjectAccessReview";
        check(own, json!({"spec": {"resourceAttributes": pods}}), &[]);
        check(own, json!({"spec": {"nonResourceAttributes": path}}), &[]);
        check(
            own,
            json!({"spec": {}}),
            &[(
                "spec.resourceAttributes",
                "exactly one of nonResourceAttributes or resourceAttributes must be specified",
            )],
        );
        check(
            own,
            json!({"spec": {"resourceAttributes": pods, "nonResourceAttributes": path}}),
            &[(
                "spec.nonResourceAttributes",
                "cannot be specified in combination with resourceAttributes",
            )],
        );
        check(
            own,
            json!({"metadata": {"name": "n"}, "spec": {"resourceAttributes": pods}}),
            &[("metadata", "must be empty")],
        );
        let of = "SubjectAccessReview";
        check(of, json!({"spec": {"resourceAttributes": pods, "groups": ["g"]}}), &[]);
        check(
            of,
            json!({"spec": {"resourceAttributes": pods}}),
            &[("spec.user", "at least one of user or group must be specified")],
        );
        let local = "LocalSubjectAccessReview";
        let spec = json!({"resourceAttributes": pods, "user": "u"});
        check(local, json!({"metadata": {"namespace": "a"}, "spec": spec}), &[]);
        check(
            local,
            json!({"metadata": {"namespace": "b"}, "spec": spec}),
            &[("spec.resourceAttributes.namespace", "must match metadata.namespace")],
        );
        check(
            local,
            json!({"metadata": {"namespace": "a"}, "spec": {"nonResourceAttributes": path, "user": "u"}}),
            &[("spec.nonResourceAttributes", "disallowed on this kind of request")],
        );
    }
}
