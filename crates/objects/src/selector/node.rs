//! Node selectors: the terms of a pod's (or a volume's) node affinity, over a node's labels and name.
//!
//! Main type: [`NodeSelector`]. Terms are alternatives; the expressions of one term must all hold. A
//! term that is empty or malformed matches no node, as upstream has it.

use serde::{Deserialize, Deserializer};

use super::{Operator, Requirement};
use crate::types;

/// The only field of a node that can be selected by.
const NAME_FIELD: &str = "metadata.name";

/// Alternatives, of which one must match.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct NodeSelector {
    pub terms: Vec<NodeSelectorTerm>,
}

/// Expressions that must all hold.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct NodeSelectorTerm {
    pub labels: Vec<NodeSelectorRequirement>,
    /// Conditions on `metadata.name`.
    pub fields: Vec<NodeSelectorRequirement>,
}

/// An expression; `None` inside means that it was malformed and never matches.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct NodeSelectorRequirement(Option<Requirement>);

impl NodeSelectorRequirement {
    fn read(expression: &types::NodeSelectorRequirement) -> NodeSelectorRequirement {
        let values = expression.values.clone();
        let read = Operator::from_word(&expression.operator)
            .and_then(|operator| Requirement::new(&expression.key, operator, values).ok());
        NodeSelectorRequirement(read)
    }

    /// Reads a condition on the node's name: `In` or `NotIn` with a single value.
    fn read_field(expression: &types::NodeSelectorRequirement) -> NodeSelectorRequirement {
        let values = expression.values.clone();
        let operator = Operator::from_word(&expression.operator);
        let right = expression.key == NAME_FIELD
            && values.len() == 1
            && matches!(operator, Some(Operator::In | Operator::NotIn));
        let operator = operator.filter(|_| right);
        NodeSelectorRequirement(
            operator.map(|operator| Requirement::unchecked(&expression.key, operator, values)),
        )
    }

    /// Returns the expression, unless it was malformed.
    #[must_use]
    pub fn requirement(&self) -> Option<&Requirement> {
        self.0.as_ref()
    }
}

impl NodeSelectorTerm {
    /// Reports whether a node with this name and these labels is selected.
    pub fn matches<'a>(&self, name: &str, labels: impl Fn(&str) -> Option<&'a str>) -> bool {
        let empty = self.labels.is_empty() && self.fields.is_empty();
        let label_holds =
            |r: &NodeSelectorRequirement| r.requirement().is_some_and(|r| r.holds(labels(r.key())));
        let field_holds =
            |r: &NodeSelectorRequirement| r.requirement().is_some_and(|r| r.holds(Some(name)));
        !empty && self.labels.iter().all(label_holds) && self.fields.iter().all(field_holds)
    }
}

impl NodeSelector {
    /// Reports whether a node with this name and these labels is selected.
    pub fn matches<'a>(&self, name: &str, labels: impl Fn(&str) -> Option<&'a str>) -> bool {
        self.terms.iter().any(|term| term.matches(name, &labels))
    }
}

impl From<&types::NodeSelectorTerm> for NodeSelectorTerm {
    fn from(term: &types::NodeSelectorTerm) -> NodeSelectorTerm {
        let (labels, fields) = (term.match_expressions.iter(), term.match_fields.iter());
        NodeSelectorTerm {
            labels: labels.map(NodeSelectorRequirement::read).collect(),
            fields: fields.map(NodeSelectorRequirement::read_field).collect(),
        }
    }
}

impl From<&types::NodeSelector> for NodeSelector {
    fn from(selector: &types::NodeSelector) -> NodeSelector {
        NodeSelector { terms: selector.node_selector_terms.iter().map(Into::into).collect() }
    }
}

impl<'de> Deserialize<'de> for NodeSelector {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<NodeSelector, D::Error> {
        types::NodeSelector::deserialize(from).map(|selector| (&selector).into())
    }
}
