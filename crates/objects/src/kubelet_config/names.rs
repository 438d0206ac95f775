//! The field names of objects inside KubeletConfiguration. The names of its own fields are in `fields`.

pub(super) const RESERVED_MEMORY: &[&str] = &["limits", "numaNode"];

pub(super) const MEMORY_SWAP: &[&str] = &["swapBehavior"];
