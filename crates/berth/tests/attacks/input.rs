//! Bodies that need far more time or memory than their size.

use http::{Method, StatusCode};
use serde_json::{Value, json};

use crate::server::{Answer, Server, Who};

/// A request that every account may send, and so every pod with a token.
const SELF_REVIEWS: &str = "/apis/authentication.k8s.io/v1/selfsubjectreviews";

const PODS: &str = "/api/v1/namespaces/default/pods";
const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";
const REVISIONS: &str = "/apis/apps/v1/namespaces/default/controllerrevisions";

const JSON: &[(&str, &str)] = &[("content-type", "application/json")];
const YAML: &[(&str, &str)] = &[("content-type", "application/yaml")];
const PROTOBUF: &[(&str, &str)] = &[("content-type", "application/vnd.kubernetes.protobuf")];

/// Limit on the server's memory while it rejects a body of 3 MB.
const ENOUGH: u64 = 300 << 20;

impl Server {
    async fn post(&self, path: &str, headers: &[(&str, &str)], body: Vec<u8>) -> Answer {
        self.ask(Who::Admin, Method::POST, path, headers, body).await
    }
}

fn assert_refused(answer: &Answer, code: StatusCode, reason: &str, message: &str) {
    let text = answer.text();
    assert_eq!(answer.status, code, "{}", &text[..text.len().min(1000)]);
    let status: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(status["reason"], reason, "{status}");
    assert!(status["message"].as_str().unwrap().contains(message), "{status}");
}

fn assert_too_large(answer: &Answer) {
    let message = "Request entity too large";
    assert_refused(answer, StatusCode::PAYLOAD_TOO_LARGE, "RequestEntityTooLarge", message);
}

