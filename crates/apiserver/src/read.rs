//! Reading: one object, or a list that is streamed while it is read.

use bytes::{BufMut as _, Bytes, BytesMut};
use http::StatusCode;
use objects::catalog::Resource;
use objects::protobuf::{self, Envelope, ListEnvelope};
use objects::schema::{Schema, TypeId};
use objects::table;
use serde_json::{Value, json};
use store::{Entry, ReadError, Revision, Snapshot};
use tokio::sync::mpsc;

use crate::accept::{AcceptedFormat, Representation};
use crate::api::Api;
use crate::codec::{self, StoredParts};
use crate::continuation::Continuation;
use crate::error::ApiError;
use crate::reply::{JSON, PROTOBUF, Reply};
use crate::request::{Request, RequestContext};
use crate::route::ResourcePath;
use crate::select::Selection;
use https::Body;

/// A list longer than this is sent in chunks while the rest is read.
const STREAM_ABOVE: usize = 256 * 1024;

pub(crate) fn read_failed(error: &ReadError) -> ApiError {
    match error {
        ReadError::Compacted { oldest } => ApiError::expired(format!(
            "The resourceVersion for the provided list is too old: oldest {oldest}"
        )),
        ReadError::Future { newest } => ApiError::future_revision(newest.get() + 1, newest.get()),
        other => ApiError::internal(other.to_string()),
    }
}

/// Returns the error for a failed storage operation.
pub(crate) fn broken(error: &store::StorageError) -> ApiError {
    ApiError::internal(error.to_string())
}

/// Returns the entry of an object, or 404.
pub(crate) fn find(api: &Api, path: &ResourcePath) -> Result<Entry, ApiError> {
    let key = codec::key(path.resource, &path.namespace, &path.name);
    let found = api.store().get(&key).map_err(|error| read_failed(&error))?;
    found.ok_or_else(|| ApiError::not_found(path.resource, &path.name))
}

/// Decodes the object of an entry, in the resource's version.
pub(crate) fn load(resource: &Resource, entry: &Entry) -> Result<Value, ApiError> {
    codec::decode(resource, entry).map_err(|error| ApiError::internal(error.to_string()))
}

pub(crate) fn get(context: RequestContext<'_>) -> Result<Reply, ApiError> {
    let RequestContext { api, request, path, format } = context;
    let requested = revision(request)?;
    let newest = api.store().revision().get();
    if let Some(requested) = requested.filter(|requested| *requested > newest) {
        return Err(ApiError::future_revision(requested, newest));
    }
    let entry = find(api, path)?;
    if format == AcceptedFormat::PLAIN && !codec::is_view(path.resource) {
        return Ok(Reply::bytes(StatusCode::OK, JSON, plain(path.resource, &entry)?));
    }
    let object = load(path.resource, &entry)?;
    object_reply(context, &object, StatusCode::OK)
}

/// Returns the bytes of an object, joined without parsing it.
pub(crate) fn plain(resource: &Resource, entry: &Entry) -> Result<Bytes, ApiError> {
    let Some(stored) = StoredParts::split(&entry.value) else {
        return Err(ApiError::internal(format!("the stored object {} is damaged", entry.key)));
    };
    let mut bytes = BytesMut::with_capacity(stored.len_hint());
    let head = codec::head(&resource.api_version(), resource.kind);
    stored.put(&mut bytes, &head, entry.modified);
    bytes.put_u8(b'\n');
    Ok(bytes.freeze())
}

/// Returns an object in the accepted format.
pub(crate) fn object_reply(
    context: RequestContext<'_>,
    object: &Value,
    status: StatusCode,
) -> Result<Reply, ApiError> {
    let RequestContext { api, request, path, format } = context;
    let resource = path.resource;
    let value = match format.representation {
        Representation::Plain => return Ok(encoded(object, status, format)),
        Representation::Table => {
            let form = table_form(request, format)?;
            table::of_object(resource, object, form, api.now())
        }
        Representation::PartialMetadata => table::partial_metadata(object, format.version),
        Representation::PartialMetadataList => {
            return Err(ApiError::not_acceptable(format!(
                "you requested PartialObjectMetadataList, but the requested object is not a list \
                 (*core.{})",
                resource.kind
            )));
        }
    };
    if format.is_protobuf() {
        let bytes = enveloped(crate::write::type_id(resource)?, &value)?;
        return Ok(Reply::bytes(status, PROTOBUF, bytes));
    }
    Ok(encoded(&value, status, format))
}

