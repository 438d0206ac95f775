//! What the server shows to its clients: [`serving_certificate`]. Who signs it is decided by whoever
//! gives the files.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use host::files::{WriteError, write_atomically};
use host::os::owners;
use https::certificates::{self, CertificateError, Pair};
use thiserror::Error;

/// Why there is nothing to show.
#[derive(Debug, Error)]
pub enum ServingError {
    #[error("cannot read {file:?}: {source}")]
    Read { file: PathBuf, source: io::Error },
    #[error("only one of tlsCertFile and tlsPrivateKeyFile is given; they come together")]
    Half,
    #[error("cannot make {directory:?}: {source}")]
    Directory { directory: PathBuf, source: io::Error },
    #[error(transparent)]
    Make(#[from] CertificateError),
    #[error(transparent)]
    Write(#[from] WriteError),
}

/// The files that `tlsCertFile` and `tlsPrivateKeyFile` name. Without them, as upstream,
/// `kubelet.crt` and `kubelet.key` in the directory for keys; what is not there is made, good for
/// `names`, and signed by nobody a client knows: an API server that asks for more will not connect.
pub fn serving_certificate(
    files: (Option<&Path>, Option<&Path>),
    directory: &Path,
    names: &[String],
) -> Result<Pair, ServingError> {
    let own = (directory.join("kubelet.crt"), directory.join("kubelet.key"));
    let (certificate, key) = match files {
        (Some(certificate), Some(key)) => (certificate, key),
        (None, None) => (own.0.as_path(), own.1.as_path()),
        _ => return Err(ServingError::Half),
    };
    if files == (None, None) && !(certificate.exists() && key.exists()) {
        let failed = |source| ServingError::Directory { directory: directory.to_owned(), source };
        fs::create_dir_all(directory).map_err(failed)?;
        let authority = certificates::authority("berth-agent-ca")?;
        let Pair { certificate: leaf, key: secret } = certificates::server(&authority, names)?;
        // With its authority, so that who has the file can trust it.
        let chain = leaf + &authority.certificate;
        write_atomically(key, secret.as_bytes())?;
        write_atomically(certificate, chain.as_bytes())?;
        // Whoever wants to verify the agent has to read it; what cannot be changed is the system's way.
        let _ = owners::set_mode(certificate, 0o644);
    }
    let read = |file: &Path| {
        let failed = |source| ServingError::Read { file: file.to_owned(), source };
        fs::read_to_string(file).map_err(failed)
    };
    Ok(Pair { certificate: read(certificate)?, key: read(key)? })
}
