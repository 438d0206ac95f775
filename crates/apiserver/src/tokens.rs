//! Service account tokens: issuing and authentication.
//!
//! A token is valid for its audiences only, and as long as its account and its bound object exist.
//! [`crate::credentials`] defines its format.

use http::StatusCode;
use objects::cursor::Causes;
use objects::rules::token as rules;
use objects::timestamp::Timestamp;
use serde_json::{Value, json};

use crate::access_reviews::texts;
use crate::api::Api;
use crate::credentials::{self, Claims, ISSUER, ObjectRef};
use crate::decode::{self, Expected};
use crate::error::ApiError;
use crate::identity::User;
use crate::node_restriction;
use crate::read;
use crate::reply::Reply;
use crate::request::RequestContext;
use crate::route::ResourcePath;
use crate::subresources::core_resource;

const GROUP: &str = "authentication.k8s.io";
const KIND: &str = "TokenRequest";

/// The time that a token stays valid after its bound object began to terminate: upstream's value.
const LEEWAY_SECONDS: i64 = 60;

/// Handles `serviceaccounts/token`.
pub(crate) async fn request(context: RequestContext<'_>) -> Result<Reply, ApiError> {
    let RequestContext { api, request, path, format } = context;
    let expected =
        Expected::named(KIND, format!("{GROUP}/v1"), "io.k8s.api.authentication.v1.TokenRequest")?;
    let received = decode::body(request, &expected)?;
    let mut token_request = received.object;
    if let Some(node) = request.user().node() {
        let pod = |name: &str| load(api, "pods", &path.namespace, name);
        let user = &request.user().name;
        node_restriction::check_token(user, node, &token_request["spec"], pod)?
            .map_err(|why| ApiError::forbidden(path.resource, &path.name, &why))?;
    }
    for (field, own) in [("name", &path.name), ("namespace", &path.namespace)] {
        check_name(&token_request["metadata"], field, own, &path.name)?;
    }
    let account = read::load(path.resource, &read::find(api, path)?)?;
    if token_request.get("spec").is_none() {
        token_request["spec"] = json!({});
    }
    rules::set_defaults(&mut token_request);
    let causes = rules::validate(&token_request);
    if !causes.is_empty() {
        return Err(ApiError::invalid_kind(GROUP, KIND, "", &causes));
    }
    let audiences = match texts(&token_request["spec"]["audiences"]) {
        none if none.is_empty() => vec![ISSUER.to_owned()],
        some => some,
    };
    let (pod, secret, node) = bound(api, path, &token_request["spec"]["boundObjectRef"])?;
    let issued = api.now();
    let seconds = token_request["spec"]["expirationSeconds"].as_i64().unwrap_or_default();
    let expires = issued.plus_seconds(seconds);
    let claims = Claims {
        id: crate::random::uid(),
        namespace: path.namespace.clone(),
        account: ObjectRef::from_object(&account),
        audiences,
        pod,
        secret,
        node,
        issued,
        expires,
    };
    token_request["metadata"]["name"] = Value::from(path.name.as_str());
    token_request["metadata"]["namespace"] = Value::from(path.namespace.as_str());
    token_request["metadata"]["uid"] = account["metadata"]["uid"].clone();
    token_request["metadata"]["creationTimestamp"] = Value::from(issued.to_seconds_text());
    token_request["spec"]["audiences"] = json!(claims.audiences);
    let token = api.shared.signer.sign(&claims);
    token_request["status"] =
        json!({"token": token, "expirationTimestamp": expires.to_seconds_text()});
    Ok(read::encoded(&token_request, StatusCode::CREATED, format).with_warnings(received.warnings))
}

/// Checks that the name or namespace in a request equals that of the path.
fn check_name(metadata: &Value, field: &str, own: &str, account: &str) -> Result<(), ApiError> {
    let given = metadata[field].as_str().unwrap_or_default();
    if given.is_empty() || given == own {
        return Ok(());
    }
    let mut causes = Causes::default();
    let message =
        format!("Invalid value: {given:?}: must match the service account {field} if specified");
    causes.add("FieldValueInvalid", format!("metadata.{field}"), message);
    Err(ApiError::invalid_kind(GROUP, KIND, account, &causes))
}

type Bound = (Option<ObjectRef>, Option<ObjectRef>, Option<ObjectRef>);

