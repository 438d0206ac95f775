//! Informers: list, then watch, then list again when the watch cannot continue.
//!
//! Main types: [`Reflector`], which turns the API into a sequence of [`Change`]s, and [`Cache`],
//! which stores the newest state of each object and sends changes to subscribers. The cache stores
//! a projection of each object: fifty thousand pods are not fifty thousand JSON trees.
//!
//! ```text
//!            listed                  opened
//!   Empty ───────────▶ Listed(rv) ───────────▶ Watching(rv) ──┐ changes
//!     ▲                  ▲    │                   │   ▲       │
//!     │      410 Gone    │    │                   │   └───────┘
//!     └──────────────────┼────┴───────────────────┤
//!                        └── the watch ended ─────┘
//! ```

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use https::{ErrorLog, error_chain};
use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::sync::{mpsc, watch};
use tracing::{debug, info, warn};

use crate::backoff::Backoff;
use crate::client::{Client, Error, Scope, Watch, WatchEvent};
use crate::key::Key;
use crate::kind::Kind;

/// The requested duration of a watch. Upstream's informers use five to ten minutes.
const WATCH_SECONDS: u64 = 420;

/// The wait after a failed list or watch.
const RETRY: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(10));

/// Projects the text of an object to the value that a component needs.
pub type Project<T> = fn(&RawValue) -> Result<T, serde_json::Error>;

/// A change reported by a reflector. Revisions are those of the objects.
#[derive(Debug)]
pub enum Change<T> {
    /// The complete list of objects.
    Replaced {
        all: Vec<(Key, u64, T)>,
        revision: u64,
    },
    Applied {
        key: Key,
        revision: u64,
        object: T,
    },
    Removed {
        key: Key,
        revision: u64,
    },
    /// All changes up to this revision have been reported.
    Bookmark {
        revision: u64,
    },
}

#[derive(Debug)]
enum State {
    Empty,
    Listed { revision: String },
    Watching { watch: Watch, revision: String },
}

/// Lists and watches the objects of one kind.
#[derive(Debug)]
pub struct Reflector<T> {
    client: Client,
    kind: Kind,
    scope: Scope,
    project: Project<T>,
    state: State,
}

#[derive(Deserialize)]
struct Head {
    metadata: HeadMetadata,
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct HeadMetadata {
    namespace: String,
    name: String,
    resource_version: String,
}

impl HeadMetadata {
    fn key(&self) -> Key {
        Key::new(&self.namespace, &self.name)
    }
}

fn head(raw: &RawValue) -> Result<HeadMetadata, serde_json::Error> {
    serde_json::from_str::<Head>(raw.get()).map(|head| head.metadata)
}

/// Parses a resource version; unparsable ones sort first.
fn number(revision: &str) -> u64 {
    revision.parse().unwrap_or(0)
}

impl<T> Reflector<T> {
    #[must_use]
    pub fn new(client: Client, kind: Kind, scope: Scope, project: Project<T>) -> Reflector<T> {
        Reflector { client, kind, scope, project, state: State::Empty }
    }

    /// Returns the next changes. After an error the next step continues where this one failed.
    pub async fn step(&mut self) -> Result<Vec<Change<T>>, Error> {
        match std::mem::replace(&mut self.state, State::Empty) {
            State::Empty => {
                let mut all = Vec::new();
                let project = self.project;
                let listed = self.client.list(self.kind, &self.scope, |raw| {
                    let head = head(raw)?;
                    all.push((head.key(), number(&head.resource_version), project(raw)?));
                    Ok(())
                });
                let revision = listed.await?;
                let listed_revision = number(&revision);
                self.state = State::Listed { revision };
                Ok(vec![Change::Replaced { all, revision: listed_revision }])
            }
            State::Listed { revision } => {
                let opened =
                    self.client.watch(self.kind, &self.scope, &revision, WATCH_SECONDS).await;
                match opened {
                    Ok(watch) => {
                        self.state = State::Watching { watch, revision };
                        Ok(Vec::new())
                    }
                    Err(error) if error.is_expired() => {
                        self.log_expired(&revision);
                        Ok(Vec::new())
                    }
                    Err(error) => {
                        self.state = State::Listed { revision };
                        Err(error)
                    }
                }
            }
            State::Watching { watch, revision } => self.follow(watch, revision).await,
        }
    }

