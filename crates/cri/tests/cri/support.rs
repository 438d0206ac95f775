//! A runtime without containers, for tests of client and server.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use cri::v1::image_service_server::ImageService;
use cri::v1::runtime_service_server::RuntimeService;
use cri::{BindError, Client, Draining, Endpoint, Listener, ServeError, v1};
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio_stream::wrappers::ReceiverStream;
use tonic::codegen::BoxStream;
use tonic::{Request, Response, Status};

/// Enough for a busy machine; successful tests do not wait for it.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A unique endpoint of this system.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) endpoint: Endpoint,
    _directory: tempfile::TempDir,
}

impl Place {
    pub(crate) fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let text = if std::env::consts::FAMILY == "windows" {
            let name = directory.path().file_name().unwrap().to_string_lossy().into_owned();
            format!("npipe:////./pipe/berth-{}-{name}", std::process::id())
        } else {
            format!("unix://{}/cri.sock", directory.path().display())
        };
        Self { endpoint: Endpoint::parse(&text).unwrap(), _directory: directory }
    }
}

/// The runtime's responses, and counters of its calls.
#[derive(Debug, Default)]
pub(crate) struct State {
    pub(crate) status: v1::StatusResponse,
    pub(crate) containers: Vec<v1::Container>,
    /// Notified when a call of ExecSync arrives.
    pub(crate) entered: Notify,
    /// Lets a call of ExecSync end.
    pub(crate) release: Notify,
    /// Notified when the caller of ExecSync has gone away.
    pub(crate) abandoned: Notify,
    /// The number of requests for events.
    pub(crate) event_streams: AtomicU32,
}

/// A runtime with a few calls; all others are unimplemented.
#[derive(Clone, Debug, Default)]
pub(crate) struct TestRuntime(pub(crate) Arc<State>);

pub(crate) const NO_CONTAINER: &str =
    "an error occurred when try to find container \"x\": not found";

#[tonic::async_trait]
impl RuntimeService for TestRuntime {
    async fn version(
        &self,
        request: Request<v1::VersionRequest>,
    ) -> Result<Response<v1::VersionResponse>, Status> {
        Ok(Response::new(v1::VersionResponse {
            version: request.into_inner().version,
            runtime_name: "test".to_owned(),
            runtime_version: "1.2.3".to_owned(),
            runtime_api_version: "v1".to_owned(),
        }))
    }

    async fn status(
        &self,
        _: Request<v1::StatusRequest>,
    ) -> Result<Response<v1::StatusResponse>, Status> {
        Ok(Response::new(self.0.status.clone()))
    }

    async fn container_status(
        &self,
        _: Request<v1::ContainerStatusRequest>,
    ) -> Result<Response<v1::ContainerStatusResponse>, Status> {
        Err(Status::not_found(NO_CONTAINER))
    }

    async fn list_containers(
        &self,
        _: Request<v1::ListContainersRequest>,
    ) -> Result<Response<v1::ListContainersResponse>, Status> {
        let containers = self.0.containers.clone();
        Ok(Response::new(v1::ListContainersResponse { containers }))
    }

    async fn stream_containers(
        &self,
        _: Request<v1::StreamContainersRequest>,
    ) -> Result<Response<BoxStream<v1::StreamContainersResponse>>, Status> {
        let parts: Vec<_> = self
            .0
            .containers
            .chunks(100)
            .map(|part| Ok(v1::StreamContainersResponse { containers: part.to_vec() }))
            .collect();
        Ok(Response::new(Box::pin(tokio_stream::iter(parts))))
    }

    /// Blocks until released.
    async fn exec_sync(
        &self,
        _: Request<v1::ExecSyncRequest>,
    ) -> Result<Response<v1::ExecSyncResponse>, Status> {
        struct Abandoned(Option<Arc<State>>);
        impl Drop for Abandoned {
            fn drop(&mut self) {
                if let Some(state) = &self.0 {
                    state.abandoned.notify_one();
                }
            }
        }
        let mut abandoned = Abandoned(Some(Arc::clone(&self.0)));
        self.0.entered.notify_one();
        self.0.release.notified().await;
        abandoned.0 = None;
        Ok(Response::new(v1::ExecSyncResponse { exit_code: 7, ..Default::default() }))
    }

