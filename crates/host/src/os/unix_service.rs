//! Notifications of the service manager on systems with systemd.
//!
//! See [`crate::os`] for the twin.

use std::io;
use std::os::unix::net::UnixDatagram;

/// Sends a state (`READY=1`, `STOPPING=1`) to the service manager if `NOTIFY_SOCKET` is set.
pub fn notify(state: &str) -> io::Result<()> {
    let Some(socket) = std::env::var_os("NOTIFY_SOCKET") else { return Ok(()) };
    let from = UnixDatagram::unbound()?;
    let Some(name) = socket.to_str().and_then(|path| path.strip_prefix('@')) else {
        return from.send_to(state.as_bytes(), &socket).map(|_| ());
    };
    abstract_socket(&from, name, state)
}

/// Sends to an abstract socket, which has a name but no file.
#[cfg(target_os = "linux")]
fn abstract_socket(from: &UnixDatagram, name: &str, state: &str) -> io::Result<()> {
    use std::os::linux::net::SocketAddrExt as _;
    let address = std::os::unix::net::SocketAddr::from_abstract_name(name)?;
    from.send_to_addr(state.as_bytes(), &address).map(|_| ())
}

#[cfg(not(target_os = "linux"))]
fn abstract_socket(_: &UnixDatagram, name: &str, _: &str) -> io::Result<()> {
    Err(io::Error::other(format!("NOTIFY_SOCKET=@{name}: only Linux has such sockets")))
}
