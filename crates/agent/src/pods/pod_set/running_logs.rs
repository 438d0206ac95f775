//! The paths of log files of running containers: [`PodSet::running_logs`], from the last relist.

use std::path::Path;

use super::PodSet;
use crate::agent::RunningLog;
use crate::runtime::lower::container::log_path;
use crate::runtime::lower::sandbox::log_directory_of;
use lifecycle::observed::ContainerState;
use lifecycle::spec::Metadata;

impl PodSet {
    /// Returns the logs of all containers that were running at the last relist.
    #[must_use]
    pub fn running_logs(&self) -> Vec<RunningLog> {
        let node_env = self.context.state.node_env();
        let mut logs = Vec::new();
        for (uid, summary) in &self.summaries {
            let metadata = Metadata {
                name: summary.name.clone(),
                namespace: summary.namespace.clone(),
                uid: uid.clone(),
                ..Metadata::default()
            };
            let directory = log_directory_of(&node_env, &metadata);
            for (id, container) in &summary.containers {
                if container.state == ContainerState::Running {
                    let file = log_path(node_env.os, &container.name, container.attempt);
                    let path = Path::new(&directory).join(file);
                    logs.push(RunningLog { container: id.clone(), path });
                }
            }
        }
        logs
    }
}
