//! The certificate of the server and the authority of its clients, from files: [`Serving`]. As upstream,
//! changed files are read again while the agent runs.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use host::files::{WriteError, write_atomically};
use host::os::owners;
use https::certificates::{self, CertificateError, Pair};
use https::{Clock, ListenError, ServerTls};
use thiserror::Error;

use crate::supervisor::{millis, restart_on_panic};
use client::ErrorLog;

/// Interval between two checks of the files and the clock.
const CHECK_EVERY: Duration = Duration::from_secs(60);

/// The reason why there is no certificate.
#[derive(Debug, Error)]
pub enum ServingError {
    #[error("cannot read {file:?}: {source}")]
    Read { file: PathBuf, source: io::Error },
    #[error("cannot read clientCAFile {file:?}: {source}")]
    Authority { file: PathBuf, source: io::Error },
    #[error("only one of tlsCertFile and tlsPrivateKeyFile is given; they come together")]
    Half,
    #[error("cannot make {directory:?}: {source}")]
    Directory { directory: PathBuf, source: io::Error },
    #[error(transparent)]
    Make(#[from] CertificateError),
    #[error(transparent)]
    Write(#[from] WriteError),
    #[error(transparent)]
    Use(#[from] ListenError),
}

/// The source of the certificates of the agent's server.
///
/// The certificate is that of `files` (`tlsCertFile` and `tlsPrivateKeyFile`). Without them it is, as
/// upstream, `kubelet.crt` and `kubelet.key` in `directory`. These are created for `names` if they are
/// missing, and renewed before they expire. They are self-signed: an API server that verifies agents
/// will not connect.
#[derive(Debug, Clone)]
pub struct Serving {
    pub files: (Option<PathBuf>, Option<PathBuf>),
    pub directory: PathBuf,
    pub names: Vec<String>,
    /// `clientCAFile`: clients with a certificate of one of these authorities are authenticated.
    pub client_authority: Option<PathBuf>,
    pub clock: Clock,
}

/// The contents of the files.
type Material = (Pair, Option<String>);

impl Serving {
    /// Returns the current material.
    pub fn load(&self) -> Result<ServerTls, ServingError> {
        let (pair, authority) = self.read()?;
        Ok(ServerTls::new(&pair, authority.as_deref(), self.clock.clone())?)
    }

    /// Keeps `tls` up to date with the files.
    pub async fn keep_current(self, tls: ServerTls) {
        restart_on_panic("serving certificate", || self.follow_files(&tls)).await;
    }

    async fn follow_files(&self, tls: &ServerTls) {
        // The material in use may be older than the files, so the first check replaces it.
        let (mut last, mut errors) = (None, ErrorLog::default());
        loop {
            tokio::time::sleep(CHECK_EVERY).await;
            match self.check(tls, &mut last) {
                Ok(loaded) => {
                    let recovered = errors.recovered().is_some();
                    if loaded || recovered {
                        tracing::info!("loaded the serving certificate");
                    }
                }
                Err(error) => {
                    if errors.failed(&error) {
                        let retry_in_ms = millis(CHECK_EVERY);
                        tracing::error!(
                            %error,
                            retry_in_ms,
                            "failed to load the serving certificate; keeping the last one"
                        );
                    }
                }
            }
        }
    }

    /// Replaces `tls` if the contents of the files differ from `last`. Returns true if it did.
    fn check(&self, tls: &ServerTls, last: &mut Option<Material>) -> Result<bool, ServingError> {
        let found = self.read()?;
        if last.as_ref() == Some(&found) {
            return Ok(false);
        }
        tls.replace(&found.0, found.1.as_deref())?;
        Ok(last.replace(found).is_some())
    }

    pub(super) fn read(&self) -> Result<Material, ServingError> {
        let own = (self.directory.join("kubelet.crt"), self.directory.join("kubelet.key"));
        let (certificate, key) = match &self.files {
            (Some(certificate), Some(key)) => (certificate, key),
            (None, None) => (&own.0, &own.1),
            _ => return Err(ServingError::Half),
        };
        if self.files == (None, None) && !(key.exists() && self.is_current(certificate)) {
            self.make(certificate, key)?;
        }
        let read = |file: &Path| {
            let failed = |source| ServingError::Read { file: file.to_owned(), source };
            fs::read_to_string(file).map_err(failed)
        };
        let pair = Pair { certificate: read(certificate)?, key: read(key)? };
        let authority = self.client_authority.as_ref().map(|file| {
            let failed = |source| ServingError::Authority { file: file.clone(), source };
            fs::read_to_string(file).map_err(failed)
        });
        Ok((pair, authority.transpose()?))
    }

    /// Returns true if a file has a certificate that does not have to be renewed. A file that cannot be
    /// parsed is not replaced, because it may not be the agent's.
    fn is_current(&self, certificate: &Path) -> bool {
        let Ok(text) = fs::read_to_string(certificate) else { return certificate.exists() };
        certificates::validity(&text).is_none_or(|validity| !validity.is_due(self.clock.now()))
    }

    fn make(&self, certificate: &Path, key: &Path) -> Result<(), ServingError> {
        let directory = &self.directory;
        let failed = |source| ServingError::Directory { directory: directory.clone(), source };
        fs::create_dir_all(directory).map_err(failed)?;
        let now = self.clock.now();
        let authority = certificates::authority_at("berth-agent-ca", now)?;
        let made = certificates::server_at(&authority, &self.names, now)?;
        // With its authority, so that the file can be used to verify the agent.
        let chain = made.certificate + &authority.certificate;
        write_atomically(key, made.key.as_bytes())?;
        write_atomically(certificate, chain.as_bytes())?;
        // Clients that verify the agent have to read it. Not every system has file modes.
        let _ = owners::set_mode(certificate, 0o644);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::time::SystemTime;

    use super::*;

    #[test]
    fn own_certificates_are_renewed_and_given_ones_read_again() {
        let dir = tempfile::tempdir().unwrap();
        let days = Arc::new(AtomicU64::new(0));
        let start = SystemTime::now();
        let clock = Clock::new({
            let days = days.clone();
            move || start + Duration::from_secs(24 * 3600) * days.load(Ordering::Relaxed) as u32
        });
        let own = Serving {
            files: (None, None),
            directory: dir.path().join("pki"),
            names: vec!["node".to_owned()],
            client_authority: None,
            clock,
        };
        let tls = own.load().unwrap();
        let mut last = None;
        let mut made = Vec::new();
        for day in (0..1000).step_by(20) {
            days.store(day, Ordering::Relaxed);
            own.check(&tls, &mut last).unwrap();
            let text = fs::read_to_string(dir.path().join("pki/kubelet.crt")).unwrap();
            let validity = certificates::validity(&text).unwrap();
            assert!(validity.lasts(own.clock.now(), Duration::from_secs(100 * 24 * 3600)));
            if made.last() != Some(&text) {
                made.push(text);
            }
        }
        assert!((4..=5).contains(&made.len()), "made {} times in 1000 days", made.len());

        let authority = certificates::authority("a").unwrap();
        let files = [dir.path().join("crt"), dir.path().join("key"), dir.path().join("ca")];
        let write = || {
            let pair = certificates::server(&authority, &own.names).unwrap();
            fs::write(&files[0], pair.certificate).unwrap();
            fs::write(&files[1], pair.key).unwrap();
            fs::write(&files[2], &authority.certificate).unwrap();
        };
        write();
        let [certificate, key, ca] = files.clone();
        let given = Serving {
            files: (Some(certificate), Some(key)),
            client_authority: Some(ca.clone()),
            ..own.clone()
        };
        let mut last = None;
        assert!(!given.check(&tls, &mut last).unwrap(), "the first look only takes note");
        assert!(!given.check(&tls, &mut last).unwrap());
        write();
        assert!(given.check(&tls, &mut last).unwrap());
        fs::remove_file(&ca).unwrap();
        let error = given.check(&tls, &mut last).unwrap_err().to_string();
        assert!(error.contains("clientCAFile"), "{error}");
        write();
        let half = Serving { files: (None, Some(ca)), ..own };
        assert!(matches!(half.load(), Err(ServingError::Half)));
    }
}
