//! The Container Runtime Interface between a node agent and a container runtime.
//!
//! - [`v1`]: the messages and services, from our own `proto/runtime.proto`, with QoS-class
//!   resources (KEP-3008) as an extension.
//! - [`Endpoint`]: the address of a runtime, a unix socket or a named pipe of Windows.
//! - [`Client`]: one connection that is restored automatically, with the kubelet's deadlines.
//! - [`Capabilities`]: the identity of a runtime and the calls that it implements.
//! - [`ClassSupport`]: QoS-class resources in the form that the runtime understands.
//! - [`Listener`] and [`serve`]: the server side, for our own runtimes.
//! - [`RecordingProxy`]: a runtime that forwards calls to another runtime and records them.
//!
//! The crate decides nothing and repeats no call: retries are the caller's. The streams of exec,
//! attach and port-forward are not part of CRI; it only returns their URLs.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use cri::{Client, Endpoint, v1};
//!
//! let endpoint = Endpoint::parse("unix:///run/containerd/containerd.sock")?;
//! let client = Client::new(endpoint);
//! let capabilities = client.probe().await?;
//! println!("{} {}", capabilities.runtime_name, capabilities.runtime_version);
//! for container in client.call(v1::ListContainersRequest::default()).await?.containers {
//!     println!("{}", container.id);
//! }
//! # Ok(())
//! # }
//! ```

mod backoff;
mod capabilities;
mod classes;
mod client;
mod connection;
mod endpoint;
mod error;
mod recording_proxy;
mod rpc;
mod server;
mod transport;

pub use capabilities::{Capabilities, Condition, Handler, NoHostProcesses, check_host_processes};
pub use classes::{ClassSupport, Level, Unsupported};
pub use client::{Client, Responses, Settings};
pub use connection::channel;
pub use endpoint::{Endpoint, EndpointError};
pub use error::{Error, Origin};
pub use recording_proxy::{CallLog, DESCRIPTION, RecordedCall, RecordingProxy};
pub use rpc::{Rpc, StreamingRpc};
pub use server::{Draining, ServeError, incoming, serve};
pub use tonic::Code;
pub use transport::{BindError, Listener, ServerStream};

/// The CRI's `runtime.v1`: messages, and the traits that a runtime implements.
pub mod v1 {
    #![allow(
        clippy::all,
        missing_debug_implementations,
        unreachable_pub,
        reason = "generated from proto/runtime.proto"
    )]
    include!(concat!(env!("OUT_DIR"), "/runtime.v1.rs"));
}

/// Shows whether there are secrets, without their values.
impl std::fmt::Debug for v1::AuthConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let secret = |text: &str| if text.is_empty() { "" } else { "(secret)" };
        f.debug_struct("AuthConfig")
            .field("username", &self.username)
            .field("password", &secret(&self.password))
            .field("auth", &secret(&self.auth))
            .field("server_address", &self.server_address)
            .field("identity_token", &secret(&self.identity_token))
            .field("registry_token", &secret(&self.registry_token))
            .finish()
    }
}
