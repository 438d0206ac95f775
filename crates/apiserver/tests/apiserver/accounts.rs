//! Service accounts of pods: what admission adds, waits for, and rejects.

use apiserver::{NODES, Options, User};
use http::Method;
use serde_json::{Value, json};

use crate::{Cluster, pod, send_as};

const PODS: &str = "/api/v1/namespaces/default/pods";
const ACCOUNTS: &str = "/api/v1/namespaces/default/serviceaccounts";

async fn cluster() -> Cluster {
    Cluster::with(Options::default()).await
}

fn account(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}})
}

fn of(mut pod: Value, account: &str) -> Value {
    pod["spec"]["serviceAccountName"] = account.into();
    pod
}

#[tokio::test]
async fn a_new_pod_gets_an_account_and_its_token() {
    let cluster = cluster().await;
    cluster.create(ACCOUNTS, account("default")).await;
    let made = cluster.create(PODS, pod("p")).await;
    let spec = &made["spec"];
    assert_eq!(
        (&spec["serviceAccountName"], &spec["serviceAccount"]),
        (&json!("default"), &json!("default"))
    );
    let volume = spec["volumes"][0]["name"].as_str().unwrap();
    let suffix = volume.strip_prefix("kube-api-access-").unwrap();
    assert_eq!(suffix.len(), 5, "{volume}");
    assert_eq!(
        spec["containers"][0]["volumeMounts"],
        json!([{
            "name": volume, "readOnly": true,
            "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount",
        }])
    );
    // Fields set by the server have no manager, and the next pod's volume has another name.
    let owned = made["metadata"]["managedFields"].to_string();
    assert!(!owned.contains("serviceAccount") && !owned.contains("volumes"), "{owned}");
    let other = cluster.create(PODS, pod("q")).await;
    assert_ne!(other["spec"]["volumes"][0]["name"], volume);
}

#[tokio::test]
async fn pod_token_belongs_to_its_unprivileged_account() {
    let cluster = cluster().await;
    let made = cluster.create(ACCOUNTS, account("builder")).await;
    let request = json!({"spec": {"expirationSeconds": 3607}});
    let answer = cluster.create(&format!("{ACCOUNTS}/builder/token"), request).await;
    let token = answer["status"]["token"].as_str().unwrap();
    let user = cluster.api.identify(token).unwrap();
    assert_eq!(user.name, "system:serviceaccount:default:builder");
    assert_eq!(made["metadata"]["uid"], user.uid.as_str());
    let reviews = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
    for (method, path, body, expected) in [
        (Method::GET, "/apis/apps/v1", Value::Null, 200),
        (Method::POST, reviews, json!({}), 201),
        (Method::GET, PODS, Value::Null, 403),
        (Method::GET, "/api/v1/namespaces/default/secrets", Value::Null, 403),
        (Method::POST, PODS, pod("p"), 403),
    ] {
        let (code, answer) = send_as(&cluster.api, user.clone(), method, path, body).await;
        assert_eq!(code, expected, "{path}: {answer}");
    }
}

/// Requests a token of the account `builder`.
async fn token_of(cluster: &Cluster, spec: Value) -> (u16, Value) {
    cluster.send(Method::POST, &format!("{ACCOUNTS}/builder/token"), json!({"spec": spec})).await
}

async fn good_token(cluster: &Cluster, spec: Value) -> String {
    let (code, answer) = token_of(cluster, spec).await;
    assert_eq!(code, 201, "{answer}");
    answer["status"]["token"].as_str().unwrap().to_owned()
}

/// Returns the status of a TokenReview.
async fn reviewed(cluster: &Cluster, spec: Value) -> Value {
    let path = "/apis/authentication.k8s.io/v1/tokenreviews";
    let mut answer = cluster.create(path, json!({"spec": spec})).await;
    answer["status"].take()
}

