//! What goes back: [`Reply`] in handlers' terms, an [`Answer`] for HTTP.

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use http::{HeaderMap, Response, StatusCode};
use https::{Answer, Body, Tunnel};
use serde_json::Value;
use tokio::sync::mpsc;

use crate::accept::Wanted;
use crate::refusal::Refusal;

/// An answer before it is written down.
#[derive(Debug)]
pub struct Reply {
    pub status: StatusCode,
    pub content_type: &'static str,
    pub body: Body,
    /// Texts for `Warning` headers, in order.
    pub warnings: Vec<String>,
    pub headers: HeaderMap,
    /// What a connection that changes its protocol is joined to.
    pub tunnel: Option<Tunnel>,
}

pub(crate) const JSON: &str = "application/json";
pub(crate) const YAML: &str = "application/yaml";
pub(crate) const PROTOBUF: &str = objects::protobuf::MEDIA_TYPE;
pub(crate) const TEXT: &str = "text/plain; charset=utf-8";

impl Reply {
    #[must_use]
    pub fn bytes(status: StatusCode, content_type: &'static str, bytes: impl Into<Bytes>) -> Reply {
        let body = Body::Whole(bytes.into());
        let (warnings, headers, tunnel) = (Vec::new(), HeaderMap::new(), None);
        Reply { status, content_type, body, warnings, headers, tunnel }
    }

    #[must_use]
    pub fn json(status: StatusCode, value: &Value) -> Reply {
        let mut bytes = value.to_string().into_bytes();
        bytes.push(b'\n');
        Reply::bytes(status, JSON, bytes)
    }

    #[must_use]
    pub fn text(status: StatusCode, text: impl Into<String>) -> Reply {
        Reply::bytes(status, TEXT, text.into())
    }

    #[must_use]
    pub fn stream(content_type: &'static str, chunks: mpsc::Receiver<Bytes>) -> Reply {
        let mut reply = Reply::bytes(StatusCode::OK, content_type, Bytes::new());
        reply.body = Body::Stream(chunks);
        reply
    }

    #[must_use]
    pub fn with_warnings(mut self, warnings: Vec<String>) -> Reply {
        self.warnings = warnings;
        self
    }

    #[must_use]
    pub fn into_answer(mut self) -> Answer {
        let tunnel = self.tunnel.take();
        Answer { response: self.into_response(), tunnel }
    }

    /// Without what the connection is joined to, if it is to change its protocol.
    #[must_use]
    pub fn into_response(self) -> Response<Body> {
        let mut response = Response::new(self.body);
        *response.status_mut() = self.status;
        *response.headers_mut() = self.headers;
        let headers = response.headers_mut();
        if !self.content_type.is_empty() {
            headers.insert(CONTENT_TYPE, HeaderValue::from_static(self.content_type));
        }
        headers
            .entry("cache-control")
            .or_insert_with(|| HeaderValue::from_static("no-cache, private"));
        let mut said: Vec<&str> = Vec::new();
        for warning in &self.warnings {
            if said.contains(&warning.as_str()) {
                continue;
            }
            said.push(warning);
            if let Ok(value) = HeaderValue::from_str(&warning_header(warning)) {
                headers.append(HeaderName::from_static("warning"), value);
            }
        }
        response
    }
}

/// `299 - "text"`, with quotes and backslashes escaped.
fn warning_header(text: &str) -> String {
    let mut header = String::from("299 - \"");
    for character in text.chars() {
        match character {
            '"' | '\\' => {
                header.push('\\');
                header.push(character);
            }
            control if control.is_control() => header.push(' '),
            other => header.push(other),
        }
    }
    header.push('"');
    header
}

impl Reply {
    /// A refusal in the notation the client wants.
    pub(crate) fn refused(refusal: &Refusal, wanted: Wanted) -> Reply {
        let mut reply = crate::read::encoded(&refusal.to_status(), refusal.code, wanted);
        if let Some(seconds) = refusal.retry_after {
            reply.headers.insert("retry-after", HeaderValue::from(seconds));
        }
        reply.with_warnings(refusal.warnings.clone())
    }
}

impl From<Refusal> for Reply {
    fn from(refusal: Refusal) -> Reply {
        Reply::refused(&refusal, Wanted::PLAIN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warnings_become_headers_once_each() {
        let reply = Reply::text(StatusCode::OK, "ok").with_warnings(vec![
            "unknown field \"a\"".into(),
            "b".into(),
            "b".into(),
        ]);
        let response = reply.into_response();
        let headers: Vec<_> = response.headers().get_all("warning").iter().collect();
        assert_eq!(headers, ["299 - \"unknown field \\\"a\\\"\"", "299 - \"b\""]);
    }
}
