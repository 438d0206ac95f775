//! Admission: what depends on other objects. Namespaces, service accounts, priorities, runtime
//! classes, nodes, limits, quotas and Pod Security; which of them is on is said by [`Plugin`].
//!
//! Everything is read from the store when it is needed, so there is no cache that could be behind.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
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
use serde_json::{Value, json};
use store::{Revision, Transaction};

use crate::api::Api;
use crate::bootstrap::NAMESPACES;
use crate::node_restriction;
use crate::parts::core;
use crate::plugins::Plugin;
use crate::read;
use crate::refusal::Refusal;
use crate::request::Call;
use crate::route::Place;
use crate::{random, stored};

/// How long a pod waits for the `default` account of its namespace, which a loop makes. About as long
/// as upstream looks for it.
const ACCOUNT_PATIENCE: Duration = Duration::from_millis(1500);

/// One lock per namespace with quotas: requests that charge the same quota go one by one instead
/// of undoing each other's work.
#[derive(Debug, Default)]
pub(crate) struct QuotaLocks(Mutex<HashMap<String, Arc<tokio::sync::Mutex<()>>>>);

impl QuotaLocks {
    fn of(&self, namespace: &str) -> Arc<tokio::sync::Mutex<()>> {
        let mut locks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(locks.entry(namespace.to_owned()).or_default())
    }
}

/// What a write costs: quotas to be written with it.
#[derive(Debug, Default)]
pub(crate) struct Charge {
    quotas: Vec<(String, Revision, Bytes)>,
    _locked: Option<tokio::sync::OwnedMutexGuard<()>>,
}

impl Charge {
    pub(crate) fn add_to(&self, transaction: Transaction) -> Transaction {
        self.quotas.iter().fold(transaction, |transaction, (key, at, quota)| {
            transaction.expect_modified_at(key.as_str(), *at).put(key.as_str(), quota.clone())
        })
    }
}

/// Changes a new object before it is validated.
///
/// `node` is the node that creates it, if one does.
pub(crate) async fn mutate_create(
    api: &Api,
    node: Option<&str>,
    place: &Place,
    object: &mut Value,
) -> Result<(), Refusal> {
    check_namespace(api, place, object)?;
    if is_pod(place) {
        return fill_in(api, node, place, object).await;
    }
    match node {
        Some(node) => node_restriction::check_create(api, node, place, object),
        None => Ok(()),
    }
}

/// Gives a new pod what other objects have for it: limits, account, priority, runtime class.
async fn fill_in(
    api: &Api,
    node: Option<&str>,
    place: &Place,
    pod: &mut Value,
) -> Result<(), Refusal> {
    if api.has(Plugin::LimitRanger) {
        let ranges = limit_ranges(api, &place.namespace)?;
        limits::set_defaults(pod, &ranges.iter().collect::<Vec<_>>());
    }
    if api.has(Plugin::ServiceAccount) {
        fill_in_account(api, place, pod).await?;
    }
    if let Some(node) = node {
        node_restriction::check_create(api, node, place, pod)?;
    }
    if api.has(Plugin::Priority) {
        fill_in_priority(api, place, pod)?;
    }
    if api.has(Plugin::DefaultTolerationSeconds) {
        pods::default_tolerations(pod);
    }
    if api.has(Plugin::RuntimeClass) {
        fill_in_runtime_class(api, place, pod)?;
    }
    let node = pod["spec"]["nodeName"].as_str().unwrap_or_default().to_owned();
    tell_topology(api, &node, pod)
}

/// Says on a pod that comes onto a node, or on its binding, where the node is.
pub(crate) fn tell_topology(api: &Api, node: &str, told: &mut Value) -> Result<(), Refusal> {
    if node.is_empty() || !api.has(Plugin::PodTopologyLabels) {
        return Ok(());
    }
    if let Some(node) = named(api, "", "nodes", node)? {
        pods::add_topology(told, &node);
    }
    Ok(())
}

