//! Reading: one object, or a list that is written out as it is read.

use bytes::{BufMut as _, Bytes, BytesMut};
use http::StatusCode;
use objects::catalog::Resource;
use objects::protobuf::{self, Envelope, ListEnvelope};
use objects::schema::{Schema, TypeId};
use objects::table;
use serde_json::{Value, json};
use store::{Entry, ReadError, Revision, Snapshot};
use tokio::sync::mpsc;

use crate::accept::{Form, Wanted};
use crate::api::Api;
use crate::continuation::Continuation;
use crate::refusal::Refusal;
use crate::reply::{JSON, PROTOBUF, Reply};
use crate::request::Call;
use crate::route::Place;
use crate::select::Selection;
use crate::stored::{self, Pieces};
use https::Body;

/// A list longer than this goes out in pieces, while the rest is still being read.
const STREAM_ABOVE: usize = 256 * 1024;

pub(crate) fn read_failed(error: &ReadError) -> Refusal {
    match error {
        ReadError::Compacted { oldest } => Refusal::expired(format!(
            "The resourceVersion for the provided list is too old: oldest {oldest}"
        )),
        ReadError::Future { newest } => Refusal::future_revision(newest.get() + 1, newest.get()),
        other => Refusal::internal(other.to_string()),
    }
}

/// The engine below the store failed.
pub(crate) fn broken(error: &store::StorageError) -> Refusal {
    Refusal::internal(error.to_string())
}

/// The entry of an object, or 404.
pub(crate) fn find(api: &Api, place: &Place) -> Result<Entry, Refusal> {
    let key = stored::key(place.resource, &place.namespace, &place.name);
    let found = api.store().get(&key).map_err(|error| read_failed(&error))?;
    found.ok_or_else(|| Refusal::not_found(place.resource, &place.name))
}

/// An object as a value, in the form the resource shows it.
pub(crate) fn load(resource: &Resource, entry: &Entry) -> Result<Value, Refusal> {
    stored::decode(resource, entry).map_err(|error| Refusal::internal(error.to_string()))
}

pub(crate) fn get(api: &Api, call: &Call, place: &Place, wanted: Wanted) -> Result<Reply, Refusal> {
    let asked = revision(call)?;
    let newest = api.store().revision().get();
    if let Some(asked) = asked.filter(|asked| *asked > newest) {
        return Err(Refusal::future_revision(asked, newest));
    }
    let entry = find(api, place)?;
    if wanted == Wanted::PLAIN && !stored::is_view(place.resource) {
        return Ok(Reply::bytes(StatusCode::OK, JSON, plain(place.resource, &entry)?));
    }
    let object = load(place.resource, &entry)?;
    object_reply(api, place.resource, &object, StatusCode::OK, wanted, call)
}

/// The bytes of one object, put together without reading it.
pub(crate) fn plain(resource: &Resource, entry: &Entry) -> Result<Bytes, Refusal> {
    let Some(pieces) = Pieces::of(&entry.value) else {
        return Err(Refusal::internal(format!("the stored object {} is damaged", entry.key)));
    };
    let mut bytes = BytesMut::with_capacity(pieces.len_hint());
    let head = stored::head(&resource.api_version(), resource.kind);
    pieces.put(&mut bytes, &head, entry.modified);
    bytes.put_u8(b'\n');
    Ok(bytes.freeze())
}

/// An object in the form the client wants.
pub(crate) fn object_reply(
    api: &Api,
    resource: &Resource,
    object: &Value,
    status: StatusCode,
    wanted: Wanted,
    call: &Call,
) -> Result<Reply, Refusal> {
    let value = match wanted.form {
        Form::Plain => return Ok(encoded(object, status, wanted)),
        Form::Table => {
            let form = table_form(call, wanted)?;
            table::of_object(resource, object, form, api.now())
        }
        Form::PartialMetadata => table::partial_metadata(object, wanted.version),
        Form::PartialMetadataList => {
            return Err(Refusal::not_acceptable(format!(
                "you requested PartialObjectMetadataList, but the requested object is not a list \
                 (*core.{})",
                resource.kind
            )));
        }
    };
    if wanted.is_protobuf() {
        let bytes = enveloped(crate::write::type_id(resource)?, &value)?;
        return Ok(Reply::bytes(status, PROTOBUF, bytes));
    }
    Ok(encoded(&value, status, wanted))
}

