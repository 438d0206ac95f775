//! The framing of gRPC messages in HTTP/2 bodies, for calls that the layer edits.
//!
//! A unary call has one message, with five bytes before it: a flag for compression and the length. Both directions are
//! bounded by [`cri::MESSAGE_LIMIT`]. Trailers, which carry the status, are kept.

use bytes::{BufMut as _, Bytes, BytesMut};
use http::HeaderMap;
use http::header::{CONTENT_LENGTH, HeaderName};
use http_body_util::{BodyExt as _, Full, Limited};
use tonic::Status;
use tonic::body::Body;

/// The flag for compression and four bytes of length.
const PREFIX: usize = 5;

const STATUS: HeaderName = HeaderName::from_static("grpc-status");
pub(crate) const ACCEPT_ENCODING: HeaderName = HeaderName::from_static("grpc-accept-encoding");

/// A unary message with the trailers that follow it.
#[derive(Debug)]
pub(crate) struct Unary {
    pub(crate) message: Bytes,
    trailers: Option<HeaderMap>,
}

/// Reads the request of a unary call. Compressed messages are refused; the layer accepts none, and no CRI client sends
/// them.
pub(crate) async fn read_request(
    request: http::Request<Body>,
) -> Result<(http::request::Parts, Bytes), Status> {
    let (mut parts, body) = request.into_parts();
    let (data, _) = collect(body, "request").await?;
    let message = unframe(&data)?.ok_or_else(|| Status::internal("the request has no message"))?;
    parts.headers.remove(CONTENT_LENGTH);
    // The response has to be readable here.
    parts.headers.remove(ACCEPT_ENCODING);
    Ok((parts, message))
}

/// Builds the request that is sent to the runtime.
pub(crate) fn request(parts: http::request::Parts, message: &[u8]) -> http::Request<Body> {
    http::Request::from_parts(parts, Body::new(Full::new(frame(message))))
}

/// A response of the runtime: one that can be edited, or an error to forward unchanged.
#[derive(Debug)]
pub(crate) enum Answer {
    Success(http::response::Parts, Unary),
    Error(http::Response<Body>),
}

/// Reads the response of a unary call.
pub(crate) async fn read_response(response: http::Response<Body>) -> Result<Answer, Status> {
    // An error without a message has its status in the headers.
    if response.headers().contains_key(STATUS) {
        return Ok(Answer::Error(response));
    }
    let (mut parts, body) = response.into_parts();
    let (data, trailers) = collect(body, "response").await?;
    parts.headers.remove(CONTENT_LENGTH);
    let failed = trailers
        .as_ref()
        .and_then(|trailers| trailers.get(STATUS))
        .is_some_and(|status| status != "0");
    match unframe(&data)? {
        Some(message) if !failed => Ok(Answer::Success(parts, Unary { message, trailers })),
        _ => Ok(Answer::Error(assemble(parts, data, trailers))),
    }
}

/// Builds the response that is returned to the client, with the trailers of the runtime.
pub(crate) fn response(
    parts: http::response::Parts,
    unary: Unary,
    message: &[u8],
) -> http::Response<Body> {
    assemble(parts, frame(message), unary.trailers)
}

fn assemble(
    parts: http::response::Parts,
    data: Bytes,
    trailers: Option<HeaderMap>,
) -> http::Response<Body> {
    let body = Full::new(data).with_trailers(std::future::ready(trailers.map(Ok)));
    http::Response::from_parts(parts, Body::new(body))
}

async fn collect(body: Body, name: &str) -> Result<(Bytes, Option<HeaderMap>), Status> {
    let limited = Limited::new(body, cri::MESSAGE_LIMIT + PREFIX);
    let collected = limited.collect().await.map_err(|error| {
        if error.is::<http_body_util::LengthLimitError>() {
            let limit = cri::MESSAGE_LIMIT;
            Status::resource_exhausted(format!("the {name} is larger than {limit} bytes"))
        } else {
            Status::unavailable(format!("failed to read the {name}: {error}"))
        }
    })?;
    let trailers = collected.trailers().cloned();
    Ok((collected.to_bytes(), trailers))
}

/// Returns the message of a body; `None` if the body is empty.
fn unframe(data: &Bytes) -> Result<Option<Bytes>, Status> {
    if data.is_empty() {
        return Ok(None);
    }
    let Some((&[compressed, a, b, c, d], message)) = data.split_first_chunk::<PREFIX>() else {
        return Err(Status::internal("the body ends inside the prefix of its message"));
    };
    if compressed != 0 {
        return Err(Status::unimplemented("compressed messages are not supported"));
    }
    let length = u32::from_be_bytes([a, b, c, d]);
    if u64::from(length) != message.len() as u64 {
        let present = message.len();
        return Err(Status::internal(format!(
            "the body has {present} bytes after the prefix, which announces {length}"
        )));
    }
    Ok(Some(data.slice(PREFIX..)))
}

fn frame(message: &[u8]) -> Bytes {
    let mut framed = BytesMut::with_capacity(PREFIX + message.len());
    framed.put_u8(0);
    // Messages are bounded by the limit, which is far below 4 GiB.
    framed.put_u32(u32::try_from(message.len()).unwrap_or(u32::MAX));
    framed.put_slice(message);
    framed.freeze()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn framed_message_is_read_back() {
        for message in [&b""[..], b"abc"] {
            assert_eq!(unframe(&frame(message)).unwrap().unwrap(), message);
        }
        assert_eq!(unframe(&Bytes::new()).unwrap(), None);
    }

    #[test]
    fn malformed_bodies_are_refused() {
        let check = |body: &'static [u8], expected: &str| {
            let status = unframe(&Bytes::from_static(body)).unwrap_err();
            assert_eq!(status.message(), expected);
        };
        check(&[0, 0], "the body ends inside the prefix of its message");
        check(&[1, 0, 0, 0, 0], "compressed messages are not supported");
        check(&[0, 0, 0, 0, 2, 1], "the body has 1 bytes after the prefix, which announces 2");
        check(&[0, 0, 0, 0, 1, 1, 0], "the body has 2 bytes after the prefix, which announces 1");
    }

    #[tokio::test]
    async fn oversized_request_is_refused_before_it_is_kept() {
        let body = Body::new(Full::new(Bytes::from(vec![0; cri::MESSAGE_LIMIT + PREFIX + 1])));
        let status = read_request(http::Request::new(body)).await.unwrap_err();
        assert_eq!(status.code(), tonic::Code::ResourceExhausted);
        assert_eq!(status.message(), "the request is larger than 16777216 bytes");
    }
}
