//! Subresources with their own handlers: binding, eviction, scale, token, log and the streams.

use http::StatusCode;
use objects::apply::{self, FieldManager};
use objects::catalog::{self, Resource};
use objects::patch::PatchKind;
use objects::rules::{pod, scale};
use objects::timestamp::Timestamp;

use objects::schema::Schema;
use objects::selector::LabelSelector;
use objects::table;
use serde_json::{Value, json};

use crate::accept::{AcceptedFormat, Representation};
use crate::admission;
use crate::api::Api;
use crate::codec;
use crate::decode::{self, Expected, FieldValidation};
use crate::delete::{self, DeleteOptions};
use crate::error::ApiError;
use crate::node_restriction;
use crate::read;
use crate::reply::{PROTOBUF, Reply};
use crate::request::RequestContext;
use crate::route::ResourcePath;
use crate::write::{self, Origin, WriteOptions};

const SCALE: &str = "io.k8s.api.autoscaling.v1.Scale";

/// Returns `{"status": "Success", "code": 201}`.
fn created(format: AcceptedFormat) -> Reply {
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201,
    });
    read::encoded(&status, StatusCode::CREATED, format)
}

pub(crate) async fn get(context: RequestContext<'_>) -> Result<Reply, ApiError> {
    let RequestContext { api, request, path, .. } = context;
    match write::subresource_name(path) {
        "scale" => {
            let entry = read::find(api, path)?;
            let found = scale::of(&read::load(path.resource, &entry)?);
            scale_reply(context, &found)
        }
        "log" => crate::streams::log(api, request, path).await,
        "exec" | "attach" | "portforward" => crate::streams::connect(api, request, path).await,
        _ => Err(ApiError::method_not_allowed()),
    }
}

pub(crate) async fn create(context: RequestContext<'_>) -> Result<Reply, ApiError> {
    let RequestContext { api, request, path, .. } = context;
    match write::subresource_name(path) {
        "binding" => bind(context).await,
        "eviction" => evict(context).await,
        "token" => crate::tokens::request(context).await,
        "exec" | "attach" | "portforward" => crate::streams::connect(api, request, path).await,
        _ => Err(ApiError::method_not_allowed()),
    }
}

/// Assigns a pod to a node.
pub(crate) async fn bind(context: RequestContext<'_>) -> Result<Reply, ApiError> {
    let RequestContext { api, request, path, format } = context;
    let options = WriteOptions::of(request, "CreateOptions")?;
    let expected = Expected::named("Binding", "v1".to_owned(), "io.k8s.api.core.v1.Binding")?;
    let received = decode::body(request, &expected)?;
    let mut binding = received.object;
    write::check_namespace(path, &mut binding)?;
    let name = binding["metadata"]["name"].as_str().unwrap_or_default();
    if name != path.name {
        return Err(ApiError::bad_request("name in URL does not match name in Binding object"));
    }
    let causes = pod::validate_binding(&binding);
    if !causes.is_empty() {
        return Err(ApiError::invalid_kind("", "Binding", name, &causes));
    }
    let node = binding["target"]["name"].as_str().unwrap_or_default().to_owned();
    if binding["target"]["kind"] == "Node" {
        admission::add_topology_labels(api, &node, &mut binding)?;
    }
    let by = FieldManager { name: &options.manager, subresource: "binding", api_version: "v1" };
    let now = api.now();
    let mut change = |old: &Value| {
        if let Some(node) = request.user().node() {
            node_restriction::check_subresource(node, path, old)?;
        }
        check_binding_preconditions(path, &binding, old)?;
        let refused = |why: String| {
            let message =
                format!("Operation cannot be fulfilled on pods/binding {:?}: {why}", path.name);
            ApiError::new(StatusCode::CONFLICT, "Conflict", message)
                .with_details(json!({"name": path.name, "kind": "pods/binding"}))
        };
        if old["metadata"]["deletionTimestamp"].is_string() {
            let why = format!("pod {} is being deleted, cannot be assigned to a host", path.name);
            return Err(refused(why));
        }
        if let Some(bound) = old["spec"]["nodeName"].as_str().filter(|node| !node.is_empty()) {
            let why = format!("pod {} is already assigned to node {bound:?}", path.name);
            return Err(refused(why));
        }
        if old["spec"]["schedulingGates"].as_array().is_some_and(|gates| !gates.is_empty()) {
            let why = format!("pod {} has non-empty .spec.schedulingGates", path.name);
            return Err(refused(why));
        }
        Ok(bound_to(old, &binding, &node, now))
    };
    write::guaranteed_update(context, &options, Origin::Update(by), &mut change).await?;
    Ok(created(format).with_warnings(received.warnings))
}

