//! Admission: the checks that depend on other objects. Namespaces, service accounts, priorities,
//! runtime classes, nodes, limits, quotas and Pod Security; [`Plugin`] lists the plugins that can
//! be disabled.
//!
//! Everything is read from the store on demand, so no cache can be stale.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;
use objects::catalog::{self, Resource};
use objects::cursor::Causes;
use objects::rules::pod::accounts::{self, AccountRefusal};
use objects::rules::pod::admission::{self as pods, PodRefusal};
use objects::rules::pod::class_resources;
use objects::rules::pod_security;
use objects::{limits, quota};
use parking_lot::Mutex;
use serde_json::{Value, json};
use store::{Revision, Transaction};

use crate::api::Api;
use crate::bootstrap::NAMESPACES;
use crate::error::ApiError;
use crate::node_restriction;
use crate::plugins::Plugin;
use crate::read;
use crate::request::Request;
use crate::route::ResourcePath;
use crate::subresources::core_resource;
use crate::{codec, random};

/// The time that a pod waits for the `default` service account of its namespace, which a controller
/// creates. About as long as upstream retries.
const ACCOUNT_TIMEOUT: Duration = Duration::from_millis(1500);

/// One lock per namespace with quotas: requests that charge the same quota run one by one instead
/// of conflicting.
#[derive(Debug, Default)]
pub(crate) struct QuotaLocks(Mutex<HashMap<String, Arc<tokio::sync::Mutex<()>>>>);

impl QuotaLocks {
    fn lock(&self, namespace: &str) -> Arc<tokio::sync::Mutex<()>> {
        let mut locks = self.0.lock();
        Arc::clone(locks.entry(namespace.to_owned()).or_default())
    }
}

/// The quotas to be written together with an object.
#[derive(Debug, Default)]
pub(crate) struct QuotaReservation {
    quotas: Vec<(String, Revision, Bytes)>,
    _locked: Option<tokio::sync::OwnedMutexGuard<()>>,
}

impl QuotaReservation {
    pub(crate) fn add_to(&self, transaction: Transaction) -> Transaction {
        self.quotas.iter().fold(transaction, |transaction, (key, at, quota)| {
            transaction.expect_modified_at(key.as_str(), *at).put(key.as_str(), quota.clone())
        })
    }
}

/// Mutates a new object before it is validated.
///
/// `node` is the requesting node, if a node creates the object.
pub(crate) async fn mutate_create(
    api: &Api,
    node: Option<&str>,
    path: &ResourcePath,
    object: &mut Value,
) -> Result<(), ApiError> {
    check_namespace(api, path, object)?;
    if is_pod(path) {
        return fill_in(api, node, path, object).await;
    }
    match node {
        Some(node) => node_restriction::check_create(api, node, path, object),
        None => Ok(()),
    }
}

/// Sets the fields of a new pod that come from other objects: limits, service account, priority,
/// runtime class.
async fn fill_in(
    api: &Api,
    node: Option<&str>,
    path: &ResourcePath,
    pod: &mut Value,
) -> Result<(), ApiError> {
    if api.has(Plugin::LimitRanger) {
        let ranges = limit_ranges(api, &path.namespace)?;
        limits::set_defaults(pod, &ranges.iter().collect::<Vec<_>>());
    }
    if api.has(Plugin::ServiceAccount) {
        fill_in_account(api, path, pod).await?;
    }
    if let Some(node) = node {
        node_restriction::check_create(api, node, path, pod)?;
    }
    if api.has(Plugin::Priority) {
        fill_in_priority(api, path, pod)?;
    }
    if api.has(Plugin::DefaultTolerationSeconds) {
        pods::default_tolerations(pod);
    }
    if api.has(Plugin::RuntimeClass) {
        fill_in_runtime_class(api, path, pod)?;
    }
    let node = pod["spec"]["nodeName"].as_str().unwrap_or_default().to_owned();
    add_topology_labels(api, &node, pod)
}

/// Adds the topology labels of a node to a pod that is bound to it, or to its binding.
pub(crate) fn add_topology_labels(
    api: &Api,
    node: &str,
    object: &mut Value,
) -> Result<(), ApiError> {
    if node.is_empty() || !api.has(Plugin::PodTopologyLabels) {
        return Ok(());
    }
    if let Some(node) = named(api, "", "nodes", node)? {
        pods::add_topology(object, &node);
    }
    Ok(())
}

