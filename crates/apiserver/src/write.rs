//! Writing: create, update and the four kinds of patch.
//!
//! A new object: decoding, defaults, field ownership, mutating admission, server-set fields,
//! validation, validating admission, one transaction. An update runs the same steps against the
//! stored object, and again after a conflict if the client named no version.

use http::StatusCode;
use objects::apply::{self, ApplyError, FieldManager};
use objects::catalog::Resource;
use objects::cursor::{Causes, Cursor};
use objects::patch::{self, PatchKind};
use objects::rules::{self, Subresource};
use objects::schema::{Schema, TypeId};
use serde_json::{Value, json};
use store::{Entry, Outcome, Transaction};

use crate::admission;
use crate::api::Api;
use crate::decode::{self, Expected, FieldValidation};
use crate::error::ApiError;
use crate::read;
use crate::reply::Reply;
use crate::request::{Request, RequestContext};
use crate::route::ResourcePath;
use crate::{codec, random};

/// The maximum number of attempts of an update. Upstream gives up after five; each conflict here
/// means that another write succeeded.
const ATTEMPTS: usize = 64;

/// The maximum number of names generated for an object.
const NAMES: usize = 8;

/// The options of all writes.
#[derive(Debug, Clone)]
pub(crate) struct WriteOptions {
    pub(crate) dry_run: bool,
    pub(crate) manager: String,
    /// The requesting node, if a node writes.
    pub(crate) node: Option<String>,
}

/// The kind of a patch, for its options.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PatchOptions {
    Apply,
    Other,
}

impl WriteOptions {
    pub(crate) fn of(request: &Request, options_kind: &str) -> Result<WriteOptions, ApiError> {
        WriteOptions::checked(request, options_kind, Causes::default())
    }

    fn of_patch(request: &Request, patch: PatchOptions) -> Result<WriteOptions, ApiError> {
        let mut causes = Causes::default();
        match patch {
            PatchOptions::Apply if request.query.text("fieldManager").is_empty() => {
                let message = "Required value: is required for apply patch".to_owned();
                causes.add("FieldValueRequired", "fieldManager", message);
            }
            PatchOptions::Other if request.query.get("force").is_some() => {
                let message = "Forbidden: may not be specified for non-apply patch".to_owned();
                causes.add("FieldValueForbidden", "force", message);
            }
            _ => {}
        }
        WriteOptions::checked(request, "PatchOptions", causes)
    }

    fn checked(
        request: &Request,
        options_kind: &str,
        mut causes: Causes,
    ) -> Result<WriteOptions, ApiError> {
        let given = Value::from(request.query.text("fieldManager"));
        rules::meta::validate_manager(&Cursor::top(&given, "fieldManager"), &mut causes);
        let dry_run: Vec<&str> = request.query.all("dryRun").collect();
        if dry_run.iter().any(|value| *value != "All") {
            let shown = json!(dry_run);
            let message = format!("Unsupported value: {shown}: supported values: \"All\"");
            causes.add("FieldValueNotSupported", "dryRun", message);
        }
        FieldValidation::check(request, &mut causes);
        if !causes.is_empty() {
            return Err(ApiError::invalid_kind("meta.k8s.io", options_kind, "", &causes));
        }
        let manager = match request.query.text("fieldManager") {
            // `kubectl/v1.32.0 (linux/amd64)` becomes kubectl.
            "" => FieldManager::name_of_agent(request.header("user-agent")),
            given => given.to_owned(),
        };
        let manager = if manager.is_empty() { "unknown".to_owned() } else { manager };
        let node = request.user().node().map(str::to_owned);
        Ok(WriteOptions { dry_run: !dry_run.is_empty(), manager, node })
    }
}

