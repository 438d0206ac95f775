//! Texts that repeat: every label, resource and image name is kept once and known by number.
//!
//! Main type: [`Interner`]. Numbers are never given back; a cluster that has seen very many labels is
//! made anew from its objects, which is cheap.

use std::collections::HashMap;
use std::sync::Arc;

/// A text, by its number in [`Interner`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Symbol(pub(crate) u32);

/// The texts and their numbers.
#[derive(Debug, Default)]
pub(crate) struct Interner {
    texts: Vec<Arc<str>>,
    numbers: HashMap<Arc<str>, u32>,
}

impl Interner {
    /// The number of a text, new if it has none yet.
    pub(crate) fn intern(&mut self, text: &str) -> Symbol {
        if let Some(number) = self.numbers.get(text) {
            return Symbol(*number);
        }
        // Four thousand million texts do not fit into memory; the last number stands for all beyond.
        let number = u32::try_from(self.texts.len()).unwrap_or(u32::MAX);
        let text: Arc<str> = text.into();
        self.texts.push(text.clone());
        self.numbers.insert(text, number);
        Symbol(number)
    }

    /// The number of a text that something has.
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