fn fill_in_priority(api: &Api, path: &ResourcePath, pod: &mut Value) -> Result<(), ApiError> {
    let class = match pod["spec"]["priorityClassName"].as_str() {
        Some(name) if !name.is_empty() => named(api, "scheduling.k8s.io", "priorityclasses", name)?,
        _ => default_priority(api)?,
    };
    let filled = pods::resolve_priority(pod, |_| class.as_ref());
    filled.map_err(|error| pod_refused(path, pod, &error))
}

fn fill_in_runtime_class(api: &Api, path: &ResourcePath, pod: &mut Value) -> Result<(), ApiError> {
    let class = runtime_class(api, pod)?;
    let filled = pods::resolve_runtime_class(pod, |_| class.as_ref());
    filled.map_err(|error| pod_refused(path, pod, &error))
}

fn check_overhead(api: &Api, path: &ResourcePath, pod: &Value) -> Result<(), ApiError> {
    if !is_pod(path) || !api.has(Plugin::RuntimeClass) || pod["spec"]["overhead"].is_null() {
        return Ok(());
    }
    let class = runtime_class(api, pod)?;
    let checked = pods::check_overhead(pod, class.as_ref());
    checked.map_err(|error| pod_refused(path, pod, &error))
}

fn runtime_class(api: &Api, pod: &Value) -> Result<Option<Value>, ApiError> {
    match pod["spec"]["runtimeClassName"].as_str() {
        Some(name) => named(api, "node.k8s.io", "runtimeclasses", name),
        None => Ok(None),
    }
}

fn is_pod(path: &ResourcePath) -> bool {
    path.resource.plural == "pods" && path.resource.group.is_empty()
}

fn pod_refused(path: &ResourcePath, pod: &Value, refused: &PodRefusal) -> ApiError {
    let error = forbidden(path, pod, &refused.to_string());
    match refused.cause() {
        Some(cause) => error.caused_by(json!([{"reason": cause}])),
        None => error,
    }
}

async fn fill_in_account(api: &Api, path: &ResourcePath, pod: &mut Value) -> Result<(), ApiError> {
    let denied = |refused: AccountRefusal, pod: &Value| forbidden(path, pod, &refused.to_string());
    let Some(name) = accounts::of_new(pod).map_err(|refused| denied(refused, pod))? else {
        return Ok(());
    };
    let account = account(api, path, pod, &name).await?;
    let filled = accounts::fill_in(pod, &account, &random::suffix());
    filled.map_err(|refused| denied(refused, pod))
}

/// Checks that ephemeral containers refer only to secrets that the pod's service account may use.
async fn check_ephemeral_containers(
    api: &Api,
    path: &ResourcePath,
    pod: &Value,
) -> Result<(), ApiError> {
    let denied = |refused: AccountRefusal| forbidden(path, pod, &refused.to_string());
    let name = accounts::of_existing(pod).map_err(denied)?;
    let account = account(api, path, pod, name).await?;
    accounts::check_ephemeral(pod, &account).map_err(denied)
}

/// Returns the service account of a pod. Waits for the `default` account, which may not exist yet
/// in a new namespace; other requests do not wait.
async fn account(
    api: &Api,
    path: &ResourcePath,
    pod: &Value,
    name: &str,
) -> Result<Value, ApiError> {
    let resource = core_resource("serviceaccounts")?;
    let key = codec::key(resource, &path.namespace, name);
    let store = api.store();
    let find = || {
        let found = store.get(&key).map_err(|error| read::read_failed(&error))?;
        found.map(|entry| read::load(resource, &entry)).transpose()
    };
    let revision = store.revision();
    let mut found = find()?;
    if found.is_none() && name == accounts::DEFAULT {
        let mut changes = store.watch(&key, revision).map_err(|error| read::read_failed(&error))?;
        let created = async {
            while changes.next().await.is_ok() {
                if let Some(account) = find()? {
                    return Ok(Some(account));
                }
            }
            Ok(None)
        };
        found = tokio::time::timeout(ACCOUNT_TIMEOUT, created).await.unwrap_or(Ok(None))?;
    }
    found.ok_or_else(|| {
        let (namespace, name) = (path.namespace.clone(), name.to_owned());
        forbidden(path, pod, &AccountRefusal::Unknown { namespace, name }.to_string())
    })
}

