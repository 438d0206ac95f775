//! Machines from `lscpu`: the JSON of `lscpu -J -e`, the tables of `lscpu -e` and `lscpu -p`, and the
//! summary of plain `lscpu` and `lscpu -J`.
//!
//! Main entries: [`parse_json`], [`parse_table`] and [`parse_summary`]. `lscpu` shows no memory, so
//! the nodes have none. The summary has counts but no siblings; [`summary`] has the rules by which
//! they are assumed.

use objects::pod::OsName;
use std::collections::BTreeMap;

use placement::cpuset::MAX_CPU;
use placement::topology::{Cpu, Parts, TopologyError};
use placement::{CacheId, CoreId, CpuId, Machine, NumaId, SocketId};
use serde_json::{Map, Value};
use thiserror::Error;

/// The command whose output is complete.
pub const COMMAND: &str = "lscpu -J -e=CPU,CORE,SOCKET,NODE,CACHE,ONLINE";

/// The reason why `lscpu`'s output does not describe a machine.
#[derive(Debug, Error)]
pub enum LscpuError {
    #[error("{0}")]
    Json(#[from] serde_json::Error),
    #[error("lscpu's summary {0}; use the output of `{COMMAND}`")]
    Summary(String),
    #[error("there is no list \"cpus\"; use the output of `{COMMAND}`")]
    NoCpus,
    #[error("entry {0} of \"cpus\" is not an object; use the output of `{COMMAND}`")]
    NotAnObject(usize),
    #[error(
        "there is no line with column names such as \"# CPU,Core,Socket,Node\" or \"CPU NODE SOCKET CORE\""
    )]
    NoHeader,
    #[error("there is no column {0}; use the output of `{COMMAND}`")]
    NoColumn(&'static str),
    #[error("row {row}: {column} is {found:?}; it should be {expected}")]
    Value { row: usize, column: String, found: String, expected: &'static str },
    #[error("row {row} has {found} fields for {columns} columns")]
    Fields { row: usize, found: usize, columns: usize },
    #[error("the table contradicts itself: {0}")]
    Topology(#[from] TopologyError),
}

pub mod summary;

/// Parses the summary that plain `lscpu` prints.
pub fn parse_summary(text: &str) -> Result<Machine, LscpuError> {
    summary::machine(&summary::of_text(text))
}

/// One row: column name in lower case → text. Absent values are left out.
type Row = BTreeMap<String, String>;

pub(super) fn looks_like_a_table(head: &str) -> bool {
    header(head).is_some()
}

/// Reads `{"cpus": [{"cpu": 0, "core": 0, …}, …]}`; values may be numbers or texts.
pub fn parse_json(text: &str) -> Result<Machine, LscpuError> {
    let document: Map<String, Value> = serde_json::from_str(text)?;
    let Some(cpus) = document.get("cpus").and_then(Value::as_array) else {
        let Some(fields) = document.get("lscpu") else { return Err(LscpuError::NoCpus) };
        return summary::machine(&summary::of_json(fields));
    };
    let mut rows = Vec::with_capacity(cpus.len());
    for (index, entry) in cpus.iter().enumerate() {
        let entry = entry.as_object().ok_or(LscpuError::NotAnObject(index))?;
        let text = |value: &Value| match value {
            Value::String(text) => Some(text.clone()),
            Value::Null => None,
            other => Some(other.to_string()),
        };
        let row: Row = entry
            .iter()
            .filter_map(|(column, value)| Some((column.to_lowercase(), text(value)?)))
            .collect();
        rows.push(row);
    }
    machine(rows)
}

/// Reads the comma-separated table of `lscpu -p` or the aligned one of `lscpu -e`.
pub fn parse_table(text: &str) -> Result<Machine, LscpuError> {
    let (columns, comma) = header(text).ok_or(LscpuError::NoHeader)?;
    let mut rows = Vec::new();
    let lines = text
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        // The aligned table's header is not a comment.
        .filter(|line| comma || !line.starts_with("CPU"));
    for (index, line) in lines.enumerate() {
        let fields: Vec<&str> =
            if comma { line.split(',').collect() } else { line.split_ascii_whitespace().collect() };
        // A frequency column may be missing at the end of an offline CPU's line.
        if fields.len() > columns.len() || fields.is_empty() {
            let (row, found, columns) = (index + 1, fields.len(), columns.len());
            return Err(LscpuError::Fields { row, found, columns });
        }
        let row = columns
            .iter()
            .zip(fields)
            .filter(|(column, _)| !column.is_empty())
            .map(|(column, field)| (column.clone(), field.to_owned()));
        rows.push(row.collect());
    }
    machine(rows)
}

/// The column names in lower case, and whether commas separate the fields.
fn header(text: &str) -> Option<(Vec<String>, bool)> {
    for line in text.lines().map(str::trim) {
        if let Some(names) = line.strip_prefix('#').map(str::trim) {
            if names.starts_with("CPU,") || names == "CPU" {
                return Some((names.split(',').map(|n| n.trim().to_lowercase()).collect(), true));
            }
        } else if line.starts_with("CPU ") {
            return Some((line.split_ascii_whitespace().map(str::to_lowercase).collect(), false));
        } else if !line.is_empty() {
            return None;
        }
    }
    None
}

fn machine(rows: Vec<Row>) -> Result<Machine, LscpuError> {
    let mut cpus = Vec::new();
    // lscpu -y gives core ids that are unique only within a socket.
    let mut cores: BTreeMap<(u32, u32), CoreId> = BTreeMap::new();
    let mut rows: Vec<(u32, usize, Row)> = rows
        .into_iter()
        .enumerate()
        .map(|(index, row)| {
            let cpu = number(&row, index + 1, "cpu")?.ok_or(LscpuError::NoColumn("CPU"))?;
            Ok((cpu, index + 1, row))
        })
        .collect::<Result<_, LscpuError>>()?;
    // A core is named after its lowest CPU, whatever the order of the rows.
    rows.sort_by_key(|(cpu, ..)| *cpu);
    for (cpu, line, row) in rows {
        if matches!(row.get("online").map(String::as_str), Some("no" | "N" | "n" | "false")) {
            continue;
        }
        let core = number(&row, line, "core")?.ok_or(LscpuError::NoColumn("CORE"))?;
        let socket = number(&row, line, "socket")?.unwrap_or(0);
        let numa = number(&row, line, "node")?.unwrap_or(0);
        let cache = uncore_cache(&row, line)?.unwrap_or(socket);
        cpus.push(Cpu {
            cpu: CpuId(cpu),
            core: *cores.entry((socket, core)).or_insert(CoreId(cpu)),
            socket: SocketId(socket),
            numa: NumaId(numa),
            cache: CacheId(cache),
        });
    }
    let parts = Parts { cpus, ..Parts::default() };
    Ok(Machine::new("", OsName::Linux, parts)?)
}

/// The id of the L3: a column of its own in `-p`, part of `l1d:l1i:l2:l3` elsewhere.
fn uncore_cache(row: &Row, line: usize) -> Result<Option<u32>, LscpuError> {
    if row.contains_key("l3") {
        return number(row, line, "l3");
    }
    let Some((names, ids)) = row.iter().find(|(column, _)| column.contains(":l3")) else {
        return Ok(None);
    };
    let position = names.split(':').position(|name| name == "l3");
    let id = position.and_then(|position| ids.split(':').nth(position)).unwrap_or("-");
    parse_number(id, line, "L3", MAX_CPU)
}

fn number(row: &Row, line: usize, column: &str) -> Result<Option<u32>, LscpuError> {
    let Some(text) = row.get(column) else { return Ok(None) };
    parse_number(text, line, column, MAX_CPU)
}

/// `-`, and nothing at all, stand for a value that is not known.
fn parse_number(
    text: &str,
    row: usize,
    column: &str,
    highest: u32,
) -> Result<Option<u32>, LscpuError> {
    if matches!(text, "" | "-") {
        return Ok(None);
    }
    let number: Option<u32> = text.parse().ok().filter(|n| *n <= highest);
    number.map(Some).ok_or_else(|| LscpuError::Value {
        row,
        column: column.to_owned(),
        found: text.chars().take(40).collect(),
        expected: "a number up to 65535, or - if it is not known",
    })
}
