//! Certificates of our own: an authority made at the first start, and what it signs.
//!
//! Pure text in and out (PEM); where keys are kept, and with which permissions, is the caller's
//! business.

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, SanType,
};
use thiserror::Error;
use time::{Duration, OffsetDateTime};

/// A certificate and its key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pair {
    pub certificate: String,
    pub key: String,
}

#[derive(Debug, Error)]
#[error("cannot make a certificate for {what}")]
pub struct CertificateError {
    what: String,
    source: rcgen::Error,
}

/// How long the authority lasts, in days.
const AUTHORITY_DAYS: i64 = 3650;
/// How long what it signs lasts, in days. It is made anew at a start when little is left.
const SIGNED_DAYS: i64 = 365;

fn params(name: &str, group: Option<&str>, days: i64) -> CertificateParams {
    let mut params = CertificateParams::default();
    let mut subject = DistinguishedName::new();
    subject.push(DnType::CommonName, name);
    if let Some(group) = group {
        subject.push(DnType::OrganizationName, group);
    }
    params.distinguished_name = subject;
    // Clocks of clients may be a little behind.
    params.not_before = OffsetDateTime::now_utc() - Duration::hours(1);
    params.not_after = OffsetDateTime::now_utc() + Duration::days(days);
    params
}

/// A new authority.
pub fn authority(name: &str) -> Result<Pair, CertificateError> {
    let failed = |source| CertificateError { what: name.to_owned(), source };
    let key = KeyPair::generate().map_err(failed)?;
    let mut params = params(name, None, AUTHORITY_DAYS);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
    let certificate = params.self_signed(&key).map_err(failed)?;
    Ok(Pair { certificate: certificate.pem(), key: key.serialize_pem() })
}

/// The server's certificate, good for these names and addresses.
pub fn server(authority: &Pair, names: &[String]) -> Result<Pair, CertificateError> {
    let mut params = params("berth", None, SIGNED_DAYS);
    params.subject_alt_names = names
        .iter()
        .filter_map(|name| match name.parse() {
            Ok(address) => Some(SanType::IpAddress(address)),
            Err(_) => name.as_str().try_into().ok().map(SanType::DnsName),
        })
        .collect();
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    sign(authority, params, "the server")
}

/// A client's certificate: a user in a group.
pub fn client(authority: &Pair, user: &str, group: &str) -> Result<Pair, CertificateError> {
    let mut params = params(user, Some(group), SIGNED_DAYS);
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    sign(authority, params, user)
}

fn sign(
    authority: &Pair,
    mut params: CertificateParams,
    what: &str,
) -> Result<Pair, CertificateError> {
    let failed = |source| CertificateError { what: what.to_owned(), source };
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    let issuer_key = KeyPair::from_pem(&authority.key).map_err(failed)?;
    let issuer = Issuer::from_ca_cert_pem(&authority.certificate, issuer_key).map_err(failed)?;
    let key = KeyPair::generate().map_err(failed)?;
    let certificate = params.signed_by(&key, &issuer).map_err(failed)?;
    Ok(Pair { certificate: certificate.pem(), key: key.serialize_pem() })
}
