//! Deleting: immediately, after a grace period, or when the last finalizer is removed.
//!
//! ```text
//!            grace 0, no finalizers
//!   stored ───────────────────────────────────────────► gone
//!      │ grace > 0 or finalizers                           ▲
//!      ▼                                                   │ last finalizer removed and grace 0,
//!   deletionTimestamp set ─────────────────────────────────┘ or a second delete with grace 0
//! ```

use http::StatusCode;
use objects::catalog::Resource;
use objects::cursor::Causes;
use objects::rules;
use objects::schema::Schema;
use serde_json::{Map, Value, json};
use store::{Entry, Outcome, Transaction};

use crate::api::Api;
use crate::codec;
use crate::decode;
use crate::error::ApiError;
use crate::read;
use crate::reply::Reply;
use crate::request::{Request, RequestContext};
use crate::route::ResourcePath;
use crate::select::Selection;

/// The finalizers that the garbage collector handles.
pub(crate) const ORPHAN: &str = "orphan";
pub(crate) const FOREGROUND: &str = "foregroundDeletion";

/// The options of a deletion.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct DeleteOptions {
    pub(crate) grace: Option<i64>,
    pub(crate) policy: Option<Policy>,
    /// The client sent `orphanDependents: false`.
    deletes_dependents: bool,
    pub(crate) uid: Option<String>,
    pub(crate) resource_version: Option<String>,
    pub(crate) dry_run: bool,
    /// The pod is evicted, which is recorded in its conditions.
    pub(crate) evicting: bool,
    /// The requesting node, if a node deletes the object.
    pub(crate) node: Option<String>,
}

/// The propagation policy for dependents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Policy {
    Background,
    Foreground,
    Orphan,
}

impl DeleteOptions {
    /// Reads the options from the body, or from the query if there is no body.
    pub(crate) fn of(request: &Request) -> Result<DeleteOptions, ApiError> {
        let mut options = DeleteOptions::read(request)?;
        options.node = request.user().node().map(str::to_owned);
        Ok(options)
    }

    fn read(request: &Request) -> Result<DeleteOptions, ApiError> {
        if request.body.iter().all(u8::is_ascii_whitespace) {
            return DeleteOptions::from_query(request);
        }
        let schema = Schema::served();
        let id = schema.find("io.k8s.apimachinery.pkg.apis.meta.v1.DeleteOptions");
        let id = id.ok_or_else(|| ApiError::internal("the schema has no DeleteOptions"))?;
        let decoded = match decode::options_text(request)? {
            None => decode::options_from_protobuf(&request.body, "DeleteOptions", id)?,
            Some(text) => {
                check_kind(&text)?;
                let decoded = schema.decode(id, &text);
                decoded.map_err(|error| ApiError::bad_request(error.to_string()))?
            }
        };
        let mut options = DeleteOptions::from_value(&decoded.value)?;
        options.dry_run |= request.query.text("dryRun") == "All";
        Ok(options)
    }

    fn from_query(request: &Request) -> Result<DeleteOptions, ApiError> {
        let mut value = Map::new();
        if let Some(grace) = request.query.int("gracePeriodSeconds")? {
            value.insert("gracePeriodSeconds".to_owned(), Value::from(grace));
        }
        if let Some(policy) = request.query.get("propagationPolicy") {
            value.insert("propagationPolicy".to_owned(), Value::from(policy));
        }
        if request.query.get("orphanDependents").is_some() {
            let orphan = request.query.flag("orphanDependents");
            value.insert("orphanDependents".to_owned(), Value::from(orphan));
        }
        let dry_run: Vec<&str> = request.query.all("dryRun").collect();
        if !dry_run.is_empty() {
            value.insert("dryRun".to_owned(), json!(dry_run));
        }
        DeleteOptions::from_value(&Value::Object(value))
    }

