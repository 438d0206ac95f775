//! Access reviews, which are answered and never stored.

use serde_json::{Map, Value};

use crate::cursor::{BadValue, Causes, Cursor};
use crate::rules::meta;
use crate::selector::{FieldSelector, LabelSelector};

/// Validates an access review.
#[must_use]
pub fn validate(kind: &str, review: &Value) -> Causes {
    let mut causes = Causes::default();
    let top = Cursor::top(review, "");
    let (spec, metadata) = (top.field("spec"), top.field("metadata"));
    let (resource, other) = (spec.field("resourceAttributes"), spec.field("nonResourceAttributes"));
    if resource.is_set() == other.is_set() {
        let why = "exactly one of nonResourceAttributes or resourceAttributes must be specified";
        causes.invalid_as(&spec, render_path(&other), why);
    }
    if resource.is_set() && !other.is_set() {
        validate_field_selector(&resource.field("fieldSelector"), &mut causes);
        validate_label_selector(&resource.field("labelSelector"), &mut causes);
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
    // The server sets the manager, not the client.
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
            let why = "disallowed on this kind of request";
            causes.invalid_as(&other, render_path(&other), why);
        }
    }
    causes
}

/// Renders access to a path as upstream does: with the names of its Go fields.
fn render_path(attributes: &Cursor<'_>) -> BadValue {
    if !attributes.is_set() {
        return BadValue::literal("null".to_owned());
    }
    let text = |field: &str| Value::from(attributes.field(field).text());
    let (path, verb) = (text("path"), text("verb"));
    BadValue::literal(format!("{{\"Path\":{path},\"Verb\":{verb}}}"))
}

/// Checks that a selector is given as text or as requirements, and not as both.
fn validate_form(selector: &Cursor<'_>, causes: &mut Causes) {
    let (raw, requirements) = (selector.field("rawSelector"), selector.field("requirements"));
    match (raw.text().is_empty(), requirements.is_empty()) {
        (false, false) => {
            causes.invalid(&raw, "may not specified at the same time as requirements")
        }
        (true, true) => {
            let path = selector.path();
            let why = format!("when {path} is specified, requirements or rawSelector is required");
            causes.required(&requirements, &why);
        }
        _ => {}
    }
}

/// An unknown operator comes from a newer client and is not an error: such a requirement is
/// ignored, see [`ignored_selectors`].
fn validate_field_selector(selector: &Cursor<'_>, causes: &mut Causes) {
    if !selector.is_set() {
        return;
    }
    validate_form(selector, causes);
    for requirement in selector.field("requirements").items() {
        let key = requirement.field("key");
        if key.text().is_empty() {
            causes.required(&key, "must be specified");
        }
        meta::validate_value_count(&requirement, causes);
    }
}

fn validate_label_selector(selector: &Cursor<'_>, causes: &mut Causes) {
    if !selector.is_set() {
        return;
    }
    validate_form(selector, causes);
    for requirement in selector.field("requirements").items() {
        meta::validate_value_count(&requirement, causes);
        meta::validate_requirement_names(&requirement, false, causes);
    }
}

