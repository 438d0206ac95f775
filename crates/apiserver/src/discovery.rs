//! Non-resource paths: discovery, OpenAPI, version, health and metrics.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::io::Write as _;
use std::sync::LazyLock;

use flate2::Compression;
use flate2::write::GzEncoder;

use http::header::{HeaderValue, LOCATION};
use http::{Method, StatusCode};
use https::unix_time;
use metrics::exposition;
use objects::catalog::RESOURCES;
use objects::discovery;
use objects::openapi::{
    Document, OpenApi, V2_PROTOBUF, V2_PROTOBUF_ANSWER, V3_PROTOBUF, V3_PROTOBUF_ANSWER,
};
use objects::schema::Schema;
use objects::timestamp::Timestamp;
use serde_json::{Value, json};

use crate::accept::{self, AcceptedFormat, Route};
use crate::api::Api;
use crate::backup;
use crate::error::ApiError;
use crate::reply::{JSON, PROTOBUF, Reply, TEXT, YAML};
use crate::request::Request;
use https::Body;

/// The served version of the Kubernetes API.
const MAJOR: &str = "1";
const MINOR: &str = "37";

/// Rendered on the first request: few clients need it, and not at the start.
static OPENAPI: LazyLock<OpenApi> =
    LazyLock::new(|| OpenApi::render(Schema::served(), RESOURCES, &git_version()));

/// `v1.37.0+berth-0.1.0`.
#[must_use]
pub fn git_version() -> String {
    format!("v{MAJOR}.{MINOR}.0+berth-{}", env!("CARGO_PKG_VERSION"))
}

pub(crate) fn get(api: &Api, request: &Request, path: &str) -> Result<Reply, ApiError> {
    let segments: Vec<&str> = path.trim_start_matches('/').split('/').collect();
    if let [check @ ("healthz" | "livez" | "readyz"), rest @ ..] = segments.as_slice() {
        return health(api, request, check, rest);
    }
    let families = match path {
        "/metrics" => Some(api.metric_families()),
        "/metrics/slis" => Some(api.shared.metrics.check_families().into()),
        _ => None,
    };
    if let Some(families) = families {
        let (media, body) = exposition::negotiate(request.header("accept"), &families);
        return Ok(Reply::bytes(StatusCode::OK, media, body));
    }
    if path == backup::PATH {
        return backup::get(api, request);
    }
    if request.path.starts_with("//") {
        return Ok(not_found());
    }
    let known = matches!(segments.as_slice(), ["api" | "apis" | "version" | "openapi", ..] | [""]);
    if !known {
        return Ok(not_found());
    }
    let accept = request.header("accept");
    // Upstream's router restricts the methods of these paths; the handlers of the others accept
    // any.
    let routed = |route: Route| match request.method {
        Method::GET => accept::check_route(accept, route),
        _ => Err(ApiError::method_not_allowed()),
    };
    match segments.as_slice() {
        [""] => Ok(Reply::json(StatusCode::OK, &json!({"paths": paths()}))),
        ["version"] | ["version", ""] => {
            routed(Route::Json)?;
            Ok(Reply::json(StatusCode::OK, &version()))
        }
        ["api"] | ["api", ""] => {
            routed(Route::Objects)?;
            aggregated(request, discovery::aggregated_core).unwrap_or_else(|| {
                let address = &api.shared.options.advertised;
                ok(request, &discovery::core_versions(RESOURCES, address))
            })
        }
        ["apis"] | ["apis", ""] => aggregated(request, discovery::aggregated)
            .unwrap_or_else(|| ok(request, &discovery::groups(RESOURCES))),
        ["api", version] => match discovery::resources(RESOURCES, "", version) {
            Some(list) => routed(Route::Objects).and_then(|()| ok(request, &list)),
            None => Err(ApiError::no_such_resource()),
        },
        ["apis", group] => match discovery::group(RESOURCES, group) {
            Some(group) => ok(request, &group),
            None => Ok(not_found()),
        },
        // kubectl looks here before it reports a kind as unknown.
        ["apis", "apiextensions.k8s.io", "v1", "customresourcedefinitions"]
            if request.method == Method::GET =>
        {
            let list = json!({
                "kind": "CustomResourceDefinitionList",
                "apiVersion": "apiextensions.k8s.io/v1",
                "metadata": {"resourceVersion": api.store().revision().get().to_string()},
                "items": [],
            });
            Ok(Reply::json(StatusCode::OK, &list))
        }
        ["apis", group, version, ..] => {
            if let Some(list) = discovery::resources(RESOURCES, group, version) {
                return routed(Route::Objects).and_then(|()| ok(request, &list));
            }
            match discovery::group(RESOURCES, group) {
                Some(_) => Err(ApiError::no_such_resource()),
                None => Ok(not_found()),
            }
        }
        ["openapi", "v2"] => Ok(openapi_v2(request)),
        ["openapi", "v3"] => {
            let mut reply = Reply::bytes(StatusCode::OK, TEXT, OPENAPI.v3_index.body.clone());
            set(&mut reply, "last-modified", &STARTED);
            Ok(reply)
        }
        ["openapi", "v3", rest @ ..] => Ok(openapi_v3(request, &rest.join("/"))),
        ["api", ..] => Err(ApiError::no_such_resource()),
        _ => Ok(not_found()),
    }
}