/// Returns the error for a failed commit.
pub(crate) fn commit_failed(error: &store::CommitError) -> ApiError {
    match error {
        store::CommitError::TooLarge { .. } => ApiError::too_large(error),
        store::CommitError::Storage(cause) if cause.is_full() => ApiError::internal(format!(
            "{error}: {cause}: no space left on the disk; free space there; objects can still be \
             deleted"
        )),
        store::CommitError::Storage(cause) => ApiError::internal(format!("{error}: {cause}")),
        _ => ApiError::internal(error.to_string()),
    }
}

pub(crate) fn type_id(resource: &Resource) -> Result<TypeId, ApiError> {
    let missing = || ApiError::internal(format!("the schema has no type for {}", resource.kind));
    resource.type_id(Schema::served()).ok_or_else(missing)
}

pub(crate) async fn create(context: RequestContext<'_>) -> Result<Reply, ApiError> {
    let RequestContext { api, request, path, .. } = context;
    let options = WriteOptions::of(request, "CreateOptions")?;
    let received = decode::body(request, &Expected::of(path.resource)?)?;
    let object = received.object;
    let version = path.resource.api_version();
    let by = FieldManager { name: &options.manager, subresource: "", api_version: &version };
    let mut warnings = received.warnings;
    let origin = Origin::Update(by);
    let object = create_object(api, path, object, &options, origin, &mut warnings).await?;
    let reply = read::object_reply(context, &object, StatusCode::CREATED)?;
    Ok(reply.with_warnings(warnings))
}

/// Creates an object and returns it as stored. An error includes the warnings.
pub(crate) async fn create_object(
    api: &Api,
    path: &ResourcePath,
    object: Value,
    options: &WriteOptions,
    origin: Origin<'_>,
    warnings: &mut Vec<String>,
) -> Result<Value, ApiError> {
    let made = try_create(api, path, object, options, origin, warnings).await;
    made.map_err(|error| error.after(warnings))
}

async fn try_create(
    api: &Api,
    path: &ResourcePath,
    mut object: Value,
    options: &WriteOptions,
    origin: Origin<'_>,
    warnings: &mut Vec<String>,
) -> Result<Value, ApiError> {
    let resource = path.resource;
    check_namespace(path, &mut object)?;
    if !object["metadata"]["resourceVersion"].as_str().unwrap_or_default().is_empty() {
        let message = "resourceVersion should not be set on objects to be created";
        return Err(ApiError::bad_request(message));
    }
    warn_of_owners(&mut object, origin.after_mutation(), warnings);
    let wants_name = object["metadata"]["name"].as_str().unwrap_or_default().is_empty();
    let generate = object["metadata"]["generateName"].as_str().unwrap_or_default().to_owned();
    rules::set_defaults(resource, &mut object);
    let setting = api.setting();
    if wants_name && generate.is_empty() && resource.plural == "limitranges" {
        // The only kind that does not need a name.
        metadata_of(&mut object)?.insert("name".to_owned(), Value::from(random::uid()));
    }
    if let Origin::Update(by) = origin {
        apply::track_update(
            Schema::served(),
            type_id(resource)?,
            None,
            &mut object,
            &by,
            setting.now,
        );
    }
    admission::mutate_create(api, options.node.as_deref(), path, &mut object).await?;
    let metadata = metadata_of(&mut object)?;
    metadata.insert("creationTimestamp".to_owned(), json!(setting.now.to_seconds_text()));
    metadata.insert("uid".to_owned(), Value::from(random::uid()));
    let generates = wants_name && !generate.is_empty();
    // The rules may derive other fields from the name, so each name starts from this object.
    let nameless = generates.then(|| object.clone());
    let mut noticed = Vec::new();
    for attempt in 1.. {
        if let Some(nameless) = &nameless {
            object = nameless.clone();
            object["metadata"]["name"] = Value::from(generated(&generate));
        }
        if generates || attempt == 1 {
            noticed = rules::prepare_create(resource, &mut object, &setting);
            if resource.plural == "services" {
                crate::services::prepare(api, &mut object)?;
            }
        }
        let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        let causes = rules::validate_create(resource, &object, &setting);
        if !causes.is_empty() {
            return Err(ApiError::invalid(resource, &name, &causes));
        }
        if attempt == 1 {
            warnings.append(&mut noticed);
            warnings.extend(rules::warnings(resource, &object, None));
        }
        if resource.plural == "services" {
            crate::services::allocate(api, &mut object)?;
        }
        let charge = admission::validate_create(api, path, &object, warnings).await?;
        if options.dry_run {
            let exists = api.store().get(&codec::key(resource, &path.namespace, &name));
            if exists.map_err(|error| read::read_failed(&error))?.is_some() {
                return Err(ApiError::already_exists(path.resource, &name));
            }
            return Ok(object);
        }
        let key = codec::key(resource, &path.namespace, &name);
        let mut transaction = Transaction::new()
            .expect_absent(key.as_str())
            .put(key.as_str(), codec::encode_within_limit(resource, &object)?);
        transaction = charge.add_to(transaction);
        match api.store().commit(transaction).await.map_err(|error| commit_failed(&error))? {
            Outcome::Committed { revision } => {
                object["metadata"]["resourceVersion"] = Value::from(revision.to_string());
                return Ok(object);
            }
            Outcome::Conflict { key: lost, found } if *lost == *key => {
                if generates && attempt < NAMES {
                    continue;
                }
                return Err(exists(path.resource, &name, found.as_ref()));
            }
            // A quota was written meanwhile: charge it again.
            Outcome::Conflict { .. } if attempt < ATTEMPTS => {}
            Outcome::Conflict { .. } => return Err(ApiError::modified(path.resource, &name)),
        }
    }
    Err(ApiError::internal("no attempt was made"))
}

