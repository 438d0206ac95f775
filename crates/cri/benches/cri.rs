//! Measures encoding and decoding of a node's container list, and round trips to a runtime.
//!
//! Run with `cargo bench -p cri`. Client and server are in one process and use this system's kind
//! of endpoint. Results are in docs/measurements.md.

#![allow(clippy::unwrap_used, reason = "a bench")]

use std::hint::black_box;
use std::time::Duration;

use cri::v1::image_service_server::ImageService;
use cri::v1::runtime_service_server::RuntimeService;
use cri::{Client, Endpoint, Listener, v1};
use criterion::{Criterion, criterion_group, criterion_main};
use prost::Message as _;
use tonic::{Request, Response, Status};

/// Returns a list like the kubelet's, with the usual number and length of labels and annotations.
fn list(count: usize) -> v1::ListContainersResponse {
    let map = |pairs: &[(&str, &str)]| {
        pairs.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())).collect()
    };
    let container = |number: usize| v1::Container {
        id: format!("{number:064x}"),
        pod_sandbox_id: format!("{number:064x}"),
        metadata: Some(v1::ContainerMetadata { name: format!("container-{number}"), attempt: 1 }),
        image: Some(v1::ImageSpec {
            image: format!("sha256:{number:064x}"),
            user_specified_image: "registry.example/team/web:1.2.3".to_owned(),
            ..Default::default()
        }),
        image_ref: format!("sha256:{number:064x}"),
        state: v1::ContainerState::ContainerRunning.into(),
        created_at: 1_790_000_000_000_000_000,
        labels: map(&[
            ("io.kubernetes.container.name", "container"),
            ("io.kubernetes.pod.name", "web-6f7d9c5b44-x2x7z"),
            ("io.kubernetes.pod.namespace", "default"),
            ("io.kubernetes.pod.uid", "0f2b3f6e-7f5d-4f5e-9d3b-2f7b0c9f8a11"),
        ]),
        annotations: map(&[
            ("io.kubernetes.container.hash", "b7c6f8a1"),
            ("io.kubernetes.container.restartCount", "1"),
            ("io.kubernetes.container.terminationMessagePath", "/dev/termination-log"),
            ("io.kubernetes.container.terminationMessagePolicy", "File"),
            ("io.kubernetes.pod.terminationGracePeriod", "30"),
        ]),
        ..Default::default()
    };
    v1::ListContainersResponse { containers: (0..count).map(container).collect() }
}

fn messages(criterion: &mut Criterion) {
    let list = list(500);
    let bytes = list.encode_to_vec();
    let mut group = criterion.benchmark_group("500 containers");
    group.bench_function(format!("encode, {} KiB", bytes.len() >> 10), |bench| {
        bench.iter(|| black_box(&list).encode_to_vec());
    });
    group.bench_function("decode", |bench| {
        bench.iter(|| v1::ListContainersResponse::decode(black_box(bytes.as_slice())).unwrap());
    });
    group.finish();
}

struct Runtime(v1::ListContainersResponse);

#[tonic::async_trait]
impl RuntimeService for Runtime {
    async fn version(
        &self,
        _: Request<v1::VersionRequest>,
    ) -> Result<Response<v1::VersionResponse>, Status> {
        let runtime_name = "bench".to_owned();
        Ok(Response::new(v1::VersionResponse { runtime_name, ..Default::default() }))
    }

    async fn status(
        &self,
        _: Request<v1::StatusRequest>,
    ) -> Result<Response<v1::StatusResponse>, Status> {
        let condition = |name: &str| v1::RuntimeCondition {
            r#type: name.to_owned(),
            status: true,
            ..Default::default()
        };
        let conditions = vec![condition("RuntimeReady"), condition("NetworkReady")];
        let status = Some(v1::RuntimeStatus { conditions, resources: None });
        Ok(Response::new(v1::StatusResponse { status, ..Default::default() }))
    }

    async fn list_containers(
        &self,
        _: Request<v1::ListContainersRequest>,
    ) -> Result<Response<v1::ListContainersResponse>, Status> {
        Ok(Response::new(self.0.clone()))
    }
}

impl ImageService for Runtime {}

fn calls(criterion: &mut Criterion) {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let directory = tempfile::tempdir().unwrap();
    let text = if std::env::consts::FAMILY == "windows" {
        format!("npipe:////./pipe/berth-bench-{}", std::process::id())
    } else {
        format!("unix://{}/cri.sock", directory.path().display())
    };
    let endpoint = Endpoint::parse(&text).unwrap();
    let listener = runtime.block_on(Listener::bind(&endpoint)).unwrap();
    let (service, images) = (Runtime(list(500)), Runtime(list(0)));
    runtime.spawn(cri::serve(listener, service, images, std::future::pending(), Duration::ZERO));
    let client = Client::new(endpoint);

    let mut group = criterion.benchmark_group("round trip");
    group.bench_function("Version", |bench| {
        bench.iter(|| runtime.block_on(client.call(v1::VersionRequest::default())).unwrap());
    });
    group.bench_function("Status", |bench| {
        bench.iter(|| runtime.block_on(client.call(v1::StatusRequest::default())).unwrap());
    });
    group.bench_function("ListContainers, 500", |bench| {
        bench.iter(|| runtime.block_on(client.call(v1::ListContainersRequest::default())).unwrap());
    });
    group.finish();
}

criterion_group!(benches, messages, calls);
criterion_main!(benches);
