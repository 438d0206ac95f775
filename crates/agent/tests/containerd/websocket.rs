//! The part of WebSocket (RFC 6455) that streams of containers need: binary messages that begin with the
//! number of their channel. The client's mask is zero.

use http::{HeaderMap, Method, StatusCode};
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::timeout;

use crate::node::{Node, PATIENCE};

pub(crate) struct WebSocket {
    stream: TokioIo<Upgraded>,
}

impl WebSocket {
    pub(crate) async fn open(node: &Node, path: &str, protocol: &str) -> WebSocket {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("connection", "Upgrade"),
            ("upgrade", "websocket"),
            ("sec-websocket-version", "13"),
            ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
            ("sec-websocket-protocol", protocol),
        ] {
            headers.insert(name, value.parse().unwrap());
        }
        let response = node.ask(Method::GET, path, headers).await;
        assert_eq!(response.status(), StatusCode::SWITCHING_PROTOCOLS, "{response:?}");
        assert_eq!(response.headers()["sec-websocket-protocol"], protocol);
        let stream = TokioIo::new(hyper::upgrade::on(response).await.unwrap());
        WebSocket { stream }
    }

    pub(crate) async fn send(&mut self, channel: u8, bytes: &[u8]) {
        let length = u16::try_from(bytes.len() + 1).unwrap();
        let mut frame = vec![0x82, 0x80 | 126];
        frame.extend(length.to_be_bytes());
        frame.extend([0; 4]);
        frame.push(channel);
        frame.extend(bytes);
        self.stream.write_all(&frame).await.unwrap();
    }

    /// Returns the next message with its channel; `None` when the server closes the connection.
    pub(crate) async fn receive(&mut self) -> Option<(u8, Vec<u8>)> {
        loop {
            let read =
                timeout(PATIENCE, self.frame()).await.expect("no message before the timeout");
            match read {
                Some((0x1 | 0x2, mut payload)) if !payload.is_empty() => {
                    return Some((payload.remove(0), payload));
                }
                Some((0x8, _)) | None => return None,
                // Pings, and messages without content.
                Some(_) => {}
            }
        }
    }

    async fn frame(&mut self) -> Option<(u8, Vec<u8>)> {
        let mut head = [0; 2];
        self.stream.read_exact(&mut head).await.ok()?;
        let length = match head[1] & 0x7f {
            126 => u64::from(self.stream.read_u16().await.ok()?),
            127 => self.stream.read_u64().await.ok()?,
            short => u64::from(short),
        };
        let mut payload = vec![0; usize::try_from(length).unwrap()];
        self.stream.read_exact(&mut payload).await.ok()?;
        Some((head[0] & 0x0f, payload))
    }

    /// Reads until the data of a channel satisfies the condition, and returns it.
    pub(crate) async fn until(&mut self, channel: u8, said: impl Fn(&[u8]) -> bool) -> Vec<u8> {
        let mut seen = Vec::new();
        while !said(&seen) {
            match self.receive().await {
                Some((on, bytes)) if on == channel => seen.extend(bytes),
                Some(_) => {}
                None => panic!("connection closed after {:?}", String::from_utf8_lossy(&seen)),
            }
        }
        seen
    }
}