    pub(crate) fn from_value(value: &Value) -> Result<DeleteOptions, ApiError> {
        let mut causes = Causes::default();
        let orphan = value["orphanDependents"].as_bool();
        if let (Some(_), Some(given)) = (orphan, value["propagationPolicy"].as_str()) {
            let message = format!(
                "Invalid value: {given:?}: orphanDependents and deletionPropagation cannot be \
                 both set"
            );
            causes.add("FieldValueInvalid", "propagationPolicy", message);
        }
        let policy = match value["propagationPolicy"].as_str() {
            None => None,
            Some("Background") => Some(Policy::Background),
            Some("Foreground") => Some(Policy::Foreground),
            Some("Orphan") => Some(Policy::Orphan),
            Some(other) => {
                let message = format!(
                    "Unsupported value: {other:?}: supported values: \"Foreground\", \
                     \"Background\", \"Orphan\", \"nil\""
                );
                causes.add("FieldValueNotSupported", "propagationPolicy", message);
                None
            }
        };
        let dry_run = value["dryRun"].as_array().map(Vec::as_slice).unwrap_or_default();
        if dry_run.iter().any(|value| value != "All") {
            let message = format!(
                "Unsupported value: {}: supported values: \"All\"",
                Value::from(dry_run.to_vec())
            );
            causes.add("FieldValueNotSupported", "dryRun", message);
        }
        if !causes.is_empty() {
            return Err(ApiError::invalid_kind("meta.k8s.io", "DeleteOptions", "", &causes));
        }
        let policy = policy.or(match orphan {
            Some(true) => Some(Policy::Orphan),
            Some(false) => Some(Policy::Background),
            None => None,
        });
        let text = |value: &Value| value.as_str().map(str::to_owned);
        Ok(DeleteOptions {
            grace: value["gracePeriodSeconds"].as_i64(),
            policy,
            deletes_dependents: orphan == Some(false),
            uid: text(&value["preconditions"]["uid"]),
            resource_version: text(&value["preconditions"]["resourceVersion"]),
            dry_run: !dry_run.is_empty(),
            evicting: false,
            node: None,
        })
    }
}

/// Rejects a body of another kind than `DeleteOptions`. The options belong to every group, so any
/// version is accepted.
fn check_kind(body: &[u8]) -> Result<(), ApiError> {
    let read: Result<Value, _> = serde_json::from_slice(body);
    let value = read.map_err(|error| {
        let problem = objects::schema::syntax::go_error(body).unwrap_or_else(|| error.to_string());
        ApiError::bad_request(format!("couldn't get version/kind; json parse error: {problem}"))
    })?;
    match value["kind"].as_str() {
        None | Some("" | "DeleteOptions") => Ok(()),
        Some(kind) => {
            let version = value["apiVersion"].as_str().unwrap_or_default();
            let message = format!("no kind {kind:?} is registered for version {version:?}");
            Err(ApiError::bad_request(message))
        }
    }
}

/// The result of a deletion.
pub(crate) enum Deleted {
    /// The object was removed; this is its last state.
    Removed(Value),
    /// The object is terminating: it is removed after its grace period or its last finalizer.
    Marked(Value),
    /// The object would be removed if this were not a dry run. Contains it as it would be marked
    /// before that.
    WouldRemove(Value),
}

pub(crate) async fn one(context: RequestContext<'_>) -> Result<Reply, ApiError> {
    let RequestContext { api, request, path, format } = context;
    let options = DeleteOptions::of(request)?;
    if path.resource.plural == "priorityclasses" && rules::is_system_priority(&path.name) {
        let why = "this is a system priority class and cannot be deleted";
        return Err(ApiError::forbidden(path.resource, &path.name, why));
    }
    let warnings = job_warning(path.resource, &options);
    let deleted = delete(api, path, &options).await;
    let deleted = deleted.map_err(|error| error.after(&warnings))?;
    let reply = match deleted {
        Deleted::Removed(object) if !returns_object(path.resource) => {
            let mut details = Map::new();
            details.insert("name".to_owned(), Value::from(path.name.as_str()));
            if !path.resource.group.is_empty() {
                details.insert("group".to_owned(), Value::from(path.resource.group));
            }
            details.insert("kind".to_owned(), Value::from(path.resource.plural));
            details.insert("uid".to_owned(), object["metadata"]["uid"].clone());
            let status = json!({
                "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success",
                "details": details,
            });
            read::encoded(&status, StatusCode::OK, format)
        }
        // Upstream sends this status only to clients of the older option.
        Deleted::Marked(object) if options.deletes_dependents => {
            read::object_reply(context, &object, StatusCode::ACCEPTED)?
        }
        Deleted::Removed(object) | Deleted::Marked(object) | Deleted::WouldRemove(object) => {
            read::object_reply(context, &object, StatusCode::OK)?
        }
    };
    Ok(reply.with_warnings(warnings))
}