#[tokio::test]
async fn token_for_another_audience_is_invalid_for_the_api() {
    let cluster = cluster().await;
    cluster.create(ACCOUNTS, account("builder")).await;
    let plain = good_token(&cluster, json!({})).await;
    let vault = good_token(&cluster, json!({"audiences": ["vault", "other"]})).await;
    assert!(cluster.api.identify(&plain).is_some() && cluster.api.identify(&vault).is_none());

    let server = "https://kubernetes.default.svc";
    for (token, audiences, good) in [
        (&plain, json!([]), json!([server])),
        (&plain, json!(["vault"]), Value::Null),
        (&vault, json!([]), Value::Null),
        (&vault, json!(["vault", "nobody"]), json!(["vault"])),
    ] {
        let status = reviewed(&cluster, json!({"token": token, "audiences": audiences})).await;
        assert_eq!(status["audiences"], good, "{audiences}: {status}");
        assert_eq!(status["authenticated"] == true, !good.is_null(), "{audiences}: {status}");
    }
    let status = reviewed(&cluster, json!({"token": plain})).await;
    assert_eq!(status["user"]["username"], "system:serviceaccount:default:builder");
    let id = &status["user"]["extra"]["authentication.kubernetes.io/credential-id"][0];
    assert!(id.as_str().is_some_and(|id| id.starts_with("JTI=")), "{status}");
}

#[tokio::test]
async fn token_is_invalid_after_its_bound_object_is_deleted() {
    let cluster = cluster().await;
    cluster.create(ACCOUNTS, account("builder")).await;
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}});
    cluster.create("/api/v1/nodes", node).await;
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}});
    cluster.create("/api/v1/namespaces/default/secrets", secret).await;
    let mut on_node = of(pod("p"), "builder");
    on_node["spec"]["nodeName"] = "n".into();
    let made = cluster.create(PODS, on_node).await;
    for (kind, name, path) in [
        ("Pod", "p", format!("{PODS}/p?gracePeriodSeconds=0")),
        ("Secret", "s", "/api/v1/namespaces/default/secrets/s".to_owned()),
        ("Node", "n", "/api/v1/nodes/n".to_owned()),
    ] {
        let reference = json!({"apiVersion": "v1", "kind": kind, "name": name});
        let token = good_token(&cluster, json!({"boundObjectRef": reference})).await;
        let user = cluster.api.identify(&token).unwrap_or_else(|| panic!("bound to {kind}"));
        if kind == "Pod" {
            let extra = |key: &str| &user.extra[&format!("authentication.kubernetes.io/{key}")][0];
            assert_eq!(made["metadata"]["uid"], extra("pod-uid").as_str());
            assert_eq!((extra("pod-name").as_str(), extra("node-name").as_str()), ("p", "n"));
        }
        let (code, answer) = cluster.send(Method::DELETE, &path, Value::Null).await;
        assert_eq!(code, 200, "{answer}");
        assert_eq!(cluster.api.identify(&token), None, "{kind} is gone");
    }
}

#[tokio::test]
async fn token_is_bound_only_to_existing_matching_objects() {
    let cluster = cluster().await;
    cluster.create(ACCOUNTS, account("builder")).await;
    cluster.create(ACCOUNTS, account("default")).await;
    cluster.create(PODS, pod("other")).await;
    cluster.create(PODS, of(pod("p"), "builder")).await;
    let bound = |kind: &str, name: &str| json!({"boundObjectRef": {"apiVersion": "v1", "kind": kind, "name": name, "uid": "x"}});
    for (spec, code, message) in [
        (bound("Pod", "none"), 404, "pods \"none\" not found"),
        (
            bound("Pod", "other"),
            400,
            "cannot bind token for serviceaccount \"builder\" to pod running with different \
             serviceaccount name.",
        ),
        (
            bound("Pod", "p"),
            409,
            "Operation cannot be fulfilled on Pod \"p\": the UID in the bound object reference (x) \
             does not match the UID in record. The object might have been deleted and then \
             recreated",
        ),
        (bound("ConfigMap", "c"), 400, "cannot bind token to object of type /v1, Kind=ConfigMap"),
        (
            json!({"expirationSeconds": 599}),
            422,
            "TokenRequest.authentication.k8s.io \"\" is invalid: spec.expirationSeconds: Invalid \
             value: 599: may not specify a duration less than 10 minutes",
        ),
    ] {
        let (found, answer) = token_of(&cluster, spec.clone()).await;
        assert_eq!((found, answer["message"].as_str()), (code, Some(message)), "{spec}");
    }
    let wrong = json!({"metadata": {"name": "other"}, "spec": {}});
    let path = format!("{ACCOUNTS}/builder/token");
    let (code, answer) = cluster.send(Method::POST, &path, wrong).await;
    let said = "TokenRequest.authentication.k8s.io \"builder\" is invalid: metadata.name: Invalid \
                value: \"other\": must match the service account name if specified";
    assert_eq!((code, answer["message"].as_str()), (422, Some(said)));
}

