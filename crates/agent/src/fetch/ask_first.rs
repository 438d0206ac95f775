//! A connection on which nothing is read before something was written: [`AskFirst`].
//!
//! Servers that are little more than a script answer whoever connects, and do not wait to be asked. To
//! the library such an answer is noise on an idle connection; to upstream's it is the answer.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

pub(super) struct AskFirst<S> {
    stream: S,
    asked: bool,
    /// Whoever wanted to read before that.
    reader: Option<Waker>,
}

impl<S> AskFirst<S> {
    pub(super) fn new(stream: S) -> AskFirst<S> {
        AskFirst { stream, asked: false, reader: None }
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
        Pin::new(&mut self.stream).poll_read(context, buffer)
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