fn job_warning(resource: &Resource, options: &DeleteOptions) -> Vec<String> {
    if resource.plural == "jobs" && options.policy.is_none() {
        let text = "child pods are preserved by default when jobs are deleted; set \
                    propagationPolicy=Background to remove them or set propagationPolicy=Orphan to \
                    suppress this warning";
        return vec![text.to_owned()];
    }
    Vec::new()
}

/// Returns true for kinds whose deletion responds with the object.
fn returns_object(resource: &Resource) -> bool {
    matches!(resource.plural, "pods" | "services" | "serviceaccounts" | "resourcequotas")
}

/// Deletes an object, or marks it as terminating.
pub(crate) async fn delete(
    api: &Api,
    path: &ResourcePath,
    options: &DeleteOptions,
) -> Result<Deleted, ApiError> {
    let resource = path.resource;
    loop {
        let entry = read::find(api, path)?;
        let object = read::load(resource, &entry)?;
        crate::admission::check_delete(options.node.as_deref(), path, &object)?;
        check_preconditions(path, options, &object)?;
        if let Some(deleted) = try_delete(api, path, resource, options, &entry, object).await? {
            return Ok(deleted);
        }
    }
}

/// Makes one attempt; `None` after a conflict with another writer.
async fn try_delete(
    api: &Api,
    path: &ResourcePath,
    resource: &'static Resource,
    options: &DeleteOptions,
    entry: &Entry,
    object: Value,
) -> Result<Option<Deleted>, ApiError> {
    let marked = match mark(api, resource, options, &object) {
        DeletionMark::Unchanged => return Ok(Some(Deleted::Marked(object))),
        DeletionMark::NotNeeded if options.dry_run => return Ok(Some(Deleted::Removed(object))),
        DeletionMark::Changed(marked) => marked,
        DeletionMark::NotNeeded => object.clone(),
    };
    let is_first = !has_deadline(&object);
    let stays = resource.plural == "namespaces" && is_first;
    let ends = !stays && (ends_here(resource, &marked) || !has_deadline(&marked));
    if options.dry_run {
        let outcome = if ends { Deleted::WouldRemove(marked) } else { Deleted::Marked(marked) };
        return Ok(Some(outcome));
    }
    let key = codec::key(resource, &path.namespace, &path.name);
    let mut entry_at = entry.modified;
    let bound = !marked["spec"]["nodeName"].as_str().unwrap_or_default().is_empty();
    // A pod is returned in its final state, even if it was removed at once.
    let mut last = if resource.plural == "pods" { marked.clone() } else { object };
    if !ends || (resource.plural == "pods" && bound) {
        // A bound pod that is removed at once is still marked first, so that its agent sees the
        // grace period.
        let transaction = Transaction::new()
            .expect_modified_at(key.as_str(), entry_at)
            .put(key.as_str(), codec::encode(resource, &marked));
        match commit(api, transaction).await? {
            Outcome::Committed { revision } => {
                entry_at = revision;
                last = marked;
                last["metadata"]["resourceVersion"] = Value::from(revision.to_string());
                if !ends {
                    return Ok(Some(Deleted::Marked(last)));
                }
            }
            Outcome::Conflict { .. } => return Ok(None),
        }
    }
    let transaction =
        Transaction::new().expect_modified_at(key.as_str(), entry_at).delete(key.as_str());
    match commit(api, transaction).await? {
        Outcome::Committed { .. } => Ok(Some(Deleted::Removed(last))),
        Outcome::Conflict { .. } => Ok(None),
    }
}

