//! Jobs: the selector and labels generated from the job's uid, indexed completion, failure and
//! success policies, and allowed changes. [`super::job_status`] has the rules of the status.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use super::super::checks::{
    self, IMMUTABLE, default, domain_prefixed_path, is_same, non_negative, part_mut,
    qualified_name, render_selector, selects, unchanged,
};
use super::super::{RuleContext, meta, names, pod};
use super::job_status::indexes;
use crate::cursor::{Causes, Cursor};
use crate::go;

const UID_LABELS: [&str; 2] = ["controller-uid", "batch.kubernetes.io/controller-uid"];
const NAME_LABELS: [&str; 2] = ["job-name", "batch.kubernetes.io/job-name"];
const INDEXED: &str = "Indexed";

const INDEXED_PARALLELISM_LIMIT: i64 = 100_000;
const FAILED_INDEXES_LIMIT: i64 = 100_000;
/// Above this many completions the other numbers have lower limits, so that the lists of indexes in
/// the status stay small.
const MANY_COMPLETIONS: i64 = 100_000;
const LIMIT_FOR_MANY: i64 = 10_000;
const RULES_LIMIT: usize = 20;
const EXIT_CODES_LIMIT: usize = 255;
const PATTERNS_LIMIT: usize = 20;
const MANAGED_BY_LIMIT: usize = 63;
const INDEXES_LIMIT: usize = 64 << 10;

pub(super) fn set_defaults(job: &mut Value) {
    let Some(spec) = part_mut(job, "spec") else { return };
    if let Some(template) = spec.get_mut("template") {
        pod::set_template_defaults(template);
    }
    if !spec.contains_key("completions") && !spec.contains_key("parallelism") {
        default(spec, "completions", 1);
    }
    default(spec, "parallelism", 1);
    let per_index = spec.contains_key("backoffLimitPerIndex");
    default(spec, "backoffLimit", if per_index { i32::MAX } else { 6 });
    default(spec, "completionMode", "NonIndexed");
    default(spec, "suspend", false);
    default(spec, "manualSelector", false);
    let has_policy = spec.contains_key("podFailurePolicy");
    default(
        spec,
        "podReplacementPolicy",
        if has_policy { "Failed" } else { "TerminatingOrFailed" },
    );
    let rules = spec.get_mut("podFailurePolicy").and_then(|policy| policy.get_mut("rules"));
    for rule in rules.and_then(Value::as_array_mut).into_iter().flatten() {
        let patterns = rule.get_mut("onPodConditions").and_then(Value::as_array_mut);
        for pattern in patterns.into_iter().flatten().filter_map(Value::as_object_mut) {
            checks::default_text(pattern, "status", "True");
        }
    }
    copy_labels(job);
}

/// A job without labels gets those of its pods.
fn copy_labels(job: &mut Value) {
    let labels = job["spec"]["template"]["metadata"].get("labels").cloned();
    let Some(labels) = labels.filter(|l| l.as_object().is_some_and(|map| !map.is_empty())) else {
        return;
    };
    if let Some(meta) = meta::metadata_mut(job)
        && meta.get("labels").and_then(Value::as_object).is_none_or(Map::is_empty)
    {
        meta.insert("labels".to_owned(), labels);
    }
}

