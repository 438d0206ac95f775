//! Namespaces: the end of one that is deleted, and what each has from the start: an account, and the
//! authority of the API.
//!
//! A namespace that goes takes everything in it along: pods first, then the rest; when nothing is left
//! its finalizer goes. [`conditions`] says how far it is.

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

use crate::work::Reconcile;
use crate::workload::{is_deleting, set_condition, write_status};
use crate::world::{World, text};

const FINALIZER: &str = "kubernetes";

/// How often a namespace with something left in it is looked at.
const AGAIN: Duration = Duration::from_millis(200);

/// What is deleted: pods, then the rest in the order of the catalog. Events of the newer form are the
/// same objects as the others.
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

/// What is left in a namespace: how many of each kind, and how many with which finalizer.
#[derive(Debug, Default, PartialEq, Eq)]
struct Left {
    resources: BTreeMap<String, usize>,
    finalizers: BTreeMap<String, usize>,
}

impl Left {
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

/// The conditions of a namespace that is going.
fn conditions(namespace: &Value, left: &Left, failure: Option<&str>, now: Timestamp) -> Vec<Value> {
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
    if left.resources.is_empty() {
        let message = "All content successfully removed";
        set("NamespaceContentRemaining", false, "ContentRemoved", message);
    } else {
        let parts = left.resources.iter();
        let parts: Vec<_> =
            parts.map(|(kind, count)| format!("{kind} has {count} resource instances")).collect();
        let message = format!("Some resources are remaining: {}", parts.join(", "));
        set("NamespaceContentRemaining", true, "SomeResourcesRemain", &message);
    }
    if left.finalizers.is_empty() {
        let message = "All content-preserving finalizers finished";
        set("NamespaceFinalizersRemaining", false, "ContentHasNoFinalizers", message);
    } else {
        let parts = left.finalizers.iter();
        let parts: Vec<_> =
            parts.map(|(name, count)| format!("{name} in {count} resource instances")).collect();
        let message =
            format!("Some content in the namespace has finalizers remaining: {}", parts.join(", "));
        set("NamespaceFinalizersRemaining", true, "SomeFinalizersRemain", &message);
    }
    all
}

#[derive(Debug)]
pub(crate) struct Namespaces(pub(crate) Arc<World>);

impl Reconcile for Namespaces {
    const NAME: &'static str = "namespace";

    fn reconcile(&self, key: Key) -> BoxFuture<'_, Result<Option<Duration>, Error>> {
        Box::pin(self.bring(key))
    }
}

impl Namespaces {
    async fn bring(&self, key: Key) -> Result<Option<Duration>, Error> {
        let world = &*self.0;
        let Some(namespace) = world.namespaces.get(&key) else { return Ok(None) };
        let finalizers = namespace["spec"]["finalizers"].as_array();
        let ours = finalizers.is_some_and(|all| all.iter().any(|name| name == FINALIZER));
        if !is_deleting(&namespace) || !ours {
            return Ok(None);
        }
        let emptied = self.empty(key.name()).await;
        let failure = emptied.as_ref().err().map(ToString::to_string);
        let nothing = Left::default();
        let told = emptied.as_ref().unwrap_or(&nothing);
        let mut status = namespace["status"].clone();
        status["phase"] = "Terminating".into();
        status["conditions"] =
            conditions(&namespace, told, failure.as_deref(), world.clock.now()).into();
        if emptied.is_err() || !told.resources.is_empty() {
            write_status(world, NAMESPACES, &world.namespaces, &namespace, status).await?;
            emptied?;
            return Ok(Some(AGAIN));
        }
        let fresh: Value = match world.client.get(NAMESPACES, "", key.name()).await {
            Err(error) if error.is_not_found() => return Ok(None),
            found => found?,
        };
        let mut empty = fresh;
        let mut rest = empty["spec"]["finalizers"].as_array().cloned().unwrap_or_default();
        rest.retain(|name| name != FINALIZER);
        empty["spec"]["finalizers"] = rest.into();
        match world.client.update_subresource(NAMESPACES, "finalize", &empty).await {
            Err(error) if error.is_not_found() => Ok(None),
            done => done.map(|_| None),
        }
    }

    /// Deletes what is in a namespace and says what is left of it.
    async fn empty(&self, namespace: &str) -> Result<Left, Error> {
        let client = &self.0.client;
        let mut left = Left::default();
        for kind in contents() {
            let scope = Scope { namespace: namespace.to_owned(), ..Scope::default() };
            let there = client.list_values(kind, &scope).await?;
            if there.is_empty() {
                continue;
            }
            if there.iter().any(|object| !is_deleting(object)) {
                client.delete_all(kind, namespace).await?;
            }
            for object in client.list_values(kind, &scope).await? {
                left.add(kind, &object);
            }
            // Pods use what is around them to the end.
            if kind.plural == "pods" && !left.resources.is_empty() {
                return Ok(left);
            }
        }
        Ok(left)
    }
}

/// Gives every namespace its `default` account.
#[derive(Debug)]
pub(crate) struct ServiceAccounts(pub(crate) Arc<World>);

impl Reconcile for ServiceAccounts {
    const NAME: &'static str = "serviceaccount";

    fn reconcile(&self, key: Key) -> BoxFuture<'_, Result<Option<Duration>, Error>> {
        Box::pin(async move {
            let world = &*self.0;
            let account = Key::new(key.name(), DEFAULT);
            if !stays(world, &key) || world.accounts.get(&account).is_some() {
                return Ok(None);
            }
            let object = json!({
                "kind": "ServiceAccount", "apiVersion": "v1",
                "metadata": {"name": DEFAULT, "namespace": key.name()},
            });
            create_in(world, SERVICE_ACCOUNTS, key.name(), &object).await.map(|()| None)
        })
    }
}

