//! Attacks on authorization and on controllers: owner cycles, impersonation, nodes that exceed
//! their rights, an audit log that cannot be written.

use std::fs;
use std::time::Duration;

use client::kind::{CONFIG_MAPS, NAMESPACES, NODES, SECRETS};
use client::{Client, DeleteOptions, PatchKind, Propagation};
use http::{Method, StatusCode};
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::server::{Server, Who};

/// Timeout for thousands of requests on a slow machine.
const LONG: Duration = Duration::from_secs(600);

/// Waits until a check holds.
async fn until(what: &str, check: impl AsyncFn() -> bool) {
    let deadline = Instant::now() + LONG;
    while !check().await {
        assert!(Instant::now() < deadline, "{what}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

async fn namespace(admin: &Client, name: &str) {
    let object = json!({"kind": "Namespace", "apiVersion": "v1", "metadata": {"name": name}});
    admin.create(NAMESPACES, "", &object).await.unwrap();
}

/// Creates a config map and returns its uid.
async fn config_map(admin: &Client, namespace: &str, name: &str, owners: Value) -> String {
    let object = json!({
        "kind": "ConfigMap", "apiVersion": "v1",
        "metadata": {"name": name, "ownerReferences": owners},
    });
    let created = admin.create(CONFIG_MAPS, namespace, &object).await.unwrap();
    created["metadata"]["uid"].as_str().unwrap().to_owned()
}

fn owner(name: &str, uid: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "ConfigMap", "name": name, "uid": uid,
        "blockOwnerDeletion": true,
    })
}

async fn own(admin: &Client, namespace: &str, name: &str, owner: Value) {
    let patch = json!({"metadata": {"ownerReferences": [owner]}});
    admin.patch(CONFIG_MAPS, namespace, name, PatchKind::Merge, &patch).await.unwrap();
}

async fn is_gone(admin: &Client, namespace: &str, name: &str) -> bool {
    let found = admin.get::<Value>(CONFIG_MAPS, namespace, name).await;
    found.is_err_and(|error| error.is_not_found())
}

async fn delete(admin: &Client, namespace: &str, name: &str) {
    let options =
        DeleteOptions { propagation: Some(Propagation::Foreground), ..DeleteOptions::default() };
    admin.delete(CONFIG_MAPS, namespace, name, &options).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn owner_cycles_are_deleted_and_the_server_survives() {
    let mut server = Server::start();
    for length in [1, 2, 3] {
        let (admin, place) = (server.admin(), format!("cycle-{length}"));
        namespace(&admin, &place).await;
        let mut made = Vec::new();
        for number in 0..length {
            let name = format!("c{number}");
            let uid = config_map(&admin, &place, &name, json!([])).await;
            made.push((name, uid));
        }
        for (number, (name, _)) in made.iter().enumerate() {
            let (other, uid) = &made[(number + 1) % length];
            own(&admin, &place, name, owner(other, uid)).await;
        }
        delete(&admin, &place, "c0").await;
        // The next process starts with what is stored now.
        server.restart(&[]);
        let admin = server.admin();
        for (name, _) in &made {
            until("the cycle is not collected", || is_gone(&admin, &place, name)).await;
        }
        server.assert_alive().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn objects_of_a_cycle_can_be_deleted_together() {
    let server = Server::start();
    let admin = server.admin();
    namespace(&admin, "both").await;
    let first = config_map(&admin, "both", "a", json!([])).await;
    let second = config_map(&admin, "both", "b", json!([owner("a", &first)])).await;
    own(&admin, "both", "a", owner("b", &second)).await;
    // The garbage collector may delete the second object before the second request arrives.
    let delete = async |name| {
        let options = DeleteOptions {
            propagation: Some(Propagation::Foreground),
            ..DeleteOptions::default()
        };
        let deleted = admin.delete(CONFIG_MAPS, "both", name, &options).await;
        client::ignore_not_found(deleted).unwrap();
    };
    tokio::join!(delete("a"), delete("b"));
    for name in ["a", "b"] {
        until("the cycle is not collected", || is_gone(&admin, "both", name)).await;
    }
    server.assert_alive().await;
}

/// Length of the chain. It is created as `AT_A_TIME` chains, which are then joined.
const CHAIN: usize = 20_000;
const AT_A_TIME: usize = 40;

#[tokio::test(flavor = "multi_thread")]
async fn a_long_chain_of_owners_is_deleted_across_a_restart() {
    let mut server = Server::start();
    let admin = server.admin();
    namespace(&admin, "chain").await;
    let mut parts = JoinSet::new();
    for part in 0..AT_A_TIME {
        let admin = server.admin();
        parts.spawn(async move {
            let mut last = Value::Null;
            let mut first = String::new();
            for number in 0..CHAIN / AT_A_TIME {
                let name = format!("c{part}-{number}");
                let owners = if last.is_null() { json!([]) } else { json!([last]) };
                let uid = config_map(&admin, "chain", &name, owners).await;
                if number == 0 {
                    first.clone_from(&name);
                }
                last = owner(&name, &uid);
            }
            (part, first, last)
        });
    }
    let mut ends: Vec<(usize, String, Value)> = parts.join_all().await;
    ends.sort_by_key(|(part, ..)| *part);
    for pair in ends.windows(2) {
        own(&admin, "chain", &pair[1].1, pair[0].2.clone()).await;
    }
    // A finalizer on the last one holds up all of them.
    let held = ends[AT_A_TIME - 1].2["name"].as_str().unwrap().to_owned();
    let hold = json!({"metadata": {"finalizers": ["example.com/hold"]}});
    admin.patch(CONFIG_MAPS, "chain", &held, PatchKind::Merge, &hold).await.unwrap();
    delete(&admin, "chain", &ends[0].1).await;
    let is_going = async || {
        let object = admin.get::<Value>(CONFIG_MAPS, "chain", &held).await.unwrap();
        object["metadata"]["deletionTimestamp"].is_string()
    };
    until("the deletion does not reach the end of the chain", is_going).await;
    server.restart(&[]);
    let admin = server.admin();
    let free = json!({"metadata": {"finalizers": null}});
    admin.patch(CONFIG_MAPS, "chain", &held, PatchKind::Merge, &free).await.unwrap();
    until("the chain is not collected", || is_gone(&admin, "chain", &ends[0].1)).await;
    server.assert_alive().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn impersonation_that_fails_does_not_run_as_the_administrator() {
    let server = Server::start();
    let path = "/api/v1/namespaces/kube-system/secrets";
    let user = ("impersonate-user", "nobody-in-particular");
    for headers in [
        vec![("impersonate-user", "b\u{f6}b")],
        vec![("impersonate-group", "nobodies")],
        vec![("impersonate-uid", "7")],
        vec![("impersonate-extra-scopes", "none")],
        vec![user, ("impersonate-group", "b\u{f6}b")],
        vec![user, ("impersonate-extra-scopes", "\u{f6}")],
    ] {
        let answer = server.ask(Who::Admin, Method::GET, path, &headers, "").await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{headers:?}: {}", answer.text());
    }
    let answer = server.ask(Who::Admin, Method::GET, path, &[user], "").await;
    assert_eq!(answer.status, StatusCode::FORBIDDEN, "{}", answer.text());
    let none = server.ask(Who::Admin, Method::GET, path, &[("impersonate-user", "")], "").await;
    assert_eq!(none.status, StatusCode::OK, "{}", none.text());
}

#[tokio::test(flavor = "multi_thread")]
async fn node_reads_no_secret_through_a_mirror_pod() {
    let server = Server::start_with(&["--disable-admission-plugins", "ServiceAccount"]);
    let admin = server.admin();
    let secret = json!({"kind": "Secret", "apiVersion": "v1", "metadata": {"name": "s"}});
    admin.create(SECRETS, "default", &secret).await.unwrap();
    let node = json!({"kind": "Node", "apiVersion": "v1", "metadata": {"name": "n1"}});
    let node = admin.create(NODES, "", &node).await.unwrap();
    let as_node = [
        ("impersonate-user", "system:node:n1"),
        ("impersonate-group", "system:nodes"),
        ("content-type", "application/json"),
    ];
    let pods = "/api/v1/namespaces/default/pods";
    let mirror = |volume: Value| {
        json!({
            "kind": "Pod", "apiVersion": "v1",
            "metadata": {
                "name": "m", "annotations": {"kubernetes.io/config.mirror": "x"},
                "ownerReferences": [{
                    "apiVersion": "v1", "kind": "Node", "name": "n1", "controller": true,
                    "uid": node["metadata"]["uid"],
                }],
            },
            "spec": {
                "nodeName": "n1", "containers": [{"name": "c", "image": "i"}], "volumes": [volume],
            },
        })
    };
    let pod = mirror(json!({"name": "v", "secret": {"secretName": "s"}})).to_string();
    let refused = server.ask(Who::Admin, Method::POST, pods, &as_node, pod).await;
    assert_eq!(refused.status, StatusCode::FORBIDDEN, "{}", refused.text());
    assert!(refused.text().contains("can not create pods that reference secrets"));
    let pod = mirror(json!({"name": "v", "emptyDir": {}})).to_string();
    let made = server.ask(Who::Admin, Method::POST, pods, &as_node, pod).await;
    assert_eq!(made.status, StatusCode::CREATED, "{}", made.text());
    let path = "/api/v1/namespaces/default/secrets/s";
    let refused = server.ask(Who::Admin, Method::GET, path, &as_node, "").await;
    assert_eq!(refused.status, StatusCode::FORBIDDEN, "{}", refused.text());
}

#[tokio::test(flavor = "multi_thread")]
async fn audit_log_resumes_after_a_write_error() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("audit.log");
    // The device fails every write as a full disk does.
    std::os::unix::fs::symlink("/dev/full", &log).unwrap();
    let server = Server::start_with(&["--audit-log-path", log.to_str().unwrap()]);
    let stranger = "/api/v1/namespaces/stranger";
    server.ask(Who::Stranger, Method::GET, stranger, &[], "").await;
    until("no write fails", async || {
        let answer = server.ask(Who::Admin, Method::GET, "/metrics", &[], "").await.text();
        let name = "berth_audit_write_failures_total ";
        let found = answer.lines().find_map(|line| line.strip_prefix(name));
        found.unwrap().parse::<u64>().unwrap() > 0
    })
    .await;
    fs::remove_file(&log).unwrap();
    let headers = [("impersonate-user", "carol"), ("user-agent", "attack/1")];
    let later = "/api/v1/namespaces/later?watch=1";
    server.ask(Who::Admin, Method::GET, later, &headers, "").await;
    let asked_for = |uri: &str| {
        let text = fs::read_to_string(&log).unwrap_or_default();
        let mut events = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        events.find(|event| event["requestURI"] == uri)
    };
    until("the log is not written again", async || asked_for(later).is_some()).await;
    let event = asked_for(later).unwrap();
    assert_eq!(event["user"]["groups"][0], "system:masters", "{event}");
    assert_eq!(event["impersonatedUser"]["username"], "carol", "{event}");
    assert_eq!(event["userAgent"], "attack/1", "{event}");
    assert_eq!(event["responseStatus"]["code"], 403, "{event}");
    // Events were kept while the disk was full, also that of a rejected request.
    let event = asked_for(stranger).unwrap();
    assert_eq!(event["sourceIPs"], json!(["127.0.0.1"]), "{event}");
    assert!(matches!(event["responseStatus"]["code"].as_u64(), Some(401 | 403)), "{event}");
    server.assert_alive().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn node_cannot_exceed_the_rights_of_a_node() {
    let server = Server::start();
    let admin = server.admin();
    for name in ["n1", "n2"] {
        let node = json!({"kind": "Node", "apiVersion": "v1", "metadata": {"name": name}});
        admin.create(NODES, "", &node).await.unwrap();
    }
    let secret = json!({"kind": "Secret", "apiVersion": "v1", "metadata": {"name": "s"}});
    admin.create(SECRETS, "default", &secret).await.unwrap();
    config_map(&admin, "default", "c", json!([])).await;
    let label = |key: &str| json!({"metadata": {"labels": {key: "x"}}});
    let lease = json!({
        "kind": "Lease", "apiVersion": "coordination.k8s.io/v1", "metadata": {"name": "n2"},
    });
    let patch = "application/merge-patch+json";
    let leases = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";
    for (method, path, kind, body) in [
        (Method::PATCH, "/api/v1/nodes/n1", patch, label("node-restriction.kubernetes.io/a")),
        (Method::PATCH, "/api/v1/nodes/n1", patch, label("node-role.kubernetes.io/control-plane")),
        (
            Method::PATCH,
            "/api/v1/nodes/n1",
            patch,
            json!({"spec": {"taints": [{"key": "a", "effect": "NoSchedule"}]}}),
        ),
        (
            Method::PATCH,
            "/api/v1/nodes/n1",
            patch,
            json!({"metadata": {"ownerReferences": [owner("c", "u")]}}),
        ),
        (Method::PATCH, "/api/v1/nodes/n2", patch, label("example.com/a")),
        (Method::DELETE, "/api/v1/nodes/n1", "", json!({})),
        (Method::POST, leases, "application/json", lease),
        (Method::GET, "/api/v1/namespaces/default/secrets/s", "", json!({})),
        (Method::GET, "/api/v1/namespaces/default/configmaps/c", "", json!({})),
        (Method::GET, "/api/v1/secrets", "", json!({})),
    ] {
        let mut headers =
            vec![("impersonate-user", "system:node:n1"), ("impersonate-group", "system:nodes")];
        let body = if kind.is_empty() { String::new() } else { body.to_string() };
        if !kind.is_empty() {
            headers.push(("content-type", kind));
        }
        let answer = server.ask(Who::Admin, method, path, &headers, body.clone()).await;
        assert_eq!(answer.status, StatusCode::FORBIDDEN, "{path} {body}: {}", answer.text());
    }
}
