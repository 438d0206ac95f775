//! Pods and related objects: bindings, evictions and their budgets, and the order of several
//! errors.

use http::Method;
use serde_json::{Value, json};

use crate::{Cluster, pod};

const PODS: &str = "/api/v1/namespaces/default/pods";
const BUDGETS: &str = "/apis/policy/v1/namespaces/default/poddisruptionbudgets";

fn binding(meta: &Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Binding", "metadata": meta, "target": {"name": "n"}})
}

fn eviction(meta: &Value) -> Value {
    json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": meta})
}

#[tokio::test]
async fn binding_and_eviction_must_name_their_pod() {
    let cluster = Cluster::new().await;
    cluster.create(PODS, pod("p")).await;
    let other = "the namespace of the provided object does not match the namespace sent on the \
                 request";
    for (part, kind, of) in
        [("binding", "Binding", binding as fn(&Value) -> Value), ("eviction", "Eviction", eviction)]
    {
        let unnamed = format!("name in URL does not match name in {kind} object");
        for (meta, said) in [
            (json!({}), unnamed.as_str()),
            (json!({"name": "q"}), &unnamed),
            (json!({"name": "p", "namespace": "x"}), other),
        ] {
            let path = format!("{PODS}/p/{part}");
            let (code, answer) = cluster.send(Method::POST, &path, of(&meta)).await;
            assert_eq!((code, &answer["message"]), (400, &json!(said)), "{part} {meta}");
        }
    }
    let path = format!("{PODS}/p/eviction?dryRun=Some");
    let (code, answer) = cluster.send(Method::POST, &path, eviction(&json!({"name": "p"}))).await;
    assert_eq!((code, &answer["details"]["kind"]), (422, &json!("CreateOptions")), "{answer}");
}

#[tokio::test]
async fn binding_removes_the_nomination() {
    let cluster = Cluster::new().await;
    cluster.create(PODS, pod("p")).await;
    let nominated = json!({"status": {"nominatedNodeName": "m"}});
    let (code, answer) = cluster.send(Method::PATCH, &format!("{PODS}/p/status"), nominated).await;
    assert_eq!((code, &answer["status"]["nominatedNodeName"]), (200, &json!("m")));
    cluster.create(&format!("{PODS}/p/binding"), binding(&json!({"name": "p"}))).await;
    let bound = cluster.get(&format!("{PODS}/p")).await;
    assert_eq!(bound["spec"]["nodeName"], "n");
    assert_eq!(bound["status"]["nominatedNodeName"], Value::Null);
}

/// A server with a running pod on a node, and a budget of the same name that protects it.
async fn protected(ready: bool, spec: Value, status: Value) -> Cluster {
    let cluster = Cluster::new().await;
    let mut running = pod("p");
    running["metadata"]["labels"] = json!({"a": "b"});
    running["spec"]["nodeName"] = "n".into();
    cluster.create(PODS, running).await;
    let ready = if ready { "True" } else { "False" };
    let told = json!({"phase": "Running", "conditions": [{"type": "Ready", "status": ready}]});
    patch(&cluster, &format!("{PODS}/p/status"), json!({"status": told})).await;
    budget(&cluster, "p", spec, status).await;
    cluster
}

async fn budget(cluster: &Cluster, name: &str, mut spec: Value, status: Value) {
    spec["selector"] = json!({"matchLabels": {"a": "b"}});
    let budget = json!({"metadata": {"name": name}, "spec": spec});
    cluster.create(BUDGETS, budget).await;
    patch(cluster, &format!("{BUDGETS}/{name}/status"), json!({"status": status})).await;
}

async fn patch(cluster: &Cluster, path: &str, patch: Value) {
    let (code, answer) = cluster.send(Method::PATCH, path, patch).await;
    assert_eq!(code, 200, "{answer}");
}

async fn evict(cluster: &Cluster) -> (u16, Value) {
    let path = format!("{PODS}/p/eviction");
    cluster.send(Method::POST, &path, eviction(&json!({"name": "p"}))).await
}

