//! Ages, and cells that no recording shows.

use serde_json::json;

use super::*;
use crate::catalog;

#[test]
fn durations_keep_to_two_units() {
    for (seconds, text) in [
        (-2, "<invalid>"),
        (-1, "0s"),
        (0, "0s"),
        (119, "119s"),
        (120, "2m"),
        (125, "2m5s"),
        (599, "9m59s"),
        (600, "10m"),
        (10_799, "179m"),
        (10_800, "3h"),
        (11_000, "3h3m"),
        (28_800, "8h"),
        (172_799, "47h"),
        (172_800, "2d"),
        (180_000, "2d2h"),
        (691_199, "7d23h"),
        (691_200, "8d"),
        (63_071_999, "729d"),
        (63_072_000, "2y"),
        (64_072_000, "2y11d"),
        (252_288_000, "8y"),
        (i64::MAX, "292471208677y"),
    ] {
        assert_eq!(human_duration(seconds), text, "{seconds}");
    }
}

fn check(kind: (&str, &str), object: &Value, expected: &Value) {
    let resource = catalog::of_kind(kind.0, kind.1).unwrap();
    let now = Timestamp::parse("2026-01-01T01:00:00Z").unwrap();
    let mut object = object.clone();
    object["metadata"]["name"] = "x".into();
    object["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z".into();
    let made = cells(resource, &object, now);
    assert_eq!(made.len(), columns(resource).len());
    assert_eq!(&Value::Array(made), expected);
}

#[test]
fn a_quota_shows_requests_and_limits_apart() {
    let status = json!({"hard": {"pods": "2", "limits.cpu": "3", "requests.cpu": "1"}, "used": {"pods": "1"}});
    let cells = json!(["x", "pods: 1/2, requests.cpu: 0/1", "limits.cpu: 0/3", "60m"]);
    check(("v1", "ResourceQuota"), &json!({"status": status}), &cells);
}

#[test]
fn an_event_is_shown_alike_in_both_groups() {
    let core = json!({
        "involvedObject": {"kind": "Pod", "name": "p", "fieldPath": "spec.containers{c}"},
        "source": {"component": "kubelet", "host": "n"}, "reason": "R", "message": " m\n",
        "firstTimestamp": "2026-01-01T00:59:00Z", "lastTimestamp": null, "type": "Normal", "count": 3,
    });
    let cells = json!([
        "60s",
        "Normal",
        "R",
        "pod/p",
        "spec.containers{c}",
        "kubelet, n",
        "m",
        "60s",
        3,
        "x"
    ]);
    check(("v1", "Event"), &core, &cells);
    let newer = json!({
        "regarding": {"kind": "Node"}, "reportingController": "c", "reason": "R", "note": "m",
        "eventTime": "2026-01-01T00:59:00.000000Z", "type": "Normal",
        "series": {"count": 5, "lastObservedTime": "2026-01-01T00:59:30.000000Z"},
    });
    let cells = json!(["30s", "Normal", "R", "node", "", "c", "m", "60s", 5, "x"]);
    check(("events.k8s.io/v1", "Event"), &newer, &cells);
}

#[test]
fn job_cells_show_completions_and_duration() {
    let job = |conditions: Value, spec: Value, status: Value| {
        let mut job = json!({"spec": spec, "status": status});
        job["status"]["conditions"] = conditions;
        job["spec"]["selector"] = json!({"matchLabels": {"a": "b"}});
        job["spec"]["template"]["spec"]["containers"] = json!([{"name": "c", "image": "i"}]);
        job
    };
    let done = job(
        json!([{"type": "Complete", "status": "True"}]),
        json!({"completions": 2}),
        json!({"succeeded": 2, "startTime": "2026-01-01T00:00:00Z", "completionTime": "2026-01-01T00:03:20Z"}),
    );
    check(
        ("batch/v1", "Job"),
        &done,
        &json!(["x", "Complete", "2/2", "3m20s", "60m", "c", "i", "a=b"]),
    );
    let queue = job(json!([]), json!({"parallelism": 3}), json!({}));
    check(
        ("batch/v1", "Job"),
        &queue,
        &json!(["x", "Running", "0/1 of 3", "", "60m", "c", "i", "a=b"]),
    );
}

#[test]
fn a_balanced_service_shows_every_way_in() {
    let service = json!({
        "spec": {"type": "LoadBalancer", "clusterIPs": ["10.0.0.1"], "externalIPs": ["1.1.1.1"], "ports": []},
        "status": {"loadBalancer": {"ingress": [{"ip": "9.9.9.9"}, {"hostname": "h"}]}},
    });
    let cells =
        json!(["x", "LoadBalancer", "10.0.0.1", "9.9.9.9,h,1.1.1.1", "<none>", "60m", "<none>"]);
    check(("v1", "Service"), &service, &cells);
}

#[test]
fn other_kinds_have_their_columns() {
    let revisions = catalog::find("apps", "v1", "controllerrevisions").unwrap();
    // Upstream declares the number of a revision as text.
    assert_eq!((columns(revisions)[2].name, columns(revisions)[2].shape), ("Revision", "string"));
    check(("v1", "LimitRange"), &json!({}), &json!(["x", "2026-01-01T00:00:00Z"]));
    check(
        ("policy/v1", "PodDisruptionBudget"),
        &json!({"spec": {"maxUnavailable": "30%"}, "status": {"disruptionsAllowed": 1}}),
        &json!(["x", "N/A", "30%", 1, "60m"]),
    );
    let owner =
        json!({"controller": true, "apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d"});
    check(
        ("apps/v1", "ControllerRevision"),
        &json!({"metadata": {"ownerReferences": [owner]}, "revision": 4}),
        &json!(["x", "daemonset.apps/d", 4, "60m"]),
    );
    check(
        ("scheduling.k8s.io/v1", "PriorityClass"),
        &json!({"value": 7, "preemptionPolicy": "Never"}),
        &json!(["x", 7, false, "60m", "Never"]),
    );
}

#[test]
fn nothing_in_an_object_makes_a_table_fail() {
    let now = Timestamp::new(0, 0);
    for resource in catalog::RESOURCES {
        for object in [json!(null), json!({"spec": 1, "status": [1], "metadata": "x"}), json!([])] {
            assert_eq!(cells(resource, &object, now).len(), columns(resource).len());
        }
    }
}

#[test]
fn a_later_watch_event_has_no_columns() {
    let pods = catalog::find("", "v1", "pods").unwrap();
    let pod = json!({"metadata": {"name": "p", "resourceVersion": "5"}});
    let form = TableOptions { with_columns: false, ..TableOptions::default() };
    let table = of_object(pods, &pod, form, Timestamp::new(0, 0));
    assert!(table["columnDefinitions"].is_null());
    assert_eq!(table["metadata"], json!({"resourceVersion": "5"}));
    assert_eq!(table["rows"][0]["object"]["kind"], "PartialObjectMetadata");
}
