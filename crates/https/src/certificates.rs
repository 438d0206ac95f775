//! Our own certificate authority and the certificates that it signs.
//!
//! Text in and out (PEM). Callers decide where keys are stored, with which permissions, and when to
//! renew ([`Validity`] reports when that is due).

use std::time::{Duration, SystemTime};

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, SanType,
};
use thiserror::Error;
use time::OffsetDateTime;
use x509_parser::pem::Pem;

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

const DAY: Duration = Duration::from_secs(24 * 3600);

/// The lifetime of an authority: ten years, as kubeadm's.
pub const AUTHORITY_FOR: Duration = DAY.saturating_mul(3650);

/// The lifetime of a signed certificate: one year, as kubeadm's.
pub const SIGNED_FOR: Duration = DAY.saturating_mul(365);

/// Certificates are backdated by this much, because clocks of clients may be behind.
const BACKDATED: Duration = Duration::from_secs(3600);

/// A certificate cannot name a time after the year 9999. A clock beyond the year 9000 is treated as
/// broken.
const LATEST: Duration = DAY.saturating_mul(365 * 7000);

/// The time that a certificate is valid for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Validity {
    pub from: SystemTime,
    pub until: SystemTime,
}

impl Validity {
    /// Returns true if it is valid now and for at least `more`.
    #[must_use]
    pub fn lasts(&self, now: SystemTime, more: Duration) -> bool {
        self.from <= now && self.left(now) >= more
    }

    /// Returns true if it is time for a new certificate: less than a third of the lifetime is left, or the
    /// certificate is not valid yet because the clock was ahead when it was made.
    #[must_use]
    pub fn is_due(&self, now: SystemTime) -> bool {
        let lifetime = self.until.duration_since(self.from).unwrap_or_default();
        now < self.from || self.left(now) < lifetime / 3
    }

    fn left(&self, now: SystemTime) -> Duration {
        self.until.duration_since(now).unwrap_or_default()
    }
}

/// Returns the validity of the first certificate in a PEM text; `None` if there is no certificate.
#[must_use]
pub fn validity(certificate: &str) -> Option<Validity> {
    let (pem, _) = Pem::read(std::io::Cursor::new(certificate)).ok()?;
    let found = pem.parse_x509().ok()?;
    let time = |time: x509_parser::time::ASN1Time| {
        let seconds = u64::try_from(time.timestamp()).unwrap_or(0);
        SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(seconds))
    };
    let validity = found.validity();
    Some(Validity { from: time(validity.not_before)?, until: time(validity.not_after)? })
}

fn params(name: &str, group: Option<&str>, now: SystemTime, lasts: Duration) -> CertificateParams {
    let mut params = CertificateParams::default();
    let mut subject = DistinguishedName::new();
    subject.push(DnType::CommonName, name);
    if let Some(group) = group {
        subject.push(DnType::OrganizationName, group);
    }
    params.distinguished_name = subject;
    let since = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().min(LATEST);
    params.not_before = OffsetDateTime::UNIX_EPOCH + since.saturating_sub(BACKDATED);
    params.not_after = OffsetDateTime::UNIX_EPOCH + since + lasts;
    params
}

/// Creates an authority.
pub fn authority(name: &str) -> Result<Pair, CertificateError> {
    authority_at(name, SystemTime::now())
}

/// Creates an authority, valid from `now` on.
pub fn authority_at(name: &str, now: SystemTime) -> Result<Pair, CertificateError> {
    let failed = |source| CertificateError { what: name.to_owned(), source };
    let key = KeyPair::generate().map_err(failed)?;
    let mut params = params(name, None, now, AUTHORITY_FOR);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
    let certificate = params.self_signed(&key).map_err(failed)?;
    Ok(Pair { certificate: certificate.pem(), key: key.serialize_pem() })
}

/// Creates a server certificate for these names and addresses.
pub fn server(authority: &Pair, names: &[String]) -> Result<Pair, CertificateError> {
    server_at(authority, names, SystemTime::now())
}

/// Creates a server certificate, valid from `now` on.
pub fn server_at(
    authority: &Pair,
    names: &[String],
    now: SystemTime,
) -> Result<Pair, CertificateError> {
    let mut params = params("berth", None, now, SIGNED_FOR);
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

/// Creates a client certificate for a user in a group.
pub fn client(authority: &Pair, user: &str, group: &str) -> Result<Pair, CertificateError> {
    client_at(authority, user, group, SystemTime::now())
}

/// Creates a client certificate, valid from `now` on.
pub fn client_at(
    authority: &Pair,
    user: &str,
    group: &str,
    now: SystemTime,
) -> Result<Pair, CertificateError> {
    let mut params = params(user, Some(group), now, SIGNED_FOR);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn certificate_is_due_in_its_last_third() {
        for start in [SystemTime::UNIX_EPOCH, SystemTime::now()] {
            let authority = authority_at("a", start).unwrap();
            let client = client_at(&authority, "c", "g", start).unwrap();
            let validity = validity(&client.certificate).unwrap();
            let after = |days: u32| start + DAY * days;
            assert!(!validity.is_due(after(0)) && !validity.is_due(after(240)));
            assert!(validity.is_due(after(250)) && validity.is_due(after(4000)));
            assert!(validity.lasts(after(1), DAY * 363) && !validity.lasts(after(1), SIGNED_FOR));
            if let Some(earlier) = start.checked_sub(DAY)
                && start > SystemTime::UNIX_EPOCH
            {
                assert!(validity.is_due(earlier) && !validity.lasts(earlier, DAY));
            }
        }
    }

    #[test]
    fn certificates_are_created_with_any_clock() {
        // Beyond the year 9999, which is the last that a certificate can name. Windows has no time after 30828.
        let never = SystemTime::UNIX_EPOCH + DAY * 365 * 20_000;
        let made = authority_at("a", never).unwrap();
        assert!(validity(&made.certificate).is_some());
        assert_eq!(validity("no certificate"), None);
    }
}
