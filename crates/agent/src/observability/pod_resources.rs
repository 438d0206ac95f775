//! The kubelet's Pod Resources API, version 1: [`answer`] computes the responses, [`serve`] serves them on this machine.
//!
//! As upstream, only CPUs and memory that are exclusive to one container are reported. Decides nothing: the data is in
//! the ledger.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use cri::{Endpoint, EndpointError, Listener};
use objects::pod::OsName;
use thiserror::Error;
use tonic::{Request, Response, Status};

use crate::node_state::NodeState;
use crate::observability::metrics::{PodResourcesCall, PodResourcesMetrics};
use crate::publications::Publications;
use lifecycle::spec::Pod;
use v1::pod_resources_lister_server::{PodResourcesLister, PodResourcesListerServer};

/// The messages, generated from `proto/podresources.proto`.
#[allow(missing_debug_implementations, clippy::pedantic, reason = "generated")]
pub mod v1 {
    tonic::include_proto!("v1");
}

pub mod response;

/// The requests, so that a [`cri::Client`] can send them: it connects to sockets and pipes.
macro_rules! questions {
    ($($method:literal: $request:ident => $response:ident;)*) => {$(
        impl cri::Rpc for v1::$request {
            type Response = v1::$response;
            const METHOD: &'static str = $method;
            const PATH: &'static str = concat!("/v1.PodResourcesLister/", $method);
        }
    )*};
}

questions! {
    "List": ListPodResourcesRequest => ListPodResourcesResponse;
    "GetAllocatableResources": AllocatableResourcesRequest => AllocatableResourcesResponse;
    "Get": GetPodResourcesRequest => GetPodResourcesResponse;
}

/// Upstream's limits: requests per second, and the burst.
const PER_SECOND: f64 = 100.0;
const AT_ONCE: f64 = 10.0;

/// The mode of the socket's directory. Upstream's value.
const DIRECTORY: u32 = 0o750;

#[derive(Debug, Error)]
pub enum ServeError {
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    #[error("{path}: {cause}")]
    Directory { path: String, cause: std::io::Error },
    #[error(transparent)]
    Bind(#[from] cri::BindError),
    #[error("serving ended: {0}")]
    Ended(#[from] tonic::transport::Error),
}

/// Returns the kubelet's endpoint: a socket below its directory, or a pipe.
pub fn endpoint(os: OsName, root: &Path) -> Result<Endpoint, EndpointError> {
    match os {
        OsName::Linux => {
            Endpoint::parse(&format!("unix://{}/pod-resources/kubelet.sock", root.display()))
        }
        OsName::Windows => Endpoint::parse(r"\\.\pipe\kubelet-pod-resources"),
    }
}

/// Serves as long as it is polled.
pub async fn serve(
    state: Arc<NodeState>,
    publications: Arc<Publications>,
    metrics: PodResourcesMetrics,
    root: &Path,
) -> Result<(), ServeError> {
    let os = state.node_env().os;
    let endpoint = endpoint(os, root)?;
    if os == OsName::Linux {
        let path = root.join("pod-resources");
        std::fs::create_dir_all(&path)
            .and_then(|()| host::os::owners::set_mode(&path, DIRECTORY))
            .map_err(|cause| ServeError::Directory { path: path.display().to_string(), cause })?;
    }
    let incoming = cri::incoming(Listener::bind(&endpoint).await?);
    let bucket = Mutex::new(TokenBucket::full(Instant::now()));
    let lister = Lister { state, publications, metrics, bucket };
    let service = PodResourcesListerServer::new(lister);
    Ok(tonic::transport::Server::builder().serve_with_incoming(service, incoming).await?)
}

/// The requests that are still allowed.
#[derive(Debug)]
struct TokenBucket {
    left: f64,
    at: Instant,
}

impl TokenBucket {
    fn full(now: Instant) -> TokenBucket {
        TokenBucket { left: AT_ONCE, at: now }
    }

    fn take(&mut self, now: Instant) -> bool {
        let since = now.saturating_duration_since(self.at).as_secs_f64();
        self.left = (self.left + since * PER_SECOND).min(AT_ONCE);
        self.at = now;
        let may = self.left >= 1.0;
        if may {
            self.left -= 1.0;
        }
        may
    }
}

struct Lister {
    state: Arc<NodeState>,
    publications: Arc<Publications>,
    metrics: PodResourcesMetrics,
    bucket: Mutex<TokenBucket>,
}

impl Lister {
    fn check_rate(&self) -> Result<(), Status> {
        let mut bucket = self.bucket.lock().unwrap_or_else(PoisonError::into_inner);
        match bucket.take(Instant::now()) {
            true => Ok(()),
            false => Err(Status::resource_exhausted("rejected by rate limit")),
        }
    }

    /// Counts a request and whether it failed.
    fn counted<T>(&self, call: PodResourcesCall, answer: Result<T, Status>) -> Result<T, Status> {
        self.metrics.observe(call, answer.is_err());
        answer
    }

    fn pods(&self) -> Arc<Vec<Arc<Pod>>> {
        self.publications.active()
    }
}

#[tonic::async_trait]
impl PodResourcesLister for Lister {
    async fn list(
        &self,
        _: Request<v1::ListPodResourcesRequest>,
    ) -> Result<Response<v1::ListPodResourcesResponse>, Status> {
        self.counted(PodResourcesCall::List, self.check_rate())?;
        let pods = self.pods();
        let ledger = self.state.ledger();
        let of = |pod: &Arc<Pod>| response::pod(pod, ledger.node(), ledger.contents());
        let pod_resources = pods.iter().map(of).collect();
        Ok(Response::new(v1::ListPodResourcesResponse { pod_resources }))
    }

    async fn get_allocatable_resources(
        &self,
        _: Request<v1::AllocatableResourcesRequest>,
    ) -> Result<Response<v1::AllocatableResourcesResponse>, Status> {
        self.counted(PodResourcesCall::Allocatable, self.check_rate())?;
        let ledger = self.state.ledger();
        Ok(Response::new(response::allocatable(ledger.node(), ledger.contents())))
    }

    async fn get(
        &self,
        request: Request<v1::GetPodResourcesRequest>,
    ) -> Result<Response<v1::GetPodResourcesResponse>, Status> {
        let request = request.into_inner();
        let pods = self.pods();
        let found = self.check_rate().and_then(|()| response::find(&pods, &request));
        let found = self.counted(PodResourcesCall::Get, found)?;
        let ledger = self.state.ledger();
        let pod_resources = Some(response::pod(found, ledger.node(), ledger.contents()));
        Ok(Response::new(v1::GetPodResourcesResponse { pod_resources }))
    }
}

#[cfg(test)]
mod tests;
