//! A containerd of a test's own: [`Containerd`]. Real containers, real cgroups, nothing shared with
//! another test or with a containerd that is there already, and nothing left behind. And a whole machine of
//! a test's own, with the NUMA nodes and hyper-threads that this one may lack: [`guest::Guest`].
//!
//! For tests only, and for Debian's packages `containerd`, `runc`, `busybox-static` and
//! `containernetworking-plugins`, as root on Linux; elsewhere [`Containerd::start`] says what is
//! missing. It speaks no CRI: it starts and ends processes, and the test brings its own client.
//!
//! ```no_run
//! let containerd = rig::Containerd::start()?;
//! println!("{}", containerd.endpoint());
//! # Ok::<(), rig::RigError>(())
//! ```
//!
//! What a rig made is found by its directory alone. So a rig whose process was killed before it could
//! clean up is cleaned up after by the next one to start; a lock in the directory tells the dead from
//! the living.

mod cgroups;
pub mod clients;
mod containerd;
pub mod guest;
mod image;
mod leftovers;
pub mod printed;
mod processes;
mod wait;

pub use containerd::{Containerd, RigError};
pub use image::{BUSYBOX, PAUSE};
pub use wait::{TooLate, wait_until};
