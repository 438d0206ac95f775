//! The bytes of a response: [`Body`].

use bytes::Bytes;
use tokio::sync::mpsc;

/// The bytes of a response, complete or as a stream.
#[derive(Debug)]
pub enum Body {
    Whole(Bytes),
    Stream(mpsc::Receiver<Bytes>),
}
