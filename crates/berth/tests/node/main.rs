//! Real pods in a real containerd, through the API. Needs root, Linux and Debian's packages; see
//! crates/rig.

mod kills;
mod life;
mod placement;
mod static_pods;
mod support;