fn counted(allowed: i64) -> Value {
    json!({
        "observedGeneration": 1, "disruptionsAllowed": allowed, "currentHealthy": 0,
        "desiredHealthy": 1, "expectedPods": 1,
    })
}

#[tokio::test]
async fn unready_pod_is_evicted_if_its_budget_allows() {
    let one = || json!({"minAvailable": 1});
    let always = || json!({"minAvailable": 1, "unhealthyPodEvictionPolicy": "AlwaysAllow"});
    for (ready, spec, expected) in
        [(false, always(), 201), (false, one(), 429), (true, always(), 429)]
    {
        let cluster = protected(ready, spec.clone(), counted(0)).await;
        assert_eq!(evict(&cluster).await.0, expected, "{ready} {spec}");
    }
}

#[tokio::test]
async fn exhausted_budget_sets_its_condition() {
    let cluster = protected(true, json!({"minAvailable": 1}), counted(1)).await;
    assert_eq!(evict(&cluster).await.0, 201);
    let spent = cluster.get(&format!("{BUDGETS}/p")).await;
    assert_eq!(spent["status"]["disruptionsAllowed"], 0);
    let told = &spent["status"]["conditions"][0];
    assert_eq!(
        (&told["type"], &told["status"], &told["reason"], &told["message"]),
        (&json!("DisruptionAllowed"), &json!("False"), &json!("InsufficientPods"), &json!(""))
    );
    assert_eq!(told["observedGeneration"], 1);
}

#[tokio::test]
async fn budget_reports_why_eviction_is_denied() {
    let no = "The disruption budget p does not allow evicting pods currently";
    for (healthy, reason, message, said) in [
        (0, "SyncFailed", "no scale", format!("{no} because it failed sync: no scale")),
        (
            1,
            "Else",
            "not now",
            "The disruption budget p needs 1 healthy pods and has 1 currently".to_owned(),
        ),
        (2, "Else", "not now", format!("{no} (Else): not now")),
        (2, "SyncFailed", "", no.to_owned()),
    ] {
        let mut status = counted(0);
        status["currentHealthy"] = healthy.into();
        status["conditions"] = json!([{
            "type": "DisruptionAllowed", "status": "False", "reason": reason, "message": message,
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }]);
        let cluster = protected(true, json!({"minAvailable": 1}), status).await;
        let (code, answer) = evict(&cluster).await;
        assert_eq!((code, &answer["details"]["causes"][0]["message"]), (429, &json!(said)));
    }
}

#[tokio::test]
async fn a_pod_with_two_budgets_is_not_evicted() {
    let one = || json!({"minAvailable": 1});
    let cluster = protected(true, one(), counted(1)).await;
    budget(&cluster, "q", one(), counted(1)).await;
    let (code, answer) = evict(&cluster).await;
    let said = "This pod has more than one PodDisruptionBudget, which the eviction subresource \
                does not support.";
    assert_eq!((code, &answer["message"]), (500, &json!(said)));
    assert_eq!((&answer["reason"], &answer["details"]), (&Value::Null, &Value::Null));
}

