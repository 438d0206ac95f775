//! Daemon sets, deployments, replica sets and controller revisions. Their pod templates are
//! validated by [`super::super::pod`].

use serde_json::{Map, Value, json};

use super::super::checks::{
    self, IMMUTABLE, at_most_all, default, default_text, is_same, is_some_of, non_negative,
    number_or_percent, part_mut, render_selector, selects, unchanged,
};
use super::super::{RuleContext, meta, names, pod};
use crate::catalog::Resource;
use crate::cursor::{BadValue, Causes, Cursor};

/// The annotation in which `v1` keeps the generation of a daemon set's template, which newer code
/// ignores.
pub(crate) const TEMPLATE_GENERATION: &str = "deprecated.daemonset.template.generation";
const MISMATCH: &str = "`selector` does not match template `labels`";

/// Sets the defaults of the pod template, and then runs `then` on the spec.
fn with_spec(object: &mut Value, then: impl FnOnce(&mut Map<String, Value>)) {
    let Some(spec) = part_mut(object, "spec") else { return };
    if let Some(template) = spec.get_mut("template") {
        pod::set_template_defaults(template);
    }
    then(spec);
}

pub(super) fn set_replica_set_defaults(set: &mut Value) {
    with_spec(set, |spec| default(spec, "replicas", 1));
}

pub(super) fn set_deployment_defaults(deployment: &mut Value) {
    with_spec(deployment, |spec| {
        default(spec, "replicas", 1);
        set_strategy(
            spec,
            "strategy",
            &[("maxUnavailable", "25%".into()), ("maxSurge", "25%".into())],
        );
        default(spec, "revisionHistoryLimit", 10);
        default(spec, "progressDeadlineSeconds", 600);
    });
}

pub(super) fn set_daemon_set_defaults(set: &mut Value) {
    with_spec(set, |spec| {
        set_strategy(
            spec,
            "updateStrategy",
            &[("maxUnavailable", 1.into()), ("maxSurge", 0.into())],
        );
        default(spec, "revisionHistoryLimit", 10);
    });
}

/// Sets the default strategy: a rolling update with these bounds.
fn set_strategy(spec: &mut Map<String, Value>, field: &str, bounds: &[(&str, Value)]) {
    let strategy = spec.entry(field).or_insert_with(|| json!({}));
    let Some(strategy) = strategy.as_object_mut() else { return };
    default_text(strategy, "type", "RollingUpdate");
    if strategy["type"] != "RollingUpdate" {
        // Bounds that have no effect must still be numbers.
        let given = strategy.get_mut("rollingUpdate").and_then(Value::as_object_mut);
        if let Some(rolling) = given {
            for (bound, _) in bounds {
                default(rolling, bound, 0);
            }
        }
        return;
    }
    let rolling = strategy.entry("rollingUpdate").or_insert_with(|| json!({}));
    if rolling.is_null() {
        *rolling = json!({});
    }
    if let Some(rolling) = rolling.as_object_mut() {
        for (bound, value) in bounds {
            default(rolling, bound, value.clone());
        }
    }
}

fn template_generation(set: &Value) -> i64 {
    let text = set["metadata"]["annotations"][TEMPLATE_GENERATION].as_str();
    text.and_then(|text| text.parse().ok()).unwrap_or(0)
}

fn set_template_generation(set: &mut Value, generation: i64) {
    if let Some(meta) = meta::metadata_mut(set) {
        let annotations = meta.entry("annotations").or_insert_with(|| json!({}));
        if let Some(annotations) = annotations.as_object_mut() {
            annotations.insert(TEMPLATE_GENERATION.to_owned(), generation.to_string().into());
        }
    }
}

pub(super) fn prepare_daemon_set(set: &mut Value) {
    let generation = template_generation(set).max(1);
    set_template_generation(set, generation);
}

/// Increments the template generation if the template has changed.
pub(super) fn prepare_daemon_set_update(set: &mut Value, old: &Value) {
    let before = template_generation(old).max(1);
    let changed = !is_same(&set["spec"]["template"], &old["spec"]["template"]);
    set_template_generation(set, if changed { before.saturating_add(1) } else { before });
}

