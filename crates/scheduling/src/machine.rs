//! Whether a node's agent would find a place for a pod: the same decision that the agent makes, asked
//! ahead of time.
//!
//! Main types: [`MachineView`], which a caller hands over for nodes that report their machine, and
//! [`Machine`], which keeps its ledger in step with the pods the scheduler knows of: a pod that has
//! been given a node is in it before the agent has said so. Nothing is placed for real.

use std::collections::BTreeMap;
use std::sync::Arc;

use placement::demand::{Demand, PodUid};
use placement::report::{NodeReport, ReportError};
use placement::{Ledger, Node, Refusal, plan};

/// A machine with its policies, and what its agent has handed out.
#[derive(Debug, Clone)]
pub struct MachineView {
    pub node: Arc<Node>,
    pub ledger: Arc<Ledger>,
}

impl MachineView {
    /// What the annotations of a node say of its machine; `None` if nothing.
    pub fn parse(
        annotations: &BTreeMap<String, String>,
    ) -> Result<Option<MachineView>, ReportError> {
        let report = NodeReport::parse(annotations)?;
        Ok(report.map(|report| {
            let (node, ledger) = report.into_parts();
            MachineView { node: Arc::new(node), ledger: Arc::new(ledger) }
        }))
    }
}

#[derive(Debug, Clone)]
pub(crate) struct Machine {
    pub(crate) node: Arc<Node>,
    pub(crate) ledger: Arc<Ledger>,
}

impl Machine {
    pub(crate) fn new(view: MachineView) -> Machine {
        Machine { node: view.node, ledger: view.ledger }
    }

    /// Books what a pod will be given; one that the agent has booked already keeps its place. A pod
    /// that finds none is left out: its agent will refuse it.
    pub(crate) fn add(&mut self, demand: &Demand) {
        if let Ok(placement) = plan(&self.node, &self.ledger, demand) {
            Arc::make_mut(&mut self.ledger).commit(&placement);
        }
    }

    pub(crate) fn remove(&mut self, uid: &str) {
        Arc::make_mut(&mut self.ledger).release(&PodUid::new(uid));
    }

    /// Whether the pod would be placed, and if not, whether it would be on the empty machine.
    pub(crate) fn try_place(&self, demand: &Demand) -> Result<(), (Refusal, bool)> {
        let Err(refusal) = plan(&self.node, &self.ledger, demand) else { return Ok(()) };
        let could = plan(&self.node, &self.node.empty_ledger(), demand).is_ok();
        Err((refusal, could))
    }
}
