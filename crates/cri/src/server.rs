//! The server side of the protocol: [`serve`] serves an implementation of the services on a
//! [`Listener`].
//!
//! After a stop request it accepts no more connections and waits for running calls. Calls that have
//! not ended when the drain timeout ends, such as event streams, are aborted.

use std::convert::Infallible;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::watch;
use tokio_stream::{Stream, StreamExt as _};
use tonic::body::Body;
use tonic::server::NamedService as _;
use tonic::transport::server::Connected;
use tower_service::Service;

use crate::transport::{Listener, ServerStream};
use crate::v1::image_service_server::{ImageService, ImageServiceServer};
use crate::v1::runtime_service_server::{RuntimeService, RuntimeServiceServer};

/// The same as clients take; see [`Settings`](crate::Settings).
const MESSAGE_LIMIT: usize = 16 << 20;

/// The pause after a failed accept, for example when file descriptors are exhausted. Avoids a busy
/// loop.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// The reason why serving ended without a stop request.
#[derive(Debug, thiserror::Error)]
#[error("the server ended unexpectedly")]
pub struct ServeError(#[source] tonic::transport::Error);

/// The outcome of calls that were running when serving stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Draining {
    /// All calls ended.
    Complete,
    /// Some calls had not ended when the drain timeout ended, and were aborted.
    Aborted,
}

/// Serves until `stop` resolves, and then for at most `drain`.
pub async fn serve(
    listener: Listener,
    runtime: impl RuntimeService,
    images: impl ImageService,
    stop: impl Future<Output = ()>,
    drain: Duration,
) -> Result<Draining, ServeError> {
    let services = Services {
        runtime: RuntimeServiceServer::new(runtime)
            .max_decoding_message_size(MESSAGE_LIMIT)
            .max_encoding_message_size(MESSAGE_LIMIT),
        images: ImageServiceServer::new(images)
            .max_decoding_message_size(MESSAGE_LIMIT)
            .max_encoding_message_size(MESSAGE_LIMIT),
    };
    let (stopping, mut stopped) = watch::channel(false);
    let (aborting, abort) = watch::channel(false);
    let incoming = incoming(listener).map(move |accepted| {
        accepted.map(|stream| AbortableConnection::new(stream, abort.clone()))
    });
    let serving = tonic::transport::Server::builder().serve_with_incoming_shutdown(
        services,
        incoming,
        async {
            stop.await;
            stopping.send_replace(true);
        },
    );
    let over = async {
        // A dropped sender means that `serving` has ended, which is handled separately.
        let _ = stopped.wait_for(|stopped| *stopped).await;
        tokio::time::sleep(drain).await;
    };
    tokio::select! {
        biased;
        served = serving => served.map(|()| Draining::Complete).map_err(ServeError),
        () = over => {
            aborting.send_replace(true);
            Ok(Draining::Aborted)
        }
    }
}

/// Routes requests to the two services.
struct Services<R, I> {
    runtime: RuntimeServiceServer<R>,
    images: ImageServiceServer<I>,
}

/// The implementations are shared, so they need not be `Clone`.
impl<R, I> Clone for Services<R, I> {
    fn clone(&self) -> Self {
        Self { runtime: self.runtime.clone(), images: self.images.clone() }
    }
}

impl<R: RuntimeService, I: ImageService> Service<http::Request<Body>> for Services<R, I> {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let path = request.uri().path();
        let (service, method) = path.trim_start_matches('/').split_once('/').unwrap_or((path, ""));
        if service == RuntimeServiceServer::<R>::NAME {
            self.runtime.call(request)
        } else if service == ImageServiceServer::<I>::NAME {
            self.images.call(request)
        } else {
            let message = format!("unknown service {service} for method {method}");
            let response = tonic::Status::unimplemented(message).into_http();
            Box::pin(std::future::ready(Ok(response)))
        }
    }
}

/// Returns the connections of a listener, with a pause after a failed accept.
pub fn incoming(listener: Listener) -> impl Stream<Item = io::Result<ServerStream>> {
    listener.then(|accepted| async {
        if accepted.is_err() {
            tokio::time::sleep(ACCEPT_PAUSE).await;
        }
        accepted
    })
}

/// A connection that ends on request.
struct AbortableConnection<S> {
    stream: S,
    abort: Pin<Box<dyn Future<Output = ()> + Send>>,
    is_aborted: bool,
}

impl<S> AbortableConnection<S> {
    fn new(stream: S, mut abort: watch::Receiver<bool>) -> Self {
        let abort = Box::pin(async move {
            // Without a sender, serving has ended with all calls, and there is nothing to abort.
            if abort.wait_for(|abort| *abort).await.is_err() {
                std::future::pending().await
            }
        });
        Self { stream, abort, is_aborted: false }
    }

    fn check(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        self.is_aborted = self.is_aborted || self.abort.as_mut().poll(context).is_ready();
        if self.is_aborted { Err(io::ErrorKind::ConnectionAborted.into()) } else { Ok(()) }
    }
}

impl<S: Connected> Connected for AbortableConnection<S> {
    type ConnectInfo = S::ConnectInfo;

    fn connect_info(&self) -> Self::ConnectInfo {
        self.stream.connect_info()
    }
}

/// A connection always has a pending read, so the abort request is polled there.
impl<S: AsyncRead + Unpin> AsyncRead for AbortableConnection<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.check(context)?;
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for AbortableConnection<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, buffer)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffers: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, buffers)
    }
}