/// Returns the 409 for a name that is taken.
fn exists(resource: &Resource, name: &str, found: Option<&Entry>) -> ApiError {
    let mut error = ApiError::already_exists(resource, name);
    let going = found
        .and_then(|entry| read::load(resource, entry).ok())
        .is_some_and(|object| object["metadata"]["deletionTimestamp"].is_string());
    if going {
        error.message = format!("object is being deleted: {}", error.message);
    }
    error
}

/// Generates a name from the client's prefix, within the maximum length.
fn generated(prefix: &str) -> String {
    const LONGEST: usize = 63 - 5;
    let mut end = prefix.len().min(LONGEST);
    while !prefix.is_char_boundary(end) {
        end -= 1;
    }
    format!("{}{}", &prefix[..end], random::suffix())
}

pub(crate) fn metadata_of(
    object: &mut Value,
) -> Result<&mut serde_json::Map<String, Value>, ApiError> {
    object["metadata"].as_object_mut().ok_or_else(|| ApiError::bad_request("metadata is missing"))
}

/// Sets the namespace of the path, and removes it from cluster-scoped objects. Rejects a different
/// one.
pub(crate) fn check_namespace(path: &ResourcePath, object: &mut Value) -> Result<(), ApiError> {
    if !path.resource.namespaced {
        if let Some(Value::Object(metadata)) = object.get_mut("metadata") {
            metadata.remove("namespace");
        }
        return Ok(());
    }
    let namespace = object["metadata"]["namespace"].as_str().unwrap_or_default();
    if !namespace.is_empty() && namespace != path.namespace {
        let message =
            "the namespace of the provided object does not match the namespace sent on the request";
        return Err(ApiError::bad_request(message));
    }
    object["metadata"]["namespace"] = Value::from(path.namespace.as_str());
    Ok(())
}

/// The origin of an object, for its managed fields.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Origin<'a> {
    /// Written by a manager, which owns the changed fields.
    Update(FieldManager<'a>),
    /// Merged by server-side apply, which has updated the managed fields itself.
    Applied,
}

impl Origin<'_> {
    /// Returns true if warnings refer to the object after mutating admission, as for patches.
    fn after_mutation(&self) -> bool {
        matches!(self, Origin::Applied)
    }
}