/// Returns the pod with its node, the metadata of the binding, and the `PodScheduled` condition.
/// Its nomination is removed.
fn bound_to(pod: &Value, binding: &Value, node: &str, now: Timestamp) -> Value {
    let mut bound = pod.clone();
    bound["spec"]["nodeName"] = Value::from(node);
    if let Some(status) = bound["status"].as_object_mut() {
        status.remove("nominatedNodeName");
    }
    for field in ["annotations", "labels"] {
        for (key, value) in binding["metadata"][field].as_object().into_iter().flatten() {
            bound["metadata"][field][key.as_str()] = value.clone();
        }
    }
    let mut conditions = pod["status"]["conditions"].as_array().cloned().unwrap_or_default();
    let time = now.to_seconds_text();
    let condition = json!({
        "type": "PodScheduled", "status": "True", "lastProbeTime": null, "lastTransitionTime": time,
    });
    match conditions.iter_mut().find(|condition| condition["type"] == "PodScheduled") {
        Some(found) if found["status"] == "True" => {}
        Some(found) => *found = condition,
        None => conditions.push(condition),
    }
    bound["status"]["conditions"] = Value::from(conditions);
    bound
}

fn check_binding_preconditions(
    path: &ResourcePath,
    binding: &Value,
    pod: &Value,
) -> Result<(), ApiError> {
    for (field, label) in [("uid", "UID"), ("resourceVersion", "ResourceVersion")] {
        let requested = binding["metadata"][field].as_str().unwrap_or_default();
        let found = pod["metadata"][field].as_str().unwrap_or_default();
        if !requested.is_empty() && requested != found {
            let key = codec::key(path.resource, &path.namespace, &path.name);
            let why = format!(
                "StorageError: invalid object, Code: 4, Key: {key}, ResourceVersion: 0, \
                 AdditionalErrorMsg: Precondition failed: {label} in precondition: {requested}, \
                 {label} in object meta: {found}"
            );
            return Err(ApiError::conflict(path.resource, &path.name, &why));
        }
    }
    Ok(())
}

/// Deletes a pod, if its disruption budget allows it.
async fn evict(context: RequestContext<'_>) -> Result<Reply, ApiError> {
    let RequestContext { api, request, path, format } = context;
    let mut expected =
        Expected::named("Eviction", "policy/v1".to_owned(), "io.k8s.api.policy.v1.Eviction")?;
    expected.alike = "policy/v1beta1";
    let write_options = WriteOptions::of(request, "CreateOptions")?;
    let received = decode::body(request, &expected)?;
    let mut eviction = received.object;
    write::check_namespace(path, &mut eviction)?;
    let name = eviction["metadata"]["name"].as_str().unwrap_or_default();
    if name != path.name {
        return Err(ApiError::bad_request("name in URL does not match name in Eviction object"));
    }
    let mut options = DeleteOptions::from_value(&eviction["deleteOptions"])?;
    options.dry_run |= write_options.dry_run;
    options.evicting = true;
    let pods = ResourcePath { subresource: None, ..path.clone() };
    let entry = read::find(api, &pods)?;
    let pod = read::load(path.resource, &entry)?;
    if let Some(node) = request.user().node() {
        node_restriction::check_subresource(node, path, &pod)?;
    }
    if !may_be_evicted_freely(&pod) {
        spend_budget(api, &pods, &pod, options.dry_run).await?;
    }
    delete::delete(api, &pods, &options).await?;
    Ok(created(format).with_warnings(received.warnings))
}

/// Returns true for pods that count for no budget: finished, not started, or terminating.
fn may_be_evicted_freely(pod: &Value) -> bool {
    matches!(pod["status"]["phase"].as_str(), Some("Succeeded" | "Failed" | "Pending"))
        || pod["metadata"]["deletionTimestamp"].is_string()
}

fn is_ready(pod: &Value) -> bool {
    let conditions = pod["status"]["conditions"].as_array().map(Vec::as_slice).unwrap_or_default();
    conditions.iter().any(|condition| condition["type"] == "Ready" && condition["status"] == "True")
}