async fn commit(api: &Api, transaction: Transaction) -> Result<Outcome, ApiError> {
    // Marking an object for deletion may use the reserve of a full disk too.
    let done = api.store().commit(transaction.with_reserve()).await;
    done.map_err(|error| crate::write::commit_failed(&error))
}

fn check_preconditions(
    path: &ResourcePath,
    options: &DeleteOptions,
    object: &Value,
) -> Result<(), ApiError> {
    let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default();
    if path.resource.plural == "namespaces" {
        return check_namespace_preconditions(path, options, object);
    }
    let conflict = |why: String| {
        let message = format!(
            "Operation cannot be fulfilled on {} {:?}: {why}",
            path.resource.kind, path.name
        );
        let error = ApiError::new(StatusCode::CONFLICT, "Conflict", message);
        error.with_details(json!({"name": path.name, "kind": path.resource.kind}))
    };
    if let Some(uid) = options.uid.as_deref().filter(|uid| *uid != text("uid")) {
        return Err(conflict(format!(
            "the UID in the precondition ({uid}) does not match the UID in record ({}). The object \
             might have been deleted and then recreated",
            text("uid")
        )));
    }
    let version = text("resourceVersion");
    if let Some(requested) =
        options.resource_version.as_deref().filter(|requested| *requested != version)
    {
        return Err(conflict(format!(
            "the ResourceVersion in the precondition ({requested}) does not match the ResourceVersion \
             in record ({version}). The object might have been modified"
        )));
    }
    Ok(())
}

/// Checks the preconditions of a namespace, which has its own messages.
fn check_namespace_preconditions(
    path: &ResourcePath,
    options: &DeleteOptions,
    namespace: &Value,
) -> Result<(), ApiError> {
    let requested = [
        ("UID", "uid", options.uid.as_deref()),
        ("ResourceVersion", "resourceVersion", options.resource_version.as_deref()),
    ];
    for (label, field, requested) in requested {
        let found = namespace["metadata"][field].as_str().unwrap_or_default();
        if let Some(requested) = requested.filter(|requested| *requested != found) {
            let why = format!(
                "Precondition failed: {label} in precondition: {requested}, {label} in object meta: \
                 {found}"
            );
            return Err(ApiError::conflict(path.resource, &path.name, &why));
        }
    }
    Ok(())
}

/// Returns true if nothing keeps a terminating object from being removed.
pub(crate) fn ends_here(resource: &Resource, object: &Value) -> bool {
    let metadata = &object["metadata"];
    let kept = !is_empty(&metadata["finalizers"])
        || (resource.plural == "namespaces" && !is_empty(&object["spec"]["finalizers"]));
    metadata["deletionTimestamp"].is_string()
        && !kept
        && metadata["deletionGracePeriodSeconds"].as_i64().unwrap_or(0) == 0
}

/// Returns true if the object is terminating.
fn has_deadline(object: &Value) -> bool {
    object["metadata"]["deletionTimestamp"].is_string()
}

fn is_empty(list: &Value) -> bool {
    list.as_array().is_none_or(Vec::is_empty)
}

enum DeletionMark {
    /// The object can be removed at once, unmarked.
    NotNeeded,
    /// The object is already terminating and this request changes nothing.
    Unchanged,
    /// The object is marked as terminating, or its finalizers were removed so that it can be
    /// removed at once.
    Changed(Value),
}

