//! Metrics as values: [`Family`], one metric with all its series at one time.
//!
//! A family is complete when it is created, so that a series of a histogram cannot be added to a counter.
//! A family without series is written in neither format. Does not check names against Prometheus' grammar:
//! they are constants of the callers.

use std::borrow::Cow;

/// The kind of a metric with one number for each series.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Only increases.
    Counter,
    /// Goes up and down.
    Gauge,
}

/// A time of a sample, in milliseconds since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnixMillis(pub i64);

/// Names and values of labels, in the order in which they are written.
pub(crate) type Labels = Vec<(&'static str, String)>;

/// One number with its labels.
#[derive(Debug, Clone, PartialEq)]
pub struct Sample {
    pub(crate) labels: Labels,
    pub(crate) value: f64,
    pub(crate) at: Option<UnixMillis>,
}

impl Sample {
    #[must_use]
    pub fn new(labels: &[(&'static str, &str)], value: f64) -> Sample {
        Sample { labels: owned(labels), value, at: None }
    }

    /// Sets the time of the measurement; without it the time of the scrape applies.
    #[must_use]
    pub fn at(self, at: UnixMillis) -> Sample {
        Sample { at: Some(at), ..self }
    }
}

/// Observations counted in buckets.
#[derive(Debug, Clone, PartialEq)]
pub struct Distribution {
    bounds: &'static [f64],
    /// The number of observations up to each bound.
    counts: Vec<u64>,
    pub(crate) count: u64,
    pub(crate) sum: f64,
}

impl Distribution {
    /// Creates an empty distribution. `bounds` are ascending; the unbounded bucket is added when it is written.
    #[must_use]
    pub fn new(bounds: &'static [f64]) -> Distribution {
        Distribution { bounds, counts: vec![0; bounds.len()], count: 0, sum: 0.0 }
    }

    pub fn observe(&mut self, value: f64) {
        self.count += 1;
        self.sum += value;
        for (count, bound) in self.counts.iter_mut().zip(self.bounds) {
            *count += u64::from(value <= *bound);
        }
    }

    /// Returns the upper bounds with their cumulative counts, without the unbounded bucket.
    pub(crate) fn buckets(&self) -> impl Iterator<Item = (f64, u64)> {
        self.bounds.iter().copied().zip(self.counts.iter().copied())
    }
}

/// A metric with all its series.
#[derive(Debug, Clone, PartialEq)]
pub struct Family {
    pub(crate) name: Cow<'static, str>,
    /// Empty: the metric has no help text.
    pub(crate) help: Cow<'static, str>,
    pub(crate) series: Series,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Series {
    Numbers(Kind, Vec<Sample>),
    Histograms(Vec<(Labels, Distribution)>),
}

impl Family {
    #[must_use]
    pub fn new(
        kind: Kind,
        name: impl Into<Cow<'static, str>>,
        help: impl Into<Cow<'static, str>>,
        samples: impl IntoIterator<Item = Sample>,
    ) -> Family {
        let series = Series::Numbers(kind, samples.into_iter().collect());
        Family { name: name.into(), help: help.into(), series }
    }

    /// Creates a family with one series without labels.
    #[must_use]
    pub fn single(kind: Kind, name: &'static str, help: &'static str, value: f64) -> Family {
        Family::new(kind, name, help, [Sample::new(&[], value)])
    }

    #[must_use]
    pub fn histogram<'a>(
        name: &'static str,
        help: &'static str,
        all: impl IntoIterator<Item = (Vec<(&'static str, &'a str)>, Distribution)>,
    ) -> Family {
        let all = all.into_iter().map(|(labels, distribution)| (owned(&labels), distribution));
        Family { name: name.into(), help: help.into(), series: Series::Histograms(all.collect()) }
    }

    pub(crate) fn is_empty(&self) -> bool {
        match &self.series {
            Series::Numbers(_, samples) => samples.is_empty(),
            Series::Histograms(all) => all.is_empty(),
        }
    }
}

fn owned(labels: &[(&'static str, &str)]) -> Labels {
    labels.iter().map(|(name, value)| (*name, (*value).to_owned())).collect()
}
