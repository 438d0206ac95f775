//! The call of a request type: [`Rpc`] and [`StreamingRpc`], implemented for every request of the
//! protocol, with the kubelet's deadline.
//!
//! The deadlines equal those recorded from a kubelet (`testdata/golden-node`, kind `deadlines`); a
//! test compares them. No call is made here.

use std::time::Duration;

use prost::Message;

use crate::v1;

/// A request with one response.
pub trait Rpc: Message + Clone + Default + 'static {
    type Response: Message + Default + 'static;

    /// The name of the call, for example `RunPodSandbox`.
    const METHOD: &'static str;

    /// The gRPC path of the call.
    const PATH: &'static str;

    /// Returns the time to wait for the response; `None` means no limit.
    fn deadline(&self, request_timeout: Duration) -> Option<Duration> {
        Some(request_timeout)
    }
}

/// A request with any number of responses.
pub trait StreamingRpc: Message + Clone + Default + 'static {
    type Response: Message + Default + 'static;

    /// The name of the call, for example `GetContainerEvents`.
    const METHOD: &'static str;

    /// The gRPC path of the call.
    const PATH: &'static str;

    /// Returns the time to wait for the last response; `None` means no limit.
    fn deadline(&self, request_timeout: Duration) -> Option<Duration> {
        Some(request_timeout)
    }
}

macro_rules! calls {
    ($trait:ident, $service:literal, $($method:literal: $request:ident => $response:ident
        $(, |$this:ident, $timeout:ident| $deadline:expr)?;)*) => {$(
        impl $trait for v1::$request {
            type Response = v1::$response;
            const METHOD: &'static str = $method;
            const PATH: &'static str = concat!("/runtime.v1.", $service, "/", $method);
            $(
                fn deadline(&self, $timeout: Duration) -> Option<Duration> {
                    let $this = self;
                    $deadline
                }
            )?
        }
    )*};
}

calls! { Rpc, "RuntimeService",
    "Version": VersionRequest => VersionResponse;
    // Setting up a network takes time.
    "RunPodSandbox": RunPodSandboxRequest => RunPodSandboxResponse, |_this, timeout| Some(timeout * 2);
    "StopPodSandbox": StopPodSandboxRequest => StopPodSandboxResponse;
    "RemovePodSandbox": RemovePodSandboxRequest => RemovePodSandboxResponse;
    "PodSandboxStatus": PodSandboxStatusRequest => PodSandboxStatusResponse;
    "ListPodSandbox": ListPodSandboxRequest => ListPodSandboxResponse;
    "CreateContainer": CreateContainerRequest => CreateContainerResponse;
    "StartContainer": StartContainerRequest => StartContainerResponse;
    // The container's grace period is added.
    "StopContainer": StopContainerRequest => StopContainerResponse,
        |this, timeout| Some(timeout.saturating_add(seconds(this.timeout)));
    "RemoveContainer": RemoveContainerRequest => RemoveContainerResponse;
    "ListContainers": ListContainersRequest => ListContainersResponse;
    "ContainerStatus": ContainerStatusRequest => ContainerStatusResponse;
    "UpdateContainerResources": UpdateContainerResourcesRequest => UpdateContainerResourcesResponse;
    "ReopenContainerLog": ReopenContainerLogRequest => ReopenContainerLogResponse;
    // The command's timeout is added; a command without timeout has no deadline.
    "ExecSync": ExecSyncRequest => ExecSyncResponse,
        |this, timeout| (this.timeout > 0).then(|| timeout.saturating_add(seconds(this.timeout)));
    "Exec": ExecRequest => ExecResponse;
    "Attach": AttachRequest => AttachResponse;
    "PortForward": PortForwardRequest => PortForwardResponse;
    "ContainerStats": ContainerStatsRequest => ContainerStatsResponse;
    "ListContainerStats": ListContainerStatsRequest => ListContainerStatsResponse;
    "PodSandboxStats": PodSandboxStatsRequest => PodSandboxStatsResponse;
    "ListPodSandboxStats": ListPodSandboxStatsRequest => ListPodSandboxStatsResponse;
    "UpdateRuntimeConfig": UpdateRuntimeConfigRequest => UpdateRuntimeConfigResponse;
    "Status": StatusRequest => StatusResponse;
    "CheckpointContainer": CheckpointContainerRequest => CheckpointContainerResponse,
        |this, timeout| Some(timeout.saturating_add(seconds(this.timeout)));
    "ListMetricDescriptors": ListMetricDescriptorsRequest => ListMetricDescriptorsResponse;
    "ListPodSandboxMetrics": ListPodSandboxMetricsRequest => ListPodSandboxMetricsResponse;
    "RuntimeConfig": RuntimeConfigRequest => RuntimeConfigResponse;
    "UpdatePodSandboxResources": UpdatePodSandboxResourcesRequest => UpdatePodSandboxResourcesResponse;
}

calls! { Rpc, "ImageService",
    "ListImages": ListImagesRequest => ListImagesResponse;
    "ImageStatus": ImageStatusRequest => ImageStatusResponse;
    // A pull takes as long as the network needs; the caller may cancel it.
    "PullImage": PullImageRequest => PullImageResponse, |_this, _timeout| None;
    "RemoveImage": RemoveImageRequest => RemoveImageResponse;
    "ImageFsInfo": ImageFsInfoRequest => ImageFsInfoResponse;
}

calls! { StreamingRpc, "RuntimeService",
    "StreamPodSandboxes": StreamPodSandboxesRequest => StreamPodSandboxesResponse;
    "StreamContainers": StreamContainersRequest => StreamContainersResponse;
    "StreamContainerStats": StreamContainerStatsRequest => StreamContainerStatsResponse;
    "StreamPodSandboxStats": StreamPodSandboxStatsRequest => StreamPodSandboxStatsResponse;
    "StreamPodSandboxMetrics": StreamPodSandboxMetricsRequest => StreamPodSandboxMetricsResponse;
    // Events end only when the caller cancels.
    "GetContainerEvents": GetEventsRequest => ContainerEventResponse, |_this, _timeout| None;
}

calls! { StreamingRpc, "ImageService",
    "StreamImages": StreamImagesRequest => StreamImagesResponse;
}

/// Returns a timeout in seconds; negative means zero.
fn seconds(count: i64) -> Duration {
    Duration::from_secs(u64::try_from(count).unwrap_or(0))
}
