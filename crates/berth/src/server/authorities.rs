//! The certificate authorities of a control plane: [`Authorities`], and which of them signs when.
//!
//! ```text
//!  years        0                         8         9         10
//!  authority 1  ├──── signs ────────────────────────┤─────────┤ expires
//!  authority 2                            ├ trusted ┤── signs ───────────── …
//! ```
//!
//! An authority signs for as long as a certificate that it signs expires before it. Its successor is
//! published a full certificate lifetime before it signs anything, so a client that got its list of
//! authorities together with its own certificate can verify the server for as long as that
//! certificate lasts.
//!
//! No authority is ever removed, and what is valid is computed from the time alone: after the clock was
//! wrong for a while, the authority that signed before signs again. Signs nothing itself.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, Result, bail};
use apiserver::certificates::{self, Pair, SIGNED_FOR, Validity};

/// The lifetime that an authority has left when its successor is made and published.
const PUBLISH_BEFORE: Duration = SIGNED_FOR.saturating_mul(2);

/// The common name of all authorities; clients distinguish them by the time behind it, as with those of
/// upstream's components.
const NAME: &str = "berth-ca";

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Authority {
    pub(super) pair: Pair,
    validity: Validity,
}

impl Authority {
    fn of(pair: Pair) -> Option<Authority> {
        Some(Authority { validity: certificates::validity(&pair.certificate)?, pair })
    }
}

/// All authorities that ever existed, oldest first.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Authorities(Vec<Authority>);

/// The name of the files of an authority, without their extension: `ca`, `ca-2`, `ca-3`, …
fn stem(index: usize) -> String {
    match index {
        0 => "ca".to_owned(),
        later => format!("ca-{}", later + 1),
    }
}

/// Returns the files in a key directory that a cluster cannot recreate: those of every authority,
/// and the token secret.
pub(crate) fn irreplaceable(pki: &Path) -> Vec<String> {
    let mut files = vec!["ca.crt".to_owned(), "ca.key".to_owned(), "token.key".to_owned()];
    let further = (1..).map(stem).take_while(|stem| pki.join(format!("{stem}.crt")).exists());
    files.extend(further.flat_map(|stem| [format!("{stem}.crt"), format!("{stem}.key")]));
    files
}

impl Authorities {
    /// Reads the authorities of a key directory; the list may be empty.
    pub(super) fn load(pki: &Path) -> Result<Authorities> {
        let mut found = Vec::new();
        loop {
            let stem = stem(found.len());
            let file = |extension: &str| pki.join(format!("{stem}.{extension}"));
            // The certificate is written last: a key without one was never used.
            let Some(certificate) = read(&file("crt"))? else { break };
            let Some(key) = read(&file("key"))? else {
                bail!(
                    "{} is missing, but {} is there; put the key back from a backup, or move {} away \
                     to have new keys made (every client then needs a new kubeconfig)",
                    file("key").display(),
                    file("crt").display(),
                    pki.display()
                );
            };
            let authority = Authority::of(Pair { certificate, key });
            found.push(authority.with_context(|| {
                format!("{} is not a certificate in PEM", file("crt").display())
            })?);
        }
        Ok(Authorities(found))
    }

    /// Makes and stores a new authority unless one will last long enough. Returns whether it made one.
    pub(super) fn ensure(&mut self, pki: &Path, now: SystemTime) -> Result<bool> {
        if self.0.iter().any(|authority| authority.validity.lasts(now, PUBLISH_BEFORE)) {
            return Ok(false);
        }
        let seconds = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
        let pair = certificates::authority_at(&format!("{NAME}@{seconds}"), now)?;
        let authority = Authority::of(pair).context("a new authority cannot be read back")?;
        save_pair(pki, &stem(self.0.len()), &authority.pair)?;
        self.0.push(authority);
        Ok(true)
    }

    /// Returns the authority that signs now: the oldest that outlasts what it signs; failing that, the
    /// one that lasts longest.
    pub(super) fn issuer(&self, now: SystemTime) -> Option<&Authority> {
        let fit = self.0.iter().find(|authority| authority.validity.lasts(now, SIGNED_FOR));
        fit.or_else(|| self.0.iter().max_by_key(|authority| authority.validity.until))
    }

