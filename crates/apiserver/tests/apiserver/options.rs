//! Parameters, paths and media types that a server has to reject or to serve in a certain format.

use std::time::Duration;

use apiserver::{Body, Reply, User};
use http::{HeaderValue, Method};
use serde_json::{Value, json};

use crate::{Cluster, pod, request};

const PODS: &str = "/api/v1/namespaces/default/pods";
const MAPS: &str = "/api/v1/namespaces/default/configmaps";

fn map(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}})
}

/// Sends a request that accepts certain media types.
async fn accepting(
    cluster: &Cluster,
    accept: &str,
    method: Method,
    path: &str,
    body: &Value,
) -> Reply {
    let mut request = request(User::member("admin", "system:masters"), method, path, body);
    if !accept.is_empty() {
        request.headers.insert("accept", HeaderValue::from_str(accept).unwrap());
    }
    cluster.api.handle(request).await
}

fn bytes(reply: &Reply) -> &[u8] {
    match &reply.body {
        Body::Whole(bytes) => bytes,
        Body::Stream(_) => panic!("the answer is a stream"),
    }
}

fn json_of(reply: &Reply) -> Value {
    serde_json::from_slice(bytes(reply)).unwrap_or_default()
}

#[tokio::test]
async fn watch_duration_is_limited_to_a_year() {
    let cluster = Cluster::new().await;
    for seconds in ["9223372036854775807", "9223372036854775806", "1"] {
        let path = format!("{PODS}?watch=1&timeoutSeconds={seconds}");
        let reply = cluster.reply(Method::GET, &path, Value::Null).await;
        assert_eq!(reply.status, 200, "{seconds}");
        // The watch is really open: a pod that is created now is sent.
        cluster.create(PODS, pod("p")).await;
        let Body::Stream(mut lines) = reply.body else { panic!("a watch is a stream") };
        let line = tokio::time::timeout(Duration::from_secs(10), lines.recv()).await;
        assert!(matches!(line, Ok(Some(_))), "{seconds}");
        cluster.send(Method::DELETE, &format!("{PODS}?gracePeriodSeconds=0"), Value::Null).await;
    }
    for path in [PODS, "/api/v1/watch/pods", &format!("{PODS}?watch=1"), &format!("{MAPS}?limit=1")]
    {
        let sign = if path.contains('?') { '&' } else { '?' };
        for (text, why) in [("x", "invalid syntax"), ("99999999999999999999", "value out of range")]
        {
            let path = format!("{path}{sign}timeoutSeconds={text}");
            let (status, answer) = cluster.send(Method::GET, &path, Value::Null).await;
            assert_eq!(status, 400, "{path}: {answer}");
            let message = format!("strconv.ParseInt: parsing {text:?}: {why}");
            assert_eq!(answer["message"], message, "{path}");
        }
    }
}

#[tokio::test]
async fn an_empty_dry_run_is_refused_and_changes_nothing() {
    let cluster = Cluster::new().await;
    cluster.create(MAPS, map("old")).await;
    let old = format!("{MAPS}/old");
    for (method, path, body, kind) in [
        (Method::POST, MAPS, map("new"), "CreateOptions"),
        (
            Method::PUT,
            &*old,
            json!({"metadata": {"name": "old"}, "data": {"a": "b"}}),
            "UpdateOptions",
        ),
        (Method::PATCH, &*old, json!({"data": {"a": "b"}}), "PatchOptions"),
        (Method::DELETE, &*old, Value::Null, "DeleteOptions"),
        (Method::DELETE, MAPS, Value::Null, "DeleteOptions"),
    ] {
        for (query, shown) in [("dryRun=", "[\"\"]"), ("dryRun=All&dryRun=", "[\"All\",\"\"]")] {
            let (status, answer) =
                cluster.send(method.clone(), &format!("{path}?{query}"), body.clone()).await;
            assert_eq!(status, 422, "{method} {query}: {answer}");
            let message = format!(
                "{kind}.meta.k8s.io \"\" is invalid: dryRun: Unsupported value: {shown}: supported \
                 values: \"All\""
            );
            assert_eq!(answer["message"], message);
        }
    }
    let list = cluster.get(MAPS).await;
    let names: Vec<&str> = list["items"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|item| item["metadata"]["name"].as_str())
        .collect();
    assert_eq!(names, ["old"]);
    assert!(list["items"][0].get("data").is_none());
}

