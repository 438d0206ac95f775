//! Errors of requests for kinds other than pods, or without a kind.

use super::*;

const NAMESPACE: &str = "/api/v1/namespaces/default";

/// Sends a request and expects an error with a message.
async fn refused(cluster: &Cluster, method: Method, path: &str, body: Value, with: (u16, &str)) {
    let (status, answer) = cluster.send(method, path, body).await;
    assert_eq!((status, answer["message"].as_str().unwrap_or_default()), with, "{path}: {answer}");
}

fn service(name: &str, spec: &Value) -> Value {
    json!({"metadata": {"name": name}, "spec": spec})
}

#[tokio::test]
async fn invalid_write_options_are_reported_together() {
    let cluster = Cluster::new().await;
    let (path, body) = (format!("{NAMESPACE}/configmaps"), json!({"metadata": {"name": "c"}}));
    let said = "CreateOptions.meta.k8s.io \"\" is invalid: [fieldManager: Invalid value: \
                \"a\\x01\": invalid character U+0001 (at position 1), dryRun: Unsupported value: \
                [\"a\",\"b\"]: supported values: \"All\", fieldValidation: Unsupported value: \
                \"x\": supported values: \"\", \"Ignore\", \"Strict\", \"Warn\"]";
    let query = "fieldManager=a%01&dryRun=a&dryRun=b&fieldValidation=x";
    let at = format!("{path}?{query}");
    refused(&cluster, Method::POST, &at, body.clone(), (422, said)).await;
    cluster.create(&path, body).await;
    let said = "PatchOptions.meta.k8s.io \"\" is invalid: [force: Forbidden: may not be specified \
                for non-apply patch, fieldValidation: Unsupported value: \"x\": supported values: \
                \"\", \"Ignore\", \"Strict\", \"Warn\"]";
    let at = format!("{path}/c?force=true&fieldValidation=x");
    refused(&cluster, Method::PATCH, &at, json!({}), (422, said)).await;
}

#[tokio::test]
async fn patch_cannot_change_kind_or_name() {
    let cluster = Cluster::new().await;
    let path = format!("{NAMESPACE}/configmaps");
    cluster.create(&path, json!({"metadata": {"name": "c"}})).await;
    let at = format!("{path}/c");
    for (patch, said) in [
        (
            json!({"metadata": {"namespace": "other"}}),
            "the namespace of the object (other) does not match the namespace on the request (default)",
        ),
        (
            json!({"metadata": {"name": null}}),
            "the name of the object (c based on URL) was undeterminable: name must be provided",
        ),
    ] {
        refused(&cluster, Method::PATCH, &at, patch, (400, said)).await;
    }
    let (status, answer) = cluster.send(Method::PATCH, &at, json!({"kind": "Secret"})).await;
    let message = answer["message"].as_str().unwrap_or_default();
    assert_eq!(status, 422, "{answer}");
    assert!(message.ends_with("converting (v1.Secret) to (core.ConfigMap): unknown conversion"));
}

#[tokio::test]
async fn cluster_scoped_objects_lose_their_namespace() {
    let cluster = Cluster::new().await;
    let node = json!({"metadata": {"name": "n", "namespace": "x"}});
    let made = cluster.create("/api/v1/nodes", node).await;
    assert!(made["metadata"].get("namespace").is_none());
    let patch = json!({"metadata": {"namespace": "y"}});
    let (status, patched) = cluster.send(Method::PATCH, "/api/v1/nodes/n", patch).await;
    assert_eq!(status, 200, "{patched}");
    assert!(patched["metadata"].get("namespace").is_none());
}

#[tokio::test]
async fn duplicate_owner_references_are_removed() {
    let cluster = Cluster::new().await;
    let owner = json!({"apiVersion": "v1", "kind": "K", "name": "n", "uid": "u"});
    let body = json!({"metadata": {"name": "c", "ownerReferences": [owner, owner]}});
    let made = cluster.create(&format!("{NAMESPACE}/configmaps"), body).await;
    assert_eq!(made["metadata"]["ownerReferences"], json!([owner]));
}

#[tokio::test]
async fn update_may_create_a_limit_range() {
    let cluster = Cluster::new().await;
    let (path, body) = (format!("{NAMESPACE}/limitranges/l"), json!({"metadata": {"name": "l"}}));
    assert_eq!(cluster.send(Method::PUT, &path, body).await.0, 201);
}

