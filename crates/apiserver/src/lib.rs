//! The Kubernetes API over an embedded store: HTTP, TLS, authentication, admission, REST and watch.
//!
//! Main type: [`Api`], a function from calls to replies. What objects look like and what is wrong
//! with them is `objects`' business; here is what needs the store, the clock or the network.

mod accept;
mod admission;
mod api;
mod applied;
mod audit;
mod backup;
mod bootstrap;
mod continuation;
mod credentials;
mod delete;
mod documents;
mod flow;
mod heavy;
mod identity;
mod impersonation;
mod incoming;
mod list_options;
mod listener;
mod log_options;
mod metrics;
mod node_authorizer;
mod node_restriction;
mod parts;
mod plugins;
mod random;
mod read;
mod refusal;
mod reply;
mod request;
mod reviews;
mod route;
mod select;
mod services;
mod shares;
mod stored;
mod streams;
mod tokens;
mod watch;
mod websocket;
mod write;

pub use api::{Api, Options, default_gates};
pub use backup::PATH as BACKUP_PATH;
pub use credentials::StaticToken;
pub use documents::git_version;
pub use https::certificates;
pub use https::{Body, Limits, ListenError};
pub use identity::{ADMINISTRATORS, NODES, User, VIEWERS};
pub use listener::Listener;
pub use metrics::MoreMetrics;
pub use plugins::{Plugin, PluginError, Plugins};
pub use random::secret as new_secret;
pub use refusal::Refusal;
pub use reply::Reply;
pub use request::{Call, Caller, Query};
