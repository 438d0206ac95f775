//! Maintenance of a control plane's store: opening it with a remedy for errors, and compacting history.
//! The store itself logs recovery and a full disk.
//!
//! [`History`] decides when to compact; the store does it.

use std::collections::VecDeque;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Result;
use metrics::{Family, Kind};
use store::{OpenError, Options, Revision, StorageError, Store};

/// Age of the history kept for watches and paged lists.
const HISTORY: Duration = Duration::from_secs(300);

/// Maximum size of the history: bounds the disk space that a burst of writes takes.
const HISTORY_BYTES: u64 = 256 << 20;

/// Interval of the checks of the history's size.
const HISTORY_INTERVAL: Duration = Duration::from_secs(1);

/// Reserved for deletions and compaction: enough for some thousands of objects.
const RESERVE_BYTES: u64 = 16 << 20;

/// Raises the limit on open files: clients' connections and the store's files count against it.
pub(crate) fn raise_limits() {
    if let Err(error) = host::os::limits::raise_open_files() {
        let why = error.to_string();
        tracing::warn!(why, "failed to raise the limit on open files");
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
                "; berth store check --data-dir {dir} reports lost data, berth store repair \
                 --data-dir {dir} keeps the readable part",
                dir = data_dir.display()
            ),
            _ => String::new(),
        };
        anyhow::Error::new(error)
            .context(format!("cannot open the store {}{remedy}", path.display()))
    })
}

/// Compacts the store when [`History`] returns a revision.
pub(super) async fn compact_history(store: Store) {
    let begun = Instant::now();
    let sample = || {
        let health = store.health();
        Sample {
            at: begun.elapsed(),
            revision: store.revision(),
            appended: health.appended,
            full: health.full.is_some(),
        }
    };
    let mut history = History::new(sample());
    loop {
        tokio::time::sleep(HISTORY_INTERVAL).await;
        if let Some(point) = history.compact_to(sample()) {
            // A store that cannot compact continues to work and only keeps more history.
            let _ = store.compact(point).await;
        }
    }
}

/// The state of the store at one time.
#[derive(Debug, Clone, Copy)]
struct Sample {
    /// Time since the process started.
    at: Duration,
    revision: Revision,
    /// Bytes appended to the log.
    appended: u64,
    full: bool,
}

/// Growth of the store, and the part of its history that may be compacted.
#[derive(Debug)]
struct History {
    /// Samples within the kept history, oldest first.
    kept: VecDeque<Sample>,
    compacted: Revision,
    compacted_at: Duration,
    /// The newest revision outside the kept history.
    past: Revision,
}

impl History {
    fn new(now: Sample) -> History {
        let (compacted, past) = (now.revision, now.revision);
        History { kept: [now].into(), compacted, compacted_at: Duration::ZERO, past }
    }

    /// Returns the revision to compact to, if compaction is due: every five minutes to the revision
    /// of five minutes ago, earlier if the history is too large, and to the newest on a full disk.
    /// Half of a history that is too large is kept, so that the next compaction is not due at once.
    fn compact_to(&mut self, now: Sample) -> Option<Revision> {
        self.kept.push_back(now);
        while let Some(oldest) = self.kept.front()
            && now.at.saturating_sub(oldest.at) >= HISTORY
        {
            self.past = oldest.revision;
            self.kept.pop_front();
        }
        let grown = |sample: &Sample| now.appended - sample.appended;
        let too_much = self.kept.front().is_some_and(|oldest| grown(oldest) > HISTORY_BYTES);
        if too_much {
            self.kept.retain(|sample| grown(sample) <= HISTORY_BYTES / 2);
            self.past = self.kept.front().map_or(now.revision, |oldest| oldest.revision);
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

/// Returns the store's metrics.
pub(super) fn metric_families(store: &Store) -> Vec<Family> {
    let health = store.health();
    let mut families = vec![
        Family::single(
            Kind::Gauge,
            "berth_store_full",
            "Whether writes fail because the disk is full.",
            f64::from(u8::from(health.full.is_some())),
        ),
        Family::single(
            Kind::Counter,
            "berth_store_refused_batches_total",
            "Batches of writes that were refused because the disk is full.",
            health.refused as f64,
        ),
    ];
    // The size of an unreadable directory is unknown.
    if let Ok(usage) = store.usage() {
        families.push(Family::single(
            Kind::Gauge,
            "berth_store_files",
            "Files of the store.",
            usage.files as f64,
        ));
        families.push(Family::single(
            Kind::Gauge,
            "apiserver_storage_size_bytes",
            "Size of the store on the disk, with what is kept in reserve.",
            usage.bytes as f64,
        ));
    }
    families
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(seconds: u64, revision: u64, appended: u64) -> Sample {
        let at = Duration::from_secs(seconds);
        Sample { at, revision: revision.into(), appended, full: false }
    }

    #[test]
    fn history_is_compacted_every_five_minutes_to_five_minutes_ago() {
        let mut history = History::new(sample(0, 1, 0));
        let mut compactions = Vec::new();
        for seconds in (10..=1200).step_by(10) {
            if let Some(point) = history.compact_to(sample(seconds, seconds, 0)) {
                compactions.push((seconds, point.get()));
            }
        }
        assert_eq!(compactions, [(310, 10), (610, 310), (910, 610)]);
    }

    #[test]
    fn burst_or_full_disk_is_compacted_at_once() {
        let mut history = History::new(sample(0, 1, 0));
        assert_eq!(history.compact_to(sample(10, 100, 0)), None);
        assert_eq!(history.compact_to(sample(20, 200, HISTORY_BYTES)), None);
        assert_eq!(history.compact_to(sample(30, 300, HISTORY_BYTES + 1)), Some(200.into()));
        assert_eq!(history.compact_to(sample(40, 400, HISTORY_BYTES + 2)), None);
        let full = Sample { full: true, ..sample(50, 500, HISTORY_BYTES + 2) };
        assert_eq!(history.compact_to(full), Some(500.into()));
        assert_eq!(history.compact_to(full), None, "there is nothing new");
        let mut history = History::new(sample(0, 1, 0));
        let burst = sample(1, 900, 2 * HISTORY_BYTES);
        assert_eq!(history.compact_to(burst), Some(900.into()), "one interval writes too much");
    }
}