/// Removes duplicate owner references, with a warning.
fn warn_of_owners(object: &mut Value, late: bool, warnings: &mut Vec<String>) {
    let gone = rules::meta::distinct_owners(object);
    if !gone.is_empty() {
        let when = if late { " after mutating admission happens" } else { "" };
        warnings.push(format!(
            ".metadata.ownerReferences contains duplicate entries{when}; API server dedups owner \
             references in 1.20+, and may reject such requests as early as 1.24; please fix your \
             requests; duplicate UID(s) observed: {}",
            gone.join(", ")
        ));
    }
}

/// Returns the subresource that a path writes to.
pub(crate) fn subresource_of(path: &ResourcePath) -> Subresource {
    match path.subresource.map(|subresource| subresource.name) {
        Some("status") => Subresource::Status,
        Some("resize") => Subresource::Resize,
        Some("ephemeralcontainers") => Subresource::EphemeralContainers,
        Some("finalize") => Subresource::Finalize,
        _ => Subresource::Main,
    }
}

pub(crate) async fn update(context: RequestContext<'_>) -> Result<Reply, ApiError> {
    let RequestContext { api, request, path, .. } = context;
    if path.subresource.is_some_and(|subresource| subresource.name == "scale") {
        let options = WriteOptions::of(request, "UpdateOptions")?;
        return crate::subresources::update_scale(context, &options).await;
    }
    let options = WriteOptions::of(request, "UpdateOptions")?;
    let received = decode::body(request, &Expected::of(path.resource)?)?;
    let mut object = received.object;
    check_namespace(path, &mut object)?;
    check_name(path, &object)?;
    let version = path.resource.api_version();
    let by = FieldManager {
        name: &options.manager,
        subresource: subresource_name(path),
        api_version: &version,
    };
    let key = codec::key(path.resource, &path.namespace, &path.name);
    let creates = path.subresource.is_none() && creates_on_update(path.resource);
    let exists = api.store().get(&key).map_err(|e| read::read_failed(&e))?.is_some();
    if !exists {
        // The object would be new, so a missing namespace is reported first.
        admission::check_namespace(api, path, &object)?;
    }
    if creates && !exists {
        // A uid refers to an existing object; a version is ignored.
        check_uid(path, &Value::Null, &object)?;
        metadata_of(&mut object)?.remove("resourceVersion");
        let mut warnings = received.warnings;
        let origin = Origin::Update(by);
        let object = create_object(api, path, object, &options, origin, &mut warnings).await?;
        let reply = read::object_reply(context, &object, StatusCode::CREATED)?;
        return Ok(reply.with_warnings(warnings));
    }
    let mut change = |_: &Value| Ok(object.clone());
    let origin = Origin::Update(by);
    let written = guaranteed_update(context, &options, origin, &mut change).await;
    let written = written.map_err(|error| error.after(&received.warnings))?;
    finish(context, written, received.warnings)
}

pub(crate) fn subresource_name(path: &ResourcePath) -> &'static str {
    path.subresource.map_or("", |subresource| subresource.name)
}

fn finish(
    context: RequestContext<'_>,
    written: Written,
    mut warnings: Vec<String>,
) -> Result<Reply, ApiError> {
    warnings.extend(written.warnings);
    let status = if written.created { StatusCode::CREATED } else { StatusCode::OK };
    let object = &written.object;
    let reply = read::object_reply(context, object, status)?;
    Ok(reply.with_warnings(warnings))
}

/// Returns true for kinds that an update may create.
fn creates_on_update(resource: &Resource) -> bool {
    matches!(resource.plural, "leases" | "events" | "services" | "limitranges")
}

/// Returns true for kinds whose updates must name a resource version.
fn needs_version(resource: &Resource) -> bool {
    matches!(resource.plural, "leases" | "runtimeclasses" | "poddisruptionbudgets")
}