/// Encodes a value in the accepted media type.
pub(crate) fn encoded(value: &Value, status: StatusCode, format: AcceptedFormat) -> Reply {
    if format.is_yaml() {
        return Reply::bytes(status, format.content_type, objects::yaml::write::document(value));
    }
    if format.is_protobuf() {
        let name = |field: &str| value[field].as_str().unwrap_or_default();
        let id = protobuf::type_of(Schema::served(), name("apiVersion"), name("kind"));
        // A value without a type has no protobuf encoding.
        if let Some(id) = id {
            return match enveloped(id, value) {
                Ok(bytes) => Reply::bytes(status, PROTOBUF, bytes),
                Err(error) => Reply::from(error),
            };
        }
    }
    Reply::json(status, value)
}

/// Encodes an object in a protobuf envelope. An object reduced to its metadata keeps its field
/// numbers.
pub(crate) fn enveloped(id: TypeId, object: &Value) -> Result<Vec<u8>, ApiError> {
    Envelope::write(Schema::served(), id, object)
        .map_err(|error| ApiError::internal(error.to_string()))
}

/// Returns the table options: `includeObject=` selects how much of the object a row contains.
pub(crate) fn table_form(
    request: &Request,
    format: AcceptedFormat,
) -> Result<table::TableOptions, ApiError> {
    let include = table::IncludeObject::parse(request.query.text("includeObject"))
        .map_err(|error| ApiError::bad_request(error.to_string()))?;
    Ok(table::TableOptions { version: format.version, include, with_columns: true })
}

/// Parses `resourceVersion=`; `None` if it is absent or zero, which mean any version.
pub(crate) fn revision(request: &Request) -> Result<Option<u64>, ApiError> {
    match request.query.text("resourceVersion") {
        "" | "0" => Ok(None),
        text => text.parse().map(Some).map_err(|_| {
            ApiError::bad_request(format!(
                "Invalid value: {text:?}: strconv.ParseUint: parsing {text:?}: invalid syntax"
            ))
        }),
    }
}

/// The snapshot, start and limit of a list.
struct ListRange {
    snapshot: Snapshot,
    after: Option<String>,
    limit: Option<usize>,
}

pub(crate) async fn list(context: RequestContext<'_>) -> Result<Reply, ApiError> {
    let RequestContext { api, request, path, format } = context;
    crate::list_options::check(request)?;
    if format.representation == Representation::PartialMetadata {
        return Err(ApiError::not_acceptable(format!(
            "you requested PartialObjectMetadata, but the requested object is a list (*core.{}List)",
            path.resource.kind
        )));
    }
    let table = table_form(request, format)?;
    let selection = Selection::of(request, path)?;
    let range = list_range(api, request, path)?;
    let mut writer = ListWriter {
        api: api.clone(),
        path: path.clone(),
        selection,
        format,
        table,
        revision: range.snapshot.revision(),
        buffer: BytesMut::with_capacity(8 * 1024),
        envelope: None,
        count: 0,
    };
    writer.begin();
    if format.is_protobuf() {
        // The length comes first, so everything is encoded before any byte is sent.
        let encoded = tokio::task::spawn_blocking(move || {
            writer.rest(&range, None)?;
            writer.enveloped()
        });
        let chunks = encoded.await.map_err(|error| ApiError::internal(error.to_string()))??;
        return Ok(in_chunks(chunks));
    }
    if format.is_yaml() {
        let (whole, _) = writer.rest(&range, None)?;
        let value: Value = serde_json::from_slice(&whole)
            .map_err(|error| ApiError::internal(error.to_string()))?;
        return Ok(encoded(&value, StatusCode::OK, format));
    }
    let (first, more) = writer.rest(&range, Some(STREAM_ABOVE))?;
    let Some(position) = more else {
        return Ok(Reply::bytes(StatusCode::OK, JSON, first.freeze()));
    };
    let (sender, chunks) = mpsc::channel(1);
    // The channel has room for it.
    let _ = sender.try_send(first.freeze());
    tokio::spawn(stream_rest(writer, ListRange { after: Some(position), ..range }, sender));
    Ok(Reply::stream(JSON, chunks))
}

