//! Reads the text of a machine file, YAML or JSON, into its fields.
//!
//! Main entry: [`document`]. Every mistake is noted with its line, column and field; what the
//! fields mean together is [`super`]'s business.

use objects::YamlError;
use objects::pod::OsName;
use objects::yaml::read::{At, Findings, Object};
use objects::yaml::{Value, parse};

use super::{Document, Listed, Metadata, Node, Pages};
use crate::machine::{NAME, is_name, quantity};
use crate::topology::Cpu;
use crate::{Bytes, CacheId, CoreId, CpuId, CpuSet, NumaId, SocketId};

/// The longest CPU list that is read: 65,536 CPUs one by one, each with five digits and a comma.
const MAX_LIST: usize = 6 << 16;

/// The one document of `text`, or all that is wrong with it.
pub(super) fn document(text: &str) -> Result<Document, Vec<YamlError>> {
    let (documents, errors) = parse(text);
    if !errors.is_empty() {
        return Err(errors);
    }
    let mut findings = Findings::default();
    let read = match documents.as_slice() {
        [node] => fields(&At::root(node), &mut findings),
        [_, second, ..] => {
            At::root(second).error("a second document; a file holds one machine", &mut findings);
            None
        }
        [] => None,
    };
    match read {
        Some(document) if findings.errors.is_empty() => Ok(document),
        _ => Err(findings.sorted().errors),
    }
}

fn fields(root: &At<'_>, findings: &mut Findings) -> Option<Document> {
    const KNOWN: [&str; 11] = [
        "apiVersion",
        "kind",
        "metadata",
        "os",
        "cpus",
        "cores",
        "threads",
        "sockets",
        "nodes",
        "uncoreCaches",
        "distances",
    ];
    let object = root.object(findings)?;
    let api_version = object.field("apiVersion").and_then(|at| at.text(findings));
    let kind = object.field("kind").and_then(|at| at.text(findings));
    if api_version.as_deref() != Some(super::API_VERSION) || kind.as_deref() != Some(super::KIND) {
        let found = |word: Option<String>| word.map_or("none".to_owned(), |w| format!("{w:?}"));
        let message = format!(
            "apiVersion is {} and kind is {}; a machine file says {:?} and {:?}",
            found(api_version),
            found(kind),
            super::API_VERSION,
            super::KIND,
        );
        root.error(message, findings);
        return None;
    }
    object.refuse_unknown(&KNOWN, findings);
    Some(Document {
        api_version: super::API_VERSION.to_owned(),
        kind: super::KIND.to_owned(),
        metadata: metadata(&object, findings),
        os: object.field("os").and_then(|at| os(&at, findings)).unwrap_or_default(),
        cpus: list(&object, "cpus", findings, cpu),
        cores: list(&object, "cores", findings, cpu_list),
        threads: object.field("threads").and_then(|at| number(&at, findings)),
        sockets: list(&object, "sockets", findings, listed),
        nodes: list(&object, "nodes", findings, node),
        uncore_caches: list(&object, "uncoreCaches", findings, listed),
        distances: list(&object, "distances", findings, |at, findings| {
            let items = at.items(findings);
            Some(items.iter().filter_map(|at| number(at, findings)).collect())
        }),
    })
}

fn metadata(object: &Object<'_>, findings: &mut Findings) -> Metadata {
    let Some(at) = object.field("metadata") else { return Metadata::default() };
    let Some(object) = at.object(findings) else { return Metadata::default() };
    object.refuse_unknown(&["name"], findings);
    let Some(at) = object.field("name") else { return Metadata::default() };
    let name = at.text(findings).unwrap_or_default();
    if !is_name(&name) {
        at.expected(NAME, findings);
    }
    Metadata { name }
}

fn os(at: &At<'_>, findings: &mut Findings) -> Option<OsName> {
    match at.text(findings)?.as_str() {
        "linux" => Some(OsName::Linux),
        "windows" => Some(OsName::Windows),
        _ => {
            at.expected("linux or windows", findings);
            None
        }
    }
}