fn fill_in_priority(api: &Api, place: &Place, pod: &mut Value) -> Result<(), Refusal> {
    let class = match pod["spec"]["priorityClassName"].as_str() {
        Some(name) if !name.is_empty() => named(api, "scheduling.k8s.io", "priorityclasses", name)?,
        _ => default_priority(api)?,
    };
    let filled = pods::resolve_priority(pod, |_| class.as_ref());
    filled.map_err(|refusal| pod_refused(place, pod, &refusal))
}

fn fill_in_runtime_class(api: &Api, place: &Place, pod: &mut Value) -> Result<(), Refusal> {
    let class = runtime_class(api, pod)?;
    let filled = pods::resolve_runtime_class(pod, |_| class.as_ref());
    filled.map_err(|refusal| pod_refused(place, pod, &refusal))
}

fn check_overhead(api: &Api, place: &Place, pod: &Value) -> Result<(), Refusal> {
    if !is_pod(place) || !api.has(Plugin::RuntimeClass) || pod["spec"]["overhead"].is_null() {
        return Ok(());
    }
    let class = runtime_class(api, pod)?;
    let checked = pods::check_overhead(pod, class.as_ref());
    checked.map_err(|refusal| pod_refused(place, pod, &refusal))
}

fn runtime_class(api: &Api, pod: &Value) -> Result<Option<Value>, Refusal> {
    match pod["spec"]["runtimeClassName"].as_str() {
        Some(name) => named(api, "node.k8s.io", "runtimeclasses", name),
        None => Ok(None),
    }
}

fn is_pod(place: &Place) -> bool {
    place.resource.plural == "pods" && place.resource.group.is_empty()
}

fn pod_refused(place: &Place, pod: &Value, refusal: &PodRefusal) -> Refusal {
    let refused = forbidden(place, pod, &refusal.to_string());
    match refusal.cause() {
        Some(cause) => refused.caused_by(json!([{"reason": cause}])),
        None => refused,
    }
}

async fn fill_in_account(api: &Api, place: &Place, pod: &mut Value) -> Result<(), Refusal> {
    let no = |refusal: AccountRefusal, pod: &Value| forbidden(place, pod, &refusal.to_string());
    let Some(name) = accounts::of_new(pod).map_err(|refusal| no(refusal, pod))? else {
        return Ok(());
    };
    let account = account(api, place, pod, &name).await?;
    let filled = accounts::fill_in(pod, &account, &random::suffix());
    filled.map_err(|refusal| no(refusal, pod))
}

/// Ephemeral containers may refer to what their pod's account may.
async fn check_ephemeral_containers(api: &Api, place: &Place, pod: &Value) -> Result<(), Refusal> {
    let no = |refusal: AccountRefusal| forbidden(place, pod, &refusal.to_string());
    let name = accounts::of_existing(pod).map_err(no)?;
    let account = account(api, place, pod, name).await?;
    accounts::check_ephemeral(pod, &account).map_err(no)
}

/// The account of a pod. The `default` one may be about to be made if the namespace is new; only
/// the request that needs it waits.
async fn account(api: &Api, place: &Place, pod: &Value, name: &str) -> Result<Value, Refusal> {
    let resource = core("serviceaccounts")?;
    let key = stored::key(resource, &place.namespace, name);
    let store = api.store();
    let find = || {
        let found = store.get(&key).map_err(|error| read::read_failed(&error))?;
        found.map(|entry| read::load(resource, &entry)).transpose()
    };
    let seen = store.revision();
    let mut found = find()?;
    if found.is_none() && name == accounts::DEFAULT {
        let mut changes = store.watch(&key, seen).map_err(|error| read::read_failed(&error))?;
        let comes = async {
            while changes.next().await.is_ok() {
                if let Some(account) = find()? {
                    return Ok(Some(account));
                }
            }
            Ok(None)
        };
        found = tokio::time::timeout(ACCOUNT_PATIENCE, comes).await.unwrap_or(Ok(None))?;
    }
    found.ok_or_else(|| {
        let (namespace, name) = (place.namespace.clone(), name.to_owned());
        forbidden(place, pod, &AccountRefusal::Unknown { namespace, name }.to_string())
    })
}

