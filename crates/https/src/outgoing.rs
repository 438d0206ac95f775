//! A response that is being sent: [`Outgoing`].
//!
//! Passes a [`Body`] to the connection in small chunks, so that little memory is held for a client
//! that does not read. Values held by the response (see [`crate::Answer::holding`]) are released
//! when its last chunk was written or the connection ended.

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

/// The length of a chunk: the default frame size of HTTP/2.
const PIECE: usize = 16 * 1024;

/// Values that are held as long as the response.
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

    /// Records whether the client has unread bytes.
    fn set_unread(&self, is_unread: bool) {
        if !self.is_for_slow_reader {
            self.in_flight.set_unread(is_unread);
        }
    }
}

/// The bytes of a response that are not written yet.
pub(crate) struct Outgoing {
    body: Body,
    /// The bytes taken from the body and not sent yet.
    rest: Bytes,
    held: Arc<Held>,
}

/// Prepares a response. A HEAD request gets the headers only.
pub(crate) fn outgoing(
    mut response: Response<Body>,
    is_head: bool,
    held: Held,
) -> Response<Outgoing> {
    if is_head {
        // HTTP/1.1 omits the body by itself; over HTTP/2 it would break the stream.
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
        // The connection polls for more once it has passed on the previous chunk.
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