fn cpu(at: &At<'_>, findings: &mut Findings) -> Option<Cpu> {
    let object = at.object(findings)?;
    object.refuse_unknown(&["cpu", "core", "socket", "numa", "uncoreCache"], findings);
    let mut id = |name: &str| required(&object, name, findings, number);
    let (cpu, core, socket) = (id("cpu"), id("core"), id("socket"));
    let (numa, cache) = (id("numa"), id("uncoreCache"));
    Some(Cpu {
        cpu: CpuId(cpu?),
        core: CoreId(core?),
        socket: SocketId(socket?),
        numa: NumaId(numa?),
        cache: CacheId(cache?),
    })
}

fn listed(at: &At<'_>, findings: &mut Findings) -> Option<Listed> {
    let object = at.object(findings)?;
    object.refuse_unknown(&["id", "cpus"], findings);
    let id = required(&object, "id", findings, number);
    let cpus = required(&object, "cpus", findings, cpu_list);
    Some(Listed { id: id?, cpus: cpus? })
}

fn node(at: &At<'_>, findings: &mut Findings) -> Option<Node> {
    let object = at.object(findings)?;
    object.refuse_unknown(&["id", "cpus", "memory", "hugePages"], findings);
    let id = required(&object, "id", findings, number);
    let cpus = object.field("cpus").and_then(|at| cpu_list(&at, findings));
    let memory = object.field("memory").and_then(|at| bytes(&at, findings));
    let huge_pages = list(&object, "hugePages", findings, pages);
    Some(Node {
        id: id?,
        cpus: cpus.unwrap_or_default(),
        memory: memory.unwrap_or_default(),
        huge_pages,
    })
}

fn pages(at: &At<'_>, findings: &mut Findings) -> Option<Pages> {
    let object = at.object(findings)?;
    object.refuse_unknown(&["pageSize", "count"], findings);
    let page_size = required(&object, "pageSize", findings, bytes);
    let count = required(&object, "count", findings, pages_count);
    Some(Pages { page_size: page_size?, count: count? })
}

/// A number of pages: any that 64 bits hold.
fn pages_count(at: &At<'_>, findings: &mut Findings) -> Option<u64> {
    let count = match &at.node.value {
        Value::Scalar(scalar) if scalar.plain => scalar.text.parse().ok(),
        _ => None,
    };
    if count.is_none() {
        at.expected("a whole number, 0 or more", findings);
    }
    count
}

/// The items of a list that can be read; none if there is no such field.
fn list<T>(
    object: &Object<'_>,
    name: &str,
    findings: &mut Findings,
    read: impl Fn(&At<'_>, &mut Findings) -> Option<T>,
) -> Vec<T> {
    let Some(at) = object.field(name) else { return Vec::new() };
    let items = at.items(findings);
    items.iter().filter_map(|item| read(item, findings)).collect()
}

fn required<T>(
    object: &Object<'_>,
    name: &str,
    findings: &mut Findings,
    read: impl Fn(&At<'_>, &mut Findings) -> Option<T>,
) -> Option<T> {
    match object.field(name) {
        Some(at) => read(&at, findings),
        None => {
            object.at.error(format!("the field {name:?} is missing"), findings);
            None
        }
    }
}

fn number(at: &At<'_>, findings: &mut Findings) -> Option<u32> {
    at.integer(0, i64::from(u32::MAX), findings).and_then(|number| u32::try_from(number).ok())
}

/// A CPU list; a single CPU needs no quotes.
fn cpu_list(at: &At<'_>, findings: &mut Findings) -> Option<CpuSet> {
    const EXPECTED: &str = "a CPU list like \"0-3,8\"";
    match &at.node.value {
        Value::Scalar(scalar) if !at.node.is_null() && scalar.text.len() <= MAX_LIST => {
            match CpuSet::parse(&scalar.text) {
                Ok(cpus) => Some(cpus),
                Err(error) => {
                    let found = at.node.describe();
                    at.error(format!("expected {EXPECTED}, found {found}: {error}"), findings);
                    None
                }
            }
        }
        _ => {
            at.expected(EXPECTED, findings);
            None
        }
    }
}

/// An amount of memory.
fn bytes(at: &At<'_>, findings: &mut Findings) -> Option<Bytes> {
    let amount = match &at.node.value {
        Value::Scalar(scalar) => quantity::parse(&scalar.text),
        _ => None,
    };
    if amount.is_none() {
        at.expected(quantity::EXPECTED, findings);
    }
    amount
}
