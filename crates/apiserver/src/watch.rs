//! Watches: the current objects if requested, then every change until the end.
//!
//! One task per watch reads from the store and writes lines; a slow client delays only its own
//! task. In protobuf a line is a frame. A change that moves an object into or out of the selection
//! is sent as ADDED or DELETED.
//!
//! A line is written once there is room for it among the unread bytes of the user's watches
//! ([`crate::flow`]), and takes that room until it is sent. A watch that gets no room ends, as
//! upstream's do, and its client continues from the last version that it has seen.

use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::{BufMut as _, Bytes, BytesMut};
use objects::catalog::Resource;
use objects::protobuf;
use objects::schema::{Schema, TypeId};
use objects::table;
use serde_json::{Value, json};
use store::{Entry, Event, ReadError, Revision, Snapshot, WatchError};
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout_at};

use crate::accept::{AcceptedFormat, Representation};
use crate::api::Api;
use crate::codec::{self, StoredParts};
use crate::error::ApiError;
use crate::identity::User;
use crate::read;
use crate::reply::{JSON, Reply};
use crate::request::RequestContext;
use crate::route::ResourcePath;
use crate::select::Selection;
use crate::shares::{Account, Share};

/// The minimum default duration of a watch. Upstream uses a random time between half an hour and an
/// hour, so that clients do not all reconnect at once.
const SHORTEST: u64 = 1800;

/// The maximum duration of a watch that a client can request, in seconds: a year. A clock cannot
/// express every number of seconds that a client can send.
const LONGEST: u64 = 365 * 24 * 3600;

/// The interval of bookmarks.
const BOOKMARK_EVERY: Duration = Duration::from_secs(60);

/// The annotation that ends the initial events.
const INITIAL_END: &str = "k8s.io/initial-events-end";

/// The number of bytes sent at once.
const CHUNK: usize = 64 * 1024;

/// The approximate length of a line without the object.
const AROUND: usize = 256;

pub(crate) fn watch(context: RequestContext<'_>) -> Result<Reply, ApiError> {
    let RequestContext { api, request, path, format } = context;
    crate::list_options::check(request)?;
    let selection = Selection::of(request, path)?;
    let table = read::table_form(request, format)?;
    let seconds = request.query.int("timeoutSeconds")?.filter(|seconds| *seconds > 0);
    let seconds = match seconds.and_then(|seconds| u64::try_from(seconds).ok()) {
        Some(seconds) => seconds.min(LONGEST),
        None => SHORTEST + crate::random::below(SHORTEST),
    };
    let requested = read::revision(request)?;
    let newest = api.store().revision();
    let initial_events = request.query.flag("sendInitialEvents");
    let no_initial = request.query.get("sendInitialEvents").is_some() && !initial_events;
    let bookmarks = request.query.flag("allowWatchBookmarks");
    let level = api.shared.flow.level(request.user());
    let place_taken = level.watch(request.user())?;
    let (sender, lines) = mpsc::channel(1);
    let watcher = Watcher {
        api: api.clone(),
        path: path.clone(),
        selection,
        format,
        table,
        sender,
        user: request.user().clone(),
        unread: level.events(request.user()),
        lines: BytesMut::new(),
        room: None,
        _place_taken: place_taken,
    };
    let from_now = (requested.is_none() && !no_initial) || initial_events;
    // The initial state at a future version is unknown; a watch without initial events just waits.
    let future = requested.filter(|requested| *requested > newest.get());
    // Taken before the response begins: writes that follow our headers are sent as events and are
    // not part of the initial state.
    let replay = from_now.then(|| api.store().snapshot(None)).transpose();
    let start = Start {
        after: requested.filter(|_| future.is_none()).map_or(newest, Revision::from),
        not_before: future.unwrap_or(0),
        refused: future
            .filter(|_| initial_events)
            .map(|requested| ApiError::future_revision(requested, newest.get())),
        replay: replay.map_err(|error| read::read_failed(&error))?,
        // A client that requests the initial state gets a bookmark at its end. The older watch
        // paths do not request it by omitting the version.
        mark_end: bookmarks && from_now && (initial_events || request.query.flag("watch")),
        bookmarks,
    };
    let until = Instant::now() + Duration::from_secs(seconds);
    tokio::spawn(watcher.run(start, until));
    let content_type = match format.is_protobuf() {
        true => protobuf::WATCH_MEDIA_TYPE,
        false => JSON,
    };
    Ok(Reply::stream(content_type, lines))
}

struct Start {
    after: Revision,
    /// Changes up to this revision are not sent.
    not_before: u64,
    /// The error to send instead of events.
    refused: Option<ApiError>,
    /// The snapshot to send first.
    replay: Option<Snapshot>,
    /// Sends a bookmark at the end of the initial events.
    mark_end: bool,
    bookmarks: bool,
}