/// The namespace of a new object must be there, and must stay.
pub(crate) fn check_namespace(api: &Api, place: &Place, object: &Value) -> Result<(), Refusal> {
    if !place.resource.namespaced {
        return Ok(());
    }
    let namespaces = core("namespaces")?;
    let key = stored::key(namespaces, "", &place.namespace);
    let found = api.store().get(&key).map_err(|error| read::read_failed(&error))?;
    let Some(entry) = found else {
        return Err(Refusal::not_found(namespaces, &place.namespace));
    };
    let namespace = read::load(namespaces, &entry)?;
    if namespace["status"]["phase"] != "Terminating" {
        return Ok(());
    }
    let why = format!(
        "unable to create new content in namespace {} because it is being terminated",
        place.namespace
    );
    Err(forbidden(place, object, &why).caused_by(json!([{
        "reason": "NamespaceTerminating",
        "message": format!("namespace {} is being terminated", place.namespace),
        "field": "metadata.namespace",
    }])))
}

pub(crate) async fn validate_create(
    api: &Api,
    place: &Place,
    object: &Value,
    warnings: &mut Vec<String>,
) -> Result<Charge, Refusal> {
    check_limits(api, place, object)?;
    check_pod_security(api, place, object, None, warnings)?;
    check_default_priority(api, place, object)?;
    check_overhead(api, place, object)?;
    charge(api, place, object, None).await
}

