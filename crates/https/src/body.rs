//! The bytes of a response: [`Body`]. Does not know what they are.

use bytes::Bytes;
use tokio::sync::mpsc;

/// The bytes of a response, at once or as they come.
#[derive(Debug)]
pub enum Body {
    Whole(Bytes),
    Stream(mpsc::Receiver<Bytes>),
}