/// Returns a discovery document in the accepted format.
fn ok(request: &Request, value: &Value) -> Result<Reply, ApiError> {
    let format = AcceptedFormat::parse_plain(request.header("accept"))?;
    if format.is_protobuf() && value["apiVersion"].is_null() {
        // Upstream's JSON of the core group has no version; a protobuf envelope needs one.
        let mut named = value.clone();
        named["apiVersion"] = Value::from("v1");
        return Ok(crate::read::encoded(&named, StatusCode::OK, format));
    }
    Ok(crate::read::encoded(value, StatusCode::OK, format))
}

fn not_found() -> Reply {
    Reply::text(StatusCode::NOT_FOUND, "404 page not found\n")
}

/// Returns aggregated discovery, if the client asks for it.
fn aggregated(
    request: &Request,
    render: fn(&[objects::catalog::Resource]) -> Value,
) -> Option<Result<Reply, ApiError>> {
    let notation = accept::aggregated_discovery(request.header("accept"))?;
    let document = render(RESOURCES);
    // One ETag for all media types, as upstream.
    let etag = format!("\"{:016X}\"", fnv(document.to_string().as_bytes()));
    let format = AcceptedFormat { content_type: notation, ..AcceptedFormat::PLAIN };
    let mut reply = if request.header("if-none-match") == etag {
        Reply::bytes(StatusCode::NOT_MODIFIED, "", "")
    } else {
        let mut reply = crate::read::encoded(&document, StatusCode::OK, format);
        reply.content_type = match notation {
            YAML => discovery::AGGREGATED_YAML,
            PROTOBUF => discovery::AGGREGATED_PROTOBUF,
            _ => discovery::AGGREGATED,
        };
        reply
    };
    set(&mut reply, "etag", &etag);
    set(&mut reply, "vary", "Accept");
    set(&mut reply, "cache-control", "public");
    Some(Ok(reply))
}

