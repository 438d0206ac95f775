//! The API as a function from requests to replies: [`Api`].
//!
//! The path of a request: authorization ([`crate::identity`]), routing ([`crate::route`]), the
//! handler of the verb, the reply in the accepted format. Connections, TLS and credentials belong
//! to the listener; components in the same process call [`Api::handle`] directly.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use http::{Method, StatusCode};
use metrics::Family;
use objects::catalog::{self, Verb};
use objects::rules::RuleContext;
use objects::selector::FieldSelector;
use objects::timestamp::Timestamp;
use objects::{FeatureGates, Gate};
use store::Store;
use tracing::{debug, error};

use crate::accept::{self, AcceptedFormat, Route};
use crate::audit::{AuditLog, Record};
use crate::credentials::{self, Signer, StaticToken};
use crate::error::ApiError;
use crate::flow::Flow;
use crate::heavy::{HeavyWork, LIGHT_BODY};
use crate::identity::{self, AuthorizerAttributes, User};
use crate::impersonation::{self, Requested};
use crate::metrics::{Metrics, MetricsCollector};
use crate::plugins::{Plugin, Plugins};
use crate::reply::Reply;
use crate::request::{Caller, Request, RequestContext};
use crate::route::{ResourcePath, Target};
use crate::{access_reviews, delete, discovery, node_authorizer, read, subresources, watch, write};

/// The options of an API server.
#[derive(Debug, Clone)]
pub struct Options {
    pub gates: FeatureGates,
    /// The enabled admission plugins.
    pub plugins: Plugins,
    /// Allows privileged and host-process containers.
    pub allow_privileged: bool,
    /// The range of service addresses.
    pub service_range: String,
    /// The address that clients reach the server at, for discovery.
    pub advertised: String,
    /// Static tokens, valid as long as the server runs.
    pub tokens: Vec<StaticToken>,
    /// The key that signs service account tokens.
    pub token_secret: Vec<u8>,
    /// The file that the audit log is written to.
    pub audit_log: Option<PathBuf>,
    /// The dialer to the nodes' agents, for logs and streams.
    pub agents: Option<https::Dialer>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            gates: default_gates(),
            plugins: Plugins::default(),
            allow_privileged: true,
            service_range: "10.0.0.0/24".to_owned(),
            advertised: "127.0.0.1:6443".to_owned(),
            tokens: Vec::new(),
            token_secret: crate::random::secret().to_vec(),
            audit_log: None,
            agents: None,
        }
    }
}

/// Returns the default feature gates: upstream's, with QoS-class resources enabled.
#[must_use]
pub fn default_gates() -> FeatureGates {
    let mut gates = FeatureGates::default();
    for gate in [Gate::QosResources, Gate::WindowsHostProcessContainers] {
        // Only locked gates cannot be set, and these are not locked.
        let _ = gates.set(gate, true);
    }
    gates
}

/// The API over a store. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Api {
    pub(crate) shared: Arc<Shared>,
}

#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) store: Store,
    pub(crate) options: Options,
    pub(crate) quota: crate::admission::QuotaLocks,
    pub(crate) signer: Signer,
    pub(crate) metrics: Metrics,
    pub(crate) flow: Flow,
    heavy: HeavyWork,
    audit: Option<AuditLog>,
}

impl Api {
    /// Creates an API over a store, with the objects that every cluster has.
    pub async fn new(store: Store, options: Options) -> Result<Api, ApiError> {
        let quota = crate::admission::QuotaLocks::default();
        let signer = Signer::new(&options.token_secret);
        let audit = match &options.audit_log {
            None => None,
            Some(path) => Some(AuditLog::open(path).map_err(|error| {
                ApiError::internal(format!("the audit log {}: {error}", path.display()))
            })?),
        };
        let (metrics, flow) = (Metrics::default(), Flow::default());
        let heavy = HeavyWork::default();
        let shared = Shared { store, options, quota, signer, metrics, flow, heavy, audit };
        let api = Api { shared: Arc::new(shared) };
        crate::bootstrap::ensure(&api).await?;
        Ok(api)
    }

    pub(crate) fn store(&self) -> &Store {
        &self.shared.store
    }

    pub(crate) fn now(&self) -> Timestamp {
        Timestamp::since_epoch(https::unix_time())
    }

