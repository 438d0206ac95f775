//! Every path of the server with its operations: [`Path`], independent of the version of OpenAPI.

use super::definitions::meta;
use super::parameters::{self, Parameter};
use super::served::{GroupVersionKind, ServedTypes, kind_of_subresource};
use crate::catalog::{Resource, Subresource, Verb};

/// The media types of responses with objects.
const OBJECTS: &[&str] =
    &["application/json", "application/yaml", "application/vnd.kubernetes.protobuf"];
const LISTS: &[&str] = &[
    "application/json",
    "application/yaml",
    "application/vnd.kubernetes.protobuf",
    "application/json;stream=watch",
    "application/vnd.kubernetes.protobuf;stream=watch",
];
const ANYTHING: &[&str] = &["*/*"];
const LOG: &[&str] = &["text/plain", "application/json", "application/yaml"];
/// The media types of PATCH, the default first.
const PATCHES: &[&str] = &[
    "application/json-patch+json",
    "application/merge-patch+json",
    "application/strategic-merge-patch+json",
    "application/apply-patch+yaml",
];

#[derive(Debug)]
pub(super) struct Path {
    pub(super) path: String,
    /// The document of OpenAPI v3 that it belongs to: `apis/apps/v1`.
    pub(super) document: String,
    pub(super) operations: Vec<Operation>,
}

#[derive(Debug)]
pub(super) struct Operation {
    /// `get`, as OpenAPI writes it.
    pub(super) method: &'static str,
    pub(super) id: String,
    pub(super) doc: String,
    pub(super) tag: String,
    /// The Kubernetes verb of the operation, and its kind. Discovery has neither.
    pub(super) acts: Option<(&'static str, GroupVersionKind)>,
    /// By name.
    pub(super) parameters: Vec<Parameter>,
    pub(super) body: Option<Body>,
    pub(super) consumes: &'static [&'static str],
    pub(super) produces: &'static [&'static str],
    pub(super) responses: Vec<(&'static str, Response)>,
}

#[derive(Debug)]
pub(super) struct Body {
    pub(super) type_: String,
    pub(super) required: bool,
}

#[derive(Debug, Clone)]
pub(super) enum Response {
    Object(String),
    Text,
}

impl Path {
    /// The types of its operations.
    pub(super) fn types(&self) -> impl Iterator<Item = &str> {
        self.operations.iter().flat_map(|operation| {
            let responses = operation.responses.iter().filter_map(|(_, answer)| match answer {
                Response::Object(name) => Some(name.as_str()),
                Response::Text => None,
            });
            responses.chain(operation.body.as_ref().map(|body| body.type_.as_str()))
        })
    }
}

/// All paths, in the order of the catalog.
pub(super) fn all(served: &ServedTypes<'_>) -> Vec<Path> {
    let mut paths = vec![
        info(
            "/version/",
            "version",
            "getCodeVersion",
            "version",
            "io.k8s.apimachinery.pkg.version.Info",
        ),
        info("/api/", "api", "getCoreAPIVersions", "core", &meta("APIVersions")),
        info("/apis/", "apis", "getAPIVersions", "apis", &meta("APIGroupList")),
    ];
    let mut seen: Vec<(&str, &str)> = Vec::new();
    for resource in served.resources {
        let group_seen = seen.iter().any(|(group, _)| *group == resource.group);
        if !group_seen && !resource.group.is_empty() {
            let path = format!("/apis/{}/", resource.group);
            let id = format!("get{}APIGroup", group_word(resource.group));
            let document = format!("apis/{}", resource.group);
            let tag = group_tag(resource.group);
            paths.push(info(&path, &document, &id, &tag, &meta("APIGroup")));
        }
        if !seen.contains(&(resource.group, resource.version)) {
            seen.push((resource.group, resource.version));
            let path = format!("{}/", root(resource));
            let id = format!("get{}APIResources", version_word(resource));
            let list = meta("APIResourceList");
            paths.push(info(&path, &document(resource), &id, &tag(resource), &list));
        }
        add_resource(served, resource, &mut paths);
    }
    paths
}