    async fn follow(
        &mut self,
        mut watch: Watch,
        mut revision: String,
    ) -> Result<Vec<Change<T>>, Error> {
        let mut lines = watch.next().await;
        if lines.is_empty() {
            self.state = State::Listed { revision };
            return Ok(Vec::new());
        }
        let mut changes = Vec::new();
        let project = self.project;
        while let Some(read) = lines.read(|event| match event {
            WatchEvent::Applied(raw) => Ok((head(raw)?, Some(Some(project(raw)?)))),
            WatchEvent::Removed(raw) => Ok((head(raw)?, Some(None))),
            WatchEvent::Bookmark(raw) => Ok((head(raw)?, None)),
        }) {
            match read {
                Ok((head, change)) => {
                    let at = number(&head.resource_version);
                    changes.push(match change {
                        Some(Some(object)) => {
                            Change::Applied { key: head.key(), revision: at, object }
                        }
                        Some(None) => Change::Removed { key: head.key(), revision: at },
                        None => Change::Bookmark { revision: at },
                    });
                    if !head.resource_version.is_empty() {
                        revision = head.resource_version;
                    }
                }
                Err(error) if error.is_expired() => {
                    self.log_expired(&revision);
                    self.state = State::Empty;
                    return Ok(changes);
                }
                Err(error) => {
                    self.state = State::Listed { revision };
                    // The changes before the bad line are valid.
                    return if changes.is_empty() { Err(error) } else { Ok(changes) };
                }
            }
        }
        self.state = State::Watching { watch, revision };
        Ok(changes)
    }

    fn log_expired(&self, revision: &str) {
        debug!(kind = self.kind.plural, revision, "resource version has expired; listing again");
    }

    /// Passes every change to `take` until it returns false. Retries after errors with a back-off.
    pub async fn run(mut self, mut take: impl FnMut(Change<T>) -> bool) {
        let mut failures = 0;
        let mut errors = ErrorLog::default();
        loop {
            match self.step().await {
                Ok(changes) => {
                    failures = 0;
                    // A watch that opens may still fail at once, so only changes count as a recovery.
                    if !changes.is_empty() && errors.recovered().is_some() {
                        info!(kind = self.kind.plural, "list and watch work again");
                    }
                    for change in changes {
                        if !take(change) {
                            return;
                        }
                    }
                }
                Err(error) => {
                    failures += 1;
                    let wait = RETRY.wait_with_jitter(self.kind.plural, failures);
                    let error = error_chain(&error);
                    if errors.failed(&error) {
                        let kind = self.kind.plural;
                        let retry_in_ms = wait.as_millis();
                        warn!(kind, error, retry_in_ms, "cannot list or watch; retrying");
                    }
                    tokio::time::sleep(wait).await;
                }
            }
        }
    }
}

/// The change of one object.
#[derive(Debug)]
pub struct Update<T> {
    pub key: Key,
    pub old: Option<Arc<T>>,
    pub new: Option<Arc<T>>,
}

impl<T> Clone for Update<T> {
    fn clone(&self) -> Update<T> {
        Update { key: self.key.clone(), old: self.old.clone(), new: self.new.clone() }
    }
}

/// Returns the index values that an object can be found by.
pub type IndexFn<T> = fn(&T) -> Vec<String>;

/// Keys by index value.
type IndexMap = HashMap<Box<str>, BTreeSet<Key>>;

struct Inner<T> {
    objects: HashMap<Key, Arc<T>>,
    indices: Vec<(IndexFn<T>, IndexMap)>,
    revision: u64,
    subscribers: Vec<mpsc::UnboundedSender<Update<T>>>,
}

/// The newest state of each object of a kind, with subscribers.
pub struct Cache<T> {
    inner: RwLock<Inner<T>>,
    /// Incremented with every batch; zero until the first list.
    ticks: watch::Sender<u64>,
}

impl<T> std::fmt::Debug for Cache<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cache").field("len", &self.len()).finish_non_exhaustive()
    }
}

impl<T> Cache<T> {
    #[must_use]
    pub fn new(indices: &[IndexFn<T>]) -> Cache<T> {
        let inner = Inner {
            objects: HashMap::new(),
            indices: indices.iter().map(|index| (*index, HashMap::new())).collect(),
            revision: 0,
            subscribers: Vec::new(),
        };
        Cache { inner: RwLock::new(inner), ticks: watch::Sender::new(0) }
    }