/// A value in the notation the client wants.
pub(crate) fn encoded(value: &Value, status: StatusCode, wanted: Wanted) -> Reply {
    if wanted.is_yaml() {
        return Reply::bytes(status, wanted.content_type, objects::yaml::write::document(value));
    }
    if wanted.is_protobuf() {
        let name = |field: &str| value[field].as_str().unwrap_or_default();
        let id = protobuf::type_of(Schema::served(), name("apiVersion"), name("kind"));
        // What has no type has no form in protobuf either.
        if let Some(id) = id {
            return match enveloped(id, value) {
                Ok(bytes) => Reply::bytes(status, PROTOBUF, bytes),
                Err(refusal) => Reply::from(refusal),
            };
        }
    }
    Reply::json(status, value)
}

/// An object in its envelope. An object reduced to its metadata has the numbers of the whole one.
pub(crate) fn enveloped(id: TypeId, object: &Value) -> Result<Vec<u8>, Refusal> {
    Envelope::write(Schema::served(), id, object)
        .map_err(|error| Refusal::internal(error.to_string()))
}

/// The form of a table: `includeObject=` says how much of the object a row carries.
pub(crate) fn table_form(call: &Call, wanted: Wanted) -> Result<table::Form, Refusal> {
    let include = table::IncludeObject::parse(call.query.text("includeObject"))
        .map_err(|error| Refusal::bad_request(error.to_string()))?;
    Ok(table::Form { version: wanted.version, include, with_columns: true })
}

/// `resourceVersion=` as a number; `None` for none and for zero, which mean "any".
pub(crate) fn revision(call: &Call) -> Result<Option<u64>, Refusal> {
    match call.query.text("resourceVersion") {
        "" | "0" => Ok(None),
        text => text.parse().map(Some).map_err(|_| {
            Refusal::bad_request(format!(
                "Invalid value: {text:?}: strconv.ParseUint: parsing {text:?}: invalid syntax"
            ))
        }),
    }
}

/// Which snapshot a list is of, where it begins and how long it may be.
struct Window {
    snapshot: Snapshot,
    after: Option<String>,
    limit: Option<usize>,
}

pub(crate) async fn list(
    api: &Api,
    call: &Call,
    place: &Place,
    wanted: Wanted,
) -> Result<Reply, Refusal> {
    crate::list_options::check(call)?;
    if wanted.form == Form::PartialMetadata {
        return Err(Refusal::not_acceptable(format!(
            "you requested PartialObjectMetadata, but the requested object is a list (*core.{}List)",
            place.resource.kind
        )));
    }
    let table = table_form(call, wanted)?;
    let selection = Selection::of(call, place)?;
    let window = window(api, call, place)?;
    let mut writer = ListWriter {
        api: api.clone(),
        place: place.clone(),
        selection,
        wanted,
        table,
        revision: window.snapshot.revision(),
        buffer: BytesMut::with_capacity(8 * 1024),
        envelope: None,
        count: 0,
    };
    writer.begin();
    if wanted.is_protobuf() {
        // The length of the whole comes first, so all of it is encoded before any is sent.
        let encoded = tokio::task::spawn_blocking(move || {
            writer.rest(&window, None)?;
            writer.enveloped()
        });
        let pieces = encoded.await.map_err(|error| Refusal::internal(error.to_string()))??;
        return Ok(in_pieces(pieces));
    }
    if wanted.is_yaml() {
        let (whole, _) = writer.rest(&window, None)?;
        let value: Value =
            serde_json::from_slice(&whole).map_err(|error| Refusal::internal(error.to_string()))?;
        return Ok(encoded(&value, StatusCode::OK, wanted));
    }
    let (first, more) = writer.rest(&window, Some(STREAM_ABOVE))?;
    let Some(position) = more else {
        return Ok(Reply::bytes(StatusCode::OK, JSON, first.freeze()));
    };
    let (sender, chunks) = mpsc::channel(1);
    // There is room for it.
    let _ = sender.try_send(first.freeze());
    tokio::spawn(stream_rest(writer, Window { after: Some(position), ..window }, sender));
    Ok(Reply::stream(JSON, chunks))
}

