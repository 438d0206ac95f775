//! Users and their roles: [`User`].
//!
//! There are four roles: administrators, viewers, nodes, and other authenticated users. Roles are
//! built in; there are no role objects. The listener authenticates users by certificate or token.

use std::collections::BTreeMap;

use objects::catalog::Resource;
use serde_json::{Value, json};

/// An authenticated user.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct User {
    pub name: String,
    pub groups: Vec<String>,
    pub uid: String,
    /// Extra fields, by upstream's names.
    pub extra: BTreeMap<String, Vec<String>>,
}

pub const ADMINISTRATORS: &str = "system:masters";
pub const VIEWERS: &str = "berth:viewers";
pub const NODES: &str = "system:nodes";
pub(crate) const AUTHENTICATED: &str = "system:authenticated";
const NODE_PREFIX: &str = "system:node:";

impl User {
    /// Returns the user of a component in the same process.
    #[must_use]
    pub fn internal(name: &str) -> User {
        User::member(name, ADMINISTRATORS)
    }

    #[must_use]
    pub fn member(name: &str, group: &str) -> User {
        let groups = vec![group.to_owned(), AUTHENTICATED.to_owned()];
        User { name: name.to_owned(), groups, ..User::default() }
    }

    /// Returns the `UserInfo` of reviews and audit events.
    pub(crate) fn to_user_info(&self) -> Value {
        let mut user_info = json!({"username": self.name, "groups": self.groups});
        if !self.uid.is_empty() {
            user_info["uid"] = Value::from(self.uid.as_str());
        }
        if !self.extra.is_empty() {
            user_info["extra"] = json!(self.extra);
        }
        user_info
    }

    #[must_use]
    pub fn is_in(&self, group: &str) -> bool {
        self.groups.iter().any(|own| own == group)
    }

    /// Returns the node that the user is the agent of.
    #[must_use]
    pub fn node(&self) -> Option<&str> {
        self.is_in(NODES).then(|| self.name.strip_prefix(NODE_PREFIX)).flatten()
    }
}

/// The attributes of a request that authorization depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AuthorizerAttributes<'a> {
    Resource {
        verb: &'a str,
        group: &'a str,
        resource: &'a str,
        subresource: &'a str,
        namespace: &'a str,
        name: &'a str,
        /// The field selector of a list or watch, as it was written.
        selector: &'a str,
    },
    Path {
        verb: &'a str,
        path: &'a str,
    },
}

impl<'a> AuthorizerAttributes<'a> {
    #[must_use]
    pub(crate) fn for_resource(
        verb: &'a str,
        resource: &'a Resource,
        subresource: &'a str,
        namespace: &'a str,
        name: &'a str,
    ) -> AuthorizerAttributes<'a> {
        let (group, resource) = (resource.group, resource.plural);
        // A namespace is within itself, so that roles within it can cover it.
        let namespace = if (group, resource) == ("", "namespaces") { name } else { namespace };
        AuthorizerAttributes::Resource {
            verb,
            group,
            resource,
            subresource,
            namespace,
            name,
            selector: "",
        }
    }

    /// Adds a field selector. `single` is the name of the only object that the selector can match;
    /// empty if there may be several.
    #[must_use]
    pub(crate) fn with_field_selector(
        mut self,
        given: &'a str,
        single: &'a str,
    ) -> AuthorizerAttributes<'a> {
        if let AuthorizerAttributes::Resource { verb, name, selector, .. } = &mut self {
            *selector = given;
            if name.is_empty() && matches!(*verb, "list" | "watch") {
                *name = single;
            }
        }
        self
    }

    /// Returns the message of a 403 for this user. `reason` is that of an authorizer; it may be
    /// empty.
    #[must_use]
    pub(crate) fn denied(&self, user: &User, reason: &str) -> String {
        let colon = if reason.is_empty() { "" } else { ": " };
        let message = self.cannot(user);
        format!("{message}{colon}{reason}")
    }

    fn cannot(&self, user: &User) -> String {
        match self {
            AuthorizerAttributes::Path { verb, path } => {
                format!("User {:?} cannot {verb} path {path:?}", user.name)
            }
            AuthorizerAttributes::Resource {
                verb,
                group,
                resource,
                subresource,
                namespace,
                ..
            } => {
                let slash = if subresource.is_empty() { "" } else { "/" };
                let scope = match *namespace {
                    "" => "at the cluster scope".to_owned(),
                    namespace => format!("in the namespace {namespace:?}"),
                };
                format!(
                    "User {:?} cannot {verb} resource \"{resource}{slash}{subresource}\" in API \
                     group {group:?} {scope}",
                    user.name
                )
            }
        }
    }
}

