//! The Node authorizer: the requests that a node may send, as upstream's authorization mode `Node`.
//!
//! A node may read itself, its pods and the objects that its pods refer to. Mirror pods do not
//! count, because a node creates them itself. [`crate::node_restriction`] limits what a node may
//! write.

use objects::rules::pod::references;
use objects::selector::FieldSelector;
use serde_json::Value;

use crate::api::Api;
use crate::codec;
use crate::error::ApiError;
use crate::identity::AuthorizerAttributes;
use crate::node_restriction::MIRROR;
use crate::read;
use crate::subresources::core_resource;

pub(crate) const LEASE_NAMESPACE: &str = "kube-node-lease";

/// The requests that every node may send: verbs, group, resources. Upstream's rules of
/// `system:node` that do not depend on objects.
const RULES: &[(&[&str], &str, &[&str])] = &[
    (&["create"], "authentication.k8s.io", &["tokenreviews"]),
    (&["create"], "authorization.k8s.io", &["localsubjectaccessreviews", "subjectaccessreviews"]),
    (READ, "", &["services"]),
    (&["create", "patch", "update"], "", &["events"]),
    (&["create", "patch", "update"], "events.k8s.io", &["events"]),
    (&["get"], "", &["endpoints"]),
    (&["create", "get", "list", "watch"], "certificates.k8s.io", &["certificatesigningrequests"]),
    (READ, "storage.k8s.io", &["csidrivers"]),
    (READ, "node.k8s.io", &["runtimeclasses"]),
    (READ, "certificates.k8s.io", &["clustertrustbundles"]),
];

const READ: &[&str] = &["get", "list", "watch"];

/// The decision; a denial has the reason for the client, which may be empty.
pub(crate) type Decision = Result<(), String>;

const ALLOW: Result<Decision, ApiError> = Ok(Ok(()));

fn deny(reason: impl Into<String>) -> Result<Decision, ApiError> {
    Ok(Err(reason.into()))
}

/// Decides on a request of a node. Fails only if the store cannot be read.
pub(crate) fn authorize(
    api: &Api,
    user: &str,
    node: &str,
    attributes: &AuthorizerAttributes<'_>,
) -> Result<Decision, ApiError> {
    if node.is_empty() {
        return deny(format!("unknown node for user {user:?}"));
    }
    let AuthorizerAttributes::Resource {
        verb, group, resource, subresource, namespace, name, ..
    } = *attributes
    else {
        return deny("");
    };
    let request = NodeRequest { api, node, namespace, name };
    match (group, resource) {
        ("", "secrets" | "configmaps") => match (verb, subresource) {
            ("get" | "list" | "watch", "") if namespace.is_empty() => {
                deny("can only read namespaced object of this type")
            }
            ("get" | "list" | "watch", "") => request.related(resource),
            ("get" | "list" | "watch", _) => deny("cannot read subresource"),
            _ => deny("can only read resources of this type"),
        },
        ("", "persistentvolumeclaims") if subresource == "status" => match verb {
            "update" | "patch" => request.related(resource),
            _ => deny("can only get/update/patch this type"),
        },
        ("", "persistentvolumeclaims" | "persistentvolumes")
        | ("resource.k8s.io", "resourceclaims")
        | ("storage.k8s.io", "volumeattachments") => request.single(verb, resource, subresource),
        ("", "serviceaccounts") => match (verb, subresource) {
            ("get", "") => request.related(resource),
            ("create", "token") if !name.is_empty() => request.related(resource),
            ("create", _) if !name.is_empty() => {
                deny("can only create token subresource of serviceaccount")
            }
            _ => deny("can only create tokens for individual service accounts"),
        },
        ("coordination.k8s.io", "leases") => match verb {
            "get" | "create" | "update" | "patch" | "delete" if namespace != LEASE_NAMESPACE => {
                deny(format!("can only access leases in the {LEASE_NAMESPACE:?} system namespace"))
            }
            "create" => ALLOW,
            "get" | "update" | "patch" | "delete" if name == node => ALLOW,
            "get" | "update" | "patch" | "delete" => {
                deny("can only access node lease with the same name as the requesting node")
            }
            _ => deny("can only get, create, update, patch, or delete a node lease"),
        },
        ("storage.k8s.io", "csinodes") => match verb {
            "get" | "create" | "update" | "patch" | "delete" if !subresource.is_empty() => {
                deny("cannot authorize CSINode subresources")
            }
            "create" => ALLOW,
            "get" | "update" | "patch" | "delete" if name == node => ALLOW,
            "get" | "update" | "patch" | "delete" => {
                deny("can only access CSINode with the same name as the requesting node")
            }
            _ => deny("can only get, create, update, patch, or delete a CSINode"),
        },
        ("resource.k8s.io", "resourceslices") => match verb {
            _ if !subresource.is_empty() => deny("cannot authorize ResourceSlice subresources"),
            "create" => ALLOW,
            "get" | "update" | "patch" | "delete" => request.related(resource),
            "watch" | "list" | "deletecollection" if selects(attributes, "spec.nodeName", node) => {
                ALLOW
            }
            "watch" | "list" | "deletecollection" => {
                let what = "list/watch/deletecollection resourceslices";
                deny(format!("can only {what} with nodeName field selector"))
            }
            _ => deny(
                "only the following verbs are allowed for a ResourceSlice: get, watch, list, \
                 create, update, patch, delete, deletecollection",
            ),
        },
        ("certificates.k8s.io", "podcertificaterequests") => match verb {
            "create" if subresource.is_empty() => ALLOW,
            "get" => request.single(verb, resource, subresource),
            "list" | "watch" if selects(attributes, "spec.nodeName", node) => ALLOW,
            "list" | "watch" => {
                deny("can only list/watch podcertificaterequests with nodeName field selector")
            }
            _ => deny(""),
        },
        ("", "nodes") => match (subresource, verb) {
            ("", "create" | "update" | "patch") | ("status", "update" | "patch") => ALLOW,
            ("", "get" | "list" | "watch") if name == node => ALLOW,
            ("", "get" | "list" | "watch") if name.is_empty() => {
                deny(format!("node '{node}' cannot read all nodes, only its own Node object"))
            }
            ("", "get" | "list" | "watch") => {
                deny(format!("node '{node}' cannot read '{name}', only its own Node object"))
            }
            _ => deny(""),
        },
        ("", "pods") => match (subresource, verb) {
            ("", "get") => request.related(resource),
            ("", "list" | "watch") if selects(attributes, "spec.nodeName", node) => ALLOW,
            ("", "list" | "watch") if !name.is_empty() => request.related(resource),
            ("", "list" | "watch") => {
                deny("can only list/watch pods with spec.nodeName field selector")
            }
            ("", "create" | "delete") | ("status", "update" | "patch") | ("eviction", "create") => {
                ALLOW
            }
            _ => deny(""),
        },
        _ => {
            let covers = |(verbs, of, resources): &(&[&str], &str, &[&str])| {
                verbs.contains(&verb) && *of == group && resources.contains(&resource)
            };
            match subresource.is_empty() && RULES.iter().any(covers) {
                true => ALLOW,
                false => deny(""),
            }
        }
    }
}

