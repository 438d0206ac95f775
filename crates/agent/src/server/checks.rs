//! The results of the agent's health checks, for `/metrics/slis`: [`HealthCheckMetrics`]. Names and help are
//! upstream's.

use metrics::{Counter, Gauge, Registry};

/// The checks behind `/healthz`. The first two cannot fail while the agent answers at all.
const NAMES: [&str; 3] = ["ping", "log", "syncloop"];
/// The health endpoint that ran a check; the agent has only this one.
const TYPE: &str = "healthz";

/// Counts the results of health checks. Clones share the counts.
#[derive(Debug, Clone)]
pub(super) struct HealthCheckMetrics {
    /// Holds these metrics and no others.
    pub(super) registry: Registry,
    now: Gauge,
    total: Counter,
}

impl Default for HealthCheckMetrics {
    fn default() -> HealthCheckMetrics {
        let registry = Registry::default();
        let now = registry.gauge(
            "kubernetes_healthcheck",
            "[STABLE] This metric records the result of a single healthcheck.",
            &["name", "type"],
        );
        let total = registry.counter(
            "kubernetes_healthchecks_total",
            "[STABLE] This metric records the results of all healthcheck.",
            &["name", "status", "type"],
        );
        HealthCheckMetrics { registry, now, total }
    }
}

impl HealthCheckMetrics {
    /// Records one run of all checks.
    pub(super) fn observe(&self, is_healthy: bool) {
        for name in NAMES {
            let passed = is_healthy || name != "syncloop";
            let status = if passed { "success" } else { "error" };
            self.now.set(&[name, TYPE], f64::from(u8::from(passed)));
            self.total.increment(&[name, status, TYPE]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_counted_by_check_and_status() {
        let checks = HealthCheckMetrics::default();
        checks.observe(true);
        checks.observe(false);
        let text = checks.registry.render();
        for line in [
            "kubernetes_healthcheck{name=\"ping\",type=\"healthz\"} 1",
            "kubernetes_healthcheck{name=\"syncloop\",type=\"healthz\"} 0",
            "kubernetes_healthchecks_total{name=\"ping\",status=\"success\",type=\"healthz\"} 2",
            "kubernetes_healthchecks_total{name=\"syncloop\",status=\"error\",type=\"healthz\"} 1",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
    }
}
