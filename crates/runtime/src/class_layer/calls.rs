//! The calls that the layer reads and edits. [`handle`] forwards all others.

use std::sync::Arc;

use bytes::Bytes;
use cri::{Rpc, v1};
use tonic::Status;
use tonic::body::Body;
use tracing::{debug, warn};

use super::Shared;
use super::catalog::{Assignments, ClassCatalog, ClassRefusal, Level};
use super::edit::{self, ConfigEdit, Requested};
use super::enforce::{EnforceError, Subject};
use super::overrides::{OverridesError, is_file_name};
use crate::grpc::{self, Answer};
use crate::wire::WireError;

/// Handles one call.
pub(super) async fn handle(
    shared: &Arc<Shared>,
    request: http::Request<Body>,
) -> Result<http::Response<Body>, Status> {
    match request.uri().path() {
        v1::StatusRequest::PATH => status(shared, request).await,
        v1::RunPodSandboxRequest::PATH => run_sandbox(shared, request).await,
        v1::CreateContainerRequest::PATH => create_container(shared, request).await,
        v1::StartContainerRequest::PATH => start_container(shared, request).await,
        v1::UpdateContainerResourcesRequest::PATH => {
            update(shared, request, Level::Container).await
        }
        v1::UpdatePodSandboxResourcesRequest::PATH => update(shared, request, Level::Pod).await,
        v1::ContainerStatusRequest::PATH => report(shared, request, edit::report_container).await,
        v1::PodSandboxStatusRequest::PATH => report(shared, request, edit::report_sandbox).await,
        v1::PullImageRequest::PATH => pull(shared, request).await,
        v1::RemoveContainerRequest::PATH => {
            let id = |message: &_| Ok(decode::<v1::RemoveContainerRequest>(message)?.container_id);
            remove(shared, request, id).await
        }
        v1::RemovePodSandboxRequest::PATH => {
            let id =
                |message: &_| Ok(decode::<v1::RemovePodSandboxRequest>(message)?.pod_sandbox_id);
            remove(shared, request, id).await
        }
        _ => shared.forward(request).await,
    }
}

async fn status(
    shared: &Arc<Shared>,
    request: http::Request<Body>,
) -> Result<http::Response<Body>, Status> {
    let response = shared.forward(without_compression(request)).await?;
    edited(response, |message| {
        let offered = shared.enforce.catalog().advertised();
        let (foreign, message) = edit::advertise(message, &offered)?;
        shared.state().foreign = foreign;
        Ok(message)
    })
    .await
}

async fn run_sandbox(
    shared: &Arc<Shared>,
    request: http::Request<Body>,
) -> Result<http::Response<Body>, Status> {
    let (parts, message) = grpc::read_request(request).await?;
    let mut config = ConfigEdit::run_sandbox(&message)?;
    let requested = config.take_requested()?;
    let (ours, foreign) = shared.split(Level::Pod, requested);
    let assignments = assign(&shared.enforce.catalog(), Level::Pod, &ours)?;
    config.put_back(&foreign);
    config.record(&assignments)?;
    let response = shared.forward(grpc::request(parts, &config.finish())).await?;
    edited(response, |message| {
        let id = decode::<v1::RunPodSandboxResponse>(message)?.pod_sandbox_id;
        shared.state().created.insert(id, assignments.clone());
        Ok(message.clone())
    })
    .await
}

async fn create_container(
    shared: &Arc<Shared>,
    request: http::Request<Body>,
) -> Result<http::Response<Body>, Status> {
    let (parts, message) = grpc::read_request(request).await?;
    let mut config = ConfigEdit::create_container(&message)?;
    let requested = config.take_requested()?;
    let (ours, foreign) = shared.split(Level::Container, requested);
    let catalog = shared.enforce.catalog();
    let assignments = assign(&catalog, Level::Container, &ours)?;
    let classes = effective(&catalog, Level::Container, &assignments);
    if !classes.is_empty() {
        let adjustment = blocking(shared, move |shared| shared.enforce.adjust(&classes)).await?;
        config.adjust(&adjustment)?;
    }
    config.put_back(&foreign);
    config.record(&assignments)?;
    let response = shared.forward(grpc::request(parts, &config.finish())).await?;
    edited(response, |message| {
        let id = decode::<v1::CreateContainerResponse>(message)?.container_id;
        shared.state().created.insert(id, assignments.clone());
        Ok(message.clone())
    })
    .await
}

