//! Parameters in the path and the query of requests: [`Parameter`].

use std::borrow::Cow;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Parameter {
    pub(super) name: &'static str,
    /// `query` or `path`. Path parameters are required.
    pub(super) place: &'static str,
    /// `string`, `integer` or `boolean`.
    pub(super) kind: &'static str,
    pub(super) doc: Cow<'static, str>,
}

const fn query(name: &'static str, kind: &'static str, doc: &'static str) -> Parameter {
    Parameter { name, place: "query", kind, doc: Cow::Borrowed(doc) }
}

pub(super) const PRETTY: Parameter =
    query("pretty", "string", "If true, the answer is indented for people to read.");

pub(super) const NAMESPACE: Parameter = Parameter {
    name: "namespace",
    place: "path",
    kind: "string",
    doc: Cow::Borrowed("The namespace."),
};

pub(super) fn name(kind: &str) -> Parameter {
    Parameter {
        name: "name",
        place: "path",
        kind: "string",
        doc: format!("Name of the {kind}.").into(),
    }
}

const CONTINUE: Parameter = query(
    "continue",
    "string",
    "Token from the metadata of a list that was cut by a limit; asks for the next part. \
     If it has become too old the answer is 410 with a new one.",
);
const DRY_RUN: Parameter = query(
    "dryRun",
    "string",
    "All: go through every step without storing anything. Other values are refused.",
);
const FIELD_MANAGER: Parameter = query(
    "fieldManager",
    "string",
    "Name under which the fields of this request are remembered; at most 128 printable characters. \
     Required for apply patches, otherwise the beginning of the User-Agent if not given.",
);
const FIELD_SELECTOR: Parameter =
    query("fieldSelector", "string", "Only objects whose fields fit, as status.phase=Running.");
const FIELD_VALIDATION: Parameter = query(
    "fieldValidation",
    "string",
    "What becomes of unknown and repeated fields. Ignore: they are dropped. Warn: they are dropped \
     with a warning, the default. Strict: the request fails.",
);
const FORCE: Parameter =
    query("force", "boolean", "Take over fields that others manage. Only for apply patches.");
const GRACE: Parameter = query(
    "gracePeriodSeconds",
    "integer",
    "Seconds the object may take to end. Zero deletes at once; not given uses the kind's default.",
);
const IGNORE_READ_ERROR: Parameter = query(
    "ignoreStoreReadErrorWithClusterBreakingPotential",
    "boolean",
    "Delete even though the stored object cannot be read. Skips finalizers and may harm the cluster.",
);
const LABEL_SELECTOR: Parameter =
    query("labelSelector", "string", "Only objects whose labels fit, as app=web,tier!=db.");
const LIMIT: Parameter = query(
    "limit",
    "integer",
    "The most objects in one answer; if there are more its metadata has a continue token.",
);
const ORPHAN_DEPENDENTS: Parameter = query(
    "orphanDependents",
    "boolean",
    "Older form of propagationPolicy: true leaves dependents alone.",
);
const PROPAGATION: Parameter = query(
    "propagationPolicy",
    "string",
    "What becomes of dependents: Orphan leaves them, Background collects them afterwards, \
     Foreground before.",
);
const RESOURCE_VERSION: Parameter = query(
    "resourceVersion",
    "string",
    "Version of the store to read at or to watch from; resourceVersionMatch says how exactly.",
);
const RESOURCE_VERSION_MATCH: Parameter =
    query("resourceVersionMatch", "string", "How resourceVersion is meant: Exact or NotOlderThan.");
const SEND_INITIAL_EVENTS: Parameter = query(
    "sendInitialEvents",
    "boolean",
    "With watch: begin with an event for every object there is, and then a bookmark annotated \
     k8s.io/initial-events-end. Needs resourceVersionMatch NotOlderThan.",
);
const TIMEOUT: Parameter =
    query("timeoutSeconds", "integer", "Seconds after which the request is ended.");
const WATCH: Parameter =
    query("watch", "boolean", "Send changes as they happen instead of a list.");
const ALLOW_BOOKMARKS: Parameter = query(
    "allowWatchBookmarks",
    "boolean",
    "With watch: now and then send a BOOKMARK event that only has a version to go on from.",
);

pub(super) const LIST: &[Parameter] = &[
    ALLOW_BOOKMARKS,
    CONTINUE,
    FIELD_SELECTOR,
    LABEL_SELECTOR,
    LIMIT,
    RESOURCE_VERSION,
    RESOURCE_VERSION_MATCH,
    SEND_INITIAL_EVENTS,
    TIMEOUT,
    WATCH,
];
pub(super) const WRITE: &[Parameter] = &[DRY_RUN, FIELD_MANAGER, FIELD_VALIDATION];
pub(super) const PATCH: &[Parameter] = &[DRY_RUN, FIELD_MANAGER, FIELD_VALIDATION, FORCE];
pub(super) const DELETE: &[Parameter] =
    &[DRY_RUN, GRACE, IGNORE_READ_ERROR, ORPHAN_DEPENDENTS, PROPAGATION];
pub(super) const DELETE_COLLECTION: &[Parameter] = &[
    CONTINUE,
    DRY_RUN,
    FIELD_SELECTOR,
    GRACE,
    IGNORE_READ_ERROR,
    LABEL_SELECTOR,
    LIMIT,
    ORPHAN_DEPENDENTS,
    PROPAGATION,
    RESOURCE_VERSION,
    RESOURCE_VERSION_MATCH,
    SEND_INITIAL_EVENTS,
    TIMEOUT,
];

const CONTAINER: Parameter =
    query("container", "string", "Name of the container; needed if the pod has several.");
const STDIN: Parameter = query("stdin", "boolean", "Send standard input to the process.");
const STDOUT: Parameter = query("stdout", "boolean", "Receive standard output of the process.");
const STDERR: Parameter = query("stderr", "boolean", "Receive standard error of the process.");
const TTY: Parameter = query("tty", "boolean", "Give the process a terminal.");
const COMMAND: Parameter =
    query("command", "string", "Program and arguments, one parameter each; not run in a shell.");

/// Returns the additional parameters of a subresource.
pub(super) fn of_subresource(name: &str) -> &'static [Parameter] {
    match name {
        "attach" => ATTACH,
        "exec" => EXEC,
        "portforward" => PORT_FORWARD,
        "log" => LOG,
        _ => &[],
    }
}

const ATTACH: &[Parameter] = &[CONTAINER, STDERR, STDIN, STDOUT, TTY];
const EXEC: &[Parameter] = &[COMMAND, CONTAINER, STDERR, STDIN, STDOUT, TTY];
const PORT_FORWARD: &[Parameter] =
    &[query("ports", "integer", "Ports to forward. Needed when WebSockets are used.")];
const LOG: &[Parameter] = &[
    CONTAINER,
    query("follow", "boolean", "Send lines as they are written."),
    query(
        "insecureSkipTLSVerifyBackend",
        "boolean",
        "Do not check the certificate of the node that has the log.",
    ),
    query("limitBytes", "integer", "The most bytes to send."),
    query("previous", "boolean", "The log of the container's last run instead of this one."),
    query("sinceSeconds", "integer", "Only lines of the last so many seconds."),
    query("stream", "string", "Which stream: All, Stdout or Stderr; All if not given."),
    query("tailLines", "integer", "Only so many lines from the end."),
    query("timestamps", "boolean", "Put the time before every line."),
];
