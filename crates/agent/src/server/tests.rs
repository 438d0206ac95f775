//! The server over TLS, with pods that are objects only: access, and everything that works without a
//! runtime.

use ::metrics::Kind;
use client::Transport;
use http::Request;
use http_body_util::{BodyExt as _, Full};
use https::Dialer;
use https::certificates::{self, Pair};
use std::path::Path;
use std::sync::Mutex;
use std::time::Duration;

use super::*;

struct AgentEvent;

impl ServerBackend for AgentEvent {
    fn pods(&self) -> Vec<Value> {
        vec![pod()]
    }

    fn pod(&self, namespace: &str, name: &str) -> Option<Value> {
        (namespace == "a" && name == "p").then(pod)
    }

    fn sandbox(&self, _: &str) -> Option<String> {
        None
    }

    fn configuration(&self) -> Value {
        json!({"kind": "KubeletConfiguration", "port": 10250})
    }

    fn metrics(&self) -> Vec<Family> {
        vec![Family::single(Kind::Gauge, "kubelet_running_pods", "", 1.0)]
    }

    fn document<'a>(&'a self, path: &'a str) -> BoxFuture<'a, Option<Document>> {
        let answer = (path == "/stats/summary").then(|| Document::Json(json!({})));
        Box::pin(std::future::ready(answer))
    }
}

fn pod() -> Value {
    let id = |id: &str| json!({"exitCode": 0, "containerID": format!("containerd://{id}")});
    let names = ["ok", "pulling", "backoff", "creating", "crashed", "done", "lost", "new"];
    let containers: Vec<Value> = names.iter().map(|name| json!({"name": name})).collect();
    json!({
        "metadata": {"name": "p", "namespace": "a", "uid": "u"},
        "spec": {"containers": containers, "initContainers": [{"name": "init"}]},
        "status": {
            "initContainerStatuses": [
                {"name": "init", "state": {"terminated": id("i")}, "lastState": {}},
            ],
            "containerStatuses": [
                {"name": "ok", "containerID": "containerd://1", "imageID": "sha256:1",
                 "state": {"running": {}}, "lastState": {"terminated": id("0")}},
                {"name": "pulling", "state": {"waiting": {"reason": "ErrImagePull"}}},
                {"name": "backoff", "state": {"waiting": {"reason": "ImagePullBackOff"}}},
                {"name": "creating", "state": {"waiting": {"reason": "ContainerCreating"}}},
                {"name": "crashed", "state": {"waiting": {"reason": "CrashLoopBackOff"}},
                 "lastState": {"terminated": id("2")}},
                {"name": "done", "state": {"terminated": id("3")}},
                {"name": "lost", "state": {"terminated": {"exitCode": 137}}},
            ],
        },
    })
}