    fn read(&self) -> RwLockReadGuard<'_, Inner<T>> {
        self.inner.read()
    }

    fn write(&self) -> RwLockWriteGuard<'_, Inner<T>> {
        self.inner.write()
    }

    #[must_use]
    pub fn len(&self) -> usize {
        self.read().objects.len()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    #[must_use]
    pub fn get(&self, key: &Key) -> Option<Arc<T>> {
        self.read().objects.get(key).cloned()
    }

    #[must_use]
    pub fn all(&self) -> Vec<(Key, Arc<T>)> {
        self.read().objects.iter().map(|(key, object)| (key.clone(), object.clone())).collect()
    }

    /// Returns the objects with a value in one of the indices, ordered by name.
    #[must_use]
    pub fn find(&self, index: usize, value: &str) -> Vec<(Key, Arc<T>)> {
        let inner = self.read();
        let keys = inner.indices.get(index).and_then(|(_, index)| index.get(value));
        let found = keys.into_iter().flatten();
        found.filter_map(|key| Some((key.clone(), inner.objects.get(key)?.clone()))).collect()
    }

    /// Returns all changes from now on, starting with the current objects.
    #[must_use]
    pub fn subscribe(&self) -> mpsc::UnboundedReceiver<Update<T>> {
        let (sender, receiver) = mpsc::unbounded_channel();
        let mut inner = self.write();
        for (key, object) in &inner.objects {
            let update = Update { key: key.clone(), old: None, new: Some(object.clone()) };
            // The receiver still exists.
            let _ = sender.send(update);
        }
        inner.subscribers.push(sender);
        receiver
    }

    /// Applies a change of a reflector.
    pub fn apply(&self, change: Change<T>) {
        let mut inner = self.write();
        match change {
            Change::Replaced { all, revision } => {
                let present: HashSet<Key> = all.iter().map(|(key, ..)| key.clone()).collect();
                let deleted: Vec<Key> =
                    inner.objects.keys().filter(|key| !present.contains(*key)).cloned().collect();
                for key in deleted {
                    inner.set(key, None);
                }
                for (key, _, object) in all {
                    inner.set(key, Some(object));
                }
                inner.revision = revision;
            }
            Change::Applied { key, revision, object } => {
                inner.set(key, Some(object));
                inner.revision = revision;
            }
            Change::Removed { key, revision } => {
                inner.set(key, None);
                inner.revision = revision;
            }
            Change::Bookmark { revision } => inner.revision = revision,
        }
        drop(inner);
        self.ticks.send_modify(|tick| *tick += 1);
    }

    /// Waits for the first list.
    pub async fn synced(&self) {
        // The sender lives as long as this cache.
        let _ = self.ticks.subscribe().wait_for(|tick| *tick > 0).await;
    }

    /// Waits until the cache has reached a state, or returns an error after ten seconds.
    pub async fn caught_up(&self, until: &CacheState<'_, T>) -> Result<(), Error> {
        const LONGEST: Duration = Duration::from_secs(10);
        let mut ticks = self.ticks.subscribe();
        let reached = |cache: &Cache<T>| {
            let inner = cache.read();
            match until {
                CacheState::Revision(revision) => inner.revision >= *revision,
                CacheState::Deleted(key) => !inner.objects.contains_key(*key),
                CacheState::Deleting(key, going) => {
                    inner.objects.get(*key).is_none_or(|o| going(o))
                }
            }
        };
        let wait = async {
            loop {
                if reached(self) {
                    return;
                }
                if ticks.changed().await.is_err() {
                    return;
                }
            }
        };
        tokio::time::timeout(LONGEST, wait).await.map_err(|_| Error::Behind)
    }
}

/// A state that a cache is waited for.
pub enum CacheState<'a, T> {
    Revision(u64),
    Deleted(&'a Key),
    /// Deleted, or a state that the function accepts.
    Deleting(&'a Key, &'a (dyn Fn(&T) -> bool + Sync)),
}

impl<T> std::fmt::Debug for CacheState<'_, T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            CacheState::Revision(revision) => write!(f, "revision {revision}"),
            CacheState::Deleted(key) | CacheState::Deleting(key, _) => write!(f, "{key} gone"),
        }
    }
}

