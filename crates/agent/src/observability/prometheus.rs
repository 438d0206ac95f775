//! Metrics in Prometheus' text format: [`Registry`].
//!
//! Counters, gauges and histograms, each with labels. A handle can change its metric at any time; [`Registry::render`]
//! writes all of them, sorted by name. Values that are measured on request are written directly into a [`Text`]. It
//! measures nothing itself.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use objects::timestamp::Timestamp;

/// The media type of the text format.
pub const MEDIA_TYPE: &str = https::exposition::TEXT;

/// All metrics of a process. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Registry {
    families: Arc<Mutex<BTreeMap<&'static str, Arc<Family>>>>,
}

#[derive(Debug)]
struct Family {
    name: &'static str,
    help: &'static str,
    labels: &'static [&'static str],
    kind: Kind,
    /// By the values of the labels.
    series: Mutex<BTreeMap<Vec<String>, Series>>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Kind {
    Counter,
    Gauge,
    /// With the upper bounds of its buckets, ascending.
    Histogram(&'static [f64]),
}

#[derive(Debug, Clone, Default)]
struct Series {
    /// Of a histogram: the sum.
    value: f64,
    count: u64,
    /// Number of observations up to each bound.
    buckets: Vec<u64>,
}

/// A value that only increases.
#[derive(Debug, Clone)]
pub struct Counter(Arc<Family>);

/// A value that can go up and down.
#[derive(Debug, Clone)]
pub struct Gauge(Arc<Family>);

/// Observations counted in buckets.
#[derive(Debug, Clone)]
pub struct Histogram(Arc<Family>);

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Registry {
    /// Returns the family of that name; the first call defines it. A call with another type gets a family
    /// that is not rendered, so that the text stays valid.
    fn family(
        &self,
        name: &'static str,
        help: &'static str,
        labels: &'static [&'static str],
        kind: Kind,
    ) -> Arc<Family> {
        let new = || Arc::new(Family { name, help, labels, kind, series: Mutex::default() });
        let mut families = locked(&self.families);
        let found = families.entry(name).or_insert_with(new);
        let same = found.kind == kind && found.labels == labels;
        debug_assert!(same, "{name} is registered as something else already");
        if same { found.clone() } else { new() }
    }

    /// Returns a counter. Without labels it exists with 0 from the start.
    #[must_use]
    pub fn counter(
        &self,
        name: &'static str,
        help: &'static str,
        labels: &'static [&'static str],
    ) -> Counter {
        let family = self.family(name, help, labels, Kind::Counter);
        if labels.is_empty() {
            family.change(&[], |_| {});
        }
        Counter(family)
    }

    /// Returns a gauge. Without labels it exists with 0 from the start.
    #[must_use]
    pub fn gauge(
        &self,
        name: &'static str,
        help: &'static str,
        labels: &'static [&'static str],
    ) -> Gauge {
        let family = self.family(name, help, labels, Kind::Gauge);
        if labels.is_empty() {
            family.change(&[], |_| {});
        }
        Gauge(family)
    }

    /// Returns a gauge without labels that does not exist until it is set.
    #[must_use]
    pub fn looked_up(&self, name: &'static str, help: &'static str) -> Gauge {
        Gauge(self.family(name, help, &[], Kind::Gauge))
    }

    /// Returns a counter whose value is maintained elsewhere. It does not exist until it is set.
    #[must_use]
    pub fn looked_up_counter(&self, name: &'static str, help: &'static str) -> Gauge {
        Gauge(self.family(name, help, &[], Kind::Counter))
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
        let family = self.family(name, help, labels, Kind::Histogram(bounds));
        if labels.is_empty() {
            family.change(&[], |series| series.buckets.resize(bounds.len(), 0));
        }
        Histogram(family)
    }

    /// Renders all metrics as text.
    #[must_use]
    pub fn render(&self) -> String {
        let families: Vec<Arc<Family>> = locked(&self.families).values().cloned().collect();
        let mut text = String::new();
        for family in families {
            family.render(&mut text);
        }
        text
    }
}

