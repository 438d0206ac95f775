//! Runs the agent's placement decision for a node ahead of time.
//!
//! Main types: [`MachineView`], which a caller sets for nodes that report their machine, and
//! [`Machine`], which keeps its ledger in step with the pods of the scheduler: an assumed pod is in
//! it before the agent commits it. Nothing is applied.

use std::collections::BTreeMap;
use std::sync::Arc;

use placement::demand::{Demand, PodUid};
use placement::report::{NodeReport, ReportError};
use placement::{Ledger, Node, Refusal, plan};

/// A machine with its policies, and the ledger of its agent.
#[derive(Debug, Clone)]
pub struct MachineView {
    pub node: Arc<Node>,
    pub ledger: Arc<Ledger>,
}

impl MachineView {
    /// Parses the machine report in the annotations of a node; `None` if there is none.
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

    /// Commits the placement of a pod; one that the agent has committed keeps it. A pod that cannot
    /// be placed is skipped: its agent will refuse it.
    pub(crate) fn add(&mut self, demand: &Demand) {
        if let Ok(placement) = plan(&self.node, &self.ledger, demand) {
            Arc::make_mut(&mut self.ledger).commit(&placement);
        }
    }

    pub(crate) fn remove(&mut self, uid: &str) {
        Arc::make_mut(&mut self.ledger).release(&PodUid::new(uid));
    }

    /// Plans the pod. The error has the refusal, and true if an empty machine would take the pod.
    pub(crate) fn try_place(&self, demand: &Demand) -> Result<(), (Refusal, bool)> {
        let Err(refusal) = plan(&self.node, &self.ledger, demand) else { return Ok(()) };
        let could = plan(&self.node, &self.node.empty_ledger(), demand).is_ok();
        Err((refusal, could))
    }
}