/// Takes one disruption from the budget of the pod.
async fn spend_budget(
    api: &Api,
    path: &ResourcePath,
    pod: &Value,
    dry_run: bool,
) -> Result<(), ApiError> {
    let Some(budgets) = catalog::find("policy", "v1", "poddisruptionbudgets") else {
        return Ok(());
    };
    let mut matching = Vec::new();
    let snapshot = api.store().snapshot(None).map_err(|error| read::read_failed(&error))?;
    for entry in snapshot.range(&codec::prefix(budgets, &path.namespace), None) {
        let entry = entry.map_err(|error| read::broken(&error))?;
        let budget = read::load(budgets, &entry)?;
        let selector = LabelSelector::from_value(&budget["spec"]["selector"]);
        if budget["spec"]["selector"].is_object()
            && selector.is_ok_and(|selector| selector.matches_object(pod))
        {
            matching.push((entry, budget));
        }
    }
    let (entry, budget) = match matching.as_slice() {
        [] => return Ok(()),
        [one] => one,
        _ => {
            let message = "This pod has more than one PodDisruptionBudget, which the eviction \
                           subresource does not support.";
            return Err(ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "", message));
        }
    };
    let name = budget["metadata"]["name"].as_str().unwrap_or_default();
    let status = &budget["status"];
    let number = |field: &str| status[field].as_i64().unwrap_or(0);
    let too_many = |cause: String, retry: Option<u32>| {
        let message = "Cannot evict pod as it would violate the pod's disruption budget.";
        let mut error = ApiError::new(StatusCode::TOO_MANY_REQUESTS, "TooManyRequests", message);
        error = error.caused_by(json!([{"reason": "DisruptionBudget", "message": cause}]));
        if let (Some(seconds), Some(Value::Object(details))) = (retry, &mut error.details) {
            details.insert("retryAfterSeconds".to_owned(), Value::from(seconds));
        }
        error.retry_after = retry;
        error
    };
    // A pod that is not ready may be evicted if the budget is met without it, or if the policy
    // always allows it.
    let always = budget["spec"]["unhealthyPodEvictionPolicy"] == "AlwaysAllow";
    let holds =
        number("currentHealthy") >= number("desiredHealthy") && number("desiredHealthy") > 0;
    if !is_ready(pod) && (always || holds) {
        return Ok(());
    }
    let generation = budget["metadata"]["generation"].as_i64().unwrap_or(0);
    if number("observedGeneration") < generation {
        let cause = format!("The disruption budget {name} is still being processed by the server.");
        return Err(too_many(cause, Some(10)));
    }
    if number("disruptionsAllowed") <= 0 {
        let cause = denied(name, status);
        return Err(too_many(cause, None));
    }
    if dry_run {
        return Ok(());
    }
    let mut spent = budget.clone();
    let left = number("disruptionsAllowed") - 1;
    spent["status"]["disruptionsAllowed"] = Value::from(left);
    if left == 0 {
        set_exhausted(&mut spent["status"], number("observedGeneration"), api.now());
    }
    let pod_name = pod["metadata"]["name"].as_str().unwrap_or_default();
    spent["status"]["disruptedPods"][pod_name] = Value::from(api.now().to_seconds_text());
    let key = entry.key.to_string();
    let transaction = store::Transaction::new()
        .expect_modified_at(key.as_str(), entry.modified)
        .put(key.as_str(), codec::encode(budgets, &spent))
        // An eviction is a deletion.
        .with_reserve();
    match api.store().commit(transaction).await {
        Ok(store::Outcome::Committed { .. }) => Ok(()),
        // Another eviction used it: the client retries.
        Ok(store::Outcome::Conflict { .. }) => Err(too_many(
            format!("The disruption budget {name} is still being processed by the server."),
            Some(10),
        )),
        Err(error) => Err(crate::write::commit_failed(&error)),
    }
}

const DISRUPTION_ALLOWED: &str = "DisruptionAllowed";

