//! A pod as the runtime has it: [`PodSeen`], with its sandboxes and containers, newest first.
//!
//! Made from the runtime's lists and statuses; times are nanoseconds since 1970, as the CRI has them.
//! Does not ask the runtime itself.

/// A container's or sandbox's id in the runtime.
pub type RuntimeId = String;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SandboxSeen {
    pub id: RuntimeId,
    pub attempt: u32,
    pub ready: bool,
    pub created_at: i64,
    /// Empty with host networking, and while there is no network.
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
pub struct ContainerSeen {
    pub id: RuntimeId,
    pub sandbox: RuntimeId,
    pub name: String,
    /// How many containers of this name there were before.
    pub attempt: u32,
    pub state: ContainerState,
    pub created_at: i64,
    pub started_at: i64,
    pub finished_at: i64,
    pub exit_code: i32,
    /// The runtime's word for how it ended, such as `OOMKilled`.
    pub reason: String,
    pub message: String,
    /// The image as it was asked for, and what the runtime made of it.
    pub image: String,
    pub image_id: String,
    /// What the agent made of the container's spec when it created it.
    pub hash: String,
}

impl ContainerSeen {
    /// One that was just made and started, and is not in any list yet.
    #[must_use]
    pub(crate) fn started(id: &RuntimeId, name: &str) -> ContainerSeen {
        ContainerSeen {
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

    /// Ended, and not well.
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

/// All the runtime has of a pod.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct PodSeen {
    /// Newest first.
    pub sandboxes: Vec<SandboxSeen>,
    /// Newest first.
    pub containers: Vec<ContainerSeen>,
}

impl PodSeen {
    /// Puts everything in order.
    #[must_use]
    pub fn new(mut sandboxes: Vec<SandboxSeen>, mut containers: Vec<ContainerSeen>) -> PodSeen {
        // Attempts tell apart what the clock does not.
        sandboxes.sort_by_key(|s| std::cmp::Reverse((s.created_at, s.attempt)));
        containers.sort_by_key(|c| std::cmp::Reverse((c.created_at, c.attempt)));
        PodSeen { sandboxes, containers }
    }

    /// The newest container of a name.
    #[must_use]
    pub fn container(&self, name: &str) -> Option<&ContainerSeen> {
        self.containers.iter().find(|container| container.name == name)
    }

    /// The one before the newest.
    #[must_use]
    pub fn previous(&self, name: &str) -> Option<&ContainerSeen> {
        self.containers.iter().filter(|container| container.name == name).nth(1)
    }

    #[must_use]
    pub fn newest_sandbox(&self) -> Option<&SandboxSeen> {
        self.sandboxes.first()
    }

    /// Whether anything of the pod may be running.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        self.sandboxes.iter().any(|sandbox| sandbox.ready)
            || self.containers.iter().any(ContainerSeen::is_running)
    }
}
