//! The other side of the protocol: [`serve`] answers on a [`Listener`] with any implementation of the
//! services.
//!
//! Told to stop, it takes no more connections, lets calls come to their end, and cuts off those that
//! have not by the end of the drain, such as streams of events.

use std::convert::Infallible;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::watch;
use tokio::time::Sleep;
use tokio_stream::Stream;
use tonic::body::Body;
use tonic::server::NamedService as _;
use tonic::transport::server::Connected;
use tower_service::Service;

use crate::transport::{Listener, ServerStream};
use crate::v1::image_service_server::{ImageService, ImageServiceServer};
use crate::v1::runtime_service_server::{RuntimeService, RuntimeServiceServer};

/// The same as clients take; see [`Settings`](crate::Settings).
const MESSAGE_LIMIT: usize = 16 << 20;

/// How long to leave a system alone that cannot give us connections, for want of file descriptors for
/// example. It would be asked again at once otherwise, and again.
const RESPITE: Duration = Duration::from_millis(50);

/// Why serving ended otherwise than by being told to.
#[derive(Debug, thiserror::Error)]
#[error("serving ended")]
pub struct ServeError(#[source] tonic::transport::Error);

/// What became of calls that were under way when serving was told to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Draining {
    /// All came to their end.
    Complete,
    /// Some had not by the end of the drain, and were cut off.
    CutOff,
}

/// Serves until `stop` is ready and then for no longer than `drain`.
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
    let (cutting, cut) = watch::channel(false);
    let incoming = Incoming { listener, cut, respite: None };
    let serving = tonic::transport::Server::builder().serve_with_incoming_shutdown(
        services,
        incoming,
        async {
            stop.await;
            stopping.send_replace(true);
        },
    );
    let over = async {
        // An error is the end of `serving`, which is noticed in its own right.
        let _ = stopped.wait_for(|stopped| *stopped).await;
        tokio::time::sleep(drain).await;
    };
    tokio::select! {
        biased;
        served = serving => served.map(|()| Draining::Complete).map_err(ServeError),
        () = over => {
            cutting.send_replace(true);
            Ok(Draining::CutOff)
        }
    }
}

/// The two services behind one door.
struct Services<R, I> {
    runtime: RuntimeServiceServer<R>,
    images: ImageServiceServer<I>,
}

/// The implementations are shared and need not be clones themselves.
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

/// The connections of a listener, each of which can be cut.
struct Incoming {
    listener: Listener,
    cut: watch::Receiver<bool>,
    respite: Option<Pin<Box<Sleep>>>,
}

impl Stream for Incoming {
    type Item = io::Result<AbortableConnection<ServerStream>>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if let Some(respite) = &mut self.respite {
            ready!(respite.as_mut().poll(context));
            self.respite = None;
        }
        let accepted = ready!(Pin::new(&mut self.listener).poll_next(context));
        if let Some(Err(_)) = &accepted {
            self.respite = Some(Box::pin(tokio::time::sleep(RESPITE)));
        }
        let cut = self.cut.clone();
        Poll::Ready(
            accepted.map(|accepted| accepted.map(|stream| AbortableConnection::new(stream, cut))),
        )
    }
}

/// A connection that ends when it is told to.
struct AbortableConnection<S> {
    stream: S,
    cut: Pin<Box<dyn Future<Output = ()> + Send>>,
    is_cut: bool,
}

impl<S> AbortableConnection<S> {
    fn new(stream: S, mut cut: watch::Receiver<bool>) -> Self {
        let cut = Box::pin(async move {
            // Without a sender serving has ended with all calls, and there is nothing to cut.
            if cut.wait_for(|cut| *cut).await.is_err() {
                std::future::pending().await
            }
        });
        Self { stream, cut, is_cut: false }
    }

    fn check(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        self.is_cut = self.is_cut || self.cut.as_mut().poll(context).is_ready();
        if self.is_cut { Err(io::ErrorKind::ConnectionAborted.into()) } else { Ok(()) }
    }
}

impl<S: Connected> Connected for AbortableConnection<S> {
    type ConnectInfo = S::ConnectInfo;

    fn connect_info(&self) -> Self::ConnectInfo {
        self.stream.connect_info()
    }
}

/// A connection always waits to be read, so that is where the order to end is waited for.
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