/// Labels the pods with the job's name and uid, and selects them by the uid, unless the user does
/// that. The job's name and uid must be known.
pub(super) fn prepare_create(job: &mut Value) {
    if job["spec"]["manualSelector"] != true {
        let name = job["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        let uid = job["metadata"]["uid"].as_str().unwrap_or_default().to_owned();
        if let Some(spec) = part_mut(job, "spec") {
            mark(spec, &name, &uid);
        }
    }
    copy_labels(job);
}

/// Returns a new job without the pod labels that [`prepare_create`] generated: upstream copies them
/// to the job when it is read, so they are not validated on create.
pub(super) fn without_made_labels(job: &Value) -> Value {
    let mut job = job.clone();
    let template = job["spec"]["template"]["metadata"]["labels"].clone();
    let labels = job.pointer_mut("/metadata/labels").and_then(Value::as_object_mut);
    if let Some(labels) = labels
        && template.as_object() == Some(labels)
    {
        for key in UID_LABELS.iter().chain(&NAME_LABELS) {
            labels.remove(*key);
        }
    }
    job
}

fn mark(spec: &mut Map<String, Value>, name: &str, uid: &str) {
    let template = spec.entry("template").or_insert_with(|| json!({}));
    if let Some(template) = part_mut(template, "metadata") {
        let labels = template.entry("labels").or_insert_with(|| json!({}));
        if let Some(labels) = labels.as_object_mut() {
            for (keys, value) in [(NAME_LABELS, name), (UID_LABELS, uid)] {
                for key in keys {
                    labels.entry(key).or_insert_with(|| value.into());
                }
            }
        }
    }
    let selector = spec.entry("selector").or_insert_with(|| json!({}));
    if selector.is_null() {
        *selector = json!({});
    }
    if let Some(labels) = part_mut(selector, "matchLabels") {
        labels.entry(UID_LABELS[1]).or_insert_with(|| uid.into());
    }
}

pub(super) fn validate(
    job: &Cursor<'_>,
    old_spec: &Value,
    ctx: &RuleContext<'_>,
    causes: &mut Causes,
) {
    let spec = job.field("spec");
    let is_new = old_spec.is_null();
    if is_new {
        validate_marks(job, causes);
    }
    validate_spec(&spec, old_spec, ctx, causes);
    let selector = spec.field("selector");
    if !selector.is_set() {
        causes.required(&selector, "");
    }
    let labels = &job.value()["spec"]["template"]["metadata"]["labels"];
    if let Some(read) = checks::selector(&selector, causes)
        && !selects(read.as_ref(), labels)
    {
        let template = spec.field("template");
        let meta = template.field("metadata");
        let at = meta.field("labels");
        causes.invalid(&at, "`selector` does not match template `labels`");
    }
    if is_new {
        validate_host_names(job, causes);
    }
}

/// Checks that the labels and selector of [`prepare_create`] are unchanged.
fn validate_marks(job: &Cursor<'_>, causes: &mut Causes) {
    let (meta, spec) = (job.field("metadata"), job.field("spec"));
    let selector = spec.field("selector");
    if spec.field("manualSelector").is_true() || !selector.is_set() {
        return;
    }
    let (name, uid) = (meta.field("name"), meta.field("uid"));
    if uid.text().is_empty() {
        causes.required(&uid, "");
    }
    let template = spec.field("template");
    let template_meta = template.field("metadata");
    let labels = template_meta.field("labels");
    let expected = [
        (UID_LABELS[0], uid.text()),
        (NAME_LABELS[0], name.text()),
        (UID_LABELS[1], uid.text()),
        (NAME_LABELS[1], name.text()),
    ];
    for (key, value) in expected {
        let at = labels.key(key);
        let detail = format!("must be '{value}'");
        if !at.is_set() {
            causes.required(&at, &detail);
        } else if at.text() != value {
            causes.invalid_as(&at, labels.value(), &detail);
        }
    }
    let made: Map<String, Value> =
        expected.iter().map(|(key, value)| ((*key).to_owned(), (*value).into())).collect();
    if let Ok(read) = crate::selector::LabelSelector::from_value(selector.value())
        && !selects(Some(&read), &Value::Object(made))
    {
        let shown = render_selector(selector.value());
        causes.invalid_as(&selector, shown, "`selector` not auto-generated");
    }
}

/// Checks the host names of an indexed job's pods, which contain the index.
fn validate_host_names(job: &Cursor<'_>, causes: &mut Causes) {
    let spec = &job.value()["spec"];
    let completions = spec["completions"].as_i64().unwrap_or(0);
    if spec["completionMode"] != INDEXED || completions <= 0 {
        return;
    }
    let meta = job.field("metadata");
    let name = meta.field("name");
    let last = format!("{}-{}", name.text(), completions - 1);
    if !names::dns_label(&last).is_empty() {
        let detail = format!("will not able to create pod with invalid DNS label: {last}");
        causes.invalid(&name, &detail);
    }
}

fn validate_spec(spec: &Cursor<'_>, old_spec: &Value, ctx: &RuleContext<'_>, causes: &mut Causes) {
    for field in [
        "parallelism",
        "completions",
        "activeDeadlineSeconds",
        "backoffLimit",
        "ttlSecondsAfterFinished",
        "backoffLimitPerIndex",
        "maxFailedIndexes",
    ] {
        non_negative(&spec.field(field), causes);
    }
    let per_index = spec.field("backoffLimitPerIndex");
    if spec.field("maxFailedIndexes").is_set() && !per_index.is_set() {
        causes.required(&per_index, "when maxFailedIndexes is specified");
    }
    let manager = spec.field("managedBy");
    if manager.is_set() {
        domain_prefixed_path(&manager, causes);
        if manager.text().len() > MANAGED_BY_LIMIT {
            causes.too_long(&manager, MANAGED_BY_LIMIT);
        }
    }
    validate_mode(spec, causes);
    if spec.field("podFailurePolicy").is_set() {
        validate_failure_policy(spec, causes);
    }
    let success = spec.field("successPolicy");
    if success.is_set() {
        if spec.field("completionMode").text() == INDEXED {
            validate_success_policy(spec, causes);
        } else {
            causes.invalid(&success, "requires indexed completion mode");
        }
    }
    validate_replacement(spec, causes);
    let template = spec.field("template");
    pod::validate_template(&template, &old_spec["template"], ctx, causes);
    let pod = template.field("spec");
    let policy = pod.field("restartPolicy");
    match policy.text() {
        "Always" | "" => causes.required(&policy, "valid values: \"OnFailure\", \"Never\""),
        "OnFailure" if spec.field("podFailurePolicy").is_set() => {
            causes
                .invalid(&policy, "only \"Never\" is supported when podFailurePolicy is specified");
        }
        "OnFailure" | "Never" => {}
        _ => causes.not_supported(&policy, &["OnFailure", "Never"]),
    }
}

fn validate_mode(spec: &Cursor<'_>, causes: &mut Causes) {
    let mode = spec.field("completionMode");
    let (parallelism, completions) = (spec.field("parallelism"), spec.field("completions"));
    let (per_index, failed) = (spec.field("backoffLimitPerIndex"), spec.field("maxFailedIndexes"));
    match mode.text() {
        INDEXED => {}
        "NonIndexed" => {
            for field in [&per_index, &failed] {
                if field.is_set() {
                    causes.invalid(field, "requires indexed completion mode");
                }
            }
            return;
        }
        _ => return causes.not_supported(&mode, &["NonIndexed", INDEXED]),
    }
    let above = |at: &Cursor<'_>, limit: i64| at.int().is_some_and(|number| number > limit);
    if !completions.is_set() {
        causes.required(&completions, "when completion mode is Indexed");
    }
    if above(&parallelism, INDEXED_PARALLELISM_LIMIT) {
        let detail = format!(
            "must be less than or equal to {INDEXED_PARALLELISM_LIMIT} when completion mode is \
             {INDEXED}"
        );
        causes.invalid(&parallelism, &detail);
    }
    if completions.int().is_some_and(|completions| above(&failed, completions)) {
        causes.invalid(&failed, "must be less than or equal to completions");
    }
    if above(&failed, FAILED_INDEXES_LIMIT) {
        let detail = format!("must be less than or equal to {FAILED_INDEXES_LIMIT}");
        causes.invalid(&failed, &detail);
    }
    if !above(&completions, MANY_COMPLETIONS) || !per_index.is_set() {
        return;
    }
    if !failed.is_set() {
        let detail = format!("must be specified when completions is above {MANY_COMPLETIONS}");
        causes.required(&failed, &detail);
    }
    for field in [&parallelism, &failed] {
        if above(field, LIMIT_FOR_MANY) {
            let detail = format!(
                "must be less than or equal to {LIMIT_FOR_MANY} when completions are above \
                 {MANY_COMPLETIONS} and used with backoff limit per index"
            );
            causes.invalid(field, &detail);
        }
    }
}

fn validate_replacement(spec: &Cursor<'_>, causes: &mut Causes) {
    let policy = spec.field("podReplacementPolicy");
    if !policy.is_set() || policy.text() == "Failed" {
        return;
    }
    if spec.field("podFailurePolicy").is_set() {
        causes.not_supported(&policy, &["Failed"]);
    } else if policy.text() != "TerminatingOrFailed" {
        causes.not_supported(&policy, &["Failed", "TerminatingOrFailed"]);
    }
}

/// Renders a list of texts like Go's `%q`.
fn quoted(values: &[&str]) -> String {
    let values: Vec<String> = values.iter().map(|value| go::quoted(value)).collect();
    format!("[{}]", values.join(" "))
}

/// Checks that a value is one of several; a missing value has an error of its own.
fn one_of(at: &Cursor<'_>, values: &[&str], causes: &mut Causes) {
    if at.text().is_empty() {
        causes.required(at, &format!("valid values: {}", quoted(values)));
    } else if !values.contains(&at.text()) {
        causes.not_supported(at, values);
    }
}

fn validate_failure_policy(spec: &Cursor<'_>, causes: &mut Causes) {
    let policy = spec.field("podFailurePolicy");
    let rules = policy.field("rules");
    if rules.len() > RULES_LIMIT {
        causes.too_many(&rules, RULES_LIMIT);
    }
    let pod = &spec.value()["template"]["spec"];
    let containers: BTreeSet<&str> = ["containers", "initContainers"]
        .iter()
        .filter_map(|list| pod[*list].as_array())
        .flatten()
        .filter_map(|container| container["name"].as_str())
        .collect();
    for rule in rules.items() {
        let action = rule.field("action");
        if action.text() != "FailIndex" {
            one_of(&action, &["Count", "FailIndex", "FailJob", "Ignore"], causes);
        } else if !spec.field("backoffLimitPerIndex").is_set() {
            causes.invalid(&action, "requires the backoffLimitPerIndex to be set");
        }
        let (codes, conditions) = (rule.field("onExitCodes"), rule.field("onPodConditions"));
        if codes.is_set() {
            validate_exit_codes(&codes, &containers, causes);
        }
        if conditions.len() > PATTERNS_LIMIT {
            causes.too_many(&conditions, PATTERNS_LIMIT);
        }
        for pattern in conditions.items() {
            qualified_name(&pattern.field("type"), causes);
            one_of(&pattern.field("status"), &["False", "True", "Unknown"], causes);
        }
        let detail = match (codes.is_set(), !conditions.is_empty()) {
            (true, true) => "specifying both OnExitCodes and OnPodConditions is not supported",
            (false, false) => "specifying one of OnExitCodes and OnPodConditions is required",
            _ => continue,
        };
        causes.add("FieldValueInvalid", rule.path(), format!("Invalid value: {detail}"));
    }
}

fn validate_exit_codes(codes: &Cursor<'_>, containers: &BTreeSet<&str>, causes: &mut Causes) {
    let operator = codes.field("operator");
    one_of(&operator, &["In", "NotIn"], causes);
    let container = codes.field("containerName");
    if container.is_set() && !containers.contains(container.text()) {
        let detail = "must be one of the container or initContainer names in the pod template";
        causes.invalid(&container, detail);
    }
    let values = codes.field("values");
    if values.is_empty() {
        causes.invalid(&values, "at least one value is required");
    } else if values.len() > EXIT_CODES_LIMIT {
        causes.too_many(&values, EXIT_CODES_LIMIT);
    }
    let mut seen = BTreeSet::new();
    for value in values.items() {
        let code = value.int().unwrap_or(0);
        if operator.text() == "In" && code == 0 {
            causes.invalid(&value, "must not be 0 for the In operator");
        }
        if !seen.insert(code) {
            causes.duplicate(&value);
        }
    }
    let numbers: Vec<i64> = values.items().filter_map(|value| value.int()).collect();
    if !numbers.is_sorted() {
        causes.invalid(&values, "must be ordered");
    }
}

fn validate_success_policy(spec: &Cursor<'_>, causes: &mut Causes) {
    let policy = spec.field("successPolicy");
    let rules = policy.field("rules");
    let completions = spec.field("completions").int().unwrap_or(0);
    if rules.is_empty() {
        let detail = "at least one rules must be specified when the successPolicy is specified";
        causes.required(&rules, detail);
    } else if rules.len() > RULES_LIMIT {
        causes.too_many(&rules, RULES_LIMIT);
    }
    for rule in rules.items() {
        let (which, count) = (rule.field("succeededIndexes"), rule.field("succeededCount"));
        if !which.is_set() && !count.is_set() {
            let detail = "at least one of succeededCount or succeededIndexes must be specified";
            causes.required(&rule, detail);
        }
        let mut total = 0;
        if which.is_set() {
            if which.text().len() > INDEXES_LIMIT {
                causes.too_long(&which, INDEXES_LIMIT);
            }
            match indexes(which.text(), completions) {
                Ok(ranges) => total = ranges.iter().map(|(first, last)| last - first + 1).sum(),
                Err(error) => {
                    causes.invalid(&which, &format!("error parsing succeededIndexes: {error}"));
                }
            }
        }
        let Some(number) = count.int() else { continue };
        non_negative(&count, causes);
        if number > completions {
            let detail = format!(
                "must be less than or equal to {completions} (the number of specified completions)"
            );
            causes.invalid(&count, &detail);
        }
        if which.is_set() && number > total {
            let detail = format!(
                "must be less than or equal to {total} (the number of indexes in the specified \
                 succeededIndexes field)"
            );
            causes.invalid(&count, &detail);
        }
    }
}

/// Checks that an update changes only how fast a job runs, not its work.
pub(super) fn validate_change(job: &Cursor<'_>, old: &Cursor<'_>, causes: &mut Causes) {
    let (spec, old_spec) = (job.field("spec"), old.field("spec"));
    let (completions, before) = (spec.field("completions"), old_spec.field("completions"));
    if spec.field("completionMode").text() != INDEXED {
        unchanged(&completions, &before, causes);
    } else if completions.is_set()
        && completions.int() != before.int()
        && completions.int() != spec.field("parallelism").int()
    {
        causes.invalid(&completions, "can only be modified in tandem with spec.parallelism");
    }
    let (selector, old_selector) = (spec.field("selector"), old_spec.field("selector"));
    if !is_same(selector.value(), old_selector.value()) {
        causes.invalid_as(&selector, render_selector(selector.value()), IMMUTABLE);
    }
    validate_template_kept(job, old, causes);
    for field in
        ["completionMode", "podFailurePolicy", "backoffLimitPerIndex", "managedBy", "successPolicy"]
    {
        unchanged(&spec.field(field), &old_spec.field(field), causes);
    }
}

/// Checks that the template is unchanged. While the job is suspended and has no pods, scheduling
/// directives and resources may change.
fn validate_template_kept(job: &Cursor<'_>, old: &Cursor<'_>, causes: &mut Causes) {
    let spec = job.field("spec");
    let template = spec.field("template");
    let mut before = old.value()["spec"]["template"].clone();
    let status = &old.value()["status"];
    let rests =
        status.get("startTime").is_none() || super::job_status::holds(old.value(), "Suspended");
    let suspended = old.value()["spec"]["suspend"] == true;
    if suspended && rests && status["active"].as_i64().unwrap_or(0) == 0 {
        allow_directives(&mut before, template.value());
        allow_resources(&mut before, template.value());
    }
    if !is_same(template.value(), &before) {
        causes.invalid(&template, IMMUTABLE);
    }
}

/// Copies the resources of containers to the old template.
fn allow_resources(before: &mut Value, after: &Value) {
    for list in ["containers", "initContainers"] {
        let before = before.get_mut("spec").and_then(|spec| spec.get_mut(list));
        let before = before.and_then(Value::as_array_mut).into_iter().flatten();
        let after = after["spec"][list].as_array().into_iter().flatten();
        for (before, after) in before.zip(after) {
            take(before, after, "resources");
        }
    }
}

/// Copies a field, or removes it if it is absent.
fn take(target: &mut Value, source: &Value, field: &str) {
    let Some(target) = target.as_object_mut() else { return };
    match source.get(field) {
        Some(value) => {
            target.insert(field.to_owned(), value.clone());
        }
        None => {
            target.remove(field);
        }
    }
}

/// Copies the fields that may differ to the old template.
fn allow_directives(before: &mut Value, after: &Value) {
    if let Some(meta) = part_mut(before, "metadata") {
        let mut held = Value::Object(std::mem::take(meta));
        take(&mut held, &after["metadata"], "labels");
        take(&mut held, &after["metadata"], "annotations");
        if let Value::Object(held) = held {
            *meta = held;
        }
    }
    let Some(pod) = before.get_mut("spec") else { return };
    for field in ["nodeSelector", "tolerations", "schedulingGates"] {
        take(pod, &after["spec"], field);
    }
    let after = &after["spec"]["affinity"];
    let affinity = pod.get("affinity").cloned().unwrap_or(Value::Null);
    if after.is_null() && affinity.is_null() {
        return;
    }
    let mut affinity = if affinity.is_object() { affinity } else { json!({}) };
    take(&mut affinity, after, "nodeAffinity");
    let gone = after.is_null() && affinity.as_object().is_some_and(Map::is_empty);
    take(pod, &json!({"affinity": affinity}), "affinity");
    if gone && let Some(pod) = pod.as_object_mut() {
        pod.remove("affinity");
    }
}
