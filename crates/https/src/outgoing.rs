//! A response on its way out: [`Outgoing`].
//!
//! Hands a [`Body`] to the connection in small pieces, so that little of it is kept for a client that
//! does not read. What the response holds (see [`crate::Answer::holding`]) is released when its last
//! piece was written or the connection ended.

use std::any::Any;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::{Buf, Bytes};
use http::header::CONTENT_LENGTH;
use http::{HeaderValue, Response};
use http_body::{Frame, SizeHint};

use crate::body::Body;
use crate::connections::InFlight;

/// The length of a piece; that of a frame of HTTP/2, if nothing else was agreed.
const PIECE: usize = 16 * 1024;

/// Values that are kept as long as the response.
pub(crate) struct Held {
    in_flight: InFlight,
    is_for_slow_reader: bool,
    _held: Option<Box<dyn Any + Send + Sync>>,
}

impl Held {
    pub(crate) fn new(
        in_flight: InFlight,
        is_for_slow_reader: bool,
        held: Option<Box<dyn Any + Send + Sync>>,
    ) -> Held {
        Held { in_flight, is_for_slow_reader, _held: held }
    }

    /// Takes note that the client has something to read, or that it has read everything.
    fn set_unread(&self, is_unread: bool) {
        if !self.is_for_slow_reader {
            self.in_flight.set_unread(is_unread);
        }
    }
}

/// The bytes of a response that are not written yet.
pub(crate) struct Outgoing {
    body: Body,
    /// The bytes that were taken from the body and not sent on.
    rest: Bytes,
    held: Arc<Held>,
}

/// Prepares a response. Only the headers are sent in answer to a HEAD request.
pub(crate) fn outgoing(
    mut response: Response<Body>,
    is_head: bool,
    held: Held,
) -> Response<Outgoing> {
    if is_head {
        // HTTP/1.1 leaves the body out by itself; over HTTP/2 it would break the stream.
        let body = std::mem::replace(response.body_mut(), Body::Whole(Bytes::new()));
        if let Body::Whole(bytes) = body {
            let length = HeaderValue::from(bytes.len());
            response.headers_mut().entry(CONTENT_LENGTH).or_insert(length);
        }
    }
    let held = Arc::new(held);
    response.map(|body| Outgoing { body, rest: Bytes::new(), held })
}

impl http_body::Body for Outgoing {
    type Data = Piece;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Piece>, Infallible>>> {
        let this = self.get_mut();
        // The connection asks for more once it could pass on what it had.
        this.held.set_unread(false);
        while this.rest.is_empty() {
            this.rest = match &mut this.body {
                Body::Whole(bytes) if bytes.is_empty() => return Poll::Ready(None),
                Body::Whole(bytes) => std::mem::take(bytes),
                Body::Stream(chunks) => match chunks.poll_recv(context) {
                    Poll::Pending => return Poll::Pending,
                    Poll::Ready(None) => return Poll::Ready(None),
                    Poll::Ready(Some(bytes)) => bytes,
                },
            };
        }
        let bytes = this.rest.split_to(this.rest.len().min(PIECE));
        this.held.set_unread(true);
        let piece = Piece { bytes, _held: Arc::clone(&this.held) };
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && matches!(&self.body, Body::Whole(bytes) if bytes.is_empty())
    }

    fn size_hint(&self) -> SizeHint {
        match &self.body {
            Body::Whole(bytes) => SizeHint::with_exact((self.rest.len() + bytes.len()) as u64),
            Body::Stream(_) => SizeHint::default(),
        }
    }
}

/// A part of a response, which the connection drops when it is written.
pub(crate) struct Piece {
    bytes: Bytes,
    _held: Arc<Held>,
}

impl Buf for Piece {
    fn remaining(&self) -> usize {
        self.bytes.remaining()
    }

    fn chunk(&self) -> &[u8] {
        self.bytes.chunk()
    }

    fn advance(&mut self, count: usize) {
        self.bytes.advance(count);
    }
}