pub(crate) fn check_name(path: &ResourcePath, object: &Value) -> Result<(), ApiError> {
    let name = object["metadata"]["name"].as_str().unwrap_or_default();
    if name.is_empty() {
        return Err(ApiError::bad_request(format!(
            "the name of the object ({} based on URL) was undeterminable: name must be provided",
            path.name
        )));
    }
    if name != path.name {
        return Err(ApiError::bad_request(format!(
            "the name of the object ({name}) does not match the name on the URL ({})",
            path.name
        )));
    }
    Ok(())
}

/// Checks that a patched object still has the name and namespace of the path.
pub(crate) fn check_request(path: &ResourcePath, object: &Value) -> Result<(), ApiError> {
    check_name(path, object)?;
    let namespace = object["metadata"]["namespace"].as_str().unwrap_or_default();
    if path.resource.namespaced && !namespace.is_empty() && namespace != path.namespace {
        return Err(ApiError::bad_request(format!(
            "the namespace of the object ({namespace}) does not match the namespace on the request \
             ({})",
            path.namespace
        )));
    }
    Ok(())
}

/// The result of an update.
pub(crate) struct Written {
    pub(crate) object: Value,
    pub(crate) warnings: Vec<String>,
    pub(crate) created: bool,
}

/// Makes the new object from the stored one.
pub(crate) type Change<'a> = dyn FnMut(&Value) -> Result<Value, ApiError> + Send + 'a;

/// Reads, changes and writes an object, again after a conflict.
pub(crate) async fn guaranteed_update(
    context: RequestContext<'_>,
    options: &WriteOptions,
    origin: Origin<'_>,
    change: &mut Change<'_>,
) -> Result<Written, ApiError> {
    let RequestContext { api, path, .. } = context;
    let resource = path.resource;
    let mut attempt = 0;
    loop {
        attempt += 1;
        let entry = read::find(api, path)?;
        let old = read::load(resource, &entry)?;
        let new = change(&old)?;
        let named = new["metadata"]["resourceVersion"].as_str().unwrap_or_default();
        // A patch has the stored version unless it names another one. So only a client that names a
        // version gets a conflict here.
        if !matches!(named, "" | "0") && named != entry.modified.to_string() {
            return Err(ApiError::modified(path.resource, &path.name));
        }
        let step = try_update(context, options, origin, &entry, &old, new).await?;
        match step {
            Some(written) => return Ok(written),
            None if attempt >= ATTEMPTS => {
                return Err(ApiError::modified(path.resource, &path.name));
            }
            None => {}
        }
    }
}

