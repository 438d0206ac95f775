//! A kubeconfig for components without a user: [`Kubeconfig`].
//!
//! Reads the server address, the trusted authority and the credentials, in upstream's spelling.
//! Referenced files are read when a connection is opened, so that renewed keys take effect.
//! Interactive and external credentials (`exec`, `auth-provider`, `username`), proxies, and servers
//! without a trusted authority are rejected with a message.

use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use objects::yaml::read::{At, Findings, Object};
use objects::yaml::{self, Node, Problem};
use thiserror::Error;

/// An inline value, or a file that contains it.
#[derive(Clone, PartialEq, Eq)]
pub enum Source {
    Inline(String),
    File(PathBuf),
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // It may be a key.
            Source::Inline(_) => f.write_str("(given)"),
            Source::File(path) => path.fmt(f),
        }
    }
}

impl Source {
    pub fn text(&self) -> Result<String, UnreadableError> {
        match self {
            Source::Inline(text) => Ok(text.clone()),
            Source::File(path) => fs::read_to_string(path)
                .map_err(|source| UnreadableError { file: path.clone(), source }),
        }
    }
}

/// A file that cannot be read.
#[derive(Debug, Error)]
#[error("cannot read {}: {source}", file.display())]
pub struct UnreadableError {
    pub file: PathBuf,
    pub source: io::Error,
}

/// The reason why a kubeconfig cannot be used.
#[derive(Debug, Error)]
pub enum KubeconfigError {
    #[error(transparent)]
    Unreadable(#[from] UnreadableError),
    /// Each message names the file, the line, the field and the remedy.
    #[error("{}", .0.join("\n"))]
    Wrong(Vec<String>),
}

/// The address of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address {
    pub host: String,
    pub port: u16,
    /// The prefix of every path; empty, or with a leading and without a trailing slash.
    pub base: String,
}

impl Address {
    /// Reads `https://host[:port][/base]`.
    pub fn parse(url: &str) -> Result<Address, String> {
        let wanted = "a URL such as https://127.0.0.1:6443 is expected";
        let uri: http::Uri = url.parse().map_err(|error| format!("{url:?}: {error}; {wanted}"))?;
        if uri.scheme_str() != Some("https") {
            return Err(format!("{url:?} does not begin with https://; {wanted}"));
        }
        let host = uri.host().filter(|host| !host.is_empty());
        let Some(host) = host else { return Err(format!("{url:?} names no host; {wanted}")) };
        if uri.authority().is_some_and(|authority| authority.as_str().contains('@')) {
            return Err(format!("{url:?} names a user; credentials belong to the user's entry"));
        }
        if uri.query().is_some() {
            return Err(format!("{url:?} has a query; {wanted}"));
        }
        Ok(Address {
            host: host.trim_matches(['[', ']']).to_owned(),
            port: uri.port_u16().unwrap_or(443),
            base: uri.path().trim_end_matches('/').to_owned(),
        })
    }

    /// Returns host and port as used in a request.
    #[must_use]
    pub fn authority(&self) -> String {
        let Address { host, port, .. } = self;
        if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
    }
}

/// The address of a server and the credentials for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kubeconfig {
    pub address: Address,
    /// The name that the server's certificate must be valid for.
    pub server_name: String,
    /// The trusted authority, in PEM.
    pub authority: Source,
    /// Certificate and key, in PEM.
    pub identity: Option<(Source, Source)>,
    pub token: Option<Source>,
    /// The namespace of the context; empty if it has none.
    pub namespace: String,
}

impl Kubeconfig {
    /// Reads the current context of a file.
    pub fn read(file: &Path) -> Result<Kubeconfig, KubeconfigError> {
        let text = Source::File(file.to_owned()).text()?;
        Kubeconfig::parse(&text, file)
    }