/// Returns the pod, the secret and the node that a token is bound to.
fn bound(api: &Api, path: &ResourcePath, reference: &Value) -> Result<Bound, ApiError> {
    if reference.is_null() {
        return Ok((None, None, None));
    }
    let text = |field: &str| reference[field].as_str().unwrap_or_default();
    let (kind, name, uid) = (text("kind"), text("name"), text("uid"));
    let (group, version) = text("apiVersion").rsplit_once('/').unwrap_or(("", text("apiVersion")));
    let plural = match (group, kind) {
        ("", "Pod") => "pods",
        ("", "Secret") => "secrets",
        ("", "Node") => "nodes",
        _ => {
            let what = format!("{group}/{version}, Kind={kind}");
            let why = format!("cannot bind token to object of type {what}");
            return Err(ApiError::bad_request(why));
        }
    };
    let object = load(api, plural, &path.namespace, name)?.ok_or_else(|| {
        core_resource(plural)
            .map_or_else(|error| error, |resource| ApiError::not_found(resource, name))
    })?;
    if kind == "Pod" && object["spec"]["serviceAccountName"] != path.name.as_str() {
        return Err(ApiError::bad_request(format!(
            "cannot bind token for serviceaccount {:?} to pod running with different \
             serviceaccount name.",
            path.name
        )));
    }
    let found = ObjectRef::from_object(&object);
    if !uid.is_empty() && uid != found.uid {
        let message =
            format!("Operation cannot be fulfilled on {kind} {name:?}: {}", another_uid(uid));
        let error = ApiError::new(StatusCode::CONFLICT, "Conflict", message);
        return Err(error.with_details(json!({"name": name, "kind": kind})));
    }
    Ok(match kind {
        "Pod" => {
            let node = match object["spec"]["nodeName"].as_str() {
                None | Some("") => None,
                Some(node) => Some(match load(api, "nodes", "", node)? {
                    Some(found) => ObjectRef::from_object(&found),
                    None => ObjectRef { name: node.to_owned(), uid: String::new() },
                }),
            };
            (Some(found), None, node)
        }
        "Secret" => (None, Some(found), None),
        _ => (None, None, Some(found)),
    })
}

pub(crate) fn another_uid(given: &str) -> String {
    format!(
        "the UID in the bound object reference ({given}) does not match the UID in record. The \
         object might have been deleted and then recreated"
    )
}

fn load(api: &Api, plural: &str, namespace: &str, name: &str) -> Result<Option<Value>, ApiError> {
    let resource = core_resource(plural)?;
    let namespace = if resource.namespaced { namespace } else { "" };
    let key = crate::codec::key(resource, namespace, name);
    let entry = api.store().get(&key).map_err(|error| read::read_failed(&error))?;
    entry.map(|entry| read::load(resource, &entry)).transpose()
}

/// Returns the user of a token, and the requested audiences that it is valid for.
pub(crate) fn identify(
    api: &Api,
    token: &str,
    audiences: &[String],
) -> Option<(User, Vec<String>)> {
    let among = |own: &[String]| -> Option<Vec<String>> {
        let good: Vec<String> = audiences.iter().filter(|one| own.contains(one)).cloned().collect();
        (!good.is_empty()).then_some(good)
    };
    if let Some(user) = credentials::find_static_token(&api.shared.options.tokens, token) {
        return Some((user.clone(), among(&[ISSUER.to_owned()])?));
    }
    let now = api.now();
    let claims = api.shared.signer.read(token, now)?;
    let good = among(&claims.audiences)?;
    let is_there = |plural: &str, wanted: &ObjectRef| {
        let found = load(api, plural, &claims.namespace, &wanted.name).ok().flatten();
        found.is_some_and(|found| {
            ObjectRef::from_object(&found).uid == wanted.uid && !is_gone(&found, now)
        })
    };
    // The node of a bound pod may be deleted before the pod.
    let node = claims.node.as_ref().filter(|_| claims.pod.is_none());
    let all = [
        ("serviceaccounts", Some(&claims.account)),
        ("pods", claims.pod.as_ref()),
        ("secrets", claims.secret.as_ref()),
        ("nodes", node),
    ];
    let is_good = all
        .into_iter()
        .all(|(plural, wanted)| wanted.is_none_or(|wanted| is_there(plural, wanted)));
    is_good.then(|| (claims.user(), good))
}

/// Returns true if an object has been terminating for longer than the leeway.
fn is_gone(object: &Value, now: Timestamp) -> bool {
    let since = object["metadata"]["deletionTimestamp"].as_str();
    let since = since.and_then(|text| Timestamp::parse(text).ok());
    since.is_some_and(|since| since.seconds() < now.seconds() - LEEWAY_SECONDS)
}

/// Handles a TokenReview.
pub(crate) fn review(api: &Api, spec: &Value) -> Result<Value, ApiError> {
    let token = spec["token"].as_str().unwrap_or_default();
    if token.is_empty() {
        let why = "token is required for TokenReview in authentication";
        return Err(ApiError::bad_request(why));
    }
    let audiences = match texts(&spec["audiences"]) {
        none if none.is_empty() => vec![ISSUER.to_owned()],
        some => some,
    };
    Ok(match identify(api, token, &audiences) {
        Some((user, good)) => {
            json!({"authenticated": true, "user": user.to_user_info(), "audiences": good})
        }
        None => json!({"user": {}, "error": "invalid bearer token"}),
    })
}
