//! Benchmark of the scheduler: nodes and pods with QoS classes of limited capacity, and the time
//! until every pod is bound.
//!
//! The pods are created before the scheduler starts, so that the result covers reading them,
//! scheduling and writing bindings, but not creating them.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use http::StatusCode;
use serde_json::json;

use super::{Client, Target, finish};

/// Pods per node and class that the limited resource allows.
const CAPACITY: u32 = 20;

/// Longest time without a binding before the benchmark fails.
const STALL: Duration = Duration::from_secs(30);

/// Creates ready nodes that offer two classes.
pub(super) async fn make_nodes(target: &Target, nodes: usize, clients: usize) -> Result<()> {
    let mut makers = Vec::new();
    for first in 0..clients {
        let mut client = target.connect().await?;
        makers.push(tokio::spawn(async move {
            for number in (first..nodes).step_by(clients) {
                make_node(&mut client, number).await?;
            }
            anyhow::Ok(())
        }));
    }
    finish(makers).await?;
    println!("made {nodes} nodes");
    Ok(())
}

async fn make_node(client: &mut Client, number: usize) -> Result<()> {
    let name = format!("n{number}");
    let class = |name: &str| json!({"name": name, "capacity": CAPACITY});
    let node = json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {
            "name": name,
            "labels": {
                "kubernetes.io/hostname": name,
                "topology.kubernetes.io/zone": format!("z{}", number % 3),
            },
        },
        "status": {
            "allocatable": {"cpu": "64", "memory": "256Gi", "pods": "110"},
            "capacity": {"cpu": "64", "memory": "256Gi", "pods": "110"},
            "conditions": [{"type": "Ready", "status": "True"}],
            "qosResources": {"containerQOSResources": [
                {"name": "rdt", "classes": [class("gold"), class("silver")]},
            ]},
        },
    });
    let reply = client.send("POST", "/api/v1/nodes", node.to_string()).await?;
    reply.expect(StatusCode::CREATED)?;
    // A new node is tainted until a controller sees it ready; no controller runs here.
    let mut made: serde_json::Value = serde_json::from_slice(&reply.body)?;
    made["spec"]["taints"] = json!([]);
    let path = format!("/api/v1/nodes/{name}");
    client.send("PUT", &path, made.to_string()).await?.expect(StatusCode::OK)
}

/// Returns a pod that requests a class.
pub(super) fn pod(name: &str) -> String {
    // Every fifth pod requests no class, to cover both code paths.
    let class = match name.as_bytes().last().map(|digit| digit % 5) {
        Some(0) => json!([]),
        Some(1 | 2) => json!([{"name": "rdt", "class": "gold"}]),
        _ => json!([{"name": "rdt", "class": "silver"}]),
    };
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"app": "bench"}},
        "spec": {"containers": [{
            "name": "c", "image": "registry.example/app:1.0",
            "resources": {
                "requests": {"cpu": "100m", "memory": "64Mi"},
                "limits": {"memory": "128Mi"},
                "qosResources": class,
            },
        }]},
    })
    .to_string()
}

/// Waits until this many pods are bound.
pub(super) async fn until_bound(target: &Target, pods: usize) -> Result<()> {
    let mut client = target.connect().await?;
    let started = Instant::now();
    let (mut bound, mut last) = (0, Instant::now());
    let mut last_progress = Instant::now();
    while bound < pods {
        let reply = client.send("GET", "/metrics", String::new()).await?;
        reply.expect(StatusCode::OK)?;
        let text = String::from_utf8_lossy(&reply.body);
        let name = "scheduler_schedule_attempts_total{result=\"scheduled\"} ";
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        let now: usize = line.context("the server has no metric of scheduled pods")?.parse()?;
        if now > bound {
            (bound, last) = (now, Instant::now());
        }
        if last.elapsed() > STALL {
            bail!("{bound} of {pods} pods were bound, then none for {} s", STALL.as_secs());
        }
        if last_progress.elapsed() > Duration::from_secs(5) {
            last_progress = Instant::now();
            eprintln!("{bound} of {pods} pods bound");
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let seconds = started.elapsed().as_secs_f64();
    println!("bound {pods} pods in {seconds:.1} s: {:.0} per second", pods as f64 / seconds);
    Ok(())
}