/// Discovery and the version: a single GET.
fn info(path: &str, document: &str, id: &str, tag: &str, type_: &str) -> Path {
    let what = match type_.rsplit('.').next().unwrap_or_default() {
        "APIVersions" | "APIGroupList" => "get available API versions",
        "APIGroup" => "get information of a group",
        "APIResourceList" => "get available resources",
        _ => "get the version information for this server",
    };
    Path {
        path: path.to_owned(),
        document: document.to_owned(),
        operations: vec![Operation {
            method: "get",
            id: id.to_owned(),
            doc: what.to_owned(),
            tag: tag.to_owned(),
            acts: None,
            parameters: Vec::new(),
            body: None,
            consumes: &[],
            produces: &["application/json"],
            responses: vec![("200", Response::Object(type_.to_owned()))],
        }],
    }
}

fn root(resource: &Resource) -> String {
    match resource.group {
        "" => format!("/api/{}", resource.version),
        group => format!("/apis/{group}/{}", resource.version),
    }
}

fn document(resource: &Resource) -> String {
    root(resource).trim_start_matches('/').to_owned()
}

/// `core`, `apps`, `events`: the group in tags.
fn group_tag(group: &str) -> String {
    let tag = group.trim_end_matches(".k8s.io").replace('.', "_");
    if tag.is_empty() { "core".to_owned() } else { tag }
}

fn tag(resource: &Resource) -> String {
    format!("{}_{}", group_tag(resource.group), resource.version)
}

/// `Core`, `Apps`, `RbacAuthorization`: the group in operation ids.
fn group_word(group: &str) -> String {
    group_tag(group).split('_').map(capital).collect()
}

fn version_word(resource: &Resource) -> String {
    format!("{}{}", group_word(resource.group), capital(resource.version))
}

fn capital(word: &str) -> String {
    let mut characters = word.chars();
    characters
        .next()
        .map_or_else(String::new, |first| first.to_uppercase().chain(characters).collect())
}

fn add_resource(served: &ServedTypes<'_>, resource: &Resource, paths: &mut Vec<Path>) {
    let builder = ResourcePaths {
        served,
        resource,
        type_: format!("{}.{}", resource.package, resource.kind),
        kind: GroupVersionKind::new(resource.group, resource.version, resource.kind),
    };
    let root = root(resource);
    let plural = resource.plural;
    let mut push = |path: String, operations: Vec<Operation>| {
        if !operations.is_empty() {
            paths.push(Path { path, document: document(resource), operations });
        }
    };
    let home = match resource.namespaced {
        true => format!("{root}/namespaces/{{namespace}}/{plural}"),
        false => format!("{root}/{plural}"),
    };
    if resource.namespaced && resource.verbs.contains(&Verb::List) {
        let mut everywhere = builder.list();
        everywhere.id = format!("list{}{}ForAllNamespaces", version_word(resource), resource.kind);
        everywhere.parameters.retain(|parameter| parameter.name != "namespace");
        push(format!("{root}/{plural}"), vec![everywhere]);
    }
    push(home.clone(), builder.collection());
    push(format!("{home}/{{name}}"), builder.item());
    for subresource in resource.subresources {
        push(format!("{home}/{{name}}/{}", subresource.name), builder.subresource(subresource));
    }
}

/// Builds the operations of one resource.
struct ResourcePaths<'a> {
    served: &'a ServedTypes<'a>,
    resource: &'a Resource,
    type_: String,
    kind: GroupVersionKind,
}

