//! Lists, watches, updates and deletions of any kind.

use super::*;

const NAMESPACE: &str = "/api/v1/namespaces/default";

/// Sends a request with its own headers.
async fn send_with(
    cluster: &Cluster,
    method: Method,
    path: &str,
    header: (&'static str, &'static str),
    body: &Value,
) -> (u16, Value) {
    let (path, query) = path.split_once('?').unwrap_or((path, ""));
    let mut headers = HeaderMap::new();
    headers.insert(header.0, HeaderValue::from_static(header.1));
    let request = Request {
        method,
        path: path.to_owned(),
        query: Query::parse(query),
        headers,
        body: if body.is_null() { String::new() } else { body.to_string() }.into(),
        caller: Caller::Known(User::member("admin", "system:masters")),
        source: None,
    };
    let reply = cluster.api.handle(request).await;
    let status = reply.status.as_u16();
    (status, serde_json::from_slice(&whole(reply.body).await).unwrap_or_default())
}

/// Returns a complete response.
async fn whole(body: Body) -> Vec<u8> {
    let mut bytes = Vec::new();
    match body {
        Body::Whole(whole) => bytes.extend_from_slice(&whole),
        Body::Stream(mut chunks) => {
            while let Some(chunk) = chunks.recv().await {
                bytes.extend_from_slice(&chunk);
            }
        }
    }
    bytes
}

/// An open watch.
async fn watch(cluster: &Cluster, query: &str) -> Body {
    let request = Request {
        method: Method::GET,
        path: format!("{NAMESPACE}/configmaps"),
        query: Query::parse(query),
        headers: HeaderMap::new(),
        body: String::new().into(),
        caller: Caller::Known(User::member("admin", "system:masters")),
        source: None,
    };
    let reply = cluster.api.handle(request).await;
    assert_eq!(reply.status.as_u16(), 200, "{query}");
    reply.body
}

/// Returns the events of a watch until it ends.
async fn events(watch: Body) -> Vec<Value> {
    let bytes = whole(watch).await;
    let lines = bytes.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    lines.map(|line| serde_json::from_slice(line).unwrap()).collect()
}

#[tokio::test]
async fn options_of_lists_and_watches_fit_together() {
    let cluster = Cluster::new().await;
    let check = async |query: &str, status: u16, said: &str| {
        let path = format!("{NAMESPACE}/configmaps?{query}");
        let (got, answer) = cluster.send(Method::GET, &path, Value::Null).await;
        let said = match status {
            422 => format!("ListOptions.meta.k8s.io \"\" is invalid: {said}"),
            _ => said.to_owned(),
        };
        let message = answer["message"].as_str().unwrap_or_default();
        assert_eq!((got, message), (status, said.as_str()), "{query}");
    };
    let unless = "resourceVersionMatch: Forbidden: resourceVersionMatch is forbidden for watch \
                  unless sendInitialEvents is provided";
    let requires = "resourceVersionMatch: Forbidden: sendInitialEvents requires setting \
                    resourceVersionMatch to NotOlderThan";
    let only = "resourceVersionMatch: Unsupported value: \"Exact\": supported values: \
                \"NotOlderThan\"";
    let going_on = "resourceVersionMatch: Forbidden: resourceVersionMatch is forbidden when continue is \
         provided";
    let of_list = "sendInitialEvents: Forbidden: sendInitialEvents is forbidden for list";
    let newer = "resourceVersion=1&resourceVersionMatch=NotOlderThan";
    let exact = "resourceVersion=1&resourceVersionMatch=Exact";
    check(&format!("watch=1&{newer}"), 422, unless).await;
    check(&format!("watch=1&{exact}"), 422, &format!("[{unless}, {only}]")).await;
    check(
        &format!("watch=1&sendInitialEvents=true&{exact}"),
        422,
        &format!("[{requires}, {only}]"),
    )
    .await;
    check("watch=1&sendInitialEvents=true", 422, requires).await;
    check("watch=1&sendInitialEvents=", 422, requires).await;
    // A watch without a version has its own rules for resourceVersionMatch.
    check("watch=1&continue=x", 422, going_on).await;
    check(
        &format!("sendInitialEvents=true&continue=x&{newer}"),
        422,
        &format!("[{going_on}, {of_list}]"),
    )
    .await;
    check("limit=", 400, "strconv.ParseInt: parsing \"\": invalid syntax").await;
    check("timeoutSeconds=x", 400, "strconv.ParseInt: parsing \"x\": invalid syntax").await;
}

