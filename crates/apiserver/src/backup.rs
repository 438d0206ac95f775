//! `GET /berth/backup`: an online backup of the store, for administrators.
//!
//! The response is read by [`store::Store::inspect_backup`], which detects a truncated one.
//! Restoring over the API is not supported.

use std::io::{self, ErrorKind, Write};

use bytes::Bytes;
use http::Method;
use tokio::sync::mpsc;

use crate::api::Api;
use crate::error::ApiError;
use crate::reply::Reply;
use crate::request::Request;

/// The path of the backup. Not below `/api` or `/apis`, where upstream assigns names.
pub const PATH: &str = "/berth/backup";

/// The number of 64 KiB chunks that are buffered for a client that is slower than the disk.
const WAITING: usize = 4;

pub(crate) fn get(api: &Api, request: &Request) -> Result<Reply, ApiError> {
    if request.method != Method::GET {
        return Err(ApiError::method_not_allowed());
    }
    let (sender, chunks) = mpsc::channel(WAITING);
    let store = api.store().clone();
    tokio::task::spawn_blocking(move || {
        // The client detects a broken connection, and reading the backup detects a truncated one.
        let _ = store.stream_backup(&mut Chunks(sender));
    });
    Ok(Reply::stream("application/octet-stream", chunks))
}

/// Sends written bytes as chunks.
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