impl<T> Inner<T> {
    fn set(&mut self, key: Key, object: Option<T>) {
        let new = object.map(Arc::new);
        let old = match &new {
            Some(new) => self.objects.insert(key.clone(), new.clone()),
            None => self.objects.remove(&key),
        };
        if old.is_none() && new.is_none() {
            return;
        }
        for (index_fn, index) in &mut self.indices {
            for value in old.iter().flat_map(|object| index_fn(object)) {
                if let Some(keys) = index.get_mut(value.as_str()) {
                    keys.remove(&key);
                    if keys.is_empty() {
                        index.remove(value.as_str());
                    }
                }
            }
            for value in new.iter().flat_map(|object| index_fn(object)) {
                index.entry(value.into()).or_default().insert(key.clone());
            }
        }
        let update = Update { key, old, new };
        self.subscribers.retain(|subscriber| subscriber.send(update.clone()).is_ok());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::{Body, BoxFuture, Request, Response, Transport, TransportError};
    use std::collections::VecDeque;
    use std::sync::Mutex;

    /// A transport that returns prepared responses in order and records the requests.
    #[derive(Debug)]
    struct Script {
        answers: Mutex<VecDeque<(u16, &'static str)>>,
        requests: Mutex<Vec<String>>,
    }

    impl Transport for Script {
        fn send(&self, request: Request) -> BoxFuture<'_, Result<Response, TransportError>> {
            let watch = request.query.iter().any(|(name, _)| name == "watch");
            let from = request.query.iter().find(|(name, _)| name == "resourceVersion");
            let from = from.map(|(_, value)| value.as_str()).unwrap_or_default();
            let verb = if watch { "watch" } else { "list" };
            self.requests.lock().unwrap().push(format!("{verb} {from}").trim().to_owned());
            let answer = self.answers.lock().unwrap().pop_front();
            Box::pin(async move {
                let (status, text) = answer.ok_or_else(|| TransportError("over".into()))?;
                Ok(Response { status, retry_after: None, body: Body::Whole(text.into()) })
            })
        }
    }

    fn name(raw: &RawValue) -> Result<String, serde_json::Error> {
        head(raw).map(|head| head.name)
    }

    #[tokio::test]
    async fn expired_watch_is_followed_by_a_list() {
        let script = Arc::new(Script {
            answers: Mutex::new(VecDeque::from([
                (
                    200,
                    r#"{"metadata":{"resourceVersion":"5"},"items":[{"metadata":{"name":"a","resourceVersion":"4"}}]}"#,
                ),
                (
                    200,
                    "{\"type\":\"ADDED\",\"object\":{\"metadata\":{\"name\":\"b\",\"resourceVersion\":\"6\"}}}\n{\"type\":\"BOOKMARK\",\"object\":{\"metadata\":{\"resourceVersion\":\"9\"}}}\n",
                ),
                (410, r#"{"reason":"Expired","message":"too old"}"#),
                (
                    200,
                    r#"{"metadata":{"resourceVersion":"20"},"items":[{"metadata":{"name":"b","resourceVersion":"6"}}]}"#,
                ),
                (
                    200,
                    "{\"type\":\"DELETED\",\"object\":{\"metadata\":{\"name\":\"b\",\"resourceVersion\":\"21\"}}}\n",
                ),
            ])),
            requests: Mutex::default(),
        });
        let client = Client::new(script.clone(), "test");
        let mut reflector = Reflector::new(client, crate::kind::PODS, Scope::default(), name);
        let cache = Cache::new(&[|name: &String| vec![name.clone()]]);
        let mut updates = cache.subscribe();
        // The end of the script is an error, and the reflector keeps its state.
        while let Ok(changes) = reflector.step().await {
            for change in changes {
                cache.apply(change);
            }
        }
        let requests = script.requests.lock().unwrap().clone();
        assert_eq!(requests, ["list", "watch 5", "watch 9", "list", "watch 20", "watch 21"]);
        assert!(cache.is_empty() && cache.find(0, "b").is_empty());
        let mut received = Vec::new();
        while let Ok(update) = updates.try_recv() {
            received.push((update.key.to_string(), update.old.is_some(), update.new.is_some()));
        }
        let expected = [
            ("a", false, true),
            ("b", false, true),
            ("a", true, false),
            ("b", true, true),
            ("b", true, false),
        ];
        assert_eq!(received, expected.map(|(key, old, new)| (key.to_owned(), old, new)));
        cache.caught_up(&CacheState::Revision(21)).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn repeated_errors_are_logged_once_until_they_change() {
        let lines = rig::logs::capture("client");
        let listed = r#"{"metadata":{"resourceVersion":"5"},"items":[]}"#;
        let script = Arc::new(Script {
            answers: Mutex::new(VecDeque::from([
                (500, "down"),
                (500, "down"),
                (403, "forbidden"),
                (500, "down"),
                (200, listed),
            ])),
            requests: Mutex::default(),
        });
        let client = Client::new(script, "test");
        let reflector = Reflector::new(client, crate::kind::PODS, Scope::default(), name);
        reflector.run(|_| false).await;
        let warnings = lines.with("WARN");
        assert_eq!(warnings.len(), 3, "{warnings:?}");
        for (line, text) in warnings.iter().zip(["down", "forbidden", "down"]) {
            assert!(line.contains("cannot list or watch; retrying kind=\"pods\""), "{line}");
            assert!(line.contains(text) && line.contains("retry_in_ms="), "{line}");
        }
        assert_eq!(lines.with("list and watch work again").len(), 1);
    }
}