/// Returns true if the role of a user allows the request. The permissions of a node also depend on
/// objects: see [`crate::node_authorizer`].
#[must_use]
pub(crate) fn allows(user: &User, attributes: &AuthorizerAttributes<'_>) -> bool {
    if user.is_in(ADMINISTRATORS) {
        return true;
    }
    match attributes {
        AuthorizerAttributes::Path { verb: "get", path } => {
            is_public(path) || (user.is_in(AUTHENTICATED) && is_open_document(path))
        }
        AuthorizerAttributes::Path { .. } => false,
        AuthorizerAttributes::Resource { verb: "create", group, resource, .. }
            if user.is_in(AUTHENTICATED) && is_self_review(group, resource) =>
        {
            true
        }
        AuthorizerAttributes::Resource { verb, resource, subresource, .. }
            if user.is_in(VIEWERS) =>
        {
            matches!(*verb, "get" | "list" | "watch")
                && *resource != "secrets"
                && !matches!(*subresource, "exec" | "attach" | "portforward" | "proxy" | "token")
        }
        AuthorizerAttributes::Resource { .. } => false,
    }
}

/// Returns true for paths that all authenticated users may read: discovery, OpenAPI, health,
/// version.
fn is_open_document(path: &str) -> bool {
    let below = |root: &str| path == root || path.starts_with(&format!("{root}/"));
    ["/api", "/apis", "/openapi", "/version", "/healthz", "/livez", "/readyz"]
        .into_iter()
        .any(below)
}

/// Returns true for paths that need no credentials: health and version.
#[must_use]
pub(crate) fn is_public(path: &str) -> bool {
    matches!(path, "/healthz" | "/livez" | "/readyz" | "/version" | "/version/")
}

fn is_self_review(group: &str, resource: &str) -> bool {
    matches!(
        (group, resource),
        ("authorization.k8s.io", "selfsubjectaccessreviews" | "selfsubjectrulesreviews")
            | ("authentication.k8s.io", "selfsubjectreviews")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn on<'a>(verb: &'a str, resource: &'a str, name: &'a str) -> AuthorizerAttributes<'a> {
        let (group, subresource, namespace) = ("", "", "a");
        AuthorizerAttributes::Resource {
            verb,
            group,
            resource,
            subresource,
            namespace,
            name,
            selector: "",
        }
    }

    #[test]
    fn viewers_read_everything_but_secrets() {
        let viewer = User::member("v", VIEWERS);
        assert!(allows(&viewer, &on("list", "pods", "")));
        assert!(!allows(&viewer, &on("get", "secrets", "s")));
        assert!(!allows(&viewer, &on("create", "pods", "")));
        assert!(allows(
            &viewer,
            &AuthorizerAttributes::Path { verb: "get", path: "/openapi/v3/api/v1" }
        ));
        assert!(!allows(&viewer, &AuthorizerAttributes::Path { verb: "get", path: "/metrics" }));
    }

    #[test]
    fn node_name_without_the_group_is_not_a_node() {
        let pretender = User::member("system:node:n1", VIEWERS);
        assert_eq!(pretender.node(), None);
        assert!(!allows(&pretender, &on("patch", "nodes", "n1")));
        assert_eq!(User::member("system:node:n1", NODES).node(), Some("n1"));
        assert_eq!(User::member("n1", NODES).node(), None);
        let agent = User::member("system:node:n1", NODES);
        assert!(!allows(&agent, &on("get", "secrets", "s")), "the Node authorizer decides");
    }

    #[test]
    fn user_without_a_role_may_read_discovery_only() {
        let user = User::member("nobody", "other");
        assert!(allows(&user, &AuthorizerAttributes::Path { verb: "get", path: "/apis/apps/v1" }));
        assert!(!allows(&user, &on("get", "pods", "p")));
        assert_eq!(
            on("get", "pods", "p").denied(&user, ""),
            r#"User "nobody" cannot get resource "pods" in API group "" in the namespace "a""#
        );
        let namespaces = objects::catalog::find("", "v1", "namespaces").unwrap();
        assert_eq!(
            AuthorizerAttributes::for_resource("delete", namespaces, "", "", "default")
                .denied(&user, ""),
            "User \"nobody\" cannot delete resource \"namespaces\" in API group \"\" in the \
             namespace \"default\""
        );
    }
}
