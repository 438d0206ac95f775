//! A runtime that forwards every call to another runtime and records it: [`RecordingProxy`].
//!
//! It runs between an agent and its runtime in tests and comparisons. Requests, responses and
//! errors are forwarded unchanged unless an interceptor changes them; no call is repeated or
//! delayed. Event streams are the only streams that are forwarded, because no caller needs the
//! others.

use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio_stream::StreamExt as _;
use tonic::codegen::BoxStream;
use tonic::metadata::MetadataMap;
use tonic::{Code, Request, Response, Status};

use crate::client::Client;
use crate::error::{Error, Origin};
use crate::rpc::Rpc;
use crate::v1;
use crate::v1::image_service_server::ImageService;
use crate::v1::runtime_service_server::RuntimeService;

/// The compiled descriptor of all messages and services (`google.protobuf.FileDescriptorSet`).
pub const DESCRIPTION: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/runtime.v1.bin"));

/// The number of events buffered for a reader.
const EVENTS: usize = 16;

/// A recorded call.
#[derive(Clone, Debug)]
pub struct RecordedCall {
    /// For example `RunPodSandbox`.
    pub method: &'static str,
    /// The encoded request before interception.
    pub request: Vec<u8>,
    /// The caller's deadline.
    pub deadline: Option<Duration>,
    /// The encoded response; `None` until it arrives.
    pub response: Option<Result<Vec<u8>, Error>>,
}

/// The recorded calls in request order. Clones share one list.
#[derive(Clone, Debug, Default)]
pub struct CallLog(Arc<Mutex<Vec<RecordedCall>>>);

impl CallLog {
    /// Returns the calls from index `first` on.
    #[must_use]
    pub fn since(&self, first: usize) -> Vec<RecordedCall> {
        let calls = self.0.lock();
        calls.get(first..).unwrap_or_default().to_vec()
    }

    fn push(&self, call: RecordedCall) -> usize {
        let mut calls = self.0.lock();
        calls.push(call);
        calls.len() - 1
    }

    fn set_response(&self, index: usize, response: Result<Vec<u8>, Error>) {
        let mut calls = self.0.lock();
        if let Some(call) = calls.get_mut(index) {
            call.response = Some(response);
        }
    }
}

type InterceptFn = dyn Fn(&mut dyn Any) -> Result<(), String> + Send + Sync;

/// Changes requests before they are sent and responses before they are returned.
#[derive(Clone)]
struct Interceptor(Arc<InterceptFn>);

impl fmt::Debug for Interceptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Interceptor")
    }
}

/// A runtime in front of another one. Clones share the call log.
#[derive(Clone, Debug)]
pub struct RecordingProxy {
    to: Client,
    calls: CallLog,
    keep: fn(&str) -> bool,
    interceptor: Option<Interceptor>,
}

impl RecordingProxy {
    /// Forwards calls to `to` and records those whose method `keep` accepts.
    #[must_use]
    pub fn new(to: Client, keep: fn(&str) -> bool) -> RecordingProxy {
        RecordingProxy { to, calls: CallLog::default(), keep, interceptor: None }
    }

    /// Intercepts requests and responses, so that the runtime appears to be another one, for
    /// example with more or fewer features. The closure gets a message of [`v1`] to downcast. An
    /// error becomes the runtime's error message.
    #[must_use]
    pub fn with_interceptor(
        self,
        intercept: impl Fn(&mut dyn Any) -> Result<(), String> + Send + Sync + 'static,
    ) -> RecordingProxy {
        RecordingProxy { interceptor: Some(Interceptor(Arc::new(intercept))), ..self }
    }

    #[must_use]
    pub fn calls(&self) -> CallLog {
        self.calls.clone()
    }

    async fn forward<R: Rpc>(&self, request: Request<R>) -> Result<Response<R::Response>, Status> {
        let deadline = deadline(request.metadata());
        let mut request = request.into_inner();
        let index = (self.keep)(R::METHOD).then(|| {
            let request = request.encode_to_vec();
            self.calls.push(RecordedCall { method: R::METHOD, request, deadline, response: None })
        });
        let response = match self.intercept::<R>(&mut request) {
            Ok(()) => self.to.call(request).await,
            Err(error) => Err(error),
        };
        let response =
            response.and_then(|mut response| self.intercept::<R>(&mut response).map(|()| response));
        if let Some(index) = index {
            let kept = response.as_ref().map(prost::Message::encode_to_vec).map_err(Clone::clone);
            self.calls.set_response(index, kept);
        }
        response.map(Response::new).map_err(|error| Status::new(error.code, error.message))
    }

    fn intercept<R: Rpc>(&self, message: &mut dyn Any) -> Result<(), Error> {
        let Some(Interceptor(intercept)) = &self.interceptor else { return Ok(()) };
        intercept(message).map_err(|message| Error {
            endpoint: self.to.endpoint().clone(),
            method: R::METHOD,
            origin: Origin::Runtime,
            code: Code::Unknown,
            message,
        })
    }
}

