//! Kinds of objects by their names in paths: [`Kind`].

use objects::catalog::Resource;

/// A kind as served by the API.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Kind {
    /// Empty for the core group.
    pub group: &'static str,
    pub version: &'static str,
    pub kind: &'static str,
    pub plural: &'static str,
    pub namespaced: bool,
}

const fn core(kind: &'static str, plural: &'static str) -> Kind {
    Kind { group: "", version: "v1", kind, plural, namespaced: true }
}

const fn of(group: &'static str, kind: &'static str, plural: &'static str) -> Kind {
    Kind { group, version: "v1", kind, plural, namespaced: true }
}

const fn global(kind: Kind) -> Kind {
    Kind { namespaced: false, ..kind }
}

pub const CONTROLLER_REVISIONS: Kind = of("apps", "ControllerRevision", "controllerrevisions");
pub const DAEMON_SETS: Kind = of("apps", "DaemonSet", "daemonsets");
pub const DEPLOYMENTS: Kind = of("apps", "Deployment", "deployments");
pub const REPLICA_SETS: Kind = of("apps", "ReplicaSet", "replicasets");
pub const JOBS: Kind = of("batch", "Job", "jobs");
pub const LEASES: Kind = of("coordination.k8s.io", "Lease", "leases");
pub const BUDGETS: Kind = of("policy", "PodDisruptionBudget", "poddisruptionbudgets");
pub const CLAIMS: Kind = core("PersistentVolumeClaim", "persistentvolumeclaims");
pub const CONFIG_MAPS: Kind = core("ConfigMap", "configmaps");
pub const EVENTS: Kind = core("Event", "events");
pub const NEW_EVENTS: Kind = of("events.k8s.io", "Event", "events");
pub const NAMESPACES: Kind = global(core("Namespace", "namespaces"));
pub const NODES: Kind = global(core("Node", "nodes"));
pub const PODS: Kind = core("Pod", "pods");
pub const QUOTAS: Kind = core("ResourceQuota", "resourcequotas");
pub const RESOURCE_CLAIMS: Kind = of("resource.k8s.io", "ResourceClaim", "resourceclaims");
pub const RUNTIME_CLASSES: Kind = global(of("node.k8s.io", "RuntimeClass", "runtimeclasses"));
pub const SECRETS: Kind = core("Secret", "secrets");
pub const SERVICES: Kind = core("Service", "services");
pub const SERVICE_ACCOUNTS: Kind = core("ServiceAccount", "serviceaccounts");
pub const SUBJECT_ACCESS_REVIEWS: Kind =
    global(of("authorization.k8s.io", "SubjectAccessReview", "subjectaccessreviews"));
pub const TOKEN_REVIEWS: Kind = global(of("authentication.k8s.io", "TokenReview", "tokenreviews"));

impl Kind {
    #[must_use]
    pub fn of(resource: &Resource) -> Kind {
        let Resource { group, version, kind, plural, namespaced, .. } = *resource;
        Kind { group, version, kind, plural, namespaced }
    }

    /// Returns `v1` or `apps/v1`.
    #[must_use]
    pub fn api_version(&self) -> String {
        match self.group {
            "" => self.version.to_owned(),
            group => format!("{group}/{}", self.version),
        }
    }

    /// Returns the path of an object, or of all objects. Names must be valid API names.
    #[must_use]
    pub fn path(&self, namespace: &str, name: &str, subresource: &str) -> String {
        let mut path = match self.group {
            "" => format!("/api/{}", self.version),
            group => format!("/apis/{group}/{}", self.version),
        };
        if self.namespaced && !namespace.is_empty() {
            path.push_str("/namespaces/");
            path.push_str(namespace);
        }
        for piece in [self.plural, name, subresource] {
            if !piece.is_empty() {
                path.push('/');
                path.push_str(piece);
            }
        }
        path
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_those_of_the_api() {
        assert_eq!(PODS.path("a", "b", "status"), "/api/v1/namespaces/a/pods/b/status");
        assert_eq!(DEPLOYMENTS.path("", "", ""), "/apis/apps/v1/deployments");
        assert_eq!(NODES.path("ignored", "n", ""), "/api/v1/nodes/n");
    }

    #[test]
    fn served_kinds_match_the_catalog() {
        for kind in [
            CONTROLLER_REVISIONS,
            DAEMON_SETS,
            DEPLOYMENTS,
            REPLICA_SETS,
            JOBS,
            LEASES,
            BUDGETS,
            EVENTS,
            NEW_EVENTS,
            NAMESPACES,
            NODES,
            PODS,
            QUOTAS,
            SERVICES,
            SERVICE_ACCOUNTS,
        ] {
            let found = objects::catalog::find(kind.group, kind.version, kind.plural).unwrap();
            assert_eq!(Kind::of(found), kind);
        }
    }
}
