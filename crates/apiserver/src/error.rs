//! A failed request: [`ApiError`], rendered as the `Status` object that clients expect.
//!
//! Reasons, codes and the shape of `details` are upstream's; clients branch on them. Messages
//! shared by several handlers are defined here.

use std::collections::HashSet;
use std::fmt;

use http::StatusCode;
use objects::catalog::Resource;
use objects::cursor::{Cause, Causes};
use serde_json::{Map, Value, json};

/// The error response to a request.
#[derive(Debug, Clone, PartialEq)]
pub struct ApiError {
    pub code: StatusCode,
    /// Empty where upstream has none.
    pub reason: &'static str,
    pub message: String,
    pub details: Option<Value>,
    pub retry_after: Option<u32>,
    /// The `metadata` of the status, if it has any.
    pub metadata: Option<Value>,
    /// Warnings collected before the error occurred.
    pub warnings: Vec<String>,
}

impl ApiError {
    #[must_use]
    pub fn new(code: StatusCode, reason: &'static str, message: impl Into<String>) -> ApiError {
        ApiError {
            code,
            reason,
            message: message.into(),
            details: None,
            retry_after: None,
            metadata: None,
            warnings: Vec::new(),
        }
    }

    /// Adds warnings before the existing ones.
    #[must_use]
    pub fn after(mut self, warnings: &[String]) -> ApiError {
        self.warnings.splice(0..0, warnings.iter().cloned());
        self
    }

