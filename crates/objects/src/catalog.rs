//! The resources that are served: every [`Resource`] with its names, verbs and subresources.
//!
//! Routing, discovery, OpenAPI and access reviews all read this one table. [`crate::schema`] has
//! the fields of a kind, [`crate::rules`] its validation.

use crate::schema::{Schema, TypeId};

/// A verb of the API.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Verb {
    Create,
    Delete,
    DeleteCollection,
    Get,
    List,
    Patch,
    Update,
    Watch,
}

impl Verb {
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Verb::Create => "create",
            Verb::Delete => "delete",
            Verb::DeleteCollection => "deletecollection",
            Verb::Get => "get",
            Verb::List => "list",
            Verb::Patch => "patch",
            Verb::Update => "update",
            Verb::Watch => "watch",
        }
    }
}

/// A resource of the API.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Resource {
    /// Empty for the core group.
    pub group: &'static str,
    pub version: &'static str,
    pub kind: &'static str,
    /// `pods`: the name in paths.
    pub plural: &'static str,
    pub singular: &'static str,
    pub short_names: &'static [&'static str],
    pub categories: &'static [&'static str],
    pub namespaced: bool,
    pub verbs: &'static [Verb],
    pub subresources: &'static [Subresource],
    /// The package of the kind's type: `io.k8s.api.core.v1`.
    pub package: &'static str,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Subresource {
    pub name: &'static str,
    pub kind: &'static str,
    /// Group and version of the kind, if they are not those of the resource.
    pub elsewhere: Option<(&'static str, &'static str)>,
    pub verbs: &'static [Verb],
}

impl Resource {
    /// `v1` or `apps/v1`.
    #[must_use]
    pub fn api_version(&self) -> String {
        match self.group {
            "" => self.version.to_owned(),
            group => format!("{group}/{}", self.version),
        }
    }

    /// `pods` or `deployments.apps`: the name in messages.
    #[must_use]
    pub fn qualified(&self) -> String {
        match self.group {
            "" => self.plural.to_owned(),
            group => format!("{}.{group}", self.plural),
        }
    }

    /// Returns the kind's type in the schema.
    #[must_use]
    pub fn type_id(&self, schema: &Schema) -> Option<TypeId> {
        schema.find(&format!("{}.{}", self.package, self.kind))
    }

    /// Reports whether DELETE returns the object instead of a Status.
    #[must_use]
    pub fn returns_deleted(&self) -> bool {
        let plurals = ["pods", "resourcequotas", "serviceaccounts", "services"];
        self.group.is_empty() && plurals.contains(&self.plural)
    }

    /// Returns the group and version in which objects are stored; events of both groups are the
    /// same objects. `None` for kinds that are never stored.
    #[must_use]
    pub fn stored_as(&self) -> Option<(&'static str, &'static str)> {
        match (self.verbs.contains(&Verb::List), self.group) {
            (false, _) => None,
            (true, "events.k8s.io") => Some(("", "v1")),
            (true, group) => Some((group, self.version)),
        }
    }

    #[must_use]
    pub fn subresource(&self, name: &str) -> Option<&'static Subresource> {
        self.subresources.iter().find(|subresource| subresource.name == name)
    }
}

/// Finds the resource of a path.
#[must_use]
pub fn find(group: &str, version: &str, plural: &str) -> Option<&'static Resource> {
    let fits = |r: &&Resource| r.group == group && r.version == version && r.plural == plural;
    RESOURCES.iter().find(fits)
}

/// Finds the resource whose objects have this `apiVersion` and `kind`.
#[must_use]
pub fn of_kind(api_version: &str, kind: &str) -> Option<&'static Resource> {
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    RESOURCES.iter().find(|r| r.group == group && r.version == version && r.kind == kind)
}

const ALL: &[Verb] = &[
    Verb::Create,
    Verb::Delete,
    Verb::DeleteCollection,
    Verb::Get,
    Verb::List,
    Verb::Patch,
    Verb::Update,
    Verb::Watch,
];
const ALL_BUT_COLLECTION: &[Verb] =
    &[Verb::Create, Verb::Delete, Verb::Get, Verb::List, Verb::Patch, Verb::Update, Verb::Watch];
