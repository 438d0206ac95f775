//! CRI endpoints of our own.
//!
//! - [`ClassLayer`]: a CRI endpoint over any CRI runtime that adds QoS-class resources (KEP-3008) and forwards
//!   everything else unchanged.
//!
//! - [`kernel_classes::KernelClasses`]: the classes of a class file, enforced by the kernel of this machine.
//!
//! The host-process runtime and the OCI-runtime wrapper are to come. Deciding which pod gets which class is the
//! agent's and the scheduler's task, not this crate's.

pub mod class_layer;
mod grpc;
pub mod kernel_classes;
pub mod wire;

pub use class_layer::ClassLayer;