/// Starts a container and puts in force what its creation could not. A container whose classes are not in force does not
/// run.
async fn start_container(
    shared: &Arc<Shared>,
    request: http::Request<Body>,
) -> Result<http::Response<Body>, Status> {
    let (parts, message) = grpc::read_request(request).await?;
    let id = decode::<v1::StartContainerRequest>(&message)?.container_id;
    let response = shared.forward(grpc::request(parts, &message)).await?;
    let (parts, unary) = match grpc::read_response(response).await? {
        Answer::Error(response) => return Ok(response),
        Answer::Success(parts, unary) => (parts, unary),
    };
    if let Err(status) = put_in_force(shared, Level::Container, &id).await {
        let request = v1::StopContainerRequest { container_id: id.clone(), timeout: 0 };
        if let Err(error) = shared.client.call(request).await {
            warn!(container = id, %error, "failed to stop a container whose classes are not in force");
        }
        return Err(status);
    }
    let message = unary.message.clone();
    Ok(grpc::response(parts, unary, &message))
}

/// Puts the classes of a running container or sandbox in force.
pub(super) async fn put_in_force(
    shared: &Arc<Shared>,
    level: Level,
    id: &str,
) -> Result<(), Status> {
    let assignments = shared.assignments(level, id).await?;
    apply(shared, level, id, &assignments).await
}

async fn apply(
    shared: &Arc<Shared>,
    level: Level,
    id: &str,
    assignments: &Assignments,
) -> Result<(), Status> {
    let classes = effective(&shared.enforce.catalog(), level, assignments);
    if classes.is_empty() {
        return Ok(());
    }
    let Some(pid) = shared.pid(level, id).await? else { return Ok(()) };
    let subject = Subject { level, id: id.to_owned(), pid };
    blocking(shared, move |shared| shared.enforce.apply(&subject, &classes)).await
}

/// Changes classes and forwards the rest of the update. Either both take effect or neither does.
async fn update(
    shared: &Arc<Shared>,
    request: http::Request<Body>,
    level: Level,
) -> Result<http::Response<Body>, Status> {
    let (parts, message) = grpc::read_request(request).await?;
    let (requested, rest) = edit::take_update(level, &message)?;
    let (ours, foreign) = shared.split(level, requested);
    let rest = edit::put_back_update(level, &rest, &foreign)?;
    if ours.is_empty() {
        return shared.forward(grpc::request(parts, &rest)).await;
    }
    let id = match level {
        Level::Pod => decode::<v1::UpdatePodSandboxResourcesRequest>(&message)?.pod_sandbox_id,
        Level::Container => decode::<v1::UpdateContainerResourcesRequest>(&message)?.container_id,
    };
    if !is_file_name(&id) {
        return Err(Status::invalid_argument(format!("{id:?} is not the id of a {level}")));
    }
    let _one_at_a_time = shared.changing.lock().await;
    let current = shared.assignments(level, &id).await?;
    let requested = ours.iter().map(|(name, class)| (&**name, &**class));
    let next = shared.enforce.catalog().change(level, &current, requested)?;
    change(shared, level, &id, &current, &next).await?;
    let forwarded = match shared.forward(grpc::request(parts, &rest)).await {
        Ok(response) => grpc::read_response(response).await,
        Err(status) => Err(status),
    };
    match forwarded {
        Ok(Answer::Success(parts, unary)) => {
            let message = unary.message.clone();
            debug!(%level, id, classes = ?next, "changed classes");
            Ok(grpc::response(parts, unary, &message))
        }
        failed => {
            if let Err(status) = change(shared, level, &id, &next, &current).await {
                warn!(%level, id, error = status.message(), "failed to restore classes after a refused update");
            }
            match failed? {
                Answer::Error(response) => Ok(response),
                Answer::Success(..) => Err(Status::internal("the update succeeded")),
            }
        }
    }
}