    /// Returns the certificates of all authorities that have not expired, the issuer first.
    pub(super) fn bundle(&self, now: SystemTime) -> String {
        let issuer = self.issuer(now);
        let others = self.0.iter().filter(|authority| {
            authority.validity.until > now && issuer.is_none_or(|issuer| issuer != *authority)
        });
        let all = issuer.into_iter().chain(others);
        all.map(|authority| authority.pair.certificate.as_str()).collect()
    }
}

fn read(path: &Path) -> Result<Option<String>> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("cannot read {}", path.display())),
    }
}

/// Stores a key and then its certificate.
pub(super) fn save_pair(pki: &Path, stem: &str, pair: &Pair) -> Result<()> {
    let file = |extension: &str| -> PathBuf { pki.join(format!("{stem}.{extension}")) };
    host::files::write_atomically(&file("key"), pair.key.as_bytes())?;
    host::files::write_atomically(&file("crt"), pair.certificate.as_bytes())?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: Duration = Duration::from_secs(24 * 3600);

    fn at(days: u32) -> SystemTime {
        // In the year 2026.
        SystemTime::UNIX_EPOCH + DAY * 20_600 + DAY * days
    }

    fn fresh() -> (tempfile::TempDir, Authorities) {
        let dir = tempfile::tempdir().unwrap();
        let mut authorities = Authorities::load(dir.path()).unwrap();
        assert!(authorities.0.is_empty());
        assert!(authorities.ensure(dir.path(), at(0)).unwrap());
        (dir, authorities)
    }

    #[test]
    fn successor_is_trusted_one_certificate_lifetime_before_it_signs() {
        let (dir, mut authorities) = fresh();
        let pki = dir.path();
        let first = authorities.issuer(at(0)).unwrap().clone();
        let (mut published, mut signs) = (None, None);
        for day in (0..3650).step_by(5) {
            authorities.ensure(pki, at(day)).unwrap();
            let bundle = authorities.bundle(at(day));
            assert!(bundle.contains(&first.pair.certificate), "day {day}");
            if bundle.matches("BEGIN").count() == 2 {
                published.get_or_insert(day);
            }
            if authorities.issuer(at(day)).unwrap() != &first {
                signs.get_or_insert(day);
            }
        }
        let (published, signs) = (published.unwrap(), signs.unwrap());
        assert!(published + 360 <= signs && signs <= 3650 - 360, "{published} {signs}");
        assert!(!authorities.bundle(at(3651)).contains(&first.pair.certificate));
        assert_eq!(Authorities::load(pki).unwrap(), authorities);
        let files = irreplaceable(pki);
        assert_eq!(files, ["ca.crt", "ca.key", "token.key", "ca-2.crt", "ca-2.key"]);
    }

    #[test]
    fn authority_signs_again_after_a_clock_error() {
        let (dir, mut authorities) = fresh();
        let first = authorities.issuer(at(0)).unwrap().clone();
        for wrong in [SystemTime::UNIX_EPOCH, at(20_000), SystemTime::UNIX_EPOCH, at(20_000)] {
            authorities.ensure(dir.path(), wrong).unwrap();
            let other = authorities.issuer(wrong).unwrap().clone();
            assert_ne!(other, first);
            assert!(other.validity.lasts(wrong, SIGNED_FOR));
            assert!(!authorities.ensure(dir.path(), at(1)).unwrap());
            assert_eq!(authorities.issuer(at(1)).unwrap(), &first);
        }
        assert_eq!(authorities.0.len(), 3, "a clock that is wrong twice needs no second authority");
    }

    #[test]
    fn lost_key_is_an_error_unless_it_was_never_used() {
        let (dir, _) = fresh();
        fs::rename(dir.path().join("ca.key"), dir.path().join("away")).unwrap();
        let error = Authorities::load(dir.path()).unwrap_err().to_string();
        assert!(error.contains("ca.key is missing") && error.contains("backup"), "{error}");
        fs::remove_file(dir.path().join("ca.crt")).unwrap();
        fs::rename(dir.path().join("away"), dir.path().join("ca.key")).unwrap();
        assert!(Authorities::load(dir.path()).unwrap().0.is_empty());
    }
}
