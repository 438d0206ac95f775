//! HTTPS servers and clients, for all components that listen or dial.
//!
//! - [`certificates`]: our own authority and the certificates that it signs.
//! - [`Listener`]: a TLS socket that identifies clients by their certificates, enforces limits, and
//!   joins upgraded connections to a far end.
//! - [`ServerTls`]: the certificate and the trusted authorities of a socket, replaceable while it
//!   serves.
//! - [`Dialer`] and [`exchange`]: the client side.
//! - [`Body`]: the bytes of a response, complete or as a stream.
//! - [`ErrorLog`]: decides which errors of a retry loop are logged.
//!
//! Knows no Kubernetes: the request handler decides on access.

mod body;
pub mod certificates;
mod clock;
mod connections;
mod dial;
mod error_log;
mod exchange;
mod listener;
mod outgoing;
mod server_tls;

pub use body::Body;
pub use clock::{Clock, unix_time};
pub use connections::{Client, Counts};
pub use dial::{DialError, Dialer, MaterialError};
pub use error_log::{ErrorLog, error_chain};
pub use exchange::{
    Answer, ExchangeError, Inbound, Tunnel, exchange, is_upgrade, relay, upgrade_headers,
};
pub use listener::{Limits, ListenError, Listener, Peer};
pub use server_tls::ServerTls;
