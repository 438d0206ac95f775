//! Discovery documents of groups, versions and resources: the separate ones under `/api` and
//! `/apis`, and the aggregated one (`APIGroupDiscoveryList`).
//!
//! Pure functions of the catalog. The API server chooses the form of a response.

use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use crate::catalog::{Resource, Subresource, Verb};

/// Media type of the aggregated document. Clients up to 1.29 ask for `v=v2beta1` alone, and then
/// for plain JSON, which they should get.
pub const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
/// The aggregated document in YAML.
pub const AGGREGATED_YAML: &str =
    "application/yaml;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
/// The aggregated document in protobuf.
pub const AGGREGATED_PROTOBUF: &str =
    "application/vnd.kubernetes.protobuf;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

/// `/api`. The address is that of the server, with its port.
#[must_use]
pub fn core_versions(resources: &[Resource], address: &str) -> Value {
    let versions: Vec<&str> = versions(resources, "");
    json!({
        "kind": "APIVersions",
        "versions": versions,
        "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": address}],
    })
}

/// `/apis`.
#[must_use]
pub fn groups(resources: &[Resource]) -> Value {
    let groups: Vec<Value> =
        named_groups(resources).iter().map(|name| group_entry(resources, name)).collect();
    json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})
}

/// `/apis/{group}`, if there is such a group.
#[must_use]
pub fn group(resources: &[Resource], name: &str) -> Option<Value> {
    if !named_groups(resources).contains(&name) {
        return None;
    }
    let mut group = group_entry(resources, name);
    group["kind"] = "APIGroup".into();
    group["apiVersion"] = "v1".into();
    Some(group)
}

/// `/api/{version}` or `/apis/{group}/{version}`, if there is such a version.
#[must_use]
pub fn resources(resources: &[Resource], group: &str, version: &str) -> Option<Value> {
    if !versions(resources, group).contains(&version) {
        return None;
    }
    let list: Vec<Value> = members(resources, group, version)
        .flat_map(|resource| {
            let subresources = resource.subresources.iter();
            let subresources = subresources.map(|sub| subresource_entry(resource, sub));
            std::iter::once(resource_entry(resource)).chain(subresources)
        })
        .collect();
    let mut document = json!({
        "kind": "APIResourceList",
        "groupVersion": group_version(group, version),
        "resources": list,
    });
    // The document of the core group is older than the rule that every object has an `apiVersion`.
    if !group.is_empty() {
        document["apiVersion"] = "v1".into();
    }
    Some(document)
}

/// `/api` in the aggregated form.
#[must_use]
pub fn aggregated_core(resources: &[Resource]) -> Value {
    aggregated_list(&[aggregated_group(resources, "")])
}

/// `/apis` in the aggregated form.
#[must_use]
pub fn aggregated(resources: &[Resource]) -> Value {
    let groups = named_groups(resources).into_iter();
    let groups: Vec<Value> = groups.map(|name| aggregated_group(resources, name)).collect();
    aggregated_list(&groups)
}

/// All groups but the core group, in the order of the catalog.
fn named_groups(resources: &[Resource]) -> Vec<&'static str> {
    let mut names: Vec<&str> = Vec::new();
    for resource in resources {
        if !resource.group.is_empty() && !names.contains(&resource.group) {
            names.push(resource.group);
        }
    }
    names
}

/// The preferred version comes first.
fn versions(resources: &[Resource], group: &str) -> Vec<&'static str> {
    let mut versions: Vec<&str> = Vec::new();
    for resource in resources {
        if resource.group == group && !versions.contains(&resource.version) {
            versions.push(resource.version);
        }
    }
    versions
}

fn members<'a>(
    resources: &'a [Resource],
    group: &'a str,
    version: &'a str,
) -> impl Iterator<Item = &'a Resource> {
    resources.iter().filter(move |r| r.group == group && r.version == version)
}

fn group_version(group: &str, version: &str) -> String {
    match group {
        "" => version.to_owned(),
        _ => format!("{group}/{version}"),
    }
}

fn group_entry(resources: &[Resource], name: &str) -> Value {
    let entry =
        |version: &&str| json!({"groupVersion": group_version(name, version), "version": version});
    let versions: Vec<Value> = versions(resources, name).iter().map(entry).collect();
    json!({"name": name, "preferredVersion": versions.first(), "versions": versions})
}