#[tokio::test]
async fn lease_updates_need_a_resource_version() {
    let cluster = Cluster::new().await;
    let path = "/apis/coordination.k8s.io/v1/namespaces/default/leases/l";
    // There is no object yet that could have the version or the uid.
    let body = json!({"metadata": {"name": "l", "resourceVersion": "5"}});
    assert_eq!(cluster.send(Method::PUT, path, body).await.0, 201);
    let said = "leases.coordination.k8s.io \"l\" is invalid: metadata.resourceVersion: Invalid \
                value: 0: must be specified for an update";
    let body = json!({"metadata": {"name": "l"}});
    refused(&cluster, Method::PUT, path, body, (422, said)).await;
    let path = "/apis/coordination.k8s.io/v1/namespaces/default/leases/m";
    let body = json!({"metadata": {"name": "m", "uid": "x"}});
    let (status, answer) = cluster.send(Method::PUT, path, body).await;
    assert_eq!(status, 409);
    let said = "Precondition failed: UID in precondition: x, UID in object meta: ";
    assert!(answer["message"].as_str().unwrap_or_default().ends_with(said), "{answer}");
}

#[tokio::test]
async fn system_priority_classes_cannot_be_deleted() {
    let cluster = Cluster::new().await;
    let path = "/apis/scheduling.k8s.io/v1/priorityclasses/system-node-critical";
    let said = "priorityclasses.scheduling.k8s.io \"system-node-critical\" is forbidden: this is a \
                system priority class and cannot be deleted";
    refused(&cluster, Method::DELETE, path, Value::Null, (403, said)).await;
}

#[tokio::test]
async fn namespace_preconditions_have_their_own_messages() {
    let cluster = Cluster::new().await;
    let made = cluster.create("/api/v1/namespaces", json!({"metadata": {"name": "n"}})).await;
    let uid = made["metadata"]["uid"].as_str().unwrap_or_default();
    let said = format!(
        "Operation cannot be fulfilled on namespaces \"n\": Precondition failed: UID in \
         precondition: x, UID in object meta: {uid}"
    );
    let body = json!({"preconditions": {"uid": "x"}});
    refused(&cluster, Method::DELETE, "/api/v1/namespaces/n", body, (409, &said)).await;
}

#[tokio::test]
async fn event_fields_are_selected_by_the_groups_names() {
    let cluster = Cluster::new().await;
    let core = format!("{NAMESPACE}/events");
    let events = "/apis/events.k8s.io/v1/namespaces/default/events";
    let about = json!({"kind": "Pod", "namespace": "default", "name": "p"});
    let event =
        json!({"metadata": {"name": "e"}, "involvedObject": about, "source": {"component": "k"}});
    cluster.create(&core, event).await;
    for (path, found) in [
        (format!("{core}?fieldSelector=involvedObject.name%3Dp"), 1),
        (format!("{events}?fieldSelector=regarding.name%3Dp"), 1),
        (format!("{events}?fieldSelector=reportingController%3Dk"), 1),
        (format!("{events}?fieldSelector=regarding.name%3Dq"), 0),
    ] {
        let list = cluster.get(&path).await;
        assert_eq!(list["items"].as_array().map(Vec::len), Some(found), "{path}");
    }
    for (path, said) in [
        (
            format!("{events}?fieldSelector=involvedObject.name%3Dp"),
            "field label not supported: involvedObject.name",
        ),
        (
            format!("{core}?fieldSelector=regarding.name%3Dp"),
            "field label not supported: regarding.name",
        ),
        (
            "/api/v1/nodes?fieldSelector=metadata.namespace%3Dx".to_owned(),
            "field label not supported: metadata.namespace",
        ),
        (
            "/apis/apps/v1/replicasets?fieldSelector=status.replicas%3D1".to_owned(),
            "\"status.replicas\" is not a known field selector: only \"metadata.name\", \"metadata.namespace\"",
        ),
    ] {
        refused(&cluster, Method::GET, &path, Value::Null, (400, said)).await;
    }
    let bad = json!({"metadata": {"name": "f"}});
    let (status, answer) = cluster.send(Method::POST, events, bad).await;
    assert_eq!(status, 422);
    assert!(answer["message"].as_str().unwrap_or_default().starts_with("Event \"f\" is invalid: "));
}

