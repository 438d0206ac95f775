//! Reading of logs: [`Reader`] reads a file, and [`follow`] waits for more.
//!
//! While a log is followed, the runtime can be asked to start a new file under the same name. The reader
//! keeps the old file open. Once another file has the name, it reads the old one to its end and continues
//! with the new one: the runtime writes to a file only while it has the name, or until it reopens its log.

use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use host::files::{Identity, identity};
use objects::timestamp::Timestamp;
use thiserror::Error;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::line::Line;

/// The number of bytes per read.
const BLOCK: usize = 64 * 1024;

/// The period of checking a followed log. A check costs one system call, so it can be frequent enough for a
/// person.
const PERIOD: Duration = Duration::from_millis(100);

/// The period of checking that the container still runs.
const STATE_PERIOD: Duration = Duration::from_secs(1);

/// The selected part of a log.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Options {
    /// Continue with new lines.
    pub follow: bool,
    /// Start with this number of lines from the end.
    pub tail: Option<u64>,
    /// Omit older lines.
    pub since: Option<Timestamp>,
    /// Prefix each line with its time.
    pub timestamps: bool,
    /// The largest number of bytes.
    pub limit: Option<u64>,
}

/// The error of opening a log.
#[derive(Debug, Error)]
#[error("failed to open log file {path:?}: {source}")]
pub struct LogError {
    pub path: PathBuf,
    pub source: io::Error,
}

/// The result of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// More may be available immediately.
    More,
    /// The end of the file was reached.
    End,
    /// The limit was reached.
    Enough,
}

/// A log file that is being read.
#[derive(Debug)]
pub struct Reader {
    path: PathBuf,
    file: File,
    identity: Identity,
    options: Options,
    /// The beginning of an incomplete line.
    rest: Vec<u8>,
    /// The number of bytes until the limit.
    left: u64,
    /// True if the last line was complete.
    fresh: bool,
}

impl Reader {
    /// Opens a log, at its tail if requested.
    pub fn open(path: &Path, options: Options) -> Result<Reader, LogError> {
        let failed = |source| LogError { path: path.to_owned(), source };
        let mut file = File::open(path).map_err(failed)?;
        if let Some(lines) = options.tail {
            let start = tail_start(&mut file, lines).map_err(failed)?;
            file.seek(SeekFrom::Start(start)).map_err(failed)?;
        }
        let identity = identity(&file).map_err(failed)?;
        let left = options.limit.unwrap_or(u64::MAX);
        let (path, rest) = (path.to_owned(), Vec::new());
        Ok(Reader { path, file, identity, options, rest, left, fresh: true })
    }

    /// Reads a block and appends the selected lines to `out`.
    pub fn step(&mut self, out: &mut Vec<u8>) -> io::Result<Step> {
        if self.left == 0 {
            return Ok(Step::Enough);
        }
        let before = self.rest.len();
        let read = self.file.by_ref().take(BLOCK as u64).read_to_end(&mut self.rest)?;
        let block = std::mem::take(&mut self.rest);
        let mut start = 0;
        // The previous rest contains no newline.
        while let Some(end) = newline(&block, start.max(before)) {
            self.write_line(&block[start..end], out);
            start = end + 1;
        }
        self.rest = block[start..].to_vec();
        Ok(match (self.left, read) {
            (0, _) => Step::Enough,
            (_, 0) => Step::End,
            _ => Step::More,
        })
    }

    /// Outputs the rest as a line, because the file is complete.
    pub fn finish(&mut self, out: &mut Vec<u8>) {
        let rest = std::mem::take(&mut self.rest);
        if !rest.is_empty() {
            self.write_line(&rest, out);
        }
    }

    /// Continues with the file that has the name now. Returns false if that is the current one, or if none
    /// exists.
    pub fn reopen(&mut self) -> io::Result<bool> {
        let file = match File::open(&self.path) {
            Ok(file) => file,
            // It was renamed, and the next one does not exist yet.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            Err(error) => return Err(error),
        };
        let found = identity(&file)?;
        if found == self.identity {
            return Ok(false);
        }
        (self.file, self.identity) = (file, found);
        self.rest.clear();
        Ok(true)
    }

