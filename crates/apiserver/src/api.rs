//! The API as a function from calls to replies: [`Api`].
//!
//! The way of a request: who may ([`crate::identity`]), what it names ([`crate::route`]), the
//! verb's handler, the reply in the form the client accepts. Connections, TLS and credentials are
//! the listener's; in one process other loops call [`Api::handle`] without any.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use http::{Method, StatusCode};
use objects::catalog::{self, Verb};
use objects::rules::RuleContext;
use objects::selector::FieldSelector;
use objects::timestamp::Timestamp;
use objects::{FeatureGates, Gate};
use store::Store;

use crate::accept::{self, Route, Wanted};
use crate::audit::{AuditLog, Record};
use crate::credentials::{self, Signer, StaticToken};
use crate::flow::Flow;
use crate::heavy::{HeavyWork, LIGHT_BODY};
use crate::identity::{self, Attempt, User};
use crate::impersonation::{self, Requested};
use crate::metrics::{Metrics, MoreMetrics};
use crate::plugins::{Plugin, Plugins};
use crate::refusal::Refusal;
use crate::reply::Reply;
use crate::request::{Call, Caller};
use crate::route::{Place, Target};
use crate::{delete, documents, node_authorizer, parts, read, reviews, watch, write};

/// What an API server is told at its start.
#[derive(Debug, Clone)]
pub struct Options {
    pub gates: FeatureGates,
    /// Which admission plug-ins are on.
    pub plugins: Plugins,
    /// Whether privileged and host-process containers are allowed at all.
    pub allow_privileged: bool,
    /// The addresses services may have.
    pub service_range: String,
    /// Where clients reach the server, for discovery.
    pub advertised: String,
    /// Tokens that are good as long as the server runs.
    pub tokens: Vec<StaticToken>,
    /// What service accounts' tokens are signed with.
    pub token_secret: Vec<u8>,
    /// Where to write who asked for what.
    pub audit_log: Option<PathBuf>,
    /// The way to the nodes' agents, for logs and streams.
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

/// The gates of a server that is told nothing: upstream's, and QoS-class resources on.
#[must_use]
pub fn default_gates() -> FeatureGates {
    let mut gates = FeatureGates::default();
    for gate in [Gate::QosResources, Gate::WindowsHostProcessContainers] {
        // Only gates that are locked cannot be set, and these are not.
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
    /// An API over the store, with the objects every cluster has.
    pub async fn new(store: Store, options: Options) -> Result<Api, Refusal> {
        let quota = crate::admission::QuotaLocks::default();
        let signer = Signer::new(&options.token_secret);
        let audit = match &options.audit_log {
            None => None,
            Some(path) => Some(AuditLog::open(path).map_err(|error| {
                Refusal::internal(format!("the audit log {}: {error}", path.display()))
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
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Timestamp::new(i64::try_from(since.as_secs()).unwrap_or(i64::MAX), since.subsec_nanos())
    }

    pub(crate) fn setting(&self) -> RuleContext<'_> {
        let Options { gates, allow_privileged, .. } = &self.shared.options;
        RuleContext { gates, allow_privileged: *allow_privileged, now: self.now() }
    }

    pub(crate) fn has(&self, plugin: Plugin) -> bool {
        self.shared.options.plugins.has(plugin)
    }

    /// The lines of the audit log for `/metrics`, if there is one.
    pub(crate) fn audit_metrics(&self) -> String {
        self.shared.audit.as_ref().map(AuditLog::metrics).unwrap_or_default()
    }

    /// Puts the lines of the process's other parts on `/metrics` too; heard once.
    pub fn also_measure(&self, more: MoreMetrics) {
        let _ = self.shared.metrics.more.set(more);
    }

    /// Whose a bearer token is that is meant for this server.
    #[must_use]
    pub fn identify(&self, token: &str) -> Option<User> {
        let audiences = [credentials::ISSUER.to_owned()];
        crate::tokens::identify(self, token, &audiences).map(|(user, _)| user)
    }

    /// Answers one call.
    pub async fn handle(&self, call: Call) -> Reply {
        self.finish(call, None).await
    }

    /// Answers a call that is refused before its body was read; counted and logged as any other.
    pub(crate) async fn refuse(&self, call: Call, refusal: Refusal) -> Reply {
        self.finish(call, Some(refusal)).await
    }

    /// Checks whether the headers of a call suffice to refuse it. [`Api::handle`] then gives the
    /// reason, whatever the body is.
    pub(crate) fn refuses_headers(&self, call: &Call) -> bool {
        let mut call = call.clone();
        match impersonated(&call) {
            Err(_) => return true,
            Ok(None) => {}
            Ok(Some(user)) => {
                call.impersonate(user);
            }
        }
        self.permit(&call, Target::parse(&call.path).as_ref()).is_err()
    }

    async fn finish(&self, mut call: Call, refusal: Option<Refusal>) -> Reply {
        let started = Instant::now();
        let received = self.now();
        let metrics = &self.shared.metrics;
        metrics.in_flight.fetch_add(1, Ordering::Relaxed);
        let target = Target::parse(&call.path);
        let (mut verb, mut resource) = match &target {
            Some(Target::Resource(place)) => {
                let verb = request_verb(&call, place.name.is_empty(), place.old_watch);
                (verb, place.resource.plural)
            }
            _ => (request_verb(&call, false, false), ""),
        };
        let mut impersonator = None;
        let answer = match impersonated(&call) {
            Ok(user) => {
                impersonator = user.map(|user| call.impersonate(user));
                match refusal {
                    Some(refusal) => Err(refusal),
                    None => self.answer(&call, target.as_ref()).await,
                }
            }
            Err(refusal) => {
                (verb, resource) = ("impersonate", "users");
                Err(refusal)
            }
        };
        let (reply, refusal) = match answer {
            Ok(reply) => (reply, None),
            Err(refusal) => {
                // A client that accepts no form there is gets the refusal in JSON.
                let wanted = Wanted::of(call.header("accept")).unwrap_or(Wanted::PLAIN);
                (Reply::refused(&refusal, wanted), Some(refusal))
            }
        };
        let code = reply.status.as_u16();
        if let Some(audit) = &self.shared.audit {
            audit.note(&Record {
                call: &call,
                impersonator: impersonator.as_ref(),
                target: target.as_ref(),
                verb,
                code,
                refusal: refusal.as_ref(),
                received,
                now: self.now(),
            });
        }
        metrics.in_flight.fetch_sub(1, Ordering::Relaxed);
        metrics.observe(verb, resource, code, started.elapsed());
        reply
    }

    async fn answer(&self, call: &Call, target: Option<&Target>) -> Result<Reply, Refusal> {
        check_timeout(call, target)?;
        self.permit(call, target)?;
        match target {
            None => Err(Refusal::bad_request("the path is not valid")),
            Some(Target::Document(path)) => documents::get(self, call, path),
            Some(Target::UnknownResource { group, version, .. }) => {
                let mut served = catalog::RESOURCES.iter();
                if served.any(|known| known.group == *group && known.version == *version) {
                    return Err(Refusal::no_such_resource());
                }
                documents::get(self, call, call.path.trim_end_matches('/'))
            }
            Some(Target::Resource(place)) => self.resource(call, place).await,
        }
    }

    /// Refuses a caller without good credentials, and what the caller is not allowed to do. Does not look
    /// at the body.
    fn permit(&self, call: &Call, target: Option<&Target>) -> Result<(), Refusal> {
        match call.caller {
            Caller::Known(_) => {}
            Caller::Nobody if identity::is_public(&call.path) => return Ok(()),
            Caller::Nobody | Caller::Pretender => return Err(Refusal::unauthorized()),
        }
        let Some(target) = target else { return Ok(()) };
        attempted(call, target, |attempt| match self.decide(call.user(), attempt)? {
            Ok(()) => Ok(()),
            Err(reason) => Err(denied(call.user(), attempt, &reason)),
        })
    }

    /// Decides whether a user may do something: by its role, then, for a node, by the Node authorizer. If it
    /// may not, the reason is what clients see; it may be empty.
    pub(crate) fn decide(
        &self,
        user: &User,
        attempt: &Attempt<'_>,
    ) -> Result<Result<(), String>, Refusal> {
        if identity::allows(user, attempt) {
            return Ok(Ok(()));
        }
        let Some(node) = user.node() else { return Ok(Err(String::new())) };
        let decision = node_authorizer::authorize(self, &user.name, node, attempt)?;
        Ok(decision.map_err(|reason| match reason.is_empty() {
            true => reason,
            false => format!("node: {reason}"),
        }))
    }

    async fn resource(&self, call: &Call, place: &Place) -> Result<Reply, Refusal> {
        let verb = request_verb(call, place.name.is_empty(), place.old_watch);
        let action = Action::of(call, place, verb).ok_or_else(Refusal::method_not_allowed)?;
        let wanted = action.wanted(call.header("accept"))?;
        if call.body.len() <= LIGHT_BODY {
            return self.act(action, call, place, wanted).await;
        }
        let (api, call, place) = (self.clone(), call.clone(), place.clone());
        let work = async move { api.act(action, &call, &place, wanted).await };
        self.shared.heavy.run(work).await?
    }

    async fn act(
        &self,
        action: Action,
        call: &Call,
        place: &Place,
        wanted: Wanted,
    ) -> Result<Reply, Refusal> {
        match action {
            Action::Watch => watch::watch(self, call, place, wanted),
            Action::List => read::list(self, call, place, wanted).await,
            Action::Get => read::get(self, call, place, wanted),
            Action::GetPart | Action::Connect if call.method == Method::GET => {
                parts::get(self, call, place, wanted).await
            }
            Action::GetPart | Action::CreatePart | Action::Connect => {
                parts::create(self, call, place, wanted).await
            }
            Action::Review => reviews::create(self, call, place, wanted).await,
            Action::Create => write::create(self, call, place, wanted).await,
            Action::Update => write::update(self, call, place, wanted).await,
            Action::Patch => write::patch(self, call, place, wanted).await,
            Action::Delete => delete::one(self, call, place, wanted).await,
            Action::DeleteCollection => delete::collection(self, call, place, wanted).await,
        }
    }
}

/// What a request to a resource asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Action {
    Watch,
    List,
    Get,
    GetPart,
    CreatePart,
    /// Streams, which are not answered with objects.
    Connect,
    Review,
    Create,
    Update,
    Patch,
    Delete,
    DeleteCollection,
}

impl Action {
    /// Nothing if the resource does not have the method.
    fn of(call: &Call, place: &Place, verb: &str) -> Option<Action> {
        let part = place.subresource.map_or("", |subresource| subresource.name);
        let verbs = place.subresource.map_or(place.resource.verbs, |s| s.verbs);
        let has = |verb: Verb| verbs.contains(&verb);
        let collection = place.name.is_empty();
        // What is in namespaces is made and cleared in one of them.
        let in_one = !place.resource.namespaced || !place.namespace.is_empty();
        let connects = matches!(part, "exec" | "attach" | "portforward");
        let action = match call.method {
            Method::GET if verb == "watch" && has(Verb::Watch) => Action::Watch,
            Method::GET if collection && has(Verb::List) => Action::List,
            Method::GET if !collection && has(Verb::Get) => match part {
                "" | "status" | "resize" | "ephemeralcontainers" => Action::Get,
                _ if connects => Action::Connect,
                _ => Action::GetPart,
            },
            Method::POST if !part.is_empty() && has(Verb::Create) => match connects {
                true => Action::Connect,
                false => Action::CreatePart,
            },
            Method::POST if collection && in_one && has(Verb::Create) => {
                match place.resource.verbs {
                    [Verb::Create] => Action::Review,
                    _ => Action::Create,
                }
            }
            Method::PUT if !collection && has(Verb::Update) => Action::Update,
            Method::PATCH if !collection && has(Verb::Patch) => Action::Patch,
            Method::DELETE if !collection && part.is_empty() && has(Verb::Delete) => Action::Delete,
            Method::DELETE if collection && in_one && has(Verb::DeleteCollection) => {
                Action::DeleteCollection
            }
            _ => return None,
        };
        Some(action)
    }

    /// The form of the answer, if the client accepts one there is.
    fn wanted(self, accept: &str) -> Result<Wanted, Refusal> {
        let route = match self {
            Action::Connect => return Ok(Wanted::PLAIN),
            Action::Watch | Action::List => Route::Lists,
            _ => Route::Objects,
        };
        accept::check_route(accept, route)?;
        match self {
            Action::Watch => Wanted::of_stream(accept),
            Action::Review | Action::CreatePart => Wanted::of_tableless(accept),
            _ => Wanted::of(accept),
        }
    }
}

/// Calls `of` with what a request attempts to do.
///
/// As upstream reads paths: what is below a version is a resource, whether or not it is served.
fn attempted<T>(call: &Call, target: &Target, of: impl FnOnce(&Attempt<'_>) -> T) -> T {
    let fields = call.query.text("fieldSelector");
    let single = FieldSelector::parse(fields).ok();
    let single = single.as_ref().and_then(|selector| selector.requires_exactly("metadata.name"));
    let is_segment = |name: &&str| !name.contains(['/', '%']) && !matches!(*name, "." | "..");
    let single = single.filter(is_segment).unwrap_or_default();
    match target {
        Target::Resource(place) => {
            let part = write::part_name(place);
            let verb = request_verb(call, place.name.is_empty(), place.old_watch);
            let on = Attempt::on(verb, place.resource, part, &place.namespace, &place.name);
            of(&on.selecting(fields, single))
        }
        Target::UnknownResource { group, resource, namespace, name, .. } => {
            let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
            let verb = request_verb(call, name.is_empty(), false);
            let (group, namespace, name) = (group.as_str(), namespace.as_str(), name.as_str());
            let on = Attempt::Resource {
                verb,
                group,
                resource,
                subresource,
                namespace,
                name,
                selector: "",
            };
            of(&on.selecting(fields, single))
        }
        Target::Document(_) => {
            let segments: Vec<&str> = call.path.trim_matches('/').split('/').collect();
            let (group, rest) = match segments.as_slice() {
                ["api", _, rest @ ..] if !rest.is_empty() => ("", rest),
                ["apis", group, _, rest @ ..] if !rest.is_empty() => (*group, rest),
                _ => {
                    let verb = call.method.as_str().to_ascii_lowercase();
                    return of(&Attempt::Path { verb: &verb, path: &call.path });
                }
            };
            let (namespace, rest) = match rest {
                ["namespaces", namespace, rest @ ..] if !rest.is_empty() => (*namespace, rest),
                rest => ("", rest),
            };
            let at = |index: usize| rest.get(index).copied().unwrap_or_default();
            let (resource, name, subresource) = (at(0), at(1), at(2));
            let verb = request_verb(call, name.is_empty(), false);
            let on = Attempt::Resource {
                verb,
                group,
                resource,
                subresource,
                namespace,
                name,
                selector: "",
            };
            of(&on.selecting(fields, single))
        }
    }
}

/// The user that a call is made for, if that is not its sender.
fn impersonated(call: &Call) -> Result<Option<User>, Refusal> {
    let Caller::Known(sender) = &call.caller else { return Ok(None) };
    match impersonation::requested(sender, &call.headers)? {
        Requested::Nothing => Ok(None),
        Requested::User(user) => Ok(Some(user)),
        Requested::Denied(kind) => Err(may_not_impersonate(call, sender, kind)),
    }
}

/// The 403 for a sender that may not impersonate, in upstream's words: what was asked for, with a verb that
/// says so.
fn may_not_impersonate(call: &Call, sender: &User, kind: &str) -> Refusal {
    let target = Target::parse(&call.path).unwrap_or_else(|| Target::Document(call.path.clone()));
    attempted(call, &target, |attempt| {
        let mut attempt = *attempt;
        let (Attempt::Resource { verb, .. } | Attempt::Path { verb, .. }) = &mut attempt;
        let longer = format!("impersonate-on:{kind}:{verb}");
        *verb = &longer;
        denied(sender, &attempt, "")
    })
}

/// The 403 for an attempt.
pub(crate) fn denied(user: &User, attempt: &Attempt<'_>, reason: &str) -> Refusal {
    let words = attempt.denied(user, reason);
    match *attempt {
        Attempt::Path { .. } => {
            let message = format!("forbidden: {words}");
            Refusal::new(StatusCode::FORBIDDEN, "Forbidden", message)
                .with_details(serde_json::json!({}))
        }
        Attempt::Resource { group, resource, name, .. } => {
            let qualified =
                if group.is_empty() { resource.to_owned() } else { format!("{resource}.{group}") };
            let named = if name.is_empty() { String::new() } else { format!(" {name:?}") };
            let message = format!("{qualified}{named} is forbidden: {words}");
            let mut details = serde_json::Map::new();
            for (key, value) in [("name", name), ("group", group), ("kind", resource)] {
                if !value.is_empty() {
                    details.insert(key.to_owned(), value.into());
                }
            }
            Refusal::new(StatusCode::FORBIDDEN, "Forbidden", message).with_details(details.into())
        }
    }
}

/// Refuses a `timeout=` that is not a duration, before anything else as upstream does. Requests that
/// last as long as their client wants are not asked. Requests here take milliseconds, so that the time
/// itself is not kept.
fn check_timeout(call: &Call, target: Option<&Target>) -> Result<(), Refusal> {
    let text = call.query.text("timeout");
    if text.is_empty() {
        return Ok(());
    }
    if let Some(Target::Resource(place)) = target {
        let part = place.subresource.map_or("", |subresource| subresource.name);
        let lasts = matches!(part, "attach" | "exec" | "log" | "portforward")
            || request_verb(call, place.name.is_empty(), place.old_watch) == "watch";
        if lasts {
            return Ok(());
        }
    }
    match objects::duration::fault(text) {
        Some(fault) => Err(Refusal::bad_request(format!(
            "invalid timeout specified in the request URL - {fault}"
        ))),
        None => Ok(()),
    }
}

/// The verb of a request to a resource.
pub(crate) fn request_verb(call: &Call, collection: bool, old_watch: bool) -> &'static str {
    match &call.method {
        &Method::GET | &Method::HEAD if old_watch || call.query.flag("watch") => "watch",
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