/// Makes one attempt; `None` after a conflict.
async fn try_update(
    context: RequestContext<'_>,
    options: &WriteOptions,
    origin: Origin<'_>,
    entry: &Entry,
    old: &Value,
    mut new: Value,
) -> Result<Option<Written>, ApiError> {
    let RequestContext { api, request, path, .. } = context;
    let resource = path.resource;
    let setting = api.setting();
    let subresource = subresource_of(path);
    check_uid(path, old, &new)?;
    let version = new["metadata"]["resourceVersion"].as_str().unwrap_or_default();
    if matches!(version, "" | "0") && needs_version(resource) {
        let mut causes = Causes::default();
        let top = Cursor::top(&new, "");
        let at = top.field("metadata");
        let at = at.field("resourceVersion");
        // A missing version is reported as the number zero, and with the resource in place of the
        // kind.
        causes.invalid_as(&at, 0_i64, "must be specified for an update");
        return Err(ApiError::invalid_kind(resource.group, resource.plural, &path.name, &causes));
    }
    check_namespace(path, &mut new)?;
    let mut warnings = Vec::new();
    let late = request.method == http::Method::PATCH;
    warn_of_owners(&mut new, late, &mut warnings);
    // An update without a version applies to the stored object.
    new["metadata"]["resourceVersion"] = old["metadata"]["resourceVersion"].clone();
    rules::set_defaults(resource, &mut new);
    if let Origin::Update(by) = origin {
        let id = type_id(resource)?;
        apply::track_update(Schema::served(), id, Some(old), &mut new, &by, setting.now);
    }
    // A binding has its own checks, and changes fields that no update may.
    if subresource_name(path) != "binding" {
        admission::mutate_update(api, request, path, old, &mut new)?;
        rules::prepare_update(resource, &mut new, old, subresource, &setting);
        if resource.plural == "services" && subresource == Subresource::Main {
            crate::services::prepare_health(api, &mut new)?;
        }
        let mut causes = rules::validate_update(resource, &new, old, subresource, &setting);
        if resource.plural == "pods"
            && matches!(subresource, Subresource::Main | Subresource::Resize)
        {
            causes.append(admission::class_changes(api, old, &new)?);
        }
        if !causes.is_empty() {
            let error = ApiError::invalid(path.resource, &path.name, &causes);
            return Err(error.after(&warnings));
        }
        // Writers of a status are not responsible for the spec, so they get no warnings about it.
        if resource.plural == "pods" || subresource == Subresource::Main {
            warnings.extend(rules::warnings(resource, &new, Some(old)));
        }
        if resource.plural == "pods" && subresource == Subresource::Status {
            warnings.extend(rules::pod::status_warnings(&new));
        }
    }
    if resource.plural == "services" && subresource == Subresource::Main {
        crate::services::allocate(api, &mut new).map_err(|error| error.after(&warnings))?;
    }
    let charged = admission::validate_update(api, path, old, &new, &mut warnings).await;
    let charge = charged.map_err(|error| error.after(&warnings))?;
    let unchanged = apply::keep_times(old, &mut new);
    let object = new;
    if options.dry_run || unchanged {
        return Ok(Some(Written { object, warnings, created: false }));
    }
    let key = codec::key(resource, &path.namespace, &path.name);
    let ends = crate::delete::ends_here(resource, &object);
    let transaction = Transaction::new().expect_modified_at(key.as_str(), entry.modified);
    let transaction = match ends {
        true => transaction.delete(key.as_str()),
        false => transaction.put(key.as_str(), codec::encode_within_limit(resource, &object)?),
    };
    let mut transaction = charge.add_to(transaction);
    if object["metadata"]["deletionTimestamp"].is_string() {
        // Statuses and finalizers of a terminating object must be writable on a full disk.
        transaction = transaction.with_reserve();
    }
    match api.store().commit(transaction).await.map_err(|error| commit_failed(&error))? {
        Outcome::Committed { revision } => {
            let mut object = object;
            if !ends {
                object["metadata"]["resourceVersion"] = Value::from(revision.to_string());
            }
            Ok(Some(Written { object, warnings, created: false }))
        }
        Outcome::Conflict { .. } => Ok(None),
    }
}

/// Checks that the uid in an update, if there is one, is that of the stored object.
fn check_uid(path: &ResourcePath, old: &Value, new: &Value) -> Result<(), ApiError> {
    let (stored, given) = (&old["metadata"]["uid"], &new["metadata"]["uid"]);
    let is_patch = given == stored || given.as_str().unwrap_or_default().is_empty();
    if is_patch {
        return Ok(());
    }
    // For patches, validation reports a changed uid; see `patch`.
    let why = uid_mismatch(path, given.as_str().unwrap_or_default(), stored);
    Err(ApiError::conflict(path.resource, &path.name, &why))
}

fn uid_mismatch(path: &ResourcePath, given: &str, stored_uid: &Value) -> String {
    let key = codec::key(path.resource, &path.namespace, &path.name);
    let stored_uid = stored_uid.as_str().unwrap_or_default();
    format!(
        "StorageError: invalid object, Code: 4, Key: {key}, ResourceVersion: 0, \
         AdditionalErrorMsg: Precondition failed: UID in precondition: {given}, UID in object \
         meta: {stored_uid}"
    )
}