#[tokio::test]
async fn invalid_timeout_is_rejected() {
    let cluster = Cluster::new().await;
    for path in [PODS, "/version", "/healthz", "/api/v1/nope"] {
        let (status, answer) =
            cluster.send(Method::GET, &format!("{path}?timeout=invalid"), Value::Null).await;
        assert_eq!(status, 400, "{path}");
        assert_eq!(
            answer["message"],
            "invalid timeout specified in the request URL - time: invalid duration \"invalid\""
        );
    }
    let fine = ["10s", "0", "-1s", "", "1h1.5m"];
    for text in fine {
        let path = format!("{PODS}?timeout={text}");
        assert_eq!(cluster.send(Method::GET, &path, Value::Null).await.0, 200, "{text}");
    }
    // Watches are long-running, so their timeout is not checked.
    let watch = format!("{PODS}?watch=1&timeoutSeconds=1&timeout=invalid");
    assert_eq!(cluster.reply(Method::GET, &watch, Value::Null).await.status, 200);
}

#[tokio::test]
async fn unknown_paths_are_not_found_for_any_method() {
    let cluster = Cluster::new().await;
    for method in [Method::GET, Method::POST, Method::PUT, Method::DELETE, Method::PATCH] {
        for (path, is_status) in [
            ("/apis/nope", false),
            ("/apis/nope/v1", false),
            ("/apis/nope.example.com/v1/namespaces/default/things", false),
            ("/apis/apps/v9", true),
            ("/apis/apps/v9/namespaces/default/deployments", true),
            ("/apis/apps/v1/nope", true),
            ("/api/v2", true),
            ("/api/v2/pods", true),
        ] {
            let reply = accepting(&cluster, "", method.clone(), path, &json!({})).await;
            assert_eq!(reply.status, 404, "{method} {path}");
            match is_status {
                true => assert_eq!(json_of(&reply)["reason"], "NotFound", "{method} {path}"),
                false => assert_eq!(bytes(&reply), b"404 page not found\n", "{method} {path}"),
            }
        }
        if method == Method::GET {
            continue;
        }
        // Documents of upstream's router accept one method; those of its aggregator accept any. A
        // pod is created in a namespace that the path names.
        for path in ["/api", "/api/v1", "/apis/apps/v1", "/version"] {
            let reply = accepting(&cluster, "", method.clone(), path, &json!({})).await;
            assert_eq!(reply.status, 405, "{method} {path}");
        }
        for path in ["/apis", "/apis/apps"] {
            let reply = accepting(&cluster, "", method.clone(), path, &json!({})).await;
            assert_eq!(reply.status, 200, "{method} {path}");
        }
        let mut named = pod("p");
        named["metadata"]["namespace"] = "default".into();
        let reply = accepting(&cluster, "", method.clone(), "/api/v1/pods", &named).await;
        assert_eq!(reply.status, 405, "{method}");
    }
}

#[tokio::test]
async fn kind_without_a_table_rejects_table_requests() {
    let cluster = Cluster::new().await;
    let review = json!({"spec": {"resourceAttributes": {"verb": "get", "resource": "pods"}}});
    let path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
    let table = "application/json;as=Table;v=v1;g=meta.k8s.io";
    let reply = accepting(&cluster, table, Method::POST, path, &review).await;
    assert_eq!(reply.status, 406);
    let answer = json_of(&reply);
    assert_eq!(answer["reason"], "NotAcceptable");
    let accepted = "only the following media types are accepted: application/json, \
                    application/yaml, application/vnd.kubernetes.protobuf";
    assert_eq!(answer["message"], accepted);
    let either = format!("{table},application/json");
    let reply = accepting(&cluster, &either, Method::POST, path, &review).await;
    assert_eq!(
        (reply.status.as_u16(), json_of(&reply)["status"]["allowed"].clone()),
        (201, true.into())
    );
    let partial = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io";
    let reply = accepting(&cluster, partial, Method::POST, path, &review).await;
    assert_eq!(json_of(&reply)["kind"], "PartialObjectMetadata");
}

