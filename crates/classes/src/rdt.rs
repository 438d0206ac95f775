//! Classes of cache and memory bandwidth (RDT) in the file format of goresctrl, which containerd
//! and CRI-O read.
//!
//! Main entries: [`Config::parse`] reads a file, [`plan`](plan::plan) turns it into control groups
//! and their schemata, [`tree`] is a model of the control groups that exist. The arithmetic and the
//! error texts are goresctrl's. `docs/adr/0024-class-definitions.md` lists the differences. Nothing
//! here writes to resctrl.

pub mod bandwidth;
pub mod cache;
pub mod config;
pub mod names;
pub mod partitions;
pub mod plan;
pub mod tree;

pub use config::Config;
pub use names::{Group, LookupError};
pub use plan::{Plan, PlanError, Warning, plan};
pub use tree::Tree;

use std::fmt;

use crate::go_text::{NumberError, parse_int};
use crate::hardware::CacheId;
use thiserror::Error;

/// The key of a per-cache map that holds for all caches without a key of their own.
pub(crate) const ALL_CACHES: &str = "all";

/// A list of cache ids such as `0,2-3`, which is a key in class files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CacheIdList(Vec<(u64, u64)>);

/// The reason why a text is not a list of cache ids.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum CacheIdListError {
    #[error("invalid integer {}: {source}", crate::go_text::quoted(.list))]
    Integer { list: String, source: NumberError },
    #[error("invalid integer in range {}: {source}", crate::go_text::quoted(.list))]
    RangeEnd { list: String, source: NumberError },
    #[error("invalid integer range {} in {}", crate::go_text::quoted(.range), crate::go_text::quoted(.list))]
    Range { range: String, list: String },
}

impl CacheIdList {
    /// Parses a list. The empty text is an empty list, and a range needs two different ends.
    pub(crate) fn parse(list: &str) -> Result<CacheIdList, CacheIdListError> {
        if list.is_empty() {
            return Ok(CacheIdList(Vec::new()));
        }
        let mut ranges = Vec::new();
        for range in list.split(',') {
            let (first, last) = match range.split_once('-') {
                Some((first, last)) => (first, Some(last)),
                None => (range, None),
            };
            let list = || list.to_owned();
            let first =
                id(first).map_err(|source| CacheIdListError::Integer { list: list(), source })?;
            let last = last.map(id).transpose();
            let last =
                last.map_err(|source| CacheIdListError::RangeEnd { list: list(), source })?;
            if last.is_some_and(|last| last <= first) {
                return Err(CacheIdListError::Range { range: range.to_owned(), list: list() });
            }
            ranges.push((first, last.unwrap_or(first)));
        }
        Ok(CacheIdList(ranges))
    }

    pub(crate) fn contains(&self, id: CacheId) -> bool {
        self.0.iter().any(|(first, last)| (*first..=*last).contains(&id.0))
    }
}

/// Reads one cache id. A minus sign never gets here: it separates the ends of a range.
fn id(text: &str) -> Result<u64, NumberError> {
    let number = parse_int(text)?;
    u64::try_from(number)
        .map_err(|_| NumberError::Syntax { function: "ParseInt", text: text.to_owned() })
}

/// Formats names as a list in error texts.
pub(crate) struct Joined<'a>(pub(crate) &'a [String]);

impl fmt::Display for Joined<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join(", "))
    }
}

#[cfg(test)]
mod tests;
