//! TLS from the client's side: [`Dialer`], with the authorities it trusts and its own certificate.
//!
//! Opens connections and keeps none. Requests are sent by [`crate::exchange`].

use std::io;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::RwLock;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use thiserror::Error;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tracing::info;

use crate::certificates::Pair;
use crate::clock::Clock;

/// Keys or certificates that cannot be used.
#[derive(Debug, Error)]
pub enum MaterialError {
    #[error("the authority is not PEM text with certificates")]
    NoAuthority,
    #[error("a certificate of the authority cannot be used")]
    Authority(#[source] rustls::Error),
    #[error("the certificate is not PEM text with certificates")]
    NoCertificate,
    #[error("the key is not PEM text with a private key (PKCS#8, PKCS#1 or SEC1)")]
    NoKey,
    #[error("the certificate and its key cannot be used")]
    Pair(#[source] rustls::Error),
    #[error("failed to initialise TLS")]
    Tls(#[source] rustls::Error),
}

/// The reason why a connection failed.
#[derive(Debug, Error)]
pub enum DialError {
    #[error("{0:?} is neither a host name nor an address")]
    Name(String),
    #[error("dial tcp {address}: {source}")]
    Connect { address: String, source: io::Error },
    #[error("dial tcp {address}: i/o timeout after {} s", .after.as_secs())]
    TimedOut { address: String, after: Duration },
    #[error("tls to {address}: {source}")]
    Tls { address: String, source: io::Error },
}

/// Opens TLS connections to servers with a certificate of a trusted authority. Clones share the
/// trusted authority and the identity.
#[derive(Debug, Clone)]
pub struct Dialer {
    config: Arc<RwLock<Arc<ClientConfig>>>,
    connect_timeout: Duration,
    clock: Clock,
}

pub(crate) fn certificates(pem: &str) -> Option<Vec<CertificateDer<'static>>> {
    let all = CertificateDer::pem_slice_iter(pem.as_bytes()).collect::<Result<Vec<_>, _>>().ok()?;
    (!all.is_empty()).then_some(all)
}

pub(crate) fn roots(authority: &str) -> Result<RootCertStore, MaterialError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(authority).ok_or(MaterialError::NoAuthority)? {
        roots.add(certificate).map_err(MaterialError::Authority)?;
    }
    Ok(roots)
}

pub(crate) type Identity = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

pub(crate) fn identity(pair: &Pair) -> Result<Identity, MaterialError> {
    let chain = certificates(&pair.certificate).ok_or(MaterialError::NoCertificate)?;
    let key = PrivateKeyDer::from_pem_slice(pair.key.as_bytes());
    Ok((chain, key.map_err(|_| MaterialError::NoKey)?))
}

impl Dialer {
    /// Trusts servers with certificates of `authority` (PEM), and presents `pair` to servers that
    /// ask for a certificate. `protocols` are offered in this order: `h2`, `http/1.1`.
    pub fn new(
        authority: &str,
        pair: Option<&Pair>,
        protocols: &[&str],
        connect_timeout: Duration,
    ) -> Result<Dialer, MaterialError> {
        Dialer::new_at(authority, pair, protocols, connect_timeout, Clock::default())
    }

    /// As [`Dialer::new`], with a given clock.
    pub fn new_at(
        authority: &str,
        pair: Option<&Pair>,
        protocols: &[&str],
        connect_timeout: Duration,
        clock: Clock,
    ) -> Result<Dialer, MaterialError> {
        let protocols = protocols.iter().map(|protocol| protocol.as_bytes().to_vec()).collect();
        let config = Arc::new(config(authority, pair, protocols, &clock)?);
        Ok(Dialer { config: Arc::new(RwLock::new(config)), connect_timeout, clock })
    }

    /// Uses another authority and identity for new connections. On an error the current ones stay
    /// in use.
    pub fn replace(&self, authority: &str, pair: Option<&Pair>) -> Result<(), MaterialError> {
        let protocols = self.config().alpn_protocols.clone();
        let config = Arc::new(config(authority, pair, protocols, &self.clock)?);
        *self.config.write() = config;
        info!("replaced the client certificate and the server authority for new connections");
        Ok(())
    }

    fn config(&self) -> Arc<ClientConfig> {
        Arc::clone(&self.config.read())
    }

    /// Connects to a host whose certificate must be valid for `name`.
    pub async fn connect(
        &self,
        host: &str,
        port: u16,
        name: &str,
    ) -> Result<TlsStream<TcpStream>, DialError> {
        let server =
            ServerName::try_from(name.to_owned()).map_err(|_| DialError::Name(name.to_owned()))?;
        let address = shown(host, port);
        let connecting = async {
            let stream = TcpStream::connect((host, port))
                .await
                .map_err(|source| DialError::Connect { address: address.clone(), source })?;
            // Requests are small and latency matters.
            let _ = stream.set_nodelay(true);
            TlsConnector::from(self.config())
                .connect(server, stream)
                .await
                .map_err(|source| DialError::Tls { address: address.clone(), source })
        };
        match timeout(self.connect_timeout, connecting).await {
            Ok(connected) => connected,
            Err(_) => {
                Err(DialError::TimedOut { address: address.clone(), after: self.connect_timeout })
            }
        }
    }
}

fn config(
    authority: &str,
    pair: Option<&Pair>,
    protocols: Vec<Vec<u8>>,
    clock: &Clock,
) -> Result<ClientConfig, MaterialError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_details(provider, Arc::new(clock.clone()))
        .with_safe_default_protocol_versions()
        .map_err(MaterialError::Tls)?
        .with_root_certificates(roots(authority)?);
    let mut config = match pair {
        None => builder.with_no_client_auth(),
        Some(pair) => {
            let (chain, key) = identity(pair)?;
            builder.with_client_auth_cert(chain, key).map_err(MaterialError::Pair)?
        }
    };
    config.alpn_protocols = protocols;
    Ok(config)
}

/// Formats `host:port`, with brackets around an IPv6 address.
fn shown(host: &str, port: u16) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::certificates;

    #[test]
    fn unusable_keys_and_certificates_have_distinct_errors() {
        let wait = Duration::from_secs(1);
        let authority = certificates::authority("a").unwrap();
        let good = certificates::client(&authority, "c", "g").unwrap();
        let made = |authority: &str, pair: &Pair| {
            Dialer::new(authority, Some(pair), &[], wait).map(|_| ()).unwrap_err().to_string()
        };
        assert!(Dialer::new(&authority.certificate, Some(&good), &["h2"], wait).is_ok());
        assert!(made("nonsense", &good).contains("authority is not PEM"));
        let keyless = Pair { key: "x".to_owned(), ..good.clone() };
        assert!(made(&authority.certificate, &keyless).contains("the key is not PEM"));
        let bare = Pair { certificate: String::new(), ..good.clone() };
        assert!(made(&authority.certificate, &bare).contains("the certificate is not PEM"));
        let other = certificates::client(&authority, "d", "g").unwrap();
        let crossed = Pair { certificate: good.certificate, key: other.key };
        assert!(made(&authority.certificate, &crossed).contains("cannot be used"));
    }

    #[test]
    fn ipv6_addresses_are_formatted_with_brackets() {
        assert_eq!(shown("::1", 1), "[::1]:1");
        assert_eq!(shown("node", 10250), "node:10250");
    }
}
