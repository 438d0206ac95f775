//! The audit log: one line of JSON per request, an `Event` of upstream's `audit.k8s.io/v1` at level
//! Metadata. Main type: [`AuditLog`].
//!
//! Requests never wait for the disk. A thread writes the events in the order of the responses; when
//! it cannot keep up, events are dropped and counted. A failed write is retried on a newly opened
//! file until it succeeds. Bodies are never written, because they may contain secrets.

use std::fs::{File, OpenOptions};
use std::io::{self, Seek as _, SeekFrom, Write as _};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::Duration;

use https::{ErrorLog, error_chain};
use metrics::{Family, Kind, Sample};
use objects::timestamp::Timestamp;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Value, json};
use tracing::{info, warn};

use crate::error::ApiError;
use crate::identity::User;
use crate::request::{Caller, Request};
use crate::route::Target;

/// The maximum number of queued events: ten megabytes at a kilobyte each.
const WAITING: usize = 10_000;
/// The maximum number of bytes per write.
const BATCH_BYTES: usize = 1 << 20;
/// The wait before a failed write is retried.
const RETRY: Duration = Duration::from_secs(1);

/// Characters that need no escaping in a query.
const PLAIN: &AsciiSet =
    &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~').remove(b'/').remove(b':');

#[derive(Debug)]
pub(crate) struct AuditLog {
    lines: SyncSender<String>,
    counts: Arc<Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    events: AtomicU64,
    /// Events that were dropped because the queue was full.
    dropped: AtomicU64,
    failed_writes: AtomicU64,
}

/// The part of an event that describes a request.
#[derive(Debug)]
pub(crate) struct Record<'a> {
    pub(crate) request: &'a Request,
    /// The sender of the request, if it impersonates another user.
    pub(crate) impersonator: Option<&'a User>,
    pub(crate) target: Option<&'a Target>,
    pub(crate) verb: &'a str,
    pub(crate) code: u16,
    pub(crate) error: Option<&'a ApiError>,
    pub(crate) received: Timestamp,
    pub(crate) now: Timestamp,
}

impl AuditLog {
    /// Opens the file for appending.
    pub(crate) fn open(path: &Path) -> io::Result<AuditLog> {
        let file = append(path)?;
        let (lines, queue) = sync_channel(WAITING);
        let counts = Arc::new(Counts::default());
        let writer = Writer {
            path: path.to_owned(),
            file,
            batch: Vec::new(),
            counts: Arc::clone(&counts),
            reported: 0,
        };
        thread::Builder::new().name("audit-log".to_owned()).spawn(move || writer.run(&queue))?;
        Ok(AuditLog { lines, counts })
    }

    pub(crate) fn note(&self, record: &Record<'_>) {
        self.counts.events.fetch_add(1, Ordering::Relaxed);
        if self.lines.try_send(record.event().to_string()).is_err() {
            self.counts.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Returns the metrics, with upstream's names where they exist.
    pub(crate) fn families(&self) -> [Family; 3] {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed) as f64;
        let dropped = Sample::new(&[("plugin", "log")], read(&self.counts.dropped));
        [
            Family::single(
                Kind::Counter,
                "apiserver_audit_event_total",
                "Audit events generated.",
                read(&self.counts.events),
            ),
            Family::new(
                Kind::Counter,
                "apiserver_audit_error_total",
                "Audit events that were dropped.",
                [dropped],
            ),
            Family::single(
                Kind::Counter,
                "berth_audit_write_failures_total",
                "Writes to the audit log that failed and were tried again.",
                read(&self.counts.failed_writes),
            ),
        ]
    }
}

fn append(path: &Path) -> io::Result<File> {
    OpenOptions::new().create(true).append(true).open(path)
}

impl Record<'_> {
    fn event(&self) -> Value {
        let request = self.request;
        let acting = match &request.caller {
            Caller::Known(user) => user.to_user_info(),
            Caller::Anonymous | Caller::InvalidCredentials => json!({}),
        };
        let mut status = json!({"metadata": {}, "code": self.code});
        if let Some(error) = self.error {
            status["status"] = json!("Failure");
            status["message"] = json!(error.message);
            status["reason"] = json!(error.reason);
        }
        let decision = match self.code {
            401 => None,
            403 => Some("forbid"),
            _ => Some("allow"),
        };
        let mut event = json!({
            "kind": "Event",
            "apiVersion": "audit.k8s.io/v1",
            "level": "Metadata",
            "auditID": crate::random::uid(),
            "stage": "ResponseComplete",
            "requestURI": uri(request),
            "verb": self.verb,
            "user": self.impersonator.map_or_else(|| acting.clone(), User::to_user_info),
            "sourceIPs": sources(request),
            "userAgent": request.header("user-agent"),
            "responseStatus": status,
            "requestReceivedTimestamp": self.received.to_micros_text(),
            "stageTimestamp": self.now.to_micros_text(),
        });
        if self.impersonator.is_some() {
            event["impersonatedUser"] = acting;
        }
        if let Some(reference) = self.target.and_then(reference) {
            event["objectRef"] = reference;
        }
        if let Some(decision) = decision {
            event["annotations"] = json!({"authorization.k8s.io/decision": decision});
        }
        event
    }
}

