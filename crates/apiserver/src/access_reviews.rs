//! Access and identity reviews, which are answered and not stored.

use http::StatusCode;
use objects::catalog::RESOURCES;
use objects::rules::review;
use serde_json::{Value, json};

use crate::api::Api;
use crate::decode::{self, Expected};
use crate::error::ApiError;
use crate::identity::{self, AuthorizerAttributes, User};
use crate::read;
use crate::reply::Reply;
use crate::request::RequestContext;
use crate::route::ResourcePath;

pub(crate) async fn create(context: RequestContext<'_>) -> Result<Reply, ApiError> {
    let RequestContext { api, request, path, .. } = context;
    if path.resource.kind == "Binding" {
        let pods = crate::subresources::core_resource("pods")?;
        let binding = decode::body(request, &Expected::of(path.resource)?)?;
        let name = binding.object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        let path = ResourcePath {
            resource: pods,
            name,
            subresource: pods.subresource("binding"),
            ..path.clone()
        };
        return crate::subresources::bind(RequestContext { path: &path, ..context }).await;
    }
    let received = decode::body(request, &Expected::of(path.resource)?)?;
    let mut review = received.object;
    crate::write::check_namespace(path, &mut review)?;
    check(path, &review)?;
    match path.resource.kind {
        "SelfSubjectAccessReview" => {
            review["status"] = decide(api, request.user(), &review["spec"])?;
        }
        "SubjectAccessReview" | "LocalSubjectAccessReview" => {
            let spec = &review["spec"];
            let user = User {
                name: spec["user"].as_str().unwrap_or_default().to_owned(),
                groups: texts(&spec["groups"]),
                ..User::default()
            };
            review["status"] = decide(api, &user, &review["spec"])?;
        }
        "SelfSubjectRulesReview" => review["status"] = rules(request.user()),
        "SelfSubjectReview" => {
            review["metadata"]["creationTimestamp"] = Value::from(api.now().to_seconds_text());
            review["status"] = json!({"userInfo": request.user().to_user_info()});
        }
        "TokenReview" => review["status"] = crate::tokens::review(api, &review["spec"])?,
        _ => return Err(ApiError::method_not_allowed()),
    }
    let reply = read::object_reply(context, &review, StatusCode::CREATED)?;
    Ok(reply.with_warnings(received.warnings))
}

/// Rejects an invalid review.
fn check(path: &ResourcePath, review: &Value) -> Result<(), ApiError> {
    let kind = path.resource.kind;
    if kind == "SelfSubjectRulesReview" {
        let namespace = review["spec"]["namespace"].as_str().unwrap_or_default();
        let why = "no namespace on request";
        return if namespace.is_empty() { Err(ApiError::bad_request(why)) } else { Ok(()) };
    }
    if !kind.ends_with("SubjectAccessReview") {
        return Ok(());
    }
    let causes = review::validate(kind, review);
    if !causes.is_empty() {
        // Upstream does not name the kind here either.
        return Err(ApiError::invalid_kind(path.resource.group, "", "", &causes));
    }
    Ok(())
}

pub(crate) fn texts(list: &Value) -> Vec<String> {
    let items = list.as_array().map(Vec::as_slice).unwrap_or_default();
    items.iter().filter_map(Value::as_str).map(str::to_owned).collect()
}

fn decide(api: &Api, user: &User, spec: &Value) -> Result<Value, ApiError> {
    let text = |value: &'_ Value| value.as_str().unwrap_or_default().to_owned();
    let decision = if let Some(path) = spec["nonResourceAttributes"].as_object() {
        let field = |name: &str| path.get(name).map(text).unwrap_or_default();
        let (verb, path) = (field("verb"), field("path"));
        api.decide(user, &AuthorizerAttributes::Path { verb: &verb, path: &path })
    } else {
        let of = &spec["resourceAttributes"];
        let field = |name: &str| text(&of[name]);
        let (verb, group, resource) = (field("verb"), field("group"), field("resource"));
        let (subresource, namespace, name) =
            (field("subresource"), field("namespace"), field("name"));
        let attributes = AuthorizerAttributes::Resource {
            verb: &verb,
            group: &group,
            resource: &resource,
            subresource: &subresource,
            namespace: &namespace,
            name: &name,
            selector: &selector(&of["fieldSelector"]),
        };
        api.decide(user, &attributes)
    };
    let mut status = match decision? {
        Ok(()) => json!({"allowed": true}),
        Err(reason) if reason.is_empty() => json!({"allowed": false}),
        Err(reason) => json!({"allowed": false, "reason": reason}),
    };
    if let Some(error) = review::ignored_selectors(&spec["resourceAttributes"]) {
        status["evaluationError"] = Value::from(error);
    }
    Ok(status)
}

/// Returns the requirements of a review's field selector with a single value, in the syntax of a
/// request.
fn selector(of: &Value) -> String {
    if let Some(raw) = of["rawSelector"].as_str() {
        return raw.to_owned();
    }
    let requirements = of["requirements"].as_array().into_iter().flatten();
    let written = requirements.filter_map(|requirement| {
        let key = requirement["key"].as_str()?;
        match (requirement["operator"].as_str()?, texts(&requirement["values"]).as_slice()) {
            ("In", [value]) => Some(format!("{key}={value}")),
            ("NotIn", [value]) => Some(format!("{key}!={value}")),
            _ => None,
        }
    });
    written.collect::<Vec<_>>().join(",")
}

/// Returns the permissions of a user that can be expressed as a list of rules.
fn rules(user: &User) -> Value {
    if user.is_in(identity::ADMINISTRATORS) {
        return json!({
            "resourceRules": [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}],
            "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["*"]}],
            "incomplete": false,
        });
    }
    let mut rules = Vec::new();
    for resource in RESOURCES {
        let verbs: Vec<&str> = resource
            .verbs
            .iter()
            .map(|verb| verb.name())
            .filter(|verb| {
                identity::allows(
                    user,
                    &AuthorizerAttributes::for_resource(verb, resource, "", "", ""),
                )
            })
            .collect();
        if !verbs.is_empty() {
            rules.push(json!({
                "verbs": verbs, "apiGroups": [resource.group], "resources": [resource.plural],
            }));
        }
    }
    let open = [
        "/api",
        "/api/*",
        "/apis",
        "/apis/*",
        "/healthz",
        "/livez",
        "/openapi",
        "/openapi/*",
        "/readyz",
        "/version",
        "/version/",
    ];
    let mut status = json!({
        "resourceRules": rules,
        "nonResourceRules": [{"verbs": ["get"], "nonResourceURLs": open}],
        "incomplete": user.node().is_some(),
    });
    if user.node().is_some() {
        let why = "node authorizer does not support user rule resolution";
        status["evaluationError"] = Value::from(why);
    }
    status
}
