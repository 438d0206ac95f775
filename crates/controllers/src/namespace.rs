//! Namespaces: deletion of their content, the `default` service account, and the config map with
//! the API server's CA certificates.
//!
//! Deleting a namespace deletes its content: pods first, then the rest. The namespace's finalizer
//! is removed when nothing remains. [`conditions`] reports the progress.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use client::kind::{CONFIG_MAPS, Kind, NAMESPACES, SERVICE_ACCOUNTS};
use client::{BoxFuture, Error, Key, Scope};
use objects::catalog::{self, Verb};
use objects::rules::pod::accounts::{DEFAULT, ROOT_CA};
use objects::timestamp::Timestamp;
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};
use tracing::info;

use crate::context::{ControllerContext, text};
use crate::workload::{is_deleting, set_condition, write_status};
use crate::workqueue::Reconcile;

const FINALIZER: &str = "kubernetes";

/// The interval at which a namespace with remaining content is checked.
const RETRY_INTERVAL: Duration = Duration::from_millis(200);

/// Returns the kinds to delete: pods, then the rest in the order of the catalog. The
/// `events.k8s.io` events are the same objects as the core ones.
fn contents() -> Vec<Kind> {
    let served = catalog::RESOURCES.iter().filter(|resource| {
        resource.namespaced
            && resource.verbs.contains(&Verb::DeleteCollection)
            && resource.verbs.contains(&Verb::List)
            && resource.group != "events.k8s.io"
    });
    let mut kinds: Vec<Kind> = served.map(Kind::of).collect();
    kinds.sort_by_key(|kind| kind.plural != "pods");
    kinds
}

/// The remaining content of a namespace: objects by kind, and objects by finalizer.
#[derive(Debug, Default, PartialEq, Eq)]
struct RemainingContent {
    resources: BTreeMap<String, usize>,
    finalizers: BTreeMap<String, usize>,
}

impl RemainingContent {
    fn add(&mut self, kind: Kind, object: &Value) {
        let name = match kind.group {
            "" => format!("{}.", kind.plural),
            group => format!("{}.{group}", kind.plural),
        };
        *self.resources.entry(name).or_default() += 1;
        let finalizers = object["metadata"]["finalizers"].as_array().into_iter().flatten();
        for finalizer in finalizers.filter_map(Value::as_str) {
            *self.finalizers.entry(finalizer.to_owned()).or_default() += 1;
        }
    }
}

/// Returns the conditions of a terminating namespace.
fn conditions(
    namespace: &Value,
    remaining: &RemainingContent,
    failure: Option<&str>,
    now: Timestamp,
) -> Vec<Value> {
    let mut all = crate::workload::conditions(namespace);
    let mut set = |kind: &str, holds: bool, reason: &str, message: &str| {
        set_condition(&mut all, (kind, holds), (reason, message), now, false);
    };
    let discovered = "All resources successfully discovered";
    set("NamespaceDeletionDiscoveryFailure", false, "ResourcesDiscovered", discovered);
    let parsed = "All legacy kube types successfully parsed";
    set("NamespaceDeletionGroupVersionParsingFailure", false, "ParsedGroupVersions", parsed);
    match failure {
        Some(message) => {
            set("NamespaceDeletionContentFailure", true, "ContentDeletionFailed", message);
        }
        None => {
            let message = "All content successfully deleted, may be waiting on finalization";
            set("NamespaceDeletionContentFailure", false, "ContentDeleted", message);
        }
    }
    if remaining.resources.is_empty() {
        let message = "All content successfully removed";
        set("NamespaceContentRemaining", false, "ContentRemoved", message);
    } else {
        let parts = remaining.resources.iter();
        let parts: Vec<_> =
            parts.map(|(kind, count)| format!("{kind} has {count} resource instances")).collect();
        let message = format!("Some resources are remaining: {}", parts.join(", "));
        set("NamespaceContentRemaining", true, "SomeResourcesRemain", &message);
    }
    if remaining.finalizers.is_empty() {
        let message = "All content-preserving finalizers finished";
        set("NamespaceFinalizersRemaining", false, "ContentHasNoFinalizers", message);
    } else {
        let parts = remaining.finalizers.iter();
        let parts: Vec<_> =
            parts.map(|(name, count)| format!("{name} in {count} resource instances")).collect();
        let message =
            format!("Some content in the namespace has finalizers remaining: {}", parts.join(", "));
        set("NamespaceFinalizersRemaining", true, "SomeFinalizersRemain", &message);
    }
    all
}

#[derive(Debug)]
pub(crate) struct Namespaces(pub(crate) Arc<ControllerContext>);

impl Reconcile for Namespaces {
    const NAME: &'static str = "namespace";

    fn reconcile(&self, key: Key) -> BoxFuture<'_, Result<Option<Duration>, Error>> {
        Box::pin(self.sync(key))
    }
}