/// Reads the rest of a list, no faster than the client takes it. The threads that may block are used
/// for reading only, not while the client is waited for: there are few of them for all requests.
async fn stream_rest(mut writer: ListWriter, mut window: Window, sender: mpsc::Sender<Bytes>) {
    while let Ok(place) = sender.reserve().await {
        let reading = tokio::task::spawn_blocking(move || {
            writer.buffer = BytesMut::with_capacity(STREAM_ABOVE + 16 * 1024);
            let read = writer.rest(&window, Some(STREAM_ABOVE));
            (writer, window, read)
        });
        // A list that breaks off is JSON that does not end, which its client notices.
        let Ok((next, rest, Ok((bytes, more)))) = reading.await else { return };
        (writer, window) = (next, rest);
        place.send(bytes.freeze());
        match more {
            Some(position) => window.after = Some(position),
            None => return,
        }
    }
}

/// A reply of pieces that are all there.
fn in_pieces(mut pieces: Vec<Vec<u8>>) -> Reply {
    let mut reply = Reply::bytes(StatusCode::OK, PROTOBUF, Bytes::new());
    match pieces.as_mut_slice() {
        [only] => reply.body = Body::Whole(std::mem::take(only).into()),
        _ => {
            let (sender, chunks) = mpsc::channel(pieces.len().max(1));
            for piece in pieces {
                // There is room for every piece, and the other end is below.
                let _ = sender.try_send(Bytes::from(piece));
            }
            reply.body = Body::Stream(chunks);
        }
    }
    reply
}

fn window(api: &Api, call: &Call, place: &Place) -> Result<Window, Refusal> {
    let limit = call.query.int("limit")?.filter(|limit| *limit > 0);
    let limit = limit.map(|limit| usize::try_from(limit).unwrap_or(usize::MAX));
    // Who takes any version takes it whole, as from upstream's cache.
    let any = call.query.text("resourceVersion") == "0";
    let limit = limit.filter(|_| !any);
    let token = call.query.text("continue");
    let prefix = stored::prefix(place.resource, &place.namespace);
    let open = |at: Option<u64>| api.store().snapshot(at.map(Revision::from));
    if !token.is_empty() {
        let going_on = Continuation::parse(token)?;
        let after = Some(format!("{prefix}{}", going_on.after));
        return match open(going_on.revision) {
            Ok(snapshot) => Ok(Window { snapshot, after, limit }),
            Err(ReadError::Compacted { .. }) => Err(going_on.expired()),
            Err(error) => Err(read_failed(&error)),
        };
    }
    let asked = revision(call)?;
    let newest = api.store().revision().get();
    if let Some(asked) = asked.filter(|asked| *asked > newest) {
        return Err(Refusal::future_revision(asked, newest));
    }
    let exact = call.query.text("resourceVersionMatch") == "Exact"
        || (limit.is_some() && call.query.text("resourceVersionMatch").is_empty());
    let at = asked.filter(|_| exact);
    let snapshot = match open(at) {
        Ok(snapshot) => snapshot,
        Err(ReadError::Compacted { .. }) => {
            let message = "The resourceVersion for the provided list is too old.";
            return Err(Refusal::expired(message));
        }
        Err(error) => return Err(read_failed(&error)),
    };
    Ok(Window { snapshot, after: None, limit })
}

/// Writes a list into a buffer, item by item.
struct ListWriter {
    api: Api,
    place: Place,
    selection: Selection,
    wanted: Wanted,
    table: table::Form,
    revision: Revision,
    buffer: BytesMut,
    /// Takes the items instead, for a list in protobuf, and the list's metadata at its end.
    envelope: Option<(ListEnvelope, Value)>,
    /// Items written so far.
    count: usize,
}

impl ListWriter {
    fn begin(&mut self) {
        let resource = self.place.resource;
        let (head, list) = match self.wanted.form {
            Form::Table => {
                let columns = table::column_definitions(resource);
                let head = stored::head(self.wanted.version.api_version(), "Table");
                (format!("{head}\"columnDefinitions\":{columns},"), "rows")
            }
            Form::PartialMetadataList => (
                stored::head(self.wanted.version.api_version(), "PartialObjectMetadataList"),
                "items",
            ),
            _ => {
                let kind = format!("{}List", resource.kind);
                (stored::head(&resource.api_version(), &kind), "items")
            }
        };
        if self.wanted.is_protobuf() {
            let envelope = match self.wanted.form {
                Form::PartialMetadataList => {
                    let version = self.wanted.version.api_version();
                    ListEnvelope::new(version, "PartialObjectMetadataList")
                }
                _ => ListEnvelope::new(&resource.api_version(), &format!("{}List", resource.kind)),
            };
            self.envelope = Some((envelope, Value::Null));
            return;
        }
        self.buffer.put_slice(format!("{{{head}\"{list}\":[").as_bytes());
    }