struct Watcher {
    api: Api,
    path: ResourcePath,
    selection: Selection,
    format: AcceptedFormat,
    /// Contains the columns until they are sent.
    table: table::TableOptions,
    sender: mpsc::Sender<Bytes>,
    /// The user that unread bytes are charged to.
    user: User,
    unread: Account,
    /// Bytes that were written and not sent, and the share for them.
    lines: BytesMut,
    room: Option<Share>,
    _place_taken: Share,
}

/// The client has gone away.
struct Gone;

/// Lines with their share, until they are dropped.
struct Lines {
    bytes: Bytes,
    _room: Option<Share>,
}

impl AsRef<[u8]> for Lines {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Watcher {
    async fn run(mut self, start: Start, until: Instant) {
        let watches = &self.api.clone().shared.metrics.watches;
        watches.fetch_add(1, Ordering::Relaxed);
        // The client sees the end of the stream in any case.
        let _ = self.events(start, until).await;
        watches.fetch_sub(1, Ordering::Relaxed);
    }

    fn prefix(&self) -> String {
        match self.path.name.as_str() {
            "" => codec::prefix(self.path.resource, &self.path.namespace),
            name => codec::key(self.path.resource, &self.path.namespace, name),
        }
    }

    fn is_watched(&self, key: &str) -> bool {
        self.path.name.is_empty() || key.len() == self.prefix().len()
    }

    async fn events(&mut self, start: Start, until: Instant) -> Result<(), Gone> {
        if let Some(error) = &start.refused {
            return self.fail(error).await;
        }
        let mut after = start.after;
        if let Some(snapshot) = start.replay {
            after = self.replay(&snapshot).await?;
            if start.mark_end {
                self.bookmark(after, true).await?;
            }
        }
        let mut watch = match self.api.store().watch(&self.prefix(), after) {
            Ok(watch) => watch,
            Err(error) => return self.fail(&refused(&error, after)).await,
        };
        let mut next_bookmark = Instant::now() + BOOKMARK_EVERY;
        loop {
            let wake = if start.bookmarks { until.min(next_bookmark) } else { until };
            let next = tokio::select! {
                next = timeout_at(wake, watch.next()) => next,
                // Otherwise the end of the connection would be noticed with the next event, which
                // may be hours away.
                () = self.sender.closed() => return Err(Gone),
            };
            match next {
                Ok(Ok(events)) => {
                    for event in events {
                        let is_early = event.revision.get() <= start.not_before;
                        if is_early || !self.is_watched(&event.key) {
                            continue;
                        }
                        let length = |entry: &Entry| entry.value.len();
                        let now = event.entry().as_ref().map(length);
                        let length = now.or_else(|| event.previous().map(length));
                        self.make_room(length.unwrap_or_default()).await?;
                        match self.line(&event) {
                            Ok(Some(line)) => self.write(&line).await?,
                            Ok(None) => {}
                            Err(error) => return self.fail(&error).await,
                        }
                    }
                    self.flush().await?;
                }
                Ok(Err(WatchError::Compacted { oldest })) => {
                    let error = ReadError::Compacted { oldest };
                    return self.fail(&refused(&error, watch.delivered())).await;
                }
                Ok(Err(_)) => return Ok(()),
                Err(_) if Instant::now() >= until => return Ok(()),
                Err(_) => {
                    next_bookmark = Instant::now() + BOOKMARK_EVERY;
                    self.bookmark(watch.delivered(), false).await?;
                }
            }
        }
    }

    /// Waits until there is room for a line with an object of this length.
    async fn make_room(&mut self, length: usize) -> Result<(), Gone> {
        let length = length + AROUND;
        let room = match self.unread.take(length) {
            Some(room) => room,
            None => {
                self.flush().await?;
                let level = self.api.shared.flow.level(&self.user);
                level.event(&self.unread, length).await.ok_or(Gone)?
            }
        };
        match &mut self.room {
            Some(taken) => taken.add(room),
            none => *none = Some(room),
        }
        Ok(())
    }

    /// Writes a line, and sends the buffer if it is full.
    async fn write(&mut self, line: &[u8]) -> Result<(), Gone> {
        self.lines.extend_from_slice(line);
        if self.lines.len() >= CHUNK { self.flush().await } else { Ok(()) }
    }

    /// Sends the buffer.
    async fn flush(&mut self) -> Result<(), Gone> {
        let (bytes, room) = (std::mem::take(&mut self.lines).freeze(), self.room.take());
        if bytes.is_empty() {
            return Ok(());
        }
        let lines = Bytes::from_owner(Lines { bytes, _room: room });
        self.sender.send(lines).await.map_err(|_| Gone)
    }

    async fn fail(&mut self, error: &ApiError) -> Result<(), Gone> {
        let status = error.to_status();
        let line = match self.format.is_protobuf() {
            true => protobuf::type_of(Schema::served(), "v1", "Status")
                .and_then(|id| frame("ERROR", id, &status).ok())
                .unwrap_or_default(),
            false => json_line("ERROR", &status),
        };
        self.write(&line).await?;
        self.flush().await
    }