impl Namespaces {
    async fn sync(&self, key: Key) -> Result<Option<Duration>, Error> {
        let context = &*self.0;
        let Some(namespace) = context.namespaces.get(&key) else { return Ok(None) };
        let finalizers = namespace["spec"]["finalizers"].as_array();
        let ours = finalizers.is_some_and(|all| all.iter().any(|name| name == FINALIZER));
        if !is_deleting(&namespace) || !ours {
            return Ok(None);
        }
        let emptied = self.empty(key.name()).await;
        let failure = emptied.as_ref().err().map(ToString::to_string);
        let nothing = RemainingContent::default();
        let reported = emptied.as_ref().unwrap_or(&nothing);
        let mut status = namespace["status"].clone();
        status["phase"] = "Terminating".into();
        status["conditions"] =
            conditions(&namespace, reported, failure.as_deref(), context.clock.now()).into();
        if emptied.is_err() || !reported.resources.is_empty() {
            write_status(context, NAMESPACES, &context.namespaces, &namespace, status).await?;
            emptied?;
            return Ok(Some(RETRY_INTERVAL));
        }
        let fresh: Value = match context.client.get(NAMESPACES, "", key.name()).await {
            Err(error) if error.is_not_found() => return Ok(None),
            found => found?,
        };
        let mut empty = fresh;
        let mut rest = empty["spec"]["finalizers"].as_array().cloned().unwrap_or_default();
        rest.retain(|name| name != FINALIZER);
        empty["spec"]["finalizers"] = rest.into();
        info!(namespace = key.name(), "all content is deleted; finalizing the namespace");
        match context.client.update_subresource(NAMESPACES, "finalize", &empty).await {
            Err(error) if error.is_not_found() => Ok(None),
            done => done.map(|_| None),
        }
    }

    /// Deletes the content of a namespace and returns what remains.
    async fn empty(&self, namespace: &str) -> Result<RemainingContent, Error> {
        let client = &self.0.client;
        let mut remaining = RemainingContent::default();
        for kind in contents() {
            let scope = Scope { namespace: namespace.to_owned(), ..Scope::default() };
            let existing = client.list_values(kind, &scope).await?;
            if existing.is_empty() {
                continue;
            }
            if existing.iter().any(|object| !is_deleting(object)) {
                client.delete_all(kind, namespace).await?;
            }
            for object in client.list_values(kind, &scope).await? {
                remaining.add(kind, &object);
            }
            // Pods use the other objects until they end.
            if kind.plural == "pods" && !remaining.resources.is_empty() {
                return Ok(remaining);
            }
        }
        Ok(remaining)
    }
}

/// Creates the `default` service account of every namespace.
#[derive(Debug)]
pub(crate) struct ServiceAccounts(pub(crate) Arc<ControllerContext>);

impl Reconcile for ServiceAccounts {
    const NAME: &'static str = "serviceaccount";

    fn reconcile(&self, key: Key) -> BoxFuture<'_, Result<Option<Duration>, Error>> {
        Box::pin(async move {
            let context = &*self.0;
            let account = Key::new(key.name(), DEFAULT);
            if !is_active(context, &key) || context.accounts.get(&account).is_some() {
                return Ok(None);
            }
            let object = json!({
                "kind": "ServiceAccount", "apiVersion": "v1",
                "metadata": {"name": DEFAULT, "namespace": key.name()},
            });
            create_in(context, SERVICE_ACCOUNTS, key.name(), &object).await.map(|()| None)
        })
    }
}

/// The annotation of the config map with the CA certificates; upstream's text.
const DESCRIPTION: (&str, &str) = (
    "kubernetes.io/description",
    "Contains a CA bundle that can be used to verify the kube-apiserver when using internal \
     endpoints such as the internal service IP or kubernetes.default.svc. No other usage is \
     guaranteed across distributions of Kubernetes clusters.",
);

/// Publishes the API server's CA certificates in every namespace, for clients in containers.
#[derive(Debug)]
pub(crate) struct RootCa {
    pub(crate) context: Arc<ControllerContext>,
    pub(crate) certificate: watch::Receiver<String>,
}

/// Queues all namespaces whenever the CA certificates change.
pub(crate) async fn requeue_on_new_ca(
    context: Arc<ControllerContext>,
    mut certificate: watch::Receiver<String>,
    keys: mpsc::UnboundedSender<Key>,
) {
    while certificate.changed().await.is_ok() {
        for (key, _) in context.namespaces.all() {
            // A controller that has ended needs no keys.
            let _ = keys.send(key);
        }
    }
    // The certificates cannot change any more.
    std::future::pending().await
}

impl Reconcile for RootCa {
    const NAME: &'static str = "root_ca_cert_publisher";