fn verb_names(verbs: &[Verb]) -> Vec<&'static str> {
    verbs.iter().map(|verb| verb.name()).collect()
}

fn resource_entry(resource: &Resource) -> Value {
    let mut entry = Map::new();
    entry.insert("name".to_owned(), resource.plural.into());
    entry.insert("singularName".to_owned(), resource.singular.into());
    entry.insert("namespaced".to_owned(), resource.namespaced.into());
    entry.insert("kind".to_owned(), resource.kind.into());
    entry.insert("verbs".to_owned(), verb_names(resource.verbs).into());
    name_further(resource, &mut entry);
    if let Some(hash) = storage_version_hash(resource) {
        entry.insert("storageVersionHash".to_owned(), hash.into());
    }
    entry.into()
}

fn name_further(resource: &Resource, entry: &mut Map<String, Value>) {
    if !resource.short_names.is_empty() {
        entry.insert("shortNames".to_owned(), resource.short_names.into());
    }
    if !resource.categories.is_empty() {
        entry.insert("categories".to_owned(), resource.categories.into());
    }
}

fn subresource_entry(resource: &Resource, sub: &Subresource) -> Value {
    let mut entry = json!({
        "name": format!("{}/{}", resource.plural, sub.name),
        "singularName": "",
        "namespaced": resource.namespaced,
        "kind": sub.kind,
        "verbs": verb_names(sub.verbs),
    });
    if let Some((group, version)) = sub.elsewhere {
        entry["group"] = group.into();
        entry["version"] = version.into();
    }
    entry
}

/// Identifies the version in which objects are stored; clients only compare it. The first eight
/// bytes of a SHA-256 in base64, as upstream.
fn storage_version_hash(resource: &Resource) -> Option<String> {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let (group, version) = resource.stored_as()?;
    let digest = Sha256::digest(format!("{group}/{version}/{}", resource.kind));
    let bytes = digest.iter().take(8).fold(0_u64, |sum, byte| sum << 8 | u64::from(*byte));
    // Eight bytes are ten digits of six bits, and four bits that begin an eleventh.
    let mut hash: String = (0..10)
        .map(|index| char::from(DIGITS[(bytes >> (58 - 6 * index) & 0x3f) as usize]))
        .collect();
    hash.push(char::from(DIGITS[(bytes << 2 & 0x3f) as usize]));
    hash.push('=');
    Some(hash)
}

fn aggregated_list(groups: &[Value]) -> Value {
    json!({
        "kind": "APIGroupDiscoveryList",
        "apiVersion": "apidiscovery.k8s.io/v2",
        "metadata": {},
        "items": groups,
    })
}

fn aggregated_group(resources: &[Resource], name: &str) -> Value {
    let version = |version: &&str| {
        let list: Vec<Value> = members(resources, name, version).map(aggregated_resource).collect();
        json!({"version": version, "resources": list, "freshness": "Current"})
    };
    let versions: Vec<Value> = versions(resources, name).iter().map(version).collect();
    let metadata = if name.is_empty() { json!({}) } else { json!({"name": name}) };
    json!({"metadata": metadata, "versions": versions})
}

fn aggregated_resource(resource: &Resource) -> Value {
    let mut entry = Map::new();
    entry.insert("resource".to_owned(), resource.plural.into());
    entry.insert("responseKind".to_owned(), response_kind(resource.kind, None));
    let scope = if resource.namespaced { "Namespaced" } else { "Cluster" };
    entry.insert("scope".to_owned(), scope.into());
    entry.insert("singularResource".to_owned(), resource.singular.into());
    entry.insert("verbs".to_owned(), verb_names(resource.verbs).into());
    name_further(resource, &mut entry);
    let subresource = |sub: &Subresource| {
        json!({
            "subresource": sub.name,
            "responseKind": response_kind(sub.kind, sub.elsewhere),
            "verbs": verb_names(sub.verbs),
        })
    };
    if !resource.subresources.is_empty() {
        let list: Vec<Value> = resource.subresources.iter().map(subresource).collect();
        entry.insert("subresources".to_owned(), list.into());
    }
    entry.into()
}

/// Sets group and version only if they are not those of the document.
fn response_kind(kind: &str, elsewhere: Option<(&str, &str)>) -> Value {
    let (group, version) = elsewhere.unwrap_or(("", ""));
    json!({"group": group, "version": version, "kind": kind})
}
