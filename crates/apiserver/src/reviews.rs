//! Reviews: questions about access and identity, answered and not stored.

use http::StatusCode;
use objects::catalog::RESOURCES;
use objects::rules::review;
use serde_json::{Value, json};

use crate::accept::Wanted;
use crate::api::Api;
use crate::identity::{self, Attempt, User};
use crate::incoming::{self, Expected};
use crate::read;
use crate::refusal::Refusal;
use crate::reply::Reply;
use crate::request::Call;
use crate::route::Place;

pub(crate) async fn create(
    api: &Api,
    call: &Call,
    place: &Place,
    wanted: Wanted,
) -> Result<Reply, Refusal> {
    if place.resource.kind == "Binding" {
        let pods = crate::parts::core("pods")?;
        let binding = incoming::read(call, &Expected::of(place.resource)?)?;
        let name = binding.object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        let place = Place {
            resource: pods,
            name,
            subresource: pods.subresource("binding"),
            ..place.clone()
        };
        return crate::parts::bind(api, call, &place, wanted).await;
    }
    let received = incoming::read(call, &Expected::of(place.resource)?)?;
    let mut review = received.object;
    crate::write::check_namespace(place, &mut review)?;
    check(place, &review)?;
    match place.resource.kind {
        "SelfSubjectAccessReview" => {
            review["status"] = decide(api, call.user(), &review["spec"])?;
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
        "SelfSubjectRulesReview" => review["status"] = rules(call.user()),
        "SelfSubjectReview" => {
            review["metadata"]["creationTimestamp"] = Value::from(api.now().to_seconds_text());
            review["status"] = json!({"userInfo": call.user().told()});
        }
        "TokenReview" => review["status"] = crate::tokens::review(api, &review["spec"])?,
        _ => return Err(Refusal::method_not_allowed()),
    }
    let reply =
        read::object_reply(api, place.resource, &review, StatusCode::CREATED, wanted, call)?;
    Ok(reply.with_warnings(received.warnings))
}

/// Refuses a question that cannot be answered.
fn check(place: &Place, review: &Value) -> Result<(), Refusal> {
    let kind = place.resource.kind;
    if kind == "SelfSubjectRulesReview" {
        let namespace = review["spec"]["namespace"].as_str().unwrap_or_default();
        let why = "no namespace on request";
        return if namespace.is_empty() { Err(Refusal::bad_request(why)) } else { Ok(()) };
    }
    if !kind.ends_with("SubjectAccessReview") {
        return Ok(());
    }
    let causes = review::validate(kind, review);
    if !causes.is_empty() {
        // Upstream does not name the kind here, either.
        return Err(Refusal::invalid_kind(place.resource.group, "", "", &causes));
    }
    Ok(())
}

pub(crate) fn texts(list: &Value) -> Vec<String> {
    let items = list.as_array().map(Vec::as_slice).unwrap_or_default();
    items.iter().filter_map(Value::as_str).map(str::to_owned).collect()
}

fn decide(api: &Api, user: &User, spec: &Value) -> Result<Value, Refusal> {
    let text = |value: &'_ Value| value.as_str().unwrap_or_default().to_owned();
    let decision = if let Some(path) = spec["nonResourceAttributes"].as_object() {
        let field = |name: &str| path.get(name).map(text).unwrap_or_default();
        let (verb, path) = (field("verb"), field("path"));
        api.decide(user, &Attempt::Path { verb: &verb, path: &path })
    } else {
        let of = &spec["resourceAttributes"];
        let field = |name: &str| text(&of[name]);
        let (verb, group, resource) = (field("verb"), field("group"), field("resource"));
        let (subresource, namespace, name) =
            (field("subresource"), field("namespace"), field("name"));
        let attempt = Attempt::Resource {
            verb: &verb,
            group: &group,
            resource: &resource,
            subresource: &subresource,
            namespace: &namespace,
            name: &name,
            selector: &selector(&of["fieldSelector"]),
        };
        api.decide(user, &attempt)
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

/// The requirements of a review's field selector that name one value, as a request would write them.
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

/// What a user may do, as far as a list can say it.
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
            .filter(|verb| identity::allows(user, &Attempt::on(verb, resource, "", "", "")))
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
