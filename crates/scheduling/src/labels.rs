//! Labels and selectors over interned strings.
//!
//! Main types: [`Labels`], [`Selector`] and [`NodeTerms`]. `objects::selector` parses selectors.

use std::collections::BTreeMap;

use objects::selector::{
    LabelSelector, NodeSelectorRequirement, NodeSelectorTerm, Operator, Requirement,
};
use objects::types;

use crate::interner::{Interner, Symbol};

/// Labels of one object, in order of key.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub(crate) struct Labels(Box<[(Symbol, Symbol)]>);

impl Labels {
    pub(crate) fn new(labels: &BTreeMap<String, String>, symbols: &mut Interner) -> Labels {
        let mut pairs: Vec<_> =
            labels.iter().map(|(k, v)| (symbols.intern(k), symbols.intern(v))).collect();
        pairs.sort_unstable();
        Labels(pairs.into())
    }

    pub(crate) fn get(&self, key: Symbol) -> Option<Symbol> {
        // Objects have few labels: a linear scan is faster than a search.
        self.0.iter().find(|(k, _)| *k == key).map(|(_, v)| *v)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// One condition on one label.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct LabelCondition {
    key: Symbol,
    test: LabelTest,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum LabelTest {
    In(Box<[Symbol]>),
    NotIn(Box<[Symbol]>),
    Exists,
    Absent,
    Above(i64),
    Below(i64),
    /// Malformed: no label satisfies it.
    Never,
}

impl LabelCondition {
    fn new(requirement: &Requirement, symbols: &mut Interner) -> LabelCondition {
        let key = symbols.intern(requirement.key());
        let mut values = || requirement.values().map(|v| symbols.intern(v)).collect();
        let bound = || requirement.values().next().and_then(|v| v.parse().ok());
        let test = match requirement.operator() {
            Operator::In | Operator::Equals | Operator::DoubleEquals => LabelTest::In(values()),
            Operator::NotIn | Operator::NotEquals => LabelTest::NotIn(values()),
            Operator::Exists => LabelTest::Exists,
            Operator::DoesNotExist => LabelTest::Absent,
            Operator::GreaterThan => bound().map_or(LabelTest::Never, LabelTest::Above),
            Operator::LessThan => bound().map_or(LabelTest::Never, LabelTest::Below),
        };
        LabelCondition { key, test }
    }

    fn holds(&self, labels: &Labels, symbols: &Interner) -> bool {
        let label = labels.get(self.key);
        let number = || symbols.text(label?).parse::<i64>().ok();
        match &self.test {
            LabelTest::In(values) => label.is_some_and(|l| values.contains(&l)),
            LabelTest::NotIn(values) => !label.is_some_and(|l| values.contains(&l)),
            LabelTest::Exists => label.is_some(),
            LabelTest::Absent => label.is_none(),
            LabelTest::Above(bound) => number().is_some_and(|n| n > *bound),
            LabelTest::Below(bound) => number().is_some_and(|n| n < *bound),
            LabelTest::Never => false,
        }
    }
}

/// A label selector. An absent one selects nothing, as everywhere in scheduling.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Selector {
    /// `None` selects nothing.
    needs: Option<Box<[LabelCondition]>>,
}

impl Selector {
    /// A malformed selector selects nothing, like an absent one.
    pub(crate) fn new(selector: Option<&types::LabelSelector>, symbols: &mut Interner) -> Selector {
        let selector = selector.and_then(|selector| LabelSelector::try_from(selector).ok());
        let needs = |s: LabelSelector| {
            s.requirements().iter().map(|r| LabelCondition::new(r, symbols)).collect::<Box<[_]>>()
        };
        Selector { needs: selector.map(needs) }
    }

    /// Returns the selector of all objects.
    pub(crate) fn everything() -> Selector {
        Selector { needs: Some(Box::default()) }
    }