#[tokio::test]
async fn list_at_any_version_ignores_the_limit() {
    let cluster = Cluster::new().await;
    for name in ["a", "b", "c"] {
        let body = json!({"metadata": {"name": name}});
        cluster.create(&format!("{NAMESPACE}/configmaps"), body).await;
    }
    for (query, count) in [
        ("limit=2&resourceVersion=0", 3),
        ("limit=2&resourceVersion=0&resourceVersionMatch=NotOlderThan", 3),
        ("limit=2&resourceVersion=1&resourceVersionMatch=NotOlderThan", 2),
        ("limit=2", 2),
    ] {
        let list = cluster.get(&format!("{NAMESPACE}/configmaps?{query}")).await;
        assert_eq!(list["items"].as_array().map(Vec::len), Some(count), "{query}");
    }
}

#[tokio::test]
async fn watch_begins_at_the_requested_version() {
    let cluster = Cluster::new().await;
    let body = json!({"metadata": {"name": "a"}});
    cluster.create(&format!("{NAMESPACE}/configmaps"), body).await;
    let types = |events: &[Value]| -> Vec<String> {
        events.iter().map(|event| event["type"].as_str().unwrap_or_default().to_owned()).collect()
    };
    let mut watches = Vec::new();
    for (query, expected) in [
        ("", &["ADDED"] as &[&str]),
        ("&allowWatchBookmarks=true", &["ADDED", "BOOKMARK"]),
        ("&allowWatchBookmarks=true&resourceVersion=0", &["ADDED", "BOOKMARK"]),
        // A future version has no initial state, so the watch waits for it.
        ("&resourceVersion=999999", &[]),
        (
            "&resourceVersion=999999&sendInitialEvents=true&resourceVersionMatch=NotOlderThan",
            &["ERROR"],
        ),
    ] {
        let watch = watch(&cluster, &format!("watch=1&timeoutSeconds=1{query}")).await;
        watches.push((query, expected, watch));
    }
    for (query, expected, watch) in watches {
        let events = events(watch).await;
        assert_eq!(types(&events), expected, "{query}");
        for event in &events {
            match event["type"].as_str() {
                Some("BOOKMARK") => {
                    let annotations = &event["object"]["metadata"]["annotations"];
                    assert_eq!(annotations["k8s.io/initial-events-end"], "true");
                }
                Some("ERROR") => assert_eq!(event["object"]["code"], 504),
                _ => {}
            }
        }
    }
}

#[tokio::test]
async fn objects_need_an_active_namespace() {
    let cluster = Cluster::new().await;
    cluster.create("/api/v1/namespaces", json!({"metadata": {"name": "gone"}})).await;
    cluster.send(Method::DELETE, "/api/v1/namespaces/gone", Value::Null).await;
    let body = json!({"metadata": {"name": "c"}});
    for (namespace, method, status, said) in [
        ("nope", Method::PUT, 404, "namespaces \"nope\" not found"),
        ("nope", Method::PATCH, 404, "configmaps \"c\" not found"),
        ("default", Method::PUT, 404, "configmaps \"c\" not found"),
        (
            "gone",
            Method::PUT,
            403,
            "configmaps \"c\" is forbidden: unable to create new content in namespace gone because it is being terminated",
        ),
    ] {
        let path = format!("/api/v1/namespaces/{namespace}/configmaps/c");
        let (got, answer) = cluster.send(method.clone(), &path, body.clone()).await;
        let message = answer["message"].as_str().unwrap_or_default();
        assert_eq!((got, message), (status, said), "{method} {namespace}");
    }
}

