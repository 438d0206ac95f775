//! The store of a control plane: opens it with a remedy for errors, and compacts its history. The store
//! itself logs recovery and a full disk.
//!
//! Decides when to compact ([`History`]); the store does it.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Result;
use store::{OpenError, Options, Revision, StorageError, Store};

/// How long history is kept for watches and paged lists.
const HISTORY: Duration = Duration::from_secs(300);

/// How much of the log is kept as history at most: bounds what a burst of writes takes on the disk.
const HISTORY_BYTES: u64 = 256 << 20;

/// Between two looks at how much history there is.
const HISTORY_LOOK: Duration = Duration::from_secs(10);

/// Kept free for deletions and for compaction: some thousands of objects.
const RESERVE_BYTES: u64 = 16 << 20;

/// Raises the limit on open files: clients' connections and the store's files count against it.
pub(crate) fn raise_limits() {
    if let Err(error) = host::os::limits::raise_open_files() {
        let why = error.to_string();
        tracing::warn!(why, "the limit on open files cannot be raised");
    }
}

/// Opens the store of a data directory. An error names the remedy.
pub(super) fn open(data_dir: &Path) -> Result<Store> {
    let path = data_dir.join("store");
    let options = Options { reserve_bytes: RESERVE_BYTES, ..Options::default() };
    Store::open(&path, options).map_err(|error| {
        let remedy = match &error {
            OpenError::Missing(_)
            | OpenError::NotAStore { .. }
            | OpenError::Storage(StorageError::Damaged { .. }) => format!(
                "; berth store check --data-dir {dir} shows what is lost, berth store repair \
                 --data-dir {dir} keeps what can be read",
                dir = data_dir.display()
            ),
            _ => String::new(),
        };
        anyhow::Error::new(error)
            .context(format!("cannot open the store {}{remedy}", path.display()))
    })
}

/// Compacts whenever [`History`] says so.
pub(super) async fn forget_history(store: Store) {
    let begun = Instant::now();
    let mut history = History::new(store.revision());
    loop {
        tokio::time::sleep(HISTORY_LOOK).await;
        let health = store.health();
        let look = Look {
            at: begun.elapsed(),
            revision: store.revision(),
            appended: health.appended,
            full: health.full.is_some(),
        };
        if let Some(point) = history.compact_to(look) {
            // A store that cannot compact goes on; it only keeps more.
            let _ = store.compact(point).await;
        }
    }
}

/// The store at one moment.
#[derive(Debug, Clone, Copy)]
struct Look {
    /// Since the process began.
    at: Duration,
    revision: Revision,
    /// Bytes of the log.
    appended: u64,
    full: bool,
}

/// How the store grew, and what of its history may go.
#[derive(Debug)]
struct History {
    /// Looks that are history worth keeping, oldest first.
    kept: VecDeque<Look>,
    compacted: Revision,
    compacted_at: Duration,
    /// The newest look that is no longer worth keeping.
    past: Revision,
}

impl History {
    fn new(revision: Revision) -> History {
        let (kept, compacted_at) = (VecDeque::new(), Duration::ZERO);
        History { kept, compacted: revision, compacted_at, past: revision }
    }

    /// Returns the revision to compact to now, if it is time: every five minutes to what was five
    /// minutes ago; earlier if there is too much history; and to the newest on a full disk.
    fn compact_to(&mut self, now: Look) -> Option<Revision> {
        self.kept.push_back(now);
        let mut too_much = false;
        while let Some(oldest) = self.kept.front()
            && (now.at.saturating_sub(oldest.at) >= HISTORY
                || now.appended - oldest.appended > HISTORY_BYTES)
        {
            too_much |= now.at.saturating_sub(oldest.at) < HISTORY;
            self.past = oldest.revision;
            self.kept.pop_front();
        }
        let point = if now.full { now.revision } else { self.past };
        let due = now.full || too_much || now.at.saturating_sub(self.compacted_at) >= HISTORY;
        if !due || point <= self.compacted {
            return None;
        }
        (self.compacted, self.compacted_at) = (point, now.at);
        Some(point)
    }
}

/// The store's lines of `/metrics`.
pub(super) fn render_metrics(store: &Store) -> String {
    let mut text = String::new();
    let mut line = |name: &str, kind: &str, help: &str, value: u64| {
        let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}\n{name} {value}");
    };
    let health = store.health();
    let full = u64::from(health.full.is_some());
    line("berth_store_full", "gauge", "Whether writes fail because the disk is full.", full);
    let help = "Batches of writes that were refused because the disk is full.";
    line("berth_store_refused_batches_total", "counter", help, health.refused);
    // Of a directory that cannot be read nothing is known.
    if let Ok(usage) = store.usage() {
        line("berth_store_files", "gauge", "Files of the store.", usage.files);
        let help = "Size of the store on the disk, with what is kept in reserve.";
        line("apiserver_storage_size_bytes", "gauge", help, usage.bytes);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(seconds: u64, revision: u64, appended: u64) -> Look {
        let at = Duration::from_secs(seconds);
        Look { at, revision: revision.into(), appended, full: false }
    }

    #[test]
    fn history_of_five_minutes_is_kept_and_compacted_every_five_minutes() {
        let mut history = History::new(1.into());
        let mut compactions = Vec::new();
        for seconds in (10..=1200).step_by(10) {
            if let Some(point) = history.compact_to(look(seconds, seconds, 0)) {
                compactions.push((seconds, point.get()));
            }
        }
        assert_eq!(compactions, [(310, 10), (610, 310), (910, 610)]);
    }

    #[test]
    fn a_burst_is_compacted_at_once_and_a_full_disk_to_the_newest() {
        let mut history = History::new(1.into());
        assert_eq!(history.compact_to(look(10, 100, 0)), None);
        assert_eq!(history.compact_to(look(20, 200, HISTORY_BYTES)), None);
        assert_eq!(history.compact_to(look(30, 300, HISTORY_BYTES + 1)), Some(100.into()));
        assert_eq!(history.compact_to(look(40, 400, HISTORY_BYTES + 2)), None);
        let full = Look { full: true, ..look(50, 500, HISTORY_BYTES + 2) };
        assert_eq!(history.compact_to(full), Some(500.into()));
        assert_eq!(history.compact_to(full), None, "there is nothing new");
    }
}