#[tokio::test]
async fn first_of_several_errors_is_reported() {
    let cluster = Cluster::new().await;
    let labels = json!({"pod-security.kubernetes.io/enforce": "baseline"});
    let namespace = json!({"metadata": {"name": "strict", "labels": labels}});
    cluster.create("/api/v1/namespaces", namespace).await;
    let limits = json!([{"type": "Container", "max": {"cpu": "1"}}]);
    let range = json!({"metadata": {"name": "l"}, "spec": {"limits": limits}});
    cluster.create("/api/v1/namespaces/strict/limitranges", range).await;
    let check = async |meta: Value, spec: Value, expected: u16, said: &str| {
        let mut pod = pod("p");
        pod["metadata"] = meta;
        for (field, value) in spec.as_object().unwrap() {
            pod["spec"][field] = value.clone();
        }
        let path = "/api/v1/namespaces/strict/pods";
        let (code, answer) = cluster.send(Method::POST, path, pod).await;
        let message = answer["message"].as_str().unwrap_or_default();
        assert_eq!(code, expected, "{answer}");
        assert!(message.starts_with(said), "{message}");
    };
    let container = json!({
        "name": "c", "image": "a:1", "resources": {"limits": {"cpu": "2"}},
        "securityContext": {"privileged": true},
    });
    let p = || json!({"name": "p"});
    let large = "pods \"p\" is forbidden: maximum cpu usage per Container is 1, but limit is 2";
    check(p(), json!({"containers": [container]}), 403, large).await;
    let host = "pods \"p\" is forbidden: violates PodSecurity";
    check(p(), json!({"hostNetwork": true, "overhead": {"cpu": "1"}}), 403, host).await;
    let bad = "Pod \"p\" is invalid: spec.overhead.limits[cpu]: Invalid value: \"-1\"";
    check(p(), json!({"overhead": {"cpu": "-1"}}), 422, bad).await;
    let unfounded = "pods \"p\" is forbidden: pod rejected: Pod Overhead set without";
    check(p(), json!({"overhead": {"cpu": "1"}}), 403, unfounded).await;
    let class = || json!({"priorityClassName": "none"});
    let none = |name: &str| {
        format!("pods {name:?} is forbidden: no PriorityClass with name none was found")
    };
    check(json!({"generateName": "a-"}), class(), 403, &none("a-")).await;
    check(json!({}), class(), 403, &none("Unknown")).await;
}

#[tokio::test]
async fn invalid_log_and_stream_options_are_rejected_first() {
    let cluster = Cluster::new().await;
    for (path, said) in [
        (
            "log?sinceTime=soon",
            "parsing time \"soon\" as \"2006-01-02T15:04:05Z07:00\": cannot parse \"soon\" as \
             \"2006\"",
        ),
        (
            "portforward?ports=80,x",
            "cannot convert to []int32: strconv.ParseUint: parsing \"x\": invalid syntax",
        ),
    ] {
        let path = format!("{PODS}/none/{path}");
        let (code, answer) = cluster.send(Method::GET, &path, Value::Null).await;
        assert_eq!((code, &answer["message"]), (400, &json!(said)));
    }
}

#[tokio::test]
async fn rejected_requests_include_warnings() {
    let cluster = Cluster::new().await;
    let labels = json!({"pod-security.kubernetes.io/enforce": "baseline"});
    let namespace = json!({"metadata": {"name": "strict", "labels": labels}});
    cluster.create("/api/v1/namespaces", namespace).await;
    let pods = "/api/v1/namespaces/strict/pods";
    let check = async |method: Method, path: &str, pod: Value, code: u16, said: &[&str]| {
        let reply = cluster.reply(method, path, pod).await;
        assert_eq!(
            (reply.status.as_u16(), reply.warnings),
            (code, said.iter().map(|said| (*said).to_owned()).collect())
        );
    };
    let old = "spec.nodeSelector[beta.kubernetes.io/os]: deprecated since v1.14; use \
               \"kubernetes.io/os\" instead";
    let mut refused = pod("p");
    refused["spec"]["nodeSelector"] = json!({"beta.kubernetes.io/os": "linux"});
    refused["spec"]["hostPID"] = true.into();
    check(Method::POST, pods, refused.clone(), 403, &[old]).await;
    refused["spec"]["odd"] = 1.into();
    let unknown = "unknown field \"spec.odd\"";
    check(Method::POST, pods, refused.clone(), 403, &[unknown, old]).await;
    // Invalid objects are not checked further.
    refused["spec"]["restartPolicy"] = "Sometimes".into();
    check(Method::POST, pods, refused, 422, &[unknown]).await;
    cluster.create(pods, pod("q")).await;
    let mut changed = pod("q");
    changed["spec"]["odd"] = 1.into();
    changed["spec"]["hostname"] = "h".into();
    let path = format!("{pods}/q");
    check(Method::PUT, &path, changed, 422, &[unknown]).await;
    let patch = json!({"spec": {"odd": 1, "hostname": "h"}});
    check(Method::PATCH, &path, patch, 422, &[unknown]).await;
}

