//! The class layer over a real containerd.

mod layer;
mod support;
