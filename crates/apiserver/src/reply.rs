//! Responses: [`Reply`] of a handler, converted to an [`Answer`] for HTTP.

use std::collections::HashSet;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use http::{HeaderMap, Response, StatusCode};
use https::{Answer, Body, Tunnel};
use serde_json::Value;
use tokio::sync::mpsc;

use crate::accept::AcceptedFormat;
use crate::error::ApiError;

/// A response before it is encoded for HTTP.
#[derive(Debug)]
pub struct Reply {
    pub status: StatusCode,
    pub content_type: &'static str,
    pub body: Body,
    /// Texts for `Warning` headers, in order.
    pub warnings: Vec<String>,
    pub headers: HeaderMap,
    /// The far end of an upgraded connection.
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
        Answer::new(self.into_response(), tunnel)
    }

    /// Converts the reply without its tunnel.
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
        for warning in fitting(&self.warnings) {
            if let Ok(value) = HeaderValue::from_str(&warning_header(warning)) {
                headers.append(HeaderName::from_static("warning"), value);
            }
        }
        response
    }
}

/// The maximum number of warnings. Upstream reports as many unknown fields; clients accept few more
/// headers.
const MAX_WARNINGS: usize = 100;
/// The maximum total length of warnings, in characters, before each of them is truncated.
const WARNINGS_LENGTH: usize = 4 << 10;
/// The length of a truncated warning.
const CUT_LENGTH: usize = 256;

/// Removes duplicates and limits the warnings to what clients and proxies accept in headers. Once
/// they are truncated, those beyond the total length are omitted.
fn fitting(warnings: &[String]) -> Vec<&str> {
    let mut seen = HashSet::new();
    let each = warnings.iter().map(String::as_str);
    let each = each.filter(|warning| !warning.is_empty() && seen.insert(*warning));
    let each: Vec<&str> = each.take(MAX_WARNINGS).collect();
    let length = |text: &str| text.chars().count();
    let mut total = 0;
    let within = each.iter().position(|warning| {
        total += length(warning);
        total > WARNINGS_LENGTH
    });
    let Some(first) = within else { return each };
    let cut = |text: &str| text.char_indices().nth(CUT_LENGTH).map_or(text.len(), |(at, _)| at);
    let mut written = 0;
    let mut kept = Vec::new();
    for (index, warning) in each.into_iter().enumerate() {
        if index > first && written >= WARNINGS_LENGTH {
            break;
        }
        let short = &warning[..cut(warning)];
        written += length(short);
        kept.push(short);
    }
    kept
}

/// Returns `299 - "text"`, with quotes and backslashes escaped.
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
    /// Encodes an error in the accepted format.
    pub(crate) fn from_error(error: &ApiError, format: AcceptedFormat) -> Reply {
        let mut reply = crate::read::encoded(&error.to_status(), error.code, format);
        if let Some(seconds) = error.retry_after {
            reply.headers.insert("retry-after", HeaderValue::from(seconds));
        }
        reply.warnings.clone_from(&error.warnings);
        reply
    }
}

impl From<ApiError> for Reply {
    fn from(error: ApiError) -> Reply {
        Reply::from_error(&error, AcceptedFormat::PLAIN)
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

    #[test]
    fn warnings_beyond_the_total_length_are_truncated() {
        let check = |lengths: &[usize], expected: &[usize]| {
            // The first characters make them distinct.
            let text =
                |(index, length): (usize, &usize)| format!("{index:03}{}", "é".repeat(length - 3));
            let warnings: Vec<String> = lengths.iter().enumerate().map(text).collect();
            let kept: Vec<usize> =
                fitting(&warnings).iter().map(|warning| warning.chars().count()).collect();
            assert_eq!(kept, expected, "{lengths:?}");
        };
        check(&[4096], &[4096]);
        check(&[4090, 6, 3], &[256, 6, 3]);
        check(&[300, 4000, 10], &[256, 256, 10]);
        check(&[300; 20], &[256; 16]);
        check(&[200; 30], &[200; 21]);
    }
}
