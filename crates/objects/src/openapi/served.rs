//! Schema and catalog together: [`ServedTypes`] maps types to group, version and kind. Independent
//! of OpenAPI.

use std::collections::BTreeSet;

use crate::catalog::{Resource, Subresource};
use crate::schema::{Schema, Type};

pub(super) const META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1";

#[derive(Debug)]
pub(super) struct ServedTypes<'a> {
    pub(super) schema: &'a Schema,
    pub(super) resources: &'a [Resource],
}

/// The value of `x-kubernetes-group-version-kind`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct GroupVersionKind {
    pub(super) group: String,
    pub(super) version: String,
    pub(super) kind: String,
}

impl GroupVersionKind {
    pub(super) fn new(group: &str, version: &str, kind: &str) -> Self {
        GroupVersionKind {
            group: group.to_owned(),
            version: version.to_owned(),
            kind: kind.to_owned(),
        }
    }
}

impl<'a> ServedTypes<'a> {
    pub(super) fn new(schema: &'a Schema, resources: &'a [Resource]) -> Self {
        ServedTypes { schema, resources }
    }

    /// Returns the group of a package. A package without a resource is named after its group.
    fn group_of(&self, package: &str) -> String {
        let resource = self.resources.iter().find(|resource| resource.package == package);
        match resource {
            Some(resource) => resource.group.to_owned(),
            None => package.rsplit('.').nth(1).unwrap_or_default().to_owned(),
        }
    }

    /// Returns the type of a group, version and kind, which need not be a resource.
    pub(super) fn type_name(&self, group: &str, version: &str, kind: &str) -> Option<String> {
        let fits = |type_: &Type| {
            type_.kind.as_deref() == Some(kind)
                && type_.package != META
                && type_.package.rsplit('.').next() == Some(version)
                && self.group_of(&type_.package) == group
        };
        self.schema.types().find(|(_, type_)| fits(type_)).map(|(_, type_)| type_.full_name())
    }

    /// Returns the kinds of a type. Options belong to every group and version.
    pub(super) fn kinds_of(&self, type_: &Type) -> Vec<GroupVersionKind> {
        let kind = match (&type_.kind, &type_.list_of) {
            (Some(kind), _) => kind.as_str(),
            (None, Some(_)) => type_.name.as_str(),
            (None, None) => return Vec::new(),
        };
        if type_.package != META {
            let version = type_.package.rsplit('.').next().unwrap_or_default();
            return vec![GroupVersionKind::new(&self.group_of(&type_.package), version, kind)];
        }
        if kind != "DeleteOptions" {
            return vec![GroupVersionKind::new("", "v1", kind)];
        }
        let versions: BTreeSet<(&str, &str)> = self
            .resources
            .iter()
            .flat_map(|resource| {
                let elsewhere = resource.subresources.iter().filter_map(|sub| sub.elsewhere);
                elsewhere.chain([(resource.group, resource.version)])
            })
            .collect();
        versions.iter().map(|(g, v)| GroupVersionKind::new(g, v, kind)).collect()
    }
}

/// Returns group, version and kind of the objects of a subresource.
pub(super) fn kind_of_subresource(resource: &Resource, sub: &Subresource) -> GroupVersionKind {
    let (group, version) = sub.elsewhere.unwrap_or((resource.group, resource.version));
    GroupVersionKind::new(group, version, sub.kind)
}
