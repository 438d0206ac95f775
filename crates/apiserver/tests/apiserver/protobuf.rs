//! Kubernetes' protobuf as input and output, always compared with JSON of the same object.

use std::time::Duration;

use apiserver::{Body, Caller, Query, Reply, Request, User};
use http::{HeaderMap, HeaderValue, Method};
use objects::protobuf::{self, Envelope};
use objects::schema::Schema;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::{Cluster, pod};

const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
const PODS: &str = "/api/v1/namespaces/default/pods";

/// The bytes that kubectl would send for an object.
fn bytes_of(object: &Value) -> Vec<u8> {
    let schema = Schema::served();
    let name = |field: &str| object[field].as_str().unwrap();
    let id = protobuf::type_of(schema, name("apiVersion"), name("kind")).unwrap();
    Envelope::write(schema, id, object).unwrap()
}

/// Decodes an enveloped object to JSON.
fn object_of(bytes: &[u8]) -> Value {
    let schema = Schema::served();
    let envelope = Envelope::read(bytes).unwrap();
    let id = protobuf::type_of(schema, &envelope.api_version, &envelope.kind).unwrap();
    let decoded = protobuf::decode(schema, id, envelope.message).unwrap();
    assert!(decoded.strict.is_empty(), "{:?}", decoded.strict);
    let mut object = decoded.value;
    object["kind"] = envelope.kind.into();
    object["apiVersion"] = envelope.api_version.into();
    object
}

async fn ask(cluster: &Cluster, method: Method, path: &str, accept: &str, body: Vec<u8>) -> Reply {
    let mut headers = HeaderMap::new();
    headers.insert("accept", HeaderValue::from_str(accept).unwrap());
    headers.insert("content-type", HeaderValue::from_static(PROTOBUF));
    let (path, query) = path.split_once('?').unwrap_or((path, ""));
    let request = Request {
        method,
        path: path.to_owned(),
        query: Query::parse(query),
        headers,
        body: body.into(),
        caller: Caller::Known(User::member("admin", "system:masters")),
        source: None,
    };
    cluster.api.handle(request).await
}

async fn whole(body: Body) -> Vec<u8> {
    match body {
        Body::Whole(bytes) => bytes.to_vec(),
        Body::Stream(mut chunks) => {
            let mut bytes = Vec::new();
            while let Some(chunk) = chunks.recv().await {
                bytes.extend_from_slice(&chunk);
            }
            bytes
        }
    }
}

/// Sends and accepts protobuf.
async fn send(cluster: &Cluster, method: Method, path: &str, body: Vec<u8>) -> (u16, Value) {
    let reply =
        ask(cluster, method, path, "application/vnd.kubernetes.protobuf,application/json", body)
            .await;
    assert_eq!(reply.content_type, PROTOBUF);
    (reply.status.as_u16(), object_of(&whole(reply.body).await))
}

#[tokio::test]
async fn protobuf_object_equals_the_json_object() {
    let cluster = Cluster::new().await;
    let secret = |name: &str| {
        json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "labels": {"a": "b"}},
            "data": {"k": "/wA="}, "type": "Opaque",
        })
    };
    let deployment = |name: &str| {
        json!({
            "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name},
            "spec": {"replicas": 0, "selector": {"matchLabels": {"a": "b"}}, "strategy": {},
                "template": {"metadata": {"labels": {"a": "b"}},
                    "spec": {"containers": [{"name": "c", "image": "i", "resources": {
                        "limits": {"cpu": "0.5"}, "qosResources": [{"name": "k8s.io/rdt", "class": "gold"}]}}]}}},
            "status": {},
        })
    };
    let secrets = "/api/v1/namespaces/default/secrets";
    let deployments = "/apis/apps/v1/namespaces/default/deployments";
    for (path, one, other) in [
        (PODS, pod("json"), pod("protobuf")),
        (secrets, secret("json"), secret("protobuf")),
        (deployments, deployment("json"), deployment("protobuf")),
    ] {
        let by_json = cluster.create(path, one).await;
        let (status, by_protobuf) = send(&cluster, Method::POST, path, bytes_of(&other)).await;
        assert_eq!(status, 201, "{by_protobuf}");
        let mut alike = by_protobuf.clone();
        for field in ["name", "uid", "resourceVersion", "creationTimestamp", "managedFields"] {
            alike["metadata"][field] = by_json["metadata"][field].clone();
        }
        assert_eq!(alike, by_json);
        let stored = cluster.get(&format!("{path}/protobuf")).await;
        assert_eq!(by_protobuf, stored);
        let (status, read) = send(&cluster, Method::GET, &format!("{path}/protobuf"), vec![]).await;
        assert_eq!((status, read), (200, stored));
    }
}

