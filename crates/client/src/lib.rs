//! The Kubernetes API from a client's side, for every loop of ours that speaks it.
//!
//! Main types: [`Client`], which knows paths, options, pages and errors over a [`Transport`];
//! [`Remote`], which is that over HTTPS, to where a [`Kubeconfig`] says; [`Reflector`] and [`Cache`], which keep up with a kind. Nothing is decided here.

mod backoff;
mod client;
mod informer;
mod key;
pub mod kind;
mod kubeconfig;
mod remote;

pub use backoff::backoff;
pub use client::{
    Body, BoxFuture, Client, DeleteOptions, Error, Lines, PatchKind, Propagation, Refused, Request,
    Response, Scope, Transport, TransportError, Watch, WatchEvent, ignore_not_found,
};
pub use informer::{Cache, Change, IndexFn, Project, Reflector, Until, Update};
pub use key::Key;
pub use kind::Kind;
pub use kubeconfig::{Address, Kubeconfig, KubeconfigError, Source, UnreadableError};
pub use remote::{Remote, RemoteError, Timeouts};
