//! Concurrent writers: compare-and-set is linearizable, quotas are exact.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use http::Method;
use serde_json::{Value, json};

use crate::{Cluster, pod};

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn every_successful_update_builds_on_the_one_before() {
    const WRITERS: usize = 40;
    const ROUNDS: usize = 100;
    let cluster = Arc::new(Cluster::new().await);
    let path = "/api/v1/namespaces/default/configmaps";
    let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": {"n": "0"}});
    cluster.create(path, object).await;
    let won = Arc::new(AtomicUsize::new(0));
    let mut writers = Vec::new();
    for _ in 0..WRITERS {
        let (cluster, won) = (Arc::clone(&cluster), Arc::clone(&won));
        writers.push(tokio::spawn(async move {
            for _ in 0..ROUNDS {
                let mut object = cluster.get(&format!("{path}/c")).await;
                let count: usize = object["data"]["n"].as_str().unwrap().parse().unwrap();
                object["data"]["n"] = Value::from((count + 1).to_string());
                let (code, answer) = cluster.send(Method::PUT, &format!("{path}/c"), object).await;
                match code {
                    200 => won.fetch_add(1, Ordering::Relaxed),
                    409 => 0,
                    _ => panic!("{answer}"),
                };
            }
        }));
    }
    for writer in writers {
        writer.await.unwrap();
    }
    let last = cluster.get(&format!("{path}/c")).await;
    let count: usize = last["data"]["n"].as_str().unwrap().parse().unwrap();
    assert_eq!(count, won.load(Ordering::Relaxed));
    assert!(count >= ROUNDS, "somebody wins every round: {count}");
}

/// A patch without a version applies to the stored object, also after a few conflicts.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn patches_without_a_version_outlast_other_writers() {
    // A patch is retried 64 times, and the other writers write 60 times in total, so it must
    // succeed.
    const WRITERS: usize = 4;
    const ROUNDS: usize = 20;
    let cluster = Arc::new(Cluster::new().await);
    let path = "/api/v1/namespaces/default/configmaps";
    let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}});
    cluster.create(path, object).await;
    let mut writers = Vec::new();
    for writer in 0..WRITERS {
        let cluster = Arc::clone(&cluster);
        writers.push(tokio::spawn(async move {
            for round in 0..ROUNDS {
                let patch = json!({"data": {format!("{writer}"): round.to_string()}});
                let (code, answer) = cluster.send(Method::PATCH, &format!("{path}/c"), patch).await;
                assert_eq!(code, 200, "{answer}");
            }
        }));
    }
    for writer in writers {
        writer.await.unwrap();
    }
    let last = cluster.get(&format!("{path}/c")).await;
    for writer in 0..WRITERS {
        assert_eq!(last["data"][writer.to_string()], (ROUNDS - 1).to_string(), "{last}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn quota_admits_exactly_its_limit() {
    const ALLOWED: usize = 37;
    const TRIES: usize = 3000;
    let cluster = Arc::new(Cluster::new().await);
    let path = "/api/v1/namespaces/default/resourcequotas";
    let quota = json!({
        "apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "q"},
        "spec": {"hard": {"pods": ALLOWED.to_string()}},
    });
    cluster.create(path, quota).await;
    let status = json!({"status": {"hard": {"pods": ALLOWED.to_string()}, "used": {"pods": "0"}}});
    let (code, answer) = cluster.send(Method::PATCH, &format!("{path}/q/status"), status).await;
    assert_eq!(code, 200, "{answer}");
    let mut writers = Vec::new();
    for index in 0..TRIES {
        let cluster = Arc::clone(&cluster);
        writers.push(tokio::spawn(async move {
            let pod = pod(&format!("p{index}"));
            cluster.send(Method::POST, "/api/v1/namespaces/default/pods", pod).await.0
        }));
    }
    let mut created = 0;
    for writer in writers {
        match writer.await.unwrap() {
            201 => created += 1,
            403 => {}
            other => panic!("{other}"),
        }
    }
    assert_eq!(created, ALLOWED);
    let pods = cluster.get("/api/v1/namespaces/default/pods").await;
    assert_eq!(pods["items"].as_array().unwrap().len(), ALLOWED);
    let quota = cluster.get(&format!("{path}/q")).await;
    assert_eq!(quota["status"]["used"]["pods"], ALLOWED.to_string());
}