#[tokio::test]
async fn agent_gets_tokens_of_its_pods_for_mounted_audiences() {
    let cluster = cluster().await;
    cluster.create(ACCOUNTS, account("builder")).await;
    let on = |name: &str, node: &str| {
        let mut pod = of(pod(name), "builder");
        pod["spec"]["nodeName"] = node.into();
        pod["spec"]["volumes"] = json!([{"name": "t", "projected": {"sources": [
            {"serviceAccountToken": {"path": "t", "audience": "vault"}},
        ]}}]);
        pod
    };
    let mine = cluster.create(PODS, on("mine", "n")).await;
    let other = cluster.create(PODS, on("other", "elsewhere")).await;
    let bound = |pod: &Value| {
        let (name, uid) = (&pod["metadata"]["name"], &pod["metadata"]["uid"]);
        json!({"apiVersion": "v1", "kind": "Pod", "name": name, "uid": uid})
    };
    let agent = User::member("system:node:n", NODES);
    let path = format!("{ACCOUNTS}/builder/token");
    for (spec, refused) in [
        (json!({"boundObjectRef": bound(&mine)}), None),
        (json!({"boundObjectRef": bound(&mine), "audiences": ["vault"]}), None),
        (
            json!({"boundObjectRef": bound(&mine), "audiences": ["bank"]}),
            Some("system:node:n is not authorized to request tokens for audience \"bank\""),
        ),
        (
            json!({"boundObjectRef": bound(&mine), "audiences": ["vault", "bank"]}),
            Some("node may only request 0 or 1 audiences"),
        ),
        (
            json!({"boundObjectRef": bound(&other)}),
            Some("node requested token bound to a pod scheduled on a different node"),
        ),
        (json!({}), Some("node requested token not bound to a pod")),
        (
            json!({"boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": "mine"}}),
            Some("node requested token with a pod binding without a uid"),
        ),
    ] {
        let body = json!({"spec": spec});
        let (code, answer) = send_as(&cluster.api, agent.clone(), Method::POST, &path, body).await;
        let said = refused.map(|why| format!("serviceaccounts \"builder\" is forbidden: {why}"));
        assert_eq!(code, if refused.is_some() { 403 } else { 201 }, "{spec}: {answer}");
        assert_eq!(answer["message"].as_str(), said.as_deref(), "{spec}");
    }
}

#[tokio::test]
async fn access_reviews_have_one_subject_and_one_question() {
    let cluster = cluster().await;
    let group = "/apis/authorization.k8s.io/v1";
    let pods = json!({"verb": "get", "resource": "pods", "namespace": "default"});
    let local = format!("{group}/namespaces/default/localsubjectaccessreviews");
    let about = |user: &str, attributes: &Value| json!({"spec": {"user": user, "resourceAttributes": attributes}});
    for (path, body, allowed) in [
        (format!("{group}/selfsubjectaccessreviews"), about("", &pods), true),
        (format!("{group}/subjectaccessreviews"), about("nobody", &pods), false),
        (local.clone(), about("nobody", &pods), false),
    ] {
        let mut body = body;
        if path.contains("/self") {
            body["spec"].as_object_mut().unwrap().remove("user");
        }
        let answer = cluster.create(&path, body).await;
        assert_eq!(answer["status"]["allowed"], allowed, "{path}: {answer}");
    }
    let elsewhere = json!({"verb": "get", "resource": "pods", "namespace": "other"});
    for (path, body, code, message) in [
        (
            format!("{group}/subjectaccessreviews"),
            about("", &pods),
            422,
            ".authorization.k8s.io \"\" is invalid: spec.user: Invalid value: \"\": at least one of \
             user or group must be specified",
        ),
        (
            format!("{group}/selfsubjectaccessreviews"),
            json!({"spec": {}}),
            422,
            ".authorization.k8s.io \"\" is invalid: spec: Invalid value: null: exactly one of \
             nonResourceAttributes or resourceAttributes must be specified",
        ),
        (
            local,
            about("nobody", &elsewhere),
            422,
            ".authorization.k8s.io \"\" is invalid: spec.resourceAttributes.namespace: Invalid \
             value: \"other\": must match metadata.namespace",
        ),
        (
            format!("{group}/selfsubjectrulesreviews"),
            json!({"spec": {}}),
            400,
            "no namespace on request",
        ),
    ] {
        let (found, answer) = cluster.send(Method::POST, &path, body).await;
        assert_eq!((found, answer["message"].as_str()), (code, Some(message)), "{path}");
    }
}

