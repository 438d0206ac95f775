//! The client side of the Kubernetes API, used by all controllers and the agent.
//!
//! Main types: [`Client`], which knows paths, options, pages and errors over a [`Transport`];
//! [`Remote`], the transport over HTTPS to the server of a [`Kubeconfig`]; [`Reflector`] and
//! [`Cache`], which follow the objects of a kind; [`events::Recorder`], which records events. Decides nothing.

mod backoff;
mod client;
pub mod clock;
pub mod events;
mod informer;
mod key;
pub mod kind;
mod kubeconfig;
mod remote;

pub use backoff::Backoff;
pub use client::{
    Body, BoxFuture, Client, DeleteOptions, Error, Lines, PatchKind, Propagation, Refused, Request,
    Response, Scope, Transport, TransportError, Watch, WatchEvent, ignore_not_found,
};
pub use https::{ErrorLog, error_chain};
pub use informer::{Cache, CacheState, Change, IndexFn, Project, Reflector, Update};
pub use key::Key;
pub use kind::Kind;
pub use kubeconfig::{Address, Kubeconfig, KubeconfigError, Source, UnreadableError};
pub use remote::{Remote, RemoteError, Timeouts};