    #[must_use]
    pub fn bad_request(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::BAD_REQUEST, "BadRequest", message)
    }

    #[must_use]
    pub fn internal(message: impl Into<String>) -> ApiError {
        let message = format!("Internal error occurred: {}", message.into());
        ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "InternalError", message)
    }

    #[must_use]
    pub fn unauthorized() -> ApiError {
        ApiError::new(StatusCode::UNAUTHORIZED, "Unauthorized", "Unauthorized")
    }

    #[must_use]
    pub fn not_found(resource: &Resource, name: &str) -> ApiError {
        let message = format!("{} {name:?} not found", resource.qualified());
        ApiError::new(StatusCode::NOT_FOUND, "NotFound", message).about(resource, name)
    }

    /// As [`ApiError::not_found`], with the resource called `kind`, as other parts of upstream's
    /// server do.
    #[must_use]
    pub fn not_found_as(kind: &str, resource: &Resource, name: &str) -> ApiError {
        let message = format!("{kind} {name:?} not found");
        let mut error =
            ApiError::new(StatusCode::NOT_FOUND, "NotFound", message).about(resource, name);
        if let Some(details) = error.details.as_mut() {
            details["kind"] = Value::from(kind);
        }
        error
    }

    /// Returns the error for a path that is not served.
    #[must_use]
    pub fn no_such_resource() -> ApiError {
        let message = "the server could not find the requested resource";
        ApiError::new(StatusCode::NOT_FOUND, "NotFound", message).with_details(json!({}))
    }

    #[must_use]
    pub fn method_not_allowed() -> ApiError {
        let message = "the server does not allow this method on the requested resource";
        let code = StatusCode::METHOD_NOT_ALLOWED;
        ApiError::new(code, "MethodNotAllowed", message).with_details(json!({}))
    }

    #[must_use]
    pub fn unsupported_media_type(message: impl Into<String>) -> ApiError {
        let code = StatusCode::UNSUPPORTED_MEDIA_TYPE;
        ApiError::new(code, "UnsupportedMediaType", message).with_details(json!({}))
    }

    #[must_use]
    pub fn not_acceptable(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::NOT_ACCEPTABLE, "NotAcceptable", message)
    }

    /// Returns the error for a body or an object that is too large.
    #[must_use]
    pub fn too_large(what: impl fmt::Display) -> ApiError {
        let message = format!("Request entity too large: {what}");
        ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "RequestEntityTooLarge", message)
    }

    #[must_use]
    pub fn already_exists(resource: &Resource, name: &str) -> ApiError {
        let message = format!("{} {name:?} already exists", resource.qualified());
        ApiError::new(StatusCode::CONFLICT, "AlreadyExists", message).about(resource, name)
    }

    /// Returns the error for a conflict or a failed precondition.
    #[must_use]
    pub fn conflict(resource: &Resource, name: &str, why: &str) -> ApiError {
        let qualified = resource.qualified();
        let message = format!("Operation cannot be fulfilled on {qualified} {name:?}: {why}");
        ApiError::new(StatusCode::CONFLICT, "Conflict", message).about(resource, name)
    }

    /// Returns the conflict for an object that was written since the client read it.
    #[must_use]
    pub fn modified(resource: &Resource, name: &str) -> ApiError {
        let why = "the object has been modified; please apply your changes to the latest version \
                   and try again";
        ApiError::conflict(resource, name, why)
    }

    #[must_use]
    pub fn forbidden(resource: &Resource, name: &str, why: &str) -> ApiError {
        let qualified = resource.qualified();
        let message = match name {
            "" => format!("{qualified} is forbidden: {why}"),
            name => format!("{qualified} {name:?} is forbidden: {why}"),
        };
        ApiError::new(StatusCode::FORBIDDEN, "Forbidden", message).about(resource, name)
    }

    #[must_use]
    pub fn invalid(resource: &Resource, name: &str, causes: &Causes) -> ApiError {
        // Messages name the stored kind: events of both groups are stored as core events.
        let group = resource.stored_as().map_or(resource.group, |(group, _)| group);
        ApiError::invalid_kind(group, resource.kind, name, causes)
    }

    /// As [`ApiError::invalid`], for kinds that are not resources: `DeleteOptions.meta.k8s.io`.
    #[must_use]
    pub fn invalid_kind(group: &str, kind: &str, name: &str, causes: &Causes) -> ApiError {
        let mut details = Map::new();
        for (key, value) in [("name", name), ("group", group), ("kind", kind)] {
            if !value.is_empty() {
                details.insert(key.to_owned(), Value::from(value));
            }
        }
        details.insert("causes".to_owned(), json!(causes.0));
        let qualified = if group.is_empty() { kind.to_owned() } else { format!("{kind}.{group}") };
        let more = if causes.is_full() { ", and more that is not listed" } else { "" };
        let message = format!("{qualified} {name:?} is invalid: {}{more}", listed(&causes.0));
        ApiError::new(StatusCode::UNPROCESSABLE_ENTITY, "Invalid", message)
            .with_details(Value::Object(details))
    }

    /// Returns the error for a request that exceeds a limit at the moment.
    #[must_use]
    pub fn too_many_requests() -> ApiError {
        let message = "Too many requests, please try again later.";
        let mut error = ApiError::new(StatusCode::TOO_MANY_REQUESTS, "TooManyRequests", message)
            .with_details(json!({"retryAfterSeconds": 1}));
        error.retry_after = Some(1);
        error
    }

    /// Returns the error for a compacted resource version.
    #[must_use]
    pub fn expired(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::GONE, "Expired", message)
    }

    /// Returns the error for a resource version in the future.
    #[must_use]
    pub fn future_revision(requested: u64, newest: u64) -> ApiError {
        let message = format!("Too large resource version: {requested}, current: {newest}");
        let text = format!("Timeout: {message}");
        let details = json!({
            "causes": [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}],
            "retryAfterSeconds": 1,
        });
        let mut error = ApiError::new(StatusCode::GATEWAY_TIMEOUT, "Timeout", text);
        error.details = Some(details);
        error.retry_after = Some(1);
        error
    }

    #[must_use]
    pub fn with_details(mut self, details: Value) -> ApiError {
        self.details = Some(details);
        self
    }

    /// Names the object in `details`.
    #[must_use]
    pub fn about(self, resource: &Resource, name: &str) -> ApiError {
        let mut details = Map::new();
        for (key, value) in [("name", name), ("group", resource.group), ("kind", resource.plural)] {
            if !value.is_empty() {
                details.insert(key.to_owned(), Value::from(value));
            }
        }
        self.with_details(Value::Object(details))
    }

    /// Adds `details.causes`.
    #[must_use]
    pub fn caused_by(mut self, causes: Value) -> ApiError {
        let details = self.details.get_or_insert_with(|| json!({}));
        if let Value::Object(details) = details {
            details.insert("causes".to_owned(), causes);
        }
        self
    }

    /// Returns the `Status` object.
    #[must_use]
    pub fn to_status(&self) -> Value {
        let mut status = Map::new();
        status.insert("kind".to_owned(), Value::from("Status"));
        status.insert("apiVersion".to_owned(), Value::from("v1"));
        status.insert("metadata".to_owned(), self.metadata.clone().unwrap_or_else(|| json!({})));
        status.insert("status".to_owned(), Value::from("Failure"));
        status.insert("message".to_owned(), Value::from(self.message.as_str()));
        if !self.reason.is_empty() {
            status.insert("reason".to_owned(), Value::from(self.reason));
        }
        if let Some(details) = &self.details {
            status.insert("details".to_owned(), details.clone());
        }
        status.insert("code".to_owned(), Value::from(self.code.as_u16()));
        Value::Object(status)
    }
}

/// Formats `field: message`, in brackets if there are several.
fn listed(causes: &[Cause]) -> String {
    // Equal findings of several checks are reported once.
    let mut seen = HashSet::with_capacity(causes.len());
    let distinct = causes.iter().filter(|cause| seen.insert((&cause.field, &cause.message)));
    let texts: Vec<String> =
        distinct.map(|cause| format!("{}: {}", cause.field, cause.message)).collect();
    match texts.as_slice() {
        [only] => only.clone(),
        texts => format!("[{}]", texts.join(", ")),
    }
}
