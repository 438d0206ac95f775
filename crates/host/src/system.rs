//! What a machine says of itself beside its topology: [`Identity`], [`Memory`], [`FileSystem`],
//! [`ProcessIds`], [`Interface`], [`ProcessUsage`], and its [`addresses`].
//!
//! The values, and the readers of what Linux writes as text, which are tested everywhere. They are
//! fetched by [`crate::os::system`]. What a node makes of them is not decided here.

pub mod addresses;
pub mod linux;

/// Who a machine is.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Identity {
    /// In lower case, as names of nodes are.
    pub hostname: String,
    pub machine_id: String,
    pub system_uuid: String,
    /// Another one after every start.
    pub boot_id: String,
    pub kernel_version: String,
    /// Such as `Debian GNU/Linux 12 (bookworm)`.
    pub os_image: String,
    /// Whether the root here is another user's on the machine.
    pub in_user_namespace: bool,
}

/// Bytes of memory, as the kernel counts them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Memory {
    pub total: u64,
    pub free: u64,
    /// What could be had without swapping, by the system's own reckoning.
    pub available: u64,
    /// Pages of files that were not used lately.
    pub inactive_file: u64,
    pub swap_total: u64,
    pub swap_free: u64,
}

impl Memory {
    /// What is not in use in the sense of upstream's `memory.available`: the total without the working
    /// set, which is everything in use but the files that were not used lately.
    #[must_use]
    pub fn outside_working_set(&self) -> u64 {
        self.free.saturating_add(self.inactive_file).min(self.total)
    }
}

/// The file system that a path is on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FileSystem {
    pub capacity: u64,
    /// To everyone, not only to root.
    pub available: u64,
    /// `None` where files are not counted.
    pub inodes: Option<Inodes>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Inodes {
    pub total: u64,
    pub free: u64,
}

/// How many processes and threads there may be, and are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ProcessIds {
    pub max: u64,
    pub used: u64,
}

/// What went through a network interface.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Interface {
    pub name: String,
    pub received: Traffic,
    pub sent: Traffic,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Traffic {
    pub bytes: u64,
    pub packets: u64,
    pub errors: u64,
    pub dropped: u64,
}

/// What a process has used. Times in nanoseconds, amounts in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ProcessUsage {
    pub cpu: u64,
    pub resident: u64,
    pub virtual_memory: u64,
    pub open_files: u64,
}
