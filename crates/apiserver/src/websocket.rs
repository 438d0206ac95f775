//! A body sent as WebSocket messages (RFC 6455), for clients that read logs over a WebSocket.
//!
//! Entry point: [`reply`]. Messages are sent by the server only. Pings of the client are answered,
//! a close ends the stream, and all other frames are discarded.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::header::{
    CONNECTION, HeaderMap, HeaderValue, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY,
    SEC_WEBSOCKET_PROTOCOL, SEC_WEBSOCKET_VERSION, UPGRADE,
};
use http::{Method, StatusCode};
use https::{Body, Tunnel};
use ring::digest;
use tokio::io::{
    AsyncRead, AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, ReadHalf, WriteHalf,
};
use tokio::sync::mpsc;

use crate::reply::{Reply, TEXT};
use crate::request::Request;

/// The value that RFC 6455 joins to a client's key before it is hashed.
const ACCEPT_SALT: &str = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
/// The only version of the protocol.
const VERSION: &str = "13";
/// The maximum length of a message. A client has to hold a whole message in memory.
const LONGEST: usize = 16 * 1024;
/// The buffer between the stream and the connection.
const BUFFER: usize = 64 * 1024;
/// The status of a close frame after all bytes were sent.
const NORMAL: [u8; 2] = 1000_u16.to_be_bytes();

const TEXT_FRAME: u8 = 0x1;
const BINARY_FRAME: u8 = 0x2;
const CLOSE: u8 = 0x8;
const PING: u8 = 0x9;
const PONG: u8 = 0xA;
/// The longest payload of a control frame.
const LONGEST_CONTROL: usize = 125;

/// The encoding of bytes as messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Protocol {
    /// Raw bytes, for clients that name no protocol.
    Unnamed,
    /// `binary.k8s.io`: raw bytes.
    Binary,
    /// `base64.binary.k8s.io`: text in base64.
    Base64,
}

impl Protocol {
    const ALL: [Protocol; 3] = [Protocol::Unnamed, Protocol::Base64, Protocol::Binary];

    fn name(self) -> &'static str {
        match self {
            Protocol::Unnamed => "",
            Protocol::Binary => "binary.k8s.io",
            Protocol::Base64 => "base64.binary.k8s.io",
        }
    }

    /// Returns the first protocol of the client's list that is served.
    fn of(headers: &HeaderMap) -> Result<Protocol, String> {
        let requested = https::upgrade_headers(headers);
        let requested = requested.get(SEC_WEBSOCKET_PROTOCOL).and_then(|value| value.to_str().ok());
        let requested: Vec<&str> =
            requested.unwrap_or_default().split(',').map(str::trim).collect();
        let served = |name: &&str| Protocol::ALL.into_iter().find(|known| known.name() == *name);
        requested.iter().find_map(served).ok_or_else(|| {
            let known = Protocol::ALL.map(Protocol::name).join(" ");
            let requested = requested.join(" ");
            format!("requested protocol(s) are not supported: [{requested}]; supports [{known}]")
        })
    }

    fn frame(self, bytes: &[u8]) -> Vec<u8> {
        match self {
            Protocol::Base64 => frame(TEXT_FRAME, STANDARD.encode(bytes).as_bytes()),
            Protocol::Unnamed | Protocol::Binary => frame(BINARY_FRAME, bytes),
        }
    }
}

