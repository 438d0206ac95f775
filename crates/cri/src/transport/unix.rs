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

/// What this system has instead of the other one's endpoints.
const HERE: &str = "unix sockets (unix:///run/NAME.sock), no named pipes";

/// Whoever may write to a runtime's socket is as good as root, so only its owner may.
const MODE: u32 = 0o600;

pub(crate) type ClientStream = UnixStream;

/// The server's end of a connection.
pub type ServerStream = UnixStream;

pub(crate) async fn connect(endpoint: &Endpoint) -> io::Result<ClientStream> {
    let path = endpoint.unix_path().ok_or_else(|| other_system(HERE))?;
    UnixStream::connect(path).await
}

/// A socket that is listened on; removed when dropped, if it is still the same one.
#[derive(Debug)]
pub struct Listener {
    endpoint: Endpoint,
    socket: UnixListener,
    _file: File,
}

/// The socket's place in the file system, and which file was put there.
#[derive(Debug)]
struct File {
    path: PathBuf,
    identity: (u64, u64),
}

impl Listener {
    /// Listens. A socket that a process left behind when it died is replaced; one that is answered at
    /// is not, nor is anything else of that name.
    ///
    /// The socket is made under another name, made private, and then moved to its own, so it is never
    /// seen with other permissions, and two that start at the same time cannot both believe to have
    /// it: the one that comes second takes the place over, and the first one, when it ends, leaves it
    /// alone.
    pub async fn bind(endpoint: &Endpoint) -> Result<Self, BindError> {
        let path =
            endpoint.unix_path().ok_or_else(|| BindError::OtherSystem(endpoint.clone(), HERE))?;
        let failed = |what| {
            let endpoint = endpoint.clone();
            move |source| BindError::Io { endpoint, what, source }
        };
        match fs::symlink_metadata(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(failed("look at what is there")(error)),
            Ok(found) if !found.file_type().is_socket() => {
                return Err(BindError::NotASocket(endpoint.clone()));
            }
            // Nobody is behind it exactly if the system says so. All else may be a process that is
            // busy, or somebody else's.
            Ok(_) => match UnixStream::connect(path).await {
                Ok(_) => return Err(BindError::InUse(endpoint.clone())),
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(failed("find out who is there")(error)),
            },
        }
        let (socket, temporary) =
            bind_temporary(Path::new(path)).map_err(failed("make the socket"))?;
        let private = fs::Permissions::from_mode(MODE);
        fs::set_permissions(&temporary.0, private).map_err(failed("make the socket private"))?;
        let identity = identity(&temporary.0).map_err(failed("look at the new socket"))?;
        fs::rename(&temporary.0, path).map_err(failed("move the socket to its place"))?;
        let file = File { path: PathBuf::from(path), identity };
        Ok(Self { endpoint: endpoint.clone(), socket, _file: file })
    }

    /// What is listened on.
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }
}

/// Makes the socket under a name that is short, so that it can be made wherever its own can.
fn bind_temporary(path: &Path) -> io::Result<(UnixListener, TempSocket)> {
    let directory = path.parent().unwrap_or(Path::new("/"));
    let mut number = 0;
    loop {
        let temporary = directory.join(format!(".{}.{number}", std::process::id()));
        match UnixListener::bind(&temporary) {
            // Another listener of this process is at the same point, or one of a process with the
            // same id died at it.
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => number += 1,
            Err(error) => return Err(error),
            Ok(socket) => return Ok((socket, TempSocket(temporary))),
        }
    }
}

/// A socket under its first name; removed unless it was moved away.
struct TempSocket(PathBuf);

impl Drop for TempSocket {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// Which file it is, whatever its name.
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

/// The connections, as they come.
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
    async fn a_socket_is_its_owners_alone_and_goes_with_its_listener() {
        let (directory, path, endpoint) = place();
        let listener = Listener::bind(&endpoint).await.unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(names(&directory), ["cri.sock"]);
        connect(&endpoint).await.unwrap();
        drop(listener);
        assert!(names(&directory).is_empty());
    }

    #[tokio::test]
    async fn a_socket_that_nobody_answers_at_is_replaced() {
        let (directory, path, endpoint) = place();
        // The standard library's listener leaves its file, as a process that was killed does.
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        assert!(path.exists());
        let _listener = Listener::bind(&endpoint).await.unwrap();
        connect(&endpoint).await.unwrap();
        assert_eq!(names(&directory), ["cri.sock"]);
    }

    #[tokio::test]
    async fn what_is_not_a_socket_is_left_alone() {
        let (_directory, path, endpoint) = place();
        fs::write(&path, "precious").unwrap();
        let error = Listener::bind(&endpoint).await.unwrap_err();
        assert!(matches!(error, BindError::NotASocket(_)), "{error:?}");
        assert_eq!(fs::read_to_string(&path).unwrap(), "precious");
        // Nor is what a link points to, be it a socket.
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
    async fn a_directory_that_is_missing_is_named() {
        let endpoint = Endpoint::parse("unix:///nonexistent-directory/cri.sock").unwrap();
        let error = Listener::bind(&endpoint).await.unwrap_err();
        assert_eq!(
            error.to_string(),
            "cannot listen on unix:///nonexistent-directory/cri.sock: cannot make the socket"
        );
    }

    #[tokio::test]
    async fn a_path_as_long_as_can_be_is_listened_on() {
        let directory = tempfile::tempdir().unwrap();
        let room = 107 - directory.path().as_os_str().len() - 1;
        let path = directory.path().join("s".repeat(room));
        let endpoint = Endpoint::parse(&format!("unix://{}", path.display())).unwrap();
        let _listener = Listener::bind(&endpoint).await.unwrap();
        connect(&endpoint).await.unwrap();
    }
}