    fn reconcile(&self, key: Key) -> BoxFuture<'_, Result<Option<Duration>, Error>> {
        Box::pin(async move {
            let context = &*self.context;
            if !is_active(context, &key) {
                return Ok(None);
            }
            let existing = context.root_cas.get(&Key::new(key.name(), ROOT_CA));
            let desired = desired_root_ca(existing.as_deref(), &self.certificate.borrow());
            match (desired, existing) {
                (None, _) => Ok(None),
                (Some(map), None) => {
                    create_in(context, CONFIG_MAPS, key.name(), &map).await.map(|()| None)
                }
                (Some(map), Some(_)) => match context.client.update(CONFIG_MAPS, &map).await {
                    // The deletion queues the namespace again.
                    Err(error) if error.is_not_found() => Ok(None),
                    done => done.map(|_| None),
                },
            }
        })
    }
}

/// Returns the desired config map with the CA certificates; `None` if the existing one is up to
/// date.
fn desired_root_ca(existing: Option<&Value>, certificate: &str) -> Option<Value> {
    let (name, description) = DESCRIPTION;
    let data = json!({"ca.crt": certificate});
    let Some(existing) = existing else {
        return Some(json!({
            "kind": "ConfigMap", "apiVersion": "v1",
            "metadata": {"name": ROOT_CA, "annotations": {name: description}},
            "data": data,
        }));
    };
    if existing["data"] == data && !text(&existing["metadata"]["annotations"][name]).is_empty() {
        return None;
    }
    let mut desired = existing.clone();
    desired["data"] = data;
    desired["metadata"]["annotations"][name] = description.into();
    Some(desired)
}

/// Returns true if a namespace exists and is not terminating.
fn is_active(context: &ControllerContext, key: &Key) -> bool {
    let namespace = context.namespaces.get(key);
    namespace.is_some_and(|namespace| {
        !is_deleting(&namespace) && text(&namespace["status"]["phase"]) != "Terminating"
    })
}

/// Creates an object in a namespace that may already contain it or may be terminating.
async fn create_in(
    context: &ControllerContext,
    kind: Kind,
    namespace: &str,
    object: &Value,
) -> Result<(), Error> {
    match context.client.create(kind, namespace, object).await {
        Err(error)
            if error.is_already_there()
                || error.is_namespace_terminating()
                || error.is_not_found() =>
        {
            Ok(())
        }
        done => done.map(|_| ()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use client::kind::PODS;

    #[test]
    fn pods_are_deleted_first_and_no_kind_twice() {
        let kinds = contents();
        assert_eq!(kinds[0], PODS);
        assert!(kinds.iter().all(|kind| kind.namespaced));
        assert_eq!(kinds.iter().filter(|kind| kind.plural == "events").count(), 1);
        assert!(kinds.iter().any(|kind| kind.plural == "deployments"));
    }

    #[test]
    fn conditions_list_remaining_content() {
        let mut remaining = RemainingContent::default();
        remaining.add(PODS, &json!({"metadata": {"finalizers": ["x/y"]}}));
        remaining.add(PODS, &json!({"metadata": {}}));
        let all = conditions(&json!({}), &remaining, None, Timestamp::new(0, 0));
        let find = |kind: &str| all.iter().find(|c| c["type"] == kind).unwrap();
        assert_eq!(
            find("NamespaceContentRemaining")["message"],
            "Some resources are remaining: pods. has 2 resource instances"
        );
        assert_eq!(
            find("NamespaceFinalizersRemaining")["message"],
            "Some content in the namespace has finalizers remaining: x/y in 1 resource instances"
        );
        let none = conditions(&json!({}), &RemainingContent::default(), None, Timestamp::new(0, 0));
        assert!(none.iter().all(|c| c["status"] == "False"), "{none:?}");
    }

    #[test]
    fn root_ca_is_restored_and_other_fields_are_kept() {
        let made = desired_root_ca(None, "cert").unwrap();
        assert_eq!(made["data"], json!({"ca.crt": "cert"}));
        assert_eq!(desired_root_ca(Some(&made), "cert"), None);
        let mut changed = made.clone();
        changed["data"] = json!({"ca.crt": "cert", "more": "x"});
        changed["metadata"]["labels"] = json!({"a": "b"});
        let back = desired_root_ca(Some(&changed), "cert").unwrap();
        assert_eq!((&back["data"], &back["metadata"]["labels"]["a"]), (&made["data"], &json!("b")));
        // A description by another writer is kept.
        let mut described = made.clone();
        described["metadata"]["annotations"][DESCRIPTION.0] = "ours".into();
        assert_eq!(desired_root_ca(Some(&described), "cert"), None);
        let mut bare = made.clone();
        bare["metadata"] = json!({"name": ROOT_CA});
        assert_eq!(desired_root_ca(Some(&bare), "cert").unwrap()["metadata"], made["metadata"]);
    }
}