#[tokio::test]
async fn missing_service_account_is_named() {
    let cluster = cluster().await;
    tokio::time::pause();
    for name in ["other", "default"] {
        let (code, answer) = cluster.send(Method::POST, PODS, of(pod("p"), name)).await;
        assert_eq!((code, &answer["reason"]), (403, &json!("Forbidden")), "{answer}");
        let said = format!(
            "pods \"p\" is forbidden: error looking up service account default/{name}: \
             serviceaccount \"{name}\" not found"
        );
        assert_eq!(answer["message"], said);
    }
}

#[tokio::test]
async fn only_the_pod_waits_for_its_default_account() {
    let cluster = cluster().await;
    let waits = cluster.create(PODS, pod("p"));
    let comes = async {
        // Other requests are served while it waits, and accounts with similar names do not end the
        // wait.
        cluster.create(ACCOUNTS, account("default-not")).await;
        cluster.create(PODS, of(pod("q"), "default-not")).await;
        let (code, _) = cluster.send(Method::GET, &format!("{PODS}/p"), Value::Null).await;
        assert_eq!(code, 404);
        cluster.create(ACCOUNTS, account("default")).await;
    };
    let (made, ()) = tokio::join!(waits, comes);
    assert_eq!(made["spec"]["serviceAccountName"], "default");
}

#[tokio::test]
async fn mirror_pods_get_no_account() {
    let cluster = cluster().await;
    let mirror = |name: &str| {
        let mut pod = pod(name);
        pod["metadata"]["annotations"] = json!({"kubernetes.io/config.mirror": "hash"});
        pod["spec"]["nodeName"] = "n".into();
        pod
    };
    let made = cluster.create(PODS, mirror("m")).await;
    assert!(
        made["spec"].get("serviceAccountName").is_none() && made["spec"].get("volumes").is_none()
    );
    let (code, answer) = cluster.send(Method::POST, PODS, of(mirror("n"), "default")).await;
    let said = "pods \"n\" is forbidden: a mirror pod may not reference service accounts";
    assert_eq!((code, answer["message"].as_str()), (403, Some(said)));
}

#[tokio::test]
async fn ephemeral_containers_use_the_account_without_a_token() {
    let cluster = cluster().await;
    let mut strict = account("strict");
    strict["metadata"]["annotations"] = json!({"kubernetes.io/enforce-mountable-secrets": "true"});
    strict["secrets"] = json!([{"name": "mine"}]);
    cluster.create(ACCOUNTS, strict).await;
    cluster.create(PODS, of(pod("p"), "strict")).await;
    let path = format!("{PODS}/p/ephemeralcontainers");
    let debugging = |name: &str, secret: &str| {
        let container = json!({
            "name": name, "image": "i", "envFrom": [{"secretRef": {"name": secret}}],
        });
        json!({"spec": {"ephemeralContainers": [container]}})
    };
    let (code, answer) = cluster.send(Method::PATCH, &path, debugging("e", "other")).await;
    let said = "pods \"p\" is forbidden: ephemeral container e with envFrom referencing \
                secret.secretName=\"other\" is not allowed because service account strict does \
                not reference that secret";
    assert_eq!((code, answer["message"].as_str()), (403, Some(said)));
    let (code, answer) = cluster.send(Method::PATCH, &path, debugging("e", "mine")).await;
    assert_eq!(code, 200, "{answer}");
    assert!(answer["spec"]["ephemeralContainers"][0].get("volumeMounts").is_none(), "{answer}");
}

#[tokio::test]
async fn pod_security_sees_the_pod_with_its_volume() {
    let cluster = cluster().await;
    let namespace = json!({
        "apiVersion": "v1", "kind": "Namespace",
        "metadata": {"name": "safe", "labels": {"pod-security.kubernetes.io/enforce": "restricted"}},
    });
    cluster.create("/api/v1/namespaces", namespace).await;
    cluster.create("/api/v1/namespaces/safe/serviceaccounts", account("default")).await;
    let mut allowed = pod("p");
    allowed["spec"]["containers"][0]["securityContext"] = json!({
        "runAsNonRoot": true, "allowPrivilegeEscalation": false,
        "capabilities": {"drop": ["ALL"]}, "seccompProfile": {"type": "RuntimeDefault"},
    });
    let made = cluster.create("/api/v1/namespaces/safe/pods", allowed).await;
    assert!(made["spec"]["volumes"][0]["projected"].is_object(), "{made}");
}