/// Returns the reason why a budget allows no eviction. After a failed sync its numbers are not
/// reliable.
fn denied(name: &str, status: &Value) -> String {
    let conditions = status["conditions"].as_array().into_iter().flatten();
    let condition =
        conditions.into_iter().find(|condition| condition["type"] == DISRUPTION_ALLOWED);
    let condition = condition.filter(|condition| condition["status"] == "False");
    let text =
        |condition: &Value, field: &str| condition[field].as_str().unwrap_or_default().to_owned();
    let why = condition.map(|condition| (text(condition, "reason"), text(condition, "message")));
    let number = |field: &str| status[field].as_i64().unwrap_or(0);
    let (needed, healthy) = (number("desiredHealthy"), number("currentHealthy"));
    let no = format!("The disruption budget {name} does not allow evicting pods currently");
    match why.filter(|(_, message)| !message.is_empty()) {
        Some((reason, why)) if reason == "SyncFailed" => {
            format!("{no} because it failed sync: {why}")
        }
        _ if healthy <= needed => format!(
            "The disruption budget {name} needs {needed} healthy pods and has {healthy} currently"
        ),
        Some((reason, why)) => format!("{no} ({reason}): {why}"),
        None => no,
    }
}

/// Sets the condition of an exhausted budget.
fn set_exhausted(status: &mut Value, generation: i64, now: Timestamp) {
    let condition = json!({
        "type": DISRUPTION_ALLOWED, "status": "False", "reason": "InsufficientPods", "message": "",
        "observedGeneration": generation, "lastTransitionTime": now.to_seconds_text(),
    });
    let mut conditions = status["conditions"].as_array().cloned().unwrap_or_default();
    match conditions.iter_mut().find(|condition| condition["type"] == DISRUPTION_ALLOWED) {
        Some(found) => {
            let since = found["lastTransitionTime"].clone();
            let stays = found["status"] == "False";
            *found = condition;
            if stays {
                found["lastTransitionTime"] = since;
            }
        }
        None => conditions.push(condition),
    }
    status["conditions"] = Value::from(conditions);
}

/// Returns a scale in the accepted format.
fn scale_reply(context: RequestContext<'_>, scale: &Value) -> Result<Reply, ApiError> {
    let RequestContext { api, request, format, .. } = context;
    let shown = match format.representation {
        Representation::Plain => return Ok(read::encoded(scale, StatusCode::OK, format)),
        Representation::Table => {
            table::of_scale(scale, read::table_form(request, format)?, api.now())
        }
        Representation::PartialMetadata => table::partial_metadata(scale, format.version),
        Representation::PartialMetadataList => {
            return Err(ApiError::not_acceptable(
                "you requested PartialObjectMetadataList, but the requested object is not a list \
                 (*autoscaling.Scale)",
            ));
        }
    };
    if format.is_protobuf() {
        let bytes = read::enveloped(scale_expected()?.type_id, &shown)?;
        return Ok(Reply::bytes(StatusCode::OK, PROTOBUF, bytes));
    }
    Ok(read::encoded(&shown, StatusCode::OK, format))
}

fn scale_expected() -> Result<Expected<'static>, ApiError> {
    Expected::named("Scale", "autoscaling/v1".to_owned(), SCALE)
}

pub(crate) async fn update_scale(
    context: RequestContext<'_>,
    options: &WriteOptions,
) -> Result<Reply, ApiError> {
    let RequestContext { request, path, .. } = context;
    let received = decode::body(request, &scale_expected()?)?;
    let mut scale = received.object;
    write::check_namespace(path, &mut scale)?;
    write::check_name(path, &scale)?;
    let change = move |_: &Value| Ok(scale.clone());
    let reply = write_scale(context, options, Owners::ToTrack, change).await?;
    Ok(reply.with_warnings(received.warnings))
}

pub(crate) async fn patch_scale(
    context: RequestContext<'_>,
    kind: PatchKind,
    options: &WriteOptions,
) -> Result<Reply, ApiError> {
    let RequestContext { request, path, .. } = context;
    let validation = FieldValidation::of(request)?;
    let id = scale_expected()?.type_id;
    let mut warnings = Vec::new();
    let change = |scale: &Value| {
        let (patched, strict) = write::patched_type(id, kind, scale, &request.body, validation)?;
        warnings = strict;
        write::check_request(path, &patched)?;
        Ok(patched)
    };
    let reply = write_scale(context, options, Owners::ToTrack, change).await?;
    Ok(reply.with_warnings(warnings))
}

