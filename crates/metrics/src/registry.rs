//! Metrics of a process that change at any time: [`Registry`].
//!
//! A handle ([`Counter`], [`Gauge`], [`Histogram`]) changes its metric; [`Registry::families`] returns all of
//! them as values, sorted by name.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::family::{Distribution, Family, Kind, Sample};
use crate::text;

/// All metrics of a process. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Registry {
    metrics: Arc<Mutex<BTreeMap<&'static str, Arc<Metric>>>>,
}

#[derive(Debug)]
struct Metric {
    name: &'static str,
    help: &'static str,
    labels: &'static [&'static str],
    /// By the values of the labels.
    series: SeriesMap,
}

/// The series of a metric by the values of its labels.
type ByLabels<T> = Mutex<BTreeMap<Vec<String>, T>>;

#[derive(Debug)]
enum SeriesMap {
    Numbers(Kind, ByLabels<f64>),
    /// With the upper bounds of the buckets, ascending.
    Histograms(&'static [f64], ByLabels<Distribution>),
}

impl SeriesMap {
    fn has_type_of(&self, other: &SeriesMap) -> bool {
        match (self, other) {
            (SeriesMap::Numbers(one, _), SeriesMap::Numbers(other, _)) => one == other,
            (SeriesMap::Histograms(one, _), SeriesMap::Histograms(other, _)) => one == other,
            _ => false,
        }
    }
}

/// A value that only increases.
#[derive(Debug, Clone)]
pub struct Counter(Arc<Metric>);

/// A value that can go up and down.
#[derive(Debug, Clone)]
pub struct Gauge(Arc<Metric>);

/// Observations counted in buckets.
#[derive(Debug, Clone)]
pub struct Histogram(Arc<Metric>);

impl Registry {
    /// Returns the metric of that name; the first call defines it. A call with another type gets a metric
    /// that is not rendered, so that the text stays valid.
    fn metric(
        &self,
        name: &'static str,
        help: &'static str,
        labels: &'static [&'static str],
        series: SeriesMap,
    ) -> Arc<Metric> {
        let new = Metric { name, help, labels, series };
        let mut metrics = self.metrics.lock();
        let Some(found) = metrics.get(name) else {
            let new = Arc::new(new);
            metrics.insert(name, Arc::clone(&new));
            return new;
        };
        let same = found.labels == labels && found.series.has_type_of(&new.series);
        debug_assert!(same, "{name} is registered as something else already");
        if same { Arc::clone(found) } else { Arc::new(new) }
    }

    /// Returns a counter. Without labels it exists with 0 from the start.
    #[must_use]
    pub fn counter(
        &self,
        name: &'static str,
        help: &'static str,
        labels: &'static [&'static str],
    ) -> Counter {
        let series = SeriesMap::Numbers(Kind::Counter, Mutex::default());
        let metric = self.metric(name, help, labels, series);
        if labels.is_empty() {
            metric.change_number(&[], |_| {});
        }
        Counter(metric)
    }

    /// Returns a gauge. Without labels it exists with 0 from the start.
    #[must_use]
    pub fn gauge(
        &self,
        name: &'static str,
        help: &'static str,
        labels: &'static [&'static str],
    ) -> Gauge {
        let series = SeriesMap::Numbers(Kind::Gauge, Mutex::default());
        let metric = self.metric(name, help, labels, series);
        if labels.is_empty() {
            metric.change_number(&[], |_| {});
        }
        Gauge(metric)
    }

    /// Returns a gauge without labels that does not exist until it is set.
    #[must_use]
    pub fn gauge_when_set(&self, name: &'static str, help: &'static str) -> Gauge {
        let series = SeriesMap::Numbers(Kind::Gauge, Mutex::default());
        Gauge(self.metric(name, help, &[], series))
    }

    /// Returns a counter whose value is maintained elsewhere. It does not exist until it is set.
    #[must_use]
    pub fn counter_when_set(&self, name: &'static str, help: &'static str) -> Gauge {
        let series = SeriesMap::Numbers(Kind::Counter, Mutex::default());
        Gauge(self.metric(name, help, &[], series))
    }

    /// Returns a histogram with ascending `bounds`; the unbounded bucket is added.
    #[must_use]
    pub fn histogram(
        &self,
        name: &'static str,
        help: &'static str,
        labels: &'static [&'static str],
        bounds: &'static [f64],
    ) -> Histogram {
        let series = SeriesMap::Histograms(bounds, Mutex::default());
        let metric = self.metric(name, help, labels, series);
        if labels.is_empty() {
            metric.change_distribution(&[], |_| {});
        }
        Histogram(metric)
    }

    /// Returns all metrics as values, sorted by name.
    #[must_use]
    pub fn families(&self) -> Vec<Family> {
        let metrics: Vec<Arc<Metric>> = self.metrics.lock().values().cloned().collect();
        metrics.iter().map(|metric| metric.family()).collect()
    }

    /// Renders all metrics as text.
    #[must_use]
    pub fn render(&self) -> String {
        text::render(&self.families())
    }
}

impl Counter {
    pub fn add(&self, labels: &[&str], by: u64) {
        // In both formats a counter is a floating-point number.
        self.0.change_number(labels, |value| *value += by as f64);
    }

    pub fn increment(&self, labels: &[&str]) {
        self.add(labels, 1);
    }

    /// Removes the series whose labels match.
    pub fn forget(&self, is_gone: impl Fn(&[String]) -> bool) {
        if let SeriesMap::Numbers(_, series) = &self.0.series {
            series.lock().retain(|labels, _| !is_gone(labels));
        }
    }
}

impl Gauge {
    pub fn set(&self, labels: &[&str], value: f64) {
        self.0.change_number(labels, |current| *current = value);
    }