#[tokio::test]
async fn discovery_and_openapi_use_the_accepted_media_type() {
    let cluster = Cluster::new().await;
    let aggregated = "as=APIGroupDiscoveryList;v=v2;g=apidiscovery.k8s.io";
    let named =
        |notation: &str| format!("{notation};g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList");
    let json = "application/json";
    let protobuf = "application/vnd.kubernetes.protobuf";
    let v2_protobuf = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf";
    let v2_answer = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf";
    let v3_protobuf = "application/com.github.proto-openapi.spec.v3@v1.0+protobuf";
    let v3_answer = "application/com.github.proto-openapi.spec.v3.v1.0+protobuf";
    for (path, accept, status, media) in [
        ("/apis", format!("{json};{aggregated}"), 200, named(json)),
        ("/api", format!("{json};{aggregated},{json}"), 200, named(json)),
        ("/apis", format!("application/yaml;{aggregated}"), 200, named("application/yaml")),
        ("/apis", format!("{protobuf};{aggregated}"), 200, named(protobuf)),
        ("/api", format!("{protobuf};{aggregated}"), 200, named(protobuf)),
        ("/apis", format!("{json};{}", aggregated.replace("v2", "v2beta1")), 406, json.to_owned()),
        ("/apis", "application/*".to_owned(), 200, json.to_owned()),
        ("/api", "application/*".to_owned(), 406, json.to_owned()),
        ("/apis", "text/html".to_owned(), 406, json.to_owned()),
        ("/apis/apps", "text/html".to_owned(), 406, json.to_owned()),
        ("/apis/apps/v1", protobuf.to_owned(), 200, protobuf.to_owned()),
        ("/openapi/v2", String::new(), 200, json.to_owned()),
        ("/openapi/v2", "*/*".to_owned(), 200, json.to_owned()),
        ("/openapi/v2", v2_protobuf.to_owned(), 200, v2_answer.to_owned()),
        ("/openapi/v2", v2_answer.to_owned(), 200, v2_answer.to_owned()),
        ("/openapi/v2", format!("{json};q=0.5,{v2_protobuf}"), 200, v2_answer.to_owned()),
        ("/openapi/v2", format!("{json},{v2_protobuf}"), 200, json.to_owned()),
        ("/openapi/v2", "text/html".to_owned(), 406, String::new()),
        ("/openapi/v3/api/v1", "text/html".to_owned(), 406, String::new()),
        ("/openapi/v3/api/v1", v3_protobuf.to_owned(), 200, v3_answer.to_owned()),
        ("/openapi/v3/api/v1", v3_answer.to_owned(), 200, v3_answer.to_owned()),
        ("/openapi/v3/api/v1", "application/*".to_owned(), 200, json.to_owned()),
        ("/openapi/v3", "text/html".to_owned(), 200, "text/plain; charset=utf-8".to_owned()),
    ] {
        let reply = accepting(&cluster, &accept, Method::GET, path, &Value::Null).await;
        assert_eq!(reply.status, status, "{path} {accept}");
        assert_eq!(reply.content_type, media, "{path} {accept}");
        assert_eq!(bytes(&reply).is_empty(), media.is_empty(), "{path} {accept}");
        if media.starts_with(protobuf) {
            assert!(bytes(&reply).starts_with(b"k8s\0"), "{path} {accept}");
        }
    }
    // Upstream's router and its aggregator have different messages.
    let refused = |path: &'static str| {
        let cluster = &cluster;
        async move {
            let reply = accepting(cluster, "text/html", Method::GET, path, &Value::Null).await;
            json_of(&reply)["message"].as_str().unwrap_or_default().to_owned()
        }
    };
    assert!(refused("/apis").await.starts_with("only the following media types are accepted:"));
    assert!(refused("/api").await.starts_with("406: Not Acceptable"));
}

#[tokio::test]
async fn metrics_are_served_as_text_or_protobuf() {
    let cluster = Cluster::new().await;
    let protobuf = "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;\
                    encoding=delimited;q=0.7,text/plain;version=0.0.4;q=0.3";
    let get = |accept: &'static str, path: &'static str| {
        accepting(&cluster, accept, Method::GET, path, &Value::Null)
    };
    assert_eq!(get("", "/readyz?exclude=log").await.status, 200);
    let text = get("", "/metrics/slis").await;
    assert_eq!(text.content_type, metrics::exposition::TEXT);
    let lines = String::from_utf8(bytes(&text).to_vec()).unwrap();
    for line in [
        "kubernetes_healthcheck{name=\"etcd\",type=\"readyz\"} 1",
        "kubernetes_healthchecks_total{name=\"etcd\",status=\"success\",type=\"readyz\"} 1",
    ] {
        assert!(lines.lines().any(|found| found == line), "{line}\n{lines}");
    }
    assert!(!lines.contains("log"), "{lines}");
    for path in ["/metrics", "/metrics/slis"] {
        let reply = get(protobuf, path).await;
        assert_eq!(
            (reply.status.as_u16(), reply.content_type),
            (200, metrics::exposition::PROTOBUF)
        );
        assert!(!bytes(&reply).is_empty() && !bytes(&reply).starts_with(b"#"), "{path}");
    }
}

#[tokio::test]
async fn unserved_resource_is_forbidden_before_not_found() {
    let cluster = Cluster::new().await;
    let nobody = User::member("nobody", "other");
    let path = "/apis/nope.example.com/v1/namespaces/default/things/t";
    let (status, answer) =
        crate::send_as(&cluster.api, nobody, Method::GET, path, Value::Null).await;
    assert_eq!(status, 403, "{answer}");
    assert_eq!(
        answer["message"],
        "things.nope.example.com \"t\" is forbidden: User \"nobody\" cannot get resource \
         \"things\" in API group \"nope.example.com\" in the namespace \"default\""
    );
}