#[tokio::test]
async fn namespace_terminates_visibly_without_finalizers() {
    let cluster = Cluster::new().await;
    let path = "/api/v1/namespaces/n";
    let bare = json!({"metadata": {"name": "n"}, "spec": {"finalizers": []}});
    cluster.create("/api/v1/namespaces", json!({"metadata": {"name": "n"}})).await;
    let at = format!("{path}/finalize");
    assert_eq!(cluster.send(Method::PUT, &at, bare.clone()).await.0, 200);
    let (status, going) = cluster.send(Method::DELETE, path, Value::Null).await;
    assert_eq!((status, going["status"]["phase"].as_str()), (200, Some("Terminating")));
    assert_eq!(cluster.get(path).await["status"]["phase"], "Terminating");
    let (status, gone) = cluster.send(Method::DELETE, path, Value::Null).await;
    assert_eq!((status, gone["status"].as_str()), (200, Some("Success")), "{gone}");
    assert_eq!(cluster.send(Method::GET, path, Value::Null).await.0, 404);
    // The propagation policy may be given only once.
    cluster.create("/api/v1/namespaces", json!({"metadata": {"name": "n"}})).await;
    cluster.send(Method::DELETE, path, Value::Null).await;
    let orphan = format!("{path}?propagationPolicy=Orphan");
    let (_, again) = cluster.send(Method::DELETE, &orphan, Value::Null).await;
    assert!(again["metadata"].get("finalizers").is_none(), "{again}");
}

#[tokio::test]
async fn a_limit_range_without_a_name_is_given_one() {
    let cluster = Cluster::new().await;
    let made = cluster.create(&format!("{NAMESPACE}/limitranges"), json!({"metadata": {}})).await;
    let name = made["metadata"]["name"].as_str().unwrap_or_default();
    assert_eq!(name.len(), 36);
    assert_ne!(made["metadata"]["uid"], made["metadata"]["name"]);
}

async fn deployed(cluster: &Cluster, name: &str) -> String {
    let path = "/apis/apps/v1/namespaces/default/deployments";
    let template = json!({
        "metadata": {"labels": {"a": "b"}},
        "spec": {"containers": [{"name": "c", "image": "i"}]},
    });
    let spec =
        json!({"replicas": 2, "selector": {"matchLabels": {"a": "b"}}, "template": template});
    cluster.create(path, json!({"metadata": {"name": name}, "spec": spec})).await;
    format!("{path}/{name}")
}

#[tokio::test]
async fn scale_is_served_in_the_accepted_format() {
    let cluster = Cluster::new().await;
    let at = format!("{}/scale", deployed(&cluster, "d").await);
    let get = async |accept| send_with(&cluster, Method::GET, &at, accept, &Value::Null).await.1;
    let table = get(("accept", "application/json;as=Table;v=v1;g=meta.k8s.io")).await;
    let columns = table["columnDefinitions"].as_array().unwrap();
    let names: Vec<&str> = columns.iter().filter_map(|column| column["name"].as_str()).collect();
    assert_eq!(names, ["Name", "Desired", "Available", "Age"]);
    let cells = table["rows"][0]["cells"].as_array().unwrap();
    assert_eq!(cells[..3], [json!("d"), json!(2), json!(0)]);
    assert_eq!(table["rows"][0]["object"]["kind"], "PartialObjectMetadata");
    let partial = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io";
    let partial = get(("accept", partial)).await;
    assert_eq!((&partial["kind"], partial.get("spec")), (&json!("PartialObjectMetadata"), None));
}