    pub fn add(&self, labels: &[&str], by: f64) {
        self.0.change_number(labels, |value| *value += by);
    }

    /// Replaces all series: those that are not listed are removed.
    pub fn set_all<'a>(&self, all: impl IntoIterator<Item = (Vec<&'a str>, f64)>) {
        let all = all.into_iter().map(|(labels, value)| (owned(&labels), value)).collect();
        if let SeriesMap::Numbers(_, series) = &self.0.series {
            *series.lock() = all;
        }
    }

    /// Removes one series.
    pub fn remove(&self, labels: &[&str]) {
        if let SeriesMap::Numbers(_, series) = &self.0.series {
            series.lock().remove(&owned(labels));
        }
    }
}

impl Histogram {
    pub fn observe(&self, labels: &[&str], value: f64) {
        self.0.change_distribution(labels, |distribution| distribution.observe(value));
    }
}

impl Metric {
    fn change_number(&self, labels: &[&str], change: impl FnOnce(&mut f64)) {
        debug_assert_eq!(labels.len(), self.labels.len(), "labels of {}", self.name);
        if let SeriesMap::Numbers(_, series) = &self.series {
            change(series.lock().entry(owned(labels)).or_default());
        }
    }

    fn change_distribution(&self, labels: &[&str], change: impl FnOnce(&mut Distribution)) {
        debug_assert_eq!(labels.len(), self.labels.len(), "labels of {}", self.name);
        if let SeriesMap::Histograms(bounds, series) = &self.series {
            let new = || Distribution::new(bounds);
            change(series.lock().entry(owned(labels)).or_insert_with(new));
        }
    }

    fn family(&self) -> Family {
        match &self.series {
            SeriesMap::Numbers(kind, series) => {
                let series = series.lock();
                let samples =
                    series.iter().map(|(key, value)| Sample::new(&self.pairs(key), *value));
                Family::new(*kind, self.name, self.help, samples)
            }
            SeriesMap::Histograms(_, series) => {
                let series = series.lock();
                let all = series.iter().map(|(key, one)| (self.pairs(key), one.clone()));
                Family::histogram(self.name, self.help, all)
            }
        }
    }

    fn pairs<'a>(&self, values: &'a [String]) -> Vec<(&'static str, &'a str)> {
        self.labels.iter().copied().zip(values.iter().map(String::as_str)).collect()
    }
}

fn owned(labels: &[&str]) -> Vec<String> {
    labels.iter().map(|&label| label.to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_are_rendered_by_name() {
        let registry = Registry::default();
        let pods = registry.gauge("kubelet_running_pods", "Running pods.", &[]);
        let errors = registry.counter("a_errors_total", "Errors.", &["cause"]);
        let took = registry.histogram("b_seconds", "Time.", &["op"], &[0.5, 1.0]);
        pods.set(&[], 3.0);
        pods.add(&[], -1.0);
        errors.increment(&["y"]);
        errors.add(&["x"], 41);
        took.observe(&["run"], 0.75);
        let text = "\
# HELP a_errors_total Errors.
# TYPE a_errors_total counter
a_errors_total{cause=\"x\"} 41
a_errors_total{cause=\"y\"} 1
# HELP b_seconds Time.
# TYPE b_seconds histogram
b_seconds_bucket{op=\"run\",le=\"0.5\"} 0
b_seconds_bucket{op=\"run\",le=\"1\"} 1
b_seconds_bucket{op=\"run\",le=\"+Inf\"} 1
b_seconds_sum{op=\"run\"} 0.75
b_seconds_count{op=\"run\"} 1
# HELP kubelet_running_pods Running pods.
# TYPE kubelet_running_pods gauge
kubelet_running_pods 2
";
        assert_eq!(registry.render(), text);
    }

    #[test]
    fn handles_of_one_name_change_the_same_metric() {
        let registry = Registry::default();
        registry.counter("n_total", "N.", &["a"]).increment(&["x"]);
        registry.counter("n_total", "N.", &["a"]).increment(&["x"]);
        assert!(registry.render().contains("n_total{a=\"x\"} 2\n"));
    }

    #[test]
    fn only_metrics_without_labels_exist_from_the_start() {
        let registry = Registry::default();
        let _zero = registry.counter("zero_total", "Z.", &[]);
        let _labelled = registry.gauge("labelled", "L.", &["a"]);
        let unknown = registry.gauge_when_set("unknown", "U.");
        let elsewhere = registry.counter_when_set("elsewhere_total", "E.");
        assert_eq!(
            registry.render(),
            "# HELP zero_total Z.\n# TYPE zero_total counter\nzero_total 0\n"
        );
        unknown.set(&[], 7.0);
        elsewhere.set(&[], 8.0);
        let text = registry.render();
        assert!(text.contains("# TYPE unknown gauge\nunknown 7\n"), "{text}");
        assert!(text.contains("# TYPE elsewhere_total counter\nelsewhere_total 8\n"), "{text}");
    }

    #[test]
    fn removed_series_are_not_rendered() {
        let registry = Registry::default();
        let gauge = registry.gauge("g", "G.", &["a"]);
        gauge.set(&["old"], 1.0);
        gauge.set_all([(vec!["new"], 2.0)]);
        let counter = registry.counter("c", "C.", &["uid"]);
        counter.increment(&["gone"]);
        counter.increment(&["here"]);
        counter.forget(|labels| labels == ["gone"]);
        let text = registry.render();
        assert!(text.contains("g{a=\"new\"} 2\n"), "{text}");
        assert!(text.contains("c{uid=\"here\"} 1\n"), "{text}");
        for absent in ["old", "gone"] {
            assert!(!text.contains(absent), "{text}");
        }
        gauge.remove(&["new"]);
        assert!(!registry.render().contains("# TYPE g "));
    }
}
