//! The audit log: who asked for what, a JSON object a line, in upstream's form (level Metadata).
//!
//! Lines are written by a thread of their own, in the order of the answers; requests do not wait
//! for the disk. Bodies are never written: they may hold secrets.

use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Write as _};
use std::path::Path;
use std::sync::mpsc;
use std::thread;

use objects::timestamp::Timestamp;
use serde_json::{Value, json};

use crate::request::{Call, Caller};

#[derive(Debug)]
pub(crate) struct AuditLog {
    lines: mpsc::Sender<String>,
}

impl AuditLog {
    /// Opens the file for appending.
    pub(crate) fn open(path: &Path) -> io::Result<AuditLog> {
        let file = OpenOptions::new().create(true).append(true).open(path)?;
        let (lines, queue) = mpsc::channel();
        thread::Builder::new().name("audit-log".to_owned()).spawn(move || write(file, &queue))?;
        Ok(AuditLog { lines })
    }

    pub(crate) fn note(
        &self,
        call: &Call,
        verb: &str,
        code: u16,
        received: Timestamp,
        now: Timestamp,
    ) {
        let user = match &call.caller {
            Caller::Known(user) => json!({"username": user.name, "groups": user.groups}),
            Caller::Nobody | Caller::Pretender => json!({"username": "", "groups": []}),
        };
        let line: Value = json!({
            "kind": "Event",
            "apiVersion": "audit.k8s.io/v1",
            "level": "Metadata",
            "auditID": crate::random::uid(),
            "stage": "ResponseComplete",
            "requestURI": call.path,
            "verb": verb,
            "user": user,
            "userAgent": call.header("user-agent"),
            "responseStatus": {"metadata": {}, "code": code},
            "requestReceivedTimestamp": received.to_micros_text(),
            "stageTimestamp": now.to_micros_text(),
        });
        // The thread ends only when the disk fails; the server goes on without a log then.
        let _ = self.lines.send(line.to_string());
    }
}

fn write(file: File, queue: &mpsc::Receiver<String>) {
    let mut file = BufWriter::new(file);
    while let Ok(line) = queue.recv() {
        let mut written = writeln!(file, "{line}");
        // Whatever came meanwhile goes out with it.
        while let (Ok(()), Ok(line)) = (&written, queue.try_recv()) {
            written = writeln!(file, "{line}");
        }
        if written.and_then(|()| file.flush()).is_err() {
            return;
        }
    }
}
