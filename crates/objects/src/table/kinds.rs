//! The cells of every kind but pods.

use serde_json::Value;

use super::{age, pod};
use crate::catalog::Resource;
use crate::selector::LabelSelector;
use crate::timestamp::Timestamp;

pub(super) fn cells(resource: &Resource, object: &Value, now: Timestamp) -> Vec<Value> {
    let (spec, status) = (&object["spec"], &object["status"]);
    let name = object["metadata"]["name"].clone();
    let created = &object["metadata"]["creationTimestamp"];
    let age = Value::from(age::since(created, now));
    match (resource.group, resource.kind) {
        ("", "Pod") => pod::cells(object, now),
        ("", "Node") => node(object, name, age),
        ("" | "events.k8s.io", "Event") => event(object, now),
        ("", "Service") => service(object, name, age),
        ("", "Namespace") => vec![name, text(&status["phase"]).into(), age],
        ("", "ConfigMap") => {
            vec![name, (len(&object["data"]) + len(&object["binaryData"])).into(), age]
        }
        ("", "Secret") => {
            vec![name, text(&object["type"]).into(), len(&object["data"]).into(), age]
        }
        ("", "ServiceAccount") => vec![name, age],
        ("", "ResourceQuota") => {
            let (requests, limits) = quota(status);
            vec![name, requests.into(), limits.into(), age]
        }
        ("apps", "DaemonSet") => {
            let mut cells = vec![
                name,
                count(&status["desiredNumberScheduled"]),
                count(&status["currentNumberScheduled"]),
                count(&status["numberReady"]),
                count(&status["updatedNumberScheduled"]),
                count(&status["numberAvailable"]),
                labels(&spec["template"]["spec"]["nodeSelector"]).into(),
                age,
            ];
            cells.extend(template(spec));
            cells
        }
        ("apps", "Deployment") => {
            let ready = format!("{}/{}", count(&status["readyReplicas"]), count(&spec["replicas"]));
            let mut cells = vec![
                name,
                ready.into(),
                count(&status["updatedReplicas"]),
                count(&status["availableReplicas"]),
                age,
            ];
            cells.extend(template(spec));
            cells
        }
        ("apps", "ReplicaSet") => {
            let mut cells = vec![
                name,
                count(&spec["replicas"]),
                count(&status["replicas"]),
                count(&status["readyReplicas"]),
                age,
            ];
            cells.extend(template(spec));
            cells
        }
        ("apps", "ControllerRevision") => {
            vec![name, controller(object).into(), count(&object["revision"]), age]
        }
        ("batch", "Job") => {
            let mut cells = vec![
                name,
                job_status(object).into(),
                completions(spec, status).into(),
                job_duration(status, now).into(),
                age,
            ];
            cells.extend(template(spec));
            cells
        }
        ("policy", "PodDisruptionBudget") => vec![
            name,
            number_or_share(&spec["minAvailable"]).into(),
            number_or_share(&spec["maxUnavailable"]).into(),
            count(&status["disruptionsAllowed"]),
            age,
        ],
        ("scheduling.k8s.io", "PriorityClass") => vec![
            name,
            count(&object["value"]),
            (object["globalDefault"] == true).into(),
            age,
            text(&object["preemptionPolicy"]).into(),
        ],
        ("node.k8s.io", "RuntimeClass") => vec![name, text(&object["handler"]).into(), age],
        ("coordination.k8s.io", "Lease") => {
            vec![name, text(&spec["holderIdentity"]).into(), age]
        }
        _ => vec![name, created.clone()],
    }
}

/// The cells of the `scale` of a workload.
pub(super) fn scale(scale: &Value, now: Timestamp) -> Vec<Value> {
    vec![
        scale["metadata"]["name"].clone(),
        count(&scale["spec"]["replicas"]),
        count(&scale["status"]["replicas"]),
        age::since(&scale["metadata"]["creationTimestamp"], now).into(),
    ]
}

/// Returns a text, or an empty one.
pub(super) fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// Returns a text, or `<none>`.
pub(super) fn or_none(value: &Value) -> Value {
    or(text(value), "<none>").into()
}

fn or<'a>(text: &'a str, otherwise: &'a str) -> &'a str {
    if text.is_empty() { otherwise } else { text }
}

/// Returns a number, or 0.
fn count(value: &Value) -> Value {
    value.as_i64().unwrap_or(0).into()
}