/// Returns the path and the query in the syntax of a request.
fn uri(request: &Request) -> String {
    let encoded = |text: &str| utf8_percent_encode(text, PLAIN).to_string();
    let pairs = request.query.pairs();
    let pairs: Vec<String> =
        pairs.map(|(name, value)| format!("{}={}", encoded(name), encoded(value))).collect();
    let mark = if pairs.is_empty() { "" } else { "?" };
    format!("{}{mark}{}", request.path, pairs.join("&"))
}

/// Returns the source addresses of a request: those named by proxies, then the one of the
/// connection.
fn sources(request: &Request) -> Vec<String> {
    let proxies = request.headers.get_all("x-forwarded-for").iter();
    let proxies = proxies.filter_map(|value| value.to_str().ok()).flat_map(|text| text.split(','));
    let mut all: Vec<IpAddr> = proxies.filter_map(|text| text.trim().parse().ok()).collect();
    if all.is_empty() {
        all.extend(request.header("x-real-ip").trim().parse::<IpAddr>().ok());
    }
    if let Some(source) = request.source.filter(|source| all.last() != Some(source)) {
        all.push(source);
    }
    all.iter().map(ToString::to_string).collect()
}

fn reference(target: &Target) -> Option<Value> {
    let (group, version, resource, subresource, namespace, name) = match target {
        Target::NonResource(_) => return None,
        Target::Resource(path) => (
            path.resource.group,
            path.resource.version,
            path.resource.plural,
            crate::write::subresource_name(path),
            &path.namespace,
            &path.name,
        ),
        Target::UnknownResource { group, version, resource, namespace, name } => {
            let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
            (group.as_str(), version.as_str(), resource, subresource, namespace, name)
        }
    };
    let mut reference = json!({});
    for (field, value) in [
        ("resource", resource),
        ("namespace", namespace),
        ("name", name),
        ("apiGroup", group),
        ("apiVersion", version),
        ("subresource", subresource),
    ] {
        if !value.is_empty() {
            reference[field] = Value::from(value);
        }
    }
    Some(reference)
}

/// The writer thread.
struct Writer {
    path: PathBuf,
    file: File,
    /// Complete lines that have not been written yet.
    batch: Vec<u8>,
    counts: Arc<Counts>,
    /// The number of dropped events that have been logged.
    reported: u64,
}

impl Writer {
    /// Writes events until the server ends.
    fn run(mut self, queue: &Receiver<String>) {
        let mut errors = ErrorLog::default();
        while let Ok(line) = queue.recv() {
            self.add(&line);
            while self.batch.len() < BATCH_BYTES
                && let Ok(line) = queue.try_recv()
            {
                self.add(&line);
            }
            while let Err(error) = self.write() {
                self.counts.failed_writes.fetch_add(1, Ordering::Relaxed);
                let error = error_chain(&error);
                if errors.failed(&error) {
                    warn!(
                        file = %self.path.display(),
                        error,
                        retry_in_ms = RETRY.as_millis(),
                        "cannot write the audit log; free space or check the path; retrying"
                    );
                }
                thread::sleep(RETRY);
                // The path may refer to another file now.
                if let Ok(file) = append(&self.path) {
                    self.file = file;
                }
            }
            if errors.recovered().is_some() {
                info!(file = %self.path.display(), "the audit log is written again");
            }
            self.report_dropped();
        }
    }

