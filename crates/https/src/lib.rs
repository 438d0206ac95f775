//! HTTPS both ways, for whatever of ours listens or dials.
//!
//! - [`certificates`]: an authority of our own and what it signs.
//! - [`Listener`]: a socket that serves TLS, knows its clients by their certificates, keeps limits,
//!   and joins connections that changed their protocol to another one.
//! - [`ServerTls`]: what a socket shows and trusts, replaceable while it serves.
//! - [`Dialer`] and [`exchange`]: the other side.
//! - [`Body`]: an answer's bytes, at once or as they come.
//! - [`exposition`]: Prometheus metrics in the format that a client asks for.
//!
//! It knows no Kubernetes: who may do what is decided by who answers.

mod body;
pub mod certificates;
mod clock;
mod connections;
mod dial;
mod exchange;
pub mod exposition;
mod listener;
mod outgoing;
mod server_tls;

pub use body::Body;
pub use clock::Clock;
pub use connections::{Client, Counts};
pub use dial::{DialError, Dialer, MaterialError};
pub use exchange::{
    Answer, ExchangeError, Inbound, Tunnel, exchange, is_upgrade, relay, upgrade_headers,
};
pub use listener::{Limits, ListenError, Listener, Peer};
pub use server_tls::ServerTls;
