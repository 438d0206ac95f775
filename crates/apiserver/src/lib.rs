//! The Kubernetes API over an embedded store: HTTP, TLS, authentication, admission, REST and watch.
//!
//! Main type: [`Api`], a function from requests to replies. The `objects` crate defines and
//! validates objects; this crate does what needs the store, the clock or the network.

mod accept;
mod access_reviews;
mod admission;
mod api;
mod apply_body;
mod audit;
mod backup;
mod bootstrap;
mod codec;
mod continuation;
mod credentials;
mod decode;
mod delete;
mod discovery;
mod error;
mod flow;
mod heavy;
mod identity;
mod impersonation;
mod list_options;
mod listener;
mod log_options;
mod metrics;
mod node_authorizer;
mod node_restriction;
mod plugins;
mod random;
mod read;
mod reply;
mod request;
mod route;
mod select;
mod services;
mod shares;
mod streams;
mod subresources;
mod tokens;
mod watch;
mod websocket;
mod write;

pub use api::{Api, Options, default_gates};
pub use backup::PATH as BACKUP_PATH;
pub use credentials::StaticToken;
pub use discovery::git_version;
pub use error::ApiError;
pub use https::certificates;
pub use https::{Body, Limits, ListenError};
pub use identity::{ADMINISTRATORS, NODES, User, VIEWERS};
pub use listener::Listener;
pub use metrics::MetricsCollector;
pub use plugins::{Plugin, PluginError, Plugins};
pub use random::secret as new_secret;
pub use reply::Reply;
pub use request::{Caller, Query, Request};