    /// Sends all current objects as ADDED; returns the revision of the snapshot.
    async fn replay(&mut self, snapshot: &Snapshot) -> Result<Revision, Gone> {
        let prefix = self.prefix();
        for entry in snapshot.range(&prefix, None) {
            let line = match entry {
                Ok(entry) if !self.is_watched(&entry.key) => continue,
                Ok(entry) => match self.selected(&entry) {
                    Ok(false) => continue,
                    Ok(true) => {
                        self.make_room(entry.value.len()).await?;
                        self.object_line("ADDED", &entry, entry.modified)
                    }
                    Err(error) => Err(error),
                },
                Err(error) => Err(read::broken(&error)),
            };
            match line {
                Ok(line) => self.write(&line).await?,
                Err(error) => {
                    self.fail(&error).await?;
                    return Err(Gone);
                }
            }
        }
        self.flush().await?;
        Ok(snapshot.revision())
    }

    fn selected(&self, entry: &Entry) -> Result<bool, ApiError> {
        self.selection.matches_bytes(self.path.resource, entry)
    }

    /// Returns the line for an event; `None` if it does not concern the selection.
    fn line(&mut self, event: &Event) -> Result<Option<Bytes>, ApiError> {
        let everything = self.selection.is_everything();
        let (now, before) = (event.entry(), event.previous());
        let now = now.as_ref();
        let matches = |entry: Option<&Entry>| match entry {
            Some(entry) if !everything => self.selected(entry),
            entry => Ok(entry.is_some()),
        };
        let (is, was) = (matches(now)?, matches(before)?);
        let (kind, entry) = match (was, is) {
            (false, true) => ("ADDED", now),
            (true, true) => ("MODIFIED", now),
            (true, false) => ("DELETED", before),
            (false, false) => return Ok(None),
        };
        match entry {
            Some(entry) => self.object_line(kind, entry, event.revision).map(Some),
            None => Ok(None),
        }
    }

    fn object_line(
        &mut self,
        kind: &str,
        entry: &Entry,
        revision: Revision,
    ) -> Result<Bytes, ApiError> {
        let resource = self.path.resource;
        let as_stored =
            self.format.representation == Representation::Plain && !self.format.is_protobuf();
        if as_stored && !codec::is_view(resource) {
            let Some(stored) = StoredParts::split(&entry.value) else {
                return Err(ApiError::internal(format!("the object {} is damaged", entry.key)));
            };
            let mut line = BytesMut::with_capacity(stored.len_hint() + 64);
            line.put_slice(format!("{{\"type\":\"{kind}\",\"object\":").as_bytes());
            stored.put(&mut line, &codec::head(&resource.api_version(), resource.kind), revision);
            line.put_slice(b"}\n");
            return Ok(line.freeze());
        }
        let mut object = read::load(resource, entry)?;
        object["metadata"]["resourceVersion"] = Value::from(revision.to_string());
        let shown = self.shown(resource, object);
        self.value_line(kind, &shown)
    }

    fn value_line(&self, kind: &str, shown: &Value) -> Result<Bytes, ApiError> {
        match self.format.is_protobuf() {
            true => frame(kind, crate::write::type_id(self.path.resource)?, shown),
            false => Ok(json_line(kind, shown)),
        }
    }

    /// Returns an object in the accepted format.
    fn shown(&mut self, resource: &Resource, object: Value) -> Value {
        match self.format.representation {
            Representation::Plain => object,
            Representation::PartialMetadata | Representation::PartialMetadataList => {
                table::partial_metadata(&object, self.format.version)
            }
            Representation::Table => {
                let form = self.table;
                self.table.with_columns = false;
                table::of_object(resource, &object, form, self.api.now())
            }
        }
    }

    async fn bookmark(&mut self, revision: Revision, ends_initial: bool) -> Result<(), Gone> {
        let resource = self.path.resource;
        let schema = Schema::served();
        let mut object = resource.type_id(schema).map_or_else(|| json!({}), |id| schema.zero(id));
        object["kind"] = Value::from(resource.kind);
        object["apiVersion"] = Value::from(resource.api_version());
        object["metadata"] = json!({"resourceVersion": revision.to_string()});
        if ends_initial {
            object["metadata"]["annotations"] = json!({INITIAL_END: "true"});
        }
        let shown = self.shown(resource, object);
        match self.value_line("BOOKMARK", &shown) {
            Ok(line) => {
                self.write(&line).await?;
                self.flush().await
            }
            Err(error) => self.fail(&error).await,
        }
    }
}

fn frame(kind: &str, id: TypeId, object: &Value) -> Result<Bytes, ApiError> {
    Ok(Bytes::from(protobuf::watch_event(kind, &read::enveloped(id, object)?)))
}

fn json_line(kind: &str, object: &Value) -> Bytes {
    Bytes::from(format!("{{\"type\":\"{kind}\",\"object\":{object}}}\n"))
}

/// Returns the error for events after a revision that cannot be read.
fn refused(error: &ReadError, after: Revision) -> ApiError {
    match error {
        ReadError::Compacted { oldest } => {
            ApiError::expired(format!("too old resource version: {after} ({oldest})"))
        }
        error => read::read_failed(error),
    }
}