#[tokio::test]
async fn unsupported_projected_sources_are_kept_and_validated() {
    let cluster = Cluster::new().await;
    let pods = "/api/v1/namespaces/default/pods";
    let with = |name: &str, source: Value| {
        let mut pod = pod(name);
        pod["spec"]["volumes"] = json!([{"name": "v", "projected": {"sources": [source]}}]);
        pod
    };
    let bundle = json!({"clusterTrustBundle": {"name": "roots", "path": "ca.pem"}});
    let certificate = json!({"podCertificate": {
        "signerName": "example.com/signer", "keyType": "ED25519", "credentialBundlePath": "cert.pem",
    }});
    for (name, source) in [("bundle", &bundle), ("certificate", &certificate)] {
        let created = cluster.create(pods, with(name, source.clone())).await;
        let kept = &created["spec"]["volumes"][0]["projected"]["sources"][0];
        let (field, given) = source.as_object().unwrap().iter().next().unwrap();
        for (key, value) in given.as_object().unwrap() {
            assert_eq!(&kept[field][key], value, "{created}");
        }
    }
    let field = "spec.volumes[0].projected.sources[0]";
    for (source, wrong) in [
        (
            json!({"clusterTrustBundle": {"path": "ca.pem"}}),
            format!(
                "{field}.clusterTrustBundle: Required value: either name or signerName must be \
                     specified"
            ),
        ),
        (
            json!({"podCertificate": {
                "signerName": "example.com/signer", "keyType": "DSA", "keyPath": "key.pem",
            }}),
            format!(
                "{field}.podCertificate.keyType: Unsupported value: \"DSA\": supported values: \
                     \"ECDSAP256\", \"ECDSAP384\", \"ECDSAP521\", \"ED25519\", \"RSA3072\", \
                     \"RSA4096\""
            ),
        ),
    ] {
        let (code, answer) = cluster.send(Method::POST, pods, with("p", source)).await;
        let message = format!("Pod \"p\" is invalid: {wrong}");
        assert_eq!((code, &answer["message"]), (422, &json!(message)));
    }
}

#[tokio::test]
async fn added_deadline_charges_the_terminating_quota() {
    let cluster = Cluster::new().await;
    let pods = "/api/v1/namespaces/default/pods";
    let quotas = "/api/v1/namespaces/default/resourcequotas";
    let quota = json!({"metadata": {"name": "q"}, "spec": {"hard": {"pods": "1"}, "scopes": ["Terminating"]}});
    cluster.create(quotas, quota).await;
    let status = json!({"status": {"hard": {"pods": "1"}, "used": {"pods": "0"}}});
    let path = format!("{quotas}/q");
    assert_eq!(cluster.send(Method::PATCH, &format!("{path}/status"), status).await.0, 200);
    let used = async || cluster.get(&path).await["status"]["used"]["pods"].clone();
    for name in ["a", "b"] {
        cluster.create(pods, pod(name)).await;
    }
    assert_eq!(used().await, "0");
    let deadline = json!({"spec": {"activeDeadlineSeconds": 60}});
    let dry = format!("{pods}/a?dryRun=All");
    assert_eq!(cluster.send(Method::PATCH, &dry, deadline.clone()).await.0, 200);
    assert_eq!(used().await, "0");
    let set = async |name: &str| {
        cluster.send(Method::PATCH, &format!("{pods}/{name}"), deadline.clone()).await
    };
    assert_eq!(set("a").await.0, 200);
    assert_eq!(used().await, "1");
    let (code, answer) = set("b").await;
    assert_eq!(code, 403, "{answer}");
    let message = "pods \"b\" is forbidden: exceeded quota: q, requested: pods=1, used: pods=1, \
                   limited: pods=1";
    assert_eq!(answer["message"], message);
    assert!(cluster.get(&format!("{pods}/b")).await["spec"].get("activeDeadlineSeconds").is_none());
    // A pod that is already within the scope is not charged again.
    let sooner = json!({"spec": {"activeDeadlineSeconds": 30}});
    assert_eq!(cluster.send(Method::PATCH, &format!("{pods}/a"), sooner).await.0, 200);
    assert_eq!(used().await, "1");
}