/// Returns true if a list or watch is limited to objects whose field has this value.
fn selects(attributes: &AuthorizerAttributes<'_>, field: &str, value: &str) -> bool {
    let AuthorizerAttributes::Resource { selector, .. } = attributes else { return false };
    FieldSelector::parse(selector)
        .is_ok_and(|selector| selector.requires_exactly(field) == Some(value))
}

/// A request of a node for an object.
struct NodeRequest<'a> {
    api: &'a Api,
    node: &'a str,
    namespace: &'a str,
    name: &'a str,
}

impl NodeRequest<'_> {
    /// Allows getting a single object.
    fn single(&self, verb: &str, resource: &str, subresource: &str) -> Result<Decision, ApiError> {
        match (verb, subresource) {
            ("get", "") => self.related(resource),
            ("get", _) => deny("cannot get subresource"),
            _ => deny("can only get individual resources of this type"),
        }
    }

    /// Allows objects that are bound to the node, or referred to by a pod on it.
    fn related(&self, resource: &str) -> Result<Decision, ApiError> {
        if self.name.is_empty() {
            return deny("No Object name found");
        }
        let name = self.name;
        let is_related = match resource {
            "pods" => self.has_pod()?,
            "secrets" => self.any_pod(|spec| references::secret_names(spec).contains(&name))?,
            "configmaps" => {
                self.any_pod(|spec| references::config_map_names(spec).contains(&name))?
            }
            "serviceaccounts" => self.any_pod(|spec| spec["serviceAccountName"] == name)?,
            // Kinds that are not served have no relations.
            _ => false,
        };
        match is_related {
            true => ALLOW,
            false => {
                deny(format!("no relationship found between node '{}' and this object", self.node))
            }
        }
    }

    fn has_pod(&self) -> Result<bool, ApiError> {
        let pods = core_resource("pods")?;
        let key = codec::key(pods, self.namespace, self.name);
        let entry = self.api.store().get(&key).map_err(|error| read::read_failed(&error))?;
        let pod = entry.map(|entry| read::load(pods, &entry)).transpose()?;
        Ok(pod.is_some_and(|pod| pod["spec"]["nodeName"] == self.node))
    }

    /// Returns true if a pod of the node in this namespace matches, mirror pods excluded.
    fn any_pod(&self, fits: impl Fn(&Value) -> bool) -> Result<bool, ApiError> {
        let pods = core_resource("pods")?;
        let snapshot =
            self.api.store().snapshot(None).map_err(|error| read::read_failed(&error))?;
        for entry in snapshot.range(&codec::prefix(pods, self.namespace), None) {
            let entry = entry.map_err(|error| read::broken(&error))?;
            let pod = read::load(pods, &entry)?;
            let is_mirror = pod["metadata"]["annotations"].get(MIRROR).is_some();
            if pod["spec"]["nodeName"] == self.node && !is_mirror && fits(&pod["spec"]) {
                return Ok(true);
            }
        }
        Ok(false)
    }
}
