//! Requests that must be rejected: over TLS, by anonymous clients and by agents.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use apiserver::certificates::{self, Pair};
use apiserver::{Api, Limits, Listener, NODES, StaticToken, User, VIEWERS};
use http::Method;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio_rustls::TlsConnector;

use crate::{Cluster, options, pod, send_as};

/// A server on a socket.
struct Served {
    _cluster: Cluster,
    authority: Pair,
    address: SocketAddr,
    _stop: watch::Sender<bool>,
}

impl Served {
    async fn new() -> Served {
        let tokens = vec![StaticToken {
            token: "good".to_owned(),
            user: User::member("admin", "system:masters"),
        }];
        let options = apiserver::Options { tokens, ..options() };
        let cluster = Cluster::with(options).await;
        let authority = certificates::authority("test").unwrap();
        let server = certificates::server(&authority, &["127.0.0.1".to_owned()]).unwrap();
        let limits = Limits { handshake_timeout: Duration::from_secs(3), ..Limits::default() };
        let any = "127.0.0.1:0".parse().unwrap();
        let listener = Listener::bind(any, &server, &authority.certificate, limits).await.unwrap();
        let address = listener.address().unwrap();
        let (stop, stopping) = watch::channel(false);
        tokio::spawn(listener.serve(cluster.api.clone(), stopping));
        Served { _cluster: cluster, authority, address, _stop: stop }
    }

    /// Sends bytes over TLS and returns the response.
    async fn raw(&self, client: Option<&Pair>, bytes: &[u8]) -> std::io::Result<String> {
        let mut roots = RootCertStore::empty();
        let root = CertificateDer::from_pem_slice(self.authority.certificate.as_bytes()).unwrap();
        roots.add(root).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots);
        let config = match client {
            None => builder.with_no_client_auth(),
            Some(pair) => {
                let chain = CertificateDer::from_pem_slice(pair.certificate.as_bytes()).unwrap();
                let key = PrivateKeyDer::from_pem_slice(pair.key.as_bytes()).unwrap();
                builder.with_client_auth_cert(vec![chain], key).unwrap()
            }
        };
        let stream = TcpStream::connect(self.address).await?;
        let name = ServerName::try_from("127.0.0.1").unwrap();
        let mut stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await?;
        stream.write_all(bytes).await?;
        let mut answer = Vec::new();
        let read = stream.read_to_end(&mut answer).await;
        if answer.is_empty() {
            read?;
        }
        Ok(String::from_utf8_lossy(&answer).into_owned())
    }

    async fn get(&self, path: &str, header: &str) -> String {
        let request =
            format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{header}\r\n");
        self.raw(None, request.as_bytes()).await.unwrap()
    }
}

fn status(answer: &str) -> u16 {
    answer.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or(0)
}

#[tokio::test]
async fn anonymous_clients_may_read_health_and_version_only() {
    let served = Served::new().await;
    for path in ["/healthz", "/livez", "/readyz", "/version", "/version/"] {
        assert_eq!(status(&served.get(path, "").await), 200, "{path}");
    }
    for path in ["/api", "/apis", "/api/v1/pods", "/metrics", "/openapi/v2", "/", "/nope"] {
        assert_eq!(status(&served.get(path, "").await), 401, "{path}");
    }
    let good = served.get("/api/v1/pods", "authorization: Bearer good\r\n").await;
    assert_eq!(status(&good), 200);
    for bad in ["Bearer bad", "Bearer a.b.c", "Basic eDp5"] {
        let answer = served.get("/api/v1/pods", &format!("authorization: {bad}\r\n")).await;
        assert_eq!(status(&answer), 401, "{bad}");
    }
}

#[tokio::test]
async fn only_our_authority_authenticates_clients() {
    let served = Served::new().await;
    let request = b"GET /api/v1/pods HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
    let ours = certificates::client(&served.authority, "root", "system:masters").unwrap();
    assert_eq!(status(&served.raw(Some(&ours), request).await.unwrap()), 200);
    let other = certificates::authority("other").unwrap();
    let theirs = certificates::client(&other, "root", "system:masters").unwrap();
    assert!(served.raw(Some(&theirs), request).await.is_err());
}

