//! The groups that resctrl should have: [`Desired`].

use std::collections::BTreeMap;

use classes::rdt::{Group, Plan};
use classes::schemata::Schemata;

use super::{ControlGroup, GroupName, MonitorName, ResctrlError};

/// The classes and containers of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Desired {
    /// The schemata of the root group; `None` leaves them unchanged.
    pub root: Option<Schemata>,
    /// The schemata of the control groups of all classes. A level that a schemata does not mention
    /// keeps the value that the kernel chose for the new group.
    pub classes: BTreeMap<GroupName, Schemata>,
    pub workloads: Vec<Workload>,
}

impl Desired {
    /// Returns the groups of a planned class file, which must be planned with [`super::PREFIX`],
    /// without workloads.
    pub fn of_plan(plan: &Plan) -> Result<Desired, ResctrlError> {
        let mut desired = Desired::default();
        for class in plan.classes.values() {
            match &class.group {
                Group::Root => desired.root = Some(class.schemata.clone()),
                Group::Named(directory) => {
                    let group = GroupName::own(directory)?;
                    desired.classes.insert(group, class.schemata.clone());
                }
            }
        }
        Ok(desired)
    }
}

/// The tasks of a cgroup and the groups that they belong to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Workload {
    /// The path of the cgroup from the root of its hierarchy.
    pub cgroup: String,
    pub group: ControlGroup,
    /// The monitoring group inside the control group. Each takes one of the machine's RMIDs.
    pub monitor: Option<MonitorName>,
}