    /// Returns true if another file has the name.
    pub fn is_replaced(&self) -> io::Result<bool> {
        match File::open(&self.path) {
            Ok(file) => Ok(identity(&file)? != self.identity),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn write_line(&mut self, line: &[u8], out: &mut Vec<u8>) {
        // Skip lines that are not in the runtime's format.
        let Ok(line) = Line::parse(line) else { return };
        if self.options.since.is_some_and(|since| line.time < since) {
            return;
        }
        let begins = self.fresh;
        self.fresh = !line.partial;
        if self.options.timestamps && begins {
            self.put(line.shown_time().as_bytes(), out);
            self.put(b" ", out);
        }
        self.put(line.text, out);
        if !line.partial {
            self.put(b"\n", out);
        }
    }

    fn put(&mut self, bytes: &[u8], out: &mut Vec<u8>) {
        let most = usize::try_from(self.left).unwrap_or(usize::MAX).min(bytes.len());
        out.extend_from_slice(&bytes[..most]);
        self.left -= most as u64;
    }
}

fn newline(bytes: &[u8], from: usize) -> Option<usize> {
    bytes.get(from..)?.iter().position(|byte| *byte == b'\n').map(|at| from + at)
}

/// Returns the position of the last `lines` complete lines of a file.
fn tail_start(file: &mut File, lines: u64) -> io::Result<u64> {
    let mut end = file.seek(SeekFrom::End(0))?;
    if lines == 0 {
        return Ok(end);
    }
    let mut found = 0;
    let mut block = vec![0; BLOCK];
    while end > 0 {
        let size = end.min(BLOCK as u64);
        let part = &mut block[..usize::try_from(size).unwrap_or(BLOCK)];
        file.seek(SeekFrom::Start(end - size))?;
        file.read_exact(part)?;
        for (at, _) in part.iter().enumerate().rev().filter(|(_, byte)| **byte == b'\n') {
            // The first newline found ends the last line.
            found += 1;
            if found > lines {
                return Ok(end - size + at as u64 + 1);
            }
        }
        end -= size;
    }
    Ok(0)
}

/// Reads a log and sends the selected lines, until its end, its limit, or until the receiver is dropped. A
/// followed log has no end while `runs` returns true.
pub async fn follow<F>(
    mut reader: Reader,
    runs: impl Fn() -> F + Send,
    out: mpsc::Sender<Bytes>,
) -> io::Result<()>
where
    F: Future<Output = bool> + Send,
{
    let mut last_check = Instant::now();
    // Lines written before the exit of the container was noticed are still read.
    let mut ended = !reader.options.follow;
    loop {
        let (back, output, step) = blocking(reader, Reader::step).await?;
        reader = back;
        if !output.is_empty() && out.send(output).await.is_err() {
            return Ok(());
        }
        match step {
            Step::Enough => return Ok(()),
            Step::More => continue,
            Step::End => {}
        }
        let (back, _, replaced) = blocking(reader, |reader, _| reader.is_replaced()).await?;
        reader = back;
        if replaced && reader.options.follow {
            // The runtime may have written to the old file since the last read.
            let (back, output, reopened) = blocking(reader, |reader, out| {
                while reader.step(out)? == Step::More {}
                reader.finish(out);
                reader.reopen()
            })
            .await?;
            reader = back;
            if !output.is_empty() && out.send(output).await.is_err() {
                return Ok(());
            }
            if reopened {
                continue;
            }
        }
        if ended {
            let mut last = Vec::new();
            reader.finish(&mut last);
            if !last.is_empty() {
                // A dropped receiver makes no difference at the end.
                let _ = out.send(last.into()).await;
            }
            return Ok(());
        }
        if last_check.elapsed() >= STATE_PERIOD {
            ended = !runs().await;
            last_check = Instant::now();
            continue;
        }
        tokio::select! {
            () = tokio::time::sleep(PERIOD) => {}
            () = out.closed() => return Ok(()),
        }
    }
}

/// Runs blocking reads on the blocking thread pool.
async fn blocking<T: Send + 'static>(
    mut reader: Reader,
    work: impl FnOnce(&mut Reader, &mut Vec<u8>) -> io::Result<T> + Send + 'static,
) -> io::Result<(Reader, Bytes, T)> {
    let done = tokio::task::spawn_blocking(move || {
        let mut out = Vec::new();
        work(&mut reader, &mut out).map(|result| (reader, out.into(), result))
    });
    done.await.map_err(io::Error::other)?
}

#[cfg(test)]
mod tests;