#[tokio::test]
async fn scale_uid_must_match_the_object() {
    let cluster = Cluster::new().await;
    let path = "/apis/apps/v1/namespaces/default/deployments";
    let template = json!({
        "metadata": {"labels": {"a": "b"}},
        "spec": {"containers": [{"name": "c", "image": "i"}]},
    });
    let spec = json!({"selector": {"matchLabels": {"a": "b"}}, "template": template});
    let made = cluster.create(path, json!({"metadata": {"name": "d"}, "spec": spec})).await;
    let uid = made["metadata"]["uid"].as_str().unwrap_or_default();
    let at = format!("{path}/d/scale");
    let said = format!(
        "Operation cannot be fulfilled on deployments/scale.apps \"d\": Precondition failed: UID \
         in precondition: x, UID in object meta: {uid}"
    );
    let body = json!({"metadata": {"name": "d", "uid": "x"}, "spec": {"replicas": 2}});
    refused(&cluster, Method::PUT, &at, body, (409, &said)).await;
    let said = "the name of the object (d based on URL) was undeterminable: name must be provided";
    refused(&cluster, Method::PUT, &at, json!({"spec": {"replicas": 2}}), (400, said)).await;
}

#[tokio::test]
async fn services_get_addresses_and_ports() {
    let cluster = Cluster::new().await;
    let path = format!("{NAMESPACE}/services");
    let ports = json!([{"name": "u", "port": 53, "protocol": "UDP"}, {"name": "t", "port": 53}]);
    let made =
        cluster.create(&path, service("dns", &json!({"type": "NodePort", "ports": ports}))).await;
    let ports = &made["spec"]["ports"];
    assert_eq!(ports[0]["nodePort"], ports[1]["nodePort"]);
    let local = json!({"spec": {"type": "LoadBalancer", "externalTrafficPolicy": "Local"}});
    let (status, balanced) = cluster.send(Method::PATCH, &format!("{path}/dns"), local).await;
    assert_eq!(status, 200, "{balanced}");
    assert!(balanced["spec"]["healthCheckNodePort"].as_u64() >= Some(30000));
    let balanced = json!({"type": "LoadBalancer", "externalTrafficPolicy": "Local", "healthCheckNodePort": 30200, "ports": [{"port": 80}]});
    cluster.create(&path, service("one", &balanced)).await;
    let reused = json!({"type": "NodePort", "ports": [
        {"name": "a", "port": 80, "nodePort": 30105}, {"name": "b", "port": 81, "nodePort": 30105},
    ]});
    for (name, spec, said) in [
        (
            "two",
            balanced,
            "spec.healthCheckNodePort: Invalid value: 30200: provided port is already allocated",
        ),
        (
            "dup",
            reused,
            "spec.ports[1].nodePort: Invalid value: 30105: provided port is already allocated",
        ),
        (
            "net",
            json!({"clusterIP": "10.0.0.0", "ports": [{"port": 80}]}),
            "spec.clusterIPs: Invalid value: [\"10.0.0.0\"]: failed to allocate IP 10.0.0.0: the provided IP (10.0.0.0) is not in the valid range. The range of valid IPs is 10.0.0.0/24",
        ),
        (
            "six",
            json!({"ipFamilies": ["IPv6"], "ports": [{"port": 80}]}),
            "spec.ipFamilies[0]: Invalid value: \"IPv6\": not configured on this cluster",
        ),
    ] {
        let said = format!("Service {name:?} is invalid: {said}");
        refused(&cluster, Method::POST, &path, service(name, &spec), (422, &said)).await;
    }
}

#[tokio::test]
async fn delete_body_must_be_delete_options() {
    let cluster = Cluster::new().await;
    let path = format!("{NAMESPACE}/configmaps");
    cluster.create(&path, json!({"metadata": {"name": "c"}})).await;
    let at = format!("{path}/c");
    let said = "no kind \"Pod\" is registered for version \"v1\"";
    refused(&cluster, Method::DELETE, &at, pod("p"), (400, said)).await;
    let body = json!({"kind": "DeleteOptions", "apiVersion": "apps/v1"});
    assert_eq!(cluster.send(Method::DELETE, &at, body).await.0, 200);
}