    /// Sends one event and keeps the stream open.
    async fn get_container_events(
        &self,
        _: Request<v1::GetEventsRequest>,
    ) -> Result<Response<BoxStream<v1::ContainerEventResponse>>, Status> {
        self.0.event_streams.fetch_add(1, Ordering::Relaxed);
        let (send, events) = mpsc::channel(1);
        let event =
            v1::ContainerEventResponse { container_id: "c".to_owned(), ..Default::default() };
        tokio::spawn(async move {
            let _ = send.send(Ok(event)).await;
            send.closed().await;
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(events))))
    }

    async fn runtime_config(
        &self,
        _: Request<v1::RuntimeConfigRequest>,
    ) -> Result<Response<v1::RuntimeConfigResponse>, Status> {
        let linux =
            v1::LinuxRuntimeConfiguration { cgroup_driver: v1::CgroupDriver::Cgroupfs.into() };
        Ok(Response::new(v1::RuntimeConfigResponse { linux: Some(linux) }))
    }

    async fn update_pod_sandbox_resources(
        &self,
        _: Request<v1::UpdatePodSandboxResourcesRequest>,
    ) -> Result<Response<v1::UpdatePodSandboxResourcesResponse>, Status> {
        Err(Status::not_found("no such sandbox"))
    }
}

#[tonic::async_trait]
impl ImageService for TestRuntime {
    async fn image_fs_info(
        &self,
        _: Request<v1::ImageFsInfoRequest>,
    ) -> Result<Response<v1::ImageFsInfoResponse>, Status> {
        Ok(Response::new(v1::ImageFsInfoResponse::default()))
    }
}

/// A runtime that implements no call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Nothing;

impl RuntimeService for Nothing {}

impl ImageService for Nothing {}

/// A running server of a runtime.
#[derive(Debug)]
pub(crate) struct Served {
    stop: oneshot::Sender<()>,
    end: JoinHandle<Result<Draining, ServeError>>,
}

impl Served {
    pub(crate) async fn start<R>(place: &Place, runtime: R, drain: Duration) -> Self
    where
        R: RuntimeService + ImageService + Clone,
    {
        let free = async {
            // A pipe is busy until its last connection is closed.
            loop {
                match Listener::bind(&place.endpoint).await {
                    Err(BindError::InUse(_)) => tokio::task::yield_now().await,
                    bound => break bound.unwrap(),
                }
            }
        };
        let listener = tokio::time::timeout(PATIENCE, free).await.unwrap();
        assert_eq!(listener.endpoint(), &place.endpoint);
        let (stop, stopped) = oneshot::channel();
        let stopped = async {
            let _ = stopped.await;
        };
        let end = tokio::spawn(cri::serve(listener, runtime.clone(), runtime, stopped, drain));
        Self { stop, end }
    }

    /// Requests a stop and returns the handle to wait for the end.
    pub(crate) fn stop(self) -> JoinHandle<Result<Draining, ServeError>> {
        self.stop.send(()).unwrap();
        self.end
    }
}

/// Returns a served runtime with a client.
pub(crate) async fn pair(state: State) -> (Place, Served, Client, TestRuntime) {
    let place = Place::new();
    let runtime = TestRuntime(Arc::new(state));
    let served = Served::start(&place, runtime.clone(), PATIENCE).await;
    let client = Client::new(place.endpoint.clone());
    (place, served, client, runtime)
}

/// Returns `count` containers of about `bytes` bytes each.
pub(crate) fn containers(count: usize, bytes: usize) -> Vec<v1::Container> {
    let container = |number| v1::Container {
        id: format!("{number:064x}"),
        annotations: [("padding".to_owned(), "x".repeat(bytes))].into(),
        ..Default::default()
    };
    (0..count).map(container).collect()
}