    pub(crate) fn setting(&self) -> RuleContext<'_> {
        let Options { gates, allow_privileged, .. } = &self.shared.options;
        RuleContext { gates, allow_privileged: *allow_privileged, now: self.now() }
    }

    pub(crate) fn has(&self, plugin: Plugin) -> bool {
        self.shared.options.plugins.has(plugin)
    }

    /// Returns the metrics of the API server, and of other components of the process.
    pub(crate) fn metric_families(&self) -> Vec<Family> {
        let Shared { store, metrics, flow, audit, .. } = &*self.shared;
        let mut families = metrics.families(store.revision().get());
        families.extend(flow.families());
        families.extend(audit.iter().flat_map(AuditLog::families));
        families
    }

    /// Adds a collector for other components of the process to `/metrics`. Only the first one is
    /// used.
    pub fn register_metrics(&self, more: MetricsCollector) {
        let _ = self.shared.metrics.more.set(more);
    }

    /// Returns the user of a bearer token that is valid for this server.
    #[must_use]
    pub fn identify(&self, token: &str) -> Option<User> {
        let audiences = [credentials::ISSUER.to_owned()];
        crate::tokens::identify(self, token, &audiences).map(|(user, _)| user)
    }

    /// Handles one request.
    pub async fn handle(&self, request: Request) -> Reply {
        self.finish(request, None).await
    }

    /// Answers a request that was rejected before its body was read. It is counted and logged like
    /// any other.
    pub(crate) async fn refuse(&self, request: Request, error: ApiError) -> Reply {
        self.finish(request, Some(error)).await
    }

    /// Returns true if the headers of a request suffice to reject it. [`Api::handle`] then returns
    /// the error for any body.
    pub(crate) fn refuses_headers(&self, request: &Request) -> bool {
        let mut request = request.clone();
        match impersonated(&request) {
            Err(_) => return true,
            Ok(None) => {}
            Ok(Some(user)) => {
                request.impersonate(user);
            }
        }
        self.permit(&request, Target::parse(&request.path).as_ref()).is_err()
    }

    async fn finish(&self, mut request: Request, error: Option<ApiError>) -> Reply {
        let started = Instant::now();
        let received = self.now();
        let metrics = &self.shared.metrics;
        metrics.in_flight.fetch_add(1, Ordering::Relaxed);
        let target = Target::parse(&request.path);
        let (mut verb, mut resource) = match &target {
            Some(Target::Resource(path)) => {
                let verb = request_verb(&request, path.name.is_empty(), path.old_watch);
                (verb, path.resource.plural)
            }
            _ => (request_verb(&request, false, false), ""),
        };
        let mut impersonator = None;
        let answer = match impersonated(&request) {
            Ok(user) => {
                impersonator = user.map(|user| request.impersonate(user));
                match error {
                    Some(error) => Err(error),
                    None => self.answer(&request, target.as_ref()).await,
                }
            }
            Err(error) => {
                (verb, resource) = ("impersonate", "users");
                Err(error)
            }
        };
        let (reply, error) = match answer {
            Ok(reply) => (reply, None),
            Err(error) => {
                // A client that accepts no served format gets the error as JSON.
                let format = AcceptedFormat::parse(request.header("accept"))
                    .unwrap_or(AcceptedFormat::PLAIN);
                (Reply::from_error(&error, format), Some(error))
            }
        };
        let code = reply.status.as_u16();
        if let Some(audit) = &self.shared.audit {
            audit.note(&Record {
                request: &request,
                impersonator: impersonator.as_ref(),
                target: target.as_ref(),
                verb,
                code,
                error: error.as_ref(),
                received,
                now: self.now(),
            });
        }
        metrics.in_flight.fetch_sub(1, Ordering::Relaxed);
        let elapsed = started.elapsed();
        metrics.observe(verb, resource, code, elapsed);
        let user = request.user().name.as_str();
        let impersonator = impersonator.as_ref().map(|sender| sender.name.as_str());
        let (path, source) = (request.path.as_str(), request.source.map(tracing::field::display));
        let latency_ms = elapsed.as_millis();
        match &error {
            Some(error) if error.code == StatusCode::INTERNAL_SERVER_ERROR => {
                let error = error.message.as_str();
                error!(user, verb, path, status = code, latency_ms, error, "request failed");
            }
            _ => debug!(
                user,
                impersonator,
                verb,
                path,
                status = code,
                latency_ms,
                source,
                "handled a request"
            ),
        }
        reply
    }

    async fn answer(&self, request: &Request, target: Option<&Target>) -> Result<Reply, ApiError> {
        check_timeout(request, target)?;
        self.permit(request, target)?;
        match target {
            None => Err(ApiError::bad_request("the path is not valid")),
            Some(Target::NonResource(path)) => discovery::get(self, request, path),
            Some(Target::UnknownResource { group, version, .. }) => {
                let mut served = catalog::RESOURCES.iter();
                if served.any(|known| known.group == *group && known.version == *version) {
                    return Err(ApiError::no_such_resource());
                }
                discovery::get(self, request, request.path.trim_end_matches('/'))
            }
            Some(Target::Resource(path)) => self.resource(request, path).await,
        }
    }

    /// Rejects invalid credentials and requests that the user is not allowed to make. Does not look
    /// at the body.
    fn permit(&self, request: &Request, target: Option<&Target>) -> Result<(), ApiError> {
        match request.caller {
            Caller::Known(_) => {}
            Caller::Anonymous if identity::is_public(&request.path) => return Ok(()),
            Caller::Anonymous | Caller::InvalidCredentials => return Err(ApiError::unauthorized()),
        }
        let Some(target) = target else { return Ok(()) };
        with_attributes(request, target, |attributes| {
            match self.decide(request.user(), attributes)? {
                Ok(()) => Ok(()),
                Err(reason) => Err(denied(request.user(), attributes, &reason)),
            }
        })
    }

    /// Authorizes a request: by the role of the user and, for a node, by the Node authorizer. The
    /// reason of a denial is sent to the client; it may be empty.
    pub(crate) fn decide(
        &self,
        user: &User,
        attributes: &AuthorizerAttributes<'_>,
    ) -> Result<Result<(), String>, ApiError> {
        if identity::allows(user, attributes) {
            return Ok(Ok(()));
        }
        let Some(node) = user.node() else { return Ok(Err(String::new())) };
        let decision = node_authorizer::authorize(self, &user.name, node, attributes)?;
        Ok(decision.map_err(|reason| match reason.is_empty() {
            true => reason,
            false => format!("node: {reason}"),
        }))
    }

    async fn resource(&self, request: &Request, path: &ResourcePath) -> Result<Reply, ApiError> {
        let verb = request_verb(request, path.name.is_empty(), path.old_watch);
        let action = Action::of(request, path, verb).ok_or_else(ApiError::method_not_allowed)?;
        let format = action.format(request.header("accept"))?;
        if request.body.len() <= LIGHT_BODY {
            return action.run(RequestContext { api: self, request, path, format }).await;
        }
        let (api, request, path) = (self.clone(), request.clone(), path.clone());
        let work = async move {
            let context = RequestContext { api: &api, request: &request, path: &path, format };
            action.run(context).await
        };
        self.shared.heavy.run(work).await?
    }
}