    /// Reads the current context of a text; `file` is for messages, and what relative paths are
    /// relative to.
    pub fn parse(text: &str, file: &Path) -> Result<Kubeconfig, KubeconfigError> {
        let wrong = |problems: Vec<String>| {
            let lines = problems.iter().map(|problem| format!("{}: {problem}", file.display()));
            KubeconfigError::Wrong(lines.collect())
        };
        let (documents, errors) = yaml::parse(text);
        if !errors.is_empty() {
            return Err(wrong(errors.iter().map(ToString::to_string).collect()));
        }
        let Some(top) = documents.first() else {
            return Err(wrong(vec!["the file is empty; a kubeconfig is expected".to_owned()]));
        };
        let mut findings = Findings::default();
        let read = read(top, file.parent().unwrap_or(Path::new("")), &mut findings);
        match read {
            Some(config) if findings.errors.is_empty() => Ok(config),
            _ => {
                let findings = findings.sorted();
                Err(wrong(findings.errors.iter().map(ToString::to_string).collect()))
            }
        }
    }
}

const CLUSTER: &[&str] = &[
    "certificate-authority",
    "certificate-authority-data",
    "disable-compression",
    "extensions",
    "insecure-skip-tls-verify",
    "proxy-url",
    "server",
    "tls-server-name",
];

const USER: &[&str] = &[
    "as",
    "as-groups",
    "as-uid",
    "as-user-extra",
    "auth-provider",
    "client-certificate",
    "client-certificate-data",
    "client-key",
    "client-key-data",
    "exec",
    "extensions",
    "password",
    "token",
    "tokenFile",
    "username",
];

fn read(top: &Node, directory: &Path, findings: &mut Findings) -> Option<Kubeconfig> {
    let root = At::root(top);
    let file = root.object(findings)?;
    if let Some(kind) = file.field("kind")
        && kind.text(findings).is_some_and(|kind| kind != "Config")
    {
        kind.error("a kubeconfig is of kind Config", findings);
    }
    let Some(current) = file.field("current-context") else {
        root.error("current-context is missing; it names one of the contexts", findings);
        return None;
    };
    let name = current.text(findings)?;
    let lists = Lists { file: &file };
    let mut context =
        ContextEntry { cluster: String::new(), user: String::new(), space: String::new() };
    lists.within("contexts", "context", &current, &name, findings, |fields, findings| {
        let mut text = |field: &str| match fields.field(field) {
            Some(at) => at.text(findings).unwrap_or_default(),
            None => String::new(),
        };
        context =
            ContextEntry { cluster: text("cluster"), user: text("user"), space: text("namespace") };
        Some(())
    })?;
    let (mut cluster, mut user) = (None, None);
    lists.within("clusters", "cluster", &current, &context.cluster, findings, |fields, found| {
        cluster = read_cluster(&fields, directory, found);
        Some(())
    });
    lists.within("users", "user", &current, &context.user, findings, |fields, found| {
        user = read_user(&fields, directory, found);
        Some(())
    });
    let (address, server_name, authority) = cluster?;
    let (identity, token) = user?;
    let namespace = context.space;
    Some(Kubeconfig { address, server_name, authority, identity, token, namespace })
}

struct ContextEntry {
    cluster: String,
    user: String,
    space: String,
}

/// The lists of named entries of a file.
struct Lists<'a> {
    file: &'a Object<'a>,
}

impl Lists<'_> {
    /// Reads the entry of a list that has the name.
    fn within(
        &self,
        list: &str,
        inner: &str,
        wanted_by: &At<'_>,
        name: &str,
        findings: &mut Findings,
        read: impl FnOnce(Object<'_>, &mut Findings) -> Option<()>,
    ) -> Option<()> {
        let mut known = Vec::new();
        if let Some(at) = self.file.field(list) {
            for item in at.items(findings) {
                let Some(entry) = item.object(findings) else { continue };
                let Some(own) = entry.field("name").and_then(|at| at.text(findings)) else {
                    item.error("name is missing", findings);
                    continue;
                };
                if own != name {
                    known.push(own);
                    continue;
                }
                let Some(at) = entry.field(inner) else {
                    item.error(format!("{inner} is missing"), findings);
                    return None;
                };
                return read(at.object(findings)?, findings);
            }
        }
        let there = match known.as_slice() {
            [] => format!("there are no {list}"),
            known => format!("there are {}", known.join(", ")),
        };
        wanted_by.error(format!("no entry of {list} is named {name:?}; {there}"), findings);
        None
    }
}

/// Rejects known fields that are not supported, each with the alternative.
fn refuse(fields: &Object<'_>, names: &[(&str, &str)], findings: &mut Findings) {
    for (name, instead) in names {
        if let Some(at) = fields.field(name) {
            at.error(format!("not supported; {instead}"), findings);
        }
    }
}