/// Checks that the namespace of a new object exists and is not terminating.
pub(crate) fn check_namespace(
    api: &Api,
    path: &ResourcePath,
    object: &Value,
) -> Result<(), ApiError> {
    if !path.resource.namespaced {
        return Ok(());
    }
    let namespaces = core_resource("namespaces")?;
    let key = codec::key(namespaces, "", &path.namespace);
    let found = api.store().get(&key).map_err(|error| read::read_failed(&error))?;
    let Some(entry) = found else {
        return Err(ApiError::not_found(namespaces, &path.namespace));
    };
    let namespace = read::load(namespaces, &entry)?;
    if namespace["status"]["phase"] != "Terminating" {
        return Ok(());
    }
    let why = format!(
        "unable to create new content in namespace {} because it is being terminated",
        path.namespace
    );
    Err(forbidden(path, object, &why).caused_by(json!([{
        "reason": "NamespaceTerminating",
        "message": format!("namespace {} is being terminated", path.namespace),
        "field": "metadata.namespace",
    }])))
}

pub(crate) async fn validate_create(
    api: &Api,
    path: &ResourcePath,
    object: &Value,
    warnings: &mut Vec<String>,
) -> Result<QuotaReservation, ApiError> {
    check_limits(api, path, object)?;
    check_pod_security(api, path, object, None, warnings)?;
    check_default_priority(api, path, object)?;
    check_overhead(api, path, object)?;
    reserve_quota(api, path, object, None).await
}

pub(crate) fn mutate_update(
    api: &Api,
    request: &Request,
    path: &ResourcePath,
    old: &Value,
    new: &mut Value,
) -> Result<(), ApiError> {
    if let Some(node) = request.user().node() {
        node_restriction::check_update(node, path, old, new)?;
    }
    if path.resource.plural != "pods" {
        return Ok(());
    }
    // A resize gets the same defaults as a new pod.
    if crate::write::subresource_name(path) == "resize" && api.has(Plugin::LimitRanger) {
        let ranges = limit_ranges(api, &path.namespace)?;
        limits::set_defaults(new, &ranges.iter().collect::<Vec<_>>());
    }
    if api.has(Plugin::Priority) {
        pods::keep_priority(new, old);
    }
    if api.has(Plugin::DefaultTolerationSeconds) {
        pods::default_tolerations(new);
    }
    Ok(())
}

pub(crate) async fn validate_update(
    api: &Api,
    path: &ResourcePath,
    old: &Value,
    new: &Value,
    warnings: &mut Vec<String>,
) -> Result<QuotaReservation, ApiError> {
    let subresource = crate::write::subresource_name(path);
    if subresource == "ephemeralcontainers" && api.has(Plugin::ServiceAccount) {
        check_ephemeral_containers(api, path, new).await?;
    }
    if subresource == "resize" {
        check_limits(api, path, new)?;
    }
    check_pod_security(api, path, new, Some(old), warnings)?;
    // A resize that changes nothing is not checked against the node.
    if subresource == "resize" && new["metadata"]["generation"] != old["metadata"]["generation"] {
        check_node_has(api, path, new)?;
    }
    if subresource.is_empty() {
        check_default_priority(api, path, new)?;
    }
    if matches!(subresource, "" | "resize") {
        reserve_quota(api, path, new, Some(old)).await
    } else {
        Ok(QuotaReservation::default())
    }
}

/// Returns the limit ranges of a namespace.
fn limit_ranges(api: &Api, namespace: &str) -> Result<Vec<Value>, ApiError> {
    let ranges = all(api, core_resource("limitranges")?, namespace)?;
    Ok(ranges.into_iter().map(|(_, _, range)| range).collect())
}

fn check_limits(api: &Api, path: &ResourcePath, object: &Value) -> Result<(), ApiError> {
    if !is_pod(path) || !api.has(Plugin::LimitRanger) {
        return Ok(());
    }
    let ranges = limit_ranges(api, &path.namespace)?;
    let violations = limits::check_pod(object, &ranges.iter().collect::<Vec<_>>());
    match limits::message(&violations) {
        Some(message) => Err(forbidden(path, object, &message)),
        None => Ok(()),
    }
}

/// Checks that a resized pod fits the node's allocatable resources, regardless of other pods.
fn check_node_has(api: &Api, path: &ResourcePath, pod: &Value) -> Result<(), ApiError> {
    let node = match pod["spec"]["nodeName"].as_str() {
        Some(name) if !name.is_empty() => named(api, "", "nodes", name)?,
        _ => None,
    };
    let checked = pods::check_resize(pod, |_| node.as_ref());
    checked.map_err(|error| pod_refused(path, pod, &error))
}

