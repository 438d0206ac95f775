//! The scopes of a quota: it covers the objects that match all of them. A quota with scopes covers
//! only pods.

use serde_json::Value;

use crate::catalog::Resource;
use crate::pod::QosClass;
use crate::pod::resources::PodResources;

fn items(list: &Value) -> &[Value] {
    list.as_array().map(Vec::as_slice).unwrap_or_default()
}

pub(super) fn covers(quota: &Value, resource: &Resource, object: &Value) -> bool {
    let (scopes, selector) =
        (items(&quota["spec"]["scopes"]), &quota["spec"]["scopeSelector"]["matchExpressions"]);
    if scopes.is_empty() && items(selector).is_empty() {
        return true;
    }
    let is_pod = resource.group.is_empty() && resource.kind == "Pod";
    let by_name = |scope: &Value| fits(object, scope.as_str().unwrap_or_default(), "Exists", &[]);
    let by_expression = |expression: &Value| {
        let text = |field: &str| expression[field].as_str().unwrap_or_default();
        fits(object, text("scopeName"), text("operator"), items(&expression["values"]))
    };
    is_pod && scopes.iter().all(by_name) && items(selector).iter().all(by_expression)
}

fn fits(pod: &Value, scope: &str, operator: &str, values: &[Value]) -> bool {
    match scope {
        "Terminating" => is_terminating(pod),
        "NotTerminating" => !is_terminating(pod),
        "BestEffort" => is_best_effort(pod),
        "NotBestEffort" => !is_best_effort(pod),
        "PriorityClass" => {
            let class = pod["spec"]["priorityClassName"].as_str().filter(|name| !name.is_empty());
            let listed = || values.iter().any(|value| value.as_str() == class);
            match operator {
                "Exists" => class.is_some(),
                "DoesNotExist" => class.is_none(),
                "In" => class.is_some() && listed(),
                "NotIn" => class.is_none() || !listed(),
                _ => false,
            }
        }
        "CrossNamespacePodAffinity" => looks_elsewhere(pod),
        _ => false,
    }
}

/// The pod has a deadline.
fn is_terminating(pod: &Value) -> bool {
    pod["spec"]["activeDeadlineSeconds"].as_i64().is_some_and(|seconds| seconds >= 0)
}

fn is_best_effort(pod: &Value) -> bool {
    let reported = pod["status"]["qosClass"].as_str().and_then(QosClass::parse);
    let resources = PodResources::of_spec(&pod["spec"]).with_reported_class(reported);
    resources.qos_class() == QosClass::BestEffort
}

/// Reports whether the pod's affinity selects pods of other namespaces.
fn looks_elsewhere(pod: &Value) -> bool {
    let crosses = |term: &Value| {
        !items(&term["namespaces"]).is_empty() || term.get("namespaceSelector").is_some()
    };
    ["podAffinity", "podAntiAffinity"].iter().any(|kind| {
        let affinity = &pod["spec"]["affinity"][*kind];
        items(&affinity["requiredDuringSchedulingIgnoredDuringExecution"]).iter().any(crosses)
            || items(&affinity["preferredDuringSchedulingIgnoredDuringExecution"])
                .iter()
                .any(|weighted| crosses(&weighted["podAffinityTerm"]))
    })
}
