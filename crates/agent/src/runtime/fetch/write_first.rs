//! A connection on which nothing is read before something was written: [`AskFirst`].
//!
//! Servers that are little more than a script answer whoever connects, and do not wait to be asked. To
//! the library such an answer is noise on an idle connection; to upstream's it is the answer. How it began
//! is kept, for texts about answers that are none.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// How much of an answer is kept, in bytes: a line of a server that speaks another protocol.
const KEPT: usize = 1024;

/// How an answer began. Clones are of the same answer.
#[derive(Clone, Default)]
pub(super) struct Heard(Arc<Mutex<Vec<u8>>>);

impl Heard {
    fn add(&self, bytes: &[u8]) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let room = KEPT.saturating_sub(kept.len());
        kept.extend_from_slice(&bytes[..bytes.len().min(room)]);
    }

    /// The first line.
    pub(super) fn line(&self) -> String {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let line = kept.split(|byte| *byte == b'\n').next().unwrap_or_default();
        String::from_utf8_lossy(line.strip_suffix(b"\r").unwrap_or(line)).into_owned()
    }
}

pub(super) struct AskFirst<S> {
    stream: S,
    asked: bool,
    /// Whoever wanted to read before that.
    reader: Option<Waker>,
    heard: Heard,
}

impl<S> AskFirst<S> {
    pub(super) fn new(stream: S, heard: Heard) -> AskFirst<S> {
        AskFirst { stream, asked: false, reader: None, heard }
    }

    fn note(&mut self, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if !self.asked && matches!(written, Poll::Ready(Ok(_))) {
            self.asked = true;
            if let Some(reader) = self.reader.take() {
                reader.wake();
            }
        }
        written
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for AskFirst<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if !self.asked {
            self.reader = Some(context.waker().clone());
            return Poll::Pending;
        }
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        self.heard.add(buffer.filled().get(before..).unwrap_or_default());
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for AskFirst<S> {
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
