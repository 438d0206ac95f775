//! Unix sockets. The twin of this module is `windows.rs`.

use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::net::{UnixListener, UnixStream};
use tokio_stream::Stream;

use super::{BindError, other_system};
use crate::endpoint::Endpoint;

/// The endpoint kind of this system, for error messages.
const HERE: &str = "unix sockets (unix:///run/NAME.sock), no named pipes";

/// Write access to a runtime's socket is equivalent to root, so only the owner has it.
const MODE: u32 = 0o600;

pub(crate) type ClientStream = UnixStream;

/// The server's end of a connection.
pub type ServerStream = UnixStream;

pub(crate) async fn connect(endpoint: &Endpoint) -> io::Result<ClientStream> {
    let path = endpoint.unix_path().ok_or_else(|| other_system(HERE))?;
    UnixStream::connect(path).await
}

/// A socket that accepts connections; removed when dropped, if it is still the same file.
#[derive(Debug)]
pub struct Listener {
    endpoint: Endpoint,
    socket: UnixListener,
    _file: File,
}

/// The path of the socket, and the identity of the file that was created there.
#[derive(Debug)]
struct File {
    path: PathBuf,
    identity: (u64, u64),
}

impl Listener {
    /// Listens on the endpoint. A socket left behind by a dead process is replaced; a socket with a
    /// listener is not, nor is any other kind of file.
    ///
    /// The socket is created under a temporary name, made private and then renamed, so it never
    /// exists with other permissions. If two processes start at the same time, the second one
    /// replaces the socket, and the first one leaves it alone on exit.
    pub async fn bind(endpoint: &Endpoint) -> Result<Self, BindError> {
        let path =
            endpoint.unix_path().ok_or_else(|| BindError::OtherSystem(endpoint.clone(), HERE))?;
        let failed = |what| {
            let endpoint = endpoint.clone();
            move |source| BindError::Io { endpoint, what, source }
        };
        match fs::symlink_metadata(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(failed("inspect the existing file")(error)),
            Ok(found) if !found.file_type().is_socket() => {
                return Err(BindError::NotASocket(endpoint.clone()));
            }
            // Only ConnectionRefused proves that no process listens. Any other error may mean a
            // busy process, or one that we may not connect to.
            Ok(_) => match UnixStream::connect(path).await {
                Ok(_) => return Err(BindError::InUse(endpoint.clone())),
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(failed("probe the existing socket")(error)),
            },
        }
        let (socket, temporary) =
            bind_temporary(Path::new(path)).map_err(failed("create the socket"))?;
        let private = fs::Permissions::from_mode(MODE);
        fs::set_permissions(&temporary.0, private)
            .map_err(failed("restrict access to the socket"))?;
        let identity = identity(&temporary.0).map_err(failed("inspect the new socket"))?;
        fs::rename(&temporary.0, path).map_err(failed("rename the socket to its path"))?;
        let file = File { path: PathBuf::from(path), identity };
        Ok(Self { endpoint: endpoint.clone(), socket, _file: file })
    }

    /// Returns the endpoint that it listens on.
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }
}

/// Binds the socket under a short temporary name, so that it fits wherever the final name does.
fn bind_temporary(path: &Path) -> io::Result<(UnixListener, TempSocket)> {
    let directory = path.parent().unwrap_or(Path::new("/"));
    let mut number = 0;
    loop {
        let temporary = directory.join(format!(".{}.{number}", std::process::id()));
        match UnixListener::bind(&temporary) {
            // Another listener of this process is at this step, or a process with the same id died
            // at it.
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => number += 1,
            Err(error) => return Err(error),
            Ok(socket) => return Ok((socket, TempSocket(temporary))),
        }
    }
}

/// A socket under its temporary name; removed unless it was renamed.
struct TempSocket(PathBuf);

impl Drop for TempSocket {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// Returns the device and inode of a file.
fn identity(path: &Path) -> io::Result<(u64, u64)> {
    let found = fs::symlink_metadata(path)?;
    Ok((found.dev(), found.ino()))
}

impl Drop for File {
    fn drop(&mut self) {
        if identity(&self.path).ok() == Some(self.identity) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Yields the accepted connections.
impl Stream for Listener {
    type Item = io::Result<ServerStream>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.socket.poll_accept(context).map(|accepted| Some(accepted.map(|(stream, _)| stream)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place() -> (tempfile::TempDir, PathBuf, Endpoint) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("cri.sock");
        let endpoint = Endpoint::parse(&format!("unix://{}", path.display())).unwrap();
        (directory, path, endpoint)
    }

    fn names(directory: &tempfile::TempDir) -> Vec<String> {
        let entries = fs::read_dir(directory.path()).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    #[tokio::test]
    async fn a_socket_is_private_and_removed_with_its_listener() {
        let (directory, path, endpoint) = place();
        let listener = Listener::bind(&endpoint).await.unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(names(&directory), ["cri.sock"]);
        connect(&endpoint).await.unwrap();
        drop(listener);
        assert!(names(&directory).is_empty());
    }

    #[tokio::test]
    async fn a_socket_without_a_listener_is_replaced() {
        let (directory, path, endpoint) = place();
        // The standard library's listener leaves its file behind, as a killed process does.
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        assert!(path.exists());
        let _listener = Listener::bind(&endpoint).await.unwrap();
        connect(&endpoint).await.unwrap();
        assert_eq!(names(&directory), ["cri.sock"]);
    }

    #[tokio::test]
    async fn other_files_are_not_replaced_by_a_socket() {
        let (_directory, path, endpoint) = place();
        fs::write(&path, "precious").unwrap();
        let error = Listener::bind(&endpoint).await.unwrap_err();
        assert!(matches!(error, BindError::NotASocket(_)), "{error:?}");
        assert_eq!(fs::read_to_string(&path).unwrap(), "precious");
        // The target of a link is not replaced either, even if it is a socket.
        let (_other, target, _) = place();
        let _socket = std::os::unix::net::UnixListener::bind(&target).unwrap();
        fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink(&target, &path).unwrap();
        let error = Listener::bind(&endpoint).await.unwrap_err();
        assert!(matches!(error, BindError::NotASocket(_)), "{error:?}");
    }

    #[tokio::test]
    async fn a_listener_leaves_its_successors_socket_alone() {
        let (_directory, path, endpoint) = place();
        let first = Listener::bind(&endpoint).await.unwrap();
        fs::remove_file(&path).unwrap();
        let _second = Listener::bind(&endpoint).await.unwrap();
        drop(first);
        connect(&endpoint).await.unwrap();
    }

    #[tokio::test]
    async fn a_missing_directory_is_named_in_the_error() {
        let endpoint = Endpoint::parse("unix:///nonexistent-directory/cri.sock").unwrap();
        let error = Listener::bind(&endpoint).await.unwrap_err();
        assert_eq!(
            error.to_string(),
            "cannot listen on unix:///nonexistent-directory/cri.sock: cannot create the socket"
        );
    }

    #[tokio::test]
    async fn the_longest_possible_path_works() {
        let directory = tempfile::tempdir().unwrap();
        let room = 107 - directory.path().as_os_str().len() - 1;
        let path = directory.path().join("s".repeat(room));
        let endpoint = Endpoint::parse(&format!("unix://{}", path.display())).unwrap();
        let _listener = Listener::bind(&endpoint).await.unwrap();
        connect(&endpoint).await.unwrap();
    }
}
