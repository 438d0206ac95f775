//! The state of a pod in the runtime: [`RuntimePod`], with its sandboxes and containers, newest first.
//!
//! Built from the runtime's lists and statuses. Times are nanoseconds since 1970, as in the CRI. This module
//! does not call the runtime.

/// The ID of a container or sandbox in the runtime.
pub type RuntimeId = String;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuntimeSandbox {
    pub id: RuntimeId,
    pub attempt: u32,
    pub ready: bool,
    pub created_at: i64,
    /// Empty with host networking, and without a network.
    pub ips: Vec<String>,
    pub host_network: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ContainerState {
    Created,
    Running,
    Exited,
    Unknown,
}

#[derive(Debug, Clone, PartialEq)]
pub struct RuntimeContainer {
    pub id: RuntimeId,
    pub sandbox: RuntimeId,
    pub name: String,
    /// The number of previous containers of this name.
    pub attempt: u32,
    pub state: ContainerState,
    pub created_at: i64,
    pub started_at: i64,
    pub finished_at: i64,
    pub exit_code: i32,
    /// The runtime's reason for its exit, such as `OOMKilled`.
    pub reason: String,
    pub message: String,
    /// The requested image, and its ID in the runtime.
    pub image: String,
    pub image_id: String,
    /// The hash of the container's spec when the agent created it.
    pub hash: String,
}

impl RuntimeContainer {
    /// Returns a container that was just created and started, and is not in any list yet.
    #[must_use]
    pub fn started(id: &RuntimeId, name: &str) -> RuntimeContainer {
        RuntimeContainer {
            id: id.clone(),
            sandbox: RuntimeId::new(),
            name: name.to_owned(),
            attempt: 0,
            state: ContainerState::Running,
            created_at: 0,
            started_at: 0,
            finished_at: 0,
            exit_code: 0,
            reason: String::new(),
            message: String::new(),
            image: String::new(),
            image_id: String::new(),
            hash: String::new(),
        }
    }

    #[must_use]
    pub fn is_running(&self) -> bool {
        self.state == ContainerState::Running
    }

    /// Returns true if it exited with an error or was lost.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        match self.state {
            ContainerState::Exited => self.exit_code != 0,
            ContainerState::Unknown => true,
            ContainerState::Created | ContainerState::Running => false,
        }
    }

    #[must_use]
    pub fn has_succeeded(&self) -> bool {
        self.state == ContainerState::Exited && self.exit_code == 0
    }
}

/// The complete state of a pod in the runtime.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct RuntimePod {
    /// Newest first.
    pub sandboxes: Vec<RuntimeSandbox>,
    /// Newest first.
    pub containers: Vec<RuntimeContainer>,
}

impl RuntimePod {
    /// Sorts sandboxes and containers.
    #[must_use]
    pub fn new(
        mut sandboxes: Vec<RuntimeSandbox>,
        mut containers: Vec<RuntimeContainer>,
    ) -> RuntimePod {
        // Attempts order those with equal times.
        sandboxes.sort_by_key(|s| std::cmp::Reverse((s.created_at, s.attempt)));
        containers.sort_by_key(|c| std::cmp::Reverse((c.created_at, c.attempt)));
        RuntimePod { sandboxes, containers }
    }

    /// Returns the newest container of a name.
    #[must_use]
    pub fn container(&self, name: &str) -> Option<&RuntimeContainer> {
        self.containers.iter().find(|container| container.name == name)
    }

    /// Returns the container before the newest.
    #[must_use]
    pub fn previous(&self, name: &str) -> Option<&RuntimeContainer> {
        self.containers.iter().filter(|container| container.name == name).nth(1)
    }

    #[must_use]
    pub fn newest_sandbox(&self) -> Option<&RuntimeSandbox> {
        self.sandboxes.first()
    }

    /// Returns true if any container or sandbox of the pod may be running.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        self.sandboxes.iter().any(|sandbox| sandbox.ready)
            || self.containers.iter().any(RuntimeContainer::is_running)
    }
}