/// Charges a write to the quotas of its namespace. The reservation is held until the write is
/// committed, so that the next request sees the new usage.
async fn reserve_quota(
    api: &Api,
    path: &ResourcePath,
    object: &Value,
    old: Option<&Value>,
) -> Result<QuotaReservation, ApiError> {
    let counted = path.resource.namespaced && path.resource.plural != "resourcequotas";
    if !counted || !api.has(Plugin::ResourceQuota) {
        return Ok(QuotaReservation::default());
    }
    let quotas = core_resource("resourcequotas")?;
    let prefix = codec::prefix(quotas, &path.namespace);
    let snapshot = api.store().snapshot(None).map_err(|error| read::read_failed(&error))?;
    if snapshot.range(&prefix, None).next().is_none() {
        return Ok(QuotaReservation::default());
    }
    let locked = api.shared.quota.lock(&path.namespace).lock_owned().await;
    let found = all(api, quotas, &path.namespace)?;
    let values: Vec<&Value> = found.iter().map(|(_, _, quota)| quota).collect();
    let charged = quota::charge(&values, path.resource, object, old, api.now())
        .map_err(|exceeded| forbidden(path, object, &exceeded.to_string()))?;
    let mut written = Vec::new();
    for quota in charged {
        let name = &quota["metadata"]["name"];
        let stored_quota = found.iter().find(|(_, _, before)| before["metadata"]["name"] == *name);
        if let Some((key, at, _)) = stored_quota {
            written.push((key.clone(), *at, codec::encode(quotas, &quota)));
        }
    }
    Ok(QuotaReservation { quotas: written, _locked: Some(locked) })
}

/// Checks that there is at most one default priority class.
fn check_default_priority(api: &Api, path: &ResourcePath, object: &Value) -> Result<(), ApiError> {
    let is_default = path.resource.plural == "priorityclasses" && object["globalDefault"] == true;
    if !is_default || !api.has(Plugin::Priority) {
        return Ok(());
    }
    match default_priority(api)? {
        Some(other) if other["metadata"]["name"] != object["metadata"]["name"] => {
            let name = other["metadata"]["name"].as_str().unwrap_or_default();
            let why = format!(
                "PriorityClass {name} is already marked as default. Only one default can exist"
            );
            Err(forbidden(path, object, &why))
        }
        _ => Ok(()),
    }
}

/// Returns the default priority class, if there is one.
fn default_priority(api: &Api) -> Result<Option<Value>, ApiError> {
    let Some(classes) = catalog::find("scheduling.k8s.io", "v1", "priorityclasses") else {
        return Ok(None);
    };
    let classes = all(api, classes, "")?.into_iter().map(|(_, _, class)| class);
    // If there are several, the one with the lowest value is used.
    Ok(classes
        .filter(|class| class["globalDefault"] == true)
        .min_by_key(|class| class["value"].as_i64().unwrap_or(0)))
}

/// Checks pods, and the templates of workloads, against the Pod Security levels of their namespace.
fn check_pod_security(
    api: &Api,
    path: &ResourcePath,
    object: &Value,
    old: Option<&Value>,
    warnings: &mut Vec<String>,
) -> Result<(), ApiError> {
    if !api.has(Plugin::PodSecurity) {
        return Ok(());
    }
    let resource = path.resource;
    let subresource = crate::write::subresource_name(path);
    let is_pod = is_pod(path);
    let template = matches!(resource.plural, "deployments" | "replicasets" | "daemonsets" | "jobs");
    if resource.plural == "namespaces" && resource.group.is_empty() {
        return check_namespace_labels(api, path, object, old, warnings);
    }
    if !(is_pod && matches!(subresource, "" | "ephemeralcontainers")
        || template && subresource.is_empty())
    {
        return Ok(());
    }
    let namespace = named(api, "", "namespaces", &path.namespace)?.unwrap_or_default();
    let mut causes = Causes::default();
    let policy = pod_security::Policy::of_labels(&namespace["metadata"]["labels"], &mut causes);
    let review = if is_pod {
        if old.is_some_and(|old| !pod_security::is_significant(object, old)) {
            return Ok(());
        }
        pod_security::review_pod(&policy, &object["metadata"], &object["spec"])
    } else {
        let template = &object["spec"]["template"];
        pod_security::review_template(&policy, &template["metadata"], &template["spec"])
    };
    if let Some(message) = review.refusal {
        return Err(forbidden(path, object, &message));
    }
    warnings.extend(review.warnings);
    Ok(())
}

