//! A watch as a sequence of events: joins chunks into lines and parses each line once.

use bytes::{Buf as _, Bytes, BytesMut};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::{Body, Error, refused};

/// An event of a watch.
#[derive(Debug)]
pub enum WatchEvent<'a> {
    /// The object is new or has changed.
    Applied(&'a RawValue),
    /// The object was deleted; this is its last state.
    Removed(&'a RawValue),
    /// All changes up to the object's resource version have been sent.
    Bookmark(&'a RawValue),
}

#[derive(Deserialize)]
struct Line<'a> {
    #[serde(rename = "type")]
    kind: &'a str,
    #[serde(borrow)]
    object: &'a RawValue,
}

#[derive(Deserialize)]
struct Code {
    #[serde(default)]
    code: u16,
}

/// An open watch.
#[derive(Debug)]
pub struct Watch {
    /// The request, for error messages.
    request: String,
    body: Body,
    buffer: BytesMut,
}

impl Watch {
    pub(super) fn new(request: String, body: Body) -> Watch {
        Watch { request, body, buffer: BytesMut::new() }
    }

    /// Returns all complete lines that have arrived. Empty at the end.
    pub async fn next(&mut self) -> Lines {
        loop {
            if let Some(end) = self.buffer.iter().rposition(|byte| *byte == b'\n') {
                let lines = self.buffer.split_to(end + 1).freeze();
                return Lines { request: self.request.clone(), rest: lines };
            }
            match self.body.next().await {
                Some(chunk) => self.buffer.extend_from_slice(&chunk),
                None => return Lines { request: self.request.clone(), rest: Bytes::new() },
            }
        }
    }
}

/// Lines that have arrived.
#[derive(Debug)]
pub struct Lines {
    request: String,
    rest: Bytes,
}

impl Lines {
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// Reads the next line; `None` after the last.
    pub fn read<T>(
        &mut self,
        take: impl FnOnce(WatchEvent<'_>) -> Result<T, serde_json::Error>,
    ) -> Option<Result<T, Error>> {
        let end = self.rest.iter().position(|byte| *byte == b'\n')?;
        let line = self.rest.split_to(end);
        self.rest.advance(1);
        let garbled = |source| Error::Garbled { request: self.request.clone(), source };
        let Line { kind, object } = match serde_json::from_slice(&line) {
            Ok(line) => line,
            Err(error) => return Some(Err(garbled(error))),
        };
        let event = match kind {
            "ADDED" | "MODIFIED" => WatchEvent::Applied(object),
            "DELETED" => WatchEvent::Removed(object),
            "ERROR" => {
                let text = object.get();
                let code = serde_json::from_str::<Code>(text).map_or(0, |status| status.code);
                return Some(Err(refused(code, None, text.as_bytes())));
            }
            // Bookmarks, and unknown event types, carry no change.
            _ => WatchEvent::Bookmark(object),
        };
        Some(take(event).map_err(garbled))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::mpsc;

    #[tokio::test]
    async fn lines_are_put_together_from_chunks() {
        let (sender, receiver) = mpsc::channel(8);
        let text = "{\"type\":\"ADDED\",\"object\":{\"a\":1}}\n{\"type\":\"DELETED\",\"object\":{}}\n\
                    {\"type\":\"ERROR\",\"object\":{\"code\":410,\"reason\":\"Expired\"}}\n";
        for chunk in text.as_bytes().chunks(7) {
            let chunk = Bytes::copy_from_slice(chunk);
            let sender = sender.clone();
            tokio::spawn(async move { sender.send(chunk).await });
            tokio::task::yield_now().await;
        }
        drop(sender);
        let mut watch = Watch::new("WATCH x".to_owned(), Body::Stream(receiver));
        let mut received = Vec::new();
        loop {
            let mut lines = watch.next().await;
            if lines.is_empty() {
                break;
            }
            while let Some(read) = lines.read(|event| Ok(format!("{event:?}"))) {
                received.push(match read {
                    Ok(text) => text.split('(').next().unwrap_or_default().to_owned(),
                    Err(error) => error.status().to_string(),
                });
            }
        }
        assert_eq!(received, ["Applied", "Removed", "410"]);
    }
}
