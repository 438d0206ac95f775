//! Authorization of the agent's clients by the control plane.

use client::Kubeconfig;
use client::PatchKind;
use client::kind::{NODES, SERVICE_ACCOUNTS};
use http::{Method, Request};
use http_body_util::{BodyExt as _, Full};
use https::Dialer;
use https::certificates::Pair;
use hyper::body::Bytes;
use serde_json::{Value, json};

use crate::support::{Berth, TIMEOUT, until, until_or};

/// Sends a request to the agent of a node.
async fn ask(
    berth: &Berth,
    pair: Option<&Pair>,
    token: Option<&str>,
    method: Method,
    path: &str,
) -> (u16, String) {
    let config = kubeconfig(berth, "kubeconfig");
    let authority = config.authority.text().unwrap();
    let dialer = Dialer::new(&authority, pair, &["http/1.1"], TIMEOUT).unwrap();
    let port = until("the node", async || {
        let node: Value = berth.api.get(NODES, "", "node-1").await.ok()?;
        node["status"]["daemonEndpoints"]["kubeletEndpoint"]["Port"].as_u64()
    })
    .await;
    let port = u16::try_from(port).unwrap();
    let stream = dialer.connect("127.0.0.1", port, "127.0.0.1").await.unwrap();
    let mut request = Request::builder().method(method).uri(path).header("host", "node-1");
    if let Some(token) = token {
        request = request.header("authorization", format!("Bearer {token}"));
    }
    let request = request.body(Full::new(Bytes::new())).unwrap();
    let response = https::exchange(stream, request).await.unwrap();
    let status = response.status().as_u16();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    (status, String::from_utf8_lossy(&body).into_owned())
}

fn kubeconfig(berth: &Berth, file: &str) -> Kubeconfig {
    Kubeconfig::read(&berth.settings.server.data_dir.join(file)).unwrap()
}

fn pair(config: &Kubeconfig) -> Pair {
    let (certificate, key) = config.identity.as_ref().unwrap();
    Pair { certificate: certificate.text().unwrap(), key: key.text().unwrap() }
}

#[tokio::test(flavor = "multi_thread")]
async fn agent_authorizes_clients_through_the_api() {
    let mut berth = Berth::start(|_| {}).await;
    let request = json!({
        "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {},
    });
    let account = json!({"metadata": {"name": "scraper"}});
    berth.api.create(SERVICE_ACCOUNTS, "test", &account).await.unwrap();
    let made = berth
        .api
        .create_subresource_returning(SERVICE_ACCOUNTS, "test", "scraper", "token", &request)
        .await;
    let token = made.unwrap()["status"]["token"].as_str().unwrap().to_owned();
    // The account is authenticated, but has no role in the API.
    let (status, text) = ask(&berth, None, Some(&token), Method::GET, "/metrics").await;
    let forbidden = "Forbidden (user=system:serviceaccount:test:scraper, verb=get, \
                     resource=nodes, subresource(s)=[metrics])";
    assert_eq!((status, text.as_str()), (403, forbidden));
    for token in [None, Some("x"), Some("a.b.c")] {
        let (status, text) = ask(&berth, None, token, Method::GET, "/metrics").await;
        assert_eq!((status, text.as_str()), (401, "Unauthorized"), "{token:?}");
    }
    let viewer = pair(&kubeconfig(&berth, "viewer.kubeconfig"));
    let exec = "/run/test/p/c?cmd=true";
    for (method, path, expected) in [
        (Method::GET, "/metrics", 200),
        (Method::GET, "/stats/summary", 200),
        (Method::GET, "/pods", 200),
        (Method::GET, "/containerLogs/test/p/c", 403),
        (Method::POST, exec, 403),
    ] {
        let (status, text) = ask(&berth, Some(&viewer), None, method, path).await;
        assert_eq!(status, expected, "{path}: {text}");
    }
    let admin = pair(&kubeconfig(&berth, "kubeconfig"));
    assert_eq!(ask(&berth, Some(&admin), None, Method::POST, exec).await.0, 404);
    berth.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn extended_resources_of_other_writers_stay_on_the_node() {
    let mut berth = Berth::start(|_| {}).await;
    let node = async || -> Option<Value> { berth.api.get(NODES, "", "node-1").await.ok() };
    until("the node", node).await;
    let patch = json!({"status": {"capacity": {"example.com/widget": "3"}}});
    let (kind, part) = (PatchKind::StrategicMerge, "status");
    berth.api.patch_subresource(NODES, "", "node-1", part, kind, &patch).await.unwrap();
    let found = until_or("the resource", async || {
        let node = node().await.unwrap_or_default();
        match node["status"]["allocatable"]["example.com/widget"].as_str() {
            Some(_) => Ok(node),
            None => Err(format!("{:#}", node["status"]["capacity"])),
        }
    })
    .await;
    for list in ["capacity", "allocatable"] {
        assert_eq!(found["status"][list]["example.com/widget"], "3", "{list}");
    }
    berth.end().await;
}