/// Marks an object as terminating, if it cannot be removed at once.
fn mark(api: &Api, resource: &Resource, options: &DeleteOptions, object: &Value) -> DeletionMark {
    let now = api.now();
    let metadata = &object["metadata"];
    let grace = grace(resource, options, object);
    let finalizers = finalizers_after(resource, options, object);
    let namespace_kept =
        resource.plural == "namespaces" && !is_empty(&object["spec"]["finalizers"]);
    let kept = !finalizers.is_empty() || namespace_kept;
    let graceful = resource.plural == "pods";
    if metadata["deletionTimestamp"].is_string() {
        let current = metadata["deletionGracePeriodSeconds"].as_i64().unwrap_or(0);
        // While a pod terminates, only an explicit grace period can change its deadline.
        let shorter =
            options.grace.map(at_least_one).filter(|requested| graceful && *requested < current);
        let same_finalizers = list_of(&metadata["finalizers"]) == finalizers;
        // The first deletion determines how a namespace terminates.
        if namespace_kept || (shorter.is_none() && (current > 0 || (kept && same_finalizers))) {
            return DeletionMark::Unchanged;
        }
        let mut marked = object.clone();
        if let Some(grace) = shorter {
            let requested = object["metadata"]["deletionTimestamp"].as_str().unwrap_or_default();
            let start = objects::timestamp::Timestamp::parse(requested)
                .map_or(now, |deadline| deadline.plus_seconds(-current));
            marked["metadata"]["deletionTimestamp"] =
                Value::from(start.plus_seconds(grace).to_seconds_text());
            marked["metadata"]["deletionGracePeriodSeconds"] = Value::from(grace);
        }
        set_finalizers(&mut marked, &finalizers);
        return DeletionMark::Changed(marked);
    }
    // A namespace is always marked first, even without finalizers.
    if grace == 0 && !kept && !graceful && resource.plural != "namespaces" {
        if is_empty(&metadata["finalizers"]) {
            return DeletionMark::NotNeeded;
        }
        let mut freed = object.clone();
        set_finalizers(&mut freed, &finalizers);
        return DeletionMark::Changed(freed);
    }
    let mut marked = object.clone();
    marked["metadata"]["deletionTimestamp"] =
        Value::from(now.plus_seconds(grace).to_seconds_text());
    if resource.plural != "namespaces" {
        marked["metadata"]["deletionGracePeriodSeconds"] = Value::from(grace);
    } else {
        marked["status"]["phase"] = Value::from("Terminating");
    }
    count_generation(&mut marked);
    set_finalizers(&mut marked, &finalizers);
    if options.evicting {
        let conditions = &mut marked["status"]["conditions"];
        if conditions.is_null() {
            *conditions = json!([]);
        }
        if let Some(conditions) = conditions.as_array_mut() {
            conditions.retain(|condition| condition["type"] != "DisruptionTarget");
            conditions.push(json!({
                "type": "DisruptionTarget", "status": "True", "lastProbeTime": null,
                "lastTransitionTime": now.to_seconds_text(),
                "reason": "EvictionByEvictionAPI", "message": "Eviction API: evicting",
            }));
        }
    }
    DeletionMark::Changed(marked)
}

fn count_generation(object: &mut Value) {
    if let Some(generation) = object["metadata"]["generation"].as_i64().filter(|g| *g > 0) {
        object["metadata"]["generation"] = Value::from(generation + 1);
    }
}

fn list_of(list: &Value) -> Vec<String> {
    let items = list.as_array().map(Vec::as_slice).unwrap_or_default();
    items.iter().filter_map(Value::as_str).map(str::to_owned).collect()
}

fn set_finalizers(object: &mut Value, finalizers: &[String]) {
    if let Value::Object(metadata) = &mut object["metadata"] {
        if finalizers.is_empty() {
            metadata.remove("finalizers");
        } else {
            metadata.insert("finalizers".to_owned(), json!(finalizers));
        }
    }
}

