//! Revisioned keys with watch, on a log-structured file format. Used by the API server; knows
//! bytes, not Kubernetes.
//!
//! Main type: [`Store`]. Every committed [`Transaction`] has a [`Revision`]; a [`Snapshot`] shows
//! all keys as of a revision, a [`Watch`] returns every change after one.
//!
//! ```text
//!  commit ──► queue ──► writer thread ──► log on disk ──(one sync per batch)
//!                           │ then
//!                           ├──► index   key → locations of its versions   ──► get, snapshot
//!                           ├──► feed    recent events, shared by watchers ──► watch
//!                           └──► replies
//! ```
//!
//! The log is the database: a value is written once, and the index has its location. A revision
//! becomes visible only after it is on disk, and it is visible to all readers once `commit` has
//! resolved. `docs/adr/0006-store.md` has the reasons, `format` the file format.
//!
//! ```
//! use store::{Options, Outcome, Store, Transaction};
//!
//! # let directory = tempfile::tempdir()?;
//! # let path = directory.path();
//! let store = Store::open(path, Options::default())?;
//! let made = Transaction::new().expect_absent("/pods/a").put("/pods/a", "pending");
//! let Outcome::Committed { revision } = store.commit(made).wait()? else { panic!("is there") };
//!
//! let mut watch = store.watch("/pods/", revision)?;
//! let changed = Transaction::new().expect_modified_at("/pods/a", revision).put("/pods/a", "running");
//! store.commit(changed).wait()?;
//! assert_eq!(watch.wait()?[0].previous().unwrap().value, "pending");
//! assert_eq!(store.get("/pods/a")?.unwrap().value, "running");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Not here: the meaning of values, access control, and the decision when to compact.

mod backup;
mod checkpoint;
mod commit;
mod compaction;
mod entry;
mod error;
mod feed;
mod files;
mod format;
mod handles;
mod history;
mod index;
mod log;
mod queue;
mod recover;
mod reply;
mod revision;
mod salvage;
mod segment;
mod shared;
mod snapshot;
mod space;
mod store;
mod transaction;
mod watch;
mod writer;

pub use backup::Contents;
pub use commit::{Commit, Compaction};
pub use entry::{Change, Entry, Event};
pub use error::{
    BackupError, CommitError, CompactError, OpenError, ReadError, RestoreError, StorageError,
    WatchError,
};
pub use recover::Dropped;
pub use revision::Revision;
pub use salvage::{Damage, Examination, LostKey, Region, RemainingValue};
pub use snapshot::{Range, Snapshot};
pub use store::{Health, Options, Store, Usage};
pub use transaction::{Outcome, Transaction};
pub use watch::Watch;