#[tokio::test]
async fn an_object_is_updated_and_deleted_in_protobuf() {
    let cluster = Cluster::new().await;
    let path = "/api/v1/namespaces/default/configmaps";
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m"}, "data": {"a": "1"}});
    let mut map = cluster.create(path, map).await;
    map["data"]["a"] = "2".into();
    let path = format!("{path}/m");
    let (status, updated) = send(&cluster, Method::PUT, &path, bytes_of(&map)).await;
    assert_eq!((status, &updated["data"]["a"]), (200, &json!("2")));
    let (status, refused) = send(&cluster, Method::PUT, &path, bytes_of(&map)).await;
    assert_eq!((status, &refused["reason"]), (409, &json!("Conflict")));
    let options = |uid: &str| {
        let options = json!({"apiVersion": "apps/v1", "kind": "DeleteOptions", "preconditions": {"uid": uid}});
        bytes_of(&options)
    };
    let (status, refused) = send(&cluster, Method::DELETE, &path, options("another")).await;
    assert_eq!((status, &refused["kind"]), (409, &json!("Status")));
    let uid = map["metadata"]["uid"].as_str().unwrap();
    let (status, gone) = send(&cluster, Method::DELETE, &path, options(uid)).await;
    assert_eq!((status, &gone["status"]), (200, &json!("Success")));
}

#[tokio::test]
async fn protobuf_list_equals_the_json_list() {
    let cluster = Cluster::new().await;
    let (_, empty) = send(&cluster, Method::GET, PODS, vec![]).await;
    assert_eq!((&empty["kind"], &empty["items"]), (&json!("PodList"), &Value::Null));
    for index in 0..600 {
        cluster.create(PODS, pod(&format!("p{index:03}"))).await;
    }
    let in_json = cluster.get(PODS).await;
    let (_, in_protobuf) = send(&cluster, Method::GET, PODS, vec![]).await;
    assert_eq!(in_protobuf, in_json);
    let reply = ask(&cluster, Method::GET, PODS, PROTOBUF, vec![]).await;
    assert!(matches!(reply.body, Body::Stream(_)), "a long list goes out in pieces");
    let in_json = cluster.get(&format!("{PODS}?limit=2")).await;
    let (_, mut page) = send(&cluster, Method::GET, &format!("{PODS}?limit=2"), vec![]).await;
    assert_eq!(page["metadata"]["remainingItemCount"], 598);
    page["metadata"]["continue"] = in_json["metadata"]["continue"].clone();
    assert_eq!(page, in_json);
}

#[tokio::test]
async fn protobuf_supports_partial_metadata_but_no_tables() {
    let cluster = Cluster::new().await;
    let created = cluster.create(PODS, pod("a")).await;
    let partial = format!("{PROTOBUF};as=PartialObjectMetadata;g=meta.k8s.io;v=v1");
    let reply = ask(&cluster, Method::GET, &format!("{PODS}/a"), &partial, vec![]).await;
    let bytes = whole(reply.body).await;
    let envelope = Envelope::read(&bytes).unwrap();
    assert_eq!(
        (envelope.kind.as_str(), envelope.api_version.as_str()),
        ("PartialObjectMetadata", "meta.k8s.io/v1")
    );
    let schema = Schema::served();
    let id = schema.find("io.k8s.api.core.v1.Pod").unwrap();
    let metadata =
        protobuf::decode(schema, id, envelope.message).unwrap().value["metadata"].clone();
    assert_eq!(metadata, created["metadata"]);
    let partial = format!("{PROTOBUF};as=PartialObjectMetadataList;g=meta.k8s.io;v=v1");
    let reply = ask(&cluster, Method::GET, PODS, &partial, vec![]).await;
    let bytes = whole(reply.body).await;
    let envelope = Envelope::read(&bytes).unwrap();
    assert_eq!(envelope.kind, "PartialObjectMetadataList");
    let id = schema.find("io.k8s.api.core.v1.PodList").unwrap();
    let list = protobuf::decode(schema, id, envelope.message).unwrap().value;
    assert_eq!(list["items"][0]["metadata"], created["metadata"]);

    let table = format!("{PROTOBUF};as=Table;g=meta.k8s.io;v=v1");
    let reply = ask(&cluster, Method::GET, PODS, &table, vec![]).await;
    assert_eq!((reply.status.as_u16(), reply.content_type), (406, "application/json"));
    let either = format!("{table},application/json;as=Table;g=meta.k8s.io;v=v1");
    let reply = ask(&cluster, Method::GET, PODS, &either, vec![]).await;
    assert_eq!((reply.status.as_u16(), reply.content_type), (200, "application/json"));
}

/// Returns the next frame of a watch: the event type and the object.
async fn next(chunks: &mut mpsc::Receiver<bytes::Bytes>, rest: &mut Vec<u8>) -> (String, Value) {
    loop {
        if let Some((length, after)) = rest.split_first_chunk::<4>() {
            let length = usize::try_from(u32::from_be_bytes(*length)).unwrap();
            if after.len() >= length {
                let frame = after[..length].to_vec();
                rest.drain(..4 + length);
                // WatchEvent { type = 1, object = 2 { raw = 1 } }, with lengths written by this
                // server.
                let (change, object) = frame.split_at(2 + usize::from(frame[1]));
                let change = String::from_utf8(change[2..].to_vec()).unwrap();
                let magic = object.windows(4).position(|window| window == b"k8s\0").unwrap();
                return (change, object_of(&object[magic..]));
            }
        }
        let chunk = tokio::time::timeout(Duration::from_secs(60), chunks.recv()).await.unwrap();
        rest.extend_from_slice(&chunk.unwrap());
    }
}

