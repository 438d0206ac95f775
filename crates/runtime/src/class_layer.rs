//! A CRI endpoint over any CRI runtime that adds QoS-class resources (KEP-3008): [`ClassLayer`].
//!
//! ```text
//!   agent or kubelet ──► ClassLayer ──► containerd, CRI-O
//!                          │   ▲
//!                          ▼   │ classes in force
//!                        Enforce (resctrl, cgroups, rlimits)
//! ```
//!
//! Only the calls that carry classes are read and edited ([`edit`]); all others are forwarded as bytes, with unknown
//! methods, streams, headers, deadlines and errors. Assignments are stored as an annotation of the container in the
//! runtime, so that they live exactly as long as the container. A class that was changed later is stored in
//! [`overrides`].
//!
//! The layer does not count capacity and does not define classes: [`catalog`] is given by its [`Enforce`].

mod calls;
pub mod catalog;
mod edit;
mod enforce;
mod overrides;

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::path::Path;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use cri::{Client, Endpoint, Level, v1};
use tonic::Status;
use tonic::body::Body;
use tonic::transport::Channel;
use tower_service::Service;
use tracing::warn;

pub use catalog::Assignments;
pub use edit::Adjustment;
pub use enforce::{Enforce, EnforceError, Subject};
pub use overrides::OverridesError;

use overrides::Overrides;

/// The layer as an HTTP/2 service, for [`cri::serve_service`]. Clones share their state.
#[derive(Clone, Debug)]
pub struct ClassLayer {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    runtime: Channel,
    /// Calls of the layer itself.
    client: Client,
    enforce: Arc<dyn Enforce>,
    state: Mutex<State>,
    /// Changes of classes are made one after the other, so that a refused update restores what it found.
    changing: tokio::sync::Mutex<()>,
}

#[derive(Debug)]
struct State {
    overrides: Overrides,
    /// Known assignments of containers and sandboxes at their creation, by id.
    created: BTreeMap<String, Assignments>,
    /// The resources that the runtime itself offers.
    foreign: Option<v1::ResourcesInfo>,
}

impl ClassLayer {
    /// Forwards to the runtime at `endpoint`. Changed classes are stored below `directory`. Must be called inside a tokio
    /// runtime.
    pub fn new(
        endpoint: &Endpoint,
        enforce: Arc<dyn Enforce>,
        directory: &Path,
    ) -> Result<ClassLayer, OverridesError> {
        let state = State {
            overrides: Overrides::load(directory)?,
            created: BTreeMap::new(),
            foreign: None,
        };
        let shared = Shared {
            runtime: cri::channel(endpoint),
            client: Client::new(endpoint.clone()),
            enforce,
            state: Mutex::new(state),
            changing: tokio::sync::Mutex::default(),
        };
        Ok(ClassLayer { shared: Arc::new(shared) })
    }

    /// Puts the classes of all running containers and sandboxes in force again and forgets changed classes of those that
    /// no longer exist. To be called after a start and whenever something else may have changed what is in force. Returns
    /// the failures by id.
    pub async fn reconcile(&self) -> Result<BTreeMap<String, Status>, cri::Error> {
        let shared = &self.shared;
        let containers = shared.client.call(v1::ListContainersRequest::default()).await?.containers;
        let sandboxes = shared.client.call(v1::ListPodSandboxRequest::default()).await?.items;
        let mut failures = BTreeMap::new();
        let mut present = BTreeSet::new();
        for container in &containers {
            present.insert(container.id.as_str());
            if container.state() == v1::ContainerState::ContainerRunning
                && let Err(status) =
                    calls::put_in_force(shared, Level::Container, &container.id).await
            {
                failures.insert(container.id.clone(), status);
            }
        }
        for sandbox in &sandboxes {
            present.insert(sandbox.id.as_str());
            if sandbox.state() == v1::PodSandboxState::SandboxReady
                && let Err(status) = calls::put_in_force(shared, Level::Pod, &sandbox.id).await
            {
                failures.insert(sandbox.id.clone(), status);
            }
        }
        shared.state().retain(&present);
        Ok(failures)
    }
}

impl State {
    /// Forgets containers and sandboxes that no longer exist.
    fn retain(&mut self, present: &BTreeSet<&str>) {
        self.created.retain(|id, _| present.contains(id.as_str()));
        let gone: Vec<String> =
            self.overrides.ids().filter(|id| !present.contains(id)).map(str::to_owned).collect();
        for id in gone {
            if let Err(error) = self.overrides.remove(&id) {
                warn!(id, %error, "failed to remove the changed classes of a removed container");
            }
        }
    }
}

impl Shared {
    /// Every change of the state is complete before the lock is released, so a panic cannot leave a partial value.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forwards a request unchanged.
    async fn forward(&self, request: http::Request<Body>) -> Result<http::Response<Body>, Status> {
        let mut runtime = self.runtime.clone();
        std::future::poll_fn(|context| runtime.poll_ready(context))
            .await
            .map_err(|error| unreachable(&error))?;
        runtime.call(request).await.map_err(|error| unreachable(&error))
    }
}

/// Returns the status of a call that did not reach the runtime, with the whole chain of reasons.
fn unreachable(error: &tonic::transport::Error) -> Status {
    Status::unavailable(calls::chain(error))
}

impl Service<http::Request<Body>> for ClassLayer {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let shared = Arc::clone(&self.shared);
        Box::pin(async move {
            let response = calls::handle(&shared, request).await;
            Ok(response.unwrap_or_else(Status::into_http))
        })
    }
}
