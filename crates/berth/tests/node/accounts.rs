//! Clients in containers: they find the API server, trust it, and are authenticated by their
//! account.

use std::path::Path;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use client::kind::{Kind, PODS};
use client::{Client, Kubeconfig, Remote, Scope, Timeouts};
use serde_json::{Value, json};

use crate::support::{Berth, phase, pod};

/// Prints the environment and account files of a container, and tries to change them.
const LOOKS: &str = "cd /var/run/secrets/kubernetes.io/serviceaccount && \
     { touch token 2>/dev/null && echo changed; \
     echo $KUBERNETES_SERVICE_HOST; echo $KUBERNETES_SERVICE_PORT; \
     cat namespace; echo; cat token; echo; cat ca.crt; } > /dev/termination-log";

const SELF_REVIEWS: Kind = Kind {
    group: "authentication.k8s.io",
    version: "v1",
    kind: "SelfSubjectReview",
    plural: "selfsubjectreviews",
    namespaced: false,
};

/// Returns a client that uses only a container's environment and files.
fn client_inside(dir: &Path, host: &str, port: &str, token: &str, authority: &str) -> Client {
    let config = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [{"name": "k", "cluster": {
            "server": format!("https://{host}:{port}"),
            "certificate-authority-data": STANDARD.encode(authority),
        }}],
        "users": [{"name": "u", "user": {"token": token}}],
        "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
    });
    let file = dir.join("inside.kubeconfig");
    std::fs::write(&file, config.to_string()).unwrap();
    let config = Kubeconfig::read(&file).unwrap();
    let remote = Remote::new(config, "inside", Timeouts::default()).unwrap();
    Client::new(Arc::new(remote), "inside")
}

/// Checks the API's view of a client in a container of a new node.
async fn check(change: impl FnOnce(&mut berth::server::Settings), host: fn(&Value) -> &str) {
    let mut berth = Berth::serving(change).await;
    let mut looks = pod("looks", &["sh", "-c", LOOKS]);
    looks["spec"]["restartPolicy"] = "Never".into();
    berth.create(looks).await;
    let done = berth.until("looks", |pod| phase(pod) == "Succeeded").await;
    assert_eq!(done["spec"]["serviceAccountName"], "default");
    let ended = &done["status"]["containerStatuses"][0]["state"]["terminated"];
    let message = ended["message"].as_str().unwrap();
    let parts: Vec<&str> = message.splitn(5, '\n').collect();
    let [at, port, namespace, token, authority] = parts[..] else { panic!("{message}") };
    assert_eq!(at, host(&done));
    assert_eq!(namespace, "test");

    let inside = client_inside(berth.containerd.directory(), at, port, token, authority);
    let review = json!({"kind": "SelfSubjectReview", "apiVersion": "authentication.k8s.io/v1"});
    let answer: Value = inside.create(SELF_REVIEWS, "", &review).await.unwrap();
    assert_eq!(answer["status"]["userInfo"]["username"], "system:serviceaccount:test:default");
    let scope = Scope { namespace: "test".to_owned(), ..Scope::default() };
    let refused = inside.list_values(PODS, &scope).await.unwrap_err();
    assert_eq!((refused.status(), refused.reason()), (403, "Forbidden"));
    berth.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_container_reaches_the_api_as_its_account() {
    check(|_| {}, |_| "127.0.0.1").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn api_on_all_addresses_is_published_at_the_nodes_address() {
    let everywhere = |server: &mut berth::server::Settings| {
        server.address.set_ip("0.0.0.0".parse().unwrap());
    };
    check(everywhere, |pod| pod["status"]["hostIP"].as_str().unwrap()).await;
}
