//! Properties of the placement core: same answers as plain exhaustive search, and invariants that
//! hold over long random walks.

mod distribution;
mod exhaustive;
mod machines;
mod merging;
mod walks;