/// Streams the rest of a list, no faster than the client reads it. Blocking threads are used for
/// reading only, not while waiting for the client: there are few of them for all requests.
async fn stream_rest(mut writer: ListWriter, mut range: ListRange, sender: mpsc::Sender<Bytes>) {
    while let Ok(permit) = sender.reserve().await {
        let reading = tokio::task::spawn_blocking(move || {
            writer.buffer = BytesMut::with_capacity(STREAM_ABOVE + 16 * 1024);
            let read = writer.rest(&range, Some(STREAM_ABOVE));
            (writer, range, read)
        });
        // A list that breaks off is incomplete JSON, which the client detects.
        let Ok((next, rest, Ok((bytes, more)))) = reading.await else { return };
        (writer, range) = (next, rest);
        permit.send(bytes.freeze());
        match more {
            Some(position) => range.after = Some(position),
            None => return,
        }
    }
}

/// Returns a reply of complete chunks.
fn in_chunks(mut pieces: Vec<Vec<u8>>) -> Reply {
    let mut reply = Reply::bytes(StatusCode::OK, PROTOBUF, Bytes::new());
    match pieces.as_mut_slice() {
        [only] => reply.body = Body::Whole(std::mem::take(only).into()),
        _ => {
            let (sender, chunks) = mpsc::channel(pieces.len().max(1));
            for piece in pieces {
                // The channel has room for every chunk.
                let _ = sender.try_send(Bytes::from(piece));
            }
            reply.body = Body::Stream(chunks);
        }
    }
    reply
}

fn list_range(api: &Api, request: &Request, path: &ResourcePath) -> Result<ListRange, ApiError> {
    let limit = request.query.int("limit")?.filter(|limit| *limit > 0);
    let limit = limit.map(|limit| usize::try_from(limit).unwrap_or(usize::MAX));
    // A list at any version ignores the limit, as upstream's cache does.
    let any = request.query.text("resourceVersion") == "0";
    let limit = limit.filter(|_| !any);
    let token = request.query.text("continue");
    let prefix = codec::prefix(path.resource, &path.namespace);
    let open = |at: Option<u64>| api.store().snapshot(at.map(Revision::from));
    if !token.is_empty() {
        let continuation = Continuation::parse(token)?;
        let after = Some(format!("{prefix}{}", continuation.after));
        return match open(continuation.revision) {
            Ok(snapshot) => Ok(ListRange { snapshot, after, limit }),
            Err(ReadError::Compacted { .. }) => Err(continuation.expired()),
            Err(error) => Err(read_failed(&error)),
        };
    }
    let requested = revision(request)?;
    let newest = api.store().revision().get();
    if let Some(requested) = requested.filter(|requested| *requested > newest) {
        return Err(ApiError::future_revision(requested, newest));
    }
    let exact = request.query.text("resourceVersionMatch") == "Exact"
        || (limit.is_some() && request.query.text("resourceVersionMatch").is_empty());
    let at = requested.filter(|_| exact);
    let snapshot = match open(at) {
        Ok(snapshot) => snapshot,
        Err(ReadError::Compacted { .. }) => {
            let message = "The resourceVersion for the provided list is too old.";
            return Err(ApiError::expired(message));
        }
        Err(error) => return Err(read_failed(&error)),
    };
    Ok(ListRange { snapshot, after: None, limit })
}

/// Writes a list into a buffer, item by item.
struct ListWriter {
    api: Api,
    path: ResourcePath,
    selection: Selection,
    format: AcceptedFormat,
    table: table::TableOptions,
    revision: Revision,
    buffer: BytesMut,
    /// Collects the items of a protobuf list, with the list's metadata at its end.
    envelope: Option<(ListEnvelope, Value)>,
    /// The number of items written so far.
    count: usize,
}