    /// Returns the selector with these labels required too.
    pub(crate) fn and_labels(self, pairs: &[(Symbol, Symbol)]) -> Selector {
        self.and(
            pairs.iter().map(|(key, value)| LabelCondition {
                key: *key,
                test: LabelTest::In([*value].into()),
            }),
        )
    }

    /// Returns the selector with these labels excluded.
    pub(crate) fn and_not_labels(self, pairs: &[(Symbol, Symbol)]) -> Selector {
        let not = |(key, value): &(Symbol, Symbol)| LabelCondition {
            key: *key,
            test: LabelTest::NotIn([*value].into()),
        };
        self.and(pairs.iter().map(not))
    }

    fn and(self, more: impl Iterator<Item = LabelCondition>) -> Selector {
        let needs = self.needs.map(|needs| needs.into_vec().into_iter().chain(more).collect());
        Selector { needs }
    }

    /// Returns the intersection of two selectors.
    pub(crate) fn and_selector(self, other: &Selector) -> Selector {
        match &other.needs {
            Some(needs) => self.and(needs.iter().cloned()),
            None => Selector { needs: None },
        }
    }

    pub(crate) fn matches(&self, labels: &Labels, symbols: &Interner) -> bool {
        self.needs.as_ref().is_some_and(|needs| needs.iter().all(|n| n.holds(labels, symbols)))
    }

    /// Returns true if the selector selects everything.
    pub(crate) fn is_everything(&self) -> bool {
        self.needs.as_ref().is_some_and(|needs| needs.is_empty())
    }
}

/// One term of a node selector.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct NodeTerm {
    labels: Box<[LabelCondition]>,
    /// The node must have (true) or must not have (false) this name.
    names: Box<[(bool, Symbol)]>,
    malformed: bool,
}

impl NodeTerm {
    pub(crate) fn new(term: &types::NodeSelectorTerm, symbols: &mut Interner) -> NodeTerm {
        let term = NodeSelectorTerm::from(term);
        let malformed = |r: &NodeSelectorRequirement| r.requirement().is_none();
        let names = term.fields.iter().filter_map(NodeSelectorRequirement::requirement);
        let names = names.filter_map(|r| {
            Some((r.operator() == Operator::In, symbols.intern(r.values().next()?)))
        });
        let names: Box<[_]> = names.collect();
        let labels = term.labels.iter().filter_map(NodeSelectorRequirement::requirement);
        NodeTerm {
            labels: labels.map(|r| LabelCondition::new(r, symbols)).collect(),
            names,
            malformed: term.labels.iter().any(malformed) || term.fields.iter().any(malformed),
        }
    }

    /// Returns true if the term matches. An empty or malformed term matches no node.
    pub(crate) fn matches(&self, name: Symbol, labels: &Labels, symbols: &Interner) -> bool {
        let empty = self.labels.is_empty() && self.names.is_empty();
        !(self.malformed || empty)
            && self.labels.iter().all(|n| n.holds(labels, symbols))
            && self.names.iter().all(|(is, other)| (name == *other) == *is)
    }

    /// Returns the only node name that the term allows: `None` if any, an empty result if the term
    /// contradicts itself.
    pub(crate) fn pinned(&self) -> Option<Option<Symbol>> {
        let mut is = self.names.iter().filter(|(is, _)| *is).map(|(_, name)| *name);
        let first = is.next()?;
        Some(is.all(|other| other == first).then_some(first))
    }
}

/// The alternatives of a required node affinity.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct NodeTerms(pub(crate) Box<[NodeTerm]>);

impl NodeTerms {
    pub(crate) fn new(selector: &types::NodeSelector, symbols: &mut Interner) -> NodeTerms {
        NodeTerms(selector.node_selector_terms.iter().map(|t| NodeTerm::new(t, symbols)).collect())
    }

    pub(crate) fn match_any(&self, name: Symbol, labels: &Labels, symbols: &Interner) -> bool {
        self.0.iter().any(|term| term.matches(name, labels, symbols))
    }
}