/// Parses the header `grpc-timeout`: digits and a unit.
fn deadline(headers: &MetadataMap) -> Option<Duration> {
    let text = headers.get("grpc-timeout")?.to_str().ok()?;
    let (count, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    let count: u64 = count.parse().ok()?;
    match unit {
        "H" => count.checked_mul(3600).map(Duration::from_secs),
        "M" => count.checked_mul(60).map(Duration::from_secs),
        "S" => Some(Duration::from_secs(count)),
        "m" => Some(Duration::from_millis(count)),
        "u" => Some(Duration::from_micros(count)),
        "n" => Some(Duration::from_nanos(count)),
        _ => None,
    }
}

macro_rules! forward {
    ($service:ident { $($name:ident: $request:ident => $response:ident;)* } $($more:item)*) => {
        #[tonic::async_trait]
        impl $service for RecordingProxy {
            $(
                async fn $name(
                    &self,
                    request: Request<v1::$request>,
                ) -> Result<Response<v1::$response>, Status> {
                    self.forward(request).await
                }
            )*
            $($more)*
        }
    };
}

forward! { RuntimeService {
    version: VersionRequest => VersionResponse;
    run_pod_sandbox: RunPodSandboxRequest => RunPodSandboxResponse;
    stop_pod_sandbox: StopPodSandboxRequest => StopPodSandboxResponse;
    remove_pod_sandbox: RemovePodSandboxRequest => RemovePodSandboxResponse;
    pod_sandbox_status: PodSandboxStatusRequest => PodSandboxStatusResponse;
    list_pod_sandbox: ListPodSandboxRequest => ListPodSandboxResponse;
    create_container: CreateContainerRequest => CreateContainerResponse;
    start_container: StartContainerRequest => StartContainerResponse;
    stop_container: StopContainerRequest => StopContainerResponse;
    remove_container: RemoveContainerRequest => RemoveContainerResponse;
    list_containers: ListContainersRequest => ListContainersResponse;
    container_status: ContainerStatusRequest => ContainerStatusResponse;
    update_container_resources: UpdateContainerResourcesRequest => UpdateContainerResourcesResponse;
    reopen_container_log: ReopenContainerLogRequest => ReopenContainerLogResponse;
    exec_sync: ExecSyncRequest => ExecSyncResponse;
    exec: ExecRequest => ExecResponse;
    attach: AttachRequest => AttachResponse;
    port_forward: PortForwardRequest => PortForwardResponse;
    container_stats: ContainerStatsRequest => ContainerStatsResponse;
    list_container_stats: ListContainerStatsRequest => ListContainerStatsResponse;
    pod_sandbox_stats: PodSandboxStatsRequest => PodSandboxStatsResponse;
    list_pod_sandbox_stats: ListPodSandboxStatsRequest => ListPodSandboxStatsResponse;
    update_runtime_config: UpdateRuntimeConfigRequest => UpdateRuntimeConfigResponse;
    status: StatusRequest => StatusResponse;
    checkpoint_container: CheckpointContainerRequest => CheckpointContainerResponse;
    list_metric_descriptors: ListMetricDescriptorsRequest => ListMetricDescriptorsResponse;
    list_pod_sandbox_metrics: ListPodSandboxMetricsRequest => ListPodSandboxMetricsResponse;
    runtime_config: RuntimeConfigRequest => RuntimeConfigResponse;
    update_pod_sandbox_resources:
        UpdatePodSandboxResourcesRequest => UpdatePodSandboxResourcesResponse;
}
    async fn get_container_events(
        &self,
        request: Request<v1::GetEventsRequest>,
    ) -> Result<Response<BoxStream<v1::ContainerEventResponse>>, Status> {
        let mut events = self.to.stream(request.into_inner());
        let (sender, receiver) = tokio::sync::mpsc::channel(EVENTS);
        tokio::spawn(async move {
            loop {
                let next = tokio::select! {
                    next = events.next() => next,
                    // The reader has gone away.
                    () = sender.closed() => return,
                };
                let event = match next {
                    Ok(None) => return,
                    Ok(Some(event)) => Ok(event),
                    Err(error) => Err(Status::new(error.code, error.message)),
                };
                let last = event.is_err();
                if sender.send(event).await.is_err() || last {
                    return;
                }
            }
        });
        let mut receiver = receiver;
        // A runtime without events fails at once; return that as the error of the call.
        let first = match receiver.recv().await {
            Some(Err(status)) => return Err(status),
            first => first,
        };
        let first = tokio_stream::iter(first);
        let rest = tokio_stream::wrappers::ReceiverStream::new(receiver);
        Ok(Response::new(Box::pin(first.chain(rest))))
    }
}

forward! { ImageService {
    list_images: ListImagesRequest => ListImagesResponse;
    image_status: ImageStatusRequest => ImageStatusResponse;
    pull_image: PullImageRequest => PullImageResponse;
    remove_image: RemoveImageRequest => RemoveImageResponse;
    image_fs_info: ImageFsInfoRequest => ImageFsInfoResponse;
} }

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grpc_timeout_header_is_parsed() {
        let check = |text: &str, expected: Option<Duration>| {
            let mut headers = MetadataMap::new();
            headers.insert("grpc-timeout", text.parse().unwrap());
            assert_eq!(deadline(&headers), expected, "{text}");
        };
        check("240S", Some(Duration::from_secs(240)));
        check("2M", Some(Duration::from_secs(120)));
        check("1H", Some(Duration::from_secs(3600)));
        check("1500m", Some(Duration::from_millis(1500)));
        check("7u", Some(Duration::from_micros(7)));
        check("7n", Some(Duration::from_nanos(7)));
        check("7", None);
        check("xS", None);
        check("5x", None);
        assert_eq!(deadline(&MetadataMap::new()), None);
    }
}
