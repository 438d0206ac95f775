//! Problems that decoding reports without failing: [`Problems`], for unknown fields and fields that are
//! given twice.

use std::collections::HashSet;

/// How many problems are reported; upstream's limit.
pub(crate) const MAX_PROBLEMS: usize = 100;

/// The limit on the text of all problems. A path is as long as the keys on it, and each problem
/// repeats it.
const MAX_TEXT: usize = 64 << 10;

/// Texts of problems in the order they were found, each once.
#[derive(Debug, Clone, Default)]
pub(crate) struct Problems {
    list: Vec<String>,
    seen: HashSet<String>,
    length: usize,
}

impl Problems {
    /// Reports whether further problems are dropped. Callers check this before they make a text.
    pub(crate) fn is_full(&self) -> bool {
        self.list.len() >= MAX_PROBLEMS || self.length >= MAX_TEXT
    }

    pub(crate) fn note(&mut self, problem: String) {
        if !self.is_full() && self.seen.insert(problem.clone()) {
            self.length += problem.len();
            self.list.push(problem);
        }
    }

    pub(crate) fn into_list(self) -> Vec<String> {
        self.list
    }
}