fn len(value: &Value) -> usize {
    value.as_object().map_or(0, serde_json::Map::len)
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

/// `a=b,c=d`.
fn labels(map: &Value) -> String {
    let Some(map) = map.as_object().filter(|map| !map.is_empty()) else {
        return "<none>".to_owned();
    };
    let mut pairs: Vec<_> =
        map.iter().map(|(key, value)| format!("{key}={}", text(value))).collect();
    pairs.sort_unstable();
    pairs.join(",")
}

/// Renders a structured selector as the text of a query.
fn selector(value: &Value) -> String {
    if value.is_null() {
        return "<none>".to_owned();
    }
    match LabelSelector::from_value(value) {
        Ok(selector) if selector.is_empty() => "<none>".to_owned(),
        Ok(selector) => selector.to_string(),
        Err(_) => "<error>".to_owned(),
    }
}

/// Returns the wide columns of kinds with a pod template: containers, images, selector.
fn template(spec: &Value) -> [Value; 3] {
    let containers = list(&spec["template"]["spec"]["containers"]);
    let joined = |field: &str| {
        let texts: Vec<&str> = containers.iter().map(|c| text(&c[field])).collect();
        Value::from(texts.join(","))
    };
    [joined("name"), joined("image"), selector(&spec["selector"]).into()]
}

fn node(object: &Value, name: Value, age: Value) -> Vec<Value> {
    let (status, system) = (&object["status"], &object["status"]["nodeInfo"]);
    let ready = list(&status["conditions"]).iter().find(|c| c["type"] == "Ready");
    let mut word = match ready {
        Some(condition) if condition["status"] == "True" => "Ready",
        Some(_) => "NotReady",
        None => "Unknown",
    }
    .to_owned();
    if object["spec"]["unschedulable"] == true {
        word.push_str(",SchedulingDisabled");
    }
    let address = |kind: &str| {
        let found = list(&status["addresses"]).iter().find(|a| a["type"] == kind);
        found.map_or_else(|| "<none>".into(), |address| address["address"].clone())
    };
    let kernel = match (text(&system["kernelVersion"]), text(&system["architecture"])) {
        ("", _) => "<unknown>".to_owned(),
        (kernel, "") => kernel.to_owned(),
        (kernel, architecture) => format!("{kernel} ({architecture})"),
    };
    vec![
        name,
        word.into(),
        roles(&object["metadata"]["labels"]).into(),
        age,
        text(&system["kubeletVersion"]).into(),
        address("InternalIP"),
        address("ExternalIP"),
        or(text(&system["osImage"]), "<unknown>").into(),
        kernel.into(),
        or(text(&system["containerRuntimeVersion"]), "<unknown>").into(),
    ]
}

fn roles(labels: &Value) -> String {
    let labels = labels.as_object().into_iter().flatten();
    let role = |(key, value): (&'_ String, &'_ Value)| match key.as_str() {
        "kubernetes.io/role" => Some(text(value).to_owned()),
        key => key.strip_prefix("node-role.kubernetes.io/").map(str::to_owned),
    };
    let mut roles: Vec<_> = labels.filter_map(role).filter(|role| !role.is_empty()).collect();
    roles.sort_unstable();
    roles.dedup();
    or(&roles.join(","), "<none>").to_owned()
}

fn event(event: &Value, now: Timestamp) -> Vec<Value> {
    // The two groups have different names for the same fields.
    let either = |core: &'static str, events: &'static str| {
        if event[core].is_null() { &event[events] } else { &event[core] }
    };
    let age = |time: &Value| age::since(time, now);
    let known = |time: &Value| time.is_string();
    let first_time = either("firstTimestamp", "deprecatedFirstTimestamp");
    let first = if known(first_time) { age(first_time) } else { age(&event["eventTime"]) };
    let last_time = either("lastTimestamp", "deprecatedLastTimestamp");
    let mut last = if known(last_time) { age(last_time) } else { first.clone() };
    let mut times = either("count", "deprecatedCount").as_i64().unwrap_or(0);
    if event["series"].is_object() {
        last = age(&event["series"]["lastObservedTime"]);
        times = event["series"]["count"].as_i64().unwrap_or(0);
    } else if times == 0 {
        times = 1;
    }
    let about = either("involvedObject", "regarding");
    let mut object = text(&about["kind"]).to_lowercase();
    if !text(&about["name"]).is_empty() {
        object = format!("{object}/{}", text(&about["name"]));
    }
    let source = either("source", "deprecatedSource");
    let reporter = either("reportingComponent", "reportingController");
    let component = or(text(&source["component"]), text(reporter));
    let host = or(text(&source["host"]), text(&event["reportingInstance"]));
    let source =
        if host.is_empty() { component.to_owned() } else { format!("{component}, {host}") };
    vec![
        last.into(),
        text(&event["type"]).into(),
        text(&event["reason"]).into(),
        object.into(),
        text(&about["fieldPath"]).into(),
        source.into(),
        text(either("message", "note")).trim().into(),
        first.into(),
        times.into(),
        event["metadata"]["name"].clone(),
    ]
}

fn service(object: &Value, name: Value, age: Value) -> Vec<Value> {
    let spec = &object["spec"];
    let ports: Vec<String> = list(&spec["ports"]).iter().map(port).collect();
    vec![
        name,
        text(&spec["type"]).into(),
        or_none(&spec["clusterIPs"][0]),
        external(object).into(),
        or(&ports.join(","), "<none>").into(),
        age,
        labels(&spec["selector"]).into(),
    ]
}

fn port(port: &Value) -> String {
    let (number, protocol) = (count(&port["port"]), text(&port["protocol"]));
    match port["nodePort"].as_i64() {
        Some(node_port) if node_port > 0 => format!("{number}:{node_port}/{protocol}"),
        _ => format!("{number}/{protocol}"),
    }
}

fn external(service: &Value) -> String {
    let spec = &service["spec"];
    let given = list(&spec["externalIPs"]).iter().map(text);
    match text(&spec["type"]) {
        "ClusterIP" | "NodePort" => {
            let given: Vec<&str> = given.collect();
            or(&given.join(","), "<none>").to_owned()
        }
        "LoadBalancer" => {
            let points = list(&service["status"]["loadBalancer"]["ingress"]).iter();
            let mut addresses: Vec<&str> = points
                .map(|point| or(text(&point["ip"]), text(&point["hostname"])))
                .filter(|address| !address.is_empty())
                .collect();
            addresses.sort_unstable();
            addresses.dedup();
            addresses.extend(given);
            or(&addresses.join(","), "<pending>").to_owned()
        }
        "ExternalName" => text(&spec["externalName"]).to_owned(),
        _ => "<unknown>".to_owned(),
    }
}

fn quota(status: &Value) -> (String, String) {
    let (mut requests, mut limits) = (Vec::new(), Vec::new());
    let mut hard: Vec<_> = status["hard"].as_object().into_iter().flatten().collect();
    hard.sort_unstable_by_key(|(name, _)| name.as_str());
    for (name, hard) in hard {
        let used = or(text(&status["used"][name]), "0");
        let cell = format!("{name}: {used}/{}", text(hard));
        if name.starts_with("limits.") { limits.push(cell) } else { requests.push(cell) }
    }
    (requests.join(", "), limits.join(", "))
}

/// Returns `daemonset.apps/name` of the owner of a revision.
fn controller(revision: &Value) -> String {
    let owners = list(&revision["metadata"]["ownerReferences"]);
    let Some(owner) = owners.iter().find(|owner| owner["controller"] == true) else {
        return "<none>".to_owned();
    };
    let group = text(&owner["apiVersion"]).split_once('/').map_or("", |(group, _)| group);
    let kind = text(&owner["kind"]).to_lowercase();
    let qualified = if group.is_empty() { kind } else { format!("{kind}.{group}") };
    format!("{qualified}/{}", text(&owner["name"]))
}

fn job_status(job: &Value) -> &'static str {
    let conditions = list(&job["status"]["conditions"]);
    let holds = |kind: &str| conditions.iter().any(|c| c["type"] == kind && c["status"] == "True");
    if holds("Complete") {
        "Complete"
    } else if holds("Failed") {
        "Failed"
    } else if job["metadata"]["deletionTimestamp"].is_string() {
        "Terminating"
    } else if holds("Suspended") {
        "Suspended"
    } else if holds("FailureTarget") {
        "FailureTarget"
    } else if holds("SuccessCriteriaMet") {
        "SuccessCriteriaMet"
    } else {
        "Running"
    }
}

fn completions(spec: &Value, status: &Value) -> String {
    let succeeded = count(&status["succeeded"]);
    match (spec["completions"].as_i64(), spec["parallelism"].as_i64().unwrap_or(0)) {
        (Some(completions), _) => format!("{succeeded}/{completions}"),
        (None, parallelism) if parallelism > 1 => format!("{succeeded}/1 of {parallelism}"),
        (None, _) => format!("{succeeded}/1"),
    }
}

fn job_duration(status: &Value, now: Timestamp) -> String {
    let time = |field: &str| Timestamp::parse(status[field].as_str()?).ok();
    match (time("startTime"), time("completionTime")) {
        (None, _) => String::new(),
        (Some(start), end) => age::human_duration(age::between(start, end.unwrap_or(now))),
    }
}

/// Renders an int-or-string, or `N/A`.
fn number_or_share(value: &Value) -> String {
    match value {
        Value::Number(number) => number.to_string(),
        Value::String(share) => share.clone(),
        _ => "N/A".to_owned(),
    }
}
