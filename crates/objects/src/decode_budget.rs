//! Limits the memory of decoded values: [`DecodeBudget`].
//!
//! Text of a few bytes can take a hundred times its size as values: `{"":0},` is seven bytes, and
//! the map it becomes is a node of more than 600. Decoders of untrusted bytes count what they
//! build, and stop at a limit before the memory is allocated. The counts are estimates.

use serde_json::Value;
use thiserror::Error;

/// The maximum memory for the values of one body. The largest object that can be stored has 1.5 MiB
/// of JSON, and takes about 50 MiB if it consists of short environment variables.
pub const MAX_DECODED: usize = 64 << 20;

/// The maximum nesting of a decoded object. No Kubernetes object nests a third as deep. JSON
/// readers stop at 127 levels, and responses nest objects a few levels deeper than they are stored.
pub const MAX_DEPTH: usize = 100;

/// The values of a body take more memory than allowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("the decoded values take more than {limit} bytes of memory")]
pub struct TooLarge {
    pub limit: usize,
}

/// A value in a list, with the spare capacity of a list that grew.
const ITEM: usize = 2 * size_of::<Value>();

/// A node of a map: eleven keys and values, whether they are used or not.
const NODE: usize = 11 * (size_of::<String>() + size_of::<Value>()) + 16;

/// Nodes of a map whose keys come in order are half full.
const ENTRY: usize = NODE / 6;

/// The allocator's overhead for one allocation.
const PIECE: usize = 16;

/// The remaining memory of a limit.
#[derive(Debug, Clone)]
pub(crate) struct DecodeBudget {
    limit: usize,
    left: usize,
}

impl DecodeBudget {
    pub(crate) fn new(limit: usize) -> DecodeBudget {
        DecodeBudget { limit, left: limit }
    }

    fn take(&mut self, bytes: usize) -> Result<(), TooLarge> {
        match self.left.checked_sub(bytes) {
            Some(left) => {
                self.left = left;
                Ok(())
            }
            None => {
                self.left = 0;
                Err(TooLarge { limit: self.limit })
            }
        }
    }

    /// Takes the memory of a text.
    pub(crate) fn text(&mut self, text: &str) -> Result<(), TooLarge> {
        self.take(text_size(text))
    }

    /// Takes the memory of an item of a list, without what the item refers to.
    pub(crate) fn item(&mut self) -> Result<(), TooLarge> {
        self.take(ITEM)
    }

    /// Takes the memory of an entry of a map that already has `count` entries, without what the
    /// value refers to.
    pub(crate) fn entry(&mut self, count: usize, key: &str) -> Result<(), TooLarge> {
        self.take(entry_size(count) + text_size(key))
    }

    /// Takes the memory of what a value refers to.
    pub(crate) fn value(&mut self, value: &Value) -> Result<(), TooLarge> {
        match value {
            Value::Null | Value::Bool(_) | Value::Number(_) => Ok(()),
            Value::String(text) => self.text(text),
            Value::Array(items) => items.iter().try_for_each(|item| {
                self.item()?;
                self.value(item)
            }),
            Value::Object(map) => map.iter().enumerate().try_for_each(|(count, (key, value))| {
                self.entry(count, key)?;
                self.value(value)
            }),
        }
    }
}

fn text_size(text: &str) -> usize {
    if text.is_empty() { 0 } else { text.len() + PIECE }
}

fn entry_size(count: usize) -> usize {
    if count == 0 { NODE } else { ENTRY }
}
