//! A connection that reads nothing before the first write: [`WriteFirst`].
//!
//! Simple servers, such as scripts, answer as soon as a client connects, without waiting for the request.
//! `hyper` rejects such an answer as data on an idle connection; upstream's client accepts it. The beginning
//! of the answer is kept for error texts about invalid answers.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// The number of bytes of an answer that are kept: one line of a server with another protocol.
const KEPT: usize = 1024;

/// The beginning of an answer. Clones share it.
#[derive(Clone, Default)]
pub(super) struct ReceivedBytes(Arc<Mutex<Vec<u8>>>);

impl ReceivedBytes {
    fn add(&self, bytes: &[u8]) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let room = KEPT.saturating_sub(kept.len());
        kept.extend_from_slice(&bytes[..bytes.len().min(room)]);
    }

    /// Returns the first line.
    pub(super) fn line(&self) -> String {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let line = kept.split(|byte| *byte == b'\n').next().unwrap_or_default();
        String::from_utf8_lossy(line.strip_suffix(b"\r").unwrap_or(line)).into_owned()
    }
}

pub(super) struct WriteFirst<S> {
    stream: S,
    has_written: bool,
    /// The waker of a read before the first write.
    reader: Option<Waker>,
    received: ReceivedBytes,
}

impl<S> WriteFirst<S> {
    pub(super) fn new(stream: S, received: ReceivedBytes) -> WriteFirst<S> {
        WriteFirst { stream, has_written: false, reader: None, received }
    }

    fn note(&mut self, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if !self.has_written && matches!(written, Poll::Ready(Ok(_))) {
            self.has_written = true;
            if let Some(reader) = self.reader.take() {
                reader.wake();
            }
        }
        written
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for WriteFirst<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if !self.has_written {
            self.reader = Some(context.waker().clone());
            return Poll::Pending;
        }
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        self.received.add(buffer.filled().get(before..).unwrap_or_default());
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for WriteFirst<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.note(written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, bytes);
        self.note(written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