/// Returns the `evaluationError` of a review whose selectors are not all understood. Such a
/// selector is ignored, wholly or in part, and the review is answered.
#[must_use]
pub fn ignored_selectors(attributes: &Value) -> Option<String> {
    let (fields, labels) = (&attributes["fieldSelector"], &attributes["labelSelector"]);
    let raw = |selector: &'_ Value| selector["rawSelector"].as_str().unwrap_or_default().to_owned();
    let is_field = |requirement: &Value| {
        matches!(requirement["operator"].as_str(), Some("In" | "NotIn"))
            && requirement["values"].as_array().is_some_and(|values| values.len() == 1)
    };
    let is_label = |requirement: &Value| {
        let known = ["In", "NotIn", "Exists", "DoesNotExist"];
        requirement["operator"].as_str().is_some_and(|operator| known.contains(&operator))
    };
    let mut ignored = Vec::new();
    for (name, selector, is_text, is_known) in [
        (
            "fieldSelector",
            fields,
            FieldSelector::parse(&raw(fields)).is_ok(),
            &is_field as &dyn Fn(&Value) -> bool,
        ),
        ("labelSelector", labels, LabelSelector::parse(&raw(labels)).is_ok(), &is_label),
    ] {
        let requirements = selector["requirements"].as_array().map(Vec::as_slice);
        let requirements = requirements.unwrap_or_default();
        let known = requirements.iter().filter(|requirement| is_known(requirement)).count();
        if is_text && known == requirements.len() {
            continue;
        }
        let partially = if known > 0 { "partially " } else { "" };
        ignored
            .push(format!("spec.resourceAttributes.{name} {partially}ignored due to parse error"));
    }
    (!ignored.is_empty()).then(|| ignored.join("; "))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn review_has_one_resource_or_path_and_a_subject() {
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
                "spec",
                "exactly one of nonResourceAttributes or resourceAttributes must be specified",
            )],
        );
        check(
            own,
            json!({"spec": {"resourceAttributes": pods, "nonResourceAttributes": path}}),
            &[(
                "spec",
                "exactly one of nonResourceAttributes or resourceAttributes must be specified",
            )],
        );
        check(
            own,
            json!({"metadata": {"name": "n"}, "spec": {"resourceAttributes": pods}}),
            &[("metadata", "must be empty")],
        );
        let kind = "SubjectAccessReview";
        check(kind, json!({"spec": {"resourceAttributes": pods, "groups": ["g"]}}), &[]);
        check(
            kind,
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
    #[test]
    fn recorded_selectors_are_refused_or_ignored_as_upstream_does() {
        let check = |selector: &str, value: Value, wrong: &[&str], ignored: Option<&str>| {
            let attributes = json!({"verb": "list", "resource": "pods", selector: value});
            let review = json!({"spec": {"user": "alice", "resourceAttributes": attributes}});
            let causes = validate("SubjectAccessReview", &review);
            let at = format!("spec.resourceAttributes.{selector}");
            let found: Vec<String> = causes
                .0
                .iter()
                .map(|cause| format!("{}: {}", cause.field.replace(&at, "S"), cause.message))
                .map(|text| text.replace(&at, "S"))
                .collect();
            assert_eq!(found, wrong, "{selector} {value}");
            if wrong.is_empty() {
                let found = ignored_selectors(&attributes).map(|text| text.replace(&at, "S"));
                assert_eq!(found.as_deref(), ignored, "{selector} {value}");
            }
        };
        let whole = Some("S ignored due to parse error");
        for selector in ["fieldSelector", "labelSelector"] {
            let required = "S.requirements: Required value: when S is specified, requirements or \
                            rawSelector is required";
            for empty in [json!({}), json!({"requirements": []}), json!({"rawSelector": ""})] {
                check(selector, empty, &[required], None);
            }
            let one = json!({"key": "a", "operator": "In", "values": ["b"]});
            check(selector, json!({"requirements": [one]}), &[], None);
            check(selector, json!({"rawSelector": "metadata.name=x"}), &[], None);
            check(
                selector,
                json!({"rawSelector": "a=b", "requirements": [one]}),
                &["S.rawSelector: Invalid value: \"a=b\": may not specified at the same time as \
                   requirements"],
                None,
            );
            check(
                selector,
                json!({"requirements": [{"key": "a", "operator": "In"}]}),
                &[
                    "S.requirements[0].values: Required value: must be specified when `operator` is \
                   'In' or 'NotIn'",
                ],
                None,
            );
            check(
                selector,
                json!({"requirements": [{"key": "a", "operator": "Exists", "values": ["x"]}]}),
                &["S.requirements[0].values: Forbidden: may not be specified when `operator` is \
                   'Exists' or 'DoesNotExist'"],
                None,
            );
            let unknown = json!({"key": "a", "operator": "Bogus", "values": ["x"]});
            check(selector, json!({"requirements": [unknown]}), &[], whole);
            let partly = Some("S partially ignored due to parse error");
            check(selector, json!({"requirements": [one, unknown]}), &[], partly);
        }
        let exists = json!({"requirements": [{"key": "a", "operator": "Exists"}]});
        check("fieldSelector", exists.clone(), &[], whole);
        check("labelSelector", exists, &[], None);
        let two = json!({"requirements": [{"key": "a", "operator": "In", "values": ["x", "y"]}]});
        check("fieldSelector", two.clone(), &[], whole);
        check("labelSelector", two, &[], None);
        check("fieldSelector", json!({"rawSelector": "=,,=!"}), &[], None);
        check("labelSelector", json!({"rawSelector": "=,,=!"}), &[], whole);
        let nameless = json!({"requirements": [{"key": "", "operator": "In", "values": ["x"]}]});
        let missing = "S.requirements[0].key: Required value: must be specified";
        check("fieldSelector", nameless, &[missing], None);
    }

    #[test]
    fn attributes_of_a_path_are_shown_as_upstream_prints_them() {
        let review = json!({"spec": {
            "resourceAttributes": {}, "nonResourceAttributes": {"path": "/x", "verb": "get"},
        }});
        let causes = validate("SelfSubjectAccessReview", &review);
        assert_eq!(
            causes.0[0].message,
            "Invalid value: {\"Path\":\"/x\",\"Verb\":\"get\"}: exactly one of \
             nonResourceAttributes or resourceAttributes must be specified"
        );
        let causes = validate("SelfSubjectAccessReview", &json!({"spec": {}}));
        assert_eq!(
            causes.0[0].message,
            "Invalid value: null: exactly one of nonResourceAttributes or resourceAttributes must \
             be specified"
        );
    }
}
