//! Service accounts of pods: what admission puts in, what it waits for, what it refuses.

use apiserver::Options;
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
    // What the server put in is nobody's field, and the next pod's volume has another name.
    let owned = made["metadata"]["managedFields"].to_string();
    assert!(!owned.contains("serviceAccount") && !owned.contains("volumes"), "{owned}");
    let other = cluster.create(PODS, pod("q")).await;
    assert_ne!(other["spec"]["volumes"][0]["name"], volume);
}

#[tokio::test]
async fn the_token_in_a_pod_is_of_its_account_which_may_do_next_to_nothing() {
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

#[tokio::test]
async fn an_account_that_is_not_there_is_named() {
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
async fn a_pod_waits_for_the_default_account_and_nobody_else_does() {
    let cluster = cluster().await;
    let waits = cluster.create(PODS, pod("p"));
    let comes = async {
        // Others are served while it waits, and accounts that are called alike are not its own.
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
async fn mirror_pods_are_left_alone_or_refused() {
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
async fn ephemeral_containers_may_use_what_the_account_may_and_get_no_token() {
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