#[tokio::test]
async fn a_scale_can_be_applied() {
    const APPLY: (&str, &str) = ("content-type", "application/apply-patch+yaml");
    let cluster = Cluster::new().await;
    let whole = deployed(&cluster, "d").await;
    let of = |name: &str, replicas: i64| {
        json!({
            "apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": {"name": name},
            "spec": {"replicas": replicas},
        })
    };
    let at = format!("{whole}/scale?fieldManager=hpa");
    let (status, answer) = send_with(&cluster, Method::PATCH, &at, APPLY, &of("d", 5)).await;
    assert_eq!(status, 409, "{answer}");
    let said = "Apply failed with 1 conflict: conflict with \"unknown\" using autoscaling/v1: \
                .spec.replicas";
    assert_eq!(answer["message"], said);
    let forced = format!("{at}&force=true");
    let (status, scale) = send_with(&cluster, Method::PATCH, &forced, APPLY, &of("d", 5)).await;
    assert_eq!((status, &scale["spec"]["replicas"]), (200, &json!(5)), "{scale}");
    assert!(scale["metadata"].get("managedFields").is_none());
    let stored = cluster.get(&whole).await;
    assert_eq!(stored["spec"]["replicas"], 5);
    let owners = stored["metadata"]["managedFields"].as_array().unwrap();
    let owner = owners.iter().find(|entry| entry["manager"] == "hpa").unwrap();
    assert_eq!(
        (&owner["operation"], &owner["subresource"], &owner["apiVersion"], &owner["fieldsV1"]),
        (
            &json!("Apply"),
            &json!("scale"),
            &json!("apps/v1"),
            &json!({"f:spec": {"f:replicas": {}}})
        )
    );
    let (status, again) = send_with(&cluster, Method::PATCH, &at, APPLY, &of("d", 6)).await;
    assert_eq!((status, &again["spec"]["replicas"]), (200, &json!(6)), "{again}");
    let missing = at.replace("/d/", "/e/");
    let (status, answer) = send_with(&cluster, Method::PATCH, &missing, APPLY, &of("e", 5)).await;
    assert_eq!((status, &answer["details"]["kind"]), (404, &json!("deployments/scale")));
    assert_eq!(answer["message"], "deployments/scale.apps \"e\" not found");
}

#[tokio::test]
async fn delete_options_accept_any_media_type() {
    let cluster = Cluster::new().await;
    let path = format!("{NAMESPACE}/configmaps");
    cluster.create(&path, json!({"metadata": {"name": "c"}})).await;
    let delete = async |media: &'static str, body: &str| {
        let mut headers = HeaderMap::new();
        headers.insert("content-type", HeaderValue::from_static(media));
        let request = Request {
            method: Method::DELETE,
            path: format!("{path}/c"),
            query: Query::default(),
            headers,
            body: body.to_owned().into(),
            caller: Caller::Known(User::member("admin", "system:masters")),
            source: None,
        };
        cluster.api.handle(request).await.status.as_u16()
    };
    let options = "kind: DeleteOptions\napiVersion: v1\n";
    assert_eq!(delete("text/plain", options).await, 415);
    assert_eq!(delete("application/yaml", "kind: Pod\napiVersion: v1\n").await, 400);
    assert_eq!(delete("application/yaml", "a: [").await, 400);
    let dry = format!("{options}dryRun: [All]\n");
    assert_eq!(delete("application/yaml", &dry).await, 200);
    assert_eq!(delete("application/yaml", options).await, 200);
    assert_eq!(delete("application/yaml", options).await, 404);
    // Deleting jobs warns about their pods.
    let jobs = "/apis/batch/v1/namespaces/default/jobs";
    let warned = async |query: &str| {
        let request = Request {
            method: Method::DELETE,
            path: jobs.to_owned(),
            query: Query::parse(query),
            headers: HeaderMap::new(),
            body: String::new().into(),
            caller: Caller::Known(User::member("admin", "system:masters")),
            source: None,
        };
        cluster.api.handle(request).await.warnings.len()
    };
    assert_eq!((warned("").await, warned("propagationPolicy=Background").await), (1, 0));
    // A collection is selected like a list.
    let all = format!("{path}?resourceVersionMatch=Exact");
    let (status, answer) = cluster.send(Method::DELETE, &all, Value::Null).await;
    assert_eq!((status, &answer["details"]["kind"]), (422, &json!("ListOptions")));
}