#[tokio::test]
async fn protobuf_watch_equals_the_json_watch() {
    let cluster = Cluster::new().await;
    let first = cluster.create(PODS, pod("a")).await;
    let accept = format!("{PROTOBUF};stream=watch,application/json;stream=watch");
    let path = format!(
        "{PODS}?watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"
    );
    let reply = ask(&cluster, Method::GET, &path, &accept, vec![]).await;
    assert_eq!(
        (reply.status.as_u16(), reply.content_type),
        (200, "application/vnd.kubernetes.protobuf;stream=watch")
    );
    let Body::Stream(mut chunks) = reply.body else { panic!("a watch is a stream") };
    let mut rest = Vec::new();
    assert_eq!(next(&mut chunks, &mut rest).await, ("ADDED".to_owned(), first));
    let (change, mark) = next(&mut chunks, &mut rest).await;
    assert_eq!(change, "BOOKMARK");
    assert_eq!(mark["metadata"]["annotations"], json!({"k8s.io/initial-events-end": "true"}));
    let second = cluster.create(PODS, pod("b")).await;
    assert_eq!(next(&mut chunks, &mut rest).await, ("ADDED".to_owned(), second));
    let map = json!({"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0});
    send(&cluster, Method::DELETE, &format!("{PODS}/a"), bytes_of(&map)).await;
    let (change, gone) = next(&mut chunks, &mut rest).await;
    assert_eq!((change.as_str(), &gone["metadata"]["name"]), ("DELETED", &json!("a")));
}

#[tokio::test]
async fn reviews_evictions_and_discovery_support_protobuf() {
    let cluster = Cluster::new().await;
    let review = json!({
        "apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview", "metadata": {},
        "spec": {"resourceAttributes": {"verb": "create", "resource": "pods"}}, "status": {"allowed": false},
    });
    let path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
    let (status, answer) = send(&cluster, Method::POST, path, bytes_of(&review)).await;
    assert_eq!((status, &answer["status"]["allowed"]), (201, &json!(true)));
    cluster.create(PODS, pod("a")).await;
    let eviction =
        json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "a"}});
    let path = format!("{PODS}/a/eviction");
    let (status, answer) = send(&cluster, Method::POST, &path, bytes_of(&eviction)).await;
    assert_eq!((status, &answer["status"]), (201, &json!("Success")));
    let (status, list) = send(&cluster, Method::GET, "/api/v1", vec![]).await;
    let mut in_json = cluster.get("/api/v1").await;
    in_json["apiVersion"] = "v1".into();
    assert_eq!((status, list), (200, in_json));
}

#[tokio::test]
async fn unreadable_protobuf_and_unknown_fields_are_reported() {
    let cluster = Cluster::new().await;
    let (status, refused) = send(&cluster, Method::GET, &format!("{PODS}/none"), vec![]).await;
    assert_eq!((status, &refused["reason"]), (404, &json!("NotFound")));
    for (body, said) in [
        (
            b"{}".to_vec(),
            "the object provided is unrecognized (must be of type Pod): provided data does not appear to be a protobuf message, expected prefix [107 56 115 0] ({})",
        ),
        (
            b"k8s\0\x12\x03\x0a\x01\x0f".to_vec(),
            "Pod in version \"v1\" cannot be handled as a Pod: proto: metadata: 7 is not a wire type",
        ),
        (
            bytes_of(&json!({"apiVersion": "v1", "kind": "Secret"})),
            "Secret in version \"v1\" cannot be handled as a Pod: converting (v1.Secret) to (core.Pod): unknown conversion",
        ),
    ] {
        let (status, refused) = send(&cluster, Method::POST, PODS, body).await;
        assert_eq!((status, refused["message"].as_str()), (400, Some(said)));
    }
    // Field 20 of a pod: {1: "x"}.
    let mut newer = bytes_of(&pod("a"));
    let head = 4 + 2 + usize::from(newer[5]);
    assert_eq!(newer[head], 0x12);
    newer.extend_from_slice(&[0xa2, 0x01, 0x03, 0x0a, 0x01, b'x']);
    newer[head + 1] += 6;
    let (status, refused) =
        send(&cluster, Method::POST, &format!("{PODS}?fieldValidation=Strict"), newer.clone())
            .await;
    assert_eq!(status, 400);
    assert!(
        refused["message"]
            .as_str()
            .unwrap()
            .ends_with("strict decoding error: unknown protobuf field 20"),
        "{refused}"
    );
    let reply = ask(&cluster, Method::POST, PODS, PROTOBUF, newer).await;
    assert_eq!(
        (reply.status.as_u16(), reply.warnings),
        (201, vec!["unknown protobuf field 20".to_owned()])
    );
    // Patches have their own media types.
    let (status, refused) =
        send(&cluster, Method::PATCH, &format!("{PODS}/a"), bytes_of(&pod("a"))).await;
    assert_eq!((status, &refused["reason"]), (415, &json!("UnsupportedMediaType")));
}