const CREATE: &[Verb] = &[Verb::Create];
const CREATE_GET: &[Verb] = &[Verb::Create, Verb::Get];
const GET: &[Verb] = &[Verb::Get];
const GET_PATCH_UPDATE: &[Verb] = &[Verb::Get, Verb::Patch, Verb::Update];
const UPDATE: &[Verb] = &[Verb::Update];

const fn sub(name: &'static str, kind: &'static str, verbs: &'static [Verb]) -> Subresource {
    Subresource { name, kind, elsewhere: None, verbs }
}

const fn foreign(
    name: &'static str,
    kind: &'static str,
    elsewhere: (&'static str, &'static str),
    verbs: &'static [Verb],
) -> Subresource {
    Subresource { name, kind, elsewhere: Some(elsewhere), verbs }
}

const fn core(
    kind: &'static str,
    plural: &'static str,
    singular: &'static str,
    short_names: &'static [&'static str],
) -> Resource {
    Resource {
        group: "",
        version: "v1",
        kind,
        plural,
        singular,
        short_names,
        categories: &[],
        namespaced: true,
        verbs: ALL,
        subresources: &[],
        package: "io.k8s.api.core.v1",
    }
}

const fn grouped(group: &'static str, package: &'static str, resource: Resource) -> Resource {
    Resource { group, package, ..resource }
}

const IN_ALL: &[&str] = &["all"];
const APPS: &str = "io.k8s.api.apps.v1";
const AUTHENTICATION: &str = "io.k8s.api.authentication.v1";
const AUTHORIZATION: &str = "io.k8s.api.authorization.v1";
const SCALE: (&str, &str) = ("autoscaling", "v1");

const fn review(group: &'static str, package: &'static str, resource: Resource) -> Resource {
    Resource { verbs: CREATE, namespaced: false, ..grouped(group, package, resource) }
}

const AUTHN: &str = "authentication.k8s.io";
const AUTHZ: &str = "authorization.k8s.io";

