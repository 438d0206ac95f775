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
    query("pretty", "string", "If true, the response is indented.");

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
    "Token of a list that was truncated by a limit, for the next chunk. \
     If it has expired the response is 410 with a new one.",
);
const DRY_RUN: Parameter = query(
    "dryRun",
    "string",
    "All processes the request without storing the result. Other values are rejected.",
);
const FIELD_MANAGER: Parameter = query(
    "fieldManager",
    "string",
    "Name of the manager of the fields of this request; at most 128 printable characters. \
     Required for apply patches, otherwise defaults to the beginning of the User-Agent.",
);
const FIELD_SELECTOR: Parameter = query(
    "fieldSelector",
    "string",
    "Selects objects by fields, for example status.phase=Running.",
);
const FIELD_VALIDATION: Parameter = query(
    "fieldValidation",
    "string",
    "Handling of unknown and duplicate fields. Ignore drops them. Warn (the default) drops them \
     with a warning. Strict rejects the request.",
);
const FORCE: Parameter = query(
    "force",
    "boolean",
    "Takes ownership of fields of other managers. Only for apply patches.",
);
const GRACE: Parameter = query(
    "gracePeriodSeconds",
    "integer",
    "Seconds that the object has to terminate gracefully. Zero deletes immediately. Defaults to the \
     value of the kind.",
);
const IGNORE_READ_ERROR: Parameter = query(
    "ignoreStoreReadErrorWithClusterBreakingPotential",
    "boolean",
    "Deletes an object that cannot be read from the store. Skips finalizers and may break the \
     cluster.",
);
const LABEL_SELECTOR: Parameter =
    query("labelSelector", "string", "Selects objects by labels, for example app=web,tier!=db.");
const LIMIT: Parameter = query(
    "limit",
    "integer",
    "Maximum number of objects in one response; if there are more its metadata has a continue token.",
);
const ORPHAN_DEPENDENTS: Parameter = query(
    "orphanDependents",
    "boolean",
    "Deprecated form of propagationPolicy: true orphans dependents.",
);
const PROPAGATION: Parameter = query(
    "propagationPolicy",
    "string",
    "Deletion of dependents: Orphan keeps them, Background deletes them afterwards, \
     Foreground before.",
);
const RESOURCE_VERSION: Parameter = query(
    "resourceVersion",
    "string",
    "Resource version to read at or to watch from; see resourceVersionMatch.",
);
const RESOURCE_VERSION_MATCH: Parameter =
    query("resourceVersionMatch", "string", "Meaning of resourceVersion: Exact or NotOlderThan.");
const SEND_INITIAL_EVENTS: Parameter = query(
    "sendInitialEvents",
    "boolean",
    "With watch: starts with an event for every existing object, and then a bookmark annotated \
     k8s.io/initial-events-end. Requires resourceVersionMatch NotOlderThan.",
);
const TIMEOUT: Parameter = query("timeoutSeconds", "integer", "Timeout of the request in seconds.");
const WATCH: Parameter =
    query("watch", "boolean", "Watches for changes instead of returning a list.");
const ALLOW_BOOKMARKS: Parameter = query(
    "allowWatchBookmarks",
    "boolean",
    "With watch: sends BOOKMARK events with a resource version to resume from.",
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
    query("container", "string", "Name of the container; required if the pod has several.");
const STDIN: Parameter = query("stdin", "boolean", "Streams standard input to the process.");
const STDOUT: Parameter = query("stdout", "boolean", "Streams standard output of the process.");
const STDERR: Parameter = query("stderr", "boolean", "Streams standard error of the process.");
const TTY: Parameter = query("tty", "boolean", "Allocates a TTY for the process.");
const COMMAND: Parameter =
    query("command", "string", "Command and arguments, one parameter each; not run in a shell.");

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
    &[query("ports", "integer", "Ports to forward. Required with WebSockets.")];
const LOG: &[Parameter] = &[
    CONTAINER,
    query("follow", "boolean", "Follows the log stream."),
    query(
        "insecureSkipTLSVerifyBackend",
        "boolean",
        "Skips verification of the node's certificate.",
    ),
    query("limitBytes", "integer", "Maximum number of bytes to return."),
    query("previous", "boolean", "Returns the log of the previous container instance."),
    query("sinceSeconds", "integer", "Returns only lines of the last seconds."),
    query("stream", "string", "Stream to return: All, Stdout or Stderr. Defaults to All."),
    query("tailLines", "integer", "Number of lines from the end of the log."),
    query("timestamps", "boolean", "Adds a timestamp to every line."),
];
