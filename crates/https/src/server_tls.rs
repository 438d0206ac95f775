//! [`ServerTls`]: the certificate of a server and the authorities of its clients, which can be replaced
//! while the server runs.
//!
//! A connection keeps the material it was accepted with. Does not decide when to renew.

use std::sync::Arc;

use parking_lot::RwLock;
use rustls::ServerConfig;
use rustls::server::WebPkiClientVerifier;
use tokio_rustls::TlsAcceptor;
use tracing::info;

use crate::certificates::Pair;
use crate::clock::Clock;
use crate::dial;
use crate::listener::ListenError;

/// The TLS material of a server. Clones share it.
#[derive(Debug, Clone)]
pub struct ServerTls {
    current: Arc<RwLock<Arc<ServerConfig>>>,
    clock: Clock,
}

impl ServerTls {
    /// Serves with the certificate `server`. Clients with a certificate of one of the authorities
    /// in `authority` (PEM) are identified by it; without an authority no client is asked for a
    /// certificate.
    pub fn new(
        server: &Pair,
        authority: Option<&str>,
        clock: Clock,
    ) -> Result<ServerTls, ListenError> {
        let config = Arc::new(config(server, authority, &clock)?);
        Ok(ServerTls { current: Arc::new(RwLock::new(config)), clock })
    }

    /// Uses other material for new connections. On an error the current material stays in use.
    pub fn replace(&self, server: &Pair, authority: Option<&str>) -> Result<(), ListenError> {
        let config = Arc::new(config(server, authority, &self.clock)?);
        *self.current.write() = config;
        info!("replaced the server certificate and the client authorities for new connections");
        Ok(())
    }

    pub(crate) fn acceptor(&self) -> TlsAcceptor {
        let current = self.current.read();
        TlsAcceptor::from(Arc::clone(&current))
    }
}

fn unusable(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> ListenError {
    ListenError::Certificate(error.into())
}

fn config(
    server: &Pair,
    authority: Option<&str>,
    clock: &Clock,
) -> Result<ServerConfig, ListenError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_details(provider.clone(), Arc::new(clock.clone()))
        .with_safe_default_protocol_versions()
        .map_err(unusable)?;
    let builder = match authority {
        None => builder.with_no_client_auth(),
        Some(authority) => {
            let roots = Arc::new(dial::roots(authority).map_err(unusable)?);
            let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider)
                .allow_unauthenticated()
                .build()
                .map_err(unusable)?;
            builder.with_client_cert_verifier(verifier)
        }
    };
    let (chain, key) = dial::identity(server).map_err(unusable)?;
    let mut config = builder.with_single_cert(chain, key).map_err(unusable)?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::certificates;

    #[test]
    fn replaced_certificate_is_logged_and_an_invalid_one_is_not() {
        let lines = rig::logs::capture("https");
        let authority = certificates::authority("a").unwrap();
        let pair = certificates::server(&authority, &["localhost".to_owned()]).unwrap();
        let tls = ServerTls::new(&pair, None, Clock::default()).unwrap();
        let invalid = Pair { key: "x".to_owned(), ..pair.clone() };
        assert!(tls.replace(&invalid, None).is_err());
        assert!(lines.with("INFO").is_empty());
        tls.replace(&pair, None).unwrap();
        assert_eq!(lines.with("replaced the server certificate").len(), 1);
    }
}