/// Checks that the level labels are valid, and warns about existing pods that violate a stricter
/// level.
fn check_namespace_labels(
    api: &Api,
    path: &ResourcePath,
    namespace: &Value,
    old: Option<&Value>,
    warnings: &mut Vec<String>,
) -> Result<(), ApiError> {
    let mut causes = Causes::default();
    let policy = pod_security::Policy::of_labels(&namespace["metadata"]["labels"], &mut causes);
    let mut before = Causes::default();
    let old_policy =
        old.map(|old| pod_security::Policy::of_labels(&old["metadata"]["labels"], &mut before));
    let name = namespace["metadata"]["name"].as_str().unwrap_or_default();
    if !causes.is_empty() && before.is_empty() {
        return Err(ApiError::invalid(path.resource, name, &causes));
    }
    if let Some(old_policy) = old_policy {
        let pods: Vec<Value> =
            all(api, core_resource("pods")?, name)?.into_iter().map(|(_, _, pod)| pod).collect();
        warnings.extend(pod_security::review_namespace(name, &old_policy, &policy, &pods));
    }
    Ok(())
}

/// Validates a change of QoS classes. For a bound pod, the node reports which resources can change
/// while a container runs; an unbound pod may change all.
pub(crate) fn class_changes(api: &Api, old: &Value, new: &Value) -> Result<Causes, ApiError> {
    let Some(node) = old["spec"]["nodeName"].as_str().filter(|node| !node.is_empty()) else {
        return Ok(Causes::default());
    };
    let node = named(api, "", "nodes", node)?.unwrap_or_default();
    let listed = &node["status"]["qosResources"]["containerQOSResources"];
    let listed = listed.as_array().map(Vec::as_slice).unwrap_or_default();
    Ok(class_resources::validate_changes(new, old, |name| {
        let has_name = |resource: &&Value| {
            class_resources::full_name(resource["name"].as_str().unwrap_or_default()) == name
        };
        listed.iter().find(has_name).map(|resource| resource["mutable"] == true)
    }))
}

/// Rejects deletions that a node is not allowed to make, and deletions of built-in namespaces.
pub(crate) fn check_delete(
    node: Option<&str>,
    path: &ResourcePath,
    object: &Value,
) -> Result<(), ApiError> {
    if let Some(node) = node {
        node_restriction::check_delete(node, path, object)?;
    }
    let undeletable = &NAMESPACES[..3];
    if path.resource.plural == "namespaces" && undeletable.contains(&path.name.as_str()) {
        let why = "this namespace may not be deleted";
        return Err(ApiError::forbidden(path.resource, &path.name, why));
    }
    Ok(())
}

/// Returns all objects of a resource, or those of a namespace.
pub(crate) fn all(
    api: &Api,
    resource: &Resource,
    namespace: &str,
) -> Result<Vec<(String, Revision, Value)>, ApiError> {
    let snapshot = api.store().snapshot(None).map_err(|error| read::read_failed(&error))?;
    let mut found = Vec::new();
    for entry in snapshot.range(&codec::prefix(resource, namespace), None) {
        let entry = entry.map_err(|error| read::broken(&error))?;
        found.push((entry.key.to_string(), entry.modified, read::load(resource, &entry)?));
    }
    Ok(found)
}

/// Returns a cluster-scoped object by name.
pub(crate) fn named(
    api: &Api,
    group: &str,
    plural: &str,
    name: &str,
) -> Result<Option<Value>, ApiError> {
    let Some(resource) = catalog::find(group, "v1", plural) else { return Ok(None) };
    let key = codec::key(resource, "", name);
    let found = api.store().get(&key).map_err(|error| read::read_failed(&error))?;
    found.map(|entry| read::load(resource, &entry)).transpose()
}

/// Returns the error of an admission plugin. An object without a name is referred to by its
/// `generateName`.
pub(crate) fn forbidden(path: &ResourcePath, object: &Value, why: &str) -> ApiError {
    let given = |field: &str| object["metadata"][field].as_str().filter(|name| !name.is_empty());
    let name = given("name").or_else(|| given("generateName")).unwrap_or("Unknown");
    let error = ApiError::forbidden(path.resource, name, why);
    debug_assert_eq!(error.code, StatusCode::FORBIDDEN);
    error
}
