//! Real pods in a real containerd, through the API. Needs root, Linux and Debian's packages; see
//! crates/rig.

mod life;
mod resize;
mod support;