/// The operation of a request to a resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Action {
    Watch,
    List,
    Get,
    GetSubresource,
    CreateSubresource,
    /// Streams, which do not respond with objects.
    Connect,
    Review,
    Create,
    Update,
    Patch,
    Delete,
    DeleteCollection,
}

impl Action {
    /// Returns `None` if the resource does not support the method.
    fn of(request: &Request, path: &ResourcePath, verb: &str) -> Option<Action> {
        let subresource = path.subresource.map_or("", |subresource| subresource.name);
        let verbs = path.subresource.map_or(path.resource.verbs, |s| s.verbs);
        let has = |verb: Verb| verbs.contains(&verb);
        let collection = path.name.is_empty();
        // Namespaced objects are created and deleted as a collection within one namespace.
        let in_one = !path.resource.namespaced || !path.namespace.is_empty();
        let connects = matches!(subresource, "exec" | "attach" | "portforward");
        let action = match request.method {
            Method::GET if verb == "watch" && has(Verb::Watch) => Action::Watch,
            Method::GET if collection && has(Verb::List) => Action::List,
            Method::GET if !collection && has(Verb::Get) => match subresource {
                "" | "status" | "resize" | "ephemeralcontainers" => Action::Get,
                _ if connects => Action::Connect,
                _ => Action::GetSubresource,
            },
            Method::POST if !subresource.is_empty() && has(Verb::Create) => match connects {
                true => Action::Connect,
                false => Action::CreateSubresource,
            },
            Method::POST if collection && in_one && has(Verb::Create) => {
                match path.resource.verbs {
                    [Verb::Create] => Action::Review,
                    _ => Action::Create,
                }
            }
            Method::PUT if !collection && has(Verb::Update) => Action::Update,
            Method::PATCH if !collection && has(Verb::Patch) => Action::Patch,
            Method::DELETE if !collection && subresource.is_empty() && has(Verb::Delete) => {
                Action::Delete
            }
            Method::DELETE if collection && in_one && has(Verb::DeleteCollection) => {
                Action::DeleteCollection
            }
            _ => return None,
        };
        Some(action)
    }