/// What the config map with the authority says of itself; upstream's words.
const DESCRIPTION: (&str, &str) = (
    "kubernetes.io/description",
    "Contains a CA bundle that can be used to verify the kube-apiserver when using internal \
     endpoints such as the internal service IP or kubernetes.default.svc. No other usage is \
     guaranteed across distributions of Kubernetes clusters.",
);

/// Keeps the certificates of the API's authorities in every namespace, for clients in containers.
#[derive(Debug)]
pub(crate) struct RootCa {
    pub(crate) world: Arc<World>,
    pub(crate) certificate: watch::Receiver<String>,
}

/// Sends the keys of all namespaces whenever the authorities change.
pub(crate) async fn on_new_authority(
    world: Arc<World>,
    mut certificate: watch::Receiver<String>,
    keys: mpsc::UnboundedSender<Key>,
) {
    while certificate.changed().await.is_ok() {
        for (key, _) in world.namespaces.all() {
            // A loop that has ended needs no keys.
            let _ = keys.send(key);
        }
    }
}

impl Reconcile for RootCa {
    const NAME: &'static str = "root_ca_cert_publisher";

    fn reconcile(&self, key: Key) -> BoxFuture<'_, Result<Option<Duration>, Error>> {
        Box::pin(async move {
            let world = &*self.world;
            if !stays(world, &key) {
                return Ok(None);
            }
            let there = world.root_cas.get(&Key::new(key.name(), ROOT_CA));
            let wanted = wanted_root_ca(there.as_deref(), &self.certificate.borrow());
            match (wanted, there) {
                (None, _) => Ok(None),
                (Some(map), None) => {
                    create_in(world, CONFIG_MAPS, key.name(), &map).await.map(|()| None)
                }
                (Some(map), Some(_)) => match world.client.update(CONFIG_MAPS, &map).await {
                    // Its end is told too.
                    Err(error) if error.is_not_found() => Ok(None),
                    done => done.map(|_| None),
                },
            }
        })
    }
}

/// The config map with the authority as it is to be; `None` if it is so.
fn wanted_root_ca(there: Option<&Value>, certificate: &str) -> Option<Value> {
    let (name, words) = DESCRIPTION;
    let data = json!({"ca.crt": certificate});
    let Some(there) = there else {
        return Some(json!({
            "kind": "ConfigMap", "apiVersion": "v1",
            "metadata": {"name": ROOT_CA, "annotations": {name: words}},
            "data": data,
        }));
    };
    if there["data"] == data && !text(&there["metadata"]["annotations"][name]).is_empty() {
        return None;
    }
    let mut wanted = there.clone();
    wanted["data"] = data;
    wanted["metadata"]["annotations"][name] = words.into();
    Some(wanted)
}

/// Whether a namespace is there and not about to go.
fn stays(world: &World, key: &Key) -> bool {
    let namespace = world.namespaces.get(key);
    namespace.is_some_and(|namespace| {
        !is_deleting(&namespace) && text(&namespace["status"]["phase"]) != "Terminating"
    })
}

/// Creates an object in a namespace that may have it already or may just be going.
async fn create_in(
    world: &World,
    kind: Kind,
    namespace: &str,
    object: &Value,
) -> Result<(), Error> {
    match world.client.create(kind, namespace, object).await {
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
    fn pods_go_first_and_nothing_is_deleted_twice() {
        let kinds = contents();
        assert_eq!(kinds[0], PODS);
        assert!(kinds.iter().all(|kind| kind.namespaced));
        assert_eq!(kinds.iter().filter(|kind| kind.plural == "events").count(), 1);
        assert!(kinds.iter().any(|kind| kind.plural == "deployments"));
    }

    #[test]
    fn conditions_say_what_is_left() {
        let mut left = Left::default();
        left.add(PODS, &json!({"metadata": {"finalizers": ["x/y"]}}));
        left.add(PODS, &json!({"metadata": {}}));
        let all = conditions(&json!({}), &left, None, Timestamp::new(0, 0));
        let find = |kind: &str| all.iter().find(|c| c["type"] == kind).unwrap();
        assert_eq!(
            find("NamespaceContentRemaining")["message"],
            "Some resources are remaining: pods. has 2 resource instances"
        );
        assert_eq!(
            find("NamespaceFinalizersRemaining")["message"],
            "Some content in the namespace has finalizers remaining: x/y in 1 resource instances"
        );
        let none = conditions(&json!({}), &Left::default(), None, Timestamp::new(0, 0));
        assert!(none.iter().all(|c| c["status"] == "False"), "{none:?}");
    }

    #[test]
    fn the_authority_is_put_back_and_what_others_added_beside_it_stays() {
        let made = wanted_root_ca(None, "cert").unwrap();
        assert_eq!(made["data"], json!({"ca.crt": "cert"}));
        assert_eq!(wanted_root_ca(Some(&made), "cert"), None);
        let mut changed = made.clone();
        changed["data"] = json!({"ca.crt": "cert", "more": "x"});
        changed["metadata"]["labels"] = json!({"a": "b"});
        let back = wanted_root_ca(Some(&changed), "cert").unwrap();
        assert_eq!((&back["data"], &back["metadata"]["labels"]["a"]), (&made["data"], &json!("b")));
        // Words of somebody else are words.
        let mut described = made.clone();
        described["metadata"]["annotations"][DESCRIPTION.0] = "ours".into();
        assert_eq!(wanted_root_ca(Some(&described), "cert"), None);
        let mut bare = made.clone();
        bare["metadata"] = json!({"name": ROOT_CA});
        assert_eq!(wanted_root_ca(Some(&bare), "cert").unwrap()["metadata"], made["metadata"]);
    }
}
