//! Kubernetes objects as Berth serves them: kinds, quantities, defaulting, validation.
//!
//! Everything here is a value or a pure function over text: no files, no clock, no log. Readers
//! ([`yaml`]) collect every error with its position instead of stopping at the first.

pub mod apply;
pub mod catalog;
pub mod cursor;
pub mod decode_budget;
mod decode_path;
pub mod discovery;
pub mod duration;
pub mod feature_gates;
pub mod field;
pub mod go;
pub mod kubelet_config;
pub mod limits;
pub mod openapi;
pub mod patch;
pub mod pod;
mod problems;
pub mod protobuf;
pub mod quantity;
pub mod quota;
pub mod resources;
pub mod rules;
pub mod schema;
pub mod selector;
pub mod suggest;
pub mod table;
pub mod taint;
pub mod timestamp;
mod totals;
pub mod types;
pub mod workload;
pub mod yaml;

pub use feature_gates::{FeatureGates, Gate};
pub use field::{FieldError, FieldPath};
pub use kubelet_config::KubeletConfig;
pub use pod::QosClass;
pub use quantity::{ParseQuantityError, Quantity};
pub use resources::ResourceList;
pub use workload::{Manifest, Workload};
pub use yaml::YamlError;
