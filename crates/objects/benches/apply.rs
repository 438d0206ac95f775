//! Benchmarks of field ownership, which every write updates. Figures are from 2 shared cores of a
//! cloud machine, 2026-11, the minimum of a hundred samples. `cargo bench -p objects` prints
//! current ones.
#![allow(clippy::unwrap_used)]

use std::hint::black_box;

use criterion::{BatchSize, Criterion, criterion_group, criterion_main};
use objects::apply::{FieldManager, apply, track_update};
use objects::patch;
use objects::schema::{Schema, TypeId};
use objects::timestamp::Timestamp;
use serde_json::{Value, json};

const KUBECTL: FieldManager<'_> =
    FieldManager { name: "kubectl-create", subresource: "", api_version: "v1" };
const NODE: FieldManager<'_> =
    FieldManager { name: "node", subresource: "status", api_version: "v1" };

fn now() -> Timestamp {
    Timestamp::new(1_790_000_000, 0)
}

fn pod_type() -> (&'static Schema, TypeId) {
    let schema = Schema::served();
    (schema, schema.find("io.k8s.api.core.v1.Pod").unwrap())
}

/// A pod as it is after defaulting: one container with ports, environment, mounts and a probe.
fn pod() -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "web-0", "namespace": "shop", "labels": {"app": "web", "tier": "front"},
            "annotations": {"team": "shop"},
            "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "u",
                "controller": true, "blockOwnerDeletion": true}]},
        "spec": {
            "containers": [{"name": "web", "image": "registry.example/web:1.0",
                "ports": [{"containerPort": 80, "protocol": "TCP"}, {"containerPort": 443, "protocol": "TCP"}],
                "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}],
                "resources": {"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "500m", "memory": "1Gi"}},
                "volumeMounts": [{"name": "data", "mountPath": "/data"}],
                "readinessProbe": {"httpGet": {"path": "/", "port": 80, "scheme": "HTTP"}, "timeoutSeconds": 1,
                    "periodSeconds": 10, "successThreshold": 1, "failureThreshold": 3},
                "terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File",
                "imagePullPolicy": "IfNotPresent"}],
            "volumes": [{"name": "data", "emptyDir": {}}],
            "restartPolicy": "Always", "terminationGracePeriodSeconds": 30, "dnsPolicy": "ClusterFirst",
            "securityContext": {}, "schedulerName": "default-scheduler", "enableServiceLinks": true},
        "status": {},
    })
}

fn stored() -> Value {
    let (schema, id) = pod_type();
    let mut pod = pod();
    track_update(schema, id, None, &mut pod, &KUBECTL, now());
    pod["metadata"]["uid"] = "u-1".into();
    pod
}

/// 9.6 µs.
fn create(c: &mut Criterion) {
    let (schema, id) = pod_type();
    let pod = pod();
    c.bench_function("track_update: create a pod", |b| {
        b.iter_batched_ref(
            || pod.clone(),
            |new| track_update(schema, id, None, black_box(new), &KUBECTL, now()),
            BatchSize::SmallInput,
        );
    });
}

/// 9.1 µs.
fn status(c: &mut Criterion) {
    let (schema, id) = pod_type();
    let live = stored();
    let mut new = live.clone();
    new["status"] = json!({"phase": "Running", "podIP": "10.0.0.1", "podIPs": [{"ip": "10.0.0.1"}],
        "conditions": [{"type": "Ready", "status": "True", "lastProbeTime": null, "lastTransitionTime": null}]});
    c.bench_function("track_update: status of a pod", |b| {
        b.iter_batched_ref(
            || new.clone(),
            |new| track_update(schema, id, Some(&live), black_box(new), &NODE, now()),
            BatchSize::SmallInput,
        );
    });
}

/// 1.8 µs.
fn patches(c: &mut Criterion) {
    let (schema, id) = pod_type();
    let live = stored();
    let text = br#"{"spec":{"containers":[{"name":"web","image":"registry.example/web:1.1"}]}}"#;
    c.bench_function("strategic: image of a pod", |b| {
        b.iter_batched(
            || live.clone(),
            |live| patch::strategic(schema, id, black_box(live), text),
            BatchSize::SmallInput,
        );
    });
}

/// 33 µs.
fn applies(c: &mut Criterion) {
    let (schema, id) = pod_type();
    let live = stored();
    let applied = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web-0"},
        "spec": {"containers": [{"name": "web", "image": "registry.example/web:1.1"}]}});
    c.bench_function("apply: image of a pod, by force", |b| {
        b.iter(|| apply(schema, id, Some(&live), black_box(&applied), &KUBECTL, true, now()));
    });
}

criterion_group!(benches, create, status, patches, applies);
criterion_main!(benches);
