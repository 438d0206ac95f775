//! Explains why a socket cannot be bound: [`explain`] names the setting of the port and the process
//! that uses it.

use std::io;
use std::net::SocketAddr;
use std::path::Path;

use host::processes;

/// Default ports of Kubernetes processes, for machines that do not show which process listens.
const WELL_KNOWN: [(u16, &str); 2] = [(6443, "kube-apiserver"), (10_250, "kubelet")];

/// Adds a remedy to the error of a socket. `setting` is the flag or field with the port.
pub(crate) fn explain<E>(error: E, address: SocketAddr, setting: &str) -> anyhow::Error
where
    E: std::error::Error + Send + Sync + 'static,
{
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(&error);
    let mut kind = None;
    while let Some(one) = cause {
        kind = one.downcast_ref::<io::Error>().map(io::Error::kind).or(kind);
        cause = one.source();
    }
    let port = address.port();
    let advice = match kind {
        Some(io::ErrorKind::AddrInUse) => {
            let holder = match processes::listener(Path::new("/proc"), port) {
                Some(process) => format!("{} (process {}) has it", process.name, process.pid),
                None => match WELL_KNOWN.iter().find(|(known, _)| *known == port) {
                    Some((_, name)) => format!("another process has it, perhaps a {name}"),
                    None => "another process has it".to_owned(),
                },
            };
            format!(
                "port {port} is in use: {holder}. Stop it, or choose another port with {setting}"
            )
        }
        Some(io::ErrorKind::PermissionDenied) => {
            format!("port {port} needs root; choose one above 1023 with {setting}")
        }
        Some(io::ErrorKind::AddrNotAvailable) => {
            format!("this machine does not have the address {}", address.ip())
        }
        _ => return anyhow::Error::new(error),
    };
    anyhow::Error::new(error).context(advice)
}
