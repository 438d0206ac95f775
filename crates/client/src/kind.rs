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

/// Declares the kinds that components use.
macro_rules! kinds {
    ($($name:ident = $kind:expr;)*) => {
        $(pub const $name: Kind = $kind;)*

        #[cfg(test)]
        const ALL: &[Kind] = &[$($name),*];
    };
}

kinds! {
    CONTROLLER_REVISIONS = of("apps", "ControllerRevision", "controllerrevisions");
    DAEMON_SETS = of("apps", "DaemonSet", "daemonsets");
    DEPLOYMENTS = of("apps", "Deployment", "deployments");
    REPLICA_SETS = of("apps", "ReplicaSet", "replicasets");
    JOBS = of("batch", "Job", "jobs");
    LEASES = of("coordination.k8s.io", "Lease", "leases");
    BUDGETS = of("policy", "PodDisruptionBudget", "poddisruptionbudgets");
    CLAIMS = core("PersistentVolumeClaim", "persistentvolumeclaims");
    CONFIG_MAPS = core("ConfigMap", "configmaps");
    EVENTS = core("Event", "events");
    NEW_EVENTS = of("events.k8s.io", "Event", "events");
    NAMESPACES = global(core("Namespace", "namespaces"));
    NODES = global(core("Node", "nodes"));
    PODS = core("Pod", "pods");
    QUOTAS = core("ResourceQuota", "resourcequotas");
    RESOURCE_CLAIMS = of("resource.k8s.io", "ResourceClaim", "resourceclaims");
    RUNTIME_CLASSES = global(of("node.k8s.io", "RuntimeClass", "runtimeclasses"));
    SECRETS = core("Secret", "secrets");
    SERVICES = core("Service", "services");
    SERVICE_ACCOUNTS = core("ServiceAccount", "serviceaccounts");
    SUBJECT_ACCESS_REVIEWS = global(of("authorization.k8s.io", "SubjectAccessReview", "subjectaccessreviews"));
    TOKEN_REVIEWS = global(of("authentication.k8s.io", "TokenReview", "tokenreviews"));
}

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
    fn kinds_match_the_catalog() {
        // Objects of these kinds are read from other API servers only.
        const NOT_SERVED: &[Kind] = &[CLAIMS, RESOURCE_CLAIMS];
        for kind in ALL {
            let found = objects::catalog::find(kind.group, kind.version, kind.plural);
            let expected = (!NOT_SERVED.contains(kind)).then_some(*kind);
            assert_eq!(found.map(Kind::of), expected, "{}", kind.plural);
        }
    }
}