    async fn run(self, context: RequestContext<'_>) -> Result<Reply, ApiError> {
        match self {
            Action::Watch => watch::watch(context),
            Action::List => read::list(context).await,
            Action::Get => read::get(context),
            Action::GetSubresource | Action::Connect if context.request.method == Method::GET => {
                subresources::get(context).await
            }
            Action::GetSubresource | Action::CreateSubresource | Action::Connect => {
                subresources::create(context).await
            }
            Action::Review => access_reviews::create(context).await,
            Action::Create => write::create(context).await,
            Action::Update => write::update(context).await,
            Action::Patch => write::patch(context).await,
            Action::Delete => delete::one(context).await,
            Action::DeleteCollection => delete::collection(context).await,
        }
    }

    /// Returns the format of the response, or an error if the client accepts none.
    fn format(self, accept: &str) -> Result<AcceptedFormat, ApiError> {
        let route = match self {
            Action::Connect => return Ok(AcceptedFormat::PLAIN),
            Action::Watch | Action::List => Route::Lists,
            _ => Route::Objects,
        };
        accept::check_route(accept, route)?;
        match self {
            Action::Watch => AcceptedFormat::parse_stream(accept),
            Action::Review | Action::CreateSubresource => {
                AcceptedFormat::parse_without_table(accept)
            }
            _ => AcceptedFormat::parse(accept),
        }
    }
}