pub(crate) async fn patch(context: RequestContext<'_>) -> Result<Reply, ApiError> {
    let RequestContext { request, path, .. } = context;
    let media = request.header("content-type").split(';').next().unwrap_or_default().trim();
    if media == "application/apply-patch+yaml" {
        let options = WriteOptions::of_patch(request, PatchOptions::Apply)?;
        if subresource_name(path) == "scale" {
            return crate::subresources::apply_scale(context, &options).await;
        }
        return apply_patch(context, &options).await;
    }
    let Some(kind) = PatchKind::of_content_type(media) else {
        return Err(ApiError::unsupported_media_type("415: Unsupported Media Type"));
    };
    let options = WriteOptions::of_patch(request, PatchOptions::Other)?;
    let validation = FieldValidation::of(request)?;
    if path.subresource.is_some_and(|subresource| subresource.name == "scale") {
        return crate::subresources::patch_scale(context, kind, &options).await;
    }
    let mut warnings = Vec::new();
    let version = path.resource.api_version();
    let by = FieldManager {
        name: &options.manager,
        subresource: subresource_name(path),
        api_version: &version,
    };
    let mut change = |old: &Value| {
        let (patched, strict) = patched(path.resource, kind, old, &request.body, validation)?;
        warnings = strict;
        check_patched_identity(path, old, &patched)?;
        Ok(patched)
    };
    let origin = Origin::Update(by);
    let written = guaranteed_update(context, &options, origin, &mut change).await;
    let written = written.map_err(|error| error.after(&warnings))?;
    finish(context, written, warnings)
}

/// Returns the patched object in canonical form, and the warnings for the client.
pub(crate) fn patched(
    resource: &Resource,
    kind: PatchKind,
    old: &Value,
    body: &[u8],
    validation: FieldValidation,
) -> Result<(Value, Vec<String>), ApiError> {
    let id = type_id(resource)?;
    patched_type(id, kind, old, body, validation)
}

pub(crate) fn patched_type(
    id: TypeId,
    kind: PatchKind,
    old: &Value,
    body: &[u8],
    validation: FieldValidation,
) -> Result<(Value, Vec<String>), ApiError> {
    let schema = Schema::served();
    let outcome = match kind {
        PatchKind::Json => patch::json(old.clone(), body),
        PatchKind::Merge => patch::merge(old.clone(), body),
        PatchKind::Strategic | PatchKind::Apply => patch::strategic(schema, id, old.clone(), body),
    };
    let outcome = outcome.map_err(|error| patch_failed(&error))?;
    let decoded = schema.decode_value(id, outcome.value.clone());
    let invalid = |detail: &str| {
        let mut causes = Causes::default();
        let shown = patch::invalid_value(kind, schema, id, old, body, &outcome.value);
        let shown = objects::go::quoted(&shown);
        causes.add("FieldValueInvalid", "patch", format!("Invalid value: {shown}: {detail}"));
        ApiError::invalid_kind("", "", "", &causes)
    };
    let decoded = decoded.map_err(|error| invalid(&error.to_string()))?;
    // A strategic patch is typed; the others produce text that is decoded again.
    if matches!(kind, PatchKind::Json | PatchKind::Merge)
        && let Some(why) = decode::other_kind(old, &outcome.value)
    {
        return Err(invalid(&why));
    }
    let mut strict = outcome.strict.clone();
    strict.extend(decoded.strict);
    let strict = match validation {
        FieldValidation::Ignore => Vec::new(),
        FieldValidation::Warn => strict,
        FieldValidation::Strict if strict.is_empty() => strict,
        FieldValidation::Strict => {
            return Err(invalid(&format!("strict decoding error: {}", strict.join(", "))));
        }
    };
    let mut value = decoded.value;
    value["kind"] = old["kind"].clone();
    value["apiVersion"] = old["apiVersion"].clone();
    Ok((value, strict))
}

