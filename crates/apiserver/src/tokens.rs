//! Tokens of service accounts, and what a token says about its bearer.
//!
//! Tokens are opaque to clients. The listener's authenticator checks them; see
//! [`crate::credentials`].

use http::StatusCode;
use serde_json::{Value, json};

use crate::accept::Wanted;
use crate::api::Api;
use crate::incoming::{self, Expected};
use crate::read;
use crate::refusal::Refusal;
use crate::reply::Reply;
use crate::request::Call;
use crate::route::Place;

/// Shortest life of a token, in seconds; upstream's.
const SHORTEST: i64 = 600;
const USUAL: i64 = 3600;

/// `serviceaccounts/token`.
pub(crate) async fn request(
    api: &Api,
    call: &Call,
    place: &Place,
    wanted: Wanted,
) -> Result<Reply, Refusal> {
    let expected = Expected::named(
        "TokenRequest",
        "authentication.k8s.io/v1".to_owned(),
        "io.k8s.api.authentication.v1.TokenRequest",
    )?;
    let received = incoming::read(call, &expected)?;
    let account = read::load(place.resource, &read::find(api, place)?)?;
    let mut request = received.object;
    let seconds = request["spec"]["expirationSeconds"].as_i64().unwrap_or(USUAL);
    if seconds < SHORTEST {
        let mut causes = objects::cursor::Causes::default();
        let message =
            format!("Invalid value: {seconds}: may not specify a duration less than 10 minutes");
        causes.add("FieldValueInvalid", "spec.expirationSeconds", message);
        let refusal =
            Refusal::invalid_kind("authentication.k8s.io", "TokenRequest", "", &causes);
        return Err(refusal);
    }
    let expires = api.now().plus_seconds(seconds);
    let token = api.shared.signer.sign(&place.namespace, &place.name, &account, expires);
    request["metadata"]["name"] = Value::from(place.name.as_str());
    request["metadata"]["namespace"] = Value::from(place.namespace.as_str());
    request["metadata"]["creationTimestamp"] = Value::from(api.now().to_seconds_text());
    request["spec"]["expirationSeconds"] = Value::from(seconds);
    request["status"] =
        json!({"token": token, "expirationTimestamp": expires.to_seconds_text()});
    Ok(read::encoded(&request, StatusCode::CREATED, wanted).with_warnings(received.warnings))
}

/// Whose a token is.
pub(crate) fn review(api: &Api, spec: &Value) -> Result<Value, Refusal> {
    let token = spec["token"].as_str().unwrap_or_default();
    Ok(match api.identify(token) {
        Some(user) => json!({
            "authenticated": true,
            "user": {"username": user.name, "uid": user.uid, "groups": user.groups},
        }),
        None => json!({"user": {}, "error": "invalid bearer token"}),
    })
}
