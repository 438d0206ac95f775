//! TLS to a container without verification.
//!
//! A container's certificate is made for public names, not for the address of its pod, and the kubelet does
//! not verify it either. Use it only for probes and hooks.

use std::io;
use std::sync::{Arc, OnceLock};

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, InvalidMessage, SignatureScheme};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::Failure;

pub(super) async fn connect(
    stream: TcpStream,
    host: &str,
) -> Result<TlsStream<TcpStream>, Failure> {
    let other = |text: String| Failure::Other(text);
    let config = configuration().map_err(|error| other(error.to_string()))?;
    let name = ServerName::try_from(host.to_owned()).map_err(|error| other(error.to_string()))?;
    let connected = TlsConnector::from(config).connect(name, stream).await;
    connected.map_err(|error| {
        if speaks_no_tls(&error) {
            Failure::NotTls
        } else if error.kind() == io::ErrorKind::UnexpectedEof {
            other("EOF".to_owned())
        } else {
            other(format!("tls: {error}"))
        }
    })
}

/// Returns true if an answer does not start like a TLS record.
fn speaks_no_tls(error: &io::Error) -> bool {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    matches!(inner, Some(rustls::Error::InvalidMessage(InvalidMessage::InvalidContentType)))
}

/// Returns the configuration, shared by all probes: it has no state of its own.
fn configuration() -> Result<Arc<ClientConfig>, rustls::Error> {
    static CONFIG: OnceLock<Arc<ClientConfig>> = OnceLock::new();
    if let Some(config) = CONFIG.get() {
        return Ok(Arc::clone(config));
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(AnyCertificate(provider)))
        .with_no_client_auth();
    // Sessions would be kept for servers that are never contacted again.
    config.resumption = rustls::client::Resumption::disabled();
    Ok(Arc::clone(CONFIG.get_or_init(|| Arc::new(config))))
}

#[derive(Debug)]
struct AnyCertificate(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