/// Stores the new assignments and puts them in force. Restores the old ones if that fails.
async fn change(
    shared: &Arc<Shared>,
    level: Level,
    id: &str,
    from: &Assignments,
    to: &Assignments,
) -> Result<(), Status> {
    shared.state().overrides.set(id, to)?;
    let Err(status) = apply(shared, level, id, to).await else { return Ok(()) };
    shared.state().overrides.set(id, from)?;
    if let Err(again) = apply(shared, level, id, from).await {
        warn!(%level, id, error = again.message(), "failed to restore classes after a failed change");
    }
    Err(status)
}

/// Adds classes to the statuses in a response.
async fn report(
    shared: &Arc<Shared>,
    request: http::Request<Body>,
    edit: impl FnOnce(&Bytes, edit::Report<'_>) -> Result<Bytes, WireError>,
) -> Result<http::Response<Body>, Status> {
    let response = shared.forward(without_compression(request)).await?;
    edited(response, |message| {
        let catalog = shared.enforce.catalog();
        let state = shared.state();
        let report = |level, id: &str, created: Assignments| {
            let assignments = state.overrides.get(id).unwrap_or(&created);
            catalog.effective(level, assignments)
        };
        Ok(edit(message, &report)?)
    })
    .await
}

async fn pull(
    shared: &Arc<Shared>,
    request: http::Request<Body>,
) -> Result<http::Response<Body>, Status> {
    let (parts, message) = grpc::read_request(request).await?;
    let message = edit::strip_pull(&message)?;
    shared.forward(grpc::request(parts, &message)).await
}

/// Forwards a removal and releases what is held for the container or sandbox.
async fn remove(
    shared: &Arc<Shared>,
    request: http::Request<Body>,
    id: impl FnOnce(&Bytes) -> Result<String, Status>,
) -> Result<http::Response<Body>, Status> {
    let (parts, message) = grpc::read_request(request).await?;
    let id = id(&message)?;
    let response = shared.forward(grpc::request(parts, &message)).await?;
    let response = edited(response, |message| Ok(message.clone())).await?;
    if !response.headers().contains_key("grpc-status") {
        shared.forget(&id);
        blocking(shared, move |shared| {
            shared.enforce.release(&id);
            Ok(())
        })
        .await?;
    }
    Ok(response)
}

impl Shared {
    /// Separates the classes of the layer from those that only the runtime offers.
    fn split(&self, level: Level, requested: Requested) -> (Requested, Requested) {
        let catalog = self.enforce.catalog();
        let state = self.state();
        let foreign = state.foreign.as_ref().map(|foreign| match level {
            Level::Pod => &foreign.pod_qos_resources,
            Level::Container => &foreign.container_qos_resources,
        });
        requested.into_iter().partition(|(name, _)| {
            catalog.offers(level, name)
                || !foreign
                    .is_some_and(|foreign| foreign.iter().any(|resource| resource.name == *name))
        })
    }

    /// Returns the assignments of a container or sandbox, from the runtime if they are not known here.
    async fn assignments(&self, level: Level, id: &str) -> Result<Assignments, Status> {
        {
            let state = self.state();
            if let Some(known) = state.overrides.get(id).or_else(|| state.created.get(id)) {
                return Ok(known.clone());
            }
        }
        let annotations = match level {
            Level::Pod => {
                let request =
                    v1::PodSandboxStatusRequest { pod_sandbox_id: id.to_owned(), verbose: false };
                let response = self.client.call(request).await.map_err(of_runtime)?;
                response.status.unwrap_or_default().annotations
            }
            Level::Container => {
                let request =
                    v1::ContainerStatusRequest { container_id: id.to_owned(), verbose: false };
                let response = self.client.call(request).await.map_err(of_runtime)?;
                response.status.unwrap_or_default().annotations
            }
        };
        let assignments = edit::assignments(&annotations);
        self.state().created.insert(id.to_owned(), assignments.clone());
        Ok(assignments)
    }

    /// Returns the first process of a container or sandbox, or `None` if it does not run. containerd and CRI-O report it
    /// in their verbose status.
    async fn pid(&self, level: Level, id: &str) -> Result<Option<u32>, Status> {
        let info = match level {
            Level::Pod => {
                let request =
                    v1::PodSandboxStatusRequest { pod_sandbox_id: id.to_owned(), verbose: true };
                self.client.call(request).await.map_err(of_runtime)?.info
            }
            Level::Container => {
                let request =
                    v1::ContainerStatusRequest { container_id: id.to_owned(), verbose: true };
                self.client.call(request).await.map_err(of_runtime)?.info
            }
        };
        let text = info.get("info").map_or("", String::as_str);
        let parsed: VerboseInfo = serde_json::from_str(text).map_err(|error| {
            Status::failed_precondition(format!(
                "the runtime's verbose status of {level} {id} has no process id ({error}), so its classes cannot be put \
                 in force"
            ))
        })?;
        Ok((parsed.pid != 0).then_some(parsed.pid))
    }

    fn forget(&self, id: &str) {
        let mut state = self.state();
        state.created.remove(id);
        if let Err(error) = state.overrides.remove(id) {
            warn!(id, %error, "failed to remove the changed classes of a removed container");
        }
    }
}

/// The part of the verbose status that the layer reads.
#[derive(serde::Deserialize)]
struct VerboseInfo {
    pid: u32,
}

/// Returns the classes of every resource of the level, defaults included.
fn effective(catalog: &ClassCatalog, level: Level, assignments: &Assignments) -> Assignments {
    let classes = catalog.effective(level, assignments);
    classes.into_iter().filter(|(_, class)| !class.is_empty()).collect()
}

fn assign(
    catalog: &ClassCatalog,
    level: Level,
    requested: &Requested,
) -> Result<Assignments, Status> {
    let requested = requested.iter().map(|(name, class)| (&**name, &**class));
    Ok(catalog.assign(level, requested)?)
}

/// Edits the response of a successful call; errors are forwarded unchanged.
async fn edited(
    response: http::Response<Body>,
    edit: impl FnOnce(&Bytes) -> Result<Bytes, Status>,
) -> Result<http::Response<Body>, Status> {
    match grpc::read_response(response).await? {
        Answer::Error(response) => Ok(response),
        Answer::Success(parts, unary) => {
            let message = edit(&unary.message)?;
            Ok(grpc::response(parts, unary, &message))
        }
    }
}

/// Asks for a response that the layer can read.
fn without_compression(mut request: http::Request<Body>) -> http::Request<Body> {
    request.headers_mut().remove(grpc::ACCEPT_ENCODING);
    request
}

/// Runs a step that may block, for example by writing files, outside of async threads.
async fn blocking<T: Send + 'static>(
    shared: &Arc<Shared>,
    step: impl FnOnce(&Shared) -> Result<T, EnforceError> + Send + 'static,
) -> Result<T, Status> {
    let shared = Arc::clone(shared);
    match tokio::task::spawn_blocking(move || step(&shared)).await {
        Ok(result) => Ok(result?),
        Err(error) => {
            Err(Status::internal(format!("putting classes in force ended early: {error}")))
        }
    }
}

fn decode<M: prost::Message + Default>(message: &Bytes) -> Result<M, Status> {
    M::decode(message.clone())
        .map_err(|error| Status::internal(format!("malformed message: {error}")))
}

impl From<WireError> for Status {
    fn from(error: WireError) -> Status {
        Status::internal(format!("malformed message: {error}"))
    }
}

impl From<ClassRefusal> for Status {
    fn from(refusal: ClassRefusal) -> Status {
        Status::invalid_argument(refusal.to_string())
    }
}

impl From<EnforceError> for Status {
    fn from(error: EnforceError) -> Status {
        Status::failed_precondition(chain(&error))
    }
}

impl From<OverridesError> for Status {
    fn from(error: OverridesError) -> Status {
        Status::internal(chain(&error))
    }
}

fn of_runtime(error: cri::Error) -> Status {
    Status::new(error.code, error.message)
}

pub(super) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}