type Cluster = (Address, String, Source);

fn read_cluster(fields: &Object<'_>, directory: &Path, findings: &mut Findings) -> Option<Cluster> {
    fields.refuse_unknown(CLUSTER, findings);
    refuse(fields, &[("proxy-url", "the server is dialled directly")], findings);
    if let Some(at) = fields.field("insecure-skip-tls-verify")
        && at.boolean(findings) == Some(true)
    {
        let instead = "give certificate-authority or certificate-authority-data, and \
                       tls-server-name if the certificate has another name";
        at.error(format!("not supported: the server would not be verified; {instead}"), findings);
    }
    let address = match fields.field("server") {
        None => {
            fields.at.error("server is missing: https://HOST:PORT", findings);
            None
        }
        Some(at) => at.text(findings).and_then(|url| match Address::parse(&url) {
            Ok(address) => Some(address),
            Err(problem) => {
                at.error(problem, findings);
                None
            }
        }),
    };
    let authority = source(fields, "certificate-authority", directory, findings);
    if authority == Found::Nothing {
        let message = "certificate-authority-data is missing (or certificate-authority, a file): \
                       without it the server cannot be verified";
        fields.at.error(message, findings);
    }
    let name = fields.field("tls-server-name").and_then(|at| at.text(findings));
    let (address, authority) = (address?, authority.taken()?);
    let name = name.unwrap_or_else(|| address.host.clone());
    Some((address, name, authority))
}

type User = (Option<(Source, Source)>, Option<Source>);

fn read_user(fields: &Object<'_>, directory: &Path, findings: &mut Findings) -> Option<User> {
    fields.refuse_unknown(USER, findings);
    let instead = "give a client certificate, token or tokenFile";
    let names = ["exec", "auth-provider", "username", "password"].map(|name| (name, instead));
    refuse(fields, &names, findings);
    let own = "impersonation is not available";
    let names = ["as", "as-groups", "as-uid", "as-user-extra"].map(|name| (name, own));
    refuse(fields, &names, findings);
    let certificate = source(fields, "client-certificate", directory, findings);
    let key = source(fields, "client-key", directory, findings);
    for (one, other, missing) in
        [(&certificate, &key, "client-key-data"), (&key, &certificate, "client-certificate-data")]
    {
        if *one != Found::Nothing && *other == Found::Nothing {
            let message = format!("{missing} is missing; certificate and key come together");
            fields.at.error(message, findings);
        }
    }
    let identity = certificate.taken().zip(key.taken());
    let token = match (fields.field("token"), fields.field("tokenFile")) {
        // Upstream's order.
        (_, Some(at)) => at.text(findings).map(|path| Source::File(directory.join(path))),
        (Some(at), None) => at.text(findings).map(Source::Inline),
        (None, None) => None,
    };
    Some((identity, token))
}

#[derive(PartialEq)]
enum Found {
    Nothing,
    /// Invalid, and already reported.
    Wrong,
    Source(Source),
}

impl Found {
    fn taken(self) -> Option<Source> {
        match self {
            Found::Source(source) => Some(source),
            Found::Nothing | Found::Wrong => None,
        }
    }
}

/// Reads `name-data` in base64, or the file `name`. The data takes precedence, as upstream.
fn source(fields: &Object<'_>, name: &str, directory: &Path, findings: &mut Findings) -> Found {
    if let Some(at) = fields.field(&format!("{name}-data")) {
        let Some(text) = at.text(findings) else { return Found::Wrong };
        let decoded = STANDARD.decode(text.trim()).ok().and_then(|b| String::from_utf8(b).ok());
        return match decoded {
            Some(pem) if pem.contains("-----BEGIN ") => Found::Source(Source::Inline(pem)),
            _ => {
                // The value may be a key, so it is not part of the message.
                let problem = Problem::Other("is not PEM text in base64".to_owned());
                findings.errors.push(at.problem(problem));
                Found::Wrong
            }
        };
    }
    match fields.field(name) {
        None => Found::Nothing,
        Some(at) => match at.text(findings) {
            Some(path) => Found::Source(Source::File(directory.join(path))),
            None => Found::Wrong,
        },
    }
}

#[cfg(test)]
mod tests;