    /// The finished list in protobuf.
    fn enveloped(self) -> Result<Vec<Vec<u8>>, Refusal> {
        let schema = Schema::served();
        let id = schema.find("io.k8s.apimachinery.pkg.apis.meta.v1.ListMeta");
        let (Some(id), Some((envelope, metadata))) = (id, self.envelope) else {
            return Err(Refusal::internal("the schema has no ListMeta"));
        };
        let pieces = envelope.finish(schema, id, &metadata);
        pieces.map_err(|error| Refusal::internal(error.to_string()))
    }

    /// Writes items until the list is complete or the buffer holds `enough`. Gives the buffer, and
    /// the key of the last item read if there is more to come.
    fn rest(
        &mut self,
        window: &Window,
        enough: Option<usize>,
    ) -> Result<(BytesMut, Option<String>), Refusal> {
        let prefix = stored::prefix(self.place.resource, &self.place.namespace);
        let mut last = window.after.clone();
        let single = self.selection.only_key(&self.place);
        if let Some(key) = single {
            let found = window.snapshot.get(&key).map_err(|error| read_failed(&error))?;
            if let Some(entry) = found {
                self.item(&entry)?;
            }
            self.end(None, None);
            return Ok((std::mem::take(&mut self.buffer), None));
        }
        for entry in window.snapshot.range(&prefix, window.after.as_deref()) {
            let entry = entry.map_err(|error| broken(&error))?;
            if window.limit.is_some_and(|limit| self.count >= limit) {
                let last = last.unwrap_or_default();
                let remaining = if self.selection.is_everything() {
                    Some(window.snapshot.count(&prefix, Some(&last)))
                } else {
                    None
                };
                let after = last.strip_prefix(&prefix).unwrap_or(&last);
                self.end(Some(after), remaining);
                return Ok((std::mem::take(&mut self.buffer), None));
            }
            self.item(&entry)?;
            last = Some(entry.key.to_string());
            if enough.is_some_and(|enough| self.buffer.len() >= enough) {
                return Ok((std::mem::take(&mut self.buffer), last));
            }
        }
        self.end(None, None);
        Ok((std::mem::take(&mut self.buffer), None))
    }

    fn item(&mut self, entry: &Entry) -> Result<(), Refusal> {
        let resource = self.place.resource;
        if !self.selection.matches_bytes(resource, entry)? {
            return Ok(());
        }
        if self.count > 0 && self.envelope.is_none() {
            self.buffer.put_u8(b',');
        }
        self.count += 1;
        if let Some((envelope, _)) = &mut self.envelope {
            let mut object = load(resource, entry)?;
            if self.wanted.form == Form::PartialMetadataList {
                object = table::partial_metadata(&object, self.wanted.version);
            }
            let id = crate::write::type_id(resource)?;
            let pushed = envelope.push(Schema::served(), id, &object);
            return pushed.map_err(|error| Refusal::internal(format!("{}: {error}", entry.key)));
        }
        if self.wanted.form == Form::Plain && !stored::is_view(resource) {
            let Some(pieces) = Pieces::of(&entry.value) else {
                return Err(Refusal::internal(format!("the object {} is damaged", entry.key)));
            };
            pieces.put(&mut self.buffer, "", entry.modified);
            return Ok(());
        }
        let mut object = load(resource, entry)?;
        let item = match self.wanted.form {
            Form::Table => table::row(resource, &object, self.table, self.api.now()),
            Form::PartialMetadata | Form::PartialMetadataList => {
                table::partial_metadata(&object, self.wanted.version)
            }
            Form::Plain => {
                if let Value::Object(fields) = &mut object {
                    fields.remove("kind");
                    fields.remove("apiVersion");
                }
                object
            }
        };
        self.buffer.put_slice(item.to_string().as_bytes());
        Ok(())
    }

    fn end(&mut self, after: Option<&str>, remaining: Option<usize>) {
        let mut metadata = json!({"resourceVersion": self.revision.to_string()});
        if let Some(after) = after {
            let token = Continuation::token(self.revision.get(), after);
            metadata["continue"] = Value::from(token);
        }
        if let Some(remaining) = remaining {
            metadata["remainingItemCount"] = Value::from(remaining);
        }
        if let Some((_, place)) = &mut self.envelope {
            *place = metadata;
            return;
        }
        self.buffer.put_slice(format!("],\"metadata\":{metadata}}}\n").as_bytes());
    }
}
