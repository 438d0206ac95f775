//! An image registry at the recorded address that rejects every pull: [`Registry`].
//!
//! It has no images, and private ones require credentials. Images that the recorded one served are
//! not available.

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// The recorded address, which pods name.
pub(super) const ADDRESS: &str = "127.0.0.1:23990";

/// Maximum size of a request in bytes: runtimes send only a few headers.
const LONGEST: usize = 16 * 1024;

/// Stops when it is dropped.
#[derive(Debug)]
pub(super) struct Registry(JoinHandle<()>);

impl Registry {
    /// Starts listening; `None` if the port is in use.
    pub(super) async fn start() -> Option<Registry> {
        let listener = TcpListener::bind(ADDRESS).await.ok()?;
        let serving = tokio::spawn(async move {
            while let Ok((connection, _)) = listener.accept().await {
                tokio::spawn(serve(connection));
            }
        });
        Some(Registry(serving))
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Responds to one request and closes the connection.
async fn serve(mut connection: TcpStream) {
    let mut request = Vec::new();
    while !request.windows(4).any(|end| end == b"\r\n\r\n") && request.len() < LONGEST {
        match connection.read_buf(&mut request).await {
            Ok(1..) => {}
            Ok(0) | Err(_) => return,
        }
    }
    let line = String::from_utf8_lossy(&request);
    let path = line.split(' ').nth(1).unwrap_or_default();
    let text =
        format!("HTTP/1.1 {}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n", status(path));
    // The client may have disconnected.
    let _ = connection.write_all(text.as_bytes()).await;
}

fn status(path: &str) -> &'static str {
    match path.strip_prefix("/v2/") {
        Some("") => "200 OK",
        Some(rest) if rest.starts_with("private/") => "401 Unauthorized",
        _ => "404 Not Found",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn private_images_are_denied_and_others_not_found() {
        let table = [
            ("/v2/", "200 OK"),
            ("/v2/private/x/manifests/1", "401 Unauthorized"),
            ("/v2/nope/manifests/1", "404 Not Found"),
            ("/", "404 Not Found"),
        ];
        for (path, expected) in table {
            assert_eq!(status(path), expected, "{path}");
        }
    }
}