#[tokio::test]
async fn oversized_slow_and_non_http_requests_are_rejected() {
    let served = Served::new().await;
    let huge = 4 * 1024 * 1024;
    let mut request = format!(
        "POST /api/v1/namespaces/default/pods HTTP/1.1\r\nhost: x\r\nconnection: close\r\nauthorization: Bearer good\r\ncontent-length: {huge}\r\n\r\n"
    )
    .into_bytes();
    request.resize(request.len() + huge, b' ');
    // The server may close the connection before all bytes are sent.
    if let Ok(answer) = served.raw(None, &request).await {
        assert_eq!(status(&answer), 413, "{answer}");
    }
    // Endless headers.
    let answer = served.raw(None, b"GET / HTTP/1.1\r\nhost: x\r\n").await;
    assert!(answer.is_err() || matches!(status(&answer.unwrap()), 0 | 408));
    let answer = served.raw(None, b"\x00\x01\x02 nonsense\r\n\r\n").await;
    assert!(answer.is_err() || matches!(status(&answer.unwrap()), 0 | 400));
    // Plain HTTP on a TLS port.
    let mut stream = TcpStream::connect(served.address).await.unwrap();
    stream.write_all(b"GET /healthz HTTP/1.1\r\n\r\n").await.unwrap();
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer).await;
    assert!(!answer.starts_with(b"HTTP"));
    assert_eq!(status(&served.get("/healthz", "").await), 200);
}

#[tokio::test]
async fn deep_and_malformed_bodies_and_odd_paths_are_clear_errors() {
    let cluster = Cluster::new().await;
    let admin = || User::member("admin", "system:masters");
    for path in [
        "/api/v1/namespaces/default/pods/..%2f..%2fsecrets",
        "/api/v1/namespaces/%00/pods",
        "/api/v1/namespaces/../../nodes",
        "/api/v1/namespaces/default/pods/%ff",
        "/api/v1/namespaces/default/pods/a%2fb",
    ] {
        let (code, _) = send_as(&cluster.api, admin(), Method::GET, path, Value::Null).await;
        assert!(matches!(code, 200 | 400 | 404), "{path}: {code}");
    }
    let mut deep = json!({});
    for _ in 0..100 {
        deep = json!({"a": deep});
    }
    let mut object = pod("p");
    object["metadata"]["annotations"] = deep;
    let (code, answer) =
        cluster.send(Method::POST, "/api/v1/namespaces/default/pods", object).await;
    assert_eq!(code, 400, "{answer}");
}

async fn as_user(api: &Api, user: &User, method: Method, path: &str, body: Value) -> u16 {
    send_as(api, user.clone(), method, path, body).await.0
}

#[tokio::test]
async fn viewers_may_only_read() {
    let cluster = Cluster::new().await;
    cluster.create("/api/v1/namespaces/default/pods", pod("p")).await;
    let viewer = User::member("v", VIEWERS);
    let api = &cluster.api;
    let pods = "/api/v1/namespaces/default/pods";
    assert_eq!(as_user(api, &viewer, Method::GET, pods, Value::Null).await, 200);
    assert_eq!(as_user(api, &viewer, Method::POST, pods, pod("q")).await, 403);
    assert_eq!(as_user(api, &viewer, Method::DELETE, &format!("{pods}/p"), Value::Null).await, 403);
    let secrets = "/api/v1/namespaces/default/secrets";
    assert_eq!(as_user(api, &viewer, Method::GET, secrets, Value::Null).await, 403);
}

#[tokio::test]
async fn agent_reaches_its_node_its_pods_and_their_references() {
    let cluster = Cluster::new().await;
    let api = &cluster.api;
    for name in ["n1", "n2"] {
        let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}});
        cluster.create("/api/v1/nodes", node).await;
    }
    for (name, node) in [("mine", "n1"), ("theirs", "n2")] {
        let mut pod = pod(name);
        pod["spec"]["nodeName"] = json!(node);
        pod["spec"]["volumes"] = json!([{"name": "v", "secret": {"secretName": name}}]);
        cluster.create("/api/v1/namespaces/default/pods", pod).await;
        let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}});
        cluster.create("/api/v1/namespaces/default/secrets", secret).await;
    }
    let agent = User::member("system:node:n1", NODES);
    let base = "/api/v1/namespaces/default";
    let running = json!({"status": {"phase": "Running"}});
    let label = json!({"metadata": {"labels": {"a": "b"}}});
    for (method, path, body, code) in [
        (Method::PATCH, "/api/v1/nodes/n1".to_owned(), label.clone(), 200),
        (Method::PATCH, "/api/v1/nodes/n2".to_owned(), label, 403),
        (Method::PATCH, format!("{base}/pods/mine/status"), running.clone(), 200),
        (Method::PATCH, format!("{base}/pods/theirs/status"), running, 403),
        (Method::GET, format!("{base}/secrets/mine"), Value::Null, 200),
        (Method::GET, format!("{base}/secrets/theirs"), Value::Null, 403),
        (Method::GET, format!("{base}/secrets"), Value::Null, 403),
        (Method::GET, "/api/v1/pods?fieldSelector=spec.nodeName%3Dn1".to_owned(), Value::Null, 200),
        (Method::GET, "/api/v1/pods".to_owned(), Value::Null, 403),
        (Method::POST, format!("{base}/pods"), pod("own"), 403),
        (Method::DELETE, "/api/v1/nodes/n1".to_owned(), Value::Null, 403),
    ] {
        let found = as_user(api, &agent, method.clone(), &path, body).await;
        assert_eq!(found, code, "{method} {path}");
    }
}