/// Returns the finalizers of a marked object. The garbage collector carries out the propagation
/// policy.
fn finalizers_after(resource: &Resource, options: &DeleteOptions, object: &Value) -> Vec<String> {
    let mut finalizers = list_of(&object["metadata"]["finalizers"]);
    let has = |name: &str| finalizers.iter().any(|finalizer| finalizer == name);
    let policy = options.policy.or_else(|| {
        if has(ORPHAN) {
            Some(Policy::Orphan)
        } else if has(FOREGROUND) {
            Some(Policy::Foreground)
        } else if resource.plural == "jobs" {
            Some(Policy::Orphan)
        } else {
            None
        }
    });
    let finalizer = match policy {
        Some(Policy::Orphan) => Some(ORPHAN),
        Some(Policy::Foreground) => Some(FOREGROUND),
        Some(Policy::Background) | None => None,
    };
    if policy.is_some() {
        finalizers.retain(|finalizer| finalizer != ORPHAN && finalizer != FOREGROUND);
    }
    finalizers.extend(finalizer.map(str::to_owned));
    finalizers
}

/// Returns the grace period of a pod in seconds; other kinds have none.
fn grace(resource: &Resource, options: &DeleteOptions, object: &Value) -> i64 {
    if resource.plural != "pods" {
        return 0;
    }
    let finished = matches!(object["status"]["phase"].as_str(), Some("Succeeded" | "Failed"));
    let bound = !object["spec"]["nodeName"].as_str().unwrap_or_default().is_empty();
    if finished || !bound {
        return 0;
    }
    let spec = object["spec"]["terminationGracePeriodSeconds"].as_i64();
    at_least_one(options.grace.or(spec).unwrap_or(30))
}

/// A negative grace period means one second.
fn at_least_one(grace: i64) -> i64 {
    if grace < 0 { 1 } else { grace }
}

/// Deletes the selected objects and returns the list of them.
pub(crate) async fn collection(context: RequestContext<'_>) -> Result<Reply, ApiError> {
    let RequestContext { api, request, path, format } = context;
    crate::list_options::check(request)?;
    let selection = Selection::of(request, path)?;
    let options = DeleteOptions::of(request)?;
    let limit = request.query.int("limit")?.filter(|limit| *limit > 0);
    let limit = limit.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX));
    let snapshot = api.store().snapshot(None).map_err(|error| read::read_failed(&error))?;
    let prefix = codec::prefix(path.resource, &path.namespace);
    let mut items = Vec::new();
    let mut going_on = None;
    for entry in snapshot.range(&prefix, None) {
        let entry = entry.map_err(|error| read::broken(&error))?;
        if !selection.matches_bytes(path.resource, &entry)? {
            continue;
        }
        if items.len() >= limit {
            going_on = Some(());
            break;
        }
        items.push((entry.key.to_string(), read::load(path.resource, &entry)?));
    }
    for (_, object) in &items {
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        let one = ResourcePath { name: name.to_owned(), ..path.clone() };
        match delete(api, &one, &options).await {
            Ok(_) => {}
            // Another client deleted it first.
            Err(error) if error.code == StatusCode::NOT_FOUND => {}
            Err(error) => return Err(error),
        }
    }
    let mut metadata = json!({"resourceVersion": snapshot.revision().to_string()});
    if let (Some(()), Some((last, _))) = (going_on, items.last()) {
        let after = last.strip_prefix(&prefix).unwrap_or(last);
        let token = crate::continuation::Continuation::token(snapshot.revision().get(), after);
        metadata["continue"] = Value::from(token);
        if selection.is_everything() {
            let remaining = snapshot.count(&prefix, Some(last));
            metadata["remainingItemCount"] = Value::from(remaining);
        }
    }
    let items: Vec<Value> = items
        .into_iter()
        .map(|(_, mut object)| {
            if let Value::Object(fields) = &mut object {
                fields.remove("kind");
                fields.remove("apiVersion");
            }
            object
        })
        .collect();
    let list = json!({
        "kind": format!("{}List", path.resource.kind),
        "apiVersion": path.resource.api_version(),
        "metadata": metadata,
        "items": items,
    });
    let warnings = job_warning(path.resource, &options);
    Ok(read::encoded(&list, StatusCode::OK, format).with_warnings(warnings))
}