/// Server-side apply of a scale.
pub(crate) async fn apply_scale(
    context: RequestContext<'_>,
    options: &WriteOptions,
) -> Result<Reply, ApiError> {
    let RequestContext { api, request, path, .. } = context;
    let received = crate::apply_body::read(request, path)?;
    let (schema, expected) = (Schema::served(), scale_expected()?);
    let by = scale_manager(options);
    let (force, now) = (request.query.flag("force"), api.now());
    let change = |scale: &Value| {
        let id = expected.type_id;
        let merged = apply::apply(schema, id, Some(scale), &received.object, &by, force, now)
            .map_err(|error| write::apply_failed(&error))?;
        let decoded = schema
            .decode_value(id, merged)
            .map_err(|error| ApiError::bad_request(error.to_string()))?;
        write::check_request(path, &decoded.value)?;
        Ok(decoded.value)
    };
    let reply = write_scale(context, options, Owners::Known, change).await?;
    Ok(reply.with_warnings(received.warnings))
}

/// Returns the field manager of a scale.
fn scale_manager(options: &WriteOptions) -> FieldManager<'_> {
    FieldManager { name: &options.manager, subresource: "scale", api_version: "autoscaling/v1" }
}

/// The state of the managed fields of a changed scale.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Owners {
    ToTrack,
    Known,
}

async fn write_scale(
    context: RequestContext<'_>,
    options: &WriteOptions,
    owners: Owners,
    mut change: impl FnMut(&Value) -> Result<Value, ApiError> + Send,
) -> Result<Reply, ApiError> {
    let RequestContext { api, path, .. } = context;
    let whole = ResourcePath { subresource: None, ..path.clone() };
    if let Err(error) = read::find(api, &whole) {
        return Err(no_such_scale(path, error));
    }
    let version = path.resource.api_version();
    let by = scale_manager(options);
    let (id, now) = (scale_expected()?.type_id, api.now());
    let mut rescale = |old: &Value| {
        let mut before = scale::of(old);
        before["metadata"]["managedFields"] = apply::scale::to_scale(old);
        let mut requested = change(&before)?;
        let causes = scale::validate(&requested);
        if !causes.is_empty() {
            return Err(ApiError::invalid_kind("autoscaling", "Scale", &path.name, &causes));
        }
        check_scale_uid(path, old, &requested)?;
        if owners == Owners::ToTrack {
            apply::track_update(Schema::served(), id, Some(&before), &mut requested, &by, now);
        }
        let mut new = scale::apply(old, &requested);
        new["metadata"]["managedFields"] = apply::scale::to_workload(old, &requested, &version);
        Ok(new)
    };
    let written = write::guaranteed_update(
        RequestContext { path: &whole, ..context },
        options,
        Origin::Applied,
        &mut rescale,
    )
    .await?;
    scale_reply(context, &scale::of(&written.object))
}

/// Converts a 404 so that it names the scale.
fn no_such_scale(path: &ResourcePath, error: ApiError) -> ApiError {
    if error.code != StatusCode::NOT_FOUND {
        return error;
    }
    let (kind, group) = (format!("{}/scale", path.resource.plural), path.resource.group);
    let message = format!("{kind}.{group} {:?} not found", path.name);
    ApiError::new(StatusCode::NOT_FOUND, "NotFound", message)
        .with_details(json!({"name": path.name, "group": group, "kind": kind}))
}

/// Checks that the uid of a scale, if there is one, is that of the object.
fn check_scale_uid(path: &ResourcePath, old: &Value, scale: &Value) -> Result<(), ApiError> {
    let uid = |object: &Value| object["metadata"]["uid"].as_str().unwrap_or_default().to_owned();
    let (requested, found) = (uid(scale), uid(old));
    if requested.is_empty() || requested == found {
        return Ok(());
    }
    let (plural, group) = (path.resource.plural, path.resource.group);
    let message = format!(
        "Operation cannot be fulfilled on {plural}/scale.{group} {:?}: Precondition failed: UID in \
         precondition: {requested}, UID in object meta: {found}",
        path.name
    );
    let details = json!({"name": path.name, "group": group, "kind": format!("{plural}/scale")});
    Err(ApiError::new(StatusCode::CONFLICT, "Conflict", message).with_details(details))
}

/// Returns a resource of the core group.
pub(crate) fn core_resource(plural: &str) -> Result<&'static Resource, ApiError> {
    let missing = || ApiError::internal(format!("{plural} are not served"));
    catalog::find("", "v1", plural).ok_or_else(missing)
}