/// All resources, sorted by name within each group. The order of the groups is upstream's: where a
/// bare name matches several, kubectl takes the first.
#[rustfmt::skip] // A resource a few lines, not a field a line.
pub const RESOURCES: &[Resource] = &[
    Resource { verbs: CREATE, ..core("Binding", "bindings", "binding", &[]) },
    core("ConfigMap", "configmaps", "configmap", &["cm"]),
    core("Event", "events", "event", &["ev"]),
    core("LimitRange", "limitranges", "limitrange", &["limits"]),
    Resource {
        namespaced: false,
        verbs: ALL_BUT_COLLECTION,
        subresources: &[sub("finalize", "Namespace", UPDATE), sub("status", "Namespace", GET_PATCH_UPDATE)],
        ..core("Namespace", "namespaces", "namespace", &["ns"])
    },
    Resource {
        namespaced: false,
        subresources: &[sub("status", "Node", GET_PATCH_UPDATE)],
        ..core("Node", "nodes", "node", &["no"])
    },
    Resource {
        categories: IN_ALL,
        subresources: &[
            sub("attach", "PodAttachOptions", CREATE_GET),
            sub("binding", "Binding", CREATE),
            sub("ephemeralcontainers", "Pod", GET_PATCH_UPDATE),
            foreign("eviction", "Eviction", ("policy", "v1"), CREATE),
            sub("exec", "PodExecOptions", CREATE_GET),
            sub("log", "Pod", GET),
            sub("portforward", "PodPortForwardOptions", CREATE_GET),
            sub("resize", "Pod", GET_PATCH_UPDATE),
            sub("status", "Pod", GET_PATCH_UPDATE),
        ],
        ..core("Pod", "pods", "pod", &["po"])
    },
    Resource {
        subresources: &[sub("status", "ResourceQuota", GET_PATCH_UPDATE)],
        ..core("ResourceQuota", "resourcequotas", "resourcequota", &["quota"])
    },
    core("Secret", "secrets", "secret", &[]),
    Resource {
        subresources: &[foreign("token", "TokenRequest", (AUTHN, "v1"), CREATE)],
        ..core("ServiceAccount", "serviceaccounts", "serviceaccount", &["sa"])
    },
    Resource {
        categories: IN_ALL,
        subresources: &[sub("status", "Service", GET_PATCH_UPDATE)],
        ..core("Service", "services", "service", &["svc"])
    },
    grouped("apps", APPS, core("ControllerRevision", "controllerrevisions", "controllerrevision", &[])),
    Resource {
        categories: IN_ALL,
        subresources: &[sub("status", "DaemonSet", GET_PATCH_UPDATE)],
        ..grouped("apps", APPS, core("DaemonSet", "daemonsets", "daemonset", &["ds"]))
    },
    Resource {
        categories: IN_ALL,
        subresources: &[foreign("scale", "Scale", SCALE, GET_PATCH_UPDATE), sub("status", "Deployment", GET_PATCH_UPDATE)],
        ..grouped("apps", APPS, core("Deployment", "deployments", "deployment", &["deploy"]))
    },
    Resource {
        categories: IN_ALL,
        subresources: &[foreign("scale", "Scale", SCALE, GET_PATCH_UPDATE), sub("status", "ReplicaSet", GET_PATCH_UPDATE)],
        ..grouped("apps", APPS, core("ReplicaSet", "replicasets", "replicaset", &["rs"]))
    },
    grouped("events.k8s.io", "io.k8s.api.events.v1", core("Event", "events", "event", &["ev"])),
    review(AUTHN, AUTHENTICATION, core("SelfSubjectReview", "selfsubjectreviews", "selfsubjectreview", &[])),
    review(AUTHN, AUTHENTICATION, core("TokenReview", "tokenreviews", "tokenreview", &[])),
    Resource {
        namespaced: true,
        ..review(AUTHZ, AUTHORIZATION, core("LocalSubjectAccessReview", "localsubjectaccessreviews", "localsubjectaccessreview", &[]))
    },
    review(AUTHZ, AUTHORIZATION, core("SelfSubjectAccessReview", "selfsubjectaccessreviews", "selfsubjectaccessreview", &[])),
    review(AUTHZ, AUTHORIZATION, core("SelfSubjectRulesReview", "selfsubjectrulesreviews", "selfsubjectrulesreview", &[])),
    review(AUTHZ, AUTHORIZATION, core("SubjectAccessReview", "subjectaccessreviews", "subjectaccessreview", &[])),
    Resource {
        categories: IN_ALL,
        subresources: &[sub("status", "Job", GET_PATCH_UPDATE)],
        ..grouped("batch", "io.k8s.api.batch.v1", core("Job", "jobs", "job", &[]))
    },
    Resource {
        subresources: &[sub("status", "PodDisruptionBudget", GET_PATCH_UPDATE)],
        ..grouped("policy", "io.k8s.api.policy.v1", core("PodDisruptionBudget", "poddisruptionbudgets", "poddisruptionbudget", &["pdb"]))
    },
    Resource {
        namespaced: false,
        ..grouped("scheduling.k8s.io", "io.k8s.api.scheduling.v1", core("PriorityClass", "priorityclasses", "priorityclass", &["pc"]))
    },
    grouped("coordination.k8s.io", "io.k8s.api.coordination.v1", core("Lease", "leases", "lease", &[])),
    Resource {
        namespaced: false,
        ..grouped("node.k8s.io", "io.k8s.api.node.v1", core("RuntimeClass", "runtimeclasses", "runtimeclass", &[]))
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resources_are_found_by_path_and_by_kind() {
        let deployments = find("apps", "v1", "deployments").unwrap();
        assert_eq!(deployments.qualified(), "deployments.apps");
        assert_eq!(of_kind("apps/v1", "Deployment"), Some(deployments));
        assert_eq!(of_kind("v1", "Pod").unwrap().api_version(), "v1");
        assert_eq!(find("apps", "v2", "deployments"), None);
        assert!(find("", "v1", "pods").unwrap().subresource("eviction").is_some());
    }
}
