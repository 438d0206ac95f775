//! A registry of images where the recording's was, as far as that refused: [`Registry`].
//!
//! It has nothing, and what is private is for nobody. Images that the recorded one gave out are not here.

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// Where the recorded one listened, which pods name.
pub(super) const ADDRESS: &str = "127.0.0.1:23990";

/// The longest request that is read, in bytes: those of runtimes have a few headers.
const LONGEST: usize = 16 * 1024;

/// Ends when it is dropped.
#[derive(Debug)]
pub(super) struct Registry(JoinHandle<()>);

impl Registry {
    /// Begins to listen; none where somebody else does already.
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

/// Answers one request; whoever has another one comes again.
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
    // Who has gone does not wait for it.
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
    fn what_is_private_is_refused_and_the_rest_is_not_there() {
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