fn patch_failed(error: &patch::PatchError) -> ApiError {
    let code = StatusCode::from_u16(error.status()).unwrap_or(StatusCode::BAD_REQUEST);
    let error = ApiError::new(code, error.reason(), error.to_string());
    match code {
        StatusCode::UNPROCESSABLE_ENTITY => error.with_details(json!({})),
        _ => error,
    }
}

/// Checks that a patch does not change name, namespace or uid.
fn check_patched_identity(path: &ResourcePath, old: &Value, new: &Value) -> Result<(), ApiError> {
    check_request(path, new)?;
    let (stored, given) = (&old["metadata"]["uid"], &new["metadata"]["uid"]);
    if given != stored && !given.is_null() {
        let mut causes = Causes::default();
        let top = Cursor::top(new, "");
        let metadata = top.field("metadata");
        causes.invalid(&metadata.field("uid"), "field is immutable");
        return Err(ApiError::invalid(path.resource, &path.name, &causes));
    }
    Ok(())
}

/// Server-side apply.
async fn apply_patch(
    context: RequestContext<'_>,
    options: &WriteOptions,
) -> Result<Reply, ApiError> {
    let RequestContext { api, request, path, .. } = context;
    let resource = path.resource;
    let schema = Schema::served();
    let id = type_id(resource)?;
    let force = request.query.flag("force");
    let received = crate::apply_body::read(request, path)?;
    let applied = received.object;
    let version = path.resource.api_version();
    let by = FieldManager {
        name: &options.manager,
        subresource: subresource_name(path),
        api_version: &version,
    };
    let key = codec::key(resource, &path.namespace, &path.name);
    let now = api.now();
    let merge = |live: Option<&Value>| {
        let merged = apply::apply(schema, id, live, &applied, &by, force, now)
            .map_err(|error| apply_failed(&error))?;
        let decoded = schema
            .decode_value(id, merged)
            .map_err(|error| ApiError::bad_request(error.to_string()))?;
        let mut merged = decoded.value;
        merged["kind"] = Value::from(resource.kind);
        merged["apiVersion"] = Value::from(resource.api_version());
        check_request(path, &merged)?;
        Ok(merged)
    };
    let exists = api.store().get(&key).map_err(|error| read::read_failed(&error))?.is_some();
    if !exists {
        if path.subresource.is_some() {
            return Err(ApiError::not_found(path.resource, &path.name));
        }
        let mut merged = merge(None)?;
        let metadata = metadata_of(&mut merged)?;
        if let Some(uid) = metadata.get("uid").and_then(Value::as_str).filter(|uid| !uid.is_empty())
        {
            let why = format!(
                "uid mismatch: the provided object specified uid {uid}, and no existing object was \
                 found"
            );
            return Err(ApiError::conflict(path.resource, &path.name, &why));
        }
        metadata.remove("resourceVersion");
        let mut warnings = received.warnings;
        let object =
            create_object(api, path, merged, options, Origin::Applied, &mut warnings).await?;
        let created = Written { object, warnings: Vec::new(), created: true };
        return finish(context, created, warnings);
    }
    let mut change = |old: &Value| merge(Some(old));
    let written = guaranteed_update(context, options, Origin::Applied, &mut change).await;
    let written = written.map_err(|error| error.after(&received.warnings))?;
    finish(context, written, received.warnings)
}

pub(crate) fn apply_failed(error: &ApplyError) -> ApiError {
    match error {
        ApplyError::Conflicts(conflicts) => {
            let error = ApiError::new(StatusCode::CONFLICT, "Conflict", error.to_string());
            let causes: Vec<Value> = conflicts
                .iter()
                .map(|conflict| {
                    json!({
                        "reason": "FieldManagerConflict",
                        "message": conflict.message(),
                        "field": conflict.field,
                    })
                })
                .collect();
            error.caused_by(Value::from(causes))
        }
        other => ApiError::bad_request(other.to_string()),
    }
}
