//! Where the logs are that are being written: [`Pods::running_logs`], from the last look at the runtime.

use std::path::Path;

use super::Pods;
use crate::agent::RunningLog;
use crate::runtime::lower::container::log_path;
use crate::runtime::lower::sandbox::log_directory_of;
use crate::runtime::observed::ContainerState;
use crate::spec::Metadata;

impl Pods {
    /// The logs of all containers that ran when they were last looked at.
    #[must_use]
    pub fn running_logs(&self) -> Vec<RunningLog> {
        let facts = self.hands.facts();
        let mut logs = Vec::new();
        for (uid, brief) in &self.briefs {
            let of = Metadata {
                name: brief.name.clone(),
                namespace: brief.namespace.clone(),
                uid: uid.clone(),
                ..Metadata::default()
            };
            let directory = log_directory_of(&facts, &of);
            for (id, container) in &brief.containers {
                if container.state == ContainerState::Running {
                    let file = log_path(facts.os, &container.name, container.attempt);
                    let path = Path::new(&directory).join(file);
                    logs.push(RunningLog { container: id.clone(), path });
                }
            }
        }
        logs
    }
}
