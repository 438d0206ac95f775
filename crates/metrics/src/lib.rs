//! Prometheus metrics of every component: [`Registry`] keeps them, [`Family`] is a metric as a value, and
//! [`exposition::negotiate`] encodes families in the format that a client prefers.
//!
//! - [`registry`]: counters, gauges and histograms that can be changed at any time.
//! - [`family`]: one metric with its series, as collected for one scrape.
//! - [`text`]: the text format, version 0.0.4.
//! - [`protobuf`]: the delimited protobuf format.
//! - [`exposition`]: media types and the choice between the two formats.
//!
//! Does not measure, serve or parse metrics, and does not write OpenMetrics.

pub mod exposition;
pub mod family;
pub mod protobuf;
pub mod registry;
pub mod text;

pub use family::{Distribution, Family, Kind, Sample, UnixMillis};
pub use registry::{Counter, Gauge, Histogram, Registry};
