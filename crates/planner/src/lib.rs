//! Offline what-if: a machine and pods in, a report and a picture out.
//!
//! Pure: text and values in, text and values out; the binary reads the files.

pub mod generate;
pub mod live;
pub mod machine;
pub mod picture;
pub mod remedy;
pub mod report;
pub mod simulate;
pub mod view;
