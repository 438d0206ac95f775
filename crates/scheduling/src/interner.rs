//! String interning: every label, resource and image name is stored once and identified by a
//! number.
//!
//! Main type: [`Interner`]. Numbers are never reused; a cluster that has had very many labels can
//! be rebuilt from its objects, which is cheap.

use std::collections::HashMap;
use std::sync::Arc;

/// An interned string, by its number in [`Interner`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Symbol(pub(crate) u32);

/// The strings and their numbers.
#[derive(Debug, Default)]
pub(crate) struct Interner {
    texts: Vec<Arc<str>>,
    numbers: HashMap<Arc<str>, u32>,
}

impl Interner {
    /// Returns the symbol of a string, and interns it if it is new.
    pub(crate) fn intern(&mut self, text: &str) -> Symbol {
        if let Some(number) = self.numbers.get(text) {
            return Symbol(*number);
        }
        // Four thousand million strings do not fit into memory; the last number stands for all
        // beyond.
        let number = u32::try_from(self.texts.len()).unwrap_or(u32::MAX);
        let text: Arc<str> = text.into();
        self.texts.push(text.clone());
        self.numbers.insert(text, number);
        Symbol(number)
    }

    /// Returns the symbol of a string if it has been interned.
    pub(crate) fn find(&self, text: &str) -> Option<Symbol> {
        self.numbers.get(text).copied().map(Symbol)
    }

    pub(crate) fn text(&self, symbol: Symbol) -> &str {
        self.texts.get(symbol.0 as usize).map_or("", |text| text)
    }

    pub(crate) fn len(&self) -> usize {
        self.texts.len()
    }
}