#[tokio::test]
async fn node_denials_have_upstreams_messages() {
    let cluster = Cluster::new().await;
    let api = &cluster.api;
    let owner =
        |name: &str| json!([{"apiVersion": "v1", "kind": "ConfigMap", "name": name, "uid": "u"}]);
    let node = json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {"name": "n1", "ownerReferences": owner("a")},
    });
    cluster.create("/api/v1/nodes", node).await;
    let mut own = pod("own");
    own["spec"]["nodeName"] = json!("n1");
    own["spec"]["containers"][0]["envFrom"] = json!([{"configMapRef": {"name": "used"}}]);
    cluster.create("/api/v1/namespaces/default/pods", own).await;
    let agent = User::member("system:node:n1", NODES);
    let nobody = User::member("system:node:", NODES);
    let base = "/api/v1/namespaces/default";
    let lease = json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "n1"},
    });
    let cannot = |user: &str, what: &str, reason: &str| {
        format!("User \"system:node:{user}\" cannot {what}: node: {reason}")
    };
    let in_default = "in API group \"\" in the namespace \"default\"";
    for (user, method, path, body, code, message) in [
        (
            &agent,
            Method::PATCH,
            "/api/v1/nodes/n1".to_owned(),
            json!({"metadata": {"ownerReferences": owner("b")}}),
            403,
            "nodes \"n1\" is forbidden: node \"n1\" is not allowed to modify ownerReferences"
                .to_owned(),
        ),
        (
            &agent,
            Method::PATCH,
            "/api/v1/nodes/n1/status".to_owned(),
            json!({"metadata": {"labels": {"b.k8s.io/x": "", "a.k8s.io/x": "", "mine": ""}}}),
            403,
            "nodes \"n1\" is forbidden: is not allowed to modify labels: a.k8s.io/x, b.k8s.io/x"
                .to_owned(),
        ),
        (
            &agent,
            Method::PATCH,
            format!("{base}/pods/own/status"),
            json!({"status": {"resourceClaimStatuses": [{"name": "r", "resourceClaimName": "c"}]}}),
            403,
            "pods \"own\" is forbidden: node \"n1\" cannot update resource claim statues"
                .to_owned(),
        ),
        (
            &agent,
            Method::POST,
            "/apis/coordination.k8s.io/v1/namespaces/default/leases".to_owned(),
            lease,
            403,
            format!(
                "leases.coordination.k8s.io is forbidden: {}",
                cannot(
                    "n1",
                    "create resource \"leases\" in API group \"coordination.k8s.io\" in the \
                     namespace \"default\"",
                    "can only access leases in the \"kube-node-lease\" system namespace"
                )
            ),
        ),
        (
            &agent,
            Method::GET,
            "/api/v1/secrets?fieldSelector=metadata.name%3Ds".to_owned(),
            Value::Null,
            403,
            format!(
                "secrets \"s\" is forbidden: {}",
                cannot(
                    "n1",
                    "list resource \"secrets\" in API group \"\" at the cluster scope",
                    "can only read namespaced object of this type"
                )
            ),
        ),
        (
            &agent,
            Method::GET,
            format!("{base}/configmaps/other"),
            Value::Null,
            403,
            format!(
                "configmaps \"other\" is forbidden: {}",
                cannot(
                    "n1",
                    &format!("get resource \"configmaps\" {in_default}"),
                    "no relationship found between node 'n1' and this object"
                )
            ),
        ),
        (
            &agent,
            Method::GET,
            format!("{base}/configmaps/used"),
            Value::Null,
            404,
            "configmaps \"used\" not found".to_owned(),
        ),
        (
            &nobody,
            Method::GET,
            format!("{base}/pods/own"),
            Value::Null,
            403,
            format!(
                "pods \"own\" is forbidden: {}",
                cannot(
                    "",
                    &format!("get resource \"pods\" {in_default}"),
                    "unknown node for user \"system:node:\""
                )
            ),
        ),
    ] {
        let (found, answer) = send_as(api, user.clone(), method.clone(), &path, body).await;
        let said = answer["message"].as_str().unwrap_or_default();
        assert_eq!((found, said), (code, message.as_str()), "{method} {path}");
    }
}