impl ResourcePaths<'_> {
    fn collection(&self) -> Vec<Operation> {
        let mut operations = Vec::new();
        for verb in self.resource.verbs {
            match verb {
                Verb::List => operations.push(self.list()),
                Verb::Create => {
                    operations.push(self.create(
                        "",
                        &format!("create {}", a(&self.kind.kind)),
                        &self.kind,
                        &self.type_,
                    ));
                }
                Verb::DeleteCollection => {
                    let doc = format!("delete collection of {}", self.kind.kind);
                    let id = self.id("delete", "Collection", "");
                    let mut delete = self.operation("delete", id, doc, "deletecollection");
                    delete.parameters.extend(parameters::DELETE_COLLECTION.iter().cloned());
                    delete.body = Some(Body { type_: meta("DeleteOptions"), required: false });
                    delete.responses = vec![("200", Response::Object(meta("Status")))];
                    operations.push(delete);
                }
                Verb::Delete | Verb::Get | Verb::Patch | Verb::Update | Verb::Watch => {}
            }
        }
        operations.into_iter().map(sorted).collect()
    }

    fn list(&self) -> Operation {
        let doc = format!("list or watch objects of kind {}", self.kind.kind);
        let mut list = self.operation("get", self.id("list", "", ""), doc, "list");
        list.parameters.extend(parameters::LIST.iter().cloned());
        list.produces = LISTS;
        list.responses = vec![("200", Response::Object(format!("{}List", self.type_)))];
        sorted(list)
    }

    fn item(&self) -> Vec<Operation> {
        let mut operations = Vec::new();
        let the = format!("the specified {}", self.kind.kind);
        for verb in self.resource.verbs {
            match verb {
                Verb::Get => {
                    operations.push(self.read("", &format!("read {the}"), &self.kind, &self.type_))
                }
                Verb::Update => {
                    operations.push(self.replace(
                        "",
                        &format!("replace {the}"),
                        &self.kind,
                        &self.type_,
                    ));
                }
                Verb::Patch => {
                    let doc = format!("partially update {the}");
                    operations.push(self.patch("", &doc, &self.kind, &self.type_));
                }
                Verb::Delete => operations.push(self.delete()),
                Verb::Create | Verb::DeleteCollection | Verb::List | Verb::Watch => {}
            }
        }
        self.with_name(operations)
    }

    fn subresource(&self, sub: &Subresource) -> Vec<Operation> {
        let kind = kind_of_subresource(self.resource, sub);
        if sub.name == "log" {
            let doc = format!("read log of the specified {}", self.kind.kind);
            let mut log = self.read("Log", &doc, &kind, &self.type_);
            log.produces = LOG;
            log.responses = vec![("200", Response::Text)];
            log.parameters.extend(parameters::of_subresource(sub.name).iter().cloned());
            return self.with_name(vec![log]);
        }
        let Some(type_) = self.served.type_name(&kind.group, &kind.version, &kind.kind) else {
            return self.connections(sub, &kind);
        };
        let word = capital(sub.name);
        let the = format!("{} of the specified {}", sub.name, self.kind.kind);
        let operations = sub.verbs.iter().filter_map(|verb| match verb {
            Verb::Get => Some(self.read(&word, &format!("read {the}"), &kind, &type_)),
            Verb::Update => Some(self.replace(&word, &format!("replace {the}"), &kind, &type_)),
            Verb::Patch => {
                Some(self.patch(&word, &format!("partially update {the}"), &kind, &type_))
            }
            Verb::Create => {
                let doc = format!("create {} of {}", sub.name, a(&self.kind.kind));
                Some(self.create(&word, &doc, &kind, &type_))
            }
            _ => None,
        });
        self.with_name(operations.collect())
    }

    /// A subresource whose kind is not an object but options in the query: a bidirectional stream.
    fn connections(&self, sub: &Subresource, kind: &GroupVersionKind) -> Vec<Operation> {
        let connect = |verb: &Verb| {
            let (method, word) = match verb {
                Verb::Create => ("post", "Post"),
                Verb::Get => ("get", "Get"),
                _ => return None,
            };
            let method_name = method.to_uppercase();
            let doc =
                format!("connect {method_name} requests to {} of {}", sub.name, self.kind.kind);
            let id = self.id("connect", word, &capital(sub.name));
            let mut operation = self.operation(method, id, doc, "connect");
            operation.acts = Some(("connect", kind.clone()));
            operation.parameters.retain(|parameter| parameter.name != "pretty");
            operation.parameters.extend(parameters::of_subresource(sub.name).iter().cloned());
            operation.produces = ANYTHING;
            operation.responses = vec![("200", Response::Text)];
            Some(operation)
        };
        self.with_name(sub.verbs.iter().filter_map(connect).collect())
    }

    fn read(&self, word: &str, doc: &str, kind: &GroupVersionKind, type_: &str) -> Operation {
        let mut read = self.operation("get", self.id("read", "", word), doc.to_owned(), "get");
        read.acts = Some(("get", kind.clone()));
        read.responses = responses(&["200"], type_);
        read
    }

    fn create(&self, word: &str, doc: &str, kind: &GroupVersionKind, type_: &str) -> Operation {
        let mut create =
            self.operation("post", self.id("create", "", word), doc.to_owned(), "post");
        create.acts = Some(("post", kind.clone()));
        create.parameters.extend(parameters::WRITE.iter().cloned());
        create.body = Some(Body { type_: type_.to_owned(), required: true });
        create.responses = responses(&["200", "201", "202"], type_);
        create
    }

    fn replace(&self, word: &str, doc: &str, kind: &GroupVersionKind, type_: &str) -> Operation {
        let mut replace =
            self.operation("put", self.id("replace", "", word), doc.to_owned(), "put");
        replace.acts = Some(("put", kind.clone()));
        replace.parameters.extend(parameters::WRITE.iter().cloned());
        replace.body = Some(Body { type_: type_.to_owned(), required: true });
        replace.responses = responses(&["200", "201"], type_);
        replace
    }

    fn patch(&self, word: &str, doc: &str, kind: &GroupVersionKind, type_: &str) -> Operation {
        let mut patch =
            self.operation("patch", self.id("patch", "", word), doc.to_owned(), "patch");
        patch.acts = Some(("patch", kind.clone()));
        patch.parameters.extend(parameters::PATCH.iter().cloned());
        patch.body = Some(Body { type_: meta("Patch"), required: true });
        patch.consumes = PATCHES;
        patch.responses = responses(&["200", "201"], type_);
        patch
    }

    fn delete(&self) -> Operation {
        let doc = format!("delete {}", a(&self.kind.kind));
        let mut delete = self.operation("delete", self.id("delete", "", ""), doc, "delete");
        delete.parameters.extend(parameters::DELETE.iter().cloned());
        delete.body = Some(Body { type_: meta("DeleteOptions"), required: false });
        let status = meta("Status");
        let type_ = if self.resource.returns_deleted() { &self.type_ } else { &status };
        delete.responses = responses(&["200", "202"], type_);
        delete
    }

    fn operation(
        &self,
        method: &'static str,
        id: String,
        doc: String,
        action: &'static str,
    ) -> Operation {
        let mut parameters = vec![parameters::PRETTY];
        if self.resource.namespaced {
            parameters.push(parameters::NAMESPACE);
        }
        Operation {
            method,
            id,
            doc,
            tag: tag(self.resource),
            acts: Some((action, self.kind.clone())),
            parameters,
            body: None,
            consumes: ANYTHING,
            produces: OBJECTS,
            responses: Vec::new(),
        }
    }

    /// `deleteCoreV1CollectionNamespacedPod`, `readCoreV1NamespacedPodStatus`.
    fn id(&self, verb: &str, middle: &str, end: &str) -> String {
        let scope = if self.resource.namespaced { "Namespaced" } else { "" };
        let version = version_word(self.resource);
        format!("{verb}{version}{middle}{scope}{}{end}", self.resource.kind)
    }

    fn with_name(&self, operations: Vec<Operation>) -> Vec<Operation> {
        let named = |mut operation: Operation| {
            operation.parameters.push(parameters::name(&self.kind.kind));
            sorted(operation)
        };
        operations.into_iter().map(named).collect()
    }
}

/// The kind with its article, as upstream writes it.
fn a(kind: &str) -> String {
    let article = if kind.starts_with(['A', 'E', 'I', 'O', 'U']) { "an" } else { "a" };
    format!("{article} {kind}")
}

fn responses(codes: &[&'static str], type_: &str) -> Vec<(&'static str, Response)> {
    codes.iter().map(|code| (*code, Response::Object(type_.to_owned()))).collect()
}

fn sorted(mut operation: Operation) -> Operation {
    operation.parameters.sort_by_key(|parameter| parameter.name);
    operation
}