impl ListWriter {
    fn begin(&mut self) {
        let resource = self.path.resource;
        let (head, list) = match self.format.representation {
            Representation::Table => {
                let columns = table::column_definitions(resource);
                let head = codec::head(self.format.version.api_version(), "Table");
                (format!("{head}\"columnDefinitions\":{columns},"), "rows")
            }
            Representation::PartialMetadataList => (
                codec::head(self.format.version.api_version(), "PartialObjectMetadataList"),
                "items",
            ),
            _ => {
                let kind = format!("{}List", resource.kind);
                (codec::head(&resource.api_version(), &kind), "items")
            }
        };
        if self.format.is_protobuf() {
            let envelope = match self.format.representation {
                Representation::PartialMetadataList => {
                    let version = self.format.version.api_version();
                    ListEnvelope::new(version, "PartialObjectMetadataList")
                }
                _ => ListEnvelope::new(&resource.api_version(), &format!("{}List", resource.kind)),
            };
            self.envelope = Some((envelope, Value::Null));
            return;
        }
        self.buffer.put_slice(format!("{{{head}\"{list}\":[").as_bytes());
    }

    /// Returns the finished protobuf list.
    fn enveloped(self) -> Result<Vec<Vec<u8>>, ApiError> {
        let schema = Schema::served();
        let id = schema.find("io.k8s.apimachinery.pkg.apis.meta.v1.ListMeta");
        let (Some(id), Some((envelope, metadata))) = (id, self.envelope) else {
            return Err(ApiError::internal("the schema has no ListMeta"));
        };
        let pieces = envelope.finish(schema, id, &metadata);
        pieces.map_err(|error| ApiError::internal(error.to_string()))
    }

    /// Writes items until the list is complete or the buffer holds `enough`. Returns the buffer,
    /// and the key of the last item if there are more.
    fn rest(
        &mut self,
        range: &ListRange,
        enough: Option<usize>,
    ) -> Result<(BytesMut, Option<String>), ApiError> {
        let prefix = codec::prefix(self.path.resource, &self.path.namespace);
        let mut last = range.after.clone();
        let single = self.selection.only_key(&self.path);
        if let Some(key) = single {
            let found = range.snapshot.get(&key).map_err(|error| read_failed(&error))?;
            if let Some(entry) = found {
                self.item(&entry)?;
            }
            self.end(None, None);
            return Ok((std::mem::take(&mut self.buffer), None));
        }
        for entry in range.snapshot.range(&prefix, range.after.as_deref()) {
            let entry = entry.map_err(|error| broken(&error))?;
            if range.limit.is_some_and(|limit| self.count >= limit) {
                let last = last.unwrap_or_default();
                let remaining = if self.selection.is_everything() {
                    Some(range.snapshot.count(&prefix, Some(&last)))
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

    fn item(&mut self, entry: &Entry) -> Result<(), ApiError> {
        let resource = self.path.resource;
        if !self.selection.matches_bytes(resource, entry)? {
            return Ok(());
        }
        if self.count > 0 && self.envelope.is_none() {
            self.buffer.put_u8(b',');
        }
        self.count += 1;
        if let Some((envelope, _)) = &mut self.envelope {
            let mut object = load(resource, entry)?;
            if self.format.representation == Representation::PartialMetadataList {
                object = table::partial_metadata(&object, self.format.version);
            }
            let id = crate::write::type_id(resource)?;
            let pushed = envelope.push(Schema::served(), id, &object);
            return pushed.map_err(|error| ApiError::internal(format!("{}: {error}", entry.key)));
        }
        if self.format.representation == Representation::Plain && !codec::is_view(resource) {
            let Some(stored) = StoredParts::split(&entry.value) else {
                return Err(ApiError::internal(format!("the object {} is damaged", entry.key)));
            };
            stored.put(&mut self.buffer, "", entry.modified);
            return Ok(());
        }
        let mut object = load(resource, entry)?;
        let item = match self.format.representation {
            Representation::Table => table::row(resource, &object, self.table, self.api.now()),
            Representation::PartialMetadata | Representation::PartialMetadataList => {
                table::partial_metadata(&object, self.format.version)
            }
            Representation::Plain => {
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
        if let Some((_, list_metadata)) = &mut self.envelope {
            *list_metadata = metadata;
            return;
        }
        self.buffer.put_slice(format!("],\"metadata\":{metadata}}}\n").as_bytes());
    }
}