#[tokio::test(flavor = "multi_thread")]
async fn yaml_aliases_do_not_unfold_to_gigabytes() {
    let server = Server::start();
    let token = server.token("default", "default").await;
    let word = "x".repeat(100_000);
    let aliases: String = (0..90_000).map(|n| format!("    k{n}: *a\n")).collect();
    let body = format!(
        "apiVersion: authentication.k8s.io/v1\nkind: SelfSubjectReview\nmetadata:\n  annotations:\n    \
         k: &a {word}\n{aliases}"
    );
    let answer = server.ask(Who::Token(&token), Method::POST, SELF_REVIEWS, YAML, body).await;
    assert_refused(&answer, StatusCode::BAD_REQUEST, "BadRequest", "expand to more than");
    assert!(server.peak_memory() < ENOUGH, "{}", server.peak_memory());
    // Server-side apply reads the same notation.
    let body = format!(
        "apiVersion: v1\nkind: ConfigMap\ndata:\n    k: &a {}\n{}",
        "x".repeat(100_000),
        aliases
    );
    let path = format!("{CONFIG_MAPS}/c?fieldManager=m");
    let headers = &[("content-type", "application/apply-patch+yaml")];
    let answer = server.ask(Who::Admin, Method::PATCH, &path, headers, body).await;
    assert_refused(&answer, StatusCode::BAD_REQUEST, "BadRequest", "expand to more than");
    assert!(server.peak_memory() < ENOUGH, "{}", server.peak_memory());
    server.assert_alive().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn unknown_fields_do_not_hold_up_an_administrator() {
    const ATTACKS: usize = 8;
    let server = Server::start();
    let token = server.token("default", "default").await;
    let fields: String = (0..100_000).map(|n| format!(r#","unknown{n}":1"#)).collect();
    let body = format!(
        r#"{{"apiVersion":"authentication.k8s.io/v1","kind":"SelfSubjectReview"{fields}}}"#
    );
    let attack = || server.ask(Who::Token(&token), Method::POST, SELF_REVIEWS, JSON, body.clone());
    let attacks = futures_of(std::iter::repeat_with(attack).take(ATTACKS));
    let admin = async {
        for _ in 0..3 {
            server.assert_alive().await;
        }
    };
    let (answers, ()) = tokio::join!(attacks, admin);
    for answer in answers {
        assert_eq!(answer.status, StatusCode::CREATED, "{}", answer.text());
        let warnings = answer.headers.get_all("warning").iter().count();
        assert_eq!(warnings, 100);
    }
    // As upstream, strict validation names the first hundred.
    let path = format!("{SELF_REVIEWS}?fieldValidation=Strict");
    let answer = server.ask(Who::Token(&token), Method::POST, &path, JSON, body.clone()).await;
    assert_refused(&answer, StatusCode::BAD_REQUEST, "BadRequest", "strict decoding error");
    assert_eq!(answer.text().matches("unknown field").count(), 100);
    assert!(server.peak_memory() < ENOUGH, "{}", server.peak_memory());
}

/// Runs futures concurrently and waits for all.
async fn futures_of<F: Future<Output = Answer>>(all: impl Iterator<Item = F>) -> Vec<Answer> {
    let mut pending: Vec<_> = all.map(Box::pin).collect();
    let mut answers = Vec::new();
    std::future::poll_fn(|context| {
        pending.retain_mut(|future| match future.as_mut().poll(context) {
            std::task::Poll::Ready(answer) => {
                answers.push(answer);
                false
            }
            std::task::Poll::Pending => true,
        });
        if pending.is_empty() { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
    })
    .await;
    answers
}

#[tokio::test(flavor = "multi_thread")]
async fn bodies_of_empty_values_do_not_grow_a_hundredfold() {
    let server = Server::start();
    let items = "{},".repeat(1_000_000);
    let items = items.trim_end_matches(',');
    let pod = format!(
        r#"{{"apiVersion":"v1","kind":"Pod","metadata":{{"name":"p"}},"spec":{{"containers":[{items}]}}}}"#
    );
    assert_too_large(&server.post(PODS, JSON, pod.into_bytes()).await);
    let maps = r#"{"":0},"#.repeat(400_000);
    let revision = format!(
        r#"{{"apiVersion":"apps/v1","kind":"ControllerRevision","metadata":{{"name":"r"}},"revision":1,"data":[{}]}}"#,
        maps.trim_end_matches(',')
    );
    assert_too_large(&server.post(REVISIONS, JSON, revision.into_bytes()).await);
    let yaml = format!(
        "apiVersion: apps/v1\nkind: ControllerRevision\nmetadata:\n  name: r\nrevision: 1\ndata: [{}]\n",
        "a,".repeat(1_400_000)
    );
    assert_too_large(&server.post(REVISIONS, YAML, yaml.into_bytes()).await);
    // A body that is not an object is reported without being decoded.
    let list = format!("[{}]", maps.trim_end_matches(','));
    let answer = server.post(PODS, JSON, list.into_bytes()).await;
    assert_refused(&answer, StatusCode::BAD_REQUEST, "BadRequest", "cannot unmarshal array");
    assert!(server.peak_memory() < ENOUGH, "{}", server.peak_memory());
    server.assert_alive().await;
}

/// A length-delimited field.
fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    let mut out = vec![number << 3 | 2];
    let mut length = bytes.len();
    while length >= 0x80 {
        out.push((length & 0x7f) as u8 | 0x80);
        length >>= 7;
    }
    out.push(length as u8);
    out.extend_from_slice(bytes);
    out
}

fn envelope(kind: &str, message: &[u8]) -> Vec<u8> {
    let type_meta = [field(1, b"v1"), field(2, kind.as_bytes())].concat();
    [b"k8s\0".to_vec(), field(1, &type_meta), field(2, message)].concat()
}

#[tokio::test(flavor = "multi_thread")]
async fn empty_messages_do_not_grow_a_hundredfold() {
    let server = Server::start();
    // Containers are field 2 of a pod's spec, which is field 2 of the pod.
    let containers = [0x12, 0].repeat(1_400_000);
    let pod = envelope("Pod", &field(2, &containers));
    assert_too_large(&server.post(PODS, PROTOBUF, pod).await);
    assert!(server.peak_memory() < ENOUGH, "{}", server.peak_memory());
    server.assert_alive().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn objects_larger_than_upstream_stores_are_refused() {
    let server = Server::start();
    let containers: Vec<Value> =
        (0..30_000).map(|n| json!({"name": format!("c{n}"), "image": "i"})).collect();
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"},
        "spec": {"containers": containers},
    });
    assert_too_large(&server.post(PODS, JSON, pod.to_string().into_bytes()).await);
    let revision = |name: &str, size: usize| {
        let object = json!({
            "apiVersion": "apps/v1", "kind": "ControllerRevision", "metadata": {"name": name},
            "revision": 1, "data": {"a": "x".repeat(size)},
        });
        object.to_string().into_bytes()
    };
    assert_too_large(&server.post(REVISIONS, JSON, revision("large", 1_600_000)).await);
    let answer = server.post(REVISIONS, JSON, revision("small", 1_500_000)).await;
    assert_eq!(answer.status, StatusCode::CREATED, "{}", answer.text());
    // An object may not grow beyond the limit later, and can still be deleted.
    let path = format!("{REVISIONS}/small");
    let annotations = json!({"metadata": {"annotations": {"a": "x".repeat(100_000)}}});
    let headers = &[("content-type", "application/merge-patch+json")];
    let body = annotations.to_string();
    let answer = server.ask(Who::Admin, Method::PATCH, &path, headers, body).await;
    assert_too_large(&answer);
    let answer = server.ask(Who::Admin, Method::DELETE, &path, &[], "").await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.text());
    server.assert_alive().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn warnings_and_causes_grow_linearly() {
    let server = Server::start();
    // Each port is a duplicate of each before it.
    let ports: Vec<Value> = (0..20_000).map(|_| json!({"containerPort": 80})).collect();
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"},
        "spec": {"containers": [{"name": "c", "image": "i", "ports": ports}]},
    });
    let path = format!("{PODS}?dryRun=All");
    let answer = server.post(&path, JSON, pod.to_string().into_bytes()).await;
    assert!(answer.headers.get_all("warning").iter().count() <= 100);
    // Each owner that is a second controller is reported with the list of all owners.
    let owner = |n: usize| {
        json!({
            "apiVersion": "v1", "kind": "ConfigMap", "name": "n", "uid": format!("u{n}"),
            "controller": true,
        })
    };
    let object = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "c", "ownerReferences": (0..10_000).map(owner).collect::<Vec<_>>()},
    });
    let answer = server.post(CONFIG_MAPS, JSON, object.to_string().into_bytes()).await;
    let message = "and more that is not listed";
    assert_refused(&answer, StatusCode::UNPROCESSABLE_ENTITY, "Invalid", message);
    assert!(answer.body.len() < 8 << 20, "{}", answer.body.len());
    assert!(server.peak_memory() < ENOUGH, "{}", server.peak_memory());
    server.assert_alive().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn deep_values_and_long_paths_do_not_end_the_process() {
    let server = Server::start();
    let revision = |depth: usize| {
        let data = format!("{}1{}", "{\"a\":".repeat(depth), "}".repeat(depth));
        format!(
            r#"{{"apiVersion":"apps/v1","kind":"ControllerRevision","metadata":{{"name":"r"}},"revision":1,"data":{data}}}"#
        )
    };
    // Deeper objects could be stored, and then not be read again as items of a list.
    for depth in [100, 125, 500_000] {
        let answer = server.post(REVISIONS, JSON, revision(depth).into_bytes()).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{}", answer.text());
    }
    let answer = server.post(REVISIONS, JSON, revision(99).into_bytes()).await;
    assert_eq!(answer.status, StatusCode::CREATED, "{}", answer.text());
    // The unused path of `add` used to be built as a tree, whose drop recursed.
    let operation = json!({
        "op": "add", "path": "/revision", "value": "x", "from": "/a".repeat(1_000_000),
    });
    let headers = &[("content-type", "application/json-patch+json")];
    let body = json!([operation]).to_string();
    let path = format!("{REVISIONS}/r");
    let answer = server.ask(Who::Admin, Method::PATCH, &path, headers, body).await;
    assert_eq!(answer.status, StatusCode::UNPROCESSABLE_ENTITY, "{}", answer.text());
    server.assert_alive().await;
}
