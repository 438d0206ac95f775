//! `GET /berth/backup`: all that is stored as of now, for administrators, while everything goes on.
//!
//! The answer is what [`store::Store::inspect_backup`] reads. A connection that breaks leaves the client
//! with something that reading it finds out; restoring is not done over the API.

use std::io::{self, ErrorKind, Write};

use bytes::Bytes;
use http::Method;
use tokio::sync::mpsc;

use crate::api::Api;
use crate::error::ApiError;
use crate::reply::Reply;
use crate::request::Request;

/// Where administrators get it. Not below `/api` or `/apis`, where names are upstream's to give.
pub const PATH: &str = "/berth/backup";

/// How many pieces of 64 KiB wait for a client that is slower than the disk.
const WAITING: usize = 4;

pub(crate) fn get(api: &Api, request: &Request) -> Result<Reply, ApiError> {
    if request.method != Method::GET {
        return Err(ApiError::method_not_allowed());
    }
    let (sender, chunks) = mpsc::channel(WAITING);
    let store = api.store().clone();
    tokio::task::spawn_blocking(move || {
        // A client that went away knows it, and one whose answer was cut short finds out by reading it.
        let _ = store.stream_backup(&mut Chunks(sender));
    });
    Ok(Reply::stream("application/octet-stream", chunks))
}

/// Hands on what is written.
struct Chunks(mpsc::Sender<Bytes>);

impl Write for Chunks {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let sent = self.0.blocking_send(Bytes::copy_from_slice(bytes));
        sent.map_err(|_| io::Error::from(ErrorKind::BrokenPipe))?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
