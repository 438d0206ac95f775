//! Tests of the API server: by function calls, and over TLS.

#![allow(clippy::panic, clippy::unwrap_used)]

use apiserver::{Api, Body, Caller, Options, Plugin, Plugins, Query, Reply, Request, User};
use http::{HeaderMap, HeaderValue, Method};
use serde_json::{Value, json};
use tempfile::TempDir;

mod accounts;
mod classes;
mod concurrency;
mod deletes;
mod gates;
mod kinds;
mod logs;
mod options;
mod plugins;
mod pods;
mod protobuf;
mod request_log;
mod resize;
mod security;
mod verbs;

/// A server on an empty store.
struct Cluster {
    api: Api,
    _dir: TempDir,
}

impl Cluster {
    async fn new() -> Cluster {
        Cluster::with(options()).await
    }

    async fn with(options: Options) -> Cluster {
        let dir = tempfile::tempdir().unwrap();
        let store = store::Store::open(&dir.path().join("store"), store::Options::default());
        let api = Api::new(store.unwrap(), options).await.unwrap();
        Cluster { api, _dir: dir }
    }

    async fn send(&self, method: Method, path: &str, body: Value) -> (u16, Value) {
        send_as(&self.api, User::member("admin", "system:masters"), method, path, body).await
    }

    /// As [`Cluster::send`], with the headers of the reply.
    async fn reply(&self, method: Method, path: &str, body: Value) -> Reply {
        let admin = User::member("admin", "system:masters");
        self.api.handle(request(admin, method, path, &body)).await
    }

    async fn create(&self, path: &str, body: Value) -> Value {
        let (status, answer) = self.send(Method::POST, path, body).await;
        assert_eq!(status, 201, "{answer}");
        answer
    }

    async fn get(&self, path: &str) -> Value {
        let (status, answer) = self.send(Method::GET, path, Value::Null).await;
        assert_eq!(status, 200, "{answer}");
        answer
    }
}

/// The default options of tests: no controller creates service accounts here, so pods have none.
fn options() -> Options {
    let plugins = Plugins::default().without(Plugin::ServiceAccount);
    Options { plugins, ..Options::default() }
}

fn request(user: User, method: Method, path: &str, body: &Value) -> Request {
    let mut headers = HeaderMap::new();
    let media = match method {
        Method::PATCH => "application/merge-patch+json",
        _ => "application/json",
    };
    headers.insert("content-type", HeaderValue::from_static(media));
    let (path, query) = path.split_once('?').unwrap_or((path, ""));
    Request {
        method,
        path: path.to_owned(),
        query: Query::parse(query),
        headers,
        body: if body.is_null() { String::new() } else { body.to_string() }.into(),
        caller: Caller::Known(user),
        source: None,
    }
}

async fn send_as(api: &Api, user: User, method: Method, path: &str, body: Value) -> (u16, Value) {
    let reply = api.handle(request(user, method, path, &body)).await;
    let status = reply.status.as_u16();
    let bytes = match reply.body {
        Body::Whole(bytes) => bytes.to_vec(),
        Body::Stream(mut chunks) => {
            let mut bytes = Vec::new();
            while let Some(chunk) = chunks.recv().await {
                bytes.extend_from_slice(&chunk);
            }
            bytes
        }
    };
    (status, serde_json::from_slice(&bytes).unwrap_or(Value::Null))
}

fn pod(name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {"containers": [{"name": "c", "image": "registry.example/app:1"}]},
    })
}

#[tokio::test]
async fn a_long_list_is_streamed_and_complete() {
    let cluster = Cluster::new().await;
    for index in 0..600 {
        cluster.create("/api/v1/namespaces/default/pods", pod(&format!("p{index:03}"))).await;
    }
    let list = cluster.get("/api/v1/pods").await;
    let items = list["items"].as_array().unwrap();
    assert_eq!(items.len(), 600);
    assert!(items.windows(2).all(|pair| {
        pair[0]["metadata"]["name"].as_str() < pair[1]["metadata"]["name"].as_str()
    }));
    // Pages are of one snapshot, whatever is written meanwhile.
    let (mut names, mut token) = (Vec::new(), String::new());
    loop {
        let page = cluster.get(&format!("/api/v1/pods?limit=250&continue={token}")).await;
        names.extend(
            page["items"].as_array().unwrap().iter().map(|item| item["metadata"]["name"].clone()),
        );
        cluster.create("/api/v1/namespaces/default/pods", pod(&format!("q{}", names.len()))).await;
        match page["metadata"]["continue"].as_str() {
            Some(next) => token = next.to_owned(),
            None => break,
        }
    }
    assert_eq!(names.len(), 600);
}
