//! What pods have of the node, told to whoever asks on this machine: the Pod Resources API of the
//! kubelet, version 1, with [`answer`] for what is said and [`serve`] for the door.
//!
//! Only CPUs and memory that belong to one container alone are told, as upstream does. Decides nothing:
//! the node's book says who has what.

use std::path::Path;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use cri::{Endpoint, EndpointError, Listener, ServerStream};
use futures::Stream;
use objects::pod::OsName;
use thiserror::Error;
use tokio::time::Sleep;
use tonic::{Request, Response, Status};

use crate::context::Hands;
use crate::observability::metrics::Question;
use crate::spec::Pod;
use v1::pod_resources_lister_server::{PodResourcesLister, PodResourcesListerServer};

/// The messages, made from `proto/podresources.proto`.
#[allow(missing_debug_implementations, clippy::pedantic, reason = "generated")]
pub mod v1 {
    tonic::include_proto!("v1");
}

pub mod response;

/// The questions, so that a [`cri::Client`] can put them: it knows how to reach sockets and pipes.
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

/// Upstream's figures: so many questions a second, and so many at once.
const PER_SECOND: f64 = 100.0;
const AT_ONCE: f64 = 10.0;

/// Who may look into the directory of the socket. Upstream's.
const DIRECTORY: u32 = 0o750;

/// How long to leave a system alone that cannot give us connections; it would be asked again at once.
const RESPITE: Duration = Duration::from_millis(50);

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

/// Where the kubelet has it: a socket below its directory, or a pipe.
pub fn endpoint(os: OsName, root: &Path) -> Result<Endpoint, EndpointError> {
    match os {
        OsName::Linux => {
            Endpoint::parse(&format!("unix://{}/pod-resources/kubelet.sock", root.display()))
        }
        OsName::Windows => Endpoint::parse(r"\\.\pipe\kubelet-pod-resources"),
    }
}

/// Answers for as long as it is polled.
pub async fn serve(hands: Arc<Hands>, os: OsName, root: &Path) -> Result<(), ServeError> {
    let endpoint = endpoint(os, root)?;
    if os == OsName::Linux {
        let path = root.join("pod-resources");
        std::fs::create_dir_all(&path)
            .and_then(|()| host::os::owners::set_mode(&path, DIRECTORY))
            .map_err(|cause| ServeError::Directory { path: path.display().to_string(), cause })?;
    }
    let incoming = Incoming { listener: Listener::bind(&endpoint).await?, respite: None };
    let lister = Lister { hands, bucket: Mutex::new(Bucket::full(Instant::now())) };
    let service = PodResourcesListerServer::new(lister);
    Ok(tonic::transport::Server::builder().serve_with_incoming(service, incoming).await?)
}

/// The connections of a listener, with a rest after each that failed.
struct Incoming {
    listener: Listener,
    respite: Option<Pin<Box<Sleep>>>,
}

impl Stream for Incoming {
    type Item = std::io::Result<ServerStream>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if let Some(respite) = &mut self.respite {
            ready!(respite.as_mut().poll(context));
            self.respite = None;
        }
        let accepted = ready!(Pin::new(&mut self.listener).poll_next(context));
        if let Some(Err(_)) = &accepted {
            self.respite = Some(Box::pin(tokio::time::sleep(RESPITE)));
        }
        Poll::Ready(accepted)
    }
}

/// How many questions may still be asked.
#[derive(Debug)]
struct Bucket {
    left: f64,
    at: Instant,
}

impl Bucket {
    fn full(now: Instant) -> Bucket {
        Bucket { left: AT_ONCE, at: now }
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
    hands: Arc<Hands>,
    bucket: Mutex<Bucket>,
}

impl Lister {
    fn check_rate(&self) -> Result<(), Status> {
        let mut bucket = self.bucket.lock().unwrap_or_else(PoisonError::into_inner);
        match bucket.take(Instant::now()) {
            true => Ok(()),
            false => Err(Status::resource_exhausted("rejected by rate limit")),
        }
    }

    /// Counts a question, and whether there is no answer to it.
    fn asked<T>(&self, question: Question, answer: Result<T, Status>) -> Result<T, Status> {
        self.hands.counters.questions.tell(question, answer.is_err());
        answer
    }

    fn pods(&self) -> Arc<Vec<Arc<Pod>>> {
        Arc::clone(&self.hands.active.borrow())
    }
}

#[tonic::async_trait]
impl PodResourcesLister for Lister {
    async fn list(
        &self,
        _: Request<v1::ListPodResourcesRequest>,
    ) -> Result<Response<v1::ListPodResourcesResponse>, Status> {
        self.asked(Question::List, self.check_rate())?;
        let pods = self.pods();
        let book = self.hands.book();
        let of = |pod: &Arc<Pod>| response::pod(pod, book.node(), book.ledger());
        let pod_resources = pods.iter().map(of).collect();
        Ok(Response::new(v1::ListPodResourcesResponse { pod_resources }))
    }

    async fn get_allocatable_resources(
        &self,
        _: Request<v1::AllocatableResourcesRequest>,
    ) -> Result<Response<v1::AllocatableResourcesResponse>, Status> {
        self.asked(Question::Allocatable, self.check_rate())?;
        let book = self.hands.book();
        Ok(Response::new(response::allocatable(book.node(), book.ledger())))
    }

    async fn get(
        &self,
        request: Request<v1::GetPodResourcesRequest>,
    ) -> Result<Response<v1::GetPodResourcesResponse>, Status> {
        let asked = request.into_inner();
        let pods = self.pods();
        let found = self.check_rate().and_then(|()| response::find(&pods, &asked));
        let found = self.asked(Question::Get, found)?;
        let book = self.hands.book();
        let pod_resources = Some(response::pod(found, book.node(), book.ledger()));
        Ok(Response::new(v1::GetPodResourcesResponse { pod_resources }))
    }
}

#[cfg(test)]
mod tests;