/// Validates the template: the selector matches its labels, and it restarts always.
fn validate_template(
    spec: &Cursor<'_>,
    old_spec: &Value,
    kind: &str,
    ctx: &RuleContext<'_>,
    causes: &mut Causes,
) {
    let template = spec.field("template");
    pod::validate_template(&template, &old_spec["template"], ctx, causes);
    let pod = template.field("spec");
    let policy = pod.field("restartPolicy");
    if policy.text() != "Always" {
        causes.not_supported_as(&policy, policy.text(), &["Always"]);
    }
    let deadline = pod.field("activeDeadlineSeconds");
    if deadline.is_set() {
        let detail = format!("activeDeadlineSeconds in {kind} is not Supported");
        causes.forbidden(&deadline, &detail);
    }
}

fn report_mismatch(spec: &Cursor<'_>, causes: &mut Causes) {
    let template = spec.field("template");
    let meta = template.field("metadata");
    causes.invalid(&meta.field("labels"), MISMATCH);
}

/// Validates the selector and the template of replica sets and deployments.
fn validate_selected_template(
    spec: &Cursor<'_>,
    old_spec: &Value,
    ctx: &RuleContext<'_>,
    causes: &mut Causes,
) {
    let selector = spec.field("selector");
    if !selector.is_set() {
        causes.required(&selector, "");
    }
    let read = checks::selector(&selector, causes);
    let empty =
        selector.field("matchLabels").is_empty() && selector.field("matchExpressions").is_empty();
    if selector.is_set() && empty {
        let shown = render_selector(selector.value());
        causes.invalid_as(&selector, shown, "empty selector is invalid for deployment");
    }
    let Some(read) = read else {
        let shown = render_selector(selector.value());
        return causes.invalid_as(&selector, shown, "invalid label selector");
    };
    let labels = &spec.value()["template"]["metadata"]["labels"];
    let means_all = read.as_ref().is_some_and(crate::selector::LabelSelector::is_empty);
    if !means_all && !selects(read.as_ref(), labels) {
        report_mismatch(spec, causes);
    }
    validate_template(spec, old_spec, "ReplicaSet", ctx, causes);
}

pub(super) fn validate_replica_set(
    set: &Cursor<'_>,
    old_spec: &Value,
    ctx: &RuleContext<'_>,
    causes: &mut Causes,
) {
    let spec = set.field("spec");
    non_negative(&spec.field("replicas"), causes);
    non_negative(&spec.field("minReadySeconds"), causes);
    validate_selected_template(&spec, old_spec, ctx, causes);
}

pub(super) fn validate_deployment(
    deployment: &Cursor<'_>,
    old_spec: &Value,
    ctx: &RuleContext<'_>,
    causes: &mut Causes,
) {
    let spec = deployment.field("spec");
    non_negative(&spec.field("replicas"), causes);
    validate_selected_template(&spec, old_spec, ctx, causes);
    validate_strategy(&spec.field("strategy"), causes);
    let ready = spec.field("minReadySeconds");
    non_negative(&ready, causes);
    non_negative(&spec.field("revisionHistoryLimit"), causes);
    let deadline = spec.field("progressDeadlineSeconds");
    non_negative(&deadline, causes);
    if deadline.int().is_some_and(|seconds| seconds <= ready.int().unwrap_or(0)) {
        causes.invalid(&deadline, "must be greater than minReadySeconds");
    }
}