fn fnv(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

fn set(reply: &mut Reply, name: &'static str, value: &str) {
    if let Ok(value) = HeaderValue::from_str(value) {
        reply.headers.insert(name, value);
    }
}

/// Returns the 406 for documents; upstream's has no body.
fn not_acceptable() -> Reply {
    Reply::bytes(StatusCode::NOT_ACCEPTABLE, "", "")
}

fn openapi_v2(request: &Request) -> Reply {
    let served = [JSON, V2_PROTOBUF, V2_PROTOBUF_ANSWER];
    let Some(media) = accept::preferred(request.header("accept"), &served) else {
        return not_acceptable();
    };
    let (document, media) = match media {
        JSON => (&OPENAPI.v2, JSON),
        _ => (&OPENAPI.v2_protobuf, V2_PROTOBUF_ANSWER),
    };
    let mut reply = cached(request, document, media);
    set(&mut reply, "vary", "Accept-Encoding");
    reply
}

fn openapi_v3(request: &Request, key: &str) -> Reply {
    let Some(document) = OPENAPI.v3.get(key) else {
        return Reply::bytes(StatusCode::NOT_FOUND, "", "");
    };
    let served = [JSON, V3_PROTOBUF_ANSWER, V3_PROTOBUF];
    let (document, media) = match accept::preferred(request.header("accept"), &served) {
        Some(JSON) => (Cow::Borrowed(document), JSON),
        Some(_) => match OPENAPI.v3_protobuf(key) {
            Some(document) => (Cow::Owned(document), V3_PROTOBUF_ANSWER),
            None => return failed("the document cannot be encoded"),
        },
        None => {
            let mut reply = not_acceptable();
            set(&mut reply, "vary", "Accept");
            return reply;
        }
    };
    let mut reply = match request.query.text("hash") {
        "" => cached(request, &document, media),
        hash if hash == document.hash => {
            let mut reply = cached(request, &document, media);
            set(&mut reply, "cache-control", "public, immutable");
            set(&mut reply, "expires", &never());
            reply
        }
        _ => {
            let mut reply = Reply::bytes(StatusCode::MOVED_PERMANENTLY, media, "");
            let location = format!("/openapi/v3/{key}?hash={}", document.hash);
            if let Ok(location) = HeaderValue::from_str(&location) {
                reply.headers.insert(LOCATION, location);
            }
            set(&mut reply, "etag", &format!("\"{}\"", document.hash));
            reply
        }
    };
    set(&mut reply, "vary", "Accept");
    reply
}

/// Returns a date one year from now, the longest time that caches use.
fn never() -> String {
    Timestamp::since_epoch(unix_time()).plus_seconds(365 * 24 * 3600).to_http_text()
}

/// Returns a document, or 304 if the client's copy is current.
fn cached(request: &Request, document: &Document, media: &'static str) -> Reply {
    let etag = format!("\"{}\"", document.hash);
    let mut reply = match request.header("if-none-match") == etag {
        true => Reply::bytes(StatusCode::NOT_MODIFIED, "", ""),
        false => Reply::bytes(StatusCode::OK, media, document.body.clone()),
    };
    set(&mut reply, "etag", &etag);
    if reply.status == StatusCode::OK {
        set(&mut reply, "last-modified", &STARTED);
        compress(request, &mut reply);
    }
    reply
}

/// The modification time of the documents: they change with the program.
static STARTED: LazyLock<String> =
    LazyLock::new(|| Timestamp::since_epoch(unix_time()).to_http_text());

/// Compresses a reply if the client accepts it. OpenAPI documents shrink from a megabyte to a
/// tenth.
fn compress(request: &Request, reply: &mut Reply) {
    let accepts = request
        .header("accept-encoding")
        .split(',')
        .any(|coding| coding.trim().starts_with("gzip"));
    let Body::Whole(bytes) = &reply.body else { return };
    if !accepts {
        return;
    }
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    let compressed = encoder.write_all(bytes).and_then(|()| encoder.finish());
    // Writing to memory does not fail; the plain text would do as well.
    if let Ok(compressed) = compressed {
        reply.body = Body::Whole(compressed.into());
        set(reply, "content-encoding", "gzip");
    }
}

/// Returns the paths listed at `/`.
fn paths() -> Vec<String> {
    let mut paths: Vec<String> = [
        "/api",
        "/api/v1",
        "/apis",
        "/healthz",
        "/livez",
        "/metrics",
        "/metrics/slis",
        "/openapi/v2",
        "/openapi/v3",
        "/readyz",
        "/version",
    ]
    .map(str::to_owned)
    .into();
    for resource in RESOURCES.iter().filter(|resource| !resource.group.is_empty()) {
        paths.push(format!("/apis/{}", resource.group));
        paths.push(format!("/apis/{}/{}", resource.group, resource.version));
    }
    paths.sort();
    paths.dedup();
    paths
}

fn version() -> Value {
    json!({
        "major": MAJOR,
        "minor": MINOR,
        "emulationMajor": MAJOR,
        "emulationMinor": MINOR,
        "minCompatibilityMajor": MAJOR,
        "minCompatibilityMinor": MINOR,
        "gitVersion": git_version(),
        "gitCommit": "",
        "gitTreeState": "",
        "buildDate": "",
        "goVersion": "none",
        "compiler": "rustc",
        "platform": format!("{}/{}", std::env::consts::OS, go_arch()),
    })
}

/// Returns the architecture's Go name.
fn go_arch() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

/// Serves `/healthz`, `/livez` and `/readyz`: `ok`, or one line per check.
fn health(api: &Api, request: &Request, kind: &str, rest: &[&str]) -> Result<Reply, ApiError> {
    let store = api.store().get("/registry/health").is_ok();
    // The store is also checked under the name etcd, which some clients ask for.
    let mut checks: Vec<(&'static str, bool)> =
        vec![("ping", true), ("log", true), ("etcd", store), ("store", store)];
    if kind == "readyz" {
        // A restart would not help, so only readiness depends on it.
        checks.push(("storage-space", api.store().health().full.is_none()));
    }
    if let [name, ..] = rest {
        return Ok(match checks.iter().find(|(check, _)| check == name) {
            Some((_, true)) => Reply::text(StatusCode::OK, "ok"),
            Some((name, _)) => failed(&format!("{name} failed")),
            None => not_found(),
        });
    }
    let excluded: Vec<&str> = request.query.all("exclude").collect();
    let mut text = String::new();
    let mut healthy = true;
    for (name, good) in &checks {
        if !excluded.contains(name) {
            api.shared.metrics.observe_check(kind, name, *good);
        }
        let line = match (excluded.contains(name), good) {
            (true, _) => format!("[+]{name} excluded: ok"),
            (false, true) => format!("[+]{name} ok"),
            (false, false) => {
                healthy = false;
                format!("[-]{name} failed: reason withheld")
            }
        };
        let _ = writeln!(text, "{line}");
    }
    if !healthy {
        return Ok(failed(&format!("{text}{kind} check failed\n")));
    }
    if request.query.get("verbose").is_some() {
        let _ = writeln!(text, "{kind} check passed");
        return Ok(Reply::text(StatusCode::OK, text));
    }
    Ok(Reply::text(StatusCode::OK, "ok"))
}

fn failed(text: &str) -> Reply {
    Reply::text(StatusCode::INTERNAL_SERVER_ERROR, text)
}
