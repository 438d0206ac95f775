//! Metrics of the API server: [`Metrics`], returned as families of the crate `metrics`.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use metrics::{Distribution, Family, Kind, Sample};
use parking_lot::Mutex;

/// Upper bounds of the buckets of request durations, in seconds; a subset of upstream's.
const BUCKETS: &[f64] = &[0.001, 0.005, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0];

/// Returns metrics of other components of the process, for `/metrics`.
pub type MetricsCollector = Box<dyn Fn() -> Vec<Family> + Send + Sync>;

#[derive(Default)]
pub(crate) struct Metrics {
    requests: Mutex<BTreeMap<(&'static str, &'static str, u16), u64>>,
    durations: Mutex<BTreeMap<&'static str, Distribution>>,
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
        let mut checks = self.checks.lock();
        let checked = checks.entry((kind, name)).or_default();
        checked.is_healthy = is_healthy;
        match is_healthy {
            true => checked.successes += 1,
            false => checked.errors += 1,
        }
    }

    /// Returns the metrics of `/metrics/slis`, with upstream's names and help.
    pub(crate) fn check_families(&self) -> [Family; 2] {
        let checks = self.checks.lock().clone();
        let healthy = checks.iter().map(|((kind, check), checked)| {
            let value = f64::from(u8::from(checked.is_healthy));
            Sample::new(&[("name", check), ("type", kind)], value)
        });
        let results = checks.iter().flat_map(|((kind, check), checked)| {
            let counts = [("error", checked.errors), ("success", checked.successes)];
            counts.into_iter().filter(|(_, count)| *count > 0).map(move |(status, count)| {
                let labels = [("name", *check), ("status", status), ("type", *kind)];
                Sample::new(&labels, count as f64)
            })
        });
        [
            Family::new(
                Kind::Gauge,
                "kubernetes_healthcheck",
                "[STABLE] This metric records the result of a single healthcheck.",
                healthy,
            ),
            Family::new(
                Kind::Counter,
                "kubernetes_healthchecks_total",
                "[STABLE] This metric records the results of all healthcheck.",
                results,
            ),
        ]
    }

    pub(crate) fn observe(
        &self,
        verb: &'static str,
        resource: &'static str,
        code: u16,
        took: Duration,
    ) {
        let mut requests = self.requests.lock();
        *requests.entry((verb, resource, code)).or_default() += 1;
        drop(requests);
        let mut durations = self.durations.lock();
        let distribution = durations.entry(verb).or_insert_with(|| Distribution::new(BUCKETS));
        distribution.observe(took.as_secs_f64());
    }

    /// Returns the metrics of `/metrics`.
    pub(crate) fn families(&self, revision: u64) -> Vec<Family> {
        let requests = self.requests.lock().clone();
        let requests = requests.into_iter().map(|((verb, resource, code), count)| {
            let labels = [("verb", verb), ("resource", resource), ("code", &code.to_string())];
            Sample::new(&labels, count as f64)
        });
        let durations = self.durations.lock().clone();
        let durations = durations.into_iter().map(|(verb, took)| (vec![("verb", verb)], took));
        let long_running =
            self.watches.load(Ordering::Relaxed) + self.tunnels.load(Ordering::Relaxed);
        let mut families = vec![
            Family::new(Kind::Counter, "apiserver_request_total", "Requests answered.", requests),
            Family::histogram(
                "apiserver_request_duration_seconds",
                "Time until an answer was ready, by verb.",
                durations,
            ),
            Family::single(
                Kind::Gauge,
                "apiserver_current_inflight_requests",
                "Requests being worked on.",
                self.in_flight.load(Ordering::Relaxed) as f64,
            ),
            Family::single(
                Kind::Gauge,
                "apiserver_longrunning_requests",
                "Watches and streams that are open.",
                long_running as f64,
            ),
            Family::single(
                Kind::Gauge,
                "berth_store_revision",
                "The newest revision of the store.",
                revision as f64,
            ),
        ];
        if let Some(more) = self.more.get() {
            families.extend(more());
        }
        families
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
        let text = metrics::text::render(&metrics.families(7));
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
