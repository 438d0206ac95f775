//! Admission: what depends on other objects. Namespaces, priorities, runtime classes, limits,
//! quotas and Pod Security.
//!
//! Everything is read from the store when it is needed, so there is no cache that could be behind.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use http::StatusCode;
use objects::catalog::{self, Resource};
use serde_json::{Value, json};
use store::{Revision, Transaction};

use crate::api::Api;
use crate::bootstrap::NAMESPACES;
use crate::parts::core;
use crate::read;
use crate::refusal::Refusal;
use crate::request::Call;
use crate::route::Place;
use crate::stored;

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
    quotas: Vec<(String, Revision, Value)>,
    _locked: Option<tokio::sync::OwnedMutexGuard<()>>,
}

impl Charge {
    pub(crate) fn add_to(&self, transaction: Transaction) -> Transaction {
        self.quotas.iter().fold(transaction, |transaction, (key, at, quota)| {
            transaction.expect_modified_at(key.as_str(), *at).put(key.as_str(), stored::encode(quota))
        })
    }
}

/// Changes a new object before it is validated.
pub(crate) fn mutate_create(
    api: &Api,
    call: &Call,
    place: &Place,
    object: &mut Value,
) -> Result<(), Refusal> {
    let _ = call;
    check_namespace(api, place, object)?;
    match (place.resource.group, place.resource.plural) {
        ("", "services") => {
            let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
            crate::services::allocate(api, object, &name)?;
        }
        _ => {}
    }
    Ok(())
}

/// The namespace of a new object must be there, and must stay.
fn check_namespace(api: &Api, place: &Place, object: &Value) -> Result<(), Refusal> {
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
    let name = object["metadata"]["name"].as_str().unwrap_or_default();
    let why = format!(
        "unable to create new content in namespace {} because it is being terminated",
        place.namespace
    );
    Err(Refusal::forbidden(place.resource, name, &why).caused_by(json!([{
        "reason": "NamespaceTerminating",
        "message": format!("namespace {} is being terminated", place.namespace),
        "field": "metadata.namespace",
    }])))
}

pub(crate) async fn validate_create(
    api: &Api,
    call: &Call,
    place: &Place,
    object: &Value,
    warnings: &mut Vec<String>,
) -> Result<Charge, Refusal> {
    let _ = (api, call, place, object, warnings);
    Ok(Charge::default())
}

pub(crate) fn mutate_update(
    api: &Api,
    call: &Call,
    place: &Place,
    old: &Value,
    new: &mut Value,
) -> Result<(), Refusal> {
    let _ = (api, call, place, old, new);
    Ok(())
}

pub(crate) async fn validate_update(
    api: &Api,
    call: &Call,
    place: &Place,
    old: &Value,
    new: &Value,
    warnings: &mut Vec<String>,
) -> Result<Charge, Refusal> {
    let _ = (api, call, place, old, new, warnings);
    Ok(Charge::default())
}

/// Some namespaces are not deleted, whoever asks.
pub(crate) fn check_delete(place: &Place, object: &Value) -> Result<(), Refusal> {
    let _ = object;
    let immortal = &NAMESPACES[..3];
    if place.resource.plural == "namespaces" && immortal.contains(&place.name.as_str()) {
        let why = "this namespace may not be deleted";
        return Err(Refusal::forbidden(place.resource, &place.name, why));
    }
    Ok(())
}

/// All objects of a resource, or those of a namespace.
pub(crate) fn all(api: &Api, resource: &Resource, namespace: &str) -> Result<Vec<(String, Revision, Value)>, Refusal> {
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

/// A refusal in the words of an admission plug-in.
pub(crate) fn forbidden(place: &Place, object: &Value, why: &str) -> Refusal {
    let name = object["metadata"]["name"].as_str().unwrap_or_default();
    let refusal = Refusal::forbidden(place.resource, name, why);
    debug_assert_eq!(refusal.code, StatusCode::FORBIDDEN);
    refusal
}
