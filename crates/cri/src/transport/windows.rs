//! Named pipes of Windows. The twin of this module is `unix.rs`.
//!
//! Access: a pipe without a security descriptor, as ours are, gives full control to the system, to
//! administrators and to the account that created it. Everyone else may only read, which is not
//! enough for gRPC. Other machines are rejected. The first instance of a name must be the first one
//! on the system, so a pipe that another process created earlier is detected and not joined. A
//! client opens a pipe so that the server may identify it, but not impersonate it.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::windows::named_pipe::{
    ClientOptions, NamedPipeClient, NamedPipeServer, ServerOptions,
};
use tokio_stream::Stream;
use tonic::transport::server::Connected;
use windows_sys::Win32::Foundation::{ERROR_ACCESS_DENIED, ERROR_PIPE_BUSY};

use super::{BindError, other_system};
use crate::endpoint::Endpoint;

/// The endpoint kind of this system, for error messages.
const HERE: &str = "named pipes (npipe:////./pipe/NAME), no unix sockets";

/// The pause between attempts to open a pipe whose instances are all busy. Windows can only wait
/// for one by blocking a thread.
const BUSY_PAUSE: Duration = Duration::from_millis(10);

pub(crate) type ClientStream = NamedPipeClient;

/// Waits while the pipe is busy, until the caller's deadline.
pub(crate) async fn connect(endpoint: &Endpoint) -> io::Result<ClientStream> {
    let path = endpoint.pipe_path().ok_or_else(|| other_system(HERE))?;
    loop {
        match ClientOptions::new().open(&path) {
            Err(error) if is(&error, ERROR_PIPE_BUSY) => tokio::time::sleep(BUSY_PAUSE).await,
            opened => return opened,
        }
    }
}

fn is(error: &io::Error, code: u32) -> bool {
    error.raw_os_error().and_then(|raw| u32::try_from(raw).ok()) == Some(code)
}

type AcceptFuture =
    Pin<Box<dyn Future<Output = io::Result<(NamedPipeServer, NamedPipeServer)>> + Send>>;

/// A pipe that accepts connections; closed when dropped.
pub struct Listener {
    endpoint: Endpoint,
    path: String,
    /// The instance that waits for the next client; `None` after a failure.
    accepting: Option<AcceptFuture>,
}

impl std::fmt::Debug for Listener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Listener").field("endpoint", &self.endpoint).finish_non_exhaustive()
    }
}

impl Listener {
    /// Listens unless another process has a pipe of that name. A dead process leaves no pipe
    /// behind.
    #[allow(clippy::unused_async, reason = "its twin has to wait")]
    pub async fn bind(endpoint: &Endpoint) -> Result<Self, BindError> {
        let path =
            endpoint.pipe_path().ok_or_else(|| BindError::OtherSystem(endpoint.clone(), HERE))?;
        let first = options().first_pipe_instance(true).create(&path).map_err(|source| {
            if is(&source, ERROR_ACCESS_DENIED) {
                return BindError::InUse(endpoint.clone());
            }
            BindError::Io { endpoint: endpoint.clone(), what: "make the pipe", source }
        })?;
        let accepting = Some(accept(first, path.clone()));
        Ok(Self { endpoint: endpoint.clone(), path, accepting })
    }

    /// Returns the endpoint that it listens on.
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }
}

fn options() -> ServerOptions {
    let mut options = ServerOptions::new();
    options.reject_remote_clients(true);
    options
}

/// Waits for a client. The next instance is created before this one is handed over, because clients
/// get "not found" while no instance exists.
fn accept(waiting: NamedPipeServer, path: String) -> AcceptFuture {
    Box::pin(async move {
        waiting.connect().await?;
        let next = options().create(&path)?;
        Ok((waiting, next))
    })
}

/// Yields the accepted connections.
impl Stream for Listener {
    type Item = io::Result<ServerStream>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let mut accepting = match self.accepting.take() {
            Some(accepting) => accepting,
            None => match options().create(&self.path) {
                Ok(instance) => accept(instance, self.path.clone()),
                Err(error) => return Poll::Ready(Some(Err(error))),
            },
        };
        match accepting.as_mut().poll(context) {
            Poll::Pending => {
                self.accepting = Some(accepting);
                Poll::Pending
            }
            Poll::Ready(Ok((stream, next))) => {
                self.accepting = Some(accept(next, self.path.clone()));
                Poll::Ready(Some(Ok(ServerStream(stream))))
            }
            Poll::Ready(Err(error)) => Poll::Ready(Some(Err(error))),
        }
    }
}

/// The server's end of a pipe, as the gRPC library needs it.
#[derive(Debug)]
pub struct ServerStream(NamedPipeServer);

impl Connected for ServerStream {
    type ConnectInfo = ();

    fn connect_info(&self) {}
}

impl AsyncRead for ServerStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, buffer)
    }
}

impl AsyncWrite for ServerStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, buffer)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}