#[tokio::test]
async fn unsupported_media_types_are_rejected() {
    let cluster = Cluster::new().await;
    let maps = format!("{NAMESPACE}/configmaps");
    let get = async |path: &str, accept: &'static str| {
        let header = ("accept", accept);
        let (status, answer) = send_with(&cluster, Method::GET, path, header, &Value::Null).await;
        (status, answer["message"].as_str().unwrap_or_default().to_owned())
    };
    let none = "406: Not Acceptable\n\nAvailable representations: application/json, \
                application/yaml, application/vnd.kubernetes.protobuf";
    let all = "only the following media types are accepted: application/json, application/yaml, \
               application/vnd.kubernetes.protobuf";
    for (path, accept, said) in [
        ("/api/v1/namespaces/default", "text/html", none),
        ("/api/v1/namespaces/default", "application/json;as=Table", all),
        ("/api", "text/html", none),
        ("/apis", "text/html", all),
        ("/api/v1", "application/json;as=Table;v=v1;g=meta.k8s.io", all),
    ] {
        assert_eq!(get(path, accept).await, (406, said.to_owned()), "{path} {accept}");
    }
    assert_eq!(get(&format!("{maps}?watch=1"), "application/yaml").await.0, 406);
    assert_eq!(get("/version", "application/yaml").await.0, 406);
    assert_eq!(get("/version", "application/json, */*").await.0, 200);
    // A missing path is reported before an unaccepted format.
    let refused = ("accept", "text/html");
    let (status, _) = send_with(&cluster, Method::PUT, &maps, refused, &Value::Null).await;
    assert_eq!(status, 405);
    let body = json!({"metadata": {"name": "c"}});
    let post = async |media| {
        let (status, answer) = send_with(&cluster, Method::POST, &maps, media, &body).await;
        (status, answer["message"].as_str().unwrap_or_default().to_owned(), answer)
    };
    for media in ["text/plain", "*/*"] {
        let (status, said, answer) = post(("content-type", media)).await;
        assert_eq!(status, 415, "{media}");
        assert!(said.ends_with("application/yaml, application/vnd.kubernetes.protobuf"), "{said}");
        assert!(answer.get("details").is_none());
    }
    assert_eq!(post(("content-type", "application/JSON; charset=utf-8")).await.0, 201);
}

#[tokio::test]
async fn errors_include_earlier_warnings() {
    let cluster = Cluster::new().await;
    let send = async |method: Method, path: &str, body: &Value| {
        let media = match method {
            Method::PATCH => "application/merge-patch+json",
            _ => "application/json",
        };
        let mut headers = HeaderMap::new();
        headers.insert("content-type", HeaderValue::from_static(media));
        let request = Request {
            method,
            path: path.to_owned(),
            query: Query::default(),
            headers,
            body: body.to_string().into(),
            caller: Caller::Known(User::member("admin", "system:masters")),
            source: None,
        };
        let reply = cluster.api.handle(request).await;
        (reply.status.as_u16(), reply.warnings)
    };
    let pods = format!("{NAMESPACE}/pods");
    let unknown = |field: &str| format!("unknown field \"{field}\"");
    let slip = json!({"metadata": {"name": "p"}, "spec": {"container": []}});
    assert_eq!(send(Method::POST, &pods, &slip).await, (422, vec![unknown("spec.container")]));
    let mut old = pod("p");
    old["spec"]["nodeSelector"] = json!({"beta.kubernetes.io/os": "linux"});
    let (status, warnings) = send(Method::POST, &pods, &old).await;
    assert_eq!((status, warnings.len()), (201, 1));
    // The name conflict is found after all other errors.
    assert_eq!(send(Method::POST, &pods, &old).await, (409, warnings));
    let patch = json!({"data": {"a b": "c"}, "dat": 1});
    let maps = format!("{NAMESPACE}/configmaps");
    cluster.create(&maps, json!({"metadata": {"name": "c"}})).await;
    let at = format!("{maps}/c");
    assert_eq!(send(Method::PATCH, &at, &patch).await, (422, vec![unknown("dat")]));
    let put = json!({"metadata": {"name": "c"}, "data": {"a b": "c"}, "dat": 1});
    assert_eq!(send(Method::PUT, &at, &put).await, (422, vec![unknown("dat")]));
    let job = "/apis/batch/v1/namespaces/default/jobs/none";
    assert_eq!(send(Method::DELETE, job, &json!({})).await.1.len(), 1);
}