    fn add(&mut self, line: &str) {
        self.batch.extend_from_slice(line.as_bytes());
        self.batch.push(b'\n');
    }

    /// Writes the batch. After a failure the batch holds the unwritten lines, and the file ends
    /// with a complete line.
    fn write(&mut self) -> io::Result<()> {
        let mut written = 0;
        let result = loop {
            match self.file.write(&self.batch[written..]) {
                Ok(0) if written < self.batch.len() => break Err(io::ErrorKind::WriteZero.into()),
                Ok(more) => written += more,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => break Err(error),
            }
            if written == self.batch.len() {
                break Ok(());
            }
        };
        let whole = self.batch[..written].iter().rposition(|byte| *byte == b'\n');
        let whole = whole.map_or(0, |at| at + 1);
        let torn = u64::try_from(written - whole).unwrap_or(0);
        if torn > 0
            && let Ok(end) = self.file.seek(SeekFrom::End(0))
        {
            // If the file cannot be truncated, a reader finds one line that is not valid JSON.
            let _ = self.file.set_len(end.saturating_sub(torn));
        }
        self.batch.drain(..whole);
        result
    }

    fn report_dropped(&mut self) {
        let dropped = self.counts.dropped.load(Ordering::Relaxed);
        if dropped > self.reported {
            warn!(
                dropped = dropped - self.reported,
                "dropped audit events because the audit log was too slow or failed"
            );
            self.reported = dropped;
        }
    }
}

#[cfg(test)]
mod tests {
    use http::{HeaderMap, HeaderValue, Method};

    use super::*;
    use crate::request::Query;

    #[test]
    fn audit_event_contains_users_addresses_and_object() {
        let mut headers = HeaderMap::new();
        headers.insert("user-agent", HeaderValue::from_static("kubectl/1"));
        headers.insert("x-forwarded-for", HeaderValue::from_static("10.0.0.1, nonsense,10.0.0.2"));
        let request = Request {
            method: Method::GET,
            path: "/api/v1/namespaces/a/pods".to_owned(),
            query: Query::parse("labelSelector=a%3Db&watch=1"),
            headers,
            body: bytes::Bytes::new(),
            caller: Caller::Known(User::member("bob", "dev")),
            source: Some([127, 0, 0, 1].into()),
        };
        let admin = User::member("admin", "system:masters");
        let error = ApiError::bad_request("no");
        let target = Target::parse(&request.path);
        let record = Record {
            request: &request,
            impersonator: Some(&admin),
            target: target.as_ref(),
            verb: "watch",
            code: 403,
            error: Some(&error),
            received: Timestamp::new(1, 0),
            now: Timestamp::new(2, 0),
        };
        let mut event = record.event();
        event["auditID"] = Value::Null;
        let expected = json!({
            "kind": "Event", "apiVersion": "audit.k8s.io/v1", "level": "Metadata", "auditID": null,
            "stage": "ResponseComplete",
            "requestURI": "/api/v1/namespaces/a/pods?labelSelector=a%3Db&watch=1",
            "verb": "watch",
            "user": {"username": "admin", "groups": ["system:masters", "system:authenticated"]},
            "impersonatedUser": {"username": "bob", "groups": ["dev", "system:authenticated"]},
            "sourceIPs": ["10.0.0.1", "10.0.0.2", "127.0.0.1"],
            "userAgent": "kubectl/1",
            "objectRef": {"resource": "pods", "namespace": "a", "apiVersion": "v1"},
            "responseStatus": {
                "metadata": {}, "status": "Failure", "message": "no", "reason": "BadRequest",
                "code": 403,
            },
            "requestReceivedTimestamp": "1970-01-01T00:00:01.000000Z",
            "stageTimestamp": "1970-01-01T00:00:02.000000Z",
            "annotations": {"authorization.k8s.io/decision": "forbid"},
        });
        assert_eq!(event, expected);
    }
}