/// Calls `then` with the authorizer attributes of a request.
///
/// As upstream parses paths: a path below a version is a resource, even if it is not served.
fn with_attributes<T>(
    request: &Request,
    target: &Target,
    then: impl FnOnce(&AuthorizerAttributes<'_>) -> T,
) -> T {
    let fields = request.query.text("fieldSelector");
    let single = FieldSelector::parse(fields).ok();
    let single = single.as_ref().and_then(|selector| selector.requires_exactly("metadata.name"));
    let is_segment = |name: &&str| !name.contains(['/', '%']) && !matches!(*name, "." | "..");
    let single = single.filter(is_segment).unwrap_or_default();
    match target {
        Target::Resource(path) => {
            let subresource = write::subresource_name(path);
            let verb = request_verb(request, path.name.is_empty(), path.old_watch);
            let (namespace, name) = (&path.namespace, &path.name);
            let attributes = AuthorizerAttributes::for_resource(
                verb,
                path.resource,
                subresource,
                namespace,
                name,
            );
            then(&attributes.with_field_selector(fields, single))
        }
        Target::UnknownResource { group, resource, namespace, name, .. } => {
            let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
            let verb = request_verb(request, name.is_empty(), false);
            let (group, namespace, name) = (group.as_str(), namespace.as_str(), name.as_str());
            let attributes = AuthorizerAttributes::Resource {
                verb,
                group,
                resource,
                subresource,
                namespace,
                name,
                selector: "",
            };
            then(&attributes.with_field_selector(fields, single))
        }
        Target::NonResource(_) => {
            let segments: Vec<&str> = request.path.trim_matches('/').split('/').collect();
            let (group, rest) = match segments.as_slice() {
                ["api", _, rest @ ..] if !rest.is_empty() => ("", rest),
                ["apis", group, _, rest @ ..] if !rest.is_empty() => (*group, rest),
                _ => {
                    let verb = request.method.as_str().to_ascii_lowercase();
                    return then(&AuthorizerAttributes::Path { verb: &verb, path: &request.path });
                }
            };
            let (namespace, rest) = match rest {
                ["namespaces", namespace, rest @ ..] if !rest.is_empty() => (*namespace, rest),
                rest => ("", rest),
            };
            let at = |index: usize| rest.get(index).copied().unwrap_or_default();
            let (resource, name, subresource) = (at(0), at(1), at(2));
            let verb = request_verb(request, name.is_empty(), false);
            let attributes = AuthorizerAttributes::Resource {
                verb,
                group,
                resource,
                subresource,
                namespace,
                name,
                selector: "",
            };
            then(&attributes.with_field_selector(fields, single))
        }
    }
}

/// Returns the user that a request impersonates, if it does.
fn impersonated(request: &Request) -> Result<Option<User>, ApiError> {
    let Caller::Known(sender) = &request.caller else { return Ok(None) };
    match impersonation::requested(sender, &request.headers)? {
        Requested::Nothing => Ok(None),
        Requested::User(user) => Ok(Some(user)),
        Requested::Denied(kind) => Err(may_not_impersonate(request, sender, kind)),
    }
}

/// Returns the 403 for a sender that may not impersonate, as upstream: with the attributes of the
/// request and a special verb.
fn may_not_impersonate(request: &Request, sender: &User, kind: &str) -> ApiError {
    let target =
        Target::parse(&request.path).unwrap_or_else(|| Target::NonResource(request.path.clone()));
    with_attributes(request, &target, |attributes| {
        let mut attributes = *attributes;
        let (AuthorizerAttributes::Resource { verb, .. } | AuthorizerAttributes::Path { verb, .. }) =
            &mut attributes;
        let longer = format!("impersonate-on:{kind}:{verb}");
        *verb = &longer;
        denied(sender, &attributes, "")
    })
}

/// Returns the 403 for denied attributes.
pub(crate) fn denied(user: &User, attributes: &AuthorizerAttributes<'_>, reason: &str) -> ApiError {
    let message = attributes.denied(user, reason);
    match *attributes {
        AuthorizerAttributes::Path { .. } => {
            let message = format!("forbidden: {message}");
            ApiError::new(StatusCode::FORBIDDEN, "Forbidden", message)
                .with_details(serde_json::json!({}))
        }
        AuthorizerAttributes::Resource { group, resource, name, .. } => {
            let qualified =
                if group.is_empty() { resource.to_owned() } else { format!("{resource}.{group}") };
            let named = if name.is_empty() { String::new() } else { format!(" {name:?}") };
            let message = format!("{qualified}{named} is forbidden: {message}");
            let mut details = serde_json::Map::new();
            for (key, value) in [("name", name), ("group", group), ("kind", resource)] {
                if !value.is_empty() {
                    details.insert(key.to_owned(), value.into());
                }
            }
            ApiError::new(StatusCode::FORBIDDEN, "Forbidden", message).with_details(details.into())
        }
    }
}

/// Rejects a `timeout=` that is not a duration, before anything else as upstream does. Long-running
/// requests are not checked. Other requests take milliseconds here, so that the timeout itself is
/// not enforced.
fn check_timeout(request: &Request, target: Option<&Target>) -> Result<(), ApiError> {
    let text = request.query.text("timeout");
    if text.is_empty() {
        return Ok(());
    }
    if let Some(Target::Resource(path)) = target {
        let subresource = path.subresource.map_or("", |subresource| subresource.name);
        let lasts = matches!(subresource, "attach" | "exec" | "log" | "portforward")
            || request_verb(request, path.name.is_empty(), path.old_watch) == "watch";
        if lasts {
            return Ok(());
        }
    }
    match objects::duration::fault(text) {
        Some(fault) => Err(ApiError::bad_request(format!(
            "invalid timeout specified in the request URL - {fault}"
        ))),
        None => Ok(()),
    }
}

/// Returns the verb of a request.
pub(crate) fn request_verb(request: &Request, collection: bool, old_watch: bool) -> &'static str {
    match &request.method {
        &Method::GET | &Method::HEAD if old_watch || request.query.flag("watch") => "watch",
        &Method::GET | &Method::HEAD if collection => "list",
        &Method::GET | &Method::HEAD => "get",
        &Method::POST => "create",
        &Method::PUT => "update",
        &Method::PATCH => "patch",
        &Method::DELETE if collection => "deletecollection",
        &Method::DELETE => "delete",
        _ => "",
    }
}
