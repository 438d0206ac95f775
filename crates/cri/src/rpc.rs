//! Which call a request is for: [`Rpc`] and [`StreamingRpc`], implemented for every request of the
//! protocol, with the deadline that the kubelet gives it.
//!
//! The deadlines are those recorded from a kubelet (`testdata/golden-node`, kind `deadlines`); a test
//! holds them together. No call is made here.

use std::time::Duration;

use prost::Message;

use crate::v1;

/// A request with one response.
pub trait Rpc: Message + Clone + Default + 'static {
    type Response: Message + Default + 'static;

    /// The call's name, such as `RunPodSandbox`.
    const METHOD: &'static str;

    /// The call's name on the wire.
    const PATH: &'static str;

    /// How long to wait for the response, `None` being for ever.
    fn deadline(&self, request_timeout: Duration) -> Option<Duration> {
        Some(request_timeout)
    }
}

/// A request with any number of responses.
pub trait StreamingRpc: Message + Clone + Default + 'static {
    type Response: Message + Default + 'static;

    /// The call's name, such as `GetContainerEvents`.
    const METHOD: &'static str;

    /// The call's name on the wire.
    const PATH: &'static str;

    /// How long to wait for the last response, `None` being for ever.
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
    // Networks take their time.
    "RunPodSandbox": RunPodSandboxRequest => RunPodSandboxResponse, |_this, timeout| Some(timeout * 2);
    "StopPodSandbox": StopPodSandboxRequest => StopPodSandboxResponse;
    "RemovePodSandbox": RemovePodSandboxRequest => RemovePodSandboxResponse;
    "PodSandboxStatus": PodSandboxStatusRequest => PodSandboxStatusResponse;
    "ListPodSandbox": ListPodSandboxRequest => ListPodSandboxResponse;
    "CreateContainer": CreateContainerRequest => CreateContainerResponse;
    "StartContainer": StartContainerRequest => StartContainerResponse;
    // What the container is given to end by itself comes on top.
    "StopContainer": StopContainerRequest => StopContainerResponse,
        |this, timeout| Some(timeout.saturating_add(seconds(this.timeout)));
    "RemoveContainer": RemoveContainerRequest => RemoveContainerResponse;
    "ListContainers": ListContainersRequest => ListContainersResponse;
    "ContainerStatus": ContainerStatusRequest => ContainerStatusResponse;
    "UpdateContainerResources": UpdateContainerResourcesRequest => UpdateContainerResourcesResponse;
    "ReopenContainerLog": ReopenContainerLogRequest => ReopenContainerLogResponse;
    // What the command is given comes on top; a command without limit has none.
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
    // As long as the network needs; whoever pulls may cancel.
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
    // Events go on until someone ends them.
    "GetContainerEvents": GetEventsRequest => ContainerEventResponse, |_this, _timeout| None;
}

calls! { StreamingRpc, "ImageService",
    "StreamImages": StreamImagesRequest => StreamImagesResponse;
}

/// Seconds of a request; less than none is none.
fn seconds(count: i64) -> Duration {
    Duration::from_secs(u64::try_from(count).unwrap_or(0))
}
