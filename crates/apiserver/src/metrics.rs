//! Metrics of the API server, in Prometheus text format.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

/// Upper bounds of the buckets of request durations, in seconds; a subset of upstream's.
const BUCKETS: [f64; 10] = [0.001, 0.005, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0];

/// Returns metrics of other components of the process, for `/metrics`.
pub type MetricsCollector = Box<dyn Fn() -> String + Send + Sync>;

#[derive(Default)]
pub(crate) struct Metrics {
    requests: Mutex<BTreeMap<(&'static str, &'static str, u16), u64>>,
    durations: Mutex<BTreeMap<&'static str, Histogram>>,
    /// By path of the health endpoint and name of the check.
    checks: Mutex<BTreeMap<(&'static str, &'static str), Checked>>,
    pub(crate) in_flight: AtomicI64,
    pub(crate) watches: AtomicI64,
    /// Open exec, attach and port-forward streams.
    pub(crate) tunnels: Arc<AtomicI64>,
    pub(crate) more: OnceLock<MetricsCollector>,
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics").finish_non_exhaustive()
    }
}

#[derive(Debug, Default, Clone)]
struct Histogram {
    buckets: [u64; BUCKETS.len()],
    count: u64,
    sum: f64,
}

/// The results of one health check.
#[derive(Debug, Default, Clone, Copy)]
struct Checked {
    is_healthy: bool,
    successes: u64,
    errors: u64,
}

impl Metrics {
    /// Records the result of a check that a health endpoint (`healthz`, `livez`, `readyz`) ran.
    pub(crate) fn observe_check(&self, kind: &str, name: &'static str, is_healthy: bool) {
        let kinds = ["healthz", "livez", "readyz"];
        let Some(kind) = kinds.into_iter().find(|known| *known == kind) else { return };
        let mut checks = self.checks.lock().unwrap_or_else(PoisonError::into_inner);
        let checked = checks.entry((kind, name)).or_default();
        checked.is_healthy = is_healthy;
        match is_healthy {
            true => checked.successes += 1,
            false => checked.errors += 1,
        }
    }

    /// Returns the text of `/metrics/slis`, with upstream's names and help.
    pub(crate) fn render_checks(&self) -> String {
        let checks = self.checks.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let mut text = String::new();
        if checks.is_empty() {
            return text;
        }
        let name = "kubernetes_healthcheck";
        let help = "[STABLE] This metric records the result of a single healthcheck.";
        let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} gauge");
        for ((kind, check), checked) in &checks {
            let value = i32::from(checked.is_healthy);
            let _ = writeln!(text, "{name}{{name=\"{check}\",type=\"{kind}\"}} {value}");
        }
        let name = "kubernetes_healthchecks_total";
        let help = "[STABLE] This metric records the results of all healthcheck.";
        let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} counter");
        for ((kind, check), checked) in &checks {
            for (status, count) in [("error", checked.errors), ("success", checked.successes)] {
                if count > 0 {
                    let labels = format!("name=\"{check}\",status=\"{status}\",type=\"{kind}\"");
                    let _ = writeln!(text, "{name}{{{labels}}} {count}");
                }
            }
        }
        text
    }

    pub(crate) fn observe(
        &self,
        verb: &'static str,
        resource: &'static str,
        code: u16,
        took: Duration,
    ) {
        let mut requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        *requests.entry((verb, resource, code)).or_default() += 1;
        drop(requests);
        let seconds = took.as_secs_f64();
        let mut durations = self.durations.lock().unwrap_or_else(PoisonError::into_inner);
        let histogram = durations.entry(verb).or_default();
        histogram.count += 1;
        histogram.sum += seconds;
        for (bucket, bound) in histogram.buckets.iter_mut().zip(BUCKETS) {
            if seconds <= bound {
                *bucket += 1;
            }
        }
    }

    /// Returns the text of `/metrics`.
    pub(crate) fn render(&self, revision: u64) -> String {
        let mut text = String::new();
        let head = |text: &mut String, name: &str, kind: &str, help: &str| {
            let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
        };
        head(&mut text, "apiserver_request_total", "counter", "Requests answered.");
        let requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner).clone();
        for ((verb, resource, code), count) in requests {
            let _ = writeln!(
                text,
                "apiserver_request_total{{verb=\"{verb}\",resource=\"{resource}\",code=\"{code}\"}} {count}"
            );
        }
        let name = "apiserver_request_duration_seconds";
        head(&mut text, name, "histogram", "Time until an answer was ready, by verb.");
        let durations = self.durations.lock().unwrap_or_else(PoisonError::into_inner).clone();
        for (verb, histogram) in durations {
            for (count, bound) in histogram.buckets.iter().zip(BUCKETS) {
                let _ = writeln!(text, "{name}_bucket{{verb=\"{verb}\",le=\"{bound}\"}} {count}");
            }
            let Histogram { count, sum, .. } = histogram;
            let _ = writeln!(text, "{name}_bucket{{verb=\"{verb}\",le=\"+Inf\"}} {count}");
            let _ = writeln!(text, "{name}_sum{{verb=\"{verb}\"}} {sum}");
            let _ = writeln!(text, "{name}_count{{verb=\"{verb}\"}} {count}");
        }
        for (name, help, value) in [
            (
                "apiserver_current_inflight_requests",
                "Requests being worked on.",
                self.in_flight.load(Ordering::Relaxed),
            ),
            (
                "apiserver_longrunning_requests",
                "Watches and streams that are open.",
                self.watches.load(Ordering::Relaxed) + self.tunnels.load(Ordering::Relaxed),
            ),
            (
                "berth_store_revision",
                "The newest revision of the store.",
                i64::try_from(revision).unwrap_or(i64::MAX),
            ),
        ] {
            head(&mut text, name, "gauge", help);
            let _ = writeln!(text, "{name} {value}");
        }
        if let Some(more) = self.more.get() {
            text.push_str(&more());
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_counted_by_verb_resource_and_code() {
        let metrics = Metrics::default();
        metrics.observe("get", "pods", 200, Duration::from_millis(3));
        metrics.observe("get", "pods", 200, Duration::from_millis(300));
        let text = metrics.render(7);
        for line in [
            "apiserver_request_total{verb=\"get\",resource=\"pods\",code=\"200\"} 2",
            "apiserver_request_duration_seconds_bucket{verb=\"get\",le=\"0.005\"} 1",
            "apiserver_request_duration_seconds_bucket{verb=\"get\",le=\"0.5\"} 2",
            "apiserver_request_duration_seconds_count{verb=\"get\"} 2",
            "berth_store_revision 7",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
    }
}
