//! A log as somebody wants to see it: [`Reader`] over a file, and [`follow`] for what is still to come.
//!
//! While a log is followed, the runtime may be told to begin a new file under the old name. The reader
//! holds on to the file it has, and once another one has the name, reads the old one to its end and
//! goes on with the new one: the runtime writes to a file only while it has the name, or until it was
//! told.

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

/// How much is read at a time.
const BLOCK: usize = 64 * 1024;

/// How often a log that is followed is looked at. Looking costs a system call, so that it may be often
/// enough for a person.
const PERIOD: Duration = Duration::from_millis(100);

/// How often the runtime is asked whether the container still runs.
const STATE_PERIOD: Duration = Duration::from_secs(1);

/// What of a log is wanted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Options {
    /// Also what is still to come.
    pub follow: bool,
    /// Only so many lines from the end of what is there.
    pub tail: Option<u64>,
    /// Only what is not older.
    pub since: Option<Timestamp>,
    /// Each line begins with its time.
    pub timestamps: bool,
    /// Not more bytes than these.
    pub limit: Option<u64>,
}

/// Why a log cannot be read.
#[derive(Debug, Error)]
#[error("failed to open log file {path:?}: {source}")]
pub struct LogError {
    pub path: PathBuf,
    pub source: io::Error,
}

/// What a step came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// There may be more at once.
    More,
    /// Everything that is there has been read.
    End,
    /// As much as was wanted has been read.
    Enough,
}

/// A log file that is being read.
#[derive(Debug)]
pub struct Reader {
    path: PathBuf,
    file: File,
    identity: Identity,
    options: Options,
    /// The beginning of a line whose end has not been read.
    rest: Vec<u8>,
    /// How much may still be told.
    left: u64,
    /// The last line told was a whole one.
    fresh: bool,
}

impl Reader {
    /// Opens a log, at its tail if that is wanted.
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

    /// Reads a block and writes what is wanted of it to `out`.
    pub fn step(&mut self, out: &mut Vec<u8>) -> io::Result<Step> {
        if self.left == 0 {
            return Ok(Step::Enough);
        }
        let before = self.rest.len();
        let read = self.file.by_ref().take(BLOCK as u64).read_to_end(&mut self.rest)?;
        let block = std::mem::take(&mut self.rest);
        let mut start = 0;
        // What was there before has no end of line in it.
        while let Some(end) = newline(&block, start.max(before)) {
            self.tell(&block[start..end], out);
            start = end + 1;
        }
        self.rest = block[start..].to_vec();
        Ok(match (self.left, read) {
            (0, _) => Step::Enough,
            (_, 0) => Step::End,
            _ => Step::More,
        })
    }

    /// Takes what is left for a line, as nothing will follow.
    pub fn finish(&mut self, out: &mut Vec<u8>) {
        let rest = std::mem::take(&mut self.rest);
        if !rest.is_empty() {
            self.tell(&rest, out);
        }
    }

    /// Goes on with the file that has the name now. False if that is the one that is being read, or
    /// if there is none.
    pub fn reopen(&mut self) -> io::Result<bool> {
        let file = match File::open(&self.path) {
            Ok(file) => file,
            // It was moved, and the next one is yet to come.
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

    /// Whether another file has the name.
    pub fn is_replaced(&self) -> io::Result<bool> {
        match File::open(&self.path) {
            Ok(file) => Ok(identity(&file)? != self.identity),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn tell(&mut self, line: &[u8], out: &mut Vec<u8>) {
        // What the runtime did not write is no log.
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

/// Where the last `lines` whole lines of a file begin.
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
            // The end of the last line is the first that is met.
            found += 1;
            if found > lines {
                return Ok(end - size + at as u64 + 1);
            }
        }
        end -= size;
    }
    Ok(0)
}

/// Reads a log and sends what is wanted of it, until its end, until enough, or until nobody wants it.
/// `runs` says whether the container still does; while it does, a log that is followed has no end.
pub async fn follow<F>(
    mut reader: Reader,
    runs: impl Fn() -> F + Send,
    out: mpsc::Sender<Bytes>,
) -> io::Result<()>
where
    F: Future<Output = bool> + Send,
{
    let mut asked = Instant::now();
    // What is written before the container is known to have ended is still read.
    let mut ended = !reader.options.follow;
    loop {
        let (back, told, step) = blocking(reader, Reader::step).await?;
        reader = back;
        if !told.is_empty() && out.send(told).await.is_err() {
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
            // Between the last look and the new file something may have been written to the old one.
            let (back, told, reopened) = blocking(reader, |reader, out| {
                while reader.step(out)? == Step::More {}
                reader.finish(out);
                reader.reopen()
            })
            .await?;
            reader = back;
            if !told.is_empty() && out.send(told).await.is_err() {
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
                // Whether it is wanted makes no difference any more.
                let _ = out.send(last.into()).await;
            }
            return Ok(());
        }
        if asked.elapsed() >= STATE_PERIOD {
            ended = !runs().await;
            asked = Instant::now();
            continue;
        }
        tokio::select! {
            () = tokio::time::sleep(PERIOD) => {}
            () = out.closed() => return Ok(()),
        }
    }
}

/// Does something with a reader where waiting for a disk holds up nobody.
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