/// Reports whether a request asks for a WebSocket.
pub(crate) fn is_asked(headers: &HeaderMap) -> bool {
    let upgrade = headers.get(UPGRADE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    https::is_upgrade(headers) && upgrade.eq_ignore_ascii_case("websocket")
}

/// Switches to WebSocket and sends the body as messages, or rejects the handshake. `held` is
/// dropped when the stream ends.
pub(crate) fn reply(request: &Request, body: Body, held: impl std::any::Any + Send) -> Reply {
    let refused = |status, why: &str| Reply::bytes(status, TEXT, why.to_owned());
    if request.method != Method::GET {
        return refused(StatusCode::METHOD_NOT_ALLOWED, "bad method");
    }
    let key = request.header(SEC_WEBSOCKET_KEY.as_str());
    if key.is_empty() {
        return refused(StatusCode::BAD_REQUEST, "mismatch challenge/response");
    }
    if request.header(SEC_WEBSOCKET_VERSION.as_str()) != VERSION {
        let mut reply = refused(StatusCode::BAD_REQUEST, "missing or bad WebSocket Version");
        reply.headers.insert(SEC_WEBSOCKET_VERSION, HeaderValue::from_static(VERSION));
        return reply;
    }
    let protocol = match Protocol::of(&request.headers) {
        Ok(protocol) => protocol,
        Err(why) => return refused(StatusCode::FORBIDDEN, &why),
    };
    let mut reply = Reply::bytes(StatusCode::SWITCHING_PROTOCOLS, "", "");
    reply.headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    reply.headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
    // Base64 is always a valid header value.
    if let Ok(accept) = HeaderValue::from_str(&accept(key)) {
        reply.headers.insert(SEC_WEBSOCKET_ACCEPT, accept);
    }
    if protocol != Protocol::Unnamed {
        let name = HeaderValue::from_static(protocol.name());
        reply.headers.insert(SEC_WEBSOCKET_PROTOCOL, name);
    }
    let (near, far) = tokio::io::duplex(BUFFER);
    tokio::spawn(send(body, protocol, near));
    reply.tunnel = Some(Tunnel::to(far).holding(held));
    reply
}

/// Returns the `Sec-WebSocket-Accept` value for a key.
fn accept(key: &str) -> String {
    let text = format!("{key}{ACCEPT_SALT}");
    let hash = digest::digest(&digest::SHA1_FOR_LEGACY_USE_ONLY, text.as_bytes());
    STANDARD.encode(hash.as_ref())
}

/// Returns a complete, unmasked frame.
fn frame(opcode: u8, payload: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(payload.len() + 10);
    bytes.push(0x80 | opcode);
    match payload.len() {
        short @ 0..=125 => bytes.push(short as u8),
        medium @ 126..=0xFFFF => {
            bytes.push(126);
            bytes.extend((medium as u16).to_be_bytes());
        }
        long => {
            bytes.push(127);
            bytes.extend((long as u64).to_be_bytes());
        }
    }
    bytes.extend(payload);
    bytes
}

async fn send(body: Body, protocol: Protocol, stream: DuplexStream) {
    let (reader, mut writer) = tokio::io::split(stream);
    let (sender, mut pings) = mpsc::channel(1);
    let listening = tokio::spawn(listen(reader, sender));
    // The client has gone away.
    let _ = messages(body, protocol, &mut writer, &mut pings).await;
    let _ = writer.shutdown().await;
    listening.abort();
}

async fn messages(
    mut body: Body,
    protocol: Protocol,
    to: &mut WriteHalf<DuplexStream>,
    pings: &mut mpsc::Receiver<Vec<u8>>,
) -> std::io::Result<()> {
    // An empty message first shows the client that the stream is open, as upstream does.
    to.write_all(&protocol.frame(&[])).await?;
    loop {
        let chunk = tokio::select! {
            ping = pings.recv() => match ping {
                Some(payload) => {
                    to.write_all(&frame(PONG, &payload)).await?;
                    continue;
                }
                // The client closed the stream or went away.
                None => break,
            },
            chunk = next(&mut body) => chunk,
        };
        let Some(chunk) = chunk else { break };
        for piece in chunk.chunks(LONGEST) {
            to.write_all(&protocol.frame(piece)).await?;
        }
    }
    to.write_all(&frame(CLOSE, &NORMAL)).await
}

async fn next(body: &mut Body) -> Option<Bytes> {
    match body {
        Body::Whole(bytes) if bytes.is_empty() => None,
        Body::Whole(bytes) => Some(std::mem::take(bytes)),
        Body::Stream(chunks) => chunks.recv().await,
    }
}

/// Reads the client's frames until it closes the stream, and passes its pings on.
async fn listen(mut reader: ReadHalf<DuplexStream>, pings: mpsc::Sender<Vec<u8>>) {
    loop {
        let ping = match received(&mut reader).await {
            Ok(Received::Ping(payload)) => payload,
            Ok(Received::Other) => continue,
            Ok(Received::Close) | Err(_) => return,
        };
        if pings.send(ping).await.is_err() {
            return;
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Received {
    Ping(Vec<u8>),
    Close,
    Other,
}

/// Reads one frame of a client. Unused payloads are discarded as they arrive.
async fn received(from: &mut (impl AsyncRead + Unpin)) -> std::io::Result<Received> {
    let [first, second] = [from.read_u8().await?, from.read_u8().await?];
    let length = match second & 0x7F {
        126 => u64::from(from.read_u16().await?),
        127 => from.read_u64().await?,
        short => u64::from(short),
    };
    let mut mask = [0; 4];
    if second & 0x80 != 0 {
        from.read_exact(&mut mask).await?;
    }
    match (first & 0x0F, usize::try_from(length)) {
        (CLOSE, _) => Ok(Received::Close),
        (PING, Ok(length)) if length <= LONGEST_CONTROL => {
            let mut payload = vec![0; length];
            from.read_exact(&mut payload).await?;
            for (byte, key) in payload.iter_mut().zip(mask.into_iter().cycle()) {
                *byte ^= key;
            }
            Ok(Received::Ping(payload))
        }
        // An oversized ping violates the protocol.
        (PING, _) => Ok(Received::Close),
        _ => {
            let mut rest = from.take(length);
            let discarded = tokio::io::copy(&mut rest, &mut tokio::io::sink()).await?;
            Ok(if discarded < length { Received::Close } else { Received::Other })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::{Caller, Query};

    fn request(protocols: &[&'static str]) -> Request {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("connection", "keep-alive, Upgrade"),
            ("upgrade", "WebSocket"),
            ("sec-websocket-version", VERSION),
            // The key and the accept value of RFC 6455, section 1.3.
            ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
        ] {
            headers.insert(name, HeaderValue::from_static(value));
        }
        for protocol in protocols {
            headers.append(SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(protocol));
        }
        Request {
            method: Method::GET,
            path: String::new(),
            query: Query::default(),
            headers,
            body: Bytes::new(),
            caller: Caller::Anonymous,
            source: None,
        }
    }

    #[tokio::test]
    async fn a_handshake_is_answered_or_refused() {
        let reply = |request: &Request| reply(request, Body::Whole(Bytes::new()), ());
        let good = reply(&request(&["v9.k8s.io, base64.binary.k8s.io", "binary.k8s.io"]));
        assert_eq!(good.status, StatusCode::SWITCHING_PROTOCOLS);
        assert_eq!(good.headers[SEC_WEBSOCKET_ACCEPT], "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
        assert_eq!(good.headers[SEC_WEBSOCKET_PROTOCOL], "base64.binary.k8s.io");
        assert!(good.tunnel.is_some());
        let unnamed = reply(&request(&[]));
        assert_eq!(unnamed.status, StatusCode::SWITCHING_PROTOCOLS);
        assert!(!unnamed.headers.contains_key(SEC_WEBSOCKET_PROTOCOL));
        assert_eq!(reply(&request(&["v4.channel.k8s.io"])).status, StatusCode::FORBIDDEN);
        for missing in [SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_VERSION] {
            let mut request = request(&[]);
            request.headers.remove(missing);
            assert_eq!(reply(&request).status, StatusCode::BAD_REQUEST);
        }
        let mut other = request(&[]);
        other.headers.insert(UPGRADE, HeaderValue::from_static("SPDY/3.1"));
        assert!(is_asked(&request(&[]).headers) && !is_asked(&other.headers));
    }

    #[tokio::test]
    async fn a_body_becomes_messages_and_ends_with_a_close() {
        for (protocol, opcode, shown) in [
            (Protocol::Binary, BINARY_FRAME, b"log".as_slice()),
            (Protocol::Base64, TEXT_FRAME, b"bG9n".as_slice()),
        ] {
            let (sender, chunks) = mpsc::channel(1);
            let (near, mut far) = tokio::io::duplex(BUFFER);
            tokio::spawn(send(Body::Stream(chunks), protocol, near));
            // A masked ping whose payload is "hi".
            far.write_all(&[0x80 | PING, 0x82, 1, 2, 3, 4, b'h' ^ 1, b'i' ^ 2]).await.unwrap();
            let mut expected = frame(opcode, &[]);
            expected.extend(frame(PONG, b"hi"));
            let mut bytes = vec![0; expected.len()];
            far.read_exact(&mut bytes).await.unwrap();
            assert_eq!(bytes, expected);
            sender.send(Bytes::from_static(b"log")).await.unwrap();
            drop(sender);
            let mut rest = Vec::new();
            far.read_to_end(&mut rest).await.unwrap();
            let mut expected = frame(opcode, shown);
            expected.extend(frame(CLOSE, &NORMAL));
            assert_eq!(rest, expected);
        }
    }

    #[tokio::test]
    async fn a_client_that_closes_ends_the_body() {
        let (sender, chunks) = mpsc::channel::<Bytes>(1);
        let (near, mut far) = tokio::io::duplex(BUFFER);
        tokio::spawn(send(Body::Stream(chunks), Protocol::Binary, near));
        // A long text message, which is discarded, and then a close.
        let mut frames = vec![0x80 | TEXT_FRAME, 0x80 | 126, 1, 0, 0, 0, 0, 0];
        frames.extend([b'x'; 256]);
        frames.extend([0x80 | CLOSE, 0x80, 0, 0, 0, 0]);
        far.write_all(&frames).await.unwrap();
        sender.closed().await;
    }

    #[test]
    fn lengths_of_frames_are_written_in_three_ways() {
        assert_eq!(frame(BINARY_FRAME, b"a"), [0x82, 1, b'a']);
        assert_eq!(frame(BINARY_FRAME, &[0; 126])[..4], [0x82, 126, 0, 126]);
        assert_eq!(frame(BINARY_FRAME, &[0; 65536])[..10], [0x82, 127, 0, 0, 0, 0, 0, 1, 0, 0]);
    }
}
