//! A containerd for each test: [`Containerd`]. It has real containers and cgroups, shares nothing
//! with other tests or with a containerd of the machine, and leaves nothing behind.
//! [`guest::Guest`] is a whole machine for a test, with NUMA nodes and hyper-threads that this
//! machine may lack.
//!
//! [`logs::capture`] captures log events, [`golden_node`] reads recordings of the kubelet, and
//! [`berth_binary`] is the binary under test.
//!
//! For tests only. A containerd needs Debian's packages `containerd`, `runc`, `busybox-static` and
//! `containernetworking-plugins`, and root on Linux; otherwise [`Containerd::start`] returns the
//! missing requirement. The rig only starts and stops processes; the test brings its own CRI
//! client.
//!
//! ```no_run
//! let containerd = rig::Containerd::start()?;
//! println!("{}", containerd.endpoint());
//! # Ok::<(), rig::RigError>(())
//! ```
//!
//! Everything that a rig creates can be found by its directory. The next rig therefore cleans up
//! after one whose process was killed; a lock in the directory shows whether its process is alive.

mod binary;
mod cgroups;
pub mod clients;
mod containerd;
pub mod golden_node;
pub mod guest;
mod image;
mod leftovers;
pub mod logs;
pub mod printed;
mod processes;
mod wait;

pub use binary::berth_binary;
pub use containerd::{Containerd, RigError};
pub use image::{BUSYBOX, PAUSE};
pub use wait::{WaitTimeout, wait_until};