pub(crate) fn mutate_update(
    api: &Api,
    call: &Call,
    place: &Place,
    old: &Value,
    new: &mut Value,
) -> Result<(), Refusal> {
    if let Some(node) = call.user().node() {
        node_restriction::check_update(node, place, old, new)?;
    }
    if place.resource.plural != "pods" {
        return Ok(());
    }
    // Whoever asks for other resources is given what is missing, as whoever asks for the first time.
    if crate::write::part_name(place) == "resize" && api.has(Plugin::LimitRanger) {
        let ranges = limit_ranges(api, &place.namespace)?;
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
    place: &Place,
    old: &Value,
    new: &Value,
    warnings: &mut Vec<String>,
) -> Result<Charge, Refusal> {
    let part = crate::write::part_name(place);
    if part == "ephemeralcontainers" && api.has(Plugin::ServiceAccount) {
        check_ephemeral_containers(api, place, new).await?;
    }
    if part == "resize" {
        check_limits(api, place, new)?;
    }
    check_pod_security(api, place, new, Some(old), warnings)?;
    // Who asks for what there is already is not asked whether it fits.
    if part == "resize" && new["metadata"]["generation"] != old["metadata"]["generation"] {
        check_node_has(api, place, new)?;
    }
    if part.is_empty() {
        check_default_priority(api, place, new)?;
    }
    if matches!(part, "" | "resize") {
        charge(api, place, new, Some(old)).await
    } else {
        Ok(Charge::default())
    }
}

/// The limit ranges of a namespace.
fn limit_ranges(api: &Api, namespace: &str) -> Result<Vec<Value>, Refusal> {
    let ranges = all(api, core("limitranges")?, namespace)?;
    Ok(ranges.into_iter().map(|(_, _, range)| range).collect())
}

fn check_limits(api: &Api, place: &Place, object: &Value) -> Result<(), Refusal> {
    if !is_pod(place) || !api.has(Plugin::LimitRanger) {
        return Ok(());
    }
    let ranges = limit_ranges(api, &place.namespace)?;
    let refusals = limits::check_pod(object, &ranges.iter().collect::<Vec<_>>());
    match limits::message(&refusals) {
        Some(message) => Err(forbidden(place, object, &message)),
        None => Ok(()),
    }
}

/// What a pod is resized to must be there on its node, whoever has it now.
fn check_node_has(api: &Api, place: &Place, pod: &Value) -> Result<(), Refusal> {
    let node = match pod["spec"]["nodeName"].as_str() {
        Some(name) if !name.is_empty() => named(api, "", "nodes", name)?,
        _ => None,
    };
    let checked = pods::check_resize(pod, |_| node.as_ref());
    checked.map_err(|refusal| pod_refused(place, pod, &refusal))
}

/// What a write costs the quotas of its namespace. Held until the write is through, so that the
/// next one sees what this one used.
async fn charge(
    api: &Api,
    place: &Place,
    object: &Value,
    old: Option<&Value>,
) -> Result<Charge, Refusal> {
    let counted = place.resource.namespaced && place.resource.plural != "resourcequotas";
    if !counted || !api.has(Plugin::ResourceQuota) {
        return Ok(Charge::default());
    }
    let quotas = core("resourcequotas")?;
    let prefix = stored::prefix(quotas, &place.namespace);
    let snapshot = api.store().snapshot(None).map_err(|error| read::read_failed(&error))?;
    if snapshot.range(&prefix, None).next().is_none() {
        return Ok(Charge::default());
    }
    let locked = api.shared.quota.of(&place.namespace).lock_owned().await;
    let found = all(api, quotas, &place.namespace)?;
    let values: Vec<&Value> = found.iter().map(|(_, _, quota)| quota).collect();
    let charged = quota::charge(&values, place.resource, object, old, api.now())
        .map_err(|refusal| forbidden(place, object, &refusal.to_string()))?;
    let mut written = Vec::new();
    for quota in charged {
        let name = &quota["metadata"]["name"];
        let of = found.iter().find(|(_, _, before)| before["metadata"]["name"] == *name);
        if let Some((key, at, _)) = of {
            written.push((key.clone(), *at, stored::encode(quotas, &quota)));
        }
    }
    Ok(Charge { quotas: written, _locked: Some(locked) })
}

/// There is one default priority at most.
fn check_default_priority(api: &Api, place: &Place, object: &Value) -> Result<(), Refusal> {
    let is_default = place.resource.plural == "priorityclasses" && object["globalDefault"] == true;
    if !is_default || !api.has(Plugin::Priority) {
        return Ok(());
    }
    match default_priority(api)? {
        Some(other) if other["metadata"]["name"] != object["metadata"]["name"] => {
            let name = other["metadata"]["name"].as_str().unwrap_or_default();
            let why = format!(
                "PriorityClass {name} is already marked as default. Only one default can exist"
            );
            Err(forbidden(place, object, &why))
        }
        _ => Ok(()),
    }
}

/// The class of pods that name none, if there is one.
fn default_priority(api: &Api) -> Result<Option<Value>, Refusal> {
    let Some(classes) = catalog::find("scheduling.k8s.io", "v1", "priorityclasses") else {
        return Ok(None);
    };
    let classes = all(api, classes, "")?.into_iter().map(|(_, _, class)| class);
    // Of several the lowest counts.
    Ok(classes
        .filter(|class| class["globalDefault"] == true)
        .min_by_key(|class| class["value"].as_i64().unwrap_or(0)))
}

/// Holds pods, and the templates of workloads, against the levels their namespace asks for.
fn check_pod_security(
    api: &Api,
    place: &Place,
    object: &Value,
    old: Option<&Value>,
    warnings: &mut Vec<String>,
) -> Result<(), Refusal> {
    if !api.has(Plugin::PodSecurity) {
        return Ok(());
    }
    let resource = place.resource;
    let part = crate::write::part_name(place);
    let is_pod = is_pod(place);
    let template = matches!(resource.plural, "deployments" | "replicasets" | "daemonsets" | "jobs");
    if resource.plural == "namespaces" && resource.group.is_empty() {
        return check_namespace_labels(api, place, object, old, warnings);
    }
    if !(is_pod && matches!(part, "" | "ephemeralcontainers") || template && part.is_empty()) {
        return Ok(());
    }
    let namespace = named(api, "", "namespaces", &place.namespace)?.unwrap_or_default();
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
    if let Some(refusal) = review.refusal {
        return Err(forbidden(place, object, &refusal));
    }
    warnings.extend(review.warnings);
    Ok(())
}

/// Levels must be readable, and a stricter one warns about the pods that are there.
fn check_namespace_labels(
    api: &Api,
    place: &Place,
    namespace: &Value,
    old: Option<&Value>,
    warnings: &mut Vec<String>,
) -> Result<(), Refusal> {
    let mut causes = Causes::default();
    let policy = pod_security::Policy::of_labels(&namespace["metadata"]["labels"], &mut causes);
    let mut before = Causes::default();
    let old_policy =
        old.map(|old| pod_security::Policy::of_labels(&old["metadata"]["labels"], &mut before));
    let name = namespace["metadata"]["name"].as_str().unwrap_or_default();
    if !causes.is_empty() && before.is_empty() {
        return Err(Refusal::invalid(place.resource, name, &causes));
    }
    if let Some(old_policy) = old_policy {
        let pods: Vec<Value> =
            all(api, core("pods")?, name)?.into_iter().map(|(_, _, pod)| pod).collect();
        warnings.extend(pod_security::review_namespace(name, &old_policy, &policy, &pods));
    }
    Ok(())
}

/// What is wrong with the classes a pod's containers are to change to. A pod that is bound asks
/// its node which resources may change while a container runs; one that is not may change all.
pub(crate) fn class_changes(api: &Api, old: &Value, new: &Value) -> Result<Causes, Refusal> {
    let Some(node) = old["spec"]["nodeName"].as_str().filter(|node| !node.is_empty()) else {
        return Ok(Causes::default());
    };
    let node = named(api, "", "nodes", node)?.unwrap_or_default();
    let listed = &node["status"]["qosResources"]["containerQOSResources"];
    let listed = listed.as_array().map(Vec::as_slice).unwrap_or_default();
    Ok(class_resources::validate_changes(new, old, |name| {
        let of = |resource: &&Value| {
            class_resources::full_name(resource["name"].as_str().unwrap_or_default()) == name
        };
        listed.iter().find(of).map(|resource| resource["mutable"] == true)
    }))
}

/// Refuses to delete what a node may not, if a node asks, and namespaces that every cluster has.
pub(crate) fn check_delete(
    node: Option<&str>,
    place: &Place,
    object: &Value,
) -> Result<(), Refusal> {
    if let Some(node) = node {
        node_restriction::check_delete(node, place, object)?;
    }
    let immortal = &NAMESPACES[..3];
    if place.resource.plural == "namespaces" && immortal.contains(&place.name.as_str()) {
        let why = "this namespace may not be deleted";
        return Err(Refusal::forbidden(place.resource, &place.name, why));
    }
    Ok(())
}

/// All objects of a resource, or those of a namespace.
pub(crate) fn all(
    api: &Api,
    resource: &Resource,
    namespace: &str,
) -> Result<Vec<(String, Revision, Value)>, Refusal> {
    let snapshot = api.store().snapshot(None).map_err(|error| read::read_failed(&error))?;
    let mut found = Vec::new();
    for entry in snapshot.range(&stored::prefix(resource, namespace), None) {
        let entry = entry.map_err(|error| read::broken(&error))?;
        found.push((entry.key.to_string(), entry.modified, read::load(resource, &entry)?));
    }
    Ok(found)
}

/// A cluster-scoped object by name.
pub(crate) fn named(
    api: &Api,
    group: &str,
    plural: &str,
    name: &str,
) -> Result<Option<Value>, Refusal> {
    let Some(resource) = catalog::find(group, "v1", plural) else { return Ok(None) };
    let key = stored::key(resource, "", name);
    let found = api.store().get(&key).map_err(|error| read::read_failed(&error))?;
    found.map(|entry| read::load(resource, &entry)).transpose()
}

/// A refusal in the words of an admission plug-in. What has no name yet is called by what its name is
/// to begin with.
pub(crate) fn forbidden(place: &Place, object: &Value, why: &str) -> Refusal {
    let given = |field: &str| object["metadata"][field].as_str().filter(|name| !name.is_empty());
    let name = given("name").or_else(|| given("generateName")).unwrap_or("Unknown");
    let refusal = Refusal::forbidden(place.resource, name, why);
    debug_assert_eq!(refusal.code, StatusCode::FORBIDDEN);
    refusal
}