/// Renders a strategy as Go does.
fn render_strategy(strategy: &Value) -> BadValue {
    let rolling = match &strategy["rollingUpdate"] {
        Value::Null => "null".to_owned(),
        rolling => format!(
            r#"{{"MaxUnavailable":{},"MaxSurge":{}}}"#,
            rolling["maxUnavailable"], rolling["maxSurge"]
        ),
    };
    BadValue::literal(format!(r#"{{"Type":{},"RollingUpdate":{rolling}}}"#, strategy["type"]))
}

fn validate_strategy(strategy: &Cursor<'_>, causes: &mut Causes) {
    let rolling = strategy.field("rollingUpdate");
    match strategy.field("type").text() {
        "Recreate" if rolling.is_set() => {
            let detail = "may not be specified when strategy `type` is 'Recreate'";
            causes.forbidden(&rolling, detail);
        }
        "Recreate" => {}
        "RollingUpdate" => {
            let (unavailable, surge) = (rolling.field("maxUnavailable"), rolling.field("maxSurge"));
            number_or_percent(&unavailable, causes);
            number_or_percent(&surge, causes);
            if !is_some_of(&unavailable) && !is_some_of(&surge) {
                causes.invalid(&unavailable, "may not be 0 when `maxSurge` is 0");
            }
            at_most_all(&unavailable, causes);
        }
        _ => {
            let shown = render_strategy(strategy.value());
            causes.not_supported_as(strategy, shown, &["Recreate", "RollingUpdate"]);
        }
    }
}

pub(super) fn validate_daemon_set(
    set: &Cursor<'_>,
    old_spec: &Value,
    ctx: &RuleContext<'_>,
    causes: &mut Causes,
) {
    let spec = set.field("spec");
    let selector = spec.field("selector");
    if let Some(read) = checks::selector(&selector, causes)
        && !selects(read.as_ref(), &set.value()["spec"]["template"]["metadata"]["labels"])
    {
        report_mismatch(&spec, causes);
    }
    let empty =
        selector.field("matchLabels").is_empty() && selector.field("matchExpressions").is_empty();
    if selector.is_set() && empty {
        let shown = render_selector(selector.value());
        causes.invalid_as(&selector, shown, "empty selector is invalid for daemonset");
    }
    validate_template(&spec, old_spec, "DaemonSet", ctx, causes);
    non_negative(&spec.field("minReadySeconds"), causes);
    validate_update_strategy(&spec.field("updateStrategy"), causes);
    non_negative(&spec.field("revisionHistoryLimit"), causes);
}

fn validate_update_strategy(strategy: &Cursor<'_>, causes: &mut Causes) {
    let rolling = strategy.field("rollingUpdate");
    match strategy.field("type").text() {
        "OnDelete" => {}
        "RollingUpdate" if !rolling.is_set() => causes.required(&rolling, ""),
        "RollingUpdate" => {
            let (unavailable, surge) = (rolling.field("maxUnavailable"), rolling.field("maxSurge"));
            for bound in [&unavailable, &surge] {
                number_or_percent(bound, causes);
            }
            for bound in [&unavailable, &surge] {
                at_most_all(bound, causes);
            }
            match (is_some_of(&unavailable), is_some_of(&surge)) {
                (true, true) => {
                    causes.invalid(&surge, "may not be set when maxUnavailable is non-zero");
                }
                (false, false) => {
                    causes.required(&unavailable, "cannot be 0 when maxSurge is 0");
                }
                _ => {}
            }
        }
        _ => {
            let shown = render_strategy(strategy.value());
            causes.not_supported_as(strategy, shown, &["RollingUpdate", "OnDelete"]);
        }
    }
}

/// Checks that the selector is unchanged: the workload would lose its pods.
pub(super) fn validate_selector_kept(object: &Cursor<'_>, old: &Cursor<'_>, causes: &mut Causes) {
    let (spec, old_spec) = (object.field("spec"), old.field("spec"));
    let (selector, old_selector) = (spec.field("selector"), old_spec.field("selector"));
    if !is_same(selector.value(), old_selector.value()) {
        causes.invalid_as(&selector, render_selector(selector.value()), IMMUTABLE);
    }
}

fn validate_counts(status: &Cursor<'_>, fields: &[&str], causes: &mut Causes) {
    for field in fields {
        non_negative(&status.field(field), causes);
    }
}

/// Checks that no number of pods is above the total.
fn validate_parts(status: &Cursor<'_>, parts: &[&str], causes: &mut Causes) {
    let count = |field: &str| status.value()[field].as_i64().unwrap_or(0);
    for part in parts {
        if count(part) > count("replicas") {
            let detail = "cannot be greater than status.replicas";
            causes.invalid_as(&status.field(part), count(part), detail);
        }
    }
    if count("availableReplicas") > count("readyReplicas") {
        let at = status.field("availableReplicas");
        let shown = count("availableReplicas");
        causes.invalid_as(&at, shown, "cannot be greater than readyReplicas");
    }
}

fn validate_collisions(status: &Cursor<'_>, old: &Cursor<'_>, causes: &mut Causes) {
    let count = status.field("collisionCount");
    let before = old.value()["status"]["collisionCount"].as_i64();
    if before.is_some_and(|before| count.int().unwrap_or(0) < before) {
        causes.invalid_as(&count, count.int().unwrap_or(0), "cannot be decremented");
    }
}

pub(super) fn validate_replica_set_status(set: &Cursor<'_>, causes: &mut Causes) {
    let status = set.field("status");
    let counts = [
        "replicas",
        "fullyLabeledReplicas",
        "readyReplicas",
        "availableReplicas",
        "observedGeneration",
        "terminatingReplicas",
    ];
    validate_counts(&status, &counts, causes);
    validate_parts(
        &status,
        &["fullyLabeledReplicas", "readyReplicas", "availableReplicas"],
        causes,
    );
}

pub(super) fn validate_deployment_status(
    deployment: &Cursor<'_>,
    old: &Cursor<'_>,
    causes: &mut Causes,
) {
    let status = deployment.field("status");
    let counts = [
        "observedGeneration",
        "replicas",
        "updatedReplicas",
        "readyReplicas",
        "availableReplicas",
        "unavailableReplicas",
        "terminatingReplicas",
        "collisionCount",
    ];
    validate_counts(&status, &counts, causes);
    validate_parts(&status, &["updatedReplicas", "readyReplicas", "availableReplicas"], causes);
    validate_collisions(&status, old, causes);
}

pub(super) fn validate_daemon_set_status(set: &Cursor<'_>, old: &Cursor<'_>, causes: &mut Causes) {
    let status = set.field("status");
    let counts = [
        "currentNumberScheduled",
        "numberMisscheduled",
        "desiredNumberScheduled",
        "numberReady",
        "observedGeneration",
        "updatedNumberScheduled",
        "numberAvailable",
        "numberUnavailable",
        "collisionCount",
    ];
    validate_counts(&status, &counts, causes);
    validate_collisions(&status, old, causes);
}

pub(super) fn validate_revision(revision: &Cursor<'_>, causes: &mut Causes) {
    if !revision.field("data").is_set() {
        causes.required(&revision.field("data"), "data is mandatory");
    }
    non_negative(&revision.field("revision"), causes);
}

pub(super) fn validate_revision_change(
    revision: &Cursor<'_>,
    old: &Cursor<'_>,
    causes: &mut Causes,
) {
    unchanged(&revision.field("data"), &old.field("data"), causes);
}

/// Removes disabled fields from a template; `old` is the stored object on update, else null.
pub(super) fn prepare_template(object: &mut Value, old: &Value) {
    let template = object.get_mut("spec").and_then(|spec| spec.get_mut("template"));
    if let Some(template) = template {
        pod::drop_template_fields(template, &old["spec"]["template"]);
    }
}

/// Reports whether an update needs new warnings: for a daemon set if the template changed, for
/// others if the generation changed.
fn is_looked_at_again(resource: &Resource, object: &Value, old: &Value) -> bool {
    match resource.kind {
        "DaemonSet" => !is_same(&object["spec"]["template"], &old["spec"]["template"]),
        _ => object["metadata"]["generation"] != old["metadata"]["generation"],
    }
}

pub(super) fn warnings(resource: &Resource, object: &Value, old: Option<&Value>) -> Vec<String> {
    if old.is_some_and(|old| !is_looked_at_again(resource, object, old)) {
        return Vec::new();
    }
    let mut warnings = Vec::new();
    let name = object["metadata"]["name"].as_str().unwrap_or_default();
    let problems = names::dns_label(name);
    if old.is_none() && resource.kind != "DaemonSet" && !problems.is_empty() {
        warnings.push(format!(
            "metadata.name: this is used in Pod names and hostnames, which can result in \
             surprising behavior; a DNS label is recommended: [{}]",
            problems.join(" ")
        ));
    }
    let spec = &object["spec"];
    let number = |field: &str| spec[field].as_i64().unwrap_or(0);
    if resource.kind == "Job"
        && spec["completionMode"] == "Indexed"
        && number("completions") > 100_000
        && number("parallelism") > 10_000
    {
        warnings.push(
            "In Indexed Jobs with a number of completions higher than 10^5 and a parallelism \
             higher than 10^4, Kubernetes might not be able to track completedIndexes when a big \
             number of indexes fail"
                .to_owned(),
        );
    }
    let top = Cursor::top(object, "");
    let spec = top.field("spec");
    warnings.extend(pod::template_warnings(&spec.field("template")));
    warnings
}