#[test]
fn the_container_whose_log_is_meant_is_found() {
    let pod = pod();
    for (name, previous, id) in [
        ("ok", false, "1"),
        ("ok", true, "0"),
        ("crashed", false, "2"),
        ("crashed", true, "2"),
        ("done", false, "3"),
        ("init", false, "i"),
    ] {
        assert_eq!(find_container::logged(&pod, "p", name, previous), Ok(id), "{name} {previous}");
    }
    for (name, previous, text) in [
        (
            "pulling",
            false,
            r#"container "pulling" in pod "p" is waiting to start: image can't be pulled"#,
        ),
        (
            "backoff",
            false,
            r#"container "backoff" in pod "p" is waiting to start: trying and failing to pull image"#,
        ),
        (
            "creating",
            false,
            r#"container "creating" in pod "p" is waiting to start: ContainerCreating"#,
        ),
        ("lost", false, r#"container "lost" in pod "p" is terminated"#),
        ("new", false, r#"container "new" in pod "p" is not available"#),
        ("done", true, r#"previous terminated container "done" in pod "p" not found"#),
    ] {
        assert_eq!(find_container::logged(&pod, "p", name, previous), Err(Refusal::bad(text)));
    }
}

struct Served {
    authority: Pair,
    port: u16,
    _stop: watch::Sender<bool>,
}

async fn serve() -> Served {
    serve_to(Access::default()).await
}

async fn serve_to(access: Access) -> Served {
    let authority = certificates::authority("a").unwrap();
    let pair = certificates::server(&authority, &["127.0.0.1".to_owned()]).unwrap();
    let any = "127.0.0.1:0".parse().unwrap();
    let listener = Server::bind(any, &pair, Some(&authority.certificate)).await.unwrap();
    let port = listener.address().unwrap().port();
    let (stop, stopping) = watch::channel(false);
    // There is no runtime, so requests that need one fail.
    let runtime = Client::new(cri::Endpoint::parse("unix:///nowhere/runtime.sock").unwrap());
    let server = Server::new(Arc::new(AgentEvent), runtime).open_to(access);
    tokio::spawn(server.serve(listener, stopping));
    Served { authority, port, _stop: stop }
}

impl Served {
    fn pair(&self, name: &str, group: &str) -> Pair {
        certificates::client(&self.authority, name, group).unwrap()
    }

    async fn ask(
        &self,
        pair: Option<&Pair>,
        method: Method,
        path: &str,
        headers: &[(&'static str, &'static str)],
    ) -> (u16, String, String) {
        let patience = Duration::from_secs(20);
        let dialer =
            Dialer::new(&self.authority.certificate, pair, &["http/1.1"], patience).unwrap();
        let stream = dialer.connect("127.0.0.1", self.port, "127.0.0.1").await.unwrap();
        let mut request = Request::builder().method(method).uri(path).header("host", "node:10250");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Full::new(Bytes::new())).unwrap();
        let response = https::exchange(stream, request).await.unwrap();
        let status = response.status().as_u16();
        let media = response
            .headers()
            .get("content-type")
            .map_or(String::new(), |value| value.to_str().unwrap().to_owned());
        let body = response.into_body().collect().await.unwrap().to_bytes();
        (status, media, String::from_utf8(body.to_vec()).unwrap())
    }
}

#[tokio::test]
async fn only_the_api_server_and_administrators_get_in() {
    let served = serve().await;
    let api_server = served.pair(API_SERVER, "anybody");
    let administrator = served.pair("root", "system:masters");
    let viewer = served.pair("viewer", "berth:viewers");
    let node = served.pair("system:node:other", "system:nodes");
    for (method, needed, path) in [
        (Method::GET, "get pods proxy", "/pods"),
        (Method::GET, "get metrics", "/metrics"),
        (Method::GET, "get configz proxy", "/configz"),
        (Method::GET, "get proxy", "/containerLogs/a/p/ok"),
        (Method::GET, "get proxy", "/exec/a/p/ok"),
        (Method::POST, "create proxy", "/exec/a/p/ok?output=1&command=a"),
        (Method::POST, "create proxy", "/run/a/p/ok?cmd=a"),
        (Method::GET, "get proxy", "/nope"),
    ] {
        let ask = async |pair: Option<&Pair>| served.ask(pair, method.clone(), path, &[]).await;
        assert_eq!(ask(None).await.0, 401, "{path}");
        let (verb, parts) = needed.split_once(' ').unwrap();
        let forbidden = format!(
            "Forbidden (user=viewer, verb={verb}, resource=nodes, subresource(s)=[{parts}])"
        );
        assert_eq!(ask(Some(&viewer)).await, (403, TEXT.to_owned(), forbidden));
        assert_eq!(ask(Some(&node)).await.0, 403, "{path}");
        for pair in [&api_server, &administrator] {
            let (status, ..) = ask(Some(pair)).await;
            assert!(!matches!(status, 401 | 403), "{path}: {status}");
        }
        // Without an API to review it, a token is not accepted.
        let bearer = [("authorization", "Bearer x")];
        assert_eq!(served.ask(None, method, path, &bearer).await.0, 401, "{path}");
    }
    for path in ["/healthz", "/healthz/ping", "/healthz/syncloop"] {
        let response = served.ask(None, Method::GET, path, &[]).await;
        assert_eq!(response, (200, TEXT.to_owned(), "ok".to_owned()));
    }
}

/// An API that accepts one token and allows its user metrics and statistics of node `n`. Records its
/// requests.
#[derive(Debug, Default)]
struct Reviewer {
    request: Mutex<Vec<Value>>,
    /// True if it fails.
    away: bool,
}

impl Transport for Reviewer {
    fn send(
        &self,
        request: client::Request,
    ) -> client::BoxFuture<'_, Result<client::Response, client::TransportError>> {
        let review: Value = serde_json::from_slice(&request.body).unwrap();
        let (spec, of) = (&review["spec"], &review["spec"]["resourceAttributes"]);
        let status = match request.path.as_str() {
            "/apis/authentication.k8s.io/v1/tokenreviews" if spec["token"] == "good" => json!({
                "authenticated": true,
                "user": {"username": "prometheus", "uid": "1", "groups": ["g"],
                         "extra": {"e": ["v"]}},
            }),
            "/apis/authentication.k8s.io/v1/tokenreviews" => json!({"user": {}}),
            "/apis/authorization.k8s.io/v1/subjectaccessreviews" => {
                let parts = ["metrics", "stats", "pods"];
                let allowed = spec["user"] == "prometheus"
                    && of["verb"] == "get"
                    && of["resource"] == "nodes"
                    && of["name"] == "n"
                    && of["subresource"].as_str().is_some_and(|part| parts.contains(&part));
                json!({"allowed": allowed})
            }
            other => panic!("{other}"),
        };
        self.request.lock().unwrap().push(spec.clone());
        let (code, body) = match self.away {
            false => (201, json!({"status": status})),
            true => (503, json!({"kind": "Status", "reason": "ServiceUnavailable"})),
        };
        let body = client::Body::Whole(body.to_string().into());
        Box::pin(async move { Ok(client::Response { status: code, retry_after: None, body }) })
    }
}

impl Reviewer {
    async fn serving(self, settings: access::Settings) -> (Arc<Reviewer>, Served) {
        let reviewer = Arc::new(self);
        let transport: Arc<dyn Transport> = Arc::clone(&reviewer) as _;
        let access =
            Access::reviewed(client::Client::new(transport, "t"), "n".to_owned(), settings);
        (reviewer, serve_to(access).await)
    }

    /// Returns the number of requests since the last call.
    fn count(&self) -> usize {
        std::mem::take(&mut *self.request.lock().unwrap()).len()
    }
}

const GOOD: &[(&str, &str)] = &[("authorization", "Bearer good")];
const BAD: &[(&str, &str)] = &[("authorization", "Bearer bad")];

#[tokio::test]
async fn tokens_and_access_are_reviewed_by_the_api() {
    let (api, served) = Reviewer::default().serving(access::Settings::default()).await;
    let get = async |path: &str, headers| served.ask(None, Method::GET, path, headers).await;
    assert_eq!(get("/metrics", GOOD).await.0, 200);
    let request = api.request.lock().unwrap().clone();
    let expected = json!({
        "user": "prometheus", "uid": "1", "groups": ["g"], "extra": {"e": ["v"]},
        "resourceAttributes": {
            "verb": "get", "version": "v1", "resource": "nodes", "subresource": "metrics",
            "name": "n",
        },
    });
    assert_eq!(request, [json!({"token": "good"}), expected]);
    api.count();
    // Both answers are cached, and so are refusals.
    assert_eq!(get("/metrics/", GOOD).await.0, 200);
    assert_eq!(api.count(), 0);
    assert_eq!(get("/stats/summary", GOOD).await.0, 200);
    assert_eq!(get("/pods", GOOD).await.0, 200);
    assert_eq!(api.count(), 2);
    let forbidden = "Forbidden (user=prometheus, verb=get, resource=nodes, \
                     subresource(s)=[configz proxy])";
    for _ in 0..2 {
        let response = get("/configz", GOOD).await;
        assert_eq!(response, (403, TEXT.to_owned(), forbidden.to_owned()));
    }
    assert_eq!(api.count(), 2);
    let path = "/exec/a/p/ok?output=1&command=a";
    assert_eq!(served.ask(None, Method::POST, path, GOOD).await.0, 403);
    assert_eq!(api.count(), 1);
    for _ in 0..2 {
        let response = get("/metrics", BAD).await;
        assert_eq!(response, (401, TEXT.to_owned(), "Unauthorized".to_owned()));
    }
    assert_eq!(api.count(), 1);
    assert_eq!(get("/metrics", &[]).await.0, 401);
    assert_eq!(get("/metrics", &[("authorization", "Basic Z29vZA==")]).await.0, 401);
    assert_eq!(api.count(), 0);
    // A certificate is preferred to a token, and its user is authorized by the API as well.
    let viewer = served.pair("viewer", "berth:viewers");
    assert_eq!(served.ask(Some(&viewer), Method::GET, "/metrics", GOOD).await.0, 403);
    let groups = api.request.lock().unwrap()[0]["groups"].clone();
    assert_eq!(groups, json!(["berth:viewers", "system:authenticated"]));
    api.count();
    let trusted = served.pair(API_SERVER, "x");
    assert_eq!(served.ask(Some(&trusted), Method::GET, "/metrics", &[]).await.0, 200);
    assert_eq!(api.count(), 0);
}

#[tokio::test]
async fn access_is_what_the_configuration_makes_it() {
    use access::{Authorization, Settings};
    let usual = Settings::default();
    let check = async |settings: Settings, headers, path: &str, expected: u16| {
        let (_, served) = Reviewer::default().serving(settings).await;
        let (status, _, text) = served.ask(None, Method::GET, path, headers).await;
        assert_eq!(status, expected, "{path}: {text}");
    };
    let without_tokens = Settings { tokens: None, ..usual.clone() };
    check(without_tokens, GOOD, "/metrics", 401).await;
    let anonymous = Settings { anonymous: true, ..usual.clone() };
    check(anonymous.clone(), &[], "/metrics", 403).await;
    check(anonymous.clone(), BAD, "/metrics", 401).await;
    let open = Settings { authorization: Authorization::AlwaysAllow, ..usual.clone() };
    check(open.clone(), &[], "/configz", 401).await;
    check(open, GOOD, "/configz", 200).await;
    let forgetful = Settings { tokens: Some(Duration::ZERO), ..usual };
    let (api, served) = Reviewer::default().serving(forgetful).await;
    for _ in 0..2 {
        assert_eq!(served.ask(None, Method::GET, "/metrics", GOOD).await.0, 200);
    }
    assert_eq!(api.count(), 3);
}

#[tokio::test]
async fn failed_reviews_allow_nothing_and_are_not_cached() {
    let away = Reviewer { away: true, ..Reviewer::default() };
    let (api, served) = away.serving(access::Settings::default()).await;
    let viewer = served.pair("viewer", "berth:viewers");
    for _ in 0..2 {
        assert_eq!(served.ask(None, Method::GET, "/metrics", GOOD).await.0, 401);
        let response = served.ask(Some(&viewer), Method::GET, "/metrics", &[]).await;
        let text =
            "Authorization error (user=viewer, verb=get, resource=nodes, subresource=metrics)";
        assert_eq!(response, (500, TEXT.to_owned(), text.to_owned()));
    }
    assert_eq!(api.count(), 4);
}

#[tokio::test]
async fn documents_are_those_of_the_kubelet() {
    let served = serve().await;
    let pair = served.pair(API_SERVER, "x");
    let get = async |path: &str| served.ask(Some(&pair), Method::GET, path, &[]).await;
    let (status, media, text) = get("/pods").await;
    let list: Value = serde_json::from_str(&text).unwrap();
    assert_eq!((status, media.as_str(), &list["kind"]), (200, JSON, &json!("PodList")));
    assert_eq!(list["items"][0], pod());
    let (_, media, text) = get("/runningpods/").await;
    let list: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(media, JSON);
    assert_eq!(
        list["items"],
        json!([{
            "metadata": {"name": "p", "namespace": "a", "uid": "u"},
            "spec": {"containers": [{"name": "ok", "image": "sha256:1", "resources": {}}]},
            "status": {},
        }])
    );
    let (_, _, text) = get("/configz").await;
    assert_eq!(text, r#"{"kubeletconfig":{"kind":"KubeletConfiguration","port":10250}}"#);
    assert_eq!(get("/metrics").await.1, exposition::TEXT);
    assert_eq!(get("/stats/summary").await.2, "{}");
    for path in ["/nope", "/spec", "/"] {
        assert_eq!(get(path).await, (404, TEXT.to_owned(), "404 page not found\n".to_owned()));
    }
}

#[tokio::test]
async fn refusals_have_upstreams_texts() {
    let served = serve().await;
    let pair = served.pair(API_SERVER, "x");
    let spdy = [("connection", "Upgrade"), ("upgrade", "SPDY/3.1")];
    let websocket = [("connection", "Upgrade"), ("upgrade", "websocket")];
    for (method, path, headers, status, text) in [
        (Method::GET, "/containerLogs/a/nope/c", &[][..], 404, "pod \"nope\" does not exist"),
        (Method::GET, "/containerLogs/a/p/x", &[], 404, "container \"x\" not found in pod \"p\""),
        (Method::GET, "/containerLogs/a/p/%ff", &[], 400, "the path is not UTF-8"),
        (Method::GET, "/containerLogs/a/p/c%00", &[], 400, "the path has control characters"),
        (
            Method::GET,
            "/containerLogs/a/p/new",
            &[],
            400,
            "container \"new\" in pod \"p\" is not available",
        ),
        (Method::POST, "/containerLogs/a/p/ok", &[], 405, "405: Method Not Allowed"),
        (Method::POST, "/exec/a/x/c?output=1&command=a", &spdy, 404, "pod does not exist"),
        (
            Method::POST,
            "/exec/a/p/done?output=1&command=a",
            &spdy,
            500,
            "container not found (\"done\")",
        ),
        (
            Method::POST,
            "/exec/a/p/ok?command=a",
            &spdy,
            400,
            "you must specify at least 1 of stdin, stdout, stderr",
        ),
        (
            Method::POST,
            "/exec/a/p/ok?output=1",
            &spdy,
            400,
            "you must specify at least 1 command for the container",
        ),
        (Method::POST, "/exec/a/p/u/ok?output=1&command=a", &[], 400, "Upgrade request required"),
        (Method::POST, "/attach/a/p/new?output=1", &spdy, 500, "container not found (\"new\")"),
        (Method::GET, "/portForward/a/p", &websocket, 400, "query parameter \"port\" is required"),
        (Method::POST, "/portForward/a/p", &spdy, 500, "pod not found (\"p_a\")"),
        (Method::DELETE, "/pods", &[], 405, "405: Method Not Allowed"),
    ] {
        let response = served.ask(Some(&pair), method, path, headers).await;
        assert_eq!(response, (status, TEXT.to_owned(), text.to_owned()), "{path}");
    }
    // Without a runtime there is no stream.
    let path = "/exec/a/p/ok?output=1&command=a";
    let (status, _, text) = served.ask(Some(&pair), Method::POST, path, &spdy).await;
    assert!(status == 500 && text.contains("/nowhere/runtime.sock"), "{status} {text}");
}

#[test]
fn a_certificate_is_made_once_and_files_win() {
    let dir = tempfile::tempdir().unwrap();
    let pki = dir.path().join("pki");
    let own = Serving {
        files: (None, None),
        directory: pki.clone(),
        names: vec!["127.0.0.1".to_owned(), "node".to_owned()],
        client_authority: None,
        clock: https::Clock::default(),
    };
    let with = |certificate: Option<&Path>, key: Option<&Path>| {
        let files = (certificate.map(Path::to_owned), key.map(Path::to_owned));
        Serving { files, ..own.clone() }.read().map(|(pair, _)| pair)
    };
    let made = with(None, None).unwrap();
    assert_eq!(with(None, None).unwrap(), made);
    let (certificate, key) = (pki.join("kubelet.crt"), pki.join("kubelet.key"));
    assert_eq!(with(Some(&certificate), Some(&key)).unwrap(), made);
    let half = with(Some(&certificate), None).unwrap_err();
    assert!(half.to_string().contains("tlsPrivateKeyFile"), "{half}");
    let gone = dir.path().join("gone");
    let error = with(Some(&gone), Some(&gone)).unwrap_err();
    assert!(error.to_string().contains("gone"), "{error}");
}