impl Counter {
    pub fn add(&self, labels: &[&str], by: u64) {
        // In the text format a counter is a floating-point number anyway.
        self.0.change(labels, |series| series.value += by as f64);
    }

    pub fn increment(&self, labels: &[&str]) {
        self.add(labels, 1);
    }

    /// Removes the series whose labels match.
    pub fn forget(&self, is_gone: impl Fn(&[String]) -> bool) {
        locked(&self.0.series).retain(|labels, _| !is_gone(labels));
    }
}

impl Gauge {
    pub fn set(&self, labels: &[&str], value: f64) {
        self.0.change(labels, |series| series.value = value);
    }

    pub fn add(&self, labels: &[&str], by: f64) {
        self.0.change(labels, |series| series.value += by);
    }

    /// Replaces all series: those that are not listed are removed.
    pub fn set_all<'a>(&self, all: impl IntoIterator<Item = (Vec<&'a str>, f64)>) {
        let series = |value| Series { value, ..Series::default() };
        let owned = |labels: Vec<&str>| labels.into_iter().map(str::to_owned).collect();
        let all = all.into_iter().map(|(labels, value)| (owned(labels), series(value))).collect();
        *locked(&self.0.series) = all;
    }

    /// Removes one series.
    pub fn remove(&self, labels: &[&str]) {
        let key: Vec<String> = labels.iter().map(|&label| label.to_owned()).collect();
        locked(&self.0.series).remove(&key);
    }
}

impl Histogram {
    pub fn observe(&self, labels: &[&str], value: f64) {
        let Kind::Histogram(bounds) = self.0.kind else { return };
        self.0.change(labels, |series| {
            series.buckets.resize(bounds.len(), 0);
            series.value += value;
            series.count += 1;
            for (bucket, bound) in series.buckets.iter_mut().zip(bounds) {
                if value <= *bound {
                    *bucket += 1;
                }
            }
        });
    }
}

impl Family {
    fn change(&self, labels: &[&str], change: impl FnOnce(&mut Series)) {
        debug_assert_eq!(labels.len(), self.labels.len(), "labels of {}", self.name);
        let key = labels.iter().map(|&label| label.to_owned()).collect();
        change(locked(&self.series).entry(key).or_default());
    }

    fn render(&self, text: &mut String) {
        let series = locked(&self.series).clone();
        if series.is_empty() {
            return;
        }
        let Family { name, help, .. } = self;
        let kind = match self.kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram(_) => "histogram",
        };
        let help = help.replace('\\', r"\\").replace('\n', r"\n");
        let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
        for (values, one) in series {
            let labels = self.shown(&values, None);
            let Kind::Histogram(bounds) = self.kind else {
                let _ = writeln!(text, "{name}{labels} {}", one.value);
                continue;
            };
            for (bound, count) in bounds.iter().zip(&one.buckets) {
                let labels = self.shown(&values, Some(&bound.to_string()));
                let _ = writeln!(text, "{name}_bucket{labels} {count}");
            }
            let all = self.shown(&values, Some("+Inf"));
            let Series { value, count, .. } = one;
            let _ = writeln!(text, "{name}_bucket{all} {count}");
            let _ = writeln!(text, "{name}_sum{labels} {value}\n{name}_count{labels} {count}");
        }
    }

    fn shown(&self, values: &[String], bound: Option<&str>) -> String {
        let pairs = self.labels.iter().copied().zip(values.iter().map(String::as_str));
        shown(pairs.chain(bound.map(|bound| ("le", bound))))
    }
}

/// Formats `{a="b",le="1"}`, or nothing.
fn shown<'a>(pairs: impl Iterator<Item = (&'a str, &'a str)>) -> String {
    let escaped =
        |value: &str| value.replace('\\', r"\\").replace('"', "\\\"").replace('\n', r"\n");
    let shown: Vec<String> =
        pairs.map(|(name, value)| format!("{name}=\"{}\"", escaped(value))).collect();
    if shown.is_empty() { String::new() } else { format!("{{{}}}", shown.join(",")) }
}

/// Metrics that are written as they are measured. A family without a sample is not rendered.
#[derive(Debug, Clone, Default)]
pub struct Text {
    text: String,
    head: String,
}

impl Text {
    /// Starts a family; the following samples belong to it.
    pub fn family(&mut self, name: &str, help: &str, kind: &str) {
        self.head = format!("# HELP {name} {help}\n# TYPE {name} {kind}\n");
    }

    /// Writes a sample with its time, if its value is known.
    pub fn sample(
        &mut self,
        name: &str,
        labels: &[(&str, &str)],
        value: Option<f64>,
        at: Option<Timestamp>,
    ) {
        let Some(value) = value else { return };
        self.text.push_str(&std::mem::take(&mut self.head));
        let labels = shown(labels.iter().copied());
        let _ = write!(self.text, "{name}{labels} {value}");
        if let Some(at) = at {
            let millis = at.seconds().saturating_mul(1000) + i64::from(at.nanos() / 1_000_000);
            let _ = write!(self.text, " {millis}");
        }
        self.text.push('\n');
    }

    #[must_use]
    pub fn into_string(self) -> String {
        self.text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_written_as_prometheus_reads_them() {
        let registry = Registry::default();
        let pods = registry.gauge("kubelet_running_pods", "Pods that run.", &[]);
        let errors = registry.counter("a_errors_total", "Errors\nby what \\ said.", &["what"]);
        let took = registry.histogram("b_seconds", "Time.", &["op"], &[0.5, 1.0]);
        pods.set(&[], 3.0);
        pods.add(&[], -1.0);
        errors.increment(&["say \"no\"\n"]);
        errors.add(&["x"], 41);
        for value in [0.25, 0.75, 2.0] {
            took.observe(&["run"], value);
        }
        let text = "\
# HELP a_errors_total Errors\\nby what \\\\ said.
# TYPE a_errors_total counter
a_errors_total{what=\"say \\\"no\\\"\\n\"} 1
a_errors_total{what=\"x\"} 41
# HELP b_seconds Time.
# TYPE b_seconds histogram
b_seconds_bucket{op=\"run\",le=\"0.5\"} 1
b_seconds_bucket{op=\"run\",le=\"1\"} 2
b_seconds_bucket{op=\"run\",le=\"+Inf\"} 3
b_seconds_sum{op=\"run\"} 3
b_seconds_count{op=\"run\"} 3
# HELP kubelet_running_pods Pods that run.
# TYPE kubelet_running_pods gauge
kubelet_running_pods 2
";
        assert_eq!(registry.render(), text);
    }

    #[test]
    fn handles_of_one_name_are_the_same_figure() {
        let registry = Registry::default();
        registry.counter("n_total", "N.", &["a"]).increment(&["x"]);
        registry.counter("n_total", "N.", &["a"]).increment(&["x"]);
        assert!(registry.render().contains("n_total{a=\"x\"} 2\n"));
        let gauge = registry.gauge("g", "G.", &["a"]);
        gauge.set(&["x"], 1.5);
        gauge.remove(&["x"]);
        assert!(!registry.render().contains("# TYPE g "));
        assert!(registry.counter("zero_total", "Z.", &[]).0.name == "zero_total");
        assert!(registry.render().ends_with("zero_total 0\n"));
    }

    #[test]
    fn measured_values_are_written_with_their_time() {
        let mut text = Text::default();
        text.family("a", "A.", "gauge");
        text.sample("a", &[], None, None);
        text.family("b", "B.", "counter");
        text.sample("b", &[("x", "\"")], Some(1.5), Some(Timestamp::new(2, 3_000_000)));
        text.sample("b", &[], Some(2.0), None);
        let expected = "# HELP b B.\n# TYPE b counter\nb{x=\"\\\"\"} 1.5 2003\nb 2\n";
        assert_eq!(text.into_string(), expected);
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
        assert!(text.contains("g{a=\"new\"} 2\n") && !text.contains("old"), "{text}");
        assert!(text.contains("c{uid=\"here\"} 1\n") && !text.contains("gone"), "{text}");
    }
}
